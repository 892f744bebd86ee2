//! What the subgraphs of control-flow nodes read from the graph around them.

use std::collections::HashSet;

use bytes::Bytes;
use prost::Message as _;

use super::import_error::{DEEPEST, ImportProblem};
use super::schema::{AttributeProto, NodeProto, ValueInfoProto, graph};
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
