//! Which tensors share memory, and from when to when each buffer is there.
//!
//! Source: ONNX Runtime's allocation planner and execution frame; checked against measured peaks
//! with buffer reuse and memory pattern on and off (`cargo xtask truth`). The planner walks through the
//! executed order with a count of reads for every buffer:
//!
//! - An alias lies in its input's buffer; so does an in-place result whose input nobody else reads
//!   any more.
//! - With `enable_mem_reuse`, any other result takes the buffer of its shape that died last, if
//!   there is one. A dead buffer is one whose reads have all been planned, or that is never read. What
//!   nobody reads takes none (measured).
//! - Else it gets a buffer of its own.
//!
//! A buffer's memory is taken when its first tensor is written, and given back after the *last*
//! read of any of its tensors: in between it is never free, even while it is dead. A buffer that nobody
//! reads is not given back before the end (measured: the mask of a MaxPool).
//!
//! The object that stands for a tensor is given back with the buffer it was made with; those of the other tensors that
//! came to lie there stay to the end of the step (measured: chains of 200 results in place, or of as many aliases).

use std::borrow::Cow;

use super::known_shapes::Shapes;
use super::memory_pattern::{self, Pattern};
use super::release::PatternOf;
use super::settings::RuntimeSettings;
use super::skeleton::Skeleton;

/// What the runtime allocates for one order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allocation {
    /// What is allocated when it is written first and freed after its last read.
    pub(crate) buffers: Vec<Buffer>,
    /// What has a place in the memory pattern's block, likewise.
    pub(crate) inside: Vec<Buffer>,
    /// The memory pattern's block, there from the beginning to the end: bytes.
    pub(crate) pattern: Option<u64>,
    /// By step: where in that block the last of what gets a place there ends. Nothing without a block.
    pub(crate) ends: Vec<u64>,
    /// What the runtime keeps beside the block to find things in it: bytes.
    pub(crate) tables: u64,
    /// How many tensor objects there are at each step.
    pub(crate) objects: Vec<u64>,
}

/// Memory that is there in the steps `first..=last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    /// The tensor that was written to it first.
    pub(crate) owner: u32,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

const NONE: u32 = u32::MAX;

/// Without reuse and pattern.
pub(crate) fn lean(skeleton: &Skeleton, order: &[u32]) -> Allocation {
    MemoryPlanner::new(skeleton, order, None).without_pattern()
}

/// As `settings` say; `shapes` are the skeleton's.
pub(crate) fn allocate(
    skeleton: &Skeleton,
    shapes: &Shapes,
    order: &[u32],
    settings: RuntimeSettings,
) -> Allocation {
    MemoryPlanner::new(skeleton, order, Some(shapes).filter(|_| settings.reuse))
        .with_pattern(Some(shapes).filter(|_| settings.pattern))
}

/// Results that take over the memory of an input, and that input. Aliases are not among them.
pub(crate) fn in_place(skeleton: &Skeleton, order: &[u32]) -> Vec<(u32, u32)> {
    let mut planner = MemoryPlanner::new(skeleton, order, None);
    planner.plan();
    planner.in_place
}

/// A buffer while it is planned.
#[derive(Clone, Copy, Debug)]
struct Planned {
    owner: u32,
    first: u32,
    /// The last read so far.
    read: Option<u32>,
    /// The first write after it.
    written: Option<u32>,
    /// When nobody is to read it any more.
    dead: u32,
}

struct MemoryPlanner<'s> {
    skeleton: &'s Skeleton,
    order: &'s [u32],
    /// With reuse.
    shapes: Option<&'s Shapes>,
    /// By tensor; for the owner of a buffer, of all tensors in it: reads still to come. A result
    /// that was not written yet has one more, for its own node. Graph outputs and what the caller
    /// owns have one more, which never comes.
    uses: Vec<u32>,
    /// By tensor.
    owner: Vec<u32>,
    /// By tensor, for owners: its place in `planned`.
    place: Vec<u32>,
    planned: Vec<Planned>,
    /// By step: tensors that came to lie in a buffer made before.
    joined: Vec<u32>,
    in_place: Vec<(u32, u32)>,
    /// By class: the dead buffer (its owner) that died last; and by owner the one before it.
    dead: (Vec<u32>, Vec<u32>),
}

impl<'s> MemoryPlanner<'s> {
    fn new(
        skeleton: &'s Skeleton,
        order: &'s [u32],
        shapes: Option<&'s Shapes>,
    ) -> MemoryPlanner<'s> {
        let tensors = skeleton.size.len();
        let mut uses: Vec<u32> = (0..tensors)
            .map(|t| u32::from(skeleton.output[t]) + u32::from(skeleton.owned[t]))
            .collect();
        for node in 0..skeleton.len() {
            let (reads, writes) = (skeleton.reads.get(node), skeleton.writes.get(node));
            for &tensor in reads.iter().chain(writes) {
                uses[tensor as usize] += 1;
            }
        }
        MemoryPlanner {
            skeleton,
            order,
            shapes,
            uses,
            owner: (0..tensors as u32).collect(),
            place: vec![NONE; tensors],
            planned: Vec::new(),
            joined: vec![0; order.len()],
            in_place: Vec::new(),
            dead: match shapes {
                Some(shapes) => (vec![NONE; shapes.classes], vec![NONE; tensors]),
                None => (Vec::new(), Vec::new()),
            },
        }
    }

    fn with_pattern(mut self, shapes: Option<&Shapes>) -> Allocation {
        let Some(shapes) = shapes else {
            return self.without_pattern();
        };
        self.plan();
        self.laid_out(shapes)
    }

    fn without_pattern(mut self) -> Allocation {
        self.plan();
        Allocation {
            buffers: self.buffers(|_| true),
            inside: Vec::new(),
            pattern: None,
            ends: Vec::new(),
            tables: 0,
            objects: self.objects(),
        }
    }

    fn plan(&mut self) {
        for (step, &node) in self.order.iter().enumerate() {
            let (step, node) = (step as u32, node as usize);
            for &tensor in self.skeleton.writes.get(node) {
                self.write(step, node, tensor);
            }
            for &tensor in self.skeleton.reads.get(node) {
                self.read(step, tensor);
            }
            for &tensor in self.skeleton.writes.get(node) {
                self.count_down(step, tensor);
            }
        }
    }

    fn write(&mut self, step: u32, node: usize, tensor: u32) {
        let skeleton = self.skeleton;
        let shared = skeleton.shares.get(node).iter().find(|share| {
            // A graph output always gets memory of its own, even from Identity.
            share.written == tensor
                && !skeleton.output[tensor as usize]
                && (share.always || self.uses[self.owner[share.read as usize] as usize] == 1)
        });
        if let Some(share) = shared {
            if !share.always {
                self.in_place.push((tensor, share.read));
            }
            self.join(step, tensor, self.owner[share.read as usize]);
        } else if let Some(dead) = self.take_dead(tensor) {
            self.join(step, tensor, dead);
        } else {
            self.place[tensor as usize] = self.planned.len() as u32;
            self.planned.push(Planned {
                owner: tensor,
                first: step,
                read: None,
                written: None,
                dead: NONE,
            });
        }
    }

    fn take_dead(&mut self, tensor: u32) -> Option<u32> {
        let class = self.shapes?.class[tensor as usize]?;
        // Its own node's is the only use of what nobody reads, which always gets new memory (measured).
        let unread = self.uses[tensor as usize] == 1;
        if unread || self.skeleton.output[tensor as usize] {
            return None;
        }
        let (last, before) = &mut self.dead;
        let dead = last[class as usize];
        if dead == NONE {
            return None;
        }
        last[class as usize] = before[dead as usize];
        Some(dead)
    }

    fn join(&mut self, step: u32, tensor: u32, owner: u32) {
        self.owner[tensor as usize] = owner;
        self.joined[step as usize] += 1;
        self.uses[owner as usize] += self.uses[tensor as usize];
        let place = self.place[owner as usize];
        if place != NONE {
            let planned = &mut self.planned[place as usize];
            planned.written = planned.written.or(Some(step));
        }
    }

    fn read(&mut self, step: u32, tensor: u32) {
        let place = self.place[self.owner[tensor as usize] as usize];
        if place != NONE {
            let planned = &mut self.planned[place as usize];
            (planned.read, planned.written) = (Some(step), None);
        }
        self.count_down(step, tensor);
    }

    fn count_down(&mut self, step: u32, tensor: u32) {
        let owner = self.owner[tensor as usize];
        let uses = &mut self.uses[owner as usize];
        if *uses == 0 {
            return;
        }
        *uses -= 1;
        let place = self.place[owner as usize];
        if *uses > 0 || place == NONE {
            return;
        }
        self.planned[place as usize].dead = step;
        let class = self.shapes.and_then(|shapes| shapes.class[owner as usize]);
        if let Some(class) = class {
            let (last, before) = &mut self.dead;
            before[owner as usize] = std::mem::replace(&mut last[class as usize], owner);
        }
    }

    fn objects(&self) -> Vec<u64> {
        let (mut made, mut gone) = (vec![0; self.order.len()], vec![0; self.order.len()]);
        for planned in &self.planned {
            made[planned.first as usize] += 1;
            let read = planned
                .read
                .filter(|_| !self.skeleton.output[planned.owner as usize]);
            if let Some(read) = read {
                gone[read as usize] += 1;
            }
        }
        let mut alive = 0u64;
        let steps = made.iter().zip(&self.joined).zip(&gone);
        steps
            .map(|((made, joined), gone)| {
                let now = alive + made + u64::from(*joined);
                alive = now - gone;
                now
            })
            .collect()
    }

    /// The buffers that `wanted` owners have.
    fn buffers(&self, wanted: impl Fn(u32) -> bool) -> Vec<Buffer> {
        let end = self.order.len().saturating_sub(1);
        let mut buffers = Vec::with_capacity(self.planned.len());
        for planned in self.planned.iter().filter(|planned| wanted(planned.owner)) {
            let stays = self.skeleton.output[planned.owner as usize];
            let last = planned.read.filter(|_| !stays).map_or(end, |s| s as usize);
            buffers.push(Buffer {
                owner: planned.owner,
                first: planned.first as usize,
                last,
            });
            // Given back after the last read, and needed again for a result that nobody reads.
            let again = planned.written.filter(|_| planned.read.is_some() && !stays);
            if let Some(again) = again {
                buffers.push(Buffer {
                    owner: planned.owner,
                    first: again as usize,
                    last: end,
                });
            }
        }
        buffers
    }

    /// What is resolved lies in the pattern, the rest beside it, and so does what turns out to have another size than its place in the
    /// pattern (measured: a file that declares a batch of 2,048 took 34.9 MB for one of 256, and 4.2 if it declares none).
    fn laid_out(&self, shapes: &Shapes) -> Allocation {
        let mut is_known = Cow::Borrowed(&shapes.resolved);
        for &tensor in &self.skeleton.sized {
            is_known.to_mut()[tensor as usize] = true;
        }
        let has_place = |owner: u32| {
            let owner = owner as usize;
            is_known[owner] && !self.skeleton.output[owner]
        };
        let inside = |owner: u32| has_place(owner) && !shapes.mistaken.contains_key(&owner);
        // By step: the first that is released then, and the next one by place. What nobody reads stays to the end.
        let mut released = vec![NONE; self.order.len()];
        let mut released_next = vec![NONE; self.planned.len()];
        for (place, planned) in self.planned.iter().enumerate().rev() {
            if let Some(read) = planned.read.filter(|_| has_place(planned.owner)) {
                let first = &mut released[read as usize];
                released_next[place] = std::mem::replace(first, place as u32);
            }
        }
        let writes = (0..self.skeleton.len()).flat_map(|node| self.skeleton.writes.get(node));
        let known = writes.filter(|&&tensor| is_known[tensor as usize]).count();
        let placed = self
            .planned
            .iter()
            .filter(|planned| has_place(planned.owner))
            .count();
        let mut pattern = Pattern::default();
        let mut ends = vec![0; self.order.len()];
        let mut next = 0;
        for (step, &released) in released.iter().enumerate() {
            while let Some(planned) = self.planned.get(next).filter(|p| p.first as usize == step) {
                if has_place(planned.owner) {
                    let size = self.skeleton.size[planned.owner as usize];
                    let size = shapes.mistaken.get(&planned.owner).copied().unwrap_or(size);
                    ends[step] = pattern.place(next as u32, size).max(ends[step]);
                }
                next += 1;
            }
            let mut place = released;
            while place != NONE {
                pattern.release(place);
                place = released_next[place as usize];
            }
        }
        Allocation {
            buffers: self.buffers(|owner| !inside(owner)),
            inside: self.buffers(inside),
            pattern: Some(pattern.size()),
            ends,
            tables: match self.skeleton.release.pattern {
                PatternOf::ShapesFed => memory_pattern::tables(known, placed),
                // Made at the end of the first step, which has no block.
                PatternOf::FirstStep => 0,
            },
            objects: self.objects(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cost::Cost;
    use crate::graph::Graph;
    use crate::operators::Provider;
    use crate::runtime::TRAINING;
    use crate::runtime::executions::Executions;
    use crate::runtime::settings::RuntimeSettings;

    const LEAN: RuntimeSettings = RuntimeSettings::LEAN;
    const REUSE: RuntimeSettings = RuntimeSettings {
        reuse: true,
        ..LEAN
    };

    fn profile(text: &str, settings: RuntimeSettings) -> Vec<u64> {
        let graph = Graph::parse(text).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let all = Executions::of(&graph, &TRAINING, Provider::Cpu, &costs).simulate(settings);
        all[0].1.profile.iter().map(|bytes| bytes.0).collect()
    }

    /// x and every other tensor of ten takes 40 bytes, s and t take 20.
    const GAP: &str = "g (float[10] x) => ()
        <float[10] a, float[5] s, float[5] t, float[10] b, float[10] c>
        { a = Exp(x) s = F(a) t = F(s) b = F(t) c = F(b) }";

    #[test]
    fn a_dead_buffer_that_is_used_again_is_not_free_in_between() {
        // a; a s; s t; t b; b c.
        assert_eq!(profile(GAP, LEAN), [80, 100, 80, 100, 120]);
        // b lies in a, which therefore stays: a; a s; a s t; a t; a c.
        assert_eq!(profile(GAP, REUSE), [80, 100, 120, 100, 120]);
    }

    #[test]
    fn other_shapes_and_other_names_are_not_used_again() {
        let apart = GAP.replace("float[10] b", "float[2,5] b");
        assert_eq!(profile(&apart, REUSE), profile(&apart, LEAN));
        let wider = GAP.replace("float[10] b", "double[10] b");
        assert_eq!(profile(&wider, REUSE), profile(&wider, LEAN));
    }

    #[test]
    fn the_buffer_that_died_last_is_used_first() {
        // p and q die at r and at s; u takes q's buffer, so p is free after r.
        let text = "g (float[10] x) => ()
            <float[10] p, float[10] q, float[5] r, float[5] s, float[5] t, float[10] u, float[5] v>
            { p = Exp(x) q = Exp(p) r = F(p, q) s = F(q, r) t = F(s) u = F(t) v = F(u) }";
        // p; p q; p q r; q r s; q s t; u t; u v.
        assert_eq!(profile(text, REUSE), [80, 120, 140, 120, 120, 100, 100]);
    }

    #[test]
    fn a_result_that_nobody_reads_is_used_again() {
        let text = "g (float[10] x) => ()
            <float[10] unread, float[5] k, float[10] b, float[5] c>
            { unread, k = F(x) b = F(k) c = F(b) }";
        // unread k; unread k b; unread b c.
        assert_eq!(profile(text, LEAN), [100, 140, 140]);
        // b lies in the unread result: that and k; b k; b c.
        assert_eq!(profile(text, REUSE), [100, 100, 100]);
    }

    #[test]
    fn a_result_that_nobody_reads_takes_no_dead_buffer() {
        let text = "g (float[10] x) => ()
            <float[10] a, float[5] k, float[10] unread, float[5] c>
            { a = Exp(x) k = F(a) unread, c = F(k) }";
        // a; a k; k unread c.
        assert_eq!(profile(text, REUSE), [80, 100, 120]);
    }

    #[test]
    fn what_nobody_reads_has_its_place_in_the_block_to_the_end() {
        let text = "g (float[10] x) => ()
            <float[10] unread, float[10] a, float[5] k, float[10] b>
            { unread, a = F(x) k = F(a) b = F(k) c = Size(b) }";
        let pattern = RuntimeSettings {
            pattern: true,
            ..LEAN
        };
        // Blocks of 256 bytes for unread, a (then b) and k.
        assert_eq!(profile(text, pattern)[0], 40 + 768);
    }

    #[test]
    fn what_has_a_size_beforehand_lies_in_one_block_for_the_whole_step() {
        // Blocks of 256 bytes: a, b and c share one at different times, s and t have the other two.
        let pattern = RuntimeSettings {
            pattern: true,
            ..LEAN
        };
        assert_eq!(profile(GAP, pattern), [40 + 512; 5]);
        // With reuse, a's buffer is in use from a to the end of b: c cannot share it.
        assert_eq!(profile(GAP, RuntimeSettings::DEFAULT), [40 + 768; 5]);
    }

    #[test]
    fn a_symbol_that_no_input_has_keeps_a_tensor_out_of_the_block() {
        let named = GAP.replace("float[10] b", "float[n] b");
        let unknown_size = profile(&named, RuntimeSettings::DEFAULT);
        // a, s, t and c: two blocks at a time at most. The size of b is not known here: nothing.
        assert_eq!(unknown_size, [40 + 512; 5]);
    }
}
