//! What goes or becomes one before nodes are fused: what is there before the first step, what computes the same, what only forwards.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use super::{FusedNode, FusingKind, NOBODY, Nodes};
use crate::runtime::casting::{Casting, NO_TENSOR};
use crate::runtime::fusing::Fusing;
use crate::runtime::moving::Moving;
use crate::runtime::skeleton::Share;

const PASSES_CASTS: Fusing = Fusing::Shape { passes_casts: true };

impl<'s> Nodes<'s> {
    /// Takes the nodes out that only forward, or that their readers can do without; whoever reads them reads their input.
    pub(super) fn close_ranks(&mut self) {
        let mut source: Vec<u32> = (0..self.skeleton.size.len() as u32).collect();
        for index in 0..self.nodes.len() as u32 {
            let Some(node) = self.node(index) else {
                continue;
            };
            let input = match node.fusing {
                Fusing::Idles { input } => input,
                _ => 0,
            };
            if let (true, Some(&read), &[written, ..]) = (
                node.fusing.goes(self.is_oldest),
                node.reads.get(input),
                &*node.writes,
            ) {
                // Positions are topological: whatever is forwarded has its source already.
                source[written as usize] = source[read as usize];
                self.differs_from_oldest |= !node.fusing.goes(true);
                self.take(index);
                continue;
            }
            self.read_from(index, &source);
        }
    }

    /// Takes Identities out that write outputs of the graph, where what they read can be such an output itself: a node computes it that
    /// nobody else reads, and it is none yet. Was there any? Source: `EliminateIdentity`; measured in 1.19.2, 1.20.1 and 1.32.0.
    pub(super) fn hand_out(&mut self) -> bool {
        let mut any = false;
        for index in self.of_kind(FusingKind::HandsOut) {
            let hands_out = self
                .node(index)
                .filter(|node| node.fusing == Fusing::HandsOut);
            let ends = hands_out.map(|node| (&*node.reads, &*node.writes));
            let Some((&[read], &[written])) = ends else {
                continue;
            };
            let producer = self.producer[read as usize];
            let readers = [read, written].map(|tensor| self.readers[tensor as usize].0);
            let is_alone = readers == [1, 0] && !self.is_output(read);
            let computes = self.node(producer);
            if is_alone
                && computes.is_some_and(|computes| computes.fusing != Fusing::Folded)
                && let Some(computes) = self.take(producer)
            {
                self.take(index);
                let of = |tensor: u32| if tensor == read { written } else { tensor };
                self.put(producer, computes.writing(of));
                any = true;
            }
        }
        any
    }

    /// Lets a Div of the number 1 divide what the Mul multiplies that alone reads it, which goes. The Div keeps its index. Was there any?
    pub(super) fn divide(&mut self) -> bool {
        let mut any = false;
        for index in self.of_kind(FusingKind::Inverts) {
            let inverts =
                |div: &FusedNode<'_>| div.fusing == Fusing::Inverts && div.reads.len() == 2;
            if !self.node(index).is_some_and(inverts) {
                continue;
            }
            let reader = self.only_reader(index).filter(|&reader| {
                let reader = self.node(reader);
                reader.is_some_and(|reader| reader.fusing.is_multiplication())
            });
            if let Some(reader) = reader
                && let (Some(div), Some(mul)) = (self.take(index), self.take(reader))
            {
                let (inverse, by) = (div.writes[0], div.reads[1]);
                let is_factor = |read: &&u32| **read != inverse;
                let factor = mul.reads.iter().find(is_factor).copied();
                let is_over_divisor = div.shares.iter().any(|share| share.read == by);
                let share = |&share: &Share| match share.read == inverse {
                    true => is_over_divisor.then_some(Share { read: by, ..share }),
                    false => Some(share),
                };
                let mut shares: Vec<Share> = mul.shares.iter().filter_map(share).collect();
                shares.sort_by_key(|share| share.read == by);
                self.put(
                    index,
                    FusedNode {
                        // It runs when the Mul would.
                        position: mul.position,
                        reads: factor.into_iter().chain([by]).collect(),
                        writes: mul.writes,
                        shares: shares.into(),
                        fusing: Fusing::No,
                        equal: 0,
                        moving: mul.moving,
                        ..div
                    },
                );
                any = true;
            }
        }
        any
    }

    /// Takes out what is computed before the first step, and what it alone reads: of what only its shape is asked for, all that computes
    /// it. Was there anything?
    pub(super) fn fold(&mut self) -> bool {
        let mut read = Vec::new();
        for index in self.of_kind(FusingKind::Folded) {
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
    pub(super) fn assemble(&mut self) -> bool {
        let mut any = false;
        for index in self.of_kind(FusingKind::Assembles) {
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

    /// Takes out what pads for one reader, which does so itself. Was there anything?
    pub(super) fn take_in_pads(&mut self) -> bool {
        let mut any = false;
        for index in self.of_kind(FusingKind::Pads) {
            let reader = self.only_reader(index);
            if let Some(reader) = reader.filter(|_| self.is(index, Fusing::Pads))
                && let (Some(pad), Some(node)) = (self.take(index), self.take(reader))
            {
                let (read, written) = (pad.reads[0], pad.writes[0]);
                let of = |tensor: u32| if tensor == written { read } else { tensor };
                self.put(reader, node.reading(of));
                any = true;
            }
        }
        any
    }

    /// Takes out what computes with constants behind a convolution by constants, whose weights and bias they become part of. Was there
    /// anything?
    pub(super) fn take_in_constants(&mut self) -> bool {
        const WITHOUT_BIAS: usize = 2;
        let mut any = false;
        for index in self.of_kind(FusingKind::Convolution) {
            while self.is(index, Fusing::Convolution { constant: true })
                && let Some(reader) = self.only_reader(index)
                && let Some(Fusing::Channels { biased }) = self.node(reader).map(|of| of.fusing)
                && let (Some(node), Some(reader)) = (self.take(index), self.take(reader))
            {
                let mut reads = node.reads.into_owned();
                if biased && reads.len() == WITHOUT_BIAS {
                    // As constant as the weights.
                    reads.push(reads[1]);
                }
                self.put(
                    index,
                    FusedNode {
                        reads: reads.into(),
                        writes: reader.writes,
                        shares: Cow::default(),
                        ..node
                    },
                );
                any = true;
            }
        }
        any
    }

    /// Puts one node in the place of those that split a tensor, which no Shape writes. Were there any?
    pub(super) fn split(&mut self) -> bool {
        // By tensor: where those parts begin that are still taken, and by whom.
        let mut tensors: BTreeMap<u32, Vec<(u64, u32)>> = BTreeMap::new();
        for (index, node) in (0..).zip(&self.nodes) {
            if let Some(node) = node
                && let Fusing::Splits { from, .. } = node.fusing
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
            let is_sized =
                |part: &&FusedNode<'_>| matches!(part.fusing, Fusing::Splits { sized: true, .. });
            let sized = taken.iter().filter(is_sized);
            self.sized
                .extend(sized.flat_map(|part| part.writes.iter().copied()));
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
    pub(super) fn measure_before_casts(&mut self) -> bool {
        let skeleton = self.skeleton;
        let measuring = self.of_kind(FusingKind::Shape).into_iter();
        let measuring: Vec<u32> = measuring
            .filter(|&index| self.is(index, PASSES_CASTS))
            .collect();
        if measuring.is_empty() {
            return false;
        }
        // By tensor: how many read only its shape.
        let mut measured = vec![0; self.readers.len()];
        for &index in &measuring {
            let read = self.node(index).and_then(|node| node.reads.first());
            if let Some(&read) = read {
                measured[read as usize] += 1;
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
        for index in measuring {
            if let Some(node) = self.take(index) {
                let node = node.reading(|tensor| source[tensor as usize]);
                let wide = skeleton.wide.get(node.reads[0] as usize);
                let casting = match wide.is_some_and(|&wide| wide != NO_TENSOR) {
                    true => Casting::RESHAPE,
                    false => Casting::No,
                };
                self.put(index, FusedNode { casting, ..node });
            }
        }
        !gone.is_empty()
    }

    /// Whoever reads a constant reads the first that is equal. Are there any?
    pub(super) fn share_constants(&mut self) -> bool {
        let shared = &self.skeleton.shared;
        if shared.is_empty() {
            return false;
        }
        let mut source: Vec<u32> = (0..self.skeleton.size.len() as u32).collect();
        for &(constant, first) in shared {
            source[constant as usize] = first;
        }
        for index in 0..self.nodes.len() as u32 {
            let reads_other =
                |node: &FusedNode<'_>| node.reads.iter().any(|&t| source[t as usize] != t);
            if self.node(index).is_some_and(reads_other)
                && let Some(node) = self.take(index)
            {
                self.put(index, node.reading(|tensor| source[tensor as usize]));
            }
        }
        true
    }

    /// Leaves one of the nodes that compute the same, the first in DEFAULT order, and of the others what puts something out. Were
    /// there any?
    pub(super) fn merge_equal(&mut self) -> bool {
        if self.nodes.iter().flatten().all(|node| node.equal == 0) {
            return false;
        }
        let mut source: Vec<u32> = (0..self.skeleton.size.len() as u32).collect();
        let mut first: HashMap<(u32, Vec<u32>), Vec<u32>> = HashMap::new();
        let mut any = false;
        for index in self.in_default_order() {
            self.read_from(index, &source);
            let Some(node) = self.node(index) else {
                continue;
            };
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
            if goes {
                self.take(index);
            }
        }
        any
    }

    fn is_shape(&self, index: u32) -> bool {
        let node = self.node(index);
        node.is_some_and(|node| matches!(node.fusing, Fusing::Shape { .. }))
    }
}
