//! What may be replaced in a graph.
//!
//! Running sums come first: they only cost what the additions cost, and are judged by the order of
//! first computations alone, which they change. All other variants are chosen by the search,
//! together with the copies.

use std::collections::BTreeSet;

use super::comparison::better;
use super::faults::Found;
use super::faults::{self, is_unproved};
use super::original::Original;
use super::pipeline::Pipeline;
use super::published::MOST_NODES;
use super::tuning::TUNING;
use super::variant_graph::Choices;
use super::{BudgetRequest, OptimizeError, Optimized, Options};
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId, Uses};
use crate::operators::variants::{Group, Variant};
use crate::parallel;
use crate::runtime::liveness::Liveness;
use crate::runtime::order::ExecutionOrder;
use crate::runtime::rounding::Rounding;
use crate::strategy::Strategy;

type FoundRow = Result<Vec<Found>, OptimizeError>;

/// One result for each budget.
pub(super) fn optimize_each(
    graph: &Graph,
    options: &Options,
    budgets: &[BudgetRequest],
) -> FoundRow {
    let original = &Original::of(graph, options);
    let replaces = !options.variants.is_empty() || !options.allowed.is_empty();
    match options.strategy {
        Strategy::CheckmateIlp | Strategy::MonetIlp => {
            // Each has a fair part of the time that the user grants.
            let each = budgets.iter().enumerate().map(|(i, &budget)| {
                let mut options = options.clone();
                options.solving.share = 1.0 / (budgets.len() - i) as f64;
                match options.strategy == Strategy::MonetIlp && replaces {
                    true => {
                        let mut found = monet(original, &options, budget);
                        if is_unproved(&found) {
                            better(&mut found, one(plain(original, &options), budget), budget);
                        }
                        found
                    }
                    false => one(plain(original, &options), budget),
                }
            });
            Ok(each.collect())
        }
        _ if !replaces => plain(original, options).run(budgets),
        Strategy::Auto => {
            let (mut row, replaces): (Vec<_>, Vec<_>) =
                varied(original, options, budgets)?.into_iter().unzip();
            if !options.allowed.is_empty() {
                let bitwise = Options {
                    allowed: BTreeSet::new(),
                    ..options.clone()
                };
                or_fewer(row.iter_mut().zip(budgets), original, &bitwise)?;
            }
            if !options.variants.is_empty() && TUNING.fewer_variants {
                // What takes no variants is the same without them.
                let open = row.iter_mut().zip(budgets).zip(replaces);
                let open = open.filter(|(_, replaces)| *replaces).map(|(open, _)| open);
                or_fewer(open, original, &without_variants(options))?;
            }
            Ok(row)
        }
        _ => plain(original, options).run(budgets),
    }
}

/// Where nothing fits in every way of running it, or is proved to be right, but the graph as it is fits in the one of
/// which its peak is told, that takes its place. Gives these results.
pub(super) fn or_untouched<'r>(
    row: &'r mut [Found],
    graph: &Graph,
    options: &Options,
    budgets: &[BudgetRequest],
) -> Vec<&'r mut Optimized> {
    let mut replaced = Vec::new();
    let mut original = None;
    for (found, &request) in row.iter_mut().zip(budgets) {
        if !is_unproved(found) && !matches!(found, Err(OptimizeError::Infeasible { .. })) {
            continue;
        }
        let original = original.get_or_insert_with(|| Original::of(graph, options));
        let before = original.peak(options.reserve);
        let needs = before.bytes;
        let budget = match found {
            Err(OptimizeError::Infeasible { budget, smallest }) => {
                if before.bytes < smallest.bytes {
                    **smallest = before;
                }
                *budget
            }
            // Whatever is left is the smallest then.
            Err(OptimizeError::Unproved { .. }) if request == BudgetRequest::Smallest => {
                before.bytes
            }
            Err(OptimizeError::Unproved { budget, .. }) => *budget,
            _ => continue,
        };
        if needs > budget {
            continue;
        }
        let untouched = plain(original, options).untouched(budget - options.reserve);
        // A file that lists its nodes in another order than it is written in may take more as it is written.
        if let Some(Ok(untouched)) = untouched {
            let given_up = faults::take(found);
            *found = Ok(untouched);
            faults::give(found, given_up);
            replaced.extend(found.as_mut().ok());
        }
    }
    replaced
}

/// One result for each budget, with the variants that pay; does it replace anything?
fn varied(
    original: &Original<'_>,
    options: &Options,
    budgets: &[BudgetRequest],
) -> Result<Vec<(Found, bool)>, OptimizeError> {
    if options.watch.is_stopped() && original.graph.order().len() > MOST_NODES {
        let row = plain(original, options).run(budgets)?.into_iter();
        return Ok(row.map(|found| (found, false)).collect());
    }
    let peak = free_peak(original, options);
    let (sums, others): (Choices, Choices) = offers(original, peak, options)
        .into_iter()
        .partition(|(_, variant)| variant.group == Group::Sums);
    let pipeline = |sums: Choices| Pipeline::new(original, sums, &others, options);
    let (with, without) = parallel::both(
        || (!sums.is_empty()).then(|| pipeline(sums)),
        || pipeline(Choices::new()),
    );
    let pays = |&budget: &BudgetRequest| {
        let with = with.as_ref();
        with.is_some_and(|with| TUNING.sums && sums_pay(peak, with, &without, options, budget))
    };
    let pays: Vec<bool> = budgets.iter().map(pays).collect();
    let row = |pipeline: &Pipeline<'_>, with: bool| -> Result<Vec<(Found, bool)>, OptimizeError> {
        let of = budgets.iter().zip(&pays);
        let of = of.filter(|(_, pays)| **pays == with);
        let of: Vec<BudgetRequest> = of.map(|(&budget, _)| budget).collect();
        let found = match of.is_empty() {
            true => Vec::new(),
            false => pipeline.run(&of)?,
        };
        let marked = found.into_iter().map(|found| {
            let replaces = pipeline.replaces(&found);
            (found, replaces)
        });
        Ok(marked.collect())
    };
    let with = with.map_or(Ok(Vec::new()), |with| row(&with, true))?;
    let (mut with, mut without) = (with.into_iter(), row(&without, false)?.into_iter());
    let next = |&pays: &bool| {
        let found = if pays { with.next() } else { without.next() };
        found.expect("one result for one budget")
    };
    Ok(pays.iter().map(next).collect())
}

/// Takes what fewer variants give where that is better: what saves at first can be in the way.
fn or_fewer<'r>(
    row: impl Iterator<Item = (&'r mut Found, &'r BudgetRequest)>,
    original: &Original<'_>,
    fewer: &Options,
) -> Result<(), OptimizeError> {
    let stopped = fewer.watch.is_stopped();
    let mut cheaper = Vec::new();
    let (mut anew, mut requests) = (Vec::new(), Vec::new());
    for (found, &budget) in row {
        match found {
            Ok(_) | Err(OptimizeError::Infeasible { .. }) if stopped => {}
            Ok(_) if budget != BudgetRequest::Smallest && fewer.variants.is_empty() => {
                cheaper.push((found, budget));
            }
            Ok(_) | Err(OptimizeError::Infeasible { .. } | OptimizeError::Unproved { .. }) => {
                anew.push(found);
                requests.push(budget);
            }
            Err(_) => {}
        }
    }
    if !cheaper.is_empty() {
        or_cheaper(cheaper, &plain(original, fewer));
    }
    if anew.is_empty() {
        return Ok(());
    }
    let others = match fewer.variants.is_empty() {
        true => plain(original, fewer).run(&requests)?,
        false => {
            let row = varied(original, fewer, &requests)?.into_iter();
            row.map(|(found, _)| found).collect()
        }
    };
    for ((found, budget), other) in anew.into_iter().zip(requests).zip(others) {
        better(found, other, budget);
    }
    Ok(())
}

/// Takes what the pipeline finds within the same budgets where it adds less. Where a bound tells that it cannot, it
/// is not asked, nor for a large graph: in none that was tried did it.
fn or_cheaper(row: Vec<(&mut Found, BudgetRequest)>, pipeline: &Pipeline<'_>) {
    let (mut open, mut known) = (Vec::new(), Vec::new());
    for (found, budget) in row {
        let Ok(one) = &mut *found else { continue };
        let least = pipeline.least(&one.summary);
        if least < one.summary.time_added && !pipeline.is_large() {
            known.push(one.summary.clone());
            open.push((found, budget, least));
        } else {
            one.summary.lower_bound = one.summary.lower_bound.min(least);
        }
    }
    for ((found, budget, least), other) in open.into_iter().zip(pipeline.cheaper(&known)) {
        match (other, found) {
            (Some(other), found) => better(found, other, budget),
            (None, Ok(found)) => {
                found.summary.lower_bound = found.summary.lower_bound.min(least);
            }
            (None, Err(_)) => {}
        }
    }
}

fn without_variants(options: &Options) -> Options {
    Options {
        variants: BTreeSet::new(),
        allowed: BTreeSet::new(),
        ..options.clone()
    }
}

fn plain<'o>(original: &'o Original<'o>, options: &'o Options) -> Pipeline<'o> {
    Pipeline::new(original, Choices::new(), &Choices::new(), options)
}

/// MONeT's program chooses implementations and schedule together, in the graph with what is better
/// whatever it chooses; its schedule is where planning in the graph with these implementations begins.
fn monet(
    original: &Original<'_>,
    options: &Options,
    budget: BudgetRequest,
) -> Result<Optimized, OptimizeError> {
    let mut choices = plain(original, options).dominating();
    choices
        .retain(|&(id, variant)| keeps_to_plan(variant, options) && !original.is_in_sequence(id));
    choices.sort_by_key(|&(id, _)| id);
    let may = |id: NodeId, variant: &Variant| {
        let replaced = choices.iter().any(|choice| choice.0 == id);
        id.index() < original.graph.node_count()
            && !replaced
            && keeps_to_plan(variant, options)
            && !original.is_in_sequence(id)
    };
    let pipeline = Pipeline::new(original, choices.clone(), &Choices::new(), options);
    let joint = pipeline.implementations(budget, &may);
    // Behind the others, so that the nodes have the numbers that the program knows them by.
    choices.extend(joint.chosen);
    let mut options = options.clone();
    options.solving.begun = joint.sequence;
    let pipeline = Pipeline::new(original, choices, &Choices::new(), &options);
    let mut found = one(pipeline, budget)?;
    found.summary.notes.splice(0..0, joint.notes);
    Ok(found)
}

fn one(pipeline: Pipeline<'_>, budget: BudgetRequest) -> Result<Optimized, OptimizeError> {
    let mut row = pipeline.run(&[budget])?;
    row.pop().expect("one result for one budget")
}

/// Do running sums lower what the best order alone needs, where that is too much? `peak` is the unmodified graph's,
/// without what the caller owns.
fn sums_pay(
    peak: Bytes,
    with: &Pipeline<'_>,
    without: &Pipeline<'_>,
    options: &Options,
    budget: BudgetRequest,
) -> bool {
    let fixed = without.fixed();
    let least = without.ordered_peak();
    let part = |of: Bytes, part: f64| Bytes((of.0 as f64 * part) as u64);
    let fits = match budget {
        BudgetRequest::Bytes(bytes) => least + fixed + options.reserve <= bytes,
        BudgetRequest::PartOfPeak(of) => least + fixed <= part(peak + fixed, of),
        BudgetRequest::FixedPlusPart(of) => least <= part(peak, of),
        BudgetRequest::Smallest => false,
    };
    !fits && with.ordered_peak() < least
}

/// Every node and variant with enough at stake.
fn offers(original: &Original<'_>, peak: Bytes, options: &Options) -> Choices {
    let graph = original.graph;
    let uses = Uses::of(graph);
    let rounding = Rounding::of(graph, options.device.provider);
    let mut offers = Vec::new();
    let offered = options.offered().into_iter();
    for variant in offered.filter(|variant| keeps_to_plan(variant, options)) {
        for &id in graph.order() {
            if rounding.touches(graph.node(id)) || original.is_in_sequence(id) {
                continue;
            }
            let stake = graph.node(id).reads().chain(graph.node(id).writes());
            let stake = stake
                .filter_map(|tensor| graph.tensor(tensor).bytes())
                .max();
            let worth = stake.is_some_and(|bytes| bytes.0.saturating_mul(TUNING.worth) >= peak.0);
            if worth && variant.parts(graph, &uses, id).is_some() {
                offers.push((id, variant));
            }
        }
    }
    offers
}

/// The search knows no memory pattern: what lies there by a variant's doing is there for the whole
/// step.
fn keeps_to_plan(variant: &Variant, options: &Options) -> bool {
    !(options.runtime.settings.pattern && variant.fixes_sizes())
}

/// The peak as the runtime runs the graph, without what the caller owns.
fn free_peak(original: &Original<'_>, options: &Options) -> Bytes {
    let (order, provider) = (ExecutionOrder::Default, options.device.provider);
    let found = Liveness::simulate(original.graph, order, provider, &original.costs);
    found.peak - found.fixed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimize::optimize;
    use crate::runtime::Runtime;
    use crate::runtime::settings::RuntimeSettings;
    use crate::strategy::tests::options;
    use crate::testing::random_training_graph;

    #[test]
    fn fewer_variants_take_over_where_they_are_better() {
        let graph = random_training_graph(3, 24);
        let plan = |budget| optimize(&graph, &options(Strategy::Auto, budget));
        let least = plan(BudgetRequest::Smallest).expect("a plan").summary;
        let (before, least) = (least.before.bytes, least.after.bytes);
        let budget = BudgetRequest::Bytes(least + Bytes((before - least).0 / 2));
        let good = plan(budget).expect("a plan");
        let added = good.summary.time_added;
        assert!(added > 0);
        let fewer = without_variants(&options(Strategy::Auto, budget));
        let original = Original::of(&graph, &fewer);
        let taken = |row: Found| {
            let mut row = [row];
            let open = row.iter_mut().zip([&budget]);
            or_fewer(open, &original, &fewer).expect("a row");
            let [found] = row;
            found.expect("a plan").summary.time_added
        };
        let with_time = |time_added: u64| {
            let mut other = good.clone();
            other.summary.time_added = time_added;
            Ok(other)
        };
        assert_eq!(taken(with_time(2 * added)), added);
        assert_eq!(taken(with_time(added - 1)), added - 1);
        let infeasible = OptimizeError::Infeasible {
            budget: good.summary.budget,
            smallest: Box::new(good.summary.before.clone()),
        };
        assert_eq!(taken(Err(infeasible)), added);
    }

    #[test]
    fn what_fixes_sizes_is_offered_only_where_no_pattern_holds_it() {
        let graph = Graph::parse(
            "<ir_version: 8, opset_import: [\"\" : 15, \"com.microsoft\" : 1]>
            g (float[1,2,8,8] dy, float[1,4,8,8] x, float[2,4,1,1] w)
              => (float[1,4,8,8] dx, float[2,4,1,1] dw, float[2] db)
            { dx, dw, db = com.microsoft.ConvGrad <kernel_shape = [1, 1]> (dy, x, w) }",
        );
        let graph = graph.unwrap();
        let names = |settings| {
            let options = Options {
                runtime: Runtime::of(settings),
                variants: Group::ALL.into(),
                ..options(Strategy::Auto, BudgetRequest::Smallest)
            };
            let offers = offers(&Original::of(&graph, &options), Bytes(1), &options);
            offers.iter().map(|(_, v)| v.name).collect::<Vec<_>>()
        };
        assert!(names(RuntimeSettings::LEAN).contains(&"pointwise-product"));
        assert!(!names(RuntimeSettings::DEFAULT).contains(&"pointwise-product"));
    }

    #[test]
    fn what_must_run_before_an_update_is_not_replaced() {
        let names = |update: &str| {
            let graph = Graph::parse(&format!(
                "<ir_version: 8, opset_import: [\"\" : 15, \"com.microsoft\" : 1]>
                g (float[1,2,8,8] dy, float[1,4,8,8] x, float[2,4,1,1] w, float[2,4,1,1] g)
                  => (float[1,4,8,8] dx, float[2,4,1,1] dw, float[2] db)
                {{
                    dx, dw, db = com.microsoft.ConvGrad <kernel_shape = [1, 1]> (dy, x, w)
                    {update}
                }}"
            ));
            let graph = graph.unwrap();
            let options = Options {
                variants: Group::ALL.into(),
                ..options(Strategy::Auto, BudgetRequest::Smallest)
            };
            offers(&Original::of(&graph, &options), Bytes(1), &options).len()
        };
        assert!(names("") > 0);
        assert_eq!(names("done = com.microsoft.InPlaceAccumulatorV2 (w, g)"), 0);
    }
}
