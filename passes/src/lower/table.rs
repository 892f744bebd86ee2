//! The operators that are written in others.

use super::site::{CONTRIB, LoweringSite, Obstacle};
use super::{
    activation, arithmetic, convolution, gather, gru, loss, lstm, normalization, pooling, resize,
    slice, softmax, training,
};
use crate::graph::Node;

/// How far the results of a lowering are from those of the kernel that it stands for, alone and with the same inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exactness {
    /// The same bits, but for the sign of zero.
    Bits,
    /// The last bits differ: sums in another sequence, products in another.
    LastBits,
}

/// How one operator is written in others.
#[derive(Clone, Copy)]
pub struct Lowering {
    /// Its domain.
    pub domain: &'static str,
    /// The operator.
    pub name: &'static str,
    /// How far its results are from those of its kernel.
    pub exactness: Exactness,
    pub(super) write: fn(&mut LoweringSite<'_>) -> Result<(), Obstacle>,
}

type WriteForm = fn(&mut LoweringSite<'_>) -> Result<(), Obstacle>;

const fn same(name: &'static str, write: WriteForm) -> Lowering {
    Lowering {
        domain: CONTRIB,
        name,
        exactness: Exactness::Bits,
        write,
    }
}

const fn near(name: &'static str, write: WriteForm) -> Lowering {
    Lowering {
        exactness: Exactness::LastBits,
        ..same(name, write)
    }
}

/// Of the standard's own domain, though the standard may not have it.
const fn onnx(entry: Lowering) -> Lowering {
    Lowering {
        domain: "",
        ..entry
    }
}

/// All of them. Formulas and conditions stand at the functions.
pub const TABLE: &[Lowering] = &[
    same("ReluGrad", activation::relu),
    same("LeakyReluGrad", activation::leaky_relu),
    near("SigmoidGrad", activation::sigmoid),
    same("TanhGrad", activation::tanh),
    near("GeluGrad", activation::gelu),
    near("BiasGeluGrad_dX", activation::bias_gelu),
    near("FastGeluGrad", activation::fast_gelu),
    near("BiasFastGeluGrad_dX", activation::bias_fast_gelu),
    near("QuickGeluGrad", activation::quick_gelu),
    near("SoftmaxGrad", softmax::softmax_of_rows),
    near("SoftmaxGrad_13", softmax::softmax),
    near("LogSoftmaxGrad", softmax::log_softmax_of_rows),
    near("LogSoftmaxGrad_13", softmax::log_softmax),
    near("BatchNormInternal", normalization::batch_norm_internal),
    near("BatchNormalizationGrad", normalization::batch_norm_grad),
    near("LayerNormalizationGrad", normalization::layer_norm_grad),
    near(
        "SimplifiedLayerNormalizationGrad",
        normalization::simplified_layer_norm_grad,
    ),
    near(
        "InvertibleLayerNormalizationGrad",
        normalization::invertible_layer_norm_grad,
    ),
    near("ConvGrad", convolution::conv_grad),
    near("ConvTransposeGrad", convolution::conv_transpose_grad),
    onnx(same("MaxPoolGrad", pooling::max_pool_grad)),
    onnx(near("AveragePoolGrad", pooling::average_pool_grad)),
    near("ResizeGrad", resize::resize_grad),
    onnx(near("SoftmaxCrossEntropyLoss", loss::cross_entropy)),
    near("SoftmaxCrossEntropyLossGrad", loss::cross_entropy_grad),
    near(
        "SoftmaxCrossEntropyLossInternal",
        loss::cross_entropy_internal,
    ),
    near(
        "SoftmaxCrossEntropyLossInternalGrad",
        loss::cross_entropy_internal_grad,
    ),
    near("SoftmaxCrossEntropy", loss::dense_cross_entropy),
    near("SoftmaxCrossEntropyGrad", loss::dense_cross_entropy_grad),
    same("GatherGrad", gather::gather_grad),
    same("GatherElementsGrad", gather::gather_elements_grad),
    same("GatherNDGrad", gather::gather_nd_grad),
    same("ShrunkenGather", gather::shrunken_gather),
    same("SliceGrad", slice::slice_grad),
    same("ConcatTraining", gather::concat_training),
    same("SplitTraining", gather::split_training),
    near("DivGrad", arithmetic::div_grad),
    same("BroadcastGradientArgs", arithmetic::broadcast_gradient_args),
    same("ReduceSumTraining", arithmetic::reduce_sum_training),
    same("Scale", arithmetic::scale),
    same("MixedPrecisionScale", arithmetic::mixed_precision_scale),
    near("ReduceAllL2", arithmetic::reduce_all_l2),
    near("DropoutGrad", training::dropout_grad),
    same("InPlaceAccumulatorV2", training::in_place_accumulator),
    same("InPlaceAccumulator", training::accumulator),
    same("FakeQuantGrad", training::fake_quant_grad),
    near("LSTMTraining", lstm::training),
    near("LSTMGrad", lstm::gradient),
    near("GRUTraining", gru::training),
    near("GRUGrad", gru::gradient),
];

/// The entry for a node's operator.
pub(super) fn entry(node: &Node) -> Option<&'static Lowering> {
    TABLE.iter().find(|entry| node.is(entry.domain, entry.name))
}

/// Is it an operator that only builds with training have?
pub(super) fn is_training_only(node: &Node) -> bool {
    match node.domain.as_str() {
        CONTRIB => !BEYOND_THE_STANDARD.contains(&node.op_type.as_str()),
        "org.pytorch.aten" => true,
        _ => false,
    }
}

/// The operators of the runtime's own domain that every build knows (its docs/ContribOperators.md).
const BEYOND_THE_STANDARD: &[&str] = &[
    "Attention",
    "AttnLSTM",
    "BeamSearch",
    "BiasAdd",
    "BiasDropout",
    "BiasGelu",
    "BiasSoftmax",
    "BiasSplitGelu",
    "BifurcationDetector",
    "BitmaskBiasDropout",
    "BitmaskDropout",
    "CDist",
    "CausalConvWithState",
    "ComplexMul",
    "ComplexMulConj",
    "ConvTransposeWithDynamicPads",
    "CropAndResize",
    "DecoderAttention",
    "DecoderMaskedMultiHeadAttention",
    "DecoderMaskedSelfAttention",
    "DequantizeBFP",
    "DequantizeLinear",
    "DequantizeWithOrder",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul",
    "DynamicTimeWarping",
    "EPContext",
    "EmbedLayerNormalization",
    "ExpandDims",
    "FastGelu",
    "FusedConv",
    "FusedGemm",
    "FusedMatMul",
    "FusedMatMulActivation",
    "GatedRelativePositionBias",
    "GatherND",
    "Gelu",
    "GemmFastGelu",
    "GemmFloat8",
    "GemmaRotaryEmbedding",
    "GreedySearch",
    "GridSample",
    "GroupNorm",
    "GroupQueryAttention",
    "Inverse",
    "Irfft",
    "IsAllFinite",
    "LongformerAttention",
    "MatMulBnb4",
    "MatMulFpQ4",
    "MatMulInteger16",
    "MatMulIntegerToFloat",
    "MatMulNBits",
    "MaxpoolWithMask",
    "MoE",
    "MulInteger",
    "MultiHeadAttention",
    "MurmurHash3",
    "NGramRepeatBlock",
    "NhwcConv",
    "NhwcFusedConv",
    "NhwcMaxPool",
    "PackedAttention",
    "PackedMultiHeadAttention",
    "Pad",
    "PagedAttention",
    "QAttention",
    "QEmbedLayerNormalization",
    "QGemm",
    "QLinearAdd",
    "QLinearAveragePool",
    "QLinearConcat",
    "QLinearConv",
    "QLinearGlobalAveragePool",
    "QLinearLeakyRelu",
    "QLinearMul",
    "QLinearReduceMean",
    "QLinearSigmoid",
    "QLinearSoftmax",
    "QLinearWhere",
    "QMoE",
    "QOrderedAttention",
    "QOrderedGelu",
    "QOrderedLayerNormalization",
    "QOrderedLongformerAttention",
    "QOrderedMatMul",
    "QuantizeBFP",
    "QuantizeLinear",
    "QuantizeWithOrder",
    "QuickGelu",
    "Range",
    "ReduceSumInteger",
    "RelativePositionBias",
    "RemovePadding",
    "RestorePadding",
    "Rfft",
    "RotaryEmbedding",
    "SampleOp",
    "Sampling",
    "SkipGroupNorm",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    "Snpe",
    "SparseAttention",
    "SparseToDenseMatMul",
    "Tokenizer",
    "TorchEmbedding",
    "TransposeMatMul",
    "Trilu",
    "UnfoldTensor",
    "Unique",
    "WhisperBeamSearch",
    "WordConvEmbedding",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::is_for_training;

    /// What a runtime without training refuses is what is lowered, or cannot be.
    #[test]
    fn the_runtime_s_list_of_training_operators_and_this_one_agree() {
        let of = |domain: &str, name: &str| Node::new("n", domain, name, Vec::new(), Vec::new());
        for name in BEYOND_THE_STANDARD {
            assert!(!is_for_training(&of(CONTRIB, name)), "{name}");
        }
        for entry in TABLE.iter().filter(|entry| entry.domain == CONTRIB) {
            let stays = BEYOND_THE_STANDARD.contains(&entry.name);
            let node = of(entry.domain, entry.name);
            assert_eq!(is_for_training(&node), !stays, "{}", entry.name);
        }
    }
}
