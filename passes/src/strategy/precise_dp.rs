//! Butt's precise checkpointing: optimal for a chain with its own time and size in every stage.
//!
//! *Optimal Checkpointing of Neural Networks with Precise Costs* (MEng thesis, Imperial College,
//! 2019), Algorithm 3.4. C(i, j, m) is the least time to compute the gradient g_i from x_i and g_j
//! with m units of memory, and B(i, j, m) the memory it really takes (section 3.1.4). x_i is held
//! by the caller, outside of m; g_j lies within m, and *who solves (i, j) frees it* (ownership of
//! the upstream gradient, section 3.1.6). The next checkpoint k splits the problem (equations 3.1
//! and 3.3):
//!
//! ```text
//! Q(i, j, k, m) = Σ α_f(i+1..k) + C(k, j, m − β_f(k)) + C(i, k, m)
//! peak = max( β_b(j) + forward steps to x_k,  β_f(k) + B(k, j, m − β_f(k)),  B(i, k, m) )
//! ```
//!
//! A problem of one stage runs its backward part; if no k fits, everything is recomputed from x_i
//! for each backward part (equations 3.4 and 3.5). Checkpoints may be dropped and made again any
//! number of times.
//!
//! **Memory buckets** (section 4.2): sizes are rounded up to whole buckets, so that m is a small
//! number. [`PreciseDp::solve`] with [`SizeRounding::Down`] solves the problem that is easier by the
//! same amount: no plan, but a bound on what the rounding costs.
//!
//! **Internals.** The thesis' layers keep nothing but f_i. Stages here may have internals, so there
//! is one more action for the next checkpoint k = i + 1: *tape* stage i, which keeps β_f(i+1) and the
//! internals in place of β_f(i+1) alone and saves the replay. Without internals both cost the
//! same, and this is Algorithm 3.4.
//!
//! **Slips in the printed Algorithm 3.4** that we read as the text has them: line 8 assigns the
//! time α_b, not β_b; line 23 adds to the time so far; the memory of a forward step is β_f
//! throughout; peak_L is that of (i, k). The loop over m is the innermost here. A split at j − 1
//! followed by more of them is what recomputing everything does, so the fall-back is reached
//! only where it fails as well; it is there since the algorithm has it.
//!
//! O(N³·M) time and O(N²·M) memory for N stages and M buckets.

use super::chain::{Action, Chain, Operation, execute};

/// How sizes become buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeRounding {
    /// What is planned fits.
    Up,
    /// A bound: no plan that fits takes less time.
    Down,
}

/// What to do for one subproblem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Choice {
    #[default]
    Failure,
    /// The backward part of a single stage.
    One,
    /// Keep x_k.
    Split(u16),
    /// Keep x_{i+1} and the internals of stage i.
    Tape,
    /// Recompute everything.
    Quadratic,
}

/// C, B and D for one (i, j, m).
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    time: u64,
    peak: u32,
    choice: Choice,
}

/// A chain with its sizes in buckets.
#[derive(Clone, Debug)]
struct Bucketed {
    stages: Vec<Sizes>,
    /// g_j, the upstream gradient last.
    gradients: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    forward_time: u64,
    /// Replay and backward part, and the backward part alone.
    one_time: u64,
    backward_time: u64,
    result: u32,
    /// The result with the internals.
    taped: u32,
    /// What the backward part needs, x_i not counted: g_{i+1}, g_i, what it reads and works with.
    backward_peak: u32,
    /// What a problem of one stage needs, the replay included.
    one_peak: u32,
    forward_workspace: u32,
    /// While it runs taped: result, internals and workspace, without the waiting gradient.
    tape_peak: u32,
}

/// The tables of Algorithm 3.4, for every memory up to the one that was asked for.
#[derive(Clone, Debug)]
pub struct PreciseDp {
    stages: usize,
    memory: usize,
    bucket: u64,
    cells: Vec<Cell>,
}

impl PreciseDp {
    /// Solves `chain` for every memory of up to `memory` buckets of `bucket` units of size (at
    /// least 1). x_0 is not counted: the caller subtracts what it takes.
    pub fn solve(chain: &Chain, memory: u32, bucket: u64, rounding: SizeRounding) -> PreciseDp {
        let bucketed = Bucketed::of(chain, bucket.max(1), rounding);
        let stages = chain.stages.len();
        let memory = memory as usize;
        let mut tables = PreciseDp {
            stages,
            memory,
            bucket: bucket.max(1),
            cells: vec![Cell::default(); stages * (stages + 1) / 2 * (memory + 1)],
        };
        for i in (0..stages).rev() {
            let one = &bucketed.stages[i];
            let mut quadratic = Quadratic::of_one(one);
            tables.offer(i, i + 1, one.one_peak, one.one_time, Choice::One);
            for j in i + 2..=stages {
                quadratic.extend(&bucketed, i, j);
                tables.splits(&bucketed, i, j);
                tables.tape(&bucketed, i, j);
                tables.fall_back(i, j, &quadratic);
            }
        }
        tables
    }

    /// Where the cells of (i, j) begin, j > i.
    fn row(&self, i: usize, j: usize) -> usize {
        // Rows of i: j from i + 1 to `stages`.
        let before = i * self.stages - i * i.saturating_sub(1) / 2;
        (before + j - i - 1) * (self.memory + 1)
    }

    fn cell(&self, i: usize, j: usize, m: usize) -> &Cell {
        &self.cells[self.row(i, j) + m]
    }

    /// The same for every memory that is enough.
    fn offer(&mut self, i: usize, j: usize, peak: u32, time: u64, choice: Choice) {
        let row = self.row(i, j);
        for m in peak as usize..=self.memory {
            self.cells[row + m] = Cell { time, peak, choice };
        }
    }

    fn improve(&mut self, at: usize, new: Cell) {
        let old = &mut self.cells[at];
        let better = (new.time, new.peak) < (old.time, old.peak);
        if old.choice == Choice::Failure || better {
            *old = new;
        }
    }

    /// Every next checkpoint k.
    fn splits(&mut self, chain: &Bucketed, i: usize, j: usize) {
        let row = self.row(i, j);
        let waiting = chain.gradients[j];
        let (mut forward_time, mut forward_peak) = (0u64, 0u32);
        for k in i + 1..j {
            let stage = &chain.stages[k - 1];
            forward_time = forward_time.saturating_add(stage.forward_time);
            // x_i is not ours to count.
            let read = if k - 1 == i {
                0
            } else {
                chain.stages[k - 2].result
            };
            forward_peak = forward_peak.max(add(&[read, stage.result, stage.forward_workspace]));
            let first = add(&[waiting, forward_peak]);
            let kept = stage.result;
            let (left, right) = (self.row(i, k), self.row(k, j));
            for m in first.max(kept) as usize..=self.memory {
                let right = self.cells[right + m - kept as usize];
                let left = self.cells[left + m];
                if left.choice == Choice::Failure || right.choice == Choice::Failure {
                    continue;
                }
                let peak = first.max(kept + right.peak).max(left.peak);
                let time = forward_time
                    .saturating_add(left.time)
                    .saturating_add(right.time);
                let choice = Choice::Split(k as u16);
                self.improve(row + m, Cell { time, peak, choice });
            }
        }
    }

    /// Stage i taped.
    fn tape(&mut self, chain: &Bucketed, i: usize, j: usize) {
        let stage = &chain.stages[i];
        let first = add(&[chain.gradients[j], stage.tape_peak]);
        let own = first.max(stage.backward_peak);
        let (row, right) = (self.row(i, j), self.row(i + 1, j));
        for m in own.max(stage.taped) as usize..=self.memory {
            let right = self.cells[right + m - stage.taped as usize];
            if right.choice == Choice::Failure {
                continue;
            }
            let peak = own.max(stage.taped + right.peak);
            let time = stage
                .forward_time
                .saturating_add(stage.backward_time)
                .saturating_add(right.time);
            let choice = Choice::Tape;
            self.improve(row + m, Cell { time, peak, choice });
        }
    }

    /// Recompute everything where nothing else works.
    fn fall_back(&mut self, i: usize, j: usize, quadratic: &Quadratic) {
        let row = self.row(i, j);
        for m in quadratic.peak as usize..=self.memory {
            if self.cells[row + m].choice == Choice::Failure {
                self.cells[row + m] = Cell {
                    time: quadratic.time,
                    peak: quadratic.peak,
                    choice: Choice::Quadratic,
                };
            }
        }
    }

    /// The whole chain's least time within `memory` buckets, and the buckets it takes; `None` if
    /// it does not fit.
    pub fn cost(&self, memory: u32) -> Option<(u64, u32)> {
        let memory = (memory as usize).min(self.memory);
        if self.stages == 0 {
            return Some((0, 0));
        }
        let cell = self.cell(0, self.stages, memory);
        (cell.choice != Choice::Failure).then_some((cell.time, cell.peak))
    }

    /// Every memory in buckets at which the whole chain's plan is another one, ascending.
    pub fn memories(&self) -> Vec<u32> {
        let mut last = None;
        let mut memories = Vec::new();
        for m in 0..=self.memory as u32 {
            let cost = self.cost(m);
            if cost.is_some() && cost != last {
                memories.push(m);
                last = cost;
            }
        }
        memories
    }

    /// The size of one bucket.
    pub fn bucket(&self) -> u64 {
        self.bucket
    }

    /// The schedule of the plan within `memory` buckets; `None` if nothing fits.
    pub fn schedule(&self, chain: &Chain, memory: u32) -> Option<Vec<Operation>> {
        self.cost(memory)?;
        let start = memory.min(self.memory as u32);
        let bucketed = |size: u64| u32::try_from(size.div_ceil(self.bucket)).unwrap_or(u32::MAX);
        Some(execute(chain, start, |i, j, m| {
            let stage = &chain.stages[i];
            match self.cell(i, j, m as usize).choice {
                Choice::Split(k) => Action::Split {
                    k: usize::from(k),
                    right: m.saturating_sub(bucketed(chain.result(usize::from(k)))),
                    left: m,
                },
                Choice::Tape => {
                    let kept = add(&[bucketed(stage.result), bucketed(stage.internals)]);
                    Action::Tape {
                        right: m.saturating_sub(kept),
                    }
                }
                Choice::Quadratic | Choice::One | Choice::Failure => Action::Everything,
            }
        }))
    }
}

/// Sums that stay in range.
fn add(sizes: &[u32]) -> u32 {
    sizes.iter().fold(0, |sum, &size| sum.saturating_add(size))
}

impl Bucketed {
    fn of(chain: &Chain, bucket: u64, rounding: SizeRounding) -> Bucketed {
        let round = |size: u64| {
            let buckets = match rounding {
                SizeRounding::Up => size.div_ceil(bucket),
                SizeRounding::Down => size / bucket,
            };
            u32::try_from(buckets).unwrap_or(u32::MAX)
        };
        let gradients: Vec<u32> = (0..=chain.stages.len())
            .map(|i| round(chain.gradient(i)))
            .collect();
        let stages = chain.stages.iter().enumerate().map(|(i, stage)| {
            let result = round(stage.result);
            let taped = add(&[result, round(stage.internals)]);
            let kept = add(&[
                round(stage.internals),
                if stage.reads_result { result } else { 0 },
            ]);
            let forward_workspace = round(stage.forward_workspace);
            let taped_workspace = round(stage.taped_workspace);
            let during = add(&[kept, gradients[i + 1]]);
            let backward_peak = add(&[during, gradients[i], round(stage.backward_workspace)]);
            let replay = match stage.needs_replay() {
                true => add(&[during, taped_workspace]),
                false => 0,
            };
            Sizes {
                forward_time: stage.forward_time,
                one_time: stage.replay_time.saturating_add(stage.backward_time),
                backward_time: stage.backward_time,
                result,
                taped,
                backward_peak,
                one_peak: backward_peak.max(replay),
                forward_workspace,
                tape_peak: add(&[taped, taped_workspace]),
            }
        });
        Bucketed {
            stages: stages.collect(),
            gradients,
        }
    }
}

/// The "recompute everything" strategy, carried along j (Algorithms 3.2 and 3.3).
struct Quadratic {
    forward_time: u64,
    forward_peak: u32,
    time: u64,
    peak: u32,
}

impl Quadratic {
    fn of_one(one: &Sizes) -> Quadratic {
        Quadratic {
            forward_time: 0,
            forward_peak: 0,
            time: one.one_time,
            peak: one.one_peak,
        }
    }

    /// From (i, j − 1) to (i, j): one more pass forward, to x_{j−1}, and one more backward part.
    fn extend(&mut self, chain: &Bucketed, i: usize, j: usize) {
        let (last, stage) = (&chain.stages[j - 1], &chain.stages[j - 2]);
        let read = if j - 2 == i {
            0
        } else {
            chain.stages[j - 3].result
        };
        let step = add(&[read, stage.result, stage.forward_workspace]);
        self.forward_peak = self.forward_peak.max(step);
        self.forward_time = self.forward_time.saturating_add(stage.forward_time);
        self.time = self
            .time
            .saturating_add(self.forward_time)
            .saturating_add(last.one_time);
        let forward = add(&[chain.gradients[j], self.forward_peak]);
        let backward = add(&[stage.result, last.one_peak]);
        self.peak = self.peak.max(forward).max(backward);
    }
}

#[cfg(test)]
mod tests {
    use super::super::chain::Stage;
    use super::super::chain::tests::simulate;
    use super::super::revolve::fewest_advances;
    use super::*;
    use crate::testing::SplitMix64;

    /// Times and sizes from 0 to 9; half of the chains have internals.
    fn random_chain(seed: u64, stages: usize) -> Chain {
        let mut random = SplitMix64::new(seed);
        let internals = random.one_in(2);
        let mut number = |most: usize| random.below(most + 1) as u64;
        let mut chain = Chain {
            input: 0,
            upstream: number(3),
            stages: Vec::new(),
        };
        for _ in 0..stages {
            let forward_time = number(9);
            let mut stage = Stage {
                forward_time,
                backward_time: number(9),
                result: 1 + number(8),
                gradient: number(9),
                backward_workspace: number(4) / 3,
                forward_workspace: number(4) / 3,
                taped_workspace: number(4) / 3,
                ..Stage::default()
            };
            if internals {
                stage.reads_result = number(2) == 0;
                stage.internals = number(6);
                stage.replay_time = number(forward_time as usize);
            }
            chain.stages.push(stage);
        }
        chain
    }

    /// Every policy for the backward parts j − 1 to i, as the actions it takes in the order in
    /// which the executor asks.
    fn policies(i: usize, j: usize) -> Vec<Vec<Action<()>>> {
        if i + 1 >= j {
            return vec![Vec::new()];
        }
        let mut all = vec![vec![Action::Everything]];
        for right in policies(i + 1, j) {
            all.push([vec![Action::Tape { right: () }], right].concat());
        }
        for k in i + 1..j {
            let split = Action::Split {
                k,
                right: (),
                left: (),
            };
            for right in policies(k, j) {
                for left in policies(i, k) {
                    all.push([vec![split], right.clone(), left].concat());
                }
            }
        }
        all
    }

    #[test]
    fn tables_agree_with_every_policy_simulated() {
        let mut fitting = 0;
        for stages in 1..=7 {
            let all = policies(0, stages);
            for seed in 0..if stages > 5 { 10 } else { 40 } {
                let chain = random_chain(seed, stages);
                let judged: Vec<(u64, u64)> = all
                    .iter()
                    .map(|actions| {
                        let asked = std::cell::Cell::new(0);
                        let schedule = execute(&chain, (), |_, _, ()| {
                            asked.set(asked.get() + 1);
                            actions[asked.get() - 1]
                        });
                        simulate(&chain, &schedule)
                    })
                    .collect();
                let tables = PreciseDp::solve(&chain, 60, 1, SizeRounding::Up);
                for memory in 0..=60 {
                    let fits = judged.iter().filter(|judged| judged.1 <= memory);
                    let best = fits.map(|judged| judged.0).min();
                    let cost = tables.cost(memory as u32);
                    assert_eq!(
                        cost.map(|c| c.0),
                        best,
                        "{stages} stages, seed {seed}, {memory}"
                    );
                    if let Some((time, peak)) = cost {
                        let schedule = tables.schedule(&chain, memory as u32).unwrap();
                        assert_eq!(simulate(&chain, &schedule), (time, u64::from(peak)));
                        fitting += 1;
                    }
                }
            }
        }
        assert!(fitting > 5_000, "{fitting}");
    }

    #[test]
    fn equals_revolve_on_uniform_chains() {
        for layers in [2, 7, 20, 40] {
            let chain = Chain::uniform(layers);
            let steps = layers as u64 + 1;
            let tables = PreciseDp::solve(&chain, 50, 1, SizeRounding::Up);
            assert_eq!(tables.cost(2), None);
            for s in 1..=48 {
                let time = steps + fewest_advances(steps, s).unwrap();
                let cost = tables.cost(s as u32 + 2).map(|cost| cost.0);
                assert_eq!(cost, Some(time), "{layers} layers, {s} checkpoints");
            }
        }
    }

    #[test]
    fn buckets_cost_at_most_what_the_bound_says() {
        let mut lost = 0;
        for seed in 0..30 {
            let chain = random_chain(seed, 12);
            let exact = PreciseDp::solve(&chain, 80, 1, SizeRounding::Up);
            let coarse = PreciseDp::solve(&chain, 20, 4, SizeRounding::Up);
            let bound = PreciseDp::solve(&chain, 20, 4, SizeRounding::Down);
            for m in 0..=20 {
                let time = |cost: Option<(u64, u32)>| cost.map_or(u64::MAX, |cost| cost.0);
                let (least, most) = (time(bound.cost(m)), time(coarse.cost(m)));
                let optimum = time(exact.cost(4 * m));
                assert!(
                    least <= optimum && optimum <= most,
                    "seed {seed}, {m} buckets"
                );
                lost += u32::from(optimum < most);
                if let Some(schedule) = coarse.schedule(&chain, m) {
                    assert!(simulate(&chain, &schedule).1 <= u64::from(4 * m));
                }
            }
        }
        assert!(lost > 10, "{lost}");
    }

    #[test]
    fn memories_are_where_the_plan_changes() {
        let tables = PreciseDp::solve(&Chain::uniform(3), 50, 1, SizeRounding::Up);
        // Revolve for 4 steps: t(4, s) = 6, 4, 3 for s = 1, 2, 3 checkpoints in s + 2 units; and 4
        // backward parts.
        let memories = tables.memories();
        let costs: Vec<_> = memories
            .iter()
            .map(|&m| tables.cost(m).unwrap().0)
            .collect();
        insta::assert_snapshot!(format!("{memories:?} {costs:?}"), @"[3, 4, 5] [10, 8, 7]");
    }
}
