//! The order of first computations: what can be saved by order alone, free of charge.
//!
//! Starting from each order in which the runtime might run the graph anyway, nodes that only cost
//! memory are put off to their first reader (*lazy*), and nodes that free memory or take next to
//! none run as soon as they can (*eager*): accumulators, weight gradients, Shape; and where that needs less, so do
//! nodes that *together* free more than they allocate: a mask that the gradient of a Clip needs, of the values
//! behind it. The best of all combinations, by the exact simulation, is taken.

use crate::cost::Cost;
use crate::graph::{Graph, NodeId};
use crate::operators::Provider;
use crate::runtime::Runtime;
use crate::runtime::casts::as_computed;
use crate::runtime::liveness;
use crate::runtime::order::{ExecutionOrder, execution_order};
use crate::runtime::skeleton::Skeleton;
use crate::watch::Watch;

use super::late_results::late_results;
use super::postpone::{TINY, postpone};
use super::tuning::SEARCH;

/// The topological order with the smallest peak among those tried, in which the first of each of
/// the `sequences` runs before the second; and behind it others: before anything was postponed, and where nothing
/// runs early that only together frees something. A lower peak without copies does not always leave the cheaper
/// copies. Permutations of the graph's order, the best first. O(orders · (nodes + edges)); fewer are tried where `watch`
/// ends that.
pub fn first_orders(
    graph: &Graph,
    provider: Provider,
    costs: &[Cost],
    sequences: &[(NodeId, NodeId)],
    runtime: Runtime,
    watch: &Watch,
) -> Vec<Vec<NodeId>> {
    let positions = graph.positions();
    let place = |id: NodeId| positions[id.index()];
    let pairs: Vec<(u32, u32)> = sequences
        .iter()
        .map(|&(first, second)| (place(first), place(second)))
        .collect();
    let graph = &*as_computed(graph, provider);
    let plain = Skeleton::of(graph, provider, costs);
    let mut skeleton = if pairs.is_empty() {
        plain
    } else {
        plain.with_sequences(&pairs)
    };
    let shape = Dependences::of(&skeleton);
    if runtime.keeps_results_apart() {
        for (size, is_output) in skeleton.size.iter_mut().zip(&skeleton.output) {
            if *is_output {
                *size = 0;
            }
        }
    }
    let mut bases: Vec<Vec<u32>> = Vec::new();
    if pairs.iter().all(|(first, second)| first < second) {
        bases.push((0..skeleton.len() as u32).collect());
    }
    bases.extend(ExecutionOrder::ALL.map(|order| execution_order(&skeleton, order)));
    let mut best: Option<((u64, u128), Vec<u32>)> = None;
    let consider = |best: &mut Option<((u64, u128), Vec<u32>)>, order: Vec<u32>| {
        let profile = liveness::profile_of(&skeleton, &order);
        let area = profile.iter().map(|&need| u128::from(need)).sum::<u128>();
        let score = (profile.into_iter().max().unwrap_or(0), area);
        if best.as_ref().is_none_or(|(least, _)| score < *least) {
            *best = Some((score, order));
        }
    };
    for base in &bases {
        if best.is_some() && watch.is_stopped() {
            break;
        }
        if watch.is_stopped() {
            consider(&mut best, base.clone());
            break;
        }
        let lazy = match SEARCH.lazy {
            true => shape.lazy(base),
            false => base.clone(),
        };
        let eager = [base, &lazy].map(|order| shape.eager(&skeleton, order, Together::No));
        let eager = eager.into_iter().filter(|_| SEARCH.eager);
        for order in eager.chain([lazy, base.clone()]) {
            consider(&mut best, order);
        }
    }
    let mut together = best.clone();
    if let Some((_, order)) = best
        .as_ref()
        .filter(|_| SEARCH.together && !watch.is_stopped())
    {
        consider(&mut together, shape.eager(&skeleton, order, Together::Yes));
    }
    let together = together.filter(|((peak, area), _)| {
        let less = |new: u128, old: u128| {
            new.saturating_mul(100) <= old.saturating_mul(SEARCH.another_order)
        };
        let before = best.as_ref().map_or((0, 0), |(score, _)| *score);
        less((*peak).into(), before.0.into()) || less(*area, before.1)
    });
    let mut orders = Vec::new();
    for (_, order) in together.into_iter().chain(best) {
        if SEARCH.postponed && !watch.is_stopped() {
            orders.push(postpone(&skeleton, order.clone()));
        }
        orders.push(order);
        orders.dedup();
    }
    let peak = |order: &Vec<u32>| {
        let profile = liveness::profile_of(&skeleton, order).into_iter();
        profile.max().unwrap_or(0)
    };
    if let Some(order) = orders.first()
        && SEARCH.late_results
        && !watch.is_stopped()
    {
        orders.extend(late_results(&skeleton, order, peak(order)));
    }
    if orders.len() > 1 {
        orders.sort_by_cached_key(peak);
    }
    let nodes = |order: Vec<u32>| {
        order
            .into_iter()
            .map(|i| graph.order()[i as usize])
            .collect()
    };
    orders.into_iter().map(nodes).collect()
}

/// Who reads whom. A tensor's *owner* is the tensor in whose memory it lies.
struct Dependences {
    producer: Vec<Option<u32>>,
    /// By tensor: the nodes that read it, each once.
    readers: Vec<Vec<u32>>,
    owner: Vec<u32>,
}

impl Dependences {
    fn of(skeleton: &Skeleton) -> Dependences {
        let tensors = skeleton.size.len();
        let mut found = Dependences {
            producer: vec![None; tensors],
            readers: vec![Vec::new(); tensors],
            owner: (0..tensors as u32).collect(),
        };
        for node in 0..skeleton.len() {
            for &tensor in skeleton.writes.get(node) {
                found.producer[tensor as usize] = Some(node as u32);
            }
            for &tensor in skeleton.reads.get(node) {
                let readers = &mut found.readers[tensor as usize];
                if readers.last() != Some(&(node as u32)) {
                    readers.push(node as u32);
                }
            }
            for share in skeleton
                .shares
                .get(node)
                .iter()
                .filter(|share| share.always)
            {
                if !skeleton.output[share.written as usize] {
                    found.owner[share.written as usize] = found.owner[share.read as usize];
                }
            }
        }
        found
    }

    /// Puts every node off to just before its first reader, if nothing it reads has to live
    /// longer for that.
    fn lazy(&self, base: &[u32]) -> Vec<u32> {
        let mut position = vec![0usize; base.len()];
        for (i, &node) in base.iter().enumerate() {
            position[node as usize] = i;
        }
        let last_read: Vec<usize> = (0..self.readers.len())
            .map(|t| {
                self.readers[t]
                    .iter()
                    .map(|&n| position[n as usize])
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        // By place: the nodes that go before the node which was there, later ones first.
        let mut moved: Vec<Vec<u32>> = vec![Vec::new(); base.len()];
        let mut stays = vec![true; base.len()];
        let mut reads: Vec<Vec<u32>> = vec![Vec::new(); base.len()];
        let mut writes: Vec<Vec<u32>> = vec![Vec::new(); base.len()];
        for (tensor, readers) in self.readers.iter().enumerate() {
            for &reader in readers {
                reads[reader as usize].push(tensor as u32);
            }
            if let Some(producer) = self.producer[tensor] {
                writes[producer as usize].push(tensor as u32);
            }
        }
        for &node in base.iter().rev() {
            let written = writes[node as usize].iter();
            let readers = written.flat_map(|&t| self.readers[t as usize].iter().copied());
            let Some(until) = readers.map(|reader| position[reader as usize]).min() else {
                continue;
            };
            let free = reads[node as usize].iter().all(|&tensor| {
                self.producer[tensor as usize].is_none() || last_read[tensor as usize] > until
            });
            if free && until > position[node as usize] + 1 {
                stays[node as usize] = false;
                position[node as usize] = until;
                moved[until].push(node);
            }
        }
        let mut order = Vec::with_capacity(base.len());
        for (place, &node) in base.iter().enumerate() {
            if stays[node as usize] {
                // In the sequence of the base, so that none of them goes before what it reads.
                order.extend(moved[place].iter().rev().copied().chain([node]));
            }
        }
        debug_assert!(self.is_topological(&order), "lazy");
        order
    }

    /// Does every node run once, behind those whose results it reads?
    fn is_topological(&self, order: &[u32]) -> bool {
        let mut position = vec![None; order.len()];
        for (i, &node) in order.iter().enumerate() {
            position[node as usize] = Some(i);
        }
        let behind = |(tensor, readers): (usize, &Vec<u32>)| {
            let written = self.producer[tensor].map(|node| position[node as usize]);
            let mut readers = readers.iter().map(|&node| position[node as usize]);
            written.is_none_or(|written| readers.all(|read| written < read))
        };
        position.iter().all(Option::is_some) && self.readers.iter().enumerate().all(behind)
    }

    /// Runs every node as soon as it can that frees as much as it allocates, alone or with the
    /// nodes that then only consume its result.
    fn eager(&self, skeleton: &Skeleton, base: &[u32], together: Together) -> Vec<u32> {
        let mut run = Eager {
            uses: vec![0; skeleton.size.len()],
            missing: vec![0; skeleton.len()],
            done: vec![false; skeleton.len()],
            order: Vec::with_capacity(base.len()),
            together,
            skeleton,
            dependences: self,
        };
        for (tensor, readers) in self.readers.iter().enumerate() {
            let of = self.owner[tensor] as usize;
            run.uses[of] += readers.len() as u32;
            run.uses[of] += u32::from(skeleton.output[tensor]) + u32::from(skeleton.owned[tensor]);
            if self.producer[tensor].is_some() {
                for &reader in readers {
                    run.missing[reader as usize] += 1;
                }
            }
        }
        for &node in base {
            if !run.done[node as usize] {
                run.run(node);
            }
        }
        run.order
    }
}

/// May nodes run early that only together free what they all read?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Together {
    Yes,
    No,
}

struct Eager<'s> {
    /// By owner: reads still to come.
    uses: Vec<u32>,
    /// By node: tensors that are not computed yet.
    missing: Vec<u32>,
    done: Vec<bool>,
    order: Vec<u32>,
    together: Together,
    skeleton: &'s Skeleton,
    dependences: &'s Dependences,
}

impl Eager<'_> {
    /// Runs a node, and then whatever has become worth running.
    fn run(&mut self, node: u32) {
        let mut stack = vec![node];
        while let Some(node) = stack.pop() {
            if std::mem::replace(&mut self.done[node as usize], true) {
                continue;
            }
            self.order.push(node);
            for &tensor in self.distinct_reads(node).iter() {
                let of = self.dependences.owner[tensor as usize] as usize;
                self.uses[of] = self.uses[of].saturating_sub(1);
            }
            let mut candidates: Vec<u32> = Vec::new();
            for &tensor in self.skeleton.writes.get(node as usize) {
                for &reader in &self.dependences.readers[tensor as usize] {
                    self.missing[reader as usize] -= 1;
                    candidates.push(reader);
                }
            }
            // One reader fewer: the last one that is left may now free the tensor.
            for &tensor in self.skeleton.reads.get(node as usize) {
                if self.uses[self.dependences.owner[tensor as usize] as usize] <= 2 {
                    candidates.extend(&self.dependences.readers[tensor as usize]);
                }
            }
            candidates.sort_unstable();
            candidates.dedup();
            candidates.retain(|&n| !self.done[n as usize] && self.missing[n as usize] == 0);
            for &candidate in candidates.iter().rev() {
                if self.is_worth(candidate) {
                    stack.push(candidate);
                }
            }
            if self.together == Together::Yes {
                stack.extend(self.smaller_together(node));
            }
        }
    }

    /// What is left to read something that the node has read, if it all can run now and what it allocates is
    /// smaller than what it frees: of the bounds of a Clip, say, whose comparisons the gradient needs.
    fn smaller_together(&self, node: u32) -> Vec<u32> {
        let of = |tensor: u32| self.dependences.owner[tensor as usize];
        let left = self.distinct_reads(node).into_iter().filter_map(|tensor| {
            let skeleton = self.skeleton;
            let (owner, readers) = (of(tensor), &self.dependences.readers[tensor as usize]);
            let left: Vec<u32> = readers
                .iter()
                .copied()
                .filter(|&reader| !self.done[reader as usize])
                .collect();
            let all = left.len() > 1
                && self.uses[owner as usize] as usize == left.len()
                && !skeleton.owned[owner as usize]
                && left.iter().all(|&n| self.missing[n as usize] == 0);
            let written = left.iter().flat_map(|&n| skeleton.writes.get(n as usize));
            let written = written.filter(|&&tensor| of(tensor) == tensor);
            let allocated = written.map(|&tensor| skeleton.size[tensor as usize]);
            let allocated = allocated.fold(0, u64::saturating_add);
            (all && allocated < skeleton.size[owner as usize]).then_some(left)
        });
        left.flatten().collect()
    }

    fn distinct_reads(&self, node: u32) -> Vec<u32> {
        let mut reads = self.skeleton.reads.get(node as usize).to_vec();
        reads.sort_unstable();
        reads.dedup();
        reads
    }

    /// Does the node free what it allocates? Results that only nodes without results of their
    /// own read (accumulators) count as freed with them.
    fn is_worth(&self, node: u32) -> bool {
        let mut allocated: u64 = 0;
        let mut tiny = true;
        for &tensor in self.skeleton.writes.get(node as usize) {
            let of = self.dependences.owner[tensor as usize];
            if of != tensor {
                continue;
            }
            let size = self.skeleton.size[tensor as usize];
            tiny &= size <= TINY;
            let readers = &self.dependences.readers[tensor as usize];
            let consumed = !self.skeleton.output[tensor as usize]
                && readers.iter().all(|&reader| self.is_sink(reader, node));
            if !consumed {
                allocated = allocated.saturating_add(size);
            }
        }
        if tiny {
            return true;
        }
        let freed = self.distinct_reads(node).into_iter().filter(|&tensor| {
            let of = self.dependences.owner[tensor as usize] as usize;
            self.uses[of] == 1 && !self.skeleton.owned[of]
        });
        let freed: u64 = freed
            .map(|tensor| self.skeleton.size[self.dependences.owner[tensor as usize] as usize])
            .fold(0, u64::saturating_add);
        allocated <= freed
    }

    /// Can `reader` run right after `node`, and does it leave nothing behind?
    fn is_sink(&self, reader: u32, node: u32) -> bool {
        let leaves_nothing = self
            .skeleton
            .writes
            .get(reader as usize)
            .iter()
            .all(|&tensor| {
                self.skeleton.size[tensor as usize] <= TINY
                    || self.dependences.readers[tensor as usize]
                        .iter()
                        .all(|&next| {
                            self.skeleton.writes.get(next as usize).iter().all(|&t| {
                                self.skeleton.size[t as usize] <= TINY
                                    && self.dependences.readers[t as usize].is_empty()
                            })
                        })
            });
        let from_node = self
            .distinct_reads(reader)
            .into_iter()
            .filter(|&tensor| self.dependences.producer[tensor as usize] == Some(node));
        leaves_nothing && self.missing[reader as usize] as usize <= from_node.count()
    }
}

#[cfg(test)]
mod tests;
