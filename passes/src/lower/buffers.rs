//! Buffers of which a step does more than to add to them once: no form in standard operators stands for that.
//!
//! What accumulates a gradient writes to its first input. In standard operators that stays as it was, and the new value comes out
//! beside it: whoever else reads the buffer, or adds to it, would find the old one.

use std::collections::BTreeMap;

use super::site::Obstacle;
use super::table;
use crate::analysis::overwrites::unordered_by;
use crate::graph::{Graph, Node, NodeId, TensorId, Uses};

/// Does the node write to its first input?
pub(super) fn accumulates(node: &Node) -> bool {
    table::entry(node).is_some_and(|entry| entry.name.starts_with("InPlaceAccumulator"))
}

/// A node that accumulates into such a buffer, and what else there is. Nodes are listed in a topological order.
pub(super) fn fault(graph: &Graph, uses: &Uses) -> Option<(NodeId, Obstacle)> {
    let name = |tensor: TensorId| &graph.tensor(tensor).name;
    let other = |id: NodeId| super::describe(graph, id);
    let refused = |id, when| Some((id, Obstacle::Case { when }));
    let updates = graph.listed().filter(|(_, node)| accumulates(node));
    let updates = updates.filter_map(|(id, node)| Some((id, node.input(0)?, node.output(0)?)));
    let mut by_buffer = BTreeMap::new();
    let mut read_otherwise = BTreeMap::new();
    for (id, buffer, result) in updates {
        // An older form gives the sum there.
        let is_flag = graph.node(id).op_type == "InPlaceAccumulatorV2";
        if let Some(&reader) = uses.readers(result).first().filter(|_| is_flag) {
            let (reader, result) = (other(reader), name(result));
            let when =
                format!("where {reader} reads {result:?}, in whose place the new value comes out");
            return refused(id, when);
        }
        if graph.outputs.contains(&buffer) {
            let buffer = name(buffer);
            return refused(
                id,
                format!("where its buffer {buffer:?} is an output as well"),
            );
        }
        if let Some(first) = by_buffer.insert(buffer, id) {
            let (next, buffer) = (other(id), name(buffer));
            return refused(first, format!("where {next} adds to {buffer:?} as well"));
        }
        if uses.readers(buffer).iter().any(|&reader| reader != id) {
            read_otherwise.insert(result, buffer);
        }
    }
    let late = unordered_by(graph, &read_otherwise).into_iter().next();
    late.and_then(|(reader, id)| {
        let reader = other(reader);
        let buffer = name(graph.node(id).input(0)?);
        let when = format!("where {reader} reads {buffer:?}, which may be the new value");
        refused(id, when)
    })
}
