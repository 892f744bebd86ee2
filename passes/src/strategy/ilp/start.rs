//! A schedule to begin with, by a cheap rule that is in neither paper: the solver improves on it, and
//! where its time is short it is what there is.
//!
//! A *gap* is what lies between two consecutive uses of a unit's results, its first computation
//! among them. Some gaps are given up at once, those that cost least for their bytes; then one
//! after another, whichever costs least for the excess over the budget that it takes away; at last
//! those are taken back, the dearest first, that the budget does not need.

use super::stages::{Keep, Stages};
use super::units::Units;
use crate::watch::Watch;

/// What is done with a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bridge {
    /// The results stay.
    Held,
    /// They are freed, and stay from when they are first computed again.
    Once,
    /// They are freed, and computed again for every reader.
    Never,
}

#[derive(Clone, Copy, Debug)]
struct UnitGap {
    unit: usize,
    /// The stage of the use before; that behind it, whose stage still wants them.
    after: usize,
    until: usize,
}

/// So many parts of the gaps are given up at once, from none of them on.
const PARTS: usize = 2;

/// So many gaps are looked at to give up one, those that cost least for their bytes.
const LOOKED_AT: usize = 16;

/// Finds starts in one sequence of units.
pub(super) struct UnitStarts<'u> {
    units: &'u Units,
    /// Nothing is given up that is wanted before this stage.
    from: usize,
    watch: &'u Watch,
    gaps: Vec<UnitGap>,
    /// The gaps by the time of their unit for its bytes.
    by_price: Vec<usize>,
    /// By unit and stage: the gap in which the stage begins.
    gap_at: Vec<Vec<Option<usize>>>,
}

/// A schedule, what it adds and what it lacks.
#[derive(Clone, Debug)]
struct FoundStart {
    bridges: Vec<Bridge>,
    stages: Stages,
    added: f64,
    /// Bytes above the budget, over all runs.
    excess: f64,
    /// The stage of the largest need.
    peak: usize,
}

impl<'u> UnitStarts<'u> {
    /// Nothing is given up that is wanted before stage `from`.
    pub(super) fn of(units: &'u Units, from: usize, watch: &'u Watch) -> UnitStarts<'u> {
        let count = units.units.len();
        let mut uses: Vec<Vec<usize>> = (0..count).map(|unit| vec![unit]).collect();
        for (reader, unit) in units.units.iter().enumerate() {
            for &read in &unit.reads {
                uses[read].push(reader);
            }
        }
        let mut gaps = Vec::new();
        let mut gap_at = vec![vec![None; count]; count];
        for (unit, uses) in uses.iter().enumerate() {
            if !units.units[unit].repeats() {
                continue;
            }
            for pair in uses.windows(2) {
                let (after, until) = (pair[0], pair[1]);
                if until <= after + 1 || until < from {
                    gap_at[unit][after + 1..=until].fill(Some(usize::MAX));
                    continue;
                }
                gap_at[unit][after + 1..=until].fill(Some(gaps.len()));
                gaps.push(UnitGap { unit, after, until });
            }
        }
        let price = |gap: usize| {
            let unit = &units.units[gaps[gap].unit];
            unit.time / unit.bytes
        };
        let mut by_price: Vec<usize> = (0..gaps.len()).collect();
        by_price.sort_by(|&a, &b| price(a).total_cmp(&price(b)));
        UnitStarts {
            units,
            from,
            watch,
            by_price,
            gaps,
            gap_at,
        }
    }

    /// The cheapest schedule found within `room` bytes as the programs count them.
    pub(super) fn within(&self, room: f64) -> Option<Stages> {
        let mut best: Option<FoundStart> = None;
        for part in 0..=PARTS {
            let mut bridges = vec![Bridge::Held; self.gaps.len()];
            for &gap in &self.by_price[..self.gaps.len() * part / PARTS] {
                bridges[gap] = Bridge::Once;
            }
            let start = self.found(room, bridges);
            if let Some(fitting) = self.descended(room, start) {
                let pruned = self.pruned(room, fitting);
                if best.as_ref().is_none_or(|best| pruned.added < best.added) {
                    best = Some(pruned);
                }
            }
        }
        best.map(|best| best.stages)
    }

    /// The smallest room in which [`UnitStarts::within`] finds something, to a twentieth, and what.
    pub(super) fn smallest(&self, most: f64) -> Option<Stages> {
        let (mut low, mut high) = (self.units.structural(), most);
        let mut found = None;
        while high - low > high / 20.0 && !self.watch.is_stopped() {
            let middle = low.midpoint(high);
            match self.within(middle) {
                Some(stages) => (found, high) = (Some(stages), middle),
                None => low = middle,
            }
        }
        found
    }

    fn found(&self, room: f64, bridges: Vec<Bridge>) -> FoundStart {
        let stages = Stages::of(self.units, |stage, unit| {
            if stage < self.from {
                return Keep::Yes;
            }
            match self.gap_at[unit][stage] {
                None => Keep::No,
                Some(usize::MAX) => Keep::Yes,
                Some(gap) => match bridges[gap] {
                    Bridge::Held => Keep::Yes,
                    Bridge::Once => Keep::IfThere,
                    Bridge::Never => Keep::No,
                },
            }
        });
        let needs = stages.needs(self.units);
        let excess = needs.iter().map(|need| (need.1 - room).max(0.0)).sum();
        let largest = needs.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        FoundStart {
            peak: largest.map_or(0, |need| need.0),
            added: stages.added(self.units),
            bridges,
            stages,
            excess,
        }
    }

    /// Gives up gaps at the peak until it fits, always what costs least for what it takes away.
    fn descended(&self, room: f64, mut found: FoundStart) -> Option<FoundStart> {
        while found.excess > 0.0 {
            if self.watch.is_stopped() {
                return None;
            }
            let covers = |&&gap: &&usize| {
                let UnitGap { after, until, .. } = self.gaps[gap];
                (after..=until).contains(&found.peak) && found.bridges[gap] != Bridge::Never
            };
            let open = self.by_price.iter().filter(covers).take(LOOKED_AT);
            let moves = open.map(|&gap| match found.bridges[gap] {
                Bridge::Held => (gap, Bridge::Once),
                _ => (gap, Bridge::Never),
            });
            let mut best: Option<(f64, FoundStart)> = None;
            for (gap, bridge) in moves {
                let mut bridges = found.bridges.clone();
                bridges[gap] = bridge;
                let next = self.found(room, bridges);
                let (saved, cost) = (found.excess - next.excess, next.added - found.added);
                if saved <= 0.0 {
                    continue;
                }
                let price = cost.max(0.0) / saved;
                if best.as_ref().is_none_or(|best| price < best.0) {
                    best = Some((price, next));
                }
            }
            found = best?.1;
        }
        Some(found)
    }

    /// Takes back what the room does not need, the dearest first.
    fn pruned(&self, room: f64, mut found: FoundStart) -> FoundStart {
        let mut given_up: Vec<usize> = (0..self.gaps.len())
            .filter(|&gap| found.bridges[gap] != Bridge::Held)
            .collect();
        let time = |gap: usize| self.units.units[self.gaps[gap].unit].time;
        given_up.sort_by(|&a, &b| time(b).total_cmp(&time(a)));
        for gap in given_up {
            if self.watch.is_stopped() {
                break;
            }
            for bridge in [Bridge::Held, Bridge::Once] {
                if bridge == found.bridges[gap] {
                    break;
                }
                let mut bridges = found.bridges.clone();
                bridges[gap] = bridge;
                let next = self.found(room, bridges);
                if next.excess == 0.0 && next.added <= found.added {
                    found = next;
                    break;
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::with_task;
    use crate::testing::{UniformChain, random_training_graph};

    #[test]
    fn a_start_fits_its_room_and_every_unit_runs() {
        let mut again = 0;
        for seed in 0..20 {
            let graph = random_training_graph(seed, 30 + seed as usize);
            with_task(&graph, |task| {
                let units = Units::of(task, [20, 20]).unwrap();
                let every: Vec<usize> = (0..units.units.len()).collect();
                let most = Stages::once(&units).peak(&units);
                for from in [0, units.forward] {
                    let starts = UnitStarts::of(&units, from, &task.watch);
                    assert_eq!(starts.within(most).unwrap().runs(), every);
                    for part in [0.9, 0.8, 0.7] {
                        let Some(found) = starts.within(most * part) else {
                            continue;
                        };
                        let runs = found.runs();
                        assert!(found.peak(&units) <= most * part, "seed {seed}, {part}");
                        let mut first = runs.clone();
                        first.sort_unstable();
                        first.dedup();
                        assert_eq!(first, every, "seed {seed}");
                        again += usize::from(runs.len() > every.len());
                    }
                }
            });
        }
        assert!(again > 10, "{again}");
    }

    #[test]
    fn the_smallest_start_of_a_chain_is_near_its_smallest_peak() {
        for length in [8, 16] {
            let chain = UniformChain::new(length);
            with_task(&chain.graph, |task| {
                let units = Units::of(task, [40; 2]).unwrap();
                let starts = UnitStarts::of(&units, 0, &task.watch);
                let most = Stages::once(&units).peak(&units);
                let found = starts.smallest(most).unwrap();
                // Every layer again from the first for every gradient: x1, the one before, the one
                // computed, and two gradients.
                let peak = found.peak(&units) / UniformChain::UNIT.0 as f64;
                assert!(peak < 5.1, "{length}: {peak}");
            });
        }
    }
}
