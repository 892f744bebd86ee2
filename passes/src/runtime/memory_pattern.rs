//! The memory pattern: one block in which everything lies whose size is known when a step begins.
//!
//! Source: the runtime's MemPatternPlanner, training build. Tensors are placed in the order in
//! which they are computed, each into the smallest gap that is large enough, else at the end. What
//! is placed already is in the way unless its memory was released or it is dead. A buffer that is
//! handed on counts as used from its first tensor to its last (measured: 222.9 MB for ResNet-18; with
//! gaps between them it would be 186.8). Sizes are rounded up to 256 bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

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

/// The block while it is laid out. Buffers have numbers.
#[derive(Debug, Default)]
pub(crate) struct Pattern {
    /// By buffer that was not released yet: where it begins, and how long it is.
    placed: HashMap<u32, (u64, u64)>,
    /// Where what is free begins, by how long it is, between buffers that are placed.
    gaps: BTreeSet<(u64, u64)>,
    /// By where they begin: how long the same are.
    lengths: BTreeMap<u64, u64>,
    /// The end of the last buffer that is placed.
    end: u64,
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
        let between = self.gaps.range((size, 0)..).next().copied();
        // What is free behind all buffers is a gap as well, and the last of those of its length.
        let behind = self.size - self.end;
        let offset = match between.filter(|&(gap, _)| behind < size || gap <= behind) {
            Some((gap, offset)) => {
                self.fill(offset, gap);
                self.free(offset.saturating_add(size), gap - size);
                offset
            }
            None => {
                let offset = self.end;
                self.end = offset.saturating_add(size);
                self.size = self.size.max(self.end);
                offset
            }
        };
        self.placed.insert(buffer, (offset, size));
        offset.saturating_add(size)
    }

    /// The buffer's memory is free from here on.
    pub(crate) fn release(&mut self, buffer: u32) {
        let Some((offset, size)) = self.placed.remove(&buffer) else {
            return;
        };
        let (mut begin, mut end) = (offset, offset.saturating_add(size));
        if let Some((&before, &gap)) = self.lengths.range(..offset).next_back()
            && before + gap == offset
        {
            self.fill(before, gap);
            begin = before;
        }
        if let Some(&gap) = self.lengths.get(&end) {
            self.fill(end, gap);
            end += gap;
        }
        match end == self.end {
            true => self.end = begin,
            false => self.free(begin, end - begin),
        }
    }

    fn free(&mut self, offset: u64, gap: u64) {
        if gap > 0 {
            self.gaps.insert((gap, offset));
            self.lengths.insert(offset, gap);
        }
    }

    fn fill(&mut self, offset: u64, gap: u64) {
        self.gaps.remove(&(gap, offset));
        self.lengths.remove(&offset);
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
