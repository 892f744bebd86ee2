//! What is planned, as the runtime runs it: copies and barriers in the graph, within the budget.

use std::sync::PoisonError;
use std::time::Instant;

use super::super::aim::{Between, Descent};
use super::super::simulation::{Candidate, frame};
use super::super::tuning::STAGES;
use super::Pipeline;
use crate::analysis::cost::{costs, time_of_all};
use crate::bytes::Bytes;
use crate::cost::Cost;
use crate::enforce::add_apart::AddApart;
use crate::enforce::barriers::{Conditions, Enforceable, NotEnforceable, Thinning};
use crate::enforce::forward_summands::{ForwardSummands, Sums};
use crate::enforce::keep_apart::KeepApart;
use crate::enforce::overwrite_last::OverwriteLast;
use crate::enforce::release_unread::ReleaseUnread;
use crate::enforce::unmark_fused::UnmarkFused;
use crate::graph::{Graph, NodeId};
use crate::pass::{Changed, INSERT_BARRIERS};
use crate::plan::{Originals, Plan};
use crate::rewrite::insert_mirrors::InsertMirrors;
use crate::runtime::Runtime;
use crate::runtime::liveness::TENSOR;
use crate::runtime::settings::RuntimeSettings;
use crate::search::Missed;
use crate::strategy::{Planner, Strategy, Unplanned};

/// What a plan has to reach with its barriers.
pub(super) struct Goal<'g> {
    /// What a step may take, what the caller owns included.
    pub(super) budget: Bytes,
    /// It has to add less, in nanoseconds.
    pub(super) below: u64,
    /// May it still reach that, by the barriers that a quick look leaves?
    pub(super) may: &'g dyn Fn(&Candidate) -> bool,
}

impl Goal<'_> {
    /// That budget, whatever it adds.
    pub(super) fn within(budget: Bytes) -> Goal<'static> {
        Goal::below(budget, u64::MAX)
    }

    fn below(budget: Bytes, below: u64) -> Goal<'static> {
        Goal {
            budget,
            below,
            may: &|_| true,
        }
    }
}

/// A plan, and what became of it within a budget.
pub(super) struct KnownPlan {
    plan: Plan,
    budget: Bytes,
    /// Nanoseconds that it adds with its barriers, or by how much it misses the budget.
    outcome: Result<u64, Bytes>,
}

impl KnownPlan {
    fn is(&self, plan: &Plan, budget: Bytes) -> bool {
        self.budget == budget
            && self.plan.sequence == plan.sequence
            && self.plan.variants == plan.variants
    }
}

/// What is planned for a budget.
pub(super) struct PlannedFor {
    pub(super) budget: Bytes,
    /// What the search was allowed to take of it, so that the rest is enough for what it does not know.
    pub(super) target: Bytes,
    pub(super) candidate: Candidate,
}

impl PlannedFor {
    /// What of the budget the runtime does not take.
    fn left(&self) -> Bytes {
        self.budget - self.candidate.need()
    }
}

impl Pipeline<'_> {
    /// What the runtime takes for itself, with an eighth more tensors for mirrors and barriers.
    pub(super) fn framed(&self) -> Bytes {
        Bytes(frame(&self.base.graph).0 * 9 / 8)
    }

    /// The same, and what barriers pass on, which lives to the end of the step.
    pub(super) fn spare(&self) -> Bytes {
        let outputs = self.base.graph.order().len() as u64 / STAGES.nodes_for_output;
        self.framed() + Bytes(TENSOR.0 * outputs)
    }

    pub(super) fn candidate(&self, graph: Graph, plan: &Plan) -> Candidate {
        let mut candidate = Candidate::coloured(graph, self.options);
        candidate.variants.clone_from(&plan.variants);
        candidate
    }

    /// The same; with the names that its dimensions have, where the ones that keep tensors apart leave it above the `budget`. What lies in
    /// the block in any case can take less where tensors take each other's memory over.
    fn candidate_within(&self, budget: Bytes, graph: Graph, plan: &Plan) -> Candidate {
        let as_named = graph.clone();
        let coloured = self.candidate(graph, plan);
        let settings = self.options.runtime.settings;
        if settings == RuntimeSettings::LEAN || coloured.need() <= budget {
            return coloured;
        }
        let mut as_named = Candidate::new(as_named, self.options);
        as_named.variants.clone_from(&plan.variants);
        match as_named.need() < coloured.need() {
            true => as_named,
            false => coloured,
        }
    }

    /// The cheapest plan that fits in the runtime's own order; `least` has the smallest peak, if that is known. It
    /// has to add less than `below` nanoseconds.
    pub(super) fn within(
        &self,
        planner: &mut dyn Planner,
        least: Option<&Plan>,
        budget: Bytes,
        below: u64,
    ) -> Result<Candidate, Missed> {
        let room = self.room(planner, budget);
        let mut plan = |target| planner.cheaper(target, below);
        let found = self.planned(&mut plan, room, least, &Goal::below(budget, below))?;
        // A published strategy's plan is written as it is.
        if self.options.strategy != Strategy::Auto {
            return Ok(found.candidate);
        }
        let found = self.with_room_of_settings(planner, found);
        let found = self.with_room_for_barriers(planner, found);
        Ok(self.with_room_of_level(planner, found).candidate)
    }

    /// `found`, or what adds less since it is planned for more than its target: what the runtime's settings add is known of a
    /// quick plan ([`Self::room`]), and can be less for another; one that needs more before they add to it can need less then.
    pub(super) fn with_room_of_settings(
        &self,
        planner: &mut dyn Planner,
        found: PlannedFor,
    ) -> PlannedFor {
        let mut best = found;
        if self.options.runtime.settings == RuntimeSettings::LEAN {
            return best;
        }
        let PlannedFor { budget, target, .. } = best;
        let most = (budget - self.spare()).max(target);
        let (few, more) = (STAGES.plans_for_settings, STAGES.more_plans_for_settings);
        let mut between = Between::new(target.0, most.0, few + more);
        // By how much the last one missed, and whether all did.
        let (mut missed, mut all_missed) = (Bytes::ZERO, true);
        let is_dear = |added: u64, best: &Candidate| {
            added > time_of_all(&best.graph, &best.costs) / STAGES.dear && !self.stopped()
        };
        for attempt in 0.. {
            let added = self.added(&best.candidate);
            let is_more = attempt >= few;
            let is_known = between.way() <= budget.0 / STAGES.unused_part || is_more && !all_missed;
            if is_known || !is_dear(added, &best.candidate) {
                break;
            }
            let left = best.left().0;
            let (part, of) = match is_more {
                true => (left, (left + missed.0).max(1)),
                false => (1, 2),
            };
            let Some(target) = between.part_of_way(part, of) else {
                break;
            };
            let found = self.planned_once(planner, Bytes(target), &Goal::below(budget, added));
            // What would add as much or more is no reason to ask for less.
            between.is(target, found.is_ok());
            match found {
                Ok(cheaper) => {
                    all_missed = false;
                    if let Some(cheaper) = cheaper {
                        best.candidate = cheaper;
                        best.target = Bytes(target);
                    }
                }
                Err(excess) => missed = excess,
            }
        }
        best
    }

    /// What is planned for `target`, if it adds less than the goal allows, or by how much it misses the budget.
    fn planned_once(
        &self,
        planner: &mut dyn Planner,
        target: Bytes,
        goal: &Goal<'_>,
    ) -> Result<Option<Candidate>, Bytes> {
        let Ok(plan) = planner.cheaper(target, goal.below) else {
            return Ok(None);
        };
        let found = self.made_of(&plan, goal)?;
        Ok(found.filter(|found| self.added(found) < goal.below))
    }

    /// The graph with the plan's copies and with barriers that keep it within the goal's budget, or by how much they miss it; nothing if it
    /// adds too much. Published planners, and one asked for less and less, come back to the same plan, of which the outcome is known then.
    pub(super) fn made_of(&self, plan: &Plan, goal: &Goal<'_>) -> Result<Option<Candidate>, Bytes> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut same = known.iter().filter(|known| known.is(plan, goal.budget));
        let outcome = same.next().map(|known| known.outcome);
        drop(known);
        match outcome {
            Some(Err(excess)) => return Err(excess),
            Some(Ok(added)) if added >= goal.below => return Ok(None),
            _ => {}
        }
        let applied = self.apply(plan, Some(goal.budget));
        if self.time_added(applied.graph(), applied.costs()) >= goal.below {
            return Ok(None);
        }
        let mut found = self.enforced(&applied, plan, goal);
        // More sizes are hidden, so that barriers have the room that they take.
        let mut room = goal.budget;
        for _ in 0..STAGES.more_hidden {
            let Err(excess) = found else { break };
            let is_left = room > self.original.liveness.fixed + excess;
            if !self.hides_for_budget() || !is_left || self.is_late() {
                break;
            }
            room = room - excess;
            let hidden = self.apply(plan, Some(room));
            if hidden.graph() == applied.graph() {
                break;
            }
            let less = self.enforced(&hidden, plan, goal);
            found = less.map_err(|missed| missed.min(excess));
        }
        let outcome = match &found {
            Ok(Some(candidate)) => Ok(self.added(candidate)),
            Ok(None) => return found,
            Err(excess) => Err(*excess),
        };
        if !self.is_large() {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.push(KnownPlan {
                plan: plan.clone(),
                budget: goal.budget,
                outcome,
            });
        }
        found
    }

    /// `found`, or what adds less since it is planned for more than its target: the search does not know all of what the runtime
    /// makes of the graph at the level that is promised, and that can take less.
    fn with_room_of_level(&self, planner: &mut dyn Planner, found: PlannedFor) -> PlannedFor {
        let mut best = found;
        if self.options.runtime.promise.holds_unoptimized() {
            return best;
        }
        for _ in 0..STAGES.plans_for_level {
            let (left, added) = (best.left(), self.added(&best.candidate));
            if left <= Bytes(best.budget.0 / STAGES.unused_part) || self.stopped() {
                break;
            }
            let mut plan = |target| planner.cheaper(target, added);
            let goal = Goal::below(best.budget, added);
            match self.planned(&mut plan, best.target + left, None, &goal) {
                Ok(other) if self.added(&other.candidate) < added => best = other,
                _ => break,
            }
        }
        best
    }

    /// `found`, or what adds less since it is planned for less than its target: the search knows nothing of barriers, and what
    /// leaves them some room can need far fewer.
    pub(super) fn with_room_for_barriers(
        &self,
        planner: &mut dyn Planner,
        found: PlannedFor,
    ) -> PlannedFor {
        let fixed = self.original.liveness.fixed;
        let part = Bytes((found.target - fixed).0 / STAGES.room_for_barriers);
        let mut descent = Descent::from(found.target - part, STAGES.plans_with_fewer_barriers);
        let mut best = found;
        while let Some(target) = descent.next() {
            let candidate = &best.candidate;
            let (barriers, added) = (self.time_of_barriers(candidate), self.added(candidate));
            let step = time_of_all(&candidate.graph, &candidate.costs);
            let few = barriers <= added / STAGES.many_barriers || barriers <= step / STAGES.notable;
            if few || self.stopped() {
                break;
            }
            let mut plan = |target| planner.cheaper(target, added);
            // In a large graph thinning out takes longest. As large a part of the barriers will be left as of those before.
            let before = candidate.quick_barriers;
            let known = before > 0 && self.is_large();
            let may = |quick: &Candidate| {
                let all = quick.quick_barriers;
                let left = u128::from(all) * u128::from(barriers) / u128::from(before.max(1));
                let others = self.added(quick).saturating_sub(all);
                !known || u128::from(others) + left < u128::from(added)
            };
            let goal = Goal {
                budget: best.budget,
                below: added,
                may: &may,
            };
            match self.planned(&mut plan, target, None, &goal) {
                Ok(other) if self.added(&other.candidate) < added => {
                    descent.lower_to(other.target - part);
                    best = other;
                }
                _ => break,
            }
        }
        best
    }

    /// Of all that they consist of, in nanoseconds.
    pub(super) fn time_of_barriers(&self, candidate: &Candidate) -> u64 {
        let (graph, costs) = (&candidate.graph, &candidate.costs);
        let release = self.options.runtime.release;
        let is_part = |id: &&NodeId| release.is_part_of_barrier(graph.node(**id));
        let barriers = graph.order().iter().filter(is_part);
        let times = barriers.map(|id| costs[id.index()].time.0);
        times.fold(0, u64::saturating_add)
    }

    /// The same with what `plan` makes for `target` and, where that misses the budget, for less and less.
    pub(super) fn planned(
        &self,
        plan: &mut dyn FnMut(Bytes) -> Result<Plan, Unplanned>,
        target: Bytes,
        least: Option<&Plan>,
        goal: &Goal<'_>,
    ) -> Result<PlannedFor, Missed> {
        let budget = goal.budget;
        let spare = match self.options.runtime.settings {
            RuntimeSettings::LEAN => budget.0 / STAGES.spare,
            _ => budget.0 / STAGES.spare_for_settings,
        };
        let mut descent = Descent::from(target, STAGES.plans).leaving(spare, STAGES.more_spare);
        while let Some(target) = descent.next() {
            let (plan, is_least) = match plan(target) {
                Ok(plan) => (plan, false),
                Err(Unplanned::TooLarge(smallest)) => {
                    // Too much less may have been asked for.
                    if descent.goes_back() {
                        continue;
                    }
                    // The smallest may fit, though it needs more than the target.
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
            match self.made_of(&plan, goal) {
                Ok(Some(candidate)) => {
                    return Ok(PlannedFor {
                        budget,
                        // The smallest may need more than it was asked for.
                        target: target.max(plan.predicted_peak),
                        candidate,
                    });
                }
                Ok(None) => return Err(Missed::TooSlow),
                // There is none for less.
                Err(_) if is_least || self.is_late() => return Err(Missed::TooLarge),
                Err(excess) => descent.missed(plan.predicted_peak, excess),
            }
        }
        Err(Missed::TooLarge)
    }

    /// What is left of the budget beside what barriers take and what the runtime's settings add to a plan in its own
    /// order, as a quick one tells: the search, which knows none of it, need not be asked twice then.
    pub(super) fn room(&self, planner: &mut dyn Planner, budget: Bytes) -> Bytes {
        let room = budget - self.spare();
        let is_lean = self.options.runtime.settings == RuntimeSettings::LEAN;
        if is_lean || !STAGES.sketched || self.is_late() {
            return room;
        }
        let Some(plan) = planner.sketch(room) else {
            return room;
        };
        let applied = self.apply(&plan, Some(budget));
        // What the search counts.
        let lean = match self.options.runtime.keeps_results_apart() {
            true => plan.predicted_peak,
            false => applied.lean_peak(),
        };
        let planned = applied.planned_peak();
        let extra = planned - lean;
        let matters = planned > room || extra <= Bytes(budget.0 / STAGES.unused_part);
        match matters {
            true => room - extra - Bytes(extra.0 / STAGES.altered),
            false => room,
        }
    }

    /// The graph with barriers that keep it within the budget, or by how much they miss it; nothing if it adds too much.
    pub(super) fn enforced(
        &self,
        applied: &Enforceable<'_>,
        plan: &Plan,
        goal: &Goal<'_>,
    ) -> Result<Option<Candidate>, Bytes> {
        let found = self.enforced_in_block(applied, plan, goal);
        found.or_else(
            |missed| match self.enforced_beside_block(applied, plan, goal.budget) {
                Some(candidate) if (goal.may)(&candidate) => Ok(Some(candidate)),
                Some(_) => Ok(None),
                None => Err(missed),
            },
        )
    }

    /// The same with barriers that are chosen as if the memory pattern had no block, if what they leave fits in it. As many barriers as keep
    /// the order whatever happens, from which others are chosen, write so many small tensors that these take places in the block which
    /// larger ones need.
    fn enforced_beside_block(
        &self,
        applied: &Enforceable<'_>,
        plan: &Plan,
        budget: Bytes,
    ) -> Option<Candidate> {
        let room = budget - frame(applied.graph());
        let is_block = self.options.runtime.settings.pattern;
        let may = self.options.strategy == Strategy::Auto && is_block && !self.is_large();
        if !may || self.stopped() || applied.lean_peak() > room {
            return None;
        }
        if !self.beside_block.may_try(budget, STAGES.beside_block) {
            return None;
        }
        let settings = RuntimeSettings::LEAN;
        let lean = self.enforceable_with(applied.graph().clone(), settings);
        let planned = lean.planned_peak();
        let left = room - planned;
        let fits = |room: Bytes| {
            let graph = self.with_barriers(&lean, room, Thinning::Thorough).ok()?;
            let candidate = self.candidate_within(budget, graph, plan);
            Some(candidate).filter(|candidate| candidate.need() <= budget)
        };
        // The less room, the more of the order is kept.
        let rooms = [
            left,
            Bytes(left.0 / 4),
            Bytes(planned.0 / STAGES.unused_part),
        ];
        let found = rooms.into_iter().find_map(|left| fits(planned + left));
        if found.is_none() {
            self.beside_block.another();
        }
        found
    }

    /// The same with barriers that are chosen for what they leave of the block.
    fn enforced_in_block(
        &self,
        applied: &Enforceable<'_>,
        plan: &Plan,
        goal: &Goal<'_>,
    ) -> Result<Option<Candidate>, Bytes> {
        let budget = goal.budget;
        let room = budget - frame(applied.graph());
        let planned = applied.planned_peak();
        if planned <= room {
            return self.in_its_order(applied, room, plan, goal);
        }
        // Barriers do not help where it is too large in its own order.
        let missed = planned - room;
        let may = self.packings.may_try(budget, STAGES.packings);
        let packed = may.then(|| self.packed(applied, room)).flatten();
        let packed = packed.ok_or(missed)?;
        let found = self.in_its_order(&packed, room, plan, goal);
        if found.is_err() {
            self.packings.another();
        }
        found.map_err(|_| missed)
    }

    /// The same of what fits in its own order into `room`: the budget without the frame.
    fn in_its_order(
        &self,
        applied: &Enforceable<'_>,
        room: Bytes,
        plan: &Plan,
        goal: &Goal<'_>,
    ) -> Result<Option<Candidate>, Bytes> {
        let budget = goal.budget;
        let enforced = |room: Bytes, thinning: Thinning| {
            let graph = self.with_barriers(applied, room, thinning)?;
            Ok(self.candidate_within(budget, graph, plan))
        };
        // A quick look tells whether it is worth a thorough one.
        let (mut thinning, mut fits) = (Thinning::Quick, None::<Candidate>);
        let mut descent = Descent::from(room, 1 + STAGES.barrier_choices);
        while let Some(room) = descent.next() {
            if self.is_late() && !descent.is_first() {
                break;
            }
            let mut candidate = match enforced(room, thinning) {
                Ok(candidate) => candidate,
                Err(missed @ NotEnforceable { by_fewer, .. }) => {
                    if thinning == Thinning::Quick && by_fewer {
                        // Where every byte counts, needless barriers do.
                        thinning = Thinning::Thorough;
                        continue;
                    }
                    return fits.map(Some).ok_or(missed.reached - room);
                }
            };
            // The barriers' own tensors have their places in the frame as well.
            let left = budget - frame(&candidate.graph);
            let less = (room - Bytes(1)).min(left);
            match (candidate.need() <= budget, thinning) {
                (true, Thinning::Thorough) => {
                    candidate.quick_barriers = fits.map_or(0, |quick| quick.quick_barriers);
                    return Ok(Some(candidate));
                }
                (true, Thinning::Quick) => {
                    candidate.quick_barriers = self.time_of_barriers(&candidate);
                    if !(goal.may)(&candidate) {
                        return Ok(None);
                    }
                    (fits, thinning) = (Some(candidate), Thinning::Thorough);
                    descent.lower_to(room.min(left));
                }
                // The first look tells how much that is.
                (false, Thinning::Quick) if descent.is_first() => descent.lower_to(less),
                // Where every byte counts, needless barriers do.
                (false, _) => {
                    descent.lower_to(less);
                    thinning = Thinning::Thorough;
                }
            }
        }
        // As much as the plan needs more than its barriers left room for.
        fits.map(Some)
            .ok_or(applied.planned_peak() - descent.target())
    }

    /// The same in an order in which it takes at most `room`, if it is how tensors are placed in the memory pattern's block that needs
    /// more. Not in large graphs, in which there is time for few moves, nor when the time is over.
    fn packed<'e>(&self, applied: &Enforceable<'e>, room: Bytes) -> Option<Enforceable<'e>> {
        // A published strategy's plan is written as it is.
        let may = self.options.strategy == Strategy::Auto
            && self.options.runtime.settings.pattern
            && applied.lean_peak() <= room
            && !self.is_large()
            && !self.stopped();
        may.then(|| applied.packed(room)).flatten()
    }

    /// The graph, by whose order barriers make the runtime go.
    pub(super) fn enforceable(&self, graph: Graph) -> Enforceable<'_> {
        self.enforceable_with(graph, self.options.runtime.settings)
    }

    /// The same of a runtime with other settings.
    fn enforceable_with(&self, graph: Graph, settings: RuntimeSettings) -> Enforceable<'_> {
        let conditions = Conditions {
            object: TENSOR,
            provider: self.options.device.provider,
            runtime: Runtime {
                settings,
                ..self.options.runtime
            },
            sequences: &self.original.sequences,
            watch: self.is_large().then_some(&self.options.watch),
        };
        let costs = self.costs_of(&graph);
        Enforceable::new(graph, costs, conditions)
    }

    /// The graph with the plan's copies, for that budget, if there is one.
    pub(super) fn apply(&self, plan: &Plan, budget: Option<Bytes>) -> Enforceable<'_> {
        let form = self.form(&plan.variants);
        let mut graph = form.graph.clone();
        // A published strategy's plan is written as it is.
        let originals = match self.options.strategy {
            Strategy::Auto => Originals::Late,
            _ => Originals::AsPlanned,
        };
        let insert = InsertMirrors {
            instances: &plan.instances(&form.graph, &form.recomputation, originals),
        };
        let Ok(_) = self.options.runner.run(&insert, &mut graph);
        self.settled(graph, budget)
    }

    /// The graph in the order in which its nodes are to run, with what keeps the runtime from taking more than it needs there.
    pub(super) fn settled(&self, mut graph: Graph, budget: Option<Bytes>) -> Enforceable<'_> {
        let passes = &self.options.runner;
        graph.own_pieces();
        let Ok(_) = passes.run(&UnmarkFused, &mut graph);
        let release = self.options.runtime.release;
        let provider = self.options.device.provider;
        let Ok(_) = passes.run(&AddApart { release }, &mut graph);
        let Ok(_) = passes.run(&KeepApart { provider, release }, &mut graph);
        let sums = match self.options.runtime.settings {
            RuntimeSettings::LEAN => Sums::OfTwoConvolutions,
            _ => Sums::All,
        };
        let sums = ForwardSummands {
            provider,
            release,
            sums,
        };
        let Ok(_) = passes.run(&sums, &mut graph);
        let Ok(_) = passes.run(&ReleaseUnread { release }, &mut graph);
        let mut graph = self.in_its_layout(graph);
        let Ok(_) = passes.run(&OverwriteLast { release }, &mut graph);
        self.hidden(graph, budget)
    }

    /// The applied plan with its order enforced.
    pub(super) fn with_barriers(
        &self,
        applied: &Enforceable<'_>,
        budget: Bytes,
        thinning: Thinning,
    ) -> Result<Graph, NotEnforceable> {
        let started = Instant::now();
        let graph = applied.within(budget, thinning)?;
        self.tell_of_barriers(applied, &graph, started);
        Ok(graph)
    }

    pub(super) fn tell_of_barriers(
        &self,
        applied: &Enforceable<'_>,
        graph: &Graph,
        started: Instant,
    ) {
        let changed = match graph.node_count() == applied.graph().node_count() {
            true => Changed::No,
            false => Changed::Yes,
        };
        let passes = &self.options.runner;
        passes.tell(INSERT_BARRIERS, changed, started, graph);
    }

    pub(super) fn costs_of(&self, graph: &Graph) -> Vec<Cost> {
        costs(graph, &self.options.device, &self.options.overrides)
    }
}
