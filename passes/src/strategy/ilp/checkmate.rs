//! Checkmate's 0-1 program (Jain et al. 2020, "Checkmate: Breaking the Memory Wall with Optimal
//! Tensor Rematerialization", section 4).
//!
//! There are as many stages as units. In stage t, unit t is computed for the first time, after
//! whatever is computed again for it. R(t, i) = 1 if unit i is computed in stage t; S(t, i) = 1 if
//! its results are there when the stage begins; FREE(t, i, k) = 1 if they are freed in stage t right
//! behind unit k; U(t, k) is the memory when k is computed. Minimise Σ time · R subject to
//!
//! - R(t, j) ≤ R(t, i) + S(t, i) if j reads i (1b); S(t, i) ≤ R(t−1, i) + S(t−1, i) (1c);
//! - S(1, i) = 0 (1d); R(t, t) = 1, and nothing behind t is stored or computed (8a to 8c);
//! - U(t, k) = U(t, k−1) − what is freed behind k−1 + R(t, k) · memory of k, at most the budget
//!   (2, 3, 9);
//! - FREE(t, i, k) = R(t, k) · (1 − S(t+1, i)) · Π over later readers j of (1 − R(t, j)) (5), as one
//!   row for every factor, which is the paper's (7) taken apart, and tighter.
//!
//! In addition, what a unit needs while it runs is counted where it runs. The paper has no
//! workspace, but a coarsened unit has an inside.

use super::units::Units;
use super::{Aim, Model};
use crate::program::{Column, Program};

pub(super) struct Checkmate {
    units: Units,
    /// By unit: the units that read it, ascending.
    readers: Vec<Vec<usize>>,
}

/// R and S by stage and unit, where they are not settled.
pub(super) struct CheckmateColumns {
    run: Vec<Vec<Option<Column>>>,
    stored: Vec<Vec<Option<Column>>>,
}

impl Checkmate {
    pub(super) fn new(units: Units) -> Checkmate {
        let mut readers = vec![Vec::new(); units.units.len()];
        for (reader, unit) in units.units.iter().enumerate() {
            for &from in &unit.reads {
                readers[from].push(reader);
            }
        }
        Checkmate { units, readers }
    }

    fn count(&self) -> usize {
        self.units.units.len()
    }

    /// Is there anything of it to store?
    fn has_results(&self, unit: usize) -> bool {
        self.units.units[unit].bytes > 0.0
    }

    /// The rows (1b) to (1d) and (8).
    fn schedule(&self, program: &mut Program) -> CheckmateColumns {
        let count = self.count();
        let units = &self.units.units;
        let mut columns = CheckmateColumns {
            run: vec![vec![None; count]; count],
            stored: vec![vec![None; count]; count + 1],
        };
        for t in 0..count {
            for (i, unit) in units.iter().enumerate().take(t) {
                // Nobody reads a copy of what has no results.
                if unit.recomputable && self.has_results(i) {
                    columns.run[t][i] = Some(program.add(unit.time / self.units.step, true));
                }
                if self.has_results(i) {
                    columns.stored[t][i] = Some(program.add(0.0, true));
                }
            }
        }
        for t in 0..count {
            for (j, unit) in units.iter().enumerate().take(t + 1) {
                let run = columns.run[t][j];
                if j < t && run.is_none() {
                    continue;
                }
                for &i in unit.reads.iter().filter(|&&i| self.has_results(i)) {
                    let have = [columns.run[t][i], columns.stored[t][i]];
                    let have = have.into_iter().flatten().map(|column| (column, -1.0));
                    let wants = run.map(|run| (run, 1.0));
                    let limit = if run.is_some() { 0.0 } else { -1.0 };
                    program.at_most(have.chain(wants).collect(), limit);
                }
            }
            for i in 0..t {
                let Some(stored) = columns.stored[t][i] else {
                    continue;
                };
                // Stage i itself computes i.
                if i + 1 < t {
                    let from = [columns.run[t - 1][i], columns.stored[t - 1][i]];
                    let from = from.into_iter().flatten().map(|column| (column, -1.0));
                    program.at_most(from.chain([(stored, 1.0)]).collect(), 0.0);
                }
            }
        }
        columns
    }

    /// The rows (2) to (9): `limit` is the budget as a part of `scale`, or a column.
    fn memory(&self, program: &mut Program, columns: &CheckmateColumns, scale: f64, limit: Limit) {
        let units = &self.units.units;
        for t in 0..self.count() {
            let mut before: Option<Column> = None;
            // What is freed behind the unit before.
            let mut freed: Vec<(Column, f64)> = Vec::new();
            for k in 0..=t {
                let run = columns.run[t][k];
                if k < t && run.is_none() {
                    continue;
                }
                let memory = units[k].bytes / scale;
                let used = program.add(0.0, false);
                let mut terms = vec![(used, -1.0)];
                terms.append(&mut freed);
                match before {
                    Some(before) => terms.push((before, 1.0)),
                    None => terms.extend(
                        (0..t)
                            .filter_map(|i| Some((columns.stored[t][i]?, units[i].bytes / scale))),
                    ),
                }
                let mut always = 0.0;
                match run {
                    Some(run) => terms.push((run, memory)),
                    None => always = memory,
                }
                program.at_most(terms, -always);
                // While it runs, its inside is there as well.
                let inside = units[k].transient / scale;
                let mut terms = vec![(used, 1.0)];
                let mut room = -self.units.standing[t] / scale;
                match run {
                    Some(run) => terms.push((run, inside)),
                    None => room -= inside,
                }
                match limit {
                    Limit::Part(part) => room += part,
                    Limit::Column(column) => terms.push((column, -1.0)),
                }
                program.at_most(terms, room);
                for &i in units[k].reads.iter().chain([&k]) {
                    if self.has_results(i)
                        && let Some(free) = self.free(program, columns, t, i, k)
                    {
                        freed.push((free, -units[i].bytes / scale));
                    }
                }
                before = Some(used);
            }
        }
    }

    /// FREE(t, i, k); `None` where it is 0. It is as large as its rows let it be.
    fn free(
        &self,
        program: &mut Program,
        columns: &CheckmateColumns,
        t: usize,
        i: usize,
        k: usize,
    ) -> Option<Column> {
        let later = self.readers[i].iter().filter(|&&j| j > k && j <= t);
        let later: Vec<usize> = later.copied().collect();
        if later.contains(&t) {
            return None;
        }
        let free = program.add(0.0, false);
        if let Some(run) = columns.run[t][k] {
            program.at_most(vec![(free, 1.0), (run, -1.0)], 0.0);
        }
        let hazards = later.iter().filter_map(|&j| columns.run[t][j]);
        for hazard in hazards.chain(columns.stored[t + 1].get(i).copied().flatten()) {
            program.at_most(vec![(free, 1.0), (hazard, 1.0)], 1.0);
        }
        Some(free)
    }
}

/// What the memory of every stage is to stay within.
#[derive(Clone, Copy)]
enum Limit {
    Part(f64),
    Column(Column),
}

impl Model for Checkmate {
    fn units(&self) -> &Units {
        &self.units
    }

    type Columns = CheckmateColumns;

    fn program(&self, aim: Aim) -> (Program, CheckmateColumns) {
        let mut program = Program::default();
        let columns = self.schedule(&mut program);
        match aim {
            Aim::Within(room) => self.memory(&mut program, &columns, room, Limit::Part(1.0)),
            Aim::Least(most) => {
                let peak = program.add(1.0, false);
                for cost in &mut program.costs[..peak] {
                    // Among peaks that are equal, the shortest.
                    *cost *= 1e-4;
                }
                self.memory(&mut program, &columns, most, Limit::Column(peak));
            }
        }
        (program, columns)
    }

    fn first_choice(&self) -> usize {
        0
    }

    fn run(&self, columns: &CheckmateColumns, stage: usize, unit: usize) -> Option<Column> {
        columns.run[stage][unit]
    }

    fn stored(&self, columns: &CheckmateColumns, stage: usize, unit: usize) -> Option<Column> {
        columns.stored[stage][unit]
    }
}
