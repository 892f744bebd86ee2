use std::collections::BTreeMap;

use super::*;
use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::cost::{Cost, Nanos};
use crate::graph::{Graph, Uses};
use crate::operators::{self, Provider};
use crate::pass::Pass;
use crate::plan::Originals;
use crate::rewrite::insert_mirrors::InsertMirrors;
use crate::runtime::liveness::Liveness;
use crate::search::profile::Exponent;
use crate::search::{Effort, Search, of_copies};
use crate::testing::random_training_graph;

const CPU: Provider = Provider::Cpu;

/// Times from 1 to 7, and no workspace.
fn costs(graph: &Graph) -> Vec<Cost> {
    let cost = |id: u64| Cost {
        time: Nanos(1 + id * 3 % 7),
        workspace: Bytes::ZERO,
    };
    (0..graph.node_count() as u64).map(cost).collect()
}

fn problem(graph: &Graph) -> Problem {
    let rules = Recomputation::of(graph, &BTreeMap::new());
    Problem::new(graph, graph.order(), CPU, &costs(graph), &rules)
}

/// Everything below `limit` computed again, for 70 % of the peak.
fn evicted(problem: &Problem, limit: f64) -> State<'_> {
    let peak = State::new(problem, 0.0, Exponent::One).peak();
    let mut state = State::new(problem, (peak * 0.7).floor(), Exponent::One);
    evict_below(&mut state, limit);
    state
}

#[test]
fn a_joined_result_and_its_parts_are_dropped_together() {
    // a, b and ab are 100 elements or 200 of 4 bytes, c 1, e 300, f 1. At e are live a, b, ab (for
    // the gradient f) and e. Dropping ab alone keeps a and b for it.
    let text = "g (float[1] x) => (float[1] f)
        <float[100] a, float[100] b, float[200] ab, float[1] c, float[300] e, float[1] d> {
            a = Expand(x) b = Expand(x) ab = Concat <axis = 0> (a, b) c = ReduceMean(ab)
            e = Expand(c) d = ReduceMean(e) f = Mul(ab, d)
        }";
    let graph = Graph::parse(text).unwrap();
    let problem = problem(&graph);
    // The costs are 1, 4, 7, ... modulo 7: a 1, b 4, ab 7. Nanoseconds per byte: 0.0025, 0.01 and
    // 0.00875.
    let copies = |limit: f64| {
        let copies = evicted(&problem, limit).all_copies();
        let places: Vec<(Step, Step)> = copies.iter().map(|c| (c.node, c.before)).collect();
        places
    };
    assert_eq!(copies(0.001), []);
    assert_eq!(copies(0.01), [(0, 6), (1, 6), (2, 6)]);
    let state = evicted(&problem, 0.01);
    // Without copies e is there with ab: 1,200 + 800, and c. With them a, b and ab meet: 1,600,
    // and d.
    assert_eq!(State::new(&problem, 0.0, Exponent::One).peak(), 2004.0);
    assert_eq!(state.peak(), 1604.0);
}

#[test]
fn prices_are_of_ever_larger_parts() {
    for seed in 0..50 {
        let graph = random_training_graph(seed, 40);
        let problem = problem(&graph);
        let prices = prices(&problem);
        assert!(
            prices.windows(2).all(|pair| pair[0] < pair[1]),
            "{prices:?}"
        );
        let copies: Vec<usize> = prices
            .iter()
            .map(|&price| evicted(&problem, price).all_copies().len())
            .collect();
        assert!(copies.is_sorted(), "seed {seed}: {copies:?}");
    }
}

fn unread_in_place(graph: &Graph) -> Bytes {
    let uses = Uses::of(graph);
    let nodes = graph.nodes();
    nodes
        .filter(|node| !operators::in_place(graph, node, CPU).is_empty())
        .flat_map(|node| node.writes())
        .filter(|&tensor| uses.readers(tensor).is_empty())
        .filter_map(|tensor| graph.tensor(tensor).bytes())
        .sum()
}

#[test]
fn every_copy_is_read_and_the_graph_with_them_needs_what_is_believed() {
    let mut total = 0;
    for seed in 0..100 {
        let graph = random_training_graph(seed, 10 + seed as usize % 60);
        let problem = problem(&graph);
        for limit in prices(&problem) {
            let state = evicted(&problem, limit);
            let copies = state.all_copies();
            for &copy in &copies {
                assert!(state.is_used(copy), "seed {seed}: {copy:?}");
                assert!(price(&problem, copy.node) <= limit, "seed {seed}: {copy:?}");
            }
            let rules = Recomputation::of(&graph, &BTreeMap::new());
            let effort = Effort {
                seed: 0,
                evaluations: 0,
            };
            let search = Search::new(&graph, graph.order(), CPU, &costs(&graph), &rules, effort);
            let mut rewritten = graph.clone();
            let Ok(_) = (InsertMirrors {
                instances: &search.plan(&of_copies(copies.clone())).instances(
                    &graph,
                    &rules,
                    Originals::AsPlanned,
                ),
            })
            .run(&mut rewritten);
            // What nobody reads any more stays to the end here; in the state it is released, but
            // for an in-place result, which the state frees with its input.
            let believed = problem.fixed + Bytes(state.peak() as u64);
            let plain = Liveness::in_file_order(&rewritten, CPU, &costs(&rewritten)).peak;
            let more = unread_in_place(&rewritten);
            assert!(
                believed <= plain + more,
                "seed {seed}: {believed:?} {plain:?}"
            );
            total += copies.len();
        }
    }
    assert!(total > 1000, "{total}");
}
