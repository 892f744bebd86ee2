//! Branches of a training graph that meet in the loss, and plans for them.
//!
//! Beaumont et al. (2019) plan k chains of equal steps whose ends meet in the turn. Here a branch
//! is a connected part of the forward part that is large enough, by its time or by its layers; where
//! two of them meet, the turn begins, and everything computed from there on belongs to it. Shared
//! weights connect nothing: the branches of a siamese network are separate. Each branch is cut
//! where a single vertex separates what is before from what is behind, and each block counts as
//! one step, its result as one slot. What that loses is reported, and plans are judged on the graph.

use std::collections::BTreeSet;

use super::chain::{Chain, Operation};
use super::chain_planner::{Knob, Refusing, Settings};
use super::chain_split::{Layout, SEVERAL, Spans, Split, StageNodes};
use super::equivalent_chain::equivalent_chain;
use super::join_dp::{JoinDp, JoinOperation, Times, fewest_slots, least_span, most_slots};
use super::segments::is_allowed;
use super::{ForwardPart, Planner, Task};
use crate::bytes::Bytes;
use crate::graph::{NodeId, TensorId, TensorKind};
use crate::plan::Plan;

/// What takes one in so many of the forward part's time is a branch.
const LEAST_PART: u64 = 50;

/// What has so many layers is a branch: vertices that read a matrix of the caller's. Embeddings and
/// masks, which meet early in every language model, have one or two.
const LEAST_LAYERS: u32 = 3;

/// Cells of the table at most; branches are cut into fewer blocks to keep to it.
const MOST_CELLS: usize = 3_000_000;

/// The planner of `join-dp`.
pub(super) fn planner<'t>(task: &'t Task<'t>) -> Box<dyn Planner + 't> {
    let forward = ForwardPart::of(task);
    match JoinGraph::of(task, forward) {
        Ok(graph) => Box::new(Knob::of(task, Box::new(graph))),
        Err(reason) => Box::new(Refusing(reason)),
    }
}

/// A graph cut into branches, with the table for them.
struct JoinGraph<'t> {
    task: &'t Task<'t>,
    forward: ForwardPart,
    branches: Vec<Chain>,
    /// By branch: where its stages begin.
    starts: Vec<usize>,
    /// The turn last.
    stages: Vec<StageNodes>,
    /// Backward nodes that wait for several branches, in the task's order.
    several: Vec<NodeId>,
    /// By node id: a backward node whose turn has to come first.
    waits_for: Vec<Vec<NodeId>>,
    lengths: Vec<usize>,
    /// By branch: the blocks that it could be cut into.
    most: Vec<usize>,
    tables: JoinDp,
}

impl<'t> JoinGraph<'t> {
    fn of(task: &'t Task<'t>, forward: ForwardPart) -> Result<JoinGraph<'t>, String> {
        let edges = VertexEdges::of(task, &forward);
        let found = edges.branches(&forward);
        if found.len() < 2 {
            return Err("its forward part has no branches that meet in the loss".to_owned());
        }
        let cuts: Vec<Vec<usize>> = found.iter().map(|branch| edges.cuts(branch)).collect();
        let most: Vec<usize> = cuts.iter().map(|cuts| cuts.len() + 1).collect();
        let lengths = few_enough(most.clone());
        if JoinDp::cells(&lengths, most_slots(&lengths)) > MOST_CELLS {
            return Err(format!(
                "it has {} branches, more than are planned",
                found.len()
            ));
        }
        let layout = layout(&forward, &found, &cuts, &lengths);
        let split = Split::of(task, &forward, layout);
        let stages: Vec<StageNodes> = (0..split.stages()).map(|i| split.nodes(i)).collect();
        let several = |id: &NodeId| split.stage_of[id.index()] == SEVERAL;
        let several: Vec<NodeId> = task.order.iter().copied().filter(several).collect();
        let none = vec![0; split.stages() + 1];
        let mut starts = Vec::new();
        let mut branches = Vec::new();
        let mut start = 0;
        for &length in &lengths {
            starts.push(start);
            let ids = start..start + length;
            branches.push(Chain {
                stages: ids
                    .map(|i| split.stage(i, &stages[i], &Spans::new(), &none))
                    .collect(),
                ..Chain::default()
            });
            start += length;
        }
        let waits_for = waits_for(task, &forward);
        let tables = JoinDp::solve(&lengths, most_slots(&lengths), Times::UNIT);
        let graph = JoinGraph {
            task,
            forward,
            branches,
            starts,
            stages,
            several,
            waits_for,
            lengths,
            most,
            tables,
        };
        match graph.allowed(graph.count() - 1) {
            Some(_) => Ok(graph),
            None => Err(
                "updates of shared memory fix a sequence that its branches cannot keep".to_owned(),
            ),
        }
    }

    /// The plan with as many slots as the setting says, if its order is allowed.
    fn allowed(&self, setting: usize) -> Option<Plan> {
        let slots = fewest_slots(&self.lengths) + setting;
        let schedule = self.tables.schedule(&self.branches, slots)?;
        let sequence = self.sequence(&schedule);
        let mut seen = vec![false; self.task.graph.node_count()];
        let first = |id: &NodeId| !std::mem::replace(&mut seen[id.index()], true);
        let order: Vec<NodeId> = sequence.iter().copied().filter(first).collect();
        let complete = order.len() == self.task.order.len();
        (complete && is_allowed(self.task, &self.forward, &order)).then_some(Plan {
            sequence,
            ..Plan::default()
        })
    }

    fn sequence(&self, schedule: &[JoinOperation]) -> Vec<NodeId> {
        let mut ran = vec![false; self.stages.len()];
        let mut sequence: Vec<NodeId> = Vec::new();
        let mut done = vec![false; self.task.graph.node_count()];
        let mut waiting = self.several.clone();
        for &operation in schedule {
            let (stage, operation) = match operation {
                JoinOperation::Turn => {
                    let turn = self.stages.len() - 1;
                    (turn, Operation::Backward(turn))
                }
                JoinOperation::Branch(_, Operation::Drop(_)) => continue,
                JoinOperation::Branch(branch, operation) => {
                    (self.starts[branch] + operation.place(), operation)
                }
            };
            let first = !std::mem::replace(&mut ran[stage], true);
            let before = sequence.len();
            self.stages[stage].run(operation, first, &mut sequence);
            for id in &sequence[before..] {
                done[id.index()] = true;
            }
            if matches!(operation, Operation::Backward(_)) {
                waiting.retain(|&id| {
                    let ready = self.waits_for[id.index()].iter().all(|on| done[on.index()]);
                    if ready {
                        done[id.index()] = true;
                        sequence.push(id);
                    }
                    !ready
                });
            }
        }
        sequence
    }
}

impl Settings for JoinGraph<'_> {
    fn count(&self) -> usize {
        most_slots(&self.lengths) + 1 - fewest_slots(&self.lengths)
    }

    fn plan(&self, setting: usize) -> Plan {
        self.allowed(setting)
            .unwrap_or_else(|| self.task.without_copies())
    }

    fn notes(&self, setting: Option<usize>) -> Vec<String> {
        let shown = |lengths: &[usize]| {
            let lengths: Vec<String> = lengths.iter().map(usize::to_string).collect();
            lengths.join(", ")
        };
        let mut notes = vec![format!(
            "{} branches of {} blocks meet in the loss",
            self.lengths.len(),
            shown(&self.lengths)
        )];
        if self.lengths != self.most {
            notes.push(format!(
                "these were merged from {} blocks, which are more than the table is made for",
                shown(&self.most)
            ));
        }
        let sizes = || {
            let stages = self.branches.iter().flat_map(|branch| &branch.stages);
            stages.map(|stage| stage.result)
        };
        let slot = sizes().max().unwrap_or(0);
        let room = slot.saturating_mul(sizes().count() as u64);
        if room > 0 {
            let filled = sizes().fold(0, u64::saturating_add);
            notes.push(format!(
                "every block's result counts as a slot of {}; if all were kept, {:.0} % of their \
                 slots would stay empty",
                Bytes(slot),
                100.0 * (1.0 - filled as f64 / room as f64)
            ));
        }
        if let Some(setting) = setting {
            notes.extend(self.time_notes(setting));
        }
        notes
    }
}

impl JoinGraph<'_> {
    /// What runs again by the model, with the equivalent chain's figure and what blocks take in truth.
    fn time_notes(&self, setting: usize) -> Vec<String> {
        let slots = fewest_slots(&self.lengths) + setting;
        let least = least_span(&self.lengths, Times::UNIT);
        let again = self.tables.cost(slots).unwrap_or(least) - least;
        let chain = match equivalent_chain(&self.lengths, slots, Times::UNIT) {
            Some(span) => format!("runs {} of them again", span - least),
            None => "has no known plan in so many slots".to_owned(),
        };
        let stages = || self.branches.iter().flat_map(|branch| &branch.stages);
        let all = stages().fold(0, |sum, stage| stage.forward_time.saturating_add(sum));
        let mean = all as f64 / stages().count().max(1) as f64;
        let plan = self.plan(setting);
        let plan = plan.without_unread_copies(self.task.graph, self.task.recomputation);
        let step: f64 = self.task.costs.iter().map(|cost| cost.time.0 as f64).sum();
        let part = |time: f64| 100.0 * time / step.max(1.0);
        vec![
            format!(
                "planned with {slots} slots: {again} of equal blocks run again, besides what a block \
                 computes again for its own gradient; the equivalent chain, which does not see the \
                 branches, {chain}"
            ),
            format!(
                "all blocks count as equally long: at their mean time what runs again takes {:.2} % of the \
                 step; in truth it takes {:.2} %, with what blocks compute again for their own gradients",
                part(again as f64 * mean),
                part(self.task.copies_time(&plan) as f64)
            ),
        ]
    }
}

/// Shorter branches, so that the table is small enough.
fn few_enough(mut lengths: Vec<usize>) -> Vec<usize> {
    while JoinDp::cells(&lengths, most_slots(&lengths)) > MOST_CELLS {
        let Some(longest) = lengths.iter_mut().max() else {
            break;
        };
        if *longest == 1 {
            break;
        }
        *longest -= 1;
    }
    lengths
}

/// Stages by branch, in the branches' order, the turn last.
fn layout(
    forward: &ForwardPart,
    branches: &[Vec<u32>],
    cuts: &[Vec<usize>],
    lengths: &[usize],
) -> Layout {
    let turn = lengths.iter().sum::<usize>() as u32;
    let mut of = vec![turn; forward.vertices.len()];
    let (mut above, mut branch_of) = (Vec::new(), Vec::new());
    for (branch, ((vertices, cuts), &length)) in branches.iter().zip(cuts).zip(lengths).enumerate()
    {
        let start = above.len() as u32;
        let chosen: Vec<usize> = (1..length).map(|i| cuts[i * cuts.len() / length]).collect();
        for (place, &vertex) in vertices.iter().enumerate() {
            let stage = chosen.partition_point(|&cut| cut < place);
            of[vertex as usize] = start + stage as u32;
        }
        for i in 0..length as u32 {
            let last = i + 1 == length as u32;
            above.push(if last { turn } else { start + i + 1 });
            branch_of.push(branch as u32);
        }
    }
    above.push(turn);
    branch_of.push(branches.len() as u32);
    Layout {
        of,
        above,
        branch: branch_of,
    }
}

/// By node id: the backward nodes that a backward node comes after.
fn waits_for(task: &Task<'_>, forward: &ForwardPart) -> Vec<Vec<NodeId>> {
    let mut waits_for: Vec<Vec<NodeId>> = vec![Vec::new(); task.graph.node_count()];
    for &id in task.order.iter().filter(|id| forward.backward[id.index()]) {
        let reads = task.graph.node(id).reads();
        let producers = reads.filter_map(|tensor| forward.producer(tensor));
        waits_for[id.index()].extend(producers.filter(|p| forward.backward[p.index()]));
    }
    for &(first, second) in task.sequences {
        if forward.backward[first.index()] {
            waits_for[second.index()].push(first);
        }
    }
    waits_for
}

/// Which vertex reads which, by tensors alone.
struct VertexEdges {
    before: Vec<Vec<u32>>,
    after: Vec<Vec<u32>>,
    /// Does it read a matrix, or something with more dimensions, of the caller's?
    is_layer: Vec<bool>,
}

impl VertexEdges {
    fn of(task: &Task<'_>, forward: &ForwardPart) -> VertexEdges {
        let count = forward.vertices.len();
        let mut edges = VertexEdges {
            before: vec![Vec::new(); count],
            after: vec![Vec::new(); count],
            is_layer: vec![false; count],
        };
        let mut all = BTreeSet::new();
        for (v, vertex) in forward.vertices.iter().enumerate() {
            for &id in &vertex.nodes {
                let reads = || task.graph.node(id).reads();
                let is_matrix = |tensor: TensorId| {
                    let tensor = task.graph.tensor(tensor);
                    let rank = tensor.shape.as_ref().map_or(0, Vec::len);
                    tensor.kind != TensorKind::Value && rank >= 2
                };
                edges.is_layer[v] |= reads().any(is_matrix);
                let read = reads().filter_map(|tensor| forward.vertex(tensor));
                all.extend(read.map(|u| (u, v as u32)).filter(|(u, v)| u < v));
            }
        }
        for (u, v) in all {
            edges.after[u as usize].push(v);
            edges.before[v as usize].push(u);
        }
        edges
    }

    /// The vertices of every branch, ascending, by their first vertex.
    fn branches(&self, forward: &ForwardPart) -> Vec<Vec<u32>> {
        let count = forward.vertices.len();
        let enough = forward.time() / LEAST_PART;
        // A forest of parts that are not connected so far.
        let mut parent: Vec<usize> = (0..count).collect();
        let mut time: Vec<u64> = forward.vertices.iter().map(|v| v.time).collect();
        let mut layers: Vec<u32> = self.is_layer.iter().map(|&is| u32::from(is)).collect();
        let is_large = |time: u64, layers: u32| time >= enough || layers >= LEAST_LAYERS;
        let mut turn = vec![false; count];
        let mut meets = vec![false; count];
        fn root(parent: &mut [usize], mut v: usize) -> usize {
            while parent[v] != v {
                parent[v] = parent[parent[v]];
                v = parent[v];
            }
            v
        }
        for v in 0..count {
            let before: BTreeSet<usize> = self.before[v]
                .iter()
                .filter(|&&u| !turn[u as usize])
                .map(|&u| root(&mut parent, u as usize))
                .collect();
            let large = before.iter().filter(|&&u| is_large(time[u], layers[u]));
            turn[v] = large.count() > 1 || self.before[v].iter().any(|&u| turn[u as usize]);
            if turn[v] {
                for u in before {
                    meets[u] = true;
                }
                continue;
            }
            for u in before {
                parent[u] = v;
                time[v] = time[v].saturating_add(time[u]);
                layers[v] += layers[u];
                meets[v] |= meets[u];
            }
        }
        let mut branches: Vec<(usize, Vec<u32>)> = Vec::new();
        let mut inside = 0u64;
        for v in (0..count).filter(|&v| !turn[v]) {
            let root = root(&mut parent, v);
            if !meets[root] || !is_large(time[root], layers[root]) {
                continue;
            }
            inside = inside.saturating_add(forward.vertices[v].time);
            match branches.iter_mut().find(|branch| branch.0 == root) {
                Some(branch) => branch.1.push(v as u32),
                None => branches.push((root, vec![v as u32])),
            }
        }
        // What meets early in a long network does not meet in the loss.
        if inside < forward.time() / 2 {
            return Vec::new();
        }
        branches.into_iter().map(|branch| branch.1).collect()
    }

    /// Places in the branch behind which it can be cut: nothing before reads across.
    fn cuts(&self, branch: &[u32]) -> Vec<usize> {
        let mut cuts = Vec::new();
        let mut reach = 0;
        for (place, &v) in branch.iter().enumerate() {
            if reach <= place && place + 1 < branch.len() {
                cuts.push(place);
            }
            for reader in &self.after[v as usize] {
                reach = reach.max(branch.binary_search(reader).unwrap_or(branch.len()));
            }
        }
        cuts
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::super::Strategy;
    use super::super::tests::{options, with_task};
    use super::*;
    use crate::graph::Graph;
    use crate::optimize::{BudgetRequest, optimize};

    const UNIT: u64 = 1 << 20;

    /// Branches of so many equal layers that meet in a sum; their gradients meet in another.
    fn join(lengths: &[usize]) -> Graph {
        let float = "float[512, 512]";
        let (mut values, mut forward, mut turn, mut backward) = (vec![], vec![], vec![], vec![]);
        for (b, &length) in lengths.iter().enumerate() {
            for i in 0..length {
                values.push(format!("{float} x{b}_{}, {float} d{b}_{i}", i + 1));
                forward.push(format!("x{b}_{} = com.microsoft.Gelu(x{b}_{i})", i + 1));
                backward.push(format!(
                    "d{b}_{i} = com.microsoft.GeluGrad(d{b}_{}, x{b}_{i})",
                    i + 1
                ));
            }
            values.push(format!("{float} d{b}_{length}"));
            turn.push(format!(
                "d{b}_{length} = com.microsoft.ReluGrad(s, x{b}_{length})"
            ));
        }
        // The last layer's gradient first.
        backward.reverse();
        let all = |name: &dyn Fn(usize) -> String| {
            (0..lengths.len()).map(name).collect::<Vec<_>>().join(", ")
        };
        let text = format!(
            "join ({}) => (loss, {float} total) <float loss, {float} s, {}> {{
                {}
                s = Sum({})
                loss = ReduceMean <keepdims = 0> (s)
                {}
                {}
                total = Sum({})
            }}",
            all(&|b| format!("{float} x{b}_0")),
            values.join(", "),
            forward.join("\n"),
            all(&|b| format!("x{b}_{}", lengths[b])),
            turn.join("\n"),
            backward.join("\n"),
            all(&|b| format!("d{b}_0")),
        );
        Graph::parse(&text).unwrap()
    }

    #[test]
    fn uniform_joins_run_again_what_the_theorem_says() {
        for lengths in [vec![3, 3], vec![2, 6], vec![4, 4, 4]] {
            let graph = join(&lengths);
            with_task(&graph, |task| {
                let join = JoinGraph::of(task, ForwardPart::of(task)).unwrap();
                assert_eq!(join.lengths, lengths);
                for setting in 0..join.count() {
                    let slots = fewest_slots(&lengths) + setting;
                    let plan = join.allowed(setting).unwrap();
                    let plan = plan.without_unread_copies(task.graph, task.recomputation);
                    let copies = plan.sequence.len() - graph.node_count();
                    let least = least_span(&lengths, Times::UNIT);
                    let added = join.tables.cost(slots).unwrap() - least;
                    assert_eq!(copies as u64, added, "{lengths:?}, {slots} slots");
                    // Beyond the slots: a result beside what it is computed from, since nothing is
                    // in place; the x_0 of all branches but one, which the caller keeps to the end;
                    // and the sum in the turn. The loss and its kernel's workspace are small.
                    let most = (slots + lengths.len() + 1) as u64 * UNIT + 4096;
                    let peak = task.judge(plan).predicted_peak;
                    assert!(
                        peak <= Bytes(most),
                        "{lengths:?}, {slots} slots: {}",
                        peak.0
                    );
                }
            });
        }
    }

    #[test]
    fn the_notes_set_the_equivalent_chain_and_the_true_times_beside_the_plan() {
        // Like the triplet and the cross-modal network.
        for lengths in [vec![6, 6, 6], vec![2, 8]] {
            let graph = join(&lengths);
            let said = with_task(&graph, |task| {
                let join = JoinGraph::of(task, ForwardPart::of(task)).unwrap();
                join.notes(Some(2)).split_off(2).join("\n")
            });
            match lengths.len() {
                3 => assert_snapshot!(said, @r"
                planned with 9 slots: 12 of equal blocks run again, besides what a block computes again for its own gradient; the equivalent chain, which does not see the branches, runs 30 of them again
                all blocks count as equally long: at their mean time what runs again takes 7.41 % of the step; in truth it takes 7.41 %, with what blocks compute again for their own gradients
                "),
                _ => assert_snapshot!(said, @r"
                planned with 7 slots: 5 of equal blocks run again, besides what a block computes again for its own gradient; the equivalent chain, which does not see the branches, runs 5 of them again
                all blocks count as equally long: at their mean time what runs again takes 5.47 % of the step; in truth it takes 5.47 %, with what blocks compute again for their own gradients
                "),
            }
        }
    }

    #[test]
    fn merged_blocks_are_reported() {
        let graph = join(&[40, 40, 40]);
        with_task(&graph, |task| {
            let join = JoinGraph::of(task, ForwardPart::of(task)).unwrap();
            let notes = join.notes(None);
            // 32 · 31 · 31 remaining lengths and 95 slots are 2.9 million cells.
            assert_snapshot!(notes[..2].join("\n"), @r"
            3 branches of 31, 30, 30 blocks meet in the loss
            these were merged from 40, 40, 40 blocks, which are more than the table is made for
            ");
        });
    }

    #[test]
    fn plans_for_joins_are_verified_and_within_the_budget() {
        let graph = join(&[8, 5, 8]);
        let mut recomputed = Vec::new();
        for budget in [
            BudgetRequest::PartOfPeak(0.9),
            BudgetRequest::PartOfPeak(0.7),
            BudgetRequest::Smallest,
        ] {
            // `optimize` verifies what it returns.
            let summary = optimize(&graph, &options(Strategy::JoinDp, budget))
                .unwrap()
                .summary;
            assert!(summary.after.bytes <= summary.budget);
            // Which branch runs first is up to the order.
            assert!(
                summary.notes[0].starts_with("3 branches of "),
                "{:?}",
                summary.notes
            );
            recomputed.push(summary.recomputed_nodes);
        }
        assert!(
            recomputed[0] > 0 && recomputed.is_sorted(),
            "{recomputed:?}"
        );
    }

    #[test]
    fn a_graph_without_branches_is_refused() {
        let graph = join(&[6]);
        let error = optimize(&graph, &options(Strategy::JoinDp, BudgetRequest::Smallest));
        insta::assert_snapshot!(error.unwrap_err(), @"--strategy join-dp cannot plan this graph: its forward part has no branches that meet in the loss");
    }

    #[test]
    fn long_branches_are_cut_into_fewer_blocks() {
        assert_eq!(few_enough(vec![3, 5]), [3, 5]);
        let lengths = few_enough(vec![400, 10, 90]);
        assert!(JoinDp::cells(&lengths, most_slots(&lengths)) <= MOST_CELLS);
        assert_eq!(lengths[1], 10);
    }
}
