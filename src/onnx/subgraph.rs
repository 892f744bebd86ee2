//! The subgraphs of control-flow nodes: what they read from the graph around them, and how one made from scratch is written.

use std::collections::HashSet;

use bytes::Bytes;
use ckpt_passes::graph::{Body, Graph, Node, TensorId, TensorKind};
use prost::Message as _;

use super::import_error::{DEEPEST, ImportProblem};
use super::node::{InGraph, NodeProblem, from_scratch};
use super::schema::{
    AttributeProto, NodeProto, TensorType, TypeProto, ValueInfoProto, attribute, attribute_type,
    graph,
};
use super::splice::Splice;
use super::tensor::{TensorHeader, pieces};

/// The outer tensors that the subgraphs in `attribute` read, in order.
pub(crate) fn captures(attribute: &AttributeProto) -> Result<Vec<String>, ImportProblem> {
    let mut names = Vec::new();
    of_attribute(attribute, 1, &mut names)?;
    Ok(names)
}

fn of_attribute(
    attribute: &AttributeProto,
    depth: usize,
    reads: &mut Vec<String>,
) -> Result<(), ImportProblem> {
    if !attribute.g.is_empty() {
        of_graph(&attribute.g, depth, reads)?;
    }
    for graph in &attribute.graphs {
        of_graph(std::slice::from_ref(graph), depth, reads)?;
    }
    Ok(())
}

/// Adds what the graph that `bytes` make up reads and does not define.
fn of_graph(
    bytes: &[Bytes],
    depth: usize,
    outer_reads: &mut Vec<String>,
) -> Result<(), ImportProblem> {
    if depth > DEEPEST {
        return Err(ImportProblem::TooDeep);
    }
    let mut reads = Vec::new();
    let mut defined = HashSet::new();
    for bytes in bytes {
        for field in pieces(std::slice::from_ref(bytes))[0].fields() {
            let field = field?;
            // Sliced, not copied: a subgraph may hold weights.
            let contents = || Ok::<_, ImportProblem>(bytes.slice_ref(field.message()?.bytes));
            match field.number {
                graph::NODE => {
                    let node = NodeProto::decode(contents()?)?;
                    reads.extend(node.input.into_iter().filter(|name| !name.is_empty()));
                    defined.extend(node.output);
                    for attribute in node.attribute {
                        of_attribute(&AttributeProto::decode(attribute)?, depth + 1, &mut reads)?;
                    }
                }
                graph::INPUT => {
                    defined.insert(ValueInfoProto::decode(contents()?)?.name);
                }
                graph::OUTPUT => reads.push(ValueInfoProto::decode(contents()?)?.name),
                graph::INITIALIZER => {
                    defined.insert(TensorHeader::of(&[field.message()?])?.name);
                }
                graph::SPARSE_INITIALIZER => {
                    defined.insert(TensorHeader::of_sparse(field.message()?)?.name);
                }
                _ => {}
            }
        }
    }
    reads.retain(|name| !defined.contains(name));
    outer_reads.append(&mut reads);
    Ok(())
}

/// The names of the outer tensors that the subgraphs of a node read.
pub(crate) fn outer(node: &Node) -> Vec<String> {
    let outer = node.bodies.iter().flat_map(|body| {
        let name = |id| body.graph.tensor(id).name.clone();
        body.graph.outer().map(name)
    });
    outer.collect()
}

/// AttributeProto of a subgraph whose nodes were made from scratch.
pub(crate) fn encode(body: &Body) -> Result<Splice, NodeProblem> {
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
        contents.add_field(graph::NODE, from_scratch(node)?);
    }
    contents.add_text(graph::NAME, &inner.name);
    for (field, ids) in [
        (graph::INPUT, &inner.inputs[..]),
        (graph::OUTPUT, &inner.outputs[..]),
    ] {
        for &id in ids {
            contents.add_message(field, &declaration(inner, id));
        }
    }
    let mut out = Splice::default();
    out.add_text(attribute::NAME, &body.attribute);
    out.add_field(attribute::G, contents);
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
