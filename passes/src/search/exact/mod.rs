//! The cheapest schedule as a 0-1 program, for graphs that are small enough.
//!
//! It has Checkmate's columns (Jain et al. 2020, section 4.1): R(n, t) = 1 if node n is computed
//! again directly before step t. Instead of Checkmate's S and FREE, which say what is stored and
//! freed (equations 2 to 9), there are *needs*: whether the content that a value has at some
//! position is read later, before its producer runs again. A need is forced up by reads and by
//! later needs, and ended by runs, so it is whole where R is. This makes the program that of the
//! search: the same schedules, and by position the same memory as `state.rs` counts, with
//! workspace, results in place, and results that nobody reads.

mod needs;
mod program;

use super::problem::Problem;
use super::profile::Exponent;
use super::state::{Copy, State};
use crate::program::{Limits, Solver};
use program::ExactModel;

/// The most steps for which the program is made: it has about n³/2 factors.
pub(crate) const MOST_STEPS: usize = 160;

/// What the program says.
#[derive(Clone, Debug)]
pub(crate) struct ProgramAnswer {
    /// Copies that fit, evaluated by [`State`], and the nanoseconds that they take.
    pub found: Option<(Vec<Copy>, u64)>,
    /// Nanoseconds that every schedule within the budget takes for copies; infinite if none fits.
    pub bound: f64,
}

/// Solvers keep limits up to a part of them; an answer that is above is asked for again with less.
const SLACK: f64 = 1e-6;

/// The cheapest copies with which every position stays within `budget`, everything counted but
/// what the caller owns. With `below`, only copies that take less than that are looked for.
pub(crate) fn solve(
    problem: &Problem,
    budget: f64,
    below: Option<u64>,
    solver: &dyn Solver,
    limits: Limits,
) -> ProgramAnswer {
    // What is between needs and budget by rounding alone must not be refused.
    let model = ExactModel::new(problem, budget * (1.0 + 1e-9), below);
    let answer = solver.solve(&model.program, limits);
    let bound = (answer.bound * model.time_scale).max(0.0);
    let found = answer.values.and_then(|values| {
        evaluated(&model, &values, problem, budget).or_else(|| {
            let stricter = ExactModel::new(problem, budget * (1.0 - SLACK), below);
            let values = solver.solve(&stricter.program, limits).values?;
            evaluated(&stricter, &values, problem, budget)
        })
    });
    ProgramAnswer { found, bound }
}

/// The copies, if they fit when they are simulated, and what they cost; the program keeps the order, with all originals.
fn evaluated(
    model: &ExactModel,
    values: &[f64],
    problem: &Problem,
    budget: f64,
) -> Option<(Vec<Copy>, u64)> {
    let copies = model.copies(values);
    let mut state = State::new(problem, budget, Exponent::One);
    let _ = state.apply(&copies);
    state.fits().then(|| (copies, state.cost_with_originals()))
}
