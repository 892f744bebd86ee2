//! The order in which ONNX Runtime executes a graph.
//!
//! Runtime fact, checked against the executed order of real sessions (1.19.2, DISABLE_ALL):
//! no mode simply runs the file's order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::memory_efficient_order::memory_efficient;
use super::skeleton::{Lists, Skeleton};

/// `SessionOptions.execution_order`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionOrder {
    /// What every session uses unless told otherwise: a reverse depth-first search.
    Default,
    /// Kahn's algorithm by node index, Shape and Size first.
    PriorityBased,
    /// What ORTModule takes for its memory optimizer, and with memory-efficient gradients (otherwise DEFAULT); the
    /// same as DEFAULT unless the graph has a YieldOp.
    MemoryEfficient,
}

impl ExecutionOrder {
    /// Those of a graph that runs in one go.
    pub const ALL: [ExecutionOrder; 2] = [ExecutionOrder::Default, ExecutionOrder::PriorityBased];

    /// Those in which a graph may run, DEFAULT first: with a YieldOp all three.
    pub(crate) fn of(skeleton: &Skeleton) -> &'static [ExecutionOrder] {
        match skeleton.yield_op {
            None => &ExecutionOrder::ALL,
            Some(_) => &[
                ExecutionOrder::Default,
                ExecutionOrder::PriorityBased,
                ExecutionOrder::MemoryEfficient,
            ],
        }
    }

    /// What ONNX Runtime calls it.
    pub fn name(self) -> &'static str {
        match self {
            ExecutionOrder::Default => "DEFAULT",
            ExecutionOrder::PriorityBased => "PRIORITY_BASED",
            ExecutionOrder::MemoryEfficient => "MEMORY_EFFICIENT",
        }
    }
}

/// The nodes in the order in which they are executed, as positions in the file's order.
/// O((nodes + edges) log edges). Nodes on a cycle are left out.
pub(crate) fn execution_order(skeleton: &Skeleton, order: ExecutionOrder) -> Vec<u32> {
    if let (ExecutionOrder::MemoryEfficient, Some(yield_op)) = (order, skeleton.yield_op) {
        return memory_efficient(skeleton, yield_op);
    }
    let edges = Edges::of(skeleton);
    match order {
        ExecutionOrder::Default | ExecutionOrder::MemoryEfficient => {
            let found = reverse_depth_first(&edges);
            match skeleton.release.shapes_follow {
                true => shapes_behind_producers(skeleton, &edges, found),
                false => found,
            }
        }
        ExecutionOrder::PriorityBased => by_priority(skeleton, edges),
    }
}

/// Producers and consumers of each node, ascending, each once.
pub(crate) struct Edges {
    /// By node.
    pub(crate) producers: Lists<u32>,
    /// By node: how many there are.
    consumers: Vec<u32>,
}

impl Edges {
    pub(crate) fn of(skeleton: &Skeleton) -> Edges {
        let producer = skeleton.producers();
        let mut producers = Lists::with_capacity(skeleton.len(), skeleton.reads.items());
        let mut consumers = vec![0; skeleton.len()];
        let mut before: Vec<u32> = Vec::new();
        for node in 0..skeleton.len() {
            let reads = skeleton.reads.get(node).iter();
            before.extend(reads.filter_map(|&t| producer[t as usize]));
            before.sort_unstable();
            before.dedup();
            for &p in &before {
                consumers[p as usize] += 1;
            }
            producers.push(before.drain(..));
        }
        Edges {
            producers,
            consumers,
        }
    }

    /// Consumers of each node, ascending.
    pub(crate) fn consumers(&self) -> Lists<u32> {
        let mut starts = Vec::with_capacity(self.consumers.len());
        let mut total = 0;
        for &count in &self.consumers {
            starts.push(total);
            total += count;
        }
        let mut items = vec![0; total as usize];
        let mut next = starts.clone();
        for node in 0..self.producers.len() {
            for &p in self.producers.get(node) {
                items[next[p as usize] as usize] = node as u32;
                next[p as usize] += 1;
            }
        }
        let mut lists = Lists::with_capacity(starts.len(), items.len());
        for (start, end) in starts.into_iter().zip(next) {
            lists.push(items[start as usize..end as usize].iter().copied());
        }
        lists
    }
}

/// A stack of leaves, the last on top; each node's producers are pushed in ascending order, so
/// the one with the highest index is visited first; a node follows all its producers.
fn reverse_depth_first(edges: &Edges) -> Vec<u32> {
    const LEAVE: u32 = 1 << 31;
    let nodes = edges.producers.len();
    let mut stack: Vec<u32> = (0..nodes as u32)
        .filter(|&i| edges.consumers[i as usize] == 0)
        .collect();
    let mut visited = vec![false; nodes];
    let mut found = Vec::with_capacity(nodes);
    while let Some(visit) = stack.pop() {
        if visit & LEAVE != 0 {
            found.push(visit ^ LEAVE);
        } else if !std::mem::replace(&mut visited[visit as usize], true) {
            stack.push(visit | LEAVE);
            let producers = edges.producers.get(visit as usize).iter().copied();
            stack.extend(producers.filter(|&p| !visited[p as usize]));
        }
    }
    found
}

/// Every Shape and Size that reads a node's output moves directly behind that node; several by
/// index. A node that has moved does not pull its own Shape along.
fn shapes_behind_producers(skeleton: &Skeleton, edges: &Edges, found: Vec<u32>) -> Vec<u32> {
    const NOBODY: u32 = u32::MAX;
    // By node: who follows it first, and by follower the next one.
    let (mut first, mut next) = (vec![NOBODY; skeleton.len()], vec![NOBODY; skeleton.len()]);
    for node in (0..skeleton.len()).rev() {
        if skeleton.reads_only_shape[node]
            && let [producer] = edges.producers.get(node)
        {
            let first = &mut first[*producer as usize];
            next[node] = std::mem::replace(first, node as u32);
        }
    }
    let mut has_moved = vec![false; skeleton.len()];
    let mut order = Vec::with_capacity(found.len());
    for node in found {
        if has_moved[node as usize] {
            continue;
        }
        order.push(node);
        let mut follower = first[node as usize];
        while follower != NOBODY {
            has_moved[follower as usize] = true;
            order.push(follower);
            follower = next[follower as usize];
        }
    }
    order
}

/// The nodes by their `positions` in another sequence, as far as they can run by these.
pub(crate) fn in_sequence(skeleton: &Skeleton, positions: &[u32]) -> Vec<u32> {
    match positions.is_sorted() {
        true => (0..skeleton.len() as u32).collect(),
        false => Precedence::of(skeleton).in_sequence(positions),
    }
}

/// Who has to run before whom, for whoever asks for many sequences.
pub(crate) struct Precedence {
    edges: Edges,
    consumers: Lists<u32>,
}

impl Precedence {
    pub(crate) fn of(skeleton: &Skeleton) -> Precedence {
        let edges = Edges::of(skeleton);
        Precedence {
            consumers: edges.consumers(),
            edges,
        }
    }

    /// See [`in_sequence`].
    pub(crate) fn in_sequence(&self, positions: &[u32]) -> Vec<u32> {
        if positions.is_sorted() {
            return (0..positions.len() as u32).collect();
        }
        let nodes = 0..self.edges.producers.len() as u32;
        let mut sorted: Vec<u64> = nodes.map(|i| key(positions[i as usize], i)).collect();
        sorted.sort();
        let sequence: Vec<u32> = sorted.into_iter().map(|key| key as u32).collect();
        match self.keeps(&sequence) {
            true => sequence,
            false => self.by_key(|i| key(positions[i as usize], i)),
        }
    }

    /// Does everybody run behind what it reads?
    fn keeps(&self, sequence: &[u32]) -> bool {
        let mut has_run = vec![false; sequence.len()];
        sequence.iter().all(|&node| {
            let mut producers = self.edges.producers.get(node as usize).iter();
            let can_run = producers.all(|&producer| has_run[producer as usize]);
            has_run[node as usize] = true;
            can_run
        })
    }

    /// Of the nodes that can run, the one with the smallest key is next.
    fn by_key(&self, key: impl Fn(u32) -> u64) -> Vec<u32> {
        let nodes = self.edges.producers.len();
        let producers = (0..nodes).map(|i| self.edges.producers.get(i).len());
        let mut missing: Vec<usize> = producers.collect();
        let mut ready: BinaryHeap<Reverse<u64>> = (0..nodes as u32)
            .filter(|&i| missing[i as usize] == 0)
            .map(|i| Reverse(key(i)))
            .collect();
        let mut found = Vec::with_capacity(nodes);
        while let Some(Reverse(key_of_next)) = ready.pop() {
            let i = key_of_next as u32;
            found.push(i);
            for &consumer in self.consumers.get(i as usize) {
                missing[consumer as usize] -= 1;
                if missing[consumer as usize] == 0 {
                    ready.push(Reverse(key(consumer)));
                }
            }
        }
        found
    }
}

/// By rank, and of equal ranks by number, which is its lower half.
fn key(rank: u32, node: u32) -> u64 {
    u64::from(rank) << 32 | u64::from(node)
}

fn by_priority(skeleton: &Skeleton, edges: Edges) -> Vec<u32> {
    let rank = |i: u32| u32::from(!skeleton.reads_only_shape[i as usize]);
    let precedence = Precedence {
        consumers: edges.consumers(),
        edges,
    };
    precedence.by_key(|i| key(rank(i), i))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Cost;
    use crate::graph::Graph;
    use crate::operators::Provider;

    /// The names of the first outputs of the nodes as they run, DEFAULT then PRIORITY_BASED.
    fn orders(text: &str) -> String {
        let graph = Graph::parse(text).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
        let name = |node: u32| {
            let node = graph.node(graph.order()[node as usize]);
            graph.tensor(node.writes().next().unwrap()).name.clone()
        };
        let run = |order| execution_order(&skeleton, order).into_iter().map(name);
        let line = |order: ExecutionOrder| run(order).collect::<Vec<_>>().join(" ");
        ExecutionOrder::ALL.map(line).join("\n")
    }

    #[test]
    fn the_last_leaf_and_the_last_producer_come_first_by_default() {
        // Leaves are d and e. e comes first, and of its producers the last, c.
        insta::assert_snapshot!(orders("g (x) => () {
            a = Exp(x) b = Exp(x) c = Exp(x) d = Exp(a) e = Add(b, c)
        }"), @r"
        c b e a d
        a b c d e
        ");
    }

    #[test]
    fn accumulators_end_up_last_by_default() {
        insta::assert_snapshot!(orders("g (x) => () {
            ga = Exp(x) sum_a = Exp(ga) gb = Exp(ga) sum_b = Exp(gb) y = Exp(gb)
        }"), @r"
        ga gb y sum_b sum_a
        ga sum_a gb sum_b y
        ");
    }

    #[test]
    fn a_shape_follows_its_producer() {
        insta::assert_snapshot!(orders("g (x) => () {
            a = Exp(x) b = Exp(a) s = Shape(a) y = Expand(b, s)
        }"), @r"
        a s b y
        a s b y
        ");
    }

    #[test]
    fn several_shapes_follow_by_index() {
        insta::assert_snapshot!(orders("g (x) => () {
            a = Exp(x) b = Exp(a) n = Size(a) s = Shape(a) y = Expand(b, s) z = Expand(b, n)
        }"), @r"
        a n s b z y
        a n s b y z
        ");
    }

    #[test]
    fn the_shape_of_a_shape_stays_where_it_was_found() {
        // s moves behind a; ss does not follow it there, although only s produces it.
        insta::assert_snapshot!(orders("g (x) => () {
            a = Exp(x) b = Exp(a) s = Shape(a) ss = Shape(s) y = Expand(b, s) z = Expand(y, ss)
        }"), @r"
        a s b y ss z
        a s ss b y z
        ");
    }

    #[test]
    fn the_shape_of_a_graph_input_stays_where_it_was_found() {
        insta::assert_snapshot!(orders("g (x) => () {
            a = Exp(x) s = Shape(x) y = Expand(a, s)
        }"), @r"
        s a y
        s a y
        ");
    }

    #[test]
    fn shapes_come_before_lower_indices_by_priority() {
        insta::assert_snapshot!(orders("g (x) => () {
            a = Exp(x) b = Exp(x) s = Shape(x) c = Exp(a) n = Size(b)
        }"), @r"
        b n a c s
        s a b n c
        ");
    }

    #[test]
    fn nodes_on_a_cycle_are_left_out_by_priority() {
        let text = "g (x) => () { a = Add(x, b) b = Exp(a) c = Exp(x) }";
        assert_eq!(orders(text).lines().last(), Some("c"));
    }

    #[test]
    fn every_order_of_a_random_graph_is_topological() {
        for seed in 0..50 {
            let graph = crate::testing::random_training_graph(seed, 5 + seed as usize * 2);
            let costs = vec![Cost::default(); graph.node_count()];
            let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
            let edges = Edges::of(&skeleton);
            for order in ExecutionOrder::ALL {
                let run = execution_order(&skeleton, order);
                let mut time = vec![None; skeleton.len()];
                for (step, &node) in run.iter().enumerate() {
                    for &producer in edges.producers.get(node as usize) {
                        assert!(time[producer as usize].is_some(), "seed {seed}, {order:?}");
                    }
                    time[node as usize] = Some(step);
                }
                assert_eq!(run.len(), skeleton.len());
            }
        }
    }
}
