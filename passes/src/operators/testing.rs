//! Builds one node for tests of its rules.

use super::{CpuKernels, Provider, infer};
use crate::bytes::Bytes;
use crate::graph::{
    Attribute, AttributeValue, Constant, ElementType, Graph, Node, Tensor, TensorKind, Uses,
};

/// One node, its inputs described one after the other.
#[derive(Clone)]
pub(crate) struct Case {
    graph: Graph,
    node: Node,
}

impl Case {
    /// An operator of the standard, with one output.
    pub(crate) fn onnx(op_type: &str) -> Case {
        Case::of("", op_type)
    }

    /// An operator of ONNX Runtime, with one output.
    pub(crate) fn microsoft(op_type: &str) -> Case {
        Case::of(super::MICROSOFT, op_type)
    }

    pub(crate) fn of(domain: &str, op_type: &str) -> Case {
        let mut graph = Graph::new("case");
        graph.opsets.insert(String::new(), 17);
        let node = Node::new("node", domain, op_type, Vec::new(), Vec::new());
        Case { graph, node }.outputs(1)
    }

    pub(crate) fn opset(mut self, version: i64) -> Case {
        self.graph.opsets.insert(String::new(), version);
        self
    }

    /// The number of outputs.
    pub(crate) fn outputs(mut self, count: usize) -> Case {
        while self.node.outputs.len() < count {
            let name = format!("out{}", self.node.outputs.len());
            let id = self.graph.add_tensor(Tensor::new(name, TensorKind::Value));
            self.node.outputs.push(Some(id));
        }
        self
    }

    pub(crate) fn input(
        mut self,
        element: ElementType,
        shape: &[u64],
        constant: Option<Constant>,
    ) -> Case {
        let name = format!("in{}", self.node.inputs.len());
        let id = self.graph.add_tensor(Tensor {
            element: Some(element),
            shape: Some(shape.to_vec()),
            constant,
            ..Tensor::new(name, TensorKind::Input)
        });
        self.node.inputs.push(Some(id));
        self
    }

    pub(crate) fn float(self, shape: &[u64]) -> Case {
        self.input(ElementType::Float, shape, None)
    }

    pub(crate) fn bool(self, shape: &[u64]) -> Case {
        self.input(ElementType::Bool, shape, None)
    }

    pub(crate) fn int64(self, shape: &[u64]) -> Case {
        self.input(ElementType::Int64, shape, None)
    }

    pub(crate) fn ints(self, shape: &[u64], values: &[i64]) -> Case {
        self.input(
            ElementType::Int64,
            shape,
            Some(Constant::Ints(values.to_vec())),
        )
    }

    pub(crate) fn bools(self, shape: &[u64], values: &[i64]) -> Case {
        self.input(
            ElementType::Bool,
            shape,
            Some(Constant::Ints(values.to_vec())),
        )
    }

    pub(crate) fn floats(self, shape: &[u64], values: &[f64]) -> Case {
        self.input(
            ElementType::Float,
            shape,
            Some(Constant::Floats(values.to_vec())),
        )
    }

    /// An optional input that is left out.
    pub(crate) fn none(mut self) -> Case {
        self.node.inputs.push(None);
        self
    }

    /// An optional output that is left out.
    pub(crate) fn no_output(mut self) -> Case {
        self.node.outputs.push(None);
        self
    }

    pub(crate) fn attribute(mut self, name: &str, value: AttributeValue) -> Case {
        self.node.attributes.push(Attribute {
            name: name.to_owned(),
            value,
        });
        self
    }

    pub(crate) fn int(self, name: &str, value: i64) -> Case {
        self.attribute(name, AttributeValue::Int(value))
    }

    pub(crate) fn list(self, name: &str, values: &[i64]) -> Case {
        self.attribute(name, AttributeValue::Ints(values.to_vec()))
    }

    pub(crate) fn text(self, name: &str, value: &str) -> Case {
        self.attribute(name, AttributeValue::String(value.as_bytes().to_vec()))
    }

    pub(crate) fn node(&self) -> Node {
        self.node.clone()
    }

    /// Type, shape and contents of each output that the rule knows, `?` for the others.
    pub(crate) fn shapes(&self) -> Vec<String> {
        let outputs = infer(&self.graph, &Uses::of(&self.graph), &self.node)
            .expect("a rule")
            .expect("no fault");
        let text = |known: Option<super::Known>| match known {
            None => "?".to_owned(),
            Some(known) => match known.constant {
                None => format!("{}{:?}", known.element.name(), known.shape),
                Some(Constant::Ints(v)) => {
                    format!("{}{:?} = {v:?}", known.element.name(), known.shape)
                }
                Some(Constant::Floats(v)) => {
                    format!("{}{:?} = {v:?}", known.element.name(), known.shape)
                }
            },
        };
        let mut outputs = outputs;
        outputs.resize(self.node.outputs.len(), None);
        outputs.into_iter().map(text).collect()
    }

    /// What the rule complains about.
    pub(crate) fn fault(&self) -> String {
        infer(&self.graph, &Uses::of(&self.graph), &self.node)
            .expect("a rule")
            .expect_err("a fault")
            .to_string()
    }

    /// The graph with the outputs' shapes filled in, and the node.
    pub(crate) fn inferred(&self) -> (Graph, Node) {
        let mut graph = self.graph.clone();
        let outputs = infer(&graph, &Uses::of(&graph), &self.node)
            .expect("a rule")
            .expect("no fault");
        for (id, known) in self.node.outputs.iter().zip(outputs) {
            if let (Some(id), Some(known)) = (id, known) {
                let tensor = graph.tensor_mut(*id);
                tensor.element = Some(known.element);
                tensor.shape = Some(known.shape);
            }
        }
        (graph, self.node.clone())
    }

    /// The graph with nothing known of the outputs.
    pub(crate) fn bare(&self) -> (Graph, Node) {
        (self.graph.clone(), self.node.clone())
    }

    /// The graph with whatever the rule says of the outputs, which may be nothing.
    pub(crate) fn survives(&self) -> (Graph, Node) {
        let mut graph = self.graph.clone();
        let outputs = infer(&graph, &Uses::of(&graph), &self.node).expect("a rule");
        for (id, known) in self.node.outputs.iter().zip(outputs.unwrap_or_default()) {
            if let (Some(id), Some(known)) = (id, known) {
                let tensor = graph.tensor_mut(*id);
                tensor.element = Some(known.element);
                tensor.shape = Some(known.shape);
            }
        }
        (graph, self.node.clone())
    }

    pub(crate) fn workspace(&self, provider: Provider) -> Bytes {
        let (graph, node) = self.inferred();
        super::workspace(&graph, &node, provider, CpuKernels::DEFAULT)
    }

    pub(crate) fn work(&self) -> super::Work {
        let (graph, node) = self.inferred();
        super::work(&graph, &node, Provider::Cpu)
    }
}
