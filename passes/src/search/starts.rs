//! Where a search begins: schedules within a budget that are made at once, each in another way.

use super::evict_many;
use super::greedy::{Reached, greedy};
use super::neighbourhood;
use super::profile::Exponent;
use super::prune::prune;
use super::state::{Decisions, State};
use super::tuning::SEARCH;
use super::{CHAINS, FoundSchedule, Search};
use crate::bytes::Bytes;
use crate::parallel;
use crate::plan::Plan;

/// The starts of a rough estimate, and what came of them.
pub(super) struct Rough {
    pub(super) target: f64,
    pub(super) found: Vec<(Start, Option<FoundSchedule>)>,
}

/// The cheapest schedules known within a budget, the best first.
pub(super) struct Starts {
    pub(super) budget: Bytes,
    pub(super) found: Vec<FoundSchedule>,
    /// Have they been through the neighbourhood search?
    pub(super) improved: bool,
}

/// Where a search begins.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Start {
    /// Without copies.
    Greedy(Exponent),
    /// With everything up to that price computed again.
    Plenty(f64),
    /// With these decisions.
    From(Decisions),
}

impl Search {
    /// Nanoseconds that the cheapest start within `budget` adds, before it is improved; `None` if
    /// there is none. Whatever [`Search::smallest`] reaches is found.
    pub fn estimate(&mut self, budget: Bytes) -> Option<u64> {
        let known = self.starts.as_ref();
        if known.is_none_or(|starts| starts.budget != budget) {
            self.starts = Some(Starts {
                budget,
                found: self.find_starts(budget),
                improved: false,
            });
        }
        let cost = self.starts.as_ref()?.found.first()?.cost;
        Some(self.added(cost))
    }

    /// A cheap start within `budget`, not improved: the cheapest of a few, or else of all; `None` if there is none.
    pub fn begin(&mut self, budget: Bytes) -> Option<Plan> {
        if let Some(cheapest) = self.cheapest_rough(budget) {
            return Some(self.plan(&cheapest.decisions));
        }
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
            let prices = evict_many::prices(&self.problem).into_iter();
            starts.extend(prices.take(SEARCH.rough).map(Start::Plenty));
        }
        let found = parallel::map(&starts, |start| self.start(start, target));
        let least = found.iter().flatten().map(|found| found.cost).min();
        let found = starts.into_iter().zip(found).collect();
        self.rough = Some(Rough { target, found });
        Some(self.added(least?))
    }

    /// The cheapest of the starts of a rough estimate.
    pub(super) fn cheapest_rough(&mut self, budget: Bytes) -> Option<FoundSchedule> {
        let target = self.target(budget);
        let is_known = |rough: &Rough| rough.target == target;
        if !self.rough.as_ref().is_some_and(is_known) {
            self.rough_estimate(budget)?;
        }
        let found = self.rough.iter().flat_map(|rough| &rough.found);
        let found = found.filter_map(|(_, found)| found.as_ref());
        found.min_by_key(|found| found.cost).cloned()
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

    /// The cheapest schedules within `budget` that are made at once.
    fn find_starts(&mut self, budget: Bytes) -> Vec<FoundSchedule> {
        let target = self.target(budget);
        if target < self.problem.structural_bound() {
            return Vec::new();
        }
        let mut starts = self.anew();
        let mut known = self.known_within(target);
        let mut found = Vec::new();
        if self.problem.is_large() {
            // What is known takes much longer to prune than the greedy search takes in all, and what is dearer as it
            // is hardly ever ends cheaper.
            found = self.found(&starts, target);
            starts.clear();
            let best = found.first().map_or(u64::MAX, |best| best.cost);
            known.retain(|known| known.cost < best);
        }
        let known = known.into_iter().map(|known| known.decisions.clone());
        starts.extend(known.map(Start::From));
        found.extend(self.each(&starts, target));
        found = cheapest(found);
        if found.is_empty() && self.smallest.is_none() && self.find_smallest().peak <= target {
            let smallest = Start::From(self.find_smallest().decisions.clone());
            found = self.found(&[smallest], target);
        }
        found
    }

    /// Those that begin with nothing that is known.
    fn anew(&self) -> Vec<Start> {
        if self.problem.is_large() {
            return vec![Start::Greedy(Exponent::One)];
        }
        let greedy = SEARCH.exponents.iter().copied().map(Start::Greedy);
        let prices = evict_many::prices(&self.problem).into_iter();
        greedy.chain(prices.map(Start::Plenty)).collect()
    }

    /// Of what is known besides, the schedules that fit.
    fn known_within(&self, target: f64) -> Vec<&FoundSchedule> {
        let given = self.given.iter().chain(self.frugal.iter().flatten());
        let given = given.filter(|given| given.peak <= target);
        let given = given.min_by_key(|given| given.cost);
        let smallest = self.smallest.as_ref().or(self.small.as_ref());
        let smallest = smallest.filter(|smallest| smallest.peak <= target);
        given.into_iter().chain(smallest).collect()
    }

    /// What comes of the starts, where something does.
    fn each(&self, starts: &[Start], target: f64) -> Vec<FoundSchedule> {
        let rough = self.rough.as_ref().filter(|rough| rough.target == target);
        let rough = rough.map_or(&[][..], |rough| &rough.found);
        let found = parallel::map(starts, |start| {
            match rough.iter().find(|(other, _)| other == start) {
                Some((_, found)) => found.clone(),
                None => self.start(start, target),
            }
        });
        found.into_iter().flatten().collect()
    }

    /// The cheapest of what comes of the starts.
    fn found(&self, starts: &[Start], target: f64) -> Vec<FoundSchedule> {
        cheapest(self.each(starts, target))
    }

    fn start(&self, start: &Start, target: f64) -> Option<FoundSchedule> {
        let exponent = match start {
            Start::Greedy(exponent) => *exponent,
            Start::Plenty(_) | Start::From(_) => Exponent::One,
        };
        let mut state = State::new(&self.problem, target, exponent);
        match start {
            Start::Greedy(_) => {}
            Start::Plenty(price) => {
                evict_many::evict_below(&mut state, *price);
                if state.all_copies().is_empty() {
                    return None;
                }
            }
            Start::From(decisions) => neighbourhood::restore(&mut state, decisions),
        }
        let limit = match start {
            Start::Greedy(Exponent::One | Exponent::Half) | Start::From(_) => {
                self.limit(SEARCH.start_per_step)
            }
            Start::Greedy(Exponent::Two) | Start::Plenty(_) => {
                let steps = self.problem.steps.len() as u64;
                (self.effort.evaluations / SEARCH.other).max(steps * SEARCH.other_per_step)
            }
        };
        let reached = greedy(&mut state, &mut None, limit);
        if reached == Reached::Budget {
            prune(&mut state, limit);
        }
        self.problem.watch.count(state.evaluations());
        (reached == Reached::Budget).then(|| FoundSchedule::of(&state))
    }
}

/// The first few by cost, each cost once.
fn cheapest(mut found: Vec<FoundSchedule>) -> Vec<FoundSchedule> {
    found.sort_by_key(|found| found.cost);
    found.dedup_by_key(|found| found.cost);
    found.truncate(CHAINS as usize);
    found
}
