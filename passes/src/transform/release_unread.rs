//! Frees results that nobody reads.
//!
//! Runtime fact (measured, 1.19.2): the memory of an output without readers is not freed before
//! the end of the step. Mirrors leave such outputs behind: a pooling mask whose readers now read
//! the mirror's, statistics of a batch normalization that is repeated for its first output.
//! A `Size` node reads a tensor without touching its contents; both execution orders run it directly
//! behind the producer, and constant folding leaves it alone, other than `Shape`.

use std::convert::Infallible;

use crate::bytes::Bytes;
use crate::graph::{ElementType, Graph, Node, NodeId, Tensor, TensorId, TensorKind, Uses};
use crate::operators;
use crate::pass::{Changed, Pass};

/// Smaller results are not worth a node.
pub const RELEASED_FROM: Bytes = Bytes(4096);

/// **Does**: lets a Size node read every large result that nobody else reads.
/// **Needs**: concrete shapes.
/// **Keeps**: everything that is there.
pub struct ReleaseUnread;

impl Pass for ReleaseUnread {
    type Error = Infallible;

    fn name(&self) -> &'static str {
        "release-unread"
    }

    fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
        let uses = Uses::of(graph);
        let mut order = Vec::with_capacity(graph.order().len());
        for id in graph.order().to_vec() {
            order.push(id);
            for tensor in unread(graph, &uses, id) {
                order.push(release(graph, tensor));
            }
        }
        let changed = order.len() > graph.order().len() || order != graph.order();
        if changed {
            graph.set_order(order);
        }
        Ok(if changed { Changed::Yes } else { Changed::No })
    }
}

fn unread(graph: &Graph, uses: &Uses, id: NodeId) -> Vec<TensorId> {
    let node = graph.node(id);
    let aliases = operators::aliases(node);
    let own_memory = |position: usize| !aliases.iter().any(|&(output, _)| output == position);
    let outputs = node
        .outputs
        .iter()
        .enumerate()
        .filter(|&(position, _)| own_memory(position));
    outputs
        .filter_map(|(_, tensor)| *tensor)
        .filter(|&tensor| uses.readers(tensor).is_empty())
        .filter(|tensor| !graph.outputs.contains(tensor))
        .filter(|&tensor| graph.tensor(tensor).bytes() >= Some(RELEASED_FROM))
        .collect()
}

fn release(graph: &mut Graph, tensor: TensorId) -> NodeId {
    let of = &graph.tensor(tensor).name;
    let (node, output) = (format!("ckpt-opt/release/{of}"), format!("{of}/size"));
    let size = Tensor {
        element: Some(ElementType::Int64),
        declared: Some(Vec::new()),
        shape: Some(Vec::new()),
        ..Tensor::new(graph.free_tensor_name(&output), TensorKind::Value)
    };
    let size = graph.add_tensor(size);
    graph.add_node(Node::new(
        node,
        "",
        "Size",
        vec![Some(tensor)],
        vec![Some(size)],
    ))
}
