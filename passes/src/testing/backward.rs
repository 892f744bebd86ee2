//! The backward half: gradients in reverse, then accumulation.

use std::collections::BTreeMap;

use super::forward::Forward;
use super::graphs::Builder;
use super::heads::Head;
use super::layers::{Layer, convolution, gemm, layer_norm, pool};
use crate::graph::{AttributeValue, ElementType, TensorId, TensorKind};

/// What has flowed into each tensor so far.
type Gradients = BTreeMap<TensorId, Vec<TensorId>>;

impl Builder {
    /// Adds the gradient of every layer that one flows into, and an accumulator per weight (or
    /// an output with the input's gradient).
    pub(super) fn backward(&mut self, forward: &Forward, heads: Vec<Head>) {
        let mut gradients = Gradients::new();
        for head in heads {
            gradients.entry(head.of).or_default().push(head.gradient);
        }
        let accumulate = !forward.weights.is_empty();
        let wanted = |x: TensorId| {
            forward.differentiable.contains(&x) && (x != forward.input || !accumulate)
        };
        // ONNX Runtime's gradient of Add is an Identity each; simplified graphs share one tensor.
        let copies = self.random.one_in(2);
        for layer in forward.layers.iter().rev() {
            self.layer_gradient(layer, &wanted, copies, &mut gradients);
        }
        if !accumulate {
            if let Some(gradient) = self.total(forward.input, &mut gradients) {
                let shape = self.shape(gradient);
                // A graph output that is an input of the graph, or is listed twice, is unusual.
                let own =
                    self.graph.inputs.contains(&gradient) || self.graph.outputs.contains(&gradient);
                let gradient = if own {
                    self.node("Identity", &[gradient], &shape, &[])
                } else {
                    gradient
                };
                self.graph.outputs.push(gradient);
            }
            return;
        }
        let reset = self.tensor(
            "lazy_reset_grad",
            TensorKind::Input,
            ElementType::Bool,
            &[1],
        );
        for &weight in &forward.weights {
            let Some(gradient) = self.total(weight, &mut gradients) else {
                continue;
            };
            let shape = self.shape(weight);
            let name = format!(
                "{}_grad.accumulation.buffer",
                self.graph.tensor(weight).name
            );
            let buffer = self.tensor(&name, TensorKind::Input, ElementType::Float, &shape);
            let flag = Some((ElementType::Bool, vec![1]));
            let made = self.node_with(
                ".InPlaceAccumulatorV2",
                &[buffer, gradient, reset],
                &[flag],
                &[],
            );
            self.graph.outputs.push(made[0]);
        }
    }

    /// The sum of what has flowed into `tensor`.
    fn total(&mut self, tensor: TensorId, gradients: &mut Gradients) -> Option<TensorId> {
        let parts = gradients.remove(&tensor)?;
        if let [part] = parts.as_slice() {
            return Some(*part);
        }
        let shape = self.shape(tensor);
        Some(self.node("Sum", &parts, &shape, &[]))
    }

    fn layer_gradient(
        &mut self,
        layer: &Layer,
        wanted: &impl Fn(TensorId) -> bool,
        copies: bool,
        gradients: &mut Gradients,
    ) {
        let outputs = layer.outputs();
        let arriving: Option<Vec<TensorId>> = outputs
            .into_iter()
            .map(|y| self.total(y, gradients))
            .collect();
        let Some(dy) = arriving else { return };
        let mut give = |tensor: TensorId, gradient: TensorId| {
            if wanted(tensor) {
                gradients.entry(tensor).or_default().push(gradient);
            }
        };
        match *layer {
            Layer::Unary { operator, x, y } if wanted(x) => {
                give(x, self.unary_gradient(operator, dy[0], x, y));
            }
            Layer::Unary { .. } => {}
            Layer::Binary { operator, a, b, .. } => {
                let shape = self.shape(a);
                for (to, other, second) in [(a, b, false), (b, a, true)] {
                    if !wanted(to) {
                        continue;
                    }
                    let gradient = match operator {
                        "Mul" => self.node("Mul", &[dy[0], other], &shape, &[]),
                        "Sub" if second => self.node("Neg", &dy, &shape, &[]),
                        _ if copies => self.node("Identity", &dy, &shape, &[]),
                        _ => dy[0],
                    };
                    give(to, gradient);
                }
            }
            Layer::Flatten { x, .. } if wanted(x) => {
                let shape = self.shape(x);
                let rank = Some((ElementType::Int64, vec![shape.len() as u64]));
                let sizes = match self.random.one_in(2) {
                    true => self.node_with("Shape", &[x], &[rank], &[])[0],
                    false => self.ints("sizes", &shape),
                };
                give(x, self.node("Reshape", &[dy[0], sizes], &shape, &[]));
            }
            Layer::Split { x, .. } if wanted(x) => {
                let shape = self.shape(x);
                give(
                    x,
                    self.node("Concat", &dy, &shape, &[("axis", AttributeValue::Int(1))]),
                );
            }
            Layer::Concat { a, b, .. } => {
                let (of_a, of_b) = (self.shape(a), self.shape(b));
                let sizes = self.ints("sizes", &[of_a[1], of_b[1]]);
                let outputs = [of_a, of_b].map(|shape| Some((ElementType::Float, shape)));
                let axis = [("axis", AttributeValue::Int(1))];
                let parts = self.node_with("Split", &[dy[0], sizes], &outputs, &axis);
                give(a, parts[0]);
                give(b, parts[1]);
            }
            Layer::ChannelNorm {
                x,
                scale,
                shift,
                saved,
                ..
            } => {
                let inputs = [dy[0], x, scale, saved[0], saved[1]];
                let attributes = [("epsilon", AttributeValue::Float(1e-5))];
                self.norm_gradient(".BatchNormalizationGrad", &inputs, shift, &attributes, give);
            }
            Layer::RowNorm {
                x,
                scale,
                shift,
                saved,
                ..
            } => {
                let inputs = [dy[0], x, scale, saved[0], saved[1]];
                self.norm_gradient(
                    ".LayerNormalizationGrad",
                    &inputs,
                    shift,
                    &layer_norm(),
                    give,
                );
            }
            Layer::Dropout {
                x,
                mask,
                ratio,
                training,
                ..
            } if wanted(x) => {
                let shape = self.shape(x);
                give(
                    x,
                    self.node(".DropoutGrad", &[dy[0], mask, ratio, training], &shape, &[]),
                );
            }
            Layer::MaxPool { x, mask, .. } if wanted(x) => {
                let shape = self.shape(x);
                give(x, self.node("MaxPoolGrad", &[dy[0], mask], &shape, &pool()));
            }
            Layer::Linear {
                x, weight, bias, ..
            } => {
                let (rows, kernel) = (self.shape(x), self.shape(weight));
                let axes = self.ints("axes", &[0]);
                let keep = [("keepdims", AttributeValue::Int(0))];
                give(
                    bias,
                    self.node("ReduceSum", &[dy[0], axes], &kernel[..1], &keep),
                );
                give(
                    weight,
                    self.node("Gemm", &[dy[0], x], &kernel, &gemm(true, false, 0.0)),
                );
                if wanted(x) {
                    give(
                        x,
                        self.node("Gemm", &[dy[0], weight], &rows, &gemm(false, false, 0.0)),
                    );
                }
            }
            Layer::MatMul { x, weight, .. } => {
                let (rows, kernel) = (self.shape(x), self.shape(weight));
                let product = ".FusedMatMul";
                give(
                    weight,
                    self.node(product, &[x, dy[0]], &kernel, &transposed(true, false)),
                );
                if wanted(x) {
                    give(
                        x,
                        self.node(product, &[dy[0], weight], &rows, &transposed(false, true)),
                    );
                }
            }
            Layer::Conv {
                x, weight, window, ..
            } => {
                let dx = wanted(x).then(|| (ElementType::Float, self.shape(x)));
                let outputs = [dx, Some((ElementType::Float, self.shape(weight)))];
                let inputs = [dy[0], x, weight];
                let made = self.node_with(".ConvGrad", &inputs, &outputs, &convolution(window));
                give(weight, made[made.len() - 1]);
                give(x, made[0]);
            }
            Layer::Further(ref further) => {
                for (to, gradient) in further.gradients(self, dy[0], wanted) {
                    give(to, gradient);
                }
            }
            Layer::Flatten { .. }
            | Layer::Split { .. }
            | Layer::Dropout { .. }
            | Layer::MaxPool { .. } => {}
        }
    }

    fn unary_gradient(
        &mut self,
        operator: &str,
        dy: TensorId,
        x: TensorId,
        y: TensorId,
    ) -> TensorId {
        let shape = self.shape(x);
        let last = [("axis", AttributeValue::Int(-1))];
        match operator {
            // Its kernel only asks whether the value is positive, so input and output both do.
            "Relu" => {
                let either = self.random.pick(&[x, y]);
                self.node(".ReluGrad", &[dy, either], &shape, &[])
            }
            "Sigmoid" => self.node(".SigmoidGrad", &[dy, y], &shape, &[]),
            "Tanh" => self.node(".TanhGrad", &[dy, y], &shape, &[]),
            "Softmax" => self.node(".SoftmaxGrad_13", &[dy, y], &shape, &last),
            ".Gelu" => self.node(".GeluGrad", &[dy, x], &shape, &[]),
            "Neg" => self.node("Neg", &[dy], &shape, &[]),
            _ => self.node("Identity", &[dy], &shape, &[]),
        }
    }

    /// Gradients of input, scale and shift, from `(dy, x, scale, mean, inverse deviation)`.
    fn norm_gradient(
        &mut self,
        operator: &str,
        inputs: &[TensorId; 5],
        shift: TensorId,
        attributes: &[(&str, AttributeValue)],
        mut give: impl FnMut(TensorId, TensorId),
    ) {
        let [_, x, scale, ..] = *inputs;
        let outputs = [x, scale, shift].map(|of| Some((ElementType::Float, self.shape(of))));
        let made = self.node_with(operator, inputs, &outputs, attributes);
        give(x, made[0]);
        give(scale, made[1]);
        give(shift, made[2]);
    }
}

fn transposed(a: bool, b: bool) -> [(&'static str, AttributeValue); 3] {
    [
        ("alpha", AttributeValue::Float(1.0)),
        ("transA", AttributeValue::Int(a.into())),
        ("transB", AttributeValue::Int(b.into())),
    ]
}
