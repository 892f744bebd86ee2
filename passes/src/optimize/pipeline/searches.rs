//! The pipeline's own planner.

use crate::bytes::Bytes;
use crate::graph::NodeId;
use crate::parallel;
use crate::plan::Plan;
use crate::search::tuning::SEARCH;
use crate::search::{Missed, Search};
use crate::strategy::{EVERY, Planner, Task, Unplanned};

/// This program's own strategy: the cheapest that the searches find, one for each order.
pub(super) struct Searches {
    /// The order that is best by itself first; never empty.
    searches: Vec<Search>,
    /// Which of them is the cheapest within which budget.
    chosen: Option<(usize, Bytes)>,
}

impl Searches {
    pub(super) fn new(task: &Task<'_>, orders: &[Vec<NodeId>]) -> Searches {
        Searches {
            searches: orders.iter().map(|order| task.search(order)).collect(),
            chosen: None,
        }
    }

    fn choose(&mut self, budget: Bytes) -> Option<usize> {
        if let Some((chosen, known)) = self.chosen
            && budget <= known
            && budget.0 as f64 >= known.0 as f64 * SEARCH.same_order
        {
            return Some(chosen);
        }
        let cheapest = |estimates: Vec<Option<u64>>| {
            let costs = estimates.into_iter().enumerate();
            let costs = costs.filter_map(|(i, cost)| Some((cost?, i)));
            costs.min().map(|(_, i)| i)
        };
        let rough = match self.searches.as_mut_slice() {
            [_] => Some(0),
            all => cheapest(
                all.iter_mut()
                    .map(|search| search.rough_estimate(budget))
                    .collect(),
            ),
        };
        let all = self.searches.iter_mut();
        let chosen = match rough {
            Some(rough) => rough,
            None => cheapest(all.map(|search| search.estimate(budget)).collect())?,
        };
        self.chosen = Some((chosen, budget));
        Some(chosen)
    }
}

impl Planner for Searches {
    fn within(&mut self, budget: Bytes) -> Result<Plan, Unplanned> {
        self.cheaper(budget, u64::MAX)
    }

    fn cheaper(&mut self, budget: Bytes, below: u64) -> Result<Plan, Unplanned> {
        let found = match self.choose(budget) {
            Some(chosen) => self.searches[chosen].cheaper(budget, below),
            None => Err(Missed::TooLarge),
        };
        found.map_err(|missed| match missed {
            // Much the same in all orders, where nobody asked for the very smallest.
            Missed::TooLarge => {
                let first = self.searches.first_mut();
                Unplanned::TooLarge(first.map(Search::smallest).unwrap_or_default())
            }
            Missed::TooSlow => Unplanned::TooSlow,
        })
    }

    fn sketch(&mut self, budget: Bytes) -> Option<Plan> {
        self.searches.first()?.sketch(budget)
    }

    fn start(&mut self, budget: Bytes) -> Option<Plan> {
        let chosen = self.choose(budget)?;
        self.searches[chosen].begin(budget)
    }

    fn smallest(&mut self) -> Result<Plan, String> {
        let least = self.smallest_few(EVERY)?.into_iter();
        let least = least.min_by_key(|plan| (plan.predicted_peak, plan.added));
        Ok(least.unwrap_or_default())
    }

    fn glance(&mut self) -> Option<Bytes> {
        let all = parallel::map_mut(&mut self.searches, Search::small);
        all.into_iter().map(|plan| plan.predicted_peak).min()
    }

    fn smallest_few(&mut self, worth: Bytes) -> Result<Vec<Plan>, String> {
        let smallest = |search: &mut Search| search.smallest_if(worth);
        Ok(parallel::map_mut(&mut self.searches, smallest))
    }

    fn smallest_in_passing(&mut self) -> Result<Plan, String> {
        let first = self.searches.first_mut();
        Ok(first.map(Search::small).unwrap_or_default())
    }
}
