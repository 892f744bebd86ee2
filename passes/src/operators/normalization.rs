//! Normalizations, forward.

use super::view::{Fault, Input, Outputs, View, known};
use super::{
    Aliases, Family, Operator, Provider, Recompute, like_first, microsoft, onnx, per_output_element,
};
use crate::bytes::Bytes;
use crate::graph::{ElementType, Node, count};

pub(super) const OPERATORS: &[Operator] = &[
    norm(onnx("BatchNormalization", Family::Normalization, batch))
        .operations(|view| {
            // A multiply-add, where the statistics are given.
            let each = if is_inference(view.node) { 2.0 } else { 8.0 };
            per_output_element(view, each)
        })
        .recompute(batch_recompute),
    // (X, scale, B, mean, var) -> (Y, running mean, running var, saved mean, saved 1 / std):
    // the running statistics are updated in the buffers of inputs 3 and 4.
    norm(microsoft("BatchNormInternal", Family::Normalization, batch))
        .aliasing(Aliases::These(&[(1, 3), (2, 4)]))
        .recompute(|_| Recompute::BatchNorm),
    norm(onnx("LayerNormalization", Family::RowNormalization, layer)),
    // Before operator set 17, LayerNormalization is ONNX Runtime's, in the standard's domain.
    norm(onnx(
        "SimplifiedLayerNormalization",
        Family::RowNormalization,
        simplified,
    )),
    Operator {
        domain: super::MICROSOFT,
        ..norm(onnx(
            "SimplifiedLayerNormalization",
            Family::RowNormalization,
            simplified,
        ))
    },
    norm(onnx(
        "RMSNormalization",
        Family::RowNormalization,
        like_first,
    )),
    norm(microsoft(
        "SkipLayerNormalization",
        Family::RowNormalization,
        skip,
    )),
    norm(microsoft(
        "SkipSimplifiedLayerNormalization",
        Family::RowNormalization,
        skip,
    )),
    norm(onnx(
        "InstanceNormalization",
        Family::RowNormalization,
        like_first,
    )),
    norm(onnx(
        "GroupNormalization",
        Family::RowNormalization,
        like_first,
    ))
    .workspace(super::activation::one_more_output),
    norm(microsoft("GroupNorm", Family::RowNormalization, like_first)),
    norm(onnx(
        "LpNormalization",
        Family::RowNormalization,
        like_first,
    )),
    norm(onnx(
        "MeanVarianceNormalization",
        Family::Normalization,
        like_first,
    ))
    .workspace(three_more_outputs),
    norm(onnx("LRN", Family::Normalization, like_first)).workspace(local_response_workspace),
];

/// The CPU runs the pieces of this function one by one; three tensors stand beside the last
/// (measured).
fn three_more_outputs(view: &View, provider: Provider) -> Option<Bytes> {
    let one = super::activation::one_more_output(view, provider)?;
    Some(one + one + one)
}

/// The squares of one image with padded channels, and a scale for each element.
fn local_response_workspace(view: &View, provider: Provider) -> Option<Bytes> {
    let scales = super::activation::one_more_output(view, provider)?;
    let x = view.input(0).ok()?;
    let padding = view.natural("size", 1).ok()?.saturating_sub(1);
    let area = x.shape.get(2..).map_or(1, count);
    let channels = x.shape.get(1)?.saturating_add(padding);
    Some(scales + x.element.bytes(channels.saturating_mul(area)))
}

const fn norm(operator: Operator) -> Operator {
    operator.operations(|view| per_output_element(view, 8.0))
}

/// In training, the running statistics change with every run.
fn batch_recompute(node: &Node) -> Recompute {
    match is_inference(node) {
        true => Recompute::Clone,
        false => Recompute::Never("updates the running statistics"),
    }
}

/// Does a batch normalization read its statistics instead of making them?
pub(super) fn is_inference(node: &Node) -> bool {
    node.is("", "BatchNormalization") && matches!(node.int("training_mode"), None | Some(0))
}

/// X `[N, C, ...]`; all but Y are `[C]`, of the type of the statistics.
fn batch(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    // A vector has no channels.
    let channels = if x.rank() < 2 { 1 } else { x.shape[1] };
    let statistics = view.input(3)?;
    if statistics.shape != [channels] {
        return Err(statistics.wrong(3, "one number per channel"));
    }
    let mut outputs = vec![x.same()];
    outputs.resize(5, known(statistics.element, vec![channels]));
    Ok(outputs)
}

/// X -> (Y, mean, 1 / std): the statistics have size 1 along the normalized axes.
fn layer(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let statistics = statistics(view, x, "stash_type")?;
    Ok(vec![scaled(view, x), statistics.clone(), statistics])
}

/// X -> (Y, 1 / rms)
fn simplified(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    Ok(vec![scaled(view, x), statistics(view, x, "stash_type")?])
}

/// As large as X, of the type of the scale: in graphs of training there is X in float16 with a scale in float32.
fn scaled(view: &View, x: Input) -> Option<super::Known> {
    let scale = view.optional(1).ok().flatten();
    known(
        scale.map_or(x.element, |scale| scale.element),
        x.shape.to_vec(),
    )
}

fn statistics(view: &View, x: Input, stash: &'static str) -> Result<Option<super::Known>, Fault> {
    let axis = view.axis("axis", -1, x.rank())?;
    let element = match view.node.int(stash) {
        None => ElementType::Float,
        Some(_) => super::activation::element_attribute(view, stash)?,
    };
    let mut shape = x.shape.to_vec();
    shape[axis..].fill(1);
    Ok(known(element, shape))
}

/// SkipLayerNormalization(X, skip, ...) -> (Y, mean, 1 / std, X + skip)
fn skip(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let Some((_, rows)) = x.shape.split_last() else {
        return Err(x.wrong(0, "at least one axis"));
    };
    let mut shape = rows.to_vec();
    shape.push(1);
    let statistics = known(ElementType::Float, shape);
    Ok(vec![x.same(), statistics.clone(), statistics, x.same()])
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::super::{aliases, recompute};
    use super::*;

    #[test]
    fn running_statistics_are_their_buffers() {
        let case = Case::microsoft("BatchNormInternal")
            .float(&[2, 8, 4, 4])
            .float(&[8])
            .float(&[8])
            .float(&[8])
            .float(&[8])
            .outputs(5);
        let channels = "float[8]";
        assert_eq!(
            case.shapes(),
            ["float[2, 8, 4, 4]", channels, channels, channels, channels]
        );
        assert_eq!(aliases(&case.node()), [(1, 3), (2, 4)]);
        assert_eq!(recompute(&case.node()), Recompute::BatchNorm);
    }

    #[test]
    fn inference_can_be_repeated_and_training_cannot() {
        let node = Case::onnx("BatchNormalization").node();
        assert_eq!(recompute(&node), Recompute::Clone);
        let node = Case::onnx("BatchNormalization")
            .int("training_mode", 1)
            .node();
        assert!(matches!(recompute(&node), Recompute::Never(_)));
    }

    #[test]
    fn layer_statistics_keep_a_one_per_normalized_axis() {
        let case = Case::onnx("LayerNormalization")
            .float(&[2, 5, 6, 7])
            .int("axis", 2)
            .outputs(3);
        let statistics = "float[2, 5, 1, 1]";
        assert_eq!(case.shapes(), ["float[2, 5, 6, 7]", statistics, statistics]);
        let mixed = Case::onnx("LayerNormalization")
            .input(ElementType::Float16, &[2, 5], None)
            .float(&[5]);
        assert_eq!(mixed.shapes(), ["float[2, 5]"]);
        insta::assert_snapshot!(
            Case::onnx("LayerNormalization").float(&[2]).int("axis", 5).fault(),
            @r#"attribute "axis" is 5; expected an axis of input 0"#);
    }

    #[test]
    fn statistics_must_fit_the_channels() {
        let case = Case::onnx("BatchNormalization")
            .float(&[2, 8, 4])
            .float(&[8])
            .float(&[8])
            .float(&[9])
            .float(&[8]);
        insta::assert_snapshot!(case.fault(),
            @"input 3 has shape [9]; expected one number per channel");
    }
}
