//! Operators without a kernel, which the runtime takes apart before it runs anything.
//!
//! Their pieces are nodes like others: they run where the execution order puts them, and each has
//! memory of its own. So no workspace could stand for them.

use crate::graph::Node;
use crate::operators::{MICROSOFT, Provider};

/// One node of a function's body.
#[derive(Clone, Copy, Debug)]
pub struct FunctionNode {
    /// Its domain.
    pub domain: &'static str,
    /// Its operator.
    pub op_type: &'static str,
    /// Its attributes, all of them whole numbers.
    pub attributes: &'static [(&'static str, i64)],
    /// What it reads, by the names in the body.
    pub inputs: &'static [&'static str],
    /// What it writes, by the names in the body.
    pub outputs: &'static [&'static str],
}

/// What the runtime makes of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// What the body calls the operator's inputs.
    pub inputs: &'static [&'static str],
    /// What the body calls its outputs.
    pub outputs: &'static [&'static str],
    /// In the sequence in which the runtime adds them.
    pub body: &'static [FunctionNode],
}

/// The pieces of `node`, if the runtime takes it apart with this provider.
///
/// Runtime fact (1.19.2, from the graphs that sessions save): all pieces run, those of an omitted output as
/// well. CUDA has a kernel. HardSwish, Mish, CastLike, GroupNormalization, NegativeLogLikelihoodLoss and Bernoulli
/// are functions too, but the runtime makes no gradients of them, so training graphs hardly have them: what their pieces
/// need together is given as their workspace.
pub fn function(node: &Node, provider: Provider) -> Option<&'static Function> {
    match (node.domain.as_str(), node.op_type.as_str(), provider) {
        (MICROSOFT, "DivGrad", Provider::Cpu) => Some(&DIV_GRAD),
        _ => None,
    }
}

const fn step(
    op_type: &'static str,
    inputs: &'static [&'static str],
    outputs: &'static [&'static str],
) -> FunctionNode {
    FunctionNode {
        domain: "",
        op_type,
        attributes: &[],
        inputs,
        outputs,
    }
}

const fn reduce(inputs: &'static [&'static str], outputs: &'static [&'static str]) -> FunctionNode {
    FunctionNode {
        domain: MICROSOFT,
        attributes: &[("keepdims", 1), ("noop_with_empty_axes", 1)],
        ..step("ReduceSumTraining", inputs, outputs)
    }
}

static DIV_GRAD: Function = Function {
    inputs: &["dY", "A", "B"],
    outputs: &["dA", "dB"],
    body: &[
        step("Shape", &["A"], &["shape_A"]),
        step("Shape", &["B"], &["shape_B"]),
        FunctionNode {
            domain: MICROSOFT,
            ..step(
                "BroadcastGradientArgs",
                &["shape_A", "shape_B"],
                &["axes_A", "axes_B"],
            )
        },
        step("Div", &["dY", "B"], &["whole_dA"]),
        reduce(&["whole_dA", "axes_A"], &["reduced_dA"]),
        step("Reshape", &["reduced_dA", "shape_A"], &["dA"]),
        step("Mul", &["B", "B"], &["B_squared"]),
        step("Neg", &["A"], &["minus_A"]),
        step("Div", &["minus_A", "B_squared"], &["quotient"]),
        step("Mul", &["dY", "quotient"], &["whole_dB"]),
        reduce(&["whole_dB", "axes_B"], &["reduced_dB"]),
        step("Reshape", &["reduced_dB", "shape_B"], &["dB"]),
    ],
};
