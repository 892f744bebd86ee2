//! What is asked of an alternative, what it replies, and which of two results for one budget is the better one.

use super::faults::{self, Found};
use super::tuning::STAGES;
use super::{BudgetRequest, OptimizeError, Summary};
use crate::bytes::Bytes;

/// What an alternative is asked for.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) request: BudgetRequest,
    /// What it has to be cheaper than; none where whatever fits is welcome.
    pub(super) known: Option<ToBeat>,
}

/// What is known for a budget.
#[derive(Clone, Copy)]
pub(super) struct ToBeat {
    pub(super) budget: Bytes,
    /// Nanoseconds.
    pub(super) added: u64,
    pub(super) smallest_peak: Bytes,
    pub(super) untried: Untried,
}

/// What is left to be tried after an answer.
#[derive(Clone, Copy, Default)]
pub(super) struct Untried {
    /// May what is found without variants be another?
    pub(super) fewer_variants: bool,
    /// Would published planners, which know no variants, be asked for another graph then?
    pub(super) published: bool,
}

/// What an alternative says.
// There is one for each budget, and it is taken apart at once.
#[allow(clippy::large_enum_variant)]
pub(super) enum Reply {
    Found(Found, Untried),
    /// It adds no less than what is known, and nothing that it looks at adds less than so many nanoseconds.
    NothingCheaper(u64),
}

/// The largest peak that is as good as that one.
pub(super) fn near(peak: Bytes) -> Bytes {
    peak + Bytes(peak.0 / STAGES.same_peak)
}

/// Is `one` better than the `other`, for whoever asks for that budget? `least` is the smallest peak that is known.
fn beats(one: &Summary, other: &Summary, request: BudgetRequest, least: Bytes) -> bool {
    let is_near = |summary: &Summary| summary.after.bytes <= near(least);
    match (request, is_near(one), is_near(other)) {
        (BudgetRequest::Smallest, true, false) => true,
        (BudgetRequest::Smallest, false, true) => false,
        (BudgetRequest::Smallest, false, false) => one.after.bytes < other.after.bytes,
        _ => one.time_added < other.time_added,
    }
}

/// Puts `other` in the place of the `best` so far if it is better, with what both know together, and what was given up on the
/// way to either.
pub(super) fn offer(best: &mut Option<Found>, mut other: Found, request: BudgetRequest) {
    let Some(found) = best else {
        *best = Some(other);
        return;
    };
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
            let takes_over = beats(two, one, request, least);
            (takes_over, one.lower_bound.min(two.lower_bound))
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
