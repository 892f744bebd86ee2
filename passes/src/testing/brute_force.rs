//! The cheapest recomputation of a tiny graph, by trying everything.
//!
//! The order of first computations is the file's. A state is how many of them are done and which
//! tensors lie in which live buffers; from there the next original runs, any earlier node runs
//! again, or a tensor is let go. Dijkstra's algorithm finds the cheapest way to the end on which
//! no step needs more than the budget. This covers every choice that Checkmate's matrices
//! (Jain et al., MLSys 2020) describe, and several copies of one node between two originals.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::peak::{owned, same_memory, size};
use super::unroll::instance_reads;
use crate::bytes::Bytes;
use crate::cost::{Cost, Nanos};
use crate::graph::{Graph, Node, NodeId, TensorId, TensorKind};
use crate::operators::{self, Provider, Recompute};

/// The cheapest way to stay within a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Optimum {
    /// The time of all copies.
    pub added: Nanos,
    /// Originals and copies as they run; see [`super::unroll()`].
    pub sequence: Vec<NodeId>,
}

/// The least added time with which `graph`, its nodes first computed in file order, needs at
/// most `budget` in every step; `None` if nothing does. Results that nobody reads count as freed. `costs` are by node id. Exponential in
/// the number of tensors: for at most about ten nodes.
pub fn brute_force(
    graph: &Graph,
    provider: Provider,
    costs: &[Cost],
    budget: Bytes,
) -> Option<Optimum> {
    let space = Space {
        graph,
        provider,
        costs,
        room: budget.0.checked_sub(owned(graph).0)?,
    };
    let start = State {
        done: 0,
        buffer: vec![FREE; graph.tensor_count()],
    };
    let mut best: BTreeMap<State, Best> = BTreeMap::new();
    let mut queue = BinaryHeap::from([Reverse((0, start.clone()))]);
    best.insert(start, (0, None));
    while let Some(Reverse((spent, state))) = queue.pop() {
        if best[&state].0 < spent {
            continue;
        }
        if usize::from(state.done) == graph.order().len() {
            let mut sequence = Vec::new();
            let mut at = state;
            while let Some((before, ran)) = best[&at].1.clone() {
                sequence.extend(ran);
                at = before;
            }
            sequence.reverse();
            return Some(Optimum {
                added: Nanos(spent),
                sequence,
            });
        }
        for (next, cost, ran) in space.moves(&state) {
            let total = spent + cost;
            if best.get(&next).is_none_or(|known| total < known.0) {
                best.insert(next.clone(), (total, Some((state.clone(), ran))));
                queue.push(Reverse((total, next)));
            }
        }
    }
    None
}

/// The least time to a state, and by which move from which state.
type Best = (u64, Option<(State, Option<NodeId>)>);

/// Not in memory.
const FREE: u16 = u16::MAX;
/// In memory of the caller, by way of an alias.
const CALLERS: u16 = u16::MAX - 1;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    /// How many originals have run.
    done: u16,
    /// For every tensor, the smallest tensor in the same buffer.
    buffer: Vec<u16>,
}

impl State {
    fn lives(&self, tensor: TensorId) -> bool {
        self.buffer[tensor.index()] != FREE
    }

    fn drop(&mut self, tensor: TensorId) {
        let left = std::mem::replace(&mut self.buffer[tensor.index()], FREE);
        if left == tensor.0 as u16 {
            self.rename(left);
        }
    }

    fn place(&mut self, tensor: TensorId, buffer: u16) {
        self.drop(tensor);
        self.buffer[tensor.index()] = buffer;
        self.rename(buffer);
    }

    fn rename(&mut self, buffer: u16) {
        if buffer >= CALLERS {
            return;
        }
        let Some(smallest) = self.buffer.iter().position(|&b| b == buffer) else {
            return;
        };
        for b in self.buffer.iter_mut().filter(|b| **b == buffer) {
            *b = smallest as u16;
        }
    }

    fn sharing(&self, tensor: TensorId) -> usize {
        self.buffer
            .iter()
            .filter(|&&b| b == self.buffer[tensor.index()])
            .count()
    }
}

struct Space<'a> {
    graph: &'a Graph,
    provider: Provider,
    costs: &'a [Cost],
    /// The budget without what the caller owns.
    room: u64,
}

impl Space<'_> {
    /// Every state one move away, what it costs, and what ran.
    fn moves(&self, state: &State) -> Vec<(State, u64, Option<NodeId>)> {
        let order = self.graph.order();
        let done = usize::from(state.done);
        let mut moves = Vec::new();
        for in_place in [true, false] {
            if let Some(mut next) = self.run(state, order[done], false, in_place) {
                next.done += 1;
                moves.push((next, 0, Some(order[done])));
            }
            for &id in &order[..done] {
                if let Some(next) = self.run(state, id, true, in_place) {
                    moves.push((next, self.costs[id.index()].time.0, Some(id)));
                }
            }
        }
        // A tensor may be let go at any time: had it gone after its last reader already, every
        // step in between would need less.
        for tensor in self.graph.tensor_ids() {
            if state.lives(tensor) && !self.graph.outputs.contains(&tensor) {
                let mut next = state.clone();
                next.drop(tensor);
                moves.push((next, 0, None));
            }
        }
        moves
    }

    /// The state after `id` ran, if its inputs are there and the step fits. `in_place` asks for
    /// results in the memory of inputs that are let go for it.
    fn run(&self, state: &State, id: NodeId, copy: bool, in_place: bool) -> Option<State> {
        let node = self.graph.node(id);
        let rule = operators::recompute(node);
        if copy && matches!(rule, Recompute::Never(_)) {
            return None;
        }
        let reads = if copy {
            instance_reads(node)
        } else {
            node.reads().collect()
        };
        if reads
            .iter()
            .any(|&read| !self.owned(read) && !state.lives(read))
        {
            return None;
        }
        let mut next = state.clone();
        let mut used = self.live(state) + self.costs[id.index()].workspace.0;
        let mut overwrote = false;
        let dropout = copy && rule == Recompute::DropoutFromMask;
        for (position, output) in node.outputs.iter().enumerate() {
            let Some(output) = *output else { continue };
            if dropout && position > 0 {
                continue;
            }
            let result = self.graph.outputs.contains(&output);
            if copy && (result || !rule.recomputes(position)) {
                // Computed, but read from the original: only here while the copy runs.
                if self.alias(node, position).is_none()
                    && !operators::may_omit_output(node, position)
                {
                    used += size(self.graph, output).0;
                }
                continue;
            }
            if !dropout
                && !result
                && let Some(of) = self.alias(node, position)
            {
                let buffer = if self.owned(of) {
                    CALLERS
                } else {
                    next.buffer[of.index()]
                };
                next.place(output, buffer);
            } else if in_place
                && !dropout
                && let Some(of) = self.overwritten(&next, node, position, &reads)
            {
                next.place(output, next.buffer[of.index()]);
                next.drop(of);
                overwrote = true;
            } else {
                used += size(self.graph, output).0;
                next.place(output, output.0 as u16);
            }
        }
        (used <= self.room && overwrote == in_place).then_some(next)
    }

    /// The input whose memory output `position` takes over.
    fn overwritten(
        &self,
        state: &State,
        node: &Node,
        position: usize,
        reads: &[TensorId],
    ) -> Option<TensorId> {
        let output = node.output(position)?;
        let pairs = operators::in_place(self.graph, node, self.provider);
        let (_, input) = pairs.into_iter().find(|&(output, _)| output == position)?;
        let input = node.input(input)?;
        let once = reads.iter().filter(|&&read| read == input).count() == 1;
        let free = once
            && !self.owned(input)
            && state.buffer[input.index()] != CALLERS
            && state.sharing(input) == 1
            && !self.graph.outputs.contains(&input)
            && !self.graph.outputs.contains(&output);
        (free && same_memory(self.graph, input, output)).then_some(input)
    }

    fn alias(&self, node: &Node, position: usize) -> Option<TensorId> {
        let pairs = operators::aliases(node);
        let (_, input) = pairs.into_iter().find(|&(output, _)| output == position)?;
        node.input(input)
    }

    /// Does the caller own the memory of `tensor`?
    fn owned(&self, tensor: TensorId) -> bool {
        self.graph.tensor(tensor).kind != TensorKind::Value
    }

    fn live(&self, state: &State) -> u64 {
        let first = |&(tensor, &buffer): &(usize, &u16)| usize::from(buffer) == tensor;
        let buffers = state.buffer.iter().enumerate().filter(first);
        buffers
            .map(|(tensor, _)| size(self.graph, TensorId(tensor as u32)).0)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{naive_peak, random_training_graph, unroll};
    use super::*;

    const CPU: Provider = Provider::Cpu;

    /// Every node takes as long as its position in the arena says, from 1.
    fn costs(graph: &Graph) -> Vec<Cost> {
        let cost = |n| Cost {
            time: Nanos(n),
            workspace: Bytes::ZERO,
        };
        (1..=graph.node_count() as u64).map(cost).collect()
    }

    fn smallest(graph: &Graph, budgets: std::ops::RangeInclusive<u64>) -> Vec<(u64, Option<u64>)> {
        let costs = costs(graph);
        let added = |budget| brute_force(graph, CPU, &costs, Bytes(budget)).map(|o| o.added.0);
        budgets
            .step_by(4)
            .map(|budget| (budget, added(budget)))
            .collect()
    }

    fn unread(graph: &Graph) -> Bytes {
        let uses = crate::graph::Uses::of(graph);
        let computed = graph
            .tensor_ids()
            .filter(|&t| uses.producer(t).is_some() && uses.readers(t).is_empty());
        computed
            .filter(|t| !graph.outputs.contains(t))
            .map(|t| size(graph, t))
            .sum()
    }

    #[test]
    fn a_chain_is_recomputed_where_it_has_to_be() {
        let graph = Graph::parse(
            "g (float x, float dy) => (float dx)
             <float a, float b, float c, float dc, float db>
             {
                a = Exp(x)
                b = Exp(a)
                c = Exp(b)
                dc = Mul(dy, c)
                db = Mul(dc, b)
                dx = Mul(db, a)
             }",
        )
        .unwrap();
        // x and dy: 8 bytes. 24: a, b, c, dc while dc is computed, or a, b, dc, db for db.
        // 20: a is let go for c and computed again (1) for dx. 16: db needs dc, b, db: 8 + 12.
        assert_eq!(
            smallest(&graph, 12..=28),
            [
                (12, None),
                (16, None),
                (20, Some(1)),
                (24, Some(0)),
                (28, Some(0))
            ]
        );
    }

    #[test]
    fn the_sequence_keeps_what_it_promises() {
        let mut exact = 0;
        for seed in 0..60 {
            let graph = random_training_graph(seed, 3 + seed as usize % 6);
            if graph.node_count() > 8 {
                continue;
            }
            let costs = costs(&graph);
            let before = naive_peak(&graph, graph.order(), CPU, &costs);
            assert_eq!(
                brute_force(&graph, CPU, &costs, before).unwrap().added,
                Nanos(0)
            );
            for budget in (owned(&graph).0..before.0).step_by(16) {
                let Some(optimum) = brute_force(&graph, CPU, &costs, Bytes(budget)) else {
                    continue;
                };
                let (peak, added) = judge(&graph, &optimum.sequence, &costs);
                // Results that nobody reads count as freed here, and stay in the runtime.
                let freed = unread(&unroll(&graph, &optimum.sequence));
                assert!(
                    peak <= Bytes(budget) + freed,
                    "seed {seed}, budget {budget}: {peak:?}"
                );
                exact += usize::from(freed == Bytes::ZERO);
                assert_eq!(added, optimum.added);
            }
        }
        assert!(exact > 50, "{exact}");
    }

    #[test]
    fn no_sequence_with_up_to_two_copies_is_cheaper() {
        let mut compared = 0;
        for seed in 0..40 {
            let graph = random_training_graph(seed, 3 + seed as usize % 4);
            if graph.node_count() > 6 {
                continue;
            }
            let costs = costs(&graph);
            let mut sequences = vec![graph.order().to_vec()];
            for _ in 0..2 {
                sequences = sequences
                    .iter()
                    .flat_map(|s| with_one_more(&graph, s))
                    .collect();
            }
            sequences.sort();
            sequences.dedup();
            let judged: Vec<_> = sequences.iter().map(|s| judge(&graph, s, &costs)).collect();
            let mut budgets: Vec<Bytes> = judged.iter().map(|judged| judged.0).collect();
            budgets.sort();
            budgets.dedup();
            for budget in budgets {
                let fitting = judged.iter().filter(|judged| judged.0 <= budget);
                let cheapest = fitting.map(|judged| judged.1).min().unwrap();
                let optimum = brute_force(&graph, CPU, &costs, budget).unwrap();
                assert!(
                    optimum.added <= cheapest,
                    "seed {seed}, {budget:?}: {cheapest:?}"
                );
                compared += 1;
            }
        }
        assert!(compared > 60, "{compared}");
    }

    /// The sequence itself, and with a copy of any node anywhere behind it.
    fn with_one_more(graph: &Graph, sequence: &[NodeId]) -> Vec<Vec<NodeId>> {
        let mut more = vec![sequence.to_vec()];
        for &id in graph.order() {
            if matches!(operators::recompute(graph.node(id)), Recompute::Never(_)) {
                continue;
            }
            let first = sequence.iter().position(|&other| other == id).unwrap();
            for at in first + 1..=sequence.len() {
                let mut longer = sequence.to_vec();
                longer.insert(at, id);
                more.push(longer);
            }
        }
        more
    }

    fn judge(graph: &Graph, sequence: &[NodeId], costs: &[Cost]) -> (Bytes, Nanos) {
        let unrolled = unroll(graph, sequence);
        let all: u64 = sequence.iter().map(|id| costs[id.index()].time.0).sum();
        let once: u64 = graph
            .order()
            .iter()
            .map(|id| costs[id.index()].time.0)
            .sum();
        let nothing = vec![Cost::default(); unrolled.node_count()];
        (
            naive_peak(&unrolled, unrolled.order(), CPU, &nothing),
            Nanos(all - once),
        )
    }
}
