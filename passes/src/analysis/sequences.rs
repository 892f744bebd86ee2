//! Which nodes must keep their sequence although no tensor passes between them.
//!
//! Memory that is updated in place (running statistics of a batch normalization that branches
//! share, accumulation buffers) has to be updated and read in the sequence of the unmodified
//! graph: updates do not commute.

use std::collections::BTreeMap;

use crate::graph::{Graph, NodeId, TensorId, TensorKind};
use crate::operators;

/// Pairs of nodes of which the first must run before the second. `order` is how the unmodified
/// graph runs.
pub fn sequences(graph: &Graph, order: &[NodeId]) -> Vec<(NodeId, NodeId)> {
    // By buffer: its updates so far, and who has read it since the last.
    let mut updated: BTreeMap<TensorId, Option<NodeId>> = BTreeMap::new();
    for &id in order {
        let node = graph.node(id);
        for position in operators::updated_inputs(node) {
            if let Some(buffer) = node.input(position)
                && graph.tensor(buffer).kind != TensorKind::Value
            {
                updated.insert(buffer, None);
            }
        }
    }
    let mut readers: BTreeMap<TensorId, Vec<NodeId>> = BTreeMap::new();
    let mut pairs = Vec::new();
    for &id in order {
        let node = graph.node(id);
        let updates: Vec<TensorId> = operators::updated_inputs(node)
            .into_iter()
            .filter_map(|position| node.input(position))
            .collect();
        for tensor in node.reads() {
            let Some(last) = updated.get(&tensor).copied() else {
                continue;
            };
            pairs.extend(last.map(|last| (last, id)));
            if updates.contains(&tensor) {
                let before = readers.remove(&tensor).unwrap_or_default();
                pairs.extend(before.into_iter().map(|reader| (reader, id)));
                updated.insert(tensor, Some(id));
            } else {
                readers.entry(tensor).or_default().push(id);
            }
        }
    }
    pairs.retain(|(first, second)| first != second);
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}
