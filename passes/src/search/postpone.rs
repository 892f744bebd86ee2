//! Putting off what runs at the peak: a large weight gradient, its transposition and its
//! accumulation can wait until the activations are gone, at the price of what they read.
//!
//! The node at the peak, with what only feeds it and what already waits for it, forms a *block*.
//! Blocks are moved to later places, by exact simulation, as long as the peak falls.

use std::collections::HashSet;

use crate::runtime::liveness;
use crate::runtime::order::Edges;
use crate::runtime::skeleton::{Lists, Skeleton};

/// Bytes: a result this small may be computed wherever that is.
pub(super) const TINY: u64 = 4096;

/// How many visits of nodes the simulations may take: about a second.
const WORK: usize = 20_000_000;

/// How many later places are tried for one block.
const PLACES: usize = 12;

/// How far upstream of the node at the peak a block may reach.
const UPSTREAM: usize = 4;

/// An order whose peak is at most that of `order`.
pub(crate) fn postpone(skeleton: &Skeleton, mut order: Vec<u32>) -> Vec<u32> {
    let links = Links::of(skeleton);
    let mut profile = liveness::profile_of(skeleton, &order);
    let mut work = 0;
    loop {
        let Some((step, &peak)) = profile
            .iter()
            .enumerate()
            .max_by_key(|&(i, &need)| (need, std::cmp::Reverse(i)))
        else {
            return order;
        };
        let mut best: Option<(u64, Vec<u32>, Vec<u64>)> = None;
        for block in links.blocks(order[step], UPSTREAM) {
            for moved in later_places(&links, &order, &profile, &block) {
                work += order.len();
                if work > WORK {
                    return order;
                }
                let profile = liveness::profile_of(skeleton, &moved);
                let reached = profile.iter().copied().max().unwrap_or(0);
                let least = best.as_ref().map_or(peak, |(least, ..)| *least);
                if reached < least {
                    best = Some((reached, moved, profile));
                }
            }
        }
        let Some((_, moved, new)) = best else {
            return order;
        };
        (order, profile) = (moved, new);
    }
}

/// Which nodes read what which others write.
pub(super) struct Links {
    edges: Edges,
    consumers: Lists<u32>,
}

impl Links {
    pub(super) fn of(skeleton: &Skeleton) -> Links {
        let edges = Edges::of(skeleton);
        Links {
            consumers: edges.consumers(),
            edges,
        }
    }

    /// Whose results the node reads.
    fn producers(&self, node: u32) -> &[u32] {
        self.edges.producers.get(node as usize)
    }

    /// Who reads the node's results.
    fn consumers(&self, node: u32) -> &[u32] {
        self.consumers.get(node as usize)
    }

    /// Does no other node read what this one writes?
    pub(super) fn is_unread(&self, node: u32) -> bool {
        self.consumers(node).is_empty()
    }

    /// The node alone, then, up to so many times, with ever more of what only feeds the block.
    pub(super) fn blocks(&self, node: u32, upstream: usize) -> Vec<Vec<u32>> {
        let mut blocks = vec![vec![node]];
        let mut inside = HashSet::from([node]);
        let mut newest = vec![node];
        while blocks.len() <= upstream {
            let producers = newest.iter().flat_map(|&n| self.producers(n));
            let mut next: Vec<u32> = producers.copied().collect();
            next.sort_unstable();
            next.dedup();
            next.retain(|&n| {
                let mut consumers = self.consumers(n).iter();
                !inside.contains(&n) && consumers.all(|consumer| inside.contains(consumer))
            });
            if next.is_empty() {
                break;
            }
            inside.extend(&next);
            blocks.push([&blocks[blocks.len() - 1][..], &next].concat());
            newest = next;
        }
        blocks
    }
}

/// The order with the block moved to each of some later places, with everything that depends on
/// it and stood before that place.
fn later_places(links: &Links, order: &[u32], profile: &[u64], block: &[u32]) -> Vec<Vec<u32>> {
    let mut position = vec![0usize; order.len()];
    for (i, &node) in order.iter().enumerate() {
        position[node as usize] = i;
    }
    let Some(last) = block.iter().map(|&node| position[node as usize]).max() else {
        return Vec::new();
    };
    // The places with the least need, one in each of some stretches of what follows, and the end.
    let stretch = (order.len() - last).div_ceil(PLACES).max(1);
    let mut places: Vec<usize> = (last + 1..order.len())
        .step_by(stretch)
        .filter_map(|from| {
            (from..(from + stretch).min(order.len())).min_by_key(|&step| (profile[step], step))
        })
        .collect();
    places.push(order.len() - 1);
    places.dedup();
    let move_behind = |&place: &usize| {
        let mut moves = vec![false; order.len()];
        for &node in block {
            moves[node as usize] = true;
        }
        let mut waiting = Vec::new();
        let mut new = Vec::with_capacity(order.len());
        for (i, &node) in order.iter().enumerate() {
            let depends = links.producers(node).iter().any(|&p| moves[p as usize]);
            if i <= place && (moves[node as usize] || depends) {
                moves[node as usize] = true;
                waiting.push(node);
            } else {
                new.push(node);
            }
            if i == place {
                new.append(&mut waiting);
            }
        }
        new
    };
    places.iter().map(move_behind).collect()
}

#[cfg(test)]
mod tests;
