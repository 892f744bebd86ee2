//! The memory of every group, under additions to ranges, with Φ and the largest need kept up to
//! date: Φ = Σ over groups of (excess / budget)^p, excess = what a group needs above the budget.
//!
//! Groups lie in blocks of about √n. An addition to a whole block is one number; the block's groups
//! are looked at only if some are above the budget and others are not, or p makes Φ uneven. For a
//! range of r groups this costs O(r / √n + √n).

use super::problem::Step;

/// How strongly memory above the budget counts in Φ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Exponent {
    /// p = 0.5
    Half,
    /// p = 1
    One,
    /// p = 2
    Two,
}

/// The fewest groups in a block: so many are looked at in no time.
const SMALLEST_BLOCK: usize = 32;

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Belongs to the need of each of its groups.
    added: f64,
    /// The largest need.
    largest: f64,
    /// The smallest need.
    smallest: f64,
    /// Its part of Φ.
    phi: f64,
    /// How many groups are above the budget.
    over: u32,
    /// Are the figures above out of date?
    stale: bool,
}

/// See the module's documentation.
pub(crate) struct Profile {
    /// By group, without what was added to its whole block. Whole numbers: sums are exact.
    needs: Vec<f64>,
    /// Groups in a block.
    size: usize,
    blocks: Vec<Block>,
    stale: Vec<u32>,
    budget: f64,
    scale: f64,
    exponent: Exponent,
    /// Φ; for p = 1 in bytes, so that it is exact, otherwise as it is defined.
    phi: f64,
    over: i64,
}

impl Profile {
    /// Every group needs nothing.
    pub(crate) fn new(groups: usize, budget: f64, exponent: Exponent) -> Profile {
        let size = groups.isqrt().next_power_of_two().max(SMALLEST_BLOCK);
        let mut profile = Profile {
            needs: vec![0.0; groups],
            size,
            blocks: vec![Block::default(); groups.div_ceil(size)],
            stale: Vec::new(),
            budget: 0.0,
            scale: 0.0,
            exponent,
            phi: 0.0,
            over: 0,
        };
        profile.aim(budget, exponent);
        profile
    }

    /// Counts from another budget.
    pub(crate) fn aim(&mut self, budget: f64, exponent: Exponent) {
        // Needs are whole numbers.
        (self.budget, self.exponent) = (budget.floor(), exponent);
        self.scale = 1.0 / self.budget.max(1.0);
        (self.phi, self.over) = (0.0, 0);
        self.stale.clear();
        for index in 0..self.blocks.len() {
            self.blocks[index].phi = 0.0;
            self.blocks[index].over = 0;
            self.refresh(index);
        }
    }

    pub(crate) fn groups(&self) -> usize {
        self.needs.len()
    }

    pub(crate) fn budget(&self) -> f64 {
        self.budget
    }

    pub(crate) fn exponent(&self) -> Exponent {
        self.exponent
    }

    /// Φ, up to rounding. Needs [`Profile::settle`] after additions.
    pub(crate) fn phi(&self) -> f64 {
        match self.exponent {
            Exponent::One => self.phi * self.scale,
            Exponent::Half | Exponent::Two => self.phi,
        }
    }

    /// What Φ is made of; see [`Profile::restore_phi`].
    pub(crate) fn raw_phi(&self) -> f64 {
        self.phi
    }

    /// Puts back a Φ that rounding has moved.
    pub(crate) fn restore_phi(&mut self, raw: f64) {
        self.phi = raw;
    }

    /// How many groups are above the budget. Needs [`Profile::settle`] after additions.
    pub(crate) fn over(&self) -> i64 {
        self.over
    }

    /// What a group needs.
    pub(crate) fn need(&self, group: Step) -> f64 {
        let group = group as usize;
        self.needs[group] + self.blocks[group / self.size].added
    }

    /// What a group that needs this much adds to Φ.
    pub(crate) fn weight(&self, need: f64) -> f64 {
        let excess = (need - self.budget).max(0.0) * self.scale;
        match self.exponent {
            Exponent::Half => excess.sqrt(),
            Exponent::One => excess,
            Exponent::Two => excess * excess,
        }
    }

    /// The largest need in `groups`; 0 if there are none. Needs [`Profile::settle`].
    pub(crate) fn largest(&self, groups: std::ops::Range<usize>) -> f64 {
        let mut largest: f64 = 0.0;
        let mut group = groups.start;
        while group < groups.end {
            let index = group / self.size;
            let block = &self.blocks[index];
            let first = index * self.size;
            let end = (first + self.size).min(groups.end);
            if group == first && (end - first == self.size || end == self.needs.len()) {
                largest = largest.max(block.largest);
            } else {
                largest = largest.max(self::largest(&self.needs[group..end]) + block.added);
            }
            group = end;
        }
        largest
    }

    /// One group needs so much more.
    pub(crate) fn add_to(&mut self, group: Step, more: f64) {
        self.needs[group as usize] += more;
        self.mark(group as usize / self.size);
    }

    /// All `groups` need so much more.
    pub(crate) fn add(&mut self, groups: std::ops::Range<usize>, more: f64) {
        let mut group = groups.start;
        while group < groups.end {
            let index = group / self.size;
            let first = index * self.size;
            let end = (first + self.size).min(groups.end);
            if group == first && (end - first == self.size || end == self.needs.len()) {
                self.add_to_block(index, more);
            } else {
                for need in &mut self.needs[group..end] {
                    *need += more;
                }
                self.mark(index);
            }
            group = end;
        }
    }

    fn add_to_block(&mut self, index: usize, more: f64) {
        let block = &mut self.blocks[index];
        block.added += more;
        if block.stale {
            return;
        }
        let (largest, smallest) = (block.largest + more, block.smallest + more);
        if largest.max(block.largest) <= self.budget {
            (block.largest, block.smallest) = (largest, smallest);
        } else if self.exponent == Exponent::One && smallest.min(block.smallest) > self.budget {
            // All of them stay above the budget.
            let change = more * f64::from(block.over);
            block.phi += change;
            self.phi += change;
            (block.largest, block.smallest) = (largest, smallest);
        } else {
            self.mark(index);
        }
    }

    fn mark(&mut self, index: usize) {
        if !std::mem::replace(&mut self.blocks[index].stale, true) {
            self.stale.push(index as u32);
        }
    }

    /// Brings Φ and all that is derived up to date with the additions.
    pub(crate) fn settle(&mut self) {
        while let Some(index) = self.stale.pop() {
            self.refresh(index as usize);
        }
    }

    fn refresh(&mut self, index: usize) {
        let first = index * self.size;
        let needs = &self.needs[first..(first + self.size).min(self.needs.len())];
        let block = &mut self.blocks[index];
        let (added, budget) = (block.added, self.budget);
        block.largest = largest(needs) + added;
        block.smallest = smallest(needs) + added;
        let (mut phi, mut over) = (0.0, 0);
        if block.largest > budget {
            let limit = budget - added;
            over = needs.iter().map(|&need| u32::from(need > limit)).sum();
            let scale = self.scale;
            let excess = |need: f64| if need > limit { need - limit } else { 0.0 };
            phi = match self.exponent {
                Exponent::Half => sum(needs, |need| (excess(need) * scale).sqrt()),
                Exponent::One => sum(needs, excess),
                Exponent::Two => sum(needs, |need| (excess(need) * scale).powi(2)),
            };
        }
        self.phi += phi - block.phi;
        self.over += i64::from(over) - i64::from(block.over);
        (block.phi, block.over, block.stale) = (phi, over, false);
    }
}

/// So many sums side by side are one instruction each.
const LANES: usize = 4;

fn largest(needs: &[f64]) -> f64 {
    let mut lanes = [f64::MIN; LANES];
    let (chunks, rest) = needs.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &need) in lanes.iter_mut().zip(chunk) {
            *lane = if need > *lane { need } else { *lane };
        }
    }
    rest.iter().chain(&lanes).copied().fold(f64::MIN, f64::max)
}

fn smallest(needs: &[f64]) -> f64 {
    let mut lanes = [f64::MAX; LANES];
    let (chunks, rest) = needs.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &need) in lanes.iter_mut().zip(chunk) {
            *lane = if need < *lane { need } else { *lane };
        }
    }
    rest.iter().chain(&lanes).copied().fold(f64::MAX, f64::min)
}

fn sum(needs: &[f64], of: impl Fn(f64) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = needs.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &need) in lanes.iter_mut().zip(chunk) {
            *lane += of(need);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|&need| of(need)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn additions_are_those_of_a_plain_list() {
        let mut random = Random::new(3);
        for groups in [1, 31, 32, 33, 200, 5000] {
            for exponent in [Exponent::Half, Exponent::One, Exponent::Two] {
                let mut profile = Profile::new(groups, 50.0, exponent);
                let mut plain = vec![0.0; groups];
                for round in 0..200 {
                    let (a, b) = (random.below(groups), random.below(groups + 1));
                    let range = a.min(b)..a.max(b);
                    let more = random.below(60) as f64 - 20.0;
                    profile.add(range.clone(), more);
                    plain[range.clone()]
                        .iter_mut()
                        .for_each(|need| *need += more);
                    profile.add_to(a as Step, 3.0);
                    plain[a] += 3.0;
                    if round % 50 == 49 {
                        profile.aim(round as f64, exponent);
                    }
                    profile.settle();
                    let phi: f64 = plain.iter().map(|&need| profile.weight(need)).sum();
                    assert!((profile.phi() - phi).abs() <= 1e-9 * phi.max(1.0));
                    let over = plain
                        .iter()
                        .filter(|&&need| need > profile.budget())
                        .count();
                    assert_eq!(profile.over(), over as i64);
                    assert_eq!(profile.need(a as Step), plain[a]);
                    let largest = plain[range.clone()].iter().copied().fold(0.0, f64::max);
                    assert_eq!(profile.largest(range), largest);
                }
            }
        }
    }
}
