//! Search, rewriting and verification together, on random graphs.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    brute_force, naive_peak, random_mixed_graph, random_training_graph, strange_training_graph,
    varied_training_graph,
};
use crate::analysis::recompute::Recomputation;
use crate::analysis::sequences::sequences;
use crate::bytes::Bytes;
use crate::cost::{Cost, Nanos};
use crate::enforce::barriers::{Conditions, Enforceable, Thinning};
use crate::enforce::release_unread::ReleaseUnread;
use crate::graph::{Graph, NodeId};
use crate::operators::Provider;
use crate::pass::Pass;
use crate::plan::{Originals, Plan};
use crate::rewrite::insert_mirrors::InsertMirrors;
use crate::runtime::casting::are_there;
use crate::runtime::liveness::Liveness;
use crate::runtime::order::ExecutionOrder;
use crate::runtime::rounding::Rounding;
use crate::runtime::{Runtime, TRAINING};
use crate::search::{Effort, Search, first_orders};
use crate::verify;
use crate::watch::Watch;

const CPU: Provider = Provider::Cpu;

/// Times from 1 to 9; products and convolutions work with as much memory as they write.
fn costs(graph: &Graph) -> Vec<Cost> {
    let cost = |id: u32| {
        let node = graph.node(NodeId(id));
        let heavy = ["Conv", "ConvGrad", "MatMul", "FusedMatMul"].contains(&node.op_type.as_str());
        let written = node
            .writes()
            .next()
            .and_then(|tensor| graph.tensor(tensor).bytes());
        Cost {
            time: Nanos(1 + u64::from(id) * 5 % 9),
            workspace: written.filter(|_| heavy).unwrap_or(Bytes::ZERO),
        }
    };
    (0..graph.node_count() as u32).map(cost).collect()
}

/// What has to stay in sequence.
fn in_sequence(graph: &Graph) -> Vec<(NodeId, NodeId)> {
    let run = Liveness::simulate(graph, ExecutionOrder::Default, CPU, &costs(graph));
    sequences(graph, &run.nodes())
}

fn first_order(graph: &Graph, costs: &[Cost]) -> Vec<NodeId> {
    first_orders(
        graph,
        CPU,
        costs,
        &in_sequence(graph),
        Runtime::LEAN,
        &Watch::default(),
    )
    .swap_remove(0)
}

fn search(graph: &Graph, order: &[NodeId], rules: &Recomputation) -> Search {
    let effort = Effort {
        seed: 1,
        evaluations: 5_000,
    };
    Search::new(graph, order, CPU, &costs(graph), rules, effort)
}

/// Budgets from the smallest peak that is found to the peak without copies.
fn budgets(search: &mut Search, count: u64) -> impl Iterator<Item = Bytes> + use<> {
    let least = search.smallest().predicted_peak;
    let room = (search.without_copies().predicted_peak - least).0;
    (0..=count).map(move |part| least + Bytes(room * part / count))
}

/// Applies the plan and checks all that is promised of the result; false if no barriers keep the
/// runtime to it.
fn apply_and_verify(
    original: &Graph,
    plan: &Plan,
    rules: &Recomputation,
    budget: Bytes,
    is_varied: bool,
) -> bool {
    let mut graph = original.clone();
    InsertMirrors {
        instances: &plan.instances(original, rules, Originals::AsPlanned),
    }
    .run(&mut graph)
    .unwrap();
    ReleaseUnread { release: &TRAINING }
        .run(&mut graph)
        .unwrap();
    let sequences = in_sequence(original);
    let conditions = Conditions {
        object: Bytes::ZERO,
        provider: CPU,
        runtime: Runtime::LEAN,
        sequences: &sequences,
        watch: None,
    };
    let costs_of = costs(&graph);
    let enforceable = Enforceable::new(graph, costs_of, conditions);
    let Ok(graph) = enforceable.within(budget, Thinning::Thorough) else {
        return false;
    };
    let simulate = |graph: &Graph, order| Liveness::simulate(graph, order, CPU, &costs(graph));
    let reference = simulate(original, ExecutionOrder::Default).nodes();
    let found = verify::equivalence(original, &graph, &BTreeSet::new()).unwrap();
    verify::rounding(original, &graph, &found).unwrap();
    for order in ExecutionOrder::ALL {
        let run = simulate(&graph, order);
        // The runtime has less in place where it does not know the shapes, of which the naive peak knows nothing, nor of casts that
        // are inserted or taken out.
        if !are_there(&graph) {
            let naive = naive_peak(&graph, &run.order, CPU, &costs(&graph));
            let (peak, equal) = (run.peak, naive == run.peak || is_varied);
            assert!(
                naive <= peak && equal,
                "{naive:?} {peak:?}\n{}",
                graph.to_text()
            );
        }
        verify::budget(budget, [("this", run.peak)]).unwrap();
        verify::updates(original, &reference, &graph, &run.nodes(), &found).unwrap();
    }
    true
}

#[test]
fn plans_applied_to_random_graphs_pass_verification() {
    let (mut applied, mut enforced) = (0, 0);
    let graphs = (0..24).flat_map(|seed| {
        let size = 10 + seed as usize % 50;
        let varied = varied_training_graph(seed, size);
        [
            (random_training_graph(seed, size), false),
            (varied, true),
            (strange_training_graph(seed, size), true),
        ]
    });
    for (original, is_varied) in graphs {
        let rules = Recomputation::of(&original, &BTreeMap::new());
        let order = first_order(&original, &costs(&original));
        let mut search = search(&original, &order, &rules);
        for budget in budgets(&mut search, 3) {
            if let Ok(plan) = search.cheaper(budget, u64::MAX) {
                applied += 1;
                enforced += usize::from(apply_and_verify(
                    &original, &plan, &rules, budget, is_varied,
                ));
            }
        }
    }
    // The search knows no merged nodes, which keep what several read.
    assert!(enforced * 4 > applied * 3, "{enforced} of {applied}");
}

#[test]
fn plans_applied_to_graphs_in_mixed_precision_round_where_the_graphs_do() {
    let (mut applied, mut enforced, mut copied) = (0, 0, 0);
    for seed in 0..24 {
        let original = random_mixed_graph(seed, 10 + seed as usize % 50);
        let mut rules = Recomputation::of(&original, &BTreeMap::new());
        rules.keep_rounding(&original, CPU, &TRAINING);
        let rounding = Rounding::of(&original, CPU, &TRAINING);
        let order = first_order(&original, &costs(&original));
        let mut search = search(&original, &order, &rules);
        for budget in budgets(&mut search, 3) {
            if let Ok(plan) = search.cheaper(budget, u64::MAX) {
                let times = |id: NodeId| plan.sequence.iter().filter(|&&other| other == id).count();
                let halves = original.order().iter();
                let halves = halves.filter(|&&id| rounding.touches(original.node(id)));
                copied += halves.filter(|&&id| times(id) > 1).count();
                applied += 1;
                // What the search sees of casts is not all that there is.
                let budget = Bytes(budget.0 + budget.0 / 4);
                enforced += usize::from(apply_and_verify(&original, &plan, &rules, budget, false));
            }
        }
    }
    assert!(enforced * 10 > applied * 8, "{enforced} of {applied}");
    assert!(copied > 20, "{copied}");
}

#[test]
fn plans_for_tiny_graphs_are_rarely_dearer_than_the_cheapest() {
    let (mut needed, mut optimal) = (0, 0);
    for seed in 0..200 {
        let mut original = random_training_graph(seed, 4 + seed as usize % 5);
        if original.node_count() > 8 {
            continue;
        }
        let costs = costs(&original);
        let rules = Recomputation::of(&original, &BTreeMap::new());
        let order = first_order(&original, &costs);
        original.set_order(order.clone());
        let mut search = search(&original, &order, &rules);
        for budget in budgets(&mut search, 4) {
            let Ok(plan) = search.cheaper(budget, u64::MAX) else {
                continue;
            };
            let time = |ids: &[NodeId]| ids.iter().map(|id| costs[id.index()].time.0).sum::<u64>();
            let added = time(&plan.sequence) - time(&order);
            let least = brute_force(&original, CPU, &costs, budget).unwrap().added.0;
            assert!(added >= least, "seed {seed}, {budget}: {added} < {least}");
            needed += usize::from(least > 0);
            optimal += usize::from(least > 0 && added == least);
        }
    }
    // The search is no exact method, but graphs this small leave little to miss.
    assert!(
        needed > 20 && optimal * 10 >= needed * 9,
        "{optimal} of {needed}"
    );
}
