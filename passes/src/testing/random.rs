//! Random numbers that are the same everywhere.

/// Where random inputs come from: a generator, or a tape of numbers that can be made smaller.
pub trait Draw {
    /// The next 64 bits.
    fn bits(&mut self) -> u64;

    /// A number below `end`; 0 where that is 0. Smaller bits give a smaller number.
    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.bits()) * end as u128) >> 64) as usize
    }

    /// True once in `n` times on average, and never of zero bits, so that what is rare is what shrinking takes away.
    fn one_in(&mut self, n: usize) -> bool {
        n > 0 && self.below(n) == n - 1
    }

    /// One of `items`, which must not be empty; the first is the simplest.
    fn pick<T: Clone>(&mut self, items: &[T]) -> T
    where
        Self: Sized,
    {
        items[self.below(items.len())].clone()
    }
}

impl Draw for SplitMix64 {
    fn bits(&mut self) -> u64 {
        SplitMix64::bits(self)
    }
}

/// The generator of Steele, Lea and Flood, *Fast Splittable Pseudorandom Number Generators*
/// (OOPSLA 2014), with the finalizer that Vigna's public-domain version uses.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A stream of its own for every seed.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which must not be 0. Nearly uniform: off by at most `end` / 2^64.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.bits()) * end as u128) >> 64) as usize
    }

    /// True once in `n` times on average.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of `items`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::SplitMix64;

    #[test]
    fn yields_the_published_sequence() {
        // The first numbers of splitmix64 for seed 1234567, as Rosetta Code lists them.
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn reaches_every_number_below_the_end() {
        let mut random = SplitMix64::new(0);
        let mut seen = [0; 5];
        for _ in 0..1000 {
            seen[random.below(5)] += 1;
        }
        assert!(seen.iter().all(|&count| count > 150), "{seen:?}");
    }
}
