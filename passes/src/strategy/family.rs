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
pub struct Family {
    /// Or why the strategy has none.
    plans: Result<Vec<Judged>, String>,
    notes: Vec<String>,
}

impl Family {
    /// Judges the plans, equal ones once; no more than two when the watch says stop.
    pub fn of(task: &Task<'_>, plans: Vec<Plan>) -> Family {
        Family {
            plans: Ok(Family::judge(task, plans)),
            notes: Vec::new(),
        }
    }

    /// Judges the plans, which come with notes; or keeps why the strategy has none.
    pub fn noted(task: &Task<'_>, plans: Result<(Vec<Plan>, Vec<String>), String>) -> Family {
        match plans {
            Ok((plans, notes)) => Family {
                notes,
                ..Family::of(task, plans)
            },
            Err(reason) => Family {
                plans: Err(reason),
                notes: Vec::new(),
            },
        }
    }

    fn judge(task: &Task<'_>, mut plans: Vec<Plan>) -> Vec<Judged> {
        plans.push(task.without_copies());
        let mut seen: Vec<Plan> = Vec::new();
        for plan in plans {
            let plan = plan.without_unread_copies(task.graph, task.recomputation);
            if !seen.contains(&plan) {
                seen.push(plan);
            }
        }
        let last = seen.len() - 1;
        let plans = seen.into_iter().enumerate();
        // The last is the plan without copies.
        let in_time = plans.filter(|&(i, _)| i == 0 || i == last || !task.watch.is_stopped());
        in_time.map(|(_, plan)| task.judge(plan)).collect()
    }
}

impl Planner for Family {
    fn within(&mut self, budget: Bytes) -> Result<Plan, Unplanned> {
        let plans = match &self.plans {
            Ok(plans) => plans.iter(),
            Err(reason) => return Err(Unplanned::Refused(reason.clone())),
        };
        let fits = |judged: &&Judged| judged.plan.predicted_peak <= budget;
        let cheapest = plans
            .clone()
            .filter(fits)
            .min_by_key(|judged| (judged.added, judged.plan.predicted_peak));
        if let Some(judged) = cheapest {
            return Ok(judged.plan.clone());
        }
        let smallest = plans.min_by_key(|judged| (judged.plan.predicted_peak, judged.added));
        Err(Unplanned::TooLarge(
            smallest
                .map(|judged| judged.plan.clone())
                .unwrap_or_default(),
        ))
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
