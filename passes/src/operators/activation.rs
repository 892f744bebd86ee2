//! Activations and their gradients: one output, shaped like the first input.

use super::view::{Fault, Outputs, View, known};
use super::{Family, Operator, Provider, like_first, microsoft, onnx, per_output_element};
use crate::bytes::Bytes;
use crate::graph::ElementType;

pub(super) const OPERATORS: &[Operator] = &[
    simple("Relu"),
    simple("LeakyRelu"),
    onnx("Clip", Family::Elementwise, like_first).in_place_on_cpu(),
    simple("ThresholdedRelu"),
    simple("HardSigmoid"),
    simple("Shrink"),
    smooth("Sigmoid"),
    smooth("Tanh"),
    smooth("Elu"),
    smooth("Selu"),
    onnx("Celu", Family::Transcendental, like_first)
        .operations(costly)
        .in_place_on_cpu(),
    smooth("Softplus"),
    smooth("Softsign"),
    // Functions, the first on the CPU alone: the runtime runs their pieces, one of which stands beside the output.
    onnx("HardSwish", Family::Elementwise, like_first)
        .workspace(one_more_output)
        .in_place_on_cuda(),
    onnx("Mish", Family::Transcendental, like_first)
        .operations(costly)
        .workspace(|view, _| Some(view.output(0)?.bytes())),
    onnx("Gelu", Family::Transcendental, like_first)
        .operations(costly)
        .in_place_on_cuda(),
    onnx("PRelu", Family::Elementwise, like_first),
    microsoft("Gelu", Family::Transcendental, like_first)
        .operations(costly)
        .in_place_on_cuda(),
    microsoft("FastGelu", Family::Transcendental, like_first)
        .operations(costly)
        .workspace(biased),
    microsoft("QuickGelu", Family::Transcendental, like_first)
        .operations(costly)
        .in_place_on_cuda(),
    microsoft("BiasGelu", Family::Transcendental, like_first)
        .operations(costly)
        .workspace(one_more_output),
    microsoft("BiasSplitGelu", Family::Transcendental, halves).operations(costly),
    gradient("ReluGrad"),
    gradient("LeakyReluGrad"),
    gradient("SigmoidGrad"),
    gradient("TanhGrad"),
    costly_gradient("GeluGrad"),
    costly_gradient("FastGeluGrad"),
    costly_gradient("QuickGeluGrad"),
    costly_gradient("BiasGeluGrad_dX").workspace(one_more_output),
    costly_gradient("BiasFastGeluGrad_dX").workspace(one_more_output),
    microsoft("Scale", Family::Elementwise, like_first),
    microsoft("BatchScale", Family::Elementwise, each_like_first),
    microsoft("ScaledSum", Family::Elementwise, like_first),
    microsoft("MixedPrecisionScale", Family::Elementwise, to_type),
    microsoft("FakeQuant", Family::Elementwise, quantized),
    microsoft("FakeQuantGrad", Family::Elementwise, like_first),
];

const fn simple(name: &'static str) -> Operator {
    onnx(name, Family::Elementwise, like_first).in_place()
}

const fn smooth(name: &'static str) -> Operator {
    onnx(name, Family::Transcendental, like_first)
        .operations(costly)
        .in_place()
}

const fn gradient(name: &'static str) -> Operator {
    microsoft(name, Family::ActivationGradient, like_first).in_place_on_cuda()
}

const fn costly_gradient(name: &'static str) -> Operator {
    microsoft(name, Family::TranscendentalGradient, like_first)
        .operations(costly)
        .in_place_on_cuda()
}

/// An exponential or error function, with what surrounds it.
pub(super) fn costly(view: &View) -> Option<f64> {
    per_output_element(view, 10.0)
}

pub(super) fn one_more_output(view: &View, provider: Provider) -> Option<Bytes> {
    match provider {
        Provider::Cpu => Some(view.output(0)?.bytes()),
        Provider::Cuda => None,
    }
}

/// With a bias, the sum is kept.
fn biased(view: &View, provider: Provider) -> Option<Bytes> {
    view.node.input(1)?;
    one_more_output(view, provider)
}

/// BiasSplitGelu: one half of the last axis gates the other.
fn halves(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let mut shape = x.shape.to_vec();
    match shape.last_mut() {
        Some(last) => *last /= 2,
        None => return Err(x.wrong(0, "at least one axis")),
    }
    Ok(vec![x.with_shape(shape)])
}

fn each_like_first(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    Ok(view.node.outputs.iter().map(|_| x.same()).collect())
}

fn to_type(view: &View) -> Result<Outputs, Fault> {
    let to = element_attribute(view, "to")?;
    let sources = view.inputs()?;
    Ok(sources
        .iter()
        .skip(1)
        .map(|x| known(to, x.shape.to_vec()))
        .collect())
}

fn quantized(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    Ok(vec![x.same(), known(ElementType::Bool, x.shape.to_vec())])
}

/// An attribute that names an element type.
pub(super) fn element_attribute(view: &View, name: &'static str) -> Result<ElementType, Fault> {
    let number = view.node.int(name);
    let element = number
        .and_then(|n| i32::try_from(n).ok())
        .and_then(ElementType::from_onnx);
    element.ok_or_else(|| view.bad(name, number, "the number of an element type"))
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::super::{in_place, recompute};
    use super::*;
    use crate::operators::Recompute;

    #[test]
    fn gradients_are_shaped_like_the_output_gradient() {
        let case = Case::microsoft("ReluGrad").float(&[2, 3]).float(&[2, 3]);
        assert_eq!(case.shapes(), ["float[2, 3]"]);
    }

    #[test]
    fn activations_run_in_place_everywhere_and_gradients_on_cuda() {
        let (graph, relu) = Case::onnx("Relu").float(&[2]).inferred();
        assert_eq!(in_place(&graph, &relu, Provider::Cpu), [(0, 0)]);
        let gradient = Case::microsoft("GeluGrad").float(&[2]).float(&[2]);
        let (graph, gradient) = gradient.inferred();
        assert_eq!(in_place(&graph, &gradient, Provider::Cpu), []);
        assert_eq!(in_place(&graph, &gradient, Provider::Cuda), [(0, 0)]);
        assert_eq!(recompute(&gradient), Recompute::Clone);
    }

    #[test]
    fn bias_gelu_keeps_the_sum_beside_its_output() {
        // 4 * 8 floats of 4 bytes
        let case = Case::microsoft("BiasGelu").float(&[4, 8]).float(&[8]);
        assert_eq!(case.workspace(Provider::Cpu), Bytes(128));
    }
}
