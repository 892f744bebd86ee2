//! The schedule search: which nodes run again, and when.
//!
//! Everything here sees a [`problem::Problem`], never a graph, and decides; it edits nothing.

mod greedy;
mod moves;
mod neighbourhood;
mod problem;
mod prune;
mod random;
mod state;

use crate::analysis::cost::Cost;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId};
use crate::operators::{Provider, Recompute};
use crate::plan::Plan;

use greedy::{Reached, greedy};
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
}

impl Search {
    /// Prepares the search. `order` is the order of first computations;
    /// costs and recomputation rules are by node id.
    pub fn new(
        graph: &Graph,
        order: &[NodeId],
        provider: Provider,
        costs: &[Cost],
        recompute: &[Recompute],
    ) -> Search {
        Search { problem: Problem::new(graph, order, provider, costs, recompute) }
    }

    /// The cheapest plan found whose every step stays within `budget`, what the caller owns
    /// included; or, if none is found, the plan with the smallest peak found on the way.
    pub fn within(&self, budget: Bytes, effort: Effort) -> Plan {
        let target = (budget - self.problem.fixed).0 as f64;
        let mut best: Option<(u64, Vec<Copy>)> = None;
        let mut smallest: Option<(f64, Vec<Copy>)> = None;
        let mut evaluations = 0;
        for exponent in [Exponent::One, Exponent::Half, Exponent::Two] {
            let mut state = State::new(&self.problem, target, exponent);
            let reached = greedy(&mut state, &mut None, effort.evaluations);
            evaluations += state.evaluations;
            let peak = state.peak();
            if reached == Reached::Budget {
                prune(&mut state);
                if best.as_ref().is_none_or(|(cost, _)| state.cost() < *cost) {
                    best = Some((state.cost(), state.all_copies()));
                }
            }
            if smallest.as_ref().is_none_or(|(least, _)| peak < *least) {
                smallest = Some((peak, state.all_copies()));
            }
        }
        let Some((_, copies)) = best else {
            let (_, copies) = smallest.unwrap_or_default();
            return self.plan(&copies);
        };
        let mut state = State::new(&self.problem, target, Exponent::One);
        neighbourhood::restore(&mut state, &copies);
        state.evaluations = evaluations;
        neighbourhood::improve(&mut state, effort.seed, effort.evaluations);
        self.plan(&state.all_copies())
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
        Plan { sequence, predicted_peak: self.problem.fixed + Bytes(state.peak() as u64) }
    }
}
