//! The pipeline: a training graph and a budget in, an equivalent graph that fits out.

use std::collections::BTreeMap;

use crate::analysis::cost::{Cost, Device, Overrides, costs};
use crate::analysis::liveness::{Holder, Liveness};
use crate::analysis::order::ExecutionOrder;
use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId};
use crate::pass::Pass;
use crate::plan::Plan;
use crate::search::{Effort, Search, first_order};
use crate::transform::enforce_order::EnforceOrder;
use crate::transform::infer_shapes::{InferShapes, ShapeError};
use crate::transform::insert_mirrors::InsertMirrors;
use crate::verify::{self, Violation};

/// A budget as the user states it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BudgetRequest {
    /// That many bytes.
    Bytes(Bytes),
    /// That part (0.6 for 60 %) of the peak of the unmodified graph.
    PartOfPeak(f64),
    /// What the caller owns plus that part of the rest of the peak.
    FixedPlusPart(f64),
    /// The smallest peak that is found.
    Smallest,
}

/// What to do and for which machine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Values of symbolic dimensions.
    pub bindings: BTreeMap<String, u64>,
    /// The budget of one training step.
    pub budget: BudgetRequest,
    /// Memory that the graph does not show. Counts as owned by the caller.
    pub reserve: Bytes,
    /// What the graph runs on.
    pub device: Device,
    /// What the user says of single nodes.
    pub overrides: Overrides,
    /// How hard to search.
    pub effort: Effort,
}

/// The largest need of a graph in one order, and what makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peak {
    /// Everything included.
    pub bytes: Bytes,
    /// The position in the executed order.
    pub step: usize,
    /// The node that runs there, by name.
    pub node: String,
    /// What is live besides what the caller owns, by name, largest first.
    pub holders: Vec<(String, Bytes)>,
}

/// What was done.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The budget in bytes.
    pub budget: Bytes,
    /// What the caller owns, and the reserve.
    pub fixed: Bytes,
    /// The unmodified graph in DEFAULT order.
    pub before: Peak,
    /// The rewritten graph in the worse of both orders.
    pub after: Peak,
    /// The smallest peak that the search can reach.
    pub smallest_peak: Bytes,
    /// Time of the unmodified step in nanoseconds, by the cost model.
    pub time_before: u64,
    /// Time that the copies add.
    pub time_added: u64,
    /// Mirrors.
    pub recomputed_nodes: usize,
    /// PassThrough nodes inserted.
    pub barriers: usize,
    /// Nodes of the unmodified graph.
    pub nodes_before: usize,
    /// Nodes of the rewritten graph.
    pub nodes_after: usize,
    /// Why the search ended.
    pub stop_reason: StopReason,
}

impl Summary {
    /// Added time divided by the time of the unmodified step.
    pub fn overhead(&self) -> f64 {
        if self.time_before == 0 { 0.0 } else { self.time_added as f64 / self.time_before as f64 }
    }
}

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The graph fits as it is, or by order alone: nothing is added.
    NothingToAdd,
    /// The allowance of evaluated moves is used up.
    Evaluations,
    /// The caller asked to stop.
    Stopped,
}

/// A rewritten graph and its figures.
#[derive(Clone, Debug)]
pub struct Optimized {
    /// The rewritten graph.
    pub graph: Graph,
    /// What was done.
    pub summary: Summary,
}

/// Why there is no rewritten graph.
#[derive(Debug, thiserror::Error)]
pub enum OptimizeError {
    /// The graph has no backward part.
    #[error(
        "this is not a training graph: none of its {nodes} nodes computes a gradient. Make one \
         with onnxruntime.training.artifacts.generate_artifacts(forward_model, requires_grad=..., \
         loss=...), and give its training_model.onnx to ckpt-opt"
    )]
    NotTraining {
        /// How many nodes it has.
        nodes: usize,
    },
    /// A shape is unknown or contradictory.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The graph is broken.
    #[error("the input graph is not valid: {0}")]
    Input(#[source] Violation),
    /// Nothing fits.
    #[error("no plan fits the budget of {budget}: the smallest peak found is {}", smallest.bytes)]
    Infeasible {
        /// The budget.
        budget: Bytes,
        /// The smallest peak, and what makes it.
        smallest: Box<Peak>,
    },
    /// The rewritten graph is not what it should be. This is a bug of ckpt-opt.
    #[error("the rewritten graph failed verification, which is a bug in ckpt-opt: {0}")]
    Verification(#[source] Violation),
}
