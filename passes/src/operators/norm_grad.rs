//! Gradients of normalizations.

use super::view::{Fault, Input, Outputs, View, known};
use super::{Family, Operator, Provider, microsoft, per_output_element};
use crate::bytes::Bytes;

pub(super) const OPERATORS: &[Operator] = &[
    // (dY, X, scale, saved mean, saved 1 / std) -> (dX, dScale, dB)
    microsoft("BatchNormalizationGrad", Family::Normalization, |view| {
        data_and_parameters(view, 1, Some(2))
    })
    .operations(|view| per_output_element(view, 12.0)),
    // (dY, X, scale, mean, 1 / std) -> (dX, dScale, dB)
    gradient("LayerNormalizationGrad", |view| {
        data_and_parameters(view, 1, Some(2))
    })
    .workspace(|view, provider| copies(view, provider, 2)),
    // (dY, X, scale, 1 / rms) -> (dX, dScale)
    gradient("SimplifiedLayerNormalizationGrad", |view| {
        data_and_parameters(view, 1, Some(2))
    })
    .workspace(|view, provider| copies(view, provider, 1)),
    // (dY, Y, scale, B, 1 / std) -> (dX, dScale, dB)
    gradient("InvertibleLayerNormalizationGrad", |view| {
        data_and_parameters(view, 1, Some(2))
    })
    .workspace(|view, provider| copies(view, provider, 2)),
];

const fn gradient(name: &'static str, rule: super::ShapeRule) -> Operator {
    microsoft(name, Family::RowNormalization, rule)
        .operations(|view| per_output_element(view, 28.0))
}

/// dX like the data, then dScale and dB like the scale.
fn data_and_parameters(view: &View, data: usize, scale: Option<usize>) -> Result<Outputs, Fault> {
    let x = view.input(data)?;
    let parameter = |s: Input| known(s.element, s.shape.to_vec());
    let parameter = scale
        .map(|position| view.input(position))
        .transpose()?
        .and_then(parameter);
    Ok(vec![x.same(), parameter.clone(), parameter])
}

/// The CPU kernels of layer normalization keep four intermediate tensors of the data's size, and as many as said that have
/// an element for each row (measured).
fn copies(view: &View, provider: Provider, of_rows: u64) -> Option<Bytes> {
    if provider == Provider::Cuda {
        return None;
    }
    let (x, scale) = (view.input(1).ok()?, view.input(2).ok()?);
    let rows = x.count() / scale.count().max(1);
    let elements = x.count().saturating_mul(4);
    let of_rows = rows.saturating_mul(of_rows);
    Some(x.element.bytes(elements.saturating_add(of_rows)))
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::*;

    #[test]
    fn gradients_are_shaped_like_data_and_scale() {
        let case = Case::microsoft("BatchNormalizationGrad")
            .float(&[2, 8, 4, 4])
            .float(&[2, 8, 4, 4])
            .float(&[8])
            .float(&[8])
            .float(&[8])
            .outputs(3);
        assert_eq!(case.shapes(), ["float[2, 8, 4, 4]", "float[8]", "float[8]"]);
    }

    #[test]
    fn layer_gradient_keeps_four_tensors_of_the_data() {
        // measured 6,299,753, with what any node takes: 4 * 512 * 768 * 4 + 2 * 512 * 4
        let case = Case::microsoft("LayerNormalizationGrad")
            .float(&[1, 512, 768])
            .float(&[1, 512, 768])
            .float(&[768])
            .float(&[1, 512, 1])
            .float(&[1, 512, 1])
            .outputs(3);
        assert_eq!(case.workspace(Provider::Cpu), Bytes(6_295_552));
    }
}
