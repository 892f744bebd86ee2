//! Writes one node: spliced from its template, or from scratch.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use ckpt_passes::graph::{Attribute, AttributeValue, Body, Graph, Node, TensorId, TensorKind};
use prost::Message as _;
use thiserror::Error;

use super::attribute;
use super::schema::{
    AttributeProto, TensorType, TypeProto, ValueInfoProto, attribute as attribute_field,
    attribute_type, graph as graph_field, node as field,
};
use super::splice::Splice;
use super::tensor;
use super::wire::{Message, WireError};

/// A node's domain as [`Graph`] writes it.
pub(crate) fn canonical_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// Why a node cannot be written. Passes that keep to what a node's template holds never see it.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)]
pub enum NodeProblem {
    #[error("its template, node {template} of the input, does not exist")]
    NoTemplate { template: u32 },
    #[error("its subgraphs read {found:?}, those of its template {expected:?}")]
    Captures {
        found: Vec<String>,
        expected: Vec<String>,
    },
    #[error(
        "attribute {name:?} has no value that can be written, and its template does not have it"
    )]
    Opaque { name: String },
    #[error("attribute {name:?} holds a tensor whose contents are unknown or do not fit its type")]
    Contents { name: String },
    #[error("the template is damaged: {source}")]
    Template {
        #[from]
        source: WireError,
    },
}

/// A node and the graph that its tensors are in.
#[derive(Clone, Copy)]
pub(crate) struct InGraph<'a> {
    pub(crate) node: &'a Node,
    pub(crate) graph: &'a Graph,
}

impl<'a> InGraph<'a> {
    fn names(self, tensors: &'a [Option<TensorId>]) -> impl Iterator<Item = &'a str> {
        let name = |id: TensorId| self.graph.tensor(id).name.as_str();
        tensors.iter().map(move |tensor| tensor.map_or("", name))
    }

    fn inputs(self) -> impl Iterator<Item = &'a str> {
        self.names(&self.node.inputs)
    }

    fn outputs(self) -> impl Iterator<Item = &'a str> {
        self.names(&self.node.outputs)
    }

    fn captures(self) -> Vec<String> {
        let name = |&id: &TensorId| self.graph.tensor(id).name.clone();
        self.node.captures.iter().map(name).collect()
    }
}

/// What differs between a node and its template.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Changes {
    inputs: bool,
    outputs: bool,
    name: bool,
    op_type: bool,
    domain: bool,
    attributes: bool,
}

/// NodeProto for `node`, starting from the encoding `template` of `original`. `None`: the
/// template itself says it all. What `Node` does not model stays as it is in the template.
pub(crate) fn splice(
    original: InGraph<'_>,
    template: Message<'_>,
    node: InGraph<'_>,
) -> Result<Option<Splice>, NodeProblem> {
    let (found, expected) = (node.captures(), original.captures());
    if found != expected {
        return Err(NodeProblem::Captures { found, expected });
    }
    let (before, now) = (values(original.node), values(node.node));
    let changes = Changes {
        inputs: !node.inputs().eq(original.inputs()),
        outputs: !node.outputs().eq(original.outputs()),
        name: node.node.name != original.node.name,
        op_type: node.node.op_type != original.node.op_type,
        domain: canonical_domain(&node.node.domain) != original.node.domain,
        attributes: !same_values(&now, &before),
    };
    if changes == Changes::default() {
        return Ok(None);
    }
    let mut out = Splice::default();
    let mut missing = changes;
    for part in template.fields() {
        let part = part?;
        match part.number {
            field::INPUT if changes.inputs => add_inputs(&mut out, &mut missing, node),
            field::OUTPUT if changes.outputs => add_outputs(&mut out, &mut missing, node),
            field::NAME if changes.name => add_name(&mut out, &mut missing, node),
            field::OP_TYPE if changes.op_type => add_op_type(&mut out, &mut missing, node),
            field::DOMAIN if changes.domain => add_domain(&mut out, &mut missing, node),
            field::ATTRIBUTE if changes.attributes => {
                let contents = part.message()?;
                let name = attribute_name(contents)?;
                match (before.get(name.as_str()), now.get(name.as_str())) {
                    (_, None) => {}
                    (Some(before), Some(now)) if attribute::same(before, now) => {
                        out.keep(part.span);
                    }
                    (_, Some(now)) => {
                        let changed = changed_attribute(contents, &name, now)?;
                        out.add_field(field::ATTRIBUTE, changed);
                    }
                }
            }
            _ => out.keep(part.span),
        }
    }
    // What the template did not have at all.
    add_inputs(&mut out, &mut missing, node);
    add_outputs(&mut out, &mut missing, node);
    add_name(&mut out, &mut missing, node);
    add_op_type(&mut out, &mut missing, node);
    add_domain(&mut out, &mut missing, node);
    for Attribute { name, value } in &node.node.attributes {
        if !before.contains_key(name.as_str()) {
            out.add_message(field::ATTRIBUTE, &attribute_proto(name, value)?);
        }
    }
    Ok(Some(out))
}

/// NodeProto for a node without a template. Subgraphs are written if they were made from scratch as well.
pub(crate) fn from_scratch(node: InGraph<'_>) -> Result<Splice, NodeProblem> {
    let (found, expected) = (node.captures(), outer(node.node));
    if found != expected {
        return Err(NodeProblem::Captures { found, expected });
    }
    let mut out = Splice::default();
    let mut missing = Changes {
        inputs: true,
        outputs: true,
        name: !node.node.name.is_empty(),
        op_type: true,
        domain: !canonical_domain(&node.node.domain).is_empty(),
        attributes: true,
    };
    add_inputs(&mut out, &mut missing, node);
    add_outputs(&mut out, &mut missing, node);
    add_name(&mut out, &mut missing, node);
    add_op_type(&mut out, &mut missing, node);
    for Attribute { name, value } in &node.node.attributes {
        let body = node.node.bodies.iter().find(|body| body.attribute == *name);
        match body {
            Some(body) => out.add_field(field::ATTRIBUTE, self::body(body)?),
            None => out.add_message(field::ATTRIBUTE, &attribute_proto(name, value)?),
        }
    }
    add_domain(&mut out, &mut missing, node);
    Ok(out)
}

/// The names of the outer tensors that the subgraphs of a node read, each once.
fn outer(node: &Node) -> Vec<String> {
    let outer = node.bodies.iter().flat_map(|body| {
        let name = |id| body.graph.tensor(id).name.clone();
        body.graph.outer().map(name)
    });
    let mut seen = HashSet::new();
    outer
        .filter(|name: &String| seen.insert(name.clone()))
        .collect()
}

/// AttributeProto of a subgraph whose nodes were made from scratch.
fn body(body: &Body) -> Result<Splice, NodeProblem> {
    let inner = &*body.graph;
    let nodes = || inner.order().iter().map(|&id| inner.node(id));
    let mut tensors = inner.tensor_ids().map(|id| inner.tensor(id));
    let is_read = nodes().any(|node| node.template.is_some())
        || tensors.any(|tensor| tensor.kind == TensorKind::Initializer);
    if is_read {
        return Err(NodeProblem::Opaque {
            name: body.attribute.clone(),
        });
    }
    let mut contents = Splice::default();
    for node in nodes() {
        let node = InGraph { node, graph: inner };
        contents.add_field(graph_field::NODE, from_scratch(node)?);
    }
    contents.add_text(graph_field::NAME, &inner.name);
    for (field, ids) in [
        (graph_field::INPUT, &inner.inputs[..]),
        (graph_field::OUTPUT, &inner.outputs[..]),
    ] {
        for &id in ids {
            contents.add_message(field, &declaration(inner, id));
        }
    }
    let mut out = Splice::default();
    out.add_text(attribute_field::NAME, &body.attribute);
    out.add_field(attribute_field::G, contents);
    let kind = AttributeProto {
        r#type: attribute_type::GRAPH,
        ..AttributeProto::default()
    };
    out.add(&kind.encode_to_vec());
    Ok(out)
}

/// Of which type a tensor is; how large, what is around the subgraph decides.
fn declaration(graph: &Graph, id: TensorId) -> ValueInfoProto {
    let tensor = graph.tensor(id);
    let r#type = tensor.element.map(|element| TypeProto {
        tensor_type: Some(TensorType {
            elem_type: element as i32,
            shape: None,
        }),
        ..TypeProto::default()
    });
    ValueInfoProto {
        name: tensor.name.clone(),
        r#type,
    }
}

// Each writes its part once: where the template has it first, or at the end.

fn add_inputs(out: &mut Splice, missing: &mut Changes, node: InGraph<'_>) {
    if std::mem::take(&mut missing.inputs) {
        node.inputs()
            .for_each(|name| out.add_text(field::INPUT, name));
    }
}

fn add_outputs(out: &mut Splice, missing: &mut Changes, node: InGraph<'_>) {
    if std::mem::take(&mut missing.outputs) {
        node.outputs()
            .for_each(|name| out.add_text(field::OUTPUT, name));
    }
}

fn add_name(out: &mut Splice, missing: &mut Changes, node: InGraph<'_>) {
    if std::mem::take(&mut missing.name) {
        out.add_text(field::NAME, &node.node.name);
    }
}

fn add_op_type(out: &mut Splice, missing: &mut Changes, node: InGraph<'_>) {
    if std::mem::take(&mut missing.op_type) {
        out.add_text(field::OP_TYPE, &node.node.op_type);
    }
}

fn add_domain(out: &mut Splice, missing: &mut Changes, node: InGraph<'_>) {
    if std::mem::take(&mut missing.domain) {
        out.add_text(field::DOMAIN, &node.node.domain);
    }
}

/// Attribute values by name. Files may hold very many: a search for each would take forever.
type Values<'a> = HashMap<&'a str, &'a AttributeValue>;

fn values(node: &Node) -> Values<'_> {
    node.attributes
        .iter()
        .map(|attribute| (attribute.name.as_str(), &attribute.value))
        .collect()
}

/// Are they the same attributes? Their order means nothing.
fn same_values(a: &Values<'_>, b: &Values<'_>) -> bool {
    let in_b = |(name, value)| {
        b.get(name)
            .is_some_and(|other| attribute::same(value, other))
    };
    a.len() == b.len() && a.iter().map(|(&name, &value)| (name, value)).all(in_b)
}

fn attribute_name(contents: Message<'_>) -> Result<String, WireError> {
    let mut name = String::new();
    for part in contents.fields() {
        let part = part?;
        if part.number == attribute_field::NAME {
            name = tensor::text(part.message()?)?;
        }
    }
    Ok(name)
}

/// AttributeProto with the value `now`, and all else (doc string, newer fields) from `before`.
fn changed_attribute(
    before: Message<'_>,
    name: &str,
    now: &AttributeValue,
) -> Result<Splice, NodeProblem> {
    let mut out = Splice::default();
    for part in before.fields() {
        let part = part?;
        if !attribute_field::VALUES.contains(&part.number) {
            out.keep(part.span);
        }
    }
    let value = AttributeProto {
        name: String::new(),
        ..attribute_proto(name, now)?
    };
    out.add(&value.encode_to_vec());
    Ok(out)
}

fn attribute_proto(name: &str, value: &AttributeValue) -> Result<AttributeProto, NodeProblem> {
    use super::schema::attribute_type::*;
    let proto = AttributeProto {
        name: name.to_owned(),
        ..AttributeProto::default()
    };
    Ok(match value.clone() {
        AttributeValue::Int(i) => AttributeProto {
            i: Some(i),
            r#type: INT,
            ..proto
        },
        AttributeValue::Float(f) => AttributeProto {
            f: Some(f),
            r#type: FLOAT,
            ..proto
        },
        AttributeValue::String(s) => AttributeProto {
            s: Some(s),
            r#type: STRING,
            ..proto
        },
        AttributeValue::Ints(ints) => AttributeProto {
            ints,
            r#type: INTS,
            ..proto
        },
        AttributeValue::Floats(floats) => AttributeProto {
            floats,
            r#type: FLOATS,
            ..proto
        },
        AttributeValue::Strings(strings) => AttributeProto {
            strings,
            r#type: STRINGS,
            ..proto
        },
        AttributeValue::Tensor {
            element,
            shape,
            constant,
        } => {
            let tensor = constant
                .and_then(|constant| tensor::encode(element, &shape, &constant))
                .ok_or(NodeProblem::Contents {
                    name: name.to_owned(),
                })?;
            AttributeProto {
                t: vec![Bytes::from(tensor)],
                r#type: TENSOR,
                ..proto
            }
        }
        AttributeValue::Opaque => {
            return Err(NodeProblem::Opaque {
                name: name.to_owned(),
            });
        }
    })
}
