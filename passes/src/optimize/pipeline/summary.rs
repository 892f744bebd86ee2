//! What was done, in figures.

use super::super::original::Original;
use super::super::simulation::{Candidate, frame, need};
use super::super::variant_graph::{Choices, Form};
use super::super::{StopReason, Summary};
use super::Pipeline;
use crate::analysis::cost::time_of_all;
use crate::analysis::mirrors::{is_mirror, mirror_number};
use crate::bytes::Bytes;
use crate::graph::NodeId;
use crate::program::Limits;
use crate::search::Search;

/// When a solver that raises the lower bound ends.
const CERTIFYING: Limits = Limits {
    nodes: 2_000,
    seconds: None,
    gap: 1e-4,
};

impl Pipeline<'_> {
    pub(super) fn summary(
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
        let runtime = self.options.runtime;
        let is_barrier = |id: &&NodeId| runtime.release.is_barrier(candidate.graph.node(**id));
        let recomputes = |id: &&NodeId| mirror_number(candidate.graph.node(**id)).is_some();
        let is_mirror = |id: &&NodeId| is_mirror(candidate.graph.node(**id));
        let original = self.original;
        let time_before = original.time();
        let time_added =
            time_of_all(&candidate.graph, &candidate.costs).saturating_sub(time_before);
        let room = budget - frame(&form.graph);
        let order = order_of_first_computations(candidate, &form);
        let task = self.task_in(&form, None);
        // Behind time, nothing that takes long is worked out for the report alone.
        let late = self.is_late();
        let reordered = (!late).then(|| task.search(&order).without_copies());
        let reordered = reordered.map(|plan| plan.predicted_peak + frame(&form.graph));
        let relaxed = match runtime.promise.holds_unoptimized() {
            _ if late || time_added == 0 => None,
            true => Some(task.relaxed_search(&order)),
            // What the runtime makes of a graph can take less than the graph.
            false => candidate.fused_search(&form, self.options),
        };
        let longer = i128::from(time_of_all(&form.graph, &form.costs)) - i128::from(time_before);
        let (executions_before, reserved_before) = original.needs(self.options).clone();
        Summary {
            budget: budget + reserve,
            fixed: self.original.liveness.fixed + reserve,
            before: original.peak(reserve),
            reported: runtime.promise.reported(),
            after: candidate.peak(reserve),
            executions_before,
            executions: candidate.executions(reserve),
            smallest_peak: smallest.min(candidate.need()) + reserve,
            time_before,
            time_added,
            time_recomputing: new()
                .filter(recomputes)
                .map(|id| candidate.costs[id.index()].time.0)
                .fold(0, u64::saturating_add),
            reordered_peak: reordered.unwrap_or_else(|| original_need(original)) + reserve,
            promise: runtime.promise,
            time_added_for_all: None,
            lower_bound: relaxed.map_or(0, |search| {
                self.lower_bound(&search, room, time_added, longer)
            }),
            reserved_before,
            reserved_after: candidate.reserved(self.options),
            recomputed_nodes: new().filter(is_mirror).count(),
            barriers: new().filter(is_barrier).count(),
            nodes_before: original.graph.order().len(),
            nodes_after: candidate.graph.order().len(),
            variants: self.names(candidate),
            convolutions: None,
            algorithms: Vec::new(),
            notes,
            faults: Vec::new(),
            evaluations: self.options.watch.evaluations(),
            stop_reason: match time_added {
                _ if self.options.watch.is_stopped() => StopReason::TimeLimit,
                0 => StopReason::NothingToAdd,
                _ => StopReason::Evaluations,
            },
        }
    }

    /// The nodes that are replaced in the candidate, by name, and by which variant.
    pub(super) fn names(&self, candidate: &Candidate) -> Vec<(String, &'static str)> {
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
    pub(super) fn lower_bound(
        &self,
        search: &Search,
        room: Bytes,
        known: u64,
        longer: i128,
    ) -> u64 {
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

/// What is known to be enough without copies.
fn original_need(original: &Original<'_>) -> Bytes {
    need(original.graph, &original.liveness)
}

/// The candidate's order without mirrors and barriers.
fn order_of_first_computations(candidate: &Candidate, form: &Form) -> Vec<NodeId> {
    let order = candidate.graph.order().iter().copied();
    let is_first = |id: &NodeId| id.index() < form.graph.node_count();
    order.filter(is_first).collect()
}
