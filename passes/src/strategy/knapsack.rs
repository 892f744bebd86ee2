//! What PyTorch's partitioner does with an activation memory budget
//! (`torch._functorch.config.activation_memory_budget`): of the values that the backward part
//! reads, those are saved whose recomputation would take longest, as far as their sum stays within
//! a part of what all of them take: a 0-1 knapsack. Everything else is computed again from what is
//! saved. Nothing here knows of the peak, so a larger part may need more memory.

use super::{ForwardPart, Task, mirrored};
use crate::plan::Plan;

/// Weights are counted in this part of their sum.
const UNITS: usize = 1_000;

/// One plan for every twentieth of what the backward part reads.
pub(super) fn plans(task: &Task<'_>) -> Vec<Plan> {
    let forward = ForwardPart::of(task);
    let items: Vec<u32> = (0..forward.vertices.len() as u32)
        .filter(|&v| {
            let vertex = &forward.vertices[v as usize];
            vertex.read_backward && vertex.recomputable
        })
        .collect();
    let bytes = |v: u32| forward.vertices[v as usize].bytes.0;
    let all: u64 = items.iter().map(|&v| bytes(v)).fold(0, u64::saturating_add);
    // Rounded up: the sum of what is saved never exceeds its part.
    let weight = |v: u32| (bytes(v) as f64 / all.max(1) as f64 * UNITS as f64).ceil() as usize;
    let weights: Vec<usize> = items.iter().map(|&v| weight(v)).collect();
    let times: Vec<u64> = items
        .iter()
        .map(|&v| forward.vertices[v as usize].time)
        .collect();
    let knapsack = Knapsack::solve(&weights, &times, UNITS);
    let plan = |twentieth: usize| {
        let mut counts = vec![1; forward.vertices.len()];
        for item in knapsack.chosen(&weights, UNITS * twentieth / 20) {
            counts[items[item] as usize] = 0;
        }
        mirrored(task, &forward, &counts)
    };
    (0..20).map(plan).collect()
}

/// The table of the 0-1 knapsack: by item and capacity, whether the best choice takes the item.
struct Knapsack {
    takes: Vec<Vec<bool>>,
}

impl Knapsack {
    /// O(items · capacity).
    fn solve(weights: &[usize], values: &[u64], capacity: usize) -> Knapsack {
        let mut best = vec![0u64; capacity + 1];
        let mut takes = Vec::with_capacity(weights.len());
        for (&weight, &value) in weights.iter().zip(values) {
            let mut row = vec![false; capacity + 1];
            for room in (weight..=capacity).rev() {
                let with = best[room - weight].saturating_add(value);
                if with > best[room] {
                    best[room] = with;
                    row[room] = true;
                }
            }
            takes.push(row);
        }
        Knapsack { takes }
    }

    /// The items of the best choice within `capacity`, descending.
    fn chosen(&self, weights: &[usize], capacity: usize) -> Vec<usize> {
        let mut room = capacity;
        let mut chosen = Vec::new();
        for item in (0..weights.len()).rev() {
            if self.takes[item][room] {
                room -= weights[item];
                chosen.push(item);
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knapsack_takes_what_trying_all_choices_takes() {
        let (weights, values) = ([3, 4, 5, 9, 4], [3, 4, 4, 10, 4]);
        let table = Knapsack::solve(&weights, &values, 20);
        for capacity in 0..=20 {
            let sums = (0..32u32).map(|choice| {
                let taken = (0..5).filter(|i| choice & (1 << i) != 0);
                taken.fold((0, 0), |sum, i| (sum.0 + weights[i], sum.1 + values[i]))
            });
            let best = sums.filter(|sum| sum.0 <= capacity).map(|sum| sum.1).max();
            let chosen = table.chosen(&weights, capacity);
            assert!(chosen.iter().map(|&i| weights[i]).sum::<usize>() <= capacity);
            assert_eq!(
                chosen.iter().map(|&i| values[i]).sum::<u64>(),
                best.unwrap()
            );
        }
    }
}
