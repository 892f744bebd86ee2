//! The smallest peaks, with barriers.

use std::time::Instant;

use super::super::OptimizeError;
use super::super::published::Rivals;
use super::super::simulation::{Candidate, frame};
use super::within_budget::{CORRECTIONS, Goal};
use super::{Pipeline, negligible};
use crate::bytes::Bytes;
use crate::enforce::barriers::Thinning;
use crate::plan::Plan;
use crate::strategy::{Planner, Unplanned};

/// How often a smaller budget than what is reached is tried for the smallest peak.
const SMALLER: usize = 5;

/// Less than this part of what a step takes is not worth trying for.
const WORTH_TRYING: u64 = 50;

impl Pipeline<'_> {
    /// The smallest that is found with more work; an error if even that does not fit.
    pub(super) fn smallest_within(
        &self,
        planner: &mut dyn Planner,
        rivals: Option<&mut Rivals<'_>>,
        least: &Plan,
        budget: Bytes,
    ) -> Result<Candidate, OptimizeError> {
        let reserve = self.options.reserve;
        let smallest = match self.least_of_all(planner, rivals) {
            Ok((_, smallest)) => smallest,
            Err(_) => self.smallest(least, Thinning::Thorough),
        };
        if smallest.need() <= budget {
            return Ok(smallest);
        }
        Err(OptimizeError::Infeasible {
            budget: budget + reserve,
            smallest: Box::new(smallest.peak(reserve)),
        })
    }

    /// The smallest that is found with all the work there is, and the plan that the search takes for the smallest.
    pub(super) fn least_of_all(
        &self,
        planner: &mut dyn Planner,
        rivals: Option<&mut Rivals<'_>>,
    ) -> Result<(Plan, Candidate), String> {
        let plans = planner.smallest_few()?;
        let planned = plans.iter().map(|plan| plan.predicted_peak).min();
        let (least, smallest) = self.smallest_of(plans);
        let Some(rivals) = rivals else {
            return Ok((least, smallest));
        };
        let smallest = self.smaller(smallest, rivals);
        let smallest = self.planned_for_less(planner, planned.unwrap_or_default(), smallest);
        Ok((least, smallest))
    }

    /// `smallest`, or what needs less because it is planned for a smaller budget: the search for the smallest peak knows
    /// nothing of barriers, and where many are needed another plan takes less with them. `planned` is the smallest peak of
    /// a plan without any.
    pub(super) fn planned_for_less(
        &self,
        planner: &mut dyn Planner,
        planned: Bytes,
        smallest: Candidate,
    ) -> Candidate {
        let (mut missed, mut best) = (planned + frame(&self.base.graph), smallest);
        // What a plan leaves of its budget for the runtime and barriers: as much as the last one that fitted.
        let mut beside = self.framed();
        for _ in 0..SMALLER {
            let between = best.need() - missed;
            if between <= Bytes((best.need() - self.original.liveness.fixed).0 / WORTH_TRYING)
                || self.stopped()
            {
                break;
            }
            let budget = missed + Bytes(between.0 / 2);
            let mut target = budget - beside;
            let mut start = |target| planner.start(target).ok_or(Unplanned::TooSlow);
            let found = self.planned(&mut start, &mut target, None, &Goal::within(budget));
            match found {
                Ok(found) if found.need() < best.need() => {
                    (best, beside) = (found, budget - target);
                }
                _ => missed = budget,
            }
        }
        best
    }

    /// `own`, or what a published strategy reaches if that is less.
    pub(super) fn smaller(&self, own: Candidate, rivals: &mut Rivals<'_>) -> Candidate {
        let mut best = own;
        if self.stopped() {
            return best;
        }
        for rival in rivals.all() {
            let least = rival.planner.smallest().ok();
            if let Some(least) = least.filter(|least| least.predicted_peak < best.need()) {
                let other = self.smallest(&least, Thinning::Thorough);
                if other.need() < best.need() {
                    best = self.with_fewer_barriers(&least, other);
                }
            }
        }
        best
    }

    /// `smallest` if it fits, with fewer barriers if that fits as well; `least` is its plan, or one
    /// that needs as much.
    pub(super) fn smallest_or_better(
        &self,
        smallest: &Candidate,
        least: &Plan,
        budget: Bytes,
    ) -> Option<Candidate> {
        if smallest.need() > budget {
            return None;
        }
        let thin = self.smallest(least, Thinning::Thorough);
        Some(thin)
            .filter(|thin| thin.need() <= budget)
            .or_else(|| Some(smallest.clone()))
    }

    /// The plan for which the runtime needs least, with every barrier that helps.
    pub(super) fn smallest_of(&self, plans: Vec<Plan>) -> (Plan, Candidate) {
        let with_barriers = |plan: Plan| {
            let smallest = self.smallest(&plan, Thinning::Thorough);
            (plan, smallest)
        };
        let all: Vec<(Plan, Candidate)> = plans.into_iter().map(with_barriers).collect();
        let least = all.iter().map(|(_, smallest)| smallest.need()).min();
        let near = least.unwrap_or_default() + negligible(least.unwrap_or_default());
        all.into_iter()
            .filter(|(_, smallest)| smallest.need() <= near)
            .map(|(plan, smallest)| {
                let less = self.with_fewer_barriers(&plan, smallest);
                (plan, less)
            })
            .min_by_key(|(plan, smallest)| (smallest.need(), plan.added))
            .unwrap_or_else(|| with_barriers(Plan::default()))
    }

    /// The plan with the smallest peak, with every barrier that helps.
    pub(super) fn smallest(&self, plan: &Plan, thinning: Thinning) -> Candidate {
        let applied = self.apply(plan);
        let started = Instant::now();
        let graph = applied.within_smallest_peak(thinning);
        self.tell_of_barriers(&applied, &graph, started);
        self.candidate(graph, plan)
    }

    /// `smallest`, or what needs less because not every barrier is there: they take some room as well.
    pub(super) fn with_fewer_barriers(&self, plan: &Plan, smallest: Candidate) -> Candidate {
        let applied = self.apply(plan);
        let within = |budget: Bytes, thinning: Thinning| {
            let enforced = self.with_barriers(&applied, budget, thinning).ok()?;
            let candidate = self.candidate(enforced, plan);
            (candidate.need() < smallest.need()).then_some(candidate)
        };
        let mut missed = applied.planned_peak();
        let mut reached = smallest.need() - frame(&smallest.graph);
        let mut less = None;
        for _ in 0..CORRECTIONS {
            let budget = missed + Bytes((reached - missed).0 / 2);
            match within(budget, Thinning::Quick) {
                Some(found) => (reached, less) = (budget, Some(found)),
                None => missed = budget,
            }
        }
        less.map_or(smallest.clone(), |less| {
            within(reached, Thinning::Thorough)
                .filter(|thorough| thorough.need() <= less.need())
                .unwrap_or(less)
        })
    }
}
