//! What makes a node wait for others: it reads one of its inputs from a node that hands that on without a copy, and that
//! runs after those others.

use std::collections::BTreeMap;

use super::barrier_kind::{BarrierKind, NAME, is_part, joins_reshapes, number};
use super::casting::{Casting, NO_TENSOR};
use super::fusing::Fusing;
use super::known_shapes::{Shapes, runtime_shapes};
use super::level::Level;
use super::moving::KnownDimensions;
use super::release::Release;
use super::skeleton::{Share, Skeleton};
use crate::graph::{AttributeValue, Dimension, Graph, Node, NodeId, Tensor, TensorId};
use crate::operators::MICROSOFT;

/// What a shape of eight sizes takes: bytes.
const SHAPE: u64 = 64;

impl Release {
    /// Is it the node that hands on what a barrier stands for?
    pub(crate) fn is_barrier(&self, node: &Node) -> bool {
        match self.barrier {
            BarrierKind::PassThrough => node.is(MICROSOFT, "PassThrough"),
            BarrierKind::Reshape | BarrierKind::OnHost => {
                node.is("", "Reshape") && number(node).is_some()
            }
        }
    }

    /// Is it that node, or one that computes what it waits for?
    pub(crate) fn is_part_of_barrier(&self, node: &Node) -> bool {
        self.is_barrier(node) || self.barrier != BarrierKind::PassThrough && is_part(node)
    }

    /// Does a barrier hold at that level of optimization?
    pub(crate) fn has_barriers_at(&self, level: Level) -> bool {
        self.barrier != BarrierKind::OnHost || level == Level::DisableAll
    }

    /// Can sizes be hidden?
    pub(crate) fn hides_sizes(&self) -> bool {
        self.barrier != BarrierKind::OnHost
    }

    /// A node that hands each of its inputs on, whatever it is, if there is such an operator.
    pub(crate) fn forwarding(
        &self,
        name: impl Into<String>,
        inputs: Vec<Option<TensorId>>,
        outputs: Vec<Option<TensorId>>,
    ) -> Option<Node> {
        let has = self.barrier == BarrierKind::PassThrough;
        has.then(|| Node::new(name, MICROSOFT, "PassThrough", inputs, outputs))
    }
}

/// By tensor: does it come out of a node that a Reshape behind it may be made one with? An Identity between them goes.
pub(crate) fn out_of_reshapes(graph: &Graph) -> Vec<bool> {
    let mut found = vec![false; graph.tensor_count()];
    for node in graph.nodes() {
        let hands_on = is_identity(node) && node.reads().any(|read| found[read.index()]);
        for tensor in node.writes().filter(|_| joins_reshapes(node) || hands_on) {
            found[tensor.index()] = true;
        }
    }
    found
}

/// By node id: may none stand before it, for what the runtime would make of both? An Identity between them goes. What hands on
/// where a Reshape reads it may be made one with that; and where it leaves the graph, a PassThrough has to write what leaves, which
/// has memory of its own, and it refuses that (measured).
pub(crate) fn keep_barriers_off(graph: &Graph, form: BarrierKind) -> Vec<bool> {
    let mut found = vec![false; graph.node_count()];
    let mut kept_off = vec![false; graph.tensor_count()];
    if form == BarrierKind::PassThrough {
        for output in &graph.outputs {
            kept_off[output.index()] = true;
        }
    }
    for &id in graph.order().iter().rev() {
        let node = graph.node(id);
        let hands_on = is_identity(node) && node.writes().any(|t| kept_off[t.index()]);
        if hands_on || form != BarrierKind::PassThrough && joins_reshapes(node) {
            found[id.index()] = true;
            if let Some(read) = node.input(0) {
                kept_off[read.index()] = true;
            }
        }
    }
    found
}

fn is_identity(node: &Node) -> bool {
    node.is("", "Identity")
}

/// What a barrier hands on and waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passing<'b> {
    pub(crate) tensor: u32,
    /// Does it come out of another barrier, or of what a Reshape may be made one with?
    pub(crate) reshaped: bool,
    pub(crate) waits: &'b [u32],
}

impl Passing<'_> {
    /// Of what a computed Reshape reads the sizes.
    fn sized(&self) -> Vec<u32> {
        let mut sized = self.waits.to_vec();
        if self.reshaped && !sized.contains(&self.tensor) {
            sized.push(self.tensor);
        }
        sized
    }
}

impl Skeleton {
    /// Adds the nodes of a barrier of its release; the tensor that they hand on.
    pub(crate) fn push_barrier(
        &mut self,
        passing: Passing<'_>,
        shapes: &mut Option<Shapes>,
    ) -> u32 {
        match self.release.barrier {
            BarrierKind::PassThrough => self.push_pass_through(passing, shapes),
            BarrierKind::Reshape | BarrierKind::OnHost => self.push_reshape(passing, shapes),
        }
    }

    fn push_pass_through(&mut self, passing: Passing<'_>, shapes: &mut Option<Shapes>) -> u32 {
        let waits = passing.waits.iter().copied();
        let reads: Vec<u32> = std::iter::once(passing.tensor).chain(waits).collect();
        let writes: Vec<u32> = reads.iter().map(|&tensor| self.forward(tensor)).collect();
        if let Some(shapes) = shapes {
            for &tensor in &reads {
                shapes.forward(tensor, &self.wide);
            }
        }
        let first = writes[0];
        let share = |read, written| Some(Share::alias(read, written));
        self.push_small(reads, writes, Casting::BARRIER, share);
        first
    }

    fn push_reshape(&mut self, passing: Passing<'_>, shapes: &mut Option<Shapes>) -> u32 {
        let mut least = Vec::new();
        for sized in passing.sized() {
            let size = self.add_numbers(8, shapes);
            self.push_small(vec![sized], vec![size], Casting::No, |_, _| None);
            if let Some(last) = self.reads_only_shape.last_mut() {
                *last = true;
            }
            least.push(size);
        }
        let sizes = self.add_numbers(SHAPE, shapes);
        self.push_small(least, vec![sizes], Casting::No, |_, _| None);
        let passed = self.forward(passing.tensor);
        if let Some(shapes) = shapes {
            shapes.forward(passing.tensor, &self.wide);
        }
        let reads = vec![passing.tensor, sizes];
        self.push_small(reads, vec![passed], Casting::BARRIER, |read, written| {
            (read == passing.tensor).then(|| Share::alias(read, written))
        });
        passed
    }

    /// A node that takes no memory but for its results, each of which may lie in the input at its place.
    fn push_small(
        &mut self,
        reads: Vec<u32>,
        writes: Vec<u32>,
        casting: Casting,
        share: impl Fn(u32, u32) -> Option<Share>,
    ) {
        let pairs = reads.iter().zip(&writes);
        self.shares
            .push(pairs.filter_map(|(&read, &written)| share(read, written)));
        self.reads.push(reads);
        self.writes.push(writes);
        self.workspace.push(0);
        self.early.push(0);
        self.reads_only_shape.push(false);
        self.fusing.push(Fusing::No);
        self.equal.push(0);
        if !self.wide.is_empty() {
            self.casting.push(casting);
        }
    }

    /// A tensor of some integers.
    fn add_numbers(&mut self, bytes: u64, shapes: &mut Option<Shapes>) -> u32 {
        let new = self.size.len() as u32;
        self.size.push(bytes);
        self.owned.push(false);
        self.output.push(false);
        if !self.wide.is_empty() {
            self.wide.push(NO_TENSOR);
            self.known.push(None);
        }
        if let Some(shapes) = shapes {
            shapes.add_scalar();
        }
        new
    }
}

impl Share {
    /// Of what hands its input on.
    pub(crate) fn alias(read: u32, written: u32) -> Share {
        Share {
            written,
            read,
            always: true,
        }
    }
}

/// Adds barriers to a graph, one after the other.
#[derive(Clone)]
pub(crate) struct BarrierWriter {
    form: BarrierKind,
    /// The number of the next one.
    next: i64,
    /// By rank: as many zeros.
    zeros: BTreeMap<usize, TensorId>,
    /// By tensor: what the runtime knows of its shape, of those that were there before.
    shapes: Vec<Option<Vec<Dimension>>>,
    /// By tensor, of the same.
    reshaped: Vec<bool>,
    /// By tensor: what handed it on last for one node alone.
    latest: BTreeMap<TensorId, TensorId>,
    /// By rank: what [`BarrierWriter::add_at_once`] computes.
    at_once: BTreeMap<usize, TensorId>,
}

impl BarrierWriter {
    /// For a graph that has no barriers yet, or some.
    pub(crate) fn new(release: &Release, graph: &Graph) -> BarrierWriter {
        BarrierWriter::knowing(release, graph, || runtime_shapes(graph))
    }

    /// The same of a graph of which these are the [`runtime_shapes`].
    pub(crate) fn knowing(
        release: &Release,
        graph: &Graph,
        shapes: impl FnOnce() -> Vec<KnownDimensions>,
    ) -> BarrierWriter {
        let nodes = graph.nodes();
        let last = nodes.filter_map(number).max();
        let form = release.barrier;
        BarrierWriter {
            form,
            next: 1 + last.map_or(-1, i64::from),
            zeros: BTreeMap::new(),
            shapes: match form {
                BarrierKind::PassThrough => Vec::new(),
                BarrierKind::Reshape | BarrierKind::OnHost => {
                    // Behind those of the graph's tensors are those of what casts make of them.
                    let mut shapes = shapes();
                    shapes.truncate(graph.tensor_count());
                    shapes
                }
            },
            reshaped: out_of_reshapes(graph),
            latest: BTreeMap::new(),
            at_once: BTreeMap::new(),
        }
    }

    /// Appends the nodes of a barrier that waits for nothing but what it hands on, for one reader. Two that read the same would be merged, so
    /// the second one hands on what the first one does.
    pub(crate) fn add_for_one(
        &mut self,
        graph: &mut Graph,
        order: &mut Vec<NodeId>,
        passed: TensorId,
    ) -> TensorId {
        let read = self.latest.get(&passed).copied().unwrap_or(passed);
        let handed_on = self.add(graph, order, read, &[read]);
        self.latest.insert(passed, handed_on);
        handed_on
    }

    /// Appends the nodes of a barrier to `order`; the tensor that they hand on.
    pub(crate) fn add(
        &mut self,
        graph: &mut Graph,
        order: &mut Vec<NodeId>,
        passed: TensorId,
        waits: &[TensorId],
    ) -> TensorId {
        let number = self.number();
        if self.form == BarrierKind::PassThrough {
            return pass_through(graph, order, number, (passed, waits));
        }
        let waits: Vec<u32> = waits.iter().map(|tensor| tensor.0).collect();
        let passing = Passing {
            tensor: passed.0,
            // What was not there before comes out of a barrier.
            reshaped: self.reshaped.get(passed.index()).is_none_or(|&is| is),
            waits: &waits,
        };
        let rank = graph.tensor(passed).shape.as_ref().map_or(0, Vec::len);
        let shape = self.shape(graph, order, number, (rank, &passing.sized()));
        self.reshape_to(graph, order, number, (passed, shape))
    }

    /// The number of a new barrier.
    fn number(&mut self) -> i64 {
        self.next += 1;
        self.next - 1
    }

    /// Appends a barrier that waits for a graph input, and does not read the size of what it hands on. All of them share what they compute, so two
    /// that hand on the same would be merged, and so would one and a Reshape before or behind it if all sizes of what comes out are known.
    pub(crate) fn add_at_once(
        &mut self,
        graph: &mut Graph,
        order: &mut Vec<NodeId>,
        passed: TensorId,
        input: TensorId,
    ) -> TensorId {
        if self.form == BarrierKind::PassThrough {
            return self.add(graph, order, passed, &[input]);
        }
        let number = self.number();
        let rank = graph.tensor(passed).shape.as_ref().map_or(0, Vec::len);
        let shape = match self.at_once.get(&rank) {
            Some(&shape) => shape,
            None => {
                let shape = self.shape(graph, order, number, (rank, &[input.0]));
                self.at_once.insert(rank, shape);
                shape
            }
        };
        self.reshape_to(graph, order, number, (passed, shape))
    }

    /// Appends what computes as many zeros from the sizes of these tensors.
    fn shape(
        &mut self,
        graph: &mut Graph,
        order: &mut Vec<NodeId>,
        number: i64,
        (rank, sized): (usize, &[u32]),
    ) -> TensorId {
        let name = format!("{NAME}{number}");
        let of_shapes = self.form.reads_shapes(graph);
        let mut least = Vec::new();
        for (place, &sized) in sized.iter().enumerate() {
            let size = if of_shapes {
                let read = vec![Some(TensorId(sized))];
                let name = format!("{name}/nothing_{place}");
                let nothing = graph.integers(&name, vec![0]);
                let mut node = Node::new(name, "", "Shape", read, Vec::new());
                node.set_attribute("start", AttributeValue::Int(0));
                node.set_attribute("end", AttributeValue::Int(0));
                graph.add_made(node, nothing)
            } else {
                let name = format!("{name}/size_{place}");
                graph.add_size(&name, TensorId(sized), &name)
            };
            least.push(Some(list(order, size)));
        }
        let zeros = self.zeros.entry(rank).or_insert_with(|| {
            let zeros = graph.add_list(&format!("{name}/zeros"), vec![0; rank]);
            list(order, zeros)
        });
        least.push(Some(*zeros));
        let shape_name = format!("{name}/shape");
        let shape = graph.integers(&shape_name, vec![rank as u64]);
        let joined = if of_shapes {
            let mut joined = Node::new(shape_name, "", "Concat", least, Vec::new());
            joined.set_attribute("axis", AttributeValue::Int(0));
            joined
        } else {
            Node::new(shape_name, "", "Min", least, Vec::new())
        };
        list(order, graph.add_made(joined, shape))
    }

    fn reshape_to(
        &self,
        graph: &mut Graph,
        order: &mut Vec<NodeId>,
        number: i64,
        (passed, shape): (TensorId, TensorId),
    ) -> TensorId {
        let name = format!("{NAME}{number}");
        let known = self.shapes.get(passed.index()).cloned().flatten();
        let of = graph.alike(passed, &format!("/barrier_{number}"));
        let handed_on = Tensor {
            declared: known.or(of.declared.clone()),
            constant: None,
            ..of
        };
        let inputs = vec![Some(passed), Some(shape)];
        let reshape = Node::new(name, "", "Reshape", inputs, Vec::new());
        list(order, graph.add_made(reshape, handed_on))
    }
}

/// Lists the node behind all in `order`; what it writes.
fn list(order: &mut Vec<NodeId>, (node, written): (NodeId, TensorId)) -> TensorId {
    order.push(node);
    written
}

fn pass_through(
    graph: &mut Graph,
    order: &mut Vec<NodeId>,
    number: i64,
    (passed, waits): (TensorId, &[TensorId]),
) -> TensorId {
    let inputs: Vec<TensorId> = std::iter::once(passed)
        .chain(waits.iter().copied())
        .collect();
    // Every output has to be named: the kernel writes as many as it has inputs.
    let outputs: Vec<TensorId> = inputs
        .iter()
        .map(|&input| {
            let output = graph.alike(input, &format!("/barrier_{number}"));
            graph.add_tensor(output)
        })
        .collect();
    let present = |ids: &[TensorId]| ids.iter().copied().map(Some).collect();
    let (read, written) = (present(&inputs), present(&outputs));
    let name = format!("{NAME}{number}");
    order.push(graph.add_node(Node::new(name, MICROSOFT, "PassThrough", read, written)));
    outputs[0]
}
