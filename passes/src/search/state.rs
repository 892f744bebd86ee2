//! A schedule under change: copies, lifetimes and the memory profile, kept consistent.
//!
//! The state is a sparse 0-1 matrix, Checkmate's R (Jain et al. 2020, section 3): node `n` is
//! computed again directly before step `t`. Everything else follows. Copies before step `t` form
//! its *group*; they run in the order of first computations, then the original of `t` runs.
//! A *position* is the pair (t, n), ordered lexicographically; the original of `n` is at (n, n).
//! Each reader reads the latest computation before it, and a value lives from a computation
//! to the last reader of that computation.
//!
//! The profile holds, per group, the largest need of any of its positions. A change touches the
//! values that the toggled nodes write and read: O(their readers and copies), plus one pass over
//! the groups between. [`State::undo`] restores the state to the bit.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use super::problem::{Problem, Step, ValueId};
use super::profile::{Exponent, Profile};

/// A node computed again (or no longer) directly before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Copy {
    /// Which node.
    pub node: Step,
    /// Directly before which step; greater than `node`.
    pub before: Step,
}

/// Positions `start..end`, lexicographic, half open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lifetime {
    start: (Step, Step),
    end: (Step, Step),
}

/// The part of a value's life inside one group.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Local {
    from: Step,
    to: Step,
    size: f64,
}

/// What one [`State::apply`] changed.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    toggled: Vec<(Copy, bool)>,
    lifetimes: Vec<(ValueId, Vec<Lifetime>)>,
    peaks: Vec<(Step, f64)>,
    shifts: Vec<(Step, f64)>,
    phi: f64,
    cost: u64,
}

/// See the module's documentation.
pub(crate) struct State<'p> {
    pub(crate) problem: &'p Problem,
    /// By node: the steps before which it is computed again, ascending.
    copies: Vec<Vec<Step>>,
    /// By step: the nodes computed again directly before it, ascending.
    groups: Vec<Vec<Step>>,
    lifetimes: Vec<Vec<Lifetime>>,
    locals: Vec<Vec<Local>>,
    /// By group: the need of its worst position, without values that live through the group.
    local_peak: Vec<f64>,
    /// By group: the need of its worst position.
    profile: Profile,
    cost: u64,
    scratch: Scratch,
    /// Lifetimes worked out and looked up: the measure of work.
    evaluations: Cell<u64>,
}

#[derive(Default)]
struct Scratch {
    values: Vec<ValueId>,
    value_seen: Vec<u32>,
    group_seen: Vec<u32>,
    groups: Vec<Step>,
    stamp: u32,
    shifts: Vec<(Step, f64)>,
    sums: Vec<f64>,
    /// Empty ones, for their memory.
    lists: Vec<Vec<Lifetime>>,
    /// Empty ones, for their memory.
    undos: Vec<Undo>,
}

impl<'p> State<'p> {
    /// No node is computed twice; `budget` is for everything but what the caller owns.
    pub(crate) fn new(problem: &'p Problem, budget: f64, exponent: Exponent) -> State<'p> {
        let n = problem.steps.len();
        let mut state = State {
            problem,
            copies: vec![Vec::new(); n],
            groups: vec![Vec::new(); n],
            lifetimes: vec![Vec::new(); problem.values.len()],
            locals: vec![Vec::new(); n],
            local_peak: vec![0.0; n],
            profile: Profile::new(n, budget, exponent),
            cost: 0,
            scratch: Scratch {
                value_seen: vec![0; problem.values.len()],
                group_seen: vec![0; n],
                ..Scratch::default()
            },
            evaluations: Cell::new(0),
        };
        let mut undo = Undo::default();
        state.scratch.stamp = 1;
        state.scratch.values = (0..problem.values.len() as ValueId).collect();
        state.scratch.groups = (0..n as Step).collect();
        state.scratch.group_seen.fill(1);
        state.refresh(&mut undo);
        state.aim(budget, exponent);
        state.evaluations.set(0);
        state
    }

    /// Aims at another budget.
    pub(crate) fn aim(&mut self, budget: f64, exponent: Exponent) {
        self.profile.aim(budget, exponent);
    }

    /// Φ, up to rounding.
    pub(crate) fn phi(&self) -> f64 {
        self.profile.phi()
    }

    /// Nanoseconds spent on copies.
    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    /// The exponent aimed with.
    pub(crate) fn exponent(&self) -> Exponent {
        self.profile.exponent()
    }

    /// The budget aimed at.
    pub(crate) fn budget(&self) -> f64 {
        self.profile.budget()
    }

    /// The need of the worst position.
    pub(crate) fn peak(&self) -> f64 {
        self.profile.largest(0..self.profile.groups())
    }

    /// The need of the worst position of a group.
    pub(crate) fn memory(&self, group: Step) -> f64 {
        self.profile.need(group)
    }

    /// The largest need strictly between two groups.
    pub(crate) fn largest_between(&self, after: Step, until: Step) -> f64 {
        if after.saturating_add(1) >= until {
            return 0.0;
        }
        self.profile.largest(after as usize + 1..until as usize)
    }

    /// Does everything fit?
    pub(crate) fn fits(&self) -> bool {
        self.profile.over() == 0
    }

    /// Every copy, by node and then by step.
    pub(crate) fn all_copies(&self) -> Vec<Copy> {
        let by_node = self.copies.iter().enumerate();
        by_node
            .flat_map(|(node, before)| {
                before.iter().map(move |&before| Copy {
                    node: node as Step,
                    before,
                })
            })
            .collect()
    }

    /// Is `node` computed again directly before `before`?
    pub(crate) fn has(&self, copy: Copy) -> bool {
        self.copies[copy.node as usize]
            .binary_search(&copy.before)
            .is_ok()
    }

    /// The nodes computed again directly before `step`, ascending.
    pub(crate) fn group(&self, step: Step) -> &[Step] {
        &self.groups[step as usize]
    }

    /// The steps before which `node` is computed again, ascending.
    pub(crate) fn copies_of(&self, node: Step) -> &[Step] {
        &self.copies[node as usize]
    }

    /// Where the computation of `value` that a reader at position `at` reads stops living,
    /// as an excluded end.
    pub(crate) fn lives_until(&self, value: ValueId, at: (Step, Step)) -> (Step, Step) {
        let lifetimes = &self.lifetimes[value as usize];
        let next = lifetimes.partition_point(|lifetime| lifetime.start < at);
        lifetimes[next.saturating_sub(1)].end
    }

    /// How much work was done.
    pub(crate) fn evaluations(&self) -> u64 {
        self.evaluations.get()
    }

    /// Is more work done than that, or the search stopped?
    pub(crate) fn is_spent(&self, limit: u64) -> bool {
        self.evaluations.get() > limit || self.problem.stop.load(Ordering::Relaxed)
    }

    /// Counts work.
    pub(crate) fn count(&self, work: usize) {
        self.evaluations.set(self.evaluations.get() + work as u64);
    }

    /// Toggles the copies, brings everything up to date, and says how to go back.
    pub(crate) fn apply(&mut self, toggles: &[Copy]) -> Undo {
        let mut undo = self.scratch.undos.pop().unwrap_or_default();
        (undo.phi, undo.cost) = (self.profile.phi(), self.cost);
        self.next_stamp();
        for &copy in toggles {
            let added = self.toggle(copy);
            undo.toggled.push((copy, added));
            let info = &self.problem.steps[copy.node as usize];
            if added {
                self.cost += info.copy_time;
            } else {
                self.cost -= info.copy_time;
            }
            self.touch_group(copy.before);
            for &value in &info.writes {
                self.touch_value(value);
            }
            for &value in &info.copy_reads {
                // One reader more or less changes nothing before the last, if there is one: what
                // nobody reads lives to the end.
                let end = self.lives_until(value, (copy.before, copy.node));
                if end.0 == Step::MAX || (copy.before, copy.node + 1) >= end {
                    self.touch_value(value);
                }
            }
        }
        self.refresh(&mut undo);
        undo
    }

    /// Restores what the state was before the `apply` that returned `undo`; last in, first out.
    pub(crate) fn undo(&mut self, mut undo: Undo) {
        for (copy, added) in undo.toggled.drain(..).rev() {
            let now = self.toggle(copy);
            debug_assert_ne!(now, added);
        }
        for (value, old) in undo.lifetimes.drain(..).rev() {
            let size = self.problem.values[value as usize].size;
            let mut new = std::mem::replace(&mut self.lifetimes[value as usize], old);
            for (lifetime, added) in differences(&new, &self.lifetimes[value as usize]) {
                if added {
                    add_local(&mut self.locals, lifetime, size);
                } else {
                    remove_local(&mut self.locals, lifetime, size);
                }
            }
            new.clear();
            self.scratch.lists.push(new);
        }
        let mut level = 0.0;
        for pair in undo.shifts.windows(2) {
            level += pair[0].1;
            if level != 0.0 {
                let groups = pair[0].0 as usize..pair[1].0 as usize;
                self.profile.add(groups, -level);
            }
        }
        for (group, old) in undo.peaks.drain(..).rev() {
            let now = std::mem::replace(&mut self.local_peak[group as usize], old);
            self.profile.add_to(group, old - now);
        }
        self.profile.settle();
        self.profile.restore_phi(undo.phi);
        self.cost = undo.cost;
        undo.shifts.clear();
        self.scratch.undos.push(undo);
    }

    /// Does any reader read what this copy computes?
    pub(crate) fn is_used(&self, copy: Copy) -> bool {
        let start = (copy.before, copy.node);
        self.problem.steps[copy.node as usize]
            .writes
            .iter()
            .any(|&value| {
                self.problem.values[value as usize].recomputed
                    && self
                        .last_use(value, start, self.next_start(value, start))
                        .is_some()
            })
    }

    fn toggle(&mut self, copy: Copy) -> bool {
        let added = flip(&mut self.copies[copy.node as usize], copy.before);
        flip(&mut self.groups[copy.before as usize], copy.node);
        added
    }

    fn next_stamp(&mut self) {
        let scratch = &mut self.scratch;
        scratch.values.clear();
        scratch.groups.clear();
        if scratch.stamp == u32::MAX {
            scratch.value_seen.fill(0);
            scratch.group_seen.fill(0);
            scratch.stamp = 0;
        }
        scratch.stamp += 1;
    }

    fn touch_value(&mut self, value: ValueId) {
        let scratch = &mut self.scratch;
        let seen = &mut scratch.value_seen[value as usize];
        if std::mem::replace(seen, scratch.stamp) != scratch.stamp {
            scratch.values.push(value);
        }
    }

    fn touch_group(&mut self, group: Step) {
        let scratch = &mut self.scratch;
        let seen = &mut scratch.group_seen[group as usize];
        if std::mem::replace(seen, scratch.stamp) != scratch.stamp {
            scratch.groups.push(group);
        }
    }

    /// Recomputes the lifetimes of touched values, then the profile.
    fn refresh(&mut self, undo: &mut Undo) {
        let values = std::mem::take(&mut self.scratch.values);
        self.count(values.len());
        let mut shifts = std::mem::take(&mut self.scratch.shifts);
        shifts.clear();
        for &value in &values {
            let size = self.problem.values[value as usize].size;
            let mut new = self.scratch.lists.pop().unwrap_or_default();
            self.lifetimes_of(value, &mut new);
            if new == self.lifetimes[value as usize] {
                new.clear();
                self.scratch.lists.push(new);
                continue;
            }
            let old = std::mem::take(&mut self.lifetimes[value as usize]);
            for (lifetime, added) in differences(&old, &new) {
                if added {
                    add_local(&mut self.locals, lifetime, size);
                    self.shift(lifetime, size, &mut shifts);
                } else {
                    remove_local(&mut self.locals, lifetime, size);
                    self.shift(lifetime, -size, &mut shifts);
                }
            }
            self.lifetimes[value as usize] = new;
            undo.lifetimes.push((value, old));
        }
        self.scratch.values = values;
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
        let mut level = 0.0;
        for pair in shifts.windows(2) {
            level += pair[0].1;
            if level != 0.0 {
                let groups = pair[0].0 as usize..pair[1].0 as usize;
                self.profile.add(groups, level);
            }
        }
        self.profile.settle();
        undo.shifts.clone_from(&shifts);
        self.scratch.shifts = shifts;
    }

    fn shift(&mut self, lifetime: Lifetime, size: f64, shifts: &mut Vec<(Step, f64)>) {
        self.touch_group(lifetime.start.0);
        if (lifetime.end.0 as usize) < self.groups.len() {
            self.touch_group(lifetime.end.0);
        }
        let last = lifetime.end.0.min(self.groups.len() as Step);
        if lifetime.start.0 + 1 < last {
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
        let steps = &self.problem.steps;
        if inside.is_empty() {
            let live: f64 = locals
                .iter()
                .filter(|l| l.from <= group && group < l.to)
                .map(|l| l.size)
                .sum();
            return live + steps[group as usize].workspace;
        }
        let sums = &mut self.scratch.sums;
        sums.clear();
        sums.resize(inside.len() + 2, 0.0);
        // The group's positions: its copies, then the original.
        let rank = |step: Step| {
            if step > group {
                inside.len() + 1
            } else if step <= inside[0] {
                0
            } else {
                inside.partition_point(|&n| n < step)
            }
        };
        for local in locals {
            let (from, to) = (rank(local.from), rank(local.to));
            if from < to {
                sums[from] += local.size;
                sums[to] -= local.size;
            }
        }
        let mut live = 0.0;
        let mut peak: f64 = 0.0;
        for (i, change) in sums.iter().take(inside.len() + 1).enumerate() {
            live += change;
            let node = inside.get(i).copied().unwrap_or(group);
            peak = peak.max(live + steps[node as usize].workspace);
        }
        peak
    }

    /// Appends them, in the order of their starts.
    fn lifetimes_of(&self, value: ValueId, lifetimes: &mut Vec<Lifetime>) {
        let info = &self.problem.values[value as usize];
        let producer = info.producer;
        let copies: &[Step] = if info.recomputed {
            &self.copies[producer as usize]
        } else {
            &[]
        };
        for i in 0..=copies.len() {
            let start = if i == 0 {
                (producer, producer)
            } else {
                (copies[i - 1], producer)
            };
            let next = copies
                .get(i)
                .map_or((Step::MAX, Step::MAX), |&t| (t, producer));
            let end = if info.kept && i == 0 {
                (Step::MAX, Step::MAX)
            } else {
                match self.last_use(value, start, next) {
                    Some(last) if info.overwriters.contains(&last.1) => last,
                    Some(last) => (last.0, last.1 + 1),
                    None if i > 0 && info.optional => start,
                    None if info.released => (start.0, start.1 + 1),
                    None => (Step::MAX, Step::MAX),
                }
            };
            lifetimes.push(Lifetime { start, end });
        }
    }

    /// The last reader in `start..next`.
    fn last_use(
        &self,
        value: ValueId,
        start: (Step, Step),
        next: (Step, Step),
    ) -> Option<(Step, Step)> {
        let info = &self.problem.values[value as usize];
        // The original of step r is at (r, r), behind every copy before r.
        let before_next = info.readers.partition_point(|&r| (r, r) < next);
        let original = info.readers[..before_next]
            .last()
            .map(|&r| (r, r))
            .filter(|&use_| use_ > start);
        let copies = info.copy_readers.iter().filter_map(|&reader| {
            let copies = &self.copies[reader as usize];
            let before_next = copies.partition_point(|&t| (t, reader) < next);
            copies[..before_next]
                .last()
                .map(|&t| (t, reader))
                .filter(|&use_| use_ > start)
        });
        copies.chain(original).max()
    }

    fn next_start(&self, value: ValueId, start: (Step, Step)) -> (Step, Step) {
        let info = &self.problem.values[value as usize];
        if !info.recomputed {
            return (Step::MAX, Step::MAX);
        }
        let copies = &self.copies[info.producer as usize];
        let next = copies.partition_point(|&t| (t, info.producer) <= start);
        copies
            .get(next)
            .map_or((Step::MAX, Step::MAX), |&t| (t, info.producer))
    }
}

/// Adds `item` to a sorted list, or removes it; true if it was added.
fn flip(list: &mut Vec<Step>, item: Step) -> bool {
    match list.binary_search(&item) {
        Ok(at) => {
            list.remove(at);
            false
        }
        Err(at) => {
            list.insert(at, item);
            true
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

/// What is in one list only, both being sorted by start: false if in the old one, true if in the new.
fn differences<'l>(
    mut old: &'l [Lifetime],
    mut new: &'l [Lifetime],
) -> impl Iterator<Item = (Lifetime, bool)> + 'l {
    std::iter::from_fn(move || {
        loop {
            match (old.split_first(), new.split_first()) {
                (Some((a, rest)), Some((b, others))) if a == b => (old, new) = (rest, others),
                (Some((a, rest)), b) if b.is_none_or(|(b, _)| a.start <= b.start) => {
                    old = rest;
                    return Some((*a, false));
                }
                (_, Some((b, others))) => {
                    new = others;
                    return Some((*b, true));
                }
                _ => return None,
            }
        }
    })
}

/// The parts of a lifetime in its first and last group.
fn parts(lifetime: Lifetime, groups: usize) -> [Option<(Step, Local)>; 2] {
    let Lifetime { start, end } = lifetime;
    let local = |from, to| Local {
        from,
        to,
        size: 0.0,
    };
    if start.0 == end.0 {
        return [Some((start.0, local(start.1, end.1))), None];
    }
    let tail = ((end.0 as usize) < groups).then(|| (end.0, local(0, end.1)));
    [Some((start.0, local(start.1, Step::MAX))), tail]
}

fn add_local(locals: &mut [Vec<Local>], lifetime: Lifetime, size: f64) {
    for (group, local) in parts(lifetime, locals.len()).into_iter().flatten() {
        locals[group as usize].push(Local { size, ..local });
    }
}

fn remove_local(locals: &mut [Vec<Local>], lifetime: Lifetime, size: f64) {
    for (group, local) in parts(lifetime, locals.len()).into_iter().flatten() {
        let list = &mut locals[group as usize];
        // What is undone was put there last.
        let found = list.iter().rposition(|&l| l == Local { size, ..local });
        debug_assert!(found.is_some(), "a lifetime's part is where it was put");
        if let Some(found) = found {
            list.swap_remove(found);
        }
    }
}

#[cfg(test)]
mod tests;
