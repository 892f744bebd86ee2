//! The published algorithms as strategies: each makes a [`Plan`] that the pipeline applies, enforces
//! and verifies like any other, and each is judged by the same exact simulation.
//!
//! The words that they share:
//!
//! - The *forward part* is every node that the loss depends on; the *backward part* is the rest,
//!   which reads gradients. What the forward part computes are *vertices* ([`ForwardPart`]).
//! - A vertex is *kept* (its first computation serves every reader) or *dropped* (computed again
//!   for the backward part). Nodes that cannot be repeated are kept.
//! - A *segment* is a set of vertices between two *boundaries*. The *canonical* strategy keeps the
//!   boundaries and computes the inside of a segment again right before its own backward part.
//! - A *chain* is what is left of the forward part when it is cut at its articulation points.
//!
//! Papers count in their own model; none of that is believed here. A strategy makes a *family* of
//! plans, [`Task::judge`] simulates each as it would be written, and the cheapest that fits is
//! taken.

pub mod chain;
mod chain_graph;
mod chain_planner;
mod chain_split;
pub mod equivalent_chain;
mod family;
mod forward;
pub(crate) mod ilp;
pub mod join_dp;
mod join_dp_graph;
pub mod precise_dp;
pub mod revolve;
mod segments;
pub mod uniform_dp;

mod chen;
mod greedy_remat;
mod knapsack;
mod lower_set;
mod quick_plans;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::analysis::cost::{Overrides, costs};
use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::cost::Cost;
use crate::graph::{Graph, NodeId};
use crate::operators::variants::Variant;
use crate::plan::Plan;
use crate::program::Solving;
use crate::runtime::Runtime;
use crate::runtime::device::Device;
use crate::runtime::liveness::{Liveness, TENSOR};
use crate::search::{AllForms, Effort, Search};
use crate::watch::Watch;

pub use family::{PlanFamily, Tagged};
pub use forward::{ForwardPart, Vertex};
pub(crate) use quick_plans::MOST_NODES;
pub use quick_plans::Portfolio;
pub use segments::{Segments, mirrored};

/// How to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Strategy {
    /// The search of this program.
    #[default]
    Auto,
    /// √n segments of equal length (Chen et al. 2016, section 4.3).
    ChenSqrt,
    /// Segments up to a size, for many sizes (Chen et al. 2016, Algorithm 3).
    ChenBudget,
    /// Segments inside segments (Chen et al. 2016, section 4.4).
    ChenRecursive,
    /// Results of normalizations, pooling and elementwise functions of one value, activations above
    /// all (Chen et al. 2016, section 4.2).
    CheapOps,
    /// All sequences of lower sets, least time (Kusumoto et al. 2019, section 4.2).
    LowerSetExactTime,
    /// All sequences of lower sets, coarse segments (Kusumoto et al. 2019, sections 4.2 and 4.4).
    LowerSetExactMemory,
    /// Sequences of ancestors, least time (Kusumoto et al. 2019, section 4.3).
    LowerSetApproxTime,
    /// Sequences of ancestors, coarse segments (Kusumoto et al. 2019, sections 4.3 and 4.4).
    LowerSetApproxMemory,
    /// What frees most where memory is short, as XLA's rematerialization does.
    GreedyRemat,
    /// A knapsack of saved values, as PyTorch's activation memory budget has it.
    Knapsack,
    /// Exact for a chain of unequal blocks (Butt 2019, Algorithm 3.4).
    PreciseDp,
    /// Exact for a chain of equal blocks, by a table (Gruslys et al. 2016, Algorithm 1).
    UniformDp,
    /// Exact for a chain of equal blocks, in closed form (Griewank and Walther 2000).
    Revolve,
    /// Exact for equal blocks on branches that meet in the loss (Beaumont et al. 2019, Theorem 3).
    JoinDp,
    /// Checkmate's 0-1 program (Jain et al. 2020, section 4), solved by HiGHS.
    CheckmateIlp,
    /// MONeT's 0-1 program (Shah et al. 2021), with implementations of operators, solved by HiGHS.
    MonetIlp,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Strategy; 17] = [
        Strategy::Auto,
        Strategy::ChenSqrt,
        Strategy::ChenBudget,
        Strategy::ChenRecursive,
        Strategy::CheapOps,
        Strategy::LowerSetExactTime,
        Strategy::LowerSetExactMemory,
        Strategy::LowerSetApproxTime,
        Strategy::LowerSetApproxMemory,
        Strategy::GreedyRemat,
        Strategy::Knapsack,
        Strategy::PreciseDp,
        Strategy::UniformDp,
        Strategy::Revolve,
        Strategy::JoinDp,
        Strategy::CheckmateIlp,
        Strategy::MonetIlp,
    ];

    /// As `--strategy` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Auto => "auto",
            Strategy::ChenSqrt => "chen-sqrt",
            Strategy::ChenBudget => "chen-budget",
            Strategy::ChenRecursive => "chen-recursive",
            Strategy::CheapOps => "cheap-ops",
            Strategy::LowerSetExactTime => "lower-set-exact",
            Strategy::LowerSetExactMemory => "lower-set-exact-memory",
            Strategy::LowerSetApproxTime => "lower-set-approx",
            Strategy::LowerSetApproxMemory => "lower-set-approx-memory",
            Strategy::GreedyRemat => "greedy-remat",
            Strategy::Knapsack => "knapsack",
            Strategy::PreciseDp => "precise-dp",
            Strategy::UniformDp => "uniform-dp",
            Strategy::Revolve => "revolve",
            Strategy::JoinDp => "join-dp",
            Strategy::CheckmateIlp => "checkmate-ilp",
            Strategy::MonetIlp => "monet-ilp",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No strategy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no strategy is called {name:?}; there are {}", Strategy::ALL.map(Strategy::name).join(", "))]
pub struct UnknownStrategy {
    /// What was asked for.
    pub name: String,
}

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(name: &str) -> Result<Strategy, UnknownStrategy> {
        let found = Strategy::ALL.into_iter().find(|s| s.name() == name);
        found.ok_or_else(|| UnknownStrategy {
            name: name.to_owned(),
        })
    }
}

/// What a strategy is to solve. It only reads.
#[derive(Clone)]
pub struct Task<'t> {
    /// The graph, with concrete shapes.
    pub graph: &'t Graph,
    /// The same as it runs at the level that is promised: what others take in is an Identity.
    pub run: &'t Graph,
    /// What runs it.
    pub runtime: Runtime,
    /// The order of first computations that is best by itself: topological, and keeps the
    /// `sequences`. A plan may use another.
    pub order: &'t [NodeId],
    /// Pairs of nodes of which the first must run before the second.
    pub sequences: &'t [(NodeId, NodeId)],
    /// What the graph runs on.
    pub device: &'t Device,
    /// What the user says of single nodes.
    pub overrides: &'t Overrides,
    /// By node id.
    pub costs: &'t [Cost],
    /// What may run twice.
    pub recomputation: &'t Recomputation,
    /// How hard to search.
    pub effort: Effort,
    /// Who looks on, and may end the strategy with what it has.
    pub watch: Arc<Watch>,
    /// Who solves programs.
    pub solving: &'t Solving,
    /// What becomes of decisions.
    pub rewriting: Applying,
    /// What nodes may be replaced by; only this program's own search looks at it.
    pub joint: Option<&'t Joint>,
}

/// What rewriting makes of a decision: strategies measure by it what they plan, and edit no graph themselves.
#[derive(Clone, Copy)]
pub struct Applying {
    /// The graph in the plan's order with its copies, as it is written but for what enforces the order.
    pub with_copies: fn(&Graph, &Plan, &Recomputation) -> Graph,
    /// Replaces nodes.
    pub with_variants: fn(&mut Graph, &[(NodeId, &'static Variant)]) -> Replaced,
}

/// By node that was replaced: the nodes that stand where it stood, in the order in which they run.
pub type Replaced = Vec<(NodeId, Vec<NodeId>)>;

/// A graph in all its forms, with what the search needs to know of it.
pub struct Joint {
    /// The nodes of all forms.
    pub all_forms: Arc<AllForms>,
    /// By node of these.
    pub costs: Vec<Cost>,
    /// What may run twice of these.
    pub recomputation: Recomputation,
}

/// Why a strategy has no plan within a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unplanned {
    /// Nothing that it finds fits; this needs least.
    TooLarge(Plan),
    /// Whatever might fit adds too much.
    TooSlow,
    /// It does not deal with such graphs, as the text says.
    Refused(String),
}

/// Everything is [worth](Planner::smallest_few) a thorough look.
pub const EVERY: Bytes = Bytes(u64::MAX);

/// A strategy at work on one task.
pub trait Planner: Send {
    /// The cheapest plan it has whose largest need in the planned order is at most `budget`, what
    /// the caller owns and the runtime's objects for tensors included, its frame not.
    fn within(&mut self, budget: Bytes) -> Result<Plan, Unplanned>;

    /// The same, of plans that add less than `below` nanoseconds; what adds more need not be looked at.
    fn cheaper(&mut self, budget: Bytes, below: u64) -> Result<Plan, Unplanned> {
        match self.within(budget) {
            Ok(plan) | Err(Unplanned::TooLarge(plan)) if plan.added >= below => {
                Err(Unplanned::TooSlow)
            }
            found => found,
        }
    }

    /// Some plan within `budget`, made far more quickly; `None` if that is not possible.
    fn sketch(&mut self, _budget: Bytes) -> Option<Plan> {
        None
    }

    /// Some plan within `budget`, if one is found, as cheap as it is before it is improved.
    fn start(&mut self, budget: Bytes) -> Option<Plan> {
        self.within(budget).ok()
    }

    /// The plan with the smallest peak; or why such graphs are refused.
    fn smallest(&mut self) -> Result<Plan, String> {
        match self.within(Bytes::ZERO) {
            Ok(plan) | Err(Unplanned::TooLarge(plan)) => Ok(plan),
            Err(Unplanned::TooSlow) => Err("all of its plans take for ever".to_owned()),
            Err(Unplanned::Refused(reason)) => Err(reason),
        }
    }

    /// The smallest peak that a quick look finds; nothing where it takes no less work than [`Planner::smallest_few`].
    fn glance(&mut self) -> Option<Bytes> {
        None
    }

    /// The plan with the smallest peak, and others with small peaks for which the runtime may need less: it keeps an object for
    /// every tensor, and does not run every order. Where a quick look needs more than `worth`, it is left at that.
    fn smallest_few(&mut self, _worth: Bytes) -> Result<Vec<Plan>, String> {
        Ok(vec![self.smallest()?])
    }

    /// The smallest where nobody asked for it: what is found with little work will do.
    fn smallest_in_passing(&mut self) -> Result<Plan, String> {
        self.smallest()
    }

    /// What people should know about how the last plan was made, one sentence each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The strategy, ready to plan; `None` for [`Strategy::Auto`], which is the pipeline's own search.
pub fn planner<'t>(strategy: Strategy, task: &'t Task<'t>) -> Option<Box<dyn Planner + 't>> {
    use lower_set::Sequences::{Approximate, Exact};
    let lower_sets = |family, memory_centric| {
        let plans = lower_set::plans(task, family, memory_centric);
        Some(Box::new(PlanFamily::noted(task, plans, lower_set::say)) as Box<dyn Planner + 't>)
    };
    let plans = match strategy {
        Strategy::Auto => return None,
        Strategy::ChenSqrt => chen::sqrt(task),
        Strategy::ChenBudget => return Some(Box::new(chen::Budget::of(task))),
        Strategy::ChenRecursive => chen::recursive(task),
        Strategy::CheapOps => chen::cheap_ops(task),
        Strategy::LowerSetExactTime => return lower_sets(Exact, false),
        Strategy::LowerSetExactMemory => return lower_sets(Exact, true),
        Strategy::LowerSetApproxTime => return lower_sets(Approximate, false),
        Strategy::LowerSetApproxMemory => return lower_sets(Approximate, true),
        Strategy::GreedyRemat => return Some(Box::new(greedy_remat::Greedy::of(task))),
        Strategy::Knapsack => knapsack::plans(task),
        Strategy::PreciseDp | Strategy::UniformDp | Strategy::Revolve => {
            return Some(chain_planner::planner(strategy, task));
        }
        Strategy::JoinDp => return Some(join_dp_graph::planner(task)),
        Strategy::CheckmateIlp | Strategy::MonetIlp => return Some(ilp::planner(strategy, task)),
    };
    Some(Box::new(PlanFamily::of(task, plans)))
}

impl Task<'_> {
    /// This program's own search, with these first computations.
    pub(crate) fn search(&self, order: &[NodeId]) -> Search {
        self.relaxed_search(order).counting_objects(TENSOR)
    }

    /// The same for tensors that take nothing but their elements. What it says of the least added time holds
    /// however the runtime allocates the rest.
    pub(crate) fn relaxed_search(&self, order: &[NodeId]) -> Search {
        let (provider, effort) = (self.device.provider, self.effort);
        let search = match self.joint {
            Some(joint) => {
                let (costs, rules) = (&joint.costs, &joint.recomputation);
                let alternatives = joint.all_forms.clone();
                Search::joint(alternatives, order, provider, costs, rules, effort)
            }
            None => {
                let rules = self.recomputation;
                Search::new(self.run, order, provider, self.costs, rules, effort)
            }
        };
        let search = match self.runtime.keeps_results_apart() {
            true => search.with_outputs_apart(),
            false => search,
        };
        search.watched(self.watch.clone())
    }

    /// The plan in which nothing runs twice.
    pub fn without_copies(&self) -> Plan {
        Plan {
            sequence: self.order.to_vec(),
            ..Plan::default()
        }
    }

    /// Nanoseconds that the plan's copies add, without a simulation.
    pub fn copies_time(&self, plan: &Plan) -> u64 {
        let copies = plan.sequence.iter().zip(plan.copies());
        let times = copies.filter(|copy| copy.1).map(|(&id, _)| {
            let cost = self.recomputation.copy_cost(id);
            cost.unwrap_or(self.costs[id.index()]).time.0
        });
        times.fold(0, u64::saturating_add)
    }

    /// Simulates the plan as it would be written, in its own order, and sets its predicted peak and what its copies add.
    pub fn judge(&self, plan: Plan) -> Plan {
        let graph = (self.rewriting.with_copies)(self.graph, &plan, self.recomputation);
        let costs = costs(&graph, self.device, self.overrides);
        let liveness = Liveness::in_file_order(&graph, self.device.provider, &costs);
        let new = (self.graph.node_count()..graph.node_count()).map(|id| costs[id].time.0);
        Plan {
            predicted_peak: liveness.peak_with_objects(),
            added: new.fold(0, u64::saturating_add),
            ..plan
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
