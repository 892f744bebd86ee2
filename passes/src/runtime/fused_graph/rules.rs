//! Which nodes the runtime fuses, and what becomes of them.

use std::borrow::Cow;

use super::{FusedNode, FusingKind, NOBODY, Nodes};
use crate::runtime::casting::Casting;
use crate::runtime::fusing::{Adding, Fusing};
use crate::runtime::moving::Moving;
use crate::runtime::skeleton::Share;
use crate::runtime::transposes::Transposition;

/// How often the runtime looks for more, which ends far earlier.
const PASSES: usize = 10;

/// What a node can read in place of a tensor, and the tensor's producer.
pub(super) type Past = fn(&Nodes<'_>, u32) -> Option<(u32, u32)>;

/// What becomes of a node that takes in others.
pub(super) enum Change {
    /// It writes what its only reader does.
    Reader(u32),
    /// It reads past its producers.
    Inputs(Past),
    /// It is a Gemm of matrices between two Reshapes, and adds what this addition adds, its only reader.
    Rows(u32),
    /// Both.
    Both(Past, u32),
    /// Casts that it reads go in front of the Transposes that they read, past which it reads then.
    Casts(Past),
    /// This convolution adds what this addition adds, and does its activation.
    Addition(u32, u32),
    /// It normalizes the sum that this addition writes.
    Normalization(u32),
    /// A Transpose that does this to what the Transpose before it reads.
    Transposes(Transposition),
    /// A Shape of what that Transpose reads, written to this tensor, for a Gather that moves the sizes.
    Measures(u32),
    /// One Reshape with all behind it up to this one.
    Reshapes(u32),
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

/// Of which kinds of nodes something becomes, and what of the node with an index.
pub(super) type Rule<'s> = (&'static [FusingKind], fn(&Nodes<'s>, u32) -> Option<Change>);

impl<'s> Nodes<'s> {
    /// Applies rules, and what comes last, in turn until none changes anything. Did any?
    pub(super) fn fuse_all(
        &mut self,
        rules: &[Rule<'s>],
        last: fn(&mut Nodes<'s>) -> bool,
    ) -> bool {
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
    pub(super) fn fuse(&mut self, (kinds, rule): Rule<'s>) -> bool {
        // Most rules find nothing most of the time; the order is dear.
        let mut indices = (0..).zip(&self.kinds);
        if !indices.any(|(index, kind)| kinds.contains(kind) && rule(self, index).is_some()) {
            return false;
        }
        for index in self.in_default_order() {
            if !kinds.contains(&self.kinds[index as usize]) {
                continue;
            }
            match rule(self, index) {
                Some(Change::Reader(reader)) => self.take_in_reader(index, reader),
                Some(Change::Rows(addition)) => self.multiply_rows(index, addition),
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
                    let last = self.nodes.len() as u32 - 1;
                    if let Some(node) = self.take(last) {
                        self.put(last, node.in_place_of_known(&self.skeleton.known));
                    }
                }
                Some(Change::Normalization(sum)) => self.take_in_sum(index, sum),
                Some(Change::Transposes(both)) => self.transpose_at_once(index, both),
                Some(Change::Measures(sizes)) => self.measure_before(index, sizes),
                Some(Change::Reshapes(last)) => self.join_up_to(index, last),
                None => {}
            }
        }
        self.readers_of = None;
        true
    }

    /// A Transpose does what the Transpose before it does as well, and a Shape reads past it.
    pub(super) fn transpose(&self, index: u32) -> Option<Change> {
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

    /// A product takes in the addition behind it.
    pub(super) fn add_to_product(&self, index: u32) -> Option<Change> {
        use Fusing::{Adds, AddsImages, AddsTokens, Bias};
        let adding = |fusing| matches!(fusing, Adds | AddsImages | AddsTokens | Bias { .. });
        let adds = Adding::ToMatrix;
        let to_matrix = self.takes_in(index, Fusing::Product { adds }, adding);
        if to_matrix.is_some() || self.is_oldest {
            return to_matrix;
        }
        let adds = Adding::ToRows;
        let by_rows = self.takes_in(index, Fusing::Product { adds }, adding)?;
        let written = self.node(index)?.writes[0];
        match by_rows {
            Change::Reader(addition) if self.skeleton.rows.contains_key(&written) => {
                Some(Change::Rows(addition))
            }
            _ => None,
        }
    }

    /// A Reshape does what the Reshapes behind it do, each of which alone reads the one before. Source: `ReshapeFusion`.
    pub(super) fn join_reshapes(&self, index: u32) -> Option<Change> {
        let leads =
            |node: &FusedNode<'_>| matches!(node.fusing, Fusing::Reshapes { leads: true, .. });
        if self.is_oldest || !self.node(index).is_some_and(leads) {
            return None;
        }
        let follower = |index: u32| {
            let reader = self.only_reader(index)?;
            let written = self.node(index)?.writes[0];
            let node = self.node(reader)?;
            let joins = matches!(node.fusing, Fusing::Reshapes { joins: true, .. });
            (joins && node.reads[0] == written).then_some(reader)
        };
        let last = std::iter::successors(Some(index), |&index| follower(index)).last();
        last.filter(|&last| last != index).map(Change::Reshapes)
    }

    /// A Gemm takes in its activation.
    pub(super) fn activate_gemm(&self, index: u32) -> Option<Change> {
        self.assigned(index)?;
        self.takes_in(index, Fusing::Gemm, |fusing| fusing == Fusing::Activation)
    }

    /// A convolution takes in its activation.
    pub(super) fn activate_convolution(&self, index: u32) -> Option<Change> {
        self.assigned(index)?;
        let reader = self.only_reader(index);
        let only = reader.filter(|_| self.is_convolution(index))?;
        self.is(only, Fusing::Activation)
            .then_some(Change::Reader(only))
    }

    fn is_convolution(&self, index: u32) -> bool {
        let node = self.node(index);
        node.is_some_and(|node| matches!(node.fusing, Fusing::Convolution { .. }))
    }

    /// A convolution with a bias takes in the addition of another image that alone reads it: of two, the one with the lowest index.
    pub(super) fn add_to_convolution(&self, index: u32) -> Option<Change> {
        const WITH_BIAS: usize = 3;
        let alone = |index: u32, addition: u32| {
            self.is_convolution(index) && self.only_reader(index) == Some(addition)
        };
        let addition = self.only_reader(index)?;
        let adds = self.is_convolution(index) && self.is(addition, Fusing::AddsImages);
        let added = self.node(addition).filter(|_| adds)?.reads.iter();
        let producers = added.map(|&read| self.producer[read as usize]);
        let has_bias = |node: &FusedNode<'_>| node.reads.len() == WITH_BIAS;
        let convolutions = producers
            .filter(|&index| alone(index, addition) && self.assigned(index).is_some_and(has_bias));
        Some(Change::Addition(convolutions.min()?, addition))
    }

    /// An addition of a bias takes in the Gelu behind it.
    pub(super) fn gelu(&self, index: u32) -> Option<Change> {
        self.assigned(index)?;
        let is_gelu = |fusing| match fusing {
            Fusing::Gelu { standard, .. } => !(standard && self.is_oldest),
            _ => false,
        };
        let only = self.only_reader(index)?;
        let biased = matches!(self.node(index)?.fusing, Fusing::Bias { .. });
        (biased && is_gelu(self.node(only)?.fusing)).then_some(Change::Reader(only))
    }

    /// A layer normalization takes in the sum of two tensors that it alone reads.
    pub(super) fn normalize_sum(&self, index: u32) -> Option<Change> {
        let normalizes = |node: &&FusedNode<'_>| node.fusing == Fusing::Normalizes;
        let node = self.assigned(index).filter(normalizes)?;
        let sum = self.producer[node.reads[0] as usize];
        let adds = self.assigned(sum)?.fusing == Fusing::AddsTokens;
        (adds && self.only_reader(sum) == Some(index)).then_some(Change::Normalization(sum))
    }

    /// A node of a kind takes in one of another that alone reads what it writes.
    fn takes_in(&self, index: u32, kind: Fusing, reader: fn(Fusing) -> bool) -> Option<Change> {
        let only = self.only_reader(index).filter(|_| self.is(index, kind))?;
        reader(self.node(only)?.fusing).then_some(Change::Reader(only))
    }

    /// A Gemm without a third input takes in the Sum behind it, or else transpositions.
    pub(super) fn gemm(&self, index: u32) -> Option<Change> {
        let node = self.node(index).filter(|node| node.fusing.is_gemm())?;
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
            nodes
                .transposed(tensor)
                .filter(|&(producer, _)| all_gemms && nodes.is_done_by_a_gemm(producer))
        };
        let reader = self
            .only_reader(index)
            .filter(|&reader| node.reads.len() == 2 && self.is_done_by_a_gemm(reader));
        Change::of(self.any_past(node, past), reader)
    }

    /// A product reads what a Transpose reads, or casts it.
    pub(super) fn transpose_product(&self, index: u32) -> Option<Change> {
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
    pub(super) fn scale(&self, index: u32) -> Option<Change> {
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

    fn is_done_by_a_gemm(&self, transpose: u32) -> bool {
        let transposition = self.transposition(transpose);
        transposition.is_some_and(Transposition::is_done_by_a_gemm)
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

    /// See [`Past`].
    fn scaled(&self, tensor: u32) -> Option<(u32, u32)> {
        let producer = self.producer[tensor as usize];
        let node = self.node(producer)?;
        match node.fusing {
            Fusing::Scales { input, before, .. } if before => {
                Some((producer, *node.reads.get(input)?))
            }
            _ => None,
        }
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
            // It is in float32 now.
            let turned = FusedNode {
                workspace: old.workspace,
                fusing: old.fusing,
                moving: old.moving,
                ..FusedNode::of_one(old.position, between, cast.writes[0])
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
    pub(super) fn transpose_at_once(&mut self, index: u32, both: Transposition) {
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
        // It is no Shape.
        let gather = FusedNode::of_one(position, sizes, node.writes[0]);
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

    /// Replaces a node and the only one that reads it by one with the highest index.
    fn take_in_reader(&mut self, index: u32, reader: u32) {
        let (Some(node), Some(reader)) = (self.take(index), self.take(reader)) else {
            return;
        };
        let mut reads = node.reads.into_owned();
        let adds = Adding::ToMatrix;
        let becomes_gemm = node.fusing == Fusing::Product { adds };
        let adds_image = reader.fusing == Fusing::AddsImages && !becomes_gemm;
        let is_standard = matches!(reader.fusing, Fusing::Gelu { standard: true, .. });
        self.differs_from_oldest |= !self.is_oldest && (adds_image || is_standard);
        // What a convolution adds may be where the result is written, but not in 1.19.2 and 1.20.1 (measured there, in 1.26.0 and 1.32.0); nothing
        // else is where it was.
        let written = reader.writes[0];
        let in_place = |&read: &u32| Share {
            written,
            read,
            always: false,
        };
        let shares: Vec<Share> = match node.fusing {
            _ if adds_image && self.is_oldest => Vec::new(),
            _ if adds_image => {
                let added = reader.reads.iter();
                let added = added.filter(|read| !node.writes.contains(read));
                added.map(in_place).collect()
            }
            Fusing::Convolution { .. } => {
                let shares = node.shares.iter();
                shares.map(|share| in_place(&share.read)).collect()
            }
            _ => Vec::new(),
        };
        if reader.fusing == Fusing::Sum || becomes_gemm || adds_image {
            let others = reader.reads.iter();
            reads.extend(others.filter(|read| !node.writes.contains(read)));
        }
        let workspace = match reader.fusing {
            Fusing::Gelu { workspace, .. } => workspace,
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
            casting: node.casting,
            ..FusedNode::default()
        });
    }

    /// Replaces a product and the addition of a vector that alone reads it by a Gemm behind two Reshapes, one of what it reads and one of
    /// what it writes. Source: `MatMulAddFusion`.
    fn multiply_rows(&mut self, product: u32, addition: u32) {
        self.differs_from_oldest = true;
        let (Some(product), Some(addition)) = (self.take(product), self.take(addition)) else {
            return;
        };
        let matrices = self.skeleton.rows.get(&product.writes[0]);
        let Some(&[read, written]) = matrices else {
            return;
        };
        // In float16 there is no product, but there is a Reshape.
        let casting = match product.casting {
            Casting::No => Casting::No,
            _ => Casting::RESHAPE,
        };
        let reshape = |position: u32, read: u32, written: u32| FusedNode {
            casting,
            ..FusedNode::reshape(position, read, written)
        };
        self.add(reshape(product.position, product.reads[0], read.tensor));
        let (position, tensor) = (addition.position, addition.writes[0]);
        self.add(reshape(position, written.tensor, tensor));
        let mut reads = product.reads.into_owned();
        reads[0] = read.tensor;
        let vector = addition.reads.iter();
        reads.extend(vector.filter(|read| !product.writes.contains(read)));
        self.add(FusedNode {
            reads: reads.into(),
            writes: vec![written.tensor].into(),
            shares: Cow::default(),
            fusing: Fusing::Gemm,
            equal: 0,
            moving: Moving::No,
            ..product
        });
    }

    /// Replaces a Reshape and those that follow it, up to this one, by a Reshape with the highest index.
    fn join_up_to(&mut self, first: u32, last: u32) {
        self.differs_from_oldest = true;
        let written = self.node(last).map(|node| node.writes[0]);
        let (Some(node), Some(written)) = (self.take(first), written) else {
            return;
        };
        let mut next = node.writes[0];
        while next != written {
            let reader = self.readers[next as usize].1 as u32;
            let Some(reader) = self.take(reader) else {
                return;
            };
            next = reader.writes[0];
        }
        self.add(FusedNode {
            casting: node.casting,
            moving: node.moving,
            ..FusedNode::reshape(node.position, node.reads[0], written)
        });
    }

    /// Replaces a layer normalization, the sum that it alone reads and, if that alone reads the sum with a constant vector, this one as
    /// well, by a node with the highest index, which gives no statistics and has memory of its own. Source: `SkipLayerNormFusion`; measured
    /// in 1.19.2 and 1.32.0.
    fn take_in_sum(&mut self, index: u32, sum: u32) {
        let Some(addition) = self.node(sum) else {
            return;
        };
        let mut summands = addition.reads.to_vec();
        let biased = summands.iter().position(|&read| {
            let by = self.producer[read as usize];
            let is_biased = |node: &FusedNode<'_>| node.fusing == Fusing::Bias { of_tokens: true };
            self.assigned(by).is_some_and(is_biased) && self.only_reader(by) == Some(sum)
        });
        let before = biased.and_then(|place| {
            let before = self.take(self.producer[summands[place] as usize])?;
            summands[place] = before.reads[0];
            before.reads.get(1).copied()
        });
        let (Some(node), Some(_)) = (self.take(index), self.take(sum)) else {
            return;
        };
        // 1.32.0 takes memory for the statistics, though it writes none; 1.19.2 does not (measured).
        let writes = match self.skeleton.release.trains {
            true => vec![node.writes[0]].into(),
            false => node.writes.clone(),
        };
        summands.extend(&node.reads[1..]);
        summands.extend(before);
        self.add(FusedNode {
            reads: summands.into(),
            writes,
            shares: Cow::default(),
            fusing: Fusing::No,
            equal: 0,
            ..node
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

    /// Moves Transposes behind what reads them, as far as enough is known for that. Did it change anything?
    pub(super) fn move_transposes(&mut self) -> bool {
        match self.moved.is_some() {
            true => self.move_behind_readers(),
            false => self.fuse(Self::TRANSPOSES),
        }
    }

    pub(super) fn transposition(&self, index: u32) -> Option<Transposition> {
        match self.node(index)?.fusing {
            Fusing::Transposes(transposition) => Some(transposition),
            _ => None,
        }
    }
}
