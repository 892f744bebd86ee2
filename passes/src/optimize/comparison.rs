//! The better of two results for one budget.

use super::faults::{self, Found};
use super::{BudgetRequest, OptimizeError};
use crate::bytes::Bytes;

/// Puts `other` in the place of `found` if it is better, with what both know together, and what was given up on the way
/// to either.
pub(super) fn better(found: &mut Found, mut other: Found, budget: BudgetRequest) {
    let mut given_up = faults::take(found);
    given_up.extend(faults::take(&mut other));
    let smallest = |found: &Found| match found {
        Ok(found) => found.summary.smallest_peak,
        Err(OptimizeError::Infeasible { smallest, .. }) => smallest.bytes,
        Err(_) => Bytes(u64::MAX),
    };
    let least = smallest(found).min(smallest(&other));
    let (takes_over, bound) = match (&*found, &other) {
        (Ok(found), Ok(other)) => {
            let (one, two) = (&found.summary, &other.summary);
            let cheaper = match budget {
                BudgetRequest::Smallest => two.after.bytes < one.after.bytes,
                _ => two.time_added < one.time_added,
            };
            (cheaper, one.lower_bound.min(two.lower_bound))
        }
        (Err(_), Ok(other)) => (true, other.summary.lower_bound),
        (Ok(found), Err(_)) => (false, found.summary.lower_bound),
        (Err(_), Err(_)) => (least < smallest(found), 0),
    };
    if takes_over {
        *found = other;
    }
    if let Ok(found) = found {
        found.summary.smallest_peak = least;
        found.summary.lower_bound = bound.min(found.summary.time_added);
    }
    faults::give(found, given_up);
}
