//! The stages over one graph with shapes: search, apply, enforce the order, check, sum up.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::form::{Choices, Form, apply};
use super::need::{Candidate, describe, frame, need, reserved_in_default_order};
use super::original::Original;
use super::rivals::{MOST_NODES, Rivals};
use super::{
    BudgetRequest, OptimizeError, Optimized, Options, StopReason, Summary, verify_rewritten,
};
use crate::analysis::cost::{Cost, costs, time_of_all};
use crate::analysis::liveness::{Liveness, TENSOR};
use crate::analysis::mirrors::{is_mirror, mirror_number};
use crate::analysis::settings::RuntimeSettings;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId};
use crate::operators::variants::{Group, VARIANTS, Variant};
use crate::parallel;
use crate::pass::Pass;
use crate::plan::Plan;
use crate::program::Limits;
use crate::search::{Alternatives, Missed, Search};
use crate::strategy::{Joint, Planner, Portfolio, Strategy, Task, Unplanned, ilp, planner};
use crate::transform::colour_shapes::COLOURED_FROM;
use crate::transform::enforce_order::{Conditions, Enforceable, NotEnforceable, Thinning};
use crate::transform::hide_sizes::HideSizes;
use crate::transform::insert_mirrors::InsertMirrors;
use crate::transform::keep_apart::KeepApart;
use crate::transform::release_unread::ReleaseUnread;
use crate::transform::unmark_fused::UnmarkFused;

/// How often the search is asked, each time for less, because the runtime's order needs more than the plan's.
const ATTEMPTS: usize = 6;

/// How often barriers are chosen anew because they leave another room than they were chosen for.
const CORRECTIONS: usize = 4;

/// Where a plan needs many barriers, these have about one output for so many nodes.
const NODES_FOR_OUTPUT: u64 = 4;

/// How often a smaller budget than what is reached is tried for the smallest peak.
const SMALLER: usize = 5;

/// Less than this part of what a step takes is not worth trying for.
const NARROW: u64 = 50;

/// Barriers that take more than this part of what a plan adds, ...
const MANY_BARRIERS: u64 = 4;

/// ... and more than this part of a step's time, may be too many.
const NOTABLE: u64 = 200;

/// Then it is planned anew up to so many times, ...
const FEWER_BARRIERS: usize = 3;

/// ... each time with one more of so many parts of what a step takes left for them.
const ROOM_FOR_BARRIERS: u64 = 50;

/// A plan that adds no more than this part of the step's time stands.
const CHEAP: u64 = 20;

/// Another attempt leaves this part of the budget free, ...
const SPARE: u64 = 20_000;

/// ... where the runtime's settings add to a plan what only the plan itself tells, this part, ...
const SPARE_FOR_SETTINGS: u64 = 2_000;

/// ... the next so many times as much.
const MORE_SPARE: u64 = 4;

/// Up to this part of a budget need not be used.
const SLIGHT: u64 = 400;

/// Hiding sizes may take this part of a step.
const HIDING: u64 = 200;

/// How often it is tried how many that are.
const HIDING_TRIALS: usize = 4;

/// When a solver that raises the lower bound ends.
const CERTIFYING: Limits = Limits {
    nodes: 2_000,
    seconds: None,
    gap: 1e-4,
};

/// What is worked out beside the search, unless somebody needs it before.
type Later<'a> = LazyLock<Candidate, Box<dyn FnOnce() -> Candidate + Send + 'a>>;

pub(super) struct Pipeline<'o> {
    options: &'o Options,
    original: &'o Original<'o>,
    /// It with the variants that are decided before the search.
    base: Arc<Form>,
    decided: Choices,
    /// What the search may replace in it.
    joint: Option<Joint>,
    /// The form that was made last.
    latest: Mutex<Option<(Choices, Arc<Form>)>>,
    /// The base's orders of first computations that are worth a look, the best first; never empty.
    orders: Vec<Vec<NodeId>>,
}

impl<'o> Pipeline<'o> {
    /// `decided` variants are taken, of the `offers` the search chooses; none of them is for the
    /// same node.
    pub(super) fn new(
        original: &'o Original<'o>,
        decided: Choices,
        offers: &Choices,
        options: &'o Options,
    ) -> Pipeline<'o> {
        let base = Form::new(apply(original.graph, &decided), options);
        let orders = match decided.is_empty() {
            true => original.orders().to_vec(),
            false => original.orders_of(&base.graph, &base.costs),
        };
        let alternatives = Alternatives::of(&base.graph, offers);
        let joint = (!alternatives.is_empty()).then(|| {
            let all = Form::new(alternatives.graph.clone(), options);
            Joint {
                alternatives: Arc::new(alternatives),
                costs: all.costs,
                recomputation: all.recomputation,
            }
        });
        Pipeline {
            options,
            original,
            base: Arc::new(base),
            decided,
            joint,
            latest: Mutex::default(),
            orders,
        }
    }

    /// What the caller owns.
    pub(super) fn fixed(&self) -> Bytes {
        self.original.liveness.fixed
    }

    /// The base's peak in its best order of first computations alone, without what the caller owns.
    pub(super) fn ordered_peak(&self) -> Bytes {
        let mut graph = self.base.graph.clone();
        if let Some(order) = self.orders.first() {
            graph.set_order(order.clone());
        }
        let provider = self.options.device.provider;
        let found = Liveness::in_file_order(&graph, provider, &self.base.costs);
        found.peak - found.fixed
    }

    /// The base with further variants.
    fn form(&self, variants: &Choices) -> Arc<Form> {
        if variants.is_empty() {
            return self.base.clone();
        }
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, form)) = &*latest
            && of == variants
        {
            return form.clone();
        }
        let form = Form::new(apply(&self.base.graph, variants), self.options);
        let form = Arc::new(form);
        *latest = Some((variants.clone(), form.clone()));
        form
    }

    /// One result for each budget. The plans for all of them are made by one planner, which looks
    /// for the smallest peak once.
    pub(super) fn run(
        &self,
        budgets: &[BudgetRequest],
    ) -> Result<Vec<Result<Optimized, OptimizeError>>, OptimizeError> {
        let task = self.task();
        let strategy = self.options.strategy;
        let mut planner = planner(strategy, &task).unwrap_or_else(|| {
            let own = Box::new(Searches::new(&task, &self.orders));
            Box::new(Portfolio::new(&task, own, &self.orders))
        });
        let refused = |reason| OptimizeError::Refused { strategy, reason };
        let asked = strategy == Strategy::Auto;
        let mut rivals = asked.then(|| Rivals::of(&task));
        let (least, known) = match budgets.contains(&BudgetRequest::Smallest) {
            true => {
                let all = self.least_of_all(planner.as_mut(), rivals.as_mut());
                all.map(|(least, smallest)| (least, Some(smallest)))
            }
            false => planner.smallest_in_passing().map(|least| (least, None)),
        }
        .map_err(refused)?;
        let quick = || self.smallest(&least, Thinning::Quick);
        let smallest: Later<'_> = LazyLock::new(Box::new(|| known.unwrap_or_else(quick)));
        let mut fit = |&request: &BudgetRequest| {
            let (planner, rivals) = (planner.as_mut(), rivals.as_mut());
            self.fit(planner, rivals, &least, &smallest, request)
        };
        let (_, row) = parallel::both(
            || LazyLock::force(&smallest),
            || budgets.iter().map(&mut fit).collect(),
        );
        Ok(row)
    }

    /// May a plan for the graph without variants be another than `found`?
    pub(super) fn replaces(&self, found: &Result<Optimized, OptimizeError>) -> bool {
        let variants = match found {
            Ok(found) => !found.summary.variants.is_empty(),
            Err(_) => self.joint.is_some() || !self.decided.is_empty(),
        };
        variants || self.base.recomputation.has_parts()
    }

    /// Looks for plans that add less than those `known`, one for each of them, within the same budget. The published
    /// strategies, which know no variants, are asked only where they were not asked for the same graph.
    pub(super) fn cheaper(
        &self,
        known: &[Summary],
    ) -> Vec<Option<Result<Optimized, OptimizeError>>> {
        let task = self.task();
        let own = Box::new(Searches::new(&task, &self.orders));
        let mut planner = Portfolio::new(&task, own, &self.orders);
        let mut rivals = Rivals::of(&task);
        let mut cheaper = |known: &Summary| {
            let budget = known.budget - self.options.reserve;
            // How many barriers a plan needs is chance, and in a large graph costs too much to find out.
            let below = match self.base.graph.order().len() > MOST_NODES {
                true => known.time_added.saturating_sub(known.time_in_barriers),
                false => known.time_added,
            };
            let mut found = self.within_or_least(&mut planner, budget, below);
            let mut chosen = None;
            if has_sums(known) {
                found = self.best_of(found, &mut rivals, budget, below, &mut chosen);
            }
            let smallest = known.smallest_peak - self.options.reserve;
            found.map(|found| self.finish(found, budget, smallest, chosen, &planner))
        };
        known.iter().map(&mut cheaper).collect()
    }

    /// Nanoseconds that every plan adds, in the orders of first computations that are looked at, within the budget
    /// of the `known` one.
    pub(super) fn least(&self, known: &Summary) -> u64 {
        let room = known.budget - self.options.reserve - frame(&self.base.graph);
        let searches = self.orders.iter();
        let searches: Vec<Search> = searches
            .map(|order| self.task().relaxed_search(order))
            .collect();
        let bounds = parallel::map(&searches, |search| {
            search.lower_bound(room, known.time_added)
        });
        bounds.into_iter().min().unwrap_or(0)
    }

    /// What MONeT's program replaces, and by what.
    pub(super) fn implementations(
        &self,
        budget: BudgetRequest,
        may: &dyn Fn(NodeId, &Variant) -> bool,
    ) -> ilp::Joint {
        let budget = self.budget(budget, || Bytes::ZERO);
        let room = budget - self.framed();
        ilp::implementations(&self.task(), room, may)
    }

    /// What it replaces whatever the budget is.
    pub(super) fn dominating(&self) -> Choices {
        ilp::dominating(&self.task())
    }

    /// What the runtime takes for itself, with an eighth more tensors for mirrors and barriers.
    fn framed(&self) -> Bytes {
        Bytes(frame(&self.base.graph).0 * 9 / 8)
    }

    /// The same, and what barriers pass on, which lives to the end of the step.
    fn spare(&self) -> Bytes {
        let outputs = self.base.graph.order().len() as u64 / NODES_FOR_OUTPUT;
        self.framed() + Bytes(TENSOR.0 * outputs)
    }

    fn fit(
        &self,
        planner: &mut dyn Planner,
        mut rivals: Option<&mut Rivals<'_>>,
        least: &Plan,
        smallest: &Later<'_>,
        request: BudgetRequest,
    ) -> Result<Optimized, OptimizeError> {
        // It lets the search look for a cheaper plan with the same peak.
        let reached = || smallest.need() + hair(smallest.need());
        let budget = self.budget(request, reached);
        let mut chosen = None;
        let candidate = if let Some(same) = self.without_copies(budget) {
            same
        } else {
            let own = self.within(planner, Some(least), budget, u64::MAX).ok();
            let cheap = own.as_ref().is_some_and(|own| self.is_cheap(own));
            let own = own.or_else(|| self.smallest_or_better(smallest, least, budget));
            let found = match rivals.as_deref_mut().filter(|_| !cheap) {
                Some(rivals) => self.best_of(own, rivals, budget, u64::MAX, &mut chosen),
                None => own,
            };
            match found {
                Some(found) => found,
                None => self.smallest_within(planner, rivals, least, budget)?,
            }
        };
        self.finish(candidate, budget, reached(), chosen, planner)
    }

    /// The graph with nothing computed again, if it fits: untouched, or at least with nodes that take no memory.
    fn without_copies(&self, budget: Bytes) -> Option<Candidate> {
        let fits = |candidate: &Candidate| candidate.need() <= budget;
        let untouched = Candidate::new(self.original.graph.clone(), self.options);
        if fits(&untouched) || self.options.settings == RuntimeSettings::LEAN {
            return Some(untouched).filter(fits);
        }
        let coloured = Candidate::coloured(self.original.graph.clone(), self.options);
        if fits(&coloured) {
            return Some(coloured);
        }
        let hidden = self.hidden(self.original.graph.clone());
        Some(Candidate::coloured(hidden.into_graph(), self.options)).filter(fits)
    }

    /// Checks what was made of a plan by `chosen`, or else by `planner`, and sums it up.
    fn finish(
        &self,
        candidate: Candidate,
        budget: Bytes,
        smallest: Bytes,
        chosen: Option<Strategy>,
        planner: &dyn Planner,
    ) -> Result<Optimized, OptimizeError> {
        let notes = match chosen {
            None => planner.notes(),
            Some(strategy) => vec![format!("the plan is that of --strategy {strategy}")],
        };
        let (original, written, options) = (self.original.graph, &candidate.graph, self.options);
        let (verified, summary) = parallel::both(
            || verify_rewritten(original, written, options, budget),
            || self.summary(&candidate, budget, smallest, notes),
        );
        verified?;
        Ok(Optimized {
            graph: candidate.graph,
            summary,
        })
    }

    /// The smallest that is found with more work; an error if even that does not fit.
    fn smallest_within(
        &self,
        planner: &mut dyn Planner,
        rivals: Option<&mut Rivals<'_>>,
        least: &Plan,
        budget: Bytes,
    ) -> Result<Candidate, OptimizeError> {
        let reserve = self.options.reserve;
        let smallest = match self.least_of_all(planner, rivals) {
            Ok((_, smallest)) => smallest,
            Err(_) => self.smallest(least, Thinning::Thorough),
        };
        if smallest.need() <= budget {
            return Ok(smallest);
        }
        Err(OptimizeError::Infeasible {
            budget: budget + reserve,
            smallest: Box::new(smallest.peak(reserve)),
        })
    }

    /// The smallest that is found with all the work there is, and the plan that the search takes for the smallest.
    fn least_of_all(
        &self,
        planner: &mut dyn Planner,
        rivals: Option<&mut Rivals<'_>>,
    ) -> Result<(Plan, Candidate), String> {
        let plans = planner.smallest_few()?;
        let planned = plans.iter().map(|plan| plan.predicted_peak).min();
        let (least, smallest) = self.smallest_of(plans);
        let Some(rivals) = rivals else {
            return Ok((least, smallest));
        };
        let smallest = self.smaller(smallest, rivals);
        let smallest = self.planned_for_less(planner, planned.unwrap_or_default(), smallest);
        Ok((least, smallest))
    }

    /// `smallest`, or what needs less because it is planned for a smaller budget: the search for the smallest peak knows
    /// nothing of barriers, and where many are needed another plan takes less with them. `planned` is the smallest peak of
    /// a plan without any.
    fn planned_for_less(
        &self,
        planner: &mut dyn Planner,
        planned: Bytes,
        smallest: Candidate,
    ) -> Candidate {
        let (mut missed, mut best) = (planned + frame(&self.base.graph), smallest);
        // What a plan leaves of its budget for the runtime and barriers: as much as the last one that fitted.
        let mut beside = self.framed();
        for _ in 0..SMALLER {
            let between = best.need() - missed;
            if between <= Bytes((best.need() - self.original.liveness.fixed).0 / NARROW)
                || self.stopped()
            {
                break;
            }
            let budget = missed + Bytes(between.0 / 2);
            let mut target = budget - beside;
            let mut start = |target| planner.start(target).ok_or(Unplanned::TooSlow);
            let found = self.planned(&mut start, &mut target, None, budget, u64::MAX);
            match found {
                Ok(found) if found.need() < best.need() => {
                    (best, beside) = (found, budget - target);
                }
                _ => missed = budget,
            }
        }
        best
    }

    /// `own`, or what a published strategy reaches if that is less.
    fn smaller(&self, own: Candidate, rivals: &mut Rivals<'_>) -> Candidate {
        let mut best = own;
        if self.stopped() {
            return best;
        }
        for rival in rivals.all() {
            let least = rival.planner.smallest().ok();
            if let Some(least) = least.filter(|least| least.predicted_peak < best.need()) {
                let other = self.smallest(&least, Thinning::Thorough);
                if other.need() < best.need() {
                    best = self.with_fewer_barriers(&least, other);
                }
            }
        }
        best
    }

    /// `own`, or a cheaper candidate by a published strategy that adds less than `below`, which is then named.
    fn best_of(
        &self,
        own: Option<Candidate>,
        rivals: &mut Rivals<'_>,
        budget: Bytes,
        below: u64,
        chosen: &mut Option<Strategy>,
    ) -> Option<Candidate> {
        let mut best = own;
        if self.stopped() {
            return best;
        }
        for rival in rivals.all() {
            let below = best.as_ref().map_or(below, |best| self.added(best));
            let other = self.within_or_least(rival.planner.as_mut(), budget, below);
            if let Some(other) = other.filter(|other| self.added(other) < below) {
                best = Some(other);
                *chosen = Some(rival.strategy);
            }
        }
        best
    }

    /// The cheapest plan that fits, or else the smallest that adds less than `below`, with every barrier that helps.
    fn within_or_least(
        &self,
        planner: &mut dyn Planner,
        budget: Bytes,
        below: u64,
    ) -> Option<Candidate> {
        match self.within(planner, None, budget, below) {
            Ok(found) => return Some(found),
            Err(Missed::TooSlow) => return None,
            Err(Missed::TooLarge) => {}
        }
        let Err(Unplanned::TooLarge(least)) = planner.cheaper(Bytes::ZERO, below) else {
            return None;
        };
        let promising = least.predicted_peak < budget && !self.stopped();
        let smallest = promising.then(|| self.smallest(&least, Thinning::Quick))?;
        self.smallest_or_better(&smallest, &least, budget)
    }

    /// Nanoseconds that the candidate takes more than the unmodified graph.
    fn added(&self, candidate: &Candidate) -> u64 {
        self.time_added(&candidate.graph, &candidate.costs)
    }

    /// The same of a graph with these costs.
    fn time_added(&self, graph: &Graph, costs: &[Cost]) -> u64 {
        time_of_all(graph, costs).saturating_sub(self.original.time())
    }

    /// Does it add so little that nobody else needs to be asked? Not where barriers, which the search
    /// does not see, are a notable part of that: another plan may need fewer.
    fn is_cheap(&self, candidate: &Candidate) -> bool {
        let step = time_of_all(&candidate.graph, &candidate.costs);
        let (added, barriers) = (self.added(candidate), self.time_of_barriers(candidate));
        added <= step / CHEAP && (barriers <= added / 8 || barriers <= step / 2_000)
    }

    fn stopped(&self) -> bool {
        self.options.watch.is_stopped()
    }

    /// The budget without the reserve, which the graph does not see.
    fn budget(&self, request: BudgetRequest, smallest: impl FnOnce() -> Bytes) -> Bytes {
        let reserve = self.options.reserve;
        let (fixed, peak) = (
            self.original.liveness.fixed,
            need(self.original.graph, &self.original.liveness),
        );
        let part = |of: Bytes, part: f64| Bytes((of.0 as f64 * part) as u64);
        match request {
            BudgetRequest::Bytes(bytes) => bytes - reserve,
            BudgetRequest::PartOfPeak(of) => part(peak + reserve, of) - reserve,
            BudgetRequest::FixedPlusPart(of) => fixed + part(peak - fixed, of),
            BudgetRequest::Smallest => smallest(),
        }
    }

    fn task(&self) -> Task<'_> {
        self.task_in(&self.base, self.joint.as_ref())
    }

    fn task_in<'t>(&'t self, form: &'t Form, joint: Option<&'t Joint>) -> Task<'t> {
        Task {
            graph: &form.graph,
            order: self.orders.first().map_or(&[], Vec::as_slice),
            sequences: &self.original.sequences,
            device: &self.options.device,
            overrides: &self.options.overrides,
            costs: &form.costs,
            recomputation: &form.recomputation,
            joint,
            effort: self.options.effort,
            watch: self.options.watch.clone(),
            solving: &self.options.solving,
        }
    }

    /// `smallest` if it fits, with fewer barriers if that fits as well; `least` is its plan, or one
    /// that needs as much.
    fn smallest_or_better(
        &self,
        smallest: &Candidate,
        least: &Plan,
        budget: Bytes,
    ) -> Option<Candidate> {
        if smallest.need() > budget {
            return None;
        }
        let thin = self.smallest(least, Thinning::Thorough);
        Some(thin)
            .filter(|thin| thin.need() <= budget)
            .or_else(|| Some(smallest.clone()))
    }

    /// The plan for which the runtime needs least, with every barrier that helps.
    fn smallest_of(&self, plans: Vec<Plan>) -> (Plan, Candidate) {
        let with_barriers = |plan: Plan| {
            let smallest = self.smallest(&plan, Thinning::Thorough);
            (plan, smallest)
        };
        let all: Vec<(Plan, Candidate)> = plans.into_iter().map(with_barriers).collect();
        let least = all.iter().map(|(_, smallest)| smallest.need()).min();
        let near = least.unwrap_or_default() + hair(least.unwrap_or_default());
        all.into_iter()
            .filter(|(_, smallest)| smallest.need() <= near)
            .map(|(plan, smallest)| {
                let less = self.with_fewer_barriers(&plan, smallest);
                (plan, less)
            })
            .min_by_key(|(plan, smallest)| (smallest.need(), plan.added))
            .unwrap_or_else(|| with_barriers(Plan::default()))
    }

    /// The plan with the smallest peak, with every barrier that helps.
    fn smallest(&self, plan: &Plan, thinning: Thinning) -> Candidate {
        let applied = self.apply(plan);
        self.candidate(applied.within_smallest_peak(thinning), plan)
    }

    /// `smallest`, or what needs less because not every barrier is there: they take some room as well.
    fn with_fewer_barriers(&self, plan: &Plan, smallest: Candidate) -> Candidate {
        let applied = self.apply(plan);
        let within = |budget: Bytes, thinning: Thinning| {
            let enforced = applied.within(budget, thinning).ok()?;
            let candidate = self.candidate(enforced, plan);
            (candidate.need() < smallest.need()).then_some(candidate)
        };
        let mut missed = applied.planned_peak();
        let mut reached = smallest.need() - frame(&smallest.graph);
        let mut less = None;
        for _ in 0..CORRECTIONS {
            let budget = missed + Bytes((reached - missed).0 / 2);
            match within(budget, Thinning::Quick) {
                Some(found) => (reached, less) = (budget, Some(found)),
                None => missed = budget,
            }
        }
        less.map_or(smallest.clone(), |less| {
            within(reached, Thinning::Thorough)
                .filter(|thorough| thorough.need() <= less.need())
                .unwrap_or(less)
        })
    }

    fn candidate(&self, graph: Graph, plan: &Plan) -> Candidate {
        let mut candidate = Candidate::coloured(graph, self.options);
        candidate.variants.clone_from(&plan.variants);
        candidate
    }

    /// The cheapest plan that fits in the runtime's own order; `least` has the smallest peak, if that is known. It
    /// has to add less than `below` nanoseconds.
    fn within(
        &self,
        planner: &mut dyn Planner,
        least: Option<&Plan>,
        budget: Bytes,
        below: u64,
    ) -> Result<Candidate, Missed> {
        let mut target = self.room(planner, budget);
        let mut plan = |target| planner.cheaper(target, below);
        let found = self.planned(&mut plan, &mut target, least, budget, below)?;
        // A published strategy's plan is written as it is.
        match self.options.strategy {
            Strategy::Auto => Ok(self.with_room_for_barriers(planner, found, target, budget)),
            _ => Ok(found),
        }
    }

    /// `found`, or what adds less since it is planned for less than its `target`: the search knows nothing of barriers, and what
    /// leaves them some room can need far fewer.
    fn with_room_for_barriers(
        &self,
        planner: &mut dyn Planner,
        found: Candidate,
        mut target: Bytes,
        budget: Bytes,
    ) -> Candidate {
        let part = Bytes((target - self.original.liveness.fixed).0 / ROOM_FOR_BARRIERS);
        let mut best = found;
        for _ in 0..FEWER_BARRIERS {
            let (barriers, added) = (self.time_of_barriers(&best), self.added(&best));
            let step = time_of_all(&best.graph, &best.costs);
            if barriers <= added / MANY_BARRIERS || barriers <= step / NOTABLE || self.stopped() {
                break;
            }
            target = target - part;
            let mut plan = |target| planner.cheaper(target, added);
            match self.planned(&mut plan, &mut target, None, budget, added) {
                Ok(other) if self.added(&other) < added => best = other,
                _ => break,
            }
        }
        best
    }

    /// Nanoseconds.
    fn time_of_barriers(&self, candidate: &Candidate) -> u64 {
        let (graph, costs) = (&candidate.graph, &candidate.costs);
        let is_barrier = |id: &&NodeId| graph.node(**id).is("com.microsoft", "PassThrough");
        let barriers = graph.order().iter().filter(is_barrier);
        barriers.map(|id| costs[id.index()].time.0).sum()
    }

    /// The same with what `plan` makes for `target` and, where that misses the budget, for less and less, down to what is
    /// `target` then.
    fn planned(
        &self,
        plan: &mut dyn FnMut(Bytes) -> Result<Plan, Unplanned>,
        target: &mut Bytes,
        least: Option<&Plan>,
        budget: Bytes,
        below: u64,
    ) -> Result<Candidate, Missed> {
        let mut spare = match self.options.settings {
            RuntimeSettings::LEAN => budget.0 / SPARE,
            _ => budget.0 / SPARE_FOR_SETTINGS,
        };
        // What there was a plan for.
        let mut reached = None;
        for _ in 0..ATTEMPTS {
            let (plan, is_least) = match plan(*target) {
                Ok(plan) => (plan, false),
                // Too much less was asked for.
                Err(Unplanned::TooLarge(_)) if reached.is_some_and(|reached| reached > *target) => {
                    let between = reached
                        .take()
                        .map_or(Bytes::ZERO, |reached| reached - *target);
                    *target += Bytes(between.0 / 2);
                    continue;
                }
                // The smallest may fit, though it needs more than the target.
                Err(Unplanned::TooLarge(smallest)) => {
                    let least = least.filter(|l| l.predicted_peak <= smallest.predicted_peak);
                    let smallest = least.cloned().unwrap_or(smallest);
                    if smallest.predicted_peak >= budget {
                        return Err(Missed::TooLarge);
                    }
                    (smallest, true)
                }
                Err(Unplanned::TooSlow) => return Err(Missed::TooSlow),
                Err(Unplanned::Refused(_)) => return Err(Missed::TooLarge),
            };
            let applied = self.apply(&plan);
            if self.time_added(applied.graph(), applied.costs()) >= below {
                return Err(Missed::TooSlow);
            }
            match self.enforced(&applied, &plan, budget) {
                Ok(candidate) => return Ok(candidate),
                // There is none for less.
                Err(_) if is_least => return Err(Missed::TooLarge),
                // Less than the same plan needs, or it is found again; and a little less than that, as its barriers
                // are others, which may be too little the more often.
                Err(excess) => {
                    let more = Bytes(excess.0 / 8 + spare + 1);
                    let less = plan.predicted_peak.min(*target);
                    reached = Some(less);
                    *target = less - excess - more;
                    spare *= MORE_SPARE;
                }
            }
        }
        Err(Missed::TooLarge)
    }

    /// What is left of the budget beside what barriers take and what the runtime's settings add to a plan in its own
    /// order, as a quick one tells: the search, which knows none of it, need not be asked twice then.
    fn room(&self, planner: &mut dyn Planner, budget: Bytes) -> Bytes {
        let room = budget - self.spare();
        if self.options.settings == RuntimeSettings::LEAN {
            return room;
        }
        let Some(plan) = planner.sketch(room) else {
            return room;
        };
        let applied = self.apply(&plan);
        let (lean, planned) = (applied.lean_peak(), applied.planned_peak());
        let extra = planned - lean;
        let matters = planned > room || extra <= Bytes(budget.0 / SLIGHT);
        room - Bytes((extra.0 + extra.0 / 2) * u64::from(matters))
    }

    /// The graph with barriers that keep it within the budget; or by how much they miss it.
    fn enforced(
        &self,
        applied: &Enforceable<'_>,
        plan: &Plan,
        budget: Bytes,
    ) -> Result<Candidate, Bytes> {
        let enforced = |room: Bytes, thinning: Thinning| {
            let graph = applied.within(room, thinning)?;
            Ok(self.candidate(graph, plan))
        };
        let planned = applied.planned_peak();
        let mut room = budget - frame(applied.graph());
        if planned > room {
            // Barriers do not help where it is too large in its own order.
            return Err(planned - room);
        }
        // A quick look tells whether it is worth a thorough one.
        let (mut thinning, mut fits) = (Thinning::Quick, None);
        for look in 0..=CORRECTIONS {
            let candidate = match enforced(room, thinning) {
                Ok(candidate) => candidate,
                Err(missed @ NotEnforceable { by_fewer, .. }) => {
                    if thinning == Thinning::Quick && by_fewer {
                        // Where every byte counts, needless barriers do.
                        thinning = Thinning::Thorough;
                        continue;
                    }
                    return fits.ok_or(missed.reached - room);
                }
            };
            // The barriers' own tensors have their places in the frame as well.
            let left = budget - frame(&candidate.graph);
            let less = (room - Bytes(1)).min(left);
            match (candidate.need() <= budget, thinning) {
                (true, Thinning::Thorough) => return Ok(candidate),
                (true, Thinning::Quick) => {
                    (fits, thinning) = (Some(candidate), Thinning::Thorough);
                    room = room.min(left);
                }
                // The first look tells how much that is.
                (false, Thinning::Quick) if look == 0 => room = less,
                // Where every byte counts, needless barriers do.
                (false, _) => (room, thinning) = (less, Thinning::Thorough),
            }
        }
        if let Some(candidate) = fits {
            return Ok(candidate);
        }
        // As much as the plan needs more than its barriers left room for.
        Err(planned - room)
    }

    /// The graph, by whose order barriers make the runtime go.
    fn enforceable(&self, graph: Graph) -> Enforceable<'_> {
        let conditions = Conditions {
            object: TENSOR,
            provider: self.options.device.provider,
            settings: self.options.settings,
            sequences: &self.original.sequences,
        };
        let costs = self.costs_of(&graph);
        Enforceable::new(graph, costs, conditions)
    }

    fn apply(&self, plan: &Plan) -> Enforceable<'_> {
        let form = self.form(&plan.variants);
        let mut graph = form.graph.clone();
        // A published strategy's plan is written as it is.
        let late = (self.options.strategy == Strategy::Auto)
            .then(|| plan.without_unread(&graph, &form.recomputation));
        let insert = InsertMirrors {
            plan: late.as_ref().unwrap_or(plan),
            recomputation: &form.recomputation,
        };
        let Ok(_) = insert.run(&mut graph);
        let Ok(_) = UnmarkFused.run(&mut graph);
        let Ok(_) = KeepApart.run(&mut graph);
        let Ok(_) = ReleaseUnread.run(&mut graph);
        self.hidden(graph)
    }

    /// The graph without the sizes that the memory pattern would hold, as far as the nodes for it take no time to speak of.
    fn hidden(&self, graph: Graph) -> Enforceable<'_> {
        let plain = self.enforceable(graph);
        if !self.options.settings.pattern {
            return plain;
        }
        let (planned, lean) = (plain.planned_peak(), plain.lean_peak());
        if planned - lean <= Bytes((lean - self.original.liveness.fixed).0 / SLIGHT) {
            return plain;
        }
        // Half hidden, a chain of results is known again behind what is left, and the block has to be there besides.
        let less = |hidden: &Enforceable<'_>| hidden.planned_peak() < planned;
        self.most_hidden(&plain).filter(less).unwrap_or(plain)
    }

    /// With all sizes hidden, or else with as many as it is tried for whose nodes take no longer than they may.
    fn most_hidden(&self, plain: &Enforceable<'_>) -> Option<Enforceable<'_>> {
        let most = self.original.time() / HIDING;
        let before = time_of_all(plain.graph(), plain.costs());
        // What is too small for a name is too small to be hidden.
        let from = COLOURED_FROM;
        let sources = HideSizes::worth(plain.graph(), from);
        let hidden = |few: usize| {
            let only = sources[..few].iter().map(|&(source, _)| source).collect();
            let mut hidden = plain.graph().clone();
            let Ok(_) = HideSizes {
                from,
                only: Some(&only),
            }
            .run(&mut hidden);
            let hidden = self.enforceable(hidden);
            let added = time_of_all(hidden.graph(), hidden.costs()).saturating_sub(before);
            (hidden, added)
        };
        let (all, mut takes) = hidden(sources.len());
        if takes <= most {
            return Some(all);
        }
        // Each takes about as long as the others.
        let (mut few, mut many, mut took, mut best) = (0, sources.len(), 0, None);
        for _ in 0..HIDING_TRIALS {
            let part = (many - few) as u128 * u128::from(most - took) / u128::from(takes - took);
            let between = few + part as usize;
            if between == few && best.is_some() {
                break;
            }
            let (graph, added) = hidden(between);
            match added <= most {
                true => (few, took, best) = (between, added, Some(graph)),
                false => (many, takes) = (between, added),
            }
        }
        best
    }

    fn costs_of(&self, graph: &Graph) -> Vec<Cost> {
        costs(graph, &self.options.device, &self.options.overrides)
    }

    fn summary(
        &self,
        candidate: &Candidate,
        budget: Bytes,
        smallest: Bytes,
        notes: Vec<String>,
    ) -> Summary {
        let reserve = self.options.reserve;
        let form = self.form(&candidate.variants);
        let is_new = |id: &NodeId| id.index() >= form.graph.node_count();
        let new = || candidate.graph.order().iter().filter(|&id| is_new(id));
        let is_barrier = |id: &&NodeId| {
            candidate
                .graph
                .node(**id)
                .is("com.microsoft", "PassThrough")
        };
        let recomputes = |id: &&NodeId| mirror_number(candidate.graph.node(**id)).is_some();
        let is_mirror = |id: &&NodeId| is_mirror(candidate.graph.node(**id));
        let original = self.original;
        let time_before = original.time();
        let time_added =
            time_of_all(&candidate.graph, &candidate.costs).saturating_sub(time_before);
        let room = budget - frame(&form.graph);
        let order = order_of_first_computations(candidate, &form);
        let task = self.task_in(&form, None);
        let reordered = task.search(&order).without_copies();
        let relaxed = task.relaxed_search(&order);
        let longer = i128::from(time_of_all(&form.graph, &form.costs)) - i128::from(time_before);
        Summary {
            budget: budget + reserve,
            fixed: self.original.liveness.fixed + reserve,
            before: describe(original.graph, &original.liveness, reserve),
            after: candidate.peak(reserve),
            executions: candidate.executions(reserve),
            smallest_peak: smallest.min(candidate.need()) + reserve,
            time_before,
            time_added,
            time_recomputing: new()
                .filter(recomputes)
                .map(|id| candidate.costs[id.index()].time.0)
                .fold(0, u64::saturating_add),
            time_in_barriers: self.time_of_barriers(candidate),
            reordered_peak: reordered.predicted_peak + frame(&form.graph) + reserve,
            lower_bound: self.lower_bound(&relaxed, room, time_added, longer),
            reserved_before: reserved_in_default_order(
                original.graph,
                &original.costs,
                self.options,
            ),
            reserved_after: candidate.reserved(self.options),
            recomputed_nodes: new().filter(is_mirror).count(),
            barriers: new().filter(is_barrier).count(),
            nodes_before: original.graph.order().len(),
            nodes_after: candidate.graph.order().len(),
            variants: self.names(candidate),
            convolutions: None,
            algorithms: Vec::new(),
            notes,
            evaluations: self.options.watch.evaluations(),
            stop_reason: match time_added {
                _ if self.options.watch.is_stopped() => StopReason::TimeLimit,
                0 => StopReason::NothingToAdd,
                _ => StopReason::Evaluations,
            },
        }
    }

    /// The nodes that are replaced in the candidate, by name, and by which variant.
    fn names(&self, candidate: &Candidate) -> Vec<(String, &'static str)> {
        // A graph that fits as it is comes back as it is.
        if candidate.graph == *self.original.graph {
            return Vec::new();
        }
        let mut all: Choices = self.decided.clone();
        all.extend(&candidate.variants);
        all.sort_by_key(|&(id, _)| id);
        let name = |id: NodeId| self.original.graph.node(id).name.clone();
        all.iter().map(|&(id, v)| (name(id), v.name)).collect()
    }

    /// What every plan adds that keeps the search's order of first computations and variants, which take
    /// `longer` nanoseconds more than the nodes as they are; `known` is what one plan adds.
    fn lower_bound(&self, search: &Search, room: Bytes, known: u64, longer: i128) -> u64 {
        let solving = &self.options.solving;
        let sum = |a: u64, b: i128| u64::try_from(i128::from(a) + b).unwrap_or(0);
        let copies = sum(known, -longer);
        let bound = match solving.solver.as_deref().filter(|_| solving.certify) {
            Some(solver) => {
                let limits = Limits {
                    seconds: solving.seconds,
                    ..CERTIFYING
                };
                search.certified_bound(room, copies, solver, limits)
            }
            None => search.lower_bound(room, copies),
        };
        sum(bound, longer).min(known)
    }
}

/// Were running sums put into the graph before the search?
fn has_sums(known: &Summary) -> bool {
    let mut names = known.variants.iter().map(|&(_, name)| name);
    let sums = VARIANTS
        .iter()
        .filter(|variant| variant.group == Group::Sums);
    names.any(|name| sums.clone().any(|sum| sum.name == name))
}

/// A hair's breadth: peaks that differ by less are as good as the same.
fn hair(peak: Bytes) -> Bytes {
    Bytes(peak.0 / 500)
}

/// This program's own strategy: the cheapest that the searches find, one for each order.
struct Searches {
    /// The order that is best by itself first; never empty.
    searches: Vec<Search>,
    /// Which of them is the cheapest within which budget.
    chosen: Option<(usize, Bytes)>,
}

/// The pipeline aims a little lower when the runtime's order needs more than the plan's. Down to
/// this part of a budget, what was the best order for it still is.
const NEAR: f64 = 0.98;

impl Searches {
    fn new(task: &Task<'_>, orders: &[Vec<NodeId>]) -> Searches {
        Searches {
            searches: orders.iter().map(|order| task.search(order)).collect(),
            chosen: None,
        }
    }

    fn choose(&mut self, budget: Bytes) -> Option<usize> {
        if let Some((chosen, known)) = self.chosen
            && budget <= known
            && budget.0 as f64 >= known.0 as f64 * NEAR
        {
            return Some(chosen);
        }
        let cheapest = |estimates: Vec<Option<u64>>| {
            let costs = estimates.into_iter().enumerate();
            let costs = costs.filter_map(|(i, cost)| Some((cost?, i)));
            costs.min().map(|(_, i)| i)
        };
        let rough = match self.searches.as_mut_slice() {
            [_] => Some(0),
            all => cheapest(
                all.iter_mut()
                    .map(|search| search.rough_estimate(budget))
                    .collect(),
            ),
        };
        let all = self.searches.iter_mut();
        let chosen = match rough {
            Some(rough) => rough,
            None => cheapest(all.map(|search| search.estimate(budget)).collect())?,
        };
        self.chosen = Some((chosen, budget));
        Some(chosen)
    }
}

impl Planner for Searches {
    fn within(&mut self, budget: Bytes) -> Result<Plan, Unplanned> {
        self.cheaper(budget, u64::MAX)
    }

    fn cheaper(&mut self, budget: Bytes, below: u64) -> Result<Plan, Unplanned> {
        let found = match self.choose(budget) {
            Some(chosen) => self.searches[chosen].cheaper(budget, below),
            None => Err(Missed::TooLarge),
        };
        found.map_err(|missed| match missed {
            // Much the same in all orders, where nobody asked for the very smallest.
            Missed::TooLarge => {
                let first = self.searches.first_mut();
                Unplanned::TooLarge(first.map(Search::smallest).unwrap_or_default())
            }
            Missed::TooSlow => Unplanned::TooSlow,
        })
    }

    fn sketch(&mut self, budget: Bytes) -> Option<Plan> {
        self.searches.first()?.sketch(budget)
    }

    fn start(&mut self, budget: Bytes) -> Option<Plan> {
        let chosen = self.choose(budget)?;
        self.searches[chosen].begin(budget)
    }

    fn smallest(&mut self) -> Result<Plan, String> {
        let least = self.smallest_few()?.into_iter();
        let least = least.min_by_key(|plan| (plan.predicted_peak, plan.added));
        Ok(least.unwrap_or_default())
    }

    fn smallest_few(&mut self) -> Result<Vec<Plan>, String> {
        Ok(self.searches.iter_mut().map(Search::smallest).collect())
    }

    fn smallest_in_passing(&mut self) -> Result<Plan, String> {
        let first = self.searches.first_mut();
        Ok(first.map(Search::small).unwrap_or_default())
    }
}

/// The candidate's order without mirrors and barriers.
fn order_of_first_computations(candidate: &Candidate, form: &Form) -> Vec<NodeId> {
    let order = candidate.graph.order().iter().copied();
    let is_first = |id: &NodeId| id.index() < form.graph.node_count();
    order.filter(is_first).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimize::need::in_default_order;
    use crate::strategy::tests::options;
    use crate::testing::random_training_graph;
    use crate::transform::infer_shapes::InferShapes;

    #[test]
    fn planning_for_less_reaches_smaller_peaks_where_the_search_for_the_smallest_ends_above_them() {
        let mut smaller = 0;
        for seed in 0..12 {
            let graph = random_training_graph(seed, 150);
            let options = options(Strategy::Auto, BudgetRequest::Smallest);
            let nothing = Choices::new();
            let original = Original::of(&graph, &options);
            let pipeline = Pipeline::new(&original, nothing.clone(), &nothing, &options);
            let task = pipeline.task();
            let own = Box::new(Searches::new(&task, &pipeline.orders));
            let mut planner = Portfolio::new(&task, own, &pipeline.orders);
            let few = planner.smallest_few().expect("plans");
            let planned = few.iter().map(|plan| plan.predicted_peak).min();
            let (_, smallest) = pipeline.smallest_of(few);
            let before = smallest.need();
            let after = pipeline.planned_for_less(&mut planner, planned.expect("a plan"), smallest);
            assert!(after.need() <= before, "seed {seed}");
            smaller += usize::from(after.need() < before);
        }
        assert!(smaller > 2, "{smaller}");
    }

    #[test]
    fn barriers_that_take_much_time_get_room_where_fewer_are_enough_then() {
        let (mut before, mut after) = (0, 0);
        for (seed, part) in [(7, 0.8), (11, 0.9), (14, 0.8), (20, 0.9)] {
            let graph = random_training_graph(seed, 400);
            let options = options(Strategy::Auto, BudgetRequest::FixedPlusPart(part));
            let nothing = Choices::new();
            let original = Original::of(&graph, &options);
            let pipeline = Pipeline::new(&original, nothing.clone(), &nothing, &options);
            let task = pipeline.task();
            let mut planner = Searches::new(&task, &pipeline.orders);
            let budget = pipeline.budget(options.budget, || Bytes::ZERO);
            // As if what barriers pass on took none.
            let mut target = budget - pipeline.framed();
            let mut plan = |target| planner.cheaper(target, u64::MAX);
            let found = pipeline.planned(&mut plan, &mut target, None, budget, u64::MAX);
            let Ok(found) = found else {
                continue;
            };
            before += pipeline.added(&found);
            let fewer = pipeline.with_room_for_barriers(&mut planner, found, target, budget);
            assert!(fewer.need() <= budget, "seed {seed}");
            after += pipeline.added(&fewer);
        }
        assert!(after < before - before / 20, "{after} of {before}");
    }

    #[test]
    fn half_as_much_less_is_asked_for_where_there_is_no_plan_for_what_a_missed_budget_asks() {
        let graph = random_training_graph(3, 150);
        let options = options(Strategy::Auto, BudgetRequest::Smallest);
        let nothing = Choices::new();
        let original = Original::of(&graph, &options);
        let pipeline = Pipeline::new(&original, nothing.clone(), &nothing, &options);
        let plan = Searches::new(&pipeline.task(), &pipeline.orders)
            .smallest()
            .expect("a plan");
        // Less than anything needs.
        let (budget, first) = (Bytes(plan.predicted_peak.0 / 2), plan.predicted_peak);
        let mut asked = Vec::new();
        let mut answer = |target| {
            asked.push(target);
            match asked.len() {
                1 => Ok(plan.clone()),
                2 => Err(Unplanned::TooLarge(plan.clone())),
                _ => Err(Unplanned::TooSlow),
            }
        };
        let found = pipeline.planned(&mut answer, &mut first.clone(), None, budget, u64::MAX);
        assert!(matches!(found, Err(Missed::TooSlow)));
        assert_eq!(asked.len(), 3);
        assert!(asked[1] < first);
        assert_eq!(asked[2], asked[1] + Bytes((first - asked[1]).0 / 2));
    }

    #[test]
    fn nothing_more_is_asked_once_the_smallest_plan_misses_the_budget() {
        let graph = random_training_graph(3, 150);
        let options = options(Strategy::Auto, BudgetRequest::Smallest);
        let nothing = Choices::new();
        let original = Original::of(&graph, &options);
        let pipeline = Pipeline::new(&original, nothing.clone(), &nothing, &options);
        let least = Searches::new(&pipeline.task(), &pipeline.orders)
            .smallest()
            .expect("a plan");
        // As if it needed nothing; then it does not fit where it is enforced.
        let budget = Bytes(least.predicted_peak.0 / 2);
        let promising = Plan {
            predicted_peak: Bytes::ZERO,
            ..least
        };
        let mut asked = 0;
        let mut answer = |_| {
            asked += 1;
            Err(Unplanned::TooLarge(promising.clone()))
        };
        let found = pipeline.planned(&mut answer, &mut budget.clone(), None, budget, u64::MAX);
        assert!(matches!(found, Err(Missed::TooLarge)));
        assert_eq!(asked, 1);
    }

    #[test]
    fn sizes_are_hidden_where_less_is_needed_then() {
        let whole = "a = Relu(x) y = ReduceMean <axes = [1]> (a) d = Relu(z) v = Exp(d)";
        // What follows from the first result is known again, since w is: the block is as large, and a besides.
        let half =
            "v = Relu(z) a = Relu(x) b = Add(a, w) c = Exp(b) y = ReduceMean <axes = [1]> (c)";
        for (nodes, hides) in [(whole, true), (half, false)] {
            let text = format!(
                "<ir_version: 8, opset_import: [\"\" : 15, \"com.microsoft\" : 1]>
                g (float[4096,4096] x, float[4096,4096] w, float[n,1024] z, float[1] s)
                => (float[4096,1] y, float[n,1024] v)
                <float[4096,4096] a, float[4096,4096] b, float[4096,4096] c> {{ {nodes} }}"
            );
            let mut graph = Graph::parse(&text).expect("a graph");
            let bindings = [("n".to_owned(), 4096)].into();
            InferShapes { bindings }.run(&mut graph).expect("shapes");
            let mut options = options(Strategy::Auto, BudgetRequest::Smallest);
            options.settings = RuntimeSettings::DEFAULT;
            let nothing = Choices::new();
            let original = Original::of(&graph, &options);
            let pipeline = Pipeline::new(&original, nothing.clone(), &nothing, &options);
            let hidden = pipeline.hidden(graph.clone());
            assert_eq!(*hidden.graph() != graph, hides, "{nodes}");
        }
    }

    #[test]
    fn no_verified_plan_adds_less_than_its_lower_bound() {
        let mut compared = 0;
        for seed in 0..60 {
            let graph = random_training_graph(seed, 40);
            let options = options(Strategy::Auto, BudgetRequest::Smallest);
            let nothing = Choices::new();
            let original = Original::of(&graph, &options);
            let pipeline = Pipeline::new(&original, nothing.clone(), &nothing, &options);
            let least = pipeline.run(&[BudgetRequest::Smallest]).expect("a row");
            let Some(Ok(least)) = least.into_iter().next() else {
                continue;
            };
            let least = least.summary.smallest_peak;
            let more = original.liveness.peak_with_objects() - least;
            let budget = |part| BudgetRequest::Bytes(least + Bytes(more.0 * part / 4));
            for found in pipeline.run(&[0, 1, 2].map(budget)).expect("rows") {
                let Ok(found) = found else {
                    continue;
                };
                let (added, budget) = (found.summary.time_added, found.summary.budget);
                let costs = costs(&found.graph, &options.device, &options.overrides);
                let mut order = in_default_order(&found.graph, &costs, &options).order;
                order.retain(|id| id.index() < pipeline.base.graph.node_count());
                let search = pipeline.task().relaxed_search(&order);
                let room = budget - options.reserve - frame(&pipeline.base.graph);
                // As if nothing were known that it must not exceed.
                let bound = search.lower_bound(room, 4 * added + 1000);
                assert!(bound <= added, "seed {seed}, {budget}: {bound} of {added}");
                compared += usize::from(bound > 0);
            }
        }
        assert!(compared > 20, "{compared}");
    }
}
