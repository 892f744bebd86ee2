//! Which Transposes the runtime moves behind what reads them, from ORT_ENABLE_BASIC on.
//!
//! Source: `TransposeOptimizer` of 1.19.2, compared with what sessions saved. In DEFAULT order, a node that reads a Transpose
//! has all its inputs transposed the other way, and its results back, if that costs less: an input costs as many axes as it has that are not of
//! size 1, a constant nothing, and what goes by that counts against it. Results cost as much, unless another Transpose comes
//! later on the way from them. New nodes get the highest indices, in the sequence in which they are made.

mod made;

use std::collections::{HashMap, HashSet};

use super::{FusedNode, NOBODY, Nodes};
use crate::graph::{Dimension, numbers};
use crate::operators::resolve_axis;
use crate::runtime::fusing::Fusing;
use crate::runtime::moving::{Added, AxisSet, KnownDimensions, Moves, Moving};
use crate::runtime::transposes::Transposition;

/// What a tensor of which nothing is known counts as.
const UNKNOWN_RANK: i64 = 5;

/// What is known while Transposes are moved: by tensor, those that were made included.
pub(super) struct Moved {
    shapes: Vec<KnownDimensions>,
    constant: Vec<bool>,
    captured: Vec<bool>,
    element: Vec<u64>,
    /// Inputs that were a constant which is transposed now: reader and tensor. Who moves a Transpose behind the reader gets it back.
    restored: HashSet<(u32, u32)>,
    /// By what is read and how: who transposes it, or did.
    transposes: HashMap<(u32, Vec<u8>), u32>,
}

impl Moved {
    pub(super) fn of(moves: &Moves) -> Moved {
        Moved {
            shapes: moves.shapes.clone(),
            constant: moves.constant.clone(),
            captured: moves.captured.clone(),
            element: moves.element.clone(),
            restored: HashSet::new(),
            transposes: HashMap::new(),
        }
    }
}

impl<'s> Nodes<'s> {
    /// The bytes of a tensor that was made.
    pub(super) fn bytes_of(&self, added: &Added) -> u64 {
        match added.made_by {
            Some("Shape") => match added.shape.as_deref() {
                Some([Dimension::Known(axes)]) => axes * added.element,
                _ => 0,
            },
            _ => self.skeleton.size[added.of as usize],
        }
    }

    /// See the module's documentation. Did it change anything?
    pub(super) fn move_behind_readers(&mut self) -> bool {
        self.know_constants();
        if !(0..self.nodes.len() as u32).any(|index| self.movable(index).is_some()) {
            return false;
        }
        let order = self.in_default_order();
        self.know_transposes(&order);
        let leads = self.leading(&order);
        let mut any = false;
        for index in order {
            any |= self.move_behind(index, &leads);
        }
        if any {
            self.fold_what_was_made();
            self.merge_what_was_made();
            self.know_products();
        }
        self.readers_of = None;
        any
    }

    /// Lets Transposes be moved behind pieces of functions. Are there any?
    pub(super) fn move_behind_pieces(&mut self) -> bool {
        let Some(moves) = self.skeleton.moves.as_deref() else {
            return false;
        };
        let mut any = false;
        for index in 0..self.nodes.len() as u32 {
            let position = self.node(index).map(|node| node.position as usize);
            if let Some(position) = position.filter(|&at| self.skeleton.is_piece_at(at))
                && let Some(node) = self.take(index)
            {
                let moving = moves.moving[position];
                any |= moving != Moving::No;
                self.put(index, FusedNode { moving, ..node });
            }
        }
        any
    }

    fn moved_ref(&self) -> &Moved {
        self.moved.as_ref().expect("Transposes are moved")
    }

    fn shape(&self, tensor: u32) -> Option<&[Dimension]> {
        self.moved.as_ref()?.shapes.get(tensor as usize)?.as_deref()
    }

    /// What the session has before the first step.
    fn is_constant(&self, tensor: u32) -> bool {
        self.producer[tensor as usize] == NOBODY
            && self
                .moved
                .as_ref()
                .is_some_and(|moved| moved.constant.get(tensor as usize) == Some(&true))
    }

    fn know_constants(&mut self) {
        for at in 0..self.folded.len() {
            self.know_constant(self.folded[at]);
        }
    }

    fn know_constant(&mut self, tensor: u32) {
        if let Some(moved) = &mut self.moved {
            moved.constant.resize(self.producer.len(), false);
            moved.constant[tensor as usize] = true;
        }
    }

    fn know_transposes(&mut self, order: &[u32]) {
        let mut all = HashMap::new();
        for &index in order {
            if let (Some(node), Some(transposition)) = (self.node(index), self.transposition(index))
            {
                let key = (node.reads[0], transposition.axes().to_vec());
                all.entry(key).or_insert(index);
            }
        }
        if let Some(moved) = &mut self.moved {
            moved.transposes = all;
        }
    }

    /// A node that reads a Transpose which may be moved behind it.
    fn movable(&self, index: u32) -> Option<&FusedNode<'s>> {
        let node = self.node(index).filter(|node| node.moving != Moving::No)?;
        let reads_one = |&read: &u32| self.transposition(self.producer[read as usize]).is_some();
        node.reads.iter().any(reads_one).then_some(node)
    }

    /// By tensor: does a Transpose come later on the way from it?
    fn leading(&self, order: &[u32]) -> Vec<bool> {
        let mut leads = vec![false; self.producer.len()];
        for node in order.iter().rev().filter_map(|&index| self.node(index)) {
            let leads_on = || node.writes.iter().any(|&written| leads[written as usize]);
            if node.moving == Moving::Transpose || node.moving.transposes_results() && leads_on() {
                for place in self.movable_inputs(node) {
                    leads[node.reads[place] as usize] = true;
                }
            }
        }
        leads
    }

    /// Which of what it reads is transposed when a Transpose is moved behind it.
    fn movable_inputs(&self, node: &FusedNode<'_>) -> Vec<usize> {
        match node.moving {
            Moving::No => Vec::new(),
            Moving::All => (0..node.reads.len()).collect(),
            Moving::Broadcast => {
                let has_axes = |&place: &usize| self.shape(node.reads[place]) != Some(&[]);
                (0..node.reads.len()).filter(has_axes).collect()
            }
            _ => (0..node.reads.len().min(1)).collect(),
        }
    }

    fn move_behind(&mut self, index: u32, leads: &[bool]) -> bool {
        /// One node may read very many.
        const TRIED: usize = 16;
        let Some(node) = self.movable(index) else {
            return false;
        };
        let places = self.movable_inputs(node);
        let mut tried: Vec<Transposition> = Vec::new();
        for &place in &places {
            let Some(node) = self.node(index) else {
                return false;
            };
            let transpose = self.producer[node.reads[place] as usize];
            let Some(transposition) = self.transposition(transpose) else {
                continue;
            };
            let mut tried_before = tried.iter();
            if tried_before.any(|other| other.axes() == transposition.axes())
                || tried.len() == TRIED
            {
                continue;
            }
            tried.push(transposition);
            let pays = node.moving == Moving::Transpose
                || self.cost(index, node, &places, transposition, leads) < 0;
            if pays && self.moved_behind(index, transpose, transposition, &places) {
                return true;
            }
        }
        false
    }

    fn rank(&self, tensor: u32) -> i64 {
        let counts = |dimension: &&Dimension| **dimension != Dimension::Known(1);
        self.shape(tensor).map_or(UNKNOWN_RANK, |shape| {
            shape.iter().filter(counts).count() as i64
        })
    }

    fn cost(
        &self,
        index: u32,
        node: &FusedNode<'_>,
        places: &[usize],
        moved: Transposition,
        leads: &[bool],
    ) -> i64 {
        let input = |&place: &usize| {
            let read = node.reads[place];
            if self.is_constant(read) || self.moved_ref().restored.contains(&(index, read)) {
                return 0;
            }
            match self.transposition(self.producer[read as usize]) {
                Some(other) if other.axes() == moved.axes() && self.may_go(read) => {
                    -self.rank(read)
                }
                Some(_) => 0,
                None => self.rank(read),
            }
        };
        let inputs: i64 = places.iter().map(input).sum();
        let leads_on = |&written: &u32| leads.get(written as usize) == Some(&true);
        if inputs >= 0 || !node.moving.transposes_results() || node.writes.iter().any(leads_on) {
            return inputs;
        }
        let results = node.writes.iter().map(|&written| self.rank(written));
        inputs + results.max().unwrap_or(0)
    }

    /// Can the Transposes of all that read the tensor be moved behind them?
    fn may_go(&self, tensor: u32) -> bool {
        self.keepers[tensor as usize] == 0 && self.is_told_nobody(tensor)
    }

    /// Has it no readers but nodes?
    fn is_told_nobody(&self, tensor: u32) -> bool {
        let captured = &self.moved_ref().captured;
        !self.is_output(tensor) && captured.get(tensor as usize) != Some(&true)
    }

    /// Moves a Transpose behind a node, if it can be.
    fn moved_behind(
        &mut self,
        index: u32,
        transpose: u32,
        moved: Transposition,
        places: &[usize],
    ) -> bool {
        let Some(node) = self.node(index) else {
            return false;
        };
        match node.moving {
            Moving::Transpose => {
                let both = self.transposition(index).and_then(|next| moved.then(next));
                if let Some(both) = both {
                    self.transpose_at_once(index, both);
                }
                return both.is_some();
            }
            Moving::Reshape => return self.reshape_at_once(index, moved),
            _ => {}
        }
        let Some((moving, behind)) = self.way_behind(node, moved, places) else {
            return false;
        };
        let position = self.node(transpose).map_or(0, |node| node.position);
        let Some(node) = self.take(index) else {
            return false;
        };
        let instead = self.turned_inputs(position, &node, (moving, moved), places);
        let (old, results) = (node.reads.clone(), node.writes.clone());
        // What the node writes now, and the results are made of.
        let mut inner: HashMap<u32, u32> = HashMap::new();
        for &written in results.iter() {
            if let Some(behind) = behind {
                let shape = self.shape(written);
                let shape = shape.and_then(|shape| behind.inverse().moved(shape));
                inner.insert(written, self.add_tensor(written, None, shape));
            } else if moving == Moving::Shape {
                let shape = Some(vec![Dimension::Known(moved.axes().len() as u64)]);
                inner.insert(written, self.add_tensor(written, Some("Shape"), shape));
            }
        }
        let of = |all: &HashMap<u32, u32>, tensor| all.get(&tensor).copied().unwrap_or(tensor);
        let node = node.reading(|tensor| of(&instead, tensor));
        let node = node.writing(|tensor| of(&inner, tensor));
        for &read in node.reads.iter() {
            self.add_reader(read, index);
        }
        let fusing = match node.fusing {
            Fusing::Bias { .. } => Fusing::Adds,
            other => other,
        };
        self.put(
            index,
            FusedNode {
                fusing,
                moving,
                equal: 0,
                ..node
            },
        );
        for &written in results.iter() {
            match (inner.get(&written), behind) {
                (Some(&inner), Some(by)) => self.add_transpose(position, inner, written, by),
                (Some(&sizes), None) => self.add_gather(position, sizes, written),
                (None, _) => {}
            }
        }
        self.take_unread_made(&old);
        true
    }

    /// The way in which a Transpose is moved behind the node, in terms of what the Transpose reads, and the one that comes behind the
    /// results, where one is left. `None` if it cannot be moved so.
    fn way_behind(
        &self,
        node: &FusedNode<'_>,
        moved: Transposition,
        places: &[usize],
    ) -> Option<(Moving, Option<Transposition>)> {
        let rank = moved.axes().len();
        let (moving, behind) = match node.moving {
            Moving::No | Moving::Stays | Moving::Transpose | Moving::Reshape => return None,
            Moving::Shape | Moving::ReducesAll => (node.moving, None),
            Moving::All | Moving::First | Moving::Gathers => (node.moving, Some(moved)),
            Moving::Divided { axis } => {
                keeps_sides(moved, axis).then_some((node.moving, Some(moved)))?
            }
            Moving::Broadcast => {
                let fits = |&place: &usize| {
                    let shape = self.shape(node.reads[place]);
                    shape.is_some_and(|shape| shape.len() <= rank)
                };
                let all_fit = places.iter().all(fits);
                all_fit.then_some((node.moving, Some(moved)))?
            }
            Moving::Squeezes(axes) | Moving::Reduces(axes) => {
                let gone = moved
                    .inverse()
                    .moved(&axes.marks(rank)?)
                    .unwrap_or_default();
                let all = (0..).zip(&gone).filter(|(_, gone)| **gone);
                let all: Vec<i64> = all.map(|(axis, _)| axis).collect();
                let axes = AxisSet::of(&all)?;
                let moving = match node.moving {
                    Moving::Squeezes(_) => Moving::Squeezes(axes),
                    _ => Moving::Reduces(axes),
                };
                (moving, moved.without(&gone))
            }
            // It is kept even if it moves nothing.
            Moving::Unsqueezes(axes) => {
                return Some((node.moving, Some(moved.with(&axes.places(rank)?)?)));
            }
        };
        Some((moving, behind.filter(|behind| !behind.is_none())))
    }

    /// Transposes the other way what the node reads at these places. By tensor: what it reads instead.
    fn turned_inputs(
        &mut self,
        position: u32,
        node: &FusedNode<'_>,
        (moving, moved): (Moving, Transposition),
        places: &[usize],
    ) -> HashMap<u32, u32> {
        let mut instead: HashMap<u32, u32> = HashMap::new();
        if let (Moving::Gathers, Some(&numbers)) = (moving, node.reads.get(1)) {
            let gathered = self.add_tensor(numbers, Some("Gather"), self.known(numbers));
            self.add_gather(position, numbers, gathered);
            instead.insert(numbers, gathered);
        }
        let mut seen = HashSet::new();
        let reads = places.iter().map(|&place| node.reads[place]);
        let reads: Vec<u32> = reads.filter(|&read| seen.insert(read)).collect();
        if moving == Moving::Broadcast {
            let rank = moved.axes().len();
            for &read in &reads {
                let axes = self.shape(read).map_or(rank, <[Dimension]>::len);
                if axes < rank {
                    instead.insert(read, self.with_axes(position, read, rank - axes));
                }
            }
        }
        for read in reads {
            let from = instead.get(&read).copied().unwrap_or(read);
            instead.insert(read, self.turned(position, from, moved.inverse()));
        }
        instead
    }

    /// A Reshape that only moves axes of size 1 is a Transpose.
    fn reshape_at_once(&mut self, index: u32, moved: Transposition) -> bool {
        let Some(node) = self.node(index) else {
            return false;
        };
        let (position, read, written) = (node.position, node.reads[0], node.writes[0]);
        let is_fixed = node.reads.get(1).is_some_and(|&to| self.is_constant(to));
        let sizes = |tensor: u32| -> Option<Vec<u64>> { numbers(self.shape(tensor)?) };
        let both = || moved.then(as_transposition(&sizes(read)?, &sizes(written)?)?);
        let Some(both) = is_fixed.then(both).flatten() else {
            return false;
        };
        // It is a Transpose behind all others, or gone.
        self.take(index);
        self.add_transpose(position, read, written, both);
        let new = self.nodes.len() as u32 - 1;
        self.transpose_at_once(new, both);
        true
    }

    /// See [`Transposition::of_products`].
    fn know_products(&mut self) {
        let mut unlike = vec![false; self.producer.len()];
        for node in self.nodes.iter().flatten() {
            if matches!(node.fusing, Fusing::Product { .. }) {
                let rank = |&read: &u32| self.shape(read).map(<[_]>::len);
                let first = node.reads.first().and_then(rank);
                let alike = first.is_some() && node.reads.iter().all(|read| rank(read) == first);
                for &read in node.reads.iter().filter(|_| !alike) {
                    unlike[read as usize] = true;
                }
            }
        }
        for node in self.nodes.iter_mut().flatten() {
            if let Fusing::Transposes(by) = node.fusing {
                node.fusing = Fusing::Transposes(by.of_products(!unlike[node.writes[0] as usize]));
            }
        }
    }
}

/// Does every axis stay on its side of this one?
fn keeps_sides(moved: Transposition, axis: i64) -> bool {
    let mut axes = moved.axes().iter().enumerate();
    resolve_axis(axis, moved.axes().len())
        .is_some_and(|axis| axes.all(|(to, &from)| (to < axis) == (usize::from(from) < axis)))
}

/// How a Transpose makes one shape of the other, if it only moves axes of size 1.
fn as_transposition(before: &[u64], behind: &[u64]) -> Option<Transposition> {
    let mut left: Vec<Option<u64>> = before.iter().copied().map(Some).collect();
    let mut axes = Vec::new();
    for &wanted in behind {
        let found = left.iter().position(|&size| size == Some(wanted))?;
        let passed = left[..found].iter().flatten();
        if passed.clone().any(|&size| size != 1 && wanted != 1) {
            return None;
        }
        left[found] = None;
        axes.push(found as u8);
    }
    Transposition::by(axes).filter(|_| before.len() == behind.len())
}

#[cfg(test)]
mod tests;
