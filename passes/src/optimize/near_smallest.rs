//! What all alternatives have to find together: the smallest peak of all of them, and the cheapest plan that comes near it,
//! or that fits a budget for which nothing was found in passing.

use std::sync::LazyLock;

use super::alternatives::Alternative;
use super::comparison::{Reply, ToBeat, Untried, near, offer};
use super::faults::Found;
use super::original::Original;
use super::pipeline::{Later, Least, Pipeline, Planners};
use super::tuning::STAGES;
use super::{BudgetRequest, OptimizeError};
use crate::bytes::Bytes;
use crate::parallel;
use crate::strategy::{EVERY, Task};

/// An alternative at work, and the smallest that it reaches.
struct Entrant<'p> {
    pipeline: &'p Pipeline<'p>,
    planners: Planners<'p>,
    least: Least,
}

/// The cheapest plan whose peak is at most a little above the smallest, or at most `within` (the reserve included), if there is
/// that.
pub(super) fn near_smallest(
    original: &Original<'_>,
    alternatives: &[Alternative],
    within: Option<Bytes>,
) -> Result<Found, OptimizeError> {
    let request = within.map_or(BudgetRequest::Smallest, BudgetRequest::Bytes);
    let all: Vec<&Alternative> = alternatives.iter().collect();
    let pipelines = parallel::map(&all, |&one| one.pipeline(original, request));
    let first = pipelines.first().expect("there is an alternative");
    // What takes no variants is the same without them.
    let differs = |&(number, _): &(usize, &Pipeline<'_>)| {
        number == 0 || !alternatives[number].is_plain() || first.may_vary()
    };
    let pipelines: Vec<(usize, &Pipeline<'_>)> =
        pipelines.iter().enumerate().filter(differs).collect();
    let tasks: Vec<Task<'_>> = pipelines.iter().map(|(_, one)| one.task()).collect();
    let at_work = pipelines.iter().zip(&tasks).map(|(&(number, one), task)| {
        let mut planners = one.planners(task, STAGES.published_for_little);
        // Published planners know no variants: they find the same in the same graph.
        if number > 0 && first.begins_as_it_is() {
            planners.rivals = None;
        }
        (one, planners)
    });
    let mut at_work: Vec<(&Pipeline<'_>, Planners<'_>)> = at_work.collect();
    let worth = within_reach(original, &mut at_work);
    let least = parallel::map_mut(&mut at_work, |(pipeline, planners)| {
        pipeline.least_planned(planners, worth)
    });
    let entrants = at_work.into_iter().zip(least);
    let entrants = entrants.map(|((pipeline, planners), least)| {
        Ok(Entrant {
            pipeline,
            planners,
            least: least.map_err(|reason| pipeline.refused(reason))?,
        })
    });
    let entrants: Result<Vec<Entrant<'_>>, OptimizeError> = entrants.collect();
    let mut entrants = entrants?;
    let budget = within.map(|within| within - first.reserve());
    let fits = |entrant: &Entrant<'_>| budget.is_some_and(|budget| entrant.need() <= budget);
    if !entrants.iter().any(fits) {
        look_further(&mut entrants);
    }
    Ok(cheapest(entrants, within))
}

/// Up to which peak of a quick look it is worth to look thoroughly. What cannot come there leaves the race, with those
/// planners that it alone was to ask left to the first of the others.
fn within_reach(
    original: &Original<'_>,
    at_work: &mut Vec<(&Pipeline<'_>, Planners<'_>)>,
) -> Bytes {
    let glances = parallel::map_mut(at_work, |(_, planners)| planners.glance());
    let Some(least) = glances.iter().flatten().min() else {
        return EVERY;
    };
    let takes = *least - original.liveness.fixed;
    let worth = *least + Bytes(takes.0 / STAGES.within_reach);
    let mut glances = glances.iter();
    let mut rivals = None;
    at_work.retain_mut(|(_, planners)| {
        let glance = glances.next().copied().flatten();
        let is_near = glance.is_none_or(|glance| glance <= worth);
        if !is_near {
            rivals = rivals.take().or_else(|| planners.rivals.take());
        }
        is_near
    });
    // They know the graph as it is.
    let mut others = at_work.iter_mut().filter(|(one, _)| one.begins_as_it_is());
    if let Some((_, planners)) = others.next() {
        planners.rivals = planners.rivals.take().or(rivals);
    }
    worth
}

/// What published planners reach, and what is planned for less.
fn look_further(entrants: &mut [Entrant<'_>]) {
    for entrant in entrants.iter_mut() {
        if let Some(rivals) = &mut entrant.planners.rivals {
            let least = &mut entrant.least;
            least.smallest = entrant.pipeline.smaller(least.smallest.clone(), rivals);
        }
    }
    let reached = entrants.iter().map(Entrant::need).min().unwrap_or(EVERY);
    // Who comes down to the same peak to the byte has the same plan.
    let mut seen = Vec::new();
    let is_new = |entrant: &&mut Entrant<'_>| {
        let need = entrant.need();
        let is_new = !seen.contains(&need);
        seen.push(need);
        is_new
    };
    let mut others: Vec<&mut Entrant<'_>> = entrants.iter_mut().filter(is_new).collect();
    parallel::map_mut(&mut others, |entrant| {
        let Entrant {
            pipeline,
            planners,
            least,
        } = entrant;
        pipeline.plan_for_less(planners, least, reached);
    });
}

/// The cheapest plan of all that fits, or the smallest peak of all.
fn cheapest(mut entrants: Vec<Entrant<'_>>, within: Option<Bytes>) -> Found {
    let by_need = |entrant: &&Entrant<'_>| entrant.need();
    let smallest = entrants.iter().min_by_key(by_need).expect("one at least");
    let reserve = smallest.pipeline.reserve();
    let least = smallest.need();
    let budget = within.map_or(near(least), |within| within - reserve);
    if least > budget {
        return Err(smallest
            .pipeline
            .infeasible(budget, &smallest.least.smallest));
    }
    let mut best: Option<Found> = None;
    let mut rivals = entrants
        .first_mut()
        .and_then(|first| first.planners.rivals.take());
    entrants.retain(|entrant| entrant.need() <= budget);
    // The smallest peaks of those that took no variants.
    let mut plain = Vec::new();
    for entrant in &mut entrants {
        // Who may take none and comes down to the same has the same plans.
        if !entrant.pipeline.may_vary() && plain.contains(&entrant.need()) {
            continue;
        }
        // Whoever is the first to plan asks them.
        entrant.planners.rivals = entrant.planners.rivals.take().or_else(|| rivals.take());
        let found = match &best {
            Some(Ok(best)) => entrant.cheaper_than(&ToBeat {
                budget: budget + reserve,
                added: best.summary.time_added,
                smallest_peak: least + reserve,
                untried: Untried::default(),
            }),
            _ => Some(entrant.within(budget)),
        };
        if let Some(found) = found {
            if !entrant.pipeline.untried(&found).fewer_variants {
                plain.push(entrant.need());
            }
            offer(&mut best, found, BudgetRequest::Bytes(budget + reserve));
        }
    }
    let mut found = best.expect("the smallest fits");
    if let Ok(found) = &mut found {
        found.summary.smallest_peak = (least + reserve).min(found.summary.after.bytes);
    }
    found
}

impl Entrant<'_> {
    /// The smallest peak that it reaches, the reserve not included.
    fn need(&self) -> Bytes {
        self.least.smallest.need()
    }

    /// The cheapest that it finds within the budget, the reserve not included.
    fn within(&mut self, budget: Bytes) -> Found {
        let Entrant {
            pipeline,
            planners,
            least,
        } = self;
        let Least { plan, smallest, .. } = least;
        let known = smallest.clone();
        let known: Later<'_> = LazyLock::new(Box::new(|| known));
        let request = BudgetRequest::Bytes(budget + pipeline.reserve());
        let mut found = Some(pipeline.fit(planners, plan, &known, request));
        let added = pipeline.added(smallest);
        if let Some(Ok(cheapest)) = &found
            && added < cheapest.summary.time_added
        {
            let smallest = pipeline.finish(smallest.clone(), budget, smallest.need(), None, None);
            offer(&mut found, smallest, request);
        }
        found.expect("it was offered")
    }

    /// What adds less, if it finds anything.
    fn cheaper_than(&mut self, known: &ToBeat) -> Option<Found> {
        match self.pipeline.cheaper_than(&mut self.planners, known) {
            Reply::Found(found, _) => Some(found),
            Reply::NothingCheaper(_) => None,
        }
    }
}
