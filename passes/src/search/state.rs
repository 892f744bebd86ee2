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

mod change;
mod memory;

use std::cell::Cell;

pub(crate) use change::Undo;
use memory::Local;

use super::all_forms::FormNumber;
use super::problem::{Problem, SiteId, Step, StepInfo, ValueId};
use super::profile::{Exponent, Profile};

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

#[cfg(test)]
mod tests;
