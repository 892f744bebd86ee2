//! The sequence in which a file lists its nodes.

use std::borrow::Cow;

use crate::graph::{Graph, NodeId};

/// `graph`, which was read from a file, with its nodes in the file's order, should reading have sorted them. A node's index
/// is its place in the file, whether that is topological or not, and on indices it depends in which order the runtime runs.
pub(super) fn as_listed(graph: &Graph) -> Cow<'_, Graph> {
    // What functions and operators without a kernel are made of comes last, one after the other.
    let place = |id: &NodeId| {
        let node = graph.node(*id);
        let place = node.piece_of.or(node.template)?;
        Some((node.piece_of.is_some(), place))
    };
    let places: Option<Vec<_>> = graph.order().iter().map(place).collect();
    if places.is_none_or(|places| places.is_sorted()) {
        return Cow::Borrowed(graph);
    }
    let mut order = graph.order().to_vec();
    order.sort_by_key(place);
    let mut listed = graph.clone();
    listed.set_order(order);
    Cow::Owned(listed)
}

/// Does the file list the nodes in the graph's order?
pub(super) fn is_as_listed(graph: &Graph) -> bool {
    matches!(as_listed(graph), Cow::Borrowed(_))
}
