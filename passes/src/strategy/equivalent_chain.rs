//! What one gets without seeing the branches of a join (Beaumont et al. 2019, section 4).
//!
//! Steps at the same distance from the turn become one step of the *equivalent chain*: of branches of
//! ℓ_1 … ℓ_k steps, step j of the L = max ℓ_m is that of the n_j branches with ℓ_m > L − j. It takes
//! n_j times as long, and what it computes takes n_j slots. The chain is reversed as well as a chain
//! can be. The paper has equal branches only (n_j = k: Revolve, on slots of k times the size). Of others,
//! x_0 of a branch that begins later lies in its slot from the start, as in the join, and is free
//! when the branch is over.
//!
//! With value a stored, and c slots besides it, the k gradients and what else is kept, steps a+1 … b are
//! reversed in
//!
//! ```text
//! B(a, b, c) = min over a < s < b with n_s ≤ c of
//!              F(a, s) + B(s, b, c − n_s) + B(a, s, c + branches that begin in s … b−1),
//! ```
//!
//! where F is the time forward, and a single step takes its backward time alone. Up to the turn it is
//! the same, with the turn behind the last value that is stored.

use super::join_dp::Times;

/// Steps of the innermost loop at most.
const MOST_STEPS: usize = 50_000_000;

/// The time of the equivalent chain for branches of these lengths within `slots` slots; `None` if it
/// does not fit, or if there are too many steps to look at.
pub fn equivalent_chain(lengths: &[usize], slots: usize, times: Times) -> Option<u64> {
    let longest = lengths.iter().copied().max()?;
    if longest.saturating_pow(3).saturating_mul(slots + 1) / 6 > MOST_STEPS {
        return None;
    }
    let begins: Vec<usize> = lengths.iter().map(|length| longest - length).collect();
    let chain = Equivalent {
        longest,
        slots,
        // Step j computes value j.
        running: (0..=longest)
            .map(|j| begins.iter().filter(|&&begin| begin < j).count())
            .collect(),
        begins,
        times,
        reversals: Vec::new(),
    };
    chain.solve()
}

struct Equivalent {
    /// L.
    longest: usize,
    slots: usize,
    /// n_j by j; 0 before the first step.
    running: Vec<usize>,
    /// By branch: the value that is its x_0.
    begins: Vec<usize>,
    times: Times,
    /// B by (a, b, c); `u64::MAX` if it does not fit.
    reversals: Vec<u64>,
}

impl Equivalent {
    fn solve(mut self) -> Option<u64> {
        let (longest, slots) = (self.longest, self.slots);
        self.reversals = vec![u64::MAX; longest * (longest + 1) / 2 * (slots + 1)];
        for length in 1..=longest {
            for a in 0..=longest - length {
                self.fill(a, a + length);
            }
        }
        // Each branch has a slot for its gradient or what is computed, and each that begins has one
        // for its x_0. By what is stored last and the slots besides.
        let open = self.begins.iter().filter(|&&begin| begin < longest).count();
        let free = slots.checked_sub(self.begins.len() + open)?;
        let mut best = vec![vec![u64::MAX; free + 1]; longest + 1];
        best[longest].fill(self.times.turn);
        for a in (0..longest).rev() {
            for c in 0..=free {
                for s in a + 1..=longest {
                    let held = if s == longest { 0 } else { self.running[s] };
                    let Some(rest) = c.checked_sub(held) else {
                        continue;
                    };
                    let time = best[s][rest]
                        .saturating_add(self.forward(a, s))
                        .saturating_add(self.reversal(a, s, c + self.freed(s, longest)));
                    best[a][c] = best[a][c].min(time);
                }
            }
        }
        Some(best[0][free]).filter(|&time| time < u64::MAX)
    }

    fn fill(&mut self, a: usize, b: usize) {
        let row = self.row(a, b);
        for c in 0..=self.slots {
            self.reversals[row + c] = if a + 1 == b {
                self.running[b] as u64 * self.times.backward
            } else {
                let splits = (a + 1..b).filter(|&s| self.running[s] <= c);
                let time = |s: usize| {
                    self.forward(a, s)
                        .saturating_add(self.reversal(s, b, c - self.running[s]))
                        .saturating_add(self.reversal(a, s, c + self.freed(s, b)))
                };
                splits.map(time).min().unwrap_or(u64::MAX)
            };
        }
    }

    fn row(&self, a: usize, b: usize) -> usize {
        ((b - 1) * b / 2 + a) * (self.slots + 1)
    }

    fn reversal(&self, a: usize, b: usize, c: usize) -> u64 {
        self.reversals[self.row(a, b) + c.min(self.slots)]
    }

    fn forward(&self, a: usize, s: usize) -> u64 {
        let steps: usize = self.running[a + 1..=s].iter().sum();
        steps as u64 * self.times.forward
    }

    /// The branches whose x_0 is free once steps from s on are reversed up to b.
    fn freed(&self, s: usize, b: usize) -> usize {
        let begins = self.begins.iter();
        begins.filter(|&&begin| (s..b).contains(&begin)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::super::join_dp::{JoinDp, fewest_slots, least_span, most_slots};
    use super::*;

    fn optimum(lengths: &[usize], slots: usize) -> Option<u64> {
        JoinDp::solve(lengths, slots, Times::UNIT).cost(slots)
    }

    #[test]
    fn equal_branches_are_a_chain_of_larger_values() {
        for branches in 1..=3 {
            let times = Times {
                forward: branches as u64,
                backward: branches as u64,
                turn: 1,
            };
            for length in 1..=12 {
                for slots in 1..=40 {
                    let own = slots / branches;
                    let chain = JoinDp::solve(&[length], own, times).cost(own);
                    let found = equivalent_chain(&vec![length; branches], slots, Times::UNIT);
                    assert_eq!(found, chain, "{branches} of {length}, {slots} slots");
                }
            }
        }
    }

    #[test]
    fn it_is_never_better_than_the_optimum() {
        // Equal, as in the triplet network, and unequal, as in the cross-modal one.
        for lengths in [
            vec![8, 8, 8],
            vec![3, 15],
            vec![1, 9],
            vec![0, 6],
            vec![2, 5, 9],
        ] {
            let most = most_slots(&lengths);
            let mut worse = 0;
            for slots in fewest_slots(&lengths)..=most {
                let optimum = optimum(&lengths, slots).unwrap();
                let chain = equivalent_chain(&lengths, slots, Times::UNIT);
                assert!(
                    chain.is_none_or(|chain| chain >= optimum),
                    "{lengths:?}, {slots}"
                );
                worse += u32::from(chain != Some(optimum));
            }
            // With a slot for every value nothing runs twice.
            let all = equivalent_chain(&lengths, most, Times::UNIT);
            assert_eq!(all, Some(least_span(&lengths, Times::UNIT)), "{lengths:?}");
            // A branch without steps is no branch to be seen.
            assert!(worse > 0 || lengths[0] == 0, "{lengths:?}");
        }
    }

    #[test]
    fn a_short_branch_runs_beside_the_end_of_the_long_one() {
        // Branches of one and three steps. Step 3 is that of both, so both x_0, both gradients and
        // value 2 of the long branch are there at once: five slots, where the join needs four. Value 1
        // has no slot before value 2 is gone, so step 1 runs again: five steps, four back, the turn.
        let chain = |slots| equivalent_chain(&[1, 3], slots, Times::UNIT);
        assert_eq!((fewest_slots(&[1, 3]), chain(4)), (4, None));
        assert_eq!(chain(5), Some(10));
        assert_eq!(chain(6), Some(9));
    }

    #[test]
    fn too_many_steps_are_not_looked_at() {
        assert_eq!(equivalent_chain(&[2, 2000], 1000, Times::UNIT), None);
    }

    #[test]
    fn it_is_often_worse_than_the_optimum() {
        let mut worse = 0;
        for length in 1..=16 {
            for slots in [9, 12, 15] {
                let lengths = [length; 3];
                let optimum = optimum(&lengths, slots).unwrap();
                let chain = equivalent_chain(&lengths, slots, Times::UNIT).unwrap();
                assert!(chain >= optimum, "{length}, {slots}");
                worse += u32::from(chain > optimum);
            }
        }
        assert!(worse > 20, "{worse}");
    }
}
