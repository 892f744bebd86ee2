//! What differs, and where.

use std::fmt;

use crate::onnx::wire::WireError;

/// A written file does not say what its original says, or what the runtime would load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// From the innermost place outwards.
    places: Vec<String>,
    what: String,
}

impl Difference {
    pub(super) fn new(what: impl Into<String>) -> Difference {
        Difference {
            places: Vec::new(),
            what: what.into(),
        }
    }

    /// It lies in `place`.
    pub(super) fn within(mut self, place: impl FnOnce() -> String) -> Difference {
        self.places.push(place());
        self
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in self.places.iter().rev() {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.what)
    }
}

impl std::error::Error for Difference {}

impl From<WireError> for Difference {
    fn from(error: WireError) -> Difference {
        Difference::new(format!("damaged: {error}"))
    }
}

impl From<prost::DecodeError> for Difference {
    fn from(error: prost::DecodeError) -> Difference {
        Difference::new(format!("damaged: {error}"))
    }
}
