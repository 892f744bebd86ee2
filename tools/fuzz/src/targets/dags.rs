//! Graphs of operators that nobody knows, with sizes, times and orders as odd as they may be.

use std::collections::BTreeMap;

use ckpt_passes::analysis::cost::NodeOverride;
use ckpt_passes::graph::{
    Attribute, AttributeValue, Dimension, ElementType, Graph, Node, NodeId, Tensor, TensorId,
    TensorKind,
};

use super::plan;
use crate::source::Source;

pub(super) fn run(source: &mut Source) -> Result<(), String> {
    let graph = graph(source);
    source.file("txt", || graph.to_listing().into_bytes());
    let mut options = plan::options(source);
    options.overrides = costs(source, &graph);
    source.file("costs.txt", || {
        format!("{:#?}\n{options:#?}", options.overrides).into_bytes()
    });
    for rewritten in plan::plan(source, &graph, &options, None)? {
        if let Some(name) = differs(&graph, &rewritten) {
            return Err(format!(
                "tensor {name:?} is another value in the rewritten graph"
            ));
        }
    }
    Ok(())
}

/// A graph that can be run: no cycles, every tensor with type and shape.
fn graph(source: &mut Source) -> Graph {
    let mut graph = Graph::new("dag");
    graph.opsets.insert(String::new(), 15);
    graph.opsets.insert("fuzz".to_owned(), 1);
    // Many graphs have few sizes, so that peaks tie.
    let extreme = source.one_in(8);
    let mut tensors = Vec::new();
    for at in 0..=source.below(3) {
        let kind = source.pick(&[TensorKind::Input, TensorKind::Initializer]);
        let id = tensor(source, &mut graph, format!("in{at}"), kind, extreme);
        tensors.push(id);
    }
    let most = 2 << source.below(5);
    let nodes = 1 + source.below(most);
    let mut read = vec![false; tensors.len()];
    for at in 0..nodes {
        let recent = source.one_in(2);
        let inputs = (0..source.below(5)).map(|_| {
            let end = tensors.len();
            let from = if recent { end.saturating_sub(4) } else { 0 };
            let at = from + source.below(end - from);
            read[at] = true;
            (!source.one_in(12)).then_some(tensors[at])
        });
        let inputs: Vec<_> = inputs.collect();
        let outputs = (0..=source.below(3)).map(|position| {
            let omitted = position > 0 && source.one_in(6);
            let name = format!("t{at}_{position}");
            (!omitted).then(|| tensor(source, &mut graph, name, TensorKind::Value, extreme))
        });
        let outputs: Vec<_> = outputs.collect();
        tensors.extend(outputs.iter().flatten());
        read.resize(tensors.len(), false);
        // What an operator makes of the same inputs has the same type and shape.
        let types = outputs.iter().flatten().map(|&id| {
            let tensor: &Tensor = graph.tensor(id);
            let shape = tensor.shape.iter().flatten();
            let numbers = shape.map(u64::to_string).collect::<Vec<_>>();
            format!(
                "_{}_{}",
                tensor.element.map_or("", ElementType::name),
                numbers.join("x")
            )
        });
        let operator = match at {
            0 => "UnknownGrad".to_owned(),
            _ => format!("Unknown{}{}", source.below(4), types.collect::<String>()),
        };
        let mut node = Node::new(format!("n{at}"), "fuzz", operator, inputs, outputs);
        if source.one_in(4) {
            node.attributes.push(Attribute {
                name: "alpha".to_owned(),
                value: AttributeValue::Int(source.below(3) as i64),
            });
        }
        graph.add_node(node);
    }
    // Some of what nobody reads stays unread.
    let made: Vec<_> = tensors.iter().zip(&read).collect();
    for (&id, &read) in made {
        let value = graph.tensor(id).kind == TensorKind::Value;
        let chance = if read { 8 } else { 2 };
        if value && source.one_in(chance) {
            graph.outputs.push(id);
        }
    }
    if source.one_in(2) {
        let order = topological(source, &graph);
        graph.set_order(order);
    }
    graph
}

fn tensor(
    source: &mut Source,
    graph: &mut Graph,
    name: String,
    kind: TensorKind,
    extreme: bool,
) -> TensorId {
    let element = source.pick(&[ElementType::Float, ElementType::Float, ElementType::Float16]);
    let shape = match extreme {
        true => (0..source.below(4)).map(|_| size(source)).collect(),
        false => vec![source.pick(&[256_u64, 1024, 1024, 1024, 4096, 65_536, 1 << 20, 1, 0])],
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
fn size(source: &mut Source) -> u64 {
    let shift = source.below(65) as u32;
    source.bits().checked_shr(64 - shift.min(64)).unwrap_or(0)
}

fn topological(source: &mut Source, graph: &Graph) -> Vec<NodeId> {
    let mut left: Vec<NodeId> = graph.order().to_vec();
    let mut made: Vec<bool> = graph
        .tensor_ids()
        .map(|id| graph.tensor(id).kind != TensorKind::Value)
        .collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        let ready = |id: &&NodeId| graph.node(**id).reads().all(|read| made[read.index()]);
        let ready: Vec<NodeId> = left.iter().filter(ready).copied().collect();
        let next = source.pick(&ready);
        left.retain(|id| *id != next);
        for written in graph.node(next).writes() {
            made[written.index()] = true;
        }
        order.push(next);
    }
    order
}

/// Times, workspace, and what may be repeated.
fn costs(source: &mut Source, graph: &Graph) -> BTreeMap<String, NodeOverride> {
    let extreme = source.one_in(6);
    let mut costs = BTreeMap::new();
    for &id in graph.order() {
        if source.one_in(8) {
            continue;
        }
        let time_us = match extreme {
            true => source.pick(&[1.0, 0.0, 1e-300, 1e13, 1e19, 1e300, f64::MAX]),
            false => source.pick(&[1.0, 1.0, 2.0, 5.0, 100.0]),
        };
        let workspace_bytes = match source.below(8) {
            0 if extreme => Some(size(source)),
            1 => Some(source.pick(&[4096, 1 << 20])),
            _ => None,
        };
        let said = NodeOverride {
            time_us: Some(time_us),
            workspace_bytes,
            recomputable: Some(!source.one_in(5)),
            mirrors: source.one_in(8).then(|| source.below(5) as u32),
            modelled: None,
        };
        costs.insert(graph.node(id).name.clone(), said);
    }
    costs
}

/// The output that is computed from other things than before, if any is. Written anew, in a few lines: every value is
/// what makes it, in words; a PassThrough gives what it is given, position by position.
fn differs(before: &Graph, after: &Graph) -> Option<String> {
    let (before_values, after_values) = (values(before), values(after));
    let names = before.outputs.iter().map(|&id| &before.tensor(id).name);
    for name in names {
        let of = |values: &BTreeMap<String, u64>| values.get(name).copied();
        if of(&before_values).is_none() || of(&before_values) != of(&after_values) {
            return Some(name.clone());
        }
    }
    None
}

fn values(graph: &Graph) -> BTreeMap<String, u64> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let hash = |what: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        what(&mut hasher);
        hasher.finish()
    };
    let mut values: BTreeMap<String, u64> = BTreeMap::new();
    let name = |id: TensorId| graph.tensor(id).name.clone();
    for id in graph.tensor_ids() {
        if graph.tensor(id).kind != TensorKind::Value {
            values.insert(name(id), hash(&|hasher| name(id).hash(hasher)));
        }
    }
    for &id in graph.order() {
        let node = graph.node(id);
        let read = |input: &Option<TensorId>| input.map(|id| values.get(&name(id)).copied());
        let inputs: Vec<_> = node.inputs.iter().map(read).collect();
        let forwards = ["PassThrough", "Reshape", "Identity"].contains(&node.op_type.as_str());
        for (position, output) in node.outputs.iter().enumerate() {
            let Some(output) = output else { continue };
            let value = match inputs.get(position) {
                Some(Some(Some(forwarded))) if forwards => *forwarded,
                _ => hash(&|hasher| {
                    (&node.op_type, &inputs, node.int("alpha"), position).hash(hasher);
                }),
            };
            values.insert(name(*output), value);
        }
    }
    values
}
