//! The forward half of a random training graph.

use std::collections::BTreeSet;

use super::further::Variety;
use super::graphs::Builder;
use super::layers::{Layer, convolution, gemm, layer_norm, pool};
use crate::graph::{AttributeValue, ElementType, TensorId, TensorKind};

/// The forward part as it grows.
pub(super) struct Forward {
    pub(super) layers: Vec<Layer>,
    /// In the order of their creation.
    pub(super) weights: Vec<TensorId>,
    /// Tensors that gradients flow through.
    pub(super) differentiable: BTreeSet<TensorId>,
    /// The graph's input; its gradient is an output where there are no weights.
    pub(super) input: TensorId,
    pub(super) activations: Vec<TensorId>,
    pub(super) consumed: BTreeSet<TensorId>,
    pub(super) halves: BTreeSet<TensorId>,
    /// Values within [-1, 1], which products keep finite.
    bounded: BTreeSet<TensorId>,
    /// Nodes that may still be added, those of the backward part included.
    pub(super) left: isize,
    pub(super) weighty: bool,
    /// Scale, shift, running mean and variance of every batch normalization.
    norms: Vec<[TensorId; 4]>,
}

/// Below this size there are no weights.
const SMALL: usize = 12;
pub(super) const BATCH: u64 = 4;

impl Forward {
    pub(super) fn new(builder: &mut Builder, size: usize) -> Forward {
        let images = size >= SMALL && builder.random.one_in(2);
        let width = builder.random.pick(&[4, 8, 16]);
        let shape = match images {
            true => vec![BATCH, builder.random.pick(&[2, 4]), 8, 8],
            false => vec![BATCH, width],
        };
        let input = builder.tensor("x", TensorKind::Input, ElementType::Float, &shape);
        let mut forward = Forward {
            layers: Vec::new(),
            weights: Vec::new(),
            differentiable: BTreeSet::new(),
            input,
            activations: vec![input],
            consumed: BTreeSet::new(),
            halves: BTreeSet::new(),
            bounded: BTreeSet::new(),
            left: isize::try_from(size).unwrap_or(isize::MAX),
            weighty: size >= SMALL,
            norms: Vec::new(),
        };
        if forward.weighty {
            // The heads: a loss, its gradient, and a few sums.
            forward.left -= 4;
            if images {
                forward.conv(builder, input)
            } else {
                forward.product(builder, input)
            }
        } else {
            forward.differentiable.insert(input);
        }
        forward
    }

    /// Adds layers until the wanted size is reached.
    pub(super) fn grow(&mut self, builder: &mut Builder) {
        if self.layers.is_empty() {
            self.unary(builder, self.input);
        }
        while self.left >= 2 {
            // Mostly onwards from the last activation, sometimes from an older one.
            let x = match builder.random.below(8) {
                0 => builder.random.pick(&self.activations),
                _ => self.activations[self.activations.len() - 1],
            };
            self.layer(builder, x);
        }
    }

    fn layer(&mut self, builder: &mut Builder, x: TensorId) {
        if builder.variety != Variety::Usual && builder.random.one_in(2) && self.further(builder, x)
        {
            return;
        }
        let shape = builder.shape(x);
        let image = shape.len() == 4;
        let room = |nodes: isize| self.left >= nodes;
        match builder.random.below(16) {
            0 | 1 if self.weighty && room(4) && image => self.conv(builder, x),
            0 | 1 if self.weighty && room(4) => self.product(builder, x),
            2 if self.weighty && room(4) && image => self.batch_norm(builder, x),
            2 if self.weighty && room(4) => self.layer_norm(builder, x),
            3 if image && shape[2] >= 4 => self.max_pool(builder, x),
            3 if image && room(3) => self.flatten(builder, x),
            4 => self.dropout(builder, x),
            5 if self.weighty && room(4) => self.noise(builder, x),
            6 if room(6) && shape[1].is_multiple_of(2) && shape[1] > 2 => self.split(builder, x),
            7 if room(3) => self.concat(builder, x),
            8..=11 if room(3) => self.binary(builder, x),
            _ => self.unary(builder, x),
        }
    }

    fn unary(&mut self, builder: &mut Builder, x: TensorId) {
        let shape = builder.shape(x);
        let operators = [
            "Relu", "Relu", "Sigmoid", "Tanh", ".Gelu", "Neg", "Identity", "Softmax",
        ];
        let rows_only = usize::from(shape.len() != 2);
        let operator = builder
            .random
            .pick(&operators[..operators.len() - rows_only]);
        let attributes = match operator {
            "Softmax" => vec![("axis", AttributeValue::Int(-1))],
            _ => vec![],
        };
        let y = builder.node(operator, &[x], &shape, &attributes);
        let inherits = ["Relu", "Neg", "Identity"].contains(&operator) && self.bounded.contains(&x);
        if inherits || ["Sigmoid", "Tanh", "Softmax"].contains(&operator) {
            self.bounded.insert(y);
        }
        self.add(Layer::Unary { operator, x, y }, &[x], &[y], 2);
    }

    fn binary(&mut self, builder: &mut Builder, a: TensorId) {
        let b = self.partner(builder, a, |a, b| a == b);
        let both_bounded = self.bounded.contains(&a) && self.bounded.contains(&b);
        let operators = ["Add", "Add", "Sub", "Mul"];
        let operator = builder
            .random
            .pick(&operators[..if both_bounded { 4 } else { 3 }]);
        let shape = builder.shape(a);
        let y = builder.node(operator, &[a, b], &shape, &[]);
        if operator == "Mul" {
            self.bounded.insert(y);
        }
        self.add(Layer::Binary { operator, a, b, y }, &[a, b], &[y], 4);
    }

    fn concat(&mut self, builder: &mut Builder, a: TensorId) {
        let b = self.partner(builder, a, |a, b| a[0] == b[0] && a[2..] == b[2..]);
        let (mut shape, other) = (builder.shape(a), builder.shape(b));
        if shape[1] + other[1] > 32 {
            return self.unary(builder, a);
        }
        shape[1] += other[1];
        let y = builder.node(
            "Concat",
            &[a, b],
            &shape,
            &[("axis", AttributeValue::Int(1))],
        );
        self.add(Layer::Concat { a, b, y }, &[a, b], &[y], 3);
    }

    /// An activation of the same rank whose shape `fits`: a skip connection. Maybe `a` itself.
    pub(super) fn partner(
        &self,
        builder: &mut Builder,
        a: TensorId,
        fits: impl Fn(&[u64], &[u64]) -> bool,
    ) -> TensorId {
        let shape = builder.shape(a);
        let fitting: Vec<TensorId> = self
            .activations
            .iter()
            .copied()
            .filter(|&b| {
                let other = builder.shape(b);
                other.len() == shape.len() && fits(&shape, &other)
            })
            .collect();
        builder.random.pick(&fitting)
    }

    fn split(&mut self, builder: &mut Builder, x: TensorId) {
        let mut shape = builder.shape(x);
        shape[1] /= 2;
        let sizes = builder.ints("sizes", &[shape[1], shape[1]]);
        let half = Some((ElementType::Float, shape));
        let parts = builder.node_with(
            "Split",
            &[x, sizes],
            &[half.clone(), half],
            &[("axis", AttributeValue::Int(1))],
        );
        self.halves.extend(&parts);
        let parts = [parts[0], parts[1]];
        self.add(Layer::Split { x, parts }, &[x], &parts, 4);
    }

    fn flatten(&mut self, builder: &mut Builder, x: TensorId) {
        let shape = builder.shape(x);
        let rows = [shape[0], shape[1..].iter().product()];
        let y = builder.node("Flatten", &[x], &rows, &[("axis", AttributeValue::Int(1))]);
        self.add(Layer::Flatten { x, y }, &[x], &[y], 3);
    }

    fn max_pool(&mut self, builder: &mut Builder, x: TensorId) {
        let mut shape = builder.shape(x);
        (shape[2], shape[3]) = (shape[2] / 2, shape[3] / 2);
        let outputs = [
            Some((ElementType::Float, shape.clone())),
            Some((ElementType::Int64, shape)),
        ];
        let made = builder.node_with("MaxPool", &[x], &outputs, &pool());
        let (y, mask) = (made[0], made[1]);
        self.add(Layer::MaxPool { x, y, mask }, &[x], &[y], 2);
    }

    fn dropout(&mut self, builder: &mut Builder, x: TensorId) {
        let shape = builder.shape(x);
        let ratio = builder.floats("ratio", &[], vec![0.25]);
        let training = builder.truth("training");
        let outputs = [
            Some((ElementType::Float, shape.clone())),
            Some((ElementType::Bool, shape)),
        ];
        let made = builder.node_with("Dropout", &[x, ratio, training], &outputs, &[]);
        let (y, mask) = (made[0], made[1]);
        self.add(
            Layer::Dropout {
                x,
                y,
                mask,
                ratio,
                training,
            },
            &[x],
            &[y],
            2,
        );
    }

    /// Adds random numbers, with a fixed seed so that two graphs can be compared.
    fn noise(&mut self, builder: &mut Builder, x: TensorId) {
        let shape = builder.shape(x);
        let seed = AttributeValue::Float(builder.random.below(1000) as f32);
        let noise = builder.node("RandomNormalLike", &[x], &shape, &[("seed", seed)]);
        let y = builder.node("Add", &[x, noise], &shape, &[]);
        self.add(
            Layer::Binary {
                operator: "Add",
                a: x,
                b: noise,
                y,
            },
            &[x],
            &[y],
            3,
        );
    }

    fn batch_norm(&mut self, builder: &mut Builder, x: TensorId) {
        let shape = builder.shape(x);
        let channels = [shape[1]];
        let same = |shared: &[TensorId; 4]| builder.shape(shared[0]) == channels;
        let shared = self.norms.iter().copied().rfind(same);
        // Sharing branches update the same running statistics one after the other.
        let norm = shared
            .filter(|_| builder.random.one_in(3))
            .unwrap_or_else(|| {
                let count = shape[1] as usize;
                let norm = [
                    self.weight(builder, "scale", &channels),
                    self.weight(builder, "shift", &channels),
                    builder.floats("running_mean", &channels, vec![0.0; count]),
                    builder.floats("running_var", &channels, vec![1.0; count]),
                ];
                self.norms.push(norm);
                norm
            });
        let [scale, shift, mean, var] = norm;
        let vector = Some((ElementType::Float, channels.to_vec()));
        let outputs = [
            Some((ElementType::Float, shape)),
            vector.clone(),
            vector.clone(),
            vector.clone(),
            vector,
        ];
        let made = builder.node_with(
            ".BatchNormInternal",
            &[x, scale, shift, mean, var],
            &outputs,
            &[
                ("epsilon", AttributeValue::Float(1e-5)),
                ("momentum", AttributeValue::Float(0.9)),
                ("training_mode", AttributeValue::Int(1)),
            ],
        );
        let (y, saved) = (made[0], [made[3], made[4]]);
        self.add(
            Layer::ChannelNorm {
                x,
                scale,
                shift,
                y,
                saved,
            },
            &[x, scale, shift],
            &[y],
            4,
        );
    }

    fn layer_norm(&mut self, builder: &mut Builder, x: TensorId) {
        let shape = builder.shape(x);
        let scale = self.weight(builder, "scale", &shape[1..]);
        let shift = self.weight(builder, "shift", &shape[1..]);
        let row = Some((ElementType::Float, vec![shape[0], 1]));
        let outputs = [Some((ElementType::Float, shape)), row.clone(), row];
        let made = builder.node_with(
            "LayerNormalization",
            &[x, scale, shift],
            &outputs,
            &layer_norm(),
        );
        let (y, saved) = (made[0], [made[1], made[2]]);
        self.add(
            Layer::RowNorm {
                x,
                scale,
                shift,
                y,
                saved,
            },
            &[x, scale, shift],
            &[y],
            4,
        );
    }

    fn product(&mut self, builder: &mut Builder, x: TensorId) {
        let rows = builder.shape(x);
        let width = builder.random.pick(&[4, 8, 16]);
        if builder.random.one_in(2) {
            let weight = self.shared_or_new(builder, &[rows[1], width]);
            let shape = [rows[0], builder.shape(weight)[1]];
            let y = builder.node("MatMul", &[x, weight], &shape, &[]);
            return self.add(Layer::MatMul { x, weight, y }, &[x, weight], &[y], 4);
        }
        let weight = self.weight(builder, "w", &[width, rows[1]]);
        let bias = self.weight(builder, "b", &[width]);
        let attributes = gemm(false, true, 1.0);
        let y = builder.node("Gemm", &[x, weight, bias], &[rows[0], width], &attributes);
        self.add(
            Layer::Linear { x, weight, bias, y },
            &[x, weight, bias],
            &[y],
            6,
        );
    }

    fn conv(&mut self, builder: &mut Builder, x: TensorId) {
        let mut shape = builder.shape(x);
        let window = builder.random.pick(&[1, 3]);
        let channels = builder.random.pick(&[2, 4, 8]);
        let kernel = [channels, shape[1], window as u64, window as u64];
        let weight = self.shared_or_new(builder, &kernel);
        shape[1] = channels;
        let y = builder.node("Conv", &[x, weight], &shape, &convolution(window));
        self.add(
            Layer::Conv {
                x,
                weight,
                y,
                window,
            },
            &[x, weight],
            &[y],
            3,
        );
    }

    /// One time in three a weight of this shape that exists already.
    fn shared_or_new(&mut self, builder: &mut Builder, shape: &[u64]) -> TensorId {
        let same = |weight: &TensorId| builder.shape(*weight) == shape;
        let shared = self.weights.iter().copied().rfind(same);
        match shared {
            Some(weight) if builder.random.one_in(3) => weight,
            _ => self.weight(builder, "w", shape),
        }
    }

    pub(super) fn weight(&mut self, builder: &mut Builder, wish: &str, shape: &[u64]) -> TensorId {
        let id = builder.tensor(wish, TensorKind::Input, ElementType::Float, shape);
        self.weights.push(id);
        self.differentiable.insert(id);
        id
    }

    /// Notes whether the values of `y` are within [-1, 1].
    pub(super) fn bound(&mut self, y: TensorId, is_bounded: bool) {
        if is_bounded {
            self.bounded.insert(y);
        }
    }

    pub(super) fn add(
        &mut self,
        layer: Layer,
        reads: &[TensorId],
        writes: &[TensorId],
        nodes: isize,
    ) {
        self.layers.push(layer);
        self.left -= nodes;
        self.consumed.extend(reads);
        self.activations.extend(writes);
        if reads.iter().any(|read| self.differentiable.contains(read)) {
            self.differentiable.extend(writes);
        }
    }
}
