use super::*;
use crate::cost::Cost;
use crate::graph::Graph;
use crate::operators::Provider;
use crate::runtime::order::{ExecutionOrder, execution_order};
use crate::testing::random_training_graph;

fn skeleton(graph: &Graph) -> Skeleton {
    Skeleton::of(
        graph,
        Provider::Cpu,
        &vec![Cost::default(); graph.node_count()],
    )
}

fn peak(skeleton: &Skeleton, order: &[u32]) -> u64 {
    let profile = liveness::profile_of(skeleton, order);
    profile.into_iter().max().unwrap_or(0)
}

#[test]
fn a_large_weight_gradient_waits_until_the_activations_are_gone() {
    // Elements: a 300, b 300, gw 600, t 600 (its transposition), the rest 10. In file order gw and
    // t meet a and b: 300 + 300 + 600 + 600 + 10 (d). Behind db and dx, which free b and a, they
    // are alone with dx: 600 + 600 + 10. Four bytes each.
    let text = "g (float[10] x) => (float[10] dx, float[10] done)
        <float[300] a, float[300] b, float[10] d, float[600] gw, float[600] t, float[10] db> {
            a = Foo(x) b = Foo(a) d = Foo(b) gw = Foo(d) t = Transpose(gw) done = Foo(t)
            db = Foo(d, b) dx = Foo(db, a)
        }";
    let graph = Graph::parse(text).unwrap();
    let skeleton = skeleton(&graph);
    let file: Vec<u32> = (0..8).collect();
    let postponed = postpone(&skeleton, file.clone());
    assert_eq!(postponed, [0, 1, 2, 6, 7, 3, 4, 5]);
    assert_eq!(peak(&skeleton, &file), 4 * 1810);
    assert_eq!(peak(&skeleton, &postponed), 4 * 1210);
}

#[test]
fn an_order_whose_peak_cannot_wait_stays() {
    let graph = Graph::parse(
        "g (float[10] x) => (float[10] c) <float[99] a, float[10] b> {
            a = Foo(x) b = Foo(a) c = Foo(b)
        }",
    )
    .unwrap();
    assert_eq!(postpone(&skeleton(&graph), vec![0, 1, 2]), [0, 1, 2]);
    let empty = Graph::parse("g () => () { }").unwrap();
    assert_eq!(postpone(&skeleton(&empty), Vec::new()), [0; 0]);
}

#[test]
fn orders_stay_topological_and_never_need_more() {
    let mut lower = 0;
    for seed in 0..150 {
        let graph = random_training_graph(seed, 5 + seed as usize % 90);
        let skeleton = skeleton(&graph);
        let links = Links::of(&skeleton);
        for order in ExecutionOrder::ALL {
            let before = execution_order(&skeleton, order);
            let after = postpone(&skeleton, before.clone());
            let mut time = vec![None; skeleton.len()];
            for (step, &node) in after.iter().enumerate() {
                assert_eq!(
                    time[node as usize].replace(step),
                    None,
                    "seed {seed}: twice"
                );
                for &producer in links.producers(node) {
                    assert!(time[producer as usize].is_some(), "seed {seed}: too early");
                }
            }
            assert_eq!(after.len(), before.len());
            let (before, after) = (peak(&skeleton, &before), peak(&skeleton, &after));
            assert!(after <= before, "seed {seed}: {after} {before}");
            lower += usize::from(after < before);
        }
    }
    assert!(lower > 20, "{lower}");
}
