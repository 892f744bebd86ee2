//! The pipeline: a training graph and a budget in, an equivalent graph that fits out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::analysis::cost::{Cost, Device, Overrides, costs};
use crate::analysis::liveness::{Holder, Liveness};
use crate::analysis::order::ExecutionOrder;
use crate::analysis::recompute::Recomputation;
use crate::analysis::sequences::sequences;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId};
use crate::pass::Pass;
use crate::plan::Plan;
use crate::search::{Effort, Search, first_orders};
use crate::transform::enforce_order::EnforceOrder;
use crate::transform::infer_shapes::{InferShapes, InferShapesError};
use crate::transform::insert_mirrors::{InsertMirrors, MARKER};
use crate::transform::release_unread::ReleaseUnread;
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
    /// Set from outside, it ends the search early: the result then depends on when.
    pub stop: Arc<AtomicBool>,
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
    /// Time that new nodes add.
    pub time_added: u64,
    /// The part of it that mirrors add; barriers add the rest.
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
    /// Why the search ended.
    pub stop_reason: StopReason,
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

    /// The least that any plan adds which fits and keeps the order of first computations,
    /// divided by the time of the unmodified step.
    pub fn lower_bound_overhead(&self) -> f64 {
        self.part(self.lower_bound)
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
    Shape(#[from] InferShapesError),
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

/// What one step of a graph needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// What the caller owns, and the reserve.
    pub fixed: Bytes,
    /// In DEFAULT order.
    pub default: Peak,
    /// In PRIORITY_BASED order.
    pub priority: Peak,
}

/// What one step of `graph` needs as it is.
pub fn measure(graph: &Graph, options: &Options) -> Result<Measured, OptimizeError> {
    verify::structure(graph).map_err(OptimizeError::Input)?;
    let graph = with_shapes(graph, options)?;
    let costs = costs(&graph, &options.device, &options.overrides);
    let [default, priority] = ExecutionOrder::ALL
        .map(|order| Liveness::simulate(&graph, order, options.device.provider, &costs));
    Ok(Measured {
        fixed: default.fixed + options.reserve,
        default: describe(&graph, &default, options.reserve),
        priority: describe(&graph, &priority, options.reserve),
    })
}

/// Proves that `written`, read back from the file, is what was to be written: it computes what
/// `original` computes, and its peak in both execution orders is within `budget`.
pub fn verify_written(
    original: &Graph,
    written: &Graph,
    options: &Options,
    budget: Bytes,
) -> Result<(), OptimizeError> {
    let original = with_shapes(original, options)?;
    let written = with_shapes(written, options)?;
    verify_rewritten(&original, &written, options, budget - options.reserve)
}

fn with_shapes(graph: &Graph, options: &Options) -> Result<Graph, InferShapesError> {
    let mut graph = graph.clone();
    let bindings = options.bindings.clone();
    InferShapes { bindings }.run(&mut graph)?;
    Ok(graph)
}

/// How often the search aims lower because the runtime's order needs more than the plan's.
const CORRECTIONS: usize = 4;

/// Rewrites `input` so that one training step fits the budget, at the least added time found.
/// Deterministic: the same input and options give the same graph.
///
/// The result is verified: it computes what `input` computes, and its peak, simulated afresh in
/// both execution orders, is within the budget. A graph that fits as it is comes back as it is.
pub fn optimize(input: &Graph, options: &Options) -> Result<Optimized, OptimizeError> {
    verify::structure(input).map_err(OptimizeError::Input)?;
    if !is_training_graph(input) {
        return Err(OptimizeError::NotTraining {
            nodes: input.order().len(),
        });
    }
    Pipeline::new(with_shapes(input, options)?, options).run()
}

/// Proves that `rewritten` computes what `original` computes and that its peak, simulated afresh
/// in both execution orders, is within the budget. Both graphs must have concrete shapes.
fn verify_rewritten(
    original: &Graph,
    rewritten: &Graph,
    options: &Options,
    budget: Bytes,
) -> Result<(), OptimizeError> {
    let failed = OptimizeError::Verification;
    let permitted: BTreeSet<String> = options
        .overrides
        .iter()
        .filter(|(_, said)| said.recomputable == Some(true))
        .map(|(name, _)| name.clone())
        .collect();
    let correspondence = verify::equivalence(original, rewritten, &permitted).map_err(failed)?;
    let provider = options.device.provider;
    let simulate = |graph: &Graph, order| {
        let costs = costs(graph, &options.device, &options.overrides);
        Liveness::simulate(graph, order, provider, &costs)
    };
    let before = simulate(original, ExecutionOrder::Default);
    let unchanged = correspondence.copies() == 0
        && correspondence.barriers() == 0
        && rewritten.order() == original.order();
    for order in ExecutionOrder::ALL {
        let after = simulate(rewritten, order);
        // The unmodified graph may itself update in another sequence in another order.
        if !unchanged {
            let (before, after) = (&before.order, &after.order);
            verify::updates(original, before, rewritten, after, &correspondence).map_err(failed)?;
        }
        let need = after.peak + bookkeeping(rewritten);
        verify::budget(budget, [(order.name(), need)]).map_err(failed)?;
    }
    Ok(())
}

/// Does any node compute a gradient or accumulate one?
fn is_training_graph(graph: &Graph) -> bool {
    graph.order().iter().any(|&id| {
        let op_type = graph.node(id).op_type.as_str();
        op_type.contains("Grad") || op_type.starts_with("InPlaceAccumulator")
    })
}

/// What the runtime itself allocates while a step runs: its frame of values, and an object with a
/// shape for each tensor that lives. Runtime fact: 118 bytes a tensor on the unmodified ResNet-152,
/// up to 215 a tensor with a thousand mirrors (measured less predicted, `cargo xtask truth`);
/// rounded up, so that what is promised holds.
fn bookkeeping(graph: &Graph) -> Bytes {
    let is_mirror = |id: &&NodeId| graph.node(**id).attribute(MARKER).is_some();
    let mirrors = graph.order().iter().filter(is_mirror).count();
    Bytes(graph.tensor_count() as u64 * 150 + mirrors as u64 * 100)
}

struct Pipeline<'o> {
    options: &'o Options,
    graph: Graph,
    costs: Vec<Cost>,
    recomputation: Recomputation,
    sequences: Vec<(NodeId, NodeId)>,
    /// One for each order of first computations that is worth a look; never empty.
    searches: Vec<Search>,
    /// Which of them made the plan.
    chosen: usize,
    before: Liveness,
}

/// A graph that runs, and its worse order.
#[derive(Clone)]
struct Candidate {
    graph: Graph,
    costs: Vec<Cost>,
    worst: Liveness,
}

impl<'o> Pipeline<'o> {
    fn new(graph: Graph, options: &'o Options) -> Pipeline<'o> {
        let provider = options.device.provider;
        let costs = costs(&graph, &options.device, &options.overrides);
        let recomputation = Recomputation::of(&graph, &options.overrides);
        let before = Liveness::simulate(&graph, ExecutionOrder::Default, provider, &costs);
        let sequences = sequences(&graph, &before.order);
        let orders = first_orders(&graph, provider, &costs, &sequences);
        let search = |order: &Vec<NodeId>| {
            Search::new(
                &graph,
                order,
                provider,
                &costs,
                &recomputation,
                options.effort,
            )
            .until(options.stop.clone())
        };
        let searches = orders.iter().map(search).collect();
        Pipeline {
            options,
            graph,
            costs,
            recomputation,
            sequences,
            searches,
            chosen: 0,
            before,
        }
    }

    fn run(mut self) -> Result<Optimized, OptimizeError> {
        let smallest = self.smallest();
        let reached = smallest.need();
        // A hair's breadth more lets the search look for a cheaper plan with the same peak.
        let reached = reached + Bytes(reached.0 / 500);
        let budget = self.budget(reached);
        let untouched = Candidate {
            worst: self.worst(&self.graph, &self.costs),
            graph: self.graph.clone(),
            costs: self.costs.clone(),
        };
        let candidate = if untouched.need() <= budget {
            untouched
        } else if let Some(found) = self.within(budget) {
            found
        } else if smallest.need() <= budget {
            smallest
        } else {
            let reserve = self.options.reserve;
            return Err(OptimizeError::Infeasible {
                budget: budget + reserve,
                smallest: Box::new(describe(&smallest.graph, &smallest.worst, reserve)),
            });
        };
        verify_rewritten(&self.graph, &candidate.graph, self.options, budget)?;
        let summary = self.summary(&candidate, budget, reached);
        Ok(Optimized {
            graph: candidate.graph,
            summary,
        })
    }

    /// The budget without the reserve, which the graph does not see.
    fn budget(&self, smallest: Bytes) -> Bytes {
        let reserve = self.options.reserve;
        let (fixed, peak) = (
            self.before.fixed,
            self.before.peak + bookkeeping(&self.graph),
        );
        let part = |of: Bytes, part: f64| Bytes((of.0 as f64 * part) as u64);
        match self.options.budget {
            BudgetRequest::Bytes(bytes) => bytes - reserve,
            BudgetRequest::PartOfPeak(of) => part(peak + reserve, of) - reserve,
            BudgetRequest::FixedPlusPart(of) => fixed + part(peak - fixed, of),
            BudgetRequest::Smallest => smallest,
        }
    }

    /// The plan with the smallest peak, with every barrier that helps.
    fn smallest(&mut self) -> Candidate {
        let plans = self.searches.iter_mut().map(Search::smallest);
        let plan = plans
            .min_by_key(|plan| plan.predicted_peak)
            .unwrap_or_default();
        let (mut graph, costs) = self.apply(&plan);
        let open = self.enforce(Bytes::ZERO, &costs);
        let budget = open.smallest_peak(&graph);
        // It fits by construction; if not, the simulation of the candidate tells.
        let _ = EnforceOrder { budget, ..open }.run(&mut graph);
        self.candidate(graph)
    }

    /// The cheapest plan that fits in the runtime's own order.
    fn within(&mut self, budget: Bytes) -> Option<Candidate> {
        // An eighth more tensors leaves room for those of mirrors and barriers.
        let spare = Bytes(bookkeeping(&self.graph).0 * 9 / 8);
        let smallest = self
            .searches
            .iter_mut()
            .map(|search| search.smallest().predicted_peak)
            .min();
        let mut target = (budget - spare).max(smallest.unwrap_or_default());
        let estimates = self
            .searches
            .iter_mut()
            .map(|search| search.estimate(target))
            .enumerate();
        let best = estimates.filter_map(|(i, cost)| Some((cost?, i))).min();
        self.chosen = best?.1;
        for _ in 0..CORRECTIONS {
            let plan = self.searches[self.chosen].within(target)?;
            let (graph, costs) = self.apply(&plan);
            match self.enforced(graph, &costs, budget) {
                Ok(candidate) => return Some(candidate),
                // Less than the same plan needs, or it is found again.
                Err(excess) => target = target.min(plan.predicted_peak) - excess - Bytes(1),
            }
        }
        None
    }

    /// The graph with barriers that keep it within the budget; or by how much they miss it.
    fn enforced(&self, graph: Graph, costs: &[Cost], budget: Bytes) -> Result<Candidate, Bytes> {
        let mut room = budget - bookkeeping(&graph);
        for _ in 0..CORRECTIONS {
            let mut graph = graph.clone();
            let enforce = self.enforce(room, costs);
            enforce
                .run(&mut graph)
                .map_err(|missed| missed.reached - room)?;
            let candidate = self.candidate(graph);
            if candidate.need() <= budget {
                return Ok(candidate);
            }
            // The barriers' own tensors take some room as well.
            room = room - (candidate.need() - budget);
        }
        Err(budget - room)
    }

    fn enforce<'c>(&'c self, budget: Bytes, costs: &'c [Cost]) -> EnforceOrder<'c> {
        let provider = self.options.device.provider;
        EnforceOrder {
            budget,
            provider,
            costs,
            sequences: &self.sequences,
        }
    }

    fn apply(&self, plan: &Plan) -> (Graph, Vec<Cost>) {
        let mut graph = self.graph.clone();
        let insert = InsertMirrors {
            plan,
            recomputation: &self.recomputation,
        };
        let Ok(_) = insert.run(&mut graph);
        let Ok(_) = ReleaseUnread.run(&mut graph);
        let costs = costs(&graph, &self.options.device, &self.options.overrides);
        (graph, costs)
    }

    fn candidate(&self, graph: Graph) -> Candidate {
        let costs = costs(&graph, &self.options.device, &self.options.overrides);
        Candidate {
            worst: self.worst(&graph, &costs),
            graph,
            costs,
        }
    }

    fn worst(&self, graph: &Graph, costs: &[Cost]) -> Liveness {
        let provider = self.options.device.provider;
        let [default, priority] =
            ExecutionOrder::ALL.map(|order| Liveness::simulate(graph, order, provider, costs));
        if priority.peak > default.peak {
            priority
        } else {
            default
        }
    }

    fn summary(&self, candidate: &Candidate, budget: Bytes, smallest: Bytes) -> Summary {
        let reserve = self.options.reserve;
        let time = |graph: &Graph, costs: &[Cost]| {
            let times = graph.order().iter().map(|id| costs[id.index()].time.0);
            times.fold(0, u64::saturating_add)
        };
        let is_new = |id: &NodeId| id.index() >= self.graph.node_count();
        let new = || candidate.graph.order().iter().filter(|&id| is_new(id));
        let is_barrier = |id: &&NodeId| {
            candidate
                .graph
                .node(**id)
                .is("com.microsoft", "PassThrough")
        };
        let is_mirror = |id: &&NodeId| candidate.graph.node(**id).attribute(MARKER).is_some();
        let time_before = time(&self.graph, &self.costs);
        let time_added = time(&candidate.graph, &candidate.costs) - time_before;
        let room = budget - bookkeeping(&self.graph);
        Summary {
            budget: budget + reserve,
            fixed: self.before.fixed + reserve,
            before: describe(&self.graph, &self.before, reserve),
            after: describe(&candidate.graph, &candidate.worst, reserve),
            smallest_peak: smallest.min(candidate.need()) + reserve,
            time_before,
            time_added,
            time_recomputing: new()
                .filter(is_mirror)
                .map(|id| candidate.costs[id.index()].time.0)
                .fold(0, u64::saturating_add),
            lower_bound: self.searches[self.chosen].lower_bound(room, time_added),
            recomputed_nodes: new().filter(is_mirror).count(),
            barriers: new().filter(is_barrier).count(),
            nodes_before: self.graph.order().len(),
            nodes_after: candidate.graph.order().len(),
            stop_reason: match time_added {
                _ if self.options.stop.load(Ordering::Relaxed) => StopReason::TimeLimit,
                0 => StopReason::NothingToAdd,
                _ => StopReason::Evaluations,
            },
        }
    }
}

impl Candidate {
    /// The larger need of both orders.
    fn need(&self) -> Bytes {
        self.worst.peak + bookkeeping(&self.graph)
    }
}

fn describe(graph: &Graph, liveness: &Liveness, reserve: Bytes) -> Peak {
    let named = |holder: &Holder| match *holder {
        Holder::Tensor(id, size) => (graph.tensor(id).name.clone(), size),
        Holder::Workspace(id, size) => (format!("workspace of {}", graph.node(id).name), size),
    };
    Peak {
        bytes: liveness.peak + bookkeeping(graph) + reserve,
        step: liveness.step,
        node: liveness
            .peak_node()
            .map_or_else(String::new, |id| graph.node(id).name.clone()),
        holders: liveness.holders.iter().map(named).collect(),
    }
}
