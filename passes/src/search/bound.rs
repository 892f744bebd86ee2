//! A lower bound on the added time of every schedule that keeps the order of first computations.
//!
//! **Gaps.** For a value v and two consecutive original uses a < b of it, let x = 1 if v is not
//! resident at some original step between them. Then v's producer runs again in that gap, and
//! different gaps of one value need different runs. At every original step t enough must be away:
//!
//! minimise the time of all runs, subject to, for every t, Σ over gaps around t of m·x ≥ D(t),
//!
//! with m the value's size, and D(t) the need of step t without copies less the budget. A use
//! that could overwrite v, were it the last, belongs to the gap behind it.
//!
//! **What a run needs.** A copy of v's producer in the gap reads a value u. If no original reads
//! u after a, the unmodified schedule has freed it. Either u's producer runs again in the gap as
//! well, or u has been kept, and is there at all steps of the gap at which v is away. With
//! m(u) ≥ m(v) keeping u takes what dropping v gives. Where several values need the same u, it is shared out
//! among them, m(v) for each that gets a share, at no time more than m(u); for these together keeping u takes
//! what dropping them gives. So in every schedule where such an x gives something, u's producer runs in the gap;
//! the same holds for what that run needs. Where u cannot be computed again, v cannot be away to any use.
//!
//! **Who pays.** A run serves all gaps around it that need its node. Each pays a share, such that
//! at no time the shares of one node are more than its time. Any such shares are valid.
//!
//! The dual, max over λ ≥ 0 of Σ λ(t)·D(t) + Σ over gaps of min(0, c - m·Σ λ(t) around it), with
//! c the shares that the gap pays, is climbed by a subgradient method with Polyak's step; shares
//! move to the gaps that λ would rather have away. Every iterate is a valid bound.
//! O(rounds · (steps + gaps)).

mod ascent;
mod gaps;
mod overlap;
mod periods;
mod whole;

use super::problem::Problem;
use crate::program::{Limits, Solver};
pub(crate) use ascent::Rounds;
use ascent::{Cover, climb};
use gaps::gaps;

/// Nanoseconds that every schedule within `budget` adds; `known` is what one such schedule adds,
/// and `memory` the need of each step without copies.
pub(crate) fn lower_bound(
    problem: &Problem,
    memory: &[f64],
    budget: f64,
    known: u64,
    rounds: Rounds,
) -> u64 {
    covered(problem, memory, budget, known, |cover| {
        climb(cover, known as f64, rounds)
    })
}

/// The same with whole gaps and runs, by a solver.
pub(crate) fn whole_bound(
    problem: &Problem,
    memory: &[f64],
    budget: f64,
    known: u64,
    solver: &dyn Solver,
    limits: Limits,
) -> u64 {
    covered(problem, memory, budget, known, |cover| {
        whole::solve(cover, solver, limits)
    })
}

/// The same by a program over periods, by a solver.
pub(crate) fn period_bound(
    problem: &Problem,
    memory: &[f64],
    budget: f64,
    known: u64,
    solver: &dyn Solver,
    limits: Limits,
) -> u64 {
    if memory.iter().all(|&need| need <= budget) {
        return 0;
    }
    rounded(
        periods::solve(problem, memory, budget, solver, limits),
        known,
    )
}

fn covered(
    problem: &Problem,
    memory: &[f64],
    budget: f64,
    known: u64,
    bound: impl FnOnce(&Cover<'_>) -> f64,
) -> u64 {
    let deficit: Vec<f64> = memory.iter().map(|need| need - budget).collect();
    if deficit.iter().all(|&need| need <= 0.0) {
        return 0;
    }
    let gaps = gaps(problem);
    let times: Vec<f64> = problem.steps.iter().map(|step| step.again as f64).collect();
    let best = bound(&Cover {
        deficit: &deficit,
        gaps: &gaps,
        times: &times,
    });
    rounded(best, known)
}

/// Rounding must not lift a bound above what is proved; a solver rounds more than we do.
fn rounded(bound: f64, known: u64) -> u64 {
    ((bound * (1.0 - 1e-6)) as u64).min(known)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::analysis::recompute::Recomputation;
    use crate::bytes::Bytes;
    use crate::cost::{Cost, Nanos};
    use crate::graph::{Graph, Uses};
    use crate::operators::Provider;
    use crate::search::{Effort, Search};
    use crate::testing::{brute_force, random_training_graph};

    const CPU: Provider = Provider::Cpu;

    fn costs(graph: &Graph) -> Vec<Cost> {
        let cost = |id: u64| Cost {
            time: Nanos(100 + id * 70 % 900),
            workspace: Bytes::ZERO,
        };
        (0..graph.node_count() as u64).map(cost).collect()
    }

    fn search(graph: &Graph) -> Search {
        let rules = Recomputation::of(graph, &BTreeMap::new());
        let effort = Effort {
            seed: 1,
            evaluations: 5_000,
        };
        Search::new(graph, graph.order(), CPU, &costs(graph), &rules, effort)
    }

    /// The exhaustive search counts such results as freed.
    fn is_something_unread(graph: &Graph) -> bool {
        let uses = Uses::of(graph);
        let mut written = graph.order().iter().flat_map(|&id| graph.node(id).writes());
        written.any(|t| uses.readers(t).is_empty() && !graph.outputs.contains(&t))
    }

    #[test]
    fn no_optimum_is_below_the_bound() {
        let (mut compared, mut positive) = (0, 0);
        for seed in 0..150 {
            let graph = random_training_graph(seed, 4 + seed as usize % 5);
            if graph.node_count() > 8 || is_something_unread(&graph) {
                continue;
            }
            let mut search = search(&graph);
            let most = search.without_copies().predicted_peak;
            let least = search.smallest().predicted_peak;
            for part in 0..4 {
                let budget = least + Bytes((most - least).0 * part / 4);
                let Some(optimum) = brute_force(&graph, CPU, &costs(&graph), budget) else {
                    continue;
                };
                // What is known only sets the pace; with more, a wrong bound would show.
                let bound = search.lower_bound(budget, optimum.added.0 * 2 + 1000);
                assert!(
                    bound <= optimum.added.0,
                    "seed {seed}, {budget}: {bound} {optimum:?}"
                );
                compared += 1;
                positive += usize::from(bound > 0);
            }
        }
        assert!(compared > 50 && positive > 10, "{positive} of {compared}");
    }

    #[test]
    fn no_plan_is_below_the_bound() {
        for seed in 0..20 {
            let graph = random_training_graph(seed, 30);
            let costs = costs(&graph);
            let mut search = search(&graph);
            let most = search.without_copies().predicted_peak;
            let least = search.smallest().predicted_peak;
            let budget = least + Bytes((most - least).0 / 2);
            let plan = search.cheaper(budget, u64::MAX).unwrap();
            let time: u64 = plan
                .sequence
                .iter()
                .map(|id| costs[id.index()].time.0)
                .sum();
            let once: u64 = costs.iter().map(|cost| cost.time.0).sum();
            let bound = search.lower_bound(budget, (time - once) * 2 + 1000);
            assert!(bound <= time - once, "seed {seed}: {bound} {}", time - once);
        }
    }

    #[test]
    fn what_fits_without_copies_costs_nothing() {
        let graph = random_training_graph(1, 30);
        let search = search(&graph);
        let budget = search.without_copies().predicted_peak;
        assert_eq!(search.lower_bound(budget, 1000), 0);
    }
}
