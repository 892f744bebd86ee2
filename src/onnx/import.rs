//! From a model file to a [`Graph`].

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use ckpt_passes::graph::{
    Attribute, Body, Dimension, Graph, Node, NodeId, Tensor, TensorId, TensorKind, Uses,
    topological,
};
use prost::Message as _;

use super::attribute;
use super::constant::constant_output;
use super::functions;
use super::import_error::{DEEPEST, ImportError, ImportProblem};
use super::model::Model;
use super::node::canonical_domain;
use super::overwrites;
use super::schema::{
    AttributeProto, DimensionProto, NodeProto, OperatorSetIdProto, ValueInfoProto, graph, model,
};
use super::subgraph;
use super::tensor::{self, TensorHeader};
use super::wire::Message;

impl Model {
    /// The model's graph, in the file's order. Its node `i` is the `i`th of the file and has `i` as its template; or, where that
    /// calls a function of the model, the last node of that function, whose others have numbers behind those of the file.
    ///
    /// Tensors are inputs, then other initializers, then what nodes write. Names that
    /// `value_info` describes and nothing else mentions are left out. Cycles are accepted:
    /// verification finds them.
    pub fn graph(&self) -> Result<Graph, ImportError> {
        Importer::default()
            .run(self)
            .map_err(|problem| ImportError {
                file: self.file_name(),
                problem,
            })
    }

    /// The same in the topological order closest to the file's: the runtime sorts as well. A cycle is left for
    /// verification to tell.
    pub fn sorted_graph(&self) -> Result<Graph, ImportError> {
        let mut graph = self.graph()?;
        if let Ok(order) = topological(&graph, &Uses::of(&graph)) {
            graph.set_order(order);
        }
        Ok(graph)
    }

    /// The node at `position` in the file, decoded.
    pub(crate) fn node(&self, position: usize) -> Result<NodeProto, prost::DecodeError> {
        NodeProto::decode(self.bytes.slice(self.nodes[position].contents.clone()))
    }
}

/// A node's attributes, and the outer tensors that subgraphs in them read, each once, in order.
pub(crate) fn attributes(
    encoded: &[Bytes],
) -> Result<(Vec<Attribute>, Vec<String>), ImportProblem> {
    let mut attributes: Vec<Attribute> = Vec::new();
    let mut names = HashSet::new();
    let mut captures: Vec<String> = Vec::new();
    for bytes in encoded {
        let proto = AttributeProto::decode(bytes.clone())?;
        let value = attribute::value(&proto)?;
        captures.extend(subgraph::captures(&proto)?);
        let name = proto.name;
        if name.is_empty() {
            return Err(ImportProblem::UnnamedAttribute);
        }
        if !names.insert(name.clone()) {
            return Err(ImportProblem::DuplicateAttribute { name });
        }
        attributes.push(Attribute { name, value });
    }
    let mut seen = HashSet::new();
    captures.retain(|name| seen.insert(name.clone()));
    Ok((attributes, captures))
}

/// What a declaration of a value says: element type and dimensions, where it says so.
pub(crate) fn declaration(
    value_info: &ValueInfoProto,
) -> (
    Option<ckpt_passes::graph::ElementType>,
    Option<Vec<Dimension>>,
) {
    let tensor_type = value_info
        .r#type
        .as_ref()
        .and_then(|t| t.tensor_type.as_ref());
    let Some(tensor_type) = tensor_type else {
        return (None, None);
    };
    let element = ckpt_passes::graph::ElementType::from_onnx(tensor_type.elem_type);
    let dimensions = tensor_type
        .shape
        .as_ref()
        .map(|shape| shape.dim.iter().map(dimension));
    (element, dimensions.map(Iterator::collect))
}

/// `Some` if the declared value is a sequence, an optional or a map; nothing tells how much it holds.
fn no_tensor(info: &ValueInfoProto) -> Result<Option<ckpt_passes::bytes::Bytes>, ImportProblem> {
    let Some(declared) = &info.r#type else {
        return Ok(None);
    };
    if declared.sparse_tensor_type.is_some() {
        return Err(ImportProblem::Tensor {
            tensor: info.name.clone(),
            problem: Box::new(ImportProblem::Sparse),
        });
    }
    let other = [
        &declared.sequence_type,
        &declared.map_type,
        &declared.optional_type,
    ];
    let is_other = other.into_iter().any(Option::is_some);
    Ok(is_other.then_some(ckpt_passes::bytes::Bytes::ZERO))
}

fn dimension(dimension: &DimensionProto) -> Dimension {
    match (dimension.dim_value, &dimension.dim_param) {
        // Exporters write -1 for a size they do not know.
        (Some(value), _) => u64::try_from(value).map_or(Dimension::Unknown, Dimension::Known),
        (None, Some(name)) if !name.is_empty() => Dimension::Symbol(name.clone()),
        _ => Dimension::Unknown,
    }
}

/// How errors call a node: by name, operator and place.
fn describe(node: &NodeProto, position: usize) -> String {
    match node.name.as_str() {
        "" => format!("node {position} ({})", node.op_type),
        name => format!("node {position}, {name:?} ({})", node.op_type),
    }
}

/// The graph while it grows.
#[derive(Default)]
struct Importer {
    graph: Graph,
    /// How many graphs are around this one.
    depth: usize,
    /// Where each tensor is defined: for messages.
    defined_as: HashMap<TensorId, Definition>,
    outputs: Vec<ValueInfoProto>,
    value_info: Vec<ValueInfoProto>,
}

#[derive(Clone, Copy)]
enum Definition {
    Input,
    Initializer,
    /// By the node at this position.
    Output(usize),
    Outside,
}

/// The subgraphs of a node with these attributes, `depth` graphs deep.
fn bodies(
    attributes: &[Bytes],
    opsets: &BTreeMap<String, i64>,
    depth: usize,
) -> Result<Vec<Body>, ImportProblem> {
    let mut bodies = Vec::new();
    for bytes in attributes {
        let proto = AttributeProto::decode(bytes.clone())?;
        if proto.g.is_empty() {
            continue;
        }
        if depth > DEEPEST {
            return Err(ImportProblem::TooDeep);
        }
        let graph = body(&Model::of_graph(&proto.g)?, opsets, depth);
        let graph = graph.map_err(|problem| ImportProblem::Body {
            attribute: proto.name.clone(),
            problem: Box::new(problem),
        })?;
        bodies.push(Body {
            attribute: proto.name,
            graph: Arc::new(graph),
            shaped: None,
        });
    }
    Ok(bodies)
}

/// The graph of the subgraph `source`, among operators of these sets. What it reads from around it is there by its name, as an
/// input that the graph does not list.
fn body(
    source: &Model,
    opsets: &BTreeMap<String, i64>,
    depth: usize,
) -> Result<Graph, ImportProblem> {
    let mut importer = Importer {
        depth,
        ..Importer::default()
    };
    importer.graph.opsets.clone_from(opsets);
    importer.contents(source)
}

impl Importer {
    fn run(mut self, source: &Model) -> Result<Graph, ImportProblem> {
        self.opsets(source)?;
        let mut graph = self.contents(source)?;
        functions::inline(&mut graph, source)?;
        overwrites::read(&mut graph, source)?;
        Ok(graph)
    }

    fn contents(mut self, source: &Model) -> Result<Graph, ImportProblem> {
        self.declarations(source)?;
        self.initializers(source)?;
        let names = self.node_outputs(source)?;
        self.apply_declarations()?;
        self.node_inputs(source, names)?;
        self.unique_names()?;
        for (position, output) in std::mem::take(&mut self.outputs).into_iter().enumerate() {
            if output.name.is_empty() {
                return Err(ImportProblem::Unnamed {
                    list: "graph output",
                    position,
                });
            }
            let id = self.find(&output.name, || "the graph as an output".to_owned())?;
            self.graph.outputs.push(id);
        }
        Ok(self.graph)
    }

    fn opsets(&mut self, source: &Model) -> Result<(), ImportProblem> {
        for field in source.message().fields() {
            let field = field?;
            if field.number == model::OPSET_IMPORT {
                let opset = OperatorSetIdProto::decode(field.message()?.bytes)?;
                let domain = canonical_domain(&opset.domain).to_owned();
                self.graph.opsets.insert(domain, opset.version);
            }
        }
        Ok(())
    }

    /// Inputs, outputs and `value_info`.
    fn declarations(&mut self, source: &Model) -> Result<(), ImportProblem> {
        for field in source.graph_message().flat_map(Message::fields) {
            let field = field?;
            match field.number {
                graph::NAME => self.graph.name = tensor::text(field.message()?)?,
                graph::INPUT => {
                    let info = ValueInfoProto::decode(field.message()?.bytes)?;
                    let position = self.graph.inputs.len();
                    if info.name.is_empty() {
                        return Err(ImportProblem::Unnamed {
                            list: "graph input",
                            position,
                        });
                    }
                    let (element, declared) = declaration(&info);
                    let other = no_tensor(&info)?;
                    let tensor = Tensor::new(info.name, TensorKind::Input);
                    let tensor = Tensor {
                        other,
                        element,
                        declared,
                        ..tensor
                    };
                    let id = self.define(tensor, Definition::Input)?;
                    self.graph.inputs.push(id);
                }
                graph::OUTPUT => self
                    .outputs
                    .push(ValueInfoProto::decode(field.message()?.bytes)?),
                graph::VALUE_INFO => {
                    self.value_info
                        .push(ValueInfoProto::decode(field.message()?.bytes)?);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn initializers(&mut self, source: &Model) -> Result<(), ImportProblem> {
        let mut position = 0;
        for field in source.graph_message().flat_map(Message::fields) {
            let field = field?;
            let (header, constant) = match field.number {
                graph::INITIALIZER => {
                    let pieces = [field.message()?];
                    let header = TensorHeader::of(&pieces)?;
                    let constant = header.constant(&pieces)?;
                    (header, constant)
                }
                graph::SPARSE_INITIALIZER => (TensorHeader::of_sparse(field.message()?)?, None),
                _ => continue,
            };
            if header.name.is_empty() {
                return Err(ImportProblem::Unnamed {
                    list: "initializer",
                    position,
                });
            }
            position += 1;
            if header.shape.is_none() {
                let problem = Box::new(ImportProblem::NegativeDimension);
                return Err(ImportProblem::Tensor {
                    tensor: header.name,
                    problem,
                });
            }
            // IR version 3 and older list every initializer among the inputs too.
            let known = self.graph.tensor_named(&header.name);
            let listed = known.filter(|&id| self.graph.tensor(id).kind == TensorKind::Input);
            let id = match listed {
                Some(id) => id,
                None => {
                    let tensor = Tensor::new(header.name, TensorKind::Initializer);
                    self.define(tensor, Definition::Initializer)?
                }
            };
            let tensor = self.graph.tensor_mut(id);
            tensor.kind = TensorKind::Initializer;
            tensor.element = header.element.or(tensor.element);
            tensor.shape = header.shape;
            tensor.constant = constant;
        }
        Ok(())
    }

    /// Adds all nodes, their inputs and captures still missing; returns the names of those.
    fn node_outputs(&mut self, source: &Model) -> Result<Vec<Reads>, ImportProblem> {
        let mut names = Vec::with_capacity(source.nodes.len());
        for position in 0..source.nodes.len() {
            let proto = source
                .node(position)
                .map_err(|source| ImportProblem::Node {
                    node: format!("node {position}"),
                    problem: Box::new(source.into()),
                })?;
            let in_node = |problem| ImportProblem::Node {
                node: describe(&proto, position),
                problem: Box::new(problem),
            };
            if proto.op_type.is_empty() {
                return Err(in_node(ImportProblem::NoOperator));
            }
            let (attributes, captures) = attributes(&proto.attribute).map_err(in_node)?;
            let bodies = bodies(&proto.attribute, &self.graph.opsets, self.depth + 1);
            let bodies = bodies.map_err(in_node)?;
            let constant = constant_output(&proto, &attributes).map_err(in_node)?;
            let mut outputs = Vec::with_capacity(proto.output.len());
            for (place, name) in proto.output.into_iter().enumerate() {
                outputs.push(match name.is_empty() {
                    true => None,
                    false => {
                        let mut tensor = Tensor::new(name, TensorKind::Value);
                        if let (0, Some(constant)) = (place, &constant) {
                            tensor = Tensor {
                                name: tensor.name,
                                ..constant.clone()
                            };
                        }
                        Some(self.define(tensor, Definition::Output(position))?)
                    }
                });
            }
            let domain = canonical_domain(&proto.domain);
            let node = Node::new(proto.name, domain, proto.op_type, Vec::new(), outputs);
            // Fits: `Model` was refused otherwise.
            let template = Some(position as u32);
            self.graph.add_node(Node {
                attributes,
                bodies,
                template,
                ..node
            });
            names.push(Reads {
                inputs: proto.input,
                captures,
            });
        }
        Ok(names)
    }

    /// Takes types and dimensions from the declarations: a graph output's own, then `value_info`.
    fn apply_declarations(&mut self) -> Result<(), ImportProblem> {
        for info in self.outputs.iter().chain(&self.value_info) {
            let Some(id) = self.graph.tensor_named(&info.name) else {
                continue;
            };
            let (element, declared) = declaration(info);
            let tensor = self.graph.tensor_mut(id);
            tensor.element = tensor.element.or(element);
            tensor.declared = tensor.declared.take().or(declared);
            tensor.other = tensor.other.or(no_tensor(info)?);
        }
        Ok(())
    }

    fn node_inputs(&mut self, source: &Model, names: Vec<Reads>) -> Result<(), ImportProblem> {
        for (position, reads) in names.into_iter().enumerate() {
            let reader = || match source.node(position) {
                Ok(proto) => describe(&proto, position),
                Err(_) => format!("node {position}"),
            };
            let mut inputs = Vec::with_capacity(reads.inputs.len());
            for name in &reads.inputs {
                inputs.push(match name.is_empty() {
                    true => None,
                    false => Some(self.find(name, reader)?),
                });
            }
            let mut captures = Vec::with_capacity(reads.captures.len());
            for name in &reads.captures {
                captures.push(self.find(name, reader)?);
            }
            let id = ckpt_passes::graph::NodeId(position as u32);
            let node = self.graph.node_mut(id);
            node.inputs = inputs;
            node.captures = captures;
        }
        Ok(())
    }

    /// The runtime refuses two nodes of one name.
    fn unique_names(&self) -> Result<(), ImportProblem> {
        let mut named = HashMap::new();
        for id in self.graph.node_ids() {
            let node = self.graph.node(id);
            if node.name.is_empty() {
                continue;
            }
            match named.entry(node.name.as_str()) {
                Entry::Vacant(place) => {
                    place.insert(id);
                }
                Entry::Occupied(first) => {
                    let show = |id: NodeId| {
                        format!("node {} ({})", id.index(), self.graph.node(id).op_type)
                    };
                    return Err(ImportProblem::SameName {
                        name: node.name.clone(),
                        first: show(*first.get()),
                        second: show(id),
                    });
                }
            }
        }
        Ok(())
    }

    fn define(&mut self, tensor: Tensor, by: Definition) -> Result<TensorId, ImportProblem> {
        if let Some(id) = self.graph.tensor_named(&tensor.name) {
            let problem = Box::new(ImportProblem::DefinedTwice {
                first: self.show(self.defined_as[&id]),
                second: self.show(by),
            });
            return Err(ImportProblem::Tensor {
                tensor: tensor.name,
                problem,
            });
        }
        if self.graph.tensor_count() == u32::MAX as usize {
            return Err(ImportProblem::TooMany { what: "tensors" });
        }
        let id = self.graph.add_tensor(tensor);
        self.defined_as.insert(id, by);
        Ok(id)
    }

    fn find(&mut self, name: &str, reader: impl Fn() -> String) -> Result<TensorId, ImportProblem> {
        match self.graph.tensor_named(name) {
            Some(id) => Ok(id),
            // It is one of the graph around, or of one around that.
            None if self.depth > 0 => {
                self.define(Tensor::new(name, TensorKind::Input), Definition::Outside)
            }
            None => Err(ImportProblem::Tensor {
                tensor: name.to_owned(),
                problem: Box::new(ImportProblem::NeverWritten { reader: reader() }),
            }),
        }
    }

    fn show(&self, definition: Definition) -> String {
        match definition {
            Definition::Input => "a graph input".to_owned(),
            Definition::Initializer => "an initializer".to_owned(),
            Definition::Output(position) => format!("an output of node {position}"),
            Definition::Outside => "a tensor of the graph around".to_owned(),
        }
    }
}

/// What a node reads, by name.
struct Reads {
    inputs: Vec<String>,
    captures: Vec<String>,
}
