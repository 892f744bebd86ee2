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
        "" if listed(TRUSTED_OF_STANDARD, op_type) || op_type == "Dropout" => Ok(()),
        "com.microsoft" if op_type == "BatchNormInternal" => Err("it updates running statistics"),
        "com.microsoft" if op_type.contains("Dropout") && op_type != "DropoutGrad" => Err(RANDOM),
        "com.microsoft" if EFFECTS.iter().any(|part| op_type.contains(part)) => {
            Err("it has effects besides its results")
        }
        // The runtime takes it apart into operators that are trusted.
        "com.microsoft" if op_type == "DivGrad" => Ok(()),
        "com.microsoft" if op_type == "ConvGrad" && pads_by_itself(node) => {
            Err("it does not pad as it should, and reads memory that nobody wrote")
        }
        "com.microsoft" if VARYING.contains(&op_type) => {
            Err("its sums vary from one computation to the next")
        }
        "com.microsoft" if listed(TRUSTED_OF_MICROSOFT, op_type) => Ok(()),
        "org.pytorch.aten" => match node.string("operator") {
            Some(operator) if listed(TRUSTED_OF_ATEN, operator) => Ok(()),
            _ => Err("it is a PyTorch operator that is not listed as deterministic"),
        },
        _ if permitted => Ok(()),
        _ => Err(UNKNOWN),
    }
}

fn pads_by_itself(node: &Node) -> bool {
    let pads = node.string("auto_pad").unwrap_or_default();
    pads.starts_with("SAME")
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

/// May the result be written where an input of its shape is? Each number is read before its place is written.
pub(super) fn writes_where_it_reads(node: &Node) -> bool {
    node.domain.is_empty() && matches!(node.op_type.as_str(), "Add" | "Sub" | "Mul" | "Div")
}

/// Does it look at no number of what it reads?
pub(super) fn reads_sizes(node: &Node) -> bool {
    node.domain.is_empty() && matches!(node.op_type.as_str(), "Shape" | "Size")
}

/// Does the runtime merge sums behind it into it, which is to say does a result depend on many numbers of what it reads?
pub(super) fn is_product(node: &Node) -> bool {
    matches!(
        node.op_type.as_str(),
        "Conv" | "ConvTranspose" | "FusedMatMul" | "Gemm" | "MatMul" | "TransposeMatMul"
    )
}

/// Is nothing known of it?
pub(super) fn is_unknown(node: &Node) -> bool {
    repeatable(node, false) == Err(UNKNOWN)
}

/// Output, input: the output is the input's memory under another name.
pub(super) fn aliases(node: &Node) -> Vec<(usize, usize)> {
    match (node.domain.as_str(), node.op_type.as_str()) {
        ("", "Identity" | "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze")
        | ("com.microsoft", "ExpandDims" | "InPlaceAccumulator" | "ZeroGradient") => vec![(0, 0)],
        ("com.microsoft", "PassThrough") => (0..node.outputs.len()).map(|i| (i, i)).collect(),
        ("com.microsoft", "InPlaceAccumulatorV2") => vec![(1, 0)],
        ("com.microsoft", "BatchNormInternal") => vec![(1, 3), (2, 4)],
        _ => Vec::new(),
    }
}

const UNKNOWN: &str = "nothing is known about its operator";

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
const TRUSTED_OF_STANDARD: &str = "
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

/// The same for com.microsoft: computed twice, they gave the same bits (`tools/measure_repeats.py`), but for those that the
/// CPU has no kernel of (`UNMEASURED` in the tests).
const TRUSTED_OF_MICROSOFT: &str = "
    AveragePoolGrad BatchNormalizationGrad BiasFastGeluGrad_dX BiasGelu BiasGeluGrad_dX BiasSoftmax
    BroadcastGradientArgs ConcatTraining ConvGrad ConvTransposeGrad DivGrad DropoutGrad EluGrad
    ErfGrad FakeQuant FakeQuantGrad FastGelu FastGeluGrad FusedConv FusedGemm FusedMatMul GRUGrad
    GRUTraining Gelu GeluGrad GlobalAveragePoolGrad HardSigmoidGrad Inverse
    InvertibleLayerNormalizationGrad LSTMGrad LSTMTraining LayerNormalizationGrad LeakyReluGrad
    LogSoftmaxGrad LogSoftmaxGrad_13 MaxPoolGrad MaxpoolWithMask NhwcMaxPool PassThrough QuickGelu
    QuickGeluGrad ReduceSumTraining ReluGrad Scale ShrunkenGather SigmoidGrad
    SimplifiedLayerNormalization SimplifiedLayerNormalizationGrad SinGrad SkipLayerNormalization
    SkipSimplifiedLayerNormalization SliceGrad SoftmaxCrossEntropy SoftmaxCrossEntropyGrad
    SoftmaxCrossEntropyLossGrad SoftmaxCrossEntropyLossInternal SoftmaxCrossEntropyLossInternalGrad
    SoftmaxGrad SoftmaxGrad_13 SplitTraining TanhGrad TransposeMatMul Trilu";

/// The same for PyTorch's operators behind ATen nodes.
const TRUSTED_OF_ATEN: &str = "
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward avg_pool2d embedding
    max_pool2d_with_indices";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::operators::{self, Recompute};

    /// Operators that the tables would repeat and verification does not, and why.
    const NOT_TRUSTED: &[(&str, &str)] = &[
        ("BatchNormalization", "it is, with one output"),
        ("BatchScale", NO_KERNEL),
        ("BiasSplitGelu", NO_KERNEL),
        ("BitmaskDropoutGrad", NO_KERNEL),
        ("Constant", "the runtime holds it once"),
        ("Dropout", "with masks of its own"),
        ("FlattenAndUnpad", NO_KERNEL),
        ("GroupNorm", NO_KERNEL),
        ("IsAllFinite", NO_KERNEL),
        ("IsFinite", NO_KERNEL),
        ("MixedPrecisionScale", NO_KERNEL),
        (
            "NegativeLogLikelihoodLossInternal",
            "no case of it was tried",
        ),
        ("PadAndUnflatten", NO_KERNEL),
        (
            "ReduceAllL2",
            "its CUDA kernel adds up in whatever order its blocks end, and the CPU has none",
        ),
        (
            "ResizeGrad",
            "its CUDA kernel adds up in whatever order its threads come, and the CPU has none",
        ),
        ("ScaledSum", NO_KERNEL),
        (
            "SparseSoftmaxCrossEntropy",
            "the runtime has no such operator in this domain",
        ),
        (
            "SparseSoftmaxCrossEntropyGrad",
            "measured in the standard's domain only",
        ),
        ("TrainableDropoutGrad", "no case of it was tried"),
    ];

    const NO_KERNEL: &str = "the CPU has no kernel of it that could be tried";

    /// Operators that are trusted without having run on the CPU, and why.
    const UNMEASURED: &[(&str, &str)] = &[
        (
            "AveragePoolGrad",
            "its CPU kernel crashes; each result is a sum in one thread",
        ),
        ("BiasSoftmax", "CUDA alone has it; rows are independent"),
        ("BitShift", "whole numbers"),
        (
            "ConvTransposeGrad",
            "CUDA alone has it; trusted as ConvGrad is",
        ),
        (
            "InvertibleLayerNormalizationGrad",
            "CUDA alone has it; trusted as LayerNormalizationGrad is",
        ),
        (
            "MaxPoolGrad",
            "its CPU kernel crashes; each result is a sum in one thread",
        ),
        (
            "RMSNormalization",
            "newer than this runtime; rows are independent",
        ),
        (
            "SimplifiedLayerNormalization",
            "measured in the standard's domain",
        ),
    ];

    /// What `tools/measure_repeats.py` found, one operator a line: were all bits equal? `None` where none ran.
    fn measured() -> BTreeMap<(&'static str, &'static str), Option<bool>> {
        let text = include_str!("../../../testdata/repeats.json");
        let field = |line: &'static str, name: &str| {
            let key = format!("\"{name}\": ");
            let start = line.find(&key)? + key.len();
            line[start..]
                .split([',', '}'])
                .next()
                .map(|value| value.trim_matches('"'))
        };
        let entry = |line| {
            let equal = field(line, "equal").map(|equal| equal == "true");
            Some(((field(line, "domain")?, field(line, "op")?), equal))
        };
        text.lines().filter_map(entry).collect()
    }

    fn bare(domain: &str, op_type: &str) -> Node {
        Node::new("n", domain, op_type, vec![], vec![])
    }

    fn both() -> Vec<(&'static str, &'static str, bool, bool)> {
        let names = operators::all();
        names
            .map(|(domain, name)| {
                let node = bare(domain, name);
                let repeated = operators::recompute(&node) == Recompute::Clone;
                (domain, name, repeated, repeatable(&node, false).is_ok())
            })
            .collect()
    }

    #[test]
    fn gradients_that_pad_by_themselves_are_not_trusted() {
        let trusted = |pads: &str| {
            let mut node = bare("com.microsoft", "ConvGrad");
            let value = AttributeValue::String(pads.as_bytes().to_vec());
            node.set_attribute("auto_pad", value);
            repeatable(&node, true).is_ok()
        };
        assert!(!trusted("SAME_UPPER") && !trusted("SAME_LOWER"));
        assert!(trusted("NOTSET") && trusted("VALID"));
    }

    #[test]
    fn what_the_tables_repeat_is_trusted_or_has_a_reason_not_to_be() {
        let known: Vec<&str> = NOT_TRUSTED.iter().map(|entry| entry.0).collect();
        let mut found: Vec<&str> = Vec::new();
        for (_, name, repeated, trusted) in both() {
            if repeated && !trusted {
                found.push(name);
            }
        }
        found.sort_unstable();
        assert_eq!(found, known);
    }

    #[test]
    fn what_the_tables_do_not_repeat_is_not_trusted() {
        let wrong = both()
            .into_iter()
            .filter(|&(_, _, repeated, trusted)| trusted && !repeated);
        let wrong: Vec<_> = wrong.map(|(domain, name, ..)| (domain, name)).collect();
        assert_eq!(wrong, []);
    }

    #[test]
    fn what_is_trusted_gave_the_same_bits_twice() {
        let measured = measured();
        assert!(measured.len() > 200, "{}", measured.len());
        let mut without: Vec<&str> = Vec::new();
        for (domain, name, _, trusted) in both() {
            match measured.get(&(domain, name)).copied().flatten() {
                // Dropouts are measured with masks of their own as well.
                _ if !trusted || name == "Dropout" => {}
                Some(equal) => assert!(equal, "{domain} {name} gave other bits"),
                None => without.push(name),
            }
        }
        without.sort_unstable();
        let known: Vec<&str> = UNMEASURED.iter().map(|entry| entry.0).collect();
        assert_eq!(without, known);
    }
}
