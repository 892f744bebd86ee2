//! Gradients of convolutions: `ConvGrad(dY, X, W) -> (dX, dW, dB)`.

use super::super::view::View;
use super::super::window::{Padding, Window};
use super::{Group, Part, Site, Variant, Write, part, tensor};
use crate::graph::{AttributeValue, ElementType};

/// Two nodes, one for dX and one for the weights: either may run later, when less is alive.
pub(super) const SPLIT_GRADIENT: Variant = Variant {
    name: "split-gradient",
    group: Group::Convolution,
    replace: split,
};

/// dX by a transposed convolution of dY, which does not read X.
///
/// Runtime fact (measured over random shapes and attributes): on the CPU the bits are the same.
pub(crate) const TRANSPOSED: Variant = Variant {
    name: "transposed-convolution",
    group: Group::Convolution,
    replace: transposed,
};

fn split(site: &Site) -> Option<Vec<Part>> {
    let (node, dx) = (site.node, site.node.output(0)?);
    if !is_gradient(site) || node.output(1).or(node.output(2)).is_none() {
        return None;
    }
    let mut for_input = gradient(site);
    for_input.outputs = vec![Some(Write::Tensor(dx))];
    Some(vec![for_input, weights(site)])
}

fn transposed(site: &Site) -> Option<Vec<Part>> {
    let node = site.node;
    let ([dy, x, w], dx) = (node.first_inputs()?, node.output(0)?);
    if !is_gradient(site) || site.element(dx) != Some(ElementType::Float) || site.opset() < 11 {
        return None;
    }
    let (from, to, kernel) = (site.shape(dy)?, site.shape(x)?, site.shape(w)?);
    let axes = to.len().checked_sub(2)?;
    let window = Window::of(&View::alone(site.graph, node), axes, Some(kernel.get(2..)?)).ok()?;
    let Padding::Explicit(pads) = &window.padding else {
        return None;
    };
    // What the windows of the convolution left over at the end of each axis.
    let mut rest = Vec::with_capacity(axes);
    for axis in 0..axes {
        let (begin, end) = window.pads(axis);
        let steps = from.get(2 + axis)?.checked_sub(1)?;
        let reach = steps
            .checked_mul(window.strides[axis])?
            .checked_add(window.extent(axis).ok()?)?;
        let padded = to[2 + axis].checked_add(begin)?.checked_add(end)?;
        rest.push(padded.checked_sub(reach)?);
    }
    let ints = |list: Vec<u64>| -> Option<AttributeValue> {
        let list: Result<Vec<i64>, _> = list.into_iter().map(i64::try_from).collect();
        Some(AttributeValue::Ints(list.ok()?))
    };
    let group = node.int("group").unwrap_or(1);
    let (inputs, outputs) = ([dy, w].map(tensor), [Some(Write::Tensor(dx))]);
    let dx = part("", "ConvTranspose", inputs, outputs)
        .with("dilations", ints(window.dilations.clone())?)
        .with("group", AttributeValue::Int(group))
        .with("kernel_shape", ints(window.kernel.clone())?)
        .with("output_padding", ints(rest)?)
        .with("pads", ints(pads.clone())?)
        .with("strides", ints(window.strides.clone())?);
    let mut parts = vec![dx];
    parts.extend(node.output(1).or(node.output(2)).map(|_| weights(site)));
    Some(parts)
}

pub(super) fn is_gradient(site: &Site) -> bool {
    site.node.is("com.microsoft", "ConvGrad") && site.node.inputs.len() == 3
}

/// The node itself, for dW and dB alone.
pub(super) fn weights(site: &Site) -> Part {
    let outputs = [None, site.node.output(1), site.node.output(2)];
    let mut part = gradient(site);
    part.outputs = outputs.map(|o| o.map(Write::Tensor)).to_vec();
    while part.outputs.last().is_some_and(Option::is_none) {
        part.outputs.pop();
    }
    part
}

/// The node without outputs.
fn gradient(site: &Site) -> Part {
    let inputs = site.node.inputs.iter().map(|i| i.and_then(tensor));
    part("com.microsoft", "ConvGrad", inputs, []).like(site.node)
}
