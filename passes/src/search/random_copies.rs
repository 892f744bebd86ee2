//! Problems with costs of all sorts, and copies anywhere, for tests.

use std::collections::BTreeMap;

use super::problem::{Problem, Step};
use super::state::Copy;
use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::cost::{Cost, Nanos};
use crate::graph::Graph;
use crate::operators::Provider;
use crate::random::Random;

pub(super) fn problem(graph: &Graph) -> Problem {
    let cost = |id: u64| Cost {
        time: Nanos(100 + id * 70 % 900),
        workspace: Bytes(id % 5 * 300),
    };
    let costs: Vec<Cost> = (0..graph.node_count() as u64).map(cost).collect();
    let rules = Recomputation::of(graph, &BTreeMap::new());
    Problem::new(graph, graph.order(), Provider::Cpu, &costs, &rules)
}

/// At most one for each try.
pub(super) fn some_copies(problem: &Problem, random: &mut Random, tries: usize) -> Vec<Copy> {
    let steps = problem.steps.len();
    let any = |_| {
        let node = random.below(steps);
        let before = node + 1 + random.below(steps - node);
        (problem.steps[node].recomputable && before < steps).then_some(Copy {
            node: node as Step,
            before: before as Step,
        })
    };
    let mut copies: Vec<Copy> = (0..tries).filter_map(any).collect();
    copies.sort();
    copies.dedup();
    copies
}
