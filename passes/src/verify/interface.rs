//! What the two graphs have in common by name.

use std::collections::BTreeMap;

use super::violation::label;
use super::{Violation, trust};
use crate::graph::{Constant, Dimension, Graph, NodeId, Tensor, TensorId, TensorKind};

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
            let (expected, found) = both_outside(expected, found);
            return Err(differs(what, expected, found));
        }
    }
    let overwritten = |graph: &Graph| -> Vec<(String, String)> {
        let name = |id| graph.tensor(id).name.clone();
        let pairs = graph.overwritten();
        pairs
            .map(|(output, input)| (name(output), name(input)))
            .collect()
    };
    let (expected, found) = (overwritten(original), overwritten(rewritten));
    if expected != found {
        let other = |(a, b): &(Option<&_>, Option<&_>)| a != b;
        let differing = zip_longest(&expected, &found).find(other);
        let shown = |pair: Option<&(String, String)>| {
            pair.map(|(output, input)| format!("\"{output}\" over \"{input}\""))
        };
        let (expected, found) = differing.unwrap_or_default();
        return Err(differs(
            "outputs that overwrite inputs",
            shown(expected),
            shown(found),
        ));
    }
    // New nodes may be of a domain that the original has none of.
    let other =
        |(domain, version): &(&String, &i64)| rewritten.opsets.get(*domain) != Some(version);
    let set = |domain: &String, version: &i64| format!("\"{domain}\" {version}");
    match original.opsets.iter().find(other) {
        None => Ok(()),
        Some((domain, version)) => {
            let found = rewritten.opsets.get(domain);
            let found = found.map(|version| set(domain, version));
            Err(differs("operator sets", Some(set(domain, version)), found))
        }
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

/// Do they look the same from outside?
fn same(a: Option<&&Tensor>, b: Option<&&Tensor>) -> bool {
    let (Some(a), Some(b)) = (a, b) else {
        return a.is_none() && b.is_none();
    };
    declared_alike(a, b) && contents(a) == contents(b)
}

fn declared_alike(a: &Tensor, b: &Tensor) -> bool {
    a.name == b.name && a.element == b.element && a.declared == b.declared
}

fn contents(tensor: &Tensor) -> Option<Vec<u64>> {
    tensor.constant.as_ref().map(Constant::bits)
}

/// What each of two tensors is that differ; of contents, the first element that does.
fn both_outside(a: Option<&&Tensor>, b: Option<&&Tensor>) -> (Option<String>, Option<String>) {
    let mut texts = (a.map(|a| outside(a)), b.map(|b| outside(b)));
    if let (Some(a), Some(b), (Some(here), Some(there))) = (a, b, (&mut texts.0, &mut texts.1))
        && declared_alike(a, b)
    {
        let (ours, theirs) = (contents(a), contents(b));
        let lists = ours.iter().flatten().zip(theirs.iter().flatten());
        let first = lists.take_while(|(a, b)| a == b).count();
        *here += &element(a, first);
        *there += &element(b, first);
    }
    texts
}

/// One of the known contents, in words.
fn element(tensor: &Tensor, position: usize) -> String {
    let shown = match &tensor.constant {
        None => return " of unknown contents".to_owned(),
        Some(Constant::Ints(values)) => values.get(position).map(i64::to_string),
        Some(Constant::Floats(values)) => values.get(position).map(|value| match value.is_nan() {
            true => format!("NaN ({:#x})", value.to_bits()),
            false => format!("{value:?}"),
        }),
    };
    let shown = shown.unwrap_or_else(|| "nothing".to_owned());
    format!(" with {shown} as element {position}")
}

/// Name and type.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_compared_by_their_bits() {
        let check = |a: f64, b: f64| {
            let [a, b] = [a, b].map(|last| Tensor {
                constant: Some(Constant::Floats(vec![1.0, last])),
                ..Tensor::new("w", TensorKind::Initializer)
            });
            match same(Some(&&a), Some(&&b)) {
                true => "same".to_owned(),
                false => both_outside(Some(&&a), Some(&&b)).1.unwrap_or_default(),
            }
        };
        let nan = |payload: u64| f64::from_bits(f64::NAN.to_bits() | payload);
        insta::assert_snapshot!(check(nan(1), nan(1)), @"same");
        insta::assert_snapshot!(check(0.0, -0.0), @r#""w" with -0.0 as element 1"#);
        insta::assert_snapshot!(check(nan(1), nan(2)), @r#""w" with NaN (0x7ff8000000000002) as element 1"#);
    }
}
