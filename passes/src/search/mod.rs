//! The schedule search: which nodes run again, and when.
//!
//! It decides on a `problem::Problem`; graphs are read in `problem`, `fused`, `first_order` and `all_forms` alone, and none that is
//! written is changed.

mod all_forms;
mod bound;
mod evict_many;
mod exact;
mod first_order;
mod fused;
mod greedy;
mod late_results;
mod moves;
mod neighbourhood;
mod postpone;
mod problem;
mod profile;
mod prune;
#[cfg(test)]
mod random_copies;
mod reversal;
mod rounds;
mod smallest;
mod starts;
mod state;
pub(crate) mod tuning;

use std::collections::HashMap;
use std::sync::Arc;

use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::cost::Cost;
use crate::graph::{Graph, NodeId};
use crate::operators::Provider;
use crate::plan::Plan;
use crate::program::{Limits, Solver};
use crate::watch::Watch;

pub use all_forms::AllForms;
pub use first_order::first_orders;
pub(crate) use fused::RewrittenRun;

use bound::Rounds;
use problem::{Problem, Step, StepInfo};
use profile::Exponent;
use starts::{Rough, Starts};
use state::{Copy, Decisions, State};

/// How hard to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// The seed of everything random.
    pub seed: u64,
    /// Evaluated moves in all; the search ends by this count, never by a clock.
    pub evaluations: u64,
}

/// A search over one graph, one order of first computations, and one table of costs.
pub struct Search {
    problem: Problem,
    /// What the problem's sites are; `None` if there is nothing to choose.
    all_forms: Option<Arc<AllForms>>,
    effort: Effort,
    /// Schedules that others found.
    given: Vec<FoundSchedule>,
    /// Does another search begin from nothing in the same order?
    is_second: bool,
    /// Schedules for very little memory, by how they were made; none before they are needed.
    frugal: Vec<Vec<FoundSchedule>>,
    smallest: Option<FoundSchedule>,
    /// The same with little work.
    small: Option<FoundSchedule>,
    starts: Option<Starts>,
    /// What came of the starts of a rough estimate.
    rough: Option<Rough>,
}

/// What an exact program says.
#[derive(Clone, Debug)]
pub struct Solved {
    /// The best plan found, simulated, and the nanoseconds that it adds.
    pub plan: Option<(Plan, u64)>,
    /// Nanoseconds that every plan adds which fits; infinite if none does.
    pub bound: f64,
}

/// Why nothing is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// Nothing fits.
    TooLarge,
    /// What may fit adds too much.
    TooSlow,
}

/// A schedule by what it decides.
#[derive(Clone, Debug, Default)]
struct FoundSchedule {
    peak: f64,
    cost: u64,
    decisions: Decisions,
}

impl FoundSchedule {
    fn of(state: &State<'_>) -> FoundSchedule {
        FoundSchedule {
            peak: state.peak(),
            cost: state.cost(),
            decisions: state.decisions(),
        }
    }
}

/// Independent neighbourhood searches, each from another start, whatever the number of processors.
const CHAINS: u64 = 4;

impl Search {
    /// Prepares the search. `order` is the order of first computations; costs are by node id.
    pub fn new(
        graph: &Graph,
        order: &[NodeId],
        provider: Provider,
        costs: &[Cost],
        recomputation: &Recomputation,
        effort: Effort,
    ) -> Search {
        let problem = Problem::new(graph, order, provider, costs, recomputation);
        Search::of(problem, None, effort)
    }

    /// Prepares the search for copies and variants together. `order` is the original's order of
    /// first computations; costs and rules are by node of [`AllForms::graph`].
    pub fn joint(
        all_forms: Arc<AllForms>,
        order: &[NodeId],
        provider: Provider,
        costs: &[Cost],
        recomputation: &Recomputation,
        effort: Effort,
    ) -> Search {
        let problem = Problem::joint(&all_forms, order, provider, costs, recomputation);
        Search::of(problem, Some(all_forms), effort)
    }

    /// Prepares what a lower bound needs for plans that the runtime runs with these fused nodes in this order, and nothing else.
    pub(crate) fn fused(plan: RewrittenRun<'_>, effort: Effort) -> Search {
        Search::of(Problem::fused(plan), None, effort)
    }

    fn of(problem: Problem, all_forms: Option<Arc<AllForms>>, effort: Effort) -> Search {
        let steps = problem.steps.len() as u64;
        let pairs = steps.saturating_mul(steps);
        let most = pairs.saturating_mul(tuning::SEARCH.evaluations_per_pair);
        let effort = Effort {
            evaluations: effort.evaluations.min(most),
            ..effort
        };
        Search {
            problem,
            all_forms,
            effort,
            given: Vec::new(),
            is_second: false,
            frugal: Vec::new(),
            smallest: None,
            small: None,
            starts: None,
            rough: None,
        }
    }

    /// The same search, in which every tensor takes `object` bytes besides its elements.
    pub fn counting_objects(mut self, object: Bytes) -> Search {
        self.problem.count_objects(object);
        self
    }

    /// The same search, in which the graph's outputs lie apart from everything else: see [`Runtime::keeps_results_apart`](crate::runtime::Runtime::keeps_results_apart).
    pub fn with_outputs_apart(mut self) -> Search {
        self.problem.set_outputs_apart();
        self
    }

    /// The same search, seen and ended from outside.
    pub fn watched(mut self, watch: Arc<Watch>) -> Search {
        self.problem.watch = watch;
        self
    }

    /// Leaves descents for the smallest peak that begin from nothing to another search in the same order.
    pub fn descend_from_given(&mut self) {
        self.is_second = true;
    }

    /// Starts from this plan as well, or from what it is with this search's first computations.
    pub fn start_from(&mut self, plan: &Plan) {
        let mut step_of: HashMap<NodeId, Step> = HashMap::new();
        let order = self.problem.order.iter().enumerate();
        step_of.extend(order.map(|(step, &id)| (id, step as Step)));
        let mut copies = Vec::new();
        let mut before = Step::MAX;
        for (id, is_copy) in plan.sequence.iter().zip(plan.copies()).rev() {
            let Some(&node) = step_of.get(id) else {
                continue;
            };
            if !is_copy {
                before = node;
            } else if node < before
                && before != Step::MAX
                && self.problem.steps[node as usize].recomputable
            {
                copies.push(Copy { node, before });
            }
        }
        copies.sort_unstable();
        copies.dedup();
        let mut state = State::new(&self.problem, 0.0, Exponent::One);
        state.apply(&copies);
        let found = FoundSchedule::of(&state);
        let is_known = |given: &FoundSchedule| given.decisions == found.decisions;
        if !self.given.iter().any(is_known) {
            self.smallest.take_if(|smallest| found.peak < smallest.peak);
            self.small.take_if(|small| found.peak < small.peak);
            self.starts = None;
            self.given.push(found);
        }
    }

    /// What is left of `budget` for what the search decides on.
    fn target(&self, budget: Bytes) -> f64 {
        (budget - self.problem.fixed).0 as f64
    }

    /// What a schedule of that cost adds to the step as it is; nothing if its variants save time.
    fn added(&self, cost: u64) -> u64 {
        cost.saturating_sub(self.problem.head_start())
    }

    /// Nanoseconds that every schedule with these forms adds.
    fn bound_of(&self, decisions: &Decisions, budget: Bytes, added: u64) -> u64 {
        if self.problem.sites.is_empty() {
            return self.bound_in(budget, added, Rounds::Few);
        }
        let decided = self.problem.decided(&decisions.forms);
        let longer = decided.time() - self.problem.time();
        let copies = added as f64 - longer;
        let search = Search::of(decided, None, self.effort);
        let bound = search.bound_in(budget, copies.max(0.0) as u64, Rounds::Few);
        (bound as f64 + longer).max(0.0) as u64
    }

    /// Nanoseconds that every schedule within `budget` adds which keeps the order of first
    /// computations, the nodes being as they are; `known` is what one such schedule adds.
    pub fn lower_bound(&self, budget: Bytes, known: u64) -> u64 {
        self.bound_in(budget, known, Rounds::Many)
    }

    fn bound_in(&self, budget: Bytes, known: u64, rounds: Rounds) -> u64 {
        if self.problem.is_large() && self.problem.watch.is_stopped() {
            // Nothing is known.
            return 0;
        }
        let target = self.target(budget);
        bound::lower_bound(&self.problem, &self.memory(), target, known, rounds)
    }

    /// What [`Search::lower_bound`] says, by a solver, which may prove more: with the exact program for small graphs, with
    /// whole gaps and with periods for others.
    pub fn certified_bound(
        &self,
        budget: Bytes,
        known: u64,
        solver: &dyn Solver,
        limits: Limits,
    ) -> u64 {
        let target = self.target(budget);
        let simple = self.lower_bound(budget, known);
        let memory = self.memory();
        let whole = bound::whole_bound(&self.problem, &memory, target, known, solver, limits);
        if self.problem.steps.iter().any(|step| step.fused) {
            // It tells what runs when, and not all that runs with it.
            return simple.max(whole);
        }
        let periods = bound::period_bound(&self.problem, &memory, target, known, solver, limits);
        let best = simple.max(whole).max(periods);
        if best == known || self.problem.steps.len() > Search::MOST_STEPS_CERTIFIED {
            return best;
        }
        let solved = exact::solve(&self.problem, target, Some(known), solver, limits);
        // A float above u64::MAX becomes u64::MAX.
        let exact = (solved.bound * (1.0 - 1e-6)) as u64;
        best.max(exact).min(known)
    }

    /// No schedule needs less, whatever runs twice, in whichever order and forms: what the caller owns, and what one node
    /// reads, writes and works with. And that node.
    pub fn floor(&self) -> (Bytes, Option<NodeId>) {
        let (most, step) = self.problem.neediest();
        let node = step.map(|step| self.problem.order[step as usize]);
        (self.problem.fixed + Bytes(most as u64), node)
    }

    /// Up to so many nodes, [`Search::certified_bound`] uses the exact program.
    pub const MOST_STEPS_CERTIFIED: usize = 60;

    /// By step: its need without copies.
    fn memory(&self) -> Vec<f64> {
        let state = State::new(&self.problem, f64::MAX, Exponent::One);
        let steps = self.problem.steps.iter().zip(0..);
        let need = |(info, step): (&StepInfo, Step)| match info.fused {
            true => 0.0,
            false => state.memory(step),
        };
        steps.map(need).collect()
    }

    /// The cheapest plan within `budget` by the exact 0-1 program, and the nanoseconds that every
    /// plan adds. With `below`, only plans that add less are looked for. `None` if the graph has
    /// more than [`Search::MOST_STEPS_SOLVED`] nodes.
    pub fn solve(
        &self,
        budget: Bytes,
        below: Option<u64>,
        solver: &dyn Solver,
        limits: Limits,
    ) -> Option<Solved> {
        if self.problem.steps.len() > Search::MOST_STEPS_SOLVED {
            return None;
        }
        let target = self.target(budget);
        let solved = exact::solve(&self.problem, target, below, solver, limits);
        Some(Solved {
            plan: solved
                .found
                .map(|(copies, added)| (self.plan(&of_copies(copies)), added)),
            bound: solved.bound,
        })
    }

    /// See [`Search::solve`].
    pub const MOST_STEPS_SOLVED: usize = exact::MOST_STEPS;

    /// The work of one descent: more for a large graph, which takes more moves.
    fn limit(&self, per_step: u64) -> u64 {
        let steps = self.problem.steps.len() as u64;
        self.effort.evaluations.max(steps * per_step)
    }

    /// The plan in which nothing is computed twice.
    pub fn without_copies(&self) -> Plan {
        self.plan(&Decisions::default())
    }

    fn plan(&self, decisions: &Decisions) -> Plan {
        let mut state = State::new(&self.problem, f64::MAX, Exponent::One);
        neighbourhood::restore(&mut state, decisions);
        let copies = decisions.copies.len();
        let mut sequence = Vec::with_capacity(self.problem.steps.len() + copies);
        for step in 0..self.problem.steps.len() as Step {
            let mut group: Vec<Step> = Vec::new();
            for &node in state.group(step) {
                group.push(node);
                // A copy's aliases come with it, where the original alias has run before.
                let aliases = &self.problem.aliases_of[node as usize];
                let ran = |&&alias: &&Step| alias < step && state.is_active(alias);
                group.extend(aliases.iter().filter(ran));
            }
            group.sort_unstable();
            if state.is_active(step) {
                group.push(step);
            }
            sequence.extend(group.iter().map(|&node| self.problem.order[node as usize]));
        }
        let mut variants = Vec::new();
        if let Some(all_forms) = &self.all_forms {
            let (numbers, chosen) = all_forms.chosen(&decisions.forms);
            for id in &mut sequence {
                *id = numbers[id.index()];
            }
            variants = chosen;
        }
        Plan {
            sequence,
            predicted_peak: self.problem.fixed + Bytes(state.peak() as u64),
            added: self.added(state.cost()),
            variants,
        }
    }
}

fn of_copies(copies: Vec<Copy>) -> Decisions {
    let forms = Vec::new();
    Decisions { copies, forms }
}

#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod tests;
