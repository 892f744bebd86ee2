//! How the runtime infers the shapes of what a node writes, before anything runs.

use crate::graph::{Node, ShapeRules};
use crate::operators::{MICROSOFT, einsum_dimensions};

/// How the runtime works out a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InferredBy {
    /// Not at all.
    Unknown,
    /// It is that input's.
    Of(usize),
    /// The inputs are broadcast to each other.
    Broadcast,
    /// The first input is broadcast to a shape of which the runtime knows the rank alone, unless it is constant.
    Expanded,
    /// By another rule of the operator.
    Other,
    /// By a rule that says nothing of a dimension of the first input that is no number, unless it stays as it is. Where what it depends on
    /// is computed in the step, how many dimensions there are; of a Split not even that.
    Resized,
    /// By a rule that does not take over a dimension of the first input that is no number. Where what it depends on is computed in the step,
    /// how many dimensions there are.
    Numbered,
    /// By a rule that does not take over a spatial dimension of the first input that is no number.
    Windowed,
    /// By a rule for first inputs of which all dimensions are numbers.
    AllNumbered,
    /// By a rule for first inputs of which the dimension at the node's axis is a number; of other inputs, or where what it depends on is
    /// computed in the step, only how many dimensions there are.
    AxisNumbered,
    /// How many dimensions there are, and nothing more. (Current releases know all of them.)
    Rank,
    /// By the rule of recurrent layers for training, to which the hidden size is unknown.
    Recurrent,
}

/// How the runtime works out the shape of the output at `position`. It has rules for the standard's operators (but
/// for two that it takes for functions), and for few of its own (measured: `tools/measure_known_shapes.py`). A rule of which
/// not all dimensions come out counts as none where few graphs have the operator.
pub fn inferred_by(node: &Node, position: usize) -> InferredBy {
    const FIRST: [&str; 23] = [
        "Abs",
        "Cast",
        "Clip",
        "Dropout",
        "Elu",
        "Erf",
        "Exp",
        "Identity",
        "LeakyRelu",
        "Log",
        "LogSoftmax",
        "Neg",
        "Not",
        "PRelu",
        "Reciprocal",
        "Relu",
        "Selu",
        "Sigmoid",
        "Sign",
        "Softmax",
        "Softplus",
        "Sqrt",
        "Tanh",
    ];
    const FIRST_GRADIENT: [&str; 16] = [
        "BiasFastGeluGrad_dX",
        "BiasGeluGrad_dX",
        "DropoutGrad",
        "FakeQuantGrad",
        "FastGeluGrad",
        "GeluGrad",
        "LeakyReluGrad",
        "LogSoftmaxGrad",
        "LogSoftmaxGrad_13",
        "QuickGeluGrad",
        "ReluGrad",
        "SigmoidGrad",
        "SoftmaxGrad",
        "SoftmaxGrad_13",
        "TanhGrad",
        "ZeroGradient",
    ];
    const BROADCAST: [&str; 18] = [
        "Add", "And", "BitShift", "Div", "Equal", "Greater", "Less", "Max", "Mean", "Min", "Mod",
        "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor",
    ];
    match (node.domain.as_str(), node.op_type.as_str()) {
        ("", "GreaterOrEqual" | "LessOrEqual") => InferredBy::Unknown,
        ("", name) if FIRST.contains(&name) => InferredBy::Of(0),
        ("", "BatchNormalization" | "InstanceNormalization" | "LayerNormalization")
        | (MICROSOFT, "BatchNormInternal")
            if position == 0 =>
        {
            InferredBy::Of(0)
        }
        ("", name) if BROADCAST.contains(&name) => InferredBy::Broadcast,
        ("", "Expand") => InferredBy::Expanded,
        ("", "GatherElements") => InferredBy::Of(1),
        (MICROSOFT, "PassThrough") => InferredBy::Of(position),
        (MICROSOFT, name) if FIRST_GRADIENT.contains(&name) && position == 0 => InferredBy::Of(0),
        (MICROSOFT, "DivGrad") => InferredBy::Of(position + 1),
        // Not that of dY, from which every other gradient has it (measured).
        (MICROSOFT, "LayerNormalizationGrad") if position == 0 => InferredBy::Of(1),
        (MICROSOFT, "LayerNormalizationGrad") => InferredBy::Of(2),
        (MICROSOFT, "GRUGrad" | "GRUTraining" | "LSTMGrad" | "LSTMTraining") => {
            InferredBy::Recurrent
        }
        ("", "SoftmaxCrossEntropyLoss") | (MICROSOFT, "SoftmaxCrossEntropyLossInternal")
            if position == 1 =>
        {
            InferredBy::Of(0)
        }
        // Without a reduction it has the shape of the labels.
        ("", "SoftmaxCrossEntropyLoss") | (MICROSOFT, "SoftmaxCrossEntropyLossInternal")
            if node.string("reduction") == Some("none") =>
        {
            InferredBy::Of(1)
        }
        (
            MICROSOFT,
            "SoftmaxCrossEntropyGrad"
            | "SoftmaxCrossEntropyLossGrad"
            | "SoftmaxCrossEntropyLossInternalGrad",
        ) => InferredBy::Of(1),
        ("", "Pad" | "Slice" | "Split") => InferredBy::Resized,
        ("", "Resize" | "Tile" | "Upsample") => InferredBy::Numbered,
        ("", "TopK") => InferredBy::AxisNumbered,
        ("", "Einsum") => InferredBy::Rank,
        (MICROSOFT, "SplitTraining") => InferredBy::AllNumbered,
        ("", "Squeeze") if node.ints("axes").is_none() && node.input(1).is_none() => {
            InferredBy::AllNumbered
        }
        ("", "AveragePool" | "Conv" | "ConvTranspose" | "LpPool" | "MaxPool")
        | (MICROSOFT, "FusedConv") => InferredBy::Windowed,
        // Its sizes have to be declared: without, a session crashes.
        ("", "MaxPoolGrad") => InferredBy::Unknown,
        ("", "GroupNormalization" | "MeanVarianceNormalization") => InferredBy::Unknown,
        (MICROSOFT, name) if !name.contains("Grad") => InferredBy::Other,
        ("", _) => InferredBy::Other,
        _ => InferredBy::Unknown,
    }
}

/// The same by other rules.
pub(crate) fn inferred_by_rules(rules: ShapeRules, node: &Node, position: usize) -> InferredBy {
    let newly = newly_inferred_by(node).filter(|_| rules == ShapeRules::Newest);
    newly.unwrap_or_else(|| inferred_by(node, position))
}

/// The same in the newest release that is known, where not all releases have the same rule: Einsum tells all sizes from 1.20.1 on, comparisons
/// (of opset 16 or newer) and how many classes OneHot has between 1.20.1 and 1.26.0 at the latest (measured in 1.19.2, 1.20.1, 1.26.0
/// and 1.32.0, of each case in `testdata/operators.json`).
pub(super) fn newly_inferred_by(node: &Node) -> Option<InferredBy> {
    match (node.domain.as_str(), node.op_type.as_str()) {
        ("", "GreaterOrEqual" | "LessOrEqual") => Some(InferredBy::Broadcast),
        ("", "Einsum" | "OneHot") => Some(InferredBy::Other),
        _ => None,
    }
}

/// An input, and which dimensions of the output at `position`, which has `rank` of them, the runtime knows from that
/// input alone: each with the input's dimension that it is. Source: the standard's shape inference.
pub fn dimensions_from(
    node: &Node,
    position: usize,
    rank: usize,
) -> Option<(usize, Vec<(usize, usize)>)> {
    let first = position == 0;
    let same = || (0..rank).map(|i| (i, i)).collect();
    Some(match (node.domain.as_str(), node.op_type.as_str()) {
        ("", "Transpose") => {
            let axes = node.ints("perm")?.iter().map(|&axis| axis as usize);
            (0, axes.enumerate().collect())
        }
        ("", "Gemm") => {
            let transposed = node.int("transA").unwrap_or(0) != 0;
            (0, vec![(0, usize::from(transposed))])
        }
        ("", "AveragePool" | "Conv" | "ConvTranspose" | "GlobalAveragePool" | "MaxPool")
            if first =>
        {
            (0, vec![(0, 0)])
        }
        ("", "Gather") => {
            let axis = node.int("axis").unwrap_or(0);
            (1, vec![(usize::try_from(axis).ok()?, 0)])
        }
        ("", "Einsum") => {
            let sources = einsum_dimensions(node)?;
            let &(input, _) = sources.iter().min()?;
            let of_result = sources.into_iter().enumerate();
            let from = of_result.filter(|&(_, (from, _))| from == input);
            (input, from.map(|(at, (_, of))| (at, of)).collect())
        }
        _ => match inferred_by(node, position) {
            InferredBy::Of(input) => (input, same()),
            _ => return None,
        },
    })
}
