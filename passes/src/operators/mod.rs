//! What is known about each operator: shapes, work, workspace, aliasing, and how it is
//! recomputed. Operator facts live here alone: adding an operator changes no pass.
//!
//! One file per family holds a table `OPERATORS` with one entry per operator. Workspaces and results
//! in place are ONNX Runtime's, measured on the CPU (`tools/measure_operators.py` repeats it) and read in its code for CUDA.

mod activation;
pub mod algorithms;
mod arithmetic;
mod aten;
mod bounds;
mod conv;
mod einsum;
mod einsum_kernel;
mod entry;
mod evaluate;
mod gather;
mod generate;
mod granted;
mod layout;
mod loss;
mod matmul;
mod norm_grad;
mod normalization;
mod open;
mod places;
mod pool;
mod recurrent;
mod reduction;
mod resize;
mod sampling;
mod sequences;
mod shape_ops;
mod slice;
mod training;
pub mod variants;
mod view;
mod window;
mod workspace;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod testing;

use std::collections::HashMap;
use std::sync::LazyLock;

pub(crate) use arithmetic::early_workspace;
pub use conv::clears_behind_its_result;
pub(crate) use einsum::dimensions as einsum_dimensions;
pub(crate) use entry::MICROSOFT;
use entry::{
    ATEN, Aliases, Operator, ShapeRule, everything, like_first, microsoft, onnx, output_twice,
    per_input_element, per_output_element,
};
pub(crate) use granted::Unlike;
pub(crate) use open::Open;
pub(crate) use sequences::{Contents, makes_no_tensor, put_in, taken_out};
pub(crate) use shape_ops::shape_bounds;
pub use view::{Fault, Known, Shape};
use view::{Outputs, View};
pub(crate) use view::{StandIn, resolve_axis};
pub use workspace::CpuKernels;

use crate::bytes::Bytes;
use crate::graph::{Graph, Node, TensorId, Uses};

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
    /// Output 0 by other nodes (`variants::copy_parts`).
    FromParts,
    /// Dropout's output 0 from its input and the original's mask (output 1), by
    /// `DropoutGrad(data, mask, ratio, training_mode)` with the Dropout's own inputs 0, 1 and 2.
    /// Exact only if `training_mode` is true: the CPU kernel of DropoutGrad does not look at it
    /// (measured).
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
            Recompute::DropoutFromMask | Recompute::FromParts => position == 0,
            Recompute::Never(_) => false,
        }
    }

    /// Which outputs of the original a copy reads that reads the original's inputs as well.
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

/// Kinds of kernels: each reaches its own part of a device's rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Nothing is computed or moved: Identity, Reshape, Shape, PassThrough.
    View,
    /// Conv, ConvTranspose.
    Convolution,
    /// Conv with one input channel per group, and its gradient.
    DepthwiseConvolution,
    /// A convolution that only scales and shifts each channel.
    ChannelScale,
    /// Batch normalization with statistics that are given.
    FixedNormalization,
    /// ConvGrad, ConvTransposeGrad.
    ConvolutionGradient,
    /// MatMul, Gemm, Einsum.
    MatrixProduct,
    /// Add, Mul, Relu and their like.
    Elementwise,
    /// ReluGrad, SigmoidGrad, DropoutGrad and their like.
    ActivationGradient,
    /// Exp, Erf, Gelu, Tanh and their like.
    Transcendental,
    /// GeluGrad and its like.
    TranscendentalGradient,
    /// Reductions along axes, running sums, sorting.
    Reduction,
    /// BatchNormalization and its like, and their gradients.
    Normalization,
    /// LayerNormalization and its like, and their gradients.
    RowNormalization,
    /// Softmax, LogSoftmax.
    Softmax,
    /// SoftmaxGrad, LogSoftmaxGrad.
    SoftmaxGradient,
    /// Cross-entropy and its gradient.
    Loss,
    /// Pooling.
    Pooling,
    /// Gradients of pooling.
    PoolingGradient,
    /// Transpose.
    Transposition,
    /// Concat, Slice, Expand and their like.
    Movement,
    /// Gather and its like.
    Gather,
    /// Scatter, and the gradients of Gather.
    Scatter,
    /// Random numbers, Dropout included.
    Random,
    /// LSTM, GRU, RNN and their gradients.
    Recurrent,
    /// Everything else.
    Other,
}

/// Output position, input position: that output is that input's memory.
pub type Alias = (usize, usize);

/// The outputs that are always an input's memory, each with that input.
pub(crate) fn aliased(node: &Node) -> impl Iterator<Item = (TensorId, TensorId)> {
    let pairs = aliases(node).into_iter();
    pairs.filter_map(|(output, input)| Some((node.output(output)?, node.input(input)?)))
}

/// Outputs that are always their input's memory, without a copy
/// (Identity, Reshape, PassThrough ..., BatchNormInternal's running statistics).
///
/// A *graph output* never is: the runtime allocates it and copies (measured). A PassThrough that
/// writes one fails at run time.
pub fn aliases(node: &Node) -> Vec<Alias> {
    let Some(operator) = of(node) else {
        return Vec::new();
    };
    match operator.aliases {
        Aliases::These(pairs) => present(node, pairs),
        Aliases::EachToEach => {
            let pairs: Vec<Alias> = (0..node.outputs.len()).map(|i| (i, i)).collect();
            present(node, &pairs)
        }
    }
}

/// Outputs that take over the memory of an input which has no other reader left
/// and has the same static shape and element size.
///
/// As with [`aliases`], not where the output is a graph output; nor where the input's memory
/// is that of a graph input, an initializer or a graph output.
pub fn in_place(graph: &Graph, node: &Node, provider: Provider) -> Vec<Alias> {
    let Some(operator) = of(node) else {
        return Vec::new();
    };
    let writes = |element| node.output(0).and_then(|id| graph.tensor(id).element) == Some(element);
    let pairs = match provider {
        Provider::Cpu if operator.apart_cpu.is_some_and(writes) => &[],
        Provider::Cpu => operator.in_place_cpu,
        Provider::Cuda => operator.in_place_cuda,
    };
    present(node, pairs)
}

/// Those of `pairs` whose output and input the node has.
fn present(node: &Node, pairs: &[Alias]) -> Vec<Alias> {
    let there = |&&(o, i): &&Alias| node.output(o).is_some() && node.input(i).is_some();
    pairs.iter().filter(there).copied().collect()
}

/// Inputs whose memory the node updates: accumulation buffers, running statistics, weights.
pub fn updated_inputs(node: &Node) -> Vec<usize> {
    match (node.domain.as_str(), node.op_type.as_str()) {
        (MICROSOFT, "InPlaceAccumulator" | "InPlaceAccumulatorV2" | "ZeroGradient") => vec![0],
        (MICROSOFT, "BatchNormInternal") => vec![3, 4],
        (MICROSOFT, name) if name.contains("Optimizer") => (0..node.inputs.len()).collect(),
        _ => Vec::new(),
    }
}

/// How `node` may be recomputed in `graph`: as [`recompute`] says, and a Dropout according to its
/// `training_mode` where that is constant: an initializer that the caller cannot replace, or the
/// result of a Constant. DropoutGrad takes no notice of it on the CPU and always scales
/// (measured).
pub fn recompute_in(graph: &Graph, uses: &Uses, node: &Node) -> Recompute {
    let rule = recompute(node);
    if rule != Recompute::DropoutFromMask {
        return rule;
    }
    let training = node
        .input(2)
        .filter(|&id| is_fixed(graph, uses, id))
        .and_then(|id| graph.tensor(id).ints());
    match training {
        Some([0]) => Recompute::Clone,
        Some([_]) => rule,
        _ => Recompute::Never("random unless its training_mode says otherwise, which is not known"),
    }
}

/// Does the node compute a gradient or accumulate one, as its operator's name tells?
pub fn computes_gradients(node: &Node) -> bool {
    node.op_type.contains("Grad") || node.op_type.starts_with("InPlaceAccumulator")
}

/// Does the node hand over to PyTorch and back, in the middle of a step?
pub fn hands_over(node: &Node) -> bool {
    node.is(MICROSOFT, "YieldOp")
}

/// Does the node read nothing of its input but the shape?
pub fn reads_only_shape(node: &Node) -> bool {
    node.domain.is_empty() && matches!(node.op_type.as_str(), "Shape" | "Size")
}

/// Is the tensor the same in every step: a Constant, or an initializer that the caller cannot replace?
pub fn is_fixed(graph: &Graph, uses: &Uses, tensor: TensorId) -> bool {
    match uses.producer(tensor) {
        Some(producer) => graph.node(producer).is("", "Constant"),
        None => !graph.inputs.contains(&tensor),
    }
}

/// The domain and the name of every operator that is known.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = FAMILIES.iter().flat_map(|family| family.iter());
    all.map(|operator| (operator.domain, operator.name))
}

/// How `node` may be recomputed, as far as the node alone can tell.
pub fn recompute(node: &Node) -> Recompute {
    if !node.captures.is_empty() {
        return Recompute::Never("control flow");
    }
    match of(node) {
        Some(operator) => (operator.recompute)(node),
        None => Recompute::Never(UNKNOWN),
    }
}

const UNKNOWN: &str = "an operator that is not known";

/// Is nothing known about the operator, so that only the user can say whether it is pure?
pub fn is_unknown(node: &Node) -> bool {
    of(node).is_none()
}

/// May a copy of `node` leave out the output at `position` when nobody reads it? The runtime
/// refuses graphs where other operators, such as LayerNormalizationGrad, do (measured).
pub fn may_omit_output(node: &Node, position: usize) -> bool {
    matches!(
        (node.op_type.as_str(), position),
        (
            "MaxPool" | "LayerNormalization" | "SoftmaxCrossEntropyLoss",
            1..
        ) | ("ConvGrad", _)
    )
}

/// Has a copy of `node` to keep the place of an output that it leaves out? At ORT_ENABLE_ALL the runtime lays the
/// tensors of a pooling with a single output out in blocks of channels, in copies (measured: googlenet at `min`
/// takes 50.8 instead of 43.2 MB); a second output keeps it from that, even an omitted one.
pub fn keeps_places(node: &Node) -> bool {
    node.is("", "MaxPool")
}

/// What the kernel allocates besides its outputs. Needs concrete shapes; 0 where no rule is known.
pub fn workspace(graph: &Graph, node: &Node, provider: Provider, kernels: CpuKernels) -> Bytes {
    let view = View {
        kernels,
        ..View::alone(graph, node)
    };
    of(node)
        .and_then(|operator| (operator.workspace)(&view, provider))
        .unwrap_or(Bytes::ZERO)
}

/// What the node has to do. Needs concrete shapes.
pub fn work(graph: &Graph, node: &Node, provider: Provider) -> Work {
    let view = View::alone(graph, node);
    match of(node) {
        Some(operator) => Work {
            operations: (operator.operations)(&view).unwrap_or(0.0),
            bytes: (operator.traffic)(&view, provider)
                .unwrap_or_else(|| everything(&view).unwrap_or(0.0)),
        },
        None => Work {
            operations: 0.0,
            bytes: everything(&view).unwrap_or(0.0),
        },
    }
}

/// Which kind of kernel runs the node.
pub fn family(graph: &Graph, node: &Node) -> Family {
    match of(node) {
        Some(operator)
            if matches!(
                operator.family,
                Family::Convolution | Family::ConvolutionGradient
            ) =>
        {
            conv::family(&View::alone(graph, node))
        }
        Some(_) if normalization::is_inference(node) => Family::FixedNormalization,
        Some(operator) => operator.family,
        None => Family::Other,
    }
}

/// What is known of the node's outputs, from types, shapes and small contents of its inputs.
/// `None` for an operator without a rule.
pub(crate) fn infer(graph: &Graph, uses: &Uses, node: &Node) -> Option<Result<Outputs, Fault>> {
    let view = View {
        uses: Some(uses),
        ..View::alone(graph, node)
    };
    of(node).map(|operator| (operator.shape)(&view))
}

/// The gradient that a node reads, if it is of something else than what it goes with. All sizes must be exact.
pub(crate) fn unlike(graph: &Graph, node: &Node) -> Option<Unlike> {
    granted::unlike(&View::alone(graph, node))
}

/// What its outputs are at most, where their sizes depend on what its inputs hold.
pub(crate) fn at_most(graph: &Graph, node: &Node) -> Option<Outputs> {
    bounds::at_most(&View::alone(graph, node))
}

/// What is known of each of its outputs of which its rule knows no sizes, and no bounds either. `of_bounds`: its inputs may be smaller
/// than is said.
pub(crate) fn open(graph: &Graph, node: &Node, of_bounds: bool) -> Option<Open> {
    open::open(&View::alone(graph, node), of_bounds)
}

/// May some of the sizes of what it writes have to be bounded by the user?
pub(crate) fn may_be_open(node: &Node) -> bool {
    open::may_be_open(node)
}

/// May the node's rule see numbers in the input at `position` of which only a bound is known?
pub(crate) fn takes_bounds(node: &Node, position: usize) -> bool {
    bounds::takes_bounds(node, position)
}

/// As [`infer`] with other inputs, in the sequence of their tensors; `None` for a node that has no rule or does not take them.
pub(crate) fn infer_instead(graph: &Graph, node: &Node, stand_ins: &[StandIn]) -> Option<Outputs> {
    let view = View {
        stand_ins,
        ..View::alone(graph, node)
    };
    (of(node)?.shape)(&view).ok()
}

fn of(node: &Node) -> Option<&'static Operator> {
    find(&node.domain, &node.op_type)
}

fn find(domain: &str, name: &str) -> Option<&'static Operator> {
    static TABLE: LazyLock<HashMap<(&str, &str), &Operator>> = LazyLock::new(|| {
        let all = FAMILIES.iter().flat_map(|family| family.iter());
        all.map(|operator| ((operator.domain, operator.name), operator))
            .collect()
    });
    TABLE.get(&(domain, name)).copied()
}

static FAMILIES: [&[Operator]; 21] = [
    activation::OPERATORS,
    arithmetic::OPERATORS,
    aten::OPERATORS,
    conv::OPERATORS,
    einsum::OPERATORS,
    gather::OPERATORS,
    generate::OPERATORS,
    layout::OPERATORS,
    loss::OPERATORS,
    matmul::OPERATORS,
    norm_grad::OPERATORS,
    normalization::OPERATORS,
    pool::OPERATORS,
    recurrent::OPERATORS,
    reduction::OPERATORS,
    resize::OPERATORS,
    sampling::OPERATORS,
    sequences::OPERATORS,
    shape_ops::OPERATORS,
    slice::OPERATORS,
    training::OPERATORS,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operator_has_one_entry() {
        let mut names: Vec<_> = all().collect();
        names.sort_unstable();
        let doubled: Vec<_> = names.windows(2).filter(|w| w[0] == w[1]).collect();
        assert!(doubled.is_empty(), "{doubled:?}");
    }
}
