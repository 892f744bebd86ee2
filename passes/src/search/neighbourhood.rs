//! Large neighbourhood search (Shaw 1998): take some copies out, repair greedily with noise,
//! prune, keep what is better.

use super::greedy::{Noise, Reached, greedy};
use super::moves::merge;
use super::problem::SiteId;
use super::prune::prune;
use super::state::{Copy, Decisions, State};
use super::tuning::SEARCH;
use crate::random::Random;

/// Improves a schedule that fits, scores being multiplied by up to 1 + `most_noise`, until its work passes `limit`.
pub(crate) fn improve(state: &mut State<'_>, seed: u64, most_noise: f64, limit: u64) {
    let mut random = Random::new(seed);
    let mut best = (state.cost(), state.decisions());
    let mut current = best.clone();
    let start = state.evaluations();
    let mut round = 0u64;
    while !state.is_spent(limit) && best.0 > 0 {
        let removed = destroy(state, &current.1.copies, &mut random);
        if removed == 0 {
            break;
        }
        let mut noise = Some(Noise {
            random: Random::new(random.next()),
            amount: most_noise * random.unit(),
        });
        let reached = greedy(state, &mut noise, limit);
        if reached == Reached::Budget {
            prune(state, u64::MAX);
        }
        // Small worsenings are accepted early, none at the end.
        let used = (state.evaluations() - start) as f64 / (limit - start).max(1) as f64;
        let slack = 1.0 + SEARCH.slack * (1.0 - used).max(0.0);
        if reached == Reached::Budget
            && (state.cost() as f64) < (best.0 as f64 * slack).max(current.0 as f64)
        {
            current = (state.cost(), state.decisions());
            if current.0 < best.0 {
                best = current.clone();
            }
        } else {
            restore(state, &current.1);
        }
        round += 1;
        if round.is_multiple_of(SEARCH.rounds_to_return) && current.0 > best.0 {
            current = best.clone();
            restore(state, &current.1);
        }
    }
    restore(state, &best.1);
}

/// Takes out a window of steps or a handful of random copies, with what only they needed.
fn destroy(state: &mut State<'_>, copies: &[Copy], random: &mut Random) -> usize {
    if copies.is_empty() {
        return reset(state, random);
    }
    let mut removed = 0;
    let chosen: Vec<Copy> = if random.unit() < 0.5 {
        let centre = copies[random.below(copies.len())];
        let by_node = random.unit() < 0.5;
        let key = |copy: &Copy| if by_node { copy.node } else { copy.before };
        let mut near: Vec<Copy> = copies.to_vec();
        near.sort_by_key(|copy| (key(copy).abs_diff(key(&centre)), *copy));
        near.truncate(1 + random.below(SEARCH.largest_hole));
        near
    } else {
        let count = 1 + random.below(SEARCH.scattered.min(copies.len()));
        (0..count)
            .map(|_| copies[random.below(copies.len())])
            .collect()
    };
    for copy in chosen {
        if state.has(copy) {
            merge(state, copy);
            removed += 1;
        }
    }
    removed + reset(state, random)
}

/// Gives some of the sites that have another form the node as it is back.
fn reset(state: &mut State<'_>, random: &mut Random) -> usize {
    let sites = 0..state.problem.sites.len() as SiteId;
    let replaced: Vec<SiteId> = sites.filter(|&site| state.form(site) != 0).collect();
    if replaced.is_empty() || random.unit() < 0.5 {
        return 0;
    }
    let count = 1 + random.below(SEARCH.scattered.min(replaced.len()));
    let from = random.below(replaced.len());
    let near = replaced.iter().cycle().skip(from).take(count);
    near.for_each(|&site| {
        state.switch(site, 0);
    });
    count
}

/// Makes the schedule have exactly these copies and forms.
pub(crate) fn restore(state: &mut State<'_>, wanted: &Decisions) {
    for site in 0..state.problem.sites.len() as SiteId {
        let form = wanted.forms.get(site as usize).copied().unwrap_or(0);
        if state.form(site) != form {
            state.switch(site, form);
        }
    }
    let now = state.all_copies();
    let copies = &wanted.copies;
    let mut toggles: Vec<Copy> = now
        .iter()
        .copied()
        .filter(|copy| copies.binary_search(copy).is_err())
        .collect();
    toggles.extend(
        copies
            .iter()
            .copied()
            .filter(|copy| now.binary_search(copy).is_err()),
    );
    if !toggles.is_empty() {
        state.apply(&toggles);
    }
}
