//! What only training graphs have: gradient accumulation, optimizers, the hand-over to
//! PyTorch, collectives. All of them have effects besides their outputs.

use super::view::{Fault, Outputs, View, known, one, unknown};
use super::{Aliases, Family, Operator, Recompute, like_first, microsoft, onnx};
use crate::graph::ElementType;

pub(super) const OPERATORS: &[Operator] = &[
    effect("InPlaceAccumulator", Family::Elementwise, like_first).alias_in_effect(),
    // (buffer, gradient, overwrite?) -> (updated?, buffer)
    effect("InPlaceAccumulatorV2", Family::Elementwise, accumulate)
        .aliasing(Aliases::These(&[(1, 0)]))
        .traffic(|view, _| Some(3.0 * view.input(1).ok()?.bytes().0 as f64))
        .operations(|view| Some(view.input(1).ok()?.count() as f64)),
    effect("ZeroGradient", Family::Movement, like_first).alias_in_effect(),
    effect("YieldOp", Family::View, yielded).traffic(|_, _| Some(0.0)),
    effect("AdamWOptimizer", Family::Elementwise, updated),
    effect("SGDOptimizerV2", Family::Elementwise, updated),
    effect("InplaceClipGradNorm", Family::Reduction, |_| unknown()),
    effect("AdamOptimizer", Family::Elementwise, |_| unknown()),
    effect("LambOptimizer", Family::Elementwise, |_| unknown()),
    effect("PythonOp", Family::Other, |_| unknown()),
    effect("PythonOpGrad", Family::Other, |_| unknown()),
    effect("NcclAllReduce", Family::Movement, each_like_its_input),
    effect("NcclAllGather", Family::Movement, |_| unknown()),
    effect("NcclReduceScatter", Family::Movement, |_| unknown()),
    effect("AllReduce", Family::Movement, like_first),
    effect("AllGather", Family::Movement, |_| unknown()),
    effect("AllToAll", Family::Movement, |_| unknown()),
    effect("MegatronF", Family::Movement, like_first),
    effect("MegatronG", Family::Movement, like_first),
    effect("AdasumAllReduce", Family::Movement, each_like_its_input),
    effect("Send", Family::Movement, |_| unknown()),
    effect("Recv", Family::Movement, |_| unknown()),
    effect("RecordEvent", Family::View, |_| unknown()),
    effect("WaitEvent", Family::View, |_| unknown()),
    effect("Group", Family::View, |_| one(ElementType::Bool, vec![1])),
    onnx("If", Family::Other, |_| unknown()).recompute(control_flow),
    onnx("Loop", Family::Other, |_| unknown()).recompute(control_flow),
    onnx("Scan", Family::Other, |_| unknown()).recompute(control_flow),
];

const fn effect(name: &'static str, family: Family, rule: super::ShapeRule) -> Operator {
    microsoft(name, family, rule).recompute(|_| Recompute::Never("has side effects"))
}

impl Operator {
    /// Output 0 is input 0, which the operator changes.
    const fn alias_in_effect(self) -> Operator {
        self.aliasing(Aliases::These(&[(0, 0)]))
    }
}

fn control_flow(_: &crate::graph::Node) -> Recompute {
    Recompute::Never("control flow")
}

fn accumulate(view: &View) -> Result<Outputs, Fault> {
    Ok(vec![
        known(ElementType::Bool, vec![1]),
        view.input(0)?.same(),
    ])
}

/// YieldOp hands its inputs to PyTorch and gets as many gradients back, of the same shapes,
/// but for `non_differentiable_outputs`.
fn yielded(view: &View) -> Result<Outputs, Fault> {
    let skipped = view.node.ints("non_differentiable_outputs").unwrap_or(&[]);
    let inputs = view.inputs()?;
    let wanted = (0i64..)
        .zip(&inputs)
        .filter(|(position, _)| !skipped.contains(position));
    Ok(wanted.map(|(_, x)| x.same()).collect())
}

fn each_like_its_input(view: &View) -> Result<Outputs, Fault> {
    Ok(view.inputs()?.iter().map(|x| x.same()).collect())
}

/// The optimizers' sequences are no tensors; their first output is a flag.
fn updated(_: &View) -> Result<Outputs, Fault> {
    one(ElementType::Bool, vec![1])
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::super::{aliases, recompute};
    use super::*;

    #[test]
    fn accumulation_updates_its_buffer() {
        let case = Case::microsoft("InPlaceAccumulatorV2")
            .float(&[64, 3])
            .float(&[64, 3])
            .bool(&[1])
            .outputs(2);
        assert_eq!(case.shapes(), ["bool[1]", "float[64, 3]"]);
        assert_eq!(aliases(&case.node()), [(1, 0)]);
        assert!(matches!(recompute(&case.node()), Recompute::Never(_)));
        // buffer and gradient read, buffer written: 3 * 192 * 4
        assert_eq!(case.work().bytes, 2304.0);
    }

    #[test]
    fn yielded_outputs_come_back_as_gradients() {
        let case = Case::microsoft("YieldOp")
            .float(&[2, 10])
            .float(&[3])
            .float(&[])
            .list("non_differentiable_outputs", &[1])
            .outputs(2);
        assert_eq!(case.shapes(), ["float[2, 10]", "float[]"]);
    }

    #[test]
    fn control_flow_is_never_recomputed() {
        assert_eq!(
            recompute(&Case::onnx("Loop").node()),
            Recompute::Never("control flow")
        );
    }
}
