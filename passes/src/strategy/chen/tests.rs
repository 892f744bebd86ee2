use std::collections::BTreeMap;

use super::*;
use crate::analysis::cost::NodeOverride;
use crate::graph::Graph;
use crate::strategy::tests::{names, with_overrides, with_task};
use crate::testing::UniformChain;

/// The smallest peak of the plans in tensors of the chain, what the caller owns left out.
fn units(length: u64, plans: impl Fn(&Task<'_>) -> Vec<Plan>) -> u64 {
    let chain = UniformChain::new(length);
    with_task(&chain.graph, |task| {
        let judged = plans(task).into_iter().map(|plan| task.judge(plan));
        let peak = judged.map(|plan| plan.predicted_peak).min().unwrap();
        let room = peak - UniformChain::owned();
        // The runtime's objects add some bytes.
        room.0 / UniformChain::UNIT.0
    })
}

#[test]
fn the_memory_of_a_chain_grows_with_the_root_of_its_length() {
    for root in [4, 6, 10, 14] {
        // √n − 1 boundaries, a segment of √n (one more where it does not divide evenly), and
        // the two gradients that a gradient node reads and writes.
        let most = (root - 1) + (root + 1) + 2;
        let found = units(root * root, sqrt);
        assert!(found <= most, "{root}: {found} > {most}");
        // Without copies it is the length.
        assert_eq!(
            units(root * root, |task| vec![task.without_copies()]),
            root * root + 1
        );
    }
}

#[test]
fn the_memory_of_the_recursive_scheme_grows_with_the_logarithm() {
    for log in 3..=8u64 {
        // A kept value for every halving, a block, and three more where gradients meet it.
        let found = units(1 << log, recursive);
        assert!(found <= log + 4, "2^{log}: {found}");
    }
}

#[test]
fn a_layer_runs_again_no_more_often_than_the_chain_is_halved() {
    let chain = UniformChain::new(64);
    with_task(&chain.graph, |task| {
        let forward = ForwardPart::of(task);
        let candidates = Candidates::of(&forward);
        let blocks = Segments::in_order(&candidates.order, &candidates.points);
        let counts = recursive_counts(&forward, &blocks, 1, 32);
        assert_eq!(counts.iter().max(), Some(&6));
    });
}

#[test]
fn a_segment_is_closed_at_the_first_point_at_which_it_holds_more_than_b() {
    let chain = UniformChain::new(9);
    with_task(&chain.graph, |task| {
        let forward = ForwardPart::of(task);
        // Ten vertices; the chain can be split behind all but the first and the last.
        let candidates = Candidates::of(&forward);
        assert_eq!(candidates.points, [1, 2, 3, 4, 5, 6, 7, 8]);
        let unit = UniformChain::UNIT.0;
        assert_eq!(candidates.close_at(&forward, 2 * unit), [2, 5, 8]);
        assert_eq!(candidates.close_at(&forward, 20 * unit), [0u32; 0]);
    });
}

#[test]
fn only_cheap_results_are_dropped() {
    let text = "g (float[4,4] x, float[4,4] w) => (float loss, float[4,4] dw) <
        float[4,4] p, float[4,4] r, float[4,4] s, float[4,4] ds, float[4,4] dr, float[4,4] dp
    > {
        [p] p = MatMul(x, w) [r] r = Relu(p) [s] s = Add(r, p) [loss] loss = ReduceSum(s)
        [ds] ds = com.microsoft.ReluGrad(s, s) [dr] dr = com.microsoft.ReluGrad(ds, r)
        [dp] dp = Mul(dr, p) [dw] dw = MatMul(x, dp)
    }";
    let graph = Graph::parse(text).unwrap();
    with_task(&graph, |task| {
        let plans = cheap_ops(task);
        assert_eq!(names(&graph, &plans[0]), "p r s loss ds r dr dp dw");
    });
}

#[test]
fn results_of_batch_normalization_and_pooling_are_cheap() {
    let image = "float[2, 4, 8, 8]";
    let text = format!(
        "g ({image} x, float[4, 4, 1, 1] w, float[4] s, float[4] t, float[4] m, float[4] v)
          => (float loss, {image} dc) <
            {image} c, {image} n, float[4] m2, float[4] v2, float[4] saved, float[4] inv,
            {image} r, float[2, 4, 4, 4] p, int64[2, 4, 4, 4] at, float[2, 4, 4, 4] dp,
            {image} dr, {image} dn, float[4] ds, float[4] dt
        > {{
            [c] c = Conv(x, w)
            [n] n, m2, v2, saved, inv = com.microsoft.BatchNormInternal(c, s, t, m, v)
            [r] r = Relu(n)
            [p] p, at = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
            [loss] loss = ReduceSum(p)
            [dp] dp = com.microsoft.ReluGrad(p, p)
            [dr] dr = com.microsoft.MaxPoolGrad <kernel_shape = [2, 2], strides = [2, 2]> (dp, at)
            [dn] dn = com.microsoft.ReluGrad(dr, r)
            [dc] dc, ds, dt = com.microsoft.BatchNormalizationGrad(dn, c, s, saved, inv)
        }}"
    );
    let graph = Graph::parse(&text).unwrap();
    with_task(&graph, |task| {
        let forward = ForwardPart::of(task);
        let shown: Vec<String> = cheap_ops(task)
            .iter()
            .map(|plan| names(&graph, plan))
            .collect();
        assert_eq!(forward.vertices.len(), 5);
        assert_eq!(
            shown,
            [
                "c n r p loss n r p dp dr dn dc",
                "c n r p loss dp dr n r dn dc"
            ]
        );
    });
}

/// Two stacks that meet in a sum, computed in turns; the backward part ends with the first.
fn join(layers: usize) -> Graph {
    let float = "float[512, 512]";
    let (mut values, mut forward, mut backward) = (vec![], vec![], vec![]);
    for i in 0..layers {
        for b in ["a", "b"] {
            values.push(format!("{float} {b}{}, {float} d{b}{i}", i + 1));
            forward.push(format!("{b}{} = com.microsoft.Gelu({b}{i})", i + 1));
            backward.push(format!(
                "d{b}{i} = com.microsoft.GeluGrad(d{b}{}, {b}{i})",
                i + 1
            ));
        }
    }
    backward.reverse();
    let text = format!(
        "join ({float} a0, {float} b0) => (loss, {float} da0, {float} db0) <
            float loss, {float} s, {float} da{layers}, {float} db{layers}, {}
        > {{
            {}
            s = Sum(a{layers}, b{layers}) loss = ReduceMean <keepdims = 0> (s)
            da{layers} = com.microsoft.ReluGrad(s, a{layers})
            db{layers} = com.microsoft.ReluGrad(s, b{layers})
            {}
        }}",
        values
            .join(", ")
            .replace(&format!(", {float} da0"), "")
            .replace(&format!(", {float} db0"), ""),
        forward.join("\n"),
        backward.join("\n"),
    );
    Graph::parse(&text).unwrap()
}

#[test]
fn branches_are_split_at_their_own_points() {
    let graph = join(6);
    with_task(&graph, |task| {
        let task = &Task {
            order: graph.order(),
            ..task.clone()
        };
        let forward = ForwardPart::of(task);
        // Nothing but the sum separates all that is before from what is behind.
        assert_eq!(forward.cuts(), [12]);
        let candidates = Candidates::of(&forward);
        // One branch after the other; the first vertex of a branch and the loss separate nothing.
        assert_eq!(
            candidates.order,
            [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11, 12, 13]
        );
        assert_eq!(candidates.points, [2, 4, 6, 8, 10, 3, 5, 7, 9, 11, 12]);
        let unit = UniformChain::UNIT.0;
        assert_eq!(candidates.close_at(&forward, 2 * unit), [4, 10, 5, 11]);
    });
}

#[test]
fn joins_take_the_root_of_their_length_as_well() {
    let graph = join(32);
    let [without, sqrt, best, recursive] = with_task(&graph, |task| {
        let least = |plans: Vec<Plan>| {
            let peaks = plans
                .into_iter()
                .map(|plan| task.judge(plan).predicted_peak);
            peaks.min().unwrap().0 / UniformChain::UNIT.0
        };
        let best = Budget::of(task).within(Bytes::ZERO).unwrap_err();
        let Unplanned::TooLarge(best) = best else {
            panic!("{best:?}");
        };
        [
            least(vec![task.without_copies()]),
            least(sqrt(task)),
            best.predicted_peak.0 / UniformChain::UNIT.0,
            least(recursive(task)),
        ]
    });
    // 64 layers: every result, both inputs, the sum and a gradient.
    assert_eq!(without, 64 + 2 + 1 + 1);
    // As for a chain of 64 (√64 − 1 boundaries, a segment of √64 + 1, two gradients), and the
    // inputs and the other branch's gradient.
    assert!(sqrt <= (8 - 1) + (8 + 1) + 2 + 3, "{sqrt}");
    assert!(best <= (8 - 1) + (8 + 1) + 2 + 3, "{best}");
    assert!(recursive <= 6 + 4 + 3, "{recursive}");
}

#[test]
fn the_search_over_b_goes_down_to_the_smallest_block() {
    // 64 times 64 blocks would need B = 1/64 of all; a hundred times as many need less.
    let chain = UniformChain::new(1 << 14);
    with_task(&chain.graph, |task| {
        let search = Budget::of(task);
        let unit = UniformChain::UNIT.0;
        assert_eq!(search.candidates.smallest_block(&search.forward), unit);
        assert!(search.limits.first() <= Some(&unit));
        assert!(search.limits.len() <= MOST_QUARTERS as usize + 1);
    });
}

#[test]
fn the_user_sets_single_mirror_counts() {
    let chain = UniformChain::new(16);
    let (graph, seventh) = (&chain.graph, chain.graph.order()[6]);
    let mut named = graph.clone();
    named.node_mut(seventh).name = "seventh".to_owned();
    let copies = |mirrors: Option<u32>| {
        let said = NodeOverride {
            mirrors,
            ..NodeOverride::default()
        };
        let overrides = BTreeMap::from([("seventh".to_owned(), said)]);
        with_overrides(&named, overrides, |task| {
            let plan = sqrt(task).remove(0);
            let plan = task.judge(plan);
            let runs = plan.sequence.iter().filter(|&&id| id == seventh).count();
            (runs, plan.predicted_peak.0 / UniformChain::UNIT.0)
        })
    };
    let (runs, peak) = copies(None);
    assert_eq!((runs, peak), (2, 9));
    // Kept through the whole step, it is there where memory is shortest.
    let kept = copies(Some(0));
    assert!(
        kept.0 == 1 && (peak..=peak + 1).contains(&kept.1),
        "{kept:?}"
    );
    // The eighth reads the first copy, the backward part the second.
    let twice = copies(Some(2));
    assert!(
        twice.0 == 3 && (peak - 1..=peak + 1).contains(&twice.1),
        "{twice:?}"
    );
}

#[test]
fn any_node_of_a_vertex_names_it() {
    let text = "g (float[4,4] x) => (float loss, float[4,4] dx) <
        float[4,4] a, float[16] flat, float[16] b, float[16] db, float[4,4] da, int64[1] to = {16},
        float[16] back
    > {
        [a] a = Exp(x) [flat] flat = Reshape(a, to) [b] b = Exp(flat) [loss] loss = ReduceSum(b)
        [db] db = Mul(b, flat) [back] back = Mul(db, flat) [dx] dx = com.microsoft.ReluGrad(a, a)
    }";
    let graph = Graph::parse(text).unwrap();
    for name in ["a", "flat"] {
        let said = NodeOverride {
            mirrors: Some(3),
            ..NodeOverride::default()
        };
        let overrides = BTreeMap::from([(name.to_owned(), said)]);
        with_overrides(&graph, overrides, |task| {
            let forward = ForwardPart::of(task);
            let mut counts = vec![1; forward.vertices.len()];
            set_by_user(task, &forward, &mut counts);
            assert_eq!(counts, [3, 1, 1], "{name}");
        });
    }
}
