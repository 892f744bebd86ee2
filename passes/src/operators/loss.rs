//! Softmax, cross-entropy and their gradients.

use super::view::{Fault, Outputs, Shape, View, known, product, resolve_axis};
use super::{
    Family, Operator, Provider, like_first, microsoft, onnx, per_input_element, per_output_element,
};
use crate::bytes::Bytes;
use crate::graph::ElementType;

pub(super) const OPERATORS: &[Operator] = &[
    // In float64 apart: measured, in builds with training and without.
    softmax("Softmax")
        .in_place_on_cpu()
        .but_not_of(ElementType::Double),
    softmax("LogSoftmax")
        .in_place_on_cpu()
        .but_not_of(ElementType::Double),
    softmax("Hardmax").workspace(hardmax_workspace),
    Operator {
        domain: super::MICROSOFT,
        ..softmax("BiasSoftmax")
    },
    gradient("SoftmaxGrad"),
    gradient("SoftmaxGrad_13"),
    gradient("LogSoftmaxGrad").workspace(log_gradient_workspace),
    gradient("LogSoftmaxGrad_13").workspace(log_gradient_workspace),
    loss("SoftmaxCrossEntropyLoss"),
    Operator {
        domain: super::MICROSOFT,
        ..loss("SoftmaxCrossEntropyLossInternal")
    },
    // Its pieces have the labels' size (measured).
    onnx("NegativeLogLikelihoodLoss", Family::Loss, likelihood).workspace(|view, provider| {
        let (scores, labels) = (view.input(0).ok()?, view.input(1).ok()?);
        let elements = labels.count().saturating_mul(2);
        (provider == Provider::Cpu).then(|| scores.element.bytes(elements))
    }),
    Operator {
        domain: super::MICROSOFT,
        ..onnx(
            "NegativeLogLikelihoodLossInternal",
            Family::Loss,
            likelihood,
        )
    },
    microsoft("SoftmaxCrossEntropyLossGrad", Family::Loss, loss_gradient)
        .operations(|view| per_output_element(view, 10.0))
        .workspace(loss_gradient_workspace),
    microsoft(
        "SoftmaxCrossEntropyLossInternalGrad",
        Family::Loss,
        loss_gradient,
    )
    .operations(|view| per_output_element(view, 10.0))
    .workspace(loss_gradient_workspace),
    microsoft("SoftmaxCrossEntropy", Family::Loss, old_loss)
        .workspace(|view, provider| {
            let scores = view.input(0).ok()?;
            (provider == Provider::Cpu).then(|| scores.bytes())
        })
        .operations(|view| per_input_element(view, 12.0)),
    microsoft("SparseSoftmaxCrossEntropy", Family::Loss, old_loss)
        .operations(|view| per_input_element(view, 12.0)),
    // (dY, log_prob, label)
    microsoft("SoftmaxCrossEntropyGrad", Family::Loss, like_second)
        .operations(|view| per_output_element(view, 10.0)),
    microsoft("SparseSoftmaxCrossEntropyGrad", Family::Loss, like_second)
        .operations(|view| per_output_element(view, 10.0)),
];

/// An exponential, a sum and a division per element.
const fn softmax(name: &'static str) -> Operator {
    onnx(name, Family::Softmax, like_first)
        .operations(|view| per_output_element(view, 12.0))
        .workspace(softmax_workspace)
}

const fn gradient(name: &'static str) -> Operator {
    microsoft(name, Family::SoftmaxGradient, like_first)
        .operations(|view| per_output_element(view, 4.0))
        .workspace(softmax_gradient_workspace)
}

const fn loss(name: &'static str) -> Operator {
    onnx(name, Family::Loss, cross_entropy)
        .operations(|view| per_input_element(view, 12.0))
        .workspace(loss_workspace)
}

/// SoftmaxCrossEntropyLoss(scores `[N, C, d ...]`, labels `[N, d ...]`, weights `[C]`)
/// -> (loss, log-probabilities)
fn cross_entropy(view: &View) -> Result<Outputs, Fault> {
    let scores = view.input(0)?;
    let mut outputs = likelihood(view)?;
    outputs.push(scores.same());
    Ok(outputs)
}

/// NegativeLogLikelihoodLoss(scores, labels, weights) -> loss
fn likelihood(view: &View) -> Result<Outputs, Fault> {
    let (scores, labels) = (view.input(0)?, view.input(1)?);
    if scores.rank() < 2 {
        return Err(scores.wrong(0, "samples and classes"));
    }
    let mut samples = scores.shape.to_vec();
    samples.remove(1);
    if labels.shape != samples {
        return Err(Fault::Mismatch {
            left: Shape(scores.shape.to_vec()),
            right: Shape(labels.shape.to_vec()),
            why: "the labels are for another number of samples",
        });
    }
    let element = match view.node.int("output_type") {
        None | Some(0) => scores.element,
        Some(_) => super::activation::element_attribute(view, "output_type")?,
    };
    let summed = view.node.string("reduction") != Some("none");
    Ok(vec![known(
        element,
        if summed { Vec::new() } else { samples },
    )])
}

/// SoftmaxCrossEntropyLossGrad(dY, log-probabilities, labels, weights) -> gradient of the scores
fn loss_gradient(view: &View) -> Result<Outputs, Fault> {
    let probabilities = view.input(1)?;
    let element = match view.node.int("output_type") {
        None | Some(0) => probabilities.element,
        Some(_) => super::activation::element_attribute(view, "output_type")?,
    };
    Ok(vec![known(element, probabilities.shape.to_vec())])
}

fn like_second(view: &View) -> Result<Outputs, Fault> {
    Ok(vec![view.input(1)?.same()])
}

fn old_loss(view: &View) -> Result<Outputs, Fault> {
    let scores = view.input(0)?;
    Ok(vec![known(scores.element, Vec::new()), scores.same()])
}

/// Is the softmax taken over several axes' worth of elements that do not lie side by side?
/// From operator set 13 on, the runtime then transposes the input and the result.
fn transposes(view: &View) -> bool {
    let rank = view.input(0).map_or(0, |x| x.rank());
    let axis = resolve_axis(view.node.int("axis").unwrap_or(-1), rank);
    let newer = view.opset() >= 13
        && !matches!(view.node.op_type.as_str(), "SoftmaxGrad" | "LogSoftmaxGrad");
    newer && axis.is_some_and(|axis| axis + 1 != rank)
}

fn softmax_workspace(view: &View, provider: Provider) -> Option<Bytes> {
    let x = view.input(0).ok()?;
    let transposed = transposes(view).then(|| x.bytes() + x.bytes());
    let rows = (x.element == ElementType::Double && provider == Provider::Cpu).then(|| {
        let axis = resolve_axis(view.node.int("axis").unwrap_or(-1), x.rank());
        let along = axis
            .and_then(|axis| x.shape.get(axis))
            .copied()
            .unwrap_or(1);
        // The largest and the sum of each row, and a row of ones (measured: 17,233 bytes for 1,024 rows of 64).
        let numbers = x.count() / along.max(1) * 2 + along;
        ElementType::Double.bytes(numbers)
    });
    match (transposed, rows) {
        (None, None) => None,
        (transposed, rows) => Some(transposed.unwrap_or_default() + rows.unwrap_or_default()),
    }
}

/// And the place of the largest of each row (measured).
fn hardmax_workspace(view: &View, provider: Provider) -> Option<Bytes> {
    let x = view.input(0).ok()?;
    let axis = resolve_axis(view.node.int("axis").unwrap_or(-1), x.rank())?;
    let rows = x.count() / x.shape.get(axis).copied().unwrap_or(1).max(1);
    let transposed = softmax_workspace(view, provider).unwrap_or(Bytes::ZERO);
    (provider == Provider::Cpu).then(|| transposed + x.element.bytes(rows))
}

fn softmax_gradient_workspace(view: &View, provider: Provider) -> Option<Bytes> {
    let y = view.input(0).ok()?;
    let bytes = y.bytes();
    if provider == Provider::Cpu && view.node.op_type == "SoftmaxGrad" {
        // a row of ones and a sum per row of the tensor seen as a matrix
        let axis = view.axis("axis", 1, y.rank()).ok()?;
        let (rows, columns) = (
            product(&y.shape[..axis]).ok()?,
            product(&y.shape[axis..]).ok()?,
        );
        return Some(y.element.bytes(rows.saturating_add(columns)));
    }
    // A sum per row, and as many ones as it has elements.
    let axis = resolve_axis(view.node.int("axis").unwrap_or(-1), y.rank())?;
    let columns = y.shape.get(axis).copied().unwrap_or(1).max(1);
    let sums = y
        .element
        .bytes((y.count() / columns).saturating_add(columns));
    let transposed = match transposes(view) {
        true => bytes + bytes + bytes,
        false => Bytes::ZERO,
    };
    let is_logarithm = view.node.op_type.starts_with("Log");
    (provider == Provider::Cpu).then(|| match is_logarithm {
        true => transposed,
        false => transposed + sums,
    })
}

/// The exponentials of Y, and no sums (measured).
fn log_gradient_workspace(view: &View, provider: Provider) -> Option<Bytes> {
    let transposed = softmax_gradient_workspace(view, provider).unwrap_or(Bytes::ZERO);
    (provider == Provider::Cpu)
        .then(|| view.output(0).map(|y| transposed + y.bytes()))
        .flatten()
}

/// The CPU kernel shifts the scores into a tensor of their size and keeps a number per sample;
/// with axes behind the classes, it also transposes them first (measured: 12,544,000 bytes and
/// bookkeeping for scores `[2, 2, 560, 560]`).
fn loss_workspace(view: &View, provider: Provider) -> Option<Bytes> {
    if provider == Provider::Cuda {
        return None;
    }
    let scores = view.input(0).ok()?;
    let classes = (*scores.shape.get(1)?).max(1);
    let per_sample = scores.element.bytes(scores.count() / classes);
    let transposed = if scores.rank() > 2 {
        scores.bytes()
    } else {
        Bytes::ZERO
    };
    let unnamed = if view.has_output(1) {
        Bytes::ZERO
    } else {
        scores.bytes()
    };
    Some(scores.bytes() + per_sample + transposed + unnamed)
}

fn loss_gradient_workspace(view: &View, provider: Provider) -> Option<Bytes> {
    let probabilities = view.input(1).ok()?;
    (provider == Provider::Cpu && probabilities.rank() > 2).then(|| probabilities.bytes())
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::*;

    #[test]
    fn losses_are_scalars_unless_unreduced() {
        let case = Case::onnx("SoftmaxCrossEntropyLoss")
            .float(&[8, 10])
            .int64(&[8])
            .outputs(2);
        assert_eq!(case.clone().shapes(), ["float[]", "float[8, 10]"]);
        let case = case.text("reduction", "none");
        assert_eq!(case.shapes(), ["float[8]", "float[8, 10]"]);
        insta::assert_snapshot!(
            Case::onnx("SoftmaxCrossEntropyLoss").float(&[8, 10]).int64(&[7]).fault(),
            @"shapes [8, 10] and [7] do not fit: the labels are for another number of samples");
    }

    #[test]
    fn cross_entropy_shifts_a_copy_of_the_scores() {
        // measured 102,935,204 beside the outputs: 512 * 50257 * 4 + 512 * 4
        let text = Case::onnx("SoftmaxCrossEntropyLoss")
            .float(&[512, 50257])
            .int64(&[512])
            .outputs(2);
        assert_eq!(text.workspace(Provider::Cpu), Bytes(102_928_384));
        // measured 12,547,084: two tensors of 2 * 2 * 560 * 560 * 4 and 2 * 560 * 560 * 4
        let image = Case::onnx("SoftmaxCrossEntropyLoss")
            .float(&[2, 2, 560, 560])
            .int64(&[2, 560, 560])
            .outputs(2);
        assert_eq!(image.workspace(Provider::Cpu), Bytes(12_544_000));
        // measured 5,020,672
        let gradient = Case::microsoft("SoftmaxCrossEntropyLossGrad")
            .float(&[])
            .float(&[2, 2, 560, 560])
            .int64(&[2, 560, 560]);
        assert_eq!(gradient.workspace(Provider::Cpu), Bytes(5_017_600));
        assert_eq!(gradient.shapes(), ["float[2, 2, 560, 560]"]);
    }

    #[test]
    fn softmax_over_the_last_axis_needs_nothing_more() {
        let case = Case::onnx("Softmax").float(&[2, 3, 4]);
        assert_eq!(case.workspace(Provider::Cpu), Bytes(0));
        // 2 * (2 * 3 * 4 * 4 bytes)
        let case = Case::onnx("Softmax").float(&[2, 3, 4]).int("axis", 1);
        assert_eq!(case.workspace(Provider::Cpu), Bytes(192));
    }

    #[test]
    fn softmax_of_float64_needs_its_own_memory_and_some_for_each_row() {
        let of = |name: &str, element| Case::onnx(name).input(element, &[8, 128, 64], None);
        for name in ["Softmax", "LogSoftmax"] {
            let shares = |element| {
                let (graph, node) = of(name, element).inferred();
                !super::super::in_place(&graph, &node, Provider::Cpu).is_empty()
            };
            assert!(shares(ElementType::Float));
            assert!(!shares(ElementType::Double));
        }
        // Measured: 17,233. Two numbers for each of 1,024 rows, and 64.
        let double = of("Softmax", ElementType::Double);
        assert_eq!(double.workspace(Provider::Cpu), Bytes(16_896));
    }
}
