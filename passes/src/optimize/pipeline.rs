//! The stages over one graph with shapes: search, apply, enforce the order, check, sum up.

mod hiding;
mod searches;
mod smallest;
mod summary;
mod within_budget;

use std::borrow::Cow;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::aim::Failures;
use super::comparison::{Asked, Reply, ToBeat, Untried, near, offer};
use super::faults::{FailedCandidate, Found, is_unproved};
use super::listing::is_as_listed;
use super::original::Original;
use super::proof::verify_rewritten;
use super::published::Rivals;
use super::simulation::{Candidate, frame, need, simulated};
use super::tuning::STAGES;
use super::variant_graph::{Choices, Form, apply};
use super::{BudgetRequest, Floor, OptimizeError, Optimized, PlanOptions};
use crate::analysis::cost::time_of_all;
use crate::bytes::Bytes;
use crate::cost::Cost;
use crate::enforce::barriers::{Enforceable, Thinning};
use crate::enforce::keep_apart::KeepApart;
use crate::enforce::keep_layout::KeepLayout;
use crate::enforce::release_unread::ReleaseUnread;
use crate::graph::{Graph, NodeId, Uses};
use crate::operators::variants::Variant;
use crate::parallel;
use crate::pass::Pass;
use crate::plan::{Originals, Plan};
use crate::rewrite::apply_variants::ApplyVariants;
use crate::rewrite::insert_mirrors::InsertMirrors;
use crate::runtime::TRAINING;
use crate::runtime::level::Level;
use crate::runtime::liveness::Liveness;
use crate::runtime::settings::RuntimeSettings;
use crate::runtime::transposes::is_moved_behind;
use crate::search::{AllForms, Missed, Search};
use crate::strategy::{
    Applying, Joint, MOST_NODES, Planner, Portfolio, Strategy, Task, Unplanned, ilp, planner,
};
use searches::Searches;
pub(super) use smallest::Least;
use within_budget::{Goal, KnownPlan};

/// What is worked out beside the search, unless somebody needs it before.
pub(super) type Later<'a> = LazyLock<Candidate, Box<dyn FnOnce() -> Candidate + Send + 'a>>;

/// Who plans in a pipeline.
pub(super) struct Planners<'t> {
    own: Box<dyn Planner + 't>,
    /// Where they are asked.
    pub(super) rivals: Option<Rivals<'t>>,
}

impl Planners<'_> {
    /// The smallest peak that a quick look finds, should one be quicker.
    pub(super) fn glance(&mut self) -> Option<Bytes> {
        self.own.glance()
    }
}

pub(super) struct Pipeline<'o> {
    options: &'o PlanOptions,
    original: &'o Original<'o>,
    /// It with the variants that are decided before the search.
    base: Arc<Form>,
    /// What is mended in every plan first.
    decided: Choices,
    /// What the search may replace in it.
    joint: Option<Joint>,
    /// The form that was made last.
    latest: Mutex<Option<(Choices, Arc<Form>)>>,
    /// The base's orders of first computations that are worth a look, the best first; never empty.
    orders: Vec<Vec<NodeId>>,
    /// What was made of plans so far.
    known: Mutex<Vec<KnownPlan>>,
    /// Orders that were made for the memory pattern and that no barriers kept within the budget.
    packings: Failures,
    /// Plans that no barriers kept within it that were chosen as if there were no block.
    beside_block: Failures,
}

impl<'o> Pipeline<'o> {
    /// `chosen` variants are taken, of the `offers` the search chooses; none of them is for the
    /// same node. Nodes that every plan mends are no longer there to be replaced.
    pub(super) fn new(
        original: &'o Original<'o>,
        chosen: Choices,
        offers: &Choices,
        options: &'o PlanOptions,
    ) -> Pipeline<'o> {
        let others = chosen.into_iter();
        let others = others.filter(|&(id, _)| !original.is_mended(id));
        let decided: Choices = original.mended.iter().copied().chain(others).collect();
        let offers = offers.iter().copied();
        let offers: Choices = offers.filter(|&(id, _)| !original.is_mended(id)).collect();
        let base = Form::new(apply(original.graph, &decided, options), options);
        let orders = match decided.is_empty() {
            true => original.orders().to_vec(),
            false => original.orders_of(&base.graph, &base.costs),
        };
        let mut all_forms = AllForms::of(&base.graph, &offers, &orders);
        let joint = (!all_forms.is_empty()).then(|| {
            let all = Form::new(all_forms.graph.clone(), options);
            all_forms.run_as(base.run(options));
            Joint {
                all_forms: Arc::new(all_forms),
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
            known: Mutex::default(),
            packings: Failures::default(),
            beside_block: Failures::default(),
        }
    }

    /// Does a plan take long?
    pub(super) fn is_large(&self) -> bool {
        self.base.graph.order().len() > MOST_NODES
    }

    /// Is the time over, and would anything that is still tried take long?
    pub(super) fn is_late(&self) -> bool {
        self.is_large() && self.stopped()
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
        let form = Form::new(
            apply(&self.base.graph, variants, self.options),
            self.options,
        );
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
        if self.is_late() {
            let known = budgets.iter().map(|&request| self.as_it_is(request));
            return Ok(known.collect());
        }
        let task = self.task();
        let mut planners = self.planners(&task, STAGES.published);
        let (least, known) = match budgets.contains(&BudgetRequest::Smallest) {
            true => {
                let all = self.least_of_all(&mut planners);
                all.map(|(least, smallest)| (least, Some(smallest)))
            }
            false => planners
                .own
                .smallest_in_passing()
                .map(|least| (least, None)),
        }
        .map_err(|reason| self.refused(reason))?;
        let quick = || match self.is_late() {
            true => self.original_candidate(),
            false => self.smallest(&least, Thinning::Quick),
        };
        let smallest: Later<'_> = LazyLock::new(Box::new(|| known.unwrap_or_else(quick)));
        let mut fit =
            |&request: &BudgetRequest| self.fit(&mut planners, &least, &smallest, request);
        let (_, row) = parallel::both(
            || LazyLock::force(&smallest),
            || budgets.iter().map(&mut fit).collect(),
        );
        Ok(row)
    }

    /// Who plans here, and whom else this program's own search is compared with; `task` is this pipeline's.
    pub(super) fn planners<'t>(
        &'t self,
        task: &'t Task<'t>,
        published: &'static [Strategy],
    ) -> Planners<'t> {
        let strategy = self.options.strategy;
        let searches = || {
            let own = Box::new(Searches::new(task, &self.orders));
            Box::new(Portfolio::new(task, own, &self.orders)) as Box<dyn Planner + 't>
        };
        Planners {
            own: planner(strategy, task).unwrap_or_else(searches),
            rivals: (strategy == Strategy::Auto).then(|| Rivals::of(task, published)),
        }
    }

    pub(super) fn refused(&self, reason: String) -> OptimizeError {
        let strategy = self.options.strategy;
        OptimizeError::Refused { strategy, reason }
    }

    /// An answer for each that is asked.
    pub(super) fn answer(&self, asked: &[Asked]) -> Result<Vec<Reply>, OptimizeError> {
        let known: Vec<ToBeat> = asked.iter().filter_map(|asked| asked.known).collect();
        let mut cheaper = self.cheaper(&known).into_iter();
        let anew = asked.iter().filter(|asked| asked.known.is_none());
        let anew: Vec<BudgetRequest> = anew.map(|asked| asked.request).collect();
        let mut anew = match anew.is_empty() {
            true => Vec::new(),
            false => self.run(&anew)?,
        }
        .into_iter();
        let answer = |asked: &Asked| match asked.known {
            Some(_) => cheaper.next(),
            None => anew.next().map(|found| {
                let untried = self.untried(&found);
                Reply::Found(found, untried)
            }),
        };
        Ok(asked.iter().filter_map(answer).collect())
    }

    /// May it find what a pipeline without variants does not?
    pub(super) fn may_vary(&self) -> bool {
        self.joint.is_some() || !self.begins_as_it_is() || self.base.recomputation.has_parts()
    }

    /// Are no nodes replaced in it before the search, but for those that every plan replaces?
    pub(super) fn begins_as_it_is(&self) -> bool {
        self.decided.len() == self.original.mended.len()
    }

    /// Memory that the graph does not show.
    pub(super) fn reserve(&self) -> Bytes {
        self.options.reserve
    }

    /// What is left to be tried where that was found.
    pub(super) fn untried(&self, found: &Found) -> Untried {
        let variants = match found {
            Ok(found) => !found.summary.variants.is_empty(),
            Err(_) => self.joint.is_some() || !self.begins_as_it_is(),
        };
        Untried {
            fewer_variants: variants || self.base.recomputation.has_parts(),
            published: !self.begins_as_it_is(),
        }
    }

    /// Looks for plans that add less than those `known`, one for each of them, within the same budget: where a bound does not
    /// tell that there is none, and not in large graphs, for in none that was tried was there one.
    fn cheaper(&self, known: &[ToBeat]) -> Vec<Reply> {
        let task = self.task();
        let mut planners = self.planners(&task, STAGES.published);
        let mut cheaper = |known: &ToBeat| self.cheaper_than(&mut planners, known);
        known.iter().map(&mut cheaper).collect()
    }

    /// The same for one of them.
    pub(super) fn cheaper_than(&self, planners: &mut Planners<'_>, known: &ToBeat) -> Reply {
        let least = self.least(known);
        if least >= known.added || self.is_large() {
            return Reply::NothingCheaper(least);
        }
        let Planners { own, rivals } = planners;
        let (budget, below) = (known.budget - self.options.reserve, known.added);
        let mut found = self.within_or_least(own.as_mut(), budget, below);
        let mut chosen = None;
        if let Some(rivals) = rivals.as_mut().filter(|_| known.untried.published) {
            found = self.best_of(found, rivals, budget, below, &mut chosen);
        }
        let smallest = known.smallest_peak - self.options.reserve;
        match found {
            Some(found) => {
                let found = self.finish(found, budget, smallest, chosen, Some(own.as_ref()));
                Reply::Found(found, Untried::default())
            }
            None => Reply::NothingCheaper(least),
        }
    }

    /// Nanoseconds that every plan adds, in the orders of first computations that are looked at, within the budget
    /// of the `known` one.
    fn least(&self, known: &ToBeat) -> u64 {
        let room = known.budget - self.options.reserve - frame(&self.base.graph);
        let searches = self.orders.iter();
        let searches: Vec<Search> = searches
            .map(|order| self.task().relaxed_search(order))
            .collect();
        let bounds = parallel::map(&searches, |search| search.lower_bound(room, known.added));
        bounds.into_iter().min().unwrap_or(0)
    }

    /// What MONeT's program replaces, and by what.
    pub(super) fn implementations(
        &self,
        budget: BudgetRequest,
        may: &dyn Fn(NodeId, &Variant) -> bool,
    ) -> ilp::JointAnswer {
        let budget = self.budget(budget, || Bytes::ZERO);
        let room = budget - self.framed();
        ilp::implementations(&self.task(), room, may)
    }

    /// What it replaces whatever the budget is.
    pub(super) fn dominating(&self) -> Choices {
        ilp::dominating(&self.task())
    }

    /// The cheapest that is found for the budget; `least` is a plan with a small peak, and `smallest` what becomes of it.
    pub(super) fn fit(
        &self,
        planners: &mut Planners<'_>,
        least: &Plan,
        smallest: &Later<'_>,
        request: BudgetRequest,
    ) -> Result<Optimized, OptimizeError> {
        let Planners {
            own: planner,
            rivals,
        } = planners;
        let planner = planner.as_mut();
        // It lets the search look for a cheaper plan with the same peak.
        let reached = || near(smallest.need());
        let budget = self.budget(request, reached);
        let mut best = None;
        if let Some(same) = self.without_copies(budget) {
            best = Some(self.finish(same, budget, reached(), None, Some(planner)));
        }
        // Where verification finds one wrong, the next is there already or is planned.
        if best.as_ref().is_none_or(is_unproved) {
            let mut chosen = None;
            let ordered = self.ordered(budget);
            let own = match ordered {
                Some(ordered) if self.is_cheap(&ordered) => Some(ordered),
                ordered => {
                    let below = ordered.as_ref().map_or(u64::MAX, |known| self.added(known));
                    let searched = self.within(planner, Some(least), budget, below);
                    searched.ok().or(ordered)
                }
            };
            let cheap = own.as_ref().is_some_and(|own| self.is_cheap(own));
            let own = own.or_else(|| self.smallest_or_better(smallest, least, budget));
            let found = match rivals.as_mut().filter(|_| !cheap) {
                Some(rivals) => self.best_of(own, rivals, budget, u64::MAX, &mut chosen),
                None => own,
            };
            let found = match found {
                Some(found) => Ok(found),
                // The alternatives look for the smallest together, unless only this one is asked.
                None if self.is_late() || rivals.is_some() => {
                    Err(self.infeasible(budget, smallest))
                }
                None => self.smallest_within(planner, least, budget),
            };
            let found = found
                .and_then(|found| self.finish(found, budget, reached(), chosen, Some(planner)));
            offer(&mut best, found, request);
        }
        if best.as_ref().is_none_or(is_unproved) && smallest.need() <= budget {
            let last = Candidate::clone(smallest);
            let last = self.finish(last, budget, reached(), None, Some(planner));
            offer(&mut best, last, request);
        }
        best.expect("something was planned")
    }

    fn original_candidate(&self) -> Candidate {
        let graph = self.in_its_layout(self.original.graph.clone());
        match graph.node_count() == self.original.graph.node_count() {
            true => Candidate::as_listed(&graph, self.options),
            false => Candidate::new(graph, self.options),
        }
    }

    /// The graph with what keeps the runtime from another layout.
    pub(super) fn in_its_layout(&self, mut graph: Graph) -> Graph {
        let keep = KeepLayout {
            provider: self.options.device.provider,
            release: self.options.runtime.release,
        };
        let Ok(_) = self.options.runner.run(&keep, &mut graph);
        graph
    }

    /// Nothing fits; `smallest` is the least that is known.
    pub(super) fn infeasible(&self, budget: Bytes, smallest: &Candidate) -> OptimizeError {
        let reserve = self.options.reserve;
        OptimizeError::Infeasible {
            budget: budget + reserve,
            smallest: Box::new(smallest.peak(reserve)),
            floor: None,
        }
    }

    /// What none of its plans can need less than, the reserve included.
    pub(super) fn floor(&self) -> Floor {
        let (bytes, node) = self.floor_of_search();
        let name = |id: NodeId| self.original.graph.node(self.replaced(id)).name.clone();
        Floor {
            bytes: bytes + self.options.reserve,
            node: node.map(name).unwrap_or_default(),
        }
    }

    /// What none of its plans can need less than, and the node that needs it.
    fn floor_of_search(&self) -> (Bytes, Option<NodeId>) {
        let task = self.task();
        task.relaxed_search(task.order).floor()
    }

    /// The node of the original that one of the base stands for.
    fn replaced(&self, id: NodeId) -> NodeId {
        let choices = &self.decided;
        let replaced = ApplyVariants { choices }.replace(&mut self.original.graph.clone());
        let mut replaced = replaced.into_iter();
        let of = replaced.find(|(_, parts)| parts.contains(&id));
        of.map_or(id, |(of, _)| of)
    }

    /// What is said of a budget (the reserve included) that is below the `floor`: nothing is searched but for a small peak, as
    /// far as it is found in passing.
    pub(super) fn below_floor(&self, budget: Bytes, floor: Floor) -> OptimizeError {
        let task = self.task();
        let least = self.planners(&task, &[]).own.smallest_in_passing();
        let found = least.map(|least| self.smallest(&least, Thinning::Quick));
        let smallest = found.unwrap_or_else(|_| self.original_candidate());
        OptimizeError::Infeasible {
            budget,
            smallest: Box::new(smallest.peak(self.options.reserve)),
            floor: Some(Box::new(floor)),
        }
    }

    /// The graph with nothing computed again, if it fits: untouched (but for what keeps its layout, and Transposes where they are), or at
    /// least with nodes that take no memory. Without barriers, nothing but luck keeps updates in their sequence where nodes are new or
    /// get other indices.
    fn without_copies(&self, budget: Bytes) -> Option<Candidate> {
        let fits =
            |candidate: &Candidate| candidate.need() <= budget && self.keeps_sequences(candidate);
        let mut untouched = self.original_candidate();
        let moved = self.moved(&untouched.graph);
        if untouched.need() + moved <= budget && fits(&untouched) {
            return Some(untouched);
        }
        if let Some(mended) = self.original.with_mended(self.options) {
            untouched = Candidate::new(self.in_its_layout(mended), self.options);
        }
        if moved > Bytes::ZERO {
            let release = self.options.runtime.release;
            let provider = self.options.device.provider;
            let keep_apart = KeepApart { provider, release };
            let Ok(_) = self.options.runner.run(&keep_apart, &mut untouched.graph);
            untouched = Candidate::new(untouched.graph, self.options);
        }
        if fits(&untouched) || self.options.runtime.settings == RuntimeSettings::LEAN {
            return Some(untouched).filter(fits);
        }
        let coloured = Candidate::coloured(untouched.graph.clone(), self.options);
        if fits(&coloured) {
            return Some(coloured);
        }
        let hidden = self.hidden(untouched.graph, Some(budget));
        Some(Candidate::coloured(hidden.into_graph(), self.options)).filter(fits)
    }

    /// What the Transposes write that the runtime moves in some session that is promised: each has another result at another time
    /// then, which the search does not simulate.
    fn moved(&self, graph: &Graph) -> Bytes {
        let runtime = &self.options.runtime;
        let is_optimized = runtime.promise.level != Some(Level::DisableAll);
        if !is_optimized || !runtime.release.moves_transposes() {
            return Bytes::ZERO;
        }
        let uses = Uses::of(graph);
        let moved = graph.order().iter();
        let moved = moved.filter(|&&id| is_moved_behind(graph, &uses, id));
        let written = moved.filter_map(|&id| graph.tensor(graph.node(id).output(0)?).bytes());
        written.sum()
    }

    /// The graph with nothing computed again, in an order in which the runtime runs it anyway, enforced: of those few that need
    /// least, the cheapest that fits. The search knows neither what the settings make of an order nor what optimizations do. Nothing
    /// in lean settings, where it finds what order alone can do; for published strategies, which have orders of their own; and in
    /// large graphs.
    fn ordered(&self, budget: Bytes) -> Option<Candidate> {
        let is_lean = self.options.runtime.settings == RuntimeSettings::LEAN;
        if is_lean || self.options.strategy != Strategy::Auto || self.is_large() {
            return None;
        }
        if !self.original.mended.is_empty() {
            return self.reordered(budget);
        }
        let settled = |order: &Vec<NodeId>| {
            let mut graph = self.original.graph.clone();
            graph.set_order(order.clone());
            let settled = self.settled(graph, Some(budget));
            (settled.planned_peak() + frame(settled.graph()), settled)
        };
        let mut all = parallel::map(self.original.run_orders(self.options), settled);
        all.retain(|(planned, _)| *planned <= budget);
        all.sort_by_key(|(planned, _)| *planned);
        let enforced = |(_, settled): &(Bytes, Enforceable<'_>)| {
            let found = self.enforced(settled, &Plan::default(), &Goal::within(budget));
            found.ok().flatten()
        };
        let few = all.iter().take(STAGES.orders_enforced);
        let found = few.filter_map(enforced);
        let found = found.min_by_key(|found| self.added(found));
        match found {
            Some(found) if self.is_cheap(&found) => Some(found),
            found => {
                let others = found.into_iter().chain(self.reordered(budget));
                others.min_by_key(|found| self.added(found))
            }
        }
    }

    /// The graph with nothing computed again, in the order of the search in which that needs least, enforced, if it fits. The search is
    /// asked for less than the budget, by what the settings take in other orders.
    fn reordered(&self, budget: Bytes) -> Option<Candidate> {
        let task = self.task();
        let plans = parallel::map(&self.orders, |order| task.search(order).without_copies());
        let plan = plans.into_iter().min_by_key(|plan| plan.predicted_peak)?;
        if plan.predicted_peak + frame(&self.base.graph) > budget {
            return None;
        }
        let found = self.made_of(&plan, &Goal::within(budget));
        found.ok().flatten()
    }

    /// Do nodes that have to run one before the other do so in every execution order? A graph that is written as it was
    /// read runs as it did.
    fn keeps_sequences(&self, candidate: &Candidate) -> bool {
        let (original, graph) = (self.original, &candidate.graph);
        let as_it_was = graph.order() == original.graph.order()
            && (candidate.listed || is_as_listed(original.graph));
        if original.sequences.is_empty() || as_it_was {
            return true;
        }
        let runs = simulated(graph, &candidate.costs, self.options);
        runs.into_iter()
            .all(|run| original.keeps_sequences(&run.liveness.nodes()))
    }

    /// The graph as it is, if it fits the `budget` in the session of which its peak is told: that has to be enough, even where
    /// nothing is found that fits in every way of running it.
    pub(super) fn untouched(&self, budget: Bytes) -> Option<Result<Optimized, OptimizeError>> {
        let (graph, options) = (self.original.graph, self.options);
        if need(graph, &self.original.liveness) > budget {
            return None;
        }
        let candidate = Candidate::where_it_fits(graph, options, budget)?;
        let smallest = candidate.need();
        Some(self.finish(candidate, budget, smallest, None, None))
    }

    /// What there is without any search: the graph, if it fits.
    fn as_it_is(&self, request: BudgetRequest) -> Found {
        let untouched = || need(self.original.graph, &self.original.liveness);
        let budget = self.budget(request, untouched);
        let candidate = self.original_candidate();
        match candidate.need() <= budget && self.keeps_sequences(&candidate) {
            true => self.finish(candidate, budget, untouched(), None, None),
            false => Err(self.infeasible(budget, &candidate)),
        }
    }

    /// Checks what was made of a plan by `chosen`, or else by `planner`, and sums it up.
    pub(super) fn finish(
        &self,
        candidate: Candidate,
        budget: Bytes,
        smallest: Bytes,
        chosen: Option<Strategy>,
        planner: Option<&dyn Planner>,
    ) -> Found {
        #[cfg(test)]
        let candidate = self.broken(candidate);
        let notes = match chosen {
            None => planner.map(Planner::notes).unwrap_or_default(),
            Some(strategy) => vec![format!("the plan is that of --strategy {strategy}")],
        };
        let (original, written, options) = (self.original.graph, &candidate.graph, self.options);
        let listing = candidate.listing();
        let (verified, summary) = parallel::both(
            || verify_rewritten(original, written, listing.as_deref(), options, budget),
            || self.summary(&candidate, budget, smallest, notes),
        );
        if let Err(OptimizeError::Verification(violation)) = verified {
            let candidate = self.called(&candidate, chosen);
            return Err(OptimizeError::Unproved {
                budget: budget + self.options.reserve,
                faults: vec![FailedCandidate {
                    candidate,
                    violation,
                }],
            });
        }
        verified?;
        let listing = listing.map(Cow::into_owned);
        Ok(Optimized {
            graph: listing.unwrap_or(candidate.graph),
            summary,
        })
    }

    /// What a message calls the candidate.
    fn called(&self, candidate: &Candidate, chosen: Option<Strategy>) -> String {
        let strategy = chosen.unwrap_or(self.options.strategy);
        let variants = match self.names(candidate).is_empty() {
            true => "",
            false => " and variants",
        };
        let new = candidate.graph.order().len() > self.original.graph.order().len();
        match new {
            true => format!("the plan of --strategy {strategy} with new nodes{variants}"),
            false => format!("the plan of --strategy {strategy} without new nodes{variants}"),
        }
    }

    /// The candidate with another operator in its last node, if a test wants it.
    #[cfg(test)]
    fn broken(&self, mut candidate: Candidate) -> Candidate {
        if let Some(&last) = candidate.graph.order().last()
            && self.options.watch.breaks()
        {
            candidate.graph.node_mut(last).op_type.push_str("Broken");
        }
        candidate
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
    pub(super) fn added(&self, candidate: &Candidate) -> u64 {
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
        added <= step / STAGES.stands_below
            && (barriers <= added / STAGES.few_barriers || barriers <= step / STAGES.free_barriers)
    }

    fn stopped(&self) -> bool {
        self.options.watch.is_stopped()
    }

    /// The budget without the reserve, which the graph does not see.
    fn budget(&self, request: BudgetRequest, smallest: impl FnOnce() -> Bytes) -> Bytes {
        let told = self.original.budget(request, self.options.reserve);
        told.unwrap_or_else(smallest)
    }

    pub(super) fn task(&self) -> Task<'_> {
        self.task_in(&self.base, self.joint.as_ref())
    }

    fn task_in<'t>(&'t self, form: &'t Form, joint: Option<&'t Joint>) -> Task<'t> {
        Task {
            graph: &form.graph,
            run: form.run(self.options),
            runtime: self.options.runtime,
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
            rewriting: APPLYING,
        }
    }
}

/// What strategies measure their plans by.
pub const APPLYING: Applying = Applying {
    with_copies: |graph, plan, recomputation| {
        let instances = &plan.instances(graph, recomputation, Originals::AsPlanned);
        let mut graph = graph.clone();
        let Ok(_) = (InsertMirrors { instances }).run(&mut graph);
        let Ok(_) = (ReleaseUnread { release: &TRAINING }).run(&mut graph);
        graph
    },
    with_variants: |graph, choices| ApplyVariants { choices }.replace(graph),
};

#[cfg(test)]
mod tests;
