//! The published strategies beside this program's own search, where that has no cheap plan: their
//! plans go through the same enforcement, and what is best in the written graph is taken. What
//! looks best in the planned order need not be: the runtime's settings add to some plans more than
//! to others.

use crate::parallel;
use crate::strategy::{MOST_NODES, Planner, Strategy, Task, planner};

/// A published strategy at work.
pub(super) struct Rival<'t> {
    pub(super) strategy: Strategy,
    pub(super) planner: Box<dyn Planner + 't>,
}

/// All of them, made when the first is wanted.
pub(super) struct Rivals<'t> {
    task: &'t Task<'t>,
    strategies: &'static [Strategy],
    rivals: Option<Vec<Rival<'t>>>,
}

impl<'t> Rivals<'t> {
    pub(super) fn of(task: &'t Task<'t>, strategies: &'static [Strategy]) -> Rivals<'t> {
        Rivals {
            task,
            strategies,
            rivals: None,
        }
    }

    /// None for graphs that are too large.
    pub(super) fn all(&mut self) -> &mut [Rival<'t>] {
        let task = self.task;
        self.rivals.get_or_insert_with(|| {
            if task.order.len() > MOST_NODES {
                return Vec::new();
            }
            let at_work = |strategy: Strategy| {
                if task.watch.is_stopped() {
                    return None;
                }
                let planner = planner(strategy, task)?;
                Some(Rival { strategy, planner })
            };
            let made = parallel::map(self.strategies, |&strategy| at_work(strategy));
            made.into_iter().flatten().collect()
        })
    }
}
