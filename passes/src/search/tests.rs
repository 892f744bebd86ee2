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
