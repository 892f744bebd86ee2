//! Chen, Xu, Zhang and Guestrin: Training Deep Nets with Sublinear Memory Cost, 2016.
//!
//! All four ways to choose the mirror counts m(v) of their Algorithm 2, which [`mirrored`](super::mirrored) and the
//! canonical strategy follow: 0 keeps the value of v, k computes it again k times. The paper
//! leaves open what "candidate stage splitting points" are; articulation points are, as in
//! Kusumoto et al. 2019, appendix B. The user may set single counts (`mirrors` in the cost table).
//!
//! One thing is better than in the paper and costs nothing: what the backward part reads first,
//! the inside of the last segment, is not computed again.

use super::segments::mirrored_in;
use super::{ForwardPart, Segments, Task};
use crate::graph::NodeId;
use crate::operators::{Family, family};
use crate::plan::Plan;

/// √n segments of about equal length (section 4.3 with k = √n, so that the n/k + k values that are
/// alive at a time are least). n counts the blocks of the chain.
pub(super) fn sqrt(task: &Task<'_>) -> Vec<Plan> {
    let forward = ForwardPart::of(task);
    let cuts = forward.cuts();
    let count = (cuts.len() + 1).isqrt();
    let points: Vec<u32> = (1..count).map(|i| cuts[i * cuts.len() / count]).collect();
    split(task, &forward, &points)
}

/// Segments that are closed at the first splitting point at which they hold more than B bytes
/// (Algorithm 3), for many B: the search over B by exact liveness.
pub(super) fn budget(task: &Task<'_>) -> Vec<Plan> {
    let forward = ForwardPart::of(task);
    let cuts = forward.cuts();
    let mut plans = Vec::new();
    let mut tried: Vec<Vec<u32>> = Vec::new();
    for limit in limits(forward.bytes().0) {
        let points = close_at(&forward, &cuts, limit);
        if !tried.contains(&points) {
            plans.extend(split(task, &forward, &points));
            tried.push(points);
        }
    }
    plans
}

/// A chain of bulk operators in which each is treated alike (section 4.4): k points are kept and
/// the scheme is applied to what lies between them, g(n) = k + g(n / (k + 1)), to every depth.
/// k = 1 down to single blocks is the extreme case, g(n) = log2 n.
pub(super) fn recursive(task: &Task<'_>) -> Vec<Plan> {
    let forward = ForwardPart::of(task);
    let cuts = forward.cuts();
    let blocks = Segments::behind(&forward, &cuts);
    let mut plans = Vec::new();
    let mut tried: Vec<Vec<u32>> = Vec::new();
    for kept in [1, 2, 3, 5, 8, 13, 21] {
        for depth in 1..=u32::BITS {
            let mut counts = recursive_counts(&forward, &cuts, kept, depth);
            set_by_user(task, &forward, &mut counts);
            if tried.contains(&counts) {
                break;
            }
            let sorted = blocks.order(task, &forward, &counts);
            let orders = [Some(task.order.to_vec()), sorted];
            let in_order = |order: Vec<NodeId>| mirrored_in(&order, task, &forward, &counts);
            plans.extend(orders.into_iter().flatten().map(in_order));
            tried.push(counts);
            if (kept as u64 + 1).saturating_pow(depth) > cuts.len() as u64 {
                break;
            }
        }
    }
    plans
}

/// Drops what is cheap to compute again, and only that (section 4.2): results of normalizations,
/// activations and pooling. The second plan keeps the results of pooling.
pub(super) fn cheap_ops(task: &Task<'_>) -> Vec<Plan> {
    let forward = ForwardPart::of(task);
    let with = |pooling: bool| {
        let vertices = forward.vertices.iter();
        let is_cheap = |vertex: &super::Vertex| {
            // With two computed inputs it is no activation: a residual sum would need all sums
            // before it.
            vertex.before.len() <= 1
                && vertex
                    .nodes
                    .iter()
                    .all(|&id| match family(task.graph, task.graph.node(id)) {
                        Family::View
                        | Family::Elementwise
                        | Family::Transcendental
                        | Family::Normalization
                        | Family::RowNormalization => true,
                        Family::Pooling => pooling,
                        _ => false,
                    })
        };
        let mut counts: Vec<u32> = vertices.map(|vertex| u32::from(is_cheap(vertex))).collect();
        set_by_user(task, &forward, &mut counts);
        super::mirrored(task, &forward, &counts)
    };
    vec![with(true), with(false)]
}

/// The plans of the canonical strategy for segments that end at `points`.
fn split(task: &Task<'_>, forward: &ForwardPart, points: &[u32]) -> Vec<Plan> {
    let segments = Segments::behind(forward, points);
    let mut counts = segments.mirror_counts(forward);
    set_by_user(task, forward, &mut counts);
    segments.plans(task, forward, &counts)
}

/// The user's mirror counts go first. A vertex has those of its first node.
fn set_by_user(task: &Task<'_>, forward: &ForwardPart, counts: &mut [u32]) {
    if task.overrides.is_empty() {
        return;
    }
    for (count, vertex) in counts.iter_mut().zip(&forward.vertices) {
        let name = &task.graph.node(vertex.nodes[0]).name;
        if let Some(said) = task.overrides.get(name).and_then(|said| said.mirrors) {
            *count = said;
        }
    }
}

/// Algorithm 3: the points behind which a segment of more than `limit` bytes is closed.
fn close_at(forward: &ForwardPart, cuts: &[u32], limit: u64) -> Vec<u32> {
    let mut points = Vec::new();
    let (mut held, mut next) = (0u64, 0);
    for (v, vertex) in forward.vertices.iter().enumerate() {
        held = held.saturating_add(vertex.bytes.0);
        if cuts.get(next) == Some(&(v as u32)) {
            next += 1;
            if held > limit {
                points.push(v as u32);
                held = 0;
            }
        }
    }
    points
}

/// B from everything in one segment down to 1/64 of it, by a quarter of an octave each.
fn limits(all: u64) -> impl Iterator<Item = u64> {
    (1..=24).map(move |i| (all as f64 * 0.5f64.powf(f64::from(i) / 4.0)) as u64)
}

/// m(v) of the recursive scheme: how many times the part that v is inside of is entered anew. The
/// last part is entered while its values are there.
fn recursive_counts(forward: &ForwardPart, cuts: &[u32], kept: usize, depth: u32) -> Vec<u32> {
    let mut counts = vec![0; forward.vertices.len()];
    // Parts still to be divided: blocks, the count inside, and how often to divide.
    let mut open = vec![(0, cuts.len() + 1, 0u32, depth)];
    while let Some((from, to, count, depth)) = open.pop() {
        let first = if from == 0 {
            0
        } else {
            cuts[from - 1] as usize + 1
        };
        let end = cuts.get(to - 1).map_or(counts.len(), |&cut| cut as usize);
        counts[first..end].fill(count);
        let parts = (kept + 1).min(to - from);
        if depth == 0 || parts < 2 {
            continue;
        }
        for part in 0..parts {
            let [start, stop] = [part, part + 1].map(|i| from + (to - from) * i / parts);
            let last = part + 1 == parts;
            open.push((start, stop, count + u32::from(!last), depth - 1));
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::analysis::cost::NodeOverride;
    use crate::bytes::Bytes;
    use crate::graph::Graph;
    use crate::strategy::tests::{names, with_overrides, with_task};
    use crate::testing::UniformChain;

    /// The smallest peak of the plans in tensors of the chain, what the caller owns left out.
    fn units(length: u64, plans: impl Fn(&Task<'_>) -> Vec<Plan>) -> u64 {
        let chain = UniformChain::new(length);
        with_task(&chain.graph, |task| {
            let judged = plans(task).into_iter().map(|plan| task.judge(plan).plan);
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
            let counts = recursive_counts(&forward, &forward.cuts(), 1, 32);
            assert_eq!(counts.iter().max(), Some(&6));
        });
    }

    #[test]
    fn a_segment_is_closed_at_the_first_point_at_which_it_holds_more_than_b() {
        let chain = UniformChain::new(9);
        with_task(&chain.graph, |task| {
            let forward = ForwardPart::of(task);
            // Ten vertices; the chain can be split behind all but the first and the last.
            let cuts = forward.cuts();
            assert_eq!(cuts, [1, 2, 3, 4, 5, 6, 7, 8]);
            let unit = UniformChain::UNIT.0;
            assert_eq!(close_at(&forward, &cuts, 2 * unit), [2, 5, 8]);
            assert_eq!(close_at(&forward, &cuts, 20 * unit), [0u32; 0]);
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
                let runs = plan.sequence.iter().filter(|&&id| id == seventh).count();
                (runs, plan.predicted_peak)
            })
        };
        assert_eq!(copies(None), (2, Bytes::ZERO));
        assert_eq!(copies(Some(0)), (1, Bytes::ZERO));
    }
}
