//! What the CPU does with a node that reads float16.
//!
//! Runtime fact (1.19.2, x86): `tools/measure_casts.py` measures it for every operator that has a case, and
//! `testdata/casts.json` has what it found. Builds for other processors can have more kernels.

use crate::graph::{Graph, Node};
use crate::operators::MICROSOFT;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// There is a kernel for it.
    Kernel {
        /// Takes any number of inputs: the runtime looks at the type of the first alone.
        any_inputs: bool,
        /// Gives any number of outputs, likewise.
        any_outputs: bool,
    },
    /// It computes in float32, between casts.
    Casts,
    /// It is taken apart, and the pieces compute between casts.
    Pieces,
}

/// Kernels for float16, of the standard's operators.
const KERNELS: [&str; 32] = [
    "Cast",
    "Clip",
    "Compress",
    "Concat",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "If",
    "IsNaN",
    "Loop",
    "Max",
    "Min",
    "Mod",
    "RandomUniformLike",
    "Reshape",
    "ReverseSequence",
    "Round",
    "Scan",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "Shape",
    "Shrink",
    "Sign",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// Kernels for float16, of the runtime's own operators.
const MICROSOFT_KERNELS: [&str; 8] = [
    "ConcatTraining",
    "Inverse",
    "PassThrough",
    "ShrunkenGather",
    "SliceGrad",
    "SplitTraining",
    "View",
    "YieldOp",
];

/// Operators that are taken apart if they read float16.
const PIECES: [&str; 12] = [
    "Bernoulli",
    "CastLike",
    "CenterCropPad",
    "Gelu",
    "GroupNormalization",
    "HardSwish",
    "LayerNormalization",
    "LogSoftmax",
    "Mish",
    "NegativeLogLikelihoodLoss",
    "SoftmaxCrossEntropyLoss",
    "Softmax",
];

/// Those of the runtime's own.
const MICROSOFT_PIECES: [&str; 12] = [
    "DropoutGrad",
    "FastGelu",
    "FastGeluGrad",
    "Gelu",
    "GeluGrad",
    "QuickGelu",
    "SigmoidGrad",
    "SoftmaxCrossEntropyLossGrad",
    "SoftmaxCrossEntropyLossInternal",
    "SoftmaxCrossEntropyLossInternalGrad",
    "SoftmaxGrad",
    "TanhGrad",
];

/// What the CPU does with `node` if it reads float16.
pub(super) fn half(graph: &Graph, node: &Node) -> Half {
    let name = node.op_type.as_str();
    let opset = graph.opsets.get(&node.domain).copied().unwrap_or(i64::MAX);
    let (kernels, pieces) = match node.domain.as_str() {
        "" => {
            // Newer versions of them are functions; older ones have kernels, for float32.
            let is_function = match name {
                "LogSoftmax" | "Softmax" => opset >= 13,
                _ => true,
            };
            (
                KERNELS.contains(&name),
                PIECES.contains(&name) && is_function,
            )
        }
        MICROSOFT => (
            MICROSOFT_KERNELS.contains(&name),
            MICROSOFT_PIECES.contains(&name),
        ),
        _ => (false, false),
    };
    if kernels || !node.captures.is_empty() {
        return Half::Kernel {
            any_inputs: matches!(
                name,
                "Concat" | "ConcatTraining" | "Max" | "Min" | "PassThrough" | "YieldOp"
            ),
            any_outputs: matches!(name, "PassThrough" | "Split" | "SplitTraining" | "YieldOp"),
        };
    }
    match pieces {
        true => Half::Pieces,
        false => Half::Casts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By line: what stands behind a key.
    fn field<'t>(line: &'t str, name: &str) -> Option<&'t str> {
        let key = format!("\"{name}\": \"");
        let start = line.find(&key)? + key.len();
        line[start..].split('"').next()
    }

    #[test]
    fn every_operator_that_was_measured_is_as_it_was_measured() {
        let measured = include_str!("../../../testdata/casts.json");
        let mut graph = Graph::new("g");
        graph.opsets.insert(String::new(), 15);
        let mut rows = 0;
        for line in measured.lines() {
            let (Some(domain), Some(name)) = (field(line, "domain"), field(line, "op")) else {
                continue;
            };
            let node = Node::new("n", domain, name, Vec::new(), Vec::new());
            let found = match half(&graph, &node) {
                Half::Kernel { .. } => "kernel",
                Half::Casts => "casts",
                Half::Pieces => "pieces",
            };
            let said = field(line, "half").unwrap();
            // Some versions of an operator are this, some that.
            let agrees = said == "refused" || said.split('/').any(|said| said == found);
            assert!(agrees, "{name}: {found}, measured: {said}");
            rows += 1;
        }
        assert!(rows > 150);
    }
}
