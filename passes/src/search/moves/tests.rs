use std::collections::BTreeMap;

use super::*;
use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::cost::{Cost, Nanos};
use crate::graph::Graph;
use crate::operators::Provider;
use crate::random::Random;
use crate::search::problem::Problem;
use crate::testing::random_training_graph;

fn problem(graph: &Graph) -> Problem {
    let cost = Cost {
        time: Nanos(6),
        workspace: Bytes::ZERO,
    };
    let costs = vec![cost; graph.node_count()];
    let rules = Recomputation::of(graph, &BTreeMap::new());
    Problem::new(graph, graph.order(), Provider::Cpu, &costs, &rules)
}

fn copy(node: Step, before: Step) -> Copy {
    Copy { node, before }
}

/// `a` is read in the middle and at the end, with something large before each.
const READ_TWICE: &str = "g (float[10] x) => (float[10] y)
    <float[10] a, float[90] big, float[10] b, float[10] c, float[90] huge, float[10] d, float[10] e> {
        a = Exp(x) big = Expand(x) b = ReduceMean(big) c = Mul(a, b)
        huge = Expand(c) d = ReduceMean(huge) e = Exp(d) y = Mul(a, e)
    }";

#[test]
fn a_copy_takes_the_place_of_the_next_one_where_that_is_cheaper() {
    let graph = Graph::parse(READ_TWICE).unwrap();
    let problem = problem(&graph);
    // Results take 40 bytes, the large ones 360. With a computed again at the end, steps 4 (c and
    // huge) and 5 (huge and d) need 400: both are above 390, and between 3 and 7.
    let mut state = State::new(&problem, 390.0, Exponent::One);
    state.apply(&[copy(0, 7)]);
    let excess = Excess::of(&state);
    assert_eq!(excess.between(3, 7), 2);
    let toggles = [copy(0, 3)];
    let hoisted = |price| hoist(&state, &excess, &toggles, price);
    // Kept from 3 to 7, a takes 40 / 390 of the budget in both; computed again at 7 it takes 6 ns.
    // Both cost the same at 6 · 390 / (40 · 2) = 29.25 ns.
    assert_eq!(hoisted(29.0), Some(vec![copy(0, 3), copy(0, 7)]));
    assert_eq!(hoisted(29.5), None);
    assert_eq!(hoisted(0.0), Some(vec![copy(0, 3), copy(0, 7)]));
}

#[test]
fn without_a_later_copy_there_is_nothing_to_hoist() {
    let graph = Graph::parse(READ_TWICE).unwrap();
    let problem = problem(&graph);
    let mut state = State::new(&problem, 400.0, Exponent::One);
    let excess = Excess::of(&state);
    assert_eq!(hoist(&state, &excess, &[copy(0, 7)], 0.0), None);
    state.apply(&[copy(0, 3)]);
    assert_eq!(hoist(&state, &excess, &[copy(0, 7)], 0.0), None);
}

#[test]
fn a_hoisted_copy_leaves_as_many_copies_as_before() {
    let mut hoists = 0;
    for seed in 0..100 {
        let graph = random_training_graph(seed, 10 + seed as usize % 50);
        let problem = problem(&graph);
        let peak = State::new(&problem, 0.0, Exponent::One).peak();
        let mut state = State::new(&problem, (peak * 0.7).floor(), Exponent::One);
        let mut random = Random::new(seed);
        let steps = problem.steps.len();
        for _ in 0..60 {
            let node = random.below(steps);
            let before = node + 1 + random.below(steps - node);
            let new = copy(node as Step, before as Step);
            if before >= steps || !problem.steps[node].recomputable || state.has(new) {
                continue;
            }
            let excess = Excess::of(&state);
            let copies = state.all_copies().len();
            let Some(toggles) = hoist(&state, &excess, &[new], 0.0) else {
                state.apply(&[new]);
                continue;
            };
            // The new one, and the next one of its node no longer.
            assert_eq!(toggles.len(), 2, "seed {seed}");
            assert!(toggles[1].node == new.node && toggles[1].before > new.before);
            let cost = state.cost_with_originals();
            state.apply(&toggles);
            assert_eq!(state.all_copies().len(), copies, "seed {seed}");
            assert_eq!(state.cost_with_originals(), cost, "seed {seed}");
            hoists += 1;
        }
    }
    assert!(hoists > 100, "{hoists}");
}

/// `a` and `b` are computed from `u`, which nothing else reads, and are read behind something large.
const SIBLINGS: &str = "g (float[100000] x) => (float[100000] y)
    <float[100000] u, float[100000] a, float[100000] b, float[900000] big, float[100000] c, float[100000] d> {
        u = Exp(x) a = Sin(u) b = Cos(u) big = Expand(x) c = ReduceMean(big) d = Mul(a, c) y = Mul(b, d)
    }";

#[test]
fn what_else_is_computed_from_a_kept_value_goes_with_the_copy() {
    let graph = Graph::parse(SIBLINGS).unwrap();
    let problem = problem(&graph);
    // In kilobytes: a, b and big need 4,400.
    let mut state = State::new(&problem, 4_000_000.0, Exponent::One);
    let siblings = |state: &State<'_>, before| {
        let excess = Excess::of(state);
        with_siblings(state, &excess, copy(1, before))
    };
    assert_eq!(siblings(&state, 5), Some(vec![copy(1, 5), copy(2, 5)]));
    // One of them does not pay: u takes its place. Both do.
    let phi = state.phi();
    for (toggles, helps) in [
        (vec![copy(1, 5)], false),
        (vec![copy(1, 5), copy(2, 5)], true),
    ] {
        let undo = state.apply(&toggles);
        assert_eq!(state.phi() < phi, helps, "{toggles:?}");
        state.undo(undo);
    }
    // Where nothing is too much, nothing goes.
    assert_eq!(siblings(&state, 3), None);
    let mut kept = State::new(&problem, 4_000_000.0, Exponent::One);
    kept.apply(&[copy(2, 6)]);
    // u is there anyway.
    assert_eq!(siblings(&kept, 5), None);
}

#[test]
fn a_copy_can_run_as_long_as_what_it_reads_is_there() {
    let graph = Graph::parse(SIBLINGS).unwrap();
    let problem = problem(&graph);
    let mut state = State::new(&problem, 4_000_000.0, Exponent::One);
    // b's first computation is the last to read u.
    assert_eq!(earlier(&state, copy(1, 5)), Some(copy(1, 2)));
    assert_eq!(earlier(&state, copy(2, 6)), None);
    state.apply(&[copy(1, 5)]);
    assert_eq!(earlier(&state, copy(2, 6)), Some(copy(2, 5)));
    state.apply(&[copy(2, 5)]);
    assert_eq!(earlier(&state, copy(2, 6)), None);
}
