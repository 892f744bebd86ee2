//! What ONNX Runtime's planner sees of a graph: who reads and writes what, and how large it is.
//!
//! Nodes are positions in the file's order, tensors are [`TensorId`] numbers. A skeleton is cheap
//! to build, so that variants of one graph can be tried by the thousand.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cost::Cost;
use crate::graph::{Dimension, ElementType, Graph, NodeId, TensorId, TensorKind, Uses};
use crate::operators::{self, Provider};
use crate::runtime::Release;
use crate::runtime::casting::{Casting, NO_TENSOR, are_there, halves};
use crate::runtime::folding::Folding;
use crate::runtime::fusing::{Adding, Fusing};
use crate::runtime::known_shapes::{Shapes, Targets, flattened, is_known_to_equal, runtime_shapes};
use crate::runtime::merged::{equal_nodes, shared_constants};
use crate::runtime::moving::{Added, KnownDimensions, Moves};
use crate::runtime::transposes::{movable_casts, shapes_of_transposed};

/// Lists behind each other in one vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lists<T> {
    ends: Vec<u32>,
    items: Vec<T>,
}

impl<T> Default for Lists<T> {
    fn default() -> Lists<T> {
        Lists {
            ends: Vec::new(),
            items: Vec::new(),
        }
    }
}

impl<T> Lists<T> {
    /// With room for so many lists with so many items in all.
    pub(crate) fn with_capacity(lists: usize, items: usize) -> Lists<T> {
        Lists {
            ends: Vec::with_capacity(lists),
            items: Vec::with_capacity(items),
        }
    }

    /// The number of items of all lists.
    pub(crate) fn items(&self) -> usize {
        self.items.len()
    }

    /// Appends one list.
    pub(crate) fn push(&mut self, list: impl IntoIterator<Item = T>) {
        self.items.extend(list);
        self.ends.push(self.items.len() as u32);
    }

    /// The number of lists.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The list at `i`.
    pub(crate) fn get(&self, i: usize) -> &[T] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.items[start as usize..self.ends[i] as usize]
    }
}

/// An output that may lie in an input's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) written: u32,
    pub(crate) read: u32,
    /// Always (an alias), or only if nobody else still reads the input (in place).
    pub(crate) always: bool,
}

/// A tensor as a matrix, whose rows are the tensor's along its last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flattened {
    pub(crate) tensor: u32,
    pub(crate) of: u32,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Skeleton {
    /// Who runs it.
    pub(crate) release: &'static Release,
    /// By node: tensors it reads; one that is read twice is there twice.
    pub(crate) reads: Lists<u32>,
    /// By node: tensors it writes.
    pub(crate) writes: Lists<u32>,
    /// By node.
    pub(crate) shares: Lists<Share>,
    /// By node: bytes that its kernel allocates besides its outputs.
    pub(crate) workspace: Vec<u64>,
    /// By node: bytes that its kernel allocates before its outputs; they are freed when the outputs are there.
    pub(crate) early: Vec<u64>,
    /// By node: is it a Shape or a Size?
    pub(crate) reads_only_shape: Vec<bool>,
    /// By node: what the runtime's optimizations do with it. See [`Skeleton::optimized_by_level`].
    pub(crate) fusing: Vec<Fusing>,
    /// By node: see [`equal_nodes`].
    pub(crate) equal: Vec<u32>,
    /// See [`shared_constants`]. It matters where a cast reads them, and for nodes that are equal.
    pub(crate) shared: Vec<(u32, u32)>,
    /// By node: what the casts that the runtime inserts do with it; empty where it inserts and removes none.
    pub(crate) casting: Vec<Casting>,
    /// By tensor, for those in float16 of a graph with [`Skeleton::casting`]: what casts make of it for its readers, and behind
    /// that what its node writes before a cast, both in float32; [`NO_TENSOR`] for all others.
    pub(crate) wide: Vec<u32>,
    /// By tensor of such a graph, and of one with equal nodes, an Identity or a convolution, if the runtime knows the whole shape: equal numbers for what it
    /// knows to be equal. Other tensors are not computed in each other's place.
    pub(crate) known: Vec<Option<u32>>,
    /// By the result of a Cast or a Shape that the runtime may move in front of a Transpose, in their sequence: the tensor that it
    /// writes there.
    pub(crate) moved: Vec<(u32, u32)>,
    /// What is to be known to move Transposes behind what reads them. Without it only those are moved that Transposes and Shapes read.
    pub(crate) moves: Option<Arc<Moves>>,
    /// The last tensors, where the runtime made some when it moved Transposes.
    pub(crate) added: Vec<Added>,
    /// Tensors of which the runtime knows the size before a step since it made them, whatever it knows in the graph.
    pub(crate) sized: Vec<u32>,
    /// By the result of a product of rows ([`Adding::ToRows`]): the matrices between which the runtime has a Gemm, of what it reads and of
    /// what the addition writes.
    pub(crate) rows: BTreeMap<u32, [Flattened; 2]>,
    /// By node: is it a cast that the runtime inserts? Empty where it inserts none.
    pub(crate) inserted: Vec<bool>,
    /// By node: is it a piece of a function that the runtime takes apart? It does so behind the optimizations of ORT_ENABLE_BASIC, which
    /// take a function for one node, and goes through these again from ORT_ENABLE_EXTENDED on (measured). Empty where there is none.
    pub(crate) is_piece: Vec<bool>,
    /// The YieldOp, which hands over to PyTorch and back.
    pub(crate) yield_op: Option<u32>,
    /// By tensor.
    pub(crate) size: Vec<u64>,
    /// By tensor: does the caller own it?
    pub(crate) owned: Vec<bool>,
    /// By tensor: is it a graph output, or handed over to PyTorch? It has memory of its own, to the end: an
    /// alias that a YieldOp reads is a copy, and a PassThrough's result cannot be one (measured).
    pub(crate) output: Vec<bool>,
}

impl Skeleton {
    /// The skeleton of `graph`; `costs` by node id.
    pub(crate) fn of(graph: &Graph, provider: Provider, costs: &[Cost]) -> Skeleton {
        Skeleton::with_shapes(graph, &runtime_shapes(graph), provider, costs)
    }

    /// The same for what depends on no cost.
    pub(crate) fn without_costs(
        graph: &Graph,
        shapes: &[KnownDimensions],
        provider: Provider,
    ) -> Skeleton {
        let costs = vec![Cost::default(); graph.node_count()];
        Skeleton::with_shapes(graph, shapes, provider, &costs)
    }

    /// The same of a graph whose [`runtime_shapes`] are known.
    pub(crate) fn with_shapes(
        graph: &Graph,
        shapes: &[KnownDimensions],
        provider: Provider,
        costs: &[Cost],
    ) -> Skeleton {
        let mut skeleton = Skeleton {
            equal: equal_nodes(graph),
            ..Skeleton::default()
        };
        for id in graph.tensor_ids() {
            let tensor = graph.tensor(id);
            skeleton
                .size
                .push(tensor.memory().map_or(0, |bytes| bytes.0));
            skeleton.owned.push(tensor.kind != TensorKind::Value);
            skeleton.output.push(false);
        }
        for output in &graph.outputs {
            skeleton.output[output.index()] = true;
        }
        let is_cast = provider == Provider::Cpu && are_there(graph);
        let merges = skeleton.equal.iter().any(|&number| number != 0);
        if is_cast || merges {
            skeleton.shared = shared_constants(graph);
        }
        let renames = |&id: &NodeId| {
            let node = graph.node(id);
            node.is("", "Identity") || node.is("", "Conv")
        };
        let mut known = Vec::new();
        if is_cast || merges || graph.order().iter().any(renames) {
            known = numbered(shapes);
            skeleton.known = known[..skeleton.size.len()].to_vec();
        }
        if is_cast {
            skeleton.add_wide(graph, &known);
        }
        if provider == Provider::Cpu {
            skeleton.add_moved(graph, &known);
        }
        let pieces = graph.order().iter();
        let pieces = pieces.map(|&id| graph.node(id).piece_of.is_some());
        if pieces.clone().any(|is_piece| is_piece) {
            skeleton.is_piece = pieces.collect();
        }
        let uses = Uses::of(graph);
        let folding = Folding::of(graph, shapes);
        for (position, &id) in graph.order().iter().enumerate() {
            let node = graph.node(id);
            if !skeleton.wide.is_empty() {
                skeleton.casting.push(Casting::of(graph, node));
            }
            if operators::hands_over(node) {
                skeleton.yield_op = Some(position as u32);
                for tensor in node.reads() {
                    skeleton.output[tensor.index()] = true;
                }
            }
            let workspace = costs[id.index()].workspace.0;
            skeleton.push_node(graph, &uses, (shapes, &folding), id, provider, workspace);
        }
        skeleton.add_matrices(graph, &uses);
        skeleton
    }

    /// The same, run by `release`.
    pub(crate) fn run_by(mut self, release: &'static Release) -> Skeleton {
        self.release = release;
        for fusing in &mut self.fusing {
            *fusing = fusing.by(release);
        }
        self
    }

    /// The same, where the runtime moves Transposes of `graph`, of which it knows these shapes.
    pub(crate) fn moving(mut self, graph: &Graph, shapes: &[KnownDimensions]) -> Skeleton {
        if self.release.moves_transposes() {
            self.moves = Moves::of(graph, shapes).map(Arc::new);
        }
        self
    }

    /// The same, where the runtime makes constants of the shapes to which Reshapes go.
    pub(crate) fn assembling(mut self, graph: &Graph, targets: &Targets) -> Skeleton {
        for (fusing, &id) in self.fusing.iter_mut().zip(graph.order()) {
            let written = graph.node(id).output(0);
            if written.is_some_and(|written| targets.contains_key(&written)) {
                *fusing = Fusing::Assembles;
            }
        }
        self
    }

    /// Takes in what casts make of the tensors in float16; see [`Skeleton::wide`].
    fn add_wide(&mut self, graph: &Graph, known: &[Option<u32>]) {
        self.wide = vec![NO_TENSOR; self.size.len()];
        for (of, known) in halves(graph).zip(known[self.size.len()..].chunks(2)) {
            self.wide[of.index()] = self.size.len() as u32;
            for &known in known {
                let bytes = |count: u64| count.saturating_mul(4);
                self.size
                    .push(graph.tensor(of).element_count().map_or(0, bytes));
                self.owned.push(false);
                self.output.push(false);
                self.wide.push(NO_TENSOR);
                self.known.push(known);
            }
        }
    }

    /// Takes in what casts and Shapes write that the runtime may move; see [`Skeleton::moved`].
    fn add_moved(&mut self, graph: &Graph, known: &[Option<u32>]) {
        let casts = movable_casts(graph).into_keys();
        let casts = casts.map(|cast| (cast, self.size[cast.index()]));
        let shapes = shapes_of_transposed(graph).into_iter();
        let shapes =
            shapes.map(|(written, (_, axes))| (written, ElementType::Int64.bytes(axes as u64).0));
        let all: Vec<(TensorId, u64)> = casts.chain(shapes).collect();
        for (written, bytes) in all {
            let new = self.size.len();
            self.moved.push((written.0, new as u32));
            self.size.push(bytes);
            self.owned.push(false);
            self.output.push(false);
            if !self.wide.is_empty() {
                self.wide.push(NO_TENSOR);
                self.known.push(known[new]);
            }
        }
        self.moved.sort_unstable();
    }

    /// Takes in the matrices of products of rows; see [`Skeleton::rows`].
    fn add_matrices(&mut self, graph: &Graph, uses: &Uses) {
        let adds = Adding::ToRows;
        for (&fusing, &id) in self.fusing.clone().iter().zip(graph.order()) {
            if fusing != (Fusing::Product { adds }) {
                continue;
            }
            let product = graph.node(id);
            let reader = |tensor| uses.readers(tensor).first();
            let (Some(read), Some(written)) = (product.input(0), product.output(0)) else {
                continue;
            };
            let sum = reader(written).and_then(|&id| graph.node(id).output(0));
            if let Some(sum) = sum {
                let matrices = [read, sum].map(|of| Flattened {
                    tensor: self.forward(of.0),
                    of: of.0,
                });
                self.rows.insert(written.0, matrices);
            }
        }
    }

    /// What the runtime knows of the sizes of all tensors of the skeleton, and of `added` behind these; of the graph's it has these
    /// [`runtime_shapes`].
    pub(crate) fn shapes(
        &self,
        graph: &Graph,
        shapes: &[KnownDimensions],
        added: &[Added],
    ) -> Shapes {
        let matrices = self.matrices(graph, shapes);
        let tensors = self.size.len() - matrices.len();
        let added: Vec<&Added> = matrices.iter().chain(added).collect();
        Shapes::of(graph, shapes, tensors, &added)
    }

    /// The shapes of [`Skeleton::rows`], of a graph of whose tensors the runtime knows these.
    fn matrices(&self, graph: &Graph, shapes: &[KnownDimensions]) -> Vec<Added> {
        let mut all: Vec<Flattened> = self.rows.values().flatten().copied().collect();
        all.sort_unstable_by_key(|matrix| matrix.tensor);
        let shape = |of: u32| shapes[of as usize].as_deref().and_then(flattened);
        let element = |of: u32| graph.tensor(TensorId(of)).element;
        let with_wide = |matrix: Flattened| {
            let wide = self.wide.get(matrix.tensor as usize);
            let casts = wide.is_some_and(|&wide| wide != NO_TENSOR);
            let elements = match casts {
                true => &[None, Some(ElementType::Float), Some(ElementType::Float)][..],
                false => &[None],
            };
            let added = move |instead: &Option<ElementType>| Added {
                of: matrix.of,
                made_by: None,
                element: instead.or(element(matrix.of)).map_or(0, |e| e.bytes(1).0),
                shape: shape(matrix.of),
            };
            elements.iter().map(added)
        };
        all.into_iter().flat_map(with_wide).collect()
    }

    /// What the node writes that writes this tensor as the file has it, where it is moved.
    pub(crate) fn moved(&self, written: u32) -> Option<u32> {
        let at = self
            .moved
            .binary_search_by_key(&written, |&(written, _)| written);
        at.ok().map(|at| self.moved[at].1)
    }

    /// Takes in a tensor that forwards another, with what casts make of it; which one it is.
    pub(crate) fn forward(&mut self, tensor: u32) -> u32 {
        let new = self.size.len() as u32;
        self.size.push(self.size[tensor as usize]);
        self.owned.push(false);
        self.output.push(false);
        if let Some(&wide) = self.wide.get(tensor as usize) {
            self.wide.push(NO_TENSOR);
            self.known.push(self.known[tensor as usize]);
            if wide != NO_TENSOR {
                self.wide[new as usize] = self.forward(wide);
                self.forward(wide + 1);
            }
        }
        new
    }

    /// By tensor: the node that writes it.
    pub(crate) fn producers(&self) -> Vec<Option<u32>> {
        let mut producers = vec![None; self.size.len()];
        for node in 0..self.len() {
            for &tensor in self.writes.get(node) {
                producers[tensor as usize] = Some(node as u32);
            }
        }
        producers
    }

    /// See [`Skeleton::is_piece`].
    pub(crate) fn is_piece_at(&self, node: usize) -> bool {
        self.is_piece.get(node) == Some(&true)
    }

    /// Which nodes of `order` the runtime inserts.
    pub(crate) fn inserted_in(&self, order: &[u32]) -> Vec<bool> {
        let inserted = |&node: &u32| self.inserted.get(node as usize) == Some(&true);
        order.iter().map(inserted).collect()
    }

    /// The next one of which it is made, if it is no tensor of the graph.
    pub(crate) fn made_of(&self, tensor: u32) -> Option<u32> {
        if let Some(added) = self.added(tensor) {
            return Some(added.of);
        }
        let is_made_of = |&wide: &u32| wide != NO_TENSOR && (wide..=wide + 1).contains(&tensor);
        let of = self.wide.iter().position(is_made_of);
        let moved = || self.moved.iter().find(|&&(_, moved)| moved == tensor);
        of.map(|of| of as u32)
            .or_else(|| moved().map(|&(cast, _)| cast))
            .or_else(|| self.flattens(tensor))
    }

    /// Of which tensor it is a matrix, if it is one of [`Skeleton::rows`].
    pub(crate) fn flattens(&self, tensor: u32) -> Option<u32> {
        let mut matrices = self.rows.values().flatten();
        let found = matrices.find(|matrix| matrix.tensor == tensor);
        found.map(|matrix| matrix.of)
    }

    /// What it is if it is one of [`Skeleton::added`].
    pub(crate) fn added(&self, tensor: u32) -> Option<&Added> {
        let kept = self.size.len() - self.added.len();
        self.added.get((tensor as usize).checked_sub(kept)?)
    }

    /// By tensor: the one of the graph that it is, or of which it is made: by casts, as a matrix of its rows, moved behind a node.
    pub(crate) fn names(&self) -> Vec<u32> {
        let mut names: Vec<u32> = (0..self.size.len() as u32).collect();
        for (of, &wide) in self.wide.iter().enumerate() {
            for made in [wide, wide.saturating_add(1)] {
                if let Some(name) = names.get_mut(made as usize) {
                    *name = of as u32;
                }
            }
        }
        for &(of, moved) in &self.moved {
            names[moved as usize] = of;
        }
        for matrix in self.rows.values().flatten() {
            names[matrix.tensor as usize] = matrix.of;
        }
        let kept = names.len() - self.added.len();
        for (name, added) in names[kept..].iter_mut().zip(&self.added) {
            *name = added.of;
        }
        // Each stands behind what it is made of.
        for tensor in 0..names.len() {
            names[tensor] = names[names[tensor] as usize];
        }
        names
    }

    /// The skeleton with a tensor of no size from the first to the second of each pair, which are
    /// positions, so that every order keeps their sequence.
    pub(crate) fn with_sequences(&self, pairs: &[(u32, u32)]) -> Skeleton {
        let mut reads: Vec<Vec<u32>> = vec![Vec::new(); self.len()];
        let mut writes = reads.clone();
        let mut linked = self.clone();
        for &(first, second) in pairs {
            let tensor = linked.size.len() as u32;
            linked.size.push(0);
            linked.owned.push(false);
            linked.output.push(false);
            if !linked.wide.is_empty() {
                linked.wide.push(NO_TENSOR);
                linked.known.push(None);
            }
            writes[first as usize].push(tensor);
            reads[second as usize].push(tensor);
        }
        (linked.reads, linked.writes) = (Lists::default(), Lists::default());
        for node in 0..self.len() {
            linked
                .reads
                .push(self.reads.get(node).iter().chain(&reads[node]).copied());
            linked
                .writes
                .push(self.writes.get(node).iter().chain(&writes[node]).copied());
        }
        linked
    }

    /// The number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }

    fn push_node(
        &mut self,
        graph: &Graph,
        uses: &Uses,
        (shapes, folding): (&[KnownDimensions], &Folding),
        id: NodeId,
        provider: Provider,
        workspace: u64,
    ) {
        let node = graph.node(id);
        if node.is("", "Constant") {
            // The session turns it into an initializer when it loads the file.
            for tensor in node.writes() {
                self.owned[tensor.index()] = true;
            }
            self.reads.push([]);
            self.writes.push([]);
            self.shares.push([]);
            self.workspace.push(0);
            self.early.push(0);
            self.reads_only_shape.push(false);
            self.fusing.push(Fusing::No);
            return;
        }
        self.reads.push(node.reads().map(|tensor| tensor.0));
        self.writes.push(node.writes().map(|tensor| tensor.0));
        let pair =
            |&(output, input): &operators::Alias| Some((node.output(output)?, node.input(input)?));
        let aliases = operators::aliases(node);
        let in_place = operators::in_place(graph, node, provider);
        let always = aliases.iter().filter_map(pair).map(|pair| (pair, true));
        let sometimes = in_place
            .iter()
            .filter_map(pair)
            .filter(|&(written, read)| same_size(graph, shapes, written, read))
            .map(|pair| (pair, false));
        self.shares.push(
            always
                .chain(sometimes)
                .map(|((written, read), always)| Share {
                    written: written.0,
                    read: read.0,
                    always,
                }),
        );
        self.workspace.push(workspace);
        let early = operators::early_workspace(node, workspace);
        self.early.push(early.max(node.held.early.0));
        self.reads_only_shape
            .push(operators::reads_only_shape(node));
        let shape = |tensor: TensorId| shapes[tensor.index()].as_deref();
        let fusing = Fusing::of(graph, uses, node, provider, (shape, folding));
        self.fusing.push(fusing);
    }
}

/// Equal numbers for equal shapes, where they are known whole.
fn numbered(shapes: &[KnownDimensions]) -> Vec<Option<u32>> {
    let mut numbers: BTreeMap<&[Dimension], u32> = BTreeMap::new();
    let mut known = Vec::with_capacity(shapes.len());
    for shape in shapes {
        let whole = shape
            .as_deref()
            .filter(|shape| !shape.contains(&Dimension::Unknown));
        known.push(whole.map(|shape| {
            let next = numbers.len() as u32;
            *numbers.entry(shape).or_insert(next)
        }));
    }
    known
}

/// In-place results need shapes that the runtime knows to be equal, number by number and name by name, and equal
/// element sizes.
pub(crate) fn same_size(
    graph: &Graph,
    shapes: &[KnownDimensions],
    written: TensorId,
    read: TensorId,
) -> bool {
    let is_known = is_known_to_equal(shapes, read, written);
    let (written, read) = (graph.tensor(written), graph.tensor(read));
    is_known
        && read.shape.is_some()
        && read.shape == written.shape
        && read.element.map(|e| e.bytes(1)) == written.element.map(|e| e.bytes(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;

    #[test]
    fn what_is_made_of_what_is_made_of_a_tensor_has_its_name() {
        // Casts make something of the matrices, which are made of what a product reads and a sum writes.
        let text = r#"<ir_version: 8, opset_import: ["" : 17]>
            g (float16[2,4,8] x, float16[8,16] w, float16[16] b) => (float16[2,4,16] z)
            <float16[2,4,16] p, float16[2,4,16] y> { p = MatMul (x, w) y = Add (p, b) z = Neg (y) }"#;
        let graph = Graph::parse(text).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
        let matrices = skeleton.rows.values().flatten();
        let made = |matrix: &Flattened| {
            let wide = skeleton.wide[matrix.tensor as usize];
            [matrix.tensor, wide, wide + 1]
        };
        let made: Vec<u32> = matrices.flat_map(made).collect();
        let all = skeleton.names();
        let name = |&tensor: &u32| {
            let Tensor { name, .. } = graph.tensor(TensorId(all[tensor as usize]));
            name.to_string()
        };
        let names: Vec<String> = made.iter().map(name).collect();
        assert_eq!(names, ["x", "x", "x", "y", "y", "y"]);
    }
}
