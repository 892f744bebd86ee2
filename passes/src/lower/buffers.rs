//! Buffers of which a step does more than to add to them once: no form in standard operators stands for that.
//!
//! What accumulates a gradient writes to its first input. In standard operators that stays as it was, and the new value comes out
//! beside it: whoever else reads the buffer, or adds to it, would find the old one.

use std::collections::HashSet;

use super::site::{CONTRIB, Obstacle};
use crate::graph::{Graph, Node, NodeId, TensorId, Uses};

/// The first node that accumulates into such a buffer, and what else there is.
pub(super) fn fault(graph: &Graph, uses: &Uses) -> Option<(NodeId, Obstacle)> {
    graph.order().iter().find_map(|&id| {
        let buffer = accumulates(graph.node(id))?;
        let when = used_otherwise(graph, uses, id, buffer)?;
        Some((id, Obstacle::Case { when }))
    })
}

/// What the node adds to.
fn accumulates(node: &Node) -> Option<TensorId> {
    let updates = ["InPlaceAccumulator", "InPlaceAccumulatorV2"];
    let is_update = node.domain == CONTRIB && updates.contains(&node.op_type.as_str());
    node.input(0).filter(|_| is_update)
}

fn used_otherwise(graph: &Graph, uses: &Uses, id: NodeId, buffer: TensorId) -> Option<String> {
    let name = |tensor: TensorId| &graph.tensor(tensor).name;
    let done = graph.node(id).output(0);
    let done = done.filter(|_| graph.node(id).op_type == "InPlaceAccumulatorV2");
    if let Some((done, &reader)) = done.and_then(|done| Some((done, uses.readers(done).first()?))) {
        let (reader, done) = (super::describe(graph, reader), name(done));
        return Some(format!(
            "where {reader} reads {done:?}, in whose place the new value comes out"
        ));
    }
    if graph.outputs.contains(&buffer) {
        let buffer = name(buffer);
        return Some(format!("where its buffer {buffer:?} is an output as well"));
    }
    uses.readers(buffer).iter().find_map(|&reader| {
        let other = || super::describe(graph, reader);
        let buffer_name = name(buffer);
        if reader == id {
            None
        } else if accumulates(graph.node(reader)) == Some(buffer) {
            Some(format!("where {} adds to {buffer_name:?} as well", other()))
        } else {
            let reads = || {
                format!(
                    "where {} reads {buffer_name:?}, which may be the new value",
                    other()
                )
            };
            (!precedes(graph, uses, reader, id)).then(reads)
        }
    })
}

/// Does the second node wait for the first, whatever the order?
fn precedes(graph: &Graph, uses: &Uses, first: NodeId, second: NodeId) -> bool {
    let mut seen = HashSet::from([second]);
    let mut open = vec![second];
    while let Some(id) = open.pop() {
        let node = graph.node(id);
        let before = node.reads().filter_map(|read| uses.producer(read));
        open.extend(before.filter(|&id| seen.insert(id)));
    }
    seen.contains(&first)
}
