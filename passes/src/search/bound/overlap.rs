//! The most that weights on stretches of time add up to at any moment.

use crate::search::problem::Step;

/// Stretches of time, some of which overlap.
pub(crate) struct Overlap {
    /// Each as places `from..until` between the ends of all of them.
    stretches: Vec<(usize, usize)>,
    places: usize,
}

/// With more stretches than that, what is exact would take too long.
const MOST_EXACT_STRETCHES: usize = 64;

impl Overlap {
    /// Of stretches `from..until`, none of them empty.
    pub(crate) fn of(stretches: &[(Step, Step)]) -> Overlap {
        let mut ends: Vec<Step> = Vec::with_capacity(2 * stretches.len());
        ends.extend(stretches.iter().flat_map(|&(from, until)| [from, until]));
        ends.sort_unstable();
        ends.dedup();
        let place = |step: Step| ends.partition_point(|&end| end < step);
        Overlap {
            stretches: stretches
                .iter()
                .map(|&(from, until)| (place(from), place(until)))
                .collect(),
            places: ends.len(),
        }
    }

    /// By stretch: the largest sum of weights at any time in it, or more.
    pub(crate) fn most(&self, weights: &[f64]) -> Vec<f64> {
        let many = self.stretches.len() > MOST_EXACT_STRETCHES;
        let mut load = vec![0.0; self.places];
        let weighted = self.stretches.iter().zip(weights);
        if many {
            // The weights of all stretches that have begun and not ended, as a running sum.
            for (&(from, until), weight) in weighted {
                load[from] += weight;
                load[until] -= weight;
            }
            let mut sum = 0.0;
            let sums = load.iter().map(|change| {
                sum += change;
                sum
            });
            // A running sum is rounded; the largest weight alone is not.
            let largest = weights.iter().copied().fold(0.0, f64::max);
            let most = sums.fold(largest, f64::max) * (1.0 + 1e-9);
            return vec![most; self.stretches.len()];
        }
        for (&(from, until), weight) in weighted {
            for load in &mut load[from..until] {
                *load += weight;
            }
        }
        self.stretches
            .iter()
            .map(|&(from, until)| load[from..until].iter().copied().fold(0.0, f64::max))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_is_what_lies_on_one_time_at_once() {
        let overlap = Overlap::of(&[(0, 4), (3, 8), (4, 6), (9, 10)]);
        // At 3: 1 + 2; at 4 and 5: 2 + 4; at 9: 8.
        assert_eq!(overlap.most(&[1.0, 2.0, 4.0, 8.0]), [3.0, 6.0, 6.0, 8.0]);
    }

    #[test]
    fn of_very_many_stretches_the_most_is_not_below_what_it_is() {
        let stretches: Vec<(Step, Step)> = (0..100).map(|at| (at, at + 3)).collect();
        let weights = vec![0.1; 100];
        // Three at a time.
        let most = Overlap::of(&stretches).most(&weights);
        assert!(
            most.iter().all(|&most| (0.3..0.301).contains(&most)),
            "{most:?}"
        );
    }
}
