//! Whether what a value holds is read later, by position.

use crate::program::{Column, Program};
use crate::search::problem::{Problem, Step, ValueId};

/// By node and then by step: the column that says whether the node runs again before the step.
pub(super) type Runs = Vec<Vec<Option<Column>>>;

/// Is what a value holds read later?
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum CopyNeed {
    Never,
    Always,
    If(Column),
}

/// The needs of one value in one group.
#[derive(Clone, Debug)]
pub(super) struct NeedGroup {
    /// When the group begins.
    pub entry: CopyNeed,
    /// Directly before each node that may read it in the group, ascending.
    pub before: Vec<(Step, CopyNeed)>,
    /// When the group has ended.
    pub after: CopyNeed,
}

impl NeedGroup {
    /// Before any reader of the group has run.
    pub(super) fn first(&self) -> CopyNeed {
        self.before.first().map_or(self.after, |&(_, need)| need)
    }

    /// When `node` runs; `overwriting` if its result takes the place of the value.
    pub(super) fn at(&self, node: Step, overwriting: bool) -> CopyNeed {
        let passed =
            |&(reader, _): &(Step, CopyNeed)| reader < node || (overwriting && reader == node);
        let next = self.before.iter().find(|entry| !passed(entry));
        next.map_or(self.after, |&(_, need)| need)
    }
}

/// The needs of a value by group, from the group of its producer on; `exact` if they must not be
/// higher than reads make them.
pub(super) fn needs(
    program: &mut Program,
    runs: &Runs,
    problem: &Problem,
    value: ValueId,
    exact: bool,
) -> Vec<NeedGroup> {
    let info = &problem.values[value as usize];
    let producer = info.producer;
    let steps = problem.steps.len() as Step;
    let mut groups = Vec::new();
    let mut after = CopyNeed::Never;
    for step in (producer..steps).rev() {
        let mut before = Vec::new();
        let mut need = after;
        if step > producer && info.readers.contains(&step) {
            need = CopyNeed::Always;
            before.push((step, need));
        }
        let reads_again = |&&reader: &&Step| {
            let own = reader == producer && info.recomputed;
            reader < step && !own
        };
        for &reader in info.copy_readers.iter().filter(reads_again).rev() {
            if let Some(run) = runs[reader as usize][step as usize] {
                need = either(program, run, need, exact);
                before.push((reader, need));
            }
        }
        before.reverse();
        let run = runs[producer as usize][step as usize].filter(|_| info.recomputed);
        let entry = match run {
            Some(run) => unless(program, run, need, exact),
            None => need,
        };
        groups.push(NeedGroup {
            entry,
            before,
            after,
        });
        after = entry;
    }
    groups.reverse();
    groups
}

/// The run reads it, or it is needed behind.
fn either(program: &mut Program, run: Column, need: CopyNeed, exact: bool) -> CopyNeed {
    if need == CopyNeed::Always {
        return need;
    }
    let column = program.add(0.0, false);
    program.at_most(vec![(run, 1.0), (column, -1.0)], 0.0);
    let mut most = vec![(column, 1.0), (run, -1.0)];
    if let CopyNeed::If(need) = need {
        program.at_most(vec![(need, 1.0), (column, -1.0)], 0.0);
        most.push((need, -1.0));
    }
    if exact {
        program.at_most(most, 0.0);
    }
    CopyNeed::If(column)
}

/// It is needed behind the run, which does not happen.
fn unless(program: &mut Program, run: Column, need: CopyNeed, exact: bool) -> CopyNeed {
    let (mut least, sure) = match need {
        CopyNeed::Never => return CopyNeed::Never,
        CopyNeed::Always => (Vec::new(), -1.0),
        CopyNeed::If(need) => (vec![(need, 1.0)], 0.0),
    };
    let column = program.add(0.0, false);
    least.extend([(run, -1.0), (column, -1.0)]);
    program.at_most(least, sure);
    if exact {
        program.at_most(vec![(column, 1.0), (run, 1.0)], 1.0);
        if let CopyNeed::If(need) = need {
            program.at_most(vec![(column, 1.0), (need, -1.0)], 0.0);
        }
    }
    CopyNeed::If(column)
}
