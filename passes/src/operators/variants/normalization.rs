//! Batch normalization, a second time.

use super::{Like, Part, Read, Site, Write, part, tensor};
use crate::graph::{AttributeValue, Dimension, ElementType};

/// Channels smaller than this are not worth six nodes. Runtime fact (measured, batches of 4): the
/// convolution takes 0.6 of the time of the batch normalization with 28 x 28 elements and more in a
/// channel, 0.8 with 14 x 14, and 2 with 7 x 7.
const SMALLEST: u64 = 400;

/// `BatchNormInternal(X, scale, B, ..) -> (Y, .., mean, 1 / std)`, Y alone: a convolution of each
/// channel with one weight, `scale / std`, and the bias `B - mean * scale / std`. It reads X once,
/// where the batch normalization reads it three times.
///
/// It is a FusedConv without an activation, which the runtime leaves alone: at ENABLE_ALL it makes one
/// node of a Conv and the Relu behind it, and puts that elsewhere in its order (measured: a rewritten
/// ResNet-50 took 78 MB more).
///
/// Runtime fact (measured): the CPU kernel of BatchNormInternal computes `X * (1 / std * scale) + (B -
/// mean * (1 / std * scale))`, and the convolution multiplies and adds with one rounding each as
/// well, so the bits are the same, but for one case: the convolution adds the product to 0, so that where B and the
/// product are -0, the result is 0 in place of -0 (`tools/test_variants.py`).
pub(super) fn from_statistics(site: &Site) -> Option<Vec<Part>> {
    let node = site.node;
    let [x, scale, bias] = [0, 1, 2].map(|i| node.input(i));
    let (x, scale, bias) = (x?, scale?, bias?);
    let (y, mean, inverse) = (node.output(0)?, node.output(3)?, node.output(4)?);
    let shape = site.shape(x)?;
    let (&channels, area) = (shape.get(1)?, shape.get(2..)?);
    let declared = site.graph.tensor(mean).declared.as_deref();
    let is_static = declared.is_none_or(|d| matches!(d, [Dimension::Known(_)]));
    let floats = [x, scale, bias, mean, inverse].map(|t| site.element(t));
    let applies = node.is("com.microsoft", "BatchNormInternal")
        && node.int("training_mode") == Some(1)
        && floats.iter().all(|&e| e == Some(ElementType::Float))
        && (1..=3).contains(&area.len())
        && area.iter().try_fold(1u64, |n, &d| n.checked_mul(d))? >= SMALLEST
        && is_static
        && site.opset() >= 13;
    if !applies {
        return None;
    }
    let group = i64::try_from(channels).ok()?;
    let mut weights = vec![channels];
    weights.resize(shape.len(), 1);
    let new = |suffix: &str, shape: Like, element: ElementType| {
        let suffix = suffix.to_owned();
        Some(Write::New {
            suffix,
            shape,
            element,
        })
    };
    let vector = |suffix: &str| new(suffix, Like::Tensor(mean), ElementType::Float);
    let dims = weights.iter().map(|&d| d as i64).collect();
    let rank = Like::Static(vec![shape.len() as u64]);
    let [factor, shift, total, to, weight] =
        [0, 1, 2, 3, 4].map(|position| Some(Read::Output(position, 0)));
    Some(vec![
        part(
            "",
            "Mul",
            [tensor(inverse), tensor(scale)],
            [vector("factor")],
        ),
        part("", "Mul", [tensor(mean), factor], [vector("moved")]),
        part("", "Sub", [tensor(bias), shift], [vector("bias")]),
        part("", "Constant", [], [new("shape", rank, ElementType::Int64)])
            .with("value_ints", AttributeValue::Ints(dims)),
        part(
            "",
            "Reshape",
            [factor, to],
            [new("weights", Like::Static(weights), ElementType::Float)],
        ),
        part(
            "com.microsoft",
            "FusedConv",
            [tensor(x), weight, total],
            [Some(Write::Tensor(y))],
        )
        .with("group", AttributeValue::Int(group)),
    ])
}
