//! Linear programs whose columns may have to be whole, and what a solver says of them.
//!
//! The models are made here; whoever solves them is handed in from outside ([`Solver`]), so that
//! this crate needs no solver. No answer is believed: values become a plan that is simulated like
//! any other.

use std::fmt::Debug;
use std::sync::Arc;

use crate::graph::NodeId;

/// A column of a [`Program`], by its position.
pub type Column = usize;

/// Minimise Σ cost·x subject to rows, with 0 ≤ x ≤ 1.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// By column: what one of it costs.
    pub costs: Vec<f64>,
    /// By column: must it be 0 or 1?
    pub whole: Vec<bool>,
    /// Each a sum that has to stay within a limit.
    pub rows: Vec<Row>,
    /// By column: values that a solver may begin with. What they give columns that need not be
    /// whole does not count: the solver finds the best.
    pub start: Option<Vec<f64>>,
}

/// Σ terms ≤ limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Columns, each once, with their factors.
    pub terms: Vec<(Column, f64)>,
    /// The most that the sum may be.
    pub limit: f64,
}

impl Program {
    /// Adds a column between 0 and 1.
    pub fn add(&mut self, cost: f64, whole: bool) -> Column {
        self.costs.push(cost);
        self.whole.push(whole);
        self.costs.len() - 1
    }

    /// Demands Σ terms ≤ limit. Terms of one column are added up.
    pub fn at_most(&mut self, mut terms: Vec<(Column, f64)>, limit: f64) {
        terms.sort_by_key(|&(column, _)| column);
        terms.dedup_by(|later, first| {
            let same = later.0 == first.0;
            if same {
                first.1 += later.1;
            }
            same
        });
        terms.retain(|&(_, factor)| factor != 0.0);
        self.rows.push(Row { terms, limit });
    }
}

/// When a solver is to end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Nodes of the branch-and-bound tree. The answer does not depend on the machine's speed.
    pub nodes: u64,
    /// Seconds, if the user sets a limit. The answer then does.
    pub seconds: Option<f64>,
    /// It may end when the best known is at most this part above the bound.
    pub gap: f64,
}

/// A solver, if there is one, and how the pipeline uses it.
#[derive(Clone, Debug)]
pub struct Solving {
    /// Who solves.
    pub solver: Option<Arc<dyn Solver>>,
    /// Is the lower bound to be raised by it?
    pub certify: bool,
    /// The most seconds that one program may take which raises the lower bound, if the user sets a
    /// limit.
    pub seconds: Option<f64>,
    /// The part of the time left ([`Solver::seconds_left`]) that a strategy may use.
    pub share: f64,
    /// What runs, one node after another, in a plan to begin with; empty if there is none.
    pub begun: Vec<NodeId>,
}

impl Default for Solving {
    fn default() -> Solving {
        Solving {
            solver: None,
            certify: false,
            seconds: None,
            share: 1.0,
            begun: Vec::new(),
        }
    }
}

/// What a solver found.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The best values found, by column.
    pub values: Option<Vec<f64>>,
    /// No values that meet the rows cost less; infinite if there are none at all.
    pub bound: f64,
    /// Are the values the best to be had, or is it certain that there are none?
    pub proved: bool,
}

/// Solves programs.
pub trait Solver: Debug + Send + Sync {
    /// The best values within the limits; the same program and limits give the same answer unless
    /// seconds are limited.
    fn solve(&self, program: &Program, limits: Limits) -> Answer;

    /// Seconds until the user wants a plan; `None` if there is no such limit.
    fn seconds_left(&self) -> Option<f64> {
        None
    }
}
