//! How a release hands a tensor on without a copy, so that who reads it waits.

use crate::graph::{ElementType, Graph, Node, Tensor};

/// Since then a Min takes integers, and a Constant may have a list of them.
const OPSET: i64 = 12;

/// Since then a Shape may leave out dimensions.
const PARTS_OF_SHAPES: i64 = 15;

/// What barriers are called, with a number behind it.
pub(super) const NAME: &str = "ckpt-opt/barrier_";

/// The number of a barrier, by its name.
pub(super) fn number(node: &Node) -> Option<u32> {
    node.name.strip_prefix(NAME)?.parse().ok()
}

/// Is it called as a part of one?
pub(super) fn is_part(node: &Node) -> bool {
    let name = node.name.strip_prefix(NAME);
    let number = name.and_then(|name| name.split_once('/'));
    number.is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

/// How one release hands a tensor on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierKind {
    /// `PassThrough(x, a, …) -> (x', a', …)`: one node, which only training builds have.
    PassThrough,
    /// `Reshape(x, Min(Size(a), …, zeros)) -> x'`: no size is negative, so the least is zero, and zero stands for the dimension
    /// that x has. No number of a tensor is read. Constant folding leaves a Size alone, even of a known shape (measured), but
    /// a Reshape of what alone reads a Reshape, a Squeeze or an Unsqueeze is made one with it if all sizes are
    /// known (measured), and so it is with an Identity between them. So a barrier of such a tensor reads its Size as well, and none
    /// stands before such a node. A list of sizes
    /// that is joined for a Reshape becomes a constant where the runtime knows what it amounts to (ReshapeFusion), and
    /// who waited for one of its parts waits no more (measured): no list of integers is handed on.
    Reshape,
    /// `Reshape(x, Concat(Shape(a)[0:0], …, zeros)) -> x'`, where the graph's operators have that: the Shape of no dimension is an empty
    /// list. Of a Shape the CUDA provider knows that it reads nothing on the device, so the host waits for nothing; a Size makes it
    /// wait for all that the device has to do (measured in 1.31.1, tools/gpu_barriers.py). Only where the graph runs as it is: other
    /// levels may fold such a Shape.
    OnHost,
}

impl BarrierKind {
    /// Of what is a barrier in that graph made?
    pub(super) fn reads_shapes(self, graph: &Graph) -> bool {
        self == BarrierKind::OnHost && graph.opset() >= Some(PARTS_OF_SHAPES)
    }

    /// Can any graph with these operators have barriers?
    pub(crate) fn is_possible(self, graph: &Graph) -> bool {
        match self {
            BarrierKind::PassThrough => true,
            BarrierKind::Reshape | BarrierKind::OnHost => graph.opset() >= Some(OPSET),
        }
    }

    /// Can a barrier hand the tensor on?
    pub(crate) fn may_pass(self, tensor: &Tensor) -> bool {
        let may = |shape: &Vec<u64>| match shape.len() {
            0 => false,
            1 => tensor.element != Some(ElementType::Int64),
            _ => true,
        };
        self == BarrierKind::PassThrough || tensor.shape.as_ref().is_some_and(may)
    }

    /// How many tensors that a barrier writes have objects to the end of the step: those that nobody reads, and aliases.
    pub(crate) fn lasting(self, waits: usize) -> u32 {
        match self {
            BarrierKind::PassThrough => 1 + waits as u32,
            BarrierKind::Reshape | BarrierKind::OnHost => 1,
        }
    }
}

/// Is it one of those that the runtime makes one of?
pub(super) fn joins_reshapes(node: &Node) -> bool {
    node.domain.is_empty() && matches!(node.op_type.as_str(), "Reshape" | "Squeeze" | "Unsqueeze")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::TensorKind;

    #[test]
    fn parts_of_barriers_are_known_by_their_names() {
        let is = |name: &str| is_part(&Node::new(name, "", "Size", Vec::new(), Vec::new()));
        assert!(is("ckpt-opt/barrier_12/size_0") && is("ckpt-opt/barrier_0/zeros"));
        assert!(!is("ckpt-opt/barrier_12"), "it is the barrier");
        assert!(!is("ckpt-opt/barrier_x/size_0") && !is("my/ckpt-opt/barrier_1/size_0"));
    }

    #[test]
    fn lists_of_sizes_and_single_numbers_are_not_handed_on() {
        let tensor = |element, shape: &[u64]| Tensor {
            element: Some(element),
            shape: Some(shape.to_vec()),
            ..Tensor::new("t", TensorKind::Value)
        };
        let may = |element, shape: &[u64]| BarrierKind::Reshape.may_pass(&tensor(element, shape));
        assert!(may(ElementType::Int64, &[4, 7]));
        assert!(may(ElementType::Float, &[2]));
        assert!(!may(ElementType::Int64, &[2]));
        assert!(!may(ElementType::Float, &[]));
        assert!(BarrierKind::PassThrough.may_pass(&tensor(ElementType::Int64, &[2])));
    }
}
