//! A sequence of computations written out as a graph, in the plainest way.

use crate::graph::{AttributeValue, Graph, Node, NodeId, Tensor, TensorId, TensorKind};
use crate::operators::{self, Recompute};

/// `graph` with every node computed as often as it occurs in `sequence`, in that order. The
/// first occurrence is the original; every read is of the latest computation before it. Graph
/// outputs come from originals. Copies leave out what nobody reads where their operator may.
pub fn unroll(graph: &Graph, sequence: &[NodeId]) -> Graph {
    let mut unrolled = graph.clone();
    let mut latest: Vec<TensorId> = graph.tensor_ids().collect();
    let mut seen = vec![false; graph.node_count()];
    let mut order = Vec::new();
    for (step, &id) in sequence.iter().enumerate() {
        let mut node = graph.node(id).clone();
        if !std::mem::replace(&mut seen[id.index()], true) {
            rebind(&mut node, &latest);
            *unrolled.node_mut(id) = node;
            order.push(id);
            continue;
        }
        let rule = operators::recompute(&node);
        let later = &sequence[step + 1..];
        let until_next = later
            .iter()
            .position(|&next| next == id)
            .unwrap_or(later.len());
        let read_later = |tensor: TensorId| {
            let reads = |id: &NodeId| instance_reads(graph.node(*id)).contains(&tensor);
            !graph.outputs.contains(&tensor) && later[..until_next].iter().any(reads)
        };
        if rule == Recompute::DropoutFromMask {
            let mut inputs = vec![node.input(0), node.output(1)];
            inputs.extend(&node.inputs[1..]);
            node = Node::new(
                "",
                "com.microsoft",
                "DropoutGrad",
                inputs,
                vec![node.output(0)],
            );
        }
        if rule == Recompute::BatchNorm {
            node.set_attribute("momentum", AttributeValue::Float(1.0));
        }
        node.set_attribute("__recompute", AttributeValue::Int(step as i64));
        node.name = format!("{}_again_{step}", graph.node(id).name);
        rebind(&mut node, &latest);
        for (position, output) in node.outputs.iter_mut().enumerate() {
            let Some(tensor) = *output else { continue };
            if operators::may_omit_output(graph.node(id), position) && !read_later(tensor) {
                *output = None;
                continue;
            }
            let of = graph.tensor(tensor);
            let name = unrolled.free_tensor_name(&format!("{}_again", of.name));
            let copy = Tensor {
                name,
                kind: TensorKind::Value,
                ..of.clone()
            };
            let copy = unrolled.add_tensor(copy);
            *output = Some(copy);
            if rule.recomputes(position) && !graph.outputs.contains(&tensor) {
                latest[tensor.index()] = copy;
            }
        }
        while node.outputs.last().is_some_and(Option::is_none) {
            node.outputs.pop();
        }
        order.push(unrolled.add_node(node));
    }
    unrolled.set_order(order);
    unrolled
}

fn rebind(node: &mut Node, latest: &[TensorId]) {
    let tensors = node.inputs.iter_mut().flatten().chain(&mut node.captures);
    tensors.for_each(|tensor| *tensor = latest[tensor.index()]);
}

/// What a node reads, and what its copies read besides.
pub(super) fn instance_reads(node: &Node) -> Vec<TensorId> {
    let own = operators::recompute(node).reads_own_outputs();
    node.reads()
        .chain(own.iter().filter_map(|&output| node.output(output)))
        .collect()
}
