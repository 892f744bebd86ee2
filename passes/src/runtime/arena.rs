//! What the runtime's arena takes from the system for a step: more than is in use.
//!
//! Source: ONNX Runtime's BFCArena. Sizes are rounded up to 256 bytes. An allocation gets the smallest free chunk
//! that is large enough, cut in two if it is twice as large or 128 MB larger. If there is none, the arena takes
//! another region, and gives none back. Of a region it keeps an index of 8 bytes for every 256, taken from the
//! system as well. Checked against a malloc counter with the arena on (`tests/real_runs.rs`).

use std::collections::{BTreeMap, BTreeSet};

use super::allocation::Allocation;
use super::memory_pattern::ALIGNMENT;
use super::skeleton::Skeleton;

/// How large regions are: `arena_extend_strategy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// kNextPowerOfTwo, what a session does unless told otherwise: twice as large as the last one, or as much
    /// larger by twos as is needed.
    PowersOfTwo,
    /// kSameAsRequested: as large as the allocation.
    AsRequested,
}

/// The first region, and the largest that the doubling reaches: bytes.
const FIRST: u64 = 1 << 20;
const LARGEST: u64 = 1 << 30;

/// A chunk is cut if that leaves this much.
const DEAD: u64 = 128 << 20;

/// What the arena reserves for a step that allocates as `allocation` says: bytes.
pub(crate) fn reserved(
    skeleton: &Skeleton,
    order: &[u32],
    allocation: &Allocation,
    growth: Growth,
) -> u64 {
    let mut arena = Arena::new(growth);
    arena.allocate(allocation.pattern.unwrap_or(0));
    let mut ends: Vec<Vec<u64>> = vec![Vec::new(); order.len()];
    let mut begins: Vec<Vec<usize>> = vec![Vec::new(); order.len()];
    for (place, buffer) in allocation.buffers.iter().enumerate() {
        begins[buffer.first].push(place);
    }
    for (step, &node) in order.iter().enumerate() {
        for &place in &begins[step] {
            let buffer = allocation.buffers[place];
            if let Some(address) = arena.allocate(skeleton.size[buffer.owner as usize]) {
                ends[buffer.last].push(address);
            }
        }
        if let Some(address) = arena.allocate(skeleton.workspace[node as usize]) {
            arena.free(address);
        }
        for address in std::mem::take(&mut ends[step]) {
            arena.free(address);
        }
    }
    arena.reserved
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    size: u64,
    free: bool,
}

struct Arena {
    growth: Growth,
    next: u64,
    reserved: u64,
    /// By address. Regions do not touch.
    chunks: BTreeMap<u64, Chunk>,
    /// Size and address.
    free: BTreeSet<(u64, u64)>,
}

impl Arena {
    fn new(growth: Growth) -> Arena {
        Arena {
            growth,
            next: FIRST,
            reserved: 0,
            chunks: BTreeMap::new(),
            free: BTreeSet::new(),
        }
    }

    /// The address; `None` for nothing.
    fn allocate(&mut self, size: u64) -> Option<u64> {
        if size == 0 {
            return None;
        }
        let size = size.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT);
        let found = |arena: &Arena| arena.free.range((size, 0)..).next().copied();
        let (whole, address) = found(self).or_else(|| {
            self.extend(size);
            found(self)
        })?;
        self.free.remove(&(whole, address));
        let rest = whole - size;
        let cut = whole / 2 >= size || rest >= DEAD;
        let taken = if cut { size } else { whole };
        self.chunks.insert(
            address,
            Chunk {
                size: taken,
                free: false,
            },
        );
        if cut {
            self.put_free(address + size, rest);
        }
        Some(address)
    }

    fn free(&mut self, address: u64) {
        let Some(mut size) = self.chunks.remove(&address).map(|chunk| chunk.size) else {
            return;
        };
        let mut start = address;
        if let Some((&behind, &chunk)) = self.chunks.range(address..).next()
            && behind == address + size
            && chunk.free
        {
            self.remove_free(behind, chunk.size);
            size += chunk.size;
        }
        if let Some((&before, &chunk)) = self.chunks.range(..address).next_back()
            && before + chunk.size == address
            && chunk.free
        {
            self.remove_free(before, chunk.size);
            (start, size) = (before, size + chunk.size);
        }
        self.put_free(start, size);
    }

    fn extend(&mut self, size: u64) {
        let region = match self.growth {
            Growth::AsRequested => size,
            Growth::PowersOfTwo => {
                let enough = self.next <= LARGEST && size > self.next;
                while size > self.next && self.next < 1 << 62 {
                    self.next *= 2;
                }
                let region = self.next.max(size);
                if !enough {
                    self.next = (self.next * 2).min(LARGEST);
                }
                region
            }
        };
        let end = self
            .chunks
            .last_key_value()
            .map_or(0, |(&at, chunk)| at.saturating_add(chunk.size));
        // A gap, so that chunks of two regions never become one.
        let start = end.saturating_add(ALIGNMENT);
        if start.checked_add(region).is_some() {
            self.put_free(start, region);
        }
        let index = 8 * region.div_ceil(ALIGNMENT);
        self.reserved = self.reserved.saturating_add(region).saturating_add(index);
    }

    fn put_free(&mut self, address: u64, size: u64) {
        self.chunks.insert(address, Chunk { size, free: true });
        self.free.insert((size, address));
    }

    fn remove_free(&mut self, address: u64, size: u64) {
        self.chunks.remove(&address);
        self.free.remove(&(size, address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// The index takes 1/32 of a region.
    fn with_index(regions: u64) -> u64 {
        regions + regions / 32
    }

    #[test]
    fn regions_double_or_are_what_was_asked_for() {
        let mut arena = Arena::new(Growth::PowersOfTwo);
        arena.allocate(1);
        assert_eq!(arena.reserved, with_index(MIB));
        // More than the rest of the first: the next has twice its size.
        arena.allocate(MIB);
        assert_eq!(arena.reserved, with_index(3 * MIB));
        // 2 MiB doubled until it is enough.
        arena.allocate(9 * MIB);
        assert_eq!(arena.reserved, with_index(19 * MIB));
        let mut arena = Arena::new(Growth::AsRequested);
        arena.allocate(1);
        arena.allocate(MIB);
        assert_eq!(arena.reserved, with_index(256 + MIB));
    }

    #[test]
    fn what_is_free_is_joined_and_the_smallest_that_is_enough_is_taken() {
        let mut arena = Arena::new(Growth::PowersOfTwo);
        let size = 256 * KIB;
        let parts: Vec<u64> = (0..4).filter_map(|_| arena.allocate(size)).collect();
        assert_eq!(arena.reserved, with_index(MIB));
        arena.free(parts[0]);
        arena.free(parts[2]);
        // Half free, but in two parts.
        arena.free(parts[1]);
        assert_eq!(arena.allocate(3 * size), Some(parts[0]));
        assert_eq!(arena.reserved, with_index(MIB));
        arena.allocate(2 * size);
        assert_eq!(arena.reserved, with_index(3 * MIB));
    }

    #[test]
    fn a_chunk_less_than_twice_as_large_is_not_cut() {
        let mut arena = Arena::new(Growth::AsRequested);
        let whole = arena.allocate(1000).unwrap();
        arena.free(whole);
        // 1,024 bytes are free; 768 leave too little, 512 leave a half.
        assert_eq!(arena.allocate(768), Some(whole));
        assert!(arena.free.is_empty());
        arena.free(whole);
        arena.allocate(512);
        assert_eq!(arena.free.len(), 1);
    }
}
