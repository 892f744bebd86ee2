//! Moves: what is toggled together to drop a value, or to do without a copy.

use super::problem::Step;
use super::profile::Exponent;
use super::state::{Copy, State, Undo};
use super::tuning::SEARCH;

/// How inputs that have died by then are supplied to a new copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Supply {
    /// They live longer.
    Extend,
    /// They are computed again too, and so on.
    Recompute,
    /// Whichever is cheaper, at this price in nanoseconds per unit of Φ.
    Cheaper(f64),
}

/// Sums over the groups before every step, of one state.
pub(crate) struct Excess {
    /// How many of them are above the budget.
    groups: Vec<u32>,
    /// Their Φ.
    phi: Vec<f64>,
}

impl Excess {
    pub(crate) fn of(state: &State<'_>) -> Excess {
        let steps = state.problem.steps.len();
        let mut excess = Excess {
            groups: Vec::with_capacity(steps + 1),
            phi: Vec::with_capacity(steps + 1),
        };
        let (mut groups, mut phi) = (0, 0.0);
        for group in 0..steps as Step {
            excess.groups.push(groups);
            excess.phi.push(phi);
            let weight = state.weight(state.memory(group));
            groups += u32::from(weight > 0.0);
            phi += weight;
        }
        excess.groups.push(groups);
        excess.phi.push(phi);
        excess
    }

    /// How many groups are above the budget in which a value lives on for its use before `until`
    /// alone. Behind a use by a copy this begins in the same group, where the original still runs.
    pub(crate) fn behind(&self, use_: Use, until: Step) -> u32 {
        let first = use_.first_behind();
        self.groups[until as usize] - self.groups[first.min(until) as usize]
    }

    /// How many groups strictly between `after` and `until` are above the budget.
    pub(crate) fn between(&self, after: Step, until: Step) -> u32 {
        if after.saturating_add(1) >= until {
            return 0;
        }
        self.groups[until as usize] - self.groups[after as usize + 1]
    }

    /// The most that Φ can fall when `size` bytes leave those groups.
    pub(crate) fn largest_gain(
        &self,
        state: &State<'_>,
        size: f64,
        after: Use,
        until: Step,
    ) -> f64 {
        let first = after.first_behind().min(until);
        let all = self.phi[until as usize] - self.phi[first as usize];
        let size = size / state.budget().max(1.0);
        let each = match state.exponent() {
            // √x - √(x - m) ≤ √m
            Exponent::Half => size.sqrt(),
            Exponent::One => size,
            Exponent::Two => return all,
        };
        all.min(each * f64::from(self.behind(after, until)))
    }
}

/// A use of a value. Of those in one group the original is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Use {
    /// In which group.
    pub group: Step,
    /// By the group's original, not by a copy?
    pub by_original: bool,
}

impl Use {
    /// The first group in which a value that lives on takes room that it did not take before.
    fn first_behind(self) -> Step {
        self.group + Step::from(self.by_original)
    }

    /// All of them in order, the last one of each group.
    pub(crate) fn sorted(mut uses: Vec<Use>) -> Vec<Use> {
        uses.sort_unstable_by(|a, b| b.cmp(a));
        uses.dedup_by_key(|use_| use_.group);
        uses.reverse();
        uses
    }

    /// By an original.
    pub(crate) fn original(group: Step) -> Use {
        Use {
            group,
            by_original: true,
        }
    }

    /// By a copy.
    pub(crate) fn copy(group: Step) -> Use {
        Use {
            group,
            by_original: false,
        }
    }
}

/// What has to be toggled so that `copy` is computed: itself first, then the copies that supply
/// it. `None` if that takes more than `most` nanoseconds.
pub(crate) fn evict(
    state: &State<'_>,
    excess: &Excess,
    copy: Copy,
    supply: Supply,
    most: f64,
) -> Option<Vec<Copy>> {
    let problem = state.problem;
    let mut toggles = vec![copy];
    let mut next = 0;
    let mut cost = 0.0;
    while next < toggles.len() && toggles.len() < SEARCH.largest_closure {
        let reader = toggles[next];
        next += 1;
        cost += problem.steps[reader.node as usize].copy_time as f64;
        if cost > most {
            return None;
        }
        let reads = &problem.steps[reader.node as usize].copy_reads;
        state.count(reads.len());
        for &value in reads {
            let info = &problem.values[value as usize];
            let source = Copy {
                node: info.producer,
                before: reader.before,
            };
            let supplied = info.recomputed && state.is_active(info.producer);
            if !supplied || source.node >= source.before || info.producer == reader.node {
                continue;
            }
            let at = (reader.before, reader.node);
            let end = state.lives_until(value, at);
            if end > at || state.has(source) || toggles.contains(&source) {
                continue;
            }
            let recompute = match supply {
                Supply::Extend => false,
                Supply::Recompute => info.size > state.budget() * SEARCH.negligible,
                Supply::Cheaper(price) => {
                    let groups = excess.between(end.0, reader.before) + 1;
                    let extension = info.size / state.budget().max(1.0) * f64::from(groups) * price;
                    (problem.steps[info.producer as usize].copy_time as f64) < extension
                }
            };
            if recompute {
                toggles.push(source);
            }
        }
    }
    Some(toggles)
}

/// The copy, and beside it copies of what else is computed from a value that it keeps alive: once that is kept,
/// all of these may go in the meantime. `None` if there is nothing else.
pub(crate) fn with_siblings(state: &State<'_>, excess: &Excess, copy: Copy) -> Option<Vec<Copy>> {
    let problem = state.problem;
    let mut toggles = vec![copy];
    let at = (copy.before, copy.node);
    for &read in &problem.steps[copy.node as usize].copy_reads {
        let end = state.lives_until(read, at);
        if end > at || excess.between(end.0, copy.before) == 0 {
            continue;
        }
        let readers = &problem.values[read as usize].copy_readers;
        state.count(readers.len());
        for &node in readers {
            let sibling = Copy { node, ..copy };
            let known = toggles.iter().any(|toggle| toggle.node == node);
            if known || node >= copy.before || state.has(sibling) || !state.is_active(node) {
                continue;
            }
            let at = (copy.before, node);
            let info = &problem.steps[node as usize];
            let mut written = info.writes.iter();
            let lives_on = written.any(|&value| {
                problem.values[value as usize].recomputed && state.lives_until(value, at) > at
            });
            if lives_on && info.recomputable {
                toggles.push(sibling);
            }
        }
    }
    (toggles.len() > 1).then_some(toggles)
}

/// The same node, computed again while what it reads is still there, and kept from then on. `None` if that is there
/// until `copy`.
pub(crate) fn earlier(state: &State<'_>, copy: Copy) -> Option<Copy> {
    let problem = state.problem;
    let at = (copy.before, copy.node);
    let reads = problem.steps[copy.node as usize].copy_reads.iter();
    let ends = reads
        .filter(|&&value| problem.values[value as usize].size > state.budget() * SEARCH.negligible)
        .map(|&value| state.lives_until(value, at).0);
    let before = ends
        .min()
        .filter(|&end| copy.node < end && end < copy.before)?;
    let earlier = Copy { before, ..copy };
    (!state.has(earlier)).then_some(earlier)
}

/// The same copies, each kept for the next one of its node instead of computing that again,
/// wherever this is cheaper at `price` nanoseconds per unit of Φ. `None` if nowhere.
pub(crate) fn hoist(
    state: &State<'_>,
    excess: &Excess,
    toggles: &[Copy],
    price: f64,
) -> Option<Vec<Copy>> {
    let problem = state.problem;
    let mut hoisted = toggles.to_vec();
    for copy in toggles {
        let copies = state.copies_of(copy.node);
        let Some(&next) = copies.get(copies.partition_point(|&t| t <= copy.before)) else {
            continue;
        };
        let info = &problem.steps[copy.node as usize];
        let size: f64 = info
            .writes
            .iter()
            .map(|&value| problem.values[value as usize].size)
            .sum();
        let groups = f64::from(excess.between(copy.before, next));
        let extension = size / state.budget().max(1.0) * groups * price;
        if extension < info.copy_time as f64 {
            hoisted.push(Copy {
                node: copy.node,
                before: next,
            });
        }
    }
    (hoisted.len() > toggles.len()).then_some(hoisted)
}

/// Does without `copy`: no longer computes it, nor any copy that nobody reads any more then.
/// The undos take it back, the last first.
pub(crate) fn merge(state: &mut State<'_>, copy: Copy) -> Vec<Undo> {
    // Whether a supplier is still read shows only once its reader is gone.
    let mut undone = vec![state.apply(&[copy])];
    let mut toggles = vec![copy];
    let mut next = 0;
    while next < toggles.len() {
        let gone = toggles[next];
        next += 1;
        for &value in &state.problem.steps[gone.node as usize].copy_reads {
            let producer = state.problem.values[value as usize].producer;
            let copies = state.copies_of(producer);
            let before = copies.partition_point(|&t| t <= gone.before);
            if before == 0 {
                continue;
            }
            let supplier = Copy {
                node: producer,
                before: copies[before - 1],
            };
            if !state.is_used(supplier) {
                undone.push(state.apply(&[supplier]));
                toggles.push(supplier);
            }
        }
    }
    undone
}

/// Takes back what [`merge`] did.
pub(crate) fn undo_all(state: &mut State<'_>, undone: Vec<Undo>) {
    for undo in undone.into_iter().rev() {
        state.undo(undo);
    }
}

/// A quick look at whether doing without `copy` can stay within the budget: its results would
/// live on from their last use, while at best everything that the copy reads goes away.
pub(crate) fn may_merge(state: &State<'_>, copy: Copy) -> bool {
    let problem = state.problem;
    let info = &problem.steps[copy.node as usize];
    let released: f64 = info
        .copy_reads
        .iter()
        .map(|&value| problem.values[value as usize].size)
        .sum();
    info.writes.iter().all(|&value| {
        let value_info = &problem.values[value as usize];
        if !value_info.recomputed {
            return true;
        }
        let last = state.lives_until(value, (copy.before, copy.node));
        let room = state.budget() - value_info.size + released;
        state.largest_between(last.0, copy.before) <= room
    })
}

#[cfg(test)]
mod tests;
