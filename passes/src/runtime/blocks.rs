//! What the CPU computes in blocks of channels (NCHWc) at ORT_ENABLE_ALL, which is not simulated.
//!
//! Source: `NchwcTransformer`, and graphs that sessions of 1.19.2 and 1.32.0 saved. It puts nodes behind all others that copy what such a
//! node reads and writes, filled up to whole blocks; how large those are depends on the processor. `enforce/keep_layout.rs` keeps nodes from it,
//! which was measured with both.

use std::collections::HashSet;

use super::barrier_kind::number;
use crate::graph::{ElementType, Graph, Node, NodeId, TensorId, TensorKind, Uses};
use crate::operators::MICROSOFT;

/// What the runtime calls the optimizer.
pub(super) const OPTIMIZER: &str = "NchwcTransformer";

/// The channels of the smallest block.
const BLOCK: u64 = 8;

/// What the names of Reshapes begin with that keep nodes from it (`enforce/keep_layout.rs`).
pub(crate) const KEPT: &str = "ckpt-opt/keep/";

/// The dimensions of what such nodes read and write.
pub(crate) const AXES: usize = 4;

/// What is computed so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InBlocks {
    /// Because its weights are constant.
    Convolution,
    /// Because of the channels that it reads.
    Pool,
}

/// The names of the nodes. The shapes of all tensors must be known.
pub fn in_blocks(graph: &Graph) -> Vec<&str> {
    let found = found(graph).into_iter();
    found.map(|(id, _)| graph.node(id).name.as_str()).collect()
}

/// The nodes, in their order. The shapes of all tensors must be known.
///
/// Convolutions in float32 over two axes, of which weights and bias are constants that no caller can replace, and pools of whole
/// blocks that give no indices.
pub(crate) fn found(graph: &Graph) -> Vec<(NodeId, InBlocks)> {
    let constants = constants(graph);
    let uses = Uses::of(graph);
    let nodes = graph.order().iter();
    let found = nodes.filter_map(|&id| {
        let node = graph.node(id);
        let kind = match (node.domain.as_str(), node.op_type.as_str()) {
            ("", "Conv") => {
                let by_channel = |of: u64| of == 1 || of.is_multiple_of(BLOCK);
                let is_one = node.reads().skip(1).all(|read| constants.contains(&read))
                    && channels(graph, node, 1)
                        .is_some_and(|of| node.int("group").unwrap_or(1) == 1 || by_channel(of));
                is_one.then_some(InBlocks::Convolution)
            }
            ("", "MaxPool" | "AveragePool") => {
                let is_one = node.outputs.len() == 1
                    && channels(graph, node, 0).is_some_and(|of| of.is_multiple_of(BLOCK))
                    && !is_kept(graph, &uses, node.input(0));
                is_one.then_some(InBlocks::Pool)
            }
            _ => None,
        };
        kind.map(|kind| (id, kind))
    });
    found.collect()
}

/// Does the tensor come from a node that hides its channels, whatever handed it on since?
fn is_kept(graph: &Graph, uses: &Uses, tensor: Option<TensorId>) -> bool {
    let mut at = tensor;
    while let Some(tensor) = at
        && let Some(id) = uses.producer(tensor)
    {
        let node = graph.node(id);
        if node.is("", "Reshape") && node.name.starts_with(KEPT) {
            return true;
        }
        at = match number(node) {
            Some(_) => node.input(0),
            None if node.is(MICROSOFT, "PassThrough") => {
                let at = node
                    .outputs
                    .iter()
                    .position(|&output| output == Some(tensor));
                at.and_then(|at| node.input(at))
            }
            None => None,
        };
    }
    false
}

/// The second dimension of what the node reads there, if that has four and is in float32.
fn channels(graph: &Graph, node: &Node, input: usize) -> Option<u64> {
    let tensor = graph.tensor(node.input(input)?);
    let dims = tensor.shape.as_deref()?;
    let fits = tensor.element == Some(ElementType::Float) && dims.len() == AXES;
    fits.then(|| dims[1])
}

/// What is constant when a session has loaded the file and folded what it can.
pub(crate) fn constants(graph: &Graph) -> HashSet<TensorId> {
    let is_given = |&id: &TensorId| graph.tensor(id).kind == TensorKind::Initializer;
    let mut constants: HashSet<TensorId> = graph.tensor_ids().filter(is_given).collect();
    for input in &graph.inputs {
        constants.remove(input);
    }
    for node in graph.nodes() {
        if node.domain.is_empty() && node.reads().all(|read| constants.contains(&read)) {
            constants.extend(node.writes());
        }
    }
    constants
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::Pass;
    use crate::rewrite::infer_shapes::InferShapes;

    /// How many nodes of the graph are computed in blocks, of which one pools or multiplies by `weights`.
    fn found(weights: &str, listed: &str, nodes: &str) -> usize {
        let text = format!(
            "<ir_version: 8, opset_import: [\"\" : 15, \"com.microsoft\" : 1]>
            g (float[2,16,9,9] x, float[8] c{listed}) => (float[N,M,K,L] y) <{weights} w = {{...}}, float[8] b = {{...}}> {{ {nodes} }}"
        );
        let mut graph = Graph::parse(&text).unwrap();
        let bindings = [("N", 2), ("M", 8), ("K", 8), ("L", 8)];
        let bindings = bindings.map(|(name, size)| (name.to_owned(), size));
        let bindings = bindings.into_iter().collect();
        InferShapes { bindings }.run(&mut graph).unwrap();
        in_blocks(&graph).len()
    }

    // All of these are what sessions of 1.19.2 saved.

    #[test]
    fn convolutions_with_constant_weights_are_computed_in_blocks() {
        let (weights, node) = ("float[8,16,2,2]", "y = Conv (x, w)");
        assert_eq!(found(weights, "", node), 1);
        assert_eq!(found(weights, "", "y = Conv (x, w, b)"), 1);
        assert_eq!(found(weights, "", "y = Conv (x, w, c)"), 0);
        assert_eq!(found(weights, ", float[8,16,2,2] w", node), 0);
        // What is folded is constant; a PassThrough is not folded.
        assert_eq!(found(weights, "", "v = Neg (w) y = Conv (x, v)"), 1);
        let passed = "v = com.microsoft.PassThrough (w) y = Conv (x, v)";
        assert_eq!(found(weights, "", passed), 0);
        let grouped = |of: i64| format!("y = Conv <group = {of}> (x, w)");
        assert_eq!(found("float[8,4,2,2]", "", &grouped(4)), 0);
        assert_eq!(found("float[16,8,2,2]", "", &grouped(2)), 1);
        assert_eq!(found("float[16,1,2,2]", "", &grouped(16)), 1);
        let half = "h = Cast <to = 10> (x) z = Conv (h, w) y = Cast <to = 1> (z)";
        assert_eq!(found("float16[8,16,2,2]", "", half), 0);
    }

    #[test]
    fn pools_without_indices_are_computed_in_blocks() {
        for operator in ["MaxPool", "AveragePool"] {
            let pool = format!("y = {operator} <kernel_shape = [2, 2]> (x)");
            assert_eq!(found("float[1]", "", &pool), 1, "{operator}");
            let part = format!(
                "s = Slice <axes = [1], starts = [0], ends = [4]> (x) {}",
                pool.replace("(x)", "(s)")
            );
            assert_eq!(found("float[1]", "", &part), 0, "{operator}");
        }
        let indices = "y, i = MaxPool <kernel_shape = [2, 2]> (x)";
        assert_eq!(found("float[1]", "", indices), 0);
        assert_eq!(found("float[1]", "", "y = GlobalAveragePool (x)"), 0);
    }
}
