//! The schedule search: which nodes run again, and when.
//!
//! Everything here sees a `problem::Problem`, never a graph, and decides; it edits nothing.

mod alternatives;
mod bound;
mod bulk;
mod exact;
mod first_order;
mod greedy;
mod moves;
mod neighbourhood;
mod postpone;
mod problem;
mod profile;
mod prune;
mod random;
mod reversal;
mod state;

use std::collections::HashMap;
use std::sync::Arc;

use crate::analysis::cost::Cost;
use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId};
use crate::operators::Provider;
use crate::parallel;
use crate::plan::Plan;
use crate::program::{Limits, Solver};
use crate::watch::{Best, Watch};

pub use alternatives::Alternatives;
pub use first_order::first_orders;

use bound::Rounds;
use greedy::{Reached, greedy};
use problem::{Form, Problem, Step};
use profile::Exponent;
use prune::prune;
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
    alternatives: Option<Arc<Alternatives>>,
    effort: Effort,
    /// Schedules that others found.
    given: Vec<Found>,
    /// Schedules for very little memory, by how they were made; none before they are needed.
    frugal: Vec<Vec<Found>>,
    smallest: Option<Found>,
    /// The same with little work.
    small: Option<Found>,
    starts: Option<Starts>,
    /// What came of the starts of a rough estimate.
    rough: Option<Rough>,
}

/// Starts for a target, and what came of them.
struct Rough {
    target: f64,
    found: Vec<(Start, Option<Found>)>,
}

/// The cheapest schedules known within a budget, the best first.
struct Starts {
    budget: Bytes,
    found: Vec<Found>,
    /// Have they, or those that they come from, been through the neighbourhood search?
    improved: bool,
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
struct Found {
    peak: f64,
    cost: u64,
    decisions: Decisions,
}

impl Found {
    /// Is any node replaced?
    fn has_variants(&self) -> bool {
        self.decisions.forms.iter().any(|&form| form != 0)
    }

    fn of(state: &State<'_>) -> Found {
        Found {
            peak: state.peak(),
            cost: state.cost(),
            decisions: state.decisions(),
        }
    }
}

/// Where a search begins.
#[derive(Clone, Debug, PartialEq)]
enum Start {
    /// Without copies.
    Greedy(Exponent),
    /// The same, and with the nodes as they are: variants that save at once can be in the way.
    Frozen(Exponent),
    /// With everything up to that price computed again.
    Plenty(f64),
    /// With these decisions.
    From(Decisions),
}

/// What the greedy search begins with, each by itself.
const EXPONENTS: [Exponent; 3] = [Exponent::One, Exponent::Half, Exponent::Two];

/// Independent neighbourhood searches, each from another start, whatever the number of processors.
const CHAINS: u64 = 4;

/// How much each neighbourhood search may distort its scores: little finds what is near, much
/// finds what is not.
const NOISE: [f64; 2] = [0.6, 5.0];

/// A budget this much below one that is known has the same starts: the pipeline aims a little
/// lower when the runtime's order needs more than the plan's.
const NEAR: f64 = 0.98;

/// In so many rounds the neighbourhood searches use up their effort; each begins from the best of
/// the round before.
const ROUNDS: u64 = 2;

/// So many rounds there are at most, while the gap is wide.
const MOST_ROUNDS: u64 = 5;

/// A gap this narrow is not worth another round.
const GAP: f64 = 0.0075;

/// Neither is one where the last round gained no more than this part of a step's time.
const GAIN: f64 = 0.0001;

/// However wide the gap is, after so many rounds that gained nothing there are no more.
const MOST_IDLE: u32 = 2;

/// A gap this narrow is not worth any.
const CLOSED: f64 = 0.0005;

/// A search that has to add less than something is given up where its best rough start would have to lose more than
/// this part of its gap for that, ...
const ROUGH_HOPE: f64 = 0.75;

/// ... its best start this part, ...
const HOPE: f64 = 0.5;

/// ... or what came of a round this one.
const LATE_HOPE: f64 = 0.25;

/// So many of the best they go on from.
const BEST: usize = 2;

/// What has been improved for a budget near by is searched again for this part of the effort.
const AGAIN: u64 = 4;

/// A greedy search for a small peak may evaluate so much for each step, ...
const WORK_PER_STEP: u64 = 500;

/// ... one for a budget so much: of 100,000 nodes, 300 to 460 for each were needed; ...
const START_PER_STEP: u64 = 1000;

/// ... and one of those that mostly are beaten so much: where they take more they are.
const OTHER_PER_STEP: u64 = 300;

/// In a small graph those may evaluate one of so many parts of the effort.
const OTHER: u64 = 10;

/// An exponent, a stride, and work; see [`DESCENTS`].
type Descent = (Exponent, f64, u64);

/// How to look for the smallest peak: the exponent; the part of the way to the structural bound
/// to take at first (what is aimed low from the beginning ends elsewhere than what gets there by and
/// by); and the work, as a multiple of that of a neighbourhood search.
const DESCENTS: [Descent; 3] = [
    (Exponent::One, 0.5, 2),
    (Exponent::One, 1.0, 2),
    (Exponent::Two, 1.0, 1),
];

/// A look at how little memory is possible takes one of so many parts of a descent's work.
const SMALL: u64 = 8;

/// For a rough estimate it begins with so few prices.
const ROUGH: usize = 2;

/// A chain is reversed with up to so many checkpoints; with more the other starts do as well. In a large graph, which
/// has fewer of those, it is reversed with twice as many and so on instead.
const MOST_CHECKPOINTS: usize = 32;

/// A descent ends when it is stuck at strides of this size.
const SHORTEST_STRIDE: f64 = 0.01;

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
    /// first computations; costs and rules are by node of [`Alternatives::graph`].
    pub fn joint(
        alternatives: Arc<Alternatives>,
        order: &[NodeId],
        provider: Provider,
        costs: &[Cost],
        recomputation: &Recomputation,
        effort: Effort,
    ) -> Search {
        let problem = Problem::joint(&alternatives, order, provider, costs, recomputation);
        Search::of(problem, Some(alternatives), effort)
    }

    fn of(problem: Problem, alternatives: Option<Arc<Alternatives>>, effort: Effort) -> Search {
        Search {
            problem,
            alternatives,
            effort,
            given: Vec::new(),
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

    /// The same search, seen and ended from outside.
    pub fn watched(mut self, watch: Arc<Watch>) -> Search {
        self.problem.watch = watch;
        self
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
        let found = Found::of(&state);
        let is_known = |given: &Found| given.decisions == found.decisions;
        if !self.given.iter().any(is_known) {
            self.smallest.take_if(|smallest| found.peak < smallest.peak);
            self.small.take_if(|small| found.peak < small.peak);
            // What has been improved has had its start.
            self.starts.take_if(|starts| !starts.improved);
            self.given.push(found);
        }
    }

    /// The plan with the smallest peak that is found.
    pub fn smallest(&mut self) -> Plan {
        let found = self.find_smallest().decisions.clone();
        self.plan(&found)
    }

    /// A plan with a small peak, found with a part of the work.
    pub fn small(&mut self) -> Plan {
        if self.smallest.is_some() {
            return self.smallest();
        }
        if self.small.is_none() {
            self.find_frugal();
            self.small = Some(self.look_for_smallest(&DESCENTS[..1], SMALL));
        }
        let found = self.small.as_ref().map(|small| small.decisions.clone());
        self.plan(&found.unwrap_or_default())
    }

    /// Nanoseconds that the cheapest start within `budget` adds, before it is improved; `None` if
    /// there is none. Whatever [`Search::smallest`] reaches is found.
    pub fn estimate(&mut self, budget: Bytes) -> Option<u64> {
        let known = self.starts.as_ref();
        if known.is_none_or(|starts| starts.budget != budget) {
            self.starts = Some(self.find_starts(budget));
        }
        let cost = self.starts.as_ref()?.found.first()?.cost;
        Some(self.added(cost))
    }

    /// The cheapest start within `budget`, before it is improved; `None` if there is none.
    pub fn begin(&mut self, budget: Bytes) -> Option<Plan> {
        self.estimate(budget)?;
        let decisions = self.starts.as_ref()?.found.first()?.decisions.clone();
        Some(self.plan(&decisions))
    }

    /// What a part of the starts adds at least: for a comparison with other searches.
    pub fn rough_estimate(&mut self, budget: Bytes) -> Option<u64> {
        let target = self.target(budget);
        if target < self.problem.structural_bound() {
            return None;
        }
        let mut starts = vec![Start::Greedy(Exponent::One)];
        if !self.problem.is_large() {
            let prices = bulk::prices(&self.problem).into_iter();
            starts.extend(prices.take(ROUGH).map(Start::Plenty));
        }
        let found = parallel::map(&starts, |start| self.start(start, target));
        let least = found.iter().flatten().map(|found| found.cost).min();
        let found = starts.into_iter().zip(found).collect();
        self.rough = Some(Rough { target, found });
        Some(self.added(least?))
    }

    /// A plan within `budget` made with as little work as can be.
    pub fn sketch(&self, budget: Bytes) -> Option<Plan> {
        let target = self.target(budget);
        if target < self.problem.structural_bound() {
            return None;
        }
        let found = self.start(&Start::Greedy(Exponent::One), target)?;
        Some(self.plan(&found.decisions))
    }

    fn find_starts(&mut self, budget: Bytes) -> Starts {
        let target = self.target(budget);
        if target < self.problem.structural_bound() {
            return Starts {
                budget,
                found: Vec::new(),
                improved: false,
            };
        }
        let near = self.starts.take().filter(|known| {
            known.improved && budget <= known.budget && target >= self.target(known.budget) * NEAR
        });
        let improved = near.is_some();
        let mut starts: Vec<Start> = match near {
            Some(known) => known
                .found
                .into_iter()
                .map(|f| Start::From(f.decisions))
                .collect(),
            None if self.problem.is_large() => vec![Start::Greedy(Exponent::One)],
            None => {
                let plenty = bulk::prices(&self.problem).into_iter().map(Start::Plenty);
                EXPONENTS
                    .map(Start::Greedy)
                    .into_iter()
                    .chain(plenty)
                    .collect()
            }
        };
        let mut known: Vec<&Found> = Vec::new();
        if !improved {
            let given = self.given.iter().chain(self.frugal.iter().flatten());
            let given = given.filter(|given| given.peak <= target);
            known.extend(given.min_by_key(|given| given.cost));
        }
        let smallest = self.smallest.as_ref().or(self.small.as_ref());
        known.extend(smallest.filter(|smallest| smallest.peak <= target));
        let mut found = Vec::new();
        if self.problem.is_large() && !improved {
            // What is known takes much longer to prune than the greedy search takes in all, and what is dearer as it
            // is hardly ever ends cheaper.
            found = self.found(&starts, target);
            starts.clear();
            let best = found.first().map_or(u64::MAX, |best| best.cost);
            known.retain(|known| known.cost < best);
        }
        let known = known.into_iter().map(|known| known.decisions.clone());
        starts.extend(known.map(Start::From));
        let tried = self.each(&starts, target);
        // Where no variant was taken, the same is found without them.
        let differs = |exponent: &Exponent| {
            let greedy = Start::Greedy(*exponent);
            let of = starts.iter().position(|start| *start == greedy);
            of.is_some_and(|of| tried[of].as_ref().is_none_or(Found::has_variants))
        };
        let frozen = EXPONENTS.into_iter().filter(differs);
        let frozen: Vec<Start> = match self.problem.is_large() || self.problem.sites.is_empty() {
            true => Vec::new(),
            false => frozen.map(Start::Frozen).collect(),
        };
        found.extend(tried.into_iter().flatten());
        found.extend(self.each(&frozen, target).into_iter().flatten());
        found = cheapest(found);
        if found.is_empty() && self.smallest.is_none() && self.find_smallest().peak <= target {
            let smallest = Start::From(self.find_smallest().decisions.clone());
            found = self.found(&[smallest], target);
        }
        Starts {
            budget,
            found,
            improved,
        }
    }

    /// What comes of each of the starts.
    fn each(&self, starts: &[Start], target: f64) -> Vec<Option<Found>> {
        let rough = self.rough.as_ref().filter(|rough| rough.target == target);
        let rough = rough.map_or(&[][..], |rough| &rough.found);
        parallel::map(starts, |start| {
            match rough.iter().find(|(other, _)| other == start) {
                Some((_, found)) => found.clone(),
                None => self.start(start, target),
            }
        })
    }

    /// The cheapest of what comes of the starts.
    fn found(&self, starts: &[Start], target: f64) -> Vec<Found> {
        cheapest(self.each(starts, target).into_iter().flatten().collect())
    }

    /// What is left of `budget` for what the search decides on.
    fn target(&self, budget: Bytes) -> f64 {
        (budget - self.problem.fixed).0 as f64
    }

    /// The cheapest plan found whose every step stays within `budget`, what the caller owns
    /// included; `None` if none is found.
    pub fn within(&mut self, budget: Bytes) -> Option<Plan> {
        self.cheaper(budget, u64::MAX).ok()
    }

    /// The same, if it adds less than `below` nanoseconds; given up when that is far off.
    pub fn cheaper(&mut self, budget: Bytes, below: u64) -> Result<Plan, Missed> {
        let within = self.improve_within(budget, below);
        let found = within.ok_or(Missed::TooLarge)?;
        match self.added(found.cost) < below {
            true => Ok(self.plan(&found.decisions)),
            false => Err(Missed::TooSlow),
        }
    }

    /// The best schedule found, not improved further when it is far from adding less than `below`.
    fn improve_within(&mut self, budget: Bytes, below: u64) -> Option<Found> {
        let target = self.target(budget);
        let mut bounds = Vec::new();
        if below < u64::MAX && self.starts.is_none() {
            let known = self.rough.as_ref().map(|rough| rough.target);
            if known != Some(target) {
                // Where it finds nothing the other starts may.
                let _ = self.rough_estimate(budget);
            }
            let rough = self.rough.iter().filter(|rough| rough.target == target);
            let found = rough.flat_map(|rough| &rough.found);
            let best = found.filter_map(|(_, found)| found.as_ref());
            if let Some(best) = best.min_by_key(|found| found.cost).cloned()
                && self.is_far(budget, &best, below, ROUGH_HOPE, &mut bounds)
            {
                return Some(best);
            }
        }
        self.estimate(budget)?;
        let starts = self.starts.as_ref()?;
        let mut found = starts.found.clone();
        let (effort, rounds, most) = match starts.improved {
            true => (self.effort.evaluations / AGAIN, 1, 1),
            false => (self.effort.evaluations, ROUNDS, MOST_ROUNDS),
        };
        let mut given_up = false;
        let mut before: Option<u64> = None;
        let mut idle = 0;
        for round in 0..most {
            let worth = if round < rounds { CLOSED } else { GAP };
            let best = found.first()?;
            let hope = if round == 0 { HOPE } else { LATE_HOPE };
            given_up = self.is_far(budget, best, below, hope, &mut bounds);
            if given_up {
                break;
            }
            let gap = self.gap(budget, best, &mut bounds);
            let gained = before.replace(best.cost).map_or(f64::MAX, |before| {
                (before - best.cost) as f64 / self.problem.time()
            });
            idle = if gained > 0.0 { 0 } else { idle + 1 };
            if gap <= worth || gap <= GAP && gained < GAIN || idle == MOST_IDLE {
                break;
            }
            let chains: Vec<u64> = (0..CHAINS).collect();
            let improved = parallel::map(&chains, |&chain| {
                let from = &found[chain as usize % found.len()];
                let mut state = State::new(&self.problem, target, Exponent::One);
                neighbourhood::restore(&mut state, &from.decisions);
                let seed = self.effort.seed.wrapping_mul(most).wrapping_add(round);
                let seed = seed.wrapping_mul(CHAINS).wrapping_add(chain);
                let noise = NOISE[chain as usize % NOISE.len()];
                neighbourhood::improve(&mut state, seed, noise, effort / rounds);
                self.problem.watch.count(state.evaluations());
                Found::of(&state)
            });
            found.extend(improved);
            found.sort_by_key(|found| found.cost);
            found.dedup_by(|a, b| a.decisions == b.decisions);
            found.truncate(BEST);
        }
        let best = found.first()?.clone();
        self.starts = Some(Starts {
            budget,
            found,
            improved: !given_up,
        });
        Some(best)
    }

    /// Would the search have to close more than the `hope`d for part of the gap to add less than `below`?
    fn is_far(
        &self,
        budget: Bytes,
        found: &Found,
        below: u64,
        hope: f64,
        bounds: &mut Vec<(Vec<Form>, u64)>,
    ) -> bool {
        let added = self.added(found.cost);
        if below == u64::MAX || added < below {
            return false;
        }
        let bound = self.bound_for(budget, found, bounds);
        (added - below) as f64 > hope * (added - bound) as f64
    }

    /// By how much a step with that schedule may be too long, as a part. Bounds for forms that were seen are
    /// looked up.
    fn gap(&self, budget: Bytes, found: &Found, bounds: &mut Vec<(Vec<Form>, u64)>) -> f64 {
        let once = self.problem.time();
        let added = self.added(found.cost);
        let bound = self.bound_for(budget, found, bounds);
        self.problem.watch.show(Best {
            added,
            least: bound,
            step: once as u64,
        });
        (once + added as f64) / (once + bound as f64).max(1.0) - 1.0
    }

    /// Nanoseconds that every schedule with the forms of `found` adds, at most what that does.
    fn bound_for(&self, budget: Bytes, found: &Found, bounds: &mut Vec<(Vec<Form>, u64)>) -> u64 {
        let added = self.added(found.cost);
        let forms = &found.decisions.forms;
        let known = bounds.iter().find(|(of, _)| of == forms);
        let bound = known.map(|&(_, bound)| bound.min(added));
        bound.unwrap_or_else(|| {
            let bound = self.bound_of(&found.decisions, budget, added).min(added);
            bounds.push((forms.clone(), bound));
            bound
        })
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
        let target = self.target(budget);
        bound::lower_bound(&self.problem, &self.memory(), target, known, rounds)
    }

    /// What [`Search::lower_bound`] says, by a solver, which may prove more: with the exact program for small graphs, with
    /// whole gaps for others.
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
        let best = simple.max(whole);
        if best == known || self.problem.steps.len() > Search::MOST_STEPS_CERTIFIED {
            return best;
        }
        let solved = exact::solve(&self.problem, target, Some(known), solver, limits);
        // A float above u64::MAX becomes u64::MAX.
        let exact = (solved.bound * (1.0 - 1e-6)) as u64;
        best.max(exact).min(known)
    }

    /// Up to so many nodes, [`Search::certified_bound`] uses the exact program.
    pub const MOST_STEPS_CERTIFIED: usize = 60;

    /// By step: its need without copies.
    fn memory(&self) -> Vec<f64> {
        let state = State::new(&self.problem, f64::MAX, Exponent::One);
        let steps = 0..self.problem.steps.len() as Step;
        steps.map(|step| state.memory(step)).collect()
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

    fn start(&self, start: &Start, target: f64) -> Option<Found> {
        let exponent = match start {
            Start::Greedy(exponent) | Start::Frozen(exponent) => *exponent,
            Start::Plenty(_) | Start::From(_) => Exponent::One,
        };
        let mut state = State::new(&self.problem, target, exponent);
        match start {
            Start::Greedy(_) => {}
            Start::Frozen(_) => state.freeze(true),
            Start::Plenty(price) => {
                bulk::evict_below(&mut state, *price);
                if state.all_copies().is_empty() {
                    return None;
                }
            }
            Start::From(decisions) => neighbourhood::restore(&mut state, decisions),
        }
        let limit = match start {
            Start::Greedy(Exponent::One | Exponent::Half) | Start::From(_) => {
                self.limit(START_PER_STEP)
            }
            Start::Greedy(Exponent::Two) | Start::Frozen(_) | Start::Plenty(_) => {
                let steps = self.problem.steps.len() as u64;
                (self.effort.evaluations / OTHER).max(steps * OTHER_PER_STEP)
            }
        };
        let reached = greedy(&mut state, &mut None, limit);
        if reached == Reached::Budget {
            prune(&mut state, limit);
        }
        self.problem.watch.count(state.evaluations());
        (reached == Reached::Budget).then(|| Found::of(&state))
    }

    /// The work of one descent: more for a large graph, which takes more moves.
    fn limit(&self, per_step: u64) -> u64 {
        let steps = self.problem.steps.len() as u64;
        self.effort.evaluations.max(steps * per_step)
    }

    fn find_smallest(&mut self) -> &Found {
        if self.smallest.is_none() {
            self.find_frugal();
            let descents = match self.problem.is_large() {
                true => &DESCENTS[..1],
                false => &DESCENTS[..],
            };
            self.smallest = Some(self.look_for_smallest(descents, 1));
        }
        self.smallest.as_ref().expect("just set")
    }

    fn find_frugal(&mut self) {
        if self.frugal.is_empty() {
            self.frugal = self.look_for_frugal();
        }
    }

    /// Each descent takes one of so many `parts` of its work.
    fn look_for_smallest(&self, descents: &[Descent], parts: u64) -> Found {
        let least = |of: &'_ [Found]| -> Option<Found> {
            let least = of.iter().min_by(|a, b| a.peak.total_cmp(&b.peak));
            least.cloned()
        };
        let given = [least(&self.given)]
            .into_iter()
            .chain(self.frugal.iter().map(|of| least(of)));
        let from_given = given.flatten().map(|found| (descents[0], found));
        let from_nothing = descents.iter().map(|&descent| (descent, Found::default()));
        let descents: Vec<(Descent, Found)> = from_nothing.chain(from_given).collect();
        let found = parallel::map(&descents, |((exponent, stride, work), from)| {
            self.descend(
                &from.decisions,
                *exponent,
                *stride,
                self.limit(WORK_PER_STEP) * work / parts,
            )
        });
        let least = found.into_iter().min_by(|a, b| {
            let by_peak = a.peak.total_cmp(&b.peak);
            by_peak.then(a.cost.cmp(&b.cost))
        });
        least.unwrap_or_default()
    }

    /// Schedules for very little memory: with everything cheap computed again, and as a chain is
    /// reversed with few checkpoints.
    fn look_for_frugal(&self) -> Vec<Vec<Found>> {
        let evaluate = |fill: &dyn Fn(&mut State<'_>)| {
            let mut state = State::new(&self.problem, 0.0, Exponent::One);
            fill(&mut state);
            Found::of(&state)
        };
        // The first of the steps that need most.
        let memory = self.memory().into_iter().enumerate().rev();
        let turn = memory
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map_or(0, |turn| turn.0);
        let chain = reversal::Chain::of(&self.problem, turn as Step);
        let prices = match self.problem.is_large() {
            true => Vec::new(),
            false => bulk::prices(&self.problem),
        };
        let cheap = parallel::map(&prices, |&price| {
            evaluate(&|state| bulk::evict_below(state, price))
        });
        let few = 1..=MOST_CHECKPOINTS;
        let twice = |&checkpoints: &usize| Some(2 * checkpoints);
        let many = std::iter::successors(Some(2 * MOST_CHECKPOINTS), twice);
        let many = many.take_while(|&checkpoints| checkpoints < chain.len());
        let checkpoints: Vec<usize> = match self.problem.is_large() {
            true => many.collect(),
            false => few.collect(),
        };
        let reversed = parallel::map(&checkpoints, |&checkpoints| {
            let copies = chain.copies(checkpoints)?;
            Some(evaluate(&|state| {
                state.apply(&copies);
            }))
        });
        vec![cheap, reversed.into_iter().flatten().collect()]
    }

    /// Aims lower and lower, each time from where it is; where the greedy search gets stuck, less
    /// far.
    fn descend(&self, from: &Decisions, exponent: Exponent, mut stride: f64, limit: u64) -> Found {
        let bound = self.problem.structural_bound();
        let mut state = State::new(&self.problem, 0.0, exponent);
        neighbourhood::restore(&mut state, from);
        // At first as if there were no variants, so that they never end in a larger peak.
        let first_stride = stride;
        state.freeze(!self.problem.sites.is_empty());
        let mut best = Found::of(&state);
        while best.peak > bound && stride > SHORTEST_STRIDE {
            let target = best.peak - (best.peak - bound) * stride;
            state.aim(target, exponent);
            let reached = greedy(&mut state, &mut None, limit);
            if state.peak() < best.peak {
                best = Found::of(&state);
            }
            match reached {
                Reached::Budget => {}
                Reached::Stuck => {
                    stride /= 2.0;
                    neighbourhood::restore(&mut state, &best.decisions);
                    if stride <= SHORTEST_STRIDE && state.is_frozen() {
                        state.freeze(false);
                        stride = first_stride;
                    }
                }
                Reached::Limit => break,
            }
        }
        self.problem.watch.count(state.evaluations());
        best
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
        if let Some(alternatives) = &self.alternatives {
            let (numbers, chosen) = alternatives.chosen(&decisions.forms);
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

/// The first few by cost, each cost once.
fn cheapest(mut found: Vec<Found>) -> Vec<Found> {
    found.sort_by_key(|found| found.cost);
    found.dedup_by_key(|found| found.cost);
    found.truncate(CHAINS as usize);
    found
}

fn of_copies(copies: Vec<Copy>) -> Decisions {
    let forms = Vec::new();
    Decisions { copies, forms }
}

#[cfg(test)]
mod tests;
