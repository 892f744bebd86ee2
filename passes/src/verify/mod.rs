//! Proof that a rewritten graph computes what the original computes.
//!
//! Nothing here trusts the search, the rewriting, or the operator tables that they use: a mistake
//! there must show up here. What a node reads is traced back to the original by value numbering
//! ([`equivalence()`]); whether memory that is updated in place is read at the same time is checked
//! against execution orders ([`updates()`]), whether an input that an output overwrites is read before by what is computed
//! ([`overwrites()`]), and whether the CPU rounds to 16 bits where it did against the casts that it
//! inserts ([`rounding()`]). Costs do not matter here, only results.

mod casts;
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
pub use rounding::{rounding, rounding_optimized};
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::graph::Graph;

    #[test]
    fn a_peak_may_fill_the_budget_but_not_exceed_it() {
        let peaks = |second| [("DEFAULT", Bytes(10)), ("PRIORITY_BASED", Bytes(second))];
        assert_eq!(budget(Bytes(12), peaks(12)), Ok(()));
        let error = budget(Bytes(12), peaks(13)).unwrap_err();
        insta::assert_snapshot!(error, @"the peak in PRIORITY_BASED order is 13 B, above the budget of 12 B");
    }

    #[test]
    fn an_operator_of_a_domain_is_not_one_without_whose_name_begins_like_it() {
        let text = "g (float[4] x) => (float[4] y) { [n] y = com.microsoft.Gelu(x) }";
        let original = Graph::parse(text).unwrap();
        let mut other = original.clone();
        let id = other.order()[0];
        let node = other.node_mut(id);
        (node.domain, node.op_type) = (String::new(), "com.microsoft.Gelu".to_owned());
        let permitted = BTreeSet::new();
        assert!(equivalence(&original, &original, &permitted).is_ok());
        assert!(equivalence(&original, &other, &permitted).is_err());
        assert!(equivalence(&other, &original, &permitted).is_err());
    }
}
