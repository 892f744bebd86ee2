//! Where barriers can stand, and the graph with some of them in it.

use std::collections::HashMap;

use crate::cost::Cost;
use crate::enforce::colour_shapes;
use crate::enforce::parting::Parting;
use crate::graph::{Graph, Node, NodeId, TensorId, TensorKind, Uses};
use crate::operators::{self, Provider};
use crate::runtime::Runtime;
use crate::runtime::barrier::Passing;
use crate::runtime::known_shapes::{Shapes, runtime_shapes, runtime_shapes_declared};
use crate::runtime::level::Level;
use crate::runtime::settings::RuntimeSettings;
use crate::runtime::skeleton::{Lists, Share, Skeleton};

/// By position: is there to be a barrier before this node?
pub(super) type ChosenPlaces = Vec<bool>;

/// A barrier to be inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Barrier {
    /// The position of the node that waits.
    pub(super) before: u32,
    /// The tensor that is passed through to it.
    pub(super) passed: u32,
    /// Do later readers of that tensor read what comes out of the barrier as well?
    pub(super) lasts: bool,
    /// One tensor of every node that it waits for. Nobody reads what comes out: the runtime refuses a graph in which a Gemm
    /// before a Sum reads a third output (measured: GemmSumFusion, at ENABLE_ALL).
    pub(super) waits: Vec<u32>,
}

/// What barriers would pass through and wait for, by position in the file.
pub(super) struct Placement {
    base: Skeleton,
    /// What the runtime knows of shapes, with the names that dimensions get; `None` where it makes no use of it.
    shapes: Option<Shapes>,
    /// By tensor: the position of its producer.
    producer: Vec<Option<u32>>,
    /// By node: the tensor that a barrier before it would pass through.
    passed: Vec<Option<u32>>,
    /// By node: the tensor by which others wait for it.
    signal: Vec<Option<u32>>,
    /// By node: may others wait for it?
    waitable: Vec<bool>,
    /// By node: does it read what an earlier barrier passes through from that barrier?
    follows: Vec<bool>,
    /// By tensor: does it matter to the runtime's rounding who reads it from a barrier?
    keeps: Vec<bool>,
    /// By tensor of the graph: does it come out of what a Reshape may be made one with?
    reshaped: Vec<bool>,
}

/// Can `node` read any of its inputs from a PassThrough? What a YieldOp hands over has memory of its own, which
/// PassThrough refuses (measured); a Shape or a Size runs behind the producer of its input, and had better not run late.
/// What subgraphs read goes by its name.
pub(super) fn follows(node: &Node) -> bool {
    !operators::reads_only_shape(node) && !operators::hands_over(node) && node.captures.is_empty()
}

impl Placement {
    pub(super) fn new(
        graph: &Graph,
        provider: Provider,
        costs: &[Cost],
        runtime: Runtime,
    ) -> Placement {
        let Runtime {
            release, settings, ..
        } = runtime;
        let shapes = runtime_shapes(graph);
        let base = Skeleton::with_shapes(graph, &shapes, provider, costs).run_by(release);
        let coloured = || {
            let promise = runtime.promise;
            let names = colour_shapes::names_before_barriers(graph, &base, &shapes, promise);
            let optimizes = runtime.promise.level != Some(Level::DisableAll);
            let declared = runtime_shapes_declared(graph, names, optimizes);
            base.shapes(graph, &declared, &[])
                .for_pattern(release.pattern)
        };
        let coloured = (settings != RuntimeSettings::LEAN).then(coloured);
        let uses = Uses::of(graph);
        let parting = Parting::of(graph, &uses, &base, provider);
        let read = |id: NodeId| graph.node(id).writes().any(|t| !uses.readers(t).is_empty());
        // What is computed before the first step makes nobody wait.
        let waitable = graph.order().iter().enumerate();
        let waitable = waitable
            .map(|(i, &id)| !parting.is_folded(id) && (!base.reads_only_shape[i] || read(id)))
            .collect();
        let is_tensor = |t: TensorId| graph.tensor(t).other.is_none();
        let passed = |&id: &NodeId| {
            let node = graph.node(id);
            let may_pass = |t: &&TensorId| parting.may_read(graph, id, **t);
            let mut inputs = node.inputs.iter().flatten().filter(may_pass);
            let computed = inputs
                .clone()
                .find(|t| graph.tensor(**t).kind == TensorKind::Value);
            let first = computed.or_else(|| inputs.next());
            first.filter(|_| parting.may_wait(graph, id)).map(|t| t.0)
        };
        let signal = |node: usize| -> Option<u32> {
            // What lies in the caller's memory is updated in place and not to be passed around.
            let is_caller_s = |tensor: u32| {
                let mut shares = base.shares.get(node).iter();
                shares.any(|share| share.written == tensor && base.owned[share.read as usize])
            };
            let written = base.writes.get(node).iter().copied();
            let written = written.filter(|&t| {
                let tensor = TensorId(t);
                is_tensor(tensor)
                    && parting.rounding.may_wait(tensor)
                    && !parting.is_between(tensor)
                    && release.may_wait_for(graph.tensor(tensor))
            });
            written.min_by_key(|&t| (is_caller_s(t), base.size[t as usize]))
        };
        Placement {
            passed: graph.order().iter().map(passed).collect(),
            signal: (0..base.len()).map(signal).collect(),
            follows: graph
                .order()
                .iter()
                .map(|&id| follows(graph.node(id)))
                .collect(),
            keeps: graph
                .tensor_ids()
                .map(|t| parting.rounding.depends(t))
                .collect(),
            reshaped: parting.reshaped,
            waitable,
            producer: base.producers(),
            base,
            shapes: coloured,
        }
    }

    /// The number of nodes without barriers.
    pub(super) fn len(&self) -> usize {
        self.base.len()
    }

    /// The positions of an optimized form's nodes, those of merged ones where the first of them is: its readers run from there on.
    pub(super) fn first_of_merged(&self, position: &[u32]) -> Vec<u32> {
        let mut first: HashMap<u32, u32> = HashMap::new();
        for (place, &number) in (0..).zip(&self.base.equal) {
            if number != 0 {
                first.entry(number).or_insert(place);
            }
        }
        let earlier = |&place: &u32| {
            let number = self.base.equal.get(place as usize);
            let merged = number.and_then(|number| first.get(number));
            merged.copied().unwrap_or(place)
        };
        position.iter().map(earlier).collect()
    }

    /// How many tensors that a barrier writes have objects to the end of the step.
    pub(super) fn lasting(&self, barrier: &Barrier) -> u32 {
        self.base.release.barrier.lasting(barrier.waits.len())
    }

    /// The position of the tensor's producer.
    pub(super) fn producer(&self, tensor: u32) -> Option<u32> {
        self.producer[tensor as usize]
    }

    /// Is it a Shape or a Size?
    pub(super) fn reads_only_shape(&self, position: u32) -> bool {
        self.base.reads_only_shape[position as usize]
    }

    /// The positions of the producers of what a node reads.
    pub(super) fn producers(&self, position: u32) -> impl Iterator<Item = u32> {
        let reads = self.base.reads.get(position as usize).iter();
        reads.filter_map(|&tensor| self.producer[tensor as usize])
    }

    /// The barriers that the choice amounts to; where nothing is open there is none.
    pub(super) fn barriers(&self, chosen: &ChosenPlaces) -> Vec<Barrier> {
        let mut open: Vec<u32> = Vec::new();
        let mut is_open = vec![false; self.base.len()];
        let mut barriers = Vec::new();
        for node in 0..self.base.len() {
            // Who waits for a reader waits for what it reads; for some readers nobody waits.
            let reads = self.base.reads.get(node).iter();
            for &tensor in reads.filter(|_| self.waitable[node]) {
                if let Some(producer) = self.producer[tensor as usize] {
                    is_open[producer as usize] = false;
                }
            }
            if let (true, Some(passed)) = (chosen[node], self.passed[node]) {
                open.retain(|&n| is_open[n as usize]);
                let waits: Vec<u32> = open
                    .iter()
                    .filter_map(|&n| self.signal[n as usize])
                    .collect();
                for n in open.drain(..) {
                    is_open[n as usize] = false;
                }
                if !waits.is_empty() {
                    barriers.push(Barrier {
                        before: node as u32,
                        passed,
                        lasts: !self.base.owned[passed as usize] && !self.keeps[passed as usize],
                        waits,
                    });
                }
            }
            // A Size that only releases its input runs directly behind the producer anyway.
            if self.waitable[node] {
                is_open[node] = true;
                open.push(node as u32);
            }
        }
        barriers
    }

    /// The skeleton with the barriers in it, and for each of its nodes the position in the file
    /// that it belongs to (a barrier's is its reader's); and what the runtime knows of shapes there.
    pub(super) fn with_barriers(
        &self,
        barriers: &[Barrier],
    ) -> (Skeleton, Vec<u32>, Option<Shapes>) {
        let mut shapes = self.shapes.clone();
        let added: usize = barriers.iter().map(|barrier| 1 + barrier.waits.len()).sum();
        let nodes = self.base.len() + barriers.len();
        let lists = |of: usize| Lists::with_capacity(nodes, of + added);
        let mut skeleton = Skeleton {
            reads: lists(self.base.reads.items()),
            writes: lists(self.base.writes.items()),
            shares: Lists::with_capacity(nodes, self.base.shares.items() + added),
            size: with_room(&self.base.size, added),
            owned: with_room(&self.base.owned, added),
            output: with_room(&self.base.output, added),
            wide: self.base.wide.clone(),
            known: self.base.known.clone(),
            rows: self.base.rows.clone(),
            shared: self.base.shared.clone(),
            ..Skeleton::default().run_by(self.base.release)
        };
        let mut position = Vec::with_capacity(nodes);
        let mut next = barriers.iter().peekable();
        // By tensor: what its readers read instead.
        let mut latest: Vec<u32> = (0..self.base.size.len() as u32).collect();
        for node in 0..self.base.len() {
            let barrier = next.next_if(|barrier| barrier.before as usize == node);
            if let Some(barrier) = barrier {
                let tensor = latest[barrier.passed as usize];
                let is_reshaped = |&is: &bool| is || tensor != barrier.passed;
                let passing = Passing {
                    tensor,
                    reshaped: self.reshaped.get(tensor as usize).is_none_or(is_reshaped),
                    waits: &barrier.waits,
                };
                let first = skeleton.push_barrier(passing, &mut shapes);
                position.resize(skeleton.len(), node as u32);
                latest[barrier.passed as usize] = first;
            }
            let waits = barrier.map(|barrier| barrier.passed);
            let read = |tensor: u32| match self.follows[node] || waits == Some(tensor) {
                true => latest[tensor as usize],
                false => tensor,
            };
            let reads = self.base.reads.get(node).iter();
            skeleton.reads.push(reads.map(|&tensor| read(tensor)));
            skeleton
                .writes
                .push(self.base.writes.get(node).iter().copied());
            let shares = self.base.shares.get(node).iter();
            skeleton.shares.push(shares.map(|&share| Share {
                read: read(share.read),
                ..share
            }));
            if let Some(barrier) = barrier.filter(|barrier| !barrier.lasts) {
                latest[barrier.passed as usize] = barrier.passed;
            }
            skeleton.workspace.push(self.base.workspace[node]);
            skeleton.early.push(self.base.early[node]);
            skeleton
                .reads_only_shape
                .push(self.base.reads_only_shape[node]);
            skeleton.fusing.push(self.base.fusing[node]);
            skeleton.equal.push(self.base.equal[node]);
            skeleton.casting.extend(self.base.casting.get(node));
            if self.base.yield_op == Some(node as u32) {
                skeleton.yield_op = Some(position.len() as u32);
            }
            position.push(node as u32);
        }
        (skeleton, position, shapes)
    }
}

/// A copy to which so many items will be added.
fn with_room<T: Copy>(items: &[T], added: usize) -> Vec<T> {
    let mut all = Vec::with_capacity(items.len() + added);
    all.extend_from_slice(items);
    all
}
