//! One node of a lowering, before it is put into the graph.

use crate::graph::{Attribute, AttributeValue, Body, Constant, ElementType, Node, TensorId};

/// An operator with what it reads.
pub(super) struct NewNode {
    pub(super) domain: &'static str,
    pub(super) op_type: &'static str,
    pub(super) inputs: Vec<Option<TensorId>>,
    pub(super) attributes: Vec<Attribute>,
    pub(super) bodies: Vec<Body>,
    /// What the bodies read of the graph around them.
    pub(super) captures: Vec<TensorId>,
}

/// A standard operator.
pub(super) fn op<const N: usize>(op_type: &'static str, inputs: [TensorId; N]) -> NewNode {
    NewNode {
        domain: "",
        op_type,
        inputs: inputs.map(Some).to_vec(),
        attributes: Vec::new(),
        bodies: Vec::new(),
        captures: Vec::new(),
    }
}

/// The same, of any number of inputs.
pub(super) fn op_of(op_type: &'static str, inputs: Vec<Option<TensorId>>) -> NewNode {
    NewNode {
        inputs,
        ..op(op_type, [])
    }
}

/// The product of the last two dimensions with one of them transposed, which takes no memory for the transpose.
pub(super) fn fused_matmul(a: TensorId, b: TensorId) -> NewNode {
    NewNode {
        domain: super::site::CONTRIB,
        ..op("FusedMatMul", [a, b])
    }
}

impl NewNode {
    /// As a node of a graph.
    pub(super) fn named(self, name: String, outputs: Vec<Option<TensorId>>) -> Node {
        let node = Node::new(name, self.domain, self.op_type, self.inputs, outputs);
        Node {
            attributes: self.attributes,
            bodies: self.bodies,
            captures: self.captures,
            ..node
        }
    }

    pub(super) fn int(self, name: &str, value: i64) -> NewNode {
        self.with(name, AttributeValue::Int(value))
    }

    pub(super) fn float(self, name: &str, value: f32) -> NewNode {
        self.with(name, AttributeValue::Float(value))
    }

    pub(super) fn ints(self, name: &str, values: &[i64]) -> NewNode {
        self.with(name, AttributeValue::Ints(values.to_vec()))
    }

    pub(super) fn string(self, name: &str, value: &str) -> NewNode {
        self.with(name, AttributeValue::String(value.as_bytes().to_vec()))
    }

    /// With a small tensor as its value.
    pub(super) fn holding(
        self,
        element: ElementType,
        shape: Vec<u64>,
        constant: Constant,
    ) -> NewNode {
        let value = AttributeValue::Tensor {
            element,
            shape,
            constant: Some(constant),
        };
        self.with("value", value)
    }

    pub(super) fn with(mut self, name: &str, value: AttributeValue) -> NewNode {
        self.attributes.push(Attribute {
            name: name.to_owned(),
            value,
        });
        self
    }
}
