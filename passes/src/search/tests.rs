use std::collections::BTreeMap;

use super::*;
use crate::testing::UniformChain;

/// How many layers run again at every memory size, ours and Revolve's optimum.
fn against_revolve(length: u64, evaluations: u64) -> (Vec<Option<u64>>, Vec<Option<u64>>) {
    let chain = UniformChain::new(length);
    let rules = Recomputation::of(&chain.graph, &BTreeMap::new());
    let (order, effort) = (
        chain.graph.order(),
        Effort {
            seed: 1,
            evaluations,
        },
    );
    let (graph, costs) = (&chain.graph, &chain.costs);
    let mut search = Search::new(graph, order, Provider::Cpu, costs, &rules, effort);
    assert_eq!(search.smallest().predicted_peak, chain.smallest_peak());
    let again = |plan: Plan| (plan.sequence.len() - order.len()) as u64;
    let ours = chain.peaks().map(|peak| search.within(peak).map(again));
    (
        ours.collect(),
        chain.peaks().map(|peak| chain.optimum(peak)).collect(),
    )
}

#[test]
fn on_uniform_chains_as_many_layers_run_again_as_revolve_s_optimum_at_every_memory_size() {
    for (length, evaluations) in [
        (8, 2_000),
        (16, 2_000),
        (24, 2_000),
        (32, 2_000),
        (48, 2_000),
        (64, 2_000),
    ] {
        let (ours, optimum) = against_revolve(length, evaluations);
        assert_eq!(ours, optimum, "{length} layers");
    }
}

#[test]
fn a_rough_estimate_spares_the_search_that_follows_work_and_changes_nothing() {
    let chain = UniformChain::new(32);
    let rules = Recomputation::of(&chain.graph, &BTreeMap::new());
    let effort = Effort {
        seed: 1,
        evaluations: 2_000,
    };
    let plan = |budget: Bytes, roughly: bool| {
        let watch = Arc::new(Watch::default());
        let (order, costs) = (chain.graph.order(), &chain.costs);
        let search = Search::new(&chain.graph, order, Provider::Cpu, costs, &rules, effort);
        let mut search = search.watched(watch.clone());
        let rough = roughly.then(|| search.rough_estimate(budget));
        let before = watch.evaluations();
        let plan = search
            .within(budget)
            .map(|plan| (plan.sequence, plan.added));
        (rough.flatten(), plan, watch.evaluations() - before)
    };
    let mut estimated = 0;
    for budget in chain.peaks() {
        let (_, alone, all) = plan(budget, false);
        let (rough, same, less) = plan(budget, true);
        assert_eq!(same, alone, "{budget}");
        let spared = less < all || all == 0 || rough.is_none();
        assert!(spared, "{budget}: {less} of {all} evaluations");
        estimated += usize::from(rough.is_some());
    }
    assert!(estimated > 5, "{estimated}");
}
