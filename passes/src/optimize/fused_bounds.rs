//! The lower bound for what the runtime fuses, beside plans of which it has to be true.

use super::simulation::{Candidate, simulated};
use super::variant_graph::Form;
use super::*;
use crate::analysis::cost::time_of_all;
use crate::bytes::Bytes;
use crate::graph::NodeId;
use crate::lower::lower;
use crate::optimize::pipeline::APPLYING;
use crate::plan::Plan;
use crate::runtime::promise::Promise;
use crate::runtime::{Runtime, STOCK};
use crate::search::Search;
use crate::strategy::Strategy;
use crate::strategy::tests::options;
use crate::testing::{
    SplitMix64, random_mixed_graph, random_training_graph, varied_training_graph,
};

fn usual() -> PlanOptions {
    let options = options(Strategy::Auto, BudgetRequest::Smallest);
    PlanOptions {
        runtime: Runtime {
            promise: Promise::USUAL,
            ..options.runtime
        },
        ..options
    }
}

/// What the plan adds, and what every plan adds that needs no more: both in nanoseconds.
struct Beside {
    added: u64,
    bound: u64,
}

fn beside(planned: &Form, rewritten: &Graph, options: &PlanOptions) -> Option<Beside> {
    let candidate = Candidate::new(rewritten.clone(), options);
    let before = time_of_all(&planned.graph, &planned.costs);
    let added = time_of_all(&candidate.graph, &candidate.costs).saturating_sub(before);
    let search = candidate.fused_search(planned, options)?;
    let need = need_as_run(&candidate, options);
    let bound = search.lower_bound(need, 2 * added + 1000);
    Some(Beside { added, bound })
}

/// What its tensors' elements need in the session that is promised.
fn need_as_run(candidate: &Candidate, options: &PlanOptions) -> Bytes {
    let runs = simulated(&candidate.graph, &candidate.costs, options).into_iter();
    let promised = runs.filter(|run| run.promised);
    let needs = promised.map(|run| run.liveness.peak);
    needs.max().unwrap_or_default()
}

/// Some nodes again, each somewhere behind its original.
fn with_some_copies(planned: &Form, random: &mut SplitMix64) -> Graph {
    let graph = &planned.graph;
    let mut sequence: Vec<NodeId> = graph.order().to_vec();
    for _ in 0..1 + random.below(6) {
        let id = graph.order()[random.below(graph.order().len())];
        let first = sequence
            .iter()
            .position(|&other| other == id)
            .expect("its original");
        let behind = first + 1 + random.below(sequence.len() - first);
        sequence.insert(behind, id);
    }
    let plan = Plan {
        sequence,
        ..Plan::default()
    };
    (APPLYING.with_copies)(graph, &plan, &planned.recomputation)
}

fn graphs() -> impl Iterator<Item = (Graph, PlanOptions)> {
    (0..180).map(|seed| {
        let options = usual();
        let size = 6 + seed as usize % 5 * 6;
        match seed % 4 {
            0 => (random_training_graph(seed, size), options),
            1 => (random_mixed_graph(seed, size), options),
            2 => (varied_training_graph(seed, size), options),
            _ => {
                let mut graph = random_training_graph(seed, size);
                let _ = lower(&mut graph, &options.bindings, None);
                let runtime = Runtime {
                    release: &STOCK,
                    ..options.runtime
                };
                (graph, PlanOptions { runtime, ..options })
            }
        }
    })
}

#[test]
fn no_plan_that_runs_so_adds_less() {
    let mut random = SplitMix64::new(1);
    let (mut positive, mut tight) = (0, 0);
    for (number, (graph, options)) in graphs().enumerate() {
        let planned = &Form::new(graph, &options);
        let mut plans: Vec<Graph> = (0..5)
            .map(|_| with_some_copies(planned, &mut random))
            .collect();
        plans.extend(searched(planned, &options));
        for rewritten in plans {
            let Some(Beside { added, bound }) = beside(planned, &rewritten, &options) else {
                continue;
            };
            assert!(bound <= added, "graph {number}: {bound} for {added}");
            positive += usize::from(bound > 0);
            tight += usize::from(bound > 0 && bound * 10 > added * 9);
        }
    }
    assert!(positive > 30 && tight > 15, "{positive}, {tight}");
}

/// Plans that add little, from the smallest peak on.
fn searched(planned: &Form, options: &PlanOptions) -> Vec<Graph> {
    let Form {
        graph,
        costs,
        recomputation,
        ..
    } = planned;
    let provider = options.device.provider;
    let mut search = Search::new(
        graph,
        graph.order(),
        provider,
        costs,
        recomputation,
        options.effort,
    );
    let most = search.without_copies().predicted_peak;
    let least = search.smallest().predicted_peak;
    let budgets = [0, 1, 2, 3].map(|part| least + Bytes((most - least).0 * part / 4));
    let plans = budgets.map(|budget| search.cheaper(budget, u64::MAX));
    let applied = |plan: Plan| (APPLYING.with_copies)(graph, &plan, recomputation);
    plans.into_iter().flatten().map(applied).collect()
}

#[test]
fn a_graph_that_stays_as_it_is_needs_no_time() {
    let mut compared = 0;
    for (number, (graph, options)) in graphs().enumerate() {
        let planned = &Form::new(graph, &options);
        let candidate = Candidate::new(planned.graph.clone(), &options);
        let Some(search) = candidate.fused_search(planned, &options) else {
            continue;
        };
        let need = need_as_run(&candidate, &options);
        assert_eq!(search.lower_bound(need, 1000), 0, "graph {number}");
        compared += usize::from(search.lower_bound(Bytes(need.0 * 9 / 10), 1000) > 0);
    }
    assert!(compared > 50, "{compared}");
}
