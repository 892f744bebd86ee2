//! The stages over one graph with shapes: search, apply, enforce the order, check, sum up.

use super::copies::use_cheaper_copies;
use super::need::{Candidate, describe, frame, in_default_order, need};
use super::rivals::Rivals;
use super::{
    BudgetRequest, OptimizeError, Optimized, Options, StopReason, Summary, verify_rewritten,
};
use crate::analysis::cost::{Cost, costs};
use crate::analysis::liveness::{Liveness, TENSOR};
use crate::analysis::recompute::Recomputation;
use crate::analysis::sequences::sequences;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId};
use crate::operators::variants::Variant;
use crate::pass::Pass;
use crate::plan::Plan;
use crate::program::Limits;
use crate::search::{Search, first_orders};
use crate::strategy::{Planner, Portfolio, Strategy, Task, Unplanned, ilp, planner};
use crate::transform::enforce_order::EnforceOrder;
use crate::transform::insert_mirrors::{InsertMirrors, MARKER, is_mirror};
use crate::transform::release_unread::ReleaseUnread;

/// How often the search aims lower because the runtime's order needs more than the plan's.
const CORRECTIONS: usize = 4;

/// A plan that adds no more than this part of the step's time stands.
const CHEAP: u64 = 20;

/// When a solver that raises the lower bound ends.
const CERTIFYING: Limits = Limits {
    nodes: 2_000,
    seconds: None,
    gap: 1e-4,
};

pub(super) struct Pipeline<'o> {
    options: &'o Options,
    /// The unmodified graph.
    original: &'o Graph,
    /// The same with variants in it.
    graph: Graph,
    costs: Vec<Cost>,
    recomputation: Recomputation,
    sequences: Vec<(NodeId, NodeId)>,
    /// The orders of first computations that are worth a look, the best first; never empty.
    orders: Vec<Vec<NodeId>>,
    before: Liveness,
    /// Are the published strategies asked as well?
    rivals: bool,
}

impl<'o> Pipeline<'o> {
    pub(super) fn new(original: &'o Graph, graph: Graph, options: &'o Options) -> Pipeline<'o> {
        let provider = options.device.provider;
        let before = costs(original, &options.device, &options.overrides);
        let before = in_default_order(original, &before, options);
        // Variants replace no node that updates anything.
        let sequences = sequences(original, &before.order);
        let costs = costs(&graph, &options.device, &options.overrides);
        let mut recomputation = Recomputation::of(&graph, &options.overrides);
        use_cheaper_copies(&mut recomputation, &graph, &costs, options);
        let mut orders = first_orders(&graph, provider, &costs, &sequences);
        // The runtime makes them initializers, so the simulation lets them stand anywhere.
        let is_computed = |id: &NodeId| !graph.node(*id).is("", "Constant");
        for order in &mut orders {
            order.sort_by_key(is_computed);
        }
        Pipeline {
            options,
            original,
            graph,
            costs,
            recomputation,
            sequences,
            orders,
            before,
            rivals: options.strategy == Strategy::Auto,
        }
    }

    /// The same without the published strategies, for forms that are only tried.
    pub(super) fn alone(self) -> Pipeline<'o> {
        Pipeline {
            rivals: false,
            ..self
        }
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
            Box::new(Portfolio::new(&task, own))
        });
        let least = if budgets.contains(&BudgetRequest::Smallest) {
            planner.smallest()
        } else {
            planner.smallest_in_passing()
        };
        let least = least.map_err(|reason| OptimizeError::Refused { strategy, reason })?;
        let mut smallest = self.smallest(&least);
        let mut rivals = self.rivals.then(|| Rivals::of(&task));
        if budgets.contains(&BudgetRequest::Smallest) {
            smallest = self.smaller(smallest, rivals.as_mut());
        }
        let each = budgets.iter();
        Ok(each
            .map(|&request| {
                self.fit(
                    planner.as_mut(),
                    rivals.as_mut(),
                    &least,
                    &smallest,
                    request,
                )
            })
            .collect())
    }

    /// What MONeT's program replaces, and by what.
    pub(super) fn implementations(&self, budget: BudgetRequest) -> Vec<(NodeId, &'static Variant)> {
        let budget = self.budget(budget, Bytes::ZERO);
        let room = budget - Bytes(frame(&self.graph).0 * 9 / 8);
        ilp::implementations(&self.task(), room)
    }

    /// The graph with variants in it.
    pub(super) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// By node of [`Pipeline::graph`].
    pub(super) fn costs(&self) -> &[Cost] {
        &self.costs
    }

    pub(super) fn recomputation(&self) -> &Recomputation {
        &self.recomputation
    }

    /// The best order of first computations by itself.
    pub(super) fn order(&self) -> &[NodeId] {
        self.orders.first().map_or(&[], Vec::as_slice)
    }

    /// Nanoseconds that a quick search adds to the unmodified step within `budget`, which does not
    /// contain the reserve; `None` if it finds nothing.
    pub(super) fn estimate(&self, budget: Bytes) -> Option<u64> {
        let room = budget - Bytes(frame(&self.graph).0 * 9 / 8);
        let task = self.task();
        let searches = self.orders.iter().map(|order| task.search(order));
        let copies = searches
            .filter_map(|mut search| search.estimate(room))
            .min()?;
        let times = self
            .graph
            .order()
            .iter()
            .map(|id| self.costs[id.index()].time.0);
        Some(copies.saturating_add(times.fold(0, u64::saturating_add)))
    }

    /// By place in that order: the nanoseconds that a byte less there is worth within `budget`;
    /// `known` is what one plan adds.
    pub(super) fn prices(&self, budget: Bytes, known: u64) -> Vec<f64> {
        self.task().search(self.order()).prices(budget, known)
    }

    fn fit(
        &self,
        planner: &mut dyn Planner,
        mut rivals: Option<&mut Rivals<'_>>,
        least: &Plan,
        smallest: &Candidate,
        request: BudgetRequest,
    ) -> Result<Optimized, OptimizeError> {
        let reached = smallest.need();
        // A hair's breadth more lets the search look for a cheaper plan with the same peak.
        let reached = reached + Bytes(reached.0 / 500);
        let budget = self.budget(request, reached);
        let untouched = Candidate::new(self.original.clone(), self.options);
        let coloured = Candidate::coloured(self.original.clone(), self.options);
        let mut chosen = None;
        let candidate = if untouched.need() <= budget {
            untouched
        } else if coloured.need() <= budget {
            coloured
        } else {
            let own = self.within(planner, least, budget, u64::MAX);
            let cheap = own.as_ref().is_some_and(|own| self.is_cheap(own));
            let own = own.or_else(|| (smallest.need() <= budget).then(|| smallest.clone()));
            let found = match rivals.as_deref_mut().filter(|_| !cheap) {
                Some(rivals) => self.best_of(own, rivals, budget, &mut chosen),
                None => own,
            };
            match found {
                Some(found) => found,
                None => self.smallest_within(planner, rivals, least, budget)?,
            }
        };
        verify_rewritten(self.original, &candidate.graph, self.options, budget)?;
        let notes = match chosen {
            None => planner.notes(),
            Some(strategy) => vec![format!("the plan is that of --strategy {strategy}")],
        };
        let summary = self.summary(&candidate, budget, reached, notes);
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
        let smallest = self.smallest(&planner.smallest().unwrap_or_else(|_| least.clone()));
        let smallest = self.smaller(smallest, rivals);
        if smallest.need() <= budget {
            return Ok(smallest);
        }
        Err(OptimizeError::Infeasible {
            budget: budget + reserve,
            smallest: Box::new(smallest.peak(reserve)),
        })
    }

    /// `own`, or what a published strategy reaches if that is less.
    fn smaller(&self, own: Candidate, rivals: Option<&mut Rivals<'_>>) -> Candidate {
        let mut best = own;
        let Some(rivals) = rivals.filter(|_| !self.stopped()) else {
            return best;
        };
        for rival in rivals.all() {
            if rival.least.predicted_peak < best.need() {
                let other = self.smallest(&rival.least);
                if other.need() < best.need() {
                    best = other;
                }
            }
        }
        best
    }

    /// `own`, or a cheaper candidate by a published strategy, which is then named.
    fn best_of(
        &self,
        own: Option<Candidate>,
        rivals: &mut Rivals<'_>,
        budget: Bytes,
        chosen: &mut Option<Strategy>,
    ) -> Option<Candidate> {
        let mut best = own;
        if self.stopped() {
            return best;
        }
        for rival in rivals.all() {
            let below = best.as_ref().map_or(u64::MAX, |best| self.added(best));
            let other = self.within(rival.planner.as_mut(), &rival.least, budget, below);
            if let Some(other) = other.filter(|other| self.added(other) < below) {
                best = Some(other);
                *chosen = Some(rival.strategy);
            }
        }
        best
    }

    /// Nanoseconds that the candidate takes more than the unmodified graph.
    fn added(&self, candidate: &Candidate) -> u64 {
        let costs = costs(self.original, &self.options.device, &self.options.overrides);
        let before = time(self.original, &costs);
        time(&candidate.graph, &candidate.costs).saturating_sub(before)
    }

    /// Does it add so little that nobody else needs to be asked?
    fn is_cheap(&self, candidate: &Candidate) -> bool {
        self.added(candidate) <= time(&candidate.graph, &candidate.costs) / CHEAP
    }

    fn stopped(&self) -> bool {
        self.options.watch.is_stopped()
    }

    /// The budget without the reserve, which the graph does not see.
    fn budget(&self, request: BudgetRequest, smallest: Bytes) -> Bytes {
        let reserve = self.options.reserve;
        let (fixed, peak) = (self.before.fixed, need(self.original, &self.before));
        let part = |of: Bytes, part: f64| Bytes((of.0 as f64 * part) as u64);
        match request {
            BudgetRequest::Bytes(bytes) => bytes - reserve,
            BudgetRequest::PartOfPeak(of) => part(peak + reserve, of) - reserve,
            BudgetRequest::FixedPlusPart(of) => fixed + part(peak - fixed, of),
            BudgetRequest::Smallest => smallest,
        }
    }

    fn task(&self) -> Task<'_> {
        Task {
            graph: &self.graph,
            order: self.orders.first().map_or(&[], Vec::as_slice),
            sequences: &self.sequences,
            device: &self.options.device,
            overrides: &self.options.overrides,
            costs: &self.costs,
            recomputation: &self.recomputation,
            effort: self.options.effort,
            watch: self.options.watch.clone(),
            solving: &self.options.solving,
        }
    }

    /// The plan with the smallest peak, with every barrier that helps.
    fn smallest(&self, plan: &Plan) -> Candidate {
        let (mut graph, costs) = self.apply(plan);
        let open = self.enforce(Bytes::ZERO, &costs);
        let budget = open.smallest_peak(&graph);
        // It fits by construction; if not, the simulation of the candidate tells.
        let _ = EnforceOrder { budget, ..open }.run(&mut graph);
        Candidate::coloured(graph, self.options)
    }

    /// The cheapest plan that fits in the runtime's own order; `least` has the smallest peak. None
    /// if it adds `below` nanoseconds or more.
    fn within(
        &self,
        planner: &mut dyn Planner,
        least: &Plan,
        budget: Bytes,
        below: u64,
    ) -> Option<Candidate> {
        // An eighth more tensors leaves room for those of mirrors and barriers.
        let spare = Bytes(frame(&self.graph).0 * 9 / 8);
        let mut target = budget - spare;
        for _ in 0..CORRECTIONS {
            let plan = planner.within(target).ok();
            // The smallest may fit, though it needs more than the target.
            let least = || Some(least).filter(|least| least.predicted_peak < budget);
            let plan = plan.or_else(|| least().cloned())?;
            let (graph, costs) = self.apply(&plan);
            if time(&graph, &costs).saturating_sub(time(&self.graph, &self.costs)) >= below {
                return None;
            }
            match self.enforced(graph, &costs, budget) {
                Ok(candidate) => return Some(candidate),
                // Less than the same plan needs, or it is found again.
                Err(excess) => target = target.min(plan.predicted_peak) - excess - Bytes(1),
            }
        }
        None
    }

    /// The graph with barriers that keep it within the budget; or by how much they miss it.
    fn enforced(&self, graph: Graph, costs: &[Cost], budget: Bytes) -> Result<Candidate, Bytes> {
        let mut room = budget - frame(&graph);
        for _ in 0..CORRECTIONS {
            let mut graph = graph.clone();
            let enforce = self.enforce(room, costs);
            enforce
                .run(&mut graph)
                .map_err(|missed| missed.reached - room)?;
            let candidate = Candidate::coloured(graph, self.options);
            if candidate.need() <= budget {
                return Ok(candidate);
            }
            // The barriers' own tensors take some room as well, and the settings may.
            room = (room - Bytes(1)).min(budget - candidate.extra());
        }
        // As much as the plan needs more than its barriers left room for.
        let provider = self.options.device.provider;
        let planned = Liveness::in_file_order(&graph, provider, costs);
        Err(planned.peak_with_objects() - room)
    }

    fn enforce<'c>(&'c self, budget: Bytes, costs: &'c [Cost]) -> EnforceOrder<'c> {
        let provider = self.options.device.provider;
        EnforceOrder {
            budget,
            object: TENSOR,
            provider,
            costs,
            sequences: &self.sequences,
        }
    }

    fn apply(&self, plan: &Plan) -> (Graph, Vec<Cost>) {
        let mut graph = self.graph.clone();
        let insert = InsertMirrors {
            plan,
            recomputation: &self.recomputation,
        };
        let Ok(_) = insert.run(&mut graph);
        let Ok(_) = ReleaseUnread.run(&mut graph);
        let costs = costs(&graph, &self.options.device, &self.options.overrides);
        (graph, costs)
    }

    fn summary(
        &self,
        candidate: &Candidate,
        budget: Bytes,
        smallest: Bytes,
        notes: Vec<String>,
    ) -> Summary {
        let reserve = self.options.reserve;
        let is_new = |id: &NodeId| id.index() >= self.graph.node_count();
        let new = || candidate.graph.order().iter().filter(|&id| is_new(id));
        let is_barrier = |id: &&NodeId| {
            candidate
                .graph
                .node(**id)
                .is("com.microsoft", "PassThrough")
        };
        let recomputes = |id: &&NodeId| candidate.graph.node(**id).attribute(MARKER).is_some();
        let is_mirror = |id: &&NodeId| is_mirror(candidate.graph.node(**id));
        let costs = costs(self.original, &self.options.device, &self.options.overrides);
        let time_before = time(self.original, &costs);
        let time_added = time(&candidate.graph, &candidate.costs).saturating_sub(time_before);
        let room = budget - frame(&self.graph);
        let search = self.search_in_order_of(candidate);
        Summary {
            budget: budget + reserve,
            fixed: self.before.fixed + reserve,
            before: describe(self.original, &self.before, reserve),
            after: candidate.peak(reserve),
            smallest_peak: smallest.min(candidate.need()) + reserve,
            time_before,
            time_added,
            time_recomputing: new()
                .filter(recomputes)
                .map(|id| candidate.costs[id.index()].time.0)
                .fold(0, u64::saturating_add),
            reordered_peak: search.without_copies().predicted_peak + frame(&self.graph) + reserve,
            lower_bound: self.lower_bound(&search, room, time_added),
            recomputed_nodes: new().filter(is_mirror).count(),
            barriers: new().filter(is_barrier).count(),
            nodes_before: self.original.order().len(),
            nodes_after: candidate.graph.order().len(),
            variants: Vec::new(),
            notes,
            evaluations: self.options.watch.evaluations(),
            stop_reason: match time_added {
                _ if self.options.watch.is_stopped() => StopReason::TimeLimit,
                0 => StopReason::NothingToAdd,
                _ => StopReason::Evaluations,
            },
        }
    }

    /// A search with the candidate's order of first computations.
    fn search_in_order_of(&self, candidate: &Candidate) -> Search {
        let order = candidate.graph.order().iter().copied();
        let order: Vec<NodeId> = order
            .filter(|id| id.index() < self.graph.node_count())
            .collect();
        self.task().search(&order)
    }

    /// What every plan adds that keeps the search's order of first computations.
    fn lower_bound(&self, search: &Search, room: Bytes, known: u64) -> u64 {
        let solving = &self.options.solving;
        match solving.solver.as_deref().filter(|_| solving.certify) {
            Some(solver) => {
                let limits = Limits {
                    seconds: solving.seconds,
                    ..CERTIFYING
                };
                search.certified_bound(room, known, solver, limits)
            }
            None => search.lower_bound(room, known),
        }
    }
}

/// Nanoseconds of all nodes.
fn time(graph: &Graph, costs: &[Cost]) -> u64 {
    let times = graph.order().iter().map(|id| costs[id.index()].time.0);
    times.fold(0, u64::saturating_add)
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
        let searches = self.searches.iter_mut();
        let estimates = searches.map(|search| search.estimate(budget));
        let costs = estimates
            .enumerate()
            .filter_map(|(i, cost)| Some((cost?, i)));
        let chosen = costs.min().map(|(_, i)| i)?;
        self.chosen = Some((chosen, budget));
        Some(chosen)
    }
}

impl Planner for Searches {
    fn within(&mut self, budget: Bytes) -> Result<Plan, Unplanned> {
        let chosen = self.choose(budget);
        let plan = chosen.and_then(|i| self.searches[i].within(budget));
        match plan {
            Some(plan) => Ok(plan),
            None => Err(Unplanned::TooLarge(self.smallest().unwrap_or_default())),
        }
    }

    /// Looks in one order only: what an order needs least is much the same in all.
    fn smallest(&mut self) -> Result<Plan, String> {
        let first = self.searches.first_mut();
        Ok(first.map(Search::smallest).unwrap_or_default())
    }
}
