//! A training graph as a chain of stages, and a schedule of the chain as a plan of the graph.
//!
//! A graph that is no chain becomes one as chapter 5.2 of Butt's thesis (2019) suggests: only
//! vertices that separate the graph can be checkpoints. It is cut at the articulation points of
//! its forward part; a stage is what lies between two of them, and what is behind the last is the
//! turn. A backward node belongs to the earliest stage whose values it needs, and what only reads
//! the result of a stage and the gradient that reaches it belongs to the stage above.
//!
//! What the chain does not know: memory that stages need in passing is estimated node by node, in
//! place or not; values that cannot be repeated stay where they are. So plans are judged on the
//! graph, and the chain only proposes.

use super::chain::{Chain, Operation};
use super::chain_split::{Layout, Split, StageNodes};
use super::segments::is_allowed;
use super::{ForwardPart, Segments, Task};
use crate::bytes::Bytes;
use crate::graph::NodeId;
use crate::plan::Plan;

/// A graph cut into a chain.
pub(super) struct ChainGraph {
    /// The chain with the graph's times in nanoseconds and sizes in bytes.
    pub(super) chain: Chain,
    /// How many articulation points separate the graph; fewer are used where there are too many.
    pub(super) points: usize,
    stages: Vec<StageNodes>,
}

impl ChainGraph {
    /// Cuts the graph into at most `most` stages (at least 2). The error says why it cannot be.
    pub(super) fn of(
        task: &Task<'_>,
        forward: &ForwardPart,
        most: usize,
    ) -> Result<ChainGraph, String> {
        let all = forward.cuts();
        if all.is_empty() {
            return Err(
                "its forward part has no articulation point, so it is no chain of blocks"
                    .to_owned(),
            );
        }
        let count = all.len().min(most.max(2) - 1);
        let cuts: Vec<u32> = (0..count)
            .map(|i| all[(i + 1) * all.len() / count - 1])
            .collect();
        let of = Segments::behind(forward, &cuts).of;
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
        for &operation in schedule {
            let (Operation::Forward(i)
            | Operation::Tape(i)
            | Operation::Replay(i)
            | Operation::Backward(i)) = operation
            else {
                continue;
            };
            let first = !std::mem::replace(&mut ran[i], true);
            self.stages[i].run(operation, first, &mut sequence);
        }
        Plan {
            sequence,
            predicted_peak: Bytes::ZERO,
        }
    }
}
