//! Which ONNX Runtime: what differs between the releases that are known.

use super::barrier_kind::BarrierKind;
use super::blocks;
use super::convolutions::AlgorithmChoice;
use super::level::Level;
use crate::graph::{ElementType, Graph, Node, Tensor, TensorId};
use crate::operators::{MICROSOFT, Provider};

/// What makes constants in float32 of those in float16 that are cast, at ORT_ENABLE_ALL, once casts are inserted. Where it finds one, the
/// session fuses all that is left once more, between the casts (measured in 1.26.0 and 1.32.0; 1.20.1 does not), and
/// computes convolutions in blocks of channels that it left alone before.
const WIDENS_CONSTANTS: &str = "FuseFp16InitializerToFp32NodeTransformer";

/// A release, or several that are alike, and how it differs from the other ones. What else this room knows is true of all.
#[derive(Debug, PartialEq, Eq)]
pub struct Release {
    /// As `--runtime` calls it.
    pub name: &'static str,
    /// As messages call it.
    pub title: &'static str,
    /// Has it the operators that only training graphs have?
    pub trains: bool,
    /// What makes one node wait for others.
    pub(crate) barrier: BarrierKind,
    /// Does it tell the sizes of tensors of every type? On the CPU no Size reads a bfloat16 or a number in 8 bits (measured in 1.19.2,
    /// 1.20.1, 1.26.0 and 1.32.0).
    pub(crate) sizes_all: bool,
    /// Does a Shape or a Size run directly behind the producer of what it reads, in DEFAULT order? Builds with training alone
    /// move it there (measured).
    pub(crate) shapes_follow: bool,
    /// How the CUDA provider may choose algorithms for convolutions, as far as that can be planned for; the fastest first.
    pub convolutions: &'static [AlgorithmChoice],
    /// See [`CpuKernels::whole_columns`](crate::operators::CpuKernels::whole_columns); other releases take 64 KiB for each thread.
    pub whole_columns: bool,
    /// What lies in the block of a memory pattern?
    pub(crate) pattern: PatternOf,
    /// See [`Release::switched_off`]: those that no plan can do with.
    never: &'static [&'static str],
    /// What the CPU computes in float16 itself, and not between casts or in pieces, as `half.rs` and `functions.rs` have it of
    /// the release that trains.
    half_kernels: &'static [&'static str],
}

/// How the runtime knows what to lay out in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatternOf {
    /// From the shapes of what it is fed, before a step: whatever has a size then, from the first step on.
    ShapesFed,
    /// From what the first step allocated: all that is no graph output, whether its size was known before or not, from
    /// the second step on. The first takes less (measured).
    FirstStep,
}

/// The last release with training operators.
pub const TRAINING: Release = Release {
    name: "training-1.19.2",
    title: "ONNX Runtime 1.19.2",
    trains: true,
    barrier: BarrierKind::PassThrough,
    sizes_all: false,
    shapes_follow: true,
    convolutions: &AlgorithmChoice::TRAINING,
    whole_columns: false,
    pattern: PatternOf::ShapesFed,
    never: &[],
    half_kernels: &[],
};

/// The same where nodes run on a GPU.
const TRAINING_ON_GPU: Release = Release {
    sizes_all: true,
    ..TRAINING
};

/// The builds for inference, 1.20.1 to 1.32.0: they are alike in all else that is known here (measured with the first, the last,
/// and 1.26.0).
pub const STOCK: Release = Release {
    name: "stock",
    title: "ONNX Runtime 1.20 to 1.32",
    trains: false,
    barrier: BarrierKind::Reshape,
    sizes_all: false,
    shapes_follow: false,
    convolutions: &[AlgorithmChoice::Graph],
    whole_columns: false,
    pattern: PatternOf::FirstStep,
    // They put a Transpose past a Reshape, as a node behind all others: the gradients of convolutions' weights as they are lowered
    // run late in PRIORITY_BASED order then (measured: resnet18, planned for 84 MB, took 101).
    never: &[
        "TransposeOptimizer",
        "TransposeOptimizer_CPUExecutionProvider",
    ],
    // Of the cases in testdata/casts.json, what 1.20.1 or 1.32.0 makes something else of (tools/measure_casts.py, run
    // with each). They take apart the same otherwise, in float32, float16 and float64.
    half_kernels: &[
        "LayerNormalization",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    ],
};

/// Those of them whose convolutions take more on the CPU (measured in 1.20.1, 1.22.1, 1.23.0, 1.23.2, 1.24.4, 1.25.1, 1.26.0, 1.27.0 and
/// 1.32.0).
pub const STOCK_WITH_COLUMNS: Release = Release {
    name: "stock-1.26",
    title: "ONNX Runtime 1.23.2 to 1.26.0",
    whole_columns: true,
    ..STOCK
};

/// The same where nodes run on a GPU.
const STOCK_OPTIMIZED_ON_GPU: Release = Release {
    sizes_all: true,
    ..STOCK
};

/// The same where nodes run on a GPU, and as they are.
const STOCK_ON_GPU: Release = Release {
    barrier: BarrierKind::OnHost,
    ..STOCK_OPTIMIZED_ON_GPU
};

impl Default for &'static Release {
    fn default() -> &'static Release {
        &TRAINING
    }
}

impl Release {
    /// All that are known.
    pub const ALL: [&'static Release; 3] = [&TRAINING, &STOCK, &STOCK_WITH_COLUMNS];

    /// The same with barriers for where it is promised to run.
    pub fn on(&'static self, provider: Provider, level: Option<Level>) -> &'static Release {
        match (self.barrier, provider, level) {
            (_, Provider::Cpu, _) => self,
            (BarrierKind::PassThrough, ..) => &TRAINING_ON_GPU,
            (_, _, Some(Level::DisableAll)) => &STOCK_ON_GPU,
            _ => &STOCK_OPTIMIZED_ON_GPU,
        }
    }

    /// Can a barrier hand the tensor on?
    pub(crate) fn may_hand_on(&self, tensor: &Tensor) -> bool {
        self.barrier.may_pass(tensor) && self.may_wait_for(tensor)
    }

    /// Can a barrier wait for the tensor?
    pub(crate) fn may_wait_for(&self, tensor: &Tensor) -> bool {
        self.barrier == BarrierKind::PassThrough || self.tells_size(tensor)
    }

    /// Is there a Size that reads the tensor?
    pub(crate) fn tells_size(&self, tensor: &Tensor) -> bool {
        let is_small = |element| {
            matches!(
                element,
                ElementType::Bfloat16
                    | ElementType::Float8E4M3Fn
                    | ElementType::Float8E4M3Fnuz
                    | ElementType::Float8E5M2
                    | ElementType::Float8E5M2Fnuz
            )
        };
        self.sizes_all || !tensor.element.is_some_and(is_small)
    }

    /// Does it run the node in pieces that are not simulated? Measured in 1.20.1, 1.26.0 and 1.32.0, which have no kernel for this loss: what it
    /// takes was up to a third more than that of one node.
    pub(crate) fn takes_apart(&self, node: &Node) -> bool {
        !self.trains && node.is("", "SoftmaxCrossEntropyLoss")
    }

    /// Does the CPU compute the node in float16, where this room has it between casts or in pieces? What is rounded around it is
    /// not known then.
    pub(crate) fn has_other_kernel(&self, graph: &Graph, node: &Node) -> bool {
        let half = |tensor| graph.tensor(tensor).element == Some(ElementType::Float16);
        matches!(node.domain.as_str(), "" | MICROSOFT)
            && self.half_kernels.contains(&node.op_type.as_str())
            && node.reads().any(half)
    }

    /// Optimizers of the runtime that are not simulated, and so have to be switched off for `graph`. The shapes of all tensors
    /// must be known.
    pub fn switched_off(&self, graph: &Graph, provider: Provider) -> Vec<&'static str> {
        let blocks = provider == Provider::Cpu && !blocks::in_blocks(graph).is_empty();
        let blocks = blocks.then_some(blocks::OPTIMIZER);
        let is_half = |id: TensorId| graph.tensor(id).element == Some(ElementType::Float16);
        let widens = !self.trains
            && provider == Provider::Cpu
            && blocks::constants(graph).into_iter().any(is_half);
        let widened = widens.then_some(WIDENS_CONSTANTS);
        let all = self.never.iter().copied().chain(blocks);
        all.chain(widened).collect()
    }

    /// Does it let Transposes and Shapes read past Transposes, with what is to be switched off switched off (measured in 1.26.0 and 1.32.0)?
    pub(crate) fn moves_transposes(&self) -> bool {
        !self.never.contains(&"TransposeOptimizer")
    }

    /// The one by that name.
    pub fn named(name: &str) -> Option<&'static Release> {
        Release::ALL
            .into_iter()
            .find(|release| release.name == name)
    }

    /// The one that `graph` is for, unless somebody says which: where a gradient is computed without any operator that only
    /// training graphs have, any release runs it.
    pub fn of(graph: &Graph) -> &'static Release {
        let mut nodes = graph.nodes();
        match nodes.any(is_for_training) || !has_gradients(graph) {
            true => &TRAINING,
            false => &STOCK,
        }
    }
}

/// Is it an operator that builds without training lack?
///
/// Runtime fact: those of the operators of real training graphs and of the registered gradients that 1.32.0 refuses, and
/// what else only the sources of training define.
pub fn is_for_training(node: &Node) -> bool {
    const OTHERS: [&str; 22] = [
        "BatchNormInternal",
        "BatchScale",
        "ConcatTraining",
        "FakeQuant",
        "FlattenAndUnpad",
        "Group",
        "InPlaceAccumulator",
        "InPlaceAccumulatorV2",
        "IsFinite",
        "MixedPrecisionScale",
        "PadAndUnflatten",
        "PassThrough",
        "PythonOp",
        "ReduceAllL2",
        "Scale",
        "ScaledSum",
        "ShrunkenGather",
        "SoftmaxCrossEntropy",
        "SoftmaxCrossEntropyLossInternal",
        "SparseSoftmaxCrossEntropy",
        "SplitTraining",
        "YieldOp",
    ];
    let name = node.op_type.as_str();
    let is_gradient = name.contains("Grad") || name.ends_with("Optimizer");
    match node.domain.as_str() {
        "" => is_gradient,
        MICROSOFT => is_gradient || name.ends_with("Training") || OTHERS.contains(&name),
        "org.pytorch.aten" => true,
        _ => false,
    }
}

/// Is anything named as the tool names gradients that makes training graphs?
fn has_gradients(graph: &Graph) -> bool {
    let mut tensors = graph.tensor_ids().map(|id| graph.tensor(id));
    tensors.any(|tensor| tensor.name.ends_with("_grad") || tensor.name.contains("_grad."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::TensorKind;
    use crate::optimize::{BudgetRequest, optimize};
    use crate::strategy::Strategy;
    use crate::strategy::tests::options;

    /// A session could not be made of the graph otherwise.
    #[test]
    fn nobody_waits_for_what_no_size_reads_on_the_cpu() {
        let tensor = |element| Tensor {
            element: Some(element),
            shape: Some(vec![4, 7]),
            ..Tensor::new("t", TensorKind::Value)
        };
        let (wide, small) = (tensor(ElementType::Float16), tensor(ElementType::Bfloat16));
        for level in [None, Some(Level::DisableAll)] {
            let [cpu, gpu] = [Provider::Cpu, Provider::Cuda].map(|on| STOCK.on(on, level));
            assert!(cpu.may_hand_on(&wide) && cpu.may_wait_for(&wide));
            assert!(!cpu.may_hand_on(&small) && !cpu.may_wait_for(&small));
            assert!(gpu.may_hand_on(&small) && gpu.may_wait_for(&small));
        }
        assert!(TRAINING.may_hand_on(&small) && TRAINING.may_wait_for(&small));
    }

    // Measured in 1.26.0 and 1.32.0: a session with such a constant fuses what is between casts, and one that has this switched off does not.
    #[test]
    fn constants_in_float16_are_not_widened() {
        let off = |release: &Release, provider, constant: &str| {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 17]> g (float16[4,8] x) => (float16[4,8] y)
                <{constant} c = {{...}}, float16[8] h> {{ h = Cast <to = 10> (c) y = Add (x, h) }}"#
            );
            let graph = Graph::parse(&text).unwrap();
            let off = release.switched_off(&graph, provider);
            off.contains(&WIDENS_CONSTANTS)
        };
        for (release, provider, widens) in [
            (&STOCK, Provider::Cpu, true),
            (&STOCK, Provider::Cuda, false),
            (&TRAINING, Provider::Cpu, false),
        ] {
            // What is folded is a constant, too.
            for constant in ["float[8]", "float16[8]"] {
                assert_eq!(off(release, provider, constant), widens, "{constant}");
            }
        }
        let float = Graph::parse(
            r#"<ir_version: 8, opset_import: ["" : 17]> g (float16[8] x, float[8] z) => (float[8] y)
            <float[8] c = {...}> { h = Cast <to = 1> (x) s = Add (z, c) y = Add (h, s) }"#,
        );
        let off = STOCK.switched_off(&float.unwrap(), Provider::Cpu);
        assert!(!off.contains(&WIDENS_CONSTANTS), "{off:?}");
    }

    #[test]
    fn what_rounds_otherwise_than_is_known_is_refused_and_the_rest_planned() {
        let said = |release: &'static Release, of: &str, operator: &str| {
            let graph = Graph::parse(&format!(
                r#"<ir_version: 8, opset_import: ["" : 17]>
                g (float16[64,64] x, float[64,64] y, float16[64] w, float[64] v) => (float16[64,64] a_grad, float[64,64] b_grad, {of}[64,64] b) {{
                    a = Neg (x)
                    [norm] b = {operator}
                    c = Abs (a)
                    a_grad = Neg (c)
                    b_grad = Neg (y)
                }}"#
            ));
            let mut options = options(Strategy::Auto, BudgetRequest::Smallest);
            options.runtime.release = release;
            optimize(&graph.unwrap(), &options)
                .map_or_else(|error| error.to_string(), |_| String::new())
        };
        // Its type is inferred.
        insta::assert_snapshot!(said(&STOCK, "float16", "LayerNormalization (a, w)"), @r#"LayerNormalization "norm" computes in float16, in which ONNX Runtime 1.20 to 1.32 rounds otherwise on the CPU than is known here: expected it between Cast nodes to and from float32, or --runtime training-1.19.2"#);
        assert_eq!(said(&STOCK, "float", "LayerNormalization (y, v)"), "");
        assert_eq!(said(&STOCK, "float16", "Softmax (a)"), "");
        assert!(
            said(&TRAINING, "float16", "LayerNormalization (a, w)")
                .contains("not a training graph")
        );
    }
}
