//! What an activation makes of a batch normalization again, from its statistics.

use std::collections::BTreeMap;

use super::super::values::{ValueNumber, Values};
use super::{Attributes, NewValue, Rules};
use crate::graph::{AttributeValue, ElementType, Graph, NodeId, TensorId};

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

/// What is normalized, `X * factor + shift` with `factor = inverse * scale` and `shift = B - mean * factor`, which is how the CPU
/// kernel computes it, with the mean and the inverse deviation that the node has left.
pub(super) struct NormalizedFrom {
    pub(super) x: TensorId,
    pub(super) factor: ValueNumber,
    pub(super) shift: ValueNumber,
}

impl Rules<'_> {
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
        let mut dims = vec![channels];
        dims.resize(shape.len(), 1);
        let weights = self.reshaped(all.factor, dims);
        let inputs = vec![Some(self.value(all.x)), Some(weights), Some(all.shift)];
        let group = AttributeValue::Int(i64::try_from(channels).ok()?);
        attributes.push(("group", group));
        self.equate("com.microsoft", "FusedConv", attributes, inputs, activated)
    }

    /// The numbers of a vector in a tensor of that shape.
    pub(super) fn reshaped(&mut self, vector: ValueNumber, dims: Vec<u64>) -> ValueNumber {
        let to = self.ints(dims.iter().map(|&d| d as i64).collect());
        let inputs = vec![Some(vector), Some(to)];
        self.define_of(("", "Reshape"), vec![], inputs, ElementType::Float, dims)
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
        match self.graph.tensor(tensor).floats()? {
            &[value] => Some(value as f32),
            _ => None,
        }
    }

    /// The running statistics, which are `updated`, do not enter it.
    pub(super) fn normalized(&mut self, node: NodeId, updated: &[bool]) -> Option<NormalizedFrom> {
        let node = self.graph.node(node);
        let [x, scale, bias] = node.first_inputs()?;
        let (y, mean, inverse) = (node.output(0)?, node.output(3)?, node.output(4)?);
        let used = [x, scale, bias, mean, inverse];
        let element = |id: TensorId| self.graph.tensor(id).element;
        let applies = used.iter().all(|&t| element(t) == Some(ElementType::Float))
            && !used.iter().chain([&y]).any(|t| updated[t.index()])
            && node.int("training_mode") == Some(1)
            && self.opset() >= 13;
        let vector = NewValue::of(mean);
        let [scale, bias, mean, inverse] = [scale, bias, mean, inverse].map(|t| self.value(t));
        applies.then(|| {
            let inputs = vec![Some(inverse), Some(scale)];
            let factor = self.define("Mul", vec![], inputs, vector);
            let moved = self.define("Mul", vec![], vec![Some(mean), Some(factor)], vector);
            let shift = self.define("Sub", vec![], vec![Some(bias), Some(moved)], vector);
            NormalizedFrom { x, factor, shift }
        })
    }
}
