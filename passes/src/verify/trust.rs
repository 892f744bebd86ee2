//! Which nodes give the same results when they are computed twice.
//!
//! This is a second opinion, kept apart from [`crate::operators`] on purpose: an operator is
//! trusted because it is listed here, never because it is not known to be bad.

use crate::graph::{AttributeValue, Node};

/// `Ok` if a second computation gives the same results and has no effect besides; else why not.
/// `permitted`: the user vouches for it; that counts for operators that nothing is known about.
pub(super) fn repeatable(node: &Node, permitted: bool) -> Result<(), &'static str> {
    let unseen = |value: &AttributeValue| {
        matches!(
            value,
            AttributeValue::Opaque | AttributeValue::Tensor { constant: None, .. }
        )
    };
    if !node.captures.is_empty() || node.attributes.iter().any(|a| unseen(&a.value)) {
        return Err("it has subgraphs, or other attributes that cannot be compared");
    }
    let op_type = node.op_type.as_str();
    match node.domain.as_str() {
        "" if op_type == "Dropout" && node.input(2).is_some() => Err(RANDOM),
        "" if op_type == "BatchNormalization" => match node.int("training_mode") {
            None | Some(0) if node.outputs.len() == 1 => Ok(()),
            _ => Err("it updates running statistics"),
        },
        "" if RANDOM_STANDARD.contains(&op_type) => Err(RANDOM),
        "" if op_type == "Constant" => Err("the runtime holds it once, like an initializer"),
        "" if listed(STANDARD, op_type) || op_type == "Dropout" => Ok(()),
        "com.microsoft" if op_type == "BatchNormInternal" => Err("it updates running statistics"),
        "com.microsoft" if op_type.contains("Dropout") && op_type != "DropoutGrad" => Err(RANDOM),
        "com.microsoft" if EFFECTS.iter().any(|part| op_type.contains(part)) => {
            Err("it has effects besides its results")
        }
        // The runtime takes it apart into operators that are trusted.
        "com.microsoft" if op_type == "DivGrad" => Ok(()),
        "com.microsoft" if VARYING.contains(&op_type) => {
            Err("its sums vary from one computation to the next")
        }
        "com.microsoft" if listed(MICROSOFT, op_type) => Ok(()),
        "org.pytorch.aten" => match node.string("operator") {
            Some(operator) if listed(ATEN, operator) => Ok(()),
            _ => Err("it is a PyTorch operator that is not listed as deterministic"),
        },
        _ if permitted => Ok(()),
        _ => Err("nothing is known about its operator"),
    }
}

/// May a copy of the node leave output `position` away? Tried with the runtime, bit by bit.
pub(super) fn optional_output(node: &Node, position: usize) -> bool {
    match (node.domain.as_str(), node.op_type.as_str()) {
        ("", "MaxPool" | "LayerNormalization" | "SoftmaxCrossEntropyLoss")
        | ("com.microsoft", "SoftmaxCrossEntropyLossInternal") => position > 0,
        ("com.microsoft", "ConvGrad") => true,
        _ => false,
    }
}

/// The inputs whose memory the node changes.
pub(super) fn updated_inputs(node: &Node) -> Vec<usize> {
    match (node.domain.as_str(), node.op_type.as_str()) {
        ("com.microsoft", "InPlaceAccumulator" | "InPlaceAccumulatorV2" | "ZeroGradient") => {
            vec![0]
        }
        ("com.microsoft", "BatchNormInternal") => vec![3, 4],
        ("", "BatchNormalization") if node.outputs.len() > 1 => vec![3, 4],
        // Weights, moments and step counts; the learning rate comes first and stays.
        ("com.microsoft", op) if op.contains("Optimizer") => (1..node.inputs.len()).collect(),
        _ => Vec::new(),
    }
}

/// Output, input: the output is the input's memory under another name.
pub(super) fn aliases(node: &Node) -> Vec<(usize, usize)> {
    match (node.domain.as_str(), node.op_type.as_str()) {
        ("", "Identity" | "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze")
        | ("com.microsoft", "InPlaceAccumulator" | "ZeroGradient") => vec![(0, 0)],
        ("com.microsoft", "PassThrough") => (0..node.outputs.len()).map(|i| (i, i)).collect(),
        ("com.microsoft", "InPlaceAccumulatorV2") => vec![(1, 0)],
        ("com.microsoft", "BatchNormInternal") => vec![(1, 3), (2, 4)],
        _ => Vec::new(),
    }
}

const RANDOM: &str = "it draws random numbers";

const RANDOM_STANDARD: [&str; 6] = [
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
];

/// Parts of the names of operators with side effects: accumulation, optimizers, communication,
/// synchronization, foreign code.
const EFFECTS: [&str; 19] = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "ATen",
    "Accumulator",
    "Adasum",
    "Event",
    "Group",
    "Mpi",
    "Nccl",
    "Optimizer",
    "Python",
    "Recv",
    "ReduceScatter",
    "Search",
    "Send",
    "Yield",
    "ZeroGradient",
    "Sampling",
];

/// Gradients that are added up in the order in which threads happen to come.
const VARYING: [&str; 3] = ["GatherElementsGrad", "GatherGrad", "GatherNDGrad"];

fn listed(list: &str, name: &str) -> bool {
    list.split_ascii_whitespace().any(|listed| listed == name)
}

/// The operators of ai.onnx up to opset 25 whose results depend on their inputs and attributes
/// alone, and those that ONNX Runtime adds to that domain.
const STANDARD: &str = "
    Abs Acos Acosh Add AffineGrid And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool
    AveragePoolGrad BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow Cast
    CastLike Ceil Celu CenterCropPad Clip Col2Im Compress Concat ConstantOfShape Conv ConvInteger
    ConvTranspose Cos Cosh CumProd CumSum DFT DeformConv DepthToSpace DequantizeLinear Det Div
    DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather
    GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater
    GreaterOrEqual GridSample GroupNormalization HammingWindow HannWindow HardSigmoid HardSwish
    Hardmax Identity InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less
    LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max MaxPool MaxPoolGrad
    MaxRoiPool MaxUnpool Mean MeanVarianceNormalization MelWeightMatrix Min Mish Mod Mul Neg
    NegativeLogLikelihoodLoss NonMaxSuppression NonZero Not OneHot Or PRelu Pad Pow QLinearConv
    QLinearMatMul QuantizeLinear RMSNormalization RNN Range Reciprocal ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare RegexFullMatch Relu Reshape Resize ReverseSequence RoiAlign RotaryEmbedding
    Round STFT Scatter ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign
    SimplifiedLayerNormalization Sin Sinh Size Slice Softmax SoftmaxCrossEntropyLoss Softplus
    Softsign SpaceToDepth Split Sqrt Squeeze StringConcat StringNormalizer StringSplit Sub Sum
    Swish Tan Tanh TensorScatter TfIdfVectorizer ThresholdedRelu Tile TopK Transpose Trilu Unique
    Unsqueeze Upsample Where Xor";

/// The same for com.microsoft.
const MICROSOFT: &str = "
    AveragePoolGrad BatchNormalizationGrad BiasGelu BiasGeluGrad_dX BiasSoftmax
    BroadcastGradientArgs ConcatTraining ConvGrad ConvTransposeGrad DropoutGrad EluGrad ErfGrad
    FastGelu FastGeluGrad FusedConv FusedGemm FusedMatMul Gelu GeluGrad GlobalAveragePoolGrad
    HardSigmoidGrad Inverse InvertibleLayerNormalizationGrad LayerNormalizationGrad LeakyReluGrad
    LogSoftmaxGrad LogSoftmaxGrad_13 MaxPoolGrad NhwcMaxPool PassThrough QuickGelu QuickGeluGrad
    ReduceAllL2 ReduceSumTraining ReluGrad ResizeGrad Scale SigmoidGrad SimplifiedLayerNormalization
    SimplifiedLayerNormalizationGrad SinGrad SkipLayerNormalization SliceGrad
    SoftmaxCrossEntropyLossGrad SoftmaxCrossEntropyLossInternal SoftmaxCrossEntropyLossInternalGrad
    SoftmaxGrad SoftmaxGrad_13 SparseSoftmaxCrossEntropyGrad SplitTraining TanhGrad
    TransposeMatMul";

/// The same for PyTorch's operators behind ATen nodes.
const ATEN: &str = "
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward avg_pool2d embedding
    max_pool2d_with_indices";
