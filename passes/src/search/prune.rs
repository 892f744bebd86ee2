//! Pruning: do without every copy and every variant that is not needed, the most expensive first.

use std::cmp::Reverse;

use super::all_forms::FormNumber;
use super::moves::{may_merge, merge, undo_all};
use super::problem::SiteId;
use super::state::{Copy, State};

/// What may be done without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    /// The node need not run again.
    Copy(Copy),
    /// A quicker form will do, or the node as it is.
    Switch(SiteId, FormNumber),
}

/// Removes copies and takes back variants by decreasing time while everything still fits, until its
/// work passes `limit`. Needs a schedule that fits.
pub(crate) fn prune(state: &mut State<'_>, limit: u64) {
    let time = |state: &State<'_>, copy: Copy| state.problem.steps[copy.node as usize].copy_time;
    let copies = state.all_copies().into_iter();
    let copies = copies.map(|copy| (Reverse(time(state, copy)), Item::Copy(copy)));
    let mut items: Vec<(Reverse<u64>, Item)> = copies.collect();
    for (site, info) in state.problem.sites.iter().enumerate() {
        let now = state.form(site as SiteId);
        for (form, &time) in info.times.iter().enumerate() {
            let form = form as FormNumber;
            let saved = info.times[now as usize].checked_sub(time);
            if let Some(saved) = saved.filter(|&saved| form != now && (saved > 0 || form == 0)) {
                items.push((Reverse(saved), Item::Switch(site as SiteId, form)));
            }
        }
    }
    items.sort_unstable();
    for (_, item) in items {
        if state.is_spent(limit) {
            return;
        }
        match item {
            Item::Copy(copy) => {
                if !state.has(copy) || !may_merge(state, copy) {
                    continue;
                }
                let undone = merge(state, copy);
                if !state.fits() {
                    undo_all(state, undone);
                }
            }
            Item::Switch(site, form) => {
                let cost = state.cost();
                let undo = state.switch(site, form);
                if !state.fits() || state.cost() > cost {
                    state.undo(undo);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::analysis::recompute::Recomputation;
    use crate::bytes::Bytes;
    use crate::cost::{Cost, Nanos};
    use crate::operators::Provider;
    use crate::random::Random;
    use crate::search::problem::{Problem, Step};
    use crate::search::profile::Exponent;
    use crate::testing::random_training_graph;

    #[test]
    fn pruning_never_costs_more_and_still_fits() {
        let mut saved = 0;
        for seed in 0..60 {
            let graph = random_training_graph(seed, 10 + seed as usize);
            let cost = |id: u64| Cost {
                time: Nanos(1 + id % 5),
                workspace: Bytes::ZERO,
            };
            let costs: Vec<Cost> = (0..graph.node_count() as u64).map(cost).collect();
            let rules = Recomputation::of(&graph, &BTreeMap::new());
            let problem = Problem::new(&graph, graph.order(), Provider::Cpu, &costs, &rules);
            let mut random = Random::new(seed);
            let steps = problem.steps.len();
            let mut copies: Vec<Copy> = (0..20)
                .map(|_| {
                    let node = random.below(steps - 1);
                    let before = node + 1 + random.below(steps - node - 1);
                    let [node, before] = [node, before].map(|step| step as Step);
                    Copy { node, before }
                })
                .filter(|copy| problem.steps[copy.node as usize].recomputable)
                .collect();
            copies.sort();
            copies.dedup();
            let mut state = State::new(&problem, 0.0, Exponent::One);
            state.apply(&copies);
            state.aim(state.peak(), Exponent::One);
            let before = state.cost();
            prune(&mut state, u64::MAX);
            assert!(state.fits() && state.cost() <= before, "seed {seed}");
            assert!(state.all_copies().iter().all(|copy| copies.contains(copy)));
            saved += u64::from(state.cost() < before);
        }
        // Copies at random mostly are of no use.
        assert!(saved > 40, "{saved}");
    }
}
