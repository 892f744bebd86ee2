//! The forms of a graph: as it is, and with variants in it.
//!
//! Running sums come first: they only cost what the additions cost, and are judged by the order of
//! first computations alone. Then the graph is planned without other variants. In the light of that
//! plan every node gets the variant that is worth most there, if any is worth its time
//! (`worth.rs`), and the graph is planned again with all of them. The better plan stays, so the
//! result is never worse than without variants.

use std::collections::BTreeMap;

use super::need::frame;
use super::pipeline::Pipeline;
use super::worth::{Known, Market};
use super::{BudgetRequest, OptimizeError, Optimized, Options};
use crate::analysis::cost::costs;
use crate::analysis::liveness::{Liveness, fixed_bytes};
use crate::analysis::order::ExecutionOrder;
use crate::analysis::sequences::sequences;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId, Uses};
use crate::operators::variants::{Group, VARIANTS, Variant};
use crate::pass::Pass;
use crate::search::first_orders;
use crate::strategy::Strategy;
use crate::transform::apply_variants::ApplyVariants;

/// What a variant has at stake in a node is worth a look from this part of the peak on, without
/// what the caller owns.
const WORTH: u64 = 200;

/// So often variants are chosen in the light of the best plan so far; where the smallest peak is
/// wanted, every step down shows others.
const ROUNDS: usize = 1;
const ROUNDS_FOR_SMALLEST: usize = 2;

/// To make the smallest peak smaller, bytes are priced for this part of it.
const AIM: f64 = 0.97;

/// A smallest peak is lower only from this part on: a hair's breadth is not worth any time.
const LOWER: f64 = 0.003;

/// A step is full from this part of the peak on, without what the caller owns.
const FULL: f64 = 0.95;

/// Which nodes to replace, and by what.
type Choices = BTreeMap<NodeId, &'static Variant>;

/// Variants with the nanoseconds that they save.
type Worth = Vec<(NodeId, f64, &'static Variant)>;

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
    let base = Pipeline::new(graph, apply(graph, &chosen), options);
    let mut best = plan(&base, graph, &chosen, options);
    let smallest_wanted = options.budget == BudgetRequest::Smallest;
    let rounds = match smallest_wanted {
        true => ROUNDS_FOR_SMALLEST,
        false => ROUNDS,
    };
    let mut smallest = best.as_ref().ok().map(|found| found.summary.smallest_peak);
    let mut tried = chosen.clone();
    for _ in 0..rounds {
        let free = |best: &Optimized| best.summary.time_added == 0;
        let stopped = options.watch.is_stopped();
        if stopped || !smallest_wanted && best.as_ref().is_ok_and(free) {
            break;
        }
        let worth = worthwhile(&base, &best, &offers, options);
        let Some((with, form)) = most_promising(graph, &chosen, &worth, &best, options) else {
            break;
        };
        if with == tried {
            break;
        }
        let trial = plan(&form.alone(), graph, &with, options);
        tried = with;
        let reached = trial.as_ref().ok().map(|found| found.summary.smallest_peak);
        smallest = smallest.into_iter().chain(reached).min();
        if !is_better(&trial, &best, options.budget) {
            break;
        }
        best = trial;
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
    let choices = choices.into_iter().collect();
    let form = Pipeline::new(graph, apply(graph, &choices), &options);
    plan(&form, graph, &choices, &options)
}

fn plan(
    form: &Pipeline<'_>,
    graph: &Graph,
    choices: &Choices,
    options: &Options,
) -> Result<Optimized, OptimizeError> {
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

/// What single variants are worth does not add up: of all that are worthwhile and those of one group
/// alone, the form in which a quick search finds the cheapest start.
fn most_promising<'o>(
    graph: &'o Graph,
    chosen: &Choices,
    worth: &Worth,
    known: &Result<Optimized, OptimizeError>,
    options: &'o Options,
) -> Option<(Choices, Pipeline<'o>)> {
    let own = Group::ALL.map(|group| best_of(worth, |variant| variant.group == group));
    let mut sets: Vec<Choices> = Vec::new();
    for set in [best_of(worth, |_| true)].into_iter().chain(own) {
        if !set.is_empty() && !sets.contains(&set) {
            sets.push(set);
        }
    }
    let forms = sets.into_iter().map(|mut set| {
        set.extend(chosen);
        let form = Pipeline::new(graph, apply(graph, &set), options);
        (set, form)
    });
    let mut forms: Vec<_> = forms.collect();
    if let (2.., Ok(known)) = (forms.len(), known)
        && options.budget != BudgetRequest::Smallest
    {
        let budget = known.summary.budget - options.reserve;
        // The first of equals, which has the most variants.
        let estimates = forms.iter().enumerate().map(|(at, (_, form))| {
            let estimate = form.estimate(budget).unwrap_or(u64::MAX);
            (estimate, at)
        });
        let best = estimates.min().map_or(0, |(_, at)| at);
        return Some(forms.swap_remove(best));
    }
    (!forms.is_empty()).then(|| forms.swap_remove(0))
}

/// The variants that are worth anything in the light of `found`.
fn worthwhile(
    base: &Pipeline<'_>,
    found: &Result<Optimized, OptimizeError>,
    offers: &[(NodeId, &'static Variant)],
    options: &Options,
) -> Worth {
    let (graph, costs) = (base.graph(), base.costs());
    let provider = options.device.provider;
    let all: u64 = base.order().iter().map(|id| costs[id.index()].time.0).sum();
    let (budget, added, full) = match found {
        Ok(found) => {
            let summary = &found.summary;
            let after = self::costs(&found.graph, &options.device, &options.overrides);
            let runs = Liveness::in_file_order(&found.graph, provider, &after);
            let most = (runs.peak - runs.fixed).0 as f64 * FULL;
            let mut full = vec![false; graph.node_count()];
            for (id, &need) in found.graph.order().iter().zip(&runs.profile) {
                if let Some(full) = full.get_mut(id.index()) {
                    *full = (need - runs.fixed).0 as f64 >= most;
                }
            }
            let least = summary.budget.min(summary.after.bytes);
            match options.budget {
                // Any lower peak is better, whatever it costs.
                BudgetRequest::Smallest => (Bytes((least.0 as f64 * AIM) as u64), all, full),
                _ => (least, summary.time_added, full),
            }
        }
        Err(OptimizeError::Infeasible { budget, .. }) => {
            (*budget, all, vec![true; graph.node_count()])
        }
        Err(_) => return Worth::new(),
    };
    let room = budget - options.reserve - frame(graph);
    let prices = base.prices(room, added.max(1));
    let room = (room - fixed_bytes(graph)).0 as f64;
    let known = Known {
        prices: &prices,
        full,
        added: added as f64,
        room,
    };
    let market = Market::new(graph, base.recomputation(), costs, base.order(), known);
    let mut worth = Worth::new();
    for variant in VARIANTS.iter().filter(|v| v.group != Group::Sums) {
        let choices: Vec<_> = offered(offers, |v| v == variant).collect();
        let mut form = graph.clone();
        let replaced = ApplyVariants { choices: &choices }.replace(&mut form);
        let costs = self::costs(&form, &options.device, &options.overrides);
        for (id, parts) in replaced {
            let profit = market.profit(id, &form, &parts, &costs);
            if profit > 0.0 {
                worth.push((id, profit, variant));
            }
        }
    }
    worth
}

/// For each node the most profitable variant among those `wanted`.
fn best_of(worth: &Worth, wanted: impl Fn(&Variant) -> bool) -> Choices {
    let mut best: BTreeMap<NodeId, (f64, &'static Variant)> = BTreeMap::new();
    for &(id, profit, variant) in worth.iter().filter(|offer| wanted(offer.2)) {
        let known = best.entry(id).or_insert((profit, variant));
        if profit > known.0 {
            *known = (profit, variant);
        }
    }
    let chosen = best.into_iter();
    chosen.map(|(id, (_, variant))| (id, variant)).collect()
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
            let (need, time) = (
                |of: &Optimized| of.summary.after.bytes,
                |of: &Optimized| of.summary.time_added,
            );
            let lower = need(a).0 as f64 <= need(b).0 as f64 * (1.0 - LOWER);
            match request {
                BudgetRequest::Smallest => lower || need(a) <= need(b) && time(a) < time(b),
                _ => (time(a), need(a)) < (time(b), need(b)),
            }
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
