//! Graphs of operators that nobody knows, with sizes, times and orders as odd as they may be.

use std::collections::BTreeMap;

use ckpt_passes::graph::{Graph, TensorId, TensorKind};
use ckpt_passes::testing::{Draw, unknown_costs, unknown_graph};

use super::plan;
use crate::source::Source;

pub(super) fn run(source: &mut Source) -> Result<(), String> {
    let most = 2 << source.below(5);
    let graph = unknown_graph(source, most);
    source.file("txt", || graph.to_listing().into_bytes());
    let mut options = plan::options(source);
    options.overrides = unknown_costs(source, &graph);
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
