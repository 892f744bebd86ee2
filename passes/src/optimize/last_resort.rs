//! What a request for the smallest peak finds may fit a budget for which nothing was found: more is tried for it, and from another
//! beginning. So a budget is refused only if `min` finds nothing that fits it either.

use super::faults::Found;
use super::{BudgetRequest, OptimizeError, Optimized, PlanOptions};
use crate::bytes::Bytes;
use crate::runtime::promise::Promise;
use crate::strategy::Strategy;

/// By one part in so many, at most, what was found is expected to come down, what the caller owns not counted: a quarter was seen. A budget
/// below that is refused without another search.
const COMES_DOWN: u64 = 2;

/// Puts in the place of each refusal of the row what fits, and tells the others of the smallest peak; `find` plans for a row of budgets.
/// Of each peak the caller owns as much as `fixed`. What fits in `narrow` sessions, where these are enough, is promised there. What
/// nothing can fit stays refused.
pub(super) fn fit_smallest(
    row: &mut [Found],
    (budgets, fixed): (&[BudgetRequest], Bytes),
    options: &PlanOptions,
    narrow: Option<Promise>,
    find: impl FnOnce(&[BudgetRequest]) -> Result<Vec<Found>, OptimizeError>,
) -> Result<(), OptimizeError> {
    if options.strategy != Strategy::Auto || !row.iter().any(|found| is_near(found, fixed)) {
        return Ok(());
    }
    let asked = budgets
        .iter()
        .position(|&budget| budget == BudgetRequest::Smallest);
    let least = match asked {
        Some(number) => row[number].as_ref().ok().cloned(),
        None if options.watch.is_stopped() => None,
        None => find(&[BudgetRequest::Smallest])?.swap_remove(0).ok(),
    };
    let Some(least) = least else {
        return Ok(());
    };
    for found in row.iter_mut() {
        let Err(OptimizeError::Infeasible {
            budget,
            smallest,
            floor: None,
        }) = found
        else {
            continue;
        };
        let mut fits = least.clone();
        fits.summary.budget = *budget;
        // A bound for a smaller budget says nothing of this one.
        if *budget > least.summary.budget {
            fits.summary.lower_bound = 0;
        }
        let after = &least.summary.after;
        if let Some(narrow) = narrow
            && fits.summary.over_budget().next().is_some()
        {
            fits.summary.promise = narrow;
        }
        if fits.summary.over_budget().next().is_none() && after.bytes <= *budget {
            *found = Ok(fits);
        } else if after.bytes < smallest.bytes {
            **smallest = after.clone();
        }
    }
    Ok(())
}

/// Was nothing found, though nothing says that there is nothing, and what needs least is not far above?
fn is_near(found: &Result<Optimized, OptimizeError>, fixed: Bytes) -> bool {
    match found {
        Err(OptimizeError::Infeasible {
            budget,
            smallest,
            floor: None,
        }) => *budget + Bytes((smallest.bytes - fixed).0 / COMES_DOWN) >= smallest.bytes,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimize::{optimize, optimize_usual};
    use crate::runtime::Runtime;
    use crate::runtime::settings::RuntimeSettings;
    use crate::strategy::tests::options;
    use crate::testing::random_training_graph;

    #[test]
    fn what_the_smallest_peak_is_found_for_fits_every_budget_above() {
        let plan = |seed, budget, usual: bool| {
            let graph = random_training_graph(seed, 16 + 2 * seed as usize);
            let options = PlanOptions {
                runtime: Runtime::of(RuntimeSettings::DEFAULT),
                ..options(Strategy::Auto, budget)
            };
            match usual {
                true => optimize_usual(&graph, &options, &[budget])
                    .expect("a row")
                    .swap_remove(0),
                false => optimize(&graph, &options),
            }
        };
        for seed in [0, 7, 25, 33, 34] {
            for usual in [true, false] {
                let least = plan(seed, BudgetRequest::Smallest, usual).expect("a plan");
                let peak = least.summary.after.bytes;
                for more in [0, 1, peak.0 / 60] {
                    let budget = BudgetRequest::Bytes(peak + Bytes(more));
                    let found = plan(seed, budget, usual)
                        .unwrap_or_else(|error| panic!("seed {seed}, {more} more: {error}"));
                    assert!(found.summary.over_budget().next().is_none(), "seed {seed}");
                }
            }
        }
    }
}
