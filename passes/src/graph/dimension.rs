//! Dimensions of a shape, and what a shape's sizes come to.

use std::fmt;

/// One dimension as the file declares it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dimension {
    /// A number.
    Known(u64),
    /// A symbolic name, such as `batch`.
    Symbol(String),
    /// Neither.
    Unknown,
}

impl Dimension {
    /// The number, where it is one.
    pub fn number(&self) -> Option<u64> {
        match self {
            Dimension::Known(size) => Some(*size),
            Dimension::Symbol(_) | Dimension::Unknown => None,
        }
    }

    /// These sizes.
    pub(crate) fn all_known(sizes: &[u64]) -> Vec<Dimension> {
        sizes.iter().copied().map(Dimension::Known).collect()
    }

    /// Is it a number?
    pub fn is_number(&self) -> bool {
        self.number().is_some()
    }

    /// The name, where it has one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Dimension::Symbol(name) => Some(name),
            Dimension::Known(_) | Dimension::Unknown => None,
        }
    }
}

/// The number, the name, or `?`.
impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dimension::Known(size) => write!(f, "{size}"),
            Dimension::Symbol(name) => f.write_str(name),
            Dimension::Unknown => f.write_str("?"),
        }
    }
}

/// Are they all numbers?
pub(crate) fn all_numbers(shape: &[Dimension]) -> bool {
    shape.iter().all(Dimension::is_number)
}

/// The numbers, where they are all known.
pub(crate) fn numbers(shape: &[Dimension]) -> Option<Vec<u64>> {
    shape.iter().map(Dimension::number).collect()
}

/// How many elements a tensor of these sizes has. Saturates.
pub(crate) fn count(sizes: &[u64]) -> u64 {
    sizes.iter().copied().fold(1, u64::saturating_mul)
}

/// The same, if a number can say it.
pub(crate) fn checked_count(sizes: &[u64]) -> Option<u64> {
    sizes
        .iter()
        .try_fold(1u64, |count, &size| count.checked_mul(size))
}
