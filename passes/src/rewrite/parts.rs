//! The nodes of a variant.

use crate::graph::{Dimension, ElementType, Graph, Node, Tensor, TensorId, TensorKind};
use crate::operators::variants::{Like, Part, Read, Write};

/// The nodes that `parts` describe, without names and not yet in the graph; the tensors that they
/// write anew are, and are called `base` and something behind it. Tensors of the graph are read
/// and written as `read` and `written` say.
pub(super) fn nodes_of(
    graph: &mut Graph,
    parts: &[Part],
    base: &str,
    read: impl Fn(TensorId) -> TensorId,
    written: impl Fn(TensorId) -> TensorId,
) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::with_capacity(parts.len());
    for part in parts {
        let outputs = part.outputs.iter().map(|output| match output.as_ref()? {
            Write::Tensor(tensor) => Some(written(*tensor)),
            Write::New {
                suffix,
                shape,
                element,
            } => Some(new_tensor(
                graph,
                &format!("{base}/{suffix}"),
                shape,
                *element,
            )),
        });
        let outputs = outputs.collect();
        let reads = part.inputs.iter().map(|input| match (*input)? {
            Read::Tensor(tensor) => Some(read(tensor)),
            Read::Output(part, output) => nodes.get(part)?.output(output),
        });
        let reads = reads.collect();
        let mut node = Node::new("", part.domain, part.op_type, reads, outputs);
        node.attributes.clone_from(&part.attributes);
        nodes.push(node);
    }
    nodes
}

fn new_tensor(graph: &mut Graph, wish: &str, like: &Like, element: ElementType) -> TensorId {
    let name = graph.free_tensor_name(wish);
    let (declared, shape) = match like {
        Like::Tensor(like) => {
            let like = graph.tensor(*like);
            (like.declared.clone(), like.shape.clone())
        }
        Like::Static(dims) => {
            let known = dims.iter().map(|&d| Dimension::Known(d));
            (Some(known.collect()), Some(dims.clone()))
        }
        Like::Slice(like, count) => {
            let like = graph.tensor(*like);
            let (mut declared, mut shape) = (like.declared.clone(), like.shape.clone());
            if let Some(first) = declared.as_mut().and_then(|dims| dims.first_mut()) {
                *first = match first {
                    Dimension::Known(size) => Dimension::Known(*size / count),
                    _ => Dimension::Unknown,
                };
            }
            if let Some(first) = shape.as_mut().and_then(|dims| dims.first_mut()) {
                *first /= count;
            }
            (declared, shape)
        }
    };
    graph.add_tensor(Tensor {
        element: Some(element),
        declared,
        shape,
        ..Tensor::new(name, TensorKind::Value)
    })
}
