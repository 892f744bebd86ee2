//! Sizes that are too large for sums of them.

use super::{OptimizeError, PlanOptions};
use crate::analysis::cost::costs;
use crate::bytes::Bytes;
use crate::graph::Graph;

/// All that a step of a graph that is read has, were it there at once, is less than this, and of one that was written, with copies,
/// less than [`WITH_COPIES`]: so no sum of parts of it reaches the largest number, where peaks of different graphs would look equal,
/// and budgets mean nothing.
pub(super) const LIMIT: Bytes = Bytes(1 << 60);
pub(super) const WITH_COPIES: Bytes = Bytes(1 << 63);

/// Refuses a step that has `limit` or more. Needs concrete shapes.
pub(super) fn check_sizes(
    graph: &Graph,
    options: &PlanOptions,
    limit: Bytes,
) -> Result<(), OptimizeError> {
    let said = options.beside_model(graph);
    let costs = costs(graph, &said.device, &said.overrides);
    let tensors = graph.tensor_ids().map(|id| graph.tensor(id));
    let tensors = tensors.map(|tensor| {
        (
            tensor.memory().unwrap_or_default(),
            Claim::Tensor(&tensor.name),
        )
    });
    let workspaces = graph.order().iter().map(|&id| {
        let name = &graph.node(id).name;
        (costs[id.index()].workspace, Claim::Workspace(name))
    });
    let parts = tensors
        .chain(workspaces)
        .chain([(options.reserve, Claim::Reserve)]);
    let (mut total, mut largest) = (Bytes::ZERO, (Bytes::ZERO, Claim::Reserve));
    for part in parts {
        total += part.0;
        if part.0 > largest.0 {
            largest = part;
        }
    }
    match total < limit {
        true => Ok(()),
        false => {
            let (bytes, part) = largest;
            let largest = match part {
                Claim::Tensor(name) => format!("tensor {name:?} of {bytes}"),
                Claim::Workspace(name) => format!("the workspace of node {name:?}, {bytes},"),
                Claim::Reserve => format!("--reserve {}", bytes.0),
            };
            Err(OptimizeError::TooMuch {
                largest,
                total,
                limit,
            })
        }
    }
}

/// What takes memory in a step.
enum Claim<'a> {
    Tensor(&'a str),
    Workspace(&'a str),
    Reserve,
}
