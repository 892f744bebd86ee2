use super::*;
use crate::cost::Cost;
use crate::graph::Graph;
use crate::operators::Provider;
use crate::runtime::liveness;
use crate::runtime::order::{ExecutionOrder, execution_order};
use crate::testing::random_training_graph;

fn skeleton(graph: &Graph) -> Skeleton {
    let costs = vec![Cost::default(); graph.node_count()];
    Skeleton::of(graph, Provider::Cpu, &costs)
}

fn peak(skeleton: &Skeleton, order: &[u32]) -> u64 {
    let profile = liveness::profile_of(skeleton, order);
    profile.into_iter().max().unwrap_or(0)
}

/// Where the nodes of a graph without copies run then, by their places in the text.
fn late(text: &str) -> Option<Vec<u32>> {
    let skeleton = skeleton(&Graph::parse(text).unwrap());
    let order: Vec<u32> = (0..skeleton.len() as u32).collect();
    late_results(&skeleton, &order, peak(&skeleton, &order))
}

/// A step with two gradients of so many elements: gw is computed from a and d, gb from d.
fn step(weight: usize) -> String {
    format!(
        "g (float[10] x) => (float[{weight}] gw, float[{weight}] gb, float[10] dx)
        <float[4000] a, float[4000] d, float[{weight}] t, float[{weight}] u> {{
            a = Foo(x) d = Foo(a) t = Foo(d, a) u = Transpose(t) gw = Foo(u) gb = Foo(d)
            dx = Foo(d)
        }}"
    )
}

#[test]
fn results_that_are_larger_than_what_they_are_computed_from_wait_with_what_only_feeds_them() {
    let at_the_end = Some(vec![0, 1, 6, 2, 3, 4, 5]);
    assert_eq!(late(&step(10_000)), at_the_end);
    // Smaller than a and d, but one of these can be there again; for gb nothing is kept then.
    assert_eq!(late(&step(5_000)), at_the_end);
    // Smaller than half of a and d, and than d.
    assert_eq!(late(&step(3_000)), None);
}

#[test]
fn results_that_are_read_or_lie_in_the_callers_memory_stay() {
    // y is read by dx. The accumulator writes into the buffer w.
    let text = "g (float[10] x, float[4000] w, bool reset)
        => (float[4000] y, float[10] dx, float[4000] sum) <float[10] d> {
            d = Foo(x) y = Foo(d) sum = com.microsoft.InPlaceAccumulator(w, y, reset)
            dx = Foo(y)
        }";
    assert_eq!(late(text), None);
}

#[test]
fn where_all_is_at_the_end_already_there_is_no_other_order() {
    let text = "g (float[10] x) => (float[10] dx, float[4000] gw) { dx = Foo(x) gw = Foo(x) }";
    assert_eq!(late(text), None);
    assert_eq!(late("g () => () { }"), None);
}

#[test]
fn orders_stay_topological() {
    let mut found = 0;
    for seed in 0..600 {
        let graph = random_training_graph(seed, 5 + seed as usize % 90);
        let mut skeleton = skeleton(&graph);
        skeleton.size.iter_mut().for_each(|size| *size *= 1000);
        for order in ExecutionOrder::ALL {
            let before = execution_order(&skeleton, order);
            let Some(after) = late_results(&skeleton, &before, peak(&skeleton, &before)) else {
                continue;
            };
            found += 1;
            assert_ne!(after, before, "seed {seed}");
            let mut there = HashSet::new();
            for &node in &after {
                let reads = reads_of(&skeleton, &[node]);
                let written = |t: &u32| {
                    let mut nodes = 0..skeleton.len();
                    nodes.any(|node| skeleton.writes.get(node).contains(t))
                };
                let ready = |t: &u32| there.contains(t) || !written(t);
                assert!(reads.iter().all(ready), "seed {seed}: too early");
                there.extend(skeleton.writes.get(node as usize).iter().copied());
            }
            let sorted = |mut order: Vec<u32>| {
                order.sort_unstable();
                order
            };
            assert_eq!(sorted(after), sorted(before), "seed {seed}");
        }
    }
    assert!(found > 10, "{found}");
}
