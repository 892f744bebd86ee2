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

use std::collections::{BTreeMap, BTreeSet};

use super::chain::{Chain, Operation, Stage};
use super::segments::is_allowed;
use super::{ForwardPart, Segments, Task};
use crate::bytes::Bytes;
use crate::graph::{NodeId, TensorId, TensorKind};
use crate::operators;
use crate::plan::Plan;

/// A graph cut into a chain.
pub(super) struct ChainGraph {
    /// The chain with the graph's times in nanoseconds and sizes in bytes.
    pub(super) chain: Chain,
    /// How many articulation points separate the graph; fewer are used where there are too many.
    pub(super) points: usize,
    stages: Vec<StageNodes>,
}

/// The nodes of one stage.
#[derive(Clone, Debug, Default)]
struct StageNodes {
    /// Forward nodes, as they first run.
    first: Vec<NodeId>,
    /// What runs again for the result.
    forward: Vec<NodeId>,
    /// What runs again for the backward part.
    replay: Vec<NodeId>,
    /// The backward part.
    backward: Vec<NodeId>,
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
        let split = Split::of(task, forward, of);
        let stages: Vec<StageNodes> = (0..split.stages).map(|i| split.nodes(i)).collect();
        let first = stages.iter().flat_map(|stage| &stage.first);
        let second = stages.iter().rev().flat_map(|stage| &stage.backward);
        let order: Vec<NodeId> = first.chain(second).copied().collect();
        if !is_allowed(task, forward, &order) {
            return Err(
                "updates of shared memory fix a sequence that its chain of blocks cannot keep"
                    .to_owned(),
            );
        }
        let gradients = split.gradients();
        let chain = Chain {
            input: 0,
            upstream: 0,
            stages: (0..split.stages)
                .map(|i| split.stage(i, &stages[i], &gradients))
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
            let stage = &self.stages[i];
            let first = !std::mem::replace(&mut ran[i], true);
            match operation {
                _ if first => sequence.extend(&stage.first),
                Operation::Forward(_) => sequence.extend(&stage.forward),
                // The internals come with the result.
                Operation::Tape(_) => {
                    let both: BTreeSet<NodeId> =
                        stage.forward.iter().chain(&stage.replay).copied().collect();
                    sequence.extend(stage.first.iter().filter(|id| both.contains(id)));
                }
                Operation::Replay(_) => sequence.extend(&stage.replay),
                _ => {}
            }
            if let Operation::Backward(_) = operation {
                sequence.extend(&stage.backward);
            }
        }
        Plan {
            sequence,
            predicted_peak: Bytes::ZERO,
        }
    }
}

/// Which stage everything belongs to.
struct Split<'s> {
    task: &'s Task<'s>,
    forward: &'s ForwardPart,
    stages: usize,
    /// By vertex.
    of: Vec<u32>,
    /// By node id: its stage.
    stage_of: Vec<u32>,
    /// By tensor: the tensor whose memory it lies in.
    roots: Vec<TensorId>,
    /// Memory that a stage hands on to the next, by its first tensor.
    handed_on: BTreeSet<TensorId>,
}

impl<'s> Split<'s> {
    fn of(task: &'s Task<'s>, forward: &'s ForwardPart, of: Vec<u32>) -> Split<'s> {
        let graph = task.graph;
        let mut roots: Vec<TensorId> = graph.tensor_ids().collect();
        for &id in task.order {
            let node = graph.node(id);
            for (output, input) in operators::aliases(node) {
                if let (Some(output), Some(input)) = (node.output(output), node.input(input)) {
                    roots[output.index()] = roots[input.index()];
                }
            }
        }
        let mut split = Split {
            task,
            forward,
            stages: of.iter().max().map_or(0, |last| *last as usize + 1),
            of,
            stage_of: vec![0; graph.node_count()],
            roots,
            handed_on: BTreeSet::new(),
        };
        for &id in task.order {
            if !forward.backward[id.index()] {
                split.place_forward(id);
            }
        }
        for &id in task.order {
            if forward.backward[id.index()] {
                split.stage_of[id.index()] = split.backward_stage(id);
            }
        }
        split
    }

    fn root(&self, tensor: TensorId) -> TensorId {
        self.roots[tensor.index()]
    }

    /// Bytes of the memory that starts with `root`; 0 for what the caller owns.
    fn bytes(&self, root: TensorId) -> u64 {
        let tensor = self.task.graph.tensor(root);
        match tensor.kind {
            TensorKind::Value => tensor.bytes().map_or(0, |bytes| bytes.0),
            _ => 0,
        }
    }

    fn place_forward(&mut self, id: NodeId) {
        let reads: Vec<TensorId> = self.task.graph.node(id).reads().collect();
        let behind = reads
            .iter()
            .filter_map(|&tensor| self.forward.producer(tensor))
            .map(|producer| self.stage_of[producer.index()]);
        let stage = match self.forward.vertex_of[id.index()] {
            Some(vertex) => self.of[vertex as usize],
            None => behind.max().unwrap_or(0),
        };
        self.stage_of[id.index()] = stage;
        if self.forward.vertex_of[id.index()].is_none() {
            return;
        }
        for tensor in reads {
            if let Some(vertex) = self.forward.vertex(tensor)
                && self.of[vertex as usize] < stage
            {
                self.handed_on.insert(self.root(tensor));
            }
        }
    }

    /// The latest stage, run from the last to the first, at whose turn the node can run.
    fn backward_stage(&self, id: NodeId) -> u32 {
        let last = self.stages.saturating_sub(1) as u32;
        let reads = self.task.graph.node(id).reads().filter_map(|tensor| {
            if let Some(vertex) = self.forward.vertex(tensor) {
                let above = u32::from(self.handed_on.contains(&self.root(tensor)));
                return Some(self.of[vertex as usize] + above);
            }
            self.backward_of(self.forward.producer(tensor)?)
        });
        let earlier = self.task.sequences.iter().filter(|pair| pair.1 == id);
        let earlier = earlier.filter_map(|pair| self.backward_of(pair.0));
        reads.chain(earlier).fold(last, u32::min)
    }

    fn backward_of(&self, id: NodeId) -> Option<u32> {
        self.forward.backward[id.index()].then(|| self.stage_of[id.index()])
    }

    fn nodes(&self, i: usize) -> StageNodes {
        let order = self.task.order.iter().copied();
        let (backward, first): (Vec<NodeId>, Vec<NodeId>) = order
            .filter(|id| self.stage_of[id.index()] as usize == i)
            .partition(|id| self.forward.backward[id.index()]);
        let (mut results, mut wanted) = (BTreeSet::new(), BTreeSet::new());
        for &id in &first {
            let Some(vertex) = self.forward.vertex_of[id.index()] else {
                continue;
            };
            let roots = self.task.graph.node(id).writes().map(|t| self.root(t));
            if roots.into_iter().any(|root| self.handed_on.contains(&root)) {
                results.insert(vertex);
            }
        }
        for &id in self.task.order {
            if !self.forward.backward[id.index()] {
                continue;
            }
            for tensor in self.task.graph.node(id).reads() {
                let Some(vertex) = self.forward.vertex(tensor) else {
                    continue;
                };
                let handed_on = self.handed_on.contains(&self.root(tensor));
                let here = self.stage_of[id.index()] as usize <= i;
                if self.of[vertex as usize] as usize == i && (!handed_on || here) {
                    wanted.insert(vertex);
                }
            }
        }
        let again = |of: BTreeSet<u32>| {
            let needed = self.needed(of, i);
            let runs = |id: &&NodeId| {
                let vertex = self.forward.vertex_of[id.index()];
                vertex.is_some_and(|vertex| needed.contains(&vertex))
            };
            first.iter().filter(runs).copied().collect()
        };
        StageNodes {
            forward: again(results),
            replay: again(wanted),
            first,
            backward,
        }
    }

    /// What has to run again in stage i for these vertices.
    fn needed(&self, of: BTreeSet<u32>, i: usize) -> BTreeSet<u32> {
        let mut needed = BTreeSet::new();
        let mut open: Vec<u32> = of.into_iter().collect();
        while let Some(v) = open.pop() {
            let vertex = &self.forward.vertices[v as usize];
            if self.of[v as usize] as usize == i && vertex.recomputable && needed.insert(v) {
                open.extend(&vertex.before);
            }
        }
        needed
    }

    /// By i: the size of g_i, what backward parts from i on leave for those before.
    fn gradients(&self) -> Vec<u64> {
        // By memory: the stages that write and read it.
        let mut spans: BTreeMap<TensorId, (u32, u32)> = BTreeMap::new();
        for &id in self.task.order {
            let node = self.task.graph.node(id);
            let stage = self.stage_of[id.index()];
            if !self.forward.backward[id.index()] {
                continue;
            }
            for tensor in node.writes() {
                let span = spans.entry(self.root(tensor)).or_insert((stage, stage));
                span.0 = span.0.max(stage);
            }
            for tensor in node.reads() {
                if let Some(span) = spans.get_mut(&self.root(tensor)) {
                    span.1 = span.1.min(stage);
                }
            }
        }
        let mut sizes = vec![0u64; self.stages + 1];
        for (root, (written, read)) in spans {
            for size in &mut sizes[read as usize + 1..=(written as usize).max(read as usize)] {
                *size = size.saturating_add(self.bytes(root));
            }
        }
        sizes
    }

    fn stage(&self, i: usize, nodes: &StageNodes, gradients: &[u64]) -> Stage {
        let forward = self.forward;
        let mut result = BTreeSet::new();
        for &id in &nodes.first {
            let roots = self.task.graph.node(id).writes().map(|t| self.root(t));
            result.extend(roots.filter(|root| self.handed_on.contains(root)));
        }
        let repeated: BTreeSet<NodeId> = nodes.replay.iter().copied().collect();
        let mut internals = BTreeSet::new();
        for &id in self
            .task
            .order
            .iter()
            .filter(|id| forward.backward[id.index()])
        {
            for tensor in self.task.graph.node(id).reads() {
                let producer = forward.producer(tensor);
                if producer.is_some_and(|producer| repeated.contains(&producer)) {
                    internals.insert(self.root(tensor));
                }
            }
        }
        let reads_result = internals.iter().any(|root| result.contains(root));
        let sum = |roots: &mut dyn Iterator<Item = &TensorId>| {
            let sizes = roots.map(|&root| self.bytes(root));
            sizes.fold(0, u64::saturating_add)
        };
        let time = |nodes: &[NodeId]| {
            let times = nodes.iter().map(|id| self.task.costs[id.index()].time.0);
            times.fold(0, u64::saturating_add)
        };
        let turn = i + 1 == self.stages;
        let in_forward = self.in_passing(&nodes.first);
        let in_backward = self.in_passing(&nodes.backward);
        let result_bytes = sum(&mut result.iter());
        Stage {
            forward_time: time(&nodes.forward),
            replay_time: if turn { 0 } else { time(&nodes.replay) },
            backward_time: time(&nodes.backward),
            result: result_bytes,
            internals: match turn {
                true => 0,
                false => sum(&mut internals.difference(&result)),
            },
            reads_result: reads_result && !turn,
            gradient: gradients[i],
            forward_workspace: in_forward.saturating_sub(result_bytes),
            backward_workspace: match turn {
                true => in_forward.max(in_backward),
                false => in_backward.saturating_sub(gradients[i]),
            },
        }
    }

    /// The most that the nodes need at once of what only they write and read, and for workspace.
    fn in_passing(&self, nodes: &[NodeId]) -> u64 {
        let mut last: BTreeMap<TensorId, usize> = BTreeMap::new();
        for (step, &id) in nodes.iter().enumerate() {
            let node = self.task.graph.node(id);
            for tensor in node.reads().chain(node.writes()) {
                last.insert(self.root(tensor), step);
            }
        }
        let mut live: BTreeSet<TensorId> = BTreeSet::new();
        let (mut held, mut most) = (0u64, 0u64);
        for (step, &id) in nodes.iter().enumerate() {
            let node = self.task.graph.node(id);
            for tensor in node.writes() {
                let root = self.root(tensor);
                if live.insert(root) {
                    held = held.saturating_add(self.bytes(root));
                }
            }
            let workspace = self.task.costs[id.index()].workspace.0;
            most = most.max(held.saturating_add(workspace));
            for tensor in node.reads().chain(node.writes()) {
                let root = self.root(tensor);
                if last.get(&root) == Some(&step) && live.remove(&root) {
                    held = held.saturating_sub(self.bytes(root));
                }
            }
        }
        most
    }
}
