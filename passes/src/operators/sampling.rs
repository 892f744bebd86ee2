//! Random numbers, Dropout included.

use super::activation::element_attribute;
use super::view::{Fault, Outputs, View, dimension, known, one};
use super::{Family, Operator, Provider, Recompute, like_first, microsoft, onnx};
use crate::bytes::Bytes;
use crate::graph::{ElementType, Node};

pub(super) const OPERATORS: &[Operator] = &[
    random("RandomNormal", by_attribute),
    random("RandomUniform", by_attribute),
    random("RandomNormalLike", typed_like),
    random("RandomUniformLike", typed_like),
    random("Bernoulli", typed_like).workspace(flags),
    random("Multinomial", multinomial),
    onnx("Dropout", Family::Random, dropout)
        .recompute(dropped)
        .workspace(unnamed_mask),
    Operator {
        domain: super::MICROSOFT,
        ..onnx("Dropout", Family::Random, dropout)
            .recompute(dropped)
            .workspace(unnamed_mask)
    },
    microsoft("TrainableDropout", Family::Random, dropout).recompute(never),
    microsoft("BiasDropout", Family::Random, dropout).recompute(never),
    microsoft("BitmaskDropout", Family::Random, bitmask).recompute(never),
    microsoft("BitmaskBiasDropout", Family::Random, bitmask).recompute(never),
    microsoft("DropoutGrad", Family::ActivationGradient, like_first),
    microsoft(
        "TrainableDropoutGrad",
        Family::ActivationGradient,
        like_first,
    ),
    microsoft("BitmaskDropoutGrad", Family::ActivationGradient, like_first),
];

const fn random(name: &'static str, rule: super::ShapeRule) -> Operator {
    onnx(name, Family::Random, rule).recompute(never)
}

fn never(_: &Node) -> Recompute {
    Recompute::Never("random")
}

/// Without `training_mode`, Dropout only copies. Older ones have no such input: they never drop.
fn dropped(node: &Node) -> Recompute {
    match (node.input(2), node.output(1)) {
        (None, _) => Recompute::Clone,
        (Some(_), Some(_)) => Recompute::DropoutFromMask,
        (Some(_), None) => Recompute::Never("random, and its mask is not an output"),
    }
}

/// A mask is drawn even if it is no output (measured: a byte per element).
fn unnamed_mask(view: &View, provider: Provider) -> Option<Bytes> {
    let unnamed = view.node.output(1).is_none() && provider == Provider::Cpu;
    unnamed
        .then(|| view.output(0))
        .flatten()
        .map(|y| Bytes(y.count()))
}

/// A function on the CPU: the comparison's result stands beside the output.
fn flags(view: &View, provider: Provider) -> Option<Bytes> {
    (provider == Provider::Cpu)
        .then(|| view.output(0))
        .flatten()
        .map(|y| Bytes(y.count()))
}

fn dropout(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    Ok(vec![x.same(), known(ElementType::Bool, x.shape.to_vec())])
}

/// One bit per element, in 32-bit words.
fn bitmask(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    Ok(vec![
        x.same(),
        known(ElementType::Uint32, vec![x.count().div_ceil(32)]),
    ])
}

fn by_attribute(view: &View) -> Result<Outputs, Fault> {
    let Some(dims) = view.node.ints("shape") else {
        return Err(view.bad("shape", None::<()>, "a shape"));
    };
    let shape = dims
        .iter()
        .map(|&d| dimension(d))
        .collect::<Result<Vec<u64>, _>>()?;
    one(drawn_type(view, ElementType::Float)?, shape)
}

fn typed_like(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    one(drawn_type(view, x.element)?, x.shape.to_vec())
}

fn drawn_type(view: &View, default: ElementType) -> Result<ElementType, Fault> {
    match view.node.int("dtype") {
        Some(_) => element_attribute(view, "dtype"),
        None => Ok(default),
    }
}

fn multinomial(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let &[batch, _] = x.shape else {
        return Err(x.wrong(0, "batch and classes"));
    };
    let samples = view.natural("sample_size", 1)?;
    one(drawn_type(view, ElementType::Int32)?, vec![batch, samples])
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::super::{recompute, recompute_in};
    use super::*;
    use crate::graph::Uses;

    #[test]
    fn dropout_is_recomputed_from_its_mask() {
        let dropout = || Case::onnx("Dropout").float(&[4, 8]).float(&[]);
        let training = || dropout().bools(&[], &[1]);
        let node = training().outputs(2).node();
        assert_eq!(recompute(&node), Recompute::DropoutFromMask);
        assert!(matches!(recompute(&training().node()), Recompute::Never(_)));
        assert_eq!(recompute(&dropout().node()), Recompute::Clone);
        assert_eq!(
            training().outputs(2).shapes(),
            ["float[4, 8]", "bool[4, 8]"]
        );
    }

    #[test]
    fn the_mask_is_enough_only_in_training() {
        let dropout = || Case::onnx("Dropout").outputs(2).float(&[4, 8]).float(&[]);
        let rule = |case: Case| {
            let (graph, node) = case.inferred();
            recompute_in(&graph, &Uses::of(&graph), &node)
        };
        assert_eq!(rule(dropout().bools(&[], &[1])), Recompute::DropoutFromMask);
        assert_eq!(rule(dropout().bools(&[], &[0])), Recompute::Clone);
        assert!(matches!(rule(dropout().bool(&[])), Recompute::Never(_)));
    }

    #[test]
    fn a_mask_that_is_no_output_is_workspace() {
        let case = Case::onnx("Dropout").float(&[4, 8]);
        assert_eq!(case.workspace(Provider::Cpu), Bytes(32));
        assert_eq!(case.outputs(2).workspace(Provider::Cpu), Bytes(0));
    }

    #[test]
    fn random_numbers_are_never_drawn_again() {
        let case = Case::onnx("RandomNormalLike").float(&[3]).int("dtype", 11);
        assert_eq!(case.shapes(), ["double[3]"]);
        assert_eq!(recompute(&case.node()), Recompute::Never("random"));
        let case = Case::onnx("RandomUniform").list("shape", &[2, 2]);
        assert_eq!(case.shapes(), ["float[2, 2]"]);
        // 70 elements need 3 words of 32 bits
        let case = Case::microsoft("BitmaskDropout").float(&[7, 10]).outputs(2);
        assert_eq!(case.shapes(), ["float[7, 10]", "uint32[3]"]);
    }
}
