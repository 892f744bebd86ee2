//! The smallest peak: descents from nothing and from schedules for very little memory, each aiming lower and lower
//! until it is stuck.

use super::evict_many;
use super::greedy::{Reached, greedy};
use super::neighbourhood;
use super::problem::Step;
use super::profile::Exponent;
use super::reversal;
use super::state::{Decisions, State};
use super::tuning::{PeakDescent, SEARCH};
use super::{FoundSchedule, Search};
use crate::bytes::Bytes;
use crate::parallel;
use crate::plan::Plan;

impl Search {
    /// The plan with the smallest peak that is found.
    pub fn smallest(&mut self) -> Plan {
        let found = self.find_smallest().decisions.clone();
        self.plan(&found)
    }

    /// The same where the quick look comes down to `worth`; else what that finds, which is all that is looked for then. A second
    /// search in an order looks thoroughly in any case: it has little to look at, of which a quick look tells little.
    pub fn smallest_if(&mut self, worth: Bytes) -> Plan {
        let small = self.small();
        if self.smallest.is_none() && !self.is_second && small.predicted_peak > worth {
            self.smallest = self.small.clone();
        }
        self.smallest()
    }

    /// A plan with a small peak, found with a part of the work.
    pub fn small(&mut self) -> Plan {
        if self.smallest.is_some() {
            return self.smallest();
        }
        if self.small.is_none() {
            self.find_frugal();
            self.small = Some(self.look_for_smallest(&SEARCH.descents[..1], SEARCH.small));
        }
        let found = self.small.as_ref().map(|small| small.decisions.clone());
        self.plan(&found.unwrap_or_default())
    }

    pub(super) fn find_smallest(&mut self) -> &FoundSchedule {
        if self.smallest.is_none() {
            self.find_frugal();
            let descents = match self.problem.is_large() {
                true => &SEARCH.descents[..1],
                false => SEARCH.descents,
            };
            let thorough = self.look_for_smallest(descents, 1);
            // Which way is best is by chance, and a quick look may have had more luck.
            let quick = self.small.take_if(|quick| quick.peak < thorough.peak);
            self.smallest = Some(quick.unwrap_or(thorough));
        }
        self.smallest.as_ref().expect("just set")
    }

    fn find_frugal(&mut self) {
        if self.frugal.is_empty() && SEARCH.frugal {
            self.frugal = self.look_for_frugal();
        }
    }

    /// Each descent takes one of so many `parts` of its work.
    fn look_for_smallest(&self, descents: &[PeakDescent], parts: u64) -> FoundSchedule {
        let least = |of: &'_ [FoundSchedule]| -> Option<FoundSchedule> {
            let least = of.iter().min_by(|a, b| a.peak.total_cmp(&b.peak));
            least.cloned()
        };
        let given = least(&self.given);
        let own: Vec<(PeakDescent, FoundSchedule)> = match self.is_second && given.is_some() {
            true => Vec::new(),
            false => {
                let nothing = FoundSchedule::default;
                let from_nothing = descents.iter().map(|&descent| (descent, nothing()));
                let frugal = self.frugal.iter().filter_map(|of| least(of));
                let from_frugal = frugal.map(|found| (descents[0], found));
                from_nothing.chain(from_frugal).collect()
            }
        };
        let from_given = given.map(|found| (descents[0], found));
        let descents: Vec<_> = own.into_iter().chain(from_given).collect();
        let found = parallel::map(&descents, |((exponent, stride, work), from)| {
            self.descend(
                &from.decisions,
                *exponent,
                *stride,
                self.limit(SEARCH.descent_per_step) * work / parts,
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
    fn look_for_frugal(&self) -> Vec<Vec<FoundSchedule>> {
        let evaluate = |fill: &dyn Fn(&mut State<'_>)| {
            let mut state = State::new(&self.problem, 0.0, Exponent::One);
            fill(&mut state);
            FoundSchedule::of(&state)
        };
        // The first of the steps that need most.
        let memory = self.memory().into_iter().enumerate().rev();
        let turn = memory
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map_or(0, |turn| turn.0);
        let chain = reversal::ForwardChain::of(&self.problem, turn as Step);
        let prices = match self.problem.is_large() {
            true => Vec::new(),
            false => evict_many::prices(&self.problem),
        };
        let cheap = parallel::map(&prices, |&price| {
            evaluate(&|state| evict_many::evict_below(state, price))
        });
        let few = 1..=SEARCH.most_checkpoints;
        let twice = |&checkpoints: &usize| Some(2 * checkpoints);
        let many = std::iter::successors(Some(2 * SEARCH.most_checkpoints), twice);
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
    fn descend(
        &self,
        from: &Decisions,
        exponent: Exponent,
        mut stride: f64,
        limit: u64,
    ) -> FoundSchedule {
        let bound = self.problem.structural_bound();
        let mut state = State::new(&self.problem, 0.0, exponent);
        neighbourhood::restore(&mut state, from);
        // At first as if there were no variants, so that they never end in a larger peak.
        let first_stride = stride;
        state.freeze(!self.problem.sites.is_empty());
        let mut best = FoundSchedule::of(&state);
        while best.peak > bound && stride > SEARCH.shortest_stride {
            let target = best.peak - (best.peak - bound) * stride;
            state.aim(target, exponent);
            let reached = greedy(&mut state, &mut None, limit);
            if state.peak() < best.peak {
                best = FoundSchedule::of(&state);
            }
            match reached {
                Reached::Budget => {}
                Reached::Stuck => {
                    stride /= 2.0;
                    neighbourhood::restore(&mut state, &best.decisions);
                    if stride <= SEARCH.shortest_stride && state.is_frozen() {
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
}
