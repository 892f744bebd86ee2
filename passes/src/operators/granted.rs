//! What kernels of gradients take for granted: that what they read goes with what the forward node read or made. They do not look at it,
//! and read or write behind their memory where it does not (measured for GatherGrad on the CPU, which ends the process or not).

use super::MICROSOFT;
use super::view::{Shape, View};
use crate::graph::count;

/// A gradient, and what it should be as large as.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unlike {
    pub(crate) gradient: Shape,
    pub(crate) expected: Shape,
}

/// The gradient that a node reads, if it is of something else. Exact sizes must be known; where one is not, there is nothing to say.
///
/// ONNX Runtime makes such graphs: of an operation that broadcasts along a dimension of size one that has a name, each input
/// gets the whole gradient, and not its sum.
pub(super) fn unlike(view: &View) -> Option<Unlike> {
    if view.node.domain != MICROSOFT {
        return None;
    }
    let (gradient, other) = match view.node.op_type.as_str() {
        "ReluGrad"
        | "LeakyReluGrad"
        | "SigmoidGrad"
        | "TanhGrad"
        | "GeluGrad"
        | "FastGeluGrad"
        | "QuickGeluGrad"
        | "BiasGeluGrad_dX"
        | "BiasFastGeluGrad_dX"
        | "SoftmaxGrad"
        | "SoftmaxGrad_13"
        | "LogSoftmaxGrad"
        | "LogSoftmaxGrad_13"
        | "DropoutGrad"
        | "BatchNormalizationGrad"
        | "LayerNormalizationGrad"
        | "SimplifiedLayerNormalizationGrad"
        | "InvertibleLayerNormalizationGrad" => (0, 1),
        "InPlaceAccumulator" | "InPlaceAccumulatorV2" => (1, 0),
        "GatherElementsGrad" => (0, 2),
        "GatherGrad" => return of_other(view, 2, gathered(view)?),
        _ => return None,
    };
    of_other(view, gradient, view.input(other).ok()?.shape.to_vec())
}

/// The input at `gradient`, unless it has as many elements as what it is of.
fn of_other(view: &View, gradient: usize, expected: Vec<u64>) -> Option<Unlike> {
    let gradient = view.input(gradient).ok()?;
    (gradient.count() != count(&expected)).then(|| Unlike {
        gradient: Shape(gradient.shape.to_vec()),
        expected: Shape(expected),
    })
}

/// The shape of what GatherGrad(shape, indices, dY) is of: a slice for each index.
fn gathered(view: &View) -> Option<Vec<u64>> {
    let sizes = view.input(0).ok()?.ints()?.iter();
    let sizes: Vec<u64> = sizes
        .map(|&size| u64::try_from(size).ok())
        .collect::<Option<_>>()?;
    let axis = view.axis("axis", 0, sizes.len()).ok()?;
    let mut gathered = sizes[..axis].to_vec();
    gathered.extend(view.input(1).ok()?.shape);
    gathered.extend(sizes.get(axis + 1..)?);
    Some(gathered)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::*;

    fn said(case: Case) -> String {
        let (graph, node) = case.bare();
        let unlike = unlike(&View::alone(&graph, &node));
        unlike.map_or("ok".to_owned(), |it| {
            format!("{} of {}", it.gradient, it.expected)
        })
    }

    #[test]
    fn gradients_have_to_be_of_what_was_made() {
        let relu = |y: &[u64]| said(Case::microsoft("ReluGrad").float(&[2, 3]).float(y));
        assert_eq!(relu(&[2, 3]), "ok");
        assert_eq!(relu(&[6]), "ok");
        insta::assert_snapshot!(relu(&[1, 3]), @"[2, 3] of [1, 3]");
        let gathered = |dy: &[u64]| {
            let case = Case::microsoft("GatherGrad").ints(&[2], &[64, 32]);
            said(case.int64(&[1, 16]).float(dy))
        };
        assert_eq!(gathered(&[1, 16, 32]), "ok");
        assert_eq!(gathered(&[16, 32]), "ok");
        insta::assert_snapshot!(gathered(&[4, 16, 32]), @"[4, 16, 32] of [1, 16, 32]");
    }
}
