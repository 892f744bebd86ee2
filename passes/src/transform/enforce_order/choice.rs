//! Which barriers: added where the simulated orders exceed the budget, then taken out again while
//! both simulated orders still fit; then what each of them waits for, in the same way.
//!
//! Every simulation is counted by the nodes that it visits. Once the allowance is used up, what
//! is known to fit remains: barriers that may not be needed, but never a peak above the budget.

use std::cell::{Cell, OnceCell};

use crate::analysis::liveness;
use crate::analysis::order::{ExecutionOrder, execution_order};
use crate::analysis::skeleton::Skeleton;
use crate::graph::{Graph, NodeId};

use super::blame::Blame;
use super::placement::{Barrier, Chosen, Placement};
use super::thinning::{Trial, thin_out};
use super::{EnforceOrder, Thinning};

/// How many visits of nodes adding may take: two to eight seconds, the more the larger the graph.
const WORK: usize = 40_000_000;

/// And thinning out, first the barriers and then what they wait for: one too many costs little.
const THINNING: usize = WORK / 5;

/// How many times a quick look at either visits every node.
const QUICK: usize = 24;

/// In how many groups at most waits are thinned out.
const GROUPS: usize = 64;

pub(super) struct Choice<'p> {
    placement: &'p Placement,
    /// Positions of which the first has to run before the second.
    sequences: Vec<(u32, u32)>,
    budget: u64,
    /// Bytes that a tensor takes besides its elements.
    object: u64,
    allowance: usize,
    thinning: usize,
    /// Visits of nodes so far.
    work: Cell<usize>,
    /// In which form and order the budget was exceeded last.
    last: Cell<Option<(usize, ExecutionOrder)>>,
}

/// One way in which the runtime executes the graph with barriers.
pub(super) struct Run {
    /// By step: the position in the file that the node belongs to; a barrier has its reader's.
    pub(super) wanted: Vec<u32>,
    /// By step: what it needs.
    pub(super) profile: Vec<u64>,
    /// The second node of a pair that runs in the wrong sequence.
    pub(super) broken: Option<u32>,
}

impl<'p> Choice<'p> {
    pub(super) fn new(
        placement: &'p Placement,
        graph: &Graph,
        pass: &EnforceOrder<'_>,
        budget: u64,
    ) -> Choice<'p> {
        let positions = graph.positions();
        let place = |id: NodeId| positions[id.index()];
        let pairs = pass.sequences.iter();
        Choice {
            placement,
            sequences: pairs
                .map(|&(first, second)| (place(first), place(second)))
                .collect(),
            budget,
            object: pass.object.0,
            allowance: WORK,
            thinning: match pass.thinning {
                Thinning::Quick => THINNING.min(QUICK * placement.len()),
                Thinning::Thorough => THINNING,
            },
            work: Cell::new(0),
            last: Cell::new(None),
        }
    }

    /// The barriers that are needed; or the peak, if they do not help.
    pub(super) fn choose(&self) -> Result<Vec<Barrier>, u64> {
        let mut chosen = vec![false; self.placement.len()];
        loop {
            let runs = self.runs(&self.placement.barriers(&chosen));
            if runs.iter().all(|run| self.is_kept_by(run)) {
                return Ok(self.fewer(&chosen));
            }
            if self.work.get() > self.allowance || !self.add(&runs, &mut chosen) {
                break;
            }
        }
        let all = vec![true; self.placement.len()];
        if self.fits(&self.placement.barriers(&all)) {
            return Ok(self.fewer(&all));
        }
        Err(self.peak(&all))
    }

    /// The largest need of all orders.
    pub(super) fn peak(&self, chosen: &Chosen) -> u64 {
        let runs = self.runs(&self.placement.barriers(chosen));
        let needs = runs.iter().flat_map(|run| run.profile.iter().copied());
        needs.max().unwrap_or(0)
    }

    fn fits(&self, barriers: &[Barrier]) -> bool {
        self.first_misfit(barriers).is_none()
    }

    fn first_misfit(&self, barriers: &[Barrier]) -> Option<Run> {
        self.find(barriers, |run| {
            Some(run).filter(|run| !self.is_kept_by(run))
        })
    }

    fn runs(&self, barriers: &[Barrier]) -> Vec<Run> {
        let mut runs = Vec::new();
        self.find(barriers, |run| {
            runs.push(run);
            None
        });
        runs
    }

    fn is_kept_by(&self, run: &Run) -> bool {
        run.broken.is_none() && run.profile.iter().all(|&need| need <= self.budget)
    }

    /// What `found` makes of the first run that it takes: of both orders of the graph with barriers, as it
    /// is and as the runtime optimizes it. What was taken last comes first, as it often is again.
    fn find(&self, barriers: &[Barrier], mut found: impl FnMut(Run) -> Option<Run>) -> Option<Run> {
        let (skeleton, position) = self.placement.with_barriers(barriers);
        let optimized = OnceCell::new();
        let optimize = || -> Vec<(Skeleton, Vec<u32>)> {
            let in_file = |kept: Vec<u32>| kept.iter().map(|&n| position[n as usize]).collect();
            let forms = skeleton.optimized().into_iter();
            forms.map(|(form, kept)| (form, in_file(kept))).collect()
        };
        let form = |number: usize| match number.checked_sub(1) {
            None => Some((&skeleton, &position)),
            Some(number) => {
                let (form, position) = optimized.get_or_init(optimize).get(number)?;
                Some((form, position))
            }
        };
        let orders = ExecutionOrder::of(&skeleton).iter().copied();
        let forms = (0..).take_while(|&number| form(number).is_some());
        let ways = forms.flat_map(|number| orders.clone().map(move |order| (number, order)));
        let last = self.last.get();
        let ways = last
            .into_iter()
            .chain(ways.filter(|&way| last != Some(way)));
        for (number, order) in ways {
            let Some((skeleton, position)) = form(number) else {
                continue;
            };
            if let Some(run) = found(self.run(skeleton, position, order)) {
                self.last.set(Some((number, order)));
                return Some(run);
            }
        }
        None
    }

    fn run(&self, skeleton: &Skeleton, position: &[u32], order: ExecutionOrder) -> Run {
        self.work
            .set(self.work.get().saturating_add(skeleton.len()));
        let order = execution_order(skeleton, order);
        let wanted: Vec<u32> = order.iter().map(|&node| position[node as usize]).collect();
        let elements = liveness::profile_of(skeleton, &order);
        let tensors = liveness::tensors(skeleton, &order);
        let needs = elements.into_iter().zip(tensors);
        Run {
            profile: needs
                .map(|(bytes, count)| bytes.saturating_add(self.object.saturating_mul(count)))
                .collect(),
            broken: self.broken_sequence(&wanted),
            wanted,
        }
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
    fn add(&self, runs: &[Run], chosen: &mut Chosen) -> bool {
        let mut few = Vec::new();
        if self.work.get() <= self.allowance / 2 {
            for run in runs {
                few.extend(self.blame(run).few(|position| !chosen[position as usize]));
            }
        }
        let add = |positions: Vec<u32>, chosen: &mut Chosen| {
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

    fn blame<'r>(&'r self, run: &'r Run) -> Blame<'r> {
        Blame {
            placement: self.placement,
            run,
            budget: self.budget,
        }
    }

    /// Fewer barriers than those chosen, and each waiting for less.
    fn fewer(&self, chosen: &Chosen) -> Vec<Barrier> {
        let limit = || {
            let allowance = self.thinning.min(self.allowance);
            self.work.get().saturating_add(allowance)
        };
        let all = self.placement.barriers(chosen);
        let mut chosen = vec![false; chosen.len()];
        let positions: Vec<u32> = all.iter().map(|barrier| barrier.before).collect();
        let at_end = limit();
        let kept = thin_out(positions.len(), usize::MAX, |kept| {
            if self.work.get() > at_end {
                return Trial::Spent;
            }
            for (&position, &kept) in positions.iter().zip(kept) {
                chosen[position as usize] = kept;
            }
            let Some(run) = self.first_misfit(&self.placement.barriers(&chosen)) else {
                return Trial::Fits;
            };
            let places = |found: Vec<u32>| {
                let places = found.iter().filter_map(|p| positions.binary_search(p).ok());
                places.filter(|&place| !kept[place]).collect::<Vec<_>>()
            };
            let blame = self.blame(&run);
            let few = places(blame.few(|position| {
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
        for (&position, kept) in positions.iter().zip(kept) {
            chosen[position as usize] = kept;
        }
        self.waiting_for_less(self.placement.barriers(&chosen), limit())
    }

    /// The barriers with fewer of the nodes that each waits for; the last one stays, which often
    /// brings the others along.
    fn waiting_for_less(&self, barriers: Vec<Barrier>, at_end: usize) -> Vec<Barrier> {
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
        let kept = thin_out(others.len(), GROUPS, |kept| {
            if self.work.get() > at_end {
                return Trial::Spent;
            }
            let Some(run) = self.first_misfit(&reduced(kept)) else {
                return Trial::Fits;
            };
            let blame = self.blame(&run);
            let (late, mut early) = (blame.late(), blame.few(|_| true));
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
