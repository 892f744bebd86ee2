//! What follows from constants, so that the runtime computes it before the first step, from ORT_ENABLE_BASIC on.
//!
//! Source: `ConstantFolding`; compared with what a session of 1.19.2 saved of a Swin transformer, whose masks are made of constants by
//! hundreds of nodes.

use super::casting::is_cast;
use super::merged::is_known_to_repeat;
use crate::graph::{
    Dimension, ElementType, Graph, Node, TensorId, TensorKind, all_numbers, in_sequence,
};
use crate::operators::{self, Recompute};

/// What a session has before the first step, once it has optimized a graph.
pub(crate) struct Folding {
    /// By tensor: is it a constant of the file, or folded?
    constant: Vec<bool>,
    /// By tensor: does it follow from constants?
    folded: Vec<bool>,
    /// By tensor: is it a graph output?
    output: Vec<bool>,
}

impl Folding {
    /// Of a graph of whose shapes the runtime knows these. O(nodes).
    pub(crate) fn of(graph: &Graph, shapes: &[Option<Vec<Dimension>>]) -> Folding {
        let mut folding = Folding::none(graph);
        for &id in in_sequence(graph).iter() {
            folding.look_at(graph, graph.node(id), shapes);
        }
        folding
    }

    /// Only the constants of the file, of which the session makes initializers whether it optimizes or not.
    pub(crate) fn none(graph: &Graph) -> Folding {
        let tensors = graph.tensor_ids().map(|id| graph.tensor(id));
        let constants = tensors.map(|tensor| tensor.kind == TensorKind::Initializer);
        let mut folding = Folding {
            constant: constants.collect(),
            folded: vec![false; graph.tensor_count()],
            output: vec![false; graph.tensor_count()],
        };
        for input in &graph.inputs {
            folding.constant[input.index()] = false;
        }
        for output in &graph.outputs {
            folding.output[output.index()] = true;
        }
        let nodes = graph.nodes();
        for constant in nodes.filter(|node| node.is("", "Constant")) {
            for written in constant.writes() {
                folding.constant[written.index()] = true;
            }
        }
        folding
    }

    /// Looks at a node once what it reads has been looked at. Not folded is what draws random numbers, quantizes or has a subgraph;
    /// what has no kernel for float16 (`half.rs`; measured in 1.32.0, too), or reads or writes bfloat16; and the runtime's own operators, but for few. What writes a graph output is folded as well, and a copy handed
    /// out, which is not simulated: it counts as computed in the step.
    pub(crate) fn look_at(
        &mut self,
        graph: &Graph,
        node: &Node,
        shapes: &[Option<Vec<Dimension>>],
    ) {
        let is_output = |written: TensorId| self.output[written.index()];
        if node.is("", "Constant") || node.writes().any(is_output) {
            return;
        }
        let folds = self.follows(graph, shapes, node);
        for written in node.writes() {
            self.constant[written.index()] = folds;
            self.folded[written.index()] = folds;
        }
    }

    /// Takes in tensors that were added to the graph, which are no constants.
    pub(crate) fn grow(&mut self, graph: &Graph) {
        for known in [&mut self.constant, &mut self.folded, &mut self.output] {
            known.resize(graph.tensor_count(), false);
        }
    }

    /// Takes in whether the session has it.
    pub(crate) fn set_constant(&mut self, tensor: TensorId, is_constant: bool) {
        self.constant[tensor.index()] = is_constant;
    }

    /// Can the session compute the node's results?
    fn follows(&self, graph: &Graph, shapes: &[Option<Vec<Dimension>>], node: &Node) -> bool {
        if node.is("", "Shape") {
            let shape = |read: TensorId| &shapes[read.index()];
            return node.input(0).is_some_and(|read| in_numbers(shape(read)));
        }
        node.reads().next().is_some()
            && node.reads().all(|read| self.is_constant(read))
            && may_be_folded(graph, node)
    }

    /// Does it follow from constants? Not the constants of the file.
    pub(crate) fn is_folded(&self, tensor: TensorId) -> bool {
        self.folded.get(tensor.index()) == Some(&true)
    }

    /// Is it a constant of the file, or folded?
    pub(crate) fn is_constant(&self, tensor: TensorId) -> bool {
        self.constant.get(tensor.index()) == Some(&true)
    }
}

fn in_numbers(shape: &Option<Vec<Dimension>>) -> bool {
    shape.as_deref().is_some_and(all_numbers)
}

fn may_be_folded(graph: &Graph, node: &Node) -> bool {
    let narrow = |id: TensorId| graph.tensor(id).element == Some(ElementType::Bfloat16);
    let mut touched = node.reads().chain(node.writes());
    node.bodies.is_empty()
        && is_known_to_repeat(node)
        && operators::recompute(node) == Recompute::Clone
        && !node.op_type.contains("Quantize")
        && !is_cast(graph, node)
        && !touched.any(narrow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::known_shapes::runtime_shapes;

    fn names(text: &str) -> Vec<String> {
        let graph = Graph::parse(text).unwrap();
        let folding = Folding::of(&graph, &runtime_shapes(&graph));
        let written = graph.tensor_ids().filter(|&id| folding.is_folded(id));
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
        // Not what the caller feeds, nor what is as large as it; graph outputs count as computed.
        assert_eq!(names(&text("z = Exp(one)")), ["shape", "zeros", "mask"]);
        // Nor random numbers, nor what a caller can replace.
        let random = text("r = RandomNormalLike(zeros) z = ReduceSum(r)");
        assert_eq!(names(&random), ["shape", "zeros", "mask"]);
        // Of its own operators the runtime folds few.
        for own in [
            "a, z = com.microsoft.BroadcastGradientArgs(shape, shape)",
            "p = com.microsoft.PassThrough(one) z = Exp(p)",
        ] {
            assert_eq!(names(&text(own)), ["shape", "zeros", "mask"], "{own}");
        }
        let joined =
            text("j = com.microsoft.ConcatTraining <axis = 0> (shape, shape) z = Exp(one)");
        assert_eq!(names(&joined), ["shape", "zeros", "mask", "j"]);
        let replaced = text("z = Exp(one)").replace("float[N,8] v)", "float[N,8] v, float[8] one)");
        assert_eq!(names(&replaced), ["shape", "zeros"]);
    }

    // What sessions of 1.19.2 and 1.32.0 saved.
    #[test]
    fn what_has_a_kernel_for_float16_is_folded() {
        let folded = |node: &str| {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 15]> g (float16[4] x) => (float16[4] y)
                <float[4] one = {{1,1,1,1}}, float16[4] h, float16[4] f> {{ h = Cast <to = 10> (one) f = {node} y = Add(x, f) }}"#
            );
            names(&text)
        };
        for node in ["Identity(h)", "Concat <axis = 0> (h)", "Clip(h)"] {
            assert_eq!(folded(node), ["h", "f"], "{node}");
        }
        for node in ["Neg(h)", "Mul(h, h)", "Softmax(h)"] {
            assert_eq!(folded(node), ["h"], "{node}");
        }
    }
}
