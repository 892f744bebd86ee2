//! Plans that came out wrong: verification found it, and another took their place.

use super::{OptimizeError, Optimized};
use crate::verify::Violation;

/// What became of planning, with the account of what was given up on the way.
pub(super) type Found = Result<Optimized, OptimizeError>;

/// A rewritten graph that was given up, as it could not be proved to be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{candidate}: {violation}")]
pub struct FailedCandidate {
    /// Which graph it was.
    pub candidate: String,
    /// What is wrong with it.
    pub violation: Violation,
}

/// Is nothing of what was planned proved to be right?
pub(super) fn is_unproved(found: &Found) -> bool {
    matches!(found, Err(OptimizeError::Unproved { .. }))
}

/// Takes the account of what was given up on the way to `found`.
pub(super) fn take(found: &mut Found) -> Vec<FailedCandidate> {
    match found {
        Ok(found) => std::mem::take(&mut found.summary.faults),
        Err(OptimizeError::Unproved { faults, .. }) => std::mem::take(faults),
        Err(_) => Vec::new(),
    }
}

/// Adds to that account. That nothing fits is not known where something fitted that could not be proved.
pub(super) fn give(found: &mut Found, more: Vec<FailedCandidate>) {
    if more.is_empty() {
        return;
    }
    if let Err(OptimizeError::Infeasible { budget, .. }) = found {
        *found = Err(OptimizeError::Unproved {
            budget: *budget,
            faults: Vec::new(),
        });
    }
    let faults = match found {
        Ok(found) => &mut found.summary.faults,
        Err(OptimizeError::Unproved { faults, .. }) => faults,
        Err(_) => return,
    };
    for fault in more {
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    }
}

/// The first of them, for a message.
pub(super) fn first(faults: &[FailedCandidate]) -> String {
    faults
        .first()
        .map_or_else(String::new, FailedCandidate::to_string)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::bytes::Bytes;
    use crate::operators::variants::Group;
    use crate::optimize::{BudgetRequest, PlanOptions, measure, optimize, verify_written};
    use crate::strategy::Strategy;
    use crate::strategy::tests::options;
    use crate::testing::random_training_graph;

    /// What becomes of a graph the first `broken` candidates of which are made wrong.
    fn found(variants: BTreeSet<Group>, request: BudgetRequest, broken: usize) -> Found {
        let graph = random_training_graph(3, 24);
        let options = PlanOptions {
            variants,
            ..options(Strategy::Auto, request)
        };
        options.watch.break_candidates(broken);
        let found = optimize(&graph, &options);
        if let Ok(Optimized {
            graph: written,
            summary,
        }) = &found
        {
            let right = verify_written(&graph, written, &options, summary.budget);
            assert!(right.is_ok(), "{broken}: {right:?}");
        }
        found
    }

    /// What has to be planned for.
    fn half() -> BudgetRequest {
        let summary = found(BTreeSet::new(), BudgetRequest::Smallest, 0);
        let summary = summary.expect("a plan").summary;
        let (before, least) = (summary.before.bytes, summary.after.bytes);
        BudgetRequest::Bytes(least + Bytes((before - least).0 / 2))
    }

    #[test]
    fn what_fails_verification_gives_way_to_another_candidate_and_is_told() {
        let request = half();
        let whole = found(BTreeSet::new(), request, 0).expect("a plan");
        assert_eq!(whole.summary.faults, []);
        let second = found(BTreeSet::new(), request, 1).expect("another plan");
        let [fault] = &second.summary.faults[..] else {
            panic!("{:?}", second.summary.faults);
        };
        insta::assert_snapshot!(fault, @r#"the plan of --strategy auto with new nodes: InPlaceAccumulatorV2Broken "/layer/InPlaceAccumulatorV2_20" must keep its operator: expected com.microsoft.InPlaceAccumulatorV2, found com.microsoft.InPlaceAccumulatorV2Broken"#);
        assert!(second.summary.after.bytes <= second.summary.budget);
    }

    #[test]
    fn what_fails_with_variants_is_planned_without_them() {
        let variants: BTreeSet<Group> = Group::ALL.into();
        let request = half();
        let mut without = 0;
        for broken in 1..4 {
            let Ok(found) = found(variants.clone(), request, broken) else {
                continue;
            };
            assert!(!found.summary.faults.is_empty());
            without += usize::from(found.summary.variants.is_empty());
        }
        assert!(without > 0);
    }

    #[test]
    fn the_smallest_peak_is_the_graph_s_own_where_no_plan_is_right() {
        let own = {
            let options = options(Strategy::Auto, BudgetRequest::Smallest);
            measure(&random_training_graph(3, 24), &options).expect("shapes")
        };
        let found = found(BTreeSet::new(), BudgetRequest::Smallest, 2).expect("the graph as it is");
        // Two candidates with the same fault.
        assert_eq!(found.summary.faults.len(), 1, "{:?}", found.summary.faults);
        assert_eq!(found.summary.recomputed_nodes, 0);
        assert!(found.summary.after.bytes >= own.default.bytes);
    }

    #[test]
    fn an_error_blames_nobody_where_no_candidate_is_left() {
        let error = found(BTreeSet::new(), half(), usize::MAX).expect_err("all are wrong");
        insta::assert_snapshot!(error, @r#"no rewriting of this graph could be proved to be right: the plan of --strategy auto with new nodes: InPlaceAccumulatorV2Broken "/layer/InPlaceAccumulatorV2_20" must keep its operator: expected com.microsoft.InPlaceAccumulatorV2, found com.microsoft.InPlaceAccumulatorV2Broken; nothing was written"#);
    }
}
