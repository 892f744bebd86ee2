//! What kernels of gradients take for granted: that what they read goes with what the forward node read or made. They do not look at it,
//! and read or write behind their memory where it does not (measured for GatherGrad in 1.19.2, which ends the process or not).

use super::MICROSOFT;
use super::view::{Fault, Shape, View};

/// `Err` where the gradient that a node reads is of something else. Exact sizes must be known; where one is not, there is nothing to say.
///
/// ONNX Runtime makes such graphs: of an Add that broadcasts along a dimension which the exporter gave two names, each input
/// gets the whole gradient, and not its sum.
pub(super) fn goes_together(view: &View) -> Result<(), Fault> {
    if view.node.domain != MICROSOFT {
        return Ok(());
    }
    let alike = |gradient: usize, other: usize| {
        let (Ok(gradient), Ok(other)) = (view.input(gradient), view.input(other)) else {
            return Ok(());
        };
        match gradient.count() == other.count() {
            true => Ok(()),
            false => Err(unlike(gradient.shape, other.shape.to_vec())),
        }
    };
    match view.node.op_type.as_str() {
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
        | "InvertibleLayerNormalizationGrad" => alike(0, 1),
        "InPlaceAccumulator" | "InPlaceAccumulatorV2" => alike(1, 0),
        "GatherElementsGrad" => alike(0, 2),
        "GatherGrad" => of_gathered(view),
        _ => Ok(()),
    }
}

/// GatherGrad(shape, indices, dY): a slice of dY for each index.
fn of_gathered(view: &View) -> Result<(), Fault> {
    let (Ok(shape), Ok(indices), Ok(gradient)) = (view.input(0), view.input(1), view.input(2))
    else {
        return Ok(());
    };
    let sizes: Option<Vec<u64>> = shape
        .ints()
        .and_then(|sizes| sizes.iter().map(|&size| u64::try_from(size).ok()).collect());
    let Some(sizes) = sizes else { return Ok(()) };
    let axis = view.axis("axis", 0, sizes.len())?;
    let mut gathered = sizes[..axis].to_vec();
    gathered.extend(indices.shape);
    gathered.extend(&sizes[axis + 1..]);
    let count = gathered
        .iter()
        .fold(1_u64, |count, &size| count.saturating_mul(size));
    match gradient.count() == count {
        true => Ok(()),
        false => Err(unlike(gradient.shape, gathered)),
    }
}

fn unlike(gradient: &[u64], expected: Vec<u64>) -> Fault {
    Fault::Mismatch {
        left: Shape(gradient.to_vec()),
        right: Shape(expected),
        why: "the gradient is of something else, and the runtime would write or read behind its memory",
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::*;

    fn said(case: Case) -> String {
        let (graph, node) = case.bare();
        goes_together(&View::alone(&graph, &node))
            .map_or_else(|fault| fault.to_string(), |()| "ok".to_owned())
    }

    #[test]
    fn gradients_have_to_be_of_what_was_made() {
        let relu = |y: &[u64]| said(Case::microsoft("ReluGrad").float(&[2, 3]).float(y));
        assert_eq!(relu(&[2, 3]), "ok");
        assert_eq!(relu(&[6]), "ok");
        insta::assert_snapshot!(relu(&[1, 3]), @"shapes [2, 3] and [1, 3] do not fit: the gradient is of something else, and the runtime would write or read behind its memory");
        let gathered = |dy: &[u64]| {
            let case = Case::microsoft("GatherGrad").ints(&[2], &[64, 32]);
            said(case.int64(&[1, 16]).float(dy))
        };
        assert_eq!(gathered(&[1, 16, 32]), "ok");
        assert_eq!(gathered(&[16, 32]), "ok");
        insta::assert_snapshot!(gathered(&[4, 16, 32]), @"shapes [4, 16, 32] and [1, 16, 32] do not fit: the gradient is of something else, and the runtime would write or read behind its memory");
    }
}
