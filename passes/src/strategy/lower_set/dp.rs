//! Algorithm 1 of the paper, over any family of lower sets.

use super::sets::Sets;
use crate::watch::Watch;

/// What is best among the sequences that fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SequenceGoal {
    /// Time-centric, if it takes less than that.
    LeastTime { below: u32 },
    /// Memory-centric: coarse segments leave the most to liveness analysis.
    MostTime,
}

/// opt[L, t] = m for one L: the least that a sequence up to L of time t keeps.
#[derive(Clone, Copy, Debug)]
struct Entry {
    time: u32,
    kept: u64,
    /// The set before, and the entry there.
    from: (u32, u32),
}

/// The time of the best sequence within `budget`, as formula (1) counts it, and its sets without
/// the empty one; `None` if none fits and serves the goal, `work` (entries and pairs looked at) is used up, or the watch
/// says stop.
pub(super) fn best_sequence(
    family: &Sets,
    budget: u64,
    goal: SequenceGoal,
    work: &mut u64,
    watch: &Watch,
) -> Option<(u32, Vec<usize>)> {
    let sets = &family.sets;
    let mut table: Vec<Vec<Entry>> = vec![vec![Entry {
        time: 0,
        kept: 0,
        from: (0, 0),
    }]];
    // By set: the least that a sequence keeps.
    let mut least = vec![0];
    // Of one set, by time.
    let mut best: Vec<Option<Entry>> = vec![None; sets[sets.len() - 1].time as usize + 1];
    // Times only grow.
    let below = match goal {
        SequenceGoal::LeastTime { below } => below,
        SequenceGoal::MostTime => u32::MAX,
    };
    for (place, upper) in sets.iter().enumerate().skip(1) {
        if watch.is_stopped() {
            return None;
        }
        for step in family
            .steps(place, upper.bytes.saturating_sub(budget / 2))
            .iter()
        {
            let lower = step.lower as usize;
            let inside = upper.bytes - sets[lower].bytes;
            if table[lower].is_empty() || least[lower] + 2 * inside > budget {
                continue;
            }
            *work = work.checked_sub(1)?;
            let need = 2 * inside + upper.behind;
            if least[lower] + need > budget {
                continue;
            }
            *work = work.checked_sub(table[lower].len() as u64)?;
            let time = upper.time - sets[lower].time - step.saved;
            // The later ones keep less.
            let fitting = table[lower].partition_point(|entry| entry.kept + need > budget);
            for (i, entry) in (0..).zip(&table[lower]).skip(fitting) {
                let (time, kept) = (entry.time + time, entry.kept + step.kept);
                let best = &mut best[time as usize];
                if time < below && best.is_none_or(|best| kept < best.kept) {
                    let from = (step.lower, i);
                    *best = Some(Entry { time, kept, from });
                }
            }
        }
        let entries = useful(&mut best, goal);
        least.push(entries.iter().map(|entry| entry.kept).min().unwrap_or(0));
        table.push(entries);
    }
    let last = sets.len() - 1;
    let entries = table[last].iter().enumerate();
    let best = match goal {
        SequenceGoal::LeastTime { .. } => entries.min_by_key(|(_, entry)| entry.time),
        SequenceGoal::MostTime => entries.max_by_key(|(_, entry)| entry.time),
    };
    let (mut entry, time) = best.map(|(i, entry)| (i, entry.time))?;
    let (mut set, mut sequence) = (last, Vec::new());
    while set != 0 {
        sequence.push(set);
        let from = table[set][entry].from;
        (set, entry) = (from.0 as usize, from.1 as usize);
    }
    sequence.reverse();
    Some((time, sequence))
}

/// Takes out those that keep less than all whose time is as good, the best time first.
fn useful(by_time: &mut [Option<Entry>], goal: SequenceGoal) -> Vec<Entry> {
    let mut least = u64::MAX;
    let mut keeps_less = |entry: &Entry| {
        let useful = entry.kept < least;
        least = least.min(entry.kept);
        useful
    };
    let all = by_time.iter_mut().map(Option::take);
    match goal {
        SequenceGoal::LeastTime { .. } => all.flatten().filter(&mut keeps_less).collect(),
        SequenceGoal::MostTime => all.rev().flatten().filter(&mut keeps_less).collect(),
    }
}

/// The smallest B for which any sequence fits, by binary search to a thousandth; a larger one if the
/// watch says stop.
pub(super) fn smallest_budget(family: &Sets, watch: &Watch) -> u64 {
    let all = family.sets.last().map_or(0, |set| set.bytes);
    // With one segment, everything is in twice.
    let (mut low, mut high) = (0, 2 * all);
    while high - low > high / 1000 && !watch.is_stopped() {
        let middle = low + (high - low) / 2;
        match is_feasible(family, middle) {
            true => high = middle,
            false => low = middle,
        }
        if high == low + 1 {
            break;
        }
    }
    high
}

/// Does any sequence fit? As Algorithm 1 without times.
fn is_feasible(family: &Sets, budget: u64) -> bool {
    let sets = &family.sets;
    let mut least: Vec<Option<u64>> = vec![Some(0)];
    for (place, upper) in sets.iter().enumerate().skip(1) {
        let steps = family.steps(place, upper.bytes.saturating_sub(budget / 2));
        let kept = steps.iter().filter_map(|step| {
            let held = least[step.lower as usize]?;
            let inside = upper.bytes - sets[step.lower as usize].bytes;
            (held + 2 * inside + upper.behind <= budget).then_some(held + step.kept)
        });
        least.push(kept.min());
    }
    least[sets.len() - 1].is_some()
}
