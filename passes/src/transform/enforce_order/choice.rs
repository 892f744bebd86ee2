//! Which barriers: added where the simulated orders exceed the budget, then taken out again in
//! ever smaller groups while both simulated orders still fit.
//!
//! Every simulation is counted by the nodes that it visits. Once the allowance is used up, what
//! is known to fit remains: barriers that may not be needed, but never a peak above the budget.

use std::cell::Cell;
use std::rc::Rc;

use crate::analysis::liveness;
use crate::analysis::order::{ExecutionOrder, execution_order};
use crate::analysis::skeleton::Skeleton;
use crate::graph::{Graph, NodeId};

use super::EnforceOrder;
use super::placement::{Chosen, Placement};

/// How many visits of nodes adding may take: two to eight seconds, the more the larger the graph.
const WORK: usize = 40_000_000;

/// And thinning out: a barrier too many costs little.
const THINNING: usize = WORK / 5;

pub(super) struct Choice<'p> {
    placement: &'p Placement,
    /// Positions of which the first has to run before the second.
    sequences: Vec<(u32, u32)>,
    budget: u64,
    /// Bytes that a tensor takes besides its elements.
    object: u64,
    allowance: usize,
    /// Visits of nodes so far.
    work: Cell<usize>,
}

/// One way in which the runtime executes the graph with barriers.
struct Run {
    /// By step: the position in the file that the node belongs to; a barrier has its reader's.
    wanted: Vec<u32>,
    /// By step: what it needs.
    profile: Vec<u64>,
    /// The second node of a pair that runs in the wrong sequence.
    broken: Option<u32>,
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
            work: Cell::new(0),
        }
    }

    /// Where barriers are needed; or the peak, if they do not help.
    pub(super) fn choose(&self) -> Result<Chosen, u64> {
        let mut chosen = vec![false; self.placement.len()];
        if self.fits(&chosen) {
            return Ok(chosen);
        }
        loop {
            let runs = self.runs(&chosen);
            if runs.iter().all(|run| self.is_kept_by(run)) {
                return Ok(self.thin_out(chosen));
            }
            if self.work.get() > self.allowance || !self.add_where_exceeded(&runs, &mut chosen) {
                break;
            }
        }
        let all = vec![true; self.placement.len()];
        if self.fits(&all) {
            return Ok(self.thin_out(all));
        }
        Err(self.peak(&all))
    }

    /// The largest need of all orders.
    pub(super) fn peak(&self, chosen: &Chosen) -> u64 {
        let runs = self.runs(chosen);
        let needs = runs.iter().flat_map(|run| run.profile.iter().copied());
        needs.max().unwrap_or(0)
    }

    fn fits(&self, chosen: &Chosen) -> bool {
        let mut runs = self.lazily_run(chosen);
        runs.all(|run| self.is_kept_by(&run))
    }

    fn runs(&self, chosen: &Chosen) -> Vec<Run> {
        self.lazily_run(chosen).collect()
    }

    fn is_kept_by(&self, run: &Run) -> bool {
        run.broken.is_none() && run.profile.iter().all(|&need| need <= self.budget)
    }

    /// Both orders of the graph with barriers, as it is and as the runtime optimizes it.
    fn lazily_run(&self, chosen: &Chosen) -> impl Iterator<Item = Run> {
        let barriers = self.placement.barriers(chosen);
        let (skeleton, position) = self.placement.with_barriers(&barriers);
        let optimized = skeleton.optimized().map(|(optimized, kept)| {
            let position = kept.iter().map(|&node| position[node as usize]).collect();
            (optimized, position)
        });
        let views = std::iter::once((skeleton, position)).chain(optimized);
        let runs = views.map(|view: (Skeleton, Vec<u32>)| (Rc::new(view), ExecutionOrder::ALL));
        let runs = runs.flat_map(|(view, orders)| orders.map(|order| (view.clone(), order)));
        runs.map(|(view, order)| {
            let (skeleton, position) = &*view;
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
        })
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

    /// Adds barriers where a simulated order exceeds the budget: before the node that runs
    /// there, and before every node that ran too early. False if all of them exist.
    fn add_where_exceeded(&self, runs: &[Run], chosen: &mut Chosen) -> bool {
        let mut added = false;
        let mut add = |position: u32| {
            added |= !std::mem::replace(&mut chosen[position as usize], true);
        };
        for Run {
            wanted,
            profile,
            broken,
        } in runs
        {
            broken.iter().for_each(|&second| add(second));
            let exceeds = |&need: &u64| need > self.budget;
            let (first, last) = match (
                profile.iter().position(exceeds),
                profile.iter().rposition(exceeds),
            ) {
                (Some(first), Some(last)) => (first, last),
                _ => continue,
            };
            for step in (first..=last).filter(|&step| exceeds(&profile[step])) {
                add(wanted[step]);
            }
            // From the end: what ran up to there although it belongs behind all that exceeds.
            let mut least = u32::MAX;
            for step in (0..=last).rev() {
                if step >= first {
                    least = least.min(wanted[step]);
                }
                if wanted[step] > least {
                    add(wanted[step]);
                }
            }
        }
        added
    }

    /// Takes barriers out while everything fits, in groups that halve.
    fn thin_out(&self, mut chosen: Chosen) -> Chosen {
        let barriers = self.placement.barriers(&chosen);
        let mut kept: Vec<u32> = barriers.iter().map(|barrier| barrier.before).collect();
        chosen.fill(false);
        set(&mut chosen, &kept, true);
        let limit = self.work.get().saturating_add(THINNING.min(self.allowance));
        let mut group = kept.len().div_ceil(2);
        while group > 0 {
            let mut start = 0;
            while start < kept.len() {
                if self.work.get() > limit {
                    return chosen;
                }
                let end = (start + group).min(kept.len());
                set(&mut chosen, &kept[start..end], false);
                if self.fits(&chosen) {
                    kept.drain(start..end);
                } else {
                    set(&mut chosen, &kept[start..end], true);
                    start = end;
                }
            }
            group = if group == 1 { 0 } else { group.div_ceil(2) };
        }
        chosen
    }
}

fn set(chosen: &mut Chosen, positions: &[u32], to: bool) {
    for &position in positions {
        chosen[position as usize] = to;
    }
}

#[cfg(test)]
mod tests;
