//! Chen, Xu, Zhang and Guestrin: Training Deep Nets with Sublinear Memory Cost, 2016.
//!
//! All four ways to choose the mirror counts m(v) of their Algorithm 2, which [`mirrored`](super::mirrored) and the
//! canonical strategy follow: 0 keeps the value of v, k computes it again k times. The paper
//! leaves open what "candidate stage splitting points" are, and in which order the forward part runs;
//! here these are all its articulation points, and depth-first search, as in Kusumoto et al. 2019,
//! appendix B. The user may set single counts (`mirrors` in the cost table).
//!
//! One thing is better than in the paper and costs nothing: what the backward part reads first,
//! the inside of the last segment, is not computed again.

use std::collections::BTreeSet;

use super::segments::mirrored_in;
use super::{ForwardPart, PlanFamily, Planner, Segments, Task, Unplanned};
use crate::bytes::Bytes;
use crate::graph::NodeId;
use crate::operators::{self, family};
use crate::plan::Plan;

/// Where the forward part may be split: Algorithm 2's topological order, and C of Algorithm 3.
struct Candidates {
    /// By depth-first search: branches run one after the other, so that what lies between two points
    /// of one branch is a segment.
    order: Vec<u32>,
    /// All articulation points, as they come in `order`.
    points: Vec<u32>,
}

impl Candidates {
    fn of(forward: &ForwardPart) -> Candidates {
        let mut is_point = vec![false; forward.vertices.len()];
        for point in forward.articulation_points() {
            is_point[point as usize] = true;
        }
        let order = forward.depth_first();
        let points = order.iter().copied().filter(|&v| is_point[v as usize]);
        Candidates {
            points: points.collect(),
            order,
        }
    }

    /// The plans of the canonical strategy for segments that end at `points`.
    fn split(&self, task: &Task<'_>, forward: &ForwardPart, points: &[u32]) -> Vec<Plan> {
        let segments = Segments::in_order(&self.order, points);
        let mut counts = segments.mirror_counts(forward);
        set_by_user(task, forward, &mut counts);
        segments.plans(task, forward, &counts)
    }

    /// Algorithm 3: the points behind which a segment of more than `limit` bytes is closed.
    fn close_at(&self, forward: &ForwardPart, limit: u64) -> Vec<u32> {
        let mut points = Vec::new();
        let mut candidates = self.points.iter().peekable();
        let mut held = 0u64;
        for v in &self.order {
            held = held.saturating_add(forward.vertices[*v as usize].bytes.0);
            if candidates.next_if_eq(&v).is_some() && held > limit {
                points.push(*v);
                held = 0;
            }
        }
        points
    }

    /// The memory of the smallest block between two points that takes any.
    fn smallest_block(&self, forward: &ForwardPart) -> u64 {
        let blocks = Segments::in_order(&self.order, &self.points);
        let mut bytes = vec![0u64; blocks.count() as usize];
        for (vertex, &block) in forward.vertices.iter().zip(&blocks.of) {
            let block = &mut bytes[block as usize];
            *block = block.saturating_add(vertex.bytes.0);
        }
        let some = bytes.into_iter().filter(|&bytes| bytes > 0);
        some.min().unwrap_or(0)
    }
}

/// √n segments of about equal length (section 4.3 with k = √n, so that the n/k + k values that are
/// alive at a time are least). n counts the blocks between articulation points.
pub(super) fn sqrt(task: &Task<'_>) -> Vec<Plan> {
    let forward = ForwardPart::of(task);
    let candidates = Candidates::of(&forward);
    let all = &candidates.points;
    let count = (all.len() + 1).isqrt();
    let points: Vec<u32> = (1..count).map(|i| all[i * all.len() / count]).collect();
    candidates.split(task, &forward, &points)
}

/// Segments that are closed at the first splitting point at which they hold more than B bytes
/// (Algorithm 3), with a search over B by exact liveness: from everything in one segment down to the
/// smallest block by a quarter of an octave each, then between the neighbours of what was best.
pub(super) struct Budget<'t> {
    task: &'t Task<'t>,
    forward: ForwardPart,
    candidates: Candidates,
    /// Each B that was tried.
    limits: BTreeSet<u64>,
    /// The splits that were found.
    splits: BTreeSet<Vec<u32>>,
    /// Its plans are tagged with B.
    family: PlanFamily<'t>,
}

/// Quarters of an octave that the search over B goes down at most.
const MOST_QUARTERS: i32 = 64;

/// Values of B that are tried on either side of the best.
const FINER: u64 = 4;

impl<'t> Budget<'t> {
    pub(super) fn of(task: &'t Task<'t>) -> Budget<'t> {
        let forward = ForwardPart::of(task);
        let candidates = Candidates::of(&forward);
        let (all, least) = (forward.bytes().0, candidates.smallest_block(&forward));
        let mut search = Budget {
            task,
            forward,
            candidates,
            limits: BTreeSet::from([all]),
            splits: BTreeSet::from([Vec::new()]),
            family: PlanFamily::of(task, Vec::new()),
        };
        let limits: Vec<u64> = (1..=MOST_QUARTERS)
            .map(|i| (all as f64 * 0.5f64.powf(f64::from(i) / 4.0)) as u64)
            .collect();
        let ends = limits.iter().position(|&limit| limit < least);
        search.try_all(&limits[..ends.map_or(limits.len(), |end| end + 1)]);
        search
    }

    fn try_all(&mut self, limits: &[u64]) {
        let mut plans = Vec::new();
        for &limit in limits {
            let points = self.candidates.close_at(&self.forward, limit);
            if self.limits.insert(limit) && self.splits.insert(points.clone()) {
                let split = self.candidates.split(self.task, &self.forward, &points);
                plans.extend(split.into_iter().map(|plan| (plan, Some(limit))));
            }
        }
        self.family.add(plans);
    }

    /// Tries what lies between B and its neighbours.
    fn refine(&mut self, limit: u64) {
        let below = self.limits.range(..limit).next_back().copied();
        let above = self.limits.range(limit + 1..).next().copied();
        let between =
            |from: u64, to: u64| (1..=FINER).map(move |i| from + (to - from) / (FINER + 1) * i);
        let mut limits: Vec<u64> = Vec::new();
        limits.extend(below.into_iter().flat_map(|below| between(below, limit)));
        limits.extend(above.into_iter().flat_map(|above| between(limit, above)));
        self.try_all(&limits);
    }
}

impl Planner for Budget<'_> {
    fn within(&mut self, budget: Bytes) -> Result<Plan, Unplanned> {
        self.cheaper(budget, u64::MAX)
    }

    fn cheaper(&mut self, budget: Bytes, below: u64) -> Result<Plan, Unplanned> {
        let found = self.family.cheaper(budget, below);
        match self.family.chosen() {
            Some(limit) if !matches!(found, Err(Unplanned::TooSlow)) => {
                self.refine(limit);
                self.family.cheaper(budget, below)
            }
            _ => found,
        }
    }
}

/// A chain of bulk operators in which each is treated alike (section 4.4): k points are kept and
/// the scheme is applied to what lies between them, g(n) = k + g(n / (k + 1)), to every depth.
/// k = 1 down to single blocks is the extreme case, g(n) = log2 n.
pub(super) fn recursive(task: &Task<'_>) -> Vec<Plan> {
    let forward = ForwardPart::of(task);
    let candidates = Candidates::of(&forward);
    let blocks = Segments::in_order(&candidates.order, &candidates.points);
    let mut plans = Vec::new();
    let mut tried: Vec<Vec<u32>> = Vec::new();
    for kept in [1, 2, 3, 5, 8, 13, 21] {
        for depth in 1..=u32::BITS {
            let mut counts = recursive_counts(&forward, &blocks, kept, depth);
            set_by_user(task, &forward, &mut counts);
            if tried.contains(&counts) {
                break;
            }
            let sorted = blocks.order(task, &forward, &counts);
            let orders = [Some(task.order.to_vec()), sorted];
            let in_order = |order: Vec<NodeId>| mirrored_in(&order, task, &forward, &counts);
            plans.extend(orders.into_iter().flatten().map(in_order));
            tried.push(counts);
            if (kept as u64 + 1).saturating_pow(depth) >= u64::from(blocks.count()) {
                break;
            }
        }
    }
    plans
}

/// Drops what is cheap to compute again, and only that (section 4.2, which names batch
/// normalization, activations and pooling). What counts, by the families of `operators`: batch,
/// instance, layer and other normalizations; elementwise and transcendental functions of one computed
/// value, activations as well as casts and products with weights or constants; views, which take no memory; and
/// pooling. Convolutions, products of matrices, softmax, reductions and what joins two computed
/// values are kept. The second plan keeps the results of pooling.
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
                        operators::Family::View
                        | operators::Family::Elementwise
                        | operators::Family::Transcendental
                        | operators::Family::Normalization
                        | operators::Family::RowNormalization => true,
                        operators::Family::Pooling => pooling,
                        _ => false,
                    })
        };
        let mut counts: Vec<u32> = vertices.map(|vertex| u32::from(is_cheap(vertex))).collect();
        set_by_user(task, &forward, &mut counts);
        super::mirrored(task, &forward, &counts)
    };
    vec![with(true), with(false)]
}

/// The user's mirror counts go first. A vertex has the largest that is said of any of its nodes.
fn set_by_user(task: &Task<'_>, forward: &ForwardPart, counts: &mut [u32]) {
    if task.overrides.is_empty() {
        return;
    }
    for (count, vertex) in counts.iter_mut().zip(&forward.vertices) {
        let names = vertex.nodes.iter().map(|&id| &task.graph.node(id).name);
        let said = names.filter_map(|name| task.overrides.get(name)?.mirrors);
        *count = said.max().unwrap_or(*count);
    }
}

/// m(v) of the recursive scheme: how many times the part that v is inside of is entered anew. The
/// last part is entered while its values are there. What is read outside a part is not inside: of a
/// chain that is the value at the part's end, of a join the ends of other branches as well.
fn recursive_counts(forward: &ForwardPart, blocks: &Segments, kept: u32, depth: u32) -> Vec<u32> {
    // By vertex: the last block that reads it.
    let block = |v: u32| blocks.of[v as usize];
    let read_in = |v: u32| {
        let readers = forward.vertices[v as usize].after.iter();
        readers.map(|&reader| block(reader)).max().unwrap_or(0)
    };
    let mut members: Vec<Vec<u32>> = vec![Vec::new(); blocks.count() as usize];
    for v in 0..blocks.of.len() as u32 {
        members[block(v) as usize].push(v);
    }
    let mut counts = vec![0; blocks.of.len()];
    // Parts still to be divided: blocks, the count inside, and how often to divide.
    let mut open = vec![(0, blocks.count(), 0u32, depth)];
    while let Some((from, to, count, depth)) = open.pop() {
        for &v in members[from as usize..to as usize].iter().flatten() {
            if read_in(v) < to {
                counts[v as usize] = count;
            }
        }
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
mod tests;
