//! Revolve: the optimal reversal of a uniform chain, in closed form.
//!
//! Griewank and Walther, *Algorithm 799: Revolve* (ACM TOMS 26(1), 2000), as Butt's thesis
//! (section 2.5.3) and Beaumont et al. (2019, section 1) restate it: s checkpoints, the initial
//! state among them, reverse up to β(s, r) = (s + r choose s) steps with no step run forward more
//! than r times in advance of its own reversal. The fewest advances for l steps are
//! t(l, s) = r·l − β(s + 1, r − 1) with β(s, r − 1) < l ≤ β(s, r).
//!
//! On a real chain every stage counts as one step and every result as one slot. What differs
//! between stages is only seen when the plan is judged.

use crate::binomial::{advance, beta, repetitions};

use super::chain::{Action, Chain, Operation, execute_between};

/// Longer chains are not planned for, so that all below stays in range.
const MOST_STEPS: u64 = u32::MAX as u64;

/// The fewest steps that run forward in advance when `l` steps are reversed with `s` checkpoints:
/// t(l, s). `None` without checkpoints, and for more than 2^32 steps.
pub fn fewest_advances(l: u64, s: u64) -> Option<u64> {
    if s == 0 || l > MOST_STEPS {
        return (l == 0).then_some(0);
    }
    // No more checkpoints than steps are of use.
    let s = s.min(l.max(1));
    match repetitions(l, s) {
        0 => Some(0),
        r => u64::try_from(u128::from(r) * u128::from(l) - beta(s + 1, r - 1)).ok(),
    }
}

/// Revolve's schedule for `chain` with `checkpoints` slots, the initial state among them.
pub fn schedule(chain: &Chain, checkpoints: u64) -> Vec<Operation> {
    schedule_between(chain, 0, chain.stages.len(), checkpoints)
}

/// The same for backward parts `end − 1` to `begin` only; x_begin takes one of the checkpoints.
pub fn schedule_between(
    chain: &Chain,
    begin: usize,
    end: usize,
    checkpoints: u64,
) -> Vec<Operation> {
    execute_between(chain, begin, end, checkpoints.max(1), |i, j, s| {
        if s <= 1 {
            return Action::Everything;
        }
        let k = i + advance((j - i) as u64, s) as usize;
        Action::Split {
            k,
            right: s - 1,
            left: s,
        }
    })
}

/// Opt₀(l, c): the time of REV for l forward steps and l + 1 backward ones within c slots, in
/// Beaumont et al.'s count of slots: the value at the start, the gradient and the running value
/// each take one, so that c − 2 are checkpoints in Revolve's. `None` if it does not fit.
pub fn opt0(l: u64, c: u64, forward: u64, backward: u64) -> Option<u64> {
    let advances = match (l, c.checked_sub(2)?) {
        (0, _) => 0,
        (l, s) => fewest_advances(l + 1, s)?,
    };
    let backward = backward.saturating_mul(l + 1);
    Some(advances.saturating_mul(forward).saturating_add(backward))
}

#[cfg(test)]
mod tests {
    use super::super::chain::tests::simulate;
    use super::*;
    use crate::testing;

    #[test]
    fn fewest_advances_agrees_with_the_tests_own_formula() {
        for l in 1..=200 {
            for s in 1..=30 {
                assert_eq!(
                    fewest_advances(l, s),
                    testing::fewest_advances(l, s),
                    "{l}, {s}"
                );
            }
        }
        assert_eq!(fewest_advances(u64::MAX, 1), None);
        assert_eq!(fewest_advances(1 << 30, u64::MAX), Some((1 << 30) - 1));
        // l(l − 1) / 2
        assert_eq!(fewest_advances(1 << 30, 1), Some((1 << 59) - (1 << 29)));
    }

    #[test]
    fn the_schedule_takes_what_the_closed_form_says_in_s_plus_2_units() {
        for layers in [1, 2, 5, 20, 40, 63] {
            let chain = Chain::uniform(layers);
            let steps = layers as u64 + 1;
            for s in 1..=steps + 1 {
                let (time, peak) = simulate(&chain, &schedule(&chain, s));
                assert_eq!(
                    time,
                    steps + fewest_advances(steps, s).unwrap(),
                    "{layers}, {s}"
                );
                // s results besides x0, the running one among them, and two gradients.
                // s results besides x0, the running one among them, and two gradients.
                assert_eq!(peak, s.min(layers as u64) + 2, "{layers}, {s}");
            }
        }
    }

    #[test]
    fn known_positions() {
        // 10 = β(2, 3) steps with 2 checkpoints: to β(2, 2) = 6, then 3 + ... from there on.
        assert_eq!(repetitions(10, 2), 3);
        assert_eq!(advance(10, 2), 6);
        // As many checkpoints as steps: each one.
        assert_eq!(advance(8, 8), 1);
    }

    #[test]
    fn opt0_counts_the_start_the_gradient_and_the_running_value() {
        assert_eq!(opt0(0, 1, 1, 1), None);
        assert_eq!(opt0(0, 2, 1, 1), Some(1));
        assert_eq!(opt0(3, 2, 1, 1), None);
        // 3 + 2 + 1 forward, 4 backward.
        assert_eq!(opt0(3, 3, 1, 1), Some(10));
        assert_eq!(opt0(3, 5, 1, 1), Some(7));
    }
}
