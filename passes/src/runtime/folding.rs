//! What follows from constants, so that the runtime computes it before the first step, from ORT_ENABLE_BASIC on.
//!
//! Source: `ConstantFolding`; compared with what a session of 1.19.2 saved of a Swin transformer, whose masks are made of constants by
//! hundreds of nodes.

use crate::graph::{Dimension, ElementType, Graph, Node, TensorId, TensorKind};
use crate::operators::{self, Recompute};

/// By tensor: does it follow from constants? `shapes` is what the runtime knows. Left out is what it does not fold: what draws random
/// numbers, quantizes, has a subgraph or is a graph output; and what touches 16 bits, for which kernels can be missing.
pub(crate) fn folded(graph: &Graph, shapes: &[Option<Vec<Dimension>>]) -> Vec<bool> {
    let tensors = graph.tensor_ids().map(|id| graph.tensor(id));
    let constants = tensors.map(|tensor| tensor.kind == TensorKind::Initializer);
    let mut there: Vec<bool> = constants.collect();
    for input in &graph.inputs {
        there[input.index()] = false;
    }
    let mut is_output = vec![false; graph.tensor_count()];
    for output in &graph.outputs {
        is_output[output.index()] = true;
    }
    let mut folded = vec![false; graph.tensor_count()];
    for node in graph.order().iter().map(|&id| graph.node(id)) {
        let is_constant = node.is("", "Constant");
        let measured = node.is("", "Shape")
            && node
                .input(0)
                .is_some_and(|id| in_numbers(&shapes[id.index()]));
        let follows = node.reads().next().is_some() && node.reads().all(|read| there[read.index()]);
        let folds = (measured || follows)
            && may_be_folded(graph, node)
            && !node.writes().any(|written| is_output[written.index()]);
        if is_constant || folds {
            for written in node.writes() {
                there[written.index()] = true;
                folded[written.index()] = folds;
            }
        }
    }
    folded
}

fn in_numbers(shape: &Option<Vec<Dimension>>) -> bool {
    let is_number = |dimension: &Dimension| matches!(dimension, Dimension::Known(_));
    shape
        .as_ref()
        .is_some_and(|shape| shape.iter().all(is_number))
}

fn may_be_folded(graph: &Graph, node: &Node) -> bool {
    let narrow = |id: TensorId| {
        let element = graph.tensor(id).element;
        matches!(element, Some(ElementType::Float16 | ElementType::Bfloat16))
    };
    let mut touched = node.reads().chain(node.writes());
    node.bodies.is_empty()
        && operators::recompute(node) == Recompute::Clone
        && !node.op_type.contains("Quantize")
        && !touched.any(narrow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::known_shapes::runtime_shapes;

    fn names(text: &str) -> Vec<String> {
        let graph = Graph::parse(text).unwrap();
        let folded = folded(&graph, &runtime_shapes(&graph));
        let written = graph.tensor_ids().filter(|id| folded[id.index()]);
        written.map(|id| graph.tensor(id).name.clone()).collect()
    }

    // What a session of 1.19.2 saved at ORT_ENABLE_BASIC.
    #[test]
    fn what_follows_from_constants_and_known_shapes_is_folded() {
        let text = |more: &str| {
            format!(
                r#"<ir_version: 8, opset_import: ["" : 15]> g (float[4,8] x, float[N,8] v) => (float[4,8] y, float[8] z)
                <int64[2] shape, float[4,8] zeros, float[4,8] mask, float[8] one = {{1,1,1,1,1,1,1,1}}, int64[2] open, float[N,8] wide> {{
                    shape = Shape(x)
                    zeros = ConstantOfShape(shape)
                    mask = Sub(zeros, one)
                    y = Add(x, mask)
                    open = Shape(v)
                    wide = ConstantOfShape(open)
                    {more}
                }}"#
            )
        };
        // Not what the caller feeds, nor what is as large as it, nor a graph output.
        assert_eq!(names(&text("z = Exp(one)")), ["shape", "zeros", "mask"]);
        // Nor random numbers, nor what a caller can replace.
        let random = text("r = RandomNormalLike(zeros) z = ReduceSum(r)");
        assert_eq!(names(&random), ["shape", "zeros", "mask"]);
        let replaced = text("z = Exp(one)").replace("float[N,8] v)", "float[N,8] v, float[8] one)");
        assert_eq!(names(&replaced), ["shape", "zeros"]);
    }
}
