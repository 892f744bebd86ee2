//! Gruslys et al.: the optimal reversal of a uniform chain by dynamic programming.
//!
//! *Memory-efficient backpropagation through time* (NIPS 2016), Algorithm 1, as Butt's thesis
//! (2019) restates it in section 2.5.5 and Algorithm 2.1, for hidden states in the slots:
//! C(t, m) is the least number of forward operations that backpropagate t steps with m slots,
//!
//! ```text
//! C(t, 1) = t(t + 1) / 2,   C(t, m) = 2t − 1 for m ≥ t,
//! C(t, m) = min over 1 ≤ y < t of  y + C(t − y, m − 1) + C(y, m).
//! ```
//!
//! A backward part counts one forward operation of its own, for the internal states are not kept.
//! That is where "linear cost" of Algorithm 2.1, which leaves the amount open, becomes 2t − 1. Its
//! line 8 ends at the largest m; we read the largest t.
//!
//! C(t, m) = t + t(t, m) of [`super::revolve`]: the same optimum, found without a closed form.
//! O(t²·m) time, O(t·m) memory.

use super::chain::{Action, Chain, Operation, execute};

/// The tables C and D.
#[derive(Clone, Debug)]
pub struct UniformDp {
    slots: usize,
    /// C, by steps and slots − 1.
    cost: Vec<u64>,
    /// D: how many steps to run before the next checkpoint.
    policy: Vec<u32>,
}

impl UniformDp {
    /// Solves chains of up to `steps` steps with up to `slots` slots (at least 1).
    pub fn solve(steps: usize, slots: usize) -> UniformDp {
        let slots = slots.clamp(1, steps.max(1));
        let cells = (steps + 1) * slots;
        let mut tables = UniformDp {
            slots,
            cost: vec![0; cells],
            policy: vec![1; cells],
        };
        for m in 1..=slots {
            for t in 1..=steps {
                let (cost, y) = tables.best(t, m);
                let cell = tables.cell(t, m);
                (tables.cost[cell], tables.policy[cell]) = (cost, y as u32);
            }
        }
        tables
    }

    fn best(&self, t: usize, m: usize) -> (u64, usize) {
        let t64 = t as u64;
        if m >= t {
            return (2 * t64 - 1, 1);
        }
        if m == 1 {
            return (t64 * (t64 + 1) / 2, 1);
        }
        let q = |y: usize| y as u64 + self.cost(t - y, m - 1) + self.cost(y, m);
        (1..t).map(|y| (q(y), y)).min().unwrap_or((1, 1))
    }

    fn cell(&self, t: usize, m: usize) -> usize {
        t * self.slots + m.clamp(1, self.slots) - 1
    }

    /// C(t, m).
    pub fn cost(&self, t: usize, m: usize) -> u64 {
        self.cost[self.cell(t, m)]
    }

    /// The schedule for `chain`, which has no more stages than were solved, with m slots.
    pub fn schedule(&self, chain: &Chain, m: usize) -> Vec<Operation> {
        execute(chain, m.max(1), |i, j, m| {
            if m <= 1 {
                return Action::Everything;
            }
            Action::Split {
                k: i + self.policy[self.cell(j - i, m)] as usize,
                right: m - 1,
                left: m,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::chain::Stage;
    use super::super::chain::tests::simulate;
    use super::super::revolve::fewest_advances;
    use super::*;

    #[test]
    fn costs_one_forward_operation_a_step_more_than_revolve() {
        let tables = UniformDp::solve(60, 60);
        for t in 1..=60 {
            for m in 1..=60 {
                let revolve = fewest_advances(t, m).unwrap();
                assert_eq!(tables.cost(t as usize, m as usize), t + revolve, "{t}, {m}");
            }
        }
    }

    #[test]
    fn the_schedule_takes_what_the_table_says_in_as_many_slots() {
        // Cells: the internals are computed again before each backward part.
        let cell = Stage {
            forward_time: 1,
            replay_time: 1,
            result: 1,
            ..Stage::default()
        };
        let tables = UniformDp::solve(20, 20);
        for t in 1..=20 {
            let chain = Chain {
                stages: vec![cell; t],
                ..Chain::default()
            };
            for m in 1..=t {
                let (time, peak) = simulate(&chain, &tables.schedule(&chain, m));
                assert_eq!(time, tables.cost(t, m), "{t} steps, {m} slots");
                // The slots without x0, and two for the running state (not in place here).
                assert!(peak <= m as u64 + 1, "{t} steps, {m} slots: {peak}");
            }
        }
    }
}
