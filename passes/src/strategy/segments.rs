//! From what is kept to a plan: mirrors placed where the backward part wants them.

use std::collections::BTreeSet;

use super::{ForwardPart, Task};
use crate::graph::NodeId;
use crate::plan::Plan;

/// A partition of the forward part, in the order in which it is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments {
    /// By vertex; no vertex is computed from one of a later segment.
    pub of: Vec<u32>,
}

impl Segments {
    /// Splits behind each of `points`, which ascend.
    pub fn behind(forward: &ForwardPart, points: &[u32]) -> Segments {
        let vertices = 0..forward.vertices.len() as u32;
        Segments {
            of: vertices
                .map(|v| points.partition_point(|&point| point < v) as u32)
                .collect(),
        }
    }

    /// Splits a topological order of all vertices behind each of `points`, which come in that order.
    pub fn in_order(order: &[u32], points: &[u32]) -> Segments {
        let mut of = vec![0; order.len()];
        let mut points = points.iter().peekable();
        let mut segment = 0;
        for v in order {
            of[*v as usize] = segment;
            segment += u32::from(points.next_if_eq(&v).is_some());
        }
        Segments { of }
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.of.iter().max().map_or(0, |last| last + 1)
    }

    /// By vertex: does a later segment read it? Those are the boundaries.
    pub fn boundaries(&self, forward: &ForwardPart) -> Vec<bool> {
        let segment = |v: u32| self.of[v as usize];
        let read_later = |v: u32| {
            let after = &forward.vertices[v as usize].after;
            after.iter().any(|&reader| segment(reader) > segment(v))
        };
        (0..self.of.len() as u32).map(read_later).collect()
    }

    /// m(v) of the canonical strategy: 0 for the boundaries, 1 inside. The inside of the last
    /// segment is 0 as well: its backward part follows at once, while its values are there.
    pub fn mirror_counts(&self, forward: &ForwardPart) -> Vec<u32> {
        let last = self.count().saturating_sub(1);
        let boundaries = self.boundaries(forward);
        let count = |(&segment, kept): (&u32, bool)| u32::from(!kept && segment < last);
        self.of.iter().zip(boundaries).map(count).collect()
    }

    /// The plans of the canonical strategy for mirror counts such as
    /// [`Segments::mirror_counts`]: in the task's order, and with both parts of the graph
    /// sorted by segments, the backward part from the last to the first, where that is allowed.
    pub fn plans(&self, task: &Task<'_>, forward: &ForwardPart, counts: &[u32]) -> Vec<Plan> {
        let mut plans = vec![place(task.order, task, forward, counts, Some(&self.of))];
        if let Some(order) = self.order(task, forward, counts) {
            plans.push(place(&order, task, forward, counts, Some(&self.of)));
        }
        plans
    }

    /// The task's order, sorted by segments; `None` if a sequence that has to be kept forbids it.
    /// A backward node belongs to the earliest segment that it needs mirrors of.
    pub fn order(
        &self,
        task: &Task<'_>,
        forward: &ForwardPart,
        counts: &[u32],
    ) -> Option<Vec<NodeId>> {
        let mut first: Vec<NodeId> = Vec::new();
        let mut second: Vec<NodeId> = Vec::new();
        let mut of = vec![0u32; task.graph.node_count()];
        for &id in task.order {
            let reads = task.graph.node(id).reads();
            let producers = reads.filter_map(|tensor| forward.producer(tensor));
            if forward.backward[id.index()] {
                let earlier = task.sequences.iter().filter(|pair| pair.1 == id);
                let waits_for = producers.chain(earlier.map(|pair| pair.0));
                let wanted = waits_for.filter_map(|p| match forward.vertex_of[p.index()] {
                    Some(v) => (counts[v as usize] > 0).then(|| self.of[v as usize]),
                    None => forward.backward[p.index()].then(|| of[p.index()]),
                });
                of[id.index()] = wanted.min().unwrap_or(u32::MAX);
                second.push(id);
            } else {
                of[id.index()] = match forward.vertex_of[id.index()] {
                    Some(v) => self.of[v as usize],
                    None => producers.map(|p| of[p.index()]).max().unwrap_or(0),
                };
                first.push(id);
            }
        }
        first.sort_by_key(|id| of[id.index()]);
        second.sort_by_key(|id| std::cmp::Reverse(of[id.index()]));
        first.append(&mut second);
        is_allowed(task, forward, &first).then_some(first)
    }
}

/// Does every node come behind what it reads and what has to precede it?
pub(super) fn is_allowed(task: &Task<'_>, forward: &ForwardPart, order: &[NodeId]) -> bool {
    let mut places = vec![usize::MAX; task.graph.node_count()];
    for (place, id) in order.iter().enumerate() {
        places[id.index()] = place;
    }
    let reads_behind = |id: &NodeId| {
        let reads = task.graph.node(*id).reads();
        let mut producers = reads.filter_map(|tensor| forward.producer(tensor));
        producers.all(|producer| places[producer.index()] < places[id.index()])
    };
    let in_sequence = |pair: &(NodeId, NodeId)| places[pair.0.index()] < places[pair.1.index()];
    order.iter().all(reads_behind) && task.sequences.iter().all(in_sequence)
}

/// The plan with `counts[v]` mirrors of vertex v (Chen et al. 2016, Algorithm 2, whose function m
/// they are): mirror k of v is computed from mirror min(k, m(u)) of each u that it reads, the
/// backward part reads mirror m(v), and mirrors run as late as the backward part allows.
/// Counts of vertices that cannot be computed again are taken as 0.
pub fn mirrored(task: &Task<'_>, forward: &ForwardPart, counts: &[u32]) -> Plan {
    place(task.order, task, forward, counts, None)
}

/// As [`mirrored`], in another order of first computations.
pub(super) fn mirrored_in(
    order: &[NodeId],
    task: &Task<'_>,
    forward: &ForwardPart,
    counts: &[u32],
) -> Plan {
    place(order, task, forward, counts, None)
}

/// With `whole`, all mirrors of a segment run when one is wanted, as the canonical strategy has it.
fn place(
    order: &[NodeId],
    task: &Task<'_>,
    forward: &ForwardPart,
    counts: &[u32],
    whole: Option<&[u32]>,
) -> Plan {
    let mut placing = Placing {
        forward,
        counts: counts
            .iter()
            .zip(&forward.vertices)
            .map(|(&count, vertex)| if vertex.recomputable { count } else { 0 })
            .collect(),
        done: vec![0; forward.vertices.len()],
        wanted: BTreeSet::new(),
    };
    let mut members: Vec<Vec<u32>> = Vec::new();
    for (v, &segment) in whole.unwrap_or_default().iter().enumerate() {
        if members.len() <= segment as usize {
            members.resize(segment as usize + 1, Vec::new());
        }
        members[segment as usize].push(v as u32);
    }
    let mut sequence = Vec::with_capacity(order.len() * 2);
    for &id in order {
        if forward.backward[id.index()] {
            for tensor in task.graph.node(id).reads() {
                let Some(v) = forward.vertex(tensor) else {
                    continue;
                };
                if !placing.lacks(v) {
                    continue;
                }
                match whole {
                    Some(of) => {
                        for &member in &members[of[v as usize] as usize] {
                            placing.want(member);
                        }
                    }
                    None => placing.want(v),
                }
            }
            placing.run(&mut sequence);
        }
        sequence.push(id);
    }
    Plan {
        sequence,
        ..Plan::default()
    }
}

struct Placing<'f> {
    forward: &'f ForwardPart,
    counts: Vec<u32>,
    /// By vertex: its latest mirror.
    done: Vec<u32>,
    /// Mirrors to run, as (k, vertex).
    wanted: BTreeSet<(u32, u32)>,
}

impl Placing<'_> {
    /// Is the last mirror of the vertex still to run?
    fn lacks(&self, v: u32) -> bool {
        self.done[v as usize] < self.counts[v as usize]
    }

    /// Wants the last mirror of the vertex, and what it is computed from.
    fn want(&mut self, v: u32) {
        let mut open = vec![(self.counts[v as usize], v)];
        while let Some((k, v)) = open.pop() {
            if self.done[v as usize] >= k || !self.wanted.insert((k, v)) {
                continue;
            }
            for &u in &self.forward.vertices[v as usize].before {
                open.push((k.min(self.counts[u as usize]), u));
            }
        }
    }

    fn run(&mut self, sequence: &mut Vec<NodeId>) {
        for (k, v) in std::mem::take(&mut self.wanted) {
            let vertex = &self.forward.vertices[v as usize];
            sequence.extend(&vertex.nodes);
            self.done[v as usize] = k;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use crate::strategy::tests::{names, with_task};

    /// Five layers and their gradients.
    const CHAIN: &str = "g (float[9] x) => (float[9] da) <
        float[9] a, float[9] b, float[9] c, float[9] d, float[9] e, float[9] seed,
        float[9] de, float[9] dd, float[9] dc, float[9] db
    > {
        [a] a = com.microsoft.Gelu(x) [b] b = com.microsoft.Gelu(a)
        [c] c = com.microsoft.Gelu(b) [d] d = com.microsoft.Gelu(c)
        [e] e = com.microsoft.Gelu(d) [turn] seed = Neg(e)
        [de] de = com.microsoft.GeluGrad(seed, d) [dd] dd = com.microsoft.GeluGrad(de, c)
        [dc] dc = com.microsoft.GeluGrad(dd, b) [db] db = com.microsoft.GeluGrad(dc, a)
        [da] da = com.microsoft.GeluGrad(db, x)
    }";

    #[test]
    fn the_inside_of_a_segment_runs_again_right_before_its_backward_part() {
        let graph = Graph::parse(CHAIN).unwrap();
        with_task(&graph, |task| {
            let forward = ForwardPart::of(task);
            // a b c | d e turn: c is kept, and nothing of the last segment is dropped.
            let segments = Segments::behind(&forward, &[2]);
            let counts = segments.mirror_counts(&forward);
            assert_eq!(counts, [1, 1, 0, 0, 0, 0]);
            for plan in segments.plans(task, &forward, &counts) {
                let shown = names(&graph, &plan);
                assert_eq!(shown, "a b c d e turn de dd a b dc db da");
            }
        });
    }

    #[test]
    fn mirror_k_is_computed_from_mirrors_up_to_k() {
        let graph = Graph::parse(CHAIN).unwrap();
        with_task(&graph, |task| {
            let forward = ForwardPart::of(task);
            // d is wanted first: its second mirror, from the second of c, from the only one of b,
            // from the first of a. What reads a wants its second.
            let plan = mirrored(task, &forward, &[2, 1, 2, 2, 0, 0]);
            let shown = names(&graph, &plan);
            assert_eq!(shown, "a b c d e turn a b c d de dd dc a db da");
        });
    }

    #[test]
    fn counts_of_what_cannot_be_computed_again_are_none() {
        let random = CHAIN.replace(
            "[b] b = com.microsoft.Gelu(a)",
            "[b] b = RandomNormalLike(a)",
        );
        let graph = Graph::parse(&random).unwrap();
        with_task(&graph, |task| {
            let forward = ForwardPart::of(task);
            let plan = mirrored(task, &forward, &[1; 6]);
            let copies = plan.copies();
            let repeated = plan.sequence.iter().zip(copies).filter(|pair| pair.1);
            let mut repeated: Vec<&str> = repeated
                .map(|(&id, _)| graph.node(id).name.as_str())
                .collect();
            repeated.sort_unstable();
            assert_eq!(repeated, ["a", "c", "d", "e", "turn"]);
        });
    }
}
