//! What the two graphs have in common by name.

use std::collections::BTreeMap;

use super::violation::label;
use super::{Violation, trust};
use crate::graph::{Dimension, Graph, NodeId, Tensor, TensorId, TensorKind};

/// What the caller sees must stay.
pub(super) fn interface(original: &Graph, rewritten: &Graph) -> Result<(), Violation> {
    let parts = [
        (
            "inputs",
            tensors(original, &original.inputs),
            tensors(rewritten, &rewritten.inputs),
        ),
        (
            "outputs",
            tensors(original, &original.outputs),
            tensors(rewritten, &rewritten.outputs),
        ),
        (
            "initializers",
            initializers(original),
            initializers(rewritten),
        ),
    ];
    for (what, expected, found) in parts {
        let other = |(a, b): &(Option<&&Tensor>, Option<&&Tensor>)| !same(*a, *b);
        if let Some((expected, found)) = zip_longest(&expected, &found).find(other) {
            return Err(differs(
                what,
                expected.map(|t| outside(t)),
                found.map(|t| outside(t)),
            ));
        }
    }
    let (expected, found) = (opsets(original), opsets(rewritten));
    let other = zip_longest(&expected, &found).find(|(a, b)| a != b);
    match other {
        None => Ok(()),
        Some((expected, found)) => Err(differs("operator sets", expected.cloned(), found.cloned())),
    }
}

fn tensors<'g>(graph: &'g Graph, ids: &[TensorId]) -> Vec<&'g Tensor> {
    ids.iter().map(|&id| graph.tensor(id)).collect()
}

/// By name.
fn initializers(graph: &Graph) -> Vec<&Tensor> {
    let all = graph.tensor_ids().map(|id| graph.tensor(id));
    let mut all: Vec<&Tensor> = all
        .filter(|tensor| tensor.kind == TensorKind::Initializer)
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn opsets(graph: &Graph) -> Vec<String> {
    let opsets = graph.opsets.iter();
    opsets
        .map(|(domain, version)| format!("\"{domain}\" {version}"))
        .collect()
}

/// Pairs of what stands at the same place, with nothing behind the end of the shorter list.
fn zip_longest<'a, T>(
    a: &'a [T],
    b: &'a [T],
) -> impl Iterator<Item = (Option<&'a T>, Option<&'a T>)> {
    (0..a.len().max(b.len())).map(|i| (a.get(i), b.get(i)))
}

fn differs(what: &'static str, expected: Option<String>, found: Option<String>) -> Violation {
    let shown = |part: Option<String>| part.unwrap_or_else(|| "nothing".to_owned());
    Violation::Interface {
        what,
        expected: shown(expected),
        found: shown(found),
    }
}

/// Do they look the same from outside? The text of large contents is only made where it may tell (it does not tell one NaN
/// from another).
fn same(a: Option<&&Tensor>, b: Option<&&Tensor>) -> bool {
    let (Some(a), Some(b)) = (a, b) else {
        return a.is_none() && b.is_none();
    };
    let declared = a.name == b.name && a.element == b.element && a.declared == b.declared;
    declared && (a.constant == b.constant || outside(a) == outside(b))
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
