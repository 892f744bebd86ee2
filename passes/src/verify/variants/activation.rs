//! Gradients of Relu and LeakyRelu.

use std::collections::BTreeMap;

use super::super::values::{ValueNumber, Values};
use super::{NewValue, Rules};
use crate::graph::{AttributeValue, ElementType, Graph, NodeId, TensorId};

/// Outputs of an activation that are above zero exactly where the inputs are.
pub(super) type Relus = BTreeMap<ValueNumber, ValueNumber>;

/// All that the nodes of this kind write, with what they read. A LeakyRelu with a negative alpha is
/// none of them.
pub(super) fn relus(values: &Values, graph: &Graph, order: &[NodeId], op_type: &str) -> Relus {
    let mut relus = Relus::new();
    for &id in order {
        let node = graph.node(id);
        let rises = node.float("alpha").is_none_or(|alpha| alpha >= 0.0);
        if let (true, Some(x), Some(y)) =
            (node.is("", op_type) && rises, node.input(0), node.output(0))
        {
            relus.insert(values.of[y.index()], values.of[x.index()]);
        }
    }
    relus
}

impl Rules<'_> {
    /// The gradient is dY where the value is above zero and elsewhere zero, or alpha times dY; the
    /// activation is above zero exactly where its input is. For NaN, neither is.
    pub(super) fn relu_gradient(&mut self, op_type: &str, relus: &Relus) -> Option<()> {
        let ([dy, read], dx) = (self.node.first_inputs()?, self.node.output(0)?);
        let gradient = self.value(dy);
        let value = self.value(read);
        let mut values = vec![value];
        values.extend(relus.get(&value));
        let outputs = relus.iter().filter(|&(_, &input)| input == value);
        values.extend(outputs.map(|(&output, _)| output));
        let masks = self.graph.tensor(read).element == Some(ElementType::Float)
            && self.opset() >= 12
            && self.alike(read, dx);
        for value in values {
            let inputs = vec![Some(gradient), Some(value)];
            self.gradient_of_relu(op_type, inputs, dx);
            if masks {
                let ones = self.above_zero(value, read);
                let inputs = vec![Some(gradient), Some(ones)];
                self.gradient_of_relu(op_type, inputs, dx);
            }
        }
        Some(())
    }

    /// 1 where `value`, which has the shape of `like`, is above zero, and 0 elsewhere: above zero
    /// where `value` is.
    fn above_zero(&mut self, value: ValueNumber, like: TensorId) -> ValueNumber {
        let zero = self.float(0.0);
        let inputs = vec![Some(value), Some(zero)];
        let flags = NewValue::typed(like, ElementType::Bool);
        let above = self.define("Greater", vec![], inputs, flags);
        self.cast(above, ElementType::Float, like)
    }

    fn gradient_of_relu(&mut self, op_type: &str, inputs: Vec<Option<ValueNumber>>, dx: TensorId) {
        let attributes = match self.node.float("alpha") {
            Some(alpha) => vec![("alpha", AttributeValue::Float(alpha))],
            None => vec![],
        };
        self.equate("com.microsoft", op_type, attributes, inputs, dx);
    }
}
