//! Nodes and tensors that are added to a graph.

use super::{
    AttributeValue, Constant, Dimension, ElementType, Graph, Node, NodeId, Tensor, TensorId,
    TensorKind,
};

impl Graph {
    /// Some integers that a node writes, called so or with a number behind it. Not in the graph yet.
    pub(crate) fn integers(&self, wish: &str, shape: Vec<u64>) -> Tensor {
        Tensor {
            element: Some(ElementType::Int64),
            declared: Some(Dimension::all_known(&shape)),
            shape: Some(shape),
            ..Tensor::new(self.free_tensor_name(wish), TensorKind::Value)
        }
    }

    /// A tensor like this one that a node writes, whose name has that `ending`. Not in the graph yet.
    pub(crate) fn alike(&self, of: TensorId, ending: &str) -> Tensor {
        let of = self.tensor(of).clone();
        Tensor {
            name: self.free_tensor_name(&format!("{}{ending}", of.name)),
            kind: TensorKind::Value,
            ..of
        }
    }

    /// Adds a node, and all that it writes.
    pub(crate) fn add_made(&mut self, node: Node, output: Tensor) -> (NodeId, TensorId) {
        let written = self.add_tensor(output);
        let outputs = vec![Some(written)];
        (self.add_node(Node { outputs, ..node }), written)
    }

    /// Adds a constant list of integers.
    pub(crate) fn add_list(&mut self, name: &str, values: Vec<i64>) -> (NodeId, TensorId) {
        let list = Tensor {
            constant: Some(Constant::Ints(values.clone())),
            ..self.integers(name, vec![values.len() as u64])
        };
        let mut node = Node::new(name, "", "Constant", Vec::new(), Vec::new());
        node.set_attribute("value_ints", AttributeValue::Ints(values));
        self.add_made(node, list)
    }

    /// Adds a node that reads the size of a tensor, and the tensor that it writes, called `wish` or with a number behind it.
    pub(crate) fn add_size(&mut self, name: &str, of: TensorId, wish: &str) -> (NodeId, TensorId) {
        let size = self.integers(wish, Vec::new());
        let node = Node::new(name, "", "Size", vec![Some(of)], Vec::new());
        self.add_made(node, size)
    }
}
