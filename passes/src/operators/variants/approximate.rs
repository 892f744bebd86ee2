//! Variants whose results differ from the original's in the last bits or more: only where the user
//! allows them by name. `tests/variants.rs` holds them against the bounds that stand here.
//!
//! |op| is the original on the absolute values of its inputs: the sum of the magnitudes of all terms. With
//! u = 2^-24 and γ(n) = n u / (1 - n u), a sum of n products is at most γ(n) |op| off the true one in
//! whatever order it is added up (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section
//! 3.1), as long as nothing over- or underflows. So two orders are at most twice that apart.

use super::convolution::{is_gradient, weights};
use super::sums::inputs_of_large_sum;
use super::{Group, Like, Part, Read, Site, Variant, Write, cast, part, tensor};
use crate::graph::{AttributeValue, ElementType, TensorId};
use crate::operators::clears_behind_its_result;

/// What the user has to allow, and how far results may be off then.
pub struct Approximation {
    /// The name to allow.
    pub name: &'static str,
    /// How far the results may be off, for one node.
    pub bound: &'static str,
    /// What it allows.
    pub variants: &'static [Variant],
}

impl Approximation {
    /// What allows the variant of this name; `None` for one that is bitwise.
    pub fn of(variant: &str) -> Option<&'static Approximation> {
        let has = |one: &&Approximation| one.variants.iter().any(|v| v.name == variant);
        APPROXIMATIONS.iter().find(has)
    }
}

/// All that can be allowed.
pub const APPROXIMATIONS: &[Approximation] = &[
    Approximation {
        name: "batch-slices",
        bound: "weight gradients of convolutions: 2 γ(n) |dW| for n images times windows",
        variants: &[HALVES, QUARTERS],
    },
    Approximation {
        name: "invertible-layer-norm",
        // N back from Y has passed through fewer than 16 more operations, each with a relative error of u
        // of |N| + |B / scale| at most.
        bound: "gradients of layer normalizations: 2 γ(n + 16) times the magnitudes of their terms, with \
                |N| + |B / scale| for N, the normalized X, and sums of n terms; not a number where a \
                scale is 0",
        variants: &[INVERTIBLE],
    },
    Approximation {
        name: "reassociated-sums",
        bound: "sums of n gradients: 2 γ(n) |Sum|",
        variants: &[BY_APPEARANCE],
    },
    Approximation {
        name: "half-precision",
        // An input of 11 significant bits is 2^-11 of itself off.
        bound: "weight gradients of convolutions: (2^-11 + 2.001 γ(n)) |dW| for n images times windows, \
                where all inputs are 0 or from 6.2e-5 to 65504 in magnitude; infinite above",
        variants: &[HALF],
    },
    Approximation {
        name: "convolution-algorithms",
        bound: "copies of convolutions where a runtime obeys the algorithms that the file names: 2 γ(n) |Y| for n \
                products, more with transforms; none in ONNX Runtime itself",
        variants: &[],
    },
];

/// The gradient of a convolution over two halves of the batch.
const HALVES: Variant = Variant {
    name: "batch-halves",
    group: Group::Convolution,
    replace: |site| slices(site, 2),
};

/// Over four quarters.
const QUARTERS: Variant = Variant {
    name: "batch-quarters",
    group: Group::Convolution,
    replace: |site| slices(site, 4),
};

/// The gradient from the normalization's output, which others may keep anyway.
const INVERTIBLE: Variant = Variant {
    name: "invertible-layer-norm",
    group: Group::OutputActivated,
    replace: invertible,
};

/// A running sum of gradients in the order in which they appear, in place of the order of inputs.
const BY_APPEARANCE: Variant = Variant {
    name: "sum-by-appearance",
    group: Group::Sums,
    replace: by_appearance,
};

/// What a convolution's gradient reads, kept in half of the memory.
const HALF: Variant = Variant {
    name: "half-precision",
    group: Group::Masks,
    replace: half,
};

fn slices(site: &Site, count: usize) -> Option<Vec<Part>> {
    let node = site.node;
    let [dy, x, w] = node.first_inputs()?;
    let batch = *site.shape(x)?.first()?;
    let outputs = [0, 1, 2].map(|i| node.output(i));
    let applies = is_gradient(site)
        && !clears_behind_its_result(site.graph, site.node)
        && outputs[0].is_some()
        && outputs[2].is_none()
        && batch % count as u64 == 0
        && batch > 0
        && site.element(x) == Some(ElementType::Float)
        // Split got its sizes as an input then; without, they are equal.
        && (13..18).contains(&site.opset());
    if !applies {
        return None;
    }
    let new = |suffix: String, shape| Some(Write::new(suffix, shape, ElementType::Float));
    let each = batch / count as u64;
    let slice = |name: &str, of: TensorId| {
        let written = (0..count).map(|i| new(format!("{name}_{i}"), Like::Cut(of, 0, each)));
        part("", "Split", [tensor(of)], written).with("axis", AttributeValue::Int(0))
    };
    let mut parts = vec![slice("dy", dy), slice("x", x)];
    for i in 0..count {
        let inputs = [
            Some(Read::Output(0, i)),
            Some(Read::Output(1, i)),
            tensor(w),
        ];
        let of = |position: usize| outputs[position];
        let dx = of(0).and_then(|dx| new(format!("dx_{i}"), Like::Cut(dx, 0, each)));
        let dw = of(1).and_then(|dw| new(format!("dw_{i}"), Like::Tensor(dw)));
        let written = [dx, dw].into_iter().take(1 + usize::from(of(1).is_some()));
        parts.push(part("com.microsoft", "ConvGrad", inputs, written).like(node));
    }
    let of_all = |output| (0..count).map(move |i| Some(Read::Output(2 + i, output)));
    let dx = outputs[0].map(Write::Tensor);
    parts.push(part("", "Concat", of_all(0), [dx]).with("axis", AttributeValue::Int(0)));
    if let Some(dw) = outputs[1] {
        parts.push(part("", "Sum", of_all(1), [Some(Write::Tensor(dw))]));
    }
    Some(parts)
}

fn invertible(site: &Site) -> Option<Vec<Part>> {
    let node = site.node;
    let [dy, x, scale, mean, inverse] = node.first_inputs()?;
    let forward = site.graph.node(site.uses.producer(mean)?);
    let applies = node.is("com.microsoft", "LayerNormalizationGrad")
        && forward.op_type == "LayerNormalization"
        && (forward.input(0), forward.input(1)) == (Some(x), Some(scale))
        && (forward.output(1), forward.output(2)) == (Some(mean), Some(inverse))
        && site.element(x) == Some(ElementType::Float);
    let (y, bias) = (forward.output(0)?, forward.input(2)?);
    let axis = node.int("axis").unwrap_or(-1);
    applies.then(|| {
        let inputs = [dy, y, scale, bias, inverse].map(tensor);
        let outputs = node.outputs.iter().map(|o| o.map(Write::Tensor));
        let operator = "InvertibleLayerNormalizationGrad";
        vec![
            part("com.microsoft", operator, inputs, outputs)
                .with("axis", AttributeValue::Int(axis)),
        ]
    })
}

fn by_appearance(site: &Site) -> Option<Vec<Part>> {
    let mut inputs = inputs_of_large_sum(site)?;
    let place = |&input: &TensorId| {
        let producer = site.uses.producer(input);
        producer.and_then(|id| site.graph.order().iter().position(|&other| other == id))
    };
    // Stable: what has no producer is first, equals stay.
    inputs.sort_by_key(place);
    super::sums::chain(site, &inputs)
}

fn half(site: &Site) -> Option<Vec<Part>> {
    let node = site.node;
    let x = node.input(1)?;
    let applies = is_gradient(site)
        && !clears_behind_its_result(site.graph, site.node)
        && node.output(1).is_some()
        && site.element(x) == Some(ElementType::Float);
    let new = |suffix: &str, element| Write::new(suffix, Like::Tensor(x), element);
    applies.then(|| {
        let mut gradient = weights(site);
        // Of its inputs, dX reads the sizes of X alone.
        gradient.outputs = node.outputs.iter().map(|o| o.map(Write::Tensor)).collect();
        gradient.inputs[1] = Some(Read::Output(1, 0));
        let (half, float) = (ElementType::Float16, ElementType::Float);
        vec![
            cast(Read::Tensor(x), half, new("x_half", half)),
            cast(Read::Output(0, 0), float, new("x", float)),
            gradient,
        ]
    })
}
