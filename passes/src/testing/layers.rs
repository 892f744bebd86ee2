//! What the forward part is made of, and the attributes that both halves share.

use super::further::Further;
use crate::graph::{AttributeValue, TensorId};

/// One differentiable step, with the tensors that its gradient needs.
#[derive(Clone, Debug)]
pub(super) enum Layer {
    /// Relu, Sigmoid, Tanh, Softmax, Gelu, Neg or Identity.
    Unary {
        operator: &'static str,
        x: TensorId,
        y: TensorId,
    },
    /// Add, Sub or Mul of two equal shapes.
    Binary {
        operator: &'static str,
        a: TensorId,
        b: TensorId,
        y: TensorId,
    },
    /// Any shape to rows.
    Flatten { x: TensorId, y: TensorId },
    /// Along axis 1, into halves.
    Split { x: TensorId, parts: [TensorId; 2] },
    /// Along axis 1.
    Concat {
        a: TensorId,
        b: TensorId,
        y: TensorId,
    },
    /// Of images, per channel.
    ChannelNorm {
        x: TensorId,
        scale: TensorId,
        shift: TensorId,
        y: TensorId,
        saved: [TensorId; 2],
    },
    /// Of rows.
    RowNorm {
        x: TensorId,
        scale: TensorId,
        shift: TensorId,
        y: TensorId,
        saved: [TensorId; 2],
    },
    /// With a mask drawn anew in every run.
    Dropout {
        x: TensorId,
        y: TensorId,
        mask: TensorId,
        ratio: TensorId,
        training: TensorId,
    },
    /// 2 × 2, stride 2.
    MaxPool {
        x: TensorId,
        y: TensorId,
        mask: TensorId,
    },
    /// Gemm with a transposed weight and a bias.
    Linear {
        x: TensorId,
        weight: TensorId,
        bias: TensorId,
        y: TensorId,
    },
    /// MatMul with a weight.
    MatMul {
        x: TensorId,
        weight: TensorId,
        y: TensorId,
    },
    /// Square window, same size.
    Conv {
        x: TensorId,
        weight: TensorId,
        y: TensorId,
        window: i64,
    },
    /// Another one.
    Further(Further),
}

impl Layer {
    /// The outputs that gradients arrive at.
    pub(super) fn outputs(&self) -> Vec<TensorId> {
        match *self {
            Layer::Split { parts, .. } => parts.to_vec(),
            Layer::Further(ref further) => vec![further.y],
            Layer::Unary { y, .. }
            | Layer::Binary { y, .. }
            | Layer::Flatten { y, .. }
            | Layer::Concat { y, .. }
            | Layer::ChannelNorm { y, .. }
            | Layer::RowNorm { y, .. }
            | Layer::Dropout { y, .. }
            | Layer::MaxPool { y, .. }
            | Layer::Linear { y, .. }
            | Layer::MatMul { y, .. }
            | Layer::Conv { y, .. } => vec![y],
        }
    }
}

pub(super) fn pool() -> Vec<(&'static str, AttributeValue)> {
    let mut attributes = square(2, 2, 0);
    attributes.push(("ceil_mode", AttributeValue::Int(0)));
    attributes.push(("storage_order", AttributeValue::Int(0)));
    attributes
}

pub(super) fn convolution(window: i64) -> Vec<(&'static str, AttributeValue)> {
    let mut attributes = square(window, 1, window / 2);
    attributes.push(("group", AttributeValue::Int(1)));
    attributes
}

pub(super) fn layer_norm() -> Vec<(&'static str, AttributeValue)> {
    vec![
        ("axis", AttributeValue::Int(-1)),
        ("epsilon", AttributeValue::Float(1e-5)),
        ("stash_type", AttributeValue::Int(1)),
    ]
}

pub(super) fn gemm(
    transpose_a: bool,
    transpose_b: bool,
    beta: f32,
) -> Vec<(&'static str, AttributeValue)> {
    vec![
        ("alpha", AttributeValue::Float(1.0)),
        ("beta", AttributeValue::Float(beta)),
        ("transA", AttributeValue::Int(transpose_a.into())),
        ("transB", AttributeValue::Int(transpose_b.into())),
    ]
}

fn square(size: i64, stride: i64, pad: i64) -> Vec<(&'static str, AttributeValue)> {
    vec![
        ("kernel_shape", AttributeValue::Ints(vec![size; 2])),
        ("strides", AttributeValue::Ints(vec![stride; 2])),
        ("pads", AttributeValue::Ints(vec![pad; 4])),
        ("dilations", AttributeValue::Ints(vec![1; 2])),
    ]
}
