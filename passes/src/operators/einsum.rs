//! Einsum.

use std::collections::BTreeMap;

use super::einsum_kernel::{Factor, elements_beside};
use super::view::{Fault, Input, Outputs, Shape, View, one};
use super::{Family, Operator, Provider, onnx};
use crate::bytes::Bytes;
use crate::graph::Node;

pub(super) const OPERATORS: &[Operator] = &[onnx("Einsum", Family::MatrixProduct, einsum)
    .operations(operations)
    .workspace(workspace)];

/// An axis of the equation: a letter, or one of the axes that `...` stands for, counted from
/// the back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Dots(usize),
    Letter(u8),
}

/// An equation for tensors of known shapes.
struct SolvedEquation {
    /// The size of each label.
    sizes: BTreeMap<Label, u64>,
    /// The labels of each operand.
    operands: Vec<Vec<Label>>,
    /// Those of the output.
    output: Vec<Label>,
}

fn einsum(view: &View) -> Result<Outputs, Fault> {
    let SolvedEquation { sizes, output, .. } = solve(view)?;
    one(
        view.input(0)?.element,
        output.iter().map(|label| sizes[label]).collect(),
    )
}

/// A multiply-add for each point of the space that the labels span.
fn operations(view: &View) -> Option<f64> {
    let SolvedEquation { sizes, .. } = solve(view).ok()?;
    Some(2.0 * sizes.values().map(|&d| d as f64).product::<f64>())
}

/// See [`einsum_kernel`](super::einsum_kernel).
fn workspace(view: &View, provider: Provider) -> Option<Bytes> {
    let SolvedEquation {
        sizes,
        operands,
        output,
    } = solve(view).ok()?;
    // Dots go first, from the front on, and letters as they are met.
    let dots = sizes.keys().rev();
    let mut axes: Vec<Label> = dots
        .filter(|label| matches!(label, Label::Dots(_)))
        .copied()
        .collect();
    for &label in operands.iter().flatten() {
        if !axes.contains(&label) {
            axes.push(label);
        }
    }
    let place = |label: &Label| axes.iter().position(|axis| axis == label);
    let inputs = view.inputs().ok()?;
    let operand = |(labels, input): (&Vec<Label>, &Input<'_>)| {
        let places: Option<Vec<usize>> = labels.iter().map(place).collect();
        let places = places?;
        let (mut sizes, mut has) = (vec![1; axes.len()], vec![false; axes.len()]);
        for (&place, &size) in places.iter().zip(input.shape) {
            (sizes[place], has[place]) = (size, true);
        }
        // A letter twice takes the diagonal.
        let in_sequence = places.is_sorted_by(|one, next| one < next);
        Some(Factor {
            sizes,
            has,
            in_sequence,
        })
    };
    let all: Option<Vec<Factor>> = operands.iter().zip(&inputs).map(operand).collect();
    let output: Option<Vec<usize>> = output.iter().map(place).collect();
    let element = view.output(0)?.element;
    (provider == Provider::Cpu).then_some(())?;
    Some(element.bytes(elements_beside(&all?, &output?)))
}

fn solve(view: &View) -> Result<SolvedEquation, Fault> {
    let equation = view.node.string("equation").unwrap_or("");
    let wrong = || {
        view.bad(
            "equation",
            equation,
            "terms for all inputs, such as ij,jk->ik",
        )
    };
    let (terms, right) = terms(equation);
    let inputs = view.inputs()?;
    if terms.len() != inputs.len() {
        return Err(wrong());
    }
    let mut operands = Vec::with_capacity(terms.len());
    let mut sizes = BTreeMap::new();
    let mut uses: BTreeMap<Label, usize> = BTreeMap::new();
    for (position, (term, input)) in terms.iter().zip(&inputs).enumerate() {
        let labels = labels(term, Some(input.rank())).ok_or_else(wrong)?;
        if labels.len() != input.rank() {
            return Err(input.wrong(position, "as many axes as its term of the equation"));
        }
        for (&label, &size) in labels.iter().zip(input.shape) {
            *uses.entry(label).or_default() += 1;
            let before = sizes.entry(label).or_insert(size);
            match (*before, size) {
                (a, b) if a == b => {}
                (1, _) => *before = size,
                (_, 1) => {}
                (a, b) => {
                    return Err(Fault::Mismatch {
                        left: Shape(vec![a]),
                        right: Shape(vec![b]),
                        why: "one letter of the equation has two sizes",
                    });
                }
            }
        }
        operands.push(labels);
    }
    let dots = sizes.keys().filter(|l| matches!(l, Label::Dots(_))).count();
    let output = match right {
        Some(term) => labels(&term, None)
            .map(|letters| expand(letters, dots))
            .filter(|output| output.iter().all(|l| sizes.contains_key(l)))
            .ok_or_else(wrong)?,
        // Without an arrow: the dots, then every letter that occurs once, in order.
        None => {
            let letters = uses
                .iter()
                .filter(|(label, times)| matches!(label, Label::Letter(_)) && **times == 1);
            (0..dots)
                .rev()
                .map(Label::Dots)
                .chain(letters.map(|(&label, _)| label))
                .collect()
        }
    };
    Ok(SolvedEquation {
        sizes,
        operands,
        output,
    })
}

/// The terms of the inputs, and that of the result if there is one.
fn terms(equation: &str) -> (Vec<Vec<u8>>, Option<Vec<u8>>) {
    let compact = equation.replace(' ', "");
    let (left, right) = match compact.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (&*compact, None),
    };
    let bytes = |term: &str| term.as_bytes().to_vec();
    (left.split(',').map(bytes).collect(), right.map(bytes))
}

/// By dimension of the result: the first input that has its letter, and which of that input's dimensions it is. `None` where there are dots, or
/// no arrow.
pub(crate) fn dimensions(node: &Node) -> Option<Vec<(usize, usize)>> {
    let (terms, result) = terms(node.string("equation")?);
    let source = |letter: &u8| {
        let at = |term: &Vec<u8>| term.iter().position(|other| other == letter);
        letter.is_ascii_alphabetic().then_some(())?;
        let mut found = terms.iter().enumerate();
        found.find_map(|(input, term)| Some((input, at(term)?)))
    };
    let has_dots = terms.iter().any(|term| term.contains(&b'.'));
    result?
        .iter()
        .map(source)
        .collect::<Option<_>>()
        .filter(|_| !has_dots)
}

/// The labels of a term. With `rank`, dots are spread over the axes that the letters leave;
/// without, they are left as one `Dots(0)`.
fn labels(term: &[u8], rank: Option<usize>) -> Option<Vec<Label>> {
    let letters = term.iter().filter(|b| b.is_ascii_alphabetic()).count();
    let mut labels = Vec::new();
    let mut rest = term;
    let mut dotted = false;
    while let Some(&first) = rest.first() {
        if first.is_ascii_alphabetic() {
            labels.push(Label::Letter(first));
            rest = &rest[1..];
        } else if rest.starts_with(b"...") && !dotted {
            dotted = true;
            match rank {
                Some(rank) => labels.extend((0..rank.checked_sub(letters)?).rev().map(Label::Dots)),
                None => labels.push(Label::Dots(0)),
            }
            rest = &rest[3..];
        } else {
            return None;
        }
    }
    Some(labels)
}

/// `Dots(0)` of an output term stands for all dots.
fn expand(labels: Vec<Label>, dots: usize) -> Vec<Label> {
    let spread = |label| match label {
        Label::Dots(_) => (0..dots).rev().map(Label::Dots).collect(),
        letter => vec![letter],
    };
    labels.into_iter().flat_map(spread).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Provider;
    use super::super::testing::Case;

    fn case(equation: &str, shapes: &[&[u64]]) -> Case {
        let start = Case::onnx("Einsum").text("equation", equation);
        shapes.iter().fold(start, |case, shape| case.float(shape))
    }

    #[test]
    fn letters_keep_their_sizes() {
        let product = case("bij, bjk -> bik", &[&[2, 3, 4], &[2, 4, 5]]);
        assert_eq!(product.shapes(), ["float[2, 3, 5]"]);
        // 2 * (2 * 3 * 4 * 5)
        assert_eq!(product.work().operations, 240.0);
        assert_eq!(case("ij,jk", &[&[3, 4], &[4, 5]]).shapes(), ["float[3, 5]"]);
        assert_eq!(case("ii->i", &[&[3, 3]]).shapes(), ["float[3]"]);
        assert_eq!(case("ij->", &[&[3, 4]]).shapes(), ["float[]"]);
    }

    #[test]
    fn a_dimension_is_that_of_the_first_input_with_its_letter() {
        let of = |equation: &str| {
            super::dimensions(&Case::onnx("Einsum").text("equation", equation).node())
        };
        assert_eq!(
            of("bsd, dhk -> bhsk"),
            Some(vec![(0, 0), (1, 1), (0, 1), (1, 2)])
        );
        assert_eq!(of("ij->"), Some(vec![]));
        assert_eq!(of("...qd,...kd->...qk"), None);
        assert_eq!(of("ij,jk"), None);
    }

    #[test]
    fn dots_broadcast_from_the_back() {
        let attention = case("...qd,...kd->...qk", &[&[2, 8, 5, 64], &[8, 7, 64]]);
        assert_eq!(attention.shapes(), ["float[2, 8, 5, 7]"]);
    }

    /// Elements beside the result, as measured for the same equations (4 bytes each, and a few KB).
    #[test]
    fn the_kernel_copies_what_does_not_stand_as_it_multiplies_it() {
        let beside = |equation: &str, shapes: &[&[u64]]| {
            case(equation, shapes).workspace(Provider::Cpu).0 / 4
        };
        let (a, b, c): (&[u64], &[u64], &[u64]) = (&[2, 8, 4], &[2, 6, 4], &[8, 4]);
        // A product, and for the second operand a copy for the equation's sequence and one for the product's.
        assert_eq!(beside("bnd,bmd->bnm", &[a, b]), 2 * 8 * 6 + 2 * 2 * 6 * 4);
        // The product once more, in the result's sequence.
        assert_eq!(
            beside("bnd,bmd->bmn", &[a, b]),
            2 * 2 * 8 * 6 + 2 * 2 * 6 * 4
        );
        // The first operand, too: what is summed up is not its last axis.
        let of_heads: (&[u64], &[u64]) = (&[2, 8, 3, 4], &[2, 3, 8, 6]);
        let (first, second) = (2 * 8 * 3 * 4, 2 * 3 * 8 * 6);
        let product = 2 * 3 * 4 * 6;
        assert_eq!(
            beside("bshk,bhst->bhtk", &[of_heads.0, of_heads.1]),
            first + 2 * second + 2 * product
        );
        assert_eq!(beside("bi,bi->b", &[c, c]), 8);
        assert_eq!(beside("ij->ji", &[c]), 32);
        assert_eq!(beside("ij->i", &[c]), 8);
        assert_eq!(beside("ij->ij", &[c]), 0);
        // Both of the first pair are copied, and so is their product for the next.
        assert_eq!(beside("ij,j,j->i", &[c, &[4], &[4]]), 32 + 4 + 2 * 32);
    }

    #[test]
    fn contradictions_are_named() {
        insta::assert_snapshot!(case("ij,jk->ik", &[&[3, 4], &[5, 6]]).fault(),
            @"shapes [4] and [5] do not fit: one letter of the equation has two sizes");
        insta::assert_snapshot!(case("ij->ik", &[&[3, 4]]).fault(),
            @r#"attribute "equation" is "ij->ik"; expected terms for all inputs, such as ij,jk->ik"#);
    }
}
