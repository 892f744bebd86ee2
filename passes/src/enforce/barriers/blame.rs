//! Where barriers could help: what a run that exceeds the budget did too early or too late.

use super::placement::Placement;
use super::runs::TrialRun;

pub(super) struct Blame<'r> {
    pub(super) placement: &'r Placement,
    pub(super) run: &'r TrialRun,
}

impl Blame<'_> {
    /// Positions that a barrier should stand before, ascending: every node that runs where the budget is exceeded,
    /// so that what belongs before it is over by then, and every node that ran too early.
    pub(super) fn all(&self) -> Vec<u32> {
        let exceeding = self.exceeding().map(|step| self.run.wanted[step]);
        let mut all: Vec<u32> = exceeding.collect();
        all.extend(self.run.broken);
        all.extend(positions(&self.early()));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Fewer of them that may do: where the budget is exceeded, the first that is `free` in every stretch of at most so many
    /// steps; and of what ran too early, whoever reads nothing that did.
    pub(super) fn few(&self, stretch: usize, free: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut few: Vec<u32> = self.run.broken.into_iter().collect();
        let (mut first, mut next, mut found) = (0, 0, false);
        for step in self.exceeding() {
            if step > next || step - first >= stretch {
                (first, found) = (step, false);
            }
            next = step + 1;
            let position = self.run.wanted[step];
            if !found && free(position) {
                found = true;
                few.push(position);
            }
        }
        let early = self.early();
        let first = |&position: &u32| {
            let mut producers = self.placement.producers(position);
            !producers.any(|producer| early[producer as usize])
        };
        few.extend(positions(&early).filter(first));
        few
    }

    /// By position: what runs behind a step that exceeds the budget although it belongs before it.
    pub(super) fn late(&self) -> Vec<bool> {
        let mut late = vec![false; self.placement.len()];
        let mut most = 0;
        for (step, &position) in self.run.wanted.iter().enumerate() {
            late[position as usize] |= position < most;
            if self.run.exceeds[step] {
                most = most.max(position);
            }
        }
        late
    }

    /// By position: what runs before a step that exceeds the budget although it belongs behind it.
    fn early(&self) -> Vec<bool> {
        let mut early = vec![false; self.placement.len()];
        let mut least = u32::MAX;
        let first = self.exceeding().next().unwrap_or(0);
        let last = self.exceeding().last().map_or(0, |last| last + 1);
        for step in (0..last).rev() {
            let position = self.run.wanted[step];
            if step >= first {
                least = least.min(position);
            }
            early[position as usize] |= position > least;
        }
        early
    }

    fn exceeding(&self) -> impl Iterator<Item = usize> {
        (0..self.run.exceeds.len()).filter(|&step| self.run.exceeds[step])
    }
}

fn positions(marked: &[bool]) -> impl Iterator<Item = u32> {
    let marked = marked.iter().enumerate().filter(|(_, marked)| **marked);
    marked.map(|(position, _)| position as u32)
}
