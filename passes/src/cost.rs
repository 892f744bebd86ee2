//! What a node takes.

use crate::bytes::Bytes;

/// A duration in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

/// What one node costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The time it takes.
    pub time: Nanos,
    /// What its kernel allocates besides its outputs, only while it runs.
    pub workspace: Bytes,
}
