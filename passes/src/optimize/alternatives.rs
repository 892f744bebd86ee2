//! The ways to come to plans, by what may be replaced in a graph.
//!
//! Running sums come first: they only cost what the additions cost, and are judged by the order of
//! first computations alone, which they change. All other variants are chosen by the search,
//! together with the copies.

use std::collections::BTreeSet;

use super::comparison::{Asked, Reply, Untried};
use super::faults::Found;
use super::original::Original;
use super::pipeline::Pipeline;
use super::slices::slices;
use super::tuning::STAGES;
use super::variant_graph::Choices;
use super::{BudgetRequest, Floor, OptimizeError, Optimized, PlanOptions};
use crate::bytes::Bytes;
use crate::graph::{NodeId, Uses};
use crate::operators::variants::{Group, Variant};
use crate::parallel;
use crate::runtime::liveness::Liveness;
use crate::runtime::order::ExecutionOrder;
use crate::runtime::rounding::Rounding;
use crate::strategy::{MOST_NODES, Strategy};

/// A way to come to plans: what may be replaced before, and who plans. All go through the same stages ([`Pipeline`]).
pub(super) struct Alternative {
    pub(super) options: PlanOptions,
    pub(super) turn: Turn,
    by: PlannedBy,
    /// The only budget of the row that it is for, should there be one.
    only: Option<usize>,
}

/// When an alternative is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    First,
    /// Where the budget is near what one node needs, or less.
    Short,
    /// Behind one that may replace more: what saves at first can be in the way.
    Fewer,
    /// Where nothing of what was found is proved to be right.
    LastResort,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PlannedBy {
    /// The search replaces what pays, in the graph with running sums where these do.
    Varied,
    /// The same in the graph in which the nodes that need most work slice by slice.
    Sliced,
    /// Every node stays what it is.
    Plain,
    /// MONeT's program replaces nodes.
    Monet,
}

/// All of them, in the sequence in which they are asked, for a row of so many `budgets`.
pub(super) fn alternatives(options: &PlanOptions, budgets: usize) -> Vec<Alternative> {
    let replaces = !options.variants.is_empty() || !options.allowed.is_empty();
    let one = |by, turn, options: PlanOptions| Alternative {
        options,
        turn,
        by,
        only: None,
    };
    let mut all = Vec::new();
    match options.strategy {
        Strategy::CheckmateIlp | Strategy::MonetIlp => {
            for number in 0..budgets {
                // Each has a fair part of the time that the user grants.
                let mut options = options.clone();
                options.solving.share = 1.0 / (budgets - number) as f64;
                let turns = match options.strategy == Strategy::MonetIlp && replaces {
                    true => &[
                        (PlannedBy::Monet, Turn::First),
                        (PlannedBy::Plain, Turn::LastResort),
                    ][..],
                    false => &[(PlannedBy::Plain, Turn::First)],
                };
                all.extend(turns.iter().map(|&(by, turn)| Alternative {
                    only: Some(number),
                    ..one(by, turn, options.clone())
                }));
            }
        }
        Strategy::Auto if replaces => {
            all.push(one(PlannedBy::Varied, Turn::First, options.clone()));
            if !options.allowed.is_empty() {
                let bitwise = PlanOptions {
                    allowed: BTreeSet::new(),
                    ..options.clone()
                };
                all.push(one(PlannedBy::Varied, Turn::Fewer, bitwise));
            }
            if !options.variants.is_empty() && STAGES.fewer_variants {
                all.push(one(
                    PlannedBy::Plain,
                    Turn::Fewer,
                    without_variants(options),
                ));
            }
            all.push(one(PlannedBy::Sliced, Turn::Short, options.clone()));
        }
        _ => all.push(one(PlannedBy::Plain, Turn::First, options.clone())),
    }
    all
}

/// The graph as it is, if it fits the budget in the way of running it of which its peak is told.
pub(super) fn as_it_is(
    original: &Original<'_>,
    options: &PlanOptions,
    budget: Bytes,
) -> Option<Found> {
    plain(original, options).untouched(budget - options.reserve)
}

/// What one node needs at least, the reserve included, in the graphs that alternatives plan in.
pub(super) struct Floors {
    /// Where no node works slice by slice.
    whole: Floor,
    /// Where some do; nothing if that is no less.
    sliced: Option<Floor>,
}

impl Floors {
    /// `alternatives` are all that there are; those behind the first replace less, unless they work slice by slice.
    pub(super) fn of(alternatives: &[Alternative], original: &Original<'_>) -> Option<Floors> {
        let lowest = |one: &Alternative| {
            let pipelines = one.pipelines(original);
            let floors = pipelines.iter().map(Pipeline::floor);
            floors.min_by_key(|floor| floor.bytes)
        };
        let whole = lowest(alternatives.first()?)?;
        let sliced = alternatives.iter().find(|one| one.is_sliced());
        let sliced = sliced.and_then(lowest);
        Some(Floors {
            sliced: sliced.filter(|sliced| sliced.bytes < whole.bytes),
            whole,
        })
    }

    /// Is there a plan with less where nodes work slice by slice?
    pub(super) fn slices_help(&self) -> bool {
        self.sliced.is_some()
    }

    /// Can no plan fit the budget in which the nodes that need most work in one piece?
    pub(super) fn rule_out_whole(&self, budget: Bytes) -> bool {
        budget < self.whole.bytes
    }

    /// The lowest, if no plan fits the budget.
    fn rule_out(&self, budget: Bytes) -> Option<&Floor> {
        let lowest = self.sliced.as_ref().unwrap_or(&self.whole);
        Some(lowest).filter(|lowest| budget < lowest.bytes)
    }
}

/// Why no alternative has a plan within the budget, where that can be told at once.
pub(super) fn out_of_reach(
    alternatives: &[Alternative],
    original: &Original<'_>,
    floors: &Floors,
    budget: Bytes,
) -> Option<OptimizeError> {
    let floor = floors.rule_out(budget)?;
    let by = match floors.slices_help() {
        true => alternatives.iter().find(|one| one.is_sliced()),
        false => alternatives.first(),
    };
    let pipeline = by?.pipelines(original).pop()?;
    Some(pipeline.below_floor(budget, floor.clone()))
}

impl Alternative {
    pub(super) fn is_plain(&self) -> bool {
        self.by == PlannedBy::Plain
    }

    /// Do nodes work slice by slice in all its plans?
    pub(super) fn is_sliced(&self) -> bool {
        self.by == PlannedBy::Sliced
    }

    /// Is it asked for what is cheaper than what is known, where something is?
    pub(super) fn is_asked_for_less(&self) -> bool {
        self.is_plain() && self.turn == Turn::Fewer || self.is_sliced()
    }

    /// Is it for all budgets of the row?
    pub(super) fn is_for_all(&self) -> bool {
        self.only.is_none()
    }

    /// Its stages, for whoever asks for that.
    pub(super) fn pipeline<'o>(
        &'o self,
        original: &'o Original<'o>,
        request: BudgetRequest,
    ) -> Pipeline<'o> {
        match self.by {
            PlannedBy::Varied => {
                let varied = Varied::of(original, &self.options);
                match varied.sums_pay(request) {
                    true => varied.with_sums.unwrap_or(varied.without),
                    false => varied.without,
                }
            }
            PlannedBy::Sliced => sliced(original, &self.options),
            PlannedBy::Plain | PlannedBy::Monet => plain(original, &self.options),
        }
    }

    /// The pipelines that it plans in.
    fn pipelines<'o>(&'o self, original: &'o Original<'o>) -> Vec<Pipeline<'o>> {
        match self.by {
            PlannedBy::Varied => {
                let varied = Varied::of(original, &self.options);
                let all = [Some(varied.without), varied.with_sums];
                all.into_iter().flatten().collect()
            }
            PlannedBy::Sliced => vec![sliced(original, &self.options)],
            PlannedBy::Plain | PlannedBy::Monet => vec![plain(original, &self.options)],
        }
    }

    /// Is it another than those before it, for this graph?
    pub(super) fn has_something(&self, original: &Original<'_>) -> bool {
        let is_large = original.graph.order().len() > MOST_NODES;
        !self.is_sliced() || !is_large && !slices(original, &self.options).is_empty()
    }

    /// Is it for that budget of the row?
    pub(super) fn is_for(&self, number: usize) -> bool {
        self.only.is_none_or(|only| only == number)
    }

    /// An answer for each that is asked.
    pub(super) fn answer(
        &self,
        original: &Original<'_>,
        asked: &[Asked],
    ) -> Result<Vec<Reply>, OptimizeError> {
        match self.by {
            PlannedBy::Varied => varied(original, &self.options, asked),
            PlannedBy::Sliced => sliced(original, &self.options).answer(asked),
            // What a program cannot plan, it cannot for this budget.
            PlannedBy::Plain if self.only.is_none() => plain(original, &self.options).answer(asked),
            PlannedBy::Plain | PlannedBy::Monet => {
                let each = asked.iter().map(|asked| {
                    let found = match self.by {
                        PlannedBy::Monet => monet(original, &self.options, asked.request),
                        _ => one(plain(original, &self.options), asked.request),
                    };
                    Reply::Found(found, Untried::default())
                });
                Ok(each.collect())
            }
        }
    }
}

/// With the variants that pay.
fn varied(
    original: &Original<'_>,
    options: &PlanOptions,
    asked: &[Asked],
) -> Result<Vec<Reply>, OptimizeError> {
    if options.watch.is_stopped() && original.graph.order().len() > MOST_NODES {
        let answers = plain(original, options).answer(asked)?.into_iter();
        let answers = answers.map(|answer| match answer {
            Reply::Found(found, _) => Reply::Found(found, Untried::default()),
            nothing => nothing,
        });
        return Ok(answers.collect());
    }
    let varied = Varied::of(original, options);
    let pays = |asked: &Asked| varied.sums_pay(asked.request);
    let pays: Vec<bool> = asked.iter().map(pays).collect();
    let answers = |pipeline: Option<&Pipeline<'_>>, with: bool| {
        let of = asked.iter().zip(&pays).filter(|(_, pays)| **pays == with);
        let of: Vec<Asked> = of.map(|(&asked, _)| asked).collect();
        let answers = match pipeline {
            Some(pipeline) if !of.is_empty() => pipeline.answer(&of),
            _ => Ok(Vec::new()),
        };
        answers.map(Vec::into_iter)
    };
    let mut with = answers(varied.with_sums.as_ref(), true)?;
    let mut without = answers(Some(&varied.without), false)?;
    let next = |&pays: &bool| {
        let answer = if pays { with.next() } else { without.next() };
        answer.expect("one answer for one budget")
    };
    Ok(pays.iter().map(next).collect())
}

/// The graph in which the search replaces what pays, and the same with running sums.
struct Varied<'o> {
    options: &'o PlanOptions,
    /// The peak as the runtime runs the graph, without what the caller owns.
    peak: Bytes,
    with_sums: Option<Pipeline<'o>>,
    without: Pipeline<'o>,
}

impl<'o> Varied<'o> {
    fn of(original: &'o Original<'o>, options: &'o PlanOptions) -> Varied<'o> {
        let peak = free_peak(original, options);
        let (sums, others): (Choices, Choices) = offers(original, peak, options)
            .into_iter()
            .partition(|(_, variant)| variant.group == Group::Sums);
        let pipeline = |sums: Choices| Pipeline::new(original, sums, &others, options);
        let (with_sums, without) = parallel::both(
            || (!sums.is_empty()).then(|| pipeline(sums)),
            || pipeline(Choices::new()),
        );
        Varied {
            options,
            peak,
            with_sums,
            without,
        }
    }

    fn sums_pay(&self, request: BudgetRequest) -> bool {
        let pays = |with| sums_pay(self.peak, with, &self.without, self.options, request);
        STAGES.sums && self.with_sums.as_ref().is_some_and(pays)
    }
}

fn without_variants(options: &PlanOptions) -> PlanOptions {
    PlanOptions {
        variants: BTreeSet::new(),
        allowed: BTreeSet::new(),
        ..options.clone()
    }
}

fn plain<'o>(original: &'o Original<'o>, options: &'o PlanOptions) -> Pipeline<'o> {
    Pipeline::new(original, Choices::new(), &Choices::new(), options)
}

/// The nodes that need most work slice by slice; of the others, the search replaces what pays.
fn sliced<'o>(original: &'o Original<'o>, options: &'o PlanOptions) -> Pipeline<'o> {
    let decided = slices(original, options);
    let peak = free_peak(original, options);
    let is_other = |offer: &(NodeId, &Variant)| {
        offer.1.group != Group::Sums && decided.iter().all(|one| one.0 != offer.0)
    };
    let mut others = offers(original, peak, options);
    others.retain(is_other);
    Pipeline::new(original, decided, &others, options)
}

/// MONeT's program chooses implementations and schedule together, in the graph with what is better
/// whatever it chooses; its schedule is where planning in the graph with these implementations begins.
fn monet(
    original: &Original<'_>,
    options: &PlanOptions,
    budget: BudgetRequest,
) -> Result<Optimized, OptimizeError> {
    let mut choices = plain(original, options).dominating();
    let can_be = |id: NodeId, variant: &Variant| {
        id.index() < original.graph.node_count()
            && keeps_to_plan(variant, options)
            && !original.is_in_sequence(id)
            && !original.is_mended(id)
    };
    choices.retain(|&(id, variant)| can_be(id, variant));
    choices.sort_by_key(|&(id, _)| id);
    let may = |id: NodeId, variant: &Variant| {
        let replaced = choices.iter().any(|choice| choice.0 == id);
        !replaced && can_be(id, variant)
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
    options: &PlanOptions,
    budget: BudgetRequest,
) -> bool {
    let fixed = without.fixed();
    let least = without.ordered_peak();
    let fits = match budget {
        BudgetRequest::Bytes(bytes) => least + fixed + options.reserve <= bytes,
        BudgetRequest::PartOfPeak(of) => least + fixed <= (peak + fixed).part(of),
        BudgetRequest::FixedPlusPart(of) => least <= peak.part(of),
        BudgetRequest::Smallest => false,
    };
    !fits && with.ordered_peak() < least
}

/// Every node and variant with enough at stake.
fn offers(original: &Original<'_>, peak: Bytes, options: &PlanOptions) -> Choices {
    let graph = original.graph;
    let uses = Uses::of(graph);
    let rounding = Rounding::of(graph, options.device.provider, options.runtime.release);
    let mut offers = Vec::new();
    let offered = options.offered().into_iter();
    let offered = offered.filter(|variant| variant.group != Group::Slices);
    for variant in offered.filter(|variant| keeps_to_plan(variant, options)) {
        for &id in graph.order() {
            if rounding.touches(graph.node(id)) || original.is_in_sequence(id) {
                continue;
            }
            let stake = graph.node(id).reads().chain(graph.node(id).writes());
            let stake = stake
                .filter_map(|tensor| graph.tensor(tensor).bytes())
                .max();
            let worth = stake.is_some_and(|bytes| bytes.0.saturating_mul(STAGES.worth) >= peak.0);
            if worth && variant.parts(graph, &uses, id).is_some() {
                offers.push((id, variant));
            }
        }
    }
    offers
}

/// The search knows no memory pattern: what lies there by a variant's doing is there for the whole
/// step.
fn keeps_to_plan(variant: &Variant, options: &PlanOptions) -> bool {
    !(options.runtime.settings.pattern && variant.fixes_sizes())
}

/// The peak as the runtime runs the graph, without what the caller owns.
fn free_peak(original: &Original<'_>, options: &PlanOptions) -> Bytes {
    let (order, provider) = (ExecutionOrder::Default, options.device.provider);
    let found = Liveness::simulate(original.graph, order, provider, &original.costs);
    found.peak - found.fixed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use crate::runtime::Runtime;
    use crate::runtime::settings::RuntimeSettings;
    use crate::strategy::tests::options;

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
            let options = PlanOptions {
                runtime: Runtime::of(settings),
                variants: Group::ALL.into(),
                ..options(Strategy::Auto, BudgetRequest::Smallest)
            };
            let offers = offers(
                &Original::of((&graph, &graph), &options),
                Bytes(1),
                &options,
            );
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
            let options = PlanOptions {
                variants: Group::ALL.into(),
                ..options(Strategy::Auto, BudgetRequest::Smallest)
            };
            offers(
                &Original::of((&graph, &graph), &options),
                Bytes(1),
                &options,
            )
            .len()
        };
        assert!(names("") > 0);
        assert_eq!(names("done = com.microsoft.InPlaceAccumulatorV2 (w, g)"), 0);
    }
}
