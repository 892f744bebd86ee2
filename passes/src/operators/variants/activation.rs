//! Gradients of Relu and LeakyRelu: `ReluGrad(dY, X or Y) -> dX`, `LeakyReluGrad(dY, X or Y) -> dX`.
//!
//! Runtime fact: both kernels ask whether the value is above zero and nothing else of it. Y is exactly
//! where X is, as long as LeakyRelu's alpha is not negative.

use super::{Group, Like, Part, Read, Site, Variant, Write, cast, part, scalar_zero, tensor};
use crate::graph::{ElementType, Node, NodeId, TensorId};

/// The gradient from the activation's input.
pub(super) const FROM_INPUT: Variant = Variant {
    name: "relu-from-input",
    group: Group::OutputActivated,
    replace: |site| {
        let relu = relu_that_writes(site, read_value(site)?)?;
        gradient_from(site, site.graph.node(relu).input(0)?)
    },
};

/// The gradient from the activation's output, which other nodes may keep anyway.
pub(super) const FROM_OUTPUT: Variant = Variant {
    name: "relu-from-output",
    group: Group::OutputActivated,
    replace: |site| {
        let input = read_value(site)?;
        let readers = site.uses.readers(input).iter();
        let mut relus = readers.filter(|&&id| is_relu(site, site.graph.node(id)));
        gradient_from(site, site.graph.node(*relus.next()?).output(0)?)
    },
};

/// A byte that says whether the value is above zero instead of its four bytes: the gradient reads it
/// as 0 or 1. (`Where` would not need that, but its CPU kernel allocates two buffers of the size
/// of the result.)
pub(super) const BOOL_MASK: Variant = Variant {
    name: "relu-bool-mask",
    group: Group::Masks,
    replace: bool_mask,
};

fn gradient_from(site: &Site, value: TensorId) -> Option<Vec<Part>> {
    let (dy, dx) = (site.node.input(0)?, site.node.output(0)?);
    let inputs = [tensor(dy), tensor(value)];
    Some(vec![gradient(site, inputs, dx)])
}

fn bool_mask(site: &Site) -> Option<Vec<Part>> {
    let value = read_value(site)?;
    let (dy, dx) = (site.node.input(0)?, site.node.output(0)?);
    // Constants of this kind came with opset 12. Greater broadcasts, which nothing here should.
    let applies = site.element(value) == Some(ElementType::Float)
        && site.alike(value, dx)
        && site.opset() >= 12;
    let new = |suffix: &str, element| Write::new(suffix, Like::Tensor(value), element);
    applies.then(|| {
        let above = [tensor(value), Some(Read::Output(0, 0))];
        let gradient = [tensor(dy), Some(Read::Output(2, 0))];
        let mask = Some(new("mask", ElementType::Bool));
        let float = ElementType::Float;
        vec![
            scalar_zero(),
            part("", "Greater", above, [mask]),
            cast(Read::Output(1, 0), float, new("mask_float", float)),
            self::gradient(site, gradient, dx),
        ]
    })
}

/// The node itself, reading something else.
pub(super) fn gradient(site: &Site, inputs: [Option<Read>; 2], dx: TensorId) -> Part {
    let op_type = match is_leaky(site) {
        true => "LeakyReluGrad",
        false => "ReluGrad",
    };
    part("com.microsoft", op_type, inputs, [Some(Write::Tensor(dx))]).like(site.node)
}

fn is_leaky(site: &Site) -> bool {
    site.node.is("com.microsoft", "LeakyReluGrad")
}

/// What the node reads besides dY, if it is the gradient of such an activation.
pub(super) fn read_value(site: &Site) -> Option<TensorId> {
    let applies = is_leaky(site) || site.node.is("com.microsoft", "ReluGrad");
    site.node.input(1).filter(|_| applies)
}

/// Is it the activation that the gradient belongs to?
fn is_relu(site: &Site, node: &Node) -> bool {
    match is_leaky(site) {
        true => node.is("", "LeakyRelu") && node.float("alpha").is_none_or(|alpha| alpha >= 0.0),
        false => node.is("", "Relu"),
    }
}

pub(super) fn relu_that_writes(site: &Site, value: TensorId) -> Option<NodeId> {
    let producer = site.uses.producer(value)?;
    is_relu(site, site.graph.node(producer)).then_some(producer)
}
