//! The program of one problem and one budget.

use super::needs::{CopyNeed, NeedGroup, Runs, needs};
use crate::program::{Column, Program};
use crate::search::problem::{Problem, Step, ValueId};
use crate::search::state::Copy;

/// A program, and how its columns are to be read.
pub(super) struct ExactModel {
    pub program: Program,
    /// Nanoseconds that one unit of its costs stands for.
    pub time_scale: f64,
    runs: Runs,
}

/// Values below this part of the budget may be left behind unread at no cost: a relaxation.
const NEGLIGIBLE: f64 = 1e-6;

impl ExactModel {
    pub(super) fn new(problem: &Problem, budget: f64, below: Option<u64>) -> ExactModel {
        let steps = problem.steps.len();
        let total: f64 = problem.steps.iter().map(|step| step.time as f64).sum();
        let time_scale = (total / 1000.0).max(1.0);
        let mut program = Program::default();
        let mut runs: Runs = vec![vec![None; steps]; steps];
        for (node, info) in problem.steps.iter().enumerate() {
            if info.recomputable {
                for run in &mut runs[node][node + 1..] {
                    *run = Some(program.add(info.copy_time as f64 / time_scale, true));
                }
            }
        }
        if let Some(below) = below {
            let costs = program.costs.iter().enumerate();
            let terms = costs.map(|(column, &cost)| (column, cost)).collect();
            program.at_most(terms, below.saturating_sub(1) as f64 / time_scale);
        }
        let mut memory = Memory::new(problem, &runs, budget);
        for value in 0..problem.values.len() as ValueId {
            memory.add_value(&mut program, value);
        }
        memory.limit(&mut program);
        ExactModel {
            program,
            time_scale,
            runs,
        }
    }

    /// The copies that these values stand for.
    pub(super) fn copies(&self, values: &[f64]) -> Vec<Copy> {
        let mut copies = Vec::new();
        for (node, runs) in self.runs.iter().enumerate() {
            for (before, run) in runs.iter().enumerate() {
                if run.is_some_and(|run| values[run] > 0.5) {
                    copies.push(Copy {
                        node: node as Step,
                        before: before as Step,
                    });
                }
            }
        }
        copies
    }
}

/// The need of every position, as parts of the budget.
struct Memory<'p> {
    problem: &'p Problem,
    runs: &'p Runs,
    budget: f64,
    /// By group: its positions.
    positions: Vec<Vec<Position>>,
}

struct Position {
    node: Step,
    terms: Vec<(Column, f64)>,
    /// What is there in any case.
    always: f64,
}

impl<'p> Memory<'p> {
    fn new(problem: &'p Problem, runs: &'p Runs, budget: f64) -> Memory<'p> {
        let steps = problem.steps.len();
        let budget = budget.max(1.0);
        let position = |group: usize, node: usize| -> Option<Position> {
            let workspace = problem.steps[node].workspace / budget;
            let (terms, always) = match runs[node][group] {
                _ if node == group => (Vec::new(), workspace),
                Some(run) => (vec![(run, workspace)], 0.0),
                None => return None,
            };
            Some(Position {
                node: node as Step,
                terms,
                always,
            })
        };
        let group = |group: usize| {
            (0..=group)
                .filter_map(|node| position(group, node))
                .collect()
        };
        Memory {
            problem,
            runs,
            budget,
            positions: (0..steps).map(group).collect(),
        }
    }

    fn limit(self, program: &mut Program) {
        for position in self.positions.into_iter().flatten() {
            program.at_most(position.terms, 1.0 - position.always);
        }
    }

    fn add_value(&mut self, program: &mut Program, value: ValueId) {
        let info = &self.problem.values[value as usize];
        let size = info.size / self.budget;
        if size == 0.0 {
            return;
        }
        // Who is not read before it is written again stays to the end.
        let stays = !info.released && !info.kept && size >= NEGLIGIBLE;
        let groups = needs(program, self.runs, self.problem, value, stays);
        let mut stayed: Vec<CopyNeed> = Vec::new();
        // Does a copy of a graph output hold it, besides the original?
        let mut copied = CopyNeed::Never;
        for (group, step) in groups.iter().zip(info.producer..) {
            let run = self.runs[info.producer as usize][step as usize];
            let run = run.filter(|_| info.recomputed);
            let now_copied = match run {
                Some(run) if info.kept => any(program, copied, run),
                _ => copied,
            };
            for at in 0..self.positions[step as usize].len() {
                let node = self.positions[step as usize][at].node;
                let held = if info.kept && step > info.producer {
                    let copied = if node < info.producer {
                        copied
                    } else {
                        now_copied
                    };
                    let mut held = self.holding(program, value, group, step, node, copied);
                    held.push(CopyNeed::Always);
                    held
                } else {
                    self.holding(program, value, group, step, node, CopyNeed::Always)
                };
                let position = &mut self.positions[step as usize][at];
                for need in held.iter().chain(&stayed) {
                    match need {
                        CopyNeed::Never => {}
                        CopyNeed::Always => position.always += size,
                        CopyNeed::If(column) => position.terms.push((*column, size)),
                    }
                }
                if stays && node == info.producer {
                    stayed.extend(unread(
                        program,
                        group.first(),
                        step == info.producer,
                        run,
                        info.optional,
                    ));
                }
            }
            copied = now_copied;
        }
    }

    /// What holds the value when `node` runs in the group of `step`; nothing unless `exists`.
    fn holding(
        &self,
        program: &mut Program,
        value: ValueId,
        group: &NeedGroup,
        step: Step,
        node: Step,
        exists: CopyNeed,
    ) -> Vec<CopyNeed> {
        let info = &self.problem.values[value as usize];
        if step == info.producer {
            // Only the original itself can be here.
            return vec![if node == step {
                CopyNeed::Always
            } else {
                CopyNeed::Never
            }];
        }
        if node < info.producer {
            return vec![both(program, group.entry, exists)];
        }
        if node == info.producer && info.recomputed {
            if info.optional {
                return vec![both(program, group.first(), exists)];
            }
            let run = self.runs[node as usize][step as usize];
            let entry = both(program, group.entry, exists);
            return vec![run.map_or(CopyNeed::Never, CopyNeed::If), entry];
        }
        let overwriting = info.overwriters.contains(&node);
        vec![both(program, group.at(node, overwriting), exists)]
    }
}

/// A result that is written and not read.
fn unread(
    program: &mut Program,
    need: CopyNeed,
    is_original: bool,
    run: Option<Column>,
    optional: bool,
) -> Option<CopyNeed> {
    let written = match run {
        _ if is_original => CopyNeed::Always,
        Some(_) if optional => return None,
        Some(run) => CopyNeed::If(run),
        None => return None,
    };
    // It stays if it is written and not needed.
    Some(match (written, need) {
        (_, CopyNeed::Always) => return None,
        (written, CopyNeed::Never) => written,
        (written, CopyNeed::If(need)) => {
            let column = program.add(0.0, false);
            let (mut terms, limit) = match written {
                CopyNeed::If(run) => (vec![(run, 1.0)], 0.0),
                _ => (Vec::new(), -1.0),
            };
            terms.extend([(need, -1.0), (column, -1.0)]);
            program.at_most(terms, limit);
            CopyNeed::If(column)
        }
    })
}

/// One of both, or both.
fn any(program: &mut Program, one: CopyNeed, other: Column) -> CopyNeed {
    match one {
        CopyNeed::Always => CopyNeed::Always,
        CopyNeed::Never => CopyNeed::If(other),
        CopyNeed::If(one) => {
            let column = program.add(0.0, false);
            program.at_most(vec![(one, 1.0), (column, -1.0)], 0.0);
            program.at_most(vec![(other, 1.0), (column, -1.0)], 0.0);
            CopyNeed::If(column)
        }
    }
}

fn both(program: &mut Program, one: CopyNeed, other: CopyNeed) -> CopyNeed {
    match (one, other) {
        (CopyNeed::Never, _) | (_, CopyNeed::Never) => CopyNeed::Never,
        (CopyNeed::Always, need) | (need, CopyNeed::Always) => need,
        (CopyNeed::If(one), CopyNeed::If(other)) => {
            let column = program.add(0.0, false);
            program.at_most(vec![(one, 1.0), (other, 1.0), (column, -1.0)], 1.0);
            CopyNeed::If(column)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::search::profile::Exponent;
    use crate::search::random_copies::{problem, some_copies};
    use crate::search::state::State;
    use crate::testing::random_training_graph;

    /// Do these copies meet the program, with all else as low as they let it be?
    fn allows(model: &ExactModel, copies: &[Copy]) -> bool {
        let mut values = vec![0.0; model.program.costs.len()];
        for copy in copies {
            values[model.runs[copy.node as usize][copy.before as usize].unwrap()] = 1.0;
        }
        loop {
            let mut raised = false;
            let mut met = true;
            for row in &model.program.rows {
                let sum: f64 = row
                    .terms
                    .iter()
                    .map(|&(at, factor)| factor * values[at])
                    .sum();
                if sum <= row.limit + 1e-9 {
                    continue;
                }
                met = false;
                let low = row.terms.iter().rev().find(|&&(at, factor)| {
                    factor == -1.0 && !model.program.whole[at] && values[at] == 0.0
                });
                if let Some(&(at, _)) = low {
                    values[at] = 1.0;
                    raised = true;
                }
            }
            if !raised {
                return met;
            }
        }
    }

    #[test]
    fn the_program_needs_the_memory_that_the_state_counts() {
        let mut compared = 0;
        for seed in 0..120 {
            let graph = random_training_graph(seed, 8 + seed as usize % 24);
            let problem = problem(&graph);
            if problem.steps.len() > 40 {
                continue;
            }
            let mut random = Random::new(seed);
            for _ in 0..4 {
                let copies = some_copies(&problem, &mut random, 12);
                let mut state = State::new(&problem, 0.0, Exponent::One);
                let _ = state.apply(&copies);
                let peak = state.peak();
                let enough = ExactModel::new(&problem, peak, None);
                assert!(allows(&enough, &copies), "seed {seed}, {copies:?}");
                let little = ExactModel::new(&problem, peak - 1.0, None);
                assert!(!allows(&little, &copies), "seed {seed}, {copies:?}");
                compared += 1;
            }
        }
        assert!(compared > 200, "{compared}");
    }
}
