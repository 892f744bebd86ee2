//! The session for which a budget holds where nobody names one: the usual one, and every other as well if that costs next to
//! nothing.
//!
//! Where the runtime's optimizations do not change what a graph takes, orders alone are left, and barriers hold all of them: the
//! budget is planned for every session at once. Elsewhere what is fused can take far less than the graph as it is, so the usual
//! session is planned first, and the plan for all sessions has to come near it.

use std::ptr;

use super::comparison::near;
use super::contest::{ConvolutionSetting, Look, compare, spread};
use super::faults::Found;
use super::limits::plain_floor;
use super::listing::as_listed;
use super::simulation::Candidate;
use super::tuning::STAGES;
use super::{BudgetRequest, OptimizeError, Optimized, PlanOptions, Summary};
use crate::bytes::Bytes;
use crate::graph::Graph;
use crate::runtime::Runtime;
use crate::runtime::level::Level;
use crate::runtime::order::ExecutionOrder;
use crate::runtime::promise::Promise;

/// One result for each budget. The graph is `declared` with declarations that are wrong.
pub(super) fn decide(
    (graph, declared): (&Graph, &Graph),
    options: &PlanOptions,
    budgets: &[BudgetRequest],
) -> Result<Vec<Found>, OptimizeError> {
    let (usual, every) = (
        with_promise(options, Promise::USUAL),
        with_promise(options, Promise::ANY),
    );
    let sessions = ConvolutionSetting::all((graph, declared), &usual);
    let contest = UsualOrEvery {
        graphs: (graph, declared),
        session: &sessions[0],
        usual: &usual,
        every: &every,
    };
    let mut entries: Vec<PerBudget> = budgets
        .iter()
        .map(|&request| contest.entry(request))
        .collect();
    if contest.is_for_ortmodule() {
        contest.plan_for_all(&mut entries, Look::Thorough, |_| true)?;
        for entry in &mut entries {
            entry.settled = entry.for_all.is_some();
        }
    } else if contest.levels_are_alike() {
        contest.plan_for_all(&mut entries, Look::Thorough, |entry| !entry.fits_as_it_is)?;
        for entry in &mut entries {
            entry.settled = entry
                .for_all
                .as_ref()
                .is_some_and(|found| contest.stands(entry.request, found));
        }
    }
    contest.plan_for_usual(&mut entries)?;
    contest.plan_for_all(&mut entries, Look::InPassing, |entry| {
        entry.for_all.is_none() && !entry.fits_as_it_is && entry.is_narrow()
    })?;
    let mut row: Vec<Found> = entries
        .into_iter()
        .map(|entry| contest.better(entry))
        .collect();
    for found in row.iter_mut().flatten() {
        found.summary.evaluations = options.watch.evaluations();
    }
    spread(&mut row);
    Ok(row)
}

fn with_promise(options: &PlanOptions, promise: Promise) -> PlanOptions {
    PlanOptions {
        runtime: Runtime {
            promise,
            ..options.runtime
        },
        ..options.clone()
    }
}

/// What is known for one budget.
struct PerBudget {
    request: BudgetRequest,
    /// In bytes, the reserve included; nothing for the smallest peak before it is known.
    budget: Option<Bytes>,
    /// Does the unmodified graph in the usual session?
    fits_as_it_is: bool,
    for_usual: Option<Found>,
    for_all: Option<Found>,
    /// Does the plan for all sessions stand, whatever there is for the usual one?
    settled: bool,
}

impl PerBudget {
    /// Is there a plan that holds in the usual session alone?
    fn is_narrow(&self) -> bool {
        let found = self.for_usual.as_ref();
        found.is_some_and(|found| {
            let found = found.as_ref();
            found.is_ok_and(|found| found.summary.promise != Promise::ANY)
        })
    }
}

struct UsualOrEvery<'a> {
    /// As it is right, and as it is declared.
    graphs: (&'a Graph, &'a Graph),
    /// The usual session.
    session: &'a ConvolutionSetting<'a>,
    usual: &'a PlanOptions,
    every: &'a PlanOptions,
}

impl UsualOrEvery<'_> {
    fn entry(&self, request: BudgetRequest) -> PerBudget {
        let original = self.session.original();
        let reserve = self.usual.reserve;
        let budget = match request {
            // As it was given, even where the reserve alone is more.
            BudgetRequest::Bytes(bytes) => Some(bytes),
            _ => original
                .budget(request, reserve)
                .map(|bytes| bytes + reserve),
        };
        PerBudget {
            request,
            budget,
            fits_as_it_is: budget.is_some_and(|budget| original.peak(reserve).bytes <= budget),
            for_usual: None,
            for_all: None,
            settled: false,
        }
    }

    /// Does ORTModule run it, which makes its sessions itself?
    fn is_for_ortmodule(&self) -> bool {
        let (needs, _) = self.session.original().needs(&self.session.options);
        let mut ways = needs.iter();
        ways.any(|way| way.order == ExecutionOrder::MemoryEfficient)
    }

    /// Does the unmodified graph take as much optimized as it does unoptimized?
    fn levels_are_alike(&self) -> bool {
        let original = self.session.original();
        let (needs, _) = original.needs(&self.session.options);
        let at = |level| {
            let mut ways = needs.iter();
            let way = ways.find(|way| (way.order, way.level) == (ExecutionOrder::Default, level));
            way.map_or(Bytes::ZERO, |way| way.bytes)
        };
        let (as_it_is, optimized) = (at(Level::DisableAll), at(Level::EnableAll));
        let fixed = original.liveness.fixed + self.usual.reserve;
        let apart = as_it_is.max(optimized) - as_it_is.min(optimized);
        is_part(apart, as_it_is - fixed, STAGES.alike)
    }

    /// Does what was found for all sessions leave nothing to be gained in the usual one? Where all levels are alike.
    fn stands(&self, request: BudgetRequest, found: &Found) -> bool {
        match found {
            // Where the usual session has one alone, it mostly is smaller.
            Ok(found) if request == BudgetRequest::Smallest => {
                let summary = &found.summary;
                let least = plain_floor(self.session.original(), &self.session.options);
                is_usable(found) && is_little(summary.budget - least, allowed(summary))
            }
            Ok(found) => self.is_good(&found.summary),
            // Fusions make a plan dear in the others that the usual one fits with ease; what one node needs, it needs everywhere.
            Err(OptimizeError::Infeasible { floor, .. }) => floor.is_some(),
            Err(_) => false,
        }
    }

    fn is_good(&self, found: &Summary) -> bool {
        if found.over_budget().next().is_some() {
            return false;
        }
        if found.time_added == 0 || self.usual.watch.is_stopped() {
            return true;
        }
        let beside_copies = found.time_added - found.time_recomputing.min(found.time_added);
        beside_copies <= found.time_before / STAGES.barriers_for_every_session
            && is_little(unused(found), allowed(found))
    }

    fn plan_for_usual(&self, entries: &mut [PerBudget]) -> Result<(), OptimizeError> {
        let open: Vec<&mut PerBudget> = entries.iter_mut().filter(|entry| !entry.settled).collect();
        let requests: Vec<BudgetRequest> = open.iter().map(|entry| entry.request).collect();
        if requests.is_empty() {
            return Ok(());
        }
        let row = compare(self.graphs, self.usual, &requests, Look::Thorough)?;
        for (entry, mut found) in open.into_iter().zip(row) {
            if let Ok(found) = &mut found {
                entry.budget = Some(found.summary.budget);
                self.widen(found);
            }
            entry.for_usual = Some(found);
        }
        Ok(())
    }

    /// Plans what is `open` for every session.
    fn plan_for_all(
        &self,
        entries: &mut [PerBudget],
        look: Look,
        open: impl Fn(&PerBudget) -> bool,
    ) -> Result<(), OptimizeError> {
        let open: Vec<&mut PerBudget> = entries.iter_mut().filter(|entry| open(entry)).collect();
        if open.is_empty() || self.every.watch.is_stopped() {
            return Ok(());
        }
        let in_bytes =
            |entry: &&mut PerBudget| entry.budget.map_or(entry.request, BudgetRequest::Bytes);
        let requests: Vec<BudgetRequest> = open.iter().map(in_bytes).collect();
        let row = compare(self.graphs, self.every, &requests, look)?;
        for (entry, mut found) in open.into_iter().zip(row) {
            if let Ok(found) = &mut found {
                self.tell_of_usual(&mut found.summary);
            }
            entry.for_all = Some(found);
        }
        Ok(())
    }

    /// Promises every session what holds there anyway.
    fn widen(&self, found: &mut Optimized) {
        let (graph, original) = (&found.graph, self.graphs.0);
        let every = &match found.summary.convolutions {
            Some(choice) => self.every.with_choice(original, choice),
            None => self.every.beside_model(original),
        };
        let budget = found.summary.budget - every.reserve;
        let listed = as_listed(graph);
        let mut fits = Candidate::new(graph.clone(), every).need() <= budget;
        if !ptr::eq(&*listed, graph) {
            fits &= Candidate::as_listed(graph, every).need() <= budget;
        }
        if fits {
            found.summary.promise = Promise::ANY;
        }
    }

    /// A plan for every session, told as one for the usual session is.
    fn tell_of_usual(&self, summary: &mut Summary) {
        let (original, options) = (self.session.original(), &self.session.options);
        summary.reported = Promise::USUAL.reported();
        summary.before = original.peak(options.reserve);
        (summary.executions_before, summary.reserved_before) = original.needs(options).clone();
    }

    /// The plan for every session, unless that for the usual one adds notably less.
    fn better(&self, entry: PerBudget) -> Found {
        match (entry.for_usual, entry.for_all) {
            (None, for_all) => for_all.expect("every budget is planned for"),
            (Some(Ok(mut usual)), Some(Ok(for_all))) if is_usable(&for_all) => {
                let added = for_all.summary.time_added;
                let is_smallest = entry.request == BudgetRequest::Smallest;
                if is_smallest && near(usual.summary.budget) < for_all.summary.budget {
                    return Ok(usual);
                }
                if added <= usual.summary.time_added + next_to_nothing(&usual.summary) {
                    return Ok(for_all);
                }
                if usual.summary.promise != Promise::ANY {
                    usual.summary.time_added_for_all = Some(added);
                }
                Ok(usual)
            }
            (Some(Err(_)), Some(Ok(for_all))) if is_usable(&for_all) => Ok(for_all),
            (Some(usual), _) => usual,
        }
    }
}

/// What of the budget the usual session does not take.
fn unused(found: &Summary) -> Bytes {
    let usual = |way: &&super::Execution| Promise::USUAL.holds(way.order, way.level);
    let way = found.executions.iter().find(usual);
    way.map_or(Bytes::ZERO, |way| found.budget - way.bytes)
}

/// What a step may take beside what the caller owns.
fn allowed(found: &Summary) -> Bytes {
    found.budget - found.fixed
}

/// Is the budget held wherever it is promised?
fn is_usable(found: &Optimized) -> bool {
    found.summary.over_budget().next().is_none()
}

/// So many nanoseconds more are next to nothing.
fn next_to_nothing(summary: &Summary) -> u64 {
    summary.time_before / STAGES.for_every_session
}

/// Does a part of `whole` not matter?
fn is_little(part: Bytes, whole: Bytes) -> bool {
    is_part(part, whole, STAGES.little)
}

/// Is it one part in so many, or less?
fn is_part(part: Bytes, whole: Bytes, of: u64) -> bool {
    part.0.saturating_mul(of) <= whole.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimize::{optimize, optimize_usual, verify_written};
    use crate::strategy::Strategy;
    use crate::strategy::tests::options;
    use crate::testing::{random_mixed_graph, random_training_graph};

    /// The plan for that budget, and the options under which it is promised.
    fn planned(graph: &Graph, request: BudgetRequest) -> (Found, PlanOptions) {
        let options = options(Strategy::Auto, request);
        let mut row = optimize_usual(graph, &options, &[request]).expect("a row");
        let found = row.pop().expect("one result");
        let promise = found
            .as_ref()
            .map_or(Promise::ANY, |found| found.summary.promise);
        let options = with_promise(&options, promise);
        (found, options)
    }

    fn planned_for(graph: &Graph, request: BudgetRequest, promise: Promise) -> Found {
        optimize(
            graph,
            &with_promise(&options(Strategy::Auto, request), promise),
        )
    }

    #[test]
    fn a_plan_holds_where_it_says_and_adds_no_more_than_the_better_of_both() {
        let (mut narrow, mut wide) = (0, 0);
        for seed in 0..32 {
            let graph = match seed % 2 {
                0 => random_training_graph(seed, 30),
                _ => random_mixed_graph(seed, 30),
            };
            let (least, _) = planned(&graph, BudgetRequest::Smallest);
            let least = least.expect("a plan").summary;
            let range = least.before.bytes - least.budget;
            for quarters in [1, 3] {
                let budget = least.budget + Bytes(range.0 * quarters / 4);
                let request = BudgetRequest::Bytes(budget);
                let (found, options) = planned(&graph, request);
                let found = found.expect("a plan above the smallest peak");
                let summary = &found.summary;
                match summary.promise == Promise::ANY {
                    true => wide += 1,
                    false => narrow += 1,
                }
                assert!(summary.promise == Promise::ANY || summary.promise == Promise::USUAL);
                assert!(summary.over_budget().next().is_none(), "seed {seed}");
                let proved = verify_written(&graph, &found.graph, &options, budget);
                assert!(proved.is_ok(), "seed {seed}: {proved:?}");
                assert_eq!(summary.reported, Promise::USUAL.reported());
                let others = [Promise::USUAL, Promise::ANY]
                    .map(|promise| planned_for(&graph, request, promise));
                for other in others.into_iter().flatten() {
                    let most = other.summary.time_added + summary.time_before / 50;
                    assert!(
                        summary.time_added <= most,
                        "seed {seed}: {}",
                        summary.time_added
                    );
                }
            }
        }
        assert!(narrow > 3 && wide > 3, "{narrow} and {wide}");
    }

    #[test]
    fn a_graph_that_fits_in_the_usual_session_stays_as_it_is() {
        let mut narrow = 0;
        for seed in 0..12 {
            let graph = random_mixed_graph(seed, 40);
            let (found, _) = planned(&graph, BudgetRequest::PartOfPeak(1.0));
            let summary = found.expect("its own peak").summary;
            assert_eq!(summary.time_added, 0, "seed {seed}");
            assert_eq!(summary.nodes_after, summary.nodes_before);
            assert_eq!(summary.before.bytes, summary.budget);
            narrow += usize::from(summary.promise != Promise::ANY);
        }
        assert!(narrow > 0, "some take more in another session");
    }

    #[test]
    fn the_smallest_peak_is_that_of_every_session_or_of_the_usual_one() {
        for seed in 0..6 {
            let graph = random_mixed_graph(seed, 30);
            let (found, _) = planned(&graph, BudgetRequest::Smallest);
            let summary = found.expect("a plan").summary;
            let both = [Promise::USUAL, Promise::ANY].map(|promise| {
                let least = planned_for(&graph, BudgetRequest::Smallest, promise);
                least.expect("a plan").summary.budget
            });
            assert!(both.contains(&summary.budget), "seed {seed}: {both:?}");
            assert!(summary.after.bytes <= summary.budget);
        }
    }

    #[test]
    fn what_fits_in_the_usual_session_alone_is_found() {
        for graph in [random_training_graph(5, 24), random_mixed_graph(5, 24)] {
            let least = |promise| planned_for(&graph, BudgetRequest::Smallest, promise);
            let [usual, every] = [Promise::USUAL, Promise::ANY].map(least);
            let budget = usual.expect("a plan").summary.budget;
            let every = every.expect("a plan").summary.budget;
            assert!(budget < every, "{budget}, {every}");
            let (found, _) = planned(&graph, BudgetRequest::Bytes(budget));
            assert_eq!(found.expect("a plan").summary.promise, Promise::USUAL);
            let (least, _) = planned(&graph, BudgetRequest::Smallest);
            assert!(least.expect("a plan").summary.budget <= near(budget));
        }
    }
}
