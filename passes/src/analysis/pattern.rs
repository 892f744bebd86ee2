//! The memory pattern: one block in which everything lies whose size is known when a step begins.
//!
//! Source: the runtime's MemPatternPlanner, training build. Tensors are placed in the order in
//! which they are computed, each into the smallest gap that is large enough, else at the end. What
//! is placed already is in the way unless its memory was released or it is dead. A buffer that is
//! handed on counts as used from its first tensor to its last (measured: 222.9 MB for ResNet-18; with
//! gaps between them it would be 186.8). Sizes are rounded up to 256 bytes.

/// What the runtime rounds sizes to, here and in the arena: bytes.
pub(crate) const ALIGNMENT: u64 = 256;

/// What the runtime keeps of a pattern to the end of the session: the shapes of `known` tensors and the places of
/// `placed` ones, in hash tables. Runtime fact: tables of 2^k - 1 slots, at most 7/8 full, of 73 and
/// 25 bytes a slot (149,456 bytes for 1,321 shapes).
pub(crate) fn tables(known: usize, placed: usize) -> u64 {
    let slots = |entries: usize| {
        let least = (entries as u64).saturating_mul(8).div_ceil(7);
        (least + 1).next_power_of_two().max(8)
    };
    73 * slots(known) + 25 * slots(placed)
}

/// The block while it is laid out. Buffers have numbers.
#[derive(Debug, Default)]
pub(crate) struct Pattern {
    /// Not released yet, by place.
    blocks: Vec<Block>,
    size: u64,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    buffer: u32,
    offset: u64,
    size: u64,
    /// The first and the last step.
    life: (u32, u32),
}

impl Pattern {
    /// Finds a place for a buffer of `size` bytes that is needed from the first step of `life` to
    /// the last. O(blocks).
    pub(crate) fn place(&mut self, buffer: u32, size: u64, life: (u32, u32)) {
        if size == 0 {
            return;
        }
        let size = size.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT);
        let mut end = 0;
        let mut best: Option<(u64, u64)> = None;
        let mut consider = |from: u64, to: u64| {
            let gap = to.saturating_sub(from);
            if to >= from && gap >= size && best.is_none_or(|(waste, _)| gap - size < waste) {
                best = Some((gap - size, from));
            }
        };
        for block in &self.blocks {
            if life.0 <= block.life.1 && block.life.0 <= life.1 {
                consider(end, block.offset);
                end = end.max(block.offset.saturating_add(block.size));
            }
        }
        if end < self.size {
            consider(end, self.size);
        }
        let offset = best.map_or(end, |(_, offset)| offset);
        self.size = self.size.max(offset.saturating_add(size));
        let behind = self
            .blocks
            .iter()
            .position(|b| b.offset > offset || (b.offset == offset && b.size >= size));
        let place = behind.unwrap_or(self.blocks.len());
        let block = Block {
            buffer,
            offset,
            size,
            life,
        };
        self.blocks.insert(place, block);
    }

    /// The buffer's memory is free from here on.
    pub(crate) fn release(&mut self, buffer: u32) {
        if let Some(place) = self.blocks.iter().position(|block| block.buffer == buffer) {
            self.blocks.remove(place);
        }
    }

    /// How large the block has to be: bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_and_gaps_are_used_by_the_best_fit() {
        let mut pattern = Pattern::default();
        // 0..512, 512..768, 768..1792, 1792..2048.
        for (buffer, size) in [(0, 400), (1, 256), (2, 1024), (3, 1)] {
            pattern.place(buffer, size, (0, 9));
        }
        assert_eq!(pattern.size(), 2048);
        pattern.release(0);
        pattern.release(2);
        // Into the gap of 512, not that of 1024.
        pattern.place(4, 300, (1, 9));
        pattern.place(5, 1000, (1, 9));
        assert_eq!(pattern.size(), 2048);
        pattern.place(6, 256, (1, 9));
        assert_eq!(pattern.size(), 2304);
    }

    #[test]
    fn tables_double_when_they_are_seven_eighths_full() {
        // 7 of 8 slots, and 8 of 16.
        assert_eq!(tables(6, 0), 8 * 73 + 8 * 25);
        assert_eq!(tables(8, 0), 16 * 73 + 8 * 25);
        // 1,321 · 8/7 is above 1,024.
        assert_eq!(tables(1321, 0), 2048 * 73 + 8 * 25);
    }

    #[test]
    fn what_lives_at_other_times_is_not_in_the_way() {
        let mut pattern = Pattern::default();
        pattern.place(0, 512, (0, 3));
        pattern.place(1, 512, (4, 5));
        assert_eq!(pattern.size(), 512);
        pattern.place(2, 512, (5, 6));
        assert_eq!(pattern.size(), 1024);
    }
}
