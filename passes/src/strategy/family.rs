//! Plans that one strategy makes by turning one knob, and the choice among them.

use super::{Planner, Task, Unplanned};
use crate::bytes::Bytes;
use crate::plan::Plan;

/// A plan and its exact figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The plan; its predicted peak is the simulated one.
    pub plan: Plan,
    /// Nanoseconds that its copies add.
    pub added: u64,
}

/// The plans of a strategy. The plan without copies is always among them.
pub struct Family<'t> {
    task: &'t Task<'t>,
    /// Or why the strategy has none. What adds least comes first.
    plans: Result<Vec<Member>, String>,
    notes: Vec<String>,
}

struct Member {
    plan: Plan,
    /// Nanoseconds that its copies add, as far as is known without a simulation.
    added: u64,
    /// Only plans that matter are simulated.
    judged: Option<Judged>,
}

impl<'t> Family<'t> {
    /// These plans, equal ones once.
    pub fn of(task: &'t Task<'t>, plans: Vec<Plan>) -> Family<'t> {
        Family::noted(task, Ok((plans, Vec::new())))
    }

    /// The plans, which come with notes; or why the strategy has none.
    pub fn noted(
        task: &'t Task<'t>,
        plans: Result<(Vec<Plan>, Vec<String>), String>,
    ) -> Family<'t> {
        let (plans, notes) = match plans {
            Ok((plans, notes)) => (Ok(Family::members(task, plans)), notes),
            Err(reason) => (Err(reason), Vec::new()),
        };
        Family { task, plans, notes }
    }

    fn members(task: &Task<'_>, mut plans: Vec<Plan>) -> Vec<Member> {
        plans.push(task.without_copies());
        let mut members: Vec<Member> = Vec::new();
        for plan in plans {
            let plan = plan.without_unread_copies(task.graph, task.recomputation);
            if members.iter().all(|known| known.plan != plan) {
                members.push(Member {
                    added: task.copies_time(&plan),
                    plan,
                    judged: None,
                });
            }
        }
        members.sort_by_key(|member| member.added);
        members
    }
}

impl Planner for Family<'_> {
    fn within(&mut self, budget: Bytes) -> Result<Plan, Unplanned> {
        self.cheaper(budget, u64::MAX)
    }

    fn cheaper(&mut self, budget: Bytes, below: u64) -> Result<Plan, Unplanned> {
        let plans = match &mut self.plans {
            Ok(plans) => plans,
            Err(reason) => return Err(Unplanned::Refused(reason.clone())),
        };
        let mut cheapest: Option<&Judged> = None;
        let mut smallest: Option<&Judged> = None;
        for member in plans {
            let dearer = cheapest.is_some_and(|known| known.added < member.added);
            // One plan is judged however little time there is.
            let late = member.judged.is_none() && self.task.watch.is_stopped();
            if dearer || member.added >= below || (late && smallest.is_some()) {
                break;
            }
            let judged = member
                .judged
                .get_or_insert_with(|| self.task.judge(member.plan.clone()));
            let peak = |of: &Judged| of.plan.predicted_peak;
            if peak(judged) <= budget
                && cheapest
                    .is_none_or(|known| (judged.added, peak(judged)) < (known.added, peak(known)))
            {
                cheapest = Some(judged);
            }
            if smallest
                .is_none_or(|known| (peak(judged), judged.added) < (peak(known), known.added))
            {
                smallest = Some(judged);
            }
        }
        match (cheapest, smallest) {
            (Some(found), _) if found.added < below => Ok(found.plan.clone()),
            (None, Some(found)) => Err(Unplanned::TooLarge(found.plan.clone())),
            _ => Err(Unplanned::TooSlow),
        }
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::chen;
    use crate::strategy::tests::with_task;
    use crate::testing::random_training_graph;

    #[test]
    fn what_is_not_simulated_would_not_be_chosen() {
        for seed in 0..12 {
            with_task(&random_training_graph(seed, 40), |task| {
                let plans = chen::recursive(task);
                let mut all = plans.clone();
                all.push(task.without_copies());
                let all = all.iter().map(|plan| {
                    task.judge(plan.without_unread_copies(task.graph, task.recomputation))
                });
                let all: Vec<Judged> = all.collect();
                let mut budgets: Vec<Bytes> = all.iter().map(|j| j.plan.predicted_peak).collect();
                budgets.push(Bytes::ZERO);
                let most = all.iter().map(|judged| judged.added).max().unwrap_or(0);
                for budget in budgets {
                    for below in [u64::MAX, most / 2, most / 8, 1] {
                        let fits = |j: &&Judged| j.plan.predicted_peak <= budget && j.added < below;
                        let best = all.iter().filter(fits).map(|j| j.added).min();
                        let found = Family::of(task, plans.clone()).cheaper(budget, below);
                        assert_eq!(found.ok().map(|plan| plan.added), best, "seed {seed}");
                    }
                }
            });
        }
    }
}
