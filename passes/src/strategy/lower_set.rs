//! Kusumoto, Inoue, Watanabe, Akiba and Koyama: A Graph Theoretic Framework of Recomputation
//! Algorithms for Memory-Efficient Backpropagation, 2019.
//!
//! A *lower set* is a set of vertices that nothing outside leads into. An increasing sequence
//! L_1 ≺ … ≺ L_k = V is a canonical strategy with the segments V_i = L_i \ L_{i-1}: the boundary
//! ∂(L_i), which is what something outside L_i is computed from, is kept. Its time is formula (1),
//! the sum of T(V_i \ ∂(L_i)), and its memory formula (2), the largest of
//! M(U_{i-1}) + 2 M(V_i) + M(δ⁺(L_i) \ L_i) + M(δ⁻(δ⁺(L_i)) \ L_i), where U_i is all that is kept
//! up to L_i. Both are used as they stand: without liveness analysis. What the plans need in truth
//! is for the exact simulation to say, which is the paper's "with liveness analysis".
//!
//! Two things differ. Vertices that cannot be computed again belong to every boundary. Times are
//! counted in 1/512 of T(V) each, at least one, since a table by time needs few of them; the paper
//! takes 10 for a convolution and 1 for anything else.

use std::collections::BTreeMap;

use super::{ForwardPart, Segments, Tagged, Task};
use crate::bytes::Bytes;
use crate::plan::Plan;
use crate::runtime::liveness::fixed_bytes;
use crate::watch::Watch;

mod dp;
mod sets;

use dp::{SequenceGoal, best_sequence, smallest_budget};
use sets::Sets;

/// Lower sets beyond this are not enumerated: the table is quadratic in them.
pub(super) const MOST_SETS: usize = 12_000;

/// Which lower sets are considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sequences {
    /// All of them (section 4.2).
    Exact,
    /// The ancestors of each vertex, L^Pruned (section 4.3).
    Approximate,
}

/// A sequence of lower sets as its family counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Modelled {
    pub(super) segments: Segments,
    /// Formula (2).
    pub(super) memory: u64,
    /// Formula (1), in counted times.
    pub(super) time: u32,
}

/// The plans for the smallest feasible B and larger ones, of the least time (time-centric)
/// or of the most (memory-centric, section 4.4), the smallest first, each with what formula (2) says of
/// it. An error says why there are none.
pub(super) fn plans(
    task: &Task<'_>,
    sequences: Sequences,
    memory_centric: bool,
) -> Result<(Vec<Tagged>, Vec<String>), String> {
    let forward = ForwardPart::of(task);
    let mut plans = Vec::new();
    let found = modelled(&forward, sequences, memory_centric, &task.watch)?;
    let mut notes = Vec::new();
    if let Some(smallest) = found.first().map(|modelled| Bytes(modelled.memory)) {
        let most = if task.watch.is_stopped() {
            "at most "
        } else {
            ""
        };
        notes.push(format!(
            "without liveness analysis, by the paper's formula, the smallest budget of a canonical \
             strategy is {most}{smallest} besides what the caller owns"
        ));
    } else {
        notes.push("the time limit ended it before there was a sequence of lower sets".to_owned());
    }
    for modelled in found {
        let segments = &modelled.segments;
        let counts = segments.mirror_counts(&forward);
        let of_segments = segments.plans(task, &forward, &counts);
        plans.extend(
            of_segments
                .into_iter()
                .map(|plan| (plan, Some(modelled.memory))),
        );
    }
    Ok((plans, notes))
}

/// Sets the formula beside the simulation of the plan: without and with liveness analysis.
pub(super) fn say(task: &Task<'_>, memory: u64, peak: Bytes) -> String {
    let owned = fixed_bytes(task.graph);
    format!(
        "of the plan's canonical strategy the formula says {}; with liveness analysis, by the exact \
         simulation in the planned order, the plan needs {}, each besides what the caller owns",
        Bytes(memory),
        peak - owned
    )
}

/// A few memory-centric plans from ancestors, quickly.
pub(super) fn coarse(task: &Task<'_>) -> Vec<Plan> {
    let forward = ForwardPart::of(task);
    let sets = Sets::ancestors(&forward);
    let least = smallest_budget(&sets, &task.watch);
    let mut plans = Vec::new();
    for part in [1.0, 1.2, 1.5] {
        let budget = (least as f64 * part).ceil() as u64;
        let best = best_sequence(
            &sets,
            budget,
            SequenceGoal::MostTime,
            &mut WORK.clone(),
            &task.watch,
        );
        let Some((_, sequence)) = best else { break };
        let segments = sets.segments(&sequence);
        plans.extend(segments.plans(task, &forward, &segments.mirror_counts(&forward)));
    }
    plans
}

/// The sequences behind [`plans`].
pub(super) fn modelled(
    forward: &ForwardPart,
    sequences: Sequences,
    memory_centric: bool,
    watch: &Watch,
) -> Result<Vec<Modelled>, String> {
    let sets = match sequences {
        Sequences::Exact => Sets::all(forward, MOST_SETS)?,
        Sequences::Approximate => Sets::ancestors(forward),
    };
    let least = smallest_budget(&sets, watch);
    let (finest, least_time) = sets.finest(forward);
    let most = if memory_centric { 0 } else { finest };
    let mut times: BTreeMap<u64, u32> = BTreeMap::new();
    // The first is looked for to the end.
    let mut work = u64::MAX;
    let mut found: Vec<(u64, Modelled)> = Vec::new();
    for budget in budgets(least, most, sets.sets.len() > FEWER_BUDGETS_FROM) {
        let lower = times.range(..budget).next_back().map(|known| *known.1);
        let upper = times.range(budget..).next().map(|known| *known.1);
        // More memory is of use for less time alone.
        if !memory_centric && lower.is_some() && (lower == upper || lower == Some(least_time)) {
            continue;
        }
        let goal = match memory_centric {
            true => SequenceGoal::MostTime,
            false => SequenceGoal::LeastTime {
                below: lower.unwrap_or(u32::MAX),
            },
        };
        let best = best_sequence(&sets, budget, goal, &mut work, watch);
        if best.is_none() && found.is_empty() {
            break;
        }
        if let Some(time) = best.as_ref().map(|best| best.0).or(lower) {
            times.insert(budget, time);
        }
        if let Some((time, sequence)) = best {
            let segments = sets.segments(&sequence);
            if found.iter().all(|(_, other)| other.segments != segments) {
                let memory = sets.memory(&sequence);
                let modelled = Modelled {
                    segments,
                    memory,
                    time,
                };
                found.push((budget, modelled));
            }
        }
        work = work.min(WORK);
    }
    found.sort_by_key(|(budget, _)| *budget);
    if !memory_centric {
        found.dedup_by_key(|(_, modelled)| modelled.time);
    }
    Ok(found.into_iter().map(|(_, modelled)| modelled).collect())
}

/// The budgets to try: from the smallest to four times that, and on to `most`. First by octaves, then
/// between these down to eighths, so that the range is covered however far the work goes.
fn budgets(least: u64, most: u64, many: bool) -> impl Iterator<Item = u64> {
    let octaves = (most as f64 / least.max(1) as f64).log2().ceil();
    let octaves = (octaves as u32).clamp(LEAST_OCTAVES, MOST_OCTAVES);
    let finest = if many { 2 } else { 8 };
    let parts = [1, 2, 4, 8]
        .into_iter()
        .filter(move |&parts| parts <= finest);
    parts.flat_map(move |parts| {
        let new = move |i: &u32| parts == 1 || i % 2 == 1;
        let part = move |i: u32| f64::from(i) / f64::from(parts);
        let budget = move |i: u32| (least as f64 * 2f64.powf(part(i))).ceil() as u64;
        (0..=octaves * parts).filter(new).map(budget)
    })
}

/// Budgets are tried up to four times the smallest at least.
const LEAST_OCTAVES: u32 = 2;

/// They are tried up to so many octaves above the smallest at most.
const MOST_OCTAVES: u32 = 8;

/// So many lower sets take so long that fewer budgets are tried.
const FEWER_BUDGETS_FROM: usize = 1_000;

/// Table entries that may be looked at for budgets above the smallest: some seconds.
const WORK: u64 = 150_000_000;

#[cfg(test)]
mod tests;
