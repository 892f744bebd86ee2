//! Batch normalization again, from its statistics.

use super::{Like, Rules};
use crate::graph::{AttributeValue, ElementType, TensorId};

impl Rules<'_> {
    /// What is normalized with the mean and the inverse deviation that the node has left:
    /// `X * (inverse * scale) + (B - mean * (inverse * scale))`, which is how the CPU kernel computes it.
    /// A convolution of each channel with one weight rounds the product and the sum in the same way, but gives
    /// 0 for the sum of two -0.
    /// The running statistics, which are `updated`, do not enter it.
    pub(super) fn scaled_channels(&mut self, updated: &[bool]) -> Option<()> {
        let [x, scale, bias] = [0, 1, 2].map(|i| self.node.input(i));
        let (x, scale, bias) = (x?, scale?, bias?);
        let (y, mean, inverse) = (
            self.node.output(0)?,
            self.node.output(3)?,
            self.node.output(4)?,
        );
        let shape = self.graph.tensor(x).shape.clone()?;
        let element = |id: TensorId| self.graph.tensor(id).element;
        let floats = [x, scale, bias, mean, inverse];
        let used = floats.iter().chain([&y]);
        let steady = !used.into_iter().any(|t| updated[t.index()]);
        let applies = steady
            && (3..=5).contains(&shape.len())
            && floats
                .iter()
                .all(|&t| element(t) == Some(ElementType::Float))
            && self.node.int("training_mode") == Some(1)
            && self.opset() >= 13;
        let channels = i64::try_from(*shape.get(1)?).ok().filter(|_| applies)?;
        let vector = Like::of(mean);
        let (scale, bias) = (self.value(scale), self.value(bias));
        let (mean, inverse) = (self.value(mean), self.value(inverse));
        let factor = self.define("Mul", vec![], vec![Some(inverse), Some(scale)], vector);
        let moved = self.define("Mul", vec![], vec![Some(mean), Some(factor)], vector);
        let shift = self.define("Sub", vec![], vec![Some(bias), Some(moved)], vector);
        let mut dims = vec![channels];
        dims.resize(shape.len(), 1);
        let ints = vec![("value_ints", AttributeValue::Ints(dims.clone()))];
        let rank = vec![shape.len() as u64];
        let to = self.define_of(("", "Constant"), ints, vec![], ElementType::Int64, rank);
        let dims = dims.iter().map(|&d| d as u64).collect();
        let inputs = vec![Some(factor), Some(to)];
        let weights = self.define_of(("", "Reshape"), vec![], inputs, ElementType::Float, dims);
        let inputs = vec![Some(self.value(x)), Some(weights), Some(shift)];
        let group = vec![("group", AttributeValue::Int(channels))];
        self.equate("com.microsoft", "FusedConv", group, inputs, y)
    }
}
