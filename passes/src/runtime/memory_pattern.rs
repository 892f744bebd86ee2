//! The memory pattern: one block in which everything lies whose size is known when a step begins.
//!
//! Source: the runtime's MemPatternPlanner, training build. Tensors are placed in the order in
//! which they are computed, each into the smallest gap that is large enough, else at the end. What
//! is placed already is in the way unless its memory was released or it is dead. A buffer that is
//! handed on counts as used from its first tensor to its last (measured: 222.9 MB for ResNet-18; with
//! gaps between them it would be 186.8). Sizes are rounded up to 256 bytes.

use std::collections::BTreeSet;

/// What the runtime rounds sizes to, here and in the arena: bytes.
pub(crate) const ALIGNMENT: u64 = 256;

/// What the runtime keeps of a pattern to the end of the session: the shapes of `known` tensors and the places of
/// `placed` ones, in hash tables. Runtime fact: tables of 2^k - 1 slots, at most 7/8 full, of 73 and
/// 25 bytes a slot (149,456 bytes for 1,321 shapes).
pub(crate) fn tables(known: usize, placed: usize) -> u64 {
    let slots = |entries: usize| {
        let least = (entries as u64).saturating_mul(8).div_ceil(7);
        least.next_power_of_two().max(8)
    };
    73 * slots(known) + 25 * slots(placed)
}

/// What is no place.
const NONE: u32 = u32::MAX;

/// A part of the block: a buffer that is placed, or what is free between two.
#[derive(Clone, Copy, Debug)]
struct BlockPart {
    begin: u64,
    end: u64,
    is_free: bool,
    /// The part that ends where this one begins, and the one that begins where it ends.
    before: u32,
    behind: u32,
}

/// The block while it is laid out. Buffers have numbers, of which few are left out.
#[derive(Debug, Default)]
pub(crate) struct Pattern {
    /// Those that there were. Behind the last that there is nothing is placed.
    parts: Vec<BlockPart>,
    /// By buffer: its part, until it is released.
    placed: Vec<u32>,
    /// What is free between buffers that are placed: how long it is, where it begins, and which part it is.
    gaps: BTreeSet<(u64, u64, u32)>,
    /// The last part, if there is any.
    last: Option<u32>,
    size: u64,
}

impl Pattern {
    /// Finds a place for a buffer of `size` bytes that is needed until it is released; where it ends. O(log of what is
    /// placed).
    pub(crate) fn place(&mut self, buffer: u32, size: u64) -> u64 {
        if size == 0 {
            return 0;
        }
        let size = size.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT);
        let between = self.gaps.range((size, 0, 0)..).next().copied();
        // What is free behind all buffers is a gap as well, and the last of those of its length.
        let (end, last) = (self.end(), self.last.unwrap_or(NONE));
        let behind = self.size - end;
        let part = match between.filter(|&(gap, ..)| behind < size || gap <= behind) {
            Some(gap) => {
                let part = self.fill(gap);
                let BlockPart { begin, end, .. } = self.parts[part as usize];
                if end - begin > size {
                    self.parts[part as usize].end = begin + size;
                    let rest = self.add(begin + size, end, part);
                    self.free(rest);
                }
                part
            }
            None => {
                let end_of_new = end.saturating_add(size);
                self.size = self.size.max(end_of_new);
                self.add(end, end_of_new, last)
            }
        };
        if self.placed.len() <= buffer as usize {
            self.placed.resize(buffer as usize + 1, NONE);
        }
        self.placed[buffer as usize] = part;
        self.parts[part as usize].end
    }

    /// The buffer's memory is free from here on.
    pub(crate) fn release(&mut self, buffer: u32) {
        let placed = self.placed.get_mut(buffer as usize);
        let part = placed.map_or(NONE, |part| std::mem::replace(part, NONE));
        let Some(&BlockPart { before, behind, .. }) = self.parts.get(part as usize) else {
            return;
        };
        for beside in [before, behind] {
            if let Some(&BlockPart {
                begin,
                end,
                is_free,
                ..
            }) = self.parts.get(beside as usize)
                && is_free
            {
                self.fill((end - begin, begin, beside));
                self.unlink(beside);
                let part = &mut self.parts[part as usize];
                (part.begin, part.end) = (part.begin.min(begin), part.end.max(end));
            }
        }
        match self.last == Some(part) {
            true => self.unlink(part),
            false => self.free(part),
        }
    }

    /// The end of the last buffer that is placed.
    fn end(&self) -> u64 {
        self.last.map_or(0, |last| self.parts[last as usize].end)
    }

    /// A new part behind another one.
    fn add(&mut self, begin: u64, end: u64, before: u32) -> u32 {
        let part = self.parts.len() as u32;
        let behind = match self.parts.get_mut(before as usize) {
            Some(before) => std::mem::replace(&mut before.behind, part),
            None => NONE,
        };
        match self.parts.get_mut(behind as usize) {
            Some(behind) => behind.before = part,
            None => self.last = Some(part),
        }
        self.parts.push(BlockPart {
            begin,
            end,
            is_free: false,
            before,
            behind,
        });
        part
    }

    fn unlink(&mut self, part: u32) {
        let BlockPart { before, behind, .. } = self.parts[part as usize];
        if let Some(before) = self.parts.get_mut(before as usize) {
            before.behind = behind;
        }
        match self.parts.get_mut(behind as usize) {
            Some(behind) => behind.before = before,
            None => self.last = Some(before).filter(|&before| before != NONE),
        }
    }

    fn free(&mut self, part: u32) {
        let BlockPart { begin, end, .. } = self.parts[part as usize];
        self.parts[part as usize].is_free = true;
        self.gaps.insert((end - begin, begin, part));
    }

    fn fill(&mut self, gap: (u64, u64, u32)) -> u32 {
        self.gaps.remove(&gap);
        self.parts[gap.2 as usize].is_free = false;
        gap.2
    }

    /// How large the block has to be: bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SplitMix64;

    #[test]
    fn sizes_are_rounded_up_and_gaps_are_used_by_the_best_fit() {
        let mut pattern = Pattern::default();
        // 0..512, 512..768, 768..1792, 1792..2048.
        for (buffer, size) in [(0, 400), (1, 256), (2, 1024), (3, 1)] {
            pattern.place(buffer, size);
        }
        assert_eq!(pattern.size(), 2048);
        pattern.release(0);
        pattern.release(2);
        // Into the gap of 512, not that of 1024.
        pattern.place(4, 300);
        pattern.place(5, 1000);
        assert_eq!(pattern.size(), 2048);
        pattern.place(6, 256);
        assert_eq!(pattern.size(), 2304);
    }

    #[test]
    fn tables_double_when_they_are_seven_eighths_full() {
        // 7 of 8 slots, 8 of 16, 28 of 32 and 29 of 64 (measured).
        assert_eq!(tables(7, 0), 8 * 73 + 8 * 25);
        assert_eq!(tables(8, 0), 16 * 73 + 8 * 25);
        assert_eq!(tables(28, 0), 32 * 73 + 8 * 25);
        assert_eq!(tables(29, 0), 64 * 73 + 8 * 25);
        // 1,321 · 8/7 is above 1,024.
        assert_eq!(tables(1321, 0), 2048 * 73 + 8 * 25);
    }

    /// As the runtime does it: all that is placed is looked at, by where it begins.
    #[derive(Default)]
    struct Scanned {
        blocks: Vec<(u64, u64, u32)>,
        size: u64,
    }

    impl Scanned {
        fn place(&mut self, buffer: u32, size: u64) {
            let size = size.div_ceil(ALIGNMENT) * ALIGNMENT;
            let mut end = 0;
            let mut best: Option<(u64, u64)> = None;
            let all = self
                .blocks
                .iter()
                .map(|&(offset, length, _)| (offset, length));
            for (offset, length) in all.chain([(self.size, 0)]) {
                let waste = offset.checked_sub(end + size);
                if let Some(waste) = waste.filter(|&waste| best.is_none_or(|best| waste < best.0)) {
                    best = Some((waste, end));
                }
                end = end.max(offset + length);
            }
            let behind = self
                .blocks
                .last()
                .map_or(0, |&(offset, length, _)| offset + length);
            let offset = best.map_or(behind, |(_, offset)| offset);
            self.size = self.size.max(offset + size);
            self.blocks.push((offset, size, buffer));
            self.blocks.sort_unstable();
        }
    }

    #[test]
    fn gaps_are_the_same_as_those_between_all_that_is_placed() {
        let mut random = SplitMix64::new(7);
        for _ in 0..200 {
            let (mut pattern, mut scanned) = (Pattern::default(), Scanned::default());
            for buffer in 0..60 {
                let size = 1 + 256 * random.below(8) as u64;
                pattern.place(buffer, size);
                scanned.place(buffer, size);
                assert_eq!(pattern.size(), scanned.size);
                while random.below(5) < 2 && !scanned.blocks.is_empty() {
                    let place = random.below(scanned.blocks.len());
                    pattern.release(scanned.blocks.remove(place).2);
                }
            }
        }
    }
}
