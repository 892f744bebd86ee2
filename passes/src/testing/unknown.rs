//! Random graphs of operators that nobody knows, with sizes, times and orders as odd as they may be.

use std::collections::BTreeMap;

use super::random::Draw;
use crate::analysis::cost::NodeOverride;
use crate::graph::{
    Attribute, AttributeValue, Dimension, ElementType, Graph, Node, NodeId, Tensor, TensorId,
    TensorKind,
};

/// A graph of at most `most` nodes that can be run: no cycles, every tensor with type and shape. There are ties, unread and
/// omitted outputs, several outputs, shared inputs, equal nodes, and any file order. It counts as a training graph by the
/// name of its first operator.
pub fn unknown_graph(random: &mut impl Draw, most: usize) -> Graph {
    let mut graph = Graph::new("unknown");
    graph.opsets.insert(String::new(), 15);
    graph.opsets.insert("fuzz".to_owned(), 1);
    // Many graphs have few sizes, so that peaks tie.
    let extreme = random.one_in(8);
    let mut tensors = Vec::new();
    for at in 0..=random.below(3) {
        let kind = random.pick(&[TensorKind::Input, TensorKind::Initializer]);
        let id = tensor(random, &mut graph, format!("in{at}"), kind, extreme);
        tensors.push(id);
    }
    let nodes = 1 + random.below(most);
    let mut read = vec![false; tensors.len()];
    for at in 0..nodes {
        if at > 1 && random.one_in(8) {
            let of = NodeId(1 + random.below(at - 1) as u32);
            tensors.extend(again(random, &mut graph, of, at));
            read.resize(tensors.len(), false);
            continue;
        }
        let recent = random.one_in(2);
        let inputs = (0..random.below(5)).map(|_| {
            let end = tensors.len();
            let from = if recent { end.saturating_sub(4) } else { 0 };
            let at = from + random.below(end - from);
            read[at] = true;
            (!random.one_in(12)).then_some(tensors[at])
        });
        let inputs: Vec<_> = inputs.collect();
        let outputs = (0..=random.below(3)).map(|position| {
            let omitted = position > 0 && random.one_in(6);
            let name = format!("t{at}_{position}");
            (!omitted).then(|| tensor(random, &mut graph, name, TensorKind::Value, extreme))
        });
        let outputs: Vec<_> = outputs.collect();
        tensors.extend(outputs.iter().flatten());
        read.resize(tensors.len(), false);
        // What an operator makes of the same inputs has the same type and shape.
        let types = types(&graph, &outputs);
        let operator = match at {
            0 => "UnknownGrad".to_owned(),
            _ => format!("Unknown{}{types}", random.below(4)),
        };
        let mut node = Node::new(format!("n{at}"), "fuzz", operator, inputs, outputs);
        if random.one_in(4) {
            node.attributes.push(Attribute {
                name: "alpha".to_owned(),
                value: AttributeValue::Int(random.below(3) as i64),
            });
        }
        graph.add_node(node);
    }
    // Some of what nobody reads stays unread.
    let made: Vec<_> = tensors.iter().zip(&read).collect();
    for (&id, &read) in made {
        let value = graph.tensor(id).kind == TensorKind::Value;
        let chance = if read { 8 } else { 2 };
        if value && random.one_in(chance) {
            graph.outputs.push(id);
        }
    }
    if random.one_in(2) {
        let order = topological(random, &graph);
        graph.set_order(order);
    }
    graph
}

/// What the user may say of it: times, workspace, and what may be repeated.
pub fn unknown_costs(random: &mut impl Draw, graph: &Graph) -> BTreeMap<String, NodeOverride> {
    let extreme = random.one_in(6);
    let mut costs = BTreeMap::new();
    for &id in graph.order() {
        if random.one_in(8) {
            continue;
        }
        let time_us = match extreme {
            true => random.pick(&[1.0, 0.0, 1e-300, 1e13, 1e19, 1e300, f64::MAX]),
            false => random.pick(&[1.0, 1.0, 2.0, 5.0, 100.0]),
        };
        let workspace_bytes = match random.below(8) {
            0 if extreme => Some(size(random)),
            1 => Some(random.pick(&[4096, 1 << 20])),
            _ => None,
        };
        let said = NodeOverride {
            time_us: Some(time_us),
            workspace_bytes,
            recomputable: Some(!random.one_in(5)),
            mirrors: random.one_in(8).then(|| random.below(5) as u32),
            modelled: None,
        };
        costs.insert(graph.node(id).name.clone(), said);
    }
    costs
}

/// Adds a node that computes what another one does; what it writes. One in sixteen says otherwise of what it writes, so
/// that the file contradicts itself.
fn again(random: &mut impl Draw, graph: &mut Graph, of: NodeId, at: usize) -> Vec<TensorId> {
    let mut node = graph.node(of).clone();
    node.name = format!("n{at}");
    let otherwise = random.one_in(16);
    for (position, output) in node.outputs.iter_mut().enumerate() {
        let Some(written) = output else { continue };
        let name = format!("t{at}_{position}");
        *written = match otherwise {
            true => tensor(random, graph, name, TensorKind::Value, false),
            false => {
                let name = Tensor {
                    name,
                    ..graph.tensor(*written).clone()
                };
                graph.add_tensor(name)
            }
        };
    }
    let written = node.writes().collect();
    graph.add_node(node);
    written
}

fn types(graph: &Graph, outputs: &[Option<TensorId>]) -> String {
    let one = |&id: &TensorId| {
        let tensor = graph.tensor(id);
        let shape = tensor.shape.iter().flatten();
        let numbers = shape.map(u64::to_string).collect::<Vec<_>>();
        let element = tensor.element.map_or("", ElementType::name);
        format!("_{element}_{}", numbers.join("x"))
    };
    outputs.iter().flatten().map(one).collect()
}

fn tensor(
    random: &mut impl Draw,
    graph: &mut Graph,
    name: String,
    kind: TensorKind,
    extreme: bool,
) -> TensorId {
    let element = random.pick(&[ElementType::Float, ElementType::Float, ElementType::Float16]);
    let shape = match extreme {
        true => (0..random.below(4)).map(|_| size(random)).collect(),
        false => vec![random.pick(&[256_u64, 1024, 1024, 1024, 4096, 65_536, 1 << 20, 1, 0])],
    };
    let mut tensor = Tensor::new(name, kind);
    tensor.element = Some(element);
    tensor.declared = Some(shape.iter().map(|&size| Dimension::Known(size)).collect());
    tensor.shape = Some(shape);
    let id = graph.add_tensor(tensor);
    if kind == TensorKind::Input {
        graph.inputs.push(id);
    }
    id
}

/// Any number, of any magnitude.
fn size(random: &mut impl Draw) -> u64 {
    let shift = random.below(65) as u32;
    random.bits().checked_shr(64 - shift.min(64)).unwrap_or(0)
}

/// Any topological order.
fn topological(random: &mut impl Draw, graph: &Graph) -> Vec<NodeId> {
    let mut left: Vec<NodeId> = graph.order().to_vec();
    let mut made: Vec<bool> = graph
        .tensor_ids()
        .map(|id| graph.tensor(id).kind != TensorKind::Value)
        .collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        let ready = |id: &&NodeId| graph.node(**id).reads().all(|read| made[read.index()]);
        let ready: Vec<NodeId> = left.iter().filter(ready).copied().collect();
        let next = random.pick(&ready);
        left.retain(|id| *id != next);
        for written in graph.node(next).writes() {
            made[written.index()] = true;
        }
        order.push(next);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::super::SplitMix64;
    use super::*;
    use crate::verify;

    #[test]
    fn every_kind_of_oddity_occurs() {
        let (mut unread, mut omitted, mut twice, mut equal, mut sorted) = (0, 0, 0, 0, 0);
        for seed in 0..200 {
            let graph = unknown_graph(&mut SplitMix64::new(seed), 16);
            assert_eq!(verify::structure(&graph), Ok(()), "seed {seed}");
            let uses = crate::graph::Uses::of(&graph);
            let nodes = || graph.nodes();
            let is_unread = |t| uses.readers(t).is_empty() && !graph.outputs.contains(&t);
            unread += usize::from(nodes().flat_map(Node::writes).any(is_unread));
            omitted += usize::from(nodes().any(|node| node.outputs.contains(&None)));
            let shared = |node: &Node| {
                let reads: Vec<_> = node.reads().collect();
                (1..reads.len()).any(|at| reads[..at].contains(&reads[at]))
            };
            twice += usize::from(nodes().any(shared));
            let like = |a: &Node, b: &Node| (&a.op_type, &a.inputs) == (&b.op_type, &b.inputs);
            equal += usize::from(nodes().any(|node| nodes().filter(|n| like(n, node)).count() > 1));
            sorted += usize::from(graph.order().is_sorted());
        }
        let least = unread.min(omitted).min(twice).min(equal).min(200 - sorted);
        assert!(least > 10, "{unread} {omitted} {twice} {equal} {sorted}");
    }
}
