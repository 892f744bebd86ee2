//! Batch normalization, a second time.

use super::{Like, Part, Read, Site, Write, part, tensor};
use crate::graph::{AttributeValue, Dimension, ElementType, Graph, Node, TensorId, checked_count};
use crate::operators::is_fixed;

/// Channels smaller than this are not worth six nodes. Runtime fact (measured, batches of 4): the
/// convolution takes 0.6 of the time of the batch normalization with 28 x 28 elements and more in a
/// channel, 0.8 with 14 x 14, and 2 with 7 x 7.
const SMALLEST: u64 = 400;

/// A batch normalization with statistics of its batch, and what its copies read.
pub(super) struct Normalized {
    pub(super) x: TensorId,
    scale: TensorId,
    bias: TensorId,
    pub(super) y: TensorId,
    mean: TensorId,
    /// 1 / std
    inverse: TensorId,
}

impl Normalized {
    /// `BatchNormInternal(X, scale, B, ..) -> (Y, .., mean, 1 / std)`, all of single precision.
    pub(super) fn of(graph: &Graph, node: &Node) -> Option<Normalized> {
        let float = |tensor: Option<TensorId>| {
            tensor.filter(|&tensor| graph.tensor(tensor).element == Some(ElementType::Float))
        };
        let applies = node.is("com.microsoft", "BatchNormInternal")
            && node.int("training_mode") == Some(1)
            && graph.opset().is_some_and(|opset| opset >= 13);
        let mean = float(node.output(3))?;
        // New vectors are declared like it.
        let declared = graph.tensor(mean).declared.as_deref();
        let is_static = declared.is_none_or(|d| matches!(d, [Dimension::Known(_)]));
        (applies && is_static).then_some(Normalized {
            x: float(node.input(0))?,
            scale: float(node.input(1))?,
            bias: float(node.input(2))?,
            y: node.output(0)?,
            mean,
            inverse: float(node.output(4))?,
        })
    }

    fn vector(&self, suffix: &str) -> Option<Write> {
        let shape = Like::Tensor(self.mean);
        Some(Write::new(suffix, shape, ElementType::Float))
    }

    /// `scale / std`
    pub(super) fn factor(&self) -> Part {
        let inputs = [tensor(self.inverse), tensor(self.scale)];
        part("", "Mul", inputs, [self.vector("factor")])
    }

    /// `B - mean * factor`, from the part that writes `factor` on: two parts, the second of which writes it.
    pub(super) fn shift(&self, factor: Read, moved: Read) -> [Part; 2] {
        let (mean, bias) = (tensor(self.mean), tensor(self.bias));
        [
            part("", "Mul", [mean, Some(factor)], [self.vector("moved")]),
            part("", "Sub", [bias, Some(moved)], [self.vector("bias")]),
        ]
    }
}

/// What an activation makes of a batch normalization's Y, from what Y is made of: a convolution of each channel
/// with one weight, `scale / std`, the bias `B - mean * scale / std`, and the activation. It reads X once
/// and writes its result once.
///
/// It is a FusedConv, which the runtime leaves alone: at ENABLE_ALL it makes one
/// node of a Conv and the Relu behind it, and puts that elsewhere in its order (measured: a rewritten
/// ResNet-50 took 78 MB more).
///
/// Runtime fact (measured): the batch normalization computes `X * factor + (B - mean * factor)`, and the convolution multiplies and adds
/// with one rounding each like it, so the bits are the same, but for one case: it adds the product to 0, so that where B and the
/// product are -0, the result is 0 in place of -0 (`tools/test_variants.py`). The activation takes no time.
pub(super) fn activated_from_statistics(site: &Site) -> Option<Vec<Part>> {
    let (y, activated) = (site.node.input(0)?, site.node.output(0)?);
    let normalization = site.graph.node(site.uses.producer(y)?);
    let all = Normalized::of(site.graph, normalization).filter(|all| all.y == y)?;
    let shape = site.shape(all.x)?;
    let (&channels, area) = (shape.get(1)?, shape.get(2..)?);
    let elements = checked_count(area)?;
    let applies = (1..=3).contains(&area.len()) && elements >= SMALLEST;
    let group = i64::try_from(channels).ok().filter(|_| applies)?;
    let mut weights = vec![channels];
    weights.resize(shape.len(), 1);
    let dims = weights.iter().map(|&d| d as i64).collect();
    let rank = Like::Static(vec![shape.len() as u64]);
    let to = Write::new("shape", rank, ElementType::Int64);
    let [factor, moved, shift, to_shape, weight] =
        [0, 1, 2, 3, 4].map(|position| Read::Output(position, 0));
    let reshaped = Write::new("weights", Like::Static(weights), ElementType::Float);
    let mut fused = part(
        "com.microsoft",
        "FusedConv",
        [tensor(all.x), Some(weight), Some(shift)],
        [Some(Write::Tensor(activated))],
    )
    .with("group", AttributeValue::Int(group));
    for (name, value) in activation(site)? {
        fused = fused.with(name, value);
    }
    let [move_by, subtract] = all.shift(factor, moved);
    let inputs = [Some(factor), Some(to_shape)];
    Some(vec![
        all.factor(),
        move_by,
        subtract,
        part("", "Constant", [], [Some(to)]).with("value_ints", AttributeValue::Ints(dims)),
        part("", "Reshape", inputs, [Some(reshaped)]),
        fused,
    ])
}

/// The attributes with which a FusedConv does what the node does.
fn activation(site: &Site) -> Option<Vec<(&'static str, AttributeValue)>> {
    let name = |name: &str| ("activation", AttributeValue::String(name.into()));
    let node = site.node;
    if node.is("", "Relu") {
        return Some(vec![name("Relu")]);
    }
    let bounds = [1, 2].map(|position| scalar(site, node.input(position)));
    let [Some(least), Some(most)] = bounds else {
        return None;
    };
    let parameters = AttributeValue::Floats(vec![least, most]);
    // Bounds the wrong way round are left to the operator.
    (node.is("", "Clip") && least <= most)
        .then(|| vec![name("Clip"), ("activation_params", parameters)])
}

/// The number that a tensor always is.
fn scalar(site: &Site, tensor: Option<TensorId>) -> Option<f32> {
    let tensor = tensor.filter(|&id| is_fixed(site.graph, site.uses, id))?;
    match site.graph.tensor(tensor).floats()? {
        &[value] => Some(value as f32),
        _ => None,
    }
}
