//! Batch normalization again, from its statistics, and what an activation makes of it.

use std::collections::BTreeMap;

use super::super::values::{ValueNumber, Values};
use super::{Attributes, NewValue, Rules};
use crate::graph::{AttributeValue, Constant, ElementType, Graph, NodeId, TensorId};

/// The batch normalizations in training, by what they write.
pub(super) type Normalizations = BTreeMap<ValueNumber, NodeId>;

pub(super) fn normalizations(values: &Values, graph: &Graph, order: &[NodeId]) -> Normalizations {
    let written = |&id: &NodeId| {
        let node = graph.node(id);
        let applies =
            node.is("com.microsoft", "BatchNormInternal") && node.int("training_mode") == Some(1);
        let y = node.output(0).filter(|_| applies)?;
        Some((values.of[y.index()], id))
    };
    order.iter().filter_map(written).collect()
}

/// What is normalized, `X * factor + (B - mean * factor)` with `factor = inverse * scale`, which is how the CPU
/// kernel computes it, with the mean and the inverse deviation that the node has left.
pub(super) struct NormalizedFrom {
    pub(super) x: TensorId,
    pub(super) bias: ValueNumber,
    pub(super) mean: ValueNumber,
    pub(super) factor: ValueNumber,
    pub(super) vector: NewValue,
}

impl Rules<'_> {
    /// A BatchNormalization that is given the mean, `factor` as its scale, and a variance of 0, to which it
    /// adds an epsilon of 1 before it takes the root and divides by it: the same kernel on the same numbers.
    pub(super) fn normalized_again(&mut self, updated: &[bool]) -> Option<()> {
        let y = self.node.output(0)?;
        let all = self.normalized(self.id, updated)?;
        // The mean of what is finite is; else the result is no number in both.
        let mean = Some(all.mean);
        let zeros = self.define("Sub", vec![], vec![mean, mean], all.vector);
        let x = Some(self.value(all.x));
        let inputs = vec![x, Some(all.factor), Some(all.bias), mean, Some(zeros)];
        let epsilon = vec![("epsilon", AttributeValue::Float(1.0))];
        self.equate("", "BatchNormalization", epsilon, inputs, y)
    }

    /// A convolution of each channel with one weight rounds the product and the sum in the same way, but gives
    /// 0 for the sum of two -0; its activation is the node's.
    pub(super) fn activated_again(
        &mut self,
        normalizations: &Normalizations,
        updated: &[bool],
    ) -> Option<()> {
        let (read, activated) = (self.node.input(0)?, self.node.output(0)?);
        let &normalization = normalizations.get(&self.value(read))?;
        let mut attributes = self.activation()?;
        let all = self.normalized(normalization, updated)?;
        let shape = self.graph.tensor(all.x).shape.clone()?;
        let channels = *shape.get(1).filter(|_| (3..=5).contains(&shape.len()))?;
        let (mean, factor, bias) = (Some(all.mean), Some(all.factor), Some(all.bias));
        let moved = self.define("Mul", vec![], vec![mean, factor], all.vector);
        let shift = self.define("Sub", vec![], vec![bias, Some(moved)], all.vector);
        let mut dims = vec![channels];
        dims.resize(shape.len(), 1);
        let ints = dims.iter().map(|&d| d as i64).collect();
        let ints = vec![("value_ints", AttributeValue::Ints(ints))];
        let rank = vec![shape.len() as u64];
        let to = self.define_of(("", "Constant"), ints, vec![], ElementType::Int64, rank);
        let inputs = vec![factor, Some(to)];
        let weights = self.define_of(("", "Reshape"), vec![], inputs, ElementType::Float, dims);
        let inputs = vec![Some(self.value(all.x)), Some(weights), Some(shift)];
        let group = AttributeValue::Int(i64::try_from(channels).ok()?);
        attributes.push(("group", group));
        self.equate("com.microsoft", "FusedConv", attributes, inputs, activated)
    }

    /// The attributes of a convolution that does what the node does with its result.
    fn activation(&self) -> Option<Attributes> {
        let name = |name: &str| ("activation", AttributeValue::String(name.into()));
        if self.node.is("", "Relu") {
            return Some(vec![name("Relu")]);
        }
        let bounds = [1, 2].map(|position| self.number(self.node.input(position)));
        let [Some(least), Some(most)] = bounds else {
            return None;
        };
        let parameters = AttributeValue::Floats(vec![least, most]);
        let attributes = vec![name("Clip"), ("activation_params", parameters)];
        (self.node.is("", "Clip") && least <= most).then_some(attributes)
    }

    /// The number that the tensor is in every step.
    fn number(&self, tensor: Option<TensorId>) -> Option<f32> {
        let tensor = tensor.filter(|tensor| self.fixed[tensor.index()])?;
        match self.graph.tensor(tensor).constant.as_ref()? {
            Constant::Floats(values) if values.len() == 1 => Some(values[0] as f32),
            _ => None,
        }
    }

    /// The running statistics, which are `updated`, do not enter it.
    pub(super) fn normalized(&mut self, node: NodeId, updated: &[bool]) -> Option<NormalizedFrom> {
        let node = self.graph.node(node);
        let inputs = [0, 1, 2].map(|i| node.input(i));
        let outputs = [0, 3, 4].map(|i| node.output(i));
        let ([x, scale, bias], [y, mean, inverse]) = (inputs, outputs);
        let (x, scale, bias, y, mean, inverse) = (x?, scale?, bias?, y?, mean?, inverse?);
        let used = [x, scale, bias, mean, inverse];
        let element = |id: TensorId| self.graph.tensor(id).element;
        let applies = used.iter().all(|&t| element(t) == Some(ElementType::Float))
            && !used.iter().chain([&y]).any(|t| updated[t.index()])
            && node.int("training_mode") == Some(1)
            && self.opset() >= 13;
        let vector = NewValue::of(mean);
        let [scale, bias, mean, inverse] = [scale, bias, mean, inverse].map(|t| self.value(t));
        applies.then(|| NormalizedFrom {
            x,
            bias,
            mean,
            factor: self.define("Mul", vec![], vec![Some(inverse), Some(scale)], vector),
            vector,
        })
    }
}
