//! Operators on sequences, optional values and maps: what they make is no tensor, so nothing of a plan touches it. It is
//! neither copied nor passed through a barrier, and only counted.

use super::view::{Fault, Outputs, View, known, one, unknown};
use super::{Family, Operator, Recompute, onnx};
use crate::graph::{ElementType, Node};

pub(super) const OPERATORS: &[Operator] = &[
    entry("SequenceAt", |_| unknown()),
    entry("SequenceConstruct", |_| unknown()),
    entry("SequenceEmpty", |_| unknown()),
    entry("SequenceErase", |_| unknown()),
    entry("SequenceInsert", |_| unknown()),
    entry("SequenceLength", number),
    entry("SequenceMap", |_| unknown()),
    entry("SplitToSequence", |_| unknown()),
    entry("ConcatFromSequence", concatenated),
    entry("Optional", |_| unknown()),
    entry("OptionalGetElement", |_| unknown()),
    entry("OptionalHasElement", flag),
];

const fn entry(name: &'static str, rule: super::ShapeRule) -> Operator {
    onnx(name, Family::Movement, rule)
        .operations(|_| None)
        .recompute(|_| Recompute::Never("it deals with what is no tensor"))
}

/// Is what the node writes no tensor, whatever the file says? (What a SequenceMap writes are sequences, all of them.)
pub(crate) fn makes_no_tensor(node: &Node) -> bool {
    const NONE: [&str; 8] = [
        "Optional",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceMap",
        "SplitToSequence",
        "ZipMap",
    ];
    matches!(node.domain.as_str(), "" | "ai.onnx.ml") && NONE.contains(&node.op_type.as_str())
}

fn number(_: &View) -> Result<Outputs, Fault> {
    one(ElementType::Int64, Vec::new())
}

fn flag(_: &View) -> Result<Outputs, Fault> {
    one(ElementType::Bool, Vec::new())
}

/// What was split is put together again; of other sequences nothing is known.
fn concatenated(view: &View) -> Result<Outputs, Fault> {
    let sequence = view.node.input(0).ok_or(Fault::MissingInput(0))?;
    let Some(split) = view.uses.and_then(|uses| uses.producer(sequence)) else {
        return unknown();
    };
    let split = view.graph.node(split);
    let new_axis = view.node.int("new_axis").unwrap_or(0);
    if !split.is("", "SplitToSequence") || new_axis != 0 {
        return unknown();
    }
    // Without sizes and axes of its own, each part has lost the axis.
    if split.input(1).is_none() && split.int("keepdims") == Some(0) {
        return unknown();
    }
    let Some(whole) = split.input(0).map(|whole| view.graph.tensor(whole)) else {
        return unknown();
    };
    let (Some(element), Some(shape)) = (whole.element, whole.shape.clone()) else {
        return unknown();
    };
    let axis = |node: &Node, default: i64| {
        let axis = node.int("axis").unwrap_or(default);
        super::view::resolve_axis(axis, shape.len())
    };
    // A ConcatFromSequence has to name its axis.
    if axis(split, 0) != axis(view.node, 0) {
        return unknown();
    }
    Ok(vec![known(element, shape)])
}
