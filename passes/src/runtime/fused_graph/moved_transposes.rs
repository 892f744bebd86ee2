//! Which Transposes the runtime moves behind what reads them, from ORT_ENABLE_BASIC on.
//!
//! Source: `TransposeOptimizer` of 1.19.2, compared with what sessions saved. In DEFAULT order, a node that reads a Transpose
//! has all its inputs transposed the other way, and its results back, if that costs less: an input costs as many axes as it has that are not of
//! size 1, a constant nothing, and what goes by that counts against it. Results cost as much, unless another Transpose comes
//! later on the way from them. New nodes get the highest indices, in the sequence in which they are made.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::{FusedNode, NOBODY, Nodes};
use crate::graph::Dimension;
use crate::runtime::casting::Casting;
use crate::runtime::fusing::Fusing;
use crate::runtime::moving::{Added, AxisSet, KnownDimensions, Moves, Moving};
use crate::runtime::skeleton::Share;
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
        let sizes = |tensor: u32| -> Option<Vec<u64>> {
            self.shape(tensor)?.iter().map(Dimension::number).collect()
        };
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

    fn known(&self, tensor: u32) -> KnownDimensions {
        self.shape(tensor).map(<[Dimension]>::to_vec)
    }

    fn add_tensor(
        &mut self,
        of: u32,
        made_by: Option<&'static str>,
        shape: KnownDimensions,
    ) -> u32 {
        let new = self.producer.len() as u32;
        let original = self.skeleton.size.len() as u32;
        let name = match of.checked_sub(original) {
            Some(place) => self.added[place as usize].of,
            None => of,
        };
        self.producer.push(NOBODY);
        self.readers.push((0, 0));
        self.gemms.push(0);
        self.keepers.push(0);
        if let Some(readers_of) = &mut self.readers_of {
            readers_of.push(Vec::new());
        }
        let Some(moved) = &mut self.moved else {
            return new;
        };
        let element = match made_by {
            Some("Shape") => 8,
            _ => moved.element.get(of as usize).copied().unwrap_or(0),
        };
        moved.shapes.resize(new as usize, None);
        moved.element.resize(new as usize, 0);
        moved.shapes.push(shape.clone());
        moved.element.push(element);
        self.added.push(Added {
            of: name,
            made_by,
            element,
            shape,
        });
        new
    }

    /// Adds a node that makes one tensor of another. One that only takes or adds axes shares the memory.
    fn add_made(&mut self, position: u32, read: u32, written: u32, fusing: Fusing, moving: Moving) {
        let share = Share {
            written,
            read,
            always: true,
        };
        let shares = match moving {
            Moving::Squeezes(_) | Moving::Unsqueezes(_) => vec![share].into(),
            _ => Cow::default(),
        };
        self.add_reader(read, self.nodes.len() as u32);
        self.add(FusedNode {
            position,
            reads: vec![read].into(),
            writes: vec![written].into(),
            shares,
            workspace: 0,
            fusing,
            equal: 0,
            casting: Casting::No,
            moving,
        });
    }

    fn add_gather(&mut self, position: u32, read: u32, written: u32) {
        self.add_made(position, read, written, Fusing::No, Moving::No);
    }

    /// Adds a Squeeze or an Unsqueeze of the first axes.
    fn add_axes(&mut self, position: u32, read: u32, written: u32, moving: Moving) {
        self.add_made(position, read, written, Fusing::No, moving);
    }

    fn add_transpose(&mut self, position: u32, read: u32, written: u32, by: Transposition) {
        let index = self.nodes.len() as u32;
        let fusing = Fusing::Transposes(by);
        self.add_made(position, read, written, fusing, Moving::Transpose);
        if let Some(moved) = &mut self.moved {
            let key = (read, by.axes().to_vec());
            moved.transposes.insert(key, index);
        }
    }

    /// The tensor with `more` axes in front.
    fn with_axes(&mut self, position: u32, tensor: u32, more: usize) -> u32 {
        let first: Vec<i64> = (0..more as i64).collect();
        let Some(axes) = AxisSet::of(&first) else {
            return tensor;
        };
        let old = self.known(tensor).unwrap_or_default();
        let mut shape = vec![Dimension::Known(1); more];
        shape.extend_from_slice(&old);
        if self.is_constant(tensor) && self.is_told_nobody(tensor) {
            if self.readers[tensor as usize].0 > 0 {
                let squeezed = self.add_tensor(tensor, Some("Squeeze"), Some(old));
                self.restore(tensor, squeezed);
                self.add_axes(position, tensor, squeezed, Moving::Squeezes(axes));
            }
            if let Some(moved) = &mut self.moved {
                moved.shapes[tensor as usize] = Some(shape);
            }
            return tensor;
        }
        let producer = self.producer[tensor as usize];
        if let Some(node) = self.node(producer)
            && node.moving == (Moving::Squeezes(axes))
        {
            return node.reads[0];
        }
        let before = self.transposition(producer);
        let more: Vec<bool> = (0..shape.len()).map(|place| place < more).collect();
        let new = self.add_tensor(tensor, Some("Unsqueeze"), Some(shape.clone()));
        let moving = Moving::Unsqueezes(axes);
        if let Some(before) = before
            && let Some(behind) = before.with(&more)
            && let Some(read) = self.node(producer).map(|node| node.reads[0])
        {
            let inner = behind.inverse().moved(&shape);
            let inner = self.add_tensor(tensor, Some("Unsqueeze"), inner);
            self.add_axes(position, read, inner, moving);
            self.add_transpose(position, inner, new, behind);
        } else {
            self.add_axes(position, tensor, new, moving);
        }
        new
    }

    /// The tensor transposed.
    fn turned(&mut self, position: u32, tensor: u32, by: Transposition) -> u32 {
        let shape = self.known(tensor);
        let moved = shape.as_ref().and_then(|shape| by.moved(shape));
        if self.is_constant(tensor) && self.is_told_nobody(tensor) {
            let by_axis = [Dimension::Known(by.axes().len() as u64)];
            let is_same = |shape: &Vec<Dimension>| {
                *shape == by_axis || shape.iter().all(|size| *size == Dimension::Known(1))
            };
            if shape.as_ref().is_some_and(is_same) {
                return tensor;
            }
            if self.readers[tensor as usize].0 > 0 {
                let back = self.add_tensor(tensor, Some("Transpose"), shape);
                self.restore(tensor, back);
                self.add_transpose(position, tensor, back, by.inverse());
            }
            if let Some(all) = &mut self.moved {
                all.shapes[tensor as usize] = moved;
            }
            return tensor;
        }
        let producer = self.producer[tensor as usize];
        if let (Some(before), Some(node)) = (self.transposition(producer), self.node(producer))
            && let Some(both) = before.then(by)
        {
            let read = node.reads[0];
            if both.is_none() {
                return read;
            }
            let new = self.add_tensor(tensor, Some("Transpose"), moved);
            self.add_transpose(position, read, new, both);
            return new;
        }
        let key = (tensor, by.axes().to_vec());
        if let Some(&other) = self.moved_ref().transposes.get(&key)
            && let (Some(same), Some(node)) = (self.transposition(other), self.node(other))
            && node.reads[0] == tensor
            && same.axes() == by.axes()
        {
            return node.writes[0];
        }
        let new = self.add_tensor(tensor, Some("Transpose"), moved);
        self.add_transpose(position, tensor, new, by);
        new
    }

    /// Whoever reads a constant reads what has its old form.
    fn restore(&mut self, constant: u32, old_form: u32) {
        let of = |tensor: u32| if tensor == constant { old_form } else { tensor };
        for reader in self.take_readers(constant) {
            if let Some(node) = self.take(reader) {
                if node.reads.contains(&constant) {
                    if let Some(moved) = &mut self.moved {
                        moved.restored.insert((reader, old_form));
                    }
                    self.add_reader(old_form, reader);
                }
                self.put(reader, node.reading(of));
            }
        }
    }

    /// Takes out the Transposes and Squeezes that wrote these, where nobody reads them any more.
    fn take_unread_made(&mut self, tensors: &[u32]) {
        for &tensor in tensors {
            let index = self.producer[tensor as usize];
            let is_one = |node: &FusedNode<'_>| {
                matches!(node.moving, Moving::Transpose | Moving::Squeezes(_))
            };
            if self.readers[tensor as usize].0 == 0
                && self.is_told_nobody(tensor)
                && self.node(index).is_some_and(is_one)
            {
                self.take(index);
            }
        }
    }

    /// What was made of constants is one from the next round on.
    fn fold_what_was_made(&mut self) {
        let mut folded = true;
        while std::mem::take(&mut folded) {
            for index in self.skeleton.len() as u32..self.nodes.len() as u32 {
                let Some(node) = self.node(index).filter(|node| node.moving.is_made()) else {
                    continue;
                };
                let (read, written) = (node.reads[0], node.writes[0]);
                if self.is_constant(read) && !self.is_output(written) {
                    self.take(index);
                    self.folded.push(written);
                    self.producer[written as usize] = NOBODY;
                    self.know_constant(written);
                    folded = true;
                }
            }
        }
    }

    /// Leaves one of the nodes that do the same, the first in DEFAULT order.
    fn merge_what_was_made(&mut self) {
        let mut first: HashMap<(u32, Moving, Vec<u8>), u32> = HashMap::new();
        for index in self.in_default_order() {
            let by = self.transposition(index);
            let Some(node) = self.node(index).filter(|node| node.moving.is_made()) else {
                continue;
            };
            if by.is_none() && (index as usize) < self.skeleton.len() {
                continue;
            }
            let axes = by.map_or_else(Vec::new, |by| by.axes().to_vec());
            let (key, written) = ((node.reads[0], node.moving, axes), node.writes[0]);
            let same = *first.entry(key).or_insert(written);
            if same != written && self.is_told_nobody(written) {
                self.take(index);
                self.rename(written, same);
            }
        }
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
    let rank = moved.axes().len() as i64;
    let axis = if axis < 0 { axis + rank } else { axis };
    let is_before = |place: usize| (place as i64) < axis;
    let mut axes = moved.axes().iter().enumerate();
    (0..rank).contains(&axis)
        && axes.all(|(to, &from)| is_before(to) == is_before(usize::from(from)))
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
mod tests {
    use super::*;
    use crate::cost::Cost;
    use crate::graph::{Graph, TensorId};
    use crate::operators::Provider;
    use crate::pass::Pass as _;
    use crate::rewrite::infer_shapes::InferShapes;
    use crate::runtime::known_shapes::runtime_shapes;
    use crate::runtime::skeleton::Skeleton;

    /// What a session saves at ORT_ENABLE_BASIC.
    fn form(text: &str) -> String {
        let first = forms(text).into_iter().next();
        first.unwrap_or_else(|| "none".to_owned())
    }

    /// What sessions save, by level: the nodes by index, each as what it writes and reads. What is made of a tensor has a mark.
    fn forms(text: &str) -> Vec<String> {
        let mut graph = Graph::parse(text).unwrap();
        let sizes = if text.contains("[N,") {
            vec![("N".to_owned(), 4)]
        } else {
            Vec::new()
        };
        let bindings = sizes.into_iter().collect();
        InferShapes { bindings }.run(&mut graph).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
        let skeleton = skeleton.moving(&graph, &runtime_shapes(&graph));
        let forms = skeleton.optimized();
        forms.iter().map(|(form, _)| said(&graph, form)).collect()
    }

    fn said(graph: &Graph, form: &Skeleton) -> String {
        let name = |&tensor: &u32| {
            let mark = if form.added(tensor).is_some() {
                "~"
            } else {
                ""
            };
            format!("{}{mark}", graph.tensor(TensorId(form.named(tensor))).name)
        };
        let names = |tensors: &[u32]| tensors.iter().map(name).collect::<Vec<_>>().join(",");
        let nodes = (0..form.len()).map(|node| {
            let (written, read) = (form.writes.get(node), form.reads.get(node));
            format!("{}({})", names(written), names(read))
        });
        nodes.collect::<Vec<_>>().join(" ")
    }

    /// Of a tensor whose first axis of six comes last in `t`; `nodes` make `z` of that, and it comes first again in `y`.
    fn behind(nodes: &str, more: &str) -> String {
        form(&format!(
            r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[N,6,8,10] x{more}) => (float[N,6,8,10] y)
            <float[6] c = {{1, 2, 3, 4, 5, 6}}, int64[1] one = {{1}}, int64[1] three = {{3}}, int64[1] four = {{4}}, float two = {{2}}>
            {{ e = Exp(x) t = Transpose<perm = [0,2,3,1]>(e) {nodes} y = Transpose<perm = [0,3,1,2]>(z) }}"#
        ))
    }

    // As sessions of 1.19.2 run such graphs (tests/real_runs.rs).
    #[test]
    fn two_that_undo_each_other_go_where_all_between_has_a_way() {
        assert_eq!(behind("z = Relu(t)", ""), "e(x) y(e)");
        let chain = "a = Relu(t) b = Softmax<axis = -1>(a) z = Mul(b, two)";
        assert_eq!(behind(chain, ""), "e(x) a~(e) b~(a~) y(b~,two)");
        assert_eq!(
            behind("a = Relu(t) z = MatMul(a, w)", ", float[6,6] w"),
            "none"
        );
    }

    #[test]
    fn what_is_not_constant_is_transposed_behind_new_nodes() {
        let weight = behind("z = Mul(t, w)", ", float[6] w");
        assert_eq!(weight, "e(x) y(e,w~) w~(w) w~(w~)");
        assert_eq!(behind("z = Mul(t, c)", ""), "e(x) y(e,c)");
        // Two of one weight become one.
        let twice = behind("a = Mul(t, w) b = Relu(a) z = Add(b, w)", ", float[6] w");
        assert_eq!(twice, "e(x) a~(e,w~) b~(a~) y(b~,w~) w~(w) w~(w~)");
    }

    #[test]
    fn axes_are_those_of_what_is_read() {
        let reduced = "r = ReduceMean<axes = [3]>(t) z = Sub(t, r)";
        assert_eq!(behind(reduced, ""), "e(x) r~(e) y(e,r~)");
        let text = |nodes: &str| {
            form(&format!(
                r#"<ir_version: 8, opset_import: ["" : 15]> g (float[N,6,8,10] x) => (float[a,b,c] y)
                <int64[1] one = {{1}}, int64[1] three = {{3}}>
                {{ e = Exp(x) t = Transpose<perm = [0,2,3,1]>(e) {nodes} }}"#
            ))
        };
        // Nothing is left to move where the others stay where they were.
        let squeezed = text("y = ReduceMean<axes = [3], keepdims = 0>(t)");
        assert_eq!(squeezed, "e(x) y(e)");
        let other = text(
            "r = ReduceMean<axes = [1], keepdims = 0>(t) s = Neg(r) y = Transpose<perm = [0,2,1]>(s)",
        );
        assert_eq!(other, "e(x) r~(e) y(r~)");
        let split = behind("p, q = Split<axis = 3>(t) z = Concat<axis = 3>(q, p)", "");
        assert_eq!(split, "e(x) p~,q~(e) y(q~,p~)");
    }

    /// Before opset 13, a Softmax takes all axes from one on for one.
    #[test]
    fn axes_stay_on_their_side_of_a_softmax() {
        let softmax = |axis: i64| {
            form(&format!(
                r#"<ir_version: 8, opset_import: ["" : 12]> g (float[N,6,8,10] x) => (float[N,6,8,10] y)
                {{ e = Exp(x) t = Transpose<perm = [0,2,3,1]>(e) z = Softmax<axis = {axis}>(t) y = Transpose<perm = [0,3,1,2]>(z) }}"#
            ))
        };
        assert_eq!(softmax(1), "e(x) y(e)");
        assert_eq!(softmax(2), "none");
        // The runtime leaves an axis that is not there alone.
        assert_eq!(softmax(99), "none");
        assert_eq!(softmax(i64::MIN), "none");
    }

    /// They are no rows of a Shape any more.
    #[test]
    fn rows_of_moved_sizes_become_one_split() {
        let rows = |measured: &str| {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 15]> g (float[N,6] x) => (float[N,6] y) <int64 i = {{0}}, int64 j = {{1}}>
                {{ e = Exp(x) t = Transpose<perm = [1,0]>(e) s = Shape({measured}) p = Gather(s, i) q = Gather(s, j)
                   m = Mul(p, q) f = Cast<to = 1>(m) z = Mul(t, f) y = Transpose<perm = [1,0]>(z) }}"#
            );
            forms(&text).pop()
        };
        let split = rows("t");
        assert_eq!(split.unwrap(), "e(x) s~(e) m(p,q) f(m) y(e,f) s(s~) p,q(s)");
        let rows = rows("e");
        assert_eq!(rows.unwrap(), "e(x) s(e) p(s,i) q(s,j) m(p,q) f(m) y(e,f)");
    }

    #[test]
    fn a_transpose_that_somebody_keeps_is_not_moved() {
        let two = "a = Relu(t) z = Add(a, t)";
        assert_eq!(behind(two, ""), "e(x) a~(e) y(a~,e)");
        assert_eq!(
            behind(
                "a = Relu(t) k = Size(t) q = Cast<to = 1>(k) z = Mul(a, q)",
                ""
            ),
            "none"
        );
        let output = r#"<ir_version: 8, opset_import: ["" : 15]> g (float[N,6,8] x) => (float[N,8,6] t, float[N,6,8] y)
            { t = Transpose<perm = [0,2,1]>(x) a = Relu(t) y = Transpose<perm = [0,2,1]>(a) }"#;
        assert_eq!(form(output), "none");
    }

    #[test]
    fn the_time_is_linear() {
        let text = |count: usize| {
            let mut nodes = "t0 = Exp(x)".to_owned();
            for node in 1..=count {
                let before = node - 1;
                nodes += &format!(
                    " u{node} = Transpose<perm = [1,0]>(t{before}) r{node} = Relu(u{node}) t{node} = Transpose<perm = [1,0]>(r{node})"
                );
            }
            format!(
                r#"<ir_version: 8, opset_import: ["" : 15]> g (float[4,4] x) => (float[4,4] y) {{ {nodes} y = Neg(t{count}) }}"#
            )
        };
        let started = std::time::Instant::now();
        let left = form(&text(5_000));
        assert_eq!(left.split(' ').count(), 5_002);
        assert!(started.elapsed().as_secs() < 20);
    }

    #[test]
    fn a_reshape_that_moves_axes_of_one_is_a_transposition() {
        let axes = |before: &[u64], behind: &[u64]| {
            as_transposition(before, behind).map(|found| found.axes().to_vec())
        };
        assert_eq!(
            axes(&[1, 512, 4, 1], &[1, 1, 512, 4]),
            Some(vec![0, 3, 1, 2])
        );
        assert_eq!(axes(&[2, 3], &[3, 2]), None);
        assert_eq!(axes(&[2, 3], &[6, 1]), None);
    }
}
