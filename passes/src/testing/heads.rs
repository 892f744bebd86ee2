//! Where the forward part ends and the backward part begins.

use super::forward::Forward;
use super::further::Variety;
use super::graphs::Builder;
use crate::graph::{AttributeValue, ElementType, TensorId, TensorKind};

/// A place that gradients start from.
pub(super) struct Head {
    /// The activation that the loss reads.
    pub(super) of: TensorId,
    /// Its gradient.
    pub(super) gradient: TensorId,
}

impl Forward {
    /// Ends every branch in the loss, but for a few dead ends.
    pub(super) fn heads(&mut self, builder: &mut Builder) -> Vec<Head> {
        let ends: Vec<TensorId> = self
            .activations
            .iter()
            .copied()
            .filter(|end| self.differentiable.contains(end) && !self.consumed.contains(end))
            .collect();
        let mut heads = Vec::new();
        let mut losses = Vec::new();
        for (position, &of) in ends.iter().enumerate() {
            let last = position + 1 == ends.len();
            if !last && !self.halves.contains(&of) && builder.random.one_in(4) {
                continue;
            }
            if !self.weighty {
                builder.graph.outputs.push(of);
                let shape = builder.shape(of);
                let gradient =
                    builder.tensor("y_grad", TensorKind::Input, ElementType::Float, &shape);
                heads.push(Head { of, gradient });
                continue;
            }
            let shape = builder.shape(of);
            // PyTorch makes the loss, and hands its gradient back.
            if builder.variety == Variety::Any && ends.len() == 1 && builder.random.one_in(2) {
                let attributes = [
                    ("full_shape_outputs", AttributeValue::Ints(vec![0])),
                    (
                        "non_differentiable_outputs",
                        AttributeValue::Ints(Vec::new()),
                    ),
                ];
                let gradient = builder.node(".YieldOp", &[of], &shape, &attributes);
                heads.push(Head { of, gradient });
                continue;
            }
            let (loss, head) = match shape.len() == 2 && shape[1] >= 3 && last {
                true => cross_entropy(builder, of),
                false => mean(builder, of),
            };
            losses.push(loss);
            heads.push(head);
        }
        match losses.as_slice() {
            [] => {}
            [loss] => builder.graph.outputs.push(*loss),
            _ => {
                let total = builder.node("Sum", &losses, &[], &[]);
                builder.graph.outputs.push(total);
            }
        }
        heads
    }
}

fn cross_entropy(builder: &mut Builder, of: TensorId) -> (TensorId, Head) {
    let shape = builder.shape(of);
    let labels = builder.tensor("labels", TensorKind::Input, ElementType::Int64, &shape[..1]);
    let one = builder.floats("one", &[], vec![1.0]);
    let attributes = [("reduction", AttributeValue::String(b"mean".to_vec()))];
    let outputs = [
        Some((ElementType::Float, vec![])),
        Some((ElementType::Float, shape.clone())),
    ];
    let made = builder.node_with(
        "SoftmaxCrossEntropyLoss",
        &[of, labels],
        &outputs,
        &attributes,
    );
    let inputs = [one, made[1], labels];
    let gradient = builder.node(".SoftmaxCrossEntropyLossGrad", &inputs, &shape, &attributes);
    (made[0], Head { of, gradient })
}

/// The mean, whose gradient is a constant, or half the sum of squares.
fn mean(builder: &mut Builder, of: TensorId) -> (TensorId, Head) {
    let shape = builder.shape(of);
    let count: u64 = shape.iter().product();
    if builder.random.one_in(2) {
        let loss = builder.node(
            "ReduceMean",
            &[of],
            &[],
            &[("keepdims", AttributeValue::Int(0))],
        );
        let share = builder.floats("share", &[], vec![f64::from((1.0 / count as f64) as f32)]);
        let sizes = builder.ints("sizes", &shape);
        let gradient = builder.node("Expand", &[share, sizes], &shape, &[]);
        return (loss, Head { of, gradient });
    }
    let half = builder.floats("half", &[], vec![0.5]);
    let square = builder.node("Mul", &[of, of], &shape, &[]);
    let sum = builder.node(
        "ReduceSum",
        &[square],
        &[],
        &[("keepdims", AttributeValue::Int(0))],
    );
    let loss = builder.node("Mul", &[sum, half], &[], &[]);
    let gradient = builder.node("Identity", &[of], &shape, &[]);
    (loss, Head { of, gradient })
}
