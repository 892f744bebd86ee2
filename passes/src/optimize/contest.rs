//! The results for a row of budgets. What is planned is a candidate for some of them, whichever [`Alternative`] it comes
//! from, and here it is compared with what was found before it.

use std::cell::OnceCell;
use std::cmp::Reverse;

use super::alternatives::{Alternative, Floors, Turn, alternatives, as_it_is, out_of_reach};
use super::comparison::{Asked, Reply, ToBeat, Untried, offer};
use super::convolutions::name_algorithms;
use super::faults::{self, Found, is_unproved};
use super::limits::plain_floor;
use super::near_smallest::near_smallest;
use super::original::Original;
use super::tuning::STAGES;
use super::{BudgetRequest, OptimizeError, Optimized, Peak, PlanOptions, Summary};
use crate::analysis::cost::{costs, time_of_all};
use crate::analysis::mirrors::is_mirror;
use crate::bytes::Bytes;
use crate::graph::Graph;
use crate::operators::Provider;
use crate::runtime::convolution_costs::timed;
use crate::runtime::convolutions::AlgorithmChoice;
use crate::strategy::{MOST_NODES, Strategy};

/// One result for each budget: in every session every alternative is asked, one after another, for the budgets for which it may
/// be better than what there is. The graph is `declared` with declarations that are wrong.
pub(super) fn compare(
    (graph, declared): (&Graph, &Graph),
    options: &PlanOptions,
    budgets: &[BudgetRequest],
    look: Look,
) -> Result<Vec<Found>, OptimizeError> {
    let mut entries: Vec<Standing> = budgets.iter().map(|&budget| Standing::of(budget)).collect();
    let sessions = ConvolutionSetting::all((graph, declared), options);
    let reference = &sessions[0];
    for (number, session) in sessions.iter().enumerate() {
        if number == 0 || !options.watch.is_stopped() || graph.order().len() <= MOST_NODES {
            Challenger::of(session, reference, entries.len()).ask(&mut entries, look)?;
        }
    }
    let mut row: Vec<Found> = entries
        .into_iter()
        .map(|entry| entry.or_as_it_is(reference))
        .collect();
    for found in row.iter_mut().flatten() {
        name_algorithms(found, graph, options);
        // Whatever was looked at until here was looked at for the row.
        found.summary.evaluations = options.watch.evaluations();
    }
    spread(&mut row);
    Ok(row)
}

/// How hard to look for a plan where none was found at first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// With all the work that the smallest peak is worth.
    Thorough,
    /// Not any further.
    InPassing,
}

/// What is known for one budget.
struct Standing {
    request: BudgetRequest,
    /// The best of what was offered.
    best: Option<Found>,
    untried: Untried,
    /// Has every alternative done what it can, together with the others?
    settled: bool,
}

impl Standing {
    fn of(request: BudgetRequest) -> Standing {
        Standing {
            request,
            best: None,
            untried: Untried::default(),
            settled: false,
        }
    }

    /// May the alternative find something better, in a session in which the unmodified step is that much `slower`?
    fn is_open(&self, alternative: &Alternative, slower: u64) -> bool {
        let Some(best) = &self.best else {
            return true;
        };
        if self.settled {
            return false;
        }
        let is_another = match alternative.turn {
            Turn::First | Turn::Short => true,
            // What takes no variants is the same without them.
            Turn::Fewer => !alternative.is_plain() || self.untried.fewer_variants,
            Turn::LastResort => is_unproved(best),
        };
        let stopped = alternative.options.watch.is_stopped();
        is_another
            && match best {
                Ok(best) => {
                    let smallest = self.request == BudgetRequest::Smallest;
                    !stopped && (smallest || best.summary.time_added > slower)
                }
                Err(OptimizeError::Infeasible { .. }) => {
                    !stopped || alternative.turn == Turn::First
                }
                Err(OptimizeError::Unproved { .. }) => true,
                Err(_) => false,
            }
    }

    /// Is it worth to ask what works slice by slice? Where nothing else fits; and where the budget leaves next to nothing more than
    /// what one node needs, and what fits adds much.
    fn wants_slices(&self, plain_floor: Bytes) -> bool {
        match &self.best {
            _ if self.request == BudgetRequest::Smallest => false,
            Some(Ok(best)) => {
                let best = &best.summary;
                let little = (plain_floor - best.fixed).0 / STAGES.room_without_slices;
                let is_dear = best.time_added > best.time_before / STAGES.dear_without_slices;
                is_dear && best.budget <= plain_floor + Bytes(little)
            }
            Some(Err(OptimizeError::Infeasible { .. })) | None => true,
            Some(Err(_)) => false,
        }
    }

    /// The budget for which nothing was found yet, if that is not all that there is to be said of it.
    fn missed(&self) -> Option<Bytes> {
        match &self.best {
            Some(Err(OptimizeError::Infeasible { budget, .. })) if !self.settled => Some(*budget),
            _ => None,
        }
    }

    /// What the alternative is asked, in a session that is the `reference` or slower.
    fn asked(&self, alternative: &Alternative, reference: bool, slower: u64) -> Asked {
        let (known, budget) = match &self.best {
            Some(Ok(Optimized { summary, .. })) => {
                let known = ToBeat {
                    budget: summary.budget,
                    added: summary.time_added.saturating_sub(slower),
                    smallest_peak: summary.smallest_peak,
                    untried: self.untried,
                };
                (Some(known), Some(summary.budget))
            }
            Some(Err(
                OptimizeError::Infeasible { budget, .. } | OptimizeError::Unproved { budget, .. },
            )) => (None, Some(*budget)),
            _ => (None, None),
        };
        let is_smallest = self.request == BudgetRequest::Smallest;
        Asked {
            request: match budget {
                // Parts are parts of the peak in the reference session.
                Some(budget) if !reference && !is_smallest => BudgetRequest::Bytes(budget),
                _ => self.request,
            },
            known: known.filter(|_| alternative.is_asked_for_less() && !is_smallest),
        }
    }

    /// An alternative finds nothing that adds less than so many nanoseconds.
    fn nothing_below(&mut self, bound: u64) {
        self.untried = Untried::default();
        if let Some(Ok(best)) = &mut self.best {
            best.summary.lower_bound = best.summary.lower_bound.min(bound);
        }
    }

    /// The best; where nothing fits in every way of running it, or nothing is proved to be right, but the graph as it is fits
    /// in the way of which its peak is told, that.
    fn or_as_it_is(self, session: &ConvolutionSetting<'_>) -> Found {
        let mut found = self.best.expect("every budget is asked for");
        if !is_unproved(&found) && !matches!(found, Err(OptimizeError::Infeasible { .. })) {
            return found;
        }
        let before = session.original().peak(session.options.reserve);
        let needs = before.bytes;
        let budget = match &mut found {
            Err(OptimizeError::Infeasible {
                budget, smallest, ..
            }) => {
                if needs < smallest.bytes {
                    **smallest = before;
                }
                *budget
            }
            // Whatever is left is the smallest then.
            Err(OptimizeError::Unproved { .. }) if self.request == BudgetRequest::Smallest => needs,
            Err(OptimizeError::Unproved { budget, .. }) => *budget,
            _ => return found,
        };
        let fits = (needs <= budget).then_some(&session.options);
        let as_it_is = fits.and_then(|options| as_it_is(session.original(), options, budget));
        // A file that lists its nodes in another order than it is written in may take more as it is written.
        if let Some(Ok(mut as_it_is)) = as_it_is {
            as_it_is.summary.convolutions = session.choice;
            let given_up = faults::take(&mut found);
            found = Ok(as_it_is);
            faults::give(&mut found, given_up);
        }
        // Where the reserve alone is more, what is left for the graph does not tell what was asked for.
        if let (Err(OptimizeError::Infeasible { budget, .. }), BudgetRequest::Bytes(bytes)) =
            (&mut found, self.request)
        {
            *budget = bytes;
        }
        found
    }
}

/// The graph in a session that computes convolutions in one of the ways that the provider's options leave. They hold for
/// all convolutions, so each is planned for as a device of its own.
pub(super) struct ConvolutionSetting<'g> {
    graph: &'g Graph,
    /// The same with declarations that are wrong.
    declared: &'g Graph,
    pub(super) options: PlanOptions,
    /// Nothing where there is nothing to choose.
    choice: Option<AlgorithmChoice>,
    original: OnceCell<Original<'g>>,
}

impl<'g> ConvolutionSetting<'g> {
    /// The fastest first: the others' convolutions are slower than its, which counts as added.
    pub(super) fn all(
        (graph, declared): (&'g Graph, &'g Graph),
        options: &PlanOptions,
    ) -> Vec<ConvolutionSetting<'g>> {
        let session = |options: PlanOptions, choice| ConvolutionSetting {
            graph,
            declared,
            options,
            choice,
            original: OnceCell::new(),
        };
        match has_algorithms(graph, options) {
            false => vec![session(options.beside_model(graph), None)],
            true => {
                let all = options.runtime.release.convolutions.iter().copied();
                let with = |choice| session(options.with_choice(graph, choice), Some(choice));
                all.map(with).collect()
            }
        }
    }

    pub(super) fn original(&self) -> &Original<'g> {
        let original = || Original::of((self.graph, self.declared), &self.options);
        self.original.get_or_init(original)
    }
}

/// A session whose alternatives may find something better than what there is.
struct Challenger<'s, 'g> {
    session: &'s ConvolutionSetting<'g>,
    /// In terms of which times and peaks are told.
    reference: &'s ConvolutionSetting<'g>,
    /// By so many nanoseconds a step of the unmodified graph takes longer than in the reference.
    slower: u64,
    /// Those that work slice by slice stand behind the others.
    alternatives: Vec<Alternative>,
    floors: OnceCell<Option<Floors>>,
    plain_floor: OnceCell<Bytes>,
}

impl<'s, 'g> Challenger<'s, 'g> {
    /// For a row of so many budgets.
    fn of(
        session: &'s ConvolutionSetting<'g>,
        reference: &'s ConvolutionSetting<'g>,
        budgets: usize,
    ) -> Challenger<'s, 'g> {
        let step = |of: &ConvolutionSetting<'_>| step(session.graph, &of.options);
        let slower = match session.choice == reference.choice {
            true => 0,
            false => step(session).saturating_sub(step(reference)),
        };
        let mut alternatives = alternatives(&session.options, budgets);
        alternatives.retain(|alternative| alternative.has_something(session.original()));
        Challenger {
            session,
            reference,
            slower,
            alternatives,
            floors: OnceCell::new(),
            plain_floor: OnceCell::new(),
        }
    }

    fn is_reference(&self) -> bool {
        self.session.choice == self.reference.choice
    }

    fn floors(&self) -> Option<&Floors> {
        let floors = || Floors::of(&self.alternatives, self.session.original());
        self.floors.get_or_init(floors).as_ref()
    }

    fn plain_floor(&self) -> Bytes {
        let floor = || plain_floor(self.session.original(), &self.session.options);
        *self.plain_floor.get_or_init(floor)
    }

    /// Is there a plan with less where nodes work slice by slice?
    fn slices_help(&self) -> bool {
        self.floors().is_some_and(Floors::slices_help)
    }

    fn ask(&self, entries: &mut [Standing], look: Look) -> Result<(), OptimizeError> {
        for entry in entries.iter_mut() {
            entry.settled = false;
        }
        let together = self.may_ask_together(&self.alternatives);
        let mut only_sliced = false;
        if let [entry] = &mut *entries
            && together
            && let Some(budget) = self.below_plain_floor(entry)
            && let Some(floors) = self.floors()
        {
            let original = self.session.original();
            if let Some(error) = out_of_reach(&self.alternatives, original, floors, budget) {
                self.settle(entry, Err(error));
                return Ok(());
            }
            only_sliced = floors.rule_out_whole(budget);
        }
        if together {
            self.ask_for_smallest(entries)?;
        }
        let (whole, sliced) = self.whole_and_sliced();
        if !only_sliced {
            self.ask_all(whole, entries, look)?;
        }
        if sliced.is_empty() {
            return Ok(());
        }
        for entry in entries.iter_mut() {
            entry.settled = !entry.wants_slices(self.plain_floor());
        }
        if entries.iter().any(|entry| !entry.settled) && self.slices_help() {
            self.ask_all(sliced, entries, look)?;
        }
        Ok(())
    }

    fn whole_and_sliced(&self) -> (&[Alternative], &[Alternative]) {
        let whole = self.alternatives.partition_point(|one| !one.is_sliced());
        self.alternatives.split_at(whole)
    }

    /// The budget, the reserve included, if nodes as they are need more: other forms only lower that, and making them takes long in
    /// a large graph. Only for a budget by itself: a row is told its smallest peak, for which it is looked anyway.
    fn below_plain_floor(&self, entry: &Standing) -> Option<Bytes> {
        let options = &self.session.options;
        let widest = self.alternatives.first()?;
        if options.strategy != Strategy::Auto || !options.runtime.promise.holds_unoptimized() {
            return None;
        }
        let asked = entry.asked(widest, self.is_reference(), self.slower);
        let original = self.session.original();
        let budget = original.budget(asked.request, options.reserve)? + options.reserve;
        (budget < self.plain_floor()).then_some(budget)
    }

    /// Looks for the smallest peak, where that is what is asked for.
    fn ask_for_smallest(&self, entries: &mut [Standing]) -> Result<(), OptimizeError> {
        let (whole, sliced) = self.whole_and_sliced();
        for entry in entries.iter_mut() {
            if entry.request == BudgetRequest::Smallest {
                let all = match !sliced.is_empty() && self.slices_help() {
                    true => self.alternatives.as_slice(),
                    false => whole,
                };
                let found = near_smallest(self.session.original(), all, None)?;
                self.settle(entry, found);
            }
        }
        Ok(())
    }

    /// Asks one after another, and all together for what none of them found.
    fn ask_all(
        &self,
        alternatives: &[Alternative],
        entries: &mut [Standing],
        look: Look,
    ) -> Result<(), OptimizeError> {
        for alternative in alternatives {
            self.ask_for(alternative, entries)?;
            if look == Look::Thorough {
                self.look_harder(alternatives, entries)?;
            }
        }
        Ok(())
    }

    /// Has each of them something to say of every budget, and is there the time for that?
    fn may_ask_together(&self, alternatives: &[Alternative]) -> bool {
        let (options, graph) = (&self.session.options, self.session.graph);
        let late = options.watch.is_stopped() && graph.order().len() > MOST_NODES;
        !late && alternatives.iter().all(Alternative::is_for_all)
    }

    /// Where nothing was found that fits, all alternatives look for the smallest peak, once for all such budgets.
    fn look_harder(
        &self,
        alternatives: &[Alternative],
        entries: &mut [Standing],
    ) -> Result<(), OptimizeError> {
        let session = self.session;
        if session.options.strategy != Strategy::Auto || !self.may_ask_together(alternatives) {
            return Ok(());
        }
        let missed = |entry: &&mut Standing| entry.missed().is_some();
        let mut missed: Vec<&mut Standing> = entries.iter_mut().filter(missed).collect();
        missed.sort_by_key(|entry| Reverse(entry.missed()));
        let mut least: Option<Box<Peak>> = None;
        for entry in missed {
            let budget = entry.missed().unwrap_or_default();
            let found = match &least {
                Some(smallest) if smallest.bytes > budget => Err(OptimizeError::Infeasible {
                    budget,
                    smallest: smallest.clone(),
                    floor: None,
                }),
                _ => near_smallest(session.original(), alternatives, Some(budget))?,
            };
            if let Err(OptimizeError::Infeasible { smallest, .. }) = &found {
                least = Some(smallest.clone());
            }
            self.settle(entry, found);
        }
        Ok(())
    }

    /// Whatever there is to be found for that entry in this session is found.
    fn settle(&self, entry: &mut Standing, found: Found) {
        self.offer(entry, found);
        entry.settled = true;
    }

    fn offer(&self, entry: &mut Standing, found: Found) {
        if self.is_reference() || !self.may_differ(&found) {
            let found = found.map(|found| self.in_terms_of_reference(found));
            offer(&mut entry.best, found, entry.request);
        }
    }

    /// Asks one alternative for the budgets for which it may find something better.
    fn ask_for(
        &self,
        alternative: &Alternative,
        entries: &mut [Standing],
    ) -> Result<(), OptimizeError> {
        let slower = self.slower;
        let is_open = |(number, entry): &(usize, &mut Standing)| {
            alternative.is_for(*number) && entry.is_open(alternative, slower)
        };
        let open = entries.iter_mut().enumerate().filter(is_open);
        let open: Vec<&mut Standing> = open.map(|(_, entry)| entry).collect();
        if open.is_empty() {
            return Ok(());
        }
        let asked = open
            .iter()
            .map(|entry| entry.asked(alternative, self.is_reference(), slower));
        let asked: Vec<Asked> = asked.collect();
        let answers = alternative.answer(self.session.original(), &asked)?;
        for (entry, answer) in open.into_iter().zip(answers) {
            match answer {
                Reply::Found(found, untried) => {
                    entry.untried = untried;
                    self.offer(entry, found);
                }
                Reply::NothingCheaper(bound) => entry.nothing_below(bound.saturating_add(slower)),
            }
        }
        Ok(())
    }

    /// May a copy of a convolution compute other bits than its original? Where algorithms are tried, each node takes
    /// what was fastest for it then.
    fn may_differ(&self, found: &Found) -> bool {
        let (Ok(found), device) = (found, &self.session.options.device) else {
            return false;
        };
        let graph = &found.graph;
        let mut nodes = graph.nodes();
        device.convolutions.choice.tries()
            && nodes.any(|node| is_mirror(node) && !timed(graph, node, device).is_empty())
    }

    /// What was found in this session, as something that might run instead of the reference.
    fn in_terms_of_reference(&self, mut found: Optimized) -> Optimized {
        let summary = &mut found.summary;
        summary.convolutions = self.session.choice;
        if self.is_reference() {
            return found;
        }
        let (original, options) = (self.reference.original(), &self.reference.options);
        summary.time_before = step(self.session.graph, options);
        summary.time_added = summary.time_added.saturating_add(self.slower);
        summary.lower_bound = summary.lower_bound.saturating_add(self.slower);
        summary.before = original.peak(options.reserve);
        (summary.executions_before, summary.reserved_before) = original.needs(options).clone();
        found
    }
}

fn has_algorithms(graph: &Graph, options: &PlanOptions) -> bool {
    let device = &options.device;
    let mut nodes = graph.nodes();
    device.provider == Provider::Cuda && nodes.any(|node| !timed(graph, node, device).is_empty())
}

/// What a step of `graph` takes, in nanoseconds.
fn step(graph: &Graph, options: &PlanOptions) -> u64 {
    let costs = costs(graph, &options.device, &options.overrides);
    time_of_all(graph, &costs)
}

/// What fits a budget fits every larger one: where it adds less than what was found there, it
/// takes its place, so that more memory never costs time.
pub(super) fn spread(row: &mut [Result<Optimized, OptimizeError>]) {
    let mut found: Vec<&mut Optimized> = row.iter_mut().flatten().collect();
    // What stays as it is although it does not fit in every order is for its own budget.
    found.retain(|one| one.summary.over_budget().next().is_none());
    found.sort_by_key(|one| one.summary.budget);
    for larger in 1..found.len() {
        let (smaller, rest) = found.split_at_mut(larger);
        let (smaller, larger) = (&smaller[smaller.len() - 1], &mut rest[0]);
        if smaller.summary.time_added < larger.summary.time_added {
            let Summary {
                budget,
                lower_bound,
                smallest_peak,
                ref mut faults,
                ..
            } = larger.summary;
            let faults = std::mem::take(faults);
            larger.clone_from(smaller);
            larger.summary.budget = budget;
            larger.summary.lower_bound = lower_bound.min(larger.summary.time_added);
            larger.summary.smallest_peak = smallest_peak;
            larger.summary.faults = faults;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::cost::NodeOverride;
    use crate::operators::variants::Group;
    use crate::optimize::optimize;
    use crate::runtime::device::Device;
    use crate::strategy::tests::options;
    use crate::testing::random_training_graph;

    #[test]
    fn what_the_user_says_of_a_convolution_goes_for_every_choice() {
        let graph = Graph::parse(
            "<ir_version: 8, opset_import: [\"\" : 17]>
            g (float[8,16,64,64] x, float[64,16,3,3] w) => (float[8,64,62,62] y)
            {
                [conv] y = Conv (x, w)
            }",
        );
        let graph = graph.unwrap();
        let said = NodeOverride {
            time_us: Some(3.0),
            workspace_bytes: Some(77),
            ..NodeOverride::default()
        };
        let options = PlanOptions {
            device: Device::preset("h100").unwrap(),
            overrides: [("conv".to_owned(), said)].into(),
            ..options(Strategy::Auto, BudgetRequest::Smallest)
        };
        assert!(has_algorithms(&graph, &options));
        for choice in AlgorithmChoice::TRAINING {
            let options = options.with_choice(&graph, choice);
            let cost = costs(&graph, &options.device, &options.overrides)[0];
            assert_eq!((cost.time.0, cost.workspace), (3_000, Bytes(77)));
        }
    }

    #[test]
    fn the_smallest_peak_is_come_near_and_all_work_for_it_is_counted() {
        for seed in 0..6 {
            let graph = random_training_graph(seed, 40);
            let options = PlanOptions {
                variants: Group::ALL.into(),
                ..options(Strategy::Auto, BudgetRequest::Smallest)
            };
            let found = optimize(&graph, &options).expect("a plan").summary;
            let least = found.smallest_peak;
            let near = least + Bytes(least.0 / 200);
            assert!(found.after.bytes <= near && near <= found.budget + Bytes(1));
            assert_eq!(
                found.evaluations,
                options.watch.evaluations(),
                "seed {seed}"
            );
            // What is a little less is refused by the smallest that is found, or is found.
            let less = PlanOptions {
                budget: BudgetRequest::Bytes(least - Bytes(1)),
                ..options
            };
            match optimize(&graph, &less) {
                Ok(found) => assert!(found.summary.after.bytes < least),
                Err(OptimizeError::Infeasible { smallest, .. }) => {
                    assert!(smallest.bytes >= least && !smallest.holders.is_empty());
                }
                Err(other) => panic!("seed {seed}: {other}"),
            }
        }
    }

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
        let with_variants = PlanOptions {
            variants: Group::ALL.into(),
            ..options(Strategy::Auto, budget)
        };
        let sessions = ConvolutionSetting::all((&graph, &graph), &with_variants);
        let fewer = alternatives(&with_variants, 1).pop().expect("without any");
        let taken = |known: Found| {
            let mut entry = Standing::of(budget);
            entry.best = Some(known);
            entry.untried.fewer_variants = true;
            let session = &sessions[0];
            let mut row = [entry];
            Challenger::of(session, session, 1)
                .ask_for(&fewer, &mut row)
                .expect("an answer");
            let [entry] = row;
            let found = entry.best.expect("a result").expect("a plan");
            found.summary.time_added
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
            floor: None,
        };
        assert_eq!(taken(Err(infeasible)), added);
    }
}
