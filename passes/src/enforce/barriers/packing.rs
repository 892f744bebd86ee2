//! Another order of the nodes, in which the memory pattern's block is smaller.
//!
//! The runtime places a tensor when it is computed, into the smallest gap that is large enough, and else behind everything
//! else (`runtime/memory_pattern.rs`). What lies in the middle of a free stretch then may cost as much as the stretch, whatever is live: a
//! search that counts live bytes cannot see it. Here nodes are moved one by one within what they read and who reads them:
//! who writes or is the last to read what is there when the block grows for the last time. A move stays unless more is
//! needed then. Dynamic storage allocation is NP-hard (Garey and Johnson, problem SR2), and the runtime's rule, not ours,
//! decides where a tensor lies, so that trying is what there is to do.

use super::placement::Placement;
use super::runs::Built;
use crate::random::Random;
use crate::runtime::liveness::Needs;
use crate::runtime::order::{ExecutionOrder, Precedence, in_sequence};
use crate::runtime::skeleton::Skeleton;

/// How many visits of nodes it may take: one to two seconds.
const WORK: usize = 16_000_000;

/// And as long as nothing is better than before.
const PATIENCE: usize = 4_000;

/// One part in so many is left to barriers, if that can be.
const FOR_BARRIERS: u64 = 64;

/// A form of the graph without barriers, and where its nodes stand in the file.
pub(super) struct PlannedRun<'b> {
    pub(super) form: &'b Skeleton,
    position: Vec<u32>,
}

impl<'b> PlannedRun<'b> {
    /// The form of that number. Where nodes became one, it stands where the first of them does: its readers run from there on.
    pub(super) fn of(placement: &Placement, built: &'b Built, number: usize) -> PlannedRun<'b> {
        let (form, position) = built.form((number, ExecutionOrder::Default));
        let position = match number {
            0 => position.clone(),
            _ => placement.first_of_merged(position),
        };
        PlannedRun { form, position }
    }

    /// Its nodes in the file's order.
    pub(super) fn sequence(&self) -> Vec<u32> {
        in_sequence(self.form, &self.position)
    }
}

pub(super) struct Packing<'p> {
    placement: &'p Placement,
    run: &'p PlannedRun<'p>,
    precedence: Precedence,
    /// By position in the file: who has to run before, and who behind.
    before: Vec<Vec<u32>>,
    behind: Vec<Vec<u32>>,
}

/// An order of the file's nodes, and what it needs.
struct Packed {
    /// Positions in the file, as they run.
    order: Vec<u32>,
    /// The other way round.
    rank: Vec<u32>,
    sequence: Vec<u32>,
    needs: Needs,
}

impl<'p> Packing<'p> {
    /// `sequences` are pairs of which the first has to run before the second.
    pub(super) fn new(
        placement: &'p Placement,
        run: &'p PlannedRun<'p>,
        sequences: &[(u32, u32)],
    ) -> Packing<'p> {
        let nodes = placement.len();
        let (mut before, mut behind) = (vec![Vec::new(); nodes], vec![Vec::new(); nodes]);
        let edges =
            (0..nodes as u32).flat_map(|node| placement.producers(node).map(move |p| (p, node)));
        for (first, second) in edges.chain(sequences.iter().copied()) {
            before[second as usize].push(first);
            behind[first as usize].push(second);
        }
        Packing {
            placement,
            run,
            precedence: Precedence::of(run.form),
            before,
            behind,
        }
    }

    /// An order that needs at most `most`, and rather less, so that barriers have room.
    pub(super) fn within(&self, most: u64, need: &dyn Fn(&[u32]) -> Needs) -> Option<Vec<u32>> {
        let order: Vec<u32> = (0..self.placement.len() as u32).collect();
        let mut best = self.packed(order, need);
        let mut random = Random::new(0);
        let (mut left, mut patience) = (WORK, PATIENCE);
        let rather = most - most / FOR_BARRIERS;
        while best.needs.most() > rather && patience > 0 {
            patience -= 1;
            let Some(order) = self.moved(&best, &mut random) else {
                continue;
            };
            let Some(rest) = left.checked_sub(self.run.form.len()) else {
                break;
            };
            left = rest;
            let tried = self.packed(order, need);
            let (now, before) = (tried.needs.most(), best.needs.most());
            if now < before {
                patience = PATIENCE;
            }
            if now <= before {
                best = tried;
            }
        }
        (best.needs.most() <= most).then_some(best.order)
    }

    fn packed(&self, order: Vec<u32>, need: &dyn Fn(&[u32]) -> Needs) -> Packed {
        let mut rank = vec![0; order.len()];
        for (place, &node) in (0..).zip(&order) {
            rank[node as usize] = place;
        }
        let ranks = self.run.position.iter().map(|&place| rank[place as usize]);
        let sequence = self.precedence.in_sequence(&ranks.collect::<Vec<_>>());
        Packed {
            needs: need(&sequence),
            order,
            rank,
            sequence,
        }
    }

    /// The order with one node elsewhere that has to do with how large the block is.
    fn moved(&self, packed: &Packed, random: &mut Random) -> Option<Vec<u32>> {
        let ends = &packed.needs.inside;
        let end = ends.iter().copied().max()?;
        let grows = ends.iter().position(|&at| at == end)?;
        let there = packed.needs.placed.iter();
        let there: Vec<_> = there
            .filter(|buffer| (buffer.first..=buffer.last).contains(&grows))
            .collect();
        let buffer = *there.get(random.below(there.len().max(1)))?;
        let node_at = |step: usize| self.run.position[packed.sequence[step] as usize];
        // Who writes it later, or who reads it last earlier, or who writes it earlier.
        match random.below(3) {
            0 => self.later(packed, node_at(buffer.first), random),
            1 => self.earlier(packed, node_at(buffer.last), random),
            _ => self.earlier(packed, node_at(buffer.first), random),
        }
    }

    /// The order with a node later: where the first of its readers allows it at most. Those that only read shapes stay behind it.
    fn later(&self, packed: &Packed, node: u32, random: &mut Random) -> Option<Vec<u32>> {
        let rank = |node: u32| packed.rank[node as usize] as usize;
        let at = rank(node);
        let readers = || self.behind[node as usize].iter().copied();
        let only_shape = |node: &u32| self.placement.reads_only_shape(*node);
        let behind_shapes = readers()
            .filter(only_shape)
            .flat_map(|shape| self.behind[shape as usize].iter().copied());
        let limit = readers()
            .filter(|node| !only_shape(node))
            .chain(behind_shapes);
        let limit = limit.map(rank).min().unwrap_or(packed.order.len());
        let room = limit.checked_sub(at + 2)?;
        let to = at + 1 + self.far(room + 1, random);
        let mut together: Vec<u32> = readers()
            .filter(only_shape)
            .filter(|&n| rank(n) <= to)
            .collect();
        together.sort_unstable_by_key(|&node| rank(node));
        together.dedup();
        together.insert(0, node);
        let mut order = Vec::with_capacity(packed.order.len());
        for (place, &other) in packed.order.iter().enumerate() {
            if !together.contains(&other) {
                order.push(other);
            }
            if place == to {
                order.extend(&together);
            }
        }
        Some(order)
    }

    /// The order with a node earlier: where the last that it reads allows it at most.
    fn earlier(&self, packed: &Packed, node: u32, random: &mut Random) -> Option<Vec<u32>> {
        let at = packed.rank[node as usize] as usize;
        let read = self.before[node as usize].iter();
        let first = read
            .map(|&n| packed.rank[n as usize] as usize + 1)
            .max()
            .unwrap_or(0);
        let room = at.checked_sub(first + 1)?;
        let to = at - 1 - self.far(room + 1, random);
        let mut order = packed.order.clone();
        order[to..=at].rotate_right(1);
        Some(order)
    }

    /// How far of so many steps: each order of magnitude as often as the others.
    fn far(&self, steps: usize, random: &mut Random) -> usize {
        let within = (steps as f64).powf(random.unit());
        (within as usize).min(steps) - 1
    }
}
