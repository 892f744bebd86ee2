//! The order MEMORY_EFFICIENT of graphs with a YieldOp, by which ORTModule hands over to PyTorch.
//!
//! Runtime fact, checked against the executed order of random graphs (`tools/yield_step.py`, 1.19.2, DISABLE_ALL).
//! What the YieldOp reads runs first, by a reverse depth-first search that goes to the producer with the longest way
//! from the graph's inputs first; a Shape or Size of it follows its producer. The rest is run from the YieldOp on,
//! first come, first served. Of the rest, what does not depend on the YieldOp (a mirror without a barrier) forms groups
//! by the results that it leads to; a group runs, in breadth-first order, directly before the first node that reads one
//! of its results, and those that nobody reads at the end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::skeleton::Skeleton;

/// One tensor that passes from node to node: the other node, and the tensor. A node that reads it twice has two.
type Edge = (u32, u32);

/// The nodes in the order in which they run, as positions in the file; `yield_op` is where the YieldOp stands.
/// Groups that nobody reads run in the order of their tensors' numbers; the runtime goes by name.
pub(super) fn memory_efficient(skeleton: &Skeleton, yield_op: u32) -> Vec<u32> {
    let mut sort = Sort::new(skeleton);
    sort.forward(yield_op);
    sort.backward(yield_op);
    sort.order
}

struct Sort<'s> {
    skeleton: &'s Skeleton,
    /// By node, by producer and then by the producer's output.
    producers: Vec<Vec<Edge>>,
    /// By node, by output and then by consumer as they come.
    consumers: Vec<Vec<Edge>>,
    /// By node: does it run before the YieldOp for certain?
    is_forward: Vec<bool>,
    order: Vec<u32>,
}

/// Nodes that depend on no YieldOp and lead to the same results.
struct IndependentGroup {
    nodes: Vec<u32>,
    is_placed: bool,
}

impl<'s> Sort<'s> {
    fn new(skeleton: &'s Skeleton) -> Sort<'s> {
        let mut source = vec![None; skeleton.size.len()];
        for node in 0..skeleton.len() {
            for (place, &tensor) in skeleton.writes.get(node).iter().enumerate() {
                source[tensor as usize] = Some((node as u32, place));
            }
        }
        let mut producers: Vec<Vec<Edge>> = vec![Vec::new(); skeleton.len()];
        let mut consumers: Vec<Vec<(u32, usize, u32)>> = vec![Vec::new(); skeleton.len()];
        for (node, producers) in producers.iter_mut().enumerate() {
            let mut found: Vec<(u32, usize, u32)> = Vec::new();
            for &tensor in skeleton.reads.get(node) {
                if let Some((producer, place)) = source[tensor as usize] {
                    found.push((producer, place, tensor));
                    consumers[producer as usize].push((node as u32, place, tensor));
                }
            }
            found.sort_by_key(|&(producer, place, _)| (producer, place));
            *producers = found
                .into_iter()
                .map(|(p, _, tensor)| (p, tensor))
                .collect();
        }
        let consumers = consumers.into_iter().map(|mut found| {
            found.sort_by_key(|&(consumer, place, _)| (consumer, place));
            let edges = found.into_iter().map(|(c, _, tensor)| (c, tensor));
            edges.collect::<Vec<Edge>>()
        });
        Sort {
            skeleton,
            producers,
            consumers: consumers.collect(),
            is_forward: vec![false; skeleton.len()],
            order: Vec::with_capacity(skeleton.len()),
        }
    }

    /// By node: the longest way to it from a node that reads nothing computed.
    fn distances(&self) -> Vec<u32> {
        let mut missing: Vec<usize> = self.producers.iter().map(Vec::len).collect();
        let mut distances = vec![0; missing.len()];
        let mut ready: Vec<u32> = (0..missing.len() as u32)
            .filter(|&node| missing[node as usize] == 0)
            .collect();
        while let Some(node) = ready.pop() {
            for &(consumer, _) in &self.consumers[node as usize] {
                let consumer = consumer as usize;
                distances[consumer] = distances[consumer].max(distances[node as usize] + 1);
                missing[consumer] -= 1;
                if missing[consumer] == 0 {
                    ready.push(consumer as u32);
                }
            }
        }
        distances
    }

    fn forward(&mut self, yield_op: u32) {
        const LEAVE: u32 = 1 << 31;
        let distances = self.distances();
        let mut stack: Vec<u32> = self.producers[yield_op as usize]
            .iter()
            .map(|&(producer, _)| producer)
            .collect();
        let mut visited = vec![false; self.producers.len()];
        let mut found = Vec::new();
        while let Some(visit) = stack.pop() {
            if visit & LEAVE != 0 {
                self.is_forward[(visit ^ LEAVE) as usize] = true;
                found.push(visit ^ LEAVE);
            } else if !std::mem::replace(&mut visited[visit as usize], true) {
                stack.push(visit | LEAVE);
                let mut before: Vec<u32> = self.producers[visit as usize]
                    .iter()
                    .map(|&(producer, _)| producer)
                    .filter(|&producer| !visited[producer as usize])
                    .collect();
                before.sort_by_key(|&producer| (distances[producer as usize], producer));
                stack.extend(before);
            }
        }
        for node in found {
            self.order.push(node);
            // The latest first: each is put directly behind the producer.
            let mut followers: Vec<u32> = self.consumers[node as usize]
                .iter()
                .map(|&(consumer, _)| consumer)
                .filter(|&consumer| self.skeleton.reads_only_shape[consumer as usize])
                .filter(|&consumer| !self.is_forward[consumer as usize])
                .collect();
            followers.sort_unstable();
            followers.dedup();
            for &follower in followers.iter().rev() {
                self.is_forward[follower as usize] = true;
                self.order.push(follower);
            }
        }
    }

    fn backward(&mut self, yield_op: u32) {
        let nodes = self.producers.len() as u32;
        let mut missing = vec![0; nodes as usize];
        let mut branch = Vec::new();
        for node in (0..nodes).filter(|&node| node != yield_op) {
            if !self.is_forward[node as usize] {
                let producers = self.producers[node as usize].iter();
                let open = |&&(producer, _): &&Edge| !self.is_forward[producer as usize];
                missing[node as usize] = producers.filter(open).count();
                if missing[node as usize] == 0 {
                    branch.push(node);
                }
            }
        }
        let in_branch = self.follow(&mut branch, missing.clone());
        let (mut groups, group_of) = self.groups(&branch, &in_branch);
        for &node in &branch {
            for consumer in self.waiting_for(node) {
                if !in_branch[consumer as usize] {
                    missing[consumer as usize] -= 1;
                }
            }
        }
        let mut ready = VecDeque::from([yield_op]);
        while let Some(node) = ready.pop_front() {
            for edge in 0..self.producers[node as usize].len() {
                let (_, tensor) = self.producers[node as usize][edge];
                self.place(tensor, &mut groups, &group_of);
            }
            self.order.push(node);
            for consumer in self.waiting_for(node) {
                missing[consumer as usize] -= 1;
                if missing[consumer as usize] == 0 {
                    ready.push_back(consumer);
                }
            }
        }
        for &tensor in group_of.keys() {
            self.place(tensor, &mut groups, &group_of);
        }
    }

    /// Who reads what `node` writes and is not put forward. What is put forward behind one producer waits for no other.
    fn waiting_for(&self, node: u32) -> impl Iterator<Item = u32> {
        let consumers = self.consumers[node as usize].iter();
        let consumers = consumers.map(|&(consumer, _)| consumer);
        consumers.filter(|&consumer| !self.is_forward[consumer as usize])
    }

    /// Completes `branch` by all that needs nothing else, breadth first. By node: is it in there?
    fn follow(&self, branch: &mut Vec<u32>, mut missing: Vec<usize>) -> Vec<bool> {
        let mut in_branch = vec![false; missing.len()];
        let mut next = 0;
        while let Some(&node) = branch.get(next) {
            in_branch[node as usize] = true;
            next += 1;
            for consumer in self.waiting_for(node) {
                missing[consumer as usize] -= 1;
                if missing[consumer as usize] == 0 {
                    branch.push(consumer);
                }
            }
        }
        in_branch
    }

    /// The branch by what its nodes lead to; and by tensor that leaves its group, the group.
    fn groups(
        &self,
        branch: &[u32],
        in_branch: &[bool],
    ) -> (Vec<IndependentGroup>, BTreeMap<u32, usize>) {
        let mut leads_to: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for &end in branch {
            let consumers = &self.consumers[end as usize];
            let leaves = consumers.iter().any(|&(c, _)| !in_branch[c as usize]);
            if consumers.is_empty() || leaves {
                let (mut stack, mut seen) = (vec![end], BTreeSet::new());
                while let Some(node) = stack.pop() {
                    if seen.insert(node) {
                        leads_to.entry(node).or_default().push(end);
                        let producers = self.producers[node as usize].iter();
                        let producers = producers.map(|&(producer, _)| producer);
                        stack.extend(producers.filter(|&p| !self.is_forward[p as usize]));
                    }
                }
            }
        }
        let mut number: BTreeMap<&[u32], usize> = BTreeMap::new();
        let mut groups: Vec<IndependentGroup> = Vec::new();
        let mut group_of_node = vec![usize::MAX; in_branch.len()];
        for &node in branch {
            let ends = leads_to.get(&node).map_or(&[][..], Vec::as_slice);
            let group = *number.entry(ends).or_insert_with(|| {
                groups.push(IndependentGroup {
                    nodes: Vec::new(),
                    is_placed: false,
                });
                groups.len() - 1
            });
            groups[group].nodes.push(node);
            group_of_node[node as usize] = group;
        }
        let mut group_of = BTreeMap::new();
        for &node in branch {
            let group = group_of_node[node as usize];
            let consumers = &self.consumers[node as usize];
            if consumers.is_empty() {
                let written = self.skeleton.writes.get(node as usize).iter();
                group_of.extend(written.map(|&tensor| (tensor, group)));
            }
            let leaving = consumers.iter();
            let leaving = leaving.filter(|&&(c, _)| group_of_node[c as usize] != group);
            group_of.extend(leaving.map(|&(_, tensor)| (tensor, group)));
        }
        (groups, group_of)
    }

    /// Runs the group that computes the tensor, if there is one, and before it those that it reads.
    fn place(
        &mut self,
        tensor: u32,
        groups: &mut [IndependentGroup],
        group_of: &BTreeMap<u32, usize>,
    ) {
        // Instead of recursion: a group is left when all that it reads is placed.
        let Some(&first) = group_of.get(&tensor) else {
            return;
        };
        let mut stack = vec![first];
        while let Some(&group) = stack.last() {
            if groups[group].is_placed {
                stack.pop();
                continue;
            }
            let nodes = groups[group].nodes.iter();
            let mut reads = nodes.flat_map(|&node| self.skeleton.reads.get(node as usize));
            let missing = reads.find_map(|tensor| {
                let &other = group_of.get(tensor)?;
                (other != group && !groups[other].is_placed).then_some(other)
            });
            match missing {
                Some(other) if !stack.contains(&other) => stack.push(other),
                _ => {
                    groups[group].is_placed = true;
                    self.order.extend(&groups[group].nodes);
                    stack.pop();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::order::{ExecutionOrder, execution_order};
    use super::*;
    use crate::cost::Cost;
    use crate::graph::Graph;
    use crate::operators::Provider;

    /// The names of the first outputs of the nodes as they run.
    fn order(body: &str) -> String {
        let text = format!(
            "<ir_version: 8, opset_import: [\"\" : 15, \"com.microsoft\" : 1]> g (x) => () {{ {body} }}"
        );
        let graph = Graph::parse(&text).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
        let name = |node: u32| {
            let node = graph.node(graph.order()[node as usize]);
            graph.tensor(node.writes().next().unwrap()).name.as_str()
        };
        let run = execution_order(&skeleton, ExecutionOrder::MemoryEfficient);
        run.into_iter().map(name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_is_handed_over_runs_first_and_the_longest_way_before_others() {
        insta::assert_snapshot!(order(
            "a = Exp(x) b = Exp(x) c = Exp(b) s = Shape(c) y = Add(a, c) dy = com.microsoft.YieldOp(y) z = Exp(dy)"
        ), @"b c s a y dy z");
    }

    /// The runtime refuses it; here it stands behind one of what it reads.
    #[test]
    fn a_shape_of_two_tensors_is_no_reason_to_stop() {
        insta::assert_snapshot!(order(
            "y = Exp(x) dy = com.microsoft.YieldOp(y) s = Shape(dy, y) z = Exp(dy)"
        ), @"y s dy z");
    }

    #[test]
    fn what_depends_on_the_yield_op_runs_first_come_first_served() {
        insta::assert_snapshot!(order(
            "y = Exp(x) dy = com.microsoft.YieldOp(y) a = Exp(dy) b = Exp(dy) c = Exp(b) d = Exp(a) e = Add(d, c)"
        ), @"y dy a b d c e");
    }

    #[test]
    fn a_mirror_runs_right_before_its_first_reader_and_readers_of_none_last() {
        insta::assert_snapshot!(order(
            "y = Exp(x) dy = com.microsoft.YieldOp(y) unread = Sin(x) m = Exp(x) n = Exp(m) a = Exp(dy) b = Mul(a, n)"
        ), @"y dy a m n b unread");
    }

    #[test]
    fn without_a_yield_op_it_is_the_default() {
        insta::assert_snapshot!(order("a = Exp(x) b = Exp(x) c = Add(a, b)"), @"b a c");
    }
}
