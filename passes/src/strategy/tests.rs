use std::collections::BTreeMap;

use super::*;
use crate::optimize::{BudgetRequest, OptimizeError, Options, optimize};
use crate::testing::random_training_graph;

pub(super) fn options(strategy: Strategy, budget: BudgetRequest) -> Options {
    Options {
        bindings: BTreeMap::new(),
        budget,
        reserve: Bytes::ZERO,
        device: Device::preset("cpu").unwrap(),
        overrides: BTreeMap::new(),
        strategy,
        effort: Effort {
            seed: 1,
            evaluations: 2_000,
        },
        stop: Arc::default(),
    }
}

#[test]
fn every_name_is_read_as_it_is_shown() {
    for strategy in Strategy::ALL {
        assert_eq!(strategy.to_string().parse(), Ok(strategy));
    }
    let unknown = "chen".parse::<Strategy>().unwrap_err();
    assert!(unknown.to_string().contains("auto, chen-sqrt"));
}

#[test]
fn what_a_strategy_plans_for_random_graphs_is_verified_and_within_the_budget() {
    for strategy in Strategy::ALL {
        let (mut written, mut recomputed) = (0, 0);
        for seed in 0..16 {
            let graph = random_training_graph(seed, 20 + seed as usize * 7 % 60);
            // `optimize` verifies what it returns.
            let smallest = match optimize(&graph, &options(strategy, BudgetRequest::Smallest)) {
                Ok(optimized) => optimized.summary,
                Err(OptimizeError::Refused { .. }) => continue,
                Err(other) => panic!("{strategy}, seed {seed}: {other}"),
            };
            recomputed += smallest.recomputed_nodes;
            for part in [0.95, 0.8] {
                let budget = BudgetRequest::PartOfPeak(part);
                match optimize(&graph, &options(strategy, budget)) {
                    Ok(optimized) => {
                        let summary = optimized.summary;
                        assert!(summary.after.bytes <= summary.budget, "{strategy}, {seed}");
                        written += 1;
                    }
                    Err(OptimizeError::Infeasible { budget, smallest }) => {
                        assert!(smallest.bytes > budget, "{strategy}, seed {seed}");
                    }
                    Err(other) => panic!("{strategy}, seed {seed}: {other}"),
                }
            }
        }
        assert!(
            written > 0 && recomputed > 0,
            "{strategy}: {written} {recomputed}"
        );
    }
}
