//! Starting from plenty: every node below a price per byte is computed again before each later
//! use across an excess, at once. One eviction alone often gains nothing (a concatenation computed
//! again keeps its parts alive); all of them together do. Chen et al. 2016, section 4.2, drop the
//! results of cheap operators; here the price decides what is cheap.

use super::moves::{Excess, Use};
use super::problem::{Problem, Step};
use super::state::{Copy, State, most_copies};
use super::tuning::SEARCH;

/// Nanoseconds per byte that a copy of `node` costs; infinite if there can be none.
fn price(problem: &Problem, node: Step) -> f64 {
    let info = &problem.steps[node as usize];
    let written = info
        .writes
        .iter()
        .map(|&value| &problem.values[value as usize]);
    let size: f64 = written
        .filter(|value| value.recomputed)
        .map(|value| value.size)
        .sum();
    if !info.recomputable || size == 0.0 {
        return f64::INFINITY;
    }
    info.copy_time as f64 / size
}

/// Prices below which a growing part of all bytes lies, ascending.
pub(crate) fn prices(problem: &Problem) -> Vec<f64> {
    let active = |&node: &Step| problem.steps[node as usize].is_active_in(0);
    let mut priced: Vec<(f64, f64)> = (0..problem.steps.len() as Step)
        .filter(active)
        .map(|node| {
            let written = &problem.steps[node as usize].writes;
            let size = written
                .iter()
                .map(|&value| problem.values[value as usize].size)
                .sum();
            (price(problem, node), size)
        })
        .filter(|(price, _)| price.is_finite())
        .collect();
    priced.sort_by(|a, b| a.0.total_cmp(&b.0));
    let total: f64 = priced.iter().map(|&(_, size)| size).sum();
    let mut found: Vec<f64> = Vec::new();
    let mut reached = 0.0;
    let mut parts = SEARCH.plenty.iter().peekable();
    for (price, size) in priced {
        reached += size;
        while parts
            .next_if(|&&part| reached >= part * total * (1.0 - 1e-9))
            .is_some()
        {
            if found.last() != Some(&price) {
                found.push(price);
            }
        }
    }
    found
}

/// Computes every node up to `limit` nanoseconds per byte again before each use behind an excess;
/// nothing if that takes more than [`most_copies`].
pub(crate) fn evict_below(state: &mut State<'_>, limit: f64) {
    let problem = state.problem;
    let excess = Excess::of(state);
    let mut copies: Vec<Vec<Step>> = vec![Vec::new(); problem.steps.len()];
    let mut toggles = Vec::new();
    // Readers stand behind what they read, so their copies are known by then.
    for node in (0..problem.steps.len() as Step).rev() {
        if price(problem, node) > limit || !state.is_active(node) {
            continue;
        }
        let mut uses: Vec<Use> = Vec::new();
        for &value in &problem.steps[node as usize].writes {
            let value = &problem.values[value as usize];
            if value.recomputed {
                let readers = value
                    .readers
                    .iter()
                    .filter(|&&reader| state.is_active(reader));
                uses.extend(readers.map(|&reader| Use::original(reader)));
                for &reader in &value.copy_readers {
                    uses.extend(
                        copies[reader as usize]
                            .iter()
                            .map(|&before| Use::copy(before)),
                    );
                }
            }
        }
        let mut previous = Use::original(node);
        for use_ in Use::sorted(uses) {
            let before = use_.group;
            if before > node && excess.behind(previous, before) > 0 {
                if toggles.len() == most_copies(problem) {
                    return;
                }
                copies[node as usize].push(before);
                let copy = Copy { node, before };
                if !state.has(copy) {
                    toggles.push(copy);
                }
            }
            previous = use_;
        }
    }
    state.apply(&toggles);
}

#[cfg(test)]
mod tests;
