//! Gradients of Relu: `ReluGrad(dY, X or Y) -> dX`.

use super::{Group, Like, Part, Read, Site, Variant, Write, part, scalar_zero, tensor};
use crate::graph::{AttributeValue, ElementType, NodeId, TensorId};

/// ReluGrad from the Relu's input. Runtime fact: the kernel asks whether the value is above zero,
/// which it is for both or for neither.
pub(super) const FROM_INPUT: Variant = Variant {
    name: "relu-from-input",
    group: Group::OutputActivated,
    replace: |site| {
        let relu = relu_that_writes(site, read_value(site)?)?;
        gradient_from(site, site.graph.node(relu).input(0)?)
    },
};

/// ReluGrad from the Relu's output, which other nodes may keep anyway.
pub(super) const FROM_OUTPUT: Variant = Variant {
    name: "relu-from-output",
    group: Group::OutputActivated,
    replace: |site| {
        let input = read_value(site)?;
        let readers = site.uses.readers(input).iter();
        let mut relus = readers.filter(|&&id| site.graph.node(id).is("", "Relu"));
        gradient_from(site, site.graph.node(*relus.next()?).output(0)?)
    },
};

/// A byte that says whether the value is above zero instead of its four bytes: ReluGrad reads it
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
    let mut part = part(
        "com.microsoft",
        "ReluGrad",
        inputs,
        [Some(Write::Tensor(dx))],
    );
    part.attributes.clone_from(&site.node.attributes);
    Some(vec![part])
}

fn bool_mask(site: &Site) -> Option<Vec<Part>> {
    let value = read_value(site)?;
    let (dy, dx) = (site.node.input(0)?, site.node.output(0)?);
    // Constants of this kind came with opset 12. Greater broadcasts, which nothing here should.
    let applies = site.element(value) == Some(ElementType::Float)
        && site.alike(value, dx)
        && site.opset() >= 12;
    let new = |suffix: &str, element| Write::New {
        suffix: suffix.to_owned(),
        shape: Like::Tensor(value),
        element,
    };
    applies.then(|| {
        let above = [tensor(value), Some(Read::Output(0, 0))];
        let as_float = AttributeValue::Int(ElementType::Float as i64);
        let gradient = [tensor(dy), Some(Read::Output(2, 0))];
        let written = [Some(Write::Tensor(dx))];
        let mask = Some(new("mask", ElementType::Bool));
        let ones = Some(new("mask_float", ElementType::Float));
        vec![
            scalar_zero(),
            part("", "Greater", above, [mask]),
            part("", "Cast", [Some(Read::Output(1, 0))], [ones]).with("to", as_float),
            part("com.microsoft", "ReluGrad", gradient, written),
        ]
    })
}

/// What the node reads besides dY, if it is a ReluGrad.
fn read_value(site: &Site) -> Option<TensorId> {
    site.node
        .input(1)
        .filter(|_| site.node.is("com.microsoft", "ReluGrad"))
}

fn relu_that_writes(site: &Site, value: TensorId) -> Option<NodeId> {
    let producer = site.uses.producer(value)?;
    site.graph.node(producer).is("", "Relu").then_some(producer)
}
