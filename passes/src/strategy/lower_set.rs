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

use super::{ForwardPart, Segments, Task};
use crate::bytes::Bytes;
use crate::plan::Plan;
use crate::watch::Watch;

mod dp;
mod sets;

use dp::{Goal, best_sequence, smallest_budget};
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
    /// The budget it was made for, as formula (2) counts: B.
    pub(super) budget: u64,
    /// Formula (1), in counted times.
    pub(super) time: u32,
}

/// The plans for the smallest feasible B and some larger ones, of the least time (time-centric)
/// or of the most (memory-centric, section 4.4), the smallest first; and what the paper's own
/// formula makes of the first. An error says why there are none.
pub(super) fn plans(
    task: &Task<'_>,
    sequences: Sequences,
    memory_centric: bool,
) -> Result<(Vec<Plan>, Vec<String>), String> {
    let forward = ForwardPart::of(task);
    let mut plans = Vec::new();
    let found = modelled(&forward, sequences, memory_centric, &task.watch)?;
    let mut notes = Vec::new();
    if let Some(smallest) = found.first().map(|modelled| Bytes(modelled.budget)) {
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
        plans.extend(segments.plans(task, &forward, &segments.mirror_counts(&forward)));
    }
    Ok((plans, notes))
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
            Goal::MostTime,
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
    let goal = match memory_centric {
        true => Goal::MostTime,
        false => Goal::LeastTime,
    };
    let least = smallest_budget(&sets, watch);
    // The first is looked for to the end.
    let mut work = u64::MAX;
    let mut found: Vec<Modelled> = Vec::new();
    let step = if sets.sets.len() > MANY { 4 } else { 1 };
    for eighth in (0..=EIGHTHS).step_by(step) {
        let budget = (least as f64 * 2f64.powf(f64::from(eighth) / 8.0)).ceil() as u64;
        let Some((time, sequence)) = best_sequence(&sets, budget, goal, &mut work, watch) else {
            break;
        };
        let segments = sets.segments(&sequence);
        if found.iter().all(|other| other.segments != segments) {
            found.push(Modelled {
                segments,
                budget,
                time,
            });
        }
        work = work.min(WORK);
    }
    Ok(found)
}

/// Budgets are tried up to four times the smallest, by eighths of an octave.
const EIGHTHS: u32 = 16;

/// So many lower sets take so long that fewer budgets are tried.
const MANY: usize = 1_000;

/// Table entries that may be looked at for budgets above the smallest: some seconds.
const WORK: u64 = 150_000_000;

#[cfg(test)]
mod tests;
