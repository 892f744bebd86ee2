//! The core's calls: a training graph and a budget in, an equivalent graph that fits out; with their options, results and errors.

mod aim;
mod alternatives;
mod buffers;
mod cheaper_copies;
mod comparison;
mod contest;
mod convolutions;
mod faults;
mod limits;
mod listing;
mod near_smallest;
mod original;
mod pipeline;
mod published;
mod simulation;
mod slices;
#[cfg(test)]
mod tests;
pub(crate) mod tuning;
mod updates;
mod usual;
mod variant_graph;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use buffers::{BufferKind, HeldBuffer, StepMoment};
pub use faults::FailedCandidate;
pub use limits::{Kept, StepLimits, limits};
use listing::{as_listed, is_as_listed};
pub use pipeline::APPLYING;
use simulation::{SimulatedRun, at_level, describe, larger, need, simulated};

use crate::analysis::cost::{Overrides, beside_model, costs, unawaited};
use crate::bytes::Bytes;
use crate::graph::{Graph, Node, NodeId};
use crate::operators::algorithms::Direction;
use crate::operators::variants::{Group, Variant, offered};
use crate::operators::{self, Provider};
use crate::pass::{Changed, Pass, Runner};
use crate::program::Solving;
use crate::rewrite::infer_shapes::{
    self, InferShapes, InferShapesError, Stale, sizes_of_inputs, without_stale,
};
use crate::rewrite::take_apart::TakeApart;
use crate::runtime::convolutions::{AlgorithmChoice, Timed};
use crate::runtime::device::Device;
use crate::runtime::executions::Reserved;
use crate::runtime::functions::awaits_types;
use crate::runtime::known_shapes::infer_as;
use crate::runtime::level::Level;
use crate::runtime::liveness::fixed_bytes;
use crate::runtime::optimized_shapes::runtime_shapes_once_optimized;
use crate::runtime::order::ExecutionOrder;
use crate::runtime::promise::Promise;
use crate::runtime::{Release, Runtime, TRAINING, is_for_training};
use crate::search::Effort;
use crate::strategy::Strategy;
use crate::verify::{self, Correspondence, Violation};
use crate::watch::Watch;

/// A budget as the user states it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BudgetRequest {
    /// That many bytes.
    Bytes(Bytes),
    /// That part (0.6 for 60 %) of the peak of the unmodified graph.
    PartOfPeak(f64),
    /// What the caller owns plus that part of the rest of the peak.
    FixedPlusPart(f64),
    /// At most 0.5 % above the smallest peak that is found, at the least time.
    Smallest,
}

/// What to do and for which machine.
#[derive(Clone, Debug)]
pub struct PlanOptions {
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
    /// How to search.
    pub strategy: Strategy,
    /// Which variants may replace nodes.
    pub variants: BTreeSet<Group>,
    /// The names of approximations that may replace nodes as well
    /// ([`crate::operators::variants::APPROXIMATIONS`]).
    pub allowed: BTreeSet<String>,
    /// How hard to search.
    pub effort: Effort,
    /// What runs the graph, and how it uses memory.
    pub runtime: Runtime,
    /// Set from outside, it ends the search early: the result then depends on when.
    pub watch: Arc<Watch>,
    /// For what a solver is used.
    pub solving: Solving,
    /// Runs the passes.
    pub runner: Runner,
}

impl PlanOptions {
    /// The variants that may replace nodes.
    pub(crate) fn offered(&self) -> Vec<&'static Variant> {
        offered(&self.variants, &self.allowed, self.device.provider)
    }

    /// The same for what was made of a graph, which may have lost dimensions.
    pub fn for_written(&self, written: &Graph) -> PlanOptions {
        let mut options = self.clone();
        infer_shapes::retain_existing(&mut options.bindings, written);
        options
    }

    /// The same, with what is said of nodes beside what the model says of them in `original`, and the device as it is beside that.
    fn beside_model(&self, original: &Graph) -> PlanOptions {
        let is_gpu = self.device.provider == Provider::Cuda;
        let waits = self.runtime.promise.level != Some(Level::DisableAll);
        let device = match is_gpu && !waits {
            true => unawaited(original, &self.device),
            false => self.device.clone(),
        };
        PlanOptions {
            overrides: beside_model(&self.overrides, original, &device),
            device,
            ..self.clone()
        }
    }

    /// The same for a session in which convolutions are as `choice` says; what is said of nodes stands beside
    /// what the model says then.
    fn with_choice(&self, original: &Graph, choice: AlgorithmChoice) -> PlanOptions {
        let mut options = self.clone();
        options.device.convolutions.choice = choice;
        options.beside_model(original)
    }
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
    /// PassThrough nodes inserted.
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
    /// divided by the time of the unmodified step. Nothing where the budget holds only for what the runtime makes of the graph,
    /// which can need less than the graph.
    pub fn lower_bound_overhead(&self) -> Option<f64> {
        let known = self.promise.holds_unoptimized();
        known.then(|| self.part(self.lower_bound))
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
    #[error("no plan fits the budget of {budget}: the smallest peak found is {}", smallest.bytes)]
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

/// What one step of `graph` needs as it is.
pub fn measure(graph: &Graph, options: &PlanOptions) -> Result<Measured, OptimizeError> {
    verify::structure(graph).map_err(OptimizeError::Input)?;
    let graph = as_loaded(graph, options)?;
    check_sizes(&graph, options, LIMIT)?;
    let options = &options.beside_model(&graph);
    let costs = costs(&graph, &options.device, &options.overrides);
    let (_, level) = options.runtime.promise.reported();
    let right = without_stale(&graph);
    let all = [
        Some(&graph),
        matches!(right, Cow::Owned(_)).then_some(&*right),
    ];
    let all = all.map(|graph| Some(at_level(&as_listed(graph?), &costs, level, options)));
    let peak = |wanted: ExecutionOrder| {
        let runs = all.iter().flatten().filter_map(|all| {
            let mut found = all.iter().filter(|(order, _)| *order == wanted);
            found.next().map(|(_, liveness)| liveness.clone())
        });
        let liveness = runs.reduce(|one, other| larger(&graph, one, other))?;
        Some(describe(&graph, &costs, &liveness, options.reserve))
    };
    let nothing = || Peak::nothing(options.reserve);
    Ok(Measured {
        level,
        fixed: fixed_bytes(&graph) + options.reserve,
        default: peak(ExecutionOrder::Default).unwrap_or_else(nothing),
        priority: peak(ExecutionOrder::PriorityBased).unwrap_or_else(nothing),
        memory_efficient: peak(ExecutionOrder::MemoryEfficient),
    })
}

/// Proves that `written`, read back from the file, is what was to be written: it computes what
/// `original` computes, and its peak in all execution orders is within `budget`. Gives what each node is, so that what a
/// graph does not hold of the files can be compared too.
pub fn verify_written(
    original: &Graph,
    written: &Graph,
    options: &PlanOptions,
    budget: Bytes,
) -> Result<Correspondence, OptimizeError> {
    let original = with_shapes(original, options)?;
    // The inputs are the same, so what followed for one need not follow for the other again.
    let mut bound = options.for_written(written);
    for (name, size) in sizes_of_inputs(written, &original) {
        bound.bindings.entry(name).or_insert(size);
    }
    let written = with_shapes(written, &bound)?;
    verify::declarations(&original, &permitted(options)).map_err(OptimizeError::Input)?;
    check_sizes(&original, options, LIMIT)?;
    check_sizes(&written, options, WITH_COPIES)?;
    let options = options.beside_model(&original);
    let listed = as_listed(&written);
    let budget = budget - options.reserve;
    verify_rewritten(&original, &written, Some(&listed), &options, budget)
}

/// All that a step of a graph that is read has, were it there at once, is less than this, and of one that was written, with copies,
/// less than [`WITH_COPIES`]: so no sum of parts of it reaches the largest number, where peaks of different graphs would look equal,
/// and budgets mean nothing.
const LIMIT: Bytes = Bytes(1 << 60);
const WITH_COPIES: Bytes = Bytes(1 << 63);

/// Refuses a step that has `limit` or more. Needs concrete shapes.
fn check_sizes(graph: &Graph, options: &PlanOptions, limit: Bytes) -> Result<(), OptimizeError> {
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

/// The graph with the shapes of all tensors, by the given dimensions.
pub fn with_shapes(graph: &Graph, options: &PlanOptions) -> Result<Graph, InferShapesError> {
    let mut graph = graph.clone();
    let bindings = options.bindings.clone();
    options.runner.run(&InferShapes { bindings }, &mut graph)?;
    infer_as(&mut graph, options.runtime.release);
    Ok(graph)
}

/// `graph`, with the types of all tensors where they decide what is taken apart.
fn with_types<'a>(
    graph: &'a Graph,
    options: &PlanOptions,
) -> Result<Cow<'a, Graph>, InferShapesError> {
    let mut nodes = graph.order().iter().map(|&id| graph.node(id));
    match nodes.any(|node| awaits_types(graph, node, options.device.provider)) {
        true => with_shapes(graph, options).map(Cow::Owned),
        false => Ok(Cow::Borrowed(graph)),
    }
}

/// The graph as the runtime has it before it runs or optimizes anything, with the shapes of all tensors. The pieces of what it takes
/// apart come last, whatever reads them.
fn as_loaded(graph: &Graph, options: &PlanOptions) -> Result<Graph, InferShapesError> {
    let provider = options.device.provider;
    let mut graph = with_types(graph, options)?.into_owned();
    let pieces = TakeApart { provider }.as_the_runtime_does(&mut graph);
    let mut graph = with_shapes(&graph, options)?;
    if !pieces.is_empty() {
        let mut last = vec![false; graph.node_count()];
        for piece in &pieces {
            last[piece.index()] = true;
        }
        let mut order = graph.order().to_vec();
        order.sort_by_key(|id| last[id.index()]);
        graph.set_order(order);
    }
    Ok(graph)
}

/// What `graph` declares of sizes otherwise than its nodes make them, by the given dimensions.
pub fn stale(graph: &Graph, options: &PlanOptions) -> Vec<Stale> {
    match with_shapes(graph, options) {
        Ok(shaped) => infer_shapes::stale(graph, &shaped),
        // Whoever plans will say so.
        Err(_) => Vec::new(),
    }
}

/// Nodes of which the subgraphs' memory is not counted, and why, by the given dimensions and unless the user says it.
pub fn uncounted(graph: &Graph, options: &PlanOptions) -> Vec<(String, String)> {
    let is_said = |node: &Node| {
        let said = options.overrides.get(&node.name);
        said.is_some_and(|said| said.workspace_bytes.is_some())
    };
    match with_shapes(graph, options) {
        Ok(shaped) => infer_shapes::uncounted(&shaped, is_said),
        Err(_) => Vec::new(),
    }
}

/// Rewrites `input` so that one training step fits the budget, at the least added time found.
/// Deterministic: the same input and options give the same graph.
///
/// The result is verified: it computes what `input` computes, and its peak, simulated afresh in
/// both execution orders, is within the budget. A graph that fits as it is comes back as it is.
pub fn optimize(input: &Graph, options: &PlanOptions) -> Result<Optimized, OptimizeError> {
    let mut row = optimize_each(input, options, &[options.budget])?;
    row.pop().expect("one result for one budget")
}

/// The same for several budgets, in their sequence; `options.budget` is not looked at. What all of
/// them need is worked out once, so that a row of budgets takes less than its parts.
///
/// ```text
/// understand ─→ plan ─→ apply ─→ enforce ─→ simulate ─fits─→ verify
///                 ↑                            │
///                 └──── aim lower by what it missed
/// ```
///
/// Every alternative goes this way from *plan* on (`pipeline.rs`; the way back is in `pipeline/within_budget.rs`), and
/// whatever comes out is compared with the others (`contest.rs`).
pub fn optimize_each(
    input: &Graph,
    options: &PlanOptions,
    budgets: &[BudgetRequest],
) -> Result<Vec<Result<Optimized, OptimizeError>>, OptimizeError> {
    let graph = understand(input, options)?;
    let right = without_stale(&graph);
    let mut row = contest::compare((&right, &graph), options, budgets, contest::Look::Thorough)?;
    put_together(&mut row, &right, input, options)?;
    Ok(row)
}

/// The same where the budget is to hold in a session of which nobody has changed order or level ([`Promise::USUAL`]), and in
/// every other one as well if that costs next to nothing: what is told, and of what budgets are parts, is that session's. The promise
/// in `options` is not looked at; each result says its own.
pub fn optimize_usual(
    input: &Graph,
    options: &PlanOptions,
    budgets: &[BudgetRequest],
) -> Result<Vec<Result<Optimized, OptimizeError>>, OptimizeError> {
    let graph = understand(input, options)?;
    let right = without_stale(&graph);
    let mut row = usual::decide((&right, &graph), options, budgets)?;
    put_together(&mut row, &right, input, options)?;
    Ok(row)
}

/// The graph as it is planned: as the runtime takes it apart, with the shapes of all tensors.
fn understand(input: &Graph, options: &PlanOptions) -> Result<Graph, OptimizeError> {
    verify::structure(input).map_err(OptimizeError::Input)?;
    check_runs(input, options.runtime.release)?;
    let provider = options.device.provider;
    let mut graph = with_types(input, options)?.into_owned();
    if provider == Provider::Cpu {
        check_half(&graph, options.runtime.release)?;
    }
    updates::check(&graph, provider).map_err(OptimizeError::Input)?;
    let Ok(_) = options.runner.run(&TakeApart { provider }, &mut graph);
    let graph = with_shapes(&graph, options)?;
    verify::declarations(&graph, &permitted(options)).map_err(OptimizeError::Input)?;
    verify::overwrites(&graph).map_err(OptimizeError::Input)?;
    check_sizes(&graph, options, LIMIT)?;
    Ok(graph)
}

/// Gives `input` itself where the result is it, only taken apart: the runtime does that to it as well.
fn put_together(
    row: &mut [Result<Optimized, OptimizeError>],
    apart: &Graph,
    input: &Graph,
    options: &PlanOptions,
) -> Result<(), OptimizeError> {
    let is_whole = |&id: &NodeId| apart.node(id).op_type == input.node(id).op_type;
    if input.order().iter().all(is_whole) {
        return Ok(());
    }
    let listed = as_listed(apart);
    let found = row.iter_mut().flatten();
    for found in found.filter(|found| found.graph == *listed) {
        let whole = with_shapes(input, options)?;
        found.graph = as_listed(&without_stale(&whole)).into_owned();
    }
    Ok(())
}

/// Proves that `rewritten` computes what `original` computes and that its peak, simulated afresh
/// in all execution orders, is within the budget. Both graphs must have concrete shapes. `listed` is the latter with its
/// nodes as its file lists them, where that is not its order.
fn verify_rewritten(
    original: &Graph,
    rewritten: &Graph,
    listed: Option<&Graph>,
    options: &PlanOptions,
    budget: Bytes,
) -> Result<Correspondence, OptimizeError> {
    let failed = OptimizeError::Verification;
    verify::overwrites(rewritten).map_err(failed)?;
    let correspondence =
        verify::equivalence_allowing(original, rewritten, &permitted(options), &options.allowed)
            .map_err(failed)?;
    let unchanged = is_unchanged(original, rewritten, &correspondence);
    let (then, now) = (apart(original, options)?, apart(rewritten, options)?);
    if options.device.provider == Provider::Cpu && !unchanged {
        let are_whole = matches!((&then, &now), (Cow::Borrowed(_), Cow::Borrowed(_)));
        let known = are_whole.then_some(&correspondence);
        verify_rounding(&then, &now, known, options).map_err(failed)?;
    }
    let simulate = |graph: &Graph| {
        let costs = costs(graph, &options.device, &options.overrides);
        simulated(graph, &costs, options)
    };
    // Pieces are behind all that the graph itself has.
    let whole = |graph: &Graph, run: &SimulatedRun| -> Vec<NodeId> {
        let nodes = run.liveness.nodes().into_iter();
        nodes.filter(|id| id.index() < graph.node_count()).collect()
    };
    let before = simulate(&as_listed(&then));
    let before = before
        .first()
        .map_or(Vec::new(), |run| whole(original, run));
    // Sorted, its nodes have other indices than they had.
    let runs_as_before = unchanged
        && match listed {
            Some(_) => is_listed_alike(original, rewritten),
            None => is_as_listed(original),
        };
    let listed = match now {
        Cow::Owned(_) => as_listed(&now),
        Cow::Borrowed(_) => Cow::Borrowed(listed.unwrap_or(rewritten)),
    };
    for (number, run) in simulate(&listed).iter().enumerate() {
        // The unmodified graph may itself update in another sequence in another order.
        if !runs_as_before && (number == 0 || !unchanged) {
            let after = whole(rewritten, run);
            verify::updates(original, &before, rewritten, &after, &correspondence)
                .map_err(failed)?;
        }
        // Of a graph as it is, one peak is told. What it takes in the other ways, the result says.
        let holds = match unchanged {
            true => run.reported,
            false => run.promised,
        };
        if holds {
            let need = need(&now, &run.liveness);
            verify::budget(budget, [(run.order.name(), need)]).map_err(failed)?;
        }
    }
    Ok(correspondence)
}

/// Proves that the runtime rounds in `now` what it rounds in `then`. Both have functions taken apart, for it rounds what the pieces
/// compute, too. That they compute what the operators do is proved; `known` is how they correspond, where there are no pieces.
fn verify_rounding(
    then: &Graph,
    now: &Graph,
    known: Option<&Correspondence>,
    options: &PlanOptions,
) -> Result<(), Violation> {
    let pieces;
    let known = match known {
        Some(known) => known,
        None => {
            let permitted = permitted(options);
            pieces = verify::equivalence_allowing(then, now, &permitted, &options.allowed)?;
            &pieces
        }
    };
    verify::rounding(then, now, known)?;
    // Where bits are promised at every level.
    match options.runtime.release.trains {
        true => Ok(()),
        false => verify::rounding_optimized(then, now, known, runtime_shapes_once_optimized),
    }
}

/// The nodes for which the user vouches that they may be repeated.
fn permitted(options: &PlanOptions) -> BTreeSet<String> {
    let vouched = options.overrides.iter();
    let vouched = vouched.filter(|(_, said)| said.recomputable == Some(true));
    vouched.map(|(name, _)| name.clone()).collect()
}

/// Has `rewritten` the nodes of `original` in its sequence, and no other?
fn is_unchanged(original: &Graph, rewritten: &Graph, correspondence: &Correspondence) -> bool {
    let (before, after) = (original.order(), rewritten.order());
    let mut nodes = before.iter().zip(after);
    before.len() == after.len()
        && nodes.all(|(&then, &now)| correspondence.role(now) == verify::Role::Original(then))
}

/// Have the nodes, which are the same ones in the same order, the same places in their files?
fn is_listed_alike(original: &Graph, rewritten: &Graph) -> bool {
    let place = |graph: &Graph, id: NodeId| graph.node(id).template;
    let mut nodes = original.order().iter().zip(rewritten.order());
    nodes.all(|(&then, &now)| place(original, then) == place(rewritten, now))
}

/// `graph` as the runtime takes it apart.
fn apart<'g>(graph: &'g Graph, options: &PlanOptions) -> Result<Cow<'g, Graph>, InferShapesError> {
    let mut apart = graph.clone();
    let take_apart = TakeApart {
        provider: options.device.provider,
    };
    let Ok(changed) = take_apart.run(&mut apart);
    Ok(match changed {
        Changed::No => Cow::Borrowed(graph),
        Changed::Yes => Cow::Owned(with_shapes(&apart, &options.for_written(&apart))?),
    })
}

/// Is it a graph that ckpt-opt plans, and that `release` runs?
fn check_runs(graph: &Graph, release: &'static Release) -> Result<(), OptimizeError> {
    let nodes = graph.order().len();
    if release.trains {
        let is_one = is_training_graph(graph);
        return is_one
            .then_some(())
            .ok_or(OptimizeError::NotTraining { nodes });
    }
    let nodes = || graph.order().iter().map(|&id| graph.node(id));
    let named = |node: &Node| format!("{} \"{}\"", node.op_type, node.name);
    if let Some(node) = nodes().find(|node| is_for_training(node)) {
        let node = named(node);
        return Err(OptimizeError::ForTraining { node, release });
    }
    if let Some(node) = nodes().find(|node| release.takes_apart(node)) {
        let node = named(node);
        return Err(OptimizeError::TakenApart { node, release });
    }
    Ok(())
}

/// Does `release` round on the CPU as is known here? The types of all tensors must be known.
fn check_half(graph: &Graph, release: &'static Release) -> Result<(), OptimizeError> {
    let mut nodes = graph.order().iter().map(|&id| graph.node(id));
    match nodes.find(|node| release.has_other_kernel(graph, node)) {
        Some(node) => Err(OptimizeError::HalfKernel {
            node: format!("{} \"{}\"", node.op_type, node.name),
            release,
        }),
        None => Ok(()),
    }
}

/// Does any node compute a gradient or accumulate one? Of what the model's own functions are made of, nothing tells.
fn is_training_graph(graph: &Graph) -> bool {
    let mut nodes = graph.order().iter().map(|&id| graph.node(id));
    nodes.any(|node| operators::computes_gradients(node) || node.piece_of.is_some())
}
