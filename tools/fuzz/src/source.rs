//! Where random inputs come from: a tape of numbers, so that an input can be repeated and made smaller without
//! knowing what it is.

use ckpt_passes::testing::{Draw, SplitMix64};

/// Numbers that a target makes its input of. The same tape makes the same input.
#[derive(Debug)]
pub struct Source {
    /// What was drawn, or is to be drawn.
    tape: Vec<u64>,
    position: usize,
    /// Behind the end of the tape: new numbers, or zeros when a tape is replayed.
    random: Option<SplitMix64>,
    /// Files that show the input, when it is wanted.
    files: Option<Vec<(String, Vec<u8>)>>,
}

impl Source {
    /// New numbers, the same for every seed.
    pub fn new(seed: u64) -> Source {
        Source {
            tape: Vec::new(),
            position: 0,
            random: Some(SplitMix64::new(seed)),
            files: None,
        }
    }

    /// The numbers of a tape, and zeros behind it.
    pub fn replay(tape: &[u64]) -> Source {
        Source {
            tape: tape.to_vec(),
            position: 0,
            random: None,
            files: None,
        }
    }

    /// Keeps the files that the target makes.
    pub fn keeping_files(mut self) -> Source {
        self.files = Some(Vec::new());
        self
    }

    /// Shows a part of the input to whoever looks at a finding.
    pub fn file(&mut self, name: &str, contents: impl FnOnce() -> Vec<u8>) {
        if let Some(files) = &mut self.files {
            files.push((name.to_owned(), contents()));
        }
    }

    /// The numbers that were drawn.
    pub fn drawn(&self) -> &[u64] {
        &self.tape[..self.position.min(self.tape.len())]
    }

    /// The files that the target made.
    pub fn into_files(self) -> Vec<(String, Vec<u8>)> {
        self.files.unwrap_or_default()
    }
}

impl Draw for Source {
    /// New numbers are those of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    fn bits(&mut self) -> u64 {
        let position = self.position;
        self.position += 1;
        if let Some(&drawn) = self.tape.get(position) {
            return drawn;
        }
        let Some(random) = &mut self.random else {
            return 0;
        };
        let drawn = random.bits();
        self.tape.push(drawn);
        drawn
    }
}

/// A smaller tape that still fails, after at most `attempts` tries: parts are left out, then numbers become smaller.
pub fn shrink(tape: &[u64], mut attempts: usize, fails: impl Fn(&[u64]) -> bool) -> Vec<u64> {
    let mut best = tape.to_vec();
    let mut improved = true;
    while improved && attempts > 0 {
        improved = false;
        let mut length = best.len().next_power_of_two();
        while length > 0 && attempts > 0 {
            let mut at = 0;
            while at < best.len() && attempts > 0 {
                let end = (at + length).min(best.len());
                let mut zeroed = best.clone();
                zeroed[at..end].fill(0);
                let without = [&best[..at], &best[end..]].concat();
                let halved = || {
                    let mut halved = best.clone();
                    halved[at..end].iter_mut().for_each(|number| *number /= 2);
                    halved
                };
                let candidates = [without, zeroed, halved()];
                let smaller = candidates.into_iter().find(|candidate| {
                    attempts = attempts.saturating_sub(1);
                    *candidate != best && attempts > 0 && fails(candidate)
                });
                match smaller {
                    Some(smaller) => {
                        improved = true;
                        // Where a part was left out, the next one is at the same place.
                        at = if smaller.len() < best.len() { at } else { end };
                        best = smaller;
                    }
                    None => at = end,
                }
            }
            length /= 2;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tape_repeats_what_was_drawn() {
        let mut first = Source::new(7);
        let drawn: Vec<usize> = (0..20).map(|_| first.below(100)).collect();
        let mut again = Source::replay(first.drawn());
        assert_eq!(drawn, (0..20).map(|_| again.below(100)).collect::<Vec<_>>());
        assert_eq!(again.bits(), 0);
    }

    #[test]
    fn shrinking_leaves_what_fails() {
        // Fails where any of the first ten numbers is at least 1000.
        let fails = |tape: &[u64]| tape.iter().take(10).any(|&number| number >= 1000);
        let tape: Vec<u64> = (0..50).map(|at| at * 500).collect();
        let smallest = shrink(&tape, 10_000, fails);
        assert!(
            smallest.len() == 1 && (1000..2000).contains(&smallest[0]),
            "{smallest:?}"
        );
    }
}
