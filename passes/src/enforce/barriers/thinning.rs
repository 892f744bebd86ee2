//! Takes out of a set whatever is not needed, many at a time, and two groups at once.

use crate::parallel;

/// What comes of keeping only some.
pub(super) enum Trial {
    Fits,
    /// It does not fit; these places, which were taken out, may be why.
    Misses(Vec<usize>),
}

/// What trials may cost and have cost, and what one hands on to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThinningEffort<H> {
    /// In whatever unit trials count.
    pub(super) work: usize,
    /// With more than this there are no more trials.
    pub(super) limit: usize,
    /// Where a trial should look first.
    pub(super) hint: Option<H>,
    /// Did somebody say that it is enough?
    pub(super) stopped: bool,
}

impl<H> Default for ThinningEffort<H> {
    fn default() -> ThinningEffort<H> {
        ThinningEffort {
            work: 0,
            limit: 0,
            hint: None,
            stopped: false,
        }
    }
}

impl<H: Copy> ThinningEffort<H> {
    fn is_spent(&self) -> bool {
        self.stopped || self.work > self.limit
    }

    /// Half of what is left.
    fn half(self) -> ThinningEffort<H> {
        let left = self.limit.saturating_sub(self.work);
        ThinningEffort {
            limit: self.work.saturating_add(left / 2),
            ..self
        }
    }

    /// What others did beside each other, who all began with this.
    fn join(&mut self, others: impl Iterator<Item = ThinningEffort<H>>) {
        let begun = self.work;
        for other in others {
            self.work = self.work.saturating_add(other.work - begun);
            self.hint = other.hint.or(self.hint);
            self.stopped |= other.stopped;
        }
    }
}

/// Which of `count` have to be kept, all of which fit together. In rounds of more and smaller groups, up to `most`
/// in a round or down to single ones: a group is taken out, and who is to blame put back, until it fits.
///
/// The groups take turns, so that neighbours, which often stand in for each other, are in different ones. Most of
/// what is not needed goes in the first rounds, which take a few trials each. Two groups are looked at
/// beside each other, each as if the other stayed, and then together: of most, nothing can be left out.
pub(super) fn thin_out<H: Copy + Send + Sync>(
    count: usize,
    most: usize,
    effort: &mut ThinningEffort<H>,
    trial: impl Fn(&[bool], &mut ThinningEffort<H>) -> Trial + Sync,
) -> Vec<bool> {
    let mut kept = vec![true; count];
    let mut groups = 1;
    loop {
        let left: Vec<usize> = (0..count).filter(|&place| kept[place]).collect();
        if left.is_empty() {
            return kept;
        }
        let group = |turn| left.iter().copied().skip(turn).step_by(groups).collect();
        let turns: Vec<Vec<usize>> = (0..groups.min(left.len())).map(group).collect();
        for pair in turns.chunks(2) {
            let alone = parallel::map(pair, |group| {
                let mut effort = if pair.len() > 1 {
                    effort.half()
                } else {
                    *effort
                };
                let out = taken_out(group.clone(), &kept, &mut effort, &trial);
                (out, effort)
            });
            effort.join(alone.iter().map(|(_, effort)| *effort));
            for (mut out, _) in alone {
                // What the other group lost may be what this one's loss relied on.
                if !out.is_empty() && pair.iter().flatten().any(|&place| !kept[place]) {
                    out = taken_out(out, &kept, effort, &trial);
                }
                out.iter().for_each(|&place| kept[place] = false);
            }
            if effort.is_spent() {
                return kept;
            }
        }
        if groups >= left.len().min(most) {
            return kept;
        }
        groups *= 4;
    }
}

/// Which of a group can be taken out of the `kept` together.
fn taken_out<H: Copy>(
    group: Vec<usize>,
    kept: &[bool],
    effort: &mut ThinningEffort<H>,
    trial: impl Fn(&[bool], &mut ThinningEffort<H>) -> Trial,
) -> Vec<usize> {
    let mut kept = kept.to_vec();
    let mut out = group;
    out.iter().for_each(|&place| kept[place] = false);
    while !out.is_empty() && !effort.is_spent() {
        let blamed = match trial(&kept, effort) {
            Trial::Fits => return out,
            Trial::Misses(blamed) => blamed,
        };
        // Only of the group: what is more than a set that fits need not fit.
        let blamed = blamed.into_iter();
        blamed
            .filter(|place| out.binary_search(place).is_ok())
            .for_each(|place| kept[place] = true);
        let before = out.len();
        out.retain(|&place| !kept[place]);
        if out.len() == before {
            break;
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const ALL: ThinningEffort<()> = ThinningEffort {
        work: 0,
        limit: usize::MAX,
        hint: None,
        stopped: false,
    };

    /// What is kept of `count` if each of `needed` has to be, and how many trials that takes.
    fn kept(count: usize, needed: &[usize], blames: bool) -> (Vec<usize>, usize) {
        let trials = AtomicUsize::new(0);
        let kept = thin_out(count, usize::MAX, &mut { ALL }, |kept, _| {
            trials.fetch_add(1, Ordering::Relaxed);
            let missing: Vec<usize> = needed.iter().copied().filter(|&n| !kept[n]).collect();
            match missing.as_slice() {
                [] => Trial::Fits,
                _ if blames => Trial::Misses(missing),
                _ => Trial::Misses(Vec::new()),
            }
        });
        let kept = (0..count).filter(|&place| kept[place]);
        (kept.collect(), trials.into_inner())
    }

    #[test]
    fn what_is_needed_stays_and_nothing_else() {
        for needed in [&[][..], &[0], &[999], &[3, 4, 5, 400, 900]] {
            assert_eq!(kept(1000, needed, true).0, needed);
            assert_eq!(kept(1000, needed, false).0, needed);
        }
        assert_eq!(kept(0, &[], true), (vec![], 0));
    }

    #[test]
    fn blame_spares_trials() {
        // All at once, and again with those put back; then, in groups of up to four, each of the
        // five once more.
        let (_, trials) = kept(1000, &[3, 4, 5, 400, 900], true);
        assert!(trials <= 2 + 2 * 4 + 5, "{trials}");
        let (_, trials) = kept(1000, &[3, 4, 5, 400, 900], false);
        assert!(trials > 50, "{trials}");
    }

    #[test]
    fn what_is_one_of_two_stays_once() {
        let kept = thin_out(2, usize::MAX, &mut { ALL }, |kept, _| match kept {
            [false, false] => Trial::Misses(vec![0, 1]),
            _ => Trial::Fits,
        });
        assert_eq!(kept.iter().filter(|&&kept| kept).count(), 1);
    }

    #[test]
    fn what_fits_alone_is_tried_together() {
        // Two of each four have to stay, whichever they are.
        let kept = thin_out(64, usize::MAX, &mut { ALL }, |kept, _| {
            let fits = |four: &[bool]| four.iter().filter(|&&kept| kept).count() >= 2;
            match kept.chunks(4).all(fits) {
                true => Trial::Fits,
                false => Trial::Misses(Vec::new()),
            }
        });
        let stay = |four: &[bool]| four.iter().filter(|&&kept| kept).count();
        assert!(kept.chunks(4).all(|four| stay(four) == 2), "{kept:?}");
    }

    #[test]
    fn work_ends_at_the_limit_and_what_is_known_to_fit_stays() {
        let fruitless = |_: &[bool], effort: &mut ThinningEffort<()>| {
            effort.work += 1;
            Trial::Misses(Vec::new())
        };
        let mut effort = ThinningEffort { limit: 20, ..ALL };
        assert_eq!(
            thin_out(500, usize::MAX, &mut effort, fruitless),
            [true; 500]
        );
        assert!((20..=22).contains(&effort.work), "{effort:?}");
        let mut spent = ThinningEffort {
            work: 1,
            limit: 0,
            ..ALL
        };
        assert_eq!(thin_out(5, usize::MAX, &mut spent, fruitless), [true; 5]);
        assert_eq!(spent.work, 1);
    }
}
