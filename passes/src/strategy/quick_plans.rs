//! What the published strategies find where this program's own search finds less.
//!
//! Where memory is very short, the search, which puts copy after copy into one order of first
//! computations, can get stuck above what whole segments reach: concatenations of concatenations
//! (DenseNet) are an example. So the plans of a few quick strategies are looked at as well, and a
//! search starts from them, in the order of the one with the smallest peak.

use super::{EVERY, Planner, Task, Unplanned, chen, lower_set};
use crate::bytes::Bytes;
use crate::graph::NodeId;
use crate::parallel;
use crate::plan::Plan;
use crate::search::Search;
use crate::search::tuning::SEARCH;

/// A planner that is never worse than the one it begins with.
pub struct Portfolio<'t> {
    task: &'t Task<'t>,
    own: Box<dyn Planner + 't>,
    /// The orders of first computations that it looks at.
    orders: &'t [Vec<NodeId>],
    others: Option<Others>,
}

struct Others {
    plans: Vec<Plan>,
    /// That of the plan with the smallest peak.
    order: Vec<NodeId>,
    search: Search,
}

/// Graphs of more nodes take too long to look at so many plans.
pub(crate) const MOST_NODES: usize = 5_000;

impl<'t> Portfolio<'t> {
    /// Begins with `own`, which looks at these orders of first computations.
    pub fn new(
        task: &'t Task<'t>,
        own: Box<dyn Planner + 't>,
        orders: &'t [Vec<NodeId>],
    ) -> Portfolio<'t> {
        Portfolio {
            task,
            own,
            orders,
            others: None,
        }
    }

    fn others(&mut self) -> Option<&mut Others> {
        let stopped = self.task.watch.is_stopped();
        if self.task.order.len() > MOST_NODES || stopped || !SEARCH.portfolio {
            return None;
        }
        if self.others.is_none() {
            self.others = Some(Others::of(self.task, self.orders)?);
        }
        self.others.as_mut()
    }

    /// What the own planner says, and the others where they are asked, at the same time.
    fn each<A: Send, B>(
        &mut self,
        own: impl FnOnce(&mut (dyn Planner + 't)) -> A + Send,
        of_others: impl FnOnce(&mut Others) -> B,
    ) -> (A, Option<B>) {
        self.others();
        let Portfolio {
            own: planner,
            others,
            ..
        } = self;
        parallel::both(|| own(planner.as_mut()), || others.as_mut().map(of_others))
    }

    fn least(plans: Vec<Plan>) -> Plan {
        let least = plans
            .into_iter()
            .min_by_key(|plan| (plan.predicted_peak, plan.added));
        least.unwrap_or_default()
    }
}

impl Others {
    /// Of the orders, each is searched already.
    fn of(task: &Task<'_>, searched: &[Vec<NodeId>]) -> Option<Others> {
        let mut plans = chen::recursive(task);
        plans.extend(lower_set::coarse(task));
        let plans: Vec<Plan> = plans
            .into_iter()
            .map(|plan| task.judge(plan.without_unread_copies(task.graph, task.recomputation)))
            .collect();
        let smallest = plans.iter().min_by_key(|judged| judged.predicted_peak)?;
        let copies = smallest.copies();
        let first = smallest.sequence.iter().zip(copies);
        let order: Vec<NodeId> = first.filter(|copy| !copy.1).map(|(&id, _)| id).collect();
        let mut search = task.search(&order);
        plans.iter().for_each(|judged| search.start_from(judged));
        if searched.contains(&order) {
            search.descend_from_given();
        }
        Some(Others {
            plans,
            order,
            search,
        })
    }

    fn least(&self) -> Option<Plan> {
        let peak = |judged: &&Plan| judged.predicted_peak;
        let least = self.plans.iter().min_by_key(peak);
        least.cloned()
    }
}

impl Planner for Portfolio<'_> {
    fn within(&mut self, budget: Bytes) -> Result<Plan, Unplanned> {
        self.cheaper(budget, u64::MAX)
    }

    fn cheaper(&mut self, budget: Bytes, below: u64) -> Result<Plan, Unplanned> {
        let own = self.own.cheaper(budget, below);
        let times = self.task.costs.iter().map(|cost| cost.time.0);
        let cheap = times.fold(0, u64::saturating_add) / SEARCH.own_stands_below;
        if below <= cheap || own.as_ref().is_ok_and(|plan| plan.added <= cheap) {
            return own;
        }
        let orders = self.orders;
        let Some(others) = self.others() else {
            return own;
        };
        let plans = others.plans.iter().cloned();
        let mut plans: Vec<Plan> = plans.filter(|plan| plan.added < below).collect();
        let fits = |plan: &&Plan| plan.predicted_peak <= budget;
        let fruitless = |own: &Plan| {
            let mut fitting = plans.iter().filter(fits);
            orders.contains(&others.order) && fitting.all(|plan| plan.added >= own.added)
        };
        // In an order that was searched, the same is found again but from better starts.
        if !own.as_ref().is_ok_and(fruitless) {
            let below = own.as_ref().map_or(below, |own| own.added.min(below));
            plans.extend(others.search.cheaper(budget, below));
        }
        match own {
            Ok(plan) | Err(Unplanned::TooLarge(plan)) => plans.push(plan),
            Err(Unplanned::TooSlow) => {}
            Err(refused) => return Err(refused),
        }
        let fitting = plans.iter().filter(fits);
        match fitting.min_by_key(|plan| (plan.added, plan.predicted_peak)) {
            Some(plan) => Ok(plan.clone()),
            None if plans.is_empty() => Err(Unplanned::TooSlow),
            None => Err(Unplanned::TooLarge(Self::least(plans))),
        }
    }

    fn sketch(&mut self, budget: Bytes) -> Option<Plan> {
        self.own.sketch(budget)
    }

    fn start(&mut self, budget: Bytes) -> Option<Plan> {
        let own = self.own.start(budget);
        own.or_else(|| self.others()?.search.begin(budget))
    }

    fn smallest(&mut self) -> Result<Plan, String> {
        Ok(Self::least(self.smallest_few(EVERY)?))
    }

    fn glance(&mut self) -> Option<Bytes> {
        let (own, others) = self.each(
            |own| own.glance(),
            |others| {
                let small = others.search.small();
                let known = others.least().map(|plan| plan.predicted_peak);
                known.map_or(small.predicted_peak, |known| {
                    known.min(small.predicted_peak)
                })
            },
        );
        own.into_iter().chain(others).min()
    }

    fn smallest_few(&mut self, worth: Bytes) -> Result<Vec<Plan>, String> {
        let (own, others) = self.each(
            |own| own.smallest_few(worth),
            |others| (others.search.smallest_if(worth), others.least()),
        );
        let mut plans = own?;
        if let Some((smallest, known)) = others {
            plans.push(smallest);
            plans.extend(known);
        }
        Ok(plans)
    }

    fn smallest_in_passing(&mut self) -> Result<Plan, String> {
        self.own.smallest_in_passing()
    }

    fn notes(&self) -> Vec<String> {
        self.own.notes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::PlanFamily;
    use crate::strategy::tests::with_task;
    use crate::testing::UniformChain;

    #[test]
    fn a_planner_without_ideas_is_helped_down_to_what_segments_reach() {
        let chain = UniformChain::new(64);
        with_task(&chain.graph, |task| {
            let alone = || Box::new(PlanFamily::of(task, Vec::new()));
            let smallest = |planner: &mut dyn Planner| planner.smallest().unwrap().predicted_peak;
            let without = smallest(&mut *alone());
            let segments = PlanFamily::of(task, chen::recursive(task));
            let reached = smallest(&mut { segments });
            let mut portfolio = Portfolio::new(task, alone(), &[]);
            assert!(reached < without);
            assert!(smallest(&mut portfolio) <= reached);
            // Where nothing has to be computed again, the own plan stands.
            let plan = portfolio.within(without).unwrap();
            assert_eq!(plan.sequence, task.order);
        });
    }
}
