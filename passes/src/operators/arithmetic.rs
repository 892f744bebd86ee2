//! Element-by-element mathematics: unary, broadcast binary and variadic, comparisons, logic,
//! Where, Cast. Small integer and floating point results are computed, since shapes are.

use super::activation::{costly, element_attribute};
use super::evaluate::{binary, broadcast_positions, cast, select, unary, with_contents};
use super::view::{Fault, Outputs, View, broadcast, known};
use super::{Family, Operator, Provider, everything, microsoft, onnx};
use crate::bytes::Bytes;
use crate::graph::{Constant, ElementType, Node, count};

pub(super) const OPERATORS: &[Operator] = &[
    onnx("Abs", Family::Elementwise, map),
    onnx("Neg", Family::Elementwise, map),
    onnx("Sign", Family::Elementwise, map),
    onnx("Floor", Family::Elementwise, map),
    onnx("Ceil", Family::Elementwise, map),
    onnx("Round", Family::Elementwise, map),
    onnx("Not", Family::Elementwise, map),
    onnx("BitwiseNot", Family::Elementwise, map),
    onnx("Reciprocal", Family::Elementwise, map),
    onnx("Sqrt", Family::Elementwise, map),
    function("Exp"),
    function("Log"),
    function("Erf"),
    function("Sin"),
    function("Cos"),
    function("Tan"),
    function("Asin"),
    function("Acos"),
    function("Atan"),
    function("Sinh"),
    function("Cosh"),
    function("Asinh"),
    function("Acosh"),
    function("Atanh"),
    onnx("IsNaN", Family::Elementwise, test),
    onnx("IsInf", Family::Elementwise, test),
    microsoft("IsFinite", Family::Elementwise, test),
    onnx("Add", Family::Elementwise, pair),
    onnx("Sub", Family::Elementwise, pair),
    onnx("Mul", Family::Elementwise, pair),
    onnx("Div", Family::Elementwise, pair),
    onnx("Mod", Family::Elementwise, pair),
    onnx("Pow", Family::Transcendental, pair).operations(costly),
    onnx("BitShift", Family::Elementwise, pair),
    onnx("BitwiseAnd", Family::Elementwise, pair),
    onnx("BitwiseOr", Family::Elementwise, pair),
    onnx("BitwiseXor", Family::Elementwise, pair),
    onnx("And", Family::Elementwise, comparison),
    onnx("Or", Family::Elementwise, comparison),
    onnx("Xor", Family::Elementwise, comparison),
    onnx("Equal", Family::Elementwise, comparison),
    onnx("Greater", Family::Elementwise, comparison),
    onnx("GreaterOrEqual", Family::Elementwise, comparison),
    onnx("Less", Family::Elementwise, comparison),
    onnx("LessOrEqual", Family::Elementwise, comparison),
    variadic("Sum"),
    variadic("Max"),
    variadic("Min"),
    variadic("Mean"),
    onnx("Where", Family::Elementwise, choose).workspace(two_selections),
    onnx("Cast", Family::Elementwise, convert).in_place_on_cpu(),
    onnx("CastLike", Family::Elementwise, convert_like).in_place_on_cpu(),
    onnx("QuantizeLinear", Family::Elementwise, quantize),
    onnx("DequantizeLinear", Family::Elementwise, dequantize),
    microsoft("DivGrad", Family::Elementwise, two_gradients),
];

const fn function(name: &'static str) -> Operator {
    onnx(name, Family::Transcendental, map).operations(costly)
}

const fn variadic(name: &'static str) -> Operator {
    onnx(name, Family::Elementwise, all)
        .operations(|view| {
            let operands = view.node.inputs.len().saturating_sub(1).max(1);
            Some(view.output(0)?.count() as f64 * operands as f64)
        })
        .traffic(turns)
        .workspace(partial_result)
}

/// The CPU kernel adds one operand after the other, as Adds would: each reads what there is so far
/// and writes it anew (measured for 64 operands: 1.2 times the time of 63 Adds).
fn turns(view: &View, provider: Provider) -> Option<f64> {
    let additions = view.node.inputs.len().saturating_sub(1);
    match provider {
        Provider::Cpu if additions > 1 => {
            Some(3.0 * additions as f64 * view.output(0)?.bytes().0 as f64)
        }
        _ => everything(view),
    }
}

/// From the third operand on, the CPU kernel adds into a second tensor of the output's size and
/// takes turns (measured: 18,816 bytes beside an output of 18,816, for 3 operands and for 24).
fn partial_result(view: &View, provider: Provider) -> Option<Bytes> {
    let several = view.node.inputs.len() >= 3;
    (several && provider == Provider::Cpu)
        .then(|| view.output(0))
        .flatten()
        .map(|y| y.bytes())
}

/// Bytes that the kernel has before its result is there, which frees some of them: from the fourth operand on two partial results, beside
/// one later, its `workspace` (measured for Sum, Max, Min and Mean). Both are float32 where it computes float16 in that. 0 for other kernels.
pub(crate) fn early_workspace(node: &Node, workspace: u64) -> u64 {
    const VARIADIC: [&str; 4] = ["Max", "Mean", "Min", "Sum"];
    let takes_turns = node.domain.is_empty() && VARIADIC.contains(&node.op_type.as_str());
    match takes_turns && node.inputs.len() > 3 {
        true => workspace.saturating_mul(2),
        false => 0,
    }
}

/// The CPU kernel of Where first writes the chosen part of either operand into a tensor of its
/// own, shaped like the condition and that operand broadcast to each other (measured).
fn two_selections(view: &View, provider: Provider) -> Option<Bytes> {
    let output = view.output(0)?;
    let condition = view.input(0).ok()?;
    let selection = |position: usize| {
        let shape = broadcast(condition.shape, view.input(position).ok()?.shape).ok()?;
        Some(output.element.bytes(count(&shape)))
    };
    let both = selection(1)? + selection(2)?;
    (provider == Provider::Cpu).then_some(both)
}

fn map(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let contents = x
        .constant
        .and_then(|c| unary(&view.node.op_type, x.element, c));
    Ok(vec![with_contents(x.same(), contents)])
}

fn test(view: &View) -> Result<Outputs, Fault> {
    Ok(vec![known(
        ElementType::Bool,
        view.input(0)?.shape.to_vec(),
    )])
}

fn pair(view: &View) -> Result<Outputs, Fault> {
    let element = view.input(0)?.element;
    combine(view, element)
}

fn comparison(view: &View) -> Result<Outputs, Fault> {
    combine(view, ElementType::Bool)
}

fn combine(view: &View, element: ElementType) -> Result<Outputs, Fault> {
    let (a, b) = (view.input(0)?, view.input(1)?);
    let shape = broadcast(a.shape, b.shape)?;
    let contents = a
        .constant
        .zip(b.constant)
        .and_then(|(x, y)| binary(&view.node.op_type, a.element, (x, a.shape), (y, b.shape)));
    Ok(vec![with_contents(known(element, shape), contents)])
}

fn all(view: &View) -> Result<Outputs, Fault> {
    let operands = view.inputs()?;
    let Some(first) = operands.first() else {
        return Err(Fault::MissingInput(0));
    };
    let mut shape = first.shape.to_vec();
    let mut contents = first.constant.cloned();
    for operand in &operands[1..] {
        let wider = broadcast(&shape, operand.shape)?;
        contents = contents.as_ref().zip(operand.constant).and_then(|(x, y)| {
            binary(
                &view.node.op_type,
                first.element,
                (x, &shape),
                (y, operand.shape),
            )
        });
        shape = wider;
    }
    Ok(vec![with_contents(first.with_shape(shape), contents)])
}

fn choose(view: &View) -> Result<Outputs, Fault> {
    let (condition, a, b) = (view.input(0)?, view.input(1)?, view.input(2)?);
    let shape = broadcast(&broadcast(condition.shape, a.shape)?, b.shape)?;
    let contents = condition
        .ints()
        .zip(a.constant.zip(b.constant))
        .and_then(|(which, (x, y))| {
            let which = select(
                &Constant::Ints(which.to_vec()),
                &broadcast_positions(condition.shape, &shape)?,
            )?;
            let x = select(x, &broadcast_positions(a.shape, &shape)?)?;
            let y = select(y, &broadcast_positions(b.shape, &shape)?)?;
            merge(&which, x, y)
        });
    Ok(vec![with_contents(a.with_shape(shape), contents)])
}

fn merge(which: &Constant, x: Constant, y: Constant) -> Option<Constant> {
    let Constant::Ints(which) = which else {
        return None;
    };
    fn pick<T>(which: &[i64], x: Vec<T>, y: Vec<T>) -> Vec<T> {
        let pairs = x.into_iter().zip(y).zip(which);
        pairs
            .map(|((a, b), &w)| if w != 0 { a } else { b })
            .collect()
    }
    match (x, y) {
        (Constant::Ints(x), Constant::Ints(y)) => Some(Constant::Ints(pick(which, x, y))),
        (Constant::Floats(x), Constant::Floats(y)) => Some(Constant::Floats(pick(which, x, y))),
        _ => None,
    }
}

fn convert(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let to = element_attribute(view, "to")?;
    let contents = x.constant.and_then(|c| cast(c, to));
    Ok(vec![with_contents(known(to, x.shape.to_vec()), contents)])
}

fn convert_like(view: &View) -> Result<Outputs, Fault> {
    let (x, to) = (view.input(0)?, view.input(1)?.element);
    let contents = x.constant.and_then(|c| cast(c, to));
    Ok(vec![with_contents(known(to, x.shape.to_vec()), contents)])
}

/// QuantizeLinear(X, scale, zero point): of the zero point's type.
fn quantize(view: &View) -> Result<Outputs, Fault> {
    let element = view
        .optional(2)?
        .map_or(ElementType::Uint8, |zero| zero.element);
    Ok(vec![known(element, view.input(0)?.shape.to_vec())])
}

/// DequantizeLinear(X, scale, zero point): of the scale's type.
fn dequantize(view: &View) -> Result<Outputs, Fault> {
    Ok(vec![known(
        view.input(1)?.element,
        view.input(0)?.shape.to_vec(),
    )])
}

/// DivGrad(dY, A, B) -> (dA, dB)
fn two_gradients(view: &View) -> Result<Outputs, Fault> {
    Ok(vec![view.input(1)?.same(), view.input(2)?.same()])
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::*;
    use crate::graph::Graph;

    #[test]
    fn operands_broadcast() {
        let case = Case::onnx("Add").float(&[2, 1, 4]).float(&[3, 1]);
        assert_eq!(case.shapes(), ["float[2, 3, 4]"]);
        let case = Case::onnx("Where").bool(&[2, 1]).float(&[3]).float(&[]);
        assert_eq!(case.shapes(), ["float[2, 3]"]);
        let case = Case::onnx("Less").float(&[2]).float(&[3]);
        insta::assert_snapshot!(
            case.fault(), @"shapes [2] and [3] do not fit: they do not broadcast");
    }

    #[test]
    fn comparisons_give_booleans() {
        let case = Case::onnx("Greater").float(&[2, 3]).float(&[3]);
        assert_eq!(case.shapes(), ["bool[2, 3]"]);
    }

    #[test]
    fn shape_arithmetic_is_followed() {
        // [8, 6] / 2 = [4, 3]
        let case = Case::onnx("Div").ints(&[2], &[8, 6]).ints(&[], &[2]);
        assert_eq!(case.shapes(), ["int64[2] = [4, 3]"]);
        let case = Case::onnx("Where")
            .bools(&[2], &[1, 0])
            .ints(&[2], &[7, 8])
            .ints(&[], &[-1]);
        assert_eq!(case.shapes(), ["int64[2] = [7, -1]"]);
        let case = Case::onnx("Max")
            .ints(&[2], &[1, 9])
            .ints(&[2], &[5, 5])
            .ints(&[], &[6]);
        assert_eq!(case.shapes(), ["int64[2] = [6, 9]"]);
    }

    #[test]
    fn quantization_changes_the_type() {
        let scale = || Case::onnx("QuantizeLinear").float(&[4]).float(&[]);
        assert_eq!(scale().shapes(), ["uint8[4]"]);
        let zero = scale().input(ElementType::Int8, &[], None);
        assert_eq!(zero.shapes(), ["int8[4]"]);
        let back = Case::onnx("DequantizeLinear")
            .input(ElementType::Int8, &[4], None)
            .float(&[]);
        assert_eq!(back.shapes(), ["float[4]"]);
    }

    #[test]
    fn cast_needs_a_type() {
        let case = Case::onnx("Cast").float(&[2]);
        insta::assert_snapshot!(case.fault(),
            @r#"attribute "to" is None; expected the number of an element type"#);
        let case = Case::onnx("Cast").float(&[2]).int("to", 9);
        assert_eq!(case.shapes(), ["bool[2]"]);
    }

    #[test]
    fn sums_of_three_and_more_hold_a_second_result() {
        // measured: 18,816 bytes beside an output of 2 * 48 * 7 * 7 * 4 = 18,816
        let x = [2, 48, 7, 7];
        let two = Case::onnx("Sum").float(&x).float(&x);
        assert_eq!(two.workspace(Provider::Cpu), Bytes(0));
        let three = Case::onnx("Sum").float(&x).float(&x).float(&x);
        assert_eq!(three.workspace(Provider::Cpu), Bytes(18_816));
    }

    #[test]
    fn a_sum_of_four_moves_what_three_additions_move() {
        let x = [16, 16];
        let add = Case::onnx("Add").float(&x).float(&x);
        let sum = Case::onnx("Sum").float(&x).float(&x).float(&x).float(&x);
        assert_eq!(sum.work().bytes, 3.0 * add.work().bytes);
    }

    #[test]
    fn from_the_fourth_operand_on_there_are_two_partial_results() {
        let early = |operator: &str, operands: &str, workspace: u64| {
            let text = format!("g (float[8] x) => (float[8] y) {{ y = {operator}({operands}) }}");
            let graph = Graph::parse(&text).unwrap();
            early_workspace(graph.node(graph.order()[0]), workspace)
        };
        for operator in ["Sum", "Max", "Min", "Mean"] {
            assert_eq!(early(operator, "x, x, x, x", 32), 64);
            assert_eq!(early(operator, "x, x, x", 32), 0);
        }
        assert_eq!(early("Sum", "x, x, x, x", 0), 0);
        assert_eq!(early("Concat", "x, x, x, x", 32), 0);
    }
}
