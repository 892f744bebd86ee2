//! Why there is no rewritten graph.

use super::faults;
use super::{FailedCandidate, Floor, Peak};
use crate::bytes::Bytes;
use crate::rewrite::infer_shapes::InferShapesError;
use crate::runtime::{Release, TRAINING};
use crate::strategy::Strategy;
use crate::verify::Violation;

/// Why there is no rewritten graph.
#[derive(Debug, thiserror::Error)]
pub enum OptimizeError {
    /// The graph has no backward part.
    #[error("this is not a training graph: none of its {nodes} nodes computes a gradient")]
    NotTraining {
        /// How many nodes it has.
        nodes: usize,
    },
    /// The runtime has not all operators.
    #[error(
        "{node} is a training operator, which {} has not: expected a graph in standard operators only, as ckpt-opt \
         lower writes it, or --runtime {}", release.title, TRAINING.name
    )]
    ForTraining {
        /// The operator and the name of the first node that it cannot run.
        node: String,
        /// What was to run it.
        release: &'static Release,
    },
    /// The runtime has no kernel for an operator, whose pieces run where nobody plans them.
    #[error(
        "{node} is taken apart by {}, in a way that is not simulated: expected a graph without it, as ckpt-opt lower writes it, or \
         --runtime {}", release.title, TRAINING.name
    )]
    TakenApart {
        /// The operator and the name of the first such node.
        node: String,
        /// What was to run it.
        release: &'static Release,
    },
    /// The runtime has a kernel where the release that trains has none.
    #[error(
        "{node} computes in float16, in which {} rounds otherwise on the CPU than is known here: expected it between Cast \
         nodes to and from float32, or --runtime {}", release.title, TRAINING.name
    )]
    HalfKernel {
        /// The operator and the name of the first such node.
        node: String,
        /// What was to run it.
        release: &'static Release,
    },
    /// A shape is unknown or contradictory.
    #[error(transparent)]
    Shape(#[from] InferShapesError),
    /// The graph is broken.
    #[error("the input graph is not valid: {0}")]
    Input(#[source] Violation),
    /// The strategy does not deal with such graphs.
    #[error("--strategy {strategy} cannot plan this graph: {reason}")]
    Refused {
        /// Which strategy.
        strategy: Strategy,
        /// Why.
        reason: String,
    },
    /// A step has more than there can be.
    #[error(
        "{largest} and the rest of what a step has, {total} together, are more memory than there can be: expected \
         less than {limit}"
    )]
    TooMuch {
        /// The largest part, in words.
        largest: String,
        /// All tensors, workspaces and the reserve.
        total: Bytes,
        /// What it may be.
        limit: Bytes,
    },
    /// Nothing fits.
    #[error("no plan fits the budget of {}: the smallest peak found is {}", called(*budget), smallest.bytes)]
    Infeasible {
        /// The budget.
        budget: Bytes,
        /// The smallest peak, and what makes it.
        smallest: Box<Peak>,
        /// What no plan can need less than, where that is known to be above the budget: the smallest peak was looked for
        /// only in passing then.
        floor: Option<Box<Floor>>,
    },
    /// The rewritten graph is not what it should be.
    #[error("the rewritten graph failed verification: {0}")]
    Verification(#[source] Violation),
    /// There were plans, but what was made of them failed verification, all of it.
    #[error(
        "no rewriting of this graph could be proved to be right: {}; nothing was written",
        faults::first(faults)
    )]
    Unproved {
        /// The budget.
        budget: Bytes,
        /// What was tried, in this sequence.
        faults: Vec<FailedCandidate>,
    },
}

/// Budgets are more than zero: what is, was rounded down.
fn called(budget: Bytes) -> String {
    match budget {
        Bytes::ZERO => "less than a byte".to_owned(),
        budget => budget.to_string(),
    }
}
