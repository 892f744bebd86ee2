//! What is said of the result: peaks, times, and how it came about.

use super::{FailedCandidate, HeldBuffer};
use crate::bytes::Bytes;
use crate::graph::Graph;
use crate::operators::algorithms::Direction;
use crate::runtime::convolutions::{AlgorithmChoice, Timed};
use crate::runtime::executions::Reserved;
use crate::runtime::level::Level;
use crate::runtime::order::ExecutionOrder;
use crate::runtime::promise::Promise;

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
    /// What each step of that order needs, everything included, and the nanoseconds that it takes by the cost model.
    pub steps: Vec<(u64, Bytes)>,
    /// The names of the nodes that run there, step by step.
    pub nodes: Vec<String>,
    /// Every buffer, those in the memory pattern's block too.
    pub buffers: Vec<HeldBuffer>,
    /// The memory pattern's block; nothing where the runtime makes none.
    pub pattern: Bytes,
    /// What each node allocates for itself while it runs, step by step.
    pub workspaces: Vec<Bytes>,
}

/// What a graph needs in one way of running it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    /// In which order.
    pub order: ExecutionOrder,
    /// At which level of the runtime's optimizations.
    pub level: Level,
    /// Everything included.
    pub bytes: Bytes,
}

/// What was done.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The budget in bytes.
    pub budget: Bytes,
    /// What the caller owns, and the reserve.
    pub fixed: Bytes,
    /// The unmodified graph in the session [`Summary::reported`].
    pub before: Peak,
    /// The session for which the budget holds, or of several DEFAULT order, unoptimized ([`Promise::reported`]); where the budget was to
    /// hold in the usual session at least ([`optimize_usual`]), that.
    ///
    /// [`optimize_usual`]: super::optimize_usual
    pub reported: (ExecutionOrder, Level),
    /// The rewritten graph in the order and at the level in which it needs most, of those in which it fits the budget.
    pub after: Peak,
    /// What the unmodified graph needs in each order and at each level.
    pub executions_before: Vec<Execution>,
    /// What the rewritten graph needs in each order and at each level. It fits in all that are promised, but for a graph that stays as
    /// it is because the budget is enough in the session of which its peak is told, and nothing was found that fits in all.
    pub executions: Vec<Execution>,
    /// For which of them the budget holds.
    pub promise: Promise,
    /// Time that a plan adds which holds in all of them, where it was given up for one that adds less in the session that is
    /// promised.
    pub time_added_for_all: Option<u64>,
    /// The smallest peak that the search can reach.
    pub smallest_peak: Bytes,
    /// What the written order of first computations needs as planned, with variants and without
    /// recomputation, the runtime's frame included: what order and variants give alone.
    pub reordered_peak: Bytes,
    /// What the arena reserves for a step of the unmodified graph in the session of `before`, what the caller owns included.
    pub reserved_before: Reserved,
    /// The same of the rewritten graph, in the order and form in which it is most, of those that are promised.
    pub reserved_after: Reserved,
    /// Time of the unmodified step in nanoseconds, by the cost model.
    pub time_before: u64,
    /// Time that new nodes add, and algorithms of convolutions that are not the fastest.
    pub time_added: u64,
    /// The part of it that mirrors add; barriers and slower algorithms add the rest.
    pub time_recomputing: u64,
    /// Time that every plan adds which fits and keeps the order of first computations.
    pub lower_bound: u64,
    /// Mirrors.
    pub recomputed_nodes: usize,
    /// Barriers inserted.
    pub barriers: usize,
    /// Nodes of the unmodified graph.
    pub nodes_before: usize,
    /// Nodes of the rewritten graph.
    pub nodes_after: usize,
    /// The nodes that are replaced, by name, and by which variant.
    pub variants: Vec<(String, &'static str)>,
    /// How the provider has to choose algorithms for convolutions, where the device is CUDA and there are any.
    pub convolutions: Option<AlgorithmChoice>,
    /// What each convolution of the rewritten graph should compute with, in its order; the nodes have it as an attribute.
    pub algorithms: Vec<Chosen>,
    /// What the strategy has to say about its plan, one sentence each.
    pub notes: Vec<String>,
    /// Lives of values that all searches worked out for the row of budgets, the measure of their work.
    pub evaluations: u64,
    /// Why the search ended.
    pub stop_reason: StopReason,
    /// What was planned before, and given up because verification found it wrong.
    pub faults: Vec<FailedCandidate>,
}

/// The algorithm for one product of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The node's name.
    pub node: String,
    /// Which of its products.
    pub direction: Direction,
    /// The fastest that the budget has room for where the node runs.
    pub algorithm: Timed,
    /// Does ONNX Runtime itself take it, with the provider's options of the plan? The budget counts what it takes.
    pub followed: bool,
}

impl Summary {
    /// Added time divided by the time of the unmodified step.
    pub fn overhead(&self) -> f64 {
        self.part(self.time_added)
    }

    /// The part of the overhead that mirrors make, without barriers.
    pub fn recomputation_overhead(&self) -> f64 {
        self.part(self.time_recomputing)
    }

    /// The same of the plan that holds in every order and at every level, where that was given up.
    pub fn overhead_for_all(&self) -> Option<f64> {
        self.time_added_for_all.map(|added| self.part(added))
    }

    /// The least that any plan adds which fits and keeps the order of first computations,
    /// divided by the time of the unmodified step. Where the budget holds only for what the runtime makes of the graph: any plan of which it
    /// makes the same, but for copies.
    pub fn lower_bound_overhead(&self) -> f64 {
        self.part(self.lower_bound)
    }

    /// In which orders and at which levels the budget does not hold; see [`Summary::executions`].
    pub fn over_budget(&self) -> impl Iterator<Item = &Execution> {
        let over = |execution: &&Execution| {
            let Execution {
                order,
                level,
                bytes,
            } = **execution;
            bytes > self.budget && self.promise.holds(order, level)
        };
        self.executions.iter().filter(over)
    }

    fn part(&self, time: u64) -> f64 {
        match self.time_before {
            0 => 0.0,
            before => time as f64 / before as f64,
        }
    }
}

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The graph fits as it is, or by order alone: nothing is added.
    NothingToAdd,
    /// The allowance of evaluated moves is used up.
    Evaluations,
    /// It was stopped from outside.
    TimeLimit,
}

/// A rewritten graph and its figures.
#[derive(Clone, Debug)]
pub struct Optimized {
    /// The rewritten graph.
    pub graph: Graph,
    /// What was done.
    pub summary: Summary,
}

/// What no plan can need less than, in whichever order and with whatever copies and variants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Floor {
    /// What the caller owns and the reserve, and what one node reads, writes and works with.
    pub bytes: Bytes,
    /// That node's name.
    pub node: String,
}

/// What one step of a graph needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// At which level of the runtime's optimizations.
    pub level: Level,
    /// What the caller owns, and the reserve.
    pub fixed: Bytes,
    /// In DEFAULT order.
    pub default: Peak,
    /// In PRIORITY_BASED order.
    pub priority: Peak,
    /// In MEMORY_EFFICIENT order, where that is another: in graphs with a YieldOp.
    pub memory_efficient: Option<Peak>,
}
