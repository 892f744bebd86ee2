//! The nodes and tensors that are made while Transposes are moved, and which of them stay.

use std::collections::HashMap;

use crate::graph::Dimension;
use crate::runtime::fused_graph::{FusedNode, NOBODY, Nodes};
use crate::runtime::fusing::Fusing;
use crate::runtime::moving::{Added, AxisSet, KnownDimensions, Moving};
use crate::runtime::skeleton::Share;
use crate::runtime::transposes::Transposition;

impl Nodes<'_> {
    pub(super) fn known(&self, tensor: u32) -> KnownDimensions {
        self.shape(tensor).map(<[Dimension]>::to_vec)
    }

    pub(super) fn add_tensor(
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
        let shares = match moving {
            Moving::Squeezes(_) | Moving::Unsqueezes(_) => vec![Share::alias(read, written)],
            _ => Vec::new(),
        };
        self.add_reader(read, self.nodes.len() as u32);
        self.add(FusedNode {
            shares: shares.into(),
            fusing,
            moving,
            ..FusedNode::of_one(position, read, written)
        });
    }

    pub(super) fn add_gather(&mut self, position: u32, read: u32, written: u32) {
        self.add_made(position, read, written, Fusing::No, Moving::No);
    }

    /// Adds a Squeeze or an Unsqueeze of the first axes.
    fn add_axes(&mut self, position: u32, read: u32, written: u32, moving: Moving) {
        self.add_made(position, read, written, Fusing::No, moving);
    }

    pub(super) fn add_transpose(
        &mut self,
        position: u32,
        read: u32,
        written: u32,
        by: Transposition,
    ) {
        let index = self.nodes.len() as u32;
        let fusing = Fusing::Transposes(by);
        self.add_made(position, read, written, fusing, Moving::Transpose);
        if let Some(moved) = &mut self.moved {
            let key = (read, by.axes().to_vec());
            moved.transposes.insert(key, index);
        }
    }

    /// The tensor with `more` axes in front.
    pub(super) fn with_axes(&mut self, position: u32, tensor: u32, more: usize) -> u32 {
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
    pub(super) fn turned(&mut self, position: u32, tensor: u32, by: Transposition) -> u32 {
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
    pub(super) fn take_unread_made(&mut self, tensors: &[u32]) {
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
    pub(super) fn fold_what_was_made(&mut self) {
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
    pub(super) fn merge_what_was_made(&mut self) {
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
}
