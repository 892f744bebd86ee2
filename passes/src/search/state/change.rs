//! Moves: how copies and forms change a schedule, and how the change is undone.

use super::memory::{add_local, remove_local};
use super::{Copy, Lifetime, Move, NEVER, State, spared_time};
use crate::search::all_forms::FormNumber;
use crate::search::problem::{SiteId, Step, ValueId};

/// What became of one entry of a value's lifetimes.
#[derive(Clone, Copy, Debug)]
enum LifetimeChange {
    /// It is another one now; this was it.
    Was(Lifetime),
    Added,
    Removed(Lifetime),
}

/// What one [`State::apply`] changed.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    toggled: Vec<(Copy, bool)>,
    /// The form that the site had.
    switched: Option<(SiteId, FormNumber)>,
    /// The value, the position in its list, and what happened there, in order.
    lifetimes: Vec<(ValueId, usize, LifetimeChange)>,
    pub(super) peaks: Vec<(Step, f64)>,
    pub(super) shifts: Vec<(Step, f64)>,
    phi: f64,
    cost: u64,
}

impl State<'_> {
    /// Makes the move, brings everything up to date, and says how to go back.
    pub(crate) fn make(&mut self, wanted: &Move) -> Undo {
        match wanted {
            Move::Toggle(copies) => self.apply(copies),
            Move::Switch(site, form) => self.switch(*site, *form),
        }
    }

    /// Gives a site another form; copies of what no longer runs go.
    pub(crate) fn switch(&mut self, site: SiteId, form: FormNumber) -> Undo {
        let mut undo = self.begin_undo();
        let problem = self.problem;
        let info = &problem.sites[site as usize];
        let old = std::mem::replace(&mut self.forms[site as usize], form);
        undo.switched = Some((site, old));
        let steps = |of: FormNumber| info.forms[of as usize].iter().copied();
        let other = |step: Step, of: FormNumber| !problem.steps[step as usize].is_active_in(of);
        let gone: Vec<Step> = steps(old).filter(|&step| other(step, form)).collect();
        let come: Vec<Step> = steps(form).filter(|&step| other(step, old)).collect();
        let copies = gone.iter().flat_map(|&node| self.copies_made_of(node));
        let copies: Vec<Copy> = copies.collect();
        self.toggle_all(&copies, &mut undo);
        self.cost = self.cost + info.times[form as usize] - info.times[old as usize];
        for (steps, run) in [(&gone, false), (&come, true)] {
            for &step in steps {
                self.active[step as usize] = run;
                self.touch_group(step);
            }
        }
        for &step in gone.iter().chain(&come) {
            for &value in &problem.steps[step as usize].writes {
                self.change(value, 0, &mut undo);
            }
            for &value in &problem.steps[step as usize].reads {
                let index = self.life_at(value, (step, step));
                self.change(value, index, &mut undo);
            }
            self.weigh(step);
        }
        self.refresh(&mut undo);
        undo
    }

    /// Toggles the copies, brings everything up to date, and says how to go back.
    pub(crate) fn apply(&mut self, toggles: &[Copy]) -> Undo {
        let mut undo = self.begin_undo();
        self.toggle_all(toggles, &mut undo);
        self.refresh(&mut undo);
        undo
    }

    fn begin_undo(&mut self) -> Undo {
        let mut undo = self.scratch.undos.pop().unwrap_or_default();
        (undo.phi, undo.cost) = (self.profile.raw_phi(), self.cost);
        self.next_stamp();
        undo
    }

    fn toggle_all(&mut self, toggles: &[Copy], undo: &mut Undo) {
        for &copy in toggles {
            let added = self.toggle(copy);
            undo.toggled.push((copy, added));
            let info = &self.problem.steps[copy.node as usize];
            match added {
                true => self.cost += info.copy_time,
                false => self.cost -= info.copy_time,
            }
            self.touch_group(copy.before);
            self.change_written(copy, added, undo);
            self.weigh(copy.node);
            for &value in &info.copy_reads {
                // One reader more or less changes nothing before the last, if there is one: what
                // nobody reads lives to the end.
                let index = self.life_at(value, (copy.before, copy.node));
                let end = self.lifetimes[value as usize][index].end;
                if end.0 == Step::MAX || (copy.before, copy.node + 1) >= end {
                    self.change(value, index, undo);
                }
            }
        }
    }

    /// The lives of what the copy writes: one more or one less, and those before.
    fn change_written(&mut self, copy: Copy, added: bool, undo: &mut Undo) {
        let problem = self.problem;
        let copies = &self.copies[copy.node as usize];
        let index = 1 + copies.partition_point(|&before| before < copy.before);
        for &value in &problem.steps[copy.node as usize].writes {
            if !problem.values[value as usize].recomputed {
                continue;
            }
            let change = if added {
                let lifetime = self.lifetime(value, index);
                self.lifetimes[value as usize].insert(index, lifetime);
                self.begin(value, lifetime);
                LifetimeChange::Added
            } else {
                let lifetime = self.lifetimes[value as usize].remove(index);
                self.end(value, lifetime);
                LifetimeChange::Removed(lifetime)
            };
            undo.lifetimes.push((value, index, change));
            self.change(value, index - 1, undo);
        }
    }

    /// Works out one life of a value anew.
    fn change(&mut self, value: ValueId, index: usize, undo: &mut Undo) {
        let new = self.lifetime(value, index);
        let old = self.lifetimes[value as usize][index];
        if new != old {
            self.end(value, old);
            self.begin(value, new);
            self.lifetimes[value as usize][index] = new;
            undo.lifetimes
                .push((value, index, LifetimeChange::Was(old)));
            if index == 0 {
                self.weigh(self.problem.values[value as usize].producer);
            }
        }
    }

    /// Works out anew whether the node's original need not run. The memory that it would take is counted all the same.
    pub(super) fn weigh(&mut self, node: Step) {
        let info = &self.problem.steps[node as usize];
        if !info.whole {
            return;
        }
        let unread = |value: &ValueId| {
            let end = self.lifetimes[*value as usize][0].end;
            self.problem.values[*value as usize].released && end == (node, node + 1)
        };
        let spared = self.is_active(node)
            && !self.copies[node as usize].is_empty()
            && info.writes.iter().all(unread);
        if std::mem::replace(&mut self.spared[node as usize], spared) != spared {
            let time = spared_time(info);
            match spared {
                true => self.spared_time += time,
                false => self.spared_time -= time,
            }
        }
    }

    /// Restores what the state was before the `apply` that returned `undo`; last in, first out.
    pub(crate) fn undo(&mut self, mut undo: Undo) {
        let mut weighed = std::mem::take(&mut self.scratch.weighed);
        for (copy, added) in undo.toggled.drain(..).rev() {
            let now = self.toggle(copy);
            debug_assert_ne!(now, added);
            weighed.push(copy.node);
        }
        if let Some((site, form)) = undo.switched.take() {
            let now = std::mem::replace(&mut self.forms[site as usize], form);
            let forms = &self.problem.sites[site as usize].forms;
            for (of, runs) in [(now, false), (form, true)] {
                for &step in &forms[of as usize] {
                    self.active[step as usize] = runs;
                    weighed.push(step);
                }
            }
        }
        for (value, index, change) in undo.lifetimes.drain(..).rev() {
            let info = &self.problem.values[value as usize];
            if index == 0 {
                weighed.push(info.producer);
            }
            let lifetimes = &mut self.lifetimes[value as usize];
            let (gone, back) = match change {
                LifetimeChange::Was(old) => (
                    Some(std::mem::replace(&mut lifetimes[index], old)),
                    Some(old),
                ),
                LifetimeChange::Added => (Some(lifetimes.remove(index)), None),
                LifetimeChange::Removed(old) => {
                    lifetimes.insert(index, old);
                    (None, Some(old))
                }
            };
            if let Some(gone) = gone {
                remove_local(&mut self.locals, gone, info.size);
            }
            if let Some(back) = back {
                add_local(&mut self.locals, back, info.size);
            }
        }
        for node in weighed.drain(..) {
            self.weigh(node);
        }
        self.scratch.weighed = weighed;
        self.add_shifts(&undo.shifts, -1.0);
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
        let copies = self.copies_of(copy.node);
        let next = copies.partition_point(|&before| before <= copy.before);
        let next = copies.get(next).map_or(NEVER, |&t| (t, copy.node));
        let start = (copy.before, copy.node);
        let mut written = self.problem.steps[copy.node as usize].writes.iter();
        written.any(|&value| {
            self.problem.values[value as usize].recomputed
                && self.last_use(value, start, next).is_some()
        })
    }

    pub(super) fn toggle(&mut self, copy: Copy) -> bool {
        let added = flip(&mut self.copies[copy.node as usize], copy.before);
        flip(&mut self.groups[copy.before as usize], copy.node);
        added
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
