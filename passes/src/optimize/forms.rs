//! The forms of a graph: as it is, and with variants in it.
//!
//! An outer loop around the search. Running sums come first: they only cost what the additions
//! cost, and are judged by the order of first computations alone. Then one kind of variant after
//! another is put into every node where it can matter, and stays if the plan becomes better. A form is
//! planned like any other graph, so the result is never worse than without variants.

use std::collections::BTreeMap;

use super::pipeline::Pipeline;
use super::{BudgetRequest, OptimizeError, Optimized, Options};
use crate::analysis::cost::costs;
use crate::analysis::liveness::Liveness;
use crate::analysis::order::ExecutionOrder;
use crate::analysis::sequences::sequences;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId, Uses};
use crate::operators::variants::{Group, VARIANTS, Variant};
use crate::pass::Pass;
use crate::search::{Effort, first_orders};
use crate::strategy::Strategy;
use crate::transform::apply_variants::ApplyVariants;

/// What a variant has at stake in a node is worth a look from this part of the peak on, without
/// what the caller owns.
const WORTH: u64 = 200;

/// Forms are compared with this part of the effort.
const TRIAL: u64 = 4;

/// Which nodes to replace, and by what.
type Choices = BTreeMap<NodeId, &'static Variant>;

/// One result for each budget, each in whichever form gives the best plan.
pub(super) fn optimize_each(
    graph: &Graph,
    options: &Options,
    budgets: &[BudgetRequest],
) -> Result<Vec<Result<Optimized, OptimizeError>>, OptimizeError> {
    if options.strategy == Strategy::MonetIlp && !options.variants.is_empty() {
        return Ok(budgets
            .iter()
            .map(|&budget| monet(graph, options, budget))
            .collect());
    }
    if options.variants.is_empty() || options.strategy != Strategy::Auto {
        return Pipeline::new(graph, graph.clone(), options).run(budgets);
    }
    if offers(graph, options, free_peak(graph, options, false)).is_empty() {
        return Pipeline::new(graph, graph.clone(), options).run(budgets);
    }
    let of = |&budget: &BudgetRequest| {
        let options = Options {
            budget,
            ..options.clone()
        };
        optimize(graph, &options)
    };
    Ok(budgets.iter().map(of).collect())
}

fn optimize(graph: &Graph, options: &Options) -> Result<Optimized, OptimizeError> {
    let before = free_peak(graph, options, false);
    let offers = offers(graph, options, before);
    let mut chosen = Choices::new();
    let sums: Choices = offered(&offers, |variant| variant.group == Group::Sums).collect();
    if !sums.is_empty() && !fits_by_order(graph, options) {
        let form = apply(graph, &sums);
        let order = |graph: &Graph| free_peak(graph, options, true);
        if order(&form) < order(graph) {
            chosen = sums;
        }
    }
    let mut best = plan(graph, &chosen, options);
    let nothing_to_gain = |best: &Result<Optimized, _>| {
        let free = |best: &Optimized| best.summary.time_added == 0;
        options.budget != BudgetRequest::Smallest && best.as_ref().is_ok_and(free)
    };
    let quick = Options {
        effort: Effort {
            evaluations: options.effort.evaluations / TRIAL,
            ..options.effort
        },
        ..options.clone()
    };
    let mut improved = false;
    let mut smallest: Option<Bytes> = None;
    let mut seen = |of: &Result<Optimized, OptimizeError>| {
        let reached = of.as_ref().ok().map(|found| found.summary.smallest_peak);
        smallest = smallest.into_iter().chain(reached).min();
    };
    seen(&best);
    for variant in VARIANTS.iter().filter(|v| v.group != Group::Sums) {
        if nothing_to_gain(&best) {
            break;
        }
        let mut with = chosen.clone();
        with.extend(offered(&offers, |v| v.name == variant.name));
        if with == chosen {
            continue;
        }
        let trial = plan(graph, &with, &quick);
        seen(&trial);
        if is_better(&trial, &best, options.budget) {
            (best, chosen, improved) = (trial, with, true);
        }
    }
    if improved {
        let thorough = plan(graph, &chosen, options);
        if is_better(&thorough, &best, options.budget) {
            best = thorough;
        }
    }
    if let (Ok(best), Some(smallest)) = (&mut best, smallest) {
        best.summary.smallest_peak = best.summary.smallest_peak.min(smallest);
    }
    best
}

/// MONeT's program chooses implementations and schedule together; the schedule is planned once more
/// in the graph with these implementations.
fn monet(
    graph: &Graph,
    options: &Options,
    budget: BudgetRequest,
) -> Result<Optimized, OptimizeError> {
    let options = Options {
        budget,
        ..options.clone()
    };
    let choices = Pipeline::new(graph, graph.clone(), &options).implementations(budget);
    plan(graph, &choices.into_iter().collect(), &options)
}

fn plan(graph: &Graph, choices: &Choices, options: &Options) -> Result<Optimized, OptimizeError> {
    let form = Pipeline::new(graph, apply(graph, choices), options);
    let mut row = form.run(&[options.budget])?;
    let mut found = row.pop().expect("one result for one budget")?;
    // A graph that fits as it is comes back as it is.
    if found.graph != *graph {
        let named = |(&id, variant): (&NodeId, &&'static Variant)| {
            (graph.node(id).name.clone(), variant.name)
        };
        found.summary.variants = choices.iter().map(named).collect();
    }
    Ok(found)
}

fn apply(graph: &Graph, choices: &Choices) -> Graph {
    let mut form = graph.clone();
    let choices: Vec<_> = choices
        .iter()
        .map(|(&id, &variant)| (id, variant))
        .collect();
    let Ok(_) = ApplyVariants { choices: &choices }.run(&mut form);
    form
}

/// Every node and variant with enough at stake.
fn offers(graph: &Graph, options: &Options, peak: Bytes) -> Vec<(NodeId, &'static Variant)> {
    let uses = Uses::of(graph);
    let mut offers = Vec::new();
    let allowed = VARIANTS.iter().filter(|variant| {
        options.variants.contains(&variant.group) && variant.suits(options.device.provider)
    });
    for variant in allowed {
        for &id in graph.order() {
            let stake = graph.node(id).reads().chain(graph.node(id).writes());
            let stake = stake
                .filter_map(|tensor| graph.tensor(tensor).bytes())
                .max();
            let worth = stake.is_some_and(|bytes| bytes.0.saturating_mul(WORTH) >= peak.0);
            if worth && variant.parts(graph, &uses, id).is_some() {
                offers.push((id, variant));
            }
        }
    }
    offers
}

fn offered(
    offers: &[(NodeId, &'static Variant)],
    wanted: impl Fn(&Variant) -> bool,
) -> impl Iterator<Item = (NodeId, &'static Variant)> {
    offers.iter().copied().filter(move |(_, v)| wanted(v))
}

/// Does the graph fit in the best order of first computations?
fn fits_by_order(graph: &Graph, options: &Options) -> bool {
    let fixed = crate::analysis::liveness::fixed_bytes(graph);
    let least = free_peak(graph, options, true);
    let part = |of: Bytes, part: f64| Bytes((of.0 as f64 * part) as u64);
    let before = free_peak(graph, options, false);
    match options.budget {
        BudgetRequest::Bytes(bytes) => least + fixed + options.reserve <= bytes,
        BudgetRequest::PartOfPeak(of) => least + fixed <= part(before + fixed, of),
        BudgetRequest::FixedPlusPart(of) => least <= part(before, of),
        BudgetRequest::Smallest => false,
    }
}

/// The peak without what the caller owns: as the runtime runs the graph, or in the best order of
/// first computations if `ordered`.
fn free_peak(graph: &Graph, options: &Options, ordered: bool) -> Bytes {
    let provider = options.device.provider;
    let costs = costs(graph, &options.device, &options.overrides);
    let runs = Liveness::simulate(graph, ExecutionOrder::Default, provider, &costs);
    let found = match ordered {
        false => runs,
        true => {
            let pairs = sequences(graph, &runs.order);
            let orders = first_orders(graph, provider, &costs, &pairs);
            let mut graph = graph.clone();
            if let Some(order) = orders.into_iter().next() {
                graph.set_order(order);
            }
            Liveness::in_file_order(&graph, provider, &costs)
        }
    };
    found.peak - found.fixed
}

fn is_better(
    a: &Result<Optimized, OptimizeError>,
    b: &Result<Optimized, OptimizeError>,
    request: BudgetRequest,
) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => {
            let score = |of: &Optimized| {
                let (need, time) = (of.summary.after.bytes, of.summary.time_added);
                match request {
                    BudgetRequest::Smallest => (need.0, time),
                    _ => (time, need.0),
                }
            };
            score(a) < score(b)
        }
        (Ok(_), Err(_)) => true,
        (
            Err(OptimizeError::Infeasible { smallest: a, .. }),
            Err(OptimizeError::Infeasible { smallest: b, .. }),
        ) => a.bytes < b.bytes,
        // What is wrong with a form must not pass unnoticed.
        (Err(OptimizeError::Verification(_)), _) => true,
        _ => false,
    }
}
