//! Which barriers: added where a simulated run exceeds the budget, then taken out again while
//! all simulated runs still fit; then what each of them waits for, in the same way.
//!
//! Every simulation is counted by the nodes that it visits. Once the allowance is used up, what
//! is known to fit remains: barriers that may not be needed, but never a peak above the budget.

use std::sync::OnceLock;

use crate::graph::NodeId;
use crate::parallel;
use crate::runtime::liveness::Needs;
use crate::runtime::order::{ExecutionOrder, execution_order};
use crate::runtime::promise::Promise;
use crate::runtime::settings::RuntimeSettings;
use crate::runtime::skeleton::Skeleton;
use crate::watch::Watch;

use super::blame::Blame;
use super::packing::{Packing, PlannedRun};
use super::placement::{Barrier, ChosenPlaces, Placement};
use super::runs::{Built, TrialRun, TrialWay};
use super::thinning::{Trial, thin_out};
use super::{Enforceable, Thinning};

/// How many visits of nodes adding may take: two to eight seconds, the more the larger the graph.
const WORK: usize = 40_000_000;

/// And thinning out, first the barriers and then what they wait for: one too many costs little.
const THINNING: usize = WORK / 20;

/// How many times a quick look at either visits every node, ...
const QUICK_VISITS: usize = 24;

/// ... and at least a thorough one.
const THOROUGH_VISITS: usize = 192;

/// So many times barriers are added where each stretch that exceeds the budget begins, before there are more in longer ones.
const ROUNDS_OF_FIRSTS: u32 = 16;

/// In how many groups at most waits are thinned out.
const GROUPS: usize = 64;

pub(super) struct BarrierChoice<'p> {
    placement: &'p Placement,
    /// Positions of which the first has to run before the second.
    sequences: Vec<(u32, u32)>,
    budget: u64,
    settings: RuntimeSettings,
    /// For which ways of running the graph the budget holds.
    promise: Promise,
    /// Bytes that a tensor takes besides its elements.
    object: u64,
    /// Are those of what barriers pass on left out?
    relaxed: bool,
    allowance: usize,
    thinning: usize,
    planned: &'p OnceLock<PlannedOrder>,
    watch: Option<&'p Watch>,
}

/// The most that a run needs, beside the memory pattern's block, in it, and in all.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedNeed {
    beside: u64,
    inside: u64,
    pub(super) most: u64,
}

/// What the file's order needs without barriers.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedOrder {
    /// In which form of the graph.
    number: usize,
    pub(super) need: PlannedNeed,
    /// The most with both settings off.
    pub(super) lean: u64,
}

impl PlannedNeed {
    fn of(needs: &Needs) -> PlannedNeed {
        let most = |of: &[u64]| of.iter().copied().max().unwrap_or(0);
        PlannedNeed {
            beside: most(&needs.beside),
            inside: most(&needs.inside),
            most: needs.most(),
        }
    }
}

/// What no barriers keep within the budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct MissedNeed {
    /// The smallest need that they reached.
    pub(super) peak: u64,
    /// Was it reached by leaving barriers out?
    pub(super) by_fewer: bool,
}

impl MissedNeed {
    /// What is reached as if barriers took no room tells nothing.
    const UNKNOWN: MissedNeed = MissedNeed {
        peak: u64::MAX,
        by_fewer: false,
    };
}

/// Work in visits of nodes; the hint is in which way the budget was exceeded last.
type TrialEffort = super::thinning::ThinningEffort<TrialWay>;

impl<'p> BarrierChoice<'p> {
    /// The budget is without what the caller owns.
    pub(super) fn new(
        of: &'p Enforceable<'_>,
        budget: u64,
        thinning: Thinning,
    ) -> BarrierChoice<'p> {
        let (placement, conditions) = (of.placement(), &of.conditions);
        let positions = of.graph.positions();
        let place = |id: NodeId| positions[id.index()];
        let pairs = conditions.sequences.iter();
        BarrierChoice {
            placement,
            sequences: pairs
                .map(|&(first, second)| (place(first), place(second)))
                .collect(),
            budget,
            settings: conditions.runtime.settings,
            promise: conditions.runtime.promise,
            object: conditions.object.0,
            relaxed: false,
            allowance: WORK,
            thinning: match thinning {
                Thinning::Quick => THINNING.min(QUICK_VISITS * placement.len()),
                Thinning::Thorough => THINNING.max(THOROUGH_VISITS * placement.len()),
            },
            planned: &of.planned,
            watch: conditions.watch,
        }
    }

    /// The barriers that are needed; or the peak, if they do not help.
    pub(super) fn choose(&self) -> Result<Vec<Barrier>, MissedNeed> {
        self.choose_by(&mut TrialEffort::default())
    }

    fn choose_by(&self, effort: &mut TrialEffort) -> Result<Vec<Barrier>, MissedNeed> {
        let mut chosen = vec![false; self.placement.len()];
        let mut full = false;
        for round in 0.. {
            let runs = self.runs(&self.placement.barriers(&chosen), effort);
            if runs.iter().all(|run| self.is_kept_by(run)) {
                return Ok(self.fewer(&chosen, effort));
            }
            full = self.is_full(&runs);
            if full {
                break;
            }
            // Where many are needed, more and more at a time.
            let halved = u32::saturating_sub(round, ROUNDS_OF_FIRSTS);
            let stretch = self.placement.len().checked_shr(halved).unwrap_or(0).max(1);
            let spent = effort.work > self.allowance || self.is_stopped();
            if spent || !self.add(&runs, stretch, &mut chosen, effort) {
                break;
            }
        }
        let all = vec![true; self.placement.len()];
        let with_all = self.placement.barriers(&all);
        if !full && self.first_misfit(&with_all, effort).is_none() {
            return Ok(self.fewer(&all, effort));
        }
        if self.relaxed || self.is_stopped() {
            return Err(MissedNeed::UNKNOWN);
        }
        self.choose_relaxed().map_err(|missed| {
            // Less than the budget is what sequences that are not kept take.
            let peaks = [&chosen, &all].map(|barriers| self.peak(barriers));
            let too_large = peaks.into_iter().filter(|&peak| peak > self.budget);
            let reached = too_large.min().unwrap_or(peaks[1]);
            MissedNeed {
                peak: missed.peak.min(reached),
                by_fewer: missed.peak < reached,
            }
        })
    }

    /// Do barriers that are there take too much room for more of them? In PRIORITY_BASED order the file's order runs in any
    /// case, so that what exceeds the budget there is what they pass on, if the file's order itself does not.
    fn is_full(&self, runs: &[TrialRun]) -> bool {
        let in_file_order = |run: &&TrialRun| run.way == (0, ExecutionOrder::PriorityBased);
        let mut misfits = runs.iter().filter(in_file_order);
        !self.relaxed
            && misfits.any(|run| run.broken.is_none() && run.need > self.budget)
            && self.planned().need.most <= self.budget
    }

    /// Where tensors are small, the objects of what barriers pass on can take more room than they save, if there are as many
    /// as in the beginning. So they are chosen, and thinned out, as if those took none, in half of the room that they have.
    fn choose_relaxed(&self) -> Result<Vec<Barrier>, MissedNeed> {
        let all = vec![true; self.placement.len()];
        let in_room = |budget| BarrierChoice {
            sequences: self.sequences.clone(),
            relaxed: true,
            budget,
            ..*self
        };
        let planned = in_room(0).peak(&all);
        let room = self
            .budget
            .checked_sub(planned)
            .ok_or(MissedNeed::UNKNOWN)?;
        let mut effort = TrialEffort::default();
        let barriers = in_room(planned + room / 2).choose_by(&mut effort)?;
        match self.first_misfit(&barriers, &mut effort) {
            None => Ok(barriers),
            Some(_) => Err(MissedNeed {
                peak: self.peak_with(&barriers),
                by_fewer: true,
            }),
        }
    }

    /// The largest need of all orders.
    pub(super) fn peak(&self, chosen: &ChosenPlaces) -> u64 {
        self.peak_with(&self.placement.barriers(chosen))
    }

    /// What the file's order needs without barriers: in the form for which the budget holds, or as the graph is if that needs less. What
    /// that form merges or takes in otherwise than it was planned, barriers keep apart.
    pub(super) fn planned(&self) -> &PlannedOrder {
        self.planned.get_or_init(|| {
            let built = Built::of(self.placement, &[]);
            let planned = |number: usize| {
                let run = PlannedRun::of(self.placement, &built, number);
                let sequence = run.sequence();
                let lean = Needs::of(run.form, &sequence, None, self.object).most();
                let need = PlannedNeed::of(&self.needs(&built, run.form, &sequence));
                PlannedOrder { number, need, lean }
            };
            let (level, as_it_is) = (self.promise.reported().1, planned(0));
            if built.runs_at(level, 0) {
                return as_it_is;
            }
            let forms = 1..=built.forms().len();
            let optimized = forms.filter(|&form| built.runs_at(level, form));
            // Of several releases the one in which it takes most.
            let optimized = optimized
                .map(planned)
                .max_by_key(|planned| planned.need.most);
            optimized
                .filter(|planned| planned.need.most <= as_it_is.need.most)
                .unwrap_or(as_it_is)
        })
    }

    /// The nodes in another order, in which at most so many bytes are needed without barriers, if one is found.
    pub(super) fn packed(&self, most: u64) -> Option<Vec<u32>> {
        let built = Built::of(self.placement, &[]);
        let shapes = built.shapes.as_ref()?;
        let run = PlannedRun::of(self.placement, &built, self.planned().number);
        let need = |sequence: &[u32]| {
            Needs::of(
                run.form,
                sequence,
                Some((self.settings, shapes)),
                self.object,
            )
        };
        Packing::new(self.placement, &run, &self.sequences).within(most, &need)
    }

    /// By step: does it need more than it may? Without a memory pattern that is the budget. With one, a step may use as much
    /// as the file's order does at most, beside the block and in it, and half of what that leaves of the budget.
    fn exceeding(&self, needs: &Needs) -> Vec<bool> {
        if needs.most() <= self.budget {
            return vec![false; needs.beside.len()];
        }
        if needs.inside.is_empty() {
            return needs
                .beside
                .iter()
                .map(|&need| need > self.budget)
                .collect();
        }
        let planned = self.planned().need;
        let left = (i128::from(self.budget) - i128::from(planned.most)) / 2;
        let may = |planned: u64, most: u64| {
            // The largest is always too large.
            let may = i128::from(planned) + left;
            may.clamp(0, i128::from(most.saturating_sub(1))) as u64
        };
        let most = PlannedNeed::of(needs);
        let (beside, inside) = (
            may(planned.beside, most.beside),
            may(planned.inside, most.inside),
        );
        let steps = needs.beside.iter().zip(&needs.inside);
        steps
            .map(|(&need, &used)| need > beside || used > inside)
            .collect()
    }

    fn peak_with(&self, barriers: &[Barrier]) -> u64 {
        let built = Built::of(self.placement, barriers);
        let mut ways = built.plain();
        ways.extend(built.optimized());
        ways.retain(|&way| self.is_promised(&built, way));
        let needs = parallel::map(&ways, |way| self.run(&built, *way).need);
        needs.into_iter().max().unwrap_or(0)
    }

    /// The first way of running the graph with barriers that exceeds the budget. What did last is looked at first, as
    /// it often does again.
    fn first_misfit(&self, barriers: &[Barrier], effort: &mut TrialEffort) -> Option<TrialRun> {
        let built = Built::of(self.placement, barriers);
        let last = effort.hint.filter(|&way| built.has(way));
        let ways = built.plain().into_iter();
        let ways = ways.chain(std::iter::once_with(|| built.optimized()).flatten());
        let ways = ways.filter(|&way| last != Some(way) && self.matters(&built, way));
        for way in last.into_iter().chain(ways) {
            effort.work = effort.work.saturating_add(built.form(way).0.len());
            let run = self.run(&built, way);
            if !self.is_kept_by(&run) {
                effort.hint = Some(way);
                return Some(run);
            }
        }
        None
    }

    /// The ways of running the graph with barriers: as it is, and if it fits so, as the runtime optimizes it.
    fn runs(&self, barriers: &[Barrier], effort: &mut TrialEffort) -> Vec<TrialRun> {
        let built = Built::of(self.placement, barriers);
        let mut run = |mut ways: Vec<TrialWay>| {
            ways.retain(|&way| self.matters(&built, way));
            let visits = ways.iter().map(|&way| built.form(way).0.len());
            effort.work = visits.fold(effort.work, usize::saturating_add);
            parallel::map(&ways, |&way| self.run(&built, way))
        };
        let mut runs = run(built.plain());
        if runs.iter().all(|run| self.is_kept_by(run)) {
            runs.extend(run(built.optimized()));
        }
        runs
    }

    fn is_stopped(&self) -> bool {
        self.watch.is_some_and(Watch::is_stopped)
    }

    /// Does the budget hold there?
    fn is_promised(&self, built: &Built, way: TrialWay) -> bool {
        let (form, order) = way;
        self.promise
            .holds_in(order, |level| built.runs_at(level, form))
    }

    /// Is anything to be kept there? Sequences are in every way of running the graph.
    fn matters(&self, built: &Built, way: TrialWay) -> bool {
        !self.sequences.is_empty() || self.is_promised(built, way)
    }

    fn is_kept_by(&self, run: &TrialRun) -> bool {
        run.broken.is_none() && run.need <= self.budget
    }

    fn run(&self, built: &Built, way: TrialWay) -> TrialRun {
        let (skeleton, position) = built.form(way);
        let order = execution_order(skeleton, way.1);
        let wanted: Vec<u32> = order.iter().map(|&node| position[node as usize]).collect();
        if !self.is_promised(built, way) {
            return TrialRun {
                way,
                need: 0,
                exceeds: vec![false; wanted.len()],
                broken: self.broken_sequence(&wanted),
                wanted,
            };
        }
        let mut needs = self.needs(built, skeleton, &order);
        if self.relaxed {
            let outputs = built.outputs_of_barriers(&wanted);
            for (need, outputs) in needs.beside.iter_mut().zip(outputs) {
                *need = need.saturating_sub(self.object * outputs);
            }
        }
        TrialRun {
            way,
            need: needs.most(),
            exceeds: self.exceeding(&needs),
            broken: self.broken_sequence(&wanted),
            wanted,
        }
    }

    fn needs(&self, built: &Built, skeleton: &Skeleton, order: &[u32]) -> Needs {
        let settings = built.shapes.as_ref().map(|shapes| (self.settings, shapes));
        Needs::of(skeleton, order, settings, self.object)
    }

    fn broken_sequence(&self, wanted: &[u32]) -> Option<u32> {
        if self.sequences.is_empty() {
            return None;
        }
        // A barrier has its reader's position, and runs before it.
        let mut time = vec![0; self.placement.len()];
        for (step, &position) in wanted.iter().enumerate() {
            time[position as usize] = step;
        }
        let broken = |&&(first, second): &&(u32, u32)| time[first as usize] > time[second as usize];
        self.sequences
            .iter()
            .find(broken)
            .map(|&(_, second)| second)
    }

    /// Adds barriers where the simulated orders exceed the budget; few at first. False if all that
    /// could help exist.
    fn add(
        &self,
        runs: &[TrialRun],
        stretch: usize,
        chosen: &mut ChosenPlaces,
        effort: &TrialEffort,
    ) -> bool {
        let mut few = Vec::new();
        if effort.work <= self.allowance / 2 {
            for run in runs {
                few.extend(
                    self.blame(run)
                        .few(stretch, |position| !chosen[position as usize]),
                );
            }
        }
        let add = |positions: Vec<u32>, chosen: &mut ChosenPlaces| {
            let mut added = false;
            for position in positions {
                added |= !std::mem::replace(&mut chosen[position as usize], true);
            }
            added
        };
        add(few, chosen) || {
            let all = runs.iter().flat_map(|run| self.blame(run).all()).collect();
            add(all, chosen)
        }
    }

    fn blame<'r>(&'r self, run: &'r TrialRun) -> Blame<'r> {
        Blame {
            placement: self.placement,
            run,
        }
    }

    /// Fewer barriers than those chosen, and each waiting for less.
    fn fewer(&self, chosen: &ChosenPlaces, effort: &mut TrialEffort) -> Vec<Barrier> {
        let all = self.placement.barriers(chosen);
        let positions: Vec<u32> = all.iter().map(|barrier| barrier.before).collect();
        let marked = |kept: &[bool]| {
            let mut chosen = vec![false; chosen.len()];
            for (&position, &kept) in positions.iter().zip(kept) {
                chosen[position as usize] = kept;
            }
            self.placement.barriers(&chosen)
        };
        self.grant(effort);
        let kept = thin_out(positions.len(), usize::MAX, effort, |kept, effort| {
            effort.stopped |= self.is_stopped();
            if effort.stopped {
                return Trial::Misses(Vec::new());
            }
            let Some(run) = self.first_misfit(&marked(kept), effort) else {
                return Trial::Fits;
            };
            let places = |found: Vec<u32>| {
                let places = found.iter().filter_map(|p| positions.binary_search(p).ok());
                places.filter(|&place| !kept[place]).collect::<Vec<_>>()
            };
            let blame = self.blame(&run);
            let few = places(blame.few(usize::MAX, |position| {
                positions
                    .binary_search(&position)
                    .is_ok_and(|place| !kept[place])
            }));
            Trial::Misses(if few.is_empty() {
                places(blame.all())
            } else {
                few
            })
        });
        self.grant(effort);
        self.waiting_for_less(marked(&kept), effort)
    }

    /// Lets thinning out begin.
    fn grant(&self, effort: &mut TrialEffort) {
        let allowance = self.thinning.min(self.allowance);
        effort.limit = effort.work.saturating_add(allowance);
    }

    /// The barriers with fewer of the nodes that each waits for; the last one stays, which often
    /// brings the others along.
    fn waiting_for_less(&self, barriers: Vec<Barrier>, effort: &mut TrialEffort) -> Vec<Barrier> {
        // All but the last of each barrier, by barrier.
        let waits = |barrier: &'_ Barrier| barrier.waits[..barrier.waits.len() - 1].to_vec();
        let others: Vec<u32> = barriers.iter().flat_map(waits).collect();
        let reduced = |kept: &[bool]| {
            let mut kept = kept.iter();
            let mut reduced = barriers.clone();
            for barrier in &mut reduced {
                let last = barrier.waits.len() - 1;
                let mut stays = (0..=last).map(|wait| wait == last || kept.next() == Some(&true));
                barrier.waits.retain(|_| stays.next() == Some(true));
            }
            reduced
        };
        let kept = thin_out(others.len(), GROUPS, effort, |kept, effort| {
            effort.stopped |= self.is_stopped();
            if effort.stopped {
                return Trial::Misses(Vec::new());
            }
            let Some(run) = self.first_misfit(&reduced(kept), effort) else {
                return Trial::Fits;
            };
            let blame = self.blame(&run);
            let (late, mut early) = (blame.late(), blame.few(usize::MAX, |_| true));
            early.sort_unstable();
            let mut places = Vec::new();
            let mut end = 0;
            for barrier in &barriers {
                let start = end;
                end += barrier.waits.len() - 1;
                let missing: Vec<usize> = (start..end).filter(|&place| !kept[place]).collect();
                if early.binary_search(&barrier.before).is_ok() {
                    places.extend(&missing[missing.len() / 2..]);
                    continue;
                }
                places.extend(missing.into_iter().filter(|&place| {
                    let waited = self.placement.producer(others[place]);
                    waited.is_some_and(|node| late[node as usize])
                }));
            }
            Trial::Misses(places)
        });
        reduced(&kept)
    }
}

#[cfg(test)]
mod tests;
