//! How ONNX Runtime moves a Transpose from in front of a node to behind it.
//!
//! Source: the handlers of `TransposeOptimizer` in 1.19.2, and those that it adds for its own operators; which operators have one was
//! measured for all of `testdata/operators.json`, with a Shape beside each.

use super::casting::are_there;
use super::folding::Folding;
use crate::graph::{Dimension, Graph, Node, TensorId};

/// A shape as the runtime knows it.
pub(crate) type KnownDimensions = Option<Vec<Dimension>>;

/// The opsets of which the runtime knows how.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=21;

/// Axes from -8 to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AxisSet(u16);

impl AxisSet {
    /// `None` where one is beyond these.
    pub(crate) fn of(axes: &[i64]) -> Option<AxisSet> {
        let mut set = AxisSet(0);
        for &axis in axes {
            let at = u32::try_from(axis.saturating_add(8))
                .ok()
                .filter(|&at| at < 16)?;
            set.0 |= 1 << at;
        }
        Some(set)
    }

    /// By axis of a tensor with so many: is it one of these? `None` where some are beyond it.
    pub(crate) fn marks(self, rank: usize) -> Option<Vec<bool>> {
        let mut marks = vec![false; rank];
        for at in (0..16_i64).filter(|at| self.0 & (1 << at) != 0) {
            let axis = at - 8;
            let axis = if axis < 0 { axis + rank as i64 } else { axis };
            *marks.get_mut(usize::try_from(axis).ok()?)? = true;
        }
        Some(marks)
    }

    /// By axis of what has these axes beside others, of which there are so many: is it one of these?
    pub(crate) fn places(self, others: usize) -> Option<Vec<bool>> {
        self.marks(others + self.0.count_ones() as usize)
    }
}

/// Which way there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Moving {
    /// None: whoever reads a Transpose like this keeps it.
    #[default]
    No,
    /// One that is never gone.
    Stays,
    /// Every input is transposed the other way, and every result back.
    All,
    /// Likewise the first input alone.
    First,
    /// Likewise all inputs that have axes. What has fewer gets more before.
    Broadcast,
    /// Likewise the first input, where no axis comes from the other side of this one.
    Divided { axis: i64 },
    /// Likewise the first input; the second one has a number for each axis, and a Gather moves these.
    Gathers,
    /// These axes of the first input are not there behind it.
    Squeezes(AxisSet),
    /// Likewise of a Reduce.
    Reduces(AxisSet),
    /// No axes are there behind it.
    ReducesAll,
    /// These axes come with the result.
    Unsqueezes(AxisSet),
    /// A Gather behind it moves the sizes.
    Shape,
    /// Both become one.
    Transpose,
    /// Both become one, where it only moves axes of size 1.
    Reshape,
}

impl Moving {
    /// Are the results transposed when it is moved behind?
    pub(crate) fn transposes_results(self) -> bool {
        !matches!(
            self,
            Moving::No | Moving::Shape | Moving::Transpose | Moving::Reshape
        )
    }

    /// Has it nothing to read but what it moves, or takes axes from or adds axes to?
    pub(crate) fn is_made(self) -> bool {
        matches!(
            self,
            Moving::Transpose | Moving::Squeezes(_) | Moving::Unsqueezes(_)
        )
    }

    /// Of a node whose opset and constants do not count: for whether there is a way, and whether it transposes results.
    pub(crate) fn of_any(graph: &Graph, node: &Node) -> Moving {
        Moving::of(graph, node, *OPSETS.end(), &|_| false)
    }

    /// Of a node of a graph of this opset; `is_constant` says what the session has before the first step.
    fn of(
        graph: &Graph,
        node: &Node,
        opset: i64,
        is_constant: &impl Fn(TensorId) -> bool,
    ) -> Moving {
        if !node.domain.is_empty() {
            return Moving::No;
        }
        let given = |place: usize| node.input(place).is_some_and(is_constant);
        let numbers = |place: usize| {
            let numbers = graph.tensor(node.input(place)?).ints();
            numbers.filter(|_| given(place))
        };
        // Of an attribute, or from an opset on of an input.
        let axes = |from: i64| match opset < from {
            true => node.ints("axes"),
            false => numbers(1),
        };
        let keeps = node.int("keepdims").unwrap_or(1) != 0;
        match node.op_type.as_str() {
            "Shape" => Moving::Shape,
            "Transpose" => Moving::Transpose,
            "Reshape" => Moving::Reshape,
            "Clip" | "CastLike" | "Split" | "QuantizeLinear" | "DequantizeLinear" => Moving::First,
            "Add" | "Max" | "Min" | "Mul" | "Sub" | "Div" | "And" | "Or" | "Xor" | "Mod"
            | "PRelu" | "BitShift" | "Equal" | "Greater" | "Less" | "GreaterOrEqual"
            | "LessOrEqual" | "Mean" | "Sum" | "Pow" | "Where" => Moving::Broadcast,
            "MaxPool" | "Resize" => Moving::Stays,
            "Concat" if node.int("axis").is_none() => Moving::Stays,
            "Softmax" | "Hardmax" | "LogSoftmax" if opset < 13 => Moving::Divided {
                axis: node.int("axis").unwrap_or(1),
            },
            "Softmax" | "Hardmax" | "LogSoftmax" => Moving::First,
            "Pad" if opset < 11 => Moving::First,
            "Pad" | "Tile" if given(1) => Moving::First,
            "Pad" | "Tile" => Moving::Gathers,
            "ArgMin" | "ArgMax" if keeps => Moving::First,
            "ArgMin" | "ArgMax" => {
                AxisSet::of(&[node.int("axis").unwrap_or(0)]).map_or(Moving::Stays, Moving::Reduces)
            }
            name if name.starts_with("Reduce") => {
                let from = if name == "ReduceSum" { 13 } else { 18 };
                let by_input = opset >= from && node.input(1).is_some();
                match axes(from) {
                    None if by_input => Moving::Stays,
                    _ if keeps => Moving::First,
                    Some(axes) if !axes.is_empty() || opset < from => {
                        AxisSet::of(axes).map_or(Moving::Stays, Moving::Reduces)
                    }
                    _ if node.int("noop_with_empty_axes") == Some(1) => Moving::First,
                    _ => Moving::ReducesAll,
                }
            }
            "Squeeze" => axes(13)
                .and_then(AxisSet::of)
                .map_or(Moving::Stays, Moving::Squeezes),
            "Unsqueeze" => axes(13)
                .and_then(AxisSet::of)
                .map_or(Moving::Stays, Moving::Unsqueezes),
            "Slice" if opset < 10 || node.input(3).is_none() || given(3) => Moving::First,
            "Slice" => Moving::Stays,
            "Abs" | "Acos" | "Acosh" | "Asin" | "Asinh" | "Atan" | "Atanh" | "Cast" | "Ceil"
            | "Celu" | "Concat" | "Cos" | "Cosh" | "Erf" | "Exp" | "Floor" | "HardSigmoid"
            | "HardSwish" | "Identity" | "IsInf" | "IsNaN" | "LeakyRelu" | "Log" | "Neg"
            | "Not" | "Reciprocal" | "Relu" | "Round" | "Selu" | "Shrink" | "Sigmoid" | "Sign"
            | "Sin" | "Sinh" | "Softplus" | "Softsign" | "Sqrt" | "Tan" | "Tanh"
            | "ThresholdedRelu" => Moving::All,
            _ => Moving::No,
        }
    }
}

/// A tensor that the runtime makes when it moves Transposes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Added {
    /// The tensor of the graph that it is made of.
    pub(crate) of: u32,
    /// The operator that makes it, where that is none of the graph's.
    pub(crate) made_by: Option<&'static str>,
    /// The bytes of an element.
    pub(crate) element: u64,
    pub(crate) shape: KnownDimensions,
}

/// What is known of a graph of which the runtime moves Transposes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    /// By position.
    pub(crate) moving: Vec<Moving>,
    /// By tensor.
    pub(crate) shapes: Vec<KnownDimensions>,
    /// By tensor: has the session it before the first step?
    pub(crate) constant: Vec<bool>,
    /// By tensor: the bytes of an element.
    pub(crate) element: Vec<u64>,
    /// By tensor: does a subgraph read it?
    pub(crate) captured: Vec<bool>,
}

impl Moves {
    /// Of a graph of whose shapes the runtime knows these. `None` if there is nothing to move; and where casts to and from float16
    /// come in between, for which this is not simulated.
    pub(crate) fn of(graph: &Graph, shapes: &[KnownDimensions]) -> Option<Moves> {
        let nodes = || graph.nodes();
        let opset = graph.opset()?;
        let moves = |node: &Node| node.is("", "Transpose") && node.ints("perm").is_some();
        if !OPSETS.contains(&opset) || !nodes().any(moves) || are_there(graph) {
            return None;
        }
        let folding = Folding::of(graph, shapes);
        let is_constant = |tensor| folding.is_constant(tensor);
        let mut captured = vec![false; graph.tensor_count()];
        for &tensor in nodes().flat_map(|node| &node.captures) {
            captured[tensor.index()] = true;
        }
        let bytes = |tensor| {
            let element = graph.tensor(tensor).element;
            element.map_or(0, |element| element.bytes(1).0)
        };
        Some(Moves {
            moving: nodes()
                .map(|node| Moving::of(graph, node, opset, &is_constant))
                .collect(),
            shapes: shapes[..graph.tensor_count()].to_vec(),
            constant: graph.tensor_ids().map(is_constant).collect(),
            element: graph.tensor_ids().map(bytes).collect(),
            captured,
        })
    }
}
