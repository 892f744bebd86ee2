//! A lower bound on the added time of every schedule that keeps the order of first computations.
//!
//! For a value v and two consecutive original uses a < b of it, let x = 1 if v is not resident at
//! some original step between them. Then v's producer runs again in that gap, and different gaps
//! of one value need different runs. At every original step t enough must be away:
//!
//! minimise Σ c·x subject to, for every t, Σ over gaps around t of m·x ≥ D(t), 0 ≤ x ≤ 1,
//!
//! with c the producer's time, m the value's size, and D(t) the need of step t without copies
//! less the budget. Two corrections keep this valid: outputs of one node share its time, since
//! one run brings all of them back; and a reader that could overwrite v if it were the last may
//! do so in another schedule, so D(t) at such a reader is less by m.
//!
//! The dual, max over λ ≥ 0 of Σ λ(t)·D(t) + Σ over gaps of min(0, c - m·Σ λ(t) around it), is
//! climbed by a subgradient method with Polyak's step; every iterate is a valid bound.
//! O(rounds · (steps + gaps)).

use super::problem::{Problem, Step};

/// Rounds of the subgradient method.
const ROUNDS: usize = 400;

struct Gap {
    cost: f64,
    size: f64,
    /// The steps strictly between two uses: `from..until`.
    from: Step,
    until: Step,
}

/// Nanoseconds that every schedule within `budget` adds; `known` is what one such schedule adds,
/// and `memory` the need of each step without copies.
pub(crate) fn lower_bound(problem: &Problem, memory: &[f64], budget: f64, known: u64) -> u64 {
    let gaps = gaps(problem);
    let mut deficit: Vec<f64> = memory.iter().map(|need| need - budget).collect();
    for value in &problem.values {
        let last = value.readers.last();
        for &reader in value
            .overwriters
            .iter()
            .filter(|&reader| Some(reader) != last)
        {
            deficit[reader as usize] -= value.size;
        }
    }
    if deficit.iter().all(|&need| need <= 0.0) {
        return 0;
    }
    let scale = deficit.iter().copied().fold(1.0, f64::max);
    let steps = problem.steps.len();
    let mut price = vec![0.0; steps];
    let mut prefix = vec![0.0; steps + 1];
    let mut away = vec![0.0; steps + 1];
    let (mut best, mut best_price) = (0.0, price.clone());
    let (mut pace, mut stale) = (1.0, 0);
    for _ in 0..ROUNDS {
        for step in 0..steps {
            prefix[step + 1] = prefix[step] + price[step];
        }
        away.fill(0.0);
        let mut bound: f64 = price
            .iter()
            .zip(&deficit)
            .map(|(price, need)| price * need / scale)
            .sum();
        for gap in &gaps {
            let size = gap.size / scale;
            let reduced =
                gap.cost - size * (prefix[gap.until as usize] - prefix[gap.from as usize]);
            if reduced < 0.0 {
                bound += reduced;
                away[gap.from as usize] += size;
                away[gap.until as usize] -= size;
            }
        }
        if bound > best {
            best = bound;
            best_price.clone_from(&price);
            stale = 0;
        } else {
            stale += 1;
            if stale == 20 {
                (pace, stale) = (pace / 2.0, 0);
                price.clone_from(&best_price);
                continue;
            }
        }
        let mut gone = 0.0;
        let mut square = 0.0;
        for step in 0..steps {
            gone += away[step];
            let slope = deficit[step] / scale - gone;
            // Only what the price can still follow counts.
            away[step] = if slope < 0.0 && price[step] == 0.0 {
                0.0
            } else {
                slope
            };
            square += away[step] * away[step];
            // `away` now holds the slope; its running sum is in `gone`.
        }
        if square == 0.0 {
            break;
        }
        let length = pace * (known as f64 - bound).max(0.0) / square;
        for step in 0..steps {
            price[step] = (price[step] + length * away[step]).max(0.0);
        }
    }
    // Rounding must not lift the bound above what is proved.
    ((best * (1.0 - 1e-9)) as u64).min(known)
}

fn gaps(problem: &Problem) -> Vec<Gap> {
    let mut gaps = Vec::new();
    for value in problem
        .values
        .iter()
        .filter(|value| value.recomputed && value.size > 0.0)
    {
        let producer = &problem.steps[value.producer as usize];
        let sharing = producer.writes.iter().filter(|&&other| {
            let other = &problem.values[other as usize];
            other.recomputed && other.size > 0.0
        });
        let cost = producer.time as f64 / sharing.count().max(1) as f64;
        let mut previous = value.producer;
        for &reader in &value.readers {
            if reader > previous + 1 {
                gaps.push(Gap {
                    cost,
                    size: value.size,
                    from: previous + 1,
                    until: reader,
                });
            }
            previous = reader;
        }
    }
    gaps
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::analysis::cost::{Cost, Nanos};
    use crate::analysis::recompute::Recomputation;
    use crate::bytes::Bytes;
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
            let plan = search.within(budget).unwrap();
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
