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
    let mut table: Vec<Vec<Entry>> = vec![Vec::new(); sets.len()];
    // By set: so many entries are worth the work of dropping some.
    let mut many = vec![PRUNED_FROM; sets.len()];
    table[0].push(Entry {
        time: 0,
        kept: 0,
        from: (0, 0),
    });
    for lower in 0..sets.len() {
        if watch.is_stopped() {
            return None;
        }
        prune(&mut table[lower], goal);
        let entries = std::mem::take(&mut table[lower]);
        let Some(least) = entries.iter().map(|entry| entry.kept).min() else {
            continue;
        };
        for upper in lower + 1..sets.len() {
            let inside = sets[upper].bytes - sets[lower].bytes;
            if least + 2 * inside > budget {
                // Sets ascend by memory.
                break;
            }
            *work = work.checked_sub(1)?;
            let need = 2 * inside + sets[upper].behind;
            if least + need > budget || !sets[lower].members.is_inside(&sets[upper].members) {
                continue;
            }
            let (kept, saved) = family.kept(&sets[lower], &sets[upper]);
            let time = sets[upper].time - sets[lower].time - saved;
            // Times only grow.
            let below = match goal {
                SequenceGoal::LeastTime { below } => below,
                SequenceGoal::MostTime => u32::MAX,
            };
            *work = work.checked_sub(entries.len() as u64)?;
            for (i, entry) in entries.iter().enumerate() {
                if entry.kept + need <= budget && entry.time + time < below {
                    table[upper].push(Entry {
                        time: entry.time + time,
                        kept: entry.kept + kept,
                        from: (lower as u32, i as u32),
                    });
                }
            }
            if table[upper].len() > many[upper] {
                prune(&mut table[upper], goal);
                many[upper] = PRUNED_FROM.max(2 * table[upper].len());
            }
        }
        table[lower] = entries;
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

/// Entries of one set before those are dropped that no best sequence needs.
const PRUNED_FROM: usize = 1024;

/// Drops entries that keep no less than one with a time that is as good.
fn prune(entries: &mut Vec<Entry>, goal: SequenceGoal) {
    entries.sort_by_key(|entry| match goal {
        SequenceGoal::LeastTime { .. } => (entry.time, entry.kept),
        SequenceGoal::MostTime => (u32::MAX - entry.time, entry.kept),
    });
    let mut least = u64::MAX;
    entries.retain(|entry| {
        let useful = entry.kept < least;
        least = least.min(entry.kept);
        useful
    });
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
    let mut least: Vec<Option<u64>> = vec![None; sets.len()];
    least[0] = Some(0);
    for lower in 0..sets.len() {
        let Some(held) = least[lower] else { continue };
        for upper in lower + 1..sets.len() {
            let inside = sets[upper].bytes - sets[lower].bytes;
            if held + 2 * inside > budget {
                break;
            }
            if held + 2 * inside + sets[upper].behind > budget
                || !sets[lower].members.is_inside(&sets[upper].members)
            {
                continue;
            }
            let kept = held + family.kept(&sets[lower], &sets[upper]).0;
            if least[upper].is_none_or(|other| kept < other) {
                least[upper] = Some(kept);
            }
        }
    }
    least[sets.len() - 1].is_some()
}
