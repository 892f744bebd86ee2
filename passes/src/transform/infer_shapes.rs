//! Gives every tensor a concrete type and shape.
//!
//! **Does**: binds the symbolic dimensions of the graph's inputs, then follows the nodes in
//! topological order with the rules of [`crate::operators`], contents of small integer tensors
//! included (shapes that are computed in the graph). Where an operator has no rule, or cannot
//! say, the file's `value_info` has to, or whoever gave the tensor a type and a shape before (a profile).
//!
//! **Needs**: declared types and shapes of the graph's inputs.
//!
//! **Keeps**: nodes, order, declarations. Only [`Tensor::element`], [`Tensor::shape`] and
//! [`Tensor::constant`] are filled in.
//!
//! [`Tensor::element`]: crate::graph::Tensor::element
//! [`Tensor::shape`]: crate::graph::Tensor::shape
//! [`Tensor::constant`]: crate::graph::Tensor::constant

mod expression;

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::graph::{
    Dimension, ElementType, Graph, Node, NodeId, Tensor, TensorId, TensorKind, Uses, topological,
};
use crate::operators::{self, Fault, Known, Shape};
use crate::pass::{Changed, Pass};

/// See the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InferShapes {
    /// The size of each symbolic dimension of the graph's inputs, by name.
    pub bindings: BTreeMap<String, u64>,
}

/// Why shapes could not be inferred.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)]
pub enum InferShapesError {
    #[error("dimension {name:?} is bound to 0; expected a size from 1 up")]
    Zero { name: String },
    #[error("there is no dimension {name:?}; {}", dimensions(existing))]
    NoSuchDimension { name: String, existing: Vec<String> },
    #[error("the size of {} is not given: {}", plural(names.len(), "dimension"), names.join(", "))]
    Unbound { names: Vec<String> },
    #[error(
        "graph input {tensor:?} has neither a size nor a name for dimension {position}; \
         expected one of them in the file"
    )]
    Unnamed { tensor: String, position: usize },
    #[error("graph input {tensor:?} is not declared as a tensor of known type and rank")]
    Undeclared { tensor: String },
    #[error("{node} is part of a cycle")]
    Cycle { node: String },
    #[error("{node}: {fault}")]
    Node { node: String, fault: Fault },
    #[error(
        "{node}: its output {tensor:?} is declared as {declared}, but its inputs make it {inferred}"
    )]
    Contradiction {
        node: String,
        tensor: String,
        declared: String,
        inferred: String,
    },
    #[error(
        "{node}: nothing says {what} of its output {tensor:?}{}; expected it in the file's \
         value_info (onnx.shape_inference.infer_shapes adds it for standard operators){}",
        declared(declaration),
        ask(names)
    )]
    Unknown {
        node: String,
        tensor: String,
        what: &'static str,
        declaration: Option<String>,
        names: Vec<String>,
    },
    #[error("tensor {tensor:?} of shape {shape} does not fit into any memory")]
    TooLarge { tensor: String, shape: Shape },
}

fn plural(count: usize, what: &str) -> String {
    if count == 1 {
        format!("1 {what}")
    } else {
        format!("{count} {what}s")
    }
}

fn dimensions(existing: &[String]) -> String {
    match existing {
        [] => "the graph has no symbolic dimensions".to_owned(),
        names => format!("the graph has {}", names.join(", ")),
    }
}

fn declared(declaration: &Option<String>) -> String {
    declaration
        .as_ref()
        .map_or(String::new(), |d| format!(", declared as {d}"))
}

fn ask(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!(", or a size for {}", names.join(", "))
}

impl Pass for InferShapes {
    type Error = InferShapesError;

    fn name(&self) -> &'static str {
        "infer-shapes"
    }

    fn run(&self, graph: &mut Graph) -> Result<Changed, InferShapesError> {
        self.check_bindings(graph)?;
        let mut inference = Inference {
            sizes: self.bindings.clone(),
            uses: Uses::of(graph),
            changed: Changed::No,
        };
        inference.bind_inputs(graph)?;
        let order =
            topological(graph, &inference.uses).map_err(|cycle| InferShapesError::Cycle {
                node: describe(graph.node(cycle.node)),
            })?;
        for id in order {
            inference.visit(graph, id)?;
        }
        Ok(inference.changed)
    }
}

impl InferShapes {
    fn check_bindings(&self, graph: &Graph) -> Result<(), InferShapesError> {
        if let Some((name, _)) = self.bindings.iter().find(|(_, size)| **size == 0) {
            return Err(InferShapesError::Zero { name: name.clone() });
        }
        let existing: BTreeSet<&str> = graph
            .tensor_ids()
            .flat_map(|id| symbols(graph.tensor(id)))
            .collect();
        match self
            .bindings
            .keys()
            .find(|name| !existing.contains(name.as_str()))
        {
            None => Ok(()),
            Some(name) => {
                let inputs = graph
                    .inputs
                    .iter()
                    .flat_map(|&id| symbols(graph.tensor(id)));
                let existing: BTreeSet<String> = inputs.map(str::to_owned).collect();
                let existing = existing.into_iter().collect();
                Err(InferShapesError::NoSuchDimension {
                    name: name.clone(),
                    existing,
                })
            }
        }
    }
}

/// The symbolic dimensions that a tensor declares.
fn symbols(tensor: &Tensor) -> impl Iterator<Item = &str> {
    tensor
        .declared
        .iter()
        .flatten()
        .filter_map(|dimension| match dimension {
            Dimension::Symbol(name) => Some(name.as_str()),
            _ => None,
        })
}

struct Inference {
    /// The size of each dimension name: what the user bound, and names in `value_info` whose
    /// size has turned out.
    sizes: BTreeMap<String, u64>,
    uses: Uses,
    changed: Changed,
}

impl Inference {
    fn bind_inputs(&mut self, graph: &mut Graph) -> Result<(), InferShapesError> {
        let mut unbound = BTreeSet::new();
        for id in graph.inputs.clone() {
            let tensor = graph.tensor(id);
            if tensor.kind == TensorKind::Initializer && tensor.shape.is_some() {
                continue;
            }
            let name = || tensor.name.clone();
            let (Some(element), Some(declared)) = (tensor.element, &tensor.declared) else {
                return Err(InferShapesError::Undeclared { tensor: name() });
            };
            let mut shape = Vec::with_capacity(declared.len());
            for (position, dimension) in declared.iter().enumerate() {
                match (self.size(dimension), dimension) {
                    (Some(size), _) => shape.push(size),
                    (None, Dimension::Symbol(symbol)) => {
                        unbound.insert(symbol.clone());
                    }
                    (None, _) => {
                        return Err(InferShapesError::Unnamed {
                            tensor: name(),
                            position,
                        });
                    }
                }
            }
            if shape.len() == declared.len() {
                check_size(element, &shape).ok_or_else(|| InferShapesError::TooLarge {
                    tensor: name(),
                    shape: Shape(shape.clone()),
                })?;
                self.set(graph, id, element, shape);
            }
        }
        if unbound.is_empty() {
            return Ok(());
        }
        Err(InferShapesError::Unbound {
            names: unbound.into_iter().collect(),
        })
    }

    /// The size of a declared dimension, where it is known.
    fn size(&self, dimension: &Dimension) -> Option<u64> {
        match dimension {
            Dimension::Known(size) => Some(*size),
            Dimension::Unknown => None,
            Dimension::Symbol(name) => self
                .sizes
                .get(name)
                .copied()
                .or_else(|| expression::evaluate(name, |name| self.sizes.get(name).copied())),
        }
    }

    fn visit(&mut self, graph: &mut Graph, id: NodeId) -> Result<(), InferShapesError> {
        let node = graph.node(id);
        let mut inferred = match operators::infer(graph, &self.uses, node) {
            None => Vec::new(),
            Some(Ok(outputs)) => outputs,
            Some(Err(fault)) => {
                return Err(InferShapesError::Node {
                    node: describe(node),
                    fault,
                });
            }
        };
        inferred.resize(node.outputs.len(), None);
        let outputs: Vec<(TensorId, Option<Known>)> = node
            .outputs
            .iter()
            .zip(inferred)
            .filter_map(|(&output, known)| Some((output?, known)))
            .collect();
        for (output, known) in outputs {
            let (node, tensor) = (graph.node(id), graph.tensor(output));
            let (element, shape, constant) = match known {
                Some(known) => {
                    self.check_declaration(node, tensor, &known)?;
                    (known.element, known.shape, known.constant)
                }
                None => {
                    let (element, shape) = self.as_declared(node, tensor)?;
                    (element, shape, None)
                }
            };
            if check_size(element, &shape).is_none() {
                return Err(InferShapesError::TooLarge {
                    tensor: tensor.name.clone(),
                    shape: Shape(shape),
                });
            }
            self.learn(tensor, &shape);
            self.set(graph, output, element, shape);
            if constant.is_some() {
                graph.tensor_mut(output).constant = constant;
            }
        }
        Ok(())
    }

    /// What the file says of an output that no rule knows.
    fn as_declared(
        &self,
        node: &Node,
        tensor: &Tensor,
    ) -> Result<(ElementType, Vec<u64>), InferShapesError> {
        let dims = tensor.declared.as_ref();
        let shape: Option<Vec<u64>> = dims.and_then(|d| d.iter().map(|d| self.size(d)).collect());
        let shape = shape.or_else(|| tensor.shape.clone());
        if let (Some(element), Some(shape)) = (tensor.element, &shape) {
            return Ok((element, shape.clone()));
        }
        let open = dims
            .into_iter()
            .flatten()
            .filter(|d| self.size(d).is_none());
        let names: BTreeSet<String> = open
            .filter_map(|dimension| match dimension {
                Dimension::Symbol(name) => Some(name.clone()),
                _ => None,
            })
            .collect();
        Err(InferShapesError::Unknown {
            node: describe(node),
            tensor: tensor.name.clone(),
            what: if shape.is_some() {
                "the type"
            } else {
                "the shape"
            },
            declaration: dims.map(|d| declaration(d)),
            names: names.into_iter().collect(),
        })
    }

    /// Numbers that the file declares must agree with the rule; names it declares may be wrong,
    /// since exporters unify dimensions that only happened to be equal.
    fn check_declaration(
        &self,
        node: &Node,
        tensor: &Tensor,
        known: &Known,
    ) -> Result<(), InferShapesError> {
        let contradiction = |declared: String, inferred: String| {
            let (node, tensor) = (describe(node), tensor.name.clone());
            Err(InferShapesError::Contradiction {
                node,
                tensor,
                declared,
                inferred,
            })
        };
        if let Some(element) = tensor.element.filter(|&e| e != known.element) {
            return contradiction(element.name().to_owned(), known.element.name().to_owned());
        }
        let Some(dims) = &tensor.declared else {
            return Ok(());
        };
        let agrees = |(dimension, size): (&Dimension, &u64)| match dimension {
            Dimension::Known(declared) => declared == size,
            _ => true,
        };
        if dims.len() == known.shape.len() && dims.iter().zip(&known.shape).all(agrees) {
            return Ok(());
        }
        contradiction(declaration(dims), Shape(known.shape.clone()).to_string())
    }

    /// Names that stand for one dimension of `tensor` are known from here on.
    fn learn(&mut self, tensor: &Tensor, shape: &[u64]) {
        for (dimension, &size) in tensor.declared.iter().flatten().zip(shape) {
            if let Dimension::Symbol(name) = dimension
                && !self.sizes.contains_key(name)
            {
                self.sizes.insert(name.clone(), size);
            }
        }
    }

    fn set(&mut self, graph: &mut Graph, id: TensorId, element: ElementType, shape: Vec<u64>) {
        let tensor = graph.tensor_mut(id);
        if tensor.element != Some(element) || tensor.shape.as_ref() != Some(&shape) {
            self.changed = Changed::Yes;
            tensor.element = Some(element);
            tensor.shape = Some(shape);
        }
    }
}

/// `None` if a tensor of this size has more bytes than a signed 64-bit number can hold.
fn check_size(element: ElementType, shape: &[u64]) -> Option<()> {
    let count = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d))?;
    (element.bytes(count).0 <= i64::MAX as u64).then_some(())
}

/// `[batch, 64, ?]`
fn declaration(dims: &[Dimension]) -> String {
    let dims = dims.iter().map(|dimension| match dimension {
        Dimension::Known(size) => size.to_string(),
        Dimension::Symbol(name) => name.clone(),
        Dimension::Unknown => "?".to_owned(),
    });
    format!("[{}]", dims.collect::<Vec<String>>().join(", "))
}

fn describe(node: &Node) -> String {
    let domain = if node.domain.is_empty() { "" } else { "::" };
    format!(
        "node {:?} ({}{domain}{})",
        node.name, node.domain, node.op_type
    )
}

#[cfg(test)]
mod tests;
