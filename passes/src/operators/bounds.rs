//! How large results are at most whose sizes depend on what is in the inputs.
//!
//! Memory is planned for the largest case: whatever is smaller in a step fits as well.

use super::view::{Known, View, known};
use super::{MICROSOFT, resolve_axis};
use crate::graph::{ElementType, Node};

/// By output, the shape that has room for it whatever the inputs hold; nothing where no bound is known.
pub(super) fn at_most(view: &View) -> Option<Vec<Option<Known>>> {
    let node = view.node;
    let x = view.input(0).ok()?;
    let axis = match node.int("axis") {
        Some(axis) => Some(resolve_axis(axis, x.rank())?),
        None => None,
    };
    let along = |axis: usize, most: u64| {
        let mut shape = x.shape.to_vec();
        shape[axis] = shape[axis].min(most);
        shape
    };
    let count = x.count();
    let places = |count: u64| known(ElementType::Int64, vec![count]);
    match (node.domain.as_str(), node.op_type.as_str()) {
        ("", "NonZero") => {
            // Of a scalar it gives one place, in a row.
            let rank = x.rank().max(1) as u64;
            Some(vec![known(ElementType::Int64, vec![rank, count])])
        }
        ("", "Unique") => {
            let distinct = axis.map_or(count, |axis| x.shape[axis]);
            let values = match axis {
                Some(_) => x.same(),
                None => x.with_shape(vec![count]),
            };
            Some(vec![
                values,
                places(distinct),
                places(distinct),
                places(distinct),
            ])
        }
        ("", "Compress") => {
            let chosen = view.input(1).ok()?.count();
            let shape = match axis {
                Some(axis) => along(axis, chosen),
                None => vec![count.min(chosen)],
            };
            Some(vec![x.with_shape(shape)])
        }
        // A slice takes elements that are there, each once.
        ("", "Slice") => Some(vec![x.same()]),
        ("", "TopK") => {
            let indices = known(ElementType::Int64, x.shape.to_vec());
            Some(vec![x.same(), indices])
        }
        ("", "NonMaxSuppression") => {
            let scores = view.input(1).ok()?;
            let [batches, classes, boxes] = scores.shape else {
                return None;
            };
            let limit = view.optional(2).ok()?.map(|limit| limit.number());
            let most = match limit {
                // Without a limit it chooses none.
                None => 0,
                Some(Some(limit)) if limit >= 0.0 => (limit as u64).min(*boxes),
                Some(Some(_)) => 0,
                Some(None) => *boxes,
            };
            let all = batches.checked_mul(*classes)?.checked_mul(most)?;
            Some(vec![known(ElementType::Int64, vec![all, 3])])
        }
        _ => None,
    }
}

/// May a rule see numbers in the input at `position` that are only known to be at most so large? Only where larger numbers
/// make larger results.
pub(super) fn takes_bounds(node: &Node, position: usize) -> bool {
    match (node.domain.as_str(), node.op_type.as_str()) {
        (
            "",
            "Add" | "Cast" | "Concat" | "ConstantOfShape" | "Expand" | "Flatten" | "Identity"
            | "Max" | "Min" | "Mul" | "Reshape" | "Shape" | "Size" | "Tile" | "Transpose",
        ) => true,
        // The numbers, not which of them or along which axis.
        (
            "",
            "Gather" | "Loop" | "ReduceMax" | "ReduceProd" | "ReduceSum" | "Squeeze" | "Unsqueeze",
        ) => position == 0,
        // Where it goes, unless it goes backwards.
        ("", "Slice") => position == 0 || position == 2 && node.input(4).is_none(),
        ("", "Range") => position == 1,
        // Of shapes: what is smaller in a step is summed up along more axes.
        (
            MICROSOFT,
            "BroadcastGradientArgs"
            | "ConcatTraining"
            | "GatherElementsGrad"
            | "GatherGrad"
            | "GatherNDGrad"
            | "PassThrough"
            | "ReduceSumTraining"
            | "SliceGrad",
        ) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::*;
    use crate::graph::AttributeValue;

    fn most(case: Case) -> String {
        let (graph, node) = case.bare();
        let shapes = at_most(&View::alone(&graph, &node)).expect("a bound");
        let shapes = shapes.iter().flatten().map(|known| {
            let element = known.element.name();
            format!("{element}{:?}", known.shape)
        });
        shapes.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_depends_on_contents_is_bounded_by_what_there_is() {
        let x = |name: &'static str| Case::onnx(name).float(&[4, 6]);
        insta::assert_snapshot!(most(x("NonZero")), @"int64[2, 24]");
        insta::assert_snapshot!(most(Case::onnx("NonZero").float(&[])), @"int64[1, 1]");
        insta::assert_snapshot!(most(x("Unique")), @"float[24] int64[24] int64[24] int64[24]");
        insta::assert_snapshot!(most(x("Unique").attribute("axis", AttributeValue::Int(-1))), @"float[4, 6] int64[6] int64[6] int64[6]");
        let chosen = |case: Case, count| case.bool(&[count]);
        insta::assert_snapshot!(most(chosen(x("Compress"), 3)), @"float[3]");
        insta::assert_snapshot!(most(chosen(x("Compress").attribute("axis", AttributeValue::Int(1)), 9)), @"float[4, 6]");
        insta::assert_snapshot!(most(chosen(x("Compress").attribute("axis", AttributeValue::Int(1)), 2)), @"float[4, 2]");
        let boxes = Case::onnx("NonMaxSuppression")
            .float(&[2, 50, 4])
            .float(&[2, 3, 50]);
        insta::assert_snapshot!(most(boxes.ints(&[], &[10])), @"int64[60, 3]");
    }
}
