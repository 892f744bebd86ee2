//! What the two graphs have in common by name.

use std::collections::BTreeMap;

use super::violation::label;
use super::{Violation, trust};
use crate::graph::{Dimension, Graph, NodeId, Tensor, TensorId, TensorKind};

/// What the caller sees must stay.
pub(super) fn interface(original: &Graph, rewritten: &Graph) -> Result<(), Violation> {
    let names = |graph: &Graph, ids: &[TensorId]| -> Vec<String> {
        ids.iter().map(|&id| outside(graph.tensor(id))).collect()
    };
    let initializers = |graph: &Graph| -> Vec<String> {
        let ids = graph
            .tensor_ids()
            .filter(|&id| graph.tensor(id).kind == TensorKind::Initializer);
        let mut all: Vec<String> = ids.map(|id| outside(graph.tensor(id))).collect();
        all.sort();
        all
    };
    let opsets = |graph: &Graph| -> Vec<String> {
        graph
            .opsets
            .iter()
            .map(|(domain, version)| format!("\"{domain}\" {version}"))
            .collect()
    };
    let parts = [
        (
            "inputs",
            names(original, &original.inputs),
            names(rewritten, &rewritten.inputs),
        ),
        (
            "outputs",
            names(original, &original.outputs),
            names(rewritten, &rewritten.outputs),
        ),
        (
            "initializers",
            initializers(original),
            initializers(rewritten),
        ),
        ("operator sets", opsets(original), opsets(rewritten)),
    ];
    for (what, expected, found) in parts {
        let length = expected.len().max(found.len());
        let nothing = "nothing".to_owned();
        let pair = |i: usize| {
            (
                expected.get(i).unwrap_or(&nothing),
                found.get(i).unwrap_or(&nothing),
            )
        };
        if let Some((expected, found)) = (0..length).map(pair).find(|(a, b)| a != b) {
            let (expected, found) = (expected.clone(), found.clone());
            return Err(Violation::Interface {
                what,
                expected,
                found,
            });
        }
    }
    Ok(())
}

/// Name, type and contents.
fn outside(tensor: &Tensor) -> String {
    let mut text = format!("\"{}\"", tensor.name);
    if let Some(element) = tensor.element {
        text += &format!(" of {}", element.name());
    }
    if let Some(declared) = &tensor.declared {
        let dimensions = declared.iter().map(|dimension| match dimension {
            Dimension::Known(size) => size.to_string(),
            Dimension::Symbol(symbol) => format!("{symbol:?}"),
            Dimension::Unknown => "?".to_owned(),
        });
        text += &format!(" [{}]", dimensions.collect::<Vec<_>>().join(","));
    }
    if let Some(constant) = &tensor.constant {
        text += &format!(" = {constant:?}");
    }
    text
}

/// For every node of `rewritten`, the node of `original` that it is, by what it writes; nodes
/// that write nothing are matched by name and operator, in file order. Only nodes without effects
/// besides their results may be missing: whoever reads these must find them elsewhere.
pub(super) fn match_originals(
    original: &Graph,
    rewritten: &Graph,
) -> Result<Vec<Option<NodeId>>, Violation> {
    let first = |graph: &Graph, id: NodeId| {
        graph
            .node(id)
            .writes()
            .next()
            .map(|tensor| graph.tensor(tensor).name.clone())
    };
    let key = |graph: &Graph, id: NodeId| match first(graph, id) {
        Some(tensor) => (Some(tensor), String::new(), String::new()),
        None => (
            None,
            graph.node(id).name.clone(),
            graph.node(id).op_type.clone(),
        ),
    };
    let mut wanted: BTreeMap<_, Vec<NodeId>> = BTreeMap::new();
    for &id in original.order().iter().rev() {
        wanted.entry(key(original, id)).or_default().push(id);
    }
    let mut originals = vec![None; rewritten.node_count()];
    for &id in rewritten.order() {
        originals[id.index()] = wanted.get_mut(&key(rewritten, id)).and_then(Vec::pop);
    }
    let has_effects = |id: &NodeId| trust::repeatable(original.node(*id), false).is_err();
    match wanted.into_values().flatten().find(has_effects) {
        None => Ok(originals),
        Some(missing) => Err(Violation::NodeMissing {
            node: label(original, missing),
        }),
    }
}
