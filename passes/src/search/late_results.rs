//! Computing results late: a weight's gradient, with its transposition and its accumulation, can wait for the end of the step,
//! at the price of what it reads.
//!
//! At the end the activations are gone, or there again for a moment, as copies. So this order need not have the smaller peak by
//! itself: it leaves less where everything else is computed again, which is what small budgets ask for.

use std::cmp::Reverse;
use std::collections::HashSet;

use crate::runtime::skeleton::Skeleton;

use super::postpone::{Links, TINY};
use super::tuning::SEARCH;

/// How far upstream of a result the nodes may reach that only feed it: a convolution's gradient in standard operators is a sum of
/// products, one for each place of the kernel.
const UPSTREAM: usize = 16;

/// Only one in so many bytes counts as kept: of what a weight's gradient reads, a value and a gradient, one can be computed again.
const KEPT_ONE_IN: u64 = 2;

/// The order with those of the graph's outputs at its end that nobody reads and that are larger than what is kept for them, and with them
/// what only feeds them. `None` where that is less than it would have to be to look at another order, of a `peak` in bytes.
/// O(results · (nodes + edges)) at most.
pub(super) fn late_results(skeleton: &Skeleton, order: &[u32], peak: u64) -> Option<Vec<u32>> {
    let links = Links::of(skeleton);
    let results = order.iter().map(|&node| (result(skeleton, node), node));
    let large = |&(size, node): &(u64, u32)| size > TINY && links.is_unread(node);
    let mut results: Vec<(u64, u32)> = results.filter(large).collect();
    results.sort_by_key(|&(size, _)| Reverse(size));
    let mut late = vec![false; skeleton.len()];
    let mut kept = HashSet::new();
    let mut freed: u64 = 0;
    for (size, node) in results {
        let Some(block) = links.blocks(node, UPSTREAM).pop() else {
            continue;
        };
        let mut reads = reads_of(skeleton, &block);
        reads.retain(|tensor| !kept.contains(tensor));
        let sizes = reads.iter().map(|&tensor| skeleton.size[tensor as usize]);
        let bytes = sizes.fold(0, u64::saturating_add);
        if bytes / KEPT_ONE_IN < size {
            freed = freed.saturating_add(size.saturating_sub(bytes));
            kept.extend(reads);
            block.iter().for_each(|&node| late[node as usize] = true);
        }
    }
    let matters = 100_u128.saturating_sub(SEARCH.another_order);
    if u128::from(freed).saturating_mul(100) < u128::from(peak).saturating_mul(matters) {
        return None;
    }
    let (end, start): (Vec<u32>, Vec<u32>) = order.iter().partition(|&&node| late[node as usize]);
    (!order.ends_with(&end)).then(|| [start, end].concat())
}

/// Bytes of the graph's outputs that the node writes into memory of their own.
fn result(skeleton: &Skeleton, node: u32) -> u64 {
    let lies_elsewhere = |tensor: u32| {
        let mut shares = skeleton.shares.get(node as usize).iter();
        shares.any(|share| share.always && share.written == tensor)
    };
    let written = skeleton.writes.get(node as usize).iter().copied();
    let results = written.filter(|&t| skeleton.output[t as usize] && !lies_elsewhere(t));
    results.fold(0, |sum, t| sum.saturating_add(skeleton.size[t as usize]))
}

/// The values that the block reads and does not write, each once, without those that are there until the end anyway.
fn reads_of(skeleton: &Skeleton, block: &[u32]) -> Vec<u32> {
    let nodes = || block.iter().map(|&node| node as usize);
    let written: HashSet<u32> = nodes()
        .flat_map(|node| skeleton.writes.get(node).iter().copied())
        .collect();
    let stays = |t: u32| skeleton.owned[t as usize] || skeleton.output[t as usize];
    let mut reads: Vec<u32> = nodes()
        .flat_map(|node| skeleton.reads.get(node).iter().copied())
        .filter(|&tensor| !written.contains(&tensor) && !stays(tensor))
        .collect();
    reads.sort_unstable();
    reads.dedup();
    reads
}

#[cfg(test)]
mod tests;
