//! Moves: what is toggled together to drop a value, or to do without a copy.

use super::problem::Step;
use super::state::{Copy, Exponent, State, Undo};

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

/// No closure grows past this: what is still missing then lives longer.
const LARGEST_CLOSURE: usize = 200;

/// Below this part of the budget a value is not worth computing again.
const NEGLIGIBLE: f64 = 1e-4;

/// For every step, how many earlier groups are above the budget.
pub(crate) struct Excess {
    before: Vec<u32>,
    /// By how much the worst group exceeds the budget.
    worst: f64,
}

impl Excess {
    pub(crate) fn of(state: &State<'_>) -> Excess {
        let steps = state.problem.steps.len();
        let mut before = Vec::with_capacity(steps + 1);
        let mut count = 0;
        let mut worst: f64 = 0.0;
        for group in 0..steps {
            let excess = state.memory(group as Step) - state.budget();
            before.push(count);
            count += u32::from(excess > 0.0);
            worst = worst.max(excess);
        }
        before.push(count);
        Excess { before, worst }
    }

    /// The most that Φ can fall when `size` bytes leave `groups` groups.
    pub(crate) fn largest_gain(&self, state: &State<'_>, size: f64, groups: u32) -> f64 {
        let scale = 1.0 / state.budget().max(1.0);
        let size = size.min(self.worst) * scale;
        f64::from(groups)
            * match state.exponent() {
                // √x - √(x - m) ≤ √m
                Exponent::Half => size.sqrt(),
                Exponent::One => size,
                // x² - (x - m)² ≤ 2xm
                Exponent::Two => 2.0 * self.worst * scale * size,
            }
    }

    /// How many groups strictly between `after` and `until` are above the budget.
    pub(crate) fn between(&self, after: Step, until: Step) -> u32 {
        if after + 1 >= until {
            return 0;
        }
        self.before[until as usize] - self.before[after as usize + 1]
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
    while next < toggles.len() && toggles.len() < LARGEST_CLOSURE {
        let reader = toggles[next];
        next += 1;
        cost += problem.steps[reader.node as usize].copy_time as f64;
        if cost > most {
            return None;
        }
        for &value in &problem.steps[reader.node as usize].copy_reads {
            let info = &problem.values[value as usize];
            let source = Copy {
                node: info.producer,
                before: reader.before,
            };
            if !info.recomputed || source.node >= source.before || info.producer == reader.node {
                continue;
            }
            let at = (reader.before, reader.node);
            let end = state.lives_until(value, at);
            if end > at || state.has(source) || toggles.contains(&source) {
                continue;
            }
            let recompute = match supply {
                Supply::Extend => false,
                Supply::Recompute => info.size > state.budget() * NEGLIGIBLE,
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
