//! A training graph as a chain of stages, and a schedule of the chain as a plan of the graph.
//!
//! A graph that is no chain becomes one as chapter 5.2 of Butt's thesis (2019) suggests: only
//! vertices that separate the graph can be checkpoints. It is cut at the articulation points of
//! its forward part; a stage is what lies between two of them, and what is behind the last is the
//! turn; [`Ends`] has what is special about the first layer and the last block. A backward node belongs to the
//! earliest stage whose values it needs, and what only reads the result of a stage and the gradient that reaches
//! it belongs to the stage above. What the caller hands in to the forward part of one stage counts as a value
//! of that stage: the first layer's gradient reads the data as the others read results (the thesis' f_0).
//!
//! What the chain does not know: memory that stages need in passing is estimated node by node, in
//! place or not; values that cannot be repeated stay where they are. So plans are judged on the
//! graph, and the chain only proposes.

use super::chain::{Chain, Operation};
use super::chain_split::{Layout, Split, StageNodes};
use super::segments::is_allowed;
use super::{ForwardPart, Segments, Task};
use crate::graph::NodeId;
use crate::plan::Plan;

/// Where the chain's ends are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// A path's ends are no articulation points: the first stage holds the first two layers, the
    /// turn is what is behind the last point.
    Points,
    /// The first layer is a stage.
    First,
    /// The first layer is a stage, and the last block belongs to the turn. Where stages are counted
    /// instead of sizes, this is right for equal ones: no gradient waits for the turn, so the
    /// block's result has the place of one.
    Both,
}

/// A graph cut into a chain.
pub(super) struct ChainGraph {
    /// The chain with the graph's times in nanoseconds and sizes in bytes.
    pub(super) chain: Chain,
    /// How many articulation points separate the graph; fewer are used where there are too many.
    pub(super) points: usize,
    stages: Vec<StageNodes>,
}

impl ChainGraph {
    /// Cuts the graph into at most `most` stages (at least 2). The error says why it cannot
    /// be.
    pub(super) fn of(
        task: &Task<'_>,
        forward: &ForwardPart,
        most: usize,
        ends: Ends,
    ) -> Result<ChainGraph, String> {
        let mut all = forward.cuts();
        if all.is_empty() {
            return Err(
                "its forward part has no articulation point, so it is no chain of blocks"
                    .to_owned(),
            );
        }
        if ends != Ends::Points && starts_with_one_vertex(forward, all[0]) {
            all.insert(0, 0);
        }
        let count = all.len().min(most.max(2) - 1);
        let cuts: Vec<u32> = (0..count)
            .map(|i| all[(i + 1) * all.len() / count - 1])
            .collect();
        let kept = match ends {
            Ends::Both if count > 1 => count - 1,
            _ => count,
        };
        let of = Segments::behind(forward, &cuts[..kept]).of;
        ChainGraph::with_stages(task, forward, of, all.len())
    }

    /// The chain whose stage numbers by vertex are `of`, ascending.
    fn with_stages(
        task: &Task<'_>,
        forward: &ForwardPart,
        of: Vec<u32>,
        points: usize,
    ) -> Result<ChainGraph, String> {
        let split = Split::of(task, forward, Layout::chain(of));
        let stages: Vec<StageNodes> = (0..split.stages()).map(|i| split.nodes(i)).collect();
        let first = stages.iter().flat_map(|stage| &stage.first);
        let second = stages.iter().rev().flat_map(|stage| &stage.backward);
        let order: Vec<NodeId> = first.chain(second).copied().collect();
        if !is_allowed(task, forward, &order) {
            return Err(
                "updates of shared memory fix a sequence that its chain of blocks cannot keep"
                    .to_owned(),
            );
        }
        let spans = split.spans();
        let gradients = split.gradients(&spans);
        let chain = Chain {
            input: 0,
            upstream: 0,
            stages: (0..split.stages())
                .map(|i| split.stage(i, &stages[i], &spans, &gradients))
                .collect(),
        };
        Ok(ChainGraph {
            chain,
            points,
            stages,
        })
    }

    /// The plan that runs the operations.
    pub(super) fn plan(&self, schedule: &[Operation]) -> Plan {
        let mut ran = vec![false; self.stages.len()];
        let mut sequence = Vec::new();
        let runs = |operation: &&Operation| !matches!(operation, Operation::Drop(_));
        for &operation in schedule.iter().filter(runs) {
            let i = operation.place();
            let first = !std::mem::replace(&mut ran[i], true);
            self.stages[i].run(operation, first, &mut sequence);
        }
        Plan {
            sequence,
            ..Plan::default()
        }
    }
}

/// Is everything up to the first cut computed from the first vertex? Then that is a checkpoint like
/// the others: an articulation point, if what the caller hands in counts as a vertex.
fn starts_with_one_vertex(forward: &ForwardPart, cut: u32) -> bool {
    let others = &forward.vertices[1..=cut as usize];
    cut > 0 && others.iter().all(|vertex| !vertex.before.is_empty())
}
