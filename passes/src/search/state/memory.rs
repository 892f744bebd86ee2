//! What the lives of values take in each group, and what that makes of the profile.

use super::{Lifetime, State, Undo};
use crate::search::problem::{Step, ValueId};

/// Adding to that many groups takes as long as working out one life.
const GROUPS_PER_EVALUATION: usize = 8192;

/// The part of a value's life inside one group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Local {
    from: Step,
    to: Step,
    size: f64,
}

impl State<'_> {
    pub(super) fn begin(&mut self, value: ValueId, lifetime: Lifetime) {
        let size = self.problem.values[value as usize].size;
        add_local(&mut self.locals, lifetime, size);
        self.shift(lifetime, size);
    }

    pub(super) fn end(&mut self, value: ValueId, lifetime: Lifetime) {
        let size = self.problem.values[value as usize].size;
        remove_local(&mut self.locals, lifetime, size);
        self.shift(lifetime, -size);
    }

    pub(super) fn next_stamp(&mut self) {
        let scratch = &mut self.scratch;
        scratch.groups.clear();
        scratch.shifts.clear();
        if scratch.stamp == u32::MAX {
            scratch.group_seen.fill(0);
            scratch.stamp = 0;
        }
        scratch.stamp += 1;
    }

    pub(super) fn touch_group(&mut self, group: Step) {
        let scratch = &mut self.scratch;
        let seen = &mut scratch.group_seen[group as usize];
        if std::mem::replace(seen, scratch.stamp) != scratch.stamp {
            scratch.groups.push(group);
        }
    }

    /// Brings the profile up to date with the lives that have changed.
    pub(super) fn refresh(&mut self, undo: &mut Undo) {
        let mut shifts = std::mem::take(&mut self.scratch.shifts);
        merge_shifts(&mut shifts);
        let groups = std::mem::take(&mut self.scratch.groups);
        for &group in &groups {
            let peak = self.peak_inside(group);
            let old = std::mem::replace(&mut self.local_peak[group as usize], peak);
            if peak != old {
                undo.peaks.push((group, old));
                self.profile.add_to(group, peak - old);
            }
        }
        self.scratch.groups = groups;
        self.add_shifts(&shifts, 1.0);
        self.profile.settle();
        let moved = shifts.last().map_or(0, |last| last.0 - shifts[0].0);
        self.count(moved as usize / GROUPS_PER_EVALUATION);
        undo.shifts.clone_from(&shifts);
        self.scratch.shifts = shifts;
    }

    /// From each step on, so many times what comes there more.
    pub(super) fn add_shifts(&mut self, shifts: &[(Step, f64)], times: f64) {
        let mut level = 0.0;
        for pair in shifts.windows(2) {
            level += pair[0].1;
            if level != 0.0 {
                let groups = pair[0].0 as usize..pair[1].0 as usize;
                self.profile.add(groups, times * level);
            }
        }
    }

    fn shift(&mut self, lifetime: Lifetime, size: f64) {
        self.touch_group(lifetime.start.0);
        if (lifetime.end.0 as usize) < self.groups.len() {
            self.touch_group(lifetime.end.0);
        }
        let last = lifetime.end.0.min(self.groups.len() as Step);
        if lifetime.start.0 + 1 < last {
            let shifts = &mut self.scratch.shifts;
            shifts.push((lifetime.start.0 + 1, size));
            shifts.push((last, -size));
        }
    }

    /// What a group that needs this much adds to Φ.
    pub(crate) fn weight(&self, memory: f64) -> f64 {
        self.profile.weight(memory)
    }

    /// The worst position of a group, counting only lives that begin or end in it.
    fn peak_inside(&mut self, group: Step) -> f64 {
        let inside = &self.groups[group as usize];
        let locals = &self.locals[group as usize];
        // A part of a life is added up faster than a lifetime is worked out.
        self.count((inside.len() + locals.len()) / 8);
        let workspace = self.workspace(group);
        if inside.is_empty() {
            let live: f64 = locals
                .iter()
                .filter(|l| l.from <= group && group < l.to)
                .map(|l| l.size)
                .sum();
            return live + workspace;
        }
        let sums = &mut self.scratch.sums;
        sums.clear();
        sums.resize(inside.len() + 2, 0.0);
        for (rank, &copy) in inside.iter().enumerate() {
            self.scratch.ranks[copy as usize] = rank as u32;
        }
        let ranks = &self.scratch.ranks;
        // What other groups left in the table is not what is inside.
        let rank_of = |step: Step| {
            let rank = *ranks.get(step as usize)? as usize;
            (inside.get(rank) == Some(&step)).then_some(rank)
        };
        // The group's positions: its copies, then the original.
        let rank = |step: Step| {
            if step > group {
                inside.len() + 1
            } else if step <= inside[0] {
                0
            } else {
                let behind = || rank_of(step - 1).map(|rank| rank + 1);
                let rank = rank_of(step).or_else(behind);
                rank.unwrap_or_else(|| inside.partition_point(|&n| n < step))
            }
        };
        for local in locals {
            let (from, to) = (rank(local.from), rank(local.to));
            if from < to {
                sums[from] += local.size;
                sums[to] -= local.size;
            }
        }
        let (mut live, mut peak): (f64, f64) = (0.0, 0.0);
        for (i, change) in sums.iter().take(inside.len() + 1).enumerate() {
            live += change;
            let workspace = match inside.get(i) {
                Some(&copy) => self.problem.steps[copy as usize].workspace_again,
                None => workspace,
            };
            peak = peak.max(live + workspace);
        }
        peak
    }

    /// What the original at that step takes besides what it reads and writes.
    fn workspace(&self, step: Step) -> f64 {
        match self.active[step as usize] {
            true => self.problem.steps[step as usize].workspace,
            false => 0.0,
        }
    }
}

/// Sorts by step and adds up what falls on one step.
fn merge_shifts(shifts: &mut Vec<(Step, f64)>) {
    shifts.sort_unstable_by_key(|&(step, _)| step);
    shifts.dedup_by(|later, first| {
        let same = later.0 == first.0;
        if same {
            first.1 += later.1;
        }
        same
    });
}

/// The parts of a lifetime in its first and last group.
fn parts(lifetime: Lifetime, size: f64, groups: usize) -> [Option<(Step, Local)>; 2] {
    let Lifetime { start, end } = lifetime;
    let local = |from, to| Local { from, to, size };
    if start.0 == end.0 {
        return [Some((start.0, local(start.1, end.1))), None];
    }
    let tail = ((end.0 as usize) < groups).then(|| (end.0, local(0, end.1)));
    [Some((start.0, local(start.1, Step::MAX))), tail]
}

pub(super) fn add_local(locals: &mut [Vec<Local>], lifetime: Lifetime, size: f64) {
    for (group, local) in parts(lifetime, size, locals.len()).into_iter().flatten() {
        locals[group as usize].push(local);
    }
}

pub(super) fn remove_local(locals: &mut [Vec<Local>], lifetime: Lifetime, size: f64) {
    for (group, local) in parts(lifetime, size, locals.len()).into_iter().flatten() {
        let list = &mut locals[group as usize];
        // What is undone was put there last.
        let found = list.iter().rposition(|&l| l == local);
        debug_assert!(found.is_some(), "a lifetime's part is where it was put");
        if let Some(found) = found {
            list.swap_remove(found);
        }
    }
}
