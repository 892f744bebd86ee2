//! The core's calls: a training graph and a budget in, an equivalent graph that fits out; with their options, results and errors.

mod aim;
mod alternatives;
mod buffers;
mod cheaper_copies;
mod comparison;
mod contest;
mod convolutions;
mod error;
mod faults;
#[cfg(test)]
mod fused_bounds;
mod last_resort;
mod limits;
mod listing;
mod loading;
mod near_smallest;
mod options;
mod original;
mod pipeline;
mod proof;
mod published;
mod result;
mod simulation;
mod sizes;
mod slices;
#[cfg(test)]
mod tests;
pub(crate) mod tuning;
mod updates;
mod usual;
mod variant_graph;

use std::borrow::Cow;

pub use buffers::{BufferKind, HeldBuffer, StepMoment};
pub use error::OptimizeError;
pub use faults::FailedCandidate;
use faults::Found;
pub use limits::{Kept, StepLimits, limits};
use listing::as_listed;
use loading::{put_together, understand, weigh};
pub use loading::{stale, uncounted, with_shapes};
pub use options::{BudgetRequest, PlanOptions};
pub use pipeline::APPLYING;
pub use proof::verify_written;
pub use result::{Chosen, Execution, Floor, Measured, Optimized, Peak, StopReason, Summary};
use simulation::{at_level, describe, larger};

use crate::analysis::cost::costs;
use crate::graph::Graph;
use crate::rewrite::infer_shapes::without_stale;
use crate::runtime::liveness::fixed_bytes;
use crate::runtime::order::ExecutionOrder;
use crate::runtime::promise::Promise;

/// Why [`measure`] does not take this graph, before anything takes long.
pub fn check_measurable(graph: &Graph, options: &PlanOptions) -> Result<(), OptimizeError> {
    weigh(graph, options).map(drop)
}

/// Why [`optimize_each`] and [`optimize_usual`] do not take this graph whatever the budget is, before anything takes long.
pub fn check_plannable(graph: &Graph, options: &PlanOptions) -> Result<(), OptimizeError> {
    understand(graph, options).map(drop)
}

/// What one step of `graph` needs as it is.
pub fn measure(graph: &Graph, options: &PlanOptions) -> Result<Measured, OptimizeError> {
    let graph = weigh(graph, options)?;
    let options = &options.beside_model(&graph);
    let costs = costs(&graph, &options.device, &options.overrides);
    let (_, level) = options.runtime.promise.reported();
    let right = without_stale(&graph);
    let all = [
        Some(&graph),
        matches!(right, Cow::Owned(_)).then_some(&*right),
    ];
    let all = all.map(|graph| Some(at_level(&as_listed(graph?), &costs, level, options)));
    let peak = |wanted: ExecutionOrder| {
        let runs = all.iter().flatten().filter_map(|all| {
            let mut found = all.iter().filter(|(order, _)| *order == wanted);
            found.next().map(|(_, liveness)| liveness.clone())
        });
        let liveness = runs.reduce(|one, other| larger(&graph, one, other))?;
        Some(describe(&graph, &costs, &liveness, options.reserve))
    };
    let nothing = || Peak::nothing(options.reserve);
    Ok(Measured {
        level,
        fixed: fixed_bytes(&graph) + options.reserve,
        default: peak(ExecutionOrder::Default).unwrap_or_else(nothing),
        priority: peak(ExecutionOrder::PriorityBased).unwrap_or_else(nothing),
        memory_efficient: peak(ExecutionOrder::MemoryEfficient),
    })
}

/// Rewrites `input` so that one training step fits the budget, at the least added time found.
/// Deterministic: the same input and options give the same graph.
///
/// The result is verified: it computes what `input` computes, and its peak, simulated afresh in
/// every session that is promised, is within the budget. A graph that fits as it is comes back as it is.
pub fn optimize(input: &Graph, options: &PlanOptions) -> Result<Optimized, OptimizeError> {
    let mut row = optimize_each(input, options, &[options.budget])?;
    row.pop().expect("one result for one budget")
}

/// The same for several budgets, in their sequence; `options.budget` is not looked at. What all of
/// them need is worked out once, so that a row of budgets takes less than its parts.
///
/// ```text
/// understand ─→ plan ─→ apply ─→ enforce ─→ simulate ─fits─→ verify
///                 ↑                            │
///                 └──── aim lower by what it missed
/// ```
///
/// Every alternative goes this way from *plan* on (`pipeline.rs`; the way back is in `pipeline/within_budget.rs`), and
/// whatever comes out is compared with the others (`contest.rs`).
pub fn optimize_each(
    input: &Graph,
    options: &PlanOptions,
    budgets: &[BudgetRequest],
) -> Result<Vec<Result<Optimized, OptimizeError>>, OptimizeError> {
    planned(input, options, budgets, None, |graphs, budgets| {
        contest::compare(graphs, options, budgets, contest::Look::Thorough)
    })
}

/// The same where the budget is to hold in a session of which nobody has changed order or level ([`Promise::USUAL`]), and in
/// every other one as well if that costs next to nothing: what is told, and of what budgets are parts, is that session's. The promise
/// in `options` is not looked at; each result says its own.
///
/// [`Promise::USUAL`]: crate::runtime::promise::Promise::USUAL
pub fn optimize_usual(
    input: &Graph,
    options: &PlanOptions,
    budgets: &[BudgetRequest],
) -> Result<Vec<Result<Optimized, OptimizeError>>, OptimizeError> {
    planned(
        input,
        options,
        budgets,
        Some(Promise::USUAL),
        |graphs, budgets| usual::decide(graphs, options, budgets),
    )
}

/// What `find` finds for each budget, in the graph as it is right and as it is declared; what is promised `narrow` sessions is enough there.
fn planned(
    input: &Graph,
    options: &PlanOptions,
    budgets: &[BudgetRequest],
    narrow: Option<Promise>,
    find: impl Fn((&Graph, &Graph), &[BudgetRequest]) -> Result<Vec<Found>, OptimizeError>,
) -> Result<Vec<Found>, OptimizeError> {
    let graph = understand(input, options)?;
    let right = without_stale(&graph);
    let find = |budgets: &[_]| find((&right, &graph), budgets);
    let mut row = find(budgets)?;
    let fixed = fixed_bytes(&graph) + options.reserve;
    last_resort::fit_smallest(&mut row, (budgets, fixed), options, narrow, find)?;
    put_together(&mut row, &right, input, options)?;
    Ok(row)
}
