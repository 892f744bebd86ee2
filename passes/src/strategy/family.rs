//! Plans that one strategy makes by turning one knob, and the choice among them.

use super::{Planner, Task, Unplanned};
use crate::bytes::Bytes;
use crate::plan::Plan;

/// A plan, and a number that its strategy knows it by.
pub type Tagged = (Plan, Option<u64>);

/// The plans of a strategy. The plan without copies is always among them.
pub struct PlanFamily<'t> {
    task: &'t Task<'t>,
    /// Or why the strategy has none. What adds least comes first.
    plans: Result<Vec<Member>, String>,
    notes: Vec<String>,
    /// The number of the last plan that was handed out, and the plan's peak.
    chosen: Option<(u64, Bytes)>,
    /// What to say of that plan.
    say: fn(&Task<'_>, u64, Bytes) -> String,
}

struct Member {
    plan: Plan,
    tag: Option<u64>,
    /// Nanoseconds that its copies add, as far as is known without a simulation.
    added: u64,
    /// Only plans that matter are simulated.
    judged: Option<Plan>,
}

impl<'t> PlanFamily<'t> {
    /// These plans, equal ones once.
    pub fn of(task: &'t Task<'t>, plans: Vec<Plan>) -> PlanFamily<'t> {
        let mut family = PlanFamily {
            task,
            plans: Ok(Vec::new()),
            notes: Vec::new(),
            chosen: None,
            say: |_, _, _| String::new(),
        };
        family.add([(task.without_copies(), None)]);
        family.add(plans.into_iter().map(|plan| (plan, None)));
        family
    }

    /// The plans, which come with notes; or why the strategy has none. `say` makes one more note
    /// of a plan that is handed out, from its number and its peak.
    pub fn noted(
        task: &'t Task<'t>,
        plans: Result<(Vec<Tagged>, Vec<String>), String>,
        say: fn(&Task<'_>, u64, Bytes) -> String,
    ) -> PlanFamily<'t> {
        let mut family = PlanFamily::of(task, Vec::new());
        family.say = say;
        match plans {
            Ok((plans, notes)) => {
                family.add(plans);
                family.notes = notes;
            }
            Err(reason) => family.plans = Err(reason),
        }
        family
    }

    /// More plans.
    pub fn add(&mut self, plans: impl IntoIterator<Item = Tagged>) {
        let Ok(members) = &mut self.plans else { return };
        for (plan, tag) in plans {
            let plan = plan.without_unread_copies(self.task.graph, self.task.recomputation);
            if members.iter().all(|known| known.plan != plan) {
                members.push(Member {
                    added: self.task.copies_time(&plan),
                    plan,
                    tag,
                    judged: None,
                });
            }
        }
        members.sort_by_key(|member| member.added);
    }

    /// The number of the last plan that was handed out.
    pub fn chosen(&self) -> Option<u64> {
        self.chosen.map(|(tag, _)| tag)
    }
}

impl Planner for PlanFamily<'_> {
    fn within(&mut self, budget: Bytes) -> Result<Plan, Unplanned> {
        self.cheaper(budget, u64::MAX)
    }

    fn cheaper(&mut self, budget: Bytes, below: u64) -> Result<Plan, Unplanned> {
        let plans = match &mut self.plans {
            Ok(plans) => plans,
            Err(reason) => return Err(Unplanned::Refused(reason.clone())),
        };
        let mut cheapest: Option<(&Plan, Option<u64>)> = None;
        let mut smallest: Option<(&Plan, Option<u64>)> = None;
        for member in plans {
            let dearer = cheapest.is_some_and(|known| known.0.added < member.added);
            // One plan is judged however little time there is.
            let late = member.judged.is_none() && self.task.watch.is_stopped();
            if dearer || member.added >= below || (late && smallest.is_some()) {
                break;
            }
            let judged = member
                .judged
                .get_or_insert_with(|| self.task.judge(member.plan.clone()));
            let peak = |of: &Plan| of.predicted_peak;
            let less = |known: &Plan| (judged.added, peak(judged)) < (known.added, peak(known));
            if peak(judged) <= budget && cheapest.is_none_or(|known| less(known.0)) {
                cheapest = Some((judged, member.tag));
            }
            let lower = |known: &Plan| (peak(judged), judged.added) < (peak(known), known.added);
            if smallest.is_none_or(|known| lower(known.0)) {
                smallest = Some((judged, member.tag));
            }
        }
        let fits = cheapest.is_some();
        match cheapest.or(smallest) {
            Some((found, tag)) if found.added < below || !fits => {
                let plan = found.clone();
                self.chosen = tag.map(|tag| (tag, plan.predicted_peak));
                match fits {
                    true => Ok(plan),
                    false => Err(Unplanned::TooLarge(plan)),
                }
            }
            _ => Err(Unplanned::TooSlow),
        }
    }

    fn notes(&self) -> Vec<String> {
        let said = self
            .chosen
            .map(|(tag, peak)| (self.say)(self.task, tag, peak));
        self.notes.iter().cloned().chain(said).collect()
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
                let all: Vec<Plan> = all.collect();
                let mut budgets: Vec<Bytes> = all.iter().map(|j| j.predicted_peak).collect();
                budgets.push(Bytes::ZERO);
                let most = all.iter().map(|judged| judged.added).max().unwrap_or(0);
                for budget in budgets {
                    for below in [u64::MAX, most / 2, most / 8, 1] {
                        let fits = |j: &&Plan| j.predicted_peak <= budget && j.added < below;
                        let best = all.iter().filter(fits).map(|j| j.added).min();
                        let found = PlanFamily::of(task, plans.clone()).cheaper(budget, below);
                        assert_eq!(found.ok().map(|plan| plan.added), best, "seed {seed}");
                    }
                }
            });
        }
    }
}
