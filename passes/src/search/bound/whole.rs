//! The cover with whole gaps and runs, as a 0-1 program for a solver.
//!
//! Steps are coarsened: only some of them have a row. Leaving rows out makes the bound lower, not
//! wrong; those that an answer violates most are added until none is, or often enough.

use std::collections::BTreeSet;

use super::ascent::Cover;
use crate::program::{Answer, Limits, Program, Solver};
use crate::search::problem::Step;

/// How often rows are added while columns may be parts, and while they must be whole.
const ROUNDS: [usize; 2] = [30, 4];

/// The most rows that are added at a time.
const AT_ONCE: usize = 24;

/// Rows are met up to this part of the largest deficit.
const MET: f64 = 1e-6;

/// The best lower bound proved, in nanoseconds.
pub(crate) fn solve(cover: &Cover<'_>, solver: &dyn Solver, limits: Limits) -> f64 {
    let scale = cover.deficit.iter().copied().fold(1.0, f64::max);
    let (program, time_scale) = program(cover);
    let mut rows: BTreeSet<usize> = largest(cover.deficit, 1.0).into_iter().collect();
    let mut best: f64 = 0.0;
    for (rounds, whole) in ROUNDS.into_iter().zip([false, true]) {
        for _ in 0..rounds {
            let answer = ask(&program, cover, &rows, scale, whole, solver, limits);
            if answer.bound.is_finite() {
                best = best.max(answer.bound * time_scale);
            }
            let Some(values) = answer.values else { break };
            let missing = missing(cover, &values);
            let violated = largest(&missing, MET * scale);
            let before = rows.len();
            rows.extend(violated);
            if rows.len() == before {
                break;
            }
        }
    }
    best
}

fn ask(
    program: &Program,
    cover: &Cover<'_>,
    rows: &BTreeSet<usize>,
    scale: f64,
    whole: bool,
    solver: &dyn Solver,
    limits: Limits,
) -> Answer {
    let mut program = program.clone();
    if !whole {
        program.whole.fill(false);
    }
    for &step in rows {
        let around =
            |gap: &(usize, &super::gaps::Gap)| (gap.1.from..gap.1.until).contains(&(step as Step));
        let gaps = cover.gaps.iter().enumerate().filter(around);
        let terms = gaps.map(|(at, gap)| (at, -gap.size / scale)).collect();
        // Rounding must not demand more than there is.
        let limit = -cover.deficit[step] / scale * (1.0 - 1e-9);
        program.at_most(terms, limit);
    }
    solver.solve(&program, limits)
}

/// The columns of gaps, by their positions, and of runs; and the nanoseconds of one unit.
fn program(cover: &Cover<'_>) -> (Program, f64) {
    let total: f64 = cover.times.iter().sum();
    let time_scale = (total / 1000.0).max(1.0);
    let mut program = Program::default();
    for _ in cover.gaps {
        program.add(0.0, true);
    }
    let mut by_node: Vec<Vec<usize>> = vec![Vec::new(); cover.times.len()];
    for (at, gap) in cover.gaps.iter().enumerate() {
        for &run in &gap.runs {
            by_node[run as usize].push(at);
        }
    }
    for (sharing, time) in by_node.into_iter().zip(cover.times) {
        let time = time / time_scale;
        if let [only] = sharing[..] {
            program.costs[only] += time;
            continue;
        }
        // A run may as well wait until the first gap around it ends.
        let ends: BTreeSet<Step> = sharing.iter().map(|&at| cover.gaps[at].until).collect();
        let ends: Vec<Step> = ends.into_iter().collect();
        let runs: Vec<usize> = ends.iter().map(|_| program.add(time, true)).collect();
        for at in sharing {
            let gap = &cover.gaps[at];
            let serves = |end: &Step| (gap.first..=gap.until).contains(end);
            let serving = ends.iter().zip(&runs).filter(|(end, _)| serves(end));
            let mut terms: Vec<(usize, f64)> = serving.map(|(_, &run)| (run, -1.0)).collect();
            terms.push((at, 1.0));
            program.at_most(terms, 0.0);
        }
    }
    (program, time_scale)
}

/// By step: how much more would have to be away.
fn missing(cover: &Cover<'_>, values: &[f64]) -> Vec<f64> {
    let mut change = vec![0.0; cover.deficit.len() + 1];
    for (gap, value) in cover.gaps.iter().zip(values) {
        change[gap.from as usize] += gap.size * value;
        change[gap.until as usize] -= gap.size * value;
    }
    let mut away = 0.0;
    let missing = cover.deficit.iter().zip(change).map(|(need, change)| {
        away += change;
        need - away
    });
    missing.collect()
}

/// The steps with the largest entries of at least `least`, none of them beside a larger one.
fn largest(entries: &[f64], least: f64) -> Vec<usize> {
    let is_top = |&at: &usize| {
        let beside = [at.checked_sub(1), Some(at + 1)].into_iter().flatten();
        let mut beside = beside.filter_map(|other| entries.get(other));
        entries[at] >= least && beside.all(|&other| other <= entries[at])
    };
    let mut tops: Vec<usize> = (0..entries.len()).filter(is_top).collect();
    tops.sort_by(|&a, &b| entries[b].total_cmp(&entries[a]).then(a.cmp(&b)));
    tops.truncate(AT_ONCE);
    tops
}
