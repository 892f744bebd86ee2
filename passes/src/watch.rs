//! A search seen from outside: how far it is, and a way to end it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Shared by who searches and who waits.
#[derive(Debug, Default)]
pub struct Watch {
    stopped: AtomicBool,
    /// Stops other searches too.
    all_stopped: Arc<AtomicBool>,
    /// Where nobody is there to stop it.
    end: OnceLock<Instant>,
    evaluations: AtomicU64,
    added: AtomicU64,
    least: AtomicU64,
    step: AtomicU64,
    /// So many candidates are made wrong, to see what becomes of that.
    #[cfg(test)]
    to_break: std::sync::atomic::AtomicUsize,
}

/// How good a schedule is, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Best {
    /// What it adds.
    pub added: u64,
    /// What every one adds within the same budget, as far as is known.
    pub least: u64,
    /// What the step takes without it.
    pub step: u64,
}

impl Watch {
    /// One that ends, besides, when `stopped` is set.
    pub fn stopped_by(stopped: Arc<AtomicBool>) -> Watch {
        Watch {
            all_stopped: stopped,
            ..Watch::default()
        }
    }

    /// Ends the search early, with what it has found by then.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Ends the search at that time, at some cost for looking at the clock.
    pub fn stop_at(&self, end: Instant) {
        // The first one counts.
        let _ = self.end.set(end);
    }

    /// Is it to end?
    pub fn is_stopped(&self) -> bool {
        let is_over = || self.end.get().is_some_and(|&end| Instant::now() >= end);
        self.stopped.load(Ordering::Relaxed)
            || self.all_stopped.load(Ordering::Relaxed)
            || is_over()
    }

    /// Lives of values that were worked out, the measure of a search's work. The same for the same
    /// input and options, unless the search was stopped.
    pub fn evaluations(&self) -> u64 {
        self.evaluations.load(Ordering::Relaxed)
    }

    /// The best schedule that was found last; `None` before there is one.
    pub fn best(&self) -> Option<Best> {
        let load = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let (added, least, step) = (load(&self.added), load(&self.least), load(&self.step));
        (step > 0).then_some(Best { added, least, step })
    }

    /// Makes the next `candidates` wrong before they are verified.
    #[cfg(test)]
    pub(crate) fn break_candidates(&self, candidates: usize) {
        self.to_break.store(candidates, Ordering::Relaxed);
    }

    /// Is this one of them?
    #[cfg(test)]
    pub(crate) fn breaks(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        let taken = self
            .to_break
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        taken.is_ok()
    }

    pub(crate) fn count(&self, evaluations: u64) {
        self.evaluations.fetch_add(evaluations, Ordering::Relaxed);
    }

    pub(crate) fn show(&self, best: Best) {
        self.added.store(best.added, Ordering::Relaxed);
        self.least.store(best.least, Ordering::Relaxed);
        self.step.store(best.step, Ordering::Relaxed);
    }
}
