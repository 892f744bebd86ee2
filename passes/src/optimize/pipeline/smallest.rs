//! The smallest peaks, with barriers.

use std::time::Instant;

use super::super::OptimizeError;
use super::super::aim::Between;
use super::super::comparison::near;
use super::super::published::Rivals;
use super::super::simulation::{Candidate, frame};
use super::super::tuning::STAGES;
use super::within_budget::Goal;
use super::{Pipeline, Planners};
use crate::bytes::Bytes;
use crate::enforce::barriers::Thinning;
use crate::parallel;
use crate::plan::Plan;
use crate::strategy::{EVERY, Planner, Strategy, Unplanned};

/// How small a pipeline gets.
pub(in super::super) struct Least {
    /// Of the own plans, the one whose candidate needs least.
    pub(in super::super) plan: Plan,
    /// What needs least, whoever planned it.
    pub(in super::super) smallest: Candidate,
    /// The smallest peak of an own plan without barriers.
    planned: Bytes,
}

impl Pipeline<'_> {
    /// The smallest that a published strategy finds with more work; an error if even that does not fit.
    pub(super) fn smallest_within(
        &self,
        planner: &mut dyn Planner,
        least: &Plan,
        budget: Bytes,
    ) -> Result<Candidate, OptimizeError> {
        let plans = planner.smallest_few(EVERY);
        let (plan, smallest) = self.smallest_of(plans.unwrap_or_else(|_| vec![least.clone()]));
        let fits = self.smallest_or_better(&smallest, &plan, budget);
        fits.ok_or_else(|| self.infeasible(budget, &smallest))
    }

    /// The smallest that is found with all the work there is, and the plan that the search takes for the smallest.
    pub(super) fn least_of_all(
        &self,
        planners: &mut Planners<'_>,
    ) -> Result<(Plan, Candidate), String> {
        let mut least = self.least_planned(planners, EVERY)?;
        if let Some(rivals) = &mut planners.rivals {
            least.smallest = self.smaller(least.smallest, rivals);
        }
        if self.options.strategy == Strategy::Auto {
            let reached = least.smallest.need();
            self.plan_for_less(planners, &mut least, reached);
        }
        Ok((least.plan, least.smallest))
    }

    /// The smallest that the pipeline's own planner finds, which looks thoroughly where a quick look needs at most `worth`.
    pub(in super::super) fn least_planned(
        &self,
        planners: &mut Planners<'_>,
        worth: Bytes,
    ) -> Result<Least, String> {
        let plans = planners.own.smallest_few(worth)?;
        let planned = plans.iter().map(|plan| plan.predicted_peak).min();
        let (plan, smallest) = self.smallest_of(plans);
        Ok(Least {
            plan,
            smallest,
            planned: planned.unwrap_or_default(),
        })
    }

    /// Puts in the place of the smallest what needs less because it is planned for a smaller budget, less than what was
    /// `reached`: the search for the smallest peak knows nothing of barriers, and where many are needed another plan takes
    /// less with them.
    pub(in super::super) fn plan_for_less(
        &self,
        planners: &mut Planners<'_>,
        least: &mut Least,
        reached: Bytes,
    ) {
        let planner = planners.own.as_mut();
        let missed = least.planned + frame(&self.base.graph);
        let best = &mut least.smallest;
        self.plan_between(planner, best, (reached, missed));
        // A descent gets stuck where no single step takes less; what is planned for less from the beginning goes past that.
        if !self.is_large() {
            let (floor, _) = self.floor_of_search();
            self.plan_between(planner, best, (best.need(), floor));
        }
    }

    /// The same for budgets between one that fits and one that there is no plan for.
    fn plan_between(
        &self,
        planner: &mut dyn Planner,
        best: &mut Candidate,
        (fits, misses): (Bytes, Bytes),
    ) {
        let mut range = Between::new(fits.0, misses.0, STAGES.smaller_budgets);
        // What a plan leaves of its budget for the runtime and barriers: as much as the last one that fitted.
        let mut beside = self.framed();
        while let Some(budget) = range.middle() {
            let takes = best.need() - self.original.liveness.fixed;
            if range.width() <= takes.0 / STAGES.worth_trying || self.stopped() {
                break;
            }
            let within = Bytes(budget);
            let mut start = |target| planner.start(target).ok_or(Unplanned::TooSlow);
            let found = self.planned(&mut start, within - beside, None, &Goal::within(within));
            match found {
                Ok(found) if found.candidate.need() < best.need() => {
                    *best = found.candidate;
                    range.is(best.need().0, true);
                    beside = within - found.target;
                }
                _ => range.is(budget, false),
            }
        }
    }

    /// `own`, or what a published strategy reaches if that is less.
    pub(in super::super) fn smaller(&self, own: Candidate, rivals: &mut Rivals<'_>) -> Candidate {
        let mut best = own;
        if self.stopped() {
            return best;
        }
        let plans = parallel::map_mut(rivals.all(), |rival| rival.planner.smallest().ok());
        for least in plans {
            if let Some(least) = least.filter(|least| least.predicted_peak < best.need()) {
                let other = self.smallest(&least, Thinning::Quick);
                if other.need() < near(best.need()) {
                    let other = self.with_fewer_barriers(&least, other);
                    if other.need() < best.need() {
                        best = other;
                    }
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
        if self.is_late() {
            return Some(smallest.clone());
        }
        let thin = self.smallest(least, Thinning::Thorough);
        Some(thin)
            .filter(|thin| thin.need() <= budget)
            .or_else(|| Some(smallest.clone()))
    }

    /// The plan for which the runtime needs least, with every barrier that helps.
    pub(super) fn smallest_of(&self, mut plans: Vec<Plan>) -> (Plan, Candidate) {
        if plans.is_empty() {
            plans.push(Plan::default());
        }
        plans.sort_by_key(|plan| (plan.predicted_peak, plan.added));
        plans.dedup();
        let quick = parallel::map(&plans, |plan| self.smallest(plan, Thinning::Quick));
        let all = plans.into_iter().zip(quick);
        let merit = |(plan, smallest): &(Plan, Candidate)| (smallest.need(), plan.added);
        let (plan, smallest) = all.min_by_key(merit).expect("one at least");
        let smallest = match self.is_late() {
            true => smallest,
            false => self.with_fewer_barriers(&plan, smallest),
        };
        (plan, smallest)
    }

    /// The plan with the smallest peak, with every barrier that helps.
    pub(super) fn smallest(&self, plan: &Plan, thinning: Thinning) -> Candidate {
        let applied = self.apply(plan, None);
        let started = Instant::now();
        let graph = applied.within_smallest_peak(thinning);
        self.tell_of_barriers(&applied, &graph, started);
        self.candidate(graph, plan)
    }

    /// `smallest`, or what needs less because not every barrier is there: they take some room as well.
    pub(super) fn with_fewer_barriers(&self, plan: &Plan, smallest: Candidate) -> Candidate {
        if !STAGES.with_fewer_barriers {
            return smallest;
        }
        let applied = self.apply(plan, None);
        let within = |budget: Bytes, thinning: Thinning| {
            let enforced = self.with_barriers(&applied, budget, thinning).ok()?;
            let candidate = self.candidate(enforced, plan);
            (candidate.need() < smallest.need()).then_some(candidate)
        };
        let reached = smallest.need() - frame(&smallest.graph);
        let missed = applied.planned_peak();
        let mut range = Between::new(reached.0, missed.0, STAGES.barrier_choices);
        let mut less = None;
        while let Some(budget) = range.middle().filter(|_| !self.is_late()) {
            let found = within(Bytes(budget), Thinning::Quick);
            range.is(budget, found.is_some());
            less = found.or(less);
        }
        less.map_or(smallest.clone(), |less| {
            within(Bytes(range.fits), Thinning::Thorough)
                .filter(|thorough| thorough.need() <= less.need())
                .unwrap_or(less)
        })
    }
}
