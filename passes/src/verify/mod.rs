//! Proof that a rewritten graph computes what the original computes.
//!
//! Nothing here trusts the search, the rewriting, or the operator tables that they use: a mistake
//! there must show up here. What a node reads is traced back to the original by value numbering
//! ([`equivalence()`]); whether memory that is updated in place is read at the same time is checked
//! against execution orders ([`updates()`]), whether an input that an output overwrites is read before by what is computed
//! ([`overwrites()`]), and whether the CPU rounds to 16 bits where it did against the casts that it
//! inserts ([`rounding()`]). Costs do not matter here, only results.

mod equivalence;
mod interface;
#[cfg(test)]
mod mutations;
mod overwrites;
mod rounding;
mod structure;
mod trust;
mod updates;
mod values;
mod variants;
mod violation;

pub use equivalence::{Correspondence, Role, equivalence, equivalence_allowing};
pub use overwrites::overwrites;
pub use rounding::rounding;
pub use structure::structure;
pub use updates::updates;
pub use values::{declarations, unrepeatable};
pub use violation::Violation;

use crate::bytes::Bytes;

/// Checks that each of the `peaks`, named after the execution order that has it, is within the
/// budget. The peaks must have been computed afresh from the written graph.
pub fn budget<'a>(
    budget: Bytes,
    peaks: impl IntoIterator<Item = (&'a str, Bytes)>,
) -> Result<(), Violation> {
    match peaks.into_iter().find(|(_, peak)| *peak > budget) {
        None => Ok(()),
        Some((order, peak)) => Err(Violation::OverBudget {
            order: order.to_owned(),
            peak,
            budget,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_may_fill_the_budget_but_not_exceed_it() {
        let peaks = |second| [("DEFAULT", Bytes(10)), ("PRIORITY_BASED", Bytes(second))];
        assert_eq!(budget(Bytes(12), peaks(12)), Ok(()));
        let error = budget(Bytes(12), peaks(13)).unwrap_err();
        insta::assert_snapshot!(error, @"the peak in PRIORITY_BASED order is 13 B, above the budget of 12 B");
    }
}
