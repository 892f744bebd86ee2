//! The decision as data: what search hands to the transforms.

use crate::bytes::Bytes;
use crate::graph::NodeId;

/// Which nodes run, in which order, and which of them again.
///
/// The first occurrence of a node is its original, every later one a copy. Every input reads the
/// latest instance of its producer that computes it and stands before the reader
/// (see [`crate::operators::Recompute::recomputes`]). Every node occurs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The instances, in the order in which they are to run.
    pub sequence: Vec<NodeId>,
    /// What the search believes the peak to be, everything included.
    pub predicted_peak: Bytes,
}
