//! The commands that plan one graph many times: `sweep` and `compare`.

use std::sync::Arc;
use std::time::Instant;

use ckpt_passes::bytes::Bytes;
use ckpt_passes::graph::Graph;
use ckpt_passes::optimize::{
    BudgetRequest, Measured, OptimizeError, Options, Summary, measure, optimize_each,
};
use ckpt_passes::search::Effort;
use ckpt_passes::strategy::Strategy;

use crate::cli::{Compare, Messages, Requested, Row, Sweep};
use crate::onnx::Model;
use crate::report::ReportFile;
use crate::report::rows::{Cell, Comparison, Fitting, Tried};
use crate::run::{self, Failure};

/// Shows what a row of budgets costs.
pub fn sweep(arguments: &Sweep, messages: &Messages) -> Result<String, Failure> {
    let comparison = compared(&arguments.row, &[arguments.strategy], messages)?;
    Ok(match arguments.row.json {
        true => comparison.json(),
        false => comparison.sweep(),
    })
}

/// Shows what every strategy makes of the same graph.
pub fn compare(arguments: &Compare, messages: &Messages) -> Result<String, Failure> {
    let strategies = match arguments.strategies.is_empty() {
        true => Strategy::ALL.to_vec(),
        false => arguments.strategies.clone(),
    };
    let comparison = compared(&arguments.row, &strategies, messages)?;
    Ok(match arguments.row.json {
        true => comparison.json(),
        false => comparison.table(),
    })
}

fn compared(
    row: &Row,
    strategies: &[Strategy],
    messages: &Messages,
) -> Result<Comparison, Failure> {
    let profile = run::profile(&row.setting)?;
    let options = Options {
        effort: Effort {
            seed: row.seed,
            evaluations: run::EVALUATIONS,
        },
        variants: row
            .variants
            .iter()
            .flat_map(|chosen| chosen.groups())
            .collect(),
        ..run::options(&row.setting, profile.as_ref())?
    };
    let model = Model::open(&row.input)?;
    let graph = run::graph(&model, profile.as_ref(), &options)?;
    run::warn(&model, &graph, &options, profile.as_ref(), messages);
    let failed = |error: OptimizeError| Failure::Optimize {
        file: row.input.clone(),
        error: error.into(),
    };
    // Before the search, which may take long.
    let sources = run::sources(&model, &row.input, &row.setting);
    let plot = row.plot.as_deref();
    let plot = plot
        .map(|path| ReportFile::at("--plot", path, &sources))
        .transpose()?;
    let measured = measure(&graph, &options).map_err(failed)?;
    let budgets = row.budgets();
    let mut tried = Vec::new();
    for &strategy in strategies {
        messages.progress(format_args!("planning with {strategy}"));
        let options = Options {
            strategy,
            watch: row.time_limit.map_or_else(Arc::default, run::watch_for),
            solving: run::solver(row.time_limit),
            ..options.clone()
        };
        tried.push(planned(&graph, &options, &budgets, &measured).map_err(failed)?);
    }
    let comparison = Comparison {
        fixed: measured.fixed,
        before: measured.default.bytes,
        budgets: budgets.into_iter().map(|budget| budget.text).collect(),
        tried,
    };
    if let Some(plot) = plot {
        plot.write(&comparison.plot())?;
    }
    Ok(comparison)
}

/// What one strategy makes of all budgets, and the smallest peak that it reaches.
fn planned(
    graph: &Graph,
    options: &Options,
    budgets: &[Requested],
    measured: &Measured,
) -> Result<Tried, OptimizeError> {
    let requests = budgets.iter().map(|budget| budget.budget);
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
    match optimize_each(graph, options, &requests) {
        Ok(mut results) => {
            if let Some(Err(OptimizeError::Infeasible { smallest, .. })) = results.pop() {
                tried.smallest = smallest.bytes;
            }
            for result in results {
                tried.cells.push(match result {
                    Ok(optimized) => fitting(optimized.summary),
                    Err(OptimizeError::Infeasible { budget, smallest }) => {
                        tried.smallest = tried.smallest.min(smallest.bytes);
                        Cell {
                            budget,
                            plan: None,
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

fn fitting(summary: Summary) -> Cell {
    Cell {
        budget: summary.budget,
        plan: Some(Fitting {
            peak: summary.after.bytes,
            overhead: summary.overhead(),
            lower_bound: summary.lower_bound_overhead(),
            recomputed: summary.recomputed_nodes,
            barriers: summary.barriers,
        }),
        notes: summary.notes,
    }
}
