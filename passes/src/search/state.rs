//! A schedule under change: copies, lifetimes and the memory profile, kept consistent.
//!
//! The state is a sparse 0-1 matrix, Checkmate's R (Jain et al. 2020, section 3): node `n` is
//! computed again directly before step `t`. Everything else follows. Copies before step `t` form
//! its *group*; they run in the order of first computations, then the original of `t` runs.
//! A *position* is the pair (t, n), ordered lexicographically; the original of `n` is at (n, n).
//! Each reader reads the latest computation before it, and a value lives from a computation
//! to the last reader of that computation.
//!
//! The profile holds, per group, the largest need of any of its positions. A toggle changes the
//! life that begins with it, the one before, and those that its node reads from: O(readers · log
//! copies) each, plus one pass over the groups between. [`State::undo`] restores the state to the
//! bit.

use std::cell::Cell;

use super::all_forms::FormNumber;
use super::problem::{Problem, SiteId, Step, StepInfo, ValueId};
use super::profile::{Exponent, Profile};

/// Adding to that many groups takes as long as working out one life.
const GROUPS_PER_EVALUATION: usize = 8192;

/// No start begins with more copies: where everything runs again, a chain of n nodes takes n² of
/// them.
pub(crate) fn most_copies(problem: &Problem) -> usize {
    problem.steps.len().max(10_000)
}

/// A node computed again (or no longer) directly before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Copy {
    /// Which node.
    pub node: Step,
    /// Directly before which step; greater than `node`.
    pub before: Step,
}

/// What a schedule decides: which nodes run again, and which form each site has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decisions {
    /// Ascending.
    pub copies: Vec<Copy>,
    /// By site; sites that are not in it have their nodes as they are.
    pub forms: Vec<FormNumber>,
}

/// What is changed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// These copies are toggled.
    Toggle(Vec<Copy>),
    /// The site takes another form.
    Switch(SiteId, FormNumber),
}

/// See the module's documentation.
type SchedulePosition = (Step, Step);

/// Behind all others.
const NEVER: SchedulePosition = (Step::MAX, Step::MAX);

/// Positions `start..end`, lexicographic, half open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lifetime {
    start: SchedulePosition,
    end: SchedulePosition,
}

/// The part of a value's life inside one group.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Local {
    from: Step,
    to: Step,
    size: f64,
}

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
    peaks: Vec<(Step, f64)>,
    shifts: Vec<(Step, f64)>,
    phi: f64,
    cost: u64,
}

/// See the module's documentation.
pub(crate) struct State<'p> {
    pub(crate) problem: &'p Problem,
    /// By site.
    forms: Vec<FormNumber>,
    /// Are sites to keep their forms?
    frozen: bool,
    /// By step: does its node run, or does another form of its site?
    active: Vec<bool>,
    /// By node: the steps before which it is computed again, ascending.
    copies: Vec<Vec<Step>>,
    /// By step: the nodes computed again directly before it, ascending.
    groups: Vec<Vec<Step>>,
    /// By value: the life of its first computation, then of each copy.
    lifetimes: Vec<Vec<Lifetime>>,
    locals: Vec<Vec<Local>>,
    /// By group: the need of its worst position, without values that live through the group.
    local_peak: Vec<f64>,
    /// By group: the need of its worst position.
    profile: Profile,
    /// Nanoseconds of copies and variants.
    cost: u64,
    /// By node: is it read of its copies alone? Then its original need not run.
    spared: Vec<bool>,
    /// Nanoseconds that are spared of those originals.
    spared_time: u64,
    scratch: Scratch,
    /// Lifetimes worked out and looked up: the measure of work.
    evaluations: Cell<u64>,
}

#[derive(Default)]
struct Scratch {
    group_seen: Vec<u32>,
    groups: Vec<Step>,
    stamp: u32,
    shifts: Vec<(Step, f64)>,
    sums: Vec<f64>,
    /// By node: where it stands in the group last looked at.
    ranks: Vec<u32>,
    weighed: Vec<Step>,
    /// Empty ones, for their memory.
    undos: Vec<Undo>,
}

impl<'p> State<'p> {
    /// No node is computed twice; `budget` is for everything but what the caller owns.
    pub(crate) fn new(problem: &'p Problem, budget: f64, exponent: Exponent) -> State<'p> {
        let n = problem.steps.len();
        let mut state = State {
            problem,
            forms: vec![0; problem.sites.len()],
            frozen: false,
            active: problem
                .steps
                .iter()
                .map(|step| step.is_active_in(0))
                .collect(),
            copies: vec![Vec::new(); n],
            groups: vec![Vec::new(); n],
            lifetimes: vec![Vec::new(); problem.values.len()],
            locals: vec![Vec::new(); n],
            local_peak: vec![0.0; n],
            profile: Profile::new(n, budget, exponent),
            cost: problem.head_start(),
            spared: vec![false; n],
            spared_time: 0,
            scratch: Scratch {
                group_seen: vec![0; n],
                ranks: vec![0; n],
                ..Scratch::default()
            },
            evaluations: Cell::new(0),
        };
        state.next_stamp();
        for value in 0..problem.values.len() as ValueId {
            let lifetime = state.lifetime(value, 0);
            state.lifetimes[value as usize].push(lifetime);
            state.begin(value, lifetime);
        }
        for group in 0..n as Step {
            state.touch_group(group);
        }
        state.refresh(&mut Undo::default());
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

    /// Nanoseconds spent on copies and variants, without what is spared of originals that nobody reads; see
    /// [`Problem::head_start`].
    pub(crate) fn cost(&self) -> u64 {
        self.cost - self.spared_time
    }

    /// The same where all originals run.
    pub(crate) fn cost_with_originals(&self) -> u64 {
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
        let between = after.saturating_add(1) as usize..until as usize;
        self.profile.largest(between)
    }

    /// Does everything fit?
    pub(crate) fn fits(&self) -> bool {
        self.profile.over() == 0
    }

    /// Every copy, by node and then by step.
    pub(crate) fn all_copies(&self) -> Vec<Copy> {
        let nodes = 0..self.copies.len() as Step;
        nodes.flat_map(|node| self.copies_made_of(node)).collect()
    }

    fn copies_made_of(&self, node: Step) -> impl Iterator<Item = Copy> {
        let before = self.copies[node as usize].iter();
        before.map(move |&before| Copy { node, before })
    }

    /// Everything that the schedule decides.
    pub(crate) fn decisions(&self) -> Decisions {
        Decisions {
            copies: self.all_copies(),
            forms: self.forms.clone(),
        }
    }

    /// From now on, may searches give sites other forms?
    pub(crate) fn freeze(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// Are sites to keep their forms?
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// The form of a site.
    pub(crate) fn form(&self, site: SiteId) -> FormNumber {
        self.forms[site as usize]
    }

    /// Does the node at this step run, and not another form of its site?
    pub(crate) fn is_active(&self, step: Step) -> bool {
        self.active[step as usize]
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
    pub(crate) fn lives_until(&self, value: ValueId, at: SchedulePosition) -> SchedulePosition {
        self.lifetimes[value as usize][self.life_at(value, at)].end
    }

    /// How much work was done.
    pub(crate) fn evaluations(&self) -> u64 {
        self.evaluations.get()
    }

    /// Is more work done than that, or the search stopped?
    pub(crate) fn is_spent(&self, limit: u64) -> bool {
        self.evaluations.get() > limit || self.problem.watch.is_stopped()
    }

    /// Counts work.
    pub(crate) fn count(&self, work: usize) {
        self.evaluations.set(self.evaluations.get() + work as u64);
    }

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
    fn weigh(&mut self, node: Step) {
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

    fn begin(&mut self, value: ValueId, lifetime: Lifetime) {
        let size = self.problem.values[value as usize].size;
        add_local(&mut self.locals, lifetime, size);
        self.shift(lifetime, size);
    }

    fn end(&mut self, value: ValueId, lifetime: Lifetime) {
        let size = self.problem.values[value as usize].size;
        remove_local(&mut self.locals, lifetime, size);
        self.shift(lifetime, -size);
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

    fn toggle(&mut self, copy: Copy) -> bool {
        let added = flip(&mut self.copies[copy.node as usize], copy.before);
        flip(&mut self.groups[copy.before as usize], copy.node);
        added
    }

    fn next_stamp(&mut self) {
        let scratch = &mut self.scratch;
        scratch.groups.clear();
        scratch.shifts.clear();
        if scratch.stamp == u32::MAX {
            scratch.group_seen.fill(0);
            scratch.stamp = 0;
        }
        scratch.stamp += 1;
    }

    fn touch_group(&mut self, group: Step) {
        let scratch = &mut self.scratch;
        let seen = &mut scratch.group_seen[group as usize];
        if std::mem::replace(seen, scratch.stamp) != scratch.stamp {
            scratch.groups.push(group);
        }
    }

    /// Brings the profile up to date with the lives that have changed.
    fn refresh(&mut self, undo: &mut Undo) {
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
    fn add_shifts(&mut self, shifts: &[(Step, f64)], times: f64) {
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

    /// The life of the value that its producer's first computation begins, for index 0, or the
    /// copy at `index - 1`.
    fn lifetime(&self, value: ValueId, index: usize) -> Lifetime {
        self.count(1);
        let info = &self.problem.values[value as usize];
        let producer = info.producer;
        let first = (producer, producer);
        if !self.active[producer as usize] {
            return Lifetime {
                start: first,
                end: first,
            };
        }
        let copies = match info.recomputed {
            true => self.copies_of(producer),
            false => &[],
        };
        let start = match index.checked_sub(1) {
            None => first,
            Some(copy) => (copies[copy], producer),
        };
        let next = copies.get(index).map_or(NEVER, |&t| (t, producer));
        if info.kept && index == 0 {
            return Lifetime { start, end: NEVER };
        }
        let end = match self.last_use(value, start, next) {
            Some(last) if info.overwriters.contains(&last.1) => last,
            Some(last) => (last.0, last.1 + 1),
            None if index > 0 && info.optional => start,
            None if info.released => (start.0, start.1 + 1),
            None => NEVER,
        };
        Lifetime { start, end }
    }

    /// Which life of the value a reader at that position reads.
    fn life_at(&self, value: ValueId, at: SchedulePosition) -> usize {
        let lifetimes = &self.lifetimes[value as usize];
        let next = lifetimes.partition_point(|lifetime| lifetime.start < at);
        next.saturating_sub(1)
    }

    /// The last reader in `start..next`.
    fn last_use(
        &self,
        value: ValueId,
        start: SchedulePosition,
        next: SchedulePosition,
    ) -> Option<SchedulePosition> {
        let info = &self.problem.values[value as usize];
        // The original of step r is at (r, r), behind every copy before r.
        let before_next = info.readers.partition_point(|&r| (r, r) < next);
        let runs = |reader: &&Step| self.active[**reader as usize];
        let original = info.readers[..before_next]
            .iter()
            .rfind(runs)
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
}

/// Nanoseconds that are spared where a node first runs in the place of a copy: not all that it takes, for such a node
/// has to be made to wait, and other moves that cost nothing would hide what they are in the way of.
pub(crate) fn spared_time(info: &StepInfo) -> u64 {
    let time = info.time.min(info.copy_time);
    time - time / 10
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

fn add_local(locals: &mut [Vec<Local>], lifetime: Lifetime, size: f64) {
    for (group, local) in parts(lifetime, size, locals.len()).into_iter().flatten() {
        locals[group as usize].push(local);
    }
}

fn remove_local(locals: &mut [Vec<Local>], lifetime: Lifetime, size: f64) {
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

#[cfg(test)]
mod tests;
