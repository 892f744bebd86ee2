//! Computations whose results are taken for the original's only where the user allows it by name.
//!
//! These rules say nothing about bits: what they equate is the same function of real numbers, and how
//! far apart the results can be stands with the names (`operators/variants`).

use std::collections::BTreeSet;

use super::super::values::{ValueNumber, equal_parts};
use super::{Rules, computation};
use crate::graph::{AttributeValue, ElementType, NodeId, TensorId};

impl Rules<'_> {
    /// Adds what is `allowed`.
    pub(super) fn approximate(&mut self, allowed: &BTreeSet<String>) {
        let is = |name: &str| allowed.contains(name);
        match (self.node.domain.as_str(), self.node.op_type.as_str()) {
            ("", "Sum") if is("reassociated-sums") => {
                self.sum_by_appearance();
            }
            ("com.microsoft", "ConvGrad") => {
                if is("half-precision") {
                    self.half_precision();
                }
                if is("batch-slices") {
                    self.batch_slices(2);
                    self.batch_slices(4);
                }
            }
            ("com.microsoft", "LayerNormalizationGrad") if is("invertible-layer-norm") => {
                self.invertible_normalization();
            }
            _ => {}
        }
    }

    /// Addition is associative and commutative.
    fn sum_by_appearance(&mut self) -> Option<()> {
        let output = self.node.output(0)?;
        let inputs: Option<Vec<TensorId>> = self.node.inputs.iter().copied().collect();
        let mut inputs = inputs.filter(|all| all.iter().all(|&input| self.alike(input, output)))?;
        let place = |tensor: &TensorId| {
            let writes = |&id: &NodeId| self.graph.node(id).writes().any(|w| w == *tensor);
            self.graph.order().iter().position(writes)
        };
        inputs.sort_by_key(place);
        let (last, first) = inputs.split_last().filter(|_| self.opset() >= 7)?;
        self.running_sum(first, *last, output)
    }

    /// X rounded to half precision. dX does not depend on X.
    fn half_precision(&mut self) -> Option<()> {
        let [dy, x, w] = self.node.first_inputs()?;
        if self.graph.tensor(x).element != Some(ElementType::Float) {
            return None;
        }
        let (dy, value, w) = (self.value(dy), self.value(x), self.value(w));
        let half = self.cast(value, ElementType::Float16, x);
        let rounded = self.cast(half, ElementType::Float, x);
        let outputs = self.written();
        self.gradient(vec![Some(dy), Some(rounded), Some(w)], outputs);
        Some(())
    }

    /// The images of a batch do not enter each other's dX, and dW is a sum over them.
    fn batch_slices(&mut self, count: u64) -> Option<()> {
        let [dy, x, w] = self.node.first_inputs()?;
        let (dx, dw) = (self.node.output(0)?, self.node.output(1));
        let shape = |id: TensorId| self.graph.tensor(id).shape.clone();
        let batch = *shape(x)?.first()?;
        let whole = batch > 0 && batch % count == 0 && shape(dy)?.first() == Some(&batch);
        if !whole || self.node.output(2).is_some() || !(13..18).contains(&self.opset()) {
            return None;
        }
        let dys = self.split(dy, count)?;
        let xs = self.split(x, count)?;
        let weights = self.value(w);
        let (mut dxs, mut dws) = (Vec::new(), Vec::new());
        for (&dy, &x) in dys.iter().zip(&xs) {
            let written = self.slice_of(dx, count)?;
            let mut outputs = vec![Some(written)];
            dxs.push(Some(written));
            if let Some(dw) = dw {
                let of = self.graph.tensor(dw);
                let written = self.values.fresh(of.element, of.shape.clone());
                outputs.push(Some(written));
                dws.push(Some(written));
            }
            self.gradient(vec![Some(dy), Some(x), Some(weights)], outputs);
        }
        let axis = vec![("axis", AttributeValue::Int(0))];
        self.equate("", "Concat", axis, dxs, dx);
        if let Some(dw) = dw {
            self.equate("", "Sum", vec![], dws, dw);
        }
        Some(())
    }

    /// Equal parts along the first axis.
    fn split(&mut self, tensor: TensorId, count: u64) -> Option<Vec<ValueNumber>> {
        let axis = vec![("axis", AttributeValue::Int(0))];
        let mut split = computation("", "Split", axis, vec![Some(self.value(tensor))]);
        split.attributes.push(equal_parts(count as usize));
        if let Some(known) = self.values.repeatable.get(&split) {
            return known.outputs.iter().copied().collect();
        }
        let parts: Option<Vec<ValueNumber>> =
            (0..count).map(|_| self.slice_of(tensor, count)).collect();
        let parts = parts?;
        self.insert_all(split, parts.iter().copied().map(Some).collect());
        Some(parts)
    }

    fn slice_of(&mut self, tensor: TensorId, count: u64) -> Option<ValueNumber> {
        let of = self.graph.tensor(tensor);
        let mut shape = of.shape.clone()?;
        *shape.first_mut()? /= count;
        Some(self.values.fresh(of.element, Some(shape)))
    }

    /// The values of what the node writes.
    fn written(&self) -> Vec<Option<ValueNumber>> {
        let outputs = self.node.outputs.iter();
        outputs.map(|output| Some(self.value((*output)?))).collect()
    }

    /// The node itself on other inputs.
    fn gradient(&mut self, inputs: Vec<Option<ValueNumber>>, outputs: Vec<Option<ValueNumber>>) {
        let computation = super::Computation::of(self.node, inputs);
        self.insert_all(computation, outputs);
    }

    /// `Y = (X - mean) / deviation * scale + B`, so that X can be had from Y.
    fn invertible_normalization(&mut self) -> Option<()> {
        let [dy, x, scale, mean, inverse] = self.node.first_inputs()?;
        let all = [x, scale, mean, inverse].map(|tensor| self.value(tensor));
        let axis = self.node.int("axis").unwrap_or(-1);
        let forward = self.graph.nodes();
        let found = forward.into_iter().find_map(|node| {
            let value = |tensor: Option<TensorId>| tensor.map(|tensor| self.value(tensor));
            let read = [node.input(0), node.input(1), node.output(1), node.output(2)].map(value);
            let same = node.op_type == "LayerNormalization"
                && node.int("axis").unwrap_or(-1) == axis
                && read == all.map(Some);
            same.then(|| Some((node.output(0)?, node.input(2)?)))?
        });
        let (y, bias) = found?;
        let inputs = [dy, y, scale, bias, inverse].map(|tensor| Some(self.value(tensor)));
        let attributes = vec![("axis", AttributeValue::Int(axis))];
        let operator = "InvertibleLayerNormalizationGrad";
        let computation = computation("com.microsoft", operator, attributes, inputs.to_vec());
        self.insert_all(computation, self.written());
        Some(())
    }
}
