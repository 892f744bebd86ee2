use std::collections::BTreeMap;

use super::*;
use crate::cost::Nanos;
use crate::testing::{UniformChain, random_training_graph};

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
    let ours = chain
        .peaks()
        .map(|peak| search.cheaper(peak, u64::MAX).ok().map(again));
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
fn the_smallest_peak_is_looked_for_thoroughly_where_a_quick_look_comes_near_and_never_ends_above_it()
 {
    let mut smaller = 0;
    for seed in 0..8 {
        let graph = random_training_graph(seed, 120);
        let costs = vec![Cost::default(); graph.node_count()];
        let rules = Recomputation::of(&graph, &BTreeMap::new());
        let effort = Effort {
            seed: 1,
            evaluations: 20_000,
        };
        let smallest = |worth: Bytes| {
            let watch = Arc::new(Watch::default());
            let order = graph.order();
            let search = Search::new(&graph, order, Provider::Cpu, &costs, &rules, effort);
            let plan = search.watched(watch.clone()).smallest_if(worth);
            (plan.predicted_peak, watch.evaluations())
        };
        let (quick, few) = smallest(Bytes::ZERO);
        let (same, again) = smallest(quick - Bytes(1));
        assert_eq!((same, again), (quick, few), "seed {seed}");
        let (thorough, many) = smallest(quick);
        assert!(thorough <= quick && many >= few, "seed {seed}");
        smaller += usize::from(thorough < quick && many > 2 * few);
    }
    assert!(smaller > 0, "{smaller}");
}

#[test]
fn outputs_that_lie_apart_count_whenever_they_are_written() {
    // Bytes: x and y 4,000 each, o 40,000, b and c 20,000 each.
    for (nodes, together) in [
        ("o = Exp(x) b = Exp(x) c = Exp(b) y = Exp(c)", 84_000),
        ("b = Exp(x) c = Exp(b) y = Exp(c) o = Exp(x)", 48_000),
    ] {
        let text =
            "g (float[1000] x) => (float[10000] o, float[1000] y) <float[5000] b, float[5000] c>";
        let graph = Graph::parse(&format!("{text} {{ {nodes} }}")).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let rules = Recomputation::of(&graph, &BTreeMap::new());
        let effort = Effort {
            seed: 1,
            evaluations: 0,
        };
        let search = || Search::new(&graph, graph.order(), Provider::Cpu, &costs, &rules, effort);
        let peak = |search: Search| search.without_copies().predicted_peak.0;
        assert_eq!(peak(search()), together, "{nodes}");
        assert_eq!(peak(search().with_outputs_apart()), 88_000, "{nodes}");
    }
}

/// A fresh search on a uniform chain, and what watches it.
fn search_of(chain: &UniformChain, evaluations: u64) -> (Search, Arc<Watch>) {
    let rules = Recomputation::of(&chain.graph, &BTreeMap::new());
    let effort = Effort {
        seed: 1,
        evaluations,
    };
    let watch = Arc::new(Watch::default());
    let (order, costs) = (chain.graph.order(), &chain.costs);
    let search = Search::new(&chain.graph, order, Provider::Cpu, costs, &rules, effort);
    (search.watched(watch.clone()), watch)
}

#[test]
fn a_rough_estimate_spares_the_search_that_follows_work_and_changes_nothing() {
    let chain = UniformChain::new(32);
    let plan = |budget: Bytes, roughly: bool| {
        let (mut search, watch) = search_of(&chain, 2_000);
        let rough = roughly.then(|| search.rough_estimate(budget));
        let before = watch.evaluations();
        let plan = search
            .cheaper(budget, u64::MAX)
            .ok()
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

#[test]
fn a_search_for_what_every_plan_is_below_finds_the_same_even_where_rough_starts_find_nothing() {
    let mut missed = 0;
    for seed in 0..30 {
        let graph = random_training_graph(seed, 12 + 2 * seed as usize);
        let search = || {
            let cost = |id: u64| Cost {
                time: Nanos(1 + id % 7),
                workspace: Bytes::ZERO,
            };
            let costs: Vec<Cost> = (0..graph.node_count() as u64).map(cost).collect();
            let rules = Recomputation::of(&graph, &BTreeMap::new());
            let effort = Effort {
                seed: 1,
                evaluations: 2_000,
            };
            Search::new(&graph, graph.order(), Provider::Cpu, &costs, &rules, effort)
        };
        let made = |plan: Plan| (plan.sequence, plan.added);
        let budget = search().smallest().predicted_peak;
        let alone = search().cheaper(budget, u64::MAX).ok().map(made);
        let below = search().cheaper(budget, u64::MAX - 1).ok().map(made);
        assert_eq!(below, alone, "seed {seed}");
        missed += usize::from(search().rough_estimate(budget).is_none() && alone.is_some());
    }
    assert!(missed > 0, "rough starts find what all find");
}

#[test]
fn a_search_that_cannot_get_below_is_given_up_with_a_part_of_the_work() {
    let chain = UniformChain::new(32);
    let (mut all, mut given_up) = (0, 0);
    for budget in chain.peaks() {
        let (mut search, watch) = search_of(&chain, 20_000);
        let Some(plan) = search
            .cheaper(budget, u64::MAX)
            .ok()
            .filter(|plan| plan.added > 0)
        else {
            continue;
        };
        all += watch.evaluations();
        let least = search.lower_bound(budget, plan.added);
        let (mut search, watch) = search_of(&chain, 20_000);
        let missed = search.cheaper(budget, least).map(|plan| plan.added);
        assert_eq!(missed, Err(Missed::TooSlow), "{budget}");
        given_up += watch.evaluations();
    }
    assert!(2 * given_up < all, "{given_up} of {all} evaluations");
}
