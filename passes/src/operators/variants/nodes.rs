//! The nodes that a variant's parts become.

use super::{Like, Part, Read, Write};
use crate::graph::{
    AttributeValue, Constant, Dimension, ElementType, Graph, Node, NodeId, Tensor, TensorId,
    TensorKind, Uses,
};

/// The nodes that `parts` describe, without names and not yet in the graph; the tensors that they
/// write anew are, and are called `base` and something behind it. Tensors of the graph are read
/// and written as `read` and `written` say.
pub(crate) fn nodes_of(
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
        say_constant(graph, &node);
        nodes.push(node);
    }
    nodes
}

/// Says of what a Constant writes what it is, as is read from a file: the runtime merges what reads equal constants.
fn say_constant(graph: &mut Graph, node: &Node) {
    if let ("Constant", Some(written)) = (node.op_type.as_str(), node.output(0)) {
        let mut values = node.attributes.iter().map(|attribute| &attribute.value);
        graph.tensor_mut(written).constant = values.find_map(|value| match value {
            AttributeValue::Ints(numbers) => Some(Constant::Ints(numbers.clone())),
            AttributeValue::Float(number) => Some(Constant::Floats(vec![(*number).into()])),
            _ => None,
        });
    }
}

fn new_tensor(graph: &mut Graph, wish: &str, like: &Like, element: ElementType) -> TensorId {
    let name = graph.free_tensor_name(wish);
    let (declared, shape) = match like {
        Like::Tensor(like) => {
            let like = graph.tensor(*like);
            (like.declared.clone(), like.shape.clone())
        }
        Like::Static(dims) => (Some(Dimension::all_known(dims)), Some(dims.clone())),
        Like::Cut(like, axis, size) => {
            let like = graph.tensor(*like);
            let (mut declared, mut shape) = (like.declared.clone(), like.shape.clone());
            if let Some(of_axis) = declared.as_mut().and_then(|dims| dims.get_mut(*axis)) {
                *of_axis = match of_axis {
                    Dimension::Known(_) => Dimension::Known(*size),
                    _ => Dimension::Unknown,
                };
            }
            if let Some(of_axis) = shape.as_mut().and_then(|dims| dims.get_mut(*axis)) {
                *of_axis = *size;
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

/// The name of the node of a variant, not the one with the replaced node's name, that writes `tensor`. New tensors
/// are called like the replaced node's first result, with something behind a slash.
pub(crate) fn part_name(tensor: &str) -> String {
    format!("{PART}{tensor}")
}

/// What such names begin with.
pub(crate) const PART: &str = "ckpt-opt/variant/";

/// Adds what would replace `id` beside it: the nodes, in the order in which they run, and which of
/// them would get its number. Those that are in the graph already, as some of `known`, are
/// not added again.
pub(crate) fn add_beside(
    graph: &mut Graph,
    id: NodeId,
    parts: &[Part],
    known: &[NodeId],
) -> (Vec<NodeId>, usize) {
    let (made, heir) = make(graph, id, parts);
    let same = |a: &Node, b: &Node| {
        a.is(&b.domain, &b.op_type)
            && (&a.inputs, &a.outputs, &a.attributes) == (&b.inputs, &b.outputs, &b.attributes)
    };
    let add = |node: Node| {
        let found = known.iter().find(|&&known| same(graph.node(known), &node));
        found.copied().unwrap_or_else(|| graph.add_node(node))
    };
    (made.into_iter().map(add).collect(), heir)
}

/// The nodes that may replace `id`, whose tensors are in the graph by then; and which of them is
/// to get its number.
pub(crate) fn make(graph: &mut Graph, id: NodeId, parts: &[Part]) -> (Vec<Node>, usize) {
    let original = graph.node(id).clone();
    let same = |part: &Part| original.is(part.domain, part.op_type);
    let heir = parts.iter().rposition(same).unwrap_or(parts.len() - 1);
    let first = original.writes().next();
    let base = first.map_or(String::new(), |tensor| graph.tensor(tensor).name.clone());
    let mut made = nodes_of(graph, parts, &base, |read| read, |written| written);
    for (position, (part, node)) in parts.iter().zip(&mut made).enumerate() {
        if same(part) {
            node.template = original.template;
        }
        if position == heir {
            node.name.clone_from(&original.name);
        } else if let Some(tensor) = node.writes().last() {
            node.name = part_name(&graph.tensor(tensor).name);
        }
    }
    (made, heir)
}

/// May these `parts` stand where `node` stands in an order, or do they read what is computed only behind it?
/// `place` is by node. A step without a loss to speak of can run the gradient of a Relu before the Relu itself (the
/// gradient of a mean is a constant), and a variant of that gradient reads what the Relu writes.
pub(crate) fn fits_in_place(
    uses: &Uses,
    place: impl Fn(NodeId) -> Option<usize>,
    node: NodeId,
    parts: &[Part],
) -> bool {
    let at = place(node);
    let mut read = parts.iter().flat_map(Part::tensors_read);
    read.all(|tensor| {
        let producer = uses.producer(tensor);
        producer.is_none_or(|producer| place(producer) < at)
    })
}
