//! Sums of many gradients.

use super::{Group, Like, Part, Read, Site, Variant, Write, part, tensor};
use crate::bytes::Bytes;
use crate::graph::{ElementType, TensorId};

/// `Sum(a, b, c, …)` needs all inputs at the same time: for a weight that n steps of a recurrent
/// network share, n gradients. A chain of Adds needs the sum so far and one of them.
///
/// Runtime fact (measured, up to 64 inputs): the CPU kernel of Sum adds its inputs in their
/// order, so that the chain gives the same bits. Another order would not.
pub(super) const RUNNING_SUM: Variant = Variant {
    name: "running-sum",
    group: Group::Sums,
    replace: running_sum,
};

/// Smaller inputs are not worth a node each.
const WORTH: Bytes = Bytes(16 << 10);

fn running_sum(site: &Site) -> Option<Vec<Part>> {
    chain(site, &inputs_of_large_sum(site)?)
}

/// The inputs of a node that adds up at least three tensors without broadcasting.
pub(super) fn inputs_of_large_sum(site: &Site) -> Option<Vec<TensorId>> {
    let node = site.node;
    let output = node.output(0)?;
    let element = site.element(output)?;
    let applies = node.is("", "Sum")
        && node.inputs.len() >= 3
        && matches!(element, ElementType::Float | ElementType::Double)
        && site.opset() >= 7
        && site.graph.tensor(output).bytes() >= Some(WORTH);
    let inputs: Option<Vec<_>> = node.inputs.iter().copied().collect();
    inputs.filter(|all| applies && all.iter().all(|&input| site.alike(input, output)))
}

/// Additions of `inputs`, one after another.
pub(super) fn chain(site: &Site, inputs: &[TensorId]) -> Option<Vec<Part>> {
    let output = site.node.output(0)?;
    let element = site.element(output)?;
    let mut so_far = Read::Tensor(inputs[0]);
    let mut parts = Vec::with_capacity(inputs.len() - 1);
    for (number, &next) in inputs.iter().enumerate().skip(1) {
        let written = match number + 1 == inputs.len() {
            true => Write::Tensor(output),
            false => Write::new(format!("sum_{number}"), Like::Tensor(output), element),
        };
        let summands = [Some(so_far), tensor(next)];
        parts.push(part("", "Add", summands, [Some(written)]));
        so_far = Read::Output(parts.len() - 1, 0);
    }
    Some(parts)
}
