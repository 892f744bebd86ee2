//! Beaumont et al.: the optimal reversal of uniform chains that meet in the loss.
//!
//! *Optimal Memory-aware Backpropagation of Deep Join Networks* (Beaumont, Herrmann, Pallez,
//! Shilova, 2019). k branches of ℓ_1 … ℓ_k steps end in one *turn*. Memory has c slots, each for
//! one value or gradient; a step may write over its input. In canonical form (Theorem 1) some
//! values are stored on the way forward, and after the turn they are read in the opposite order:
//! the steps behind each are reversed by Revolve before anything else is read. So with x_0 of
//! every branch in memory (Theorem 3)
//!
//! ```text
//! Opt(ℓ, c) = min over branches m and 0 < i ≤ ℓ_m of
//!             i·u_f + Opt(ℓ with ℓ_m − i, c − 1) + Opt₀(i − 1, c − (k − 1)),
//! ```
//!
//! Opt(0, c) = u_t for c ≥ k, and nothing fits in less than c_min(ℓ) slots (Theorem 2).
//!
//! What one gets without seeing the branches, the *equivalent chain* (section 4), is in
//! [`equivalent_chain`](super::equivalent_chain).
//!
//! The forward phase may visit the branches in any order at no cost (proof of Theorem 1); here it
//! runs one branch after the other, which is the sequence of the unmodified graph.
//!
//! O(c · Σℓ · Π(ℓ + 1)) time, O(c · Π(ℓ + 1)) memory.

use super::chain::{Chain, Operation};
use super::revolve::{opt0, schedule_between};

/// How long steps take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// u_f, a forward step.
    pub forward: u64,
    /// u_b, a backward step.
    pub backward: u64,
    /// u_t, the turn.
    pub turn: u64,
}

impl Times {
    /// One each, as in the paper's figures.
    pub const UNIT: Times = Times {
        forward: 1,
        backward: 1,
        turn: 1,
    };
}

/// c_min(ℓ), the fewest slots that are enough (Theorem 2).
pub fn fewest_slots(lengths: &[usize]) -> usize {
    let open = lengths.iter().filter(|&&length| length > 0).count();
    match open {
        0 => lengths.len(),
        _ if lengths.contains(&1) => lengths.len() + open,
        _ => lengths.len() + open + 1,
    }
}

/// The slots with which nothing runs twice: every value is kept.
pub fn most_slots(lengths: &[usize]) -> usize {
    lengths.iter().sum::<usize>() + lengths.len()
}

/// The time in which nothing runs twice.
pub fn least_span(lengths: &[usize], times: Times) -> u64 {
    let steps = lengths.iter().sum::<usize>() as u64;
    steps * (times.forward + times.backward) + times.turn
}

/// One operation of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinOperation {
    /// On one branch.
    Branch(usize, Operation),
    /// The results of all branches become gradients.
    Turn,
}

/// The best next step: a branch, and how far to run on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BranchStep {
    branch: u16,
    steps: u16,
}

/// The table of Theorem 3.
#[derive(Clone, Debug)]
pub struct JoinDp {
    lengths: Vec<usize>,
    slots: usize,
    /// By remaining lengths (the first branch varies fastest) and slots; `u64::MAX` if it does
    /// not fit.
    time: Vec<u64>,
    step: Vec<BranchStep>,
}

impl JoinDp {
    /// How many cells the table has.
    pub fn cells(lengths: &[usize], slots: usize) -> usize {
        let states = lengths
            .iter()
            .fold(1usize, |states, &length| states.saturating_mul(length + 1));
        states.saturating_mul(slots + 1)
    }

    /// Solves the join of branches with these lengths (each below 2^16) for up to `slots` slots.
    pub fn solve(lengths: &[usize], slots: usize, times: Times) -> JoinDp {
        let cells = JoinDp::cells(lengths, slots);
        let mut tables = JoinDp {
            lengths: lengths.to_vec(),
            slots,
            time: vec![u64::MAX; cells],
            step: vec![BranchStep::default(); cells],
        };
        let k = lengths.len();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        // Opt₀ by length and slots; u64::MAX if it does not fit.
        let reversal: Vec<Vec<u64>> = (0..longest)
            .map(|l| {
                let time = |c| opt0(l as u64, c as u64, times.forward, times.backward);
                (0..=slots).map(|c| time(c).unwrap_or(u64::MAX)).collect()
            })
            .collect();
        let mut left = vec![0; k];
        for state in 0..cells / (slots + 1) {
            tables.fill(state, &left, &reversal, times);
            for (length, &most) in left.iter_mut().zip(lengths) {
                *length += 1;
                if *length <= most {
                    break;
                }
                *length = 0;
            }
        }
        tables
    }

    fn fill(&mut self, state: usize, left: &[usize], reversal: &[Vec<u64>], times: Times) {
        let width = self.slots + 1;
        let k = left.len();
        let row = state * width;
        let fewest = fewest_slots(left);
        if left.iter().all(|&length| length == 0) {
            for c in fewest..width {
                self.time[row + c] = times.turn;
            }
            return;
        }
        let mut stride = 1;
        for (branch, &length) in left.iter().enumerate() {
            for i in 1..=length {
                let rest = (state - i * stride) * width;
                let forward = i as u64 * times.forward;
                for c in fewest..width {
                    let time = self.time[rest + c - 1]
                        .saturating_add(reversal[i - 1][c + 1 - k])
                        .saturating_add(forward);
                    if time < self.time[row + c] {
                        self.time[row + c] = time;
                        self.step[row + c] = BranchStep {
                            branch: branch as u16,
                            steps: i as u16,
                        };
                    }
                }
            }
            stride *= self.lengths[branch] + 1;
        }
    }

    fn row(&self, left: &[usize]) -> usize {
        let mut row = 0;
        for (&length, &most) in left.iter().zip(&self.lengths).rev() {
            row = row * (most + 1) + length;
        }
        row * (self.slots + 1)
    }

    /// Opt_join of the whole join with that many slots; `None` if it does not fit.
    pub fn cost(&self, slots: usize) -> Option<u64> {
        let cell = self.row(&self.lengths) + slots.min(self.slots);
        Some(self.time[cell]).filter(|&time| time < u64::MAX)
    }

    /// The optimal schedule for `branches`, whose stages are the steps; `None` if it does not fit.
    pub fn schedule(&self, branches: &[Chain], slots: usize) -> Option<Vec<JoinOperation>> {
        self.cost(slots)?;
        let mut slots = slots.min(self.slots);
        let k = self.lengths.len();
        let mut left = self.lengths.clone();
        // Branch, stored value, how many steps from there on, and slots for their reversal.
        let mut stored: Vec<(usize, usize, usize, usize)> = Vec::new();
        while left.iter().any(|&length| length > 0) {
            let step = self.step[self.row(&left) + slots];
            let (branch, steps) = (usize::from(step.branch), usize::from(step.steps));
            let at = self.lengths[branch] - left[branch];
            stored.push((branch, at, steps, slots));
            left[branch] -= steps;
            slots -= 1;
        }
        let mut schedule = Vec::new();
        for (branch, &length) in self.lengths.iter().enumerate() {
            let is_stored = |i: usize| i == 0 || stored.iter().any(|s| (s.0, s.1) == (branch, i));
            for i in 0..length {
                schedule.push(JoinOperation::Branch(branch, Operation::Forward(i)));
                if !is_stored(i) {
                    schedule.push(JoinOperation::Branch(branch, Operation::Drop(i)));
                }
            }
        }
        schedule.push(JoinOperation::Turn);
        for (branch, at, steps, slots) in stored.into_iter().rev() {
            // The other gradients, this one, and the running value.
            let checkpoints = (slots as u64).saturating_sub(k as u64 + 1);
            let reversal = schedule_between(&branches[branch], at, at + steps, checkpoints);
            let on_branch = |operation| JoinOperation::Branch(branch, operation);
            schedule.extend(reversal.into_iter().map(on_branch));
            schedule.push(JoinOperation::Branch(branch, Operation::Drop(at)));
        }
        Some(schedule)
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::{BTreeMap, BinaryHeap};

    use super::*;

    /// Time of the schedule and slots that it takes, by operation; panics if something is missing.
    fn simulate(lengths: &[usize], schedule: &[JoinOperation]) -> (u64, usize) {
        let mut values: Vec<Vec<usize>> = vec![vec![0]; lengths.len()];
        let mut gradients: Vec<Option<usize>> = vec![None; lengths.len()];
        let (mut time, mut most) = (0, 0);
        let mut operations = schedule.iter().peekable();
        while let Some(&operation) = operations.next() {
            match operation {
                JoinOperation::Branch(m, Operation::Forward(i)) => {
                    assert!(values[m].contains(&i));
                    let over = JoinOperation::Branch(m, Operation::Drop(i));
                    if operations.next_if(|&&next| next == over).is_some() {
                        values[m].retain(|&value| value != i);
                    }
                    values[m].push(i + 1);
                    time += 1;
                }
                JoinOperation::Branch(m, Operation::Backward(i)) => {
                    assert_eq!(gradients[m], Some(i + 1));
                    assert!(values[m].contains(&i));
                    gradients[m] = Some(i);
                    time += 1;
                }
                JoinOperation::Branch(m, Operation::Drop(i)) => {
                    let before = values[m].len();
                    values[m].retain(|&value| value != i);
                    assert_eq!(values[m].len() + 1, before);
                }
                JoinOperation::Branch(..) => panic!("{operation:?} without internals"),
                JoinOperation::Turn => {
                    for (m, &length) in lengths.iter().enumerate() {
                        let before = values[m].len();
                        values[m].retain(|&value| value != length);
                        assert_eq!(values[m].len() + 1, before);
                        gradients[m] = Some(length);
                    }
                    time += 1;
                }
            }
            let values: usize = values.iter().map(Vec::len).sum();
            most = most.max(values + gradients.iter().flatten().count());
        }
        assert!(gradients.iter().all(|gradient| *gradient == Some(0)));
        (time, most)
    }

    /// By branch: which values are there, as bits, and the gradient, if the turn is over.
    type State = (Vec<u32>, Option<Vec<usize>>);

    /// The least time with `slots` slots by Dijkstra's algorithm over all states of the pebble game.
    fn exhaustive(lengths: &[usize], slots: usize) -> Option<u64> {
        let start: State = (vec![1; lengths.len()], None);
        let mut best = BTreeMap::from([(start.clone(), 0)]);
        let mut queue = BinaryHeap::from([Reverse((0, start))]);
        while let Some(Reverse((time, state))) = queue.pop() {
            if best[&state] < time {
                continue;
            }
            if state.1.as_ref().is_some_and(|g| g.iter().all(|&g| g == 0)) {
                return Some(time);
            }
            for (cost, next) in moves(lengths, &state) {
                let values: u32 = next.0.iter().map(|values| values.count_ones()).sum();
                let gradients = next.1.as_ref().map_or(0, Vec::len);
                if values as usize + gradients > slots {
                    continue;
                }
                let total = time + cost;
                if best.get(&next).is_none_or(|&known| total < known) {
                    best.insert(next.clone(), total);
                    queue.push(Reverse((total, next)));
                }
            }
        }
        None
    }

    fn moves(lengths: &[usize], (values, gradients): &State) -> Vec<(u64, State)> {
        let mut moves = Vec::new();
        for (m, &length) in lengths.iter().enumerate() {
            for i in 0..=length {
                if values[m] & (1 << i) == 0 {
                    continue;
                }
                let with = |bits: u32| {
                    let mut values = values.clone();
                    values[m] = bits;
                    values
                };
                let without = values[m] & !(1 << i);
                moves.push((0, (with(without), gradients.clone())));
                if i < length {
                    for bits in [values[m], without] {
                        moves.push((1, (with(bits | 1 << (i + 1)), gradients.clone())));
                    }
                }
                if let Some(gradients) = gradients
                    && gradients[m] == i + 1
                {
                    let mut gradients = gradients.clone();
                    gradients[m] = i;
                    moves.push((1, (values.clone(), Some(gradients))));
                }
            }
        }
        let ends = || values.iter().zip(lengths);
        if gradients.is_none() && ends().all(|(bits, length)| bits & (1 << length) != 0) {
            let rest = ends().map(|(bits, length)| bits & !(1 << length)).collect();
            moves.push((1, (rest, Some(lengths.to_vec()))));
        }
        moves
    }

    #[test]
    fn agrees_with_exhaustive_search_on_small_joins() {
        let joins: [&[usize]; 14] = [
            &[0, 0],
            &[1],
            &[2],
            &[5],
            &[0, 1],
            &[1, 1],
            &[0, 2],
            &[1, 3],
            &[2, 2],
            &[2, 4],
            &[3, 3],
            &[1, 2, 2],
            &[2, 2, 2],
            &[0, 1, 3],
        ];
        for lengths in joins {
            let most = most_slots(lengths);
            let tables = JoinDp::solve(lengths, most + 1, Times::UNIT);
            let branches: Vec<Chain> = lengths.iter().map(|&l| Chain::uniform(l)).collect();
            for slots in lengths.len()..=most + 1 {
                let optimum = exhaustive(lengths, slots);
                assert_eq!(tables.cost(slots), optimum, "{lengths:?}, {slots} slots");
                assert_eq!(
                    optimum.is_some(),
                    slots >= fewest_slots(lengths),
                    "{lengths:?}"
                );
                if let Some(schedule) = tables.schedule(&branches, slots) {
                    let (time, took) = simulate(lengths, &schedule);
                    assert_eq!(Some(time), optimum, "{lengths:?}, {slots} slots");
                    assert!(took <= slots, "{lengths:?}, {slots} slots: {took}");
                }
            }
            assert_eq!(tables.cost(most), Some(least_span(lengths, Times::UNIT)));
        }
    }

    #[test]
    fn schedules_of_long_branches_take_what_the_table_says() {
        for lengths in [vec![12, 12, 12], vec![6, 30], vec![40]] {
            let most = most_slots(&lengths);
            let tables = JoinDp::solve(&lengths, most, Times::UNIT);
            let branches: Vec<Chain> = lengths.iter().map(|&l| Chain::uniform(l)).collect();
            assert_eq!(tables.schedule(&branches, fewest_slots(&lengths) - 1), None);
            for slots in fewest_slots(&lengths)..=most {
                let schedule = tables.schedule(&branches, slots).unwrap();
                let (time, took) = simulate(&lengths, &schedule);
                assert_eq!(Some(time), tables.cost(slots), "{lengths:?}, {slots} slots");
                assert!(took <= slots, "{lengths:?}, {slots} slots: {took}");
            }
        }
    }
}
