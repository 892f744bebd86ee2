//! What is known about each operator: shapes, work, workspace, aliasing, and how it is
//! recomputed. Operator facts live here alone: adding an operator changes no pass.

use crate::bytes::Bytes;
use crate::graph::{Graph, Node};

/// Who executes the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// ONNX Runtime's CPU execution provider.
    Cpu,
    /// ONNX Runtime's CUDA execution provider.
    Cuda,
}

/// How a node is computed a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// A clone computes every output again, bit for bit.
    Clone,
    /// A clone of BatchNormInternal with `momentum = 1`: outputs 0, 3 and 4 again, bit for bit,
    /// while the running statistics (outputs 1 and 2) stay as the original left them.
    BatchNorm,
    /// Dropout's output 0 from its input and the original's mask (output 1), by DropoutGrad.
    DropoutFromMask,
    /// Never, and why: random, stateful, side effects, or unknown.
    Never(&'static str),
}

impl Recompute {
    /// Does a copy compute output `position` again? If not, its readers keep to the original.
    pub fn recomputes(self, position: usize) -> bool {
        match self {
            Recompute::Clone => true,
            Recompute::BatchNorm => !matches!(position, 1 | 2),
            Recompute::DropoutFromMask => position == 0,
            Recompute::Never(_) => false,
        }
    }

    /// Which outputs of the original a copy reads.
    pub fn reads_own_outputs(self) -> &'static [usize] {
        match self {
            Recompute::DropoutFromMask => &[1],
            _ => &[],
        }
    }
}

/// Arithmetic and memory traffic of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating point operations (a multiply-add counts two).
    pub operations: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

/// Output position, input position: that output is that input's memory.
pub type Alias = (usize, usize);

/// Outputs that are always their input's memory, without a copy
/// (Identity, Reshape, PassThrough ..., BatchNormInternal's running statistics).
pub fn aliases(node: &Node) -> Vec<Alias> {
    let wanted: Vec<Alias> = match (node.domain.as_str(), node.op_type.as_str()) {
        ("", "Identity" | "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze")
        | (MICROSOFT, "InPlaceAccumulator" | "ZeroGradient") => vec![(0, 0)],
        (MICROSOFT, "PassThrough") => (0..node.outputs.len()).map(|i| (i, i)).collect(),
        (MICROSOFT, "BatchNormInternal") => vec![(1, 3), (2, 4)],
        (MICROSOFT, "InPlaceAccumulatorV2") => vec![(1, 0)],
        _ => Vec::new(),
    };
    present(node, wanted)
}

/// Outputs that take over the memory of an input which has no other reader left
/// and has the same static shape and element size.
pub fn in_place(node: &Node, provider: Provider) -> Vec<Alias> {
    let gradients_too = provider == Provider::Cuda;
    let wanted = match (node.domain.as_str(), node.op_type.as_str()) {
        (
            "",
            "Relu" | "Sigmoid" | "Tanh" | "Elu" | "Selu" | "Celu" | "LeakyRelu" | "HardSigmoid"
            | "Softplus" | "Softsign" | "ThresholdedRelu" | "Clip" | "Softmax" | "LogSoftmax"
            | "Cast",
        ) => vec![(0, 0)],
        (MICROSOFT, "ReluGrad" | "SigmoidGrad" | "TanhGrad" | "GeluGrad" | "FastGeluGrad")
            if gradients_too =>
        {
            vec![(0, 0)]
        }
        _ => Vec::new(),
    };
    present(node, wanted)
}

/// Those of `wanted` whose output and input the node has.
fn present(node: &Node, wanted: Vec<Alias>) -> Vec<Alias> {
    let there = |&(o, i): &Alias| node.output(o).is_some() && node.input(i).is_some();
    wanted.into_iter().filter(there).collect()
}

/// How `node` may be recomputed.
///
/// The copy of a Dropout is `DropoutGrad(data, mask, ratio, training_mode)` with the Dropout's
/// own inputs 0, 1 and 2 and its output 1: exact whether or not `training_mode` is true.
pub fn recompute(node: &Node) -> Recompute {
    if !node.captures.is_empty() {
        return Recompute::Never("control flow");
    }
    match (node.domain.as_str(), node.op_type.as_str()) {
        ("", "If" | "Loop" | "Scan") => Recompute::Never("control flow"),
        (
            "",
            "RandomNormal" | "RandomNormalLike" | "RandomUniform" | "RandomUniformLike"
            | "Bernoulli" | "Multinomial",
        ) => Recompute::Never("random"),
        ("" | MICROSOFT, "Dropout") => match (node.input(2), node.output(1)) {
            (None, _) => Recompute::Clone,
            (Some(_), Some(_)) => Recompute::DropoutFromMask,
            (Some(_), None) => Recompute::Never("random, and the mask is not kept"),
        },
        (MICROSOFT, "BiasDropout" | "BitmaskDropout" | "BitmaskBiasDropout") => {
            Recompute::Never("random")
        }
        (MICROSOFT, "BatchNormInternal") => Recompute::BatchNorm,
        ("", "BatchNormalization") if node.int("training_mode").unwrap_or(0) != 0 => {
            Recompute::Never("updates the running statistics")
        }
        (MICROSOFT, "GatherGrad" | "GatherElementsGrad" | "GatherNDGrad") => {
            Recompute::Never("adds up in an order that varies from run to run")
        }
        (ATEN, "ATen") => match node.string("operator") {
            Some(
                "_adaptive_avg_pool2d"
                | "_adaptive_avg_pool2d_backward"
                | "max_pool2d_with_indices"
                | "avg_pool2d"
                | "embedding",
            ) => Recompute::Clone,
            _ => Recompute::Never("a PyTorch operator that is not known to be deterministic"),
        },
        ("", "Optional" | "OptionalGetElement" | "SequenceConstruct") => {
            Recompute::Never("not a tensor")
        }
        // Every other operator of the standard is a pure function of its inputs.
        ("", _) => Recompute::Clone,
        (MICROSOFT, name) if PURE.contains(&name) => Recompute::Clone,
        _ => Recompute::Never(UNKNOWN),
    }
}

const UNKNOWN: &str = "an operator without a rule";

/// Is nothing known about the operator, so that only the user can say whether it is pure?
pub fn is_unknown(node: &Node) -> bool {
    recompute(node) == Recompute::Never(UNKNOWN)
}

const MICROSOFT: &str = "com.microsoft";
const ATEN: &str = "org.pytorch.aten";

/// Operators of the com.microsoft domain that are pure functions of their inputs.
const PURE: [&str; 40] = [
    "AveragePoolGrad",
    "BatchNormalizationGrad",
    "BiasGelu",
    "BiasGeluGrad_dX",
    "BroadcastGradientArgs",
    "ConcatTraining",
    "ConvGrad",
    "ConvTransposeGrad",
    "DropoutGrad",
    "FastGelu",
    "FastGeluGrad",
    "FusedConv",
    "FusedGemm",
    "FusedMatMul",
    "Gelu",
    "GeluGrad",
    "Inverse",
    "InvertibleLayerNormalizationGrad",
    "LayerNormalizationGrad",
    "LeakyReluGrad",
    "LogSoftmaxGrad",
    "LogSoftmaxGrad_13",
    "PassThrough",
    "QuickGelu",
    "QuickGeluGrad",
    "ReduceAllL2",
    "ReluGrad",
    "ResizeGrad",
    "Scale",
    "SigmoidGrad",
    "SimplifiedLayerNormalizationGrad",
    "SkipLayerNormalization",
    "SliceGrad",
    "SoftmaxCrossEntropyLossGrad",
    "SoftmaxCrossEntropyLossInternal",
    "SoftmaxCrossEntropyLossInternalGrad",
    "SoftmaxGrad",
    "SoftmaxGrad_13",
    "SplitTraining",
    "TanhGrad",
];

/// What the kernel allocates besides its outputs. Needs concrete shapes; 0 where no rule is known.
pub fn workspace(graph: &Graph, node: &Node, provider: Provider) -> Bytes {
    let _ = (graph, node, provider);
    Bytes::ZERO
}

/// What the node has to do. Needs concrete shapes.
pub fn work(graph: &Graph, node: &Node) -> Work {
    let _ = (graph, node);
    Work::default()
}

/// May a copy of `node` leave out the output at `position` when nobody reads it?
pub fn may_omit_output(node: &Node, position: usize) -> bool {
    matches!(
        (node.op_type.as_str(), position),
        ("MaxPool" | "LayerNormalization" | "SoftmaxCrossEntropyLoss", 1..)
            | ("SoftmaxCrossEntropyLossInternal", 1..)
            | ("ConvGrad" | "LayerNormalizationGrad", _)
    )
}
