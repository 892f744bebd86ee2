//! One graph planned many times: for a row of budgets, with several strategies.

use std::time::Instant;

use ckpt_passes::bytes::Bytes;
use ckpt_passes::optimize::{self, BudgetRequest, Measured, OptimizeError, StopReason, Summary};
use ckpt_passes::runtime::promise::Promise;
use ckpt_passes::strategy::Strategy;

use crate::control::Event;
use crate::error::Error;
use crate::inputs::Budget;
use crate::job::{Job, measured};
use crate::onnx::Model;
use crate::options::Options;
use crate::report::rows::{Cell, Comparison, Fitting, Tried};

/// What each of `strategies` makes of each of `budgets`, and the smallest peak that it reaches; what all budgets need
/// is worked out once. [`Options::strategy`] is not looked at, and [`Options::time_limit`] is for each strategy.
///
/// A budget that nothing fits is a cell without a plan, and a strategy that does not deal with the graph says why in
/// its row; neither is an error.
pub fn sweep(
    model: &Model,
    budgets: &[Budget],
    strategies: &[Strategy],
    options: &Options,
) -> Result<Comparison, Error> {
    let job = Job::new(model, options, optimize::check_plannable)?;
    let plan_options = job.options.to_plan(BudgetRequest::Smallest)?;
    let before = measured(model, &job.graph, &plan_options)?;
    let mut tried = Vec::new();
    for &strategy in strategies {
        options.control.tell(&Event::Planning {
            nodes: job.graph.order().len(),
            strategy,
            budget: None,
        });
        let plan_options = optimize::PlanOptions {
            strategy,
            ..job.options.to_plan(BudgetRequest::Smallest)?
        };
        let row = options.control.watching(&plan_options.watch, || {
            planned(&job, &plan_options, budgets, &before)
        });
        job.go_on()?;
        tried.push(row.map_err(|error| job.failed(error))?);
    }
    Ok(Comparison {
        fixed: before.fixed,
        before: before.default.bytes,
        budgets: budgets.iter().map(ToString::to_string).collect(),
        tried,
        warnings: job.warnings,
    })
}

/// The row of budgets that is tried where none is given: fixed+90%, fixed+80% and so on down to fixed+20%.
pub fn usual_budgets() -> Vec<Budget> {
    let usual = (2..10u32).rev().map(|tenth| format!("fixed+{tenth}0%"));
    usual.filter_map(|text| text.parse().ok()).collect()
}

/// What one strategy makes of all budgets, and the smallest peak that it reaches.
fn planned(
    job: &Job,
    options: &optimize::PlanOptions,
    budgets: &[Budget],
    measured: &Measured,
) -> Result<Tried, OptimizeError> {
    let requests = budgets.iter().map(|budget| budget.request);
    // Nothing fits into no memory, and the refusal says what the smallest peak is.
    let nothing = BudgetRequest::Bytes(Bytes::ZERO);
    let requests: Vec<BudgetRequest> = requests.chain([nothing]).collect();
    let started = Instant::now();
    let mut tried = Tried {
        strategy: options.strategy.name(),
        seconds: 0.0,
        refused: None,
        smallest: measured.default.bytes,
        cells: Vec::new(),
    };
    match job.options.plan(&job.graph, options, &requests) {
        Ok(mut results) => {
            let ended_early = options.watch.is_stopped().then_some(StopReason::TimeLimit);
            if let Some(Err(OptimizeError::Infeasible { smallest, .. })) = results.pop() {
                tried.smallest = smallest.bytes;
            }
            for result in results {
                tried.cells.push(match result {
                    Ok(optimized) => fitting(optimized.summary),
                    Err(OptimizeError::Infeasible {
                        budget, smallest, ..
                    }) => {
                        tried.smallest = tried.smallest.min(smallest.bytes);
                        Cell {
                            budget,
                            plan: None,
                            stop_reason: ended_early,
                            notes: Vec::new(),
                        }
                    }
                    Err(OptimizeError::Refused { reason, .. }) => {
                        tried.refused = Some(reason);
                        tried.cells.clear();
                        return Ok(tried);
                    }
                    // The others stand.
                    Err(error @ OptimizeError::Unproved { budget, .. }) => Cell {
                        budget,
                        plan: None,
                        stop_reason: ended_early,
                        notes: vec![error.to_string()],
                    },
                    Err(other) => return Err(other),
                });
            }
        }
        Err(OptimizeError::Refused { reason, .. }) => tried.refused = Some(reason),
        Err(other) => return Err(other),
    }
    for plan in tried.cells.iter().filter_map(|cell| cell.plan) {
        tried.smallest = tried.smallest.min(plan.peak);
    }
    tried.seconds = started.elapsed().as_secs_f64();
    Ok(tried)
}

/// Where the budget holds: of a graph that stays as it is, maybe in the session alone of which its peak is told.
fn held(summary: &Summary) -> Promise {
    match summary.over_budget().next() {
        None => summary.promise,
        Some(_) => {
            let (order, level) = summary.reported;
            Promise {
                order: Some(order),
                level: Some(level),
            }
        }
    }
}

fn fitting(summary: Summary) -> Cell {
    Cell {
        budget: summary.budget,
        plan: Some(Fitting {
            peak: summary.after.bytes,
            overhead: summary.overhead(),
            lower_bound: summary.lower_bound_overhead(),
            recomputed: summary.recomputed_nodes,
            barriers: summary.barriers,
            promise: held(&summary),
        }),
        stop_reason: Some(summary.stop_reason),
        notes: summary.notes,
    }
}
