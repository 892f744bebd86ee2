//! A graph through everything, and what has to hold whatever it is.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ckpt_opt::onnx::{Model, export_with};
use ckpt_passes::analysis::cost::Overrides;
use ckpt_passes::bytes::Bytes;
use ckpt_passes::graph::Graph;
use ckpt_passes::operators::variants::Group;
use ckpt_passes::optimize::{
    BudgetRequest, OptimizeError, PlanOptions, measure, optimize_each, verify_written,
};
use ckpt_passes::program::Solving;
use ckpt_passes::runtime::Runtime;
use ckpt_passes::runtime::device::Device;
use ckpt_passes::search::Effort;
use ckpt_passes::strategy::Strategy;
use ckpt_passes::testing::Draw;

use crate::source::Source;

/// Options with little work to do; the rest is drawn.
pub(super) fn options(source: &mut Source) -> PlanOptions {
    let device = source.pick(&["cpu", "cpu", "cpu", "a100"]);
    let strategy = match source.one_in(6) {
        true => source.pick(&Strategy::ALL),
        false => Strategy::Auto,
    };
    let variants = match source.one_in(3) {
        true => Vec::new(),
        false => Group::ALL.to_vec(),
    };
    PlanOptions {
        bindings: BTreeMap::new(),
        budget: BudgetRequest::Smallest,
        reserve: source.pick(&[Bytes::ZERO, Bytes::ZERO, Bytes(1 << 20), Bytes(1 << 40)]),
        device: Device::preset(device).unwrap_or_else(|| unreachable!("a preset")),
        overrides: Overrides::new(),
        variants: variants.into_iter().collect(),
        allowed: Default::default(),
        strategy,
        effort: Effort {
            seed: source.below(3) as u64,
            evaluations: source.pick(&[200, 50, 2_000, 0]),
        },
        runtime: source.pick(&[Runtime::LEAN, Runtime::DEFAULT]),
        watch: Arc::default(),
        solving: Solving::default(),
        runner: ckpt_passes::pass::Runner::default(),
    }
}

/// A few budgets, from the smallest on.
fn budgets(source: &mut Source) -> Vec<BudgetRequest> {
    let mut budgets = vec![BudgetRequest::PartOfPeak(1.0)];
    for _ in 0..=source.below(2) {
        let part = source.below(21) as f64 / 20.0;
        budgets.push(match source.below(8) {
            0 => BudgetRequest::Smallest,
            1 => BudgetRequest::PartOfPeak(part),
            2 => BudgetRequest::Bytes(Bytes(source.bits() >> source.below(64))),
            _ => BudgetRequest::FixedPlusPart(part),
        });
    }
    budgets
}

/// What planning `graph` must never do: panic (the caller sees to that), blame itself, refuse the graph's own peak,
/// or fit a small budget and not a larger one. Gives what was planned.
pub(super) fn plan(
    source: &mut Source,
    graph: &Graph,
    options: &PlanOptions,
    model: Option<&Model>,
) -> Result<Vec<Graph>, String> {
    let measured = match measure(graph, options) {
        Ok(measured) => measured,
        Err(error) => return blame(&error).map(|()| Vec::new()),
    };
    let own = measured.default.bytes;
    let budgets = budgets(source);
    let row = match optimize_each(graph, options, &budgets) {
        Ok(row) => row,
        Err(error) => return blame(&error).map(|()| Vec::new()),
    };
    let mut fits = Vec::new();
    for (request, outcome) in budgets.iter().zip(&row) {
        match outcome {
            Ok(optimized) => {
                let summary = &optimized.summary;
                if summary.after.bytes > summary.budget {
                    return Err(format!(
                        "a peak of {} was kept for a budget of {}",
                        summary.after.bytes, summary.budget
                    ));
                }
                if let Some(fault) = summary.faults.first() {
                    return Err(format!("given up for another: {fault}"));
                }
                fits.push((summary.budget, true));
                // What the written file holds for.
                let mut planned = options.clone();
                if let Some(choice) = summary.convolutions {
                    planned.device.convolutions.choice = choice;
                }
                let options = &planned;
                verify_written(graph, &optimized.graph, options, summary.budget)
                    .map_err(|error| format!("the second opinion: {error}"))?;
                if let Some(model) = model {
                    written(model, graph, &optimized.graph, options, summary.budget)?;
                }
            }
            Err(OptimizeError::Infeasible { budget, .. }) => {
                if *budget >= own {
                    return Err(format!("the graph fits {budget} as it is, and was refused"));
                }
                if *request == BudgetRequest::Smallest {
                    return Err(format!("the smallest peak, {budget}, was refused"));
                }
                fits.push((*budget, false));
            }
            Err(error) => blame(error)?,
        }
    }
    fits.sort();
    let least = fits
        .iter()
        .find(|(_, fits)| *fits)
        .map(|(budget, _)| *budget);
    let refused = fits
        .iter()
        .rfind(|(_, fits)| !*fits)
        .map(|(budget, _)| *budget);
    match (least, refused) {
        (Some(least), Some(refused)) if refused > least => Err(format!(
            "a budget of {least} fits, and one of {refused} does not"
        )),
        _ => Ok(row
            .into_iter()
            .flatten()
            .map(|optimized| optimized.graph)
            .collect()),
    }
}

/// An error is fine unless something came out wrong.
fn blame(error: &OptimizeError) -> Result<(), String> {
    match error {
        OptimizeError::Unproved { .. } | OptimizeError::Verification(_) => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// Writes the graph, reads it back, and verifies that.
fn written(
    model: &Model,
    original: &Graph,
    graph: &Graph,
    options: &PlanOptions,
    budget: Bytes,
) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let out = folder.path().join("out.onnx");
    // What cannot be written (a type that the file does not say) is refused with a reason.
    let Ok(pending) = export_with(model, graph, Path::new(&out), &[]) else {
        return Ok(());
    };
    let read = Model::open(pending.path()).and_then(|model| model.sorted_graph());
    let read = read.map_err(|error| format!("what was written cannot be read: {error}"))?;
    verify_written(original, &read, options, budget)
        .map(drop)
        .map_err(|error| format!("what was written: {error}"))
}
