//! "Ask for less until it fits": what a plan needs is known only when it is enforced and simulated; where that is too
//! much, less is asked for.
//!
//! Two ways to go on are known: lower, by what was missed ([`Descent`]), and between what fits and what does not
//! ([`Between`]). Both end by themselves, after a number of attempts.

use std::sync::{Mutex, PoisonError};

use crate::bytes::Bytes;

/// Lower and lower, by what was missed.
pub(super) struct Descent {
    target: Bytes,
    /// What there was a plan for that missed.
    reached: Option<Bytes>,
    /// What the next attempt leaves free besides what was missed, and how many times as much the one after it.
    spare: u64,
    more_spare: u64,
    made: usize,
    most: usize,
}

impl Descent {
    /// From `target` on, with at most so many attempts.
    pub(super) fn from(target: Bytes, most: usize) -> Descent {
        Descent {
            target,
            reached: None,
            spare: 0,
            more_spare: 1,
            made: 0,
            most,
        }
    }

    /// Leaves so much free besides what was missed, after each attempt so many times as much: the next plan needs other
    /// barriers, which may take more, the more often that happens.
    pub(super) fn leaving(self, spare: u64, more_spare: u64) -> Descent {
        Descent {
            spare,
            more_spare,
            ..self
        }
    }

    /// What to ask for; nothing when it was asked often enough.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        self.made += 1;
        (self.made <= self.most).then_some(self.target)
    }

    /// Is this the first attempt?
    pub(super) fn is_first(&self) -> bool {
        self.made == 1
    }

    /// What is asked for next, if anything is.
    pub(super) fn target(&self) -> Bytes {
        self.target
    }

    pub(super) fn lower_to(&mut self, target: Bytes) {
        self.target = target;
    }

    /// A plan that needs `planned` before it is enforced took `excess` too much. Asked for less than it needs, or it
    /// would be found again.
    pub(super) fn missed(&mut self, planned: Bytes, excess: Bytes) {
        let less = planned.min(self.target);
        self.reached = Some(less);
        self.target = less - excess - Bytes(excess.0 / 8 + self.spare + 1);
        self.spare *= self.more_spare;
    }

    /// There is no plan for so little. Goes half the way back to what there was a plan for, if that was more.
    pub(super) fn goes_back(&mut self) -> bool {
        match self.reached.filter(|&reached| reached > self.target) {
            Some(reached) => {
                self.target += Bytes((reached - self.target).0 / 2);
                self.reached = None;
                true
            }
            None => false,
        }
    }
}

/// Between what fits and what does not; a number of bytes, or of other things.
pub(super) struct Between {
    pub(super) fits: u64,
    pub(super) misses: u64,
    left: usize,
}

impl Between {
    /// At most so many attempts.
    pub(super) fn new(fits: u64, misses: u64, most: usize) -> Between {
        Between {
            fits,
            misses,
            left: most,
        }
    }

    /// The middle, where what fits is more than what does not; nothing when it was tried often enough.
    pub(super) fn middle(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        Some(self.misses + self.width() / 2)
    }

    /// How much more fits than misses.
    pub(super) fn width(&self) -> u64 {
        self.fits.saturating_sub(self.misses)
    }

    /// How much more misses than fits.
    pub(super) fn way(&self) -> u64 {
        self.misses.saturating_sub(self.fits)
    }

    /// The part `part / of` of the way from what fits up to what does not.
    pub(super) fn part_of_way(&mut self, part: u64, of: u64) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        let way = u128::from(self.way()) * u128::from(part) / u128::from(of);
        // No more than the whole way.
        Some(self.fits + way as u64)
    }

    /// That was tried.
    pub(super) fn is(&mut self, tried: u64, fits: bool) {
        match fits {
            true => self.fits = tried,
            false => self.misses = tried,
        }
    }
}

/// How often something failed for the budget that was asked for last.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<(Bytes, usize)>);

impl Failures {
    /// Did it fail less than `most` times for that budget? For another one than before it is tried anew.
    pub(super) fn may_try(&self, budget: Bytes, most: usize) -> bool {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.0 != budget {
            *held = (budget, 0);
        }
        held.1 < most
    }

    /// It failed once more.
    pub(super) fn another(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1 += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_misses_is_asked_for_less_than_it_needs_and_what_it_missed() {
        let mut descent = Descent::from(Bytes(1000), 3).leaving(2, 4);
        assert_eq!(
            (descent.next(), descent.is_first()),
            (Some(Bytes(1000)), true)
        );
        // 900 - 80 - 80 / 8 - 2 - 1
        descent.missed(Bytes(900), Bytes(80));
        assert_eq!(
            (descent.next(), descent.is_first()),
            (Some(Bytes(807)), false)
        );
        // The target is less than what the plan needs: 807 - 8 - 1 - 8 - 1
        descent.missed(Bytes(900), Bytes(8));
        assert_eq!(descent.next(), Some(Bytes(789)));
        assert_eq!(descent.next(), None);
    }

    #[test]
    fn what_there_is_no_plan_for_goes_half_the_way_back_once() {
        let mut descent = Descent::from(Bytes(1000), 9);
        assert!(!descent.goes_back(), "there was none before");
        descent.missed(Bytes(900), Bytes(99));
        assert_eq!(descent.target(), Bytes(900 - 99 - 12 - 1));
        assert!(descent.goes_back());
        assert_eq!(descent.target(), Bytes(788 + 56));
        assert!(!descent.goes_back());
    }

    #[test]
    fn what_failed_often_enough_is_not_tried_until_another_budget_is_asked_for() {
        let failures = Failures::default();
        let mut tried = 0;
        while failures.may_try(Bytes(7), 3) {
            tried += 1;
            failures.another();
        }
        assert_eq!(tried, 3);
        assert!(failures.may_try(Bytes(8), 3));
        assert!(!failures.may_try(Bytes(8), 0));
    }

    #[test]
    fn the_way_between_gets_shorter() {
        let mut between = Between::new(100, 60, 3);
        assert_eq!(between.middle(), Some(80));
        between.is(80, true);
        assert_eq!((between.middle(), between.width()), (Some(70), 20));
        between.is(70, false);
        assert_eq!(between.middle(), Some(75));
        assert_eq!(between.middle(), None);
        let mut counts = Between::new(0, 90, 1);
        assert_eq!(counts.part_of_way(1, 3), Some(30));
        assert_eq!(counts.part_of_way(1, 3), None);
    }
}
