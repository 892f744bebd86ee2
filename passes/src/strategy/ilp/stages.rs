//! A schedule of units as both programs have it, in *stages*: in stage t, unit t is computed for the
//! first time, after whatever is computed again for it. What is kept decides everything else
//! (Checkmate's section 5: R follows from S).

use super::units::Units;

/// What is to become of a unit's results when a stage begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// They are freed.
    No,
    /// They stay if they are there.
    IfThere,
    /// They stay, and are computed for it in the stage before if they are not there.
    Yes,
}

/// By stage: the units that run in it, its own last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stages(pub(super) Vec<Vec<usize>>);

impl Stages {
    /// What has to run where `keep` says, by stage and unit, what is there when a stage begins.
    /// What cannot be computed again is always kept. O(stages · (units + reads)).
    pub(super) fn of(units: &Units, keep: impl Fn(usize, usize) -> Keep) -> Stages {
        let all = &units.units;
        let count = all.len();
        let mut stages = Vec::with_capacity(count);
        // What is there at the end of a stage.
        let mut have = vec![false; count];
        for t in 0..count {
            let keep = |unit: usize| match t + 1 < count {
                true => keep(t + 1, unit),
                false => Keep::No,
            };
            let mut wanted = vec![false; count];
            wanted[t] = true;
            for k in (0..=t).rev() {
                let of = &all[k];
                wanted[k] |= k < t && !have[k] && of.repeats() && keep(k) == Keep::Yes;
                if wanted[k] {
                    for &i in of.reads.iter().filter(|&&i| all[i].bytes > 0.0) {
                        wanted[i] |= !have[i] && all[i].repeats();
                    }
                }
            }
            stages.push((0..=t).filter(|&k| wanted[k]).collect());
            for k in 0..=t {
                have[k] = (have[k] || wanted[k]) && (!all[k].repeats() || keep(k) != Keep::No);
            }
        }
        Stages(stages)
    }

    /// Every unit once.
    pub(super) fn once(units: &Units) -> Stages {
        Stages((0..units.units.len()).map(|unit| vec![unit]).collect())
    }

    /// The units in the sequence in which they run.
    pub(super) fn runs(&self) -> Vec<usize> {
        self.0.iter().flatten().copied().collect()
    }

    /// The same with their stages, which come first.
    pub(super) fn in_stages(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let stages = self.0.iter().enumerate();
        stages.flat_map(|(stage, runs)| runs.iter().map(move |&unit| (stage, unit)))
    }

    /// By stage and unit: is it there when the stage begins and read from then on, before it is
    /// computed again?
    pub(super) fn stored(&self, units: &Units) -> Vec<Vec<bool>> {
        let mut stored = vec![Vec::new(); self.0.len()];
        let mut wanted = vec![false; units.units.len()];
        for (t, runs) in self.0.iter().enumerate().rev() {
            for &unit in runs.iter().rev() {
                wanted[unit] = false;
                for &from in &units.units[unit].reads {
                    wanted[from] = true;
                }
            }
            stored[t].clone_from(&wanted);
        }
        stored
    }

    /// The most that is there at once.
    pub(super) fn peak(&self, units: &Units) -> f64 {
        let needs = self.needs(units).into_iter();
        needs.map(|need| need.1).fold(0.0, f64::max)
    }

    /// By run: its stage, and what is there then, results kept from their computation to their
    /// last reader.
    pub(super) fn needs(&self, units: &Units) -> Vec<(usize, f64)> {
        let runs: Vec<(usize, usize)> = self.in_stages().collect();
        let mut last = vec![0; runs.len()];
        let mut latest = vec![None; units.units.len()];
        for (place, &(_, unit)) in runs.iter().enumerate() {
            for &from in &units.units[unit].reads {
                if let Some(written) = latest[from] {
                    last[written] = place;
                }
            }
            last[place] = place;
            latest[unit] = Some(place);
        }
        let mut change = vec![0.0; runs.len() + 1];
        for (place, &(_, unit)) in runs.iter().enumerate() {
            change[place] += units.units[unit].bytes;
            change[last[place] + 1] -= units.units[unit].bytes;
        }
        let mut live = 0.0;
        let needs = runs.iter().zip(change).map(|(&(stage, unit), change)| {
            live += change;
            (
                stage,
                live + units.units[unit].transient + units.standing[stage],
            )
        });
        needs.collect()
    }

    /// Nanoseconds that the units take which run again.
    pub(super) fn added(&self, units: &Units) -> f64 {
        let again = self.in_stages().filter(|(stage, unit)| stage != unit);
        again.map(|(_, unit)| units.units[unit].time).sum()
    }
}
