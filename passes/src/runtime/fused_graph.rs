//! What runs when the runtime has optimized a graph, as far as it changes the order.
//!
//! Source: ONNX Runtime's transformers; checked against measured peaks at ORT_ENABLE_ALL in both orders. A node that
//! replaces others gets an index behind all that there were, in the sequence in which a transformer finds
//! them, which is that of the DEFAULT order. So what is fused runs later than planned wherever nothing waits for
//! it: 252 weight gradients of lstm4x64 took 3,792 MB instead of 718 in PRIORITY_BASED order.
//!
//! - Of nodes that compute the same, one is left, and lasts for all (`merged.rs`).
//! - Identity nodes go from ORT_ENABLE_BASIC on (measured: 33 fewer let a rewritten ResNet-50 take 237
//!   instead of 190 MB).
//! - A Cast that only Shapes read goes. Where it widens what is computed between casts, the narrowing cast stays for them: it runs
//!   last, and keeps what it reads till then.
//! - A Transpose that reads what another one writes reads what that one reads, whoever else reads the result; two that cancel go.
//!   So does a Shape, with a Gather behind it, unless some reader of the Transpose keeps it.
//! - A Transpose is moved behind other readers where that is worth it (`moved_transposes.rs`): not for the search, whose graphs keep theirs.
//! - A Gemm adds what the Sum of two adds that alone reads it, and reads or writes what a Transpose does.
//! - A product of two matrices and the Add that alone reads it become a Gemm.
//! - A convolution or Gemm and the activation that alone reads it become one. At ORT_ENABLE_ALL a convolution with a bias adds an image of
//!   the same size besides.
//! - A matrix product reads what a Transpose or a multiplication by a number reads, the former by way of a Cast, too, and writes what a multiplication
//!   writes that alone reads it. What nobody reads any more goes.
//! - A bias and the Gelu that alone reads the sum become one, which takes memory of its own.
//!
//! - Numbers that follow from constants are there before the first step, and so are shapes of Reshapes (`optimized_shapes.rs`).
//! - Slices and Gathers that take a tensor apart become one Split, which writes all parts at once.
//!
//! Not simulated: what leaves order and large tensors alone, and what training graphs were not seen to have.

mod moved_transposes;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use self::moved_transposes::Moved;
use super::casting::{Casting, NO_TENSOR};
use super::known_shapes::{Targets, runtime_shapes};
use super::level::Level;
use super::moving::{Added, Moving};
use super::optimized_shapes::{OptimizedShapes, optimized_shapes};
use super::order::{ExecutionOrder, execution_order};
use super::release::Release;
use super::skeleton::{Lists, Share, Skeleton};
use super::transposes::Transposition;
use crate::cost::Cost;
use crate::graph::{Graph, TensorId};
use crate::operators::Provider;
use crate::runtime::fusing::Fusing;

/// A skeleton of what runs, and by node its position in the graph's order.
pub(crate) type OptimizedForm = (Skeleton, Vec<u32>);

/// Which of the forms runs at which level.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FormsOfLevels {
    count: usize,
    /// Is the first of them what runs at ORT_ENABLE_BASIC?
    has_basic: bool,
    /// Is the last of them what runs at ORT_ENABLE_ALL alone?
    has_all: bool,
}

impl FormsOfLevels {
    /// The form's number; none for the graph as it is.
    pub(crate) fn at(self, level: Level) -> Option<usize> {
        match level {
            Level::DisableAll => None,
            Level::EnableBasic => self.has_basic.then_some(0),
            Level::EnableExtended => self.count.checked_sub(1 + usize::from(self.has_all)),
            Level::EnableAll => self.count.checked_sub(1),
        }
    }
}

/// What a node writes that runs once the runtime has optimized a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The tensor of the graph.
    pub tensor: TensorId,
    /// Is it another one that the runtime makes of it?
    pub is_made: bool,
    /// The operator that makes it, where that is none of the graph's.
    pub made_by: Option<&'static str>,
}

/// What runs when the runtime has optimized `graph` as far as it can, in `order`: a node by what it writes.
/// To be compared with the runtime.
pub fn optimized_order(
    graph: &Graph,
    release: &'static Release,
    provider: Provider,
    order: ExecutionOrder,
) -> Vec<Vec<Written>> {
    let costs = vec![Cost::default(); graph.node_count()];
    let shapes = runtime_shapes(graph);
    let optimized = optimized_shapes(graph, &shapes);
    let OptimizedShapes { targets, shapes } = optimized.unwrap_or(OptimizedShapes {
        targets: Targets::new(),
        shapes,
    });
    let skeleton = Skeleton::with_shapes(graph, &shapes, provider, &costs);
    let skeleton = skeleton.run_by(release).assembling(graph, &targets);
    let skeleton = skeleton.moving(graph, &shapes);
    let optimized = skeleton.optimized().pop();
    let run = optimized.unwrap_or_else(|| skeleton.into_run()).0;
    let written = |&node: &u32| run.writes.get(node as usize).iter();
    let named = |&tensor: &u32| Written {
        tensor: TensorId(run.named(tensor)),
        is_made: run.added(tensor).is_some(),
        made_by: run.added(tensor).and_then(|added| added.made_by),
    };
    let executed = execution_order(&run, order);
    executed
        .iter()
        .map(|node| written(node).map(named).collect())
        .collect()
}

impl Skeleton {
    /// What runs at ORT_ENABLE_BASIC, ORT_ENABLE_EXTENDED and ORT_ENABLE_ALL, where that is something else. Tensors keep
    /// their numbers. Casts come last (`casts.rs`).
    pub(crate) fn optimized(&self) -> Vec<OptimizedForm> {
        self.optimized_by_level().0
    }

    /// The same, with the levels at which they run.
    pub(crate) fn optimized_by_level(&self) -> (Vec<OptimizedForm>, FormsOfLevels) {
        let (forms, levels) = self.fused();
        let with_casts = |(form, positions): OptimizedForm| match form.as_run() {
            None => (form, positions),
            Some((run, kept)) => {
                let kept = kept.iter().map(|&node| positions[node as usize]);
                (run, kept.collect())
            }
        };
        (forms.into_iter().map(with_casts).collect(), levels)
    }

    fn fused(&self) -> (Vec<OptimizedForm>, FormsOfLevels) {
        let mut nodes = Nodes::of(self);
        let mut forms = Vec::new();
        let forwards = self.fusing.contains(&Fusing::Forwards);
        if forwards {
            nodes.close_ranks();
        }
        let folded = nodes.fold();
        let measured = nodes.measure_before_casts();
        let shared = nodes.share_constants();
        let merged = nodes.merge_equal();
        let assembled = nodes.assemble();
        let basic: &[Rule<'_>] = &[Nodes::gemm, Nodes::add_to_product];
        let extended: &[Rule<'_>] = &[
            Nodes::gemm,
            Nodes::activate_gemm,
            Nodes::activate_convolution,
            Nodes::transpose_product,
            Nodes::gelu,
            Nodes::scale,
        ];
        if nodes.fuse_all(basic, Nodes::move_transposes)
            || forwards
            || folded
            || measured
            || shared
            || merged
            || assembled
        {
            forms.push(nodes.form());
        }
        let has_basic = !forms.is_empty();
        let moved = nodes.move_behind_pieces() && nodes.fuse_all(basic, Nodes::move_transposes);
        let split = nodes.split();
        if nodes.fuse_all(extended, |_| false) || split || moved {
            forms.push(nodes.form());
        }
        // What the runtime does beyond this at ORT_ENABLE_ALL is not simulated (`blocks.rs`).
        let has_all = nodes.fuse(Nodes::add_to_convolution);
        if has_all {
            forms.push(nodes.form());
        }
        let levels = FormsOfLevels {
            count: forms.len(),
            has_basic,
            has_all,
        };
        (forms, levels)
    }
}

/// How often the runtime looks for more, which ends far earlier.
const PASSES: usize = 10;

const NOBODY: u32 = u32::MAX;

const PASSES_CASTS: Fusing = Fusing::Shape { passes_casts: true };

/// A node under change.
struct FusedNode<'s> {
    /// Its position in the graph's order; of several that became one, that of the one that works longest.
    position: u32,
    reads: Cow<'s, [u32]>,
    writes: Cow<'s, [u32]>,
    shares: Cow<'s, [Share]>,
    workspace: u64,
    fusing: Fusing,
    /// See [`Skeleton::equal`].
    equal: u32,
    casting: Casting,
    /// How a Transpose is moved behind it.
    moving: Moving,
}

impl<'s> FusedNode<'s> {
    /// The same, reading for each tensor what `of` says.
    fn reading(self, of: impl Fn(u32) -> u32) -> FusedNode<'s> {
        if self.reads.iter().all(|&tensor| of(tensor) == tensor) {
            return self;
        }
        let share = |&share: &Share| Share {
            read: of(share.read),
            ..share
        };
        FusedNode {
            reads: self.reads.iter().map(|&tensor| of(tensor)).collect(),
            shares: self.shares.iter().map(share).collect(),
            ..self
        }
    }

    /// The same, writing for each tensor what `of` says.
    fn writing(self, of: impl Fn(u32) -> u32) -> FusedNode<'s> {
        if self.writes.iter().all(|&tensor| of(tensor) == tensor) {
            return self;
        }
        let share = |&share: &Share| Share {
            written: of(share.written),
            ..share
        };
        FusedNode {
            writes: self.writes.iter().map(|&tensor| of(tensor)).collect(),
            shares: self.shares.iter().map(share).collect(),
            ..self
        }
    }
}

/// What a node can read in place of a tensor, and the tensor's producer.
type Past = fn(&Nodes<'_>, u32) -> Option<(u32, u32)>;

/// What becomes of a node that takes in others.
enum Change {
    /// It writes what its only reader does.
    Reader(u32),
    /// It reads past its producers.
    Inputs(Past),
    /// Both.
    Both(Past, u32),
    /// Casts that it reads go in front of the Transposes that they read, past which it reads then.
    Casts(Past),
    /// This convolution adds what this addition adds, and does its activation.
    Addition(u32, u32),
    /// A Transpose that does this to what the Transpose before it reads.
    Transposes(Transposition),
    /// A Shape of what that Transpose reads, written to this tensor, for a Gather that moves the sizes.
    Measures(u32),
}

impl Change {
    fn of(inputs: Option<Past>, reader: Option<u32>) -> Option<Change> {
        match (inputs, reader) {
            (Some(past), Some(reader)) => Some(Change::Both(past, reader)),
            (Some(past), None) => Some(Change::Inputs(past)),
            (None, reader) => reader.map(Change::Reader),
        }
    }
}

/// What becomes of the node with an index.
type Rule<'s> = fn(&Nodes<'s>, u32) -> Option<Change>;

/// All nodes by their index in the runtime; `None` for those that went.
struct Nodes<'s> {
    skeleton: &'s Skeleton,
    nodes: Vec<Option<FusedNode<'s>>>,
    /// By tensor.
    producer: Vec<u32>,
    /// By tensor: how many times it is read, and the sum of its readers' indices.
    readers: Vec<(u32, u64)>,
    /// By tensor: how many times Gemm reads it.
    gemms: Vec<u32>,
    /// Tensors that are there before the first step.
    folded: Vec<u32>,
    /// By tensor: who reads it, or did, while Transposes are looked at and once one is renamed.
    readers_of: Option<Vec<Vec<u32>>>,
    /// By tensor: how many times those read it behind which no Transpose is moved.
    keepers: Vec<u32>,
    /// Tensors behind those of the skeleton.
    added: Vec<Added>,
    /// What is known while Transposes are moved.
    moved: Option<Moved>,
    /// How many of these were renamed.
    #[cfg(test)]
    looked_at: usize,
}

impl<'s> Nodes<'s> {
    fn of(skeleton: &'s Skeleton) -> Nodes<'s> {
        let mut nodes = Nodes {
            skeleton,
            nodes: Vec::with_capacity(skeleton.len()),
            producer: vec![NOBODY; skeleton.size.len()],
            readers: vec![(0, 0); skeleton.size.len()],
            gemms: vec![0; skeleton.size.len()],
            folded: Vec::new(),
            readers_of: None,
            keepers: vec![0; skeleton.size.len()],
            added: Vec::new(),
            moved: skeleton.moves.as_deref().map(Moved::of),
            #[cfg(test)]
            looked_at: 0,
        };
        for node in 0..skeleton.len() {
            nodes.add(FusedNode {
                position: node as u32,
                reads: skeleton.reads.get(node).into(),
                writes: skeleton.writes.get(node).into(),
                shares: skeleton.shares.get(node).into(),
                workspace: skeleton.workspace[node],
                fusing: skeleton.fusing[node],
                equal: skeleton.equal[node],
                casting: skeleton.casting.get(node).copied().unwrap_or(Casting::No),
                moving: match &skeleton.moves {
                    Some(moves) if !moves.is_piece[node] => moves.moving[node],
                    _ => Moving::No,
                },
            });
        }
        nodes
    }

    /// Adds a node with the highest index.
    fn add(&mut self, node: FusedNode<'s>) {
        self.nodes.push(None);
        self.put(self.nodes.len() as u32 - 1, node);
    }

    fn put(&mut self, index: u32, node: FusedNode<'s>) {
        for &tensor in node.reads.iter() {
            let (count, sum) = &mut self.readers[tensor as usize];
            (*count, *sum) = (*count + 1, *sum + u64::from(index));
            self.gemms[tensor as usize] += u32::from(node.fusing == Fusing::Gemm);
            self.keepers[tensor as usize] += u32::from(node.moving == Moving::No);
        }
        for &tensor in node.writes.iter() {
            self.producer[tensor as usize] = index;
        }
        self.nodes[index as usize] = Some(node);
    }

    fn take(&mut self, index: u32) -> Option<FusedNode<'s>> {
        let node = self.nodes[index as usize].take()?;
        for &tensor in node.reads.iter() {
            let (count, sum) = &mut self.readers[tensor as usize];
            (*count, *sum) = (*count - 1, *sum - u64::from(index));
            self.gemms[tensor as usize] -= u32::from(node.fusing == Fusing::Gemm);
            self.keepers[tensor as usize] -= u32::from(node.moving == Moving::No);
        }
        Some(node)
    }

    fn node(&self, index: u32) -> Option<&FusedNode<'s>> {
        self.nodes.get(index as usize)?.as_ref()
    }

    fn is_output(&self, tensor: u32) -> bool {
        self.skeleton.output.get(tensor as usize) == Some(&true)
    }

    fn is(&self, index: u32, fusing: Fusing) -> bool {
        self.node(index).is_some_and(|node| node.fusing == fusing)
    }

    /// Who alone reads, once, what the node writes.
    fn only_reader(&self, index: u32) -> Option<u32> {
        let &[written] = &*self.node(index)?.writes else {
            return None;
        };
        match self.readers[written as usize] {
            (1, reader) if !self.is_output(written) => Some(reader as u32),
            _ => None,
        }
    }

    /// The indices of what is left, in DEFAULT order.
    fn in_default_order(&self) -> Vec<u32> {
        let (structure, indices) = self.structure();
        let order = execution_order(&structure, ExecutionOrder::Default).into_iter();
        order.map(|place| indices[place as usize]).collect()
    }

    /// Who reads and writes what of what is left, in the sequence of indices, and the indices. All else is missing.
    fn structure(&self) -> (Skeleton, Vec<u32>) {
        let (nodes, from) = (self.nodes.len(), self.skeleton);
        let mut left = Skeleton {
            reads: Lists::with_capacity(nodes, from.reads.items()),
            writes: Lists::with_capacity(nodes, from.writes.items()),
            reads_only_shape: Vec::with_capacity(nodes),
            size: vec![0; self.producer.len()],
            ..Skeleton::default().run_by(from.release)
        };
        let mut indices = Vec::with_capacity(nodes);
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            if from.yield_op == Some(node.position) {
                left.yield_op = Some(indices.len() as u32);
            }
            left.reads.push(node.reads.iter().copied());
            left.writes.push(node.writes.iter().copied());
            left.reads_only_shape
                .push(from.reads_only_shape[node.position as usize]);
            indices.push(index as u32);
        }
        (left, indices)
    }

    fn form(&self) -> OptimizedForm {
        let (structure, _) = self.structure();
        let nodes = structure.len();
        let mut form = Skeleton {
            size: self.skeleton.size.clone(),
            owned: self.skeleton.owned.clone(),
            output: self.skeleton.output.clone(),
            shares: Lists::with_capacity(nodes, self.skeleton.shares.items()),
            fusing: vec![Fusing::No; nodes],
            equal: vec![0; nodes],
            wide: self.skeleton.wide.clone(),
            known: self.skeleton.known.clone(),
            moved: self.skeleton.moved.clone(),
            ..structure
        };
        let mut positions = Vec::with_capacity(nodes);
        for node in self.nodes.iter().flatten() {
            form.shares.push(node.shares.iter().copied());
            form.workspace.push(node.workspace);
            if !self.skeleton.casting.is_empty() {
                form.casting.push(node.casting);
            }
            form.early.push(self.skeleton.early[node.position as usize]);
            positions.push(node.position);
        }
        for added in &self.added {
            form.size.push(self.bytes_of(added));
            form.owned.push(false);
            form.output.push(false);
        }
        form.added.clone_from(&self.added);
        for &written in &self.folded {
            form.owned[written as usize] = true;
        }
        (form, positions)
    }

    /// Takes the nodes out that only forward; whoever reads them reads their input.
    fn close_ranks(&mut self) {
        let mut source: Vec<u32> = (0..self.skeleton.size.len() as u32).collect();
        for index in 0..self.nodes.len() as u32 {
            let Some(node) = self.take(index) else {
                continue;
            };
            if let (Fusing::Forwards, &[read], &[written]) =
                (node.fusing, &*node.reads, &*node.writes)
            {
                // Positions are topological: whatever is forwarded has its source already.
                source[written as usize] = source[read as usize];
                continue;
            }
            self.put(index, node.reading(|tensor| source[tensor as usize]));
        }
    }

    /// Takes out what is computed before the first step, and what it alone reads: of what only its shape is asked for, all that computes
    /// it. Was there anything?
    fn fold(&mut self) -> bool {
        let mut read = Vec::new();
        for index in 0..self.nodes.len() as u32 {
            if self.is(index, Fusing::Folded)
                && let Some(node) = self.take(index)
            {
                self.folded.extend_from_slice(&node.writes);
                read.extend_from_slice(&node.reads);
            }
        }
        self.take_unread(&read);
        for &written in &self.folded {
            self.producer[written as usize] = NOBODY;
        }
        !self.folded.is_empty()
    }

    /// Takes out what puts a shape together that is constant, and what it alone reads. Was there anything?
    fn assemble(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.nodes.len() as u32 {
            if self.is(index, Fusing::Assembles)
                && let Some(node) = self.take(index)
            {
                any = true;
                self.folded.extend_from_slice(&node.writes);
                self.take_unread(&node.reads);
            }
        }
        for &written in &self.folded {
            self.producer[written as usize] = NOBODY;
        }
        any
    }

    /// Takes out the nodes that write these tensors, where nobody reads what they write any more, and then what these alone read.
    /// Runtime fact, measured in 1.19.2, 1.20.1 and 1.32.0; nodes that draw random numbers go as well.
    fn take_unread(&mut self, tensors: &[u32]) {
        let mut open = tensors.to_vec();
        while let Some(tensor) = open.pop() {
            let index = self.producer[tensor as usize];
            let is_free =
                |&tensor: &u32| self.readers[tensor as usize].0 == 0 && !self.is_output(tensor);
            let goes = |node: &FusedNode<'_>| node.writes.iter().all(is_free);
            if self.node(index).is_some_and(goes)
                && let Some(node) = self.take(index)
            {
                open.extend_from_slice(&node.reads);
            }
        }
    }

    fn is_shape(&self, index: u32) -> bool {
        let node = self.node(index);
        node.is_some_and(|node| matches!(node.fusing, Fusing::Shape { .. }))
    }

    /// Puts one node in the place of those that split a tensor, which no Shape writes. Were there any?
    fn split(&mut self) -> bool {
        // By tensor: where those parts begin that are still taken, and by whom.
        let mut tensors: BTreeMap<u32, Vec<(u64, u32)>> = BTreeMap::new();
        for (index, node) in (0..).zip(&self.nodes) {
            if let Some(node) = node
                && let Fusing::Splits { from } = node.fusing
                && !self.is_shape(self.producer[node.reads[0] as usize])
            {
                let parts = tensors.entry(node.reads[0]).or_default();
                parts.push((from, index));
            }
        }
        for (&read, parts) in &mut tensors {
            parts.sort_unstable();
            let taken = parts.iter().filter_map(|&(_, index)| self.take(index));
            let taken: Vec<FusedNode<'s>> = taken.collect();
            let writes = taken.iter().flat_map(|part| part.writes.iter().copied());
            let writes: Vec<u32> = writes.collect();
            if let Some(first) = taken.into_iter().next() {
                self.add(FusedNode {
                    reads: vec![read].into(),
                    writes: writes.into(),
                    shares: Cow::default(),
                    fusing: Fusing::No,
                    equal: 0,
                    moving: Moving::First,
                    ..first
                });
            }
        }
        !tensors.is_empty()
    }

    /// Takes the Casts of computed tensors out that only Shapes read. Were there any?
    fn measure_before_casts(&mut self) -> bool {
        let skeleton = self.skeleton;
        if !skeleton.fusing.contains(&PASSES_CASTS) {
            return false;
        }
        // By tensor: how many read only its shape.
        let mut measured = vec![0; self.readers.len()];
        for node in self.nodes.iter().flatten() {
            if node.fusing == PASSES_CASTS {
                measured[node.reads[0] as usize] += 1;
            }
        }
        let mut source: Vec<u32> = (0..skeleton.size.len() as u32).collect();
        let mut gone = Vec::new();
        // Positions are topological: a Cast's readers are seen first.
        for index in (0..self.nodes.len() as u32).rev() {
            let Some(node) = self.node(index) else {
                continue;
            };
            if let (Fusing::Casts, &[read], &[written]) = (node.fusing, &*node.reads, &*node.writes)
                && self.producer[read as usize] != NOBODY
                && !skeleton.output[written as usize]
                && measured[written as usize] > 0
                && measured[written as usize] == self.readers[written as usize].0
            {
                measured[read as usize] += 1;
                source[written as usize] = read;
                gone.push(index);
            }
        }
        for &index in gone.iter().rev() {
            if let Some(node) = self.take(index) {
                source[node.writes[0] as usize] = source[node.reads[0] as usize];
            }
        }
        for index in 0..self.nodes.len() as u32 {
            if self.is(index, PASSES_CASTS)
                && let Some(node) = self.take(index)
            {
                let node = node.reading(|tensor| source[tensor as usize]);
                let wide = skeleton.wide.get(node.reads[0] as usize);
                let casting = match wide.is_some_and(|&wide| wide != NO_TENSOR) {
                    true => Casting::SHAPE,
                    false => Casting::No,
                };
                self.put(index, FusedNode { casting, ..node });
            }
        }
        !gone.is_empty()
    }

    /// Whoever reads a constant reads the first that is equal. Are there any?
    fn share_constants(&mut self) -> bool {
        let shared = &self.skeleton.shared;
        if shared.is_empty() {
            return false;
        }
        let mut source: Vec<u32> = (0..self.skeleton.size.len() as u32).collect();
        for &(constant, first) in shared {
            source[constant as usize] = first;
        }
        for index in 0..self.nodes.len() as u32 {
            if let Some(node) = self.take(index) {
                self.put(index, node.reading(|tensor| source[tensor as usize]));
            }
        }
        true
    }

    /// Leaves one of the nodes that compute the same, the first in DEFAULT order, and of the others what puts something out. Were
    /// there any?
    fn merge_equal(&mut self) -> bool {
        if self.nodes.iter().flatten().all(|node| node.equal == 0) {
            return false;
        }
        let mut source: Vec<u32> = (0..self.skeleton.size.len() as u32).collect();
        let mut first: HashMap<(u32, Vec<u32>), Vec<u32>> = HashMap::new();
        let mut any = false;
        for index in self.in_default_order() {
            let Some(node) = self.take(index) else {
                continue;
            };
            let node = node.reading(|tensor| source[tensor as usize]);
            let mut goes = false;
            if node.equal != 0 {
                let key = (node.equal, node.reads.to_vec());
                let same = first.entry(key).or_insert_with(|| node.writes.to_vec());
                let is_output = |written: &&u32| self.skeleton.output[**written as usize];
                goes = *node.writes != **same && !node.writes.iter().any(|w| is_output(&w));
                for (written, same) in node.writes.iter().zip(same.iter()) {
                    if written != same && !is_output(&written) {
                        source[*written as usize] = *same;
                        any = true;
                    }
                }
            }
            if !goes {
                self.put(index, node);
            }
        }
        any
    }

    /// Applies rules, and what comes last, in turn until none changes anything. Did any?
    fn fuse_all(&mut self, rules: &[Rule<'s>], last: fn(&mut Nodes<'s>) -> bool) -> bool {
        let mut any = false;
        for _ in 0..PASSES {
            let changed = rules.iter().map(|&rule| self.fuse(rule));
            let changed = changed.fold(false, |any, changed| any | changed);
            if !(changed | last(self)) {
                break;
            }
            any = true;
        }
        any
    }

    /// Applies a rule to each node in the DEFAULT order of what is there now. Did it change anything?
    fn fuse(&mut self, rule: Rule<'s>) -> bool {
        // Most rules find nothing most of the time; the order is dear.
        if !(0..self.nodes.len() as u32).any(|index| rule(self, index).is_some()) {
            return false;
        }
        for index in self.in_default_order() {
            match rule(self, index) {
                Some(Change::Reader(reader)) => self.take_in_reader(index, reader),
                Some(Change::Inputs(past)) => self.take_in_inputs(index, past),
                Some(Change::Both(past, reader)) => {
                    self.take_in_inputs(index, past);
                    self.take_in_reader(self.nodes.len() as u32 - 1, reader);
                }
                Some(Change::Casts(past)) => {
                    self.move_casts(index);
                    self.take_in_inputs(index, past);
                }
                Some(Change::Addition(convolution, addition)) => {
                    self.take_in_reader(convolution, addition);
                    let sum = self.nodes.len() as u32 - 1;
                    if let Some(Change::Reader(activation)) = self.activate_convolution(sum) {
                        self.take_in_reader(sum, activation);
                    }
                }
                Some(Change::Transposes(both)) => self.transpose_at_once(index, both),
                Some(Change::Measures(sizes)) => self.measure_before(index, sizes),
                None => {}
            }
        }
        self.readers_of = None;
        true
    }

    /// Moves Transposes behind what reads them, as far as enough is known for that. Did it change anything?
    fn move_transposes(&mut self) -> bool {
        match self.moved.is_some() {
            true => self.move_behind_readers(),
            false => self.fuse(Nodes::transpose),
        }
    }

    /// A Transpose does what the Transpose before it does as well, and a Shape reads past it.
    fn transpose(&self, index: u32) -> Option<Change> {
        if !self.skeleton.release.moves_transposes() {
            return None;
        }
        let node = self.node(index)?;
        let first = || self.transposition(self.producer[node.reads[0] as usize]);
        match node.fusing {
            Fusing::Transposes(next) => first()?.then(next).map(Change::Transposes),
            Fusing::Shape { .. } => {
                first().filter(|first| first.is_past_shapes())?;
                let sizes = self.skeleton.moved(node.writes[0])?;
                Some(Change::Measures(sizes))
            }
            _ => None,
        }
    }

    fn transposition(&self, index: u32) -> Option<Transposition> {
        match self.node(index)?.fusing {
            Fusing::Transposes(transposition) => Some(transposition),
            _ => None,
        }
    }

    /// A product takes in the addition behind it.
    fn add_to_product(&self, index: u32) -> Option<Change> {
        let adds = |fusing| matches!(fusing, Fusing::Adds | Fusing::AddsImages | Fusing::Bias);
        self.takes_in(index, Fusing::Product { adds: true }, adds)
    }

    /// A Gemm takes in its activation.
    fn activate_gemm(&self, index: u32) -> Option<Change> {
        self.assigned(index)?;
        self.takes_in(index, Fusing::Gemm, |fusing| fusing == Fusing::Activation)
    }

    /// A convolution takes in its activation.
    fn activate_convolution(&self, index: u32) -> Option<Change> {
        self.assigned(index)?;
        let activates = |fusing| fusing == Fusing::Activation;
        self.takes_in(index, Fusing::Convolution, activates)
    }

    /// A convolution with a bias takes in the addition of another image that alone reads it: of two, the one with the lowest index.
    fn add_to_convolution(&self, index: u32) -> Option<Change> {
        const WITH_BIAS: usize = 3;
        let alone = |index: u32, addition: u32| {
            self.is(index, Fusing::Convolution) && self.only_reader(index) == Some(addition)
        };
        let addition = self.only_reader(index)?;
        let adds = self.is(index, Fusing::Convolution) && self.is(addition, Fusing::AddsImages);
        let added = self.node(addition).filter(|_| adds)?.reads.iter();
        let producers = added.map(|&read| self.producer[read as usize]);
        let convolutions = producers.filter(|&index| {
            alone(index, addition)
                && self
                    .assigned(index)
                    .is_some_and(|node| node.reads.len() == WITH_BIAS)
        });
        Some(Change::Addition(convolutions.min()?, addition))
    }

    /// An addition of a bias takes in the Gelu behind it.
    fn gelu(&self, index: u32) -> Option<Change> {
        self.assigned(index)?;
        let is_gelu = |fusing| matches!(fusing, Fusing::Gelu { .. });
        self.takes_in(index, Fusing::Bias, is_gelu)
    }

    /// A node of a kind takes in one of another that alone reads what it writes.
    fn takes_in(&self, index: u32, kind: Fusing, reader: fn(Fusing) -> bool) -> Option<Change> {
        let only = self.only_reader(index).filter(|_| self.is(index, kind))?;
        reader(self.node(only)?.fusing).then_some(Change::Reader(only))
    }

    /// A Gemm without a third input takes in the Sum behind it, or else transpositions.
    fn gemm(&self, index: u32) -> Option<Change> {
        let node = self
            .node(index)
            .filter(|node| node.fusing == Fusing::Gemm)?;
        let sum = |fusing| fusing == Fusing::Sum;
        let sum = self.takes_in(index, Fusing::Gemm, sum);
        sum.filter(|_| node.reads.len() == 2)
            .or_else(|| self.transpose_gemm(node, index))
    }

    /// A Gemm that is read at most once reads what a Transpose reads that no other kind of node
    /// reads, and, without a third input, writes what a Transpose writes.
    fn transpose_gemm(&self, node: &FusedNode<'_>, index: u32) -> Option<Change> {
        let times = |&tensor: &u32| self.readers[tensor as usize].0;
        if node.writes.iter().map(times).sum::<u32>() > 1 {
            return None;
        }
        let past: Past = |nodes, tensor| {
            let all_gemms = nodes.readers[tensor as usize].0 == nodes.gemms[tensor as usize];
            nodes.transposed(tensor).filter(|_| all_gemms)
        };
        let reader = self
            .only_reader(index)
            .filter(|&reader| node.reads.len() == 2 && self.is_done_by_a_product(reader));
        Change::of(self.any_past(node, past), reader)
    }

    /// A product reads what a Transpose reads, or casts it.
    fn transpose_product(&self, index: u32) -> Option<Change> {
        let node = self.product(index)?;
        let past: Past = |nodes, tensor| nodes.transposed(tensor);
        if node
            .reads
            .iter()
            .any(|&read| self.cast_behind_a_transpose(read).is_some())
        {
            return Some(Change::Casts(past));
        }
        Change::of(self.any_past(node, past), None)
    }

    /// A product reads what a multiplication by a number reads, or writes what it writes.
    fn scale(&self, index: u32) -> Option<Change> {
        let node = self.product(index)?;
        let scales = |&reader: &u32| {
            let reader = self.node(reader).map(|node| node.fusing);
            matches!(reader, Some(Fusing::Scales { .. }))
        };
        let reader = self.only_reader(index).filter(scales);
        Change::of(
            self.any_past(node, |nodes, tensor| nodes.scaled(tensor)),
            reader,
        )
    }

    /// The node, if there is a kernel for it: from ORT_ENABLE_EXTENDED on, others are not looked at.
    fn assigned(&self, index: u32) -> Option<&FusedNode<'s>> {
        self.node(index).filter(|node| node.casting.has_kernel())
    }

    fn product(&self, index: u32) -> Option<&FusedNode<'s>> {
        self.assigned(index)
            .filter(|node| matches!(node.fusing, Fusing::Product { .. }))
    }

    /// `past`, if any input of the node can be read past.
    fn any_past(&self, node: &FusedNode<'_>, past: Past) -> Option<Past> {
        let reads_past = |&tensor: &u32| past(self, tensor).is_some();
        node.reads.iter().any(reads_past).then_some(past)
    }

    /// See [`Past`].
    fn transposed(&self, tensor: u32) -> Option<(u32, u32)> {
        let producer = self.producer[tensor as usize];
        let node = self.node(producer)?;
        let goes = self.is_done_by_a_product(producer) && !self.is_output(tensor);
        goes.then(|| (producer, node.reads[0]))
    }

    fn is_done_by_a_product(&self, transpose: u32) -> bool {
        let transposition = self.transposition(transpose);
        transposition.is_some_and(Transposition::is_done_by_a_product)
    }

    /// The Cast that writes the tensor and the Transpose before it, if they can change places, and what is between them then.
    fn cast_behind_a_transpose(&self, tensor: u32) -> Option<(u32, u32, u32)> {
        let between = self.skeleton.moved(tensor)?;
        let cast = self.producer[tensor as usize];
        let read = self
            .node(cast)
            .filter(|node| node.fusing == Fusing::Casts)?
            .reads[0];
        let (transpose, _) = self.transposed(read)?;
        Some((cast, transpose, between))
    }

    /// Puts the casts that a node reads in front of the Transposes that they read: both become new nodes.
    fn move_casts(&mut self, index: u32) {
        let Some(node) = self.node(index) else {
            return;
        };
        for tensor in node.reads.to_vec() {
            let Some((cast, transpose, between)) = self.cast_behind_a_transpose(tensor) else {
                continue;
            };
            let (Some(cast), Some(old)) = (self.take(cast), self.node(transpose)) else {
                continue;
            };
            let (read, transposed) = (old.reads[0], old.writes[0]);
            let turned = FusedNode {
                position: old.position,
                reads: vec![between].into(),
                writes: cast.writes.clone(),
                shares: Cow::default(),
                workspace: old.workspace,
                fusing: old.fusing,
                equal: 0,
                // It is in float32 now.
                casting: Casting::No,
                moving: old.moving,
            };
            let share = |&share: &Share| Share {
                written: between,
                read,
                ..share
            };
            self.add(FusedNode {
                reads: vec![read].into(),
                writes: vec![between].into(),
                shares: cast.shares.iter().map(share).collect(),
                equal: 0,
                ..cast
            });
            self.add(turned);
            if self.readers[transposed as usize].0 == 0 {
                self.take(transpose);
            }
        }
    }

    /// Lets a Transpose read what the one before it reads, which goes if nobody else reads it. One that leaves everything where it
    /// was goes as well, and so does the other name of the tensor, where neither the caller owns it nor both are graph outputs.
    fn transpose_at_once(&mut self, index: u32, both: Transposition) {
        let Some(node) = self.node(index) else {
            return;
        };
        let (between, written) = (node.reads[0], node.writes[0]);
        let before = self.producer[between as usize];
        let Some(FusedNode { reads, .. }) = self.node(before) else {
            return;
        };
        let read = reads[0];
        let Some(node) = self.take(index) else {
            return;
        };
        let is_output = |tensor: u32| self.is_output(tensor);
        let has_producer = self.producer[read as usize] != NOBODY;
        if !both.is_none() || is_output(written) && (is_output(read) || !has_producer) {
            self.put(
                index,
                FusedNode {
                    reads: vec![read].into(),
                    fusing: Fusing::Transposes(both),
                    equal: 0,
                    ..node
                },
            );
            self.add_reader(read, index);
        } else if is_output(written) {
            self.rename(read, written);
        } else {
            self.rename(written, read);
        }
        if self.readers[between as usize].0 == 0 && !self.is_output(between) {
            self.take(before);
        }
    }

    /// Lets a Shape read what the Transpose before it reads, and write `sizes`, which a new Gather reads. The Transpose goes if nobody
    /// else reads it.
    fn measure_before(&mut self, index: u32, sizes: u32) {
        let Some(node) = self.take(index) else {
            return;
        };
        let between = node.reads[0];
        let before = self.producer[between as usize];
        let Some(FusedNode {
            position, reads, ..
        }) = self.node(before)
        else {
            return;
        };
        let (position, read) = (*position, reads[0]);
        let gather = FusedNode {
            // It is no Shape.
            position,
            reads: vec![sizes].into(),
            writes: node.writes.clone(),
            shares: Cow::default(),
            workspace: 0,
            fusing: Fusing::No,
            equal: 0,
            casting: Casting::No,
            moving: Moving::No,
        };
        self.put(
            index,
            FusedNode {
                reads: vec![read].into(),
                writes: vec![sizes].into(),
                equal: 0,
                ..node
            },
        );
        self.add_reader(read, index);
        self.add(gather);
        if self.readers[between as usize].0 == 0 {
            self.take(before);
        }
    }

    /// Puts a tensor in the place of another.
    fn rename(&mut self, from: u32, to: u32) {
        let of = |tensor: u32| if tensor == from { to } else { tensor };
        for index in self.take_readers(from) {
            if let Some(node) = self.take(index) {
                self.put(index, node.reading(of));
                self.add_reader(to, index);
            }
        }
        if let Some(node) = self.take(self.producer[from as usize]) {
            self.put(self.producer[from as usize], node.writing(of));
        }
    }

    fn add_reader(&mut self, tensor: u32, index: u32) {
        if let Some(readers_of) = &mut self.readers_of {
            readers_of[tensor as usize].push(index);
        }
    }

    /// Who reads the tensor, or did.
    fn take_readers(&mut self, tensor: u32) -> Vec<u32> {
        let readers_of = self.readers_of.get_or_insert_with(|| {
            let mut readers_of = vec![Vec::new(); self.readers.len()];
            for (index, node) in (0..).zip(&self.nodes) {
                for &read in node.iter().flat_map(|node| node.reads.iter()) {
                    readers_of[read as usize].push(index);
                }
            }
            readers_of
        });
        let readers = std::mem::take(&mut readers_of[tensor as usize]);
        #[cfg(test)]
        {
            self.looked_at += readers.len();
        }
        readers
    }

    /// See [`Past`].
    fn scaled(&self, tensor: u32) -> Option<(u32, u32)> {
        let producer = self.producer[tensor as usize];
        let node = self.node(producer)?;
        match node.fusing {
            Fusing::Scales { input, before } if before => Some((producer, *node.reads.get(input)?)),
            _ => None,
        }
    }

    /// Replaces a node and the only one that reads it by one with the highest index.
    fn take_in_reader(&mut self, index: u32, reader: u32) {
        let (Some(node), Some(reader)) = (self.take(index), self.take(reader)) else {
            return;
        };
        let mut reads = node.reads.into_owned();
        let becomes_gemm = node.fusing == Fusing::Product { adds: true };
        let adds_image = reader.fusing == Fusing::AddsImages && !becomes_gemm;
        // What a convolution adds may be where the result is written; nothing else is where it was.
        let written = reader.writes[0];
        let in_place = |&read: &u32| Share {
            written,
            read,
            always: false,
        };
        let shares: Vec<Share> = match node.fusing {
            _ if adds_image => {
                let added = reader.reads.iter();
                let added = added.filter(|read| !node.writes.contains(read));
                added.map(in_place).collect()
            }
            Fusing::Convolution => node
                .shares
                .iter()
                .map(|share| in_place(&share.read))
                .collect(),
            _ => Vec::new(),
        };
        if reader.fusing == Fusing::Sum || becomes_gemm || adds_image {
            let others = reader
                .reads
                .iter()
                .filter(|read| !node.writes.contains(read));
            reads.extend(others);
        }
        let workspace = match reader.fusing {
            Fusing::Gelu { workspace } => workspace,
            _ => node.workspace,
        };
        self.add(FusedNode {
            position: node.position,
            reads: reads.into(),
            writes: reader.writes,
            shares: shares.into(),
            workspace,
            fusing: match reader.fusing {
                _ if becomes_gemm => Fusing::Gemm,
                // FusedGemm, FusedConv and BiasGelu take in nothing more.
                Fusing::Activation | Fusing::Gelu { .. } => Fusing::No,
                _ => node.fusing,
            },
            equal: 0,
            casting: node.casting,
            moving: Moving::No,
        });
    }

    /// Replaces a node by one with the highest index that reads past those of which `past` says
    /// what they read.
    fn take_in_inputs(&mut self, index: u32, past: Past) {
        let Some(node) = self.node(index) else {
            return;
        };
        let found: Vec<_> = node.reads.iter().map(|&t| past(self, t)).collect();
        let Some(node) = self.take(index) else {
            return;
        };
        let reads = node.reads.iter().zip(&found);
        let reads = reads.map(|(&read, found)| found.map_or(read, |(_, past)| past));
        self.add(FusedNode {
            reads: reads.collect(),
            ..node
        });
        for (producer, _) in found.into_iter().flatten() {
            let writes = self.node(producer).map(|node| node.writes.clone());
            let is_read = |&tensor: &u32| self.readers[tensor as usize].0 > 0;
            if writes.is_some_and(|writes| !writes.iter().any(is_read)) {
                self.take(producer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Cost;
    use crate::graph::{Graph, TensorId};
    use crate::operators::Provider;
    use crate::pass::Pass as _;
    use crate::rewrite::infer_shapes::InferShapes;
    use crate::runtime::executions::Executions;
    use crate::runtime::liveness::Holder;
    use crate::runtime::settings::RuntimeSettings;

    /// By level above ORT_DISABLE_ALL: the nodes by index, each as what it writes and reads.
    fn forms(text: &str) -> Vec<String> {
        forms_by(&crate::runtime::TRAINING, text)
    }

    fn forms_by(release: &'static Release, text: &str) -> Vec<String> {
        let graph = Graph::parse(text).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs).run_by(release);
        // What a cast writes that was moved has a mark.
        let name = |&tensor: &u32| {
            let of = skeleton.named(tensor);
            let mark = if of == tensor { "" } else { "~" };
            format!("{}{mark}", graph.tensor(TensorId(of)).name)
        };
        let names = |tensors: &[u32]| tensors.iter().map(name).collect::<Vec<_>>().join(",");
        let form = |(form, _): &OptimizedForm| {
            let nodes = (0..form.len()).map(|node| {
                format!(
                    "{}({})",
                    names(form.writes.get(node)),
                    names(form.reads.get(node))
                )
            });
            nodes.collect::<Vec<_>>().join(" ")
        };
        skeleton.optimized().iter().map(form).collect()
    }

    #[test]
    fn a_graph_that_stays_as_it_is_has_no_other_form() {
        let text =
            "g (float[4,4] x) => (float[4,4] y) <float[4,4] a> { a = MatMul(x, x) y = Exp(a) }";
        assert!(forms(text).is_empty());
    }

    #[test]
    fn what_only_a_folded_shape_reads_goes_with_it() {
        let text = |more: &str| {
            format!(
                "g (float[4,8] x) => (float[4,8] y) <float[4,8] a, float[4,8] b, int64[2] s, int64[2] t>
                {{ a = RandomNormalLike(x) b = Exp(a) s = Shape(b) t = Neg(s) y = Expand({more}, t) }}"
            )
        };
        assert_eq!(forms(&text("x")), ["y(x,t)"]);
        assert_eq!(forms(&text("a")), ["a(x) y(a,t)"]);
    }

    #[test]
    fn a_product_of_matrices_and_the_addition_behind_it_become_a_gemm() {
        let text = |bias: &str, a: &str| {
            format!(
                "g (float[3,4] x, float[4,5] w, {bias} b) => (float[3,5] y) <float[3,5] a, float[3,5] s>
                {{ a = MatMul(x, w) s = Add({a}) y = Relu(s) }}"
            )
        };
        for bias in ["float[5]", "float[1,5]", "float[3,5]", "float[3,1]"] {
            let fused = ["y(s) s(x,w,b)", "y(x,w,b)"];
            assert_eq!(forms(&text(bias, "a, b")), fused);
            assert_eq!(forms(&text(bias, "b, a")), fused);
        }
        for bias in ["float[1]", "float[1,1]", "float[1,3,5]"] {
            assert!(forms(&text(bias, "a, b")).is_empty(), "{bias}");
        }
        let doubles = text("double[5]", "a, b").replace("float", "double");
        assert!(forms(&doubles).is_empty());
        assert!(forms(&text("float[5]", "a, a")).is_empty());
    }

    #[test]
    fn of_nodes_that_compute_the_same_one_is_left() {
        let text =
            "g (float[1024] x) => (float[1024] y, float[1024] z) <float[1024] a, float[1024] b>
            { a = Exp(x) b = Exp(x) y = Add(a, b) z = Exp(x) }";
        // The first in DEFAULT order.
        assert_eq!(forms(text), ["y(z,z) z(x)"]);
        let text = "g (float[1024] x) => (float[1024] y) <float[1024] a, float[1024] b, float[1024] c, float[1024] d>
            { a = Exp(x) b = Log(a) c = Exp(x) d = Log(c) y = Add(b, d) }";
        assert_eq!(forms(text), ["c(x) d(c) y(d,d)"]);
        // What puts something out stays.
        let text = "g (float[1024] x) => (float[1024] y, float[1024] z) { y = Exp(x) z = Exp(x) }";
        assert!(forms(text).is_empty());
    }

    #[test]
    fn of_two_activations_behind_each_other_only_the_first_is_fused() {
        let text = "g (float[4,4] x, float[4,4] w) => (float[4,4] y) <float[4,4] a, float[4,4] b>
            { a = Gemm(x, w) b = Sigmoid(a) y = Relu(b) }";
        assert_eq!(forms(text), ["y(b) b(x,w)"]);
    }

    #[test]
    fn identity_goes_and_its_readers_read_past_it() {
        let text = "g (float[4] x) => (float[4] y, float[4] z) <float[4] a, float[4] b>
            { a = Exp(x) b = Identity(a) y = Exp(b) z = Identity(a) }";
        // A graph output stays.
        assert_eq!(forms(text), ["a(x) y(a) z(a)"]);
    }

    #[test]
    fn what_is_fused_comes_last_in_the_sequence_of_the_default_order() {
        let text = "g (float[4,4] x, float[4,4] w) => (float[4,4] y, float[4,4] z)
            <float[4,4] t, float[4,4] p, float[4,4] q>
            { t = Transpose <perm = [1, 0]> (w) p = MatMul(x, t) y = Exp(p) q = MatMul(t, x) z = Exp(q) }";
        // From the last leaf: q first. Nobody reads t any more.
        assert_eq!(forms(text), ["y(p) z(q) q(w,x) p(x,w)"]);
    }

    #[test]
    fn gemm_takes_in_a_transposition_once_nobody_else_reads_it() {
        let text = "g (float[4,4] x, float[4,4] w) => (float[4,4] y, float[4,4] z)
            <float[4,4] t>
            { t = Transpose <perm = [1, 0]> (w) y = Gemm(x, t) z = MatMul(x, t) }";
        assert_eq!(forms(text), ["z(x,w) y(x,w)"]);
        // An Add keeps t, and so Gemm as it is.
        let added = text.replace("z = MatMul(x, t)", "z = Add(x, t)");
        assert!(forms(&added).is_empty());
    }

    #[test]
    fn gemm_read_twice_stays() {
        let text = "g (float[4,4] x, float[4,4] w) => (float[4,4] y, float[4,4] z)
            <float[4,4] t, float[4,4] a, float[4,4] b>
            { t = Transpose <perm = [1, 0]> (w)
              a = Gemm(x, t) b = Gemm(t, x) y = Exp(a) z = Add(a, b) }";
        assert_eq!(forms(text), ["t(w) a(x,t) y(a) z(a,b) b(w,x)"]);
    }

    #[test]
    fn gemm_without_a_third_input_writes_what_a_transposition_makes_of_it() {
        let text = "g (float[4,4] x, float[4,4] w, float[4] v) => (float[4,4] y)
            <float[4,4] t, float[4,4] a>
            { t = Transpose <perm = [1, 0]> (w) a = Gemm(x, t) y = Transpose <perm = [1, 0]> (a) }";
        assert_eq!(forms(text), ["y(x,w)"]);
        let third = text.replace("Gemm(x, t)", "Gemm(x, t, v)");
        assert_eq!(forms(&third), ["y(a) a(x,w,v)"]);
    }

    #[test]
    fn a_convolution_takes_in_the_activation_that_alone_reads_it() {
        let text = "g (float[1,1,4,4] x, float[1,1,1,1] w) => (float[1,1,4,4] z)
            <float[1,1,4,4] c, float[1,1,4,4] r>
            { c = Conv(x, w) r = Relu(c) z = Exp(r) }";
        assert_eq!(forms(text), ["z(r) r(x,w)"]);
        let twice = text.replace("Exp(r)", "Add(r, c)");
        assert!(forms(&twice).is_empty());
    }

    // What sessions of 1.19.2 and 1.32.0 saved.
    #[test]
    fn a_convolution_with_a_bias_adds_an_image() {
        let text = "g (float[1,1,4,4] x, float[1,1,1,1] w, float[1] b) => (float[1,1,4,4] z)
            <float[1,1,4,4] e, float[1,1,4,4] c, float[1,1,4,4] s, float[1,1,4,4] r>
            { e = Exp(x) c = Conv(x, w, b) s = Add(e, c) r = Relu(s) z = Exp(r) }";
        assert_eq!(forms(text), ["e(x) z(r) r(x,w,b,e)"]);
        let graph = Graph::parse(text).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let (forms_of, levels) = Skeleton::of(&graph, Provider::Cpu, &costs).optimized_by_level();
        let at = [Level::EnableBasic, Level::EnableExtended, Level::EnableAll];
        assert_eq!(at.map(|level| levels.at(level)), [None, None, Some(0)]);
        // Where nobody else reads what was added, it is overwritten.
        let run = &forms_of[0].0;
        let named = |&tensor: &u32| graph.tensor(TensorId(tensor)).name.as_str();
        let shared = run.shares.get(2).iter();
        let shared: Vec<_> = shared.map(|share| named(&share.read)).collect();
        assert_eq!(shared, ["e"]);
        // Of two convolutions, the first adds the other's result.
        let two = forms(&text.replace("Exp(x)", "Conv <group = 1> (x, w, b)"));
        assert_eq!(two, ["c(x,w,b) z(r) r(x,w,b,c)"]);
        let with = |from: &str, to: &str| forms(&text.replace(from, to));
        // One more reader of the sum keeps the activation.
        assert_eq!(
            with("z = Exp(r)", "z = Mul(r, s)"),
            ["e(x) r(s) z(r,s) s(x,w,b,e)"]
        );
        // Without a bias, of other sizes, by another operator, or where somebody else reads what is computed.
        for (from, to) in [
            ("Conv(x, w, b)", "Conv(x, w)"),
            ("Add(e, c)", "Add(w, c)"),
            ("Add(e, c)", "Mul(e, c)"),
            ("Exp(r)", "Mul(r, c)"),
        ] {
            let all = with(from, to);
            assert!(all.iter().all(|form| form.contains("c(x,w")), "{to}");
        }
    }

    #[test]
    fn a_product_does_multiplications_by_a_number() {
        let text = "g (float[4,4] x) => (float[4,4] z)
            <float[1] two = {2}, float[4,4] s, float[4,4] p, float[4,4] h>
            { s = Mul(two, x) p = MatMul(s, x) h = Div(p, two) z = Exp(h) }";
        assert_eq!(forms(text), ["z(h) h(x,x)"]);
        // Two over a tensor is something else.
        let inverse = text.replace("Div(p, two)", "Div(two, p)");
        assert_eq!(forms(&inverse), ["h(two,p) z(h) p(x,x)"]);
    }

    #[test]
    fn gemm_adds_what_the_sum_behind_it_adds() {
        let text = "g (float[4,4] x, float[4,4] w) => (float[4,4] y, float[4,4] z)
            <float[4,4] t, float[4,4] a>
            { t = Transpose <perm = [1, 0]> (w) a = Gemm(x, t) y = Sum(w, a) z = Exp(x) }";
        assert_eq!(forms(text), ["z(x) y(x,w,w)"]);
        for other in ["Add(w, a)", "Sum(w, a, x)", "Sum(a, a)"] {
            let other = forms(&text.replace("Sum(w, a)", other));
            assert!(
                other.iter().all(|form| form.contains(" a(x,w)")),
                "{other:?}"
            );
        }
    }

    #[test]
    fn a_bias_and_the_gelu_behind_it_become_one_that_takes_memory() {
        let text = "g (float[2,3,4] x, float[4] b) => (float[2,3,4] z)
            <float[2,3,4] a, float[2,3,4] y>
            { a = Add(x, b) y = com.microsoft.Gelu(a) z = Exp(y) }";
        assert_eq!(forms(text), ["z(y) y(x,b)"]);
        let graph = Graph::parse(text).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
        assert_eq!(skeleton.optimized()[0].0.workspace, [0, 2 * 3 * 4 * 4]);
        assert!(forms(&text.replace("float[4] b", "float[3,4] b")).is_empty());
        assert!(forms(&text.replace("Exp(y)", "Add(y, a)")).is_empty());
    }

    // What sessions of 1.19.2 saved at ORT_ENABLE_EXTENDED.
    #[test]
    fn a_cast_goes_in_front_of_the_transpose_that_a_product_does() {
        let text = "g (int32[2,4,3] x, float[2,4,3] w) => (float[2,3,3] z)
            <int32[2,3,4] t, float[2,3,4] c, float[2,3,3] p>
            { t = Transpose <perm = [0, 2, 1]> (x) c = Cast <to = 1> (t) p = MatMul(c, w) z = Exp(p) }";
        assert_eq!(forms(text), ["z(p) c~(x) p(c~,w)"]);
        // Another reader of what was transposed keeps the Transpose, one of what was cast gets another.
        let with = |more: &str, kind: &str| {
            let text = text.replace("z)", &format!("z, {kind}[2,3,4] y)"));
            forms(&text.replace("z = Exp(p)", &format!("z = Exp(p) y = {more}")))
        };
        assert_eq!(with("Neg(t)", "int32"), ["t(x) z(p) y(t) c~(x) p(c~,w)"]);
        assert_eq!(with("Neg(c)", "float"), ["z(p) y(c) c~(x) c(c~) p(c~,w)"]);
        // Other axes, another type, and other readers.
        assert!(forms(&text.replace("[0, 2, 1]", "[2, 1, 0]")).is_empty());
        assert!(forms(&text.replace("MatMul(c, w)", "Mul(c, w)")).is_empty());
    }

    #[test]
    fn of_equal_constants_in_float16_one_is_cast() {
        let text =
            "g (float16[4] x) => (float16[4] y) <float16 a = {2}, float16 b = {2}, float16[4] p>
            { p = Mul(x, a) y = Mul(p, b) }";
        let form = &forms(text)[0];
        assert!(form.contains("~(a)") && !form.contains("(b)"), "{form}");
        let other = text.replace("b = {2}", "b = {3}");
        assert!(forms(&other).iter().all(|form| form.contains("(b)")));
    }

    // What sessions of 1.19.2 saved at ORT_ENABLE_BASIC.
    #[test]
    fn a_cast_that_only_shapes_read_goes() {
        let text = |opset: i64, more: &str| {
            format!(
                r#"<ir_version: 8, opset_import: ["" : {opset}]> g (float[N,4] x) => (float[N,4] y, int64[2] s)
                <float[N,4] e, double[N,4] c, float[N,4] d>
                {{ e = Exp(x) c = Cast <to = 11> (e) d = Cast <to = 1> (c) s = Shape(d) y = {more} }}"#
            )
        };
        for opset in [13, 15, 20] {
            assert_eq!(forms(&text(opset, "Log(e)")), ["e(x) s(e) y(e)"]);
        }
        for opset in [12, 21] {
            assert!(forms(&text(opset, "Log(e)")).is_empty(), "{opset}");
        }
        // Of two, one; and none that somebody else reads.
        let one = ["e(x) c(e) s(c) y(c)"];
        assert_eq!(forms(&text(15, "Log(c)")), one);
        assert!(forms(&text(15, "Log(d)")).is_empty());
        // A graph output stays.
        let output = text(15, "Log(e)").replace("int64[2] s)", "int64[2] s, float[N,4] d)");
        assert!(forms(&output.replace(", float[N,4] d>", ">")).is_empty());
    }

    // What a session of 1.19.2 saved at ORT_ENABLE_BASIC.
    #[test]
    fn a_shape_of_what_is_computed_between_casts_keeps_the_narrowing_one() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[N,4] x) => (float[N,4] y, int64[2] s)
            <float16[N,4] h, float16[N,4] e, float16[N,4] l, float[N,4] f>
            { h = Cast <to = 10> (x) e = Exp(h) f = Cast <to = 1> (e) s = Shape(f) l = Log(e) y = Cast <to = 1> (l) }"#;
        assert_eq!(forms(text), ["e~(x) s(e) l~(e~) y(l~) e(e~)"]);
    }

    // What sessions of 1.19.2 and 1.32.0 saved.
    #[test]
    fn the_first_axis_is_moved_by_the_way_between_matrices_of_as_many_axes() {
        let text = |other: &str, product: &str| {
            format!(
                "g (float[4,4,4] x, float[{other}] w) => (float[4,4,4] z)
                <float[4,4,4] t> {{ t = Transpose <perm = [1, 0, 2]> (x) z = MatMul({product}) }}"
            )
        };
        assert_eq!(forms(&text("4,4,4", "t, w")), ["z(x,w)"]);
        assert_eq!(forms(&text("4,4,4", "w, t")), ["z(w,x)"]);
        assert!(forms(&text("4,4", "t, w")).is_empty());
        assert!(forms(&text("4,4", "w, t")).is_empty());
    }

    // What sessions of 1.19.2 and 1.32.0 saved.
    #[test]
    fn a_transpose_reads_past_the_one_before_it() {
        let text = |first: &str, second: &str, more: &str| {
            format!(
                "g (float[4,4,4] x) => (float[4,4,4] y, float[4,4,4] z)
                <float[4,4,4] e, float[4,4,4] t, float[4,4,4] u>
                {{ e = Exp(x) t = Transpose <perm = {first}> (e) u = Transpose <perm = {second}> (t) y = Neg(u) z = {more} }}"
            )
        };
        let turned = |more: &str| forms(&text("[1, 0, 2]", "[0, 2, 1]", more));
        // Whoever else reads the first one.
        assert_eq!(turned("Neg(x)"), ["e(x) u(e) y(u) z(x)"]);
        assert_eq!(turned("Abs(t)"), ["e(x) t(e) u(e) y(u) z(t)"]);
        assert_eq!(turned("Transpose(t)"), ["e(x) t(e) u(e) y(u) z(t)"]);
        // Two that cancel go, and so does what nobody reads any more.
        let cancelled = |more: &str| forms(&text("[1, 0, 2]", "[1, 0, 2]", more));
        assert_eq!(cancelled("Abs(x)"), ["e(x) y(e) z(x)"]);
        assert_eq!(cancelled("Abs(t)"), ["e(x) t(e) y(e) z(t)"]);
        let third = cancelled("Transpose <perm = [2, 1, 0]> (u)");
        assert_eq!(third, ["e(x) y(e) z(e)"]);
        // A graph output is written by whoever wrote what was transposed, if that is no graph output and not the caller's.
        let is_output = |text: &str| {
            text.replace("] y, float", "] u, float")
                .replace("] u>", "] y>")
        };
        let output = |more| forms(&is_output(&text("[1, 0, 2]", "[1, 0, 2]", more)));
        assert_eq!(output("Abs(t)"), ["u(x) t(u) y(u) z(t)"]);
        let caller = text("[1, 0, 2]", "[1, 0, 2]", "Abs(t)").replace("(e)", "(x)");
        assert_eq!(forms(&is_output(&caller)), ["e(x) t(x) u(x) y(u) z(t)"]);
        // A product does by the way what both do, or neither.
        let product = |first, second| forms(&text(first, second, "MatMul(u, x)")).pop();
        let both = product("[0, 2, 1]", "[1, 0, 2]");
        assert_eq!(both.as_deref(), Some("e(x) u(e) y(u) z(u,x)"));
        let both = product("[2, 1, 0]", "[1, 0, 2]");
        assert_eq!(both.as_deref(), Some("e(x) u(e) y(u) z(e,x)"));
    }

    /// In PRIORITY_BASED order the Gather comes last.
    #[test]
    fn what_a_moved_shape_writes_is_called_as_in_the_file() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]> g (float[N,4,6] x) => (float[N,6,4] y)
            { t = Transpose<perm = [0, 2, 1]>(x) s = Shape(t) a = Relu(t) b = Exp(a) y = Reshape(b, s) }"#;
        let mut graph = Graph::parse(text).unwrap();
        let bindings = [("N".to_owned(), 4)].into();
        InferShapes { bindings }.run(&mut graph).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let all = Executions::of(&graph, &crate::runtime::TRAINING, Provider::Cpu, &costs);
        let way = all.at(ExecutionOrder::PriorityBased, Level::EnableAll);
        let (_, liveness) = &all.simulate(RuntimeSettings::LEAN)[way.unwrap()];
        let name = |holder: &Holder| match *holder {
            Holder::Tensor(id, _) => Some(graph.tensor(id).name.clone()),
            _ => None,
        };
        let names: Vec<String> = liveness.holders.iter().filter_map(name).collect();
        assert!(names.contains(&"s".to_owned()), "{names:?}");
    }

    // As sessions of 1.26.0 and 1.32.0 saved it, with the optimizers switched off that no plan for them can do with.
    #[test]
    fn where_transposes_stay_nothing_reads_past_them() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]> g (float[N,4,6] x) => (int64[3] s, float[N,4,6] y)
            { t = Transpose<perm = [0, 2, 1]>(x) s = Shape(t) u = Transpose<perm = [0, 2, 1]>(t) y = Relu(u) }"#;
        assert!(forms_by(&crate::runtime::STOCK, text).is_empty());
        assert!(!forms(text).is_empty());
    }

    // As sessions of 1.19.2 saved them.
    #[test]
    fn a_shape_reads_past_a_transpose_that_may_go() {
        let all = |outputs: &str, nodes: &str| {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 15]> g (float[N,4,6] x) => ({outputs})
                {{ t = Transpose<perm = [0, 2, 1]>(x) {nodes} }}"#
            );
            forms(&text)
        };
        let (s, y) = ("int64[3] s", "float[N,6,4] y");
        assert_eq!(all(s, "s = Shape(t)"), ["s~(x) s(s~)"]);
        let both = format!("{s}, {y}");
        let nodes = "s = Shape(t) y = Relu(t)";
        assert_eq!(all(&both, nodes), ["t(x) s~(x) y(t) s(s~)"]);
        // Past what goes as well.
        let nodes = "i = Identity(t) s = Shape(i) y = Relu(t)";
        assert_eq!(all(&both, nodes), ["t(x) s~(x) y(t) s(s~)"]);
        let nodes = "c = Cast<to = 7>(t) s = Shape(c) y = Relu(t)";
        assert_eq!(all(&both, nodes), ["t(x) s~(x) y(t) s(s~)"]);
        // A reader behind which the runtime moves no Transpose, or the caller, keeps it.
        let kept = "s = Shape(t) y = LayerNormalization(t, x)";
        assert!(all(&both, kept).is_empty());
        let kept = "s = Shape(t) y = Relu(t) k = Size(t)";
        assert!(all(&format!("{both}, int64 k"), kept).is_empty());
        assert!(all("int64[3] s, float[N,6,4] t", "s = Shape(t)").is_empty());
    }

    #[test]
    fn transposes_that_cancel_are_found_in_linear_time() {
        let looked_at = |count: usize| {
            let mut nodes = "t0 = Exp(x)".to_owned();
            for node in 1..=count {
                let before = node - 1;
                let transpose = format!(" t{node} = Transpose <perm = [1, 0]> (t{before})");
                nodes += &transpose;
                if node % 100 == 0 {
                    nodes += &format!(" r{node} = Exp(t{node})");
                }
            }
            let text =
                format!("g (float[4,4] x) => (float[4,4] y) {{ {nodes} y = Neg(t{count}) }}");
            let graph = Graph::parse(&text).unwrap();
            let costs = vec![Cost::default(); graph.node_count()];
            let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
            let mut nodes = Nodes::of(&skeleton);
            assert!(nodes.fuse_all(&[Nodes::transpose], |_| false));
            let is_left = |node: &&FusedNode<'_>| matches!(node.fusing, Fusing::Transposes(_));
            assert_eq!(nodes.nodes.iter().flatten().filter(is_left).count(), 0);
            nodes.looked_at
        };
        assert!(looked_at(1_000) >= 500);
        assert!(looked_at(2_000) <= 2 * 2_000);
    }

    // As sessions of 1.32.0 do with lowered layers: the first in DEFAULT order stays.
    #[test]
    fn what_reads_equal_constants_is_the_same() {
        let text = "g (float[4096,1] x) => (float[4096] y, float[4096] z)
            <int64[1] one = {1}, int64[1] other = {1}, float[4096,1] e, float[4096] a, float[4096] b>
            { e = Exp(x) a = Squeeze(e, one) b = Squeeze(e, other) y = Neg(a) z = Log(b) }";
        assert_eq!(forms(text), ["e(x) b(e,one) y(b) z(b)"]);
        assert!(forms(&text.replace("other = {1}", "other = {-1}")).is_empty());
    }

    // What sessions of 1.19.2 saved of PyTorch's attention.
    #[test]
    fn a_number_that_follows_from_constants_scales_a_product() {
        let text = "g (float[4,4] x, float y) => (float[4,4] z)
            <float four = {4}, float r, float[4,4] s, float[4,4] p>
            { r = Sqrt(four) s = Mul(x, r) p = MatMul(s, x) z = Exp(p) }";
        assert_eq!(forms(text), ["s(x,r) p(s,x) z(p)", "z(p) p(x,x)"]);
        assert!(forms(&text.replace("Sqrt(four)", "Sqrt(y)")).is_empty());
        let shape = text.replace("r = Sqrt(four)", "n = Size(x) r = Cast <to = 1> (n)");
        assert!(forms(&shape).is_empty());
        // Of a tensor of which the runtime does not know how many axes it has, only one that comes before it.
        let unknown = text.replace(
            "s = Mul(x, r) p = MatMul(s, x) z = Exp(p)",
            r#"e = Einsum <equation = "ab->ab"> (x) s = Mul(e, r) p = MatMul(s, x) z = Exp(p)"#,
        );
        assert_eq!(forms(&unknown), ["e(x) s(e,r) p(s,x) z(p)"]);
        let behind = unknown.replace(
            "s = Mul(e, r) p = MatMul(s, x)",
            "s = MatMul(e, x) p = Mul(s, r)",
        );
        assert_eq!(forms(&behind).len(), 2);
    }

    // Likewise.
    #[test]
    fn slices_that_take_a_tensor_apart_become_one_split() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[6,4] x) => (float[2,4] y, float[4,4] z)
            <int64[1] zero = {0}, int64[1] two = {2}, int64[1] six = {6}, float[2,4] a, float[4,4] b>
            { b = Slice(x, two, six) a = Slice(x, zero, two) y = Exp(a) z = Exp(b) }"#;
        assert_eq!(forms(text), ["y(a) z(b) a,b(x)"]);
        // Not where a row is missing, is in two parts, or is gathered besides, nor in an operator set before that of 13.
        let with = |from: &str, to: &str| forms(&text.replace(from, to)).is_empty();
        assert!(with("six = {6}", "six = {5}"));
        assert!(with("b = Slice(x, two, six)", "b = Slice(x, zero, six)"));
        assert!(with("y = Exp(a)", "row = Gather(x, two) y = Exp(a)"));
        assert!(with(": 15", ": 12"));
    }

    // As sessions of 1.32.0 do with lowered LSTM layers in both directions.
    #[test]
    fn gathers_of_all_rows_become_one_split() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[3,4] x) => (float[4] y, float[2,4] z)
            <int64 last = {-1}, int64[1] zero = {0}, int64[1] two = {2}, float[3,4] e, float[4] a, float[2,4] b>
            { e = Exp(x) a = Gather(e, last) b = Slice(e, zero, two) y = Exp(a) z = Exp(b) }"#;
        assert_eq!(forms(text), ["e(x) y(a) z(b) b,a(e)"]);
        let with = |from: &str, to: &str| forms(&text.replace(from, to)).is_empty();
        assert!(with("int64 last = {-1}", "int64 last = {1}"));
        assert!(with("int64 last = {-1}", "int64 last = {3}"));
        assert!(with("int64 last = {-1}", "int32 last = {-1}"));
        assert!(with("Gather(e, last)", "Gather <axis = 1> (e, last)"));
        // Nor of what is written beside something else, nor where a row is put out.
        assert!(with("e = Exp(x)", "e, m = Dropout(x)"));
        let output = text
            .replace("y = Exp(a)", "")
            .replace(" a = Gather", " y = Gather");
        assert!(forms(&output).is_empty());
    }

    // What sessions of 1.19.2 and 1.32.0 saved of rotary embeddings.
    #[test]
    fn slices_at_numbers_that_follow_from_constants_become_one_split() {
        let splits = |half: &str| {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 15]>
                g (float[4,8] x, int64[1] given) => (float[4,4] y, float[4,4] z)
                <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}> {{
                    e = Exp(x) sizes = Shape(e) width = Gather(sizes, one) half = {half}
                    a = Slice(e, zero, half, one) b = Slice(e, half, width, one) y = Exp(a) z = Exp(b) }}"#
            );
            let mut graph = Graph::parse(&text).unwrap();
            let bindings = Default::default();
            InferShapes { bindings }.run(&mut graph).unwrap();
            let costs = vec![Cost::default(); graph.node_count()];
            let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
            let (form, _) = skeleton.optimized().pop().unwrap();
            let splits = |&node: &usize| form.writes.get(node).len() == 2;
            (0..form.len()).filter(splits).count()
        };
        assert_eq!(splits("Div(width, two)"), 1);
        assert_eq!(splits("Identity(given)"), 0);
    }

    #[test]
    fn only_the_last_two_axes_are_swapped_by_the_way() {
        let text = "g (float[2,4,4] x) => (float[2,4,4] z)
            <float[2,4,4] t> { t = Transpose <perm = [0, 2, 1]> (x) z = MatMul(x, t) }";
        assert_eq!(forms(text), ["z(x,x)"]);
        assert!(forms(&text.replace("[0, 2, 1]", "[2, 1, 0]")).is_empty());
        // A graph output stays.
        let output = text.replace("z)", "z, float[2,4,4] t)");
        assert!(forms(&output.replace("<float[2,4,4] t>", "")).is_empty());
    }
}
