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
//! - What adds zero, or multiplies or divides by one, goes as well.
//! - One divided by a tensor, and multiplied, becomes a division, which runs when the product would.
//! - A Not that only Wheres read goes, as they choose the other way round.
//! - A Cast that only Shapes read goes. Where it widens what is computed between casts, the narrowing cast stays for them: it runs
//!   last, and keeps what it reads till then.
//! - A Transpose that reads what another one writes reads what that one reads, whoever else reads the result; two that cancel go.
//!   So does a Shape, with a Gather behind it, unless some reader of the Transpose keeps it.
//! - A Transpose is moved behind other readers where that is worth it (`moved_transposes.rs`): not for the search, whose graphs keep theirs.
//! - A Gemm adds what the Sum of two adds that alone reads it, and reads or writes what a Transpose does.
//! - A product of two matrices and the Add that alone reads it become a Gemm. So do, in releases after 1.20.1, a product of a tensor whose sizes
//!   are numbers and the Add of a vector, with a Reshape on either side of it.
//! - In these releases, a Reshape and those behind it that alone read it become one, where the sizes are numbers.
//! - A convolution or Gemm and the activation that alone reads it become one. At ORT_ENABLE_ALL a convolution with a bias adds an image of
//!   the same size besides.
//! - A matrix product reads what a Transpose or a multiplication by a number reads, the former by way of a Cast, too, and writes what a multiplication
//!   writes that alone reads it. What nobody reads any more goes.
//! - A bias and the Gelu that alone reads the sum become one, which takes memory of its own. So do a sum, with a constant bias before it,
//!   and the layer normalization that alone reads it.
//!
//! - Numbers that follow from constants are there before the first step, and so are shapes of Reshapes (`optimized_shapes.rs`).
//! - A convolution or an average pool does what the Pad does that it alone reads, and a convolution by constants multiplies by and adds more of
//!   them.
//! - Slices and Gathers that take a tensor apart become one Split, which writes all parts at once.
//!
//! Not simulated: what leaves order and large tensors alone, and what training graphs were not seen to have.

mod moved_transposes;
mod rules;
mod simplified;
mod simulated_order;

use std::borrow::Cow;

use self::moved_transposes::Moved;
use self::rules::Rule;
pub use self::simulated_order::{Written, optimized_order};
use super::casting::Casting;
use super::level::Level;
use super::moving::{Added, Moving};
use super::order::{ExecutionOrder, execution_order};
use super::skeleton::{Lists, Share, Skeleton};
use crate::runtime::fusing::Fusing;

/// A skeleton of what runs, and by node its position in the graph's order.
pub(crate) type OptimizedGraph = (Skeleton, Vec<u32>);

/// Which of the forms of one release runs at which level.
#[derive(Clone, Copy, Debug, Default)]
struct FormsOfLevels {
    /// The number of its first form.
    first: usize,
    count: usize,
    /// Is the first of them what runs at ORT_ENABLE_BASIC?
    has_basic: bool,
    /// Is the last of them what runs at ORT_ENABLE_ALL alone?
    has_all: bool,
}

impl FormsOfLevels {
    fn at(self, level: Level) -> Option<usize> {
        let form = match level {
            Level::DisableAll => None,
            Level::EnableBasic => self.has_basic.then_some(0),
            Level::EnableExtended => self.count.checked_sub(1 + usize::from(self.has_all)),
            Level::EnableAll => self.count.checked_sub(1),
        };
        form.map(|form| self.first + form)
    }
}

/// Which of the forms runs at which level.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GraphsOfLevels {
    newest: FormsOfLevels,
    /// Where the oldest release optimizes otherwise.
    oldest: Option<FormsOfLevels>,
}

impl GraphsOfLevels {
    /// The number of the form in the newest release; none for the graph as it is.
    pub(crate) fn at(self, level: Level) -> Option<usize> {
        self.newest.at(level)
    }

    /// Does that form run at that level in any release?
    pub(crate) fn run_at(self, level: Level, form: Option<usize>) -> bool {
        let all = std::iter::once(self.newest).chain(self.oldest);
        all.into_iter().any(|of| of.at(level) == form)
    }
}

impl Skeleton {
    /// What runs at ORT_ENABLE_BASIC, ORT_ENABLE_EXTENDED and ORT_ENABLE_ALL, where that is something else, in all releases, with the levels
    /// at which they run. Tensors keep their numbers. Casts come last (`casts.rs`).
    pub(crate) fn optimized_by_level(&self) -> (Vec<OptimizedGraph>, GraphsOfLevels) {
        let (forms, levels) = self.graphs_of_levels();
        let with_casts = |(form, positions): OptimizedGraph| match form.with_casts() {
            None => (form, positions),
            Some((run, kept)) => {
                let kept = kept.iter().map(|&node| positions[node as usize]);
                (run, kept.collect())
            }
        };
        (forms.into_iter().map(with_casts).collect(), levels)
    }

    /// Before casts.
    fn graphs_of_levels(&self) -> (Vec<OptimizedGraph>, GraphsOfLevels) {
        let mut nodes = Nodes::of(self);
        let (mut graphs, newest) = self.graphs_of(&mut nodes, 0);
        let mut oldest = None;
        if nodes.differs_from_oldest {
            let mut nodes = Nodes {
                is_oldest: true,
                ..Nodes::of(self)
            };
            let (others, levels) = self.graphs_of(&mut nodes, graphs.len());
            if others != graphs {
                graphs.extend(others);
                oldest = Some(levels);
            }
        }
        (graphs, GraphsOfLevels { newest, oldest })
    }

    /// Those of one release, the `first` of which gets that number.
    fn graphs_of<'s>(
        &'s self,
        nodes: &mut Nodes<'s>,
        first: usize,
    ) -> (Vec<OptimizedGraph>, FormsOfLevels) {
        let mut graphs = Vec::new();
        let has_basic = nodes.optimize_basic();
        if has_basic {
            nodes.take_functions_apart();
            graphs.push(nodes.form());
        }
        if nodes.optimize_extended() {
            graphs.push(nodes.form());
        }
        let has_all = nodes.optimize_all();
        if has_all {
            graphs.push(nodes.form());
        }
        let levels = FormsOfLevels {
            first,
            count: graphs.len(),
            has_basic,
            has_all,
        };
        (graphs, levels)
    }
}

const NOBODY: u32 = u32::MAX;

/// What a node is, as far as it tells which rules to ask of it: a byte, so that there is little to go through for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FusingKind {
    Assembles,
    Bias,
    Convolution,
    Folded,
    Gemm,
    HandsOut,
    Inverts,
    Normalizes,
    Pads,
    Product,
    Reshapes,
    Shape,
    Transposes,
    Other,
}

impl FusingKind {
    fn of(fusing: Fusing) -> FusingKind {
        match fusing {
            Fusing::Assembles => FusingKind::Assembles,
            Fusing::Bias { .. } => FusingKind::Bias,
            Fusing::Convolution { .. } => FusingKind::Convolution,
            Fusing::Folded => FusingKind::Folded,
            Fusing::Gemm => FusingKind::Gemm,
            Fusing::HandsOut => FusingKind::HandsOut,
            Fusing::Inverts => FusingKind::Inverts,
            Fusing::Normalizes => FusingKind::Normalizes,
            Fusing::Pads => FusingKind::Pads,
            Fusing::Product { .. } => FusingKind::Product,
            Fusing::Reshapes { .. } => FusingKind::Reshapes,
            Fusing::Shape { .. } => FusingKind::Shape,
            Fusing::Transposes(_) => FusingKind::Transposes,
            _ => FusingKind::Other,
        }
    }
}

/// A node under change.
#[derive(Default)]
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
    /// A node that makes one tensor of another, in memory of its own.
    fn of_one(position: u32, read: u32, written: u32) -> FusedNode<'s> {
        FusedNode {
            position,
            reads: vec![read].into(),
            writes: vec![written].into(),
            ..FusedNode::default()
        }
    }

    /// A Reshape of one tensor, which the runtime adds.
    fn reshape(position: u32, read: u32, written: u32) -> FusedNode<'s> {
        let (leads, joins) = (true, true);
        FusedNode {
            shares: vec![Share::alias(read, written)].into(),
            fusing: Fusing::Reshapes { leads, joins },
            ..FusedNode::of_one(position, read, written)
        }
    }

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

    /// The same, computed in place only of what is `known` to have the same shape ([`Skeleton::known`]), now that it reads something else.
    fn in_place_of_known(self, known: &[Option<u32>]) -> FusedNode<'s> {
        if self.is_in_place_of_known(known) {
            return self;
        }
        let shares = self.shares.iter().copied();
        let left = shares.filter(|share| is_of_known(share, known));
        FusedNode {
            shares: left.collect(),
            ..self
        }
    }

    /// Is it already?
    fn is_in_place_of_known(&self, known: &[Option<u32>]) -> bool {
        self.shares.iter().all(|share| is_of_known(share, known))
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

/// Does a result take the memory over of nothing but what is known to have the same shape?
fn is_of_known(share: &Share, known: &[Option<u32>]) -> bool {
    let shape = |tensor: u32| known.get(tensor as usize);
    let shapes = shape(share.written).zip(shape(share.read));
    share.always || shapes.is_none_or(|(written, read)| written == read)
}

/// All nodes by their index in the runtime; `None` for those that went.
struct Nodes<'s> {
    skeleton: &'s Skeleton,
    nodes: Vec<Option<FusedNode<'s>>>,
    /// By index: what the node is, or was.
    kinds: Vec<FusingKind>,
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
    /// See [`Skeleton::sized`].
    sized: Vec<u32>,
    /// What is known while Transposes are moved.
    moved: Option<Moved>,
    /// Does it fuse as 1.19.2 and 1.20.1 do? They join no Reshapes, make no product of rows, leave the standard's Gelu and later Nots alone, and
    /// write no convolution's result over what it adds (measured).
    is_oldest: bool,
    /// Was anything done that these do not do?
    differs_from_oldest: bool,
    /// How many of these were renamed.
    #[cfg(test)]
    looked_at: usize,
}

impl<'s> Nodes<'s> {
    /// What fuses from ORT_ENABLE_BASIC on, once the rest of that level is done.
    const BASIC: [Rule<'s>; 3] = [
        (&[FusingKind::Gemm], Nodes::gemm),
        (&[FusingKind::Product], Nodes::add_to_product),
        (&[FusingKind::Reshapes], Nodes::join_reshapes),
    ];

    /// What fuses from ORT_ENABLE_EXTENDED on.
    const EXTENDED: [Rule<'s>; 7] = [
        (&[FusingKind::Gemm], Nodes::gemm),
        (&[FusingKind::Gemm], Nodes::activate_gemm),
        (&[FusingKind::Convolution], Nodes::activate_convolution),
        (&[FusingKind::Product], Nodes::transpose_product),
        (&[FusingKind::Bias], Nodes::gelu),
        (&[FusingKind::Normalizes], Nodes::normalize_sum),
        (&[FusingKind::Product], Nodes::scale),
    ];

    /// What becomes of Transposes and of Shapes behind them.
    const TRANSPOSES: Rule<'s> = (
        &[FusingKind::Shape, FusingKind::Transposes],
        Nodes::transpose,
    );

    /// What ORT_ENABLE_BASIC does. Does it anything?
    fn optimize_basic(&mut self) -> bool {
        let forwards = |kind: &Fusing| kind.goes(self.is_oldest);
        let forwards = self.skeleton.fusing.iter().any(forwards);
        if forwards {
            self.close_ranks();
        }
        let handed_out = self.hand_out();
        let divided = self.divide();
        let shared = self.share_constants();
        let merged = self.merge_equal();
        let folded = self.fold();
        // What only measured it is gone.
        let divided = self.divide() || divided;
        let measured = self.measure_before_casts();
        // The runtime looks again.
        let merged = measured && self.merge_equal() || merged;
        let assembled = self.assemble();
        let padded = self.take_in_pads();
        let weighted = self.take_in_constants();
        let fused = self.fuse_all(&Self::BASIC, Nodes::move_transposes);
        let constants = shared || folded || assembled || weighted;
        forwards || handed_out || divided || merged || measured || padded || constants || fused
    }

    /// What ORT_ENABLE_EXTENDED does besides.
    fn optimize_extended(&mut self) -> bool {
        let moved =
            self.move_behind_pieces() && self.fuse_all(&Self::BASIC, Nodes::move_transposes);
        let split = self.split();
        self.fuse_all(&Self::EXTENDED, |_| false) || split || moved
    }

    /// What ORT_ENABLE_ALL does besides, as far as it is simulated (`blocks.rs` has the rest).
    fn optimize_all(&mut self) -> bool {
        self.fuse((&[FusingKind::Convolution], Nodes::add_to_convolution))
    }

    fn of(skeleton: &'s Skeleton) -> Nodes<'s> {
        let mut nodes = Nodes {
            skeleton,
            nodes: Vec::with_capacity(skeleton.len()),
            kinds: Vec::with_capacity(skeleton.len()),
            producer: vec![NOBODY; skeleton.size.len()],
            readers: vec![(0, 0); skeleton.size.len()],
            gemms: vec![0; skeleton.size.len()],
            folded: Vec::new(),
            readers_of: None,
            keepers: vec![0; skeleton.size.len()],
            added: Vec::new(),
            sized: Vec::new(),
            moved: skeleton.moves.as_deref().map(Moved::of),
            is_oldest: skeleton.release.trains,
            differs_from_oldest: false,
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
                    Some(moves) if !skeleton.is_piece_at(node) => moves.moving[node],
                    _ => Moving::No,
                },
            });
        }
        nodes
    }

    /// Adds a node with the highest index.
    fn add(&mut self, node: FusedNode<'s>) {
        self.nodes.push(None);
        self.kinds.push(FusingKind::Other);
        self.put(self.nodes.len() as u32 - 1, node);
    }

    fn put(&mut self, index: u32, node: FusedNode<'s>) {
        for &tensor in node.reads.iter() {
            let (count, sum) = &mut self.readers[tensor as usize];
            (*count, *sum) = (*count + 1, *sum + u64::from(index));
            self.gemms[tensor as usize] += u32::from(node.fusing.is_gemm());
            self.keepers[tensor as usize] += u32::from(node.moving == Moving::No);
        }
        for &tensor in node.writes.iter() {
            self.producer[tensor as usize] = index;
        }
        self.kinds[index as usize] = FusingKind::of(node.fusing);
        self.nodes[index as usize] = Some(node);
    }

    /// The indices of nodes that are, or were, of that kind.
    fn of_kind(&self, kind: FusingKind) -> Vec<u32> {
        let indices = (0..).zip(&self.kinds);
        let of_kind = indices.filter(|&(_, &other)| other == kind);
        of_kind.map(|(index, _)| index).collect()
    }

    /// Lets a node read for each tensor what `source` says, in place only of what has the same shape for certain.
    fn read_from(&mut self, index: u32, source: &[u32]) {
        let stays = |node: &FusedNode<'_>| node.reads.iter().all(|&t| source[t as usize] == t);
        if let Some(node) = self.node(index)
            && !(stays(node) && node.is_in_place_of_known(&self.skeleton.known))
            && let Some(node) = self.take(index)
        {
            let node = node.reading(|tensor| source[tensor as usize]);
            self.put(index, node.in_place_of_known(&self.skeleton.known));
        }
    }

    fn take(&mut self, index: u32) -> Option<FusedNode<'s>> {
        let node = self.nodes[index as usize].take()?;
        for &tensor in node.reads.iter() {
            let (count, sum) = &mut self.readers[tensor as usize];
            (*count, *sum) = (*count - 1, *sum - u64::from(index));
            self.gemms[tensor as usize] -= u32::from(node.fusing.is_gemm());
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

    /// Gives pieces of functions indices behind those of all other nodes.
    fn take_functions_apart(&mut self) {
        for index in 0..self.nodes.len() as u32 {
            let position = self.node(index).map(|node| node.position as usize);
            if position.is_some_and(|position| self.skeleton.is_piece_at(position))
                && let Some(piece) = self.take(index)
            {
                self.add(piece);
            }
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

    fn form(&self) -> OptimizedGraph {
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
            sized: self.sized.clone(),
            rows: self.skeleton.rows.clone(),
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
}

#[cfg(test)]
mod tests;
