//! The schedule search: which nodes run again, and when.
//!
//! Everything here sees a [`problem::Problem`], never a graph, and decides; it edits nothing.

mod bulk;
mod first_order;
mod greedy;
mod moves;
mod neighbourhood;
mod postpone;
mod problem;
mod prune;
mod random;
mod state;

use crate::analysis::cost::Cost;
use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId};
use crate::operators::Provider;
use crate::plan::Plan;

pub use first_order::first_order;

use greedy::{Hints, Reached, greedy};
use problem::{Problem, Step};
use prune::prune;
use state::{Copy, Exponent, State};

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
    effort: Effort,
    smallest: Option<Found>,
}

/// A schedule by its copies.
#[derive(Clone, Debug, Default)]
struct Found {
    peak: f64,
    cost: u64,
    copies: Vec<Copy>,
}

impl Found {
    fn of(state: &State<'_>) -> Found {
        Found {
            peak: state.peak(),
            cost: state.cost(),
            copies: state.all_copies(),
        }
    }
}

/// Halvings of the range in which the smallest peak is looked for.
const HALVINGS: usize = 6;

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
        Search {
            problem,
            effort,
            smallest: None,
        }
    }

    /// The largest need of any one node for what it reads, writes and works with: no schedule
    /// has a smaller peak.
    pub fn structural_bound(&self) -> Bytes {
        self.problem.fixed + Bytes(self.problem.structural_bound() as u64)
    }

    /// The plan with the smallest peak that is found.
    pub fn smallest(&mut self) -> Plan {
        let found = self.find_smallest().copies.clone();
        self.plan(&found)
    }

    /// The cheapest plan found whose every step stays within `budget`, what the caller owns
    /// included; `None` if none is found. Whatever [`Search::smallest`] reaches is found.
    pub fn within(&mut self, budget: Bytes) -> Option<Plan> {
        let target = (budget - self.problem.fixed).0 as f64;
        let mut best: Option<Found> = None;
        let mut evaluations = 0;
        for exponent in [Exponent::One, Exponent::Half, Exponent::Two] {
            let mut state = State::new(&self.problem, target, exponent);
            let reached = greedy(
                &mut state,
                &mut None,
                &mut Hints::new(),
                self.effort.evaluations,
            );
            if reached == Reached::Budget {
                prune(&mut state);
                keep_cheaper(&mut best, Found::of(&state));
            }
            evaluations += state.evaluations;
        }
        for price in bulk::prices(&self.problem) {
            let mut state = State::new(&self.problem, target, Exponent::One);
            bulk::evict_below(&mut state, price);
                "bulk {price} peak {} cost {}",
                state.peak() / 1e6,
                state.cost()
            );
            let reached = greedy(
                &mut state,
                &mut None,
                &mut Hints::new(),
                self.effort.evaluations,
            );
            if reached == Reached::Budget {
                prune(&mut state);
                keep_cheaper(&mut best, Found::of(&state));
            }
            evaluations += state.evaluations;
        }
        let smallest = self.find_smallest().clone();
        let mut state = State::new(&self.problem, target, Exponent::One);
        if smallest.peak <= target {
            neighbourhood::restore(&mut state, &smallest.copies);
            prune(&mut state);
            keep_cheaper(&mut best, Found::of(&state));
        }
        neighbourhood::restore(&mut state, &best?.copies);
        state.evaluations = evaluations;
        neighbourhood::improve(&mut state, self.effort.seed, self.effort.evaluations);
        Some(self.plan(&state.all_copies()))
    }

    fn find_smallest(&mut self) -> &Found {
        if self.smallest.is_none() {
            self.smallest = Some(self.look_for_smallest());
        }
        self.smallest.as_ref().expect("just set")
    }

    /// Aims lower and lower; where the greedy search gets stuck, half way back.
    fn look_for_smallest(&self) -> Found {
        let bound = self.problem.structural_bound();
        let untouched = Found::of(&State::new(&self.problem, 0.0, Exponent::One));
        let (mut low, mut best) = (bound, untouched);
        let mut target = low;
        for _ in 0..HALVINGS {
            if best.peak <= bound {
                break;
            }
            let mut fits = false;
            for exponent in [Exponent::Two, Exponent::One] {
                let mut state = State::new(&self.problem, target, exponent);
                let reached = greedy(
                    &mut state,
                    &mut None,
                    &mut Hints::new(),
                    self.effort.evaluations,
                );
                let found = Found::of(&state);
                if found.peak < best.peak {
                    best = found;
                }
                if reached == Reached::Budget {
                    fits = true;
                    break;
                }
            }
            if !fits {
                low = target;
            }
            target = (low + best.peak) / 2.0;
        }
        best
    }

    /// The plan in which nothing is computed twice.
    pub fn without_copies(&self) -> Plan {
        self.plan(&[])
    }

    fn plan(&self, copies: &[Copy]) -> Plan {
        let mut state = State::new(&self.problem, f64::MAX, Exponent::One);
        neighbourhood::restore(&mut state, copies);
        let mut sequence = Vec::with_capacity(self.problem.steps.len() + copies.len());
        for step in 0..self.problem.steps.len() as Step {
            let mut group: Vec<Step> = Vec::new();
            for &node in state.group(step) {
                group.push(node);
                // A copy's aliases come with it, where the original alias has run before.
                let aliases = &self.problem.aliases_of[node as usize];
                group.extend(aliases.iter().filter(|&&alias| alias < step));
            }
            group.sort_unstable();
            group.push(step);
            sequence.extend(group.iter().map(|&node| self.problem.order[node as usize]));
        }
        Plan {
            sequence,
            predicted_peak: self.problem.fixed + Bytes(state.peak() as u64),
        }
    }
}

fn keep_cheaper(best: &mut Option<Found>, found: Found) {
    if best.as_ref().is_none_or(|best| found.cost < best.cost) {
        *best = Some(found);
    }
}
