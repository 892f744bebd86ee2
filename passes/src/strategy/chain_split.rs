//! Which stage of a chain, or of chains that meet, every node of a graph belongs to.

use std::collections::{BTreeMap, BTreeSet};

use super::chain::{Operation, Stage};
use super::{ForwardPart, Task};
use crate::graph::{NodeId, TensorId, TensorKind};
use crate::operators;

/// The nodes of one stage.
#[derive(Clone, Debug, Default)]
pub(super) struct StageNodes {
    /// Forward nodes, as they first run.
    pub(super) first: Vec<NodeId>,
    /// What runs again for the result.
    pub(super) forward: Vec<NodeId>,
    /// What runs again for the backward part.
    pub(super) replay: Vec<NodeId>,
    /// The backward part.
    pub(super) backward: Vec<NodeId>,
}

impl StageNodes {
    /// What an operation of a schedule runs; `first` says that nothing of the stage has run yet.
    pub(super) fn run(&self, operation: Operation, first: bool, sequence: &mut Vec<NodeId>) {
        match operation {
            Operation::Drop(_) => {}
            _ if first => sequence.extend(&self.first),
            Operation::Forward(_) => sequence.extend(&self.forward),
            // The internals come with the result.
            Operation::Tape(_) => {
                let both: BTreeSet<NodeId> =
                    self.forward.iter().chain(&self.replay).copied().collect();
                sequence.extend(self.first.iter().filter(|id| both.contains(id)));
            }
            Operation::Replay(_) => sequence.extend(&self.replay),
            Operation::Backward(_) => {}
        }
        if let Operation::Backward(_) = operation {
            sequence.extend(&self.backward);
        }
    }
}

/// By the memory that backward parts write: the stage that writes it, and the last that reads it.
pub(super) type Spans = BTreeMap<TensorId, (u32, u32)>;

/// Which stage comes after which.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// By vertex: its stage. The turn is the last one.
    pub(super) of: Vec<u32>,
    /// By stage: the stage that reads its result.
    pub(super) above: Vec<u32>,
    /// By stage: its branch. Stages of one branch have ascending numbers.
    pub(super) branch: Vec<u32>,
}

/// The stage of backward nodes that wait for several branches.
pub(super) const SEVERAL: u32 = u32::MAX;

impl Layout {
    /// A chain of stages that are numbered as they follow each other.
    pub(super) fn chain(of: Vec<u32>) -> Layout {
        let stages = of.iter().max().map_or(0, |last| last + 1);
        Layout {
            of,
            above: (1..=stages)
                .map(|i| i.min(stages.saturating_sub(1)))
                .collect(),
            branch: vec![0; stages as usize],
        }
    }

    fn stages(&self) -> usize {
        self.above.len()
    }

    /// The stage, run from the last to the first, at which all of these are over.
    fn latest(&self, stages: impl Iterator<Item = u32>) -> u32 {
        let turn = self.stages().saturating_sub(1) as u32;
        stages.fold(turn, |latest, stage| match (latest, stage) {
            (SEVERAL, _) | (_, SEVERAL) => SEVERAL,
            (latest, stage) if latest == turn => stage,
            (latest, stage) if stage == turn => latest,
            (latest, stage) if self.branch[latest as usize] == self.branch[stage as usize] => {
                latest.min(stage)
            }
            _ => SEVERAL,
        })
    }
}

/// Which stage everything belongs to.
pub(super) struct Split<'s> {
    task: &'s Task<'s>,
    forward: &'s ForwardPart,
    layout: Layout,
    /// By node id: its stage, or [`SEVERAL`].
    pub(super) stage_of: Vec<u32>,
    /// By tensor: the tensor whose memory it lies in.
    roots: Vec<TensorId>,
    /// Memory that a stage hands on to the next, by its first tensor.
    handed_on: BTreeSet<TensorId>,
    /// What the caller hands in: the stages whose forward parts read it.
    handed_in: BTreeMap<TensorId, BTreeSet<u32>>,
}

impl<'s> Split<'s> {
    pub(super) fn of(task: &'s Task<'s>, forward: &'s ForwardPart, layout: Layout) -> Split<'s> {
        let graph = task.graph;
        let mut roots: Vec<TensorId> = graph.tensor_ids().collect();
        for &id in task.order {
            for (output, input) in operators::aliased(graph.node(id)) {
                roots[output.index()] = roots[input.index()];
            }
        }
        let mut split = Split {
            task,
            forward,
            layout,
            stage_of: vec![0; graph.node_count()],
            roots,
            handed_on: BTreeSet::new(),
            handed_in: BTreeMap::new(),
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

    /// How many stages there are.
    pub(super) fn stages(&self) -> usize {
        self.layout.stages()
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
            Some(vertex) => self.layout.of[vertex as usize],
            None => behind.max().unwrap_or(0),
        };
        self.stage_of[id.index()] = stage;
        if self.forward.vertex_of[id.index()].is_none() {
            return;
        }
        for tensor in reads {
            match self.forward.vertex(tensor) {
                Some(vertex) if self.layout.of[vertex as usize] != stage => {
                    self.handed_on.insert(self.root(tensor));
                }
                None if self.forward.producer(tensor).is_none() => {
                    self.handed_in.entry(tensor).or_default().insert(stage);
                }
                _ => {}
            }
        }
    }

    /// The latest stage, run from the last to the first, at whose turn the node can run.
    fn backward_stage(&self, id: NodeId) -> u32 {
        let reads = self.task.graph.node(id).reads().filter_map(|tensor| {
            if let Some(vertex) = self.forward.vertex(tensor) {
                let stage = self.layout.of[vertex as usize];
                let handed_on = self.handed_on.contains(&self.root(tensor));
                let above = self.layout.above[stage as usize];
                return Some(if handed_on { above } else { stage });
            }
            if let Some(stages) = self.handed_in.get(&tensor)
                && stages.len() == 1
            {
                return stages.first().copied();
            }
            self.backward_of(self.forward.producer(tensor)?)
        });
        let earlier = self.task.sequences.iter().filter(|pair| pair.1 == id);
        let earlier = earlier.filter_map(|pair| self.backward_of(pair.0));
        self.layout.latest(reads.chain(earlier))
    }

    fn backward_of(&self, id: NodeId) -> Option<u32> {
        self.forward.backward[id.index()].then(|| self.stage_of[id.index()])
    }

    pub(super) fn nodes(&self, i: usize) -> StageNodes {
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
                let here = self.is_at_or_below(id, i);
                if self.layout.of[vertex as usize] as usize == i && (!handed_on || here) {
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

    /// Does the backward node run at stage i or after it?
    fn is_at_or_below(&self, id: NodeId, i: usize) -> bool {
        let stage = self.stage_of[id.index()] as usize;
        let branch = |stage: usize| self.layout.branch.get(stage);
        stage <= i && branch(stage) == branch(i)
    }

    /// What has to run again in stage i for these vertices.
    fn needed(&self, of: BTreeSet<u32>, i: usize) -> BTreeSet<u32> {
        let mut needed = BTreeSet::new();
        let mut open: Vec<u32> = of.into_iter().collect();
        while let Some(v) = open.pop() {
            let vertex = &self.forward.vertices[v as usize];
            if self.layout.of[v as usize] as usize == i && vertex.recomputable && needed.insert(v) {
                open.extend(&vertex.before);
            }
        }
        needed
    }

    /// By i: the size of g_i, what backward parts from i on leave for those before.
    pub(super) fn gradients(&self, spans: &Spans) -> Vec<u64> {
        let mut sizes = vec![0u64; self.layout.stages() + 1];
        for (&root, &(written, read)) in spans {
            for size in &mut sizes[read as usize + 1..=(written as usize).max(read as usize)] {
                *size = size.saturating_add(self.bytes(root));
            }
        }
        sizes
    }

    /// Where what backward parts write is written and last read. The turn writes gradients as well,
    /// such as that of a squared error, which needs no gradient itself.
    pub(super) fn spans(&self) -> Spans {
        let mut spans = Spans::new();
        let turn = self.stages().saturating_sub(1) as u32;
        for &id in self.task.order {
            let node = self.task.graph.node(id);
            let stage = self.stage_of[id.index()];
            if !self.forward.backward[id.index()] && stage != turn || stage == SEVERAL {
                continue;
            }
            for tensor in node.writes() {
                let root = self.root(tensor);
                if self.is_of_an_earlier_stage(root) {
                    continue;
                }
                let span = spans.entry(root).or_insert((stage, stage));
                span.0 = span.0.max(stage);
            }
            for tensor in node.reads() {
                if let Some(span) = spans.get_mut(&self.root(tensor)) {
                    span.1 = span.1.min(stage);
                }
            }
        }
        spans
    }

    /// Does the forward part write it before the turn?
    fn is_of_an_earlier_stage(&self, root: TensorId) -> bool {
        let stage = |vertex: u32| self.layout.of[vertex as usize] as usize;
        let vertex = self.forward.vertex(root);
        vertex.is_some_and(|vertex| stage(vertex) + 1 < self.stages())
    }

    /// The stage's figures. `spans` and `gradients` are those of the methods of these names.
    pub(super) fn stage(
        &self,
        i: usize,
        nodes: &StageNodes,
        spans: &Spans,
        gradients: &[u64],
    ) -> Stage {
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
                let root = self.root(tensor);
                // The stage above has read its result by then.
                let over = result.contains(&root) && !self.is_at_or_below(id, i);
                if !over && producer.is_some_and(|producer| repeated.contains(&producer)) {
                    internals.insert(root);
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
        let turn = i + 1 == self.layout.stages();
        let result_bytes = sum(&mut result.iter());
        let internal_bytes = sum(&mut internals.difference(&result));
        let in_forward = self.in_passing(&nodes.first, &BTreeSet::new(), &BTreeSet::new());
        let taped = self.in_passing(&nodes.first, &BTreeSet::new(), &internals);
        // What waits for stages further down stays.
        let stage = i as u32;
        let waiting = spans
            .iter()
            .filter(|span| span.1.0 > stage && span.1.1 <= stage);
        let left = spans.iter().filter(|span| span.1.1 < stage);
        let there = waiting.map(|span| *span.0).chain(internals.iter().copied());
        let left = left.map(|span| *span.0).collect();
        let there: BTreeSet<TensorId> = there.collect();
        let in_backward = match turn {
            true => self.in_passing(
                &[&nodes.first[..], &nodes.backward].concat(),
                &BTreeSet::new(),
                &left,
            ),
            false => self.in_passing(&nodes.backward, &there, &left),
        };
        let counted = (if turn { 0 } else { internal_bytes })
            .saturating_add(if reads_result { result_bytes } else { 0 })
            .saturating_add(gradients[i])
            .saturating_add(gradients[i + 1]);
        Stage {
            forward_time: time(&nodes.forward),
            replay_time: if turn { 0 } else { time(&nodes.replay) },
            backward_time: time(&nodes.backward),
            result: result_bytes,
            internals: match turn {
                true => 0,
                false => internal_bytes,
            },
            reads_result: reads_result && !turn,
            gradient: gradients[i],
            forward_workspace: in_forward.saturating_sub(result_bytes),
            taped_workspace: taped.saturating_sub(result_bytes.saturating_add(internal_bytes)),
            backward_workspace: in_backward.saturating_sub(counted),
        }
    }

    /// The most that the nodes need at once of what they write and of what is `there` before, and
    /// for workspace. What nobody reads any more is freed, but for what is to be `left`.
    fn in_passing(
        &self,
        nodes: &[NodeId],
        there: &BTreeSet<TensorId>,
        left: &BTreeSet<TensorId>,
    ) -> u64 {
        let mut last: BTreeMap<TensorId, usize> = BTreeMap::new();
        for (step, &id) in nodes.iter().enumerate() {
            let node = self.task.graph.node(id);
            for tensor in node.reads().chain(node.writes()) {
                last.insert(self.root(tensor), step);
            }
        }
        let mut live = there.clone();
        let all = there.iter().map(|&root| self.bytes(root));
        let mut held = all.fold(0, u64::saturating_add);
        let mut most = held;
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
                let over = last.get(&root) == Some(&step) && !left.contains(&root);
                if over && live.remove(&root) {
                    held = held.saturating_sub(self.bytes(root));
                }
            }
        }
        most
    }
}
