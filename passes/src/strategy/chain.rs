//! An abstract chain of stages, and schedules for it: what the chain strategies plan in.
//!
//! Stage i computes x_{i+1} from x_i, and, as it goes, *internals*: what its gradient reads besides
//! x_i. Its backward part computes the gradient g_i of x_i from x_i, the internals and g_{i+1}.
//! The last stage is the *turn*: the loss, whose forward part only runs together with its backward
//! part. In the words of Butt's thesis (2019), x_i is f_i and g_i is b_i: backward operator i takes
//! f_i and b_{i+1} and gives b_i, and there is one more of them than of layers.
//!
//! The thesis' layers have no internals: its f_i is all that a module keeps (section 3.2.2). Here
//! they are told apart, since a block of a real network keeps several times what it hands on. They
//! can be computed again by themselves (a *replay*) right before the backward part, as Gruslys et
//! al. do when they memorize hidden states only, or kept from a forward run (*taped*), as when
//! they memorize internal states.

/// One stage of a [`Chain`]; times in one unit, sizes in another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stage {
    /// Time to compute x_{i+1} from x_i.
    pub forward_time: u64,
    /// Time to compute only the internals (and x_{i+1}, if the gradient reads it) from x_i.
    pub replay_time: u64,
    /// Time of the backward part.
    pub backward_time: u64,
    /// Size of x_{i+1}.
    pub result: u64,
    /// Size of what the backward part reads besides x_i, x_{i+1} and g_{i+1}.
    pub internals: u64,
    /// Does the backward part read x_{i+1}?
    pub reads_result: bool,
    /// Size of g_i.
    pub gradient: u64,
    /// Size needed in passing while the forward part runs and keeps nothing but x_{i+1}.
    pub forward_workspace: u64,
    /// Size needed in passing while it keeps the internals, and during the replay.
    pub taped_workspace: u64,
    /// Size needed in passing while the backward part runs.
    pub backward_workspace: u64,
}

impl Stage {
    /// Must something be computed again before the backward part, if nothing was kept?
    pub fn needs_replay(&self) -> bool {
        self.reads_result || self.internals > 0 || self.replay_time > 0
    }

    /// What the backward part reads besides x_i and g_{i+1}.
    pub fn kept(&self) -> u64 {
        let result = if self.reads_result { self.result } else { 0 };
        self.internals.saturating_add(result)
    }
}

/// A chain of stages, the turn last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Size of x_0; 0 if the caller owns it. It is there at the start and never dropped.
    pub input: u64,
    /// Size of the gradient that the turn starts from; 0 if the caller owns it.
    pub upstream: u64,
    /// The stages.
    pub stages: Vec<Stage>,
}

impl Chain {
    /// `layers` stages with a turn behind them, all times and sizes 1, without internals.
    pub fn uniform(layers: usize) -> Chain {
        let stage = Stage {
            forward_time: 1,
            backward_time: 1,
            result: 1,
            gradient: 1,
            ..Stage::default()
        };
        let turn = Stage {
            forward_time: 0,
            result: 0,
            ..stage
        };
        let mut stages = vec![stage; layers];
        stages.push(turn);
        Chain {
            input: 1,
            upstream: 1,
            stages,
        }
    }

    /// Size of x_i.
    pub fn result(&self, i: usize) -> u64 {
        match i {
            0 => self.input,
            _ => self.stages[i - 1].result,
        }
    }

    /// Size of g_i.
    pub fn gradient(&self, i: usize) -> u64 {
        self.stages.get(i).map_or(self.upstream, |s| s.gradient)
    }
}

/// One operation of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Compute x_{i+1} from x_i, nothing else is kept.
    Forward(usize),
    /// Compute x_{i+1} from x_i and keep the internals.
    Tape(usize),
    /// Compute the internals of stage i from x_i, and x_{i+1} if the gradient reads it.
    Replay(usize),
    /// Compute g_i; the internals and g_{i+1} are gone.
    Backward(usize),
    /// Let x_i go.
    Drop(usize),
}

impl Operation {
    /// The stage, or the number of the result that goes.
    pub(super) fn place(self) -> usize {
        let (Operation::Forward(i)
        | Operation::Tape(i)
        | Operation::Replay(i)
        | Operation::Backward(i)
        | Operation::Drop(i)) = self;
        i
    }
}

/// What remains to be done for a schedule; a stack of these replaces recursion.
enum ChainWork<P> {
    /// Backward parts j − 1 to i with x_i and g_j there.
    Reverse(usize, usize, P),
    /// One operation.
    Do(Operation),
}

/// What a policy does with the backward parts j − 1 to i.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<P> {
    /// Run forward from x_i to x_k, keep x_k, reverse from there, drop it, reverse the rest.
    Split {
        /// The next checkpoint, i < k < j.
        k: usize,
        /// The state for the backward parts from j − 1 to k.
        right: P,
        /// The state for those from k − 1 to i.
        left: P,
    },
    /// Run stage i taped, reverse the rest, then run its backward part.
    Tape {
        /// The state for the backward parts from j − 1 to i + 1.
        right: P,
    },
    /// Run forward from x_i anew for every backward part.
    Everything,
}

/// The schedule for backward parts `stages − 1` to 0 of `chain`, from what `policy` says of each
/// subproblem (i, j, state). A subproblem of one stage is replayed and run without asking. This is
/// the executor of the thesis (Algorithm 3.5, after Gruslys et al., Algorithm 2).
pub fn execute<P: Copy>(
    chain: &Chain,
    start: P,
    policy: impl Fn(usize, usize, P) -> Action<P>,
) -> Vec<Operation> {
    execute_between(chain, 0, chain.stages.len(), start, policy)
}

/// The same for backward parts `end − 1` to `begin` only, with x_begin and g_end there.
pub fn execute_between<P: Copy>(
    chain: &Chain,
    begin: usize,
    end: usize,
    start: P,
    policy: impl Fn(usize, usize, P) -> Action<P>,
) -> Vec<Operation> {
    let mut schedule = Vec::new();
    let mut stack = vec![ChainWork::Reverse(begin, end, start)];
    while let Some(work) = stack.pop() {
        let (i, j, state) = match work {
            ChainWork::Do(operation) => {
                schedule.push(operation);
                continue;
            }
            ChainWork::Reverse(i, j, _) if i >= j => continue,
            ChainWork::Reverse(i, j, state) => (i, j, state),
        };
        if i + 1 == j {
            reverse_one(chain, i, &mut schedule);
            continue;
        }
        match policy(i, j, state) {
            Action::Split { k, right, left } => {
                run(i, k, &mut schedule);
                stack.push(ChainWork::Reverse(i, k, left));
                stack.push(ChainWork::Do(Operation::Drop(k)));
                stack.push(ChainWork::Reverse(k, j, right));
            }
            Action::Tape { right } => {
                schedule.push(Operation::Tape(i));
                // The result is let go before the backward part, unless that reads it.
                let mut last = [Operation::Drop(i + 1), Operation::Backward(i)];
                if chain.stages[i].reads_result {
                    last.reverse();
                }
                stack.extend(last.into_iter().rev().map(ChainWork::Do));
                stack.push(ChainWork::Reverse(i + 1, j, right));
            }
            Action::Everything => {
                for last in (i..j).rev() {
                    run(i, last, &mut schedule);
                    reverse_one(chain, last, &mut schedule);
                    if last > i {
                        schedule.push(Operation::Drop(last));
                    }
                }
            }
        }
    }
    schedule
}

/// From x_i to x_k, with nothing but these two left.
fn run(i: usize, k: usize, schedule: &mut Vec<Operation>) {
    for stage in i..k {
        schedule.push(Operation::Forward(stage));
        if stage > i {
            schedule.push(Operation::Drop(stage));
        }
    }
}

fn reverse_one(chain: &Chain, i: usize, schedule: &mut Vec<Operation>) {
    let stage = &chain.stages[i];
    if stage.needs_replay() {
        schedule.push(Operation::Replay(i));
    }
    schedule.push(Operation::Backward(i));
    if stage.reads_result {
        schedule.push(Operation::Drop(i + 1));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Total time and largest need of a schedule, operation by operation; panics if an operation
    /// lacks what it reads, or a backward part is missing. x_0 is not counted.
    pub(crate) fn simulate(chain: &Chain, schedule: &[Operation]) -> (u64, u64) {
        let stages = &chain.stages;
        let mut results = BTreeSet::from([0]);
        let mut internals = BTreeSet::new();
        let mut gradient = stages.len();
        let (mut time, mut peak) = (0, 0);
        for &operation in schedule {
            // What stands during the operation: all from before, and what it makes.
            let live = |results: &BTreeSet<usize>, internals: &BTreeSet<usize>, gradient| {
                let results: u64 = results
                    .iter()
                    .filter(|&&i| i > 0)
                    .map(|&i| chain.result(i))
                    .sum();
                let kept: u64 = internals.iter().map(|&i: &usize| stages[i].internals).sum();
                results + kept + chain.gradient(gradient)
            };
            match operation {
                Operation::Forward(i) | Operation::Tape(i) | Operation::Replay(i) => {
                    assert!(results.contains(&i), "{operation:?} lacks its input");
                    let replay = matches!(operation, Operation::Replay(_));
                    if !replay || stages[i].reads_result {
                        results.insert(i + 1);
                    }
                    if !matches!(operation, Operation::Forward(_)) {
                        internals.insert(i);
                    }
                    time += if replay {
                        stages[i].replay_time
                    } else {
                        stages[i].forward_time
                    };
                    let workspace = match operation {
                        Operation::Forward(_) => stages[i].forward_workspace,
                        _ => stages[i].taped_workspace,
                    };
                    peak = peak.max(live(&results, &internals, gradient) + workspace);
                }
                Operation::Backward(i) => {
                    assert_eq!(gradient, i + 1, "{operation:?} out of turn");
                    assert!(results.contains(&i), "{operation:?} lacks its input");
                    assert!(
                        !stages[i].needs_replay() || internals.contains(&i),
                        "{operation:?} lacks internals"
                    );
                    assert!(
                        !stages[i].reads_result || results.contains(&(i + 1)),
                        "{operation:?} lacks its result"
                    );
                    let during = live(&results, &internals, gradient) + chain.gradient(i);
                    peak = peak.max(during + stages[i].backward_workspace);
                    time += stages[i].backward_time;
                    internals.remove(&i);
                    gradient = i;
                }
                Operation::Drop(i) => assert!(results.remove(&i), "{i} is not there"),
            }
        }
        assert_eq!(gradient, 0, "backward parts are missing");
        assert_eq!(
            (results.len(), internals.len()),
            (1, 0),
            "something is left"
        );
        (time, peak)
    }

    /// A stage that keeps more than it hands on.
    fn block() -> Stage {
        Stage {
            forward_time: 5,
            replay_time: 4,
            backward_time: 10,
            result: 2,
            internals: 6,
            gradient: 2,
            ..Stage::default()
        }
    }

    #[test]
    fn recomputing_everything_runs_from_the_start_each_time() {
        let chain = Chain::uniform(2);
        let schedule = execute(&chain, (), |_, _, ()| Action::Everything);
        insta::assert_snapshot!(format!("{schedule:?}"), @"[Forward(0), Forward(1), Drop(1), Backward(2), Drop(2), Forward(0), Backward(1), Drop(1), Backward(0)]");
        // 3 backward parts, 2 + 1 layers. x1, x2 and the upstream; x2, upstream and g2.
        assert_eq!(simulate(&chain, &schedule), (6, 3));
    }

    #[test]
    fn a_taped_stage_is_not_replayed() {
        let chain = Chain {
            input: 0,
            upstream: 0,
            stages: vec![
                block(),
                block(),
                Stage {
                    gradient: 2,
                    ..Stage::default()
                },
            ],
        };
        let taped = execute(&chain, (), |_, _, ()| Action::Tape { right: () });
        insta::assert_snapshot!(format!("{taped:?}"), @"[Tape(0), Tape(1), Backward(2), Drop(2), Backward(1), Drop(1), Backward(0)]");
        // Everything once. At the turn: 2 results, 2 internals and a gradient: 4 + 12 + 2.
        assert_eq!(simulate(&chain, &taped), (30, 18));
        let thin = execute(&chain, (), |i, _, ()| Action::Split {
            k: i + 1,
            right: (),
            left: (),
        });
        // Both replayed: 8 more. At the second replay: x1, 6 internals and a gradient of 2; with
        // the new gradient 12.
        assert_eq!(simulate(&chain, &thin), (38, 12));
    }

    #[test]
    fn a_gradient_that_reads_the_result_has_it() {
        let relu = Stage {
            reads_result: true,
            internals: 0,
            ..block()
        };
        let chain = Chain {
            stages: vec![
                relu,
                relu,
                Stage {
                    gradient: 2,
                    ..Stage::default()
                },
            ],
            ..Chain::default()
        };
        for action in [Action::Tape { right: () }, Action::Everything] {
            let schedule = execute(&chain, (), |_, _, ()| action);
            let (time, _) = simulate(&chain, &schedule);
            // Taped: nothing twice. Else one layer more for the turn, and two replays.
            assert_eq!(
                time,
                if action == Action::Everything {
                    20 + 5 + 5 + 5 + 8
                } else {
                    30
                }
            );
        }
    }
}
