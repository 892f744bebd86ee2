//! Takes out of a set whatever is not needed, many at a time.

/// What comes of keeping only some.
pub(super) enum Trial {
    Fits,
    /// It does not fit; these places, which were taken out, may be why.
    Misses(Vec<usize>),
    /// There is no more time to try.
    Spent,
}

/// Which of `count` have to be kept, all of which fit together. In rounds of more and smaller groups, up to `most`
/// in a round or down to single ones: a group is taken out, and who is to blame put back, until it fits.
///
/// The groups take turns, so that neighbours, which often stand in for each other, are in different ones. Most of
/// what is not needed goes in the first rounds, which take a few trials each.
pub(super) fn thin_out(
    count: usize,
    most: usize,
    mut trial: impl FnMut(&[bool]) -> Trial,
) -> Vec<bool> {
    let mut kept = vec![true; count];
    let mut groups = 1;
    loop {
        let left: Vec<usize> = (0..count).filter(|&place| kept[place]).collect();
        if left.is_empty() {
            return kept;
        }
        for turn in 0..groups.min(left.len()) {
            let group: Vec<usize> = left.iter().copied().skip(turn).step_by(groups).collect();
            group.iter().for_each(|&place| kept[place] = false);
            // Only of the group: what is more than a set that fits need not fit.
            let mut out = group.len();
            while out > 0 {
                let blamed = match trial(&kept) {
                    Trial::Fits => break,
                    Trial::Misses(blamed) => blamed,
                    Trial::Spent => {
                        group.iter().for_each(|&place| kept[place] = true);
                        return kept;
                    }
                };
                let blamed = blamed
                    .iter()
                    .filter(|&place| group.binary_search(place).is_ok());
                blamed.for_each(|&place| kept[place] = true);
                let left_out = group.iter().filter(|&&place| !kept[place]).count();
                if left_out == out {
                    group.iter().for_each(|&place| kept[place] = true);
                    break;
                }
                out = left_out;
            }
        }
        if groups >= left.len().min(most) {
            return kept;
        }
        groups *= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept of `count` if each of `needed` has to be, and how many trials that takes.
    fn kept(count: usize, needed: &[usize], blames: bool) -> (Vec<usize>, usize) {
        let mut trials = 0;
        let kept = thin_out(count, usize::MAX, |kept| {
            trials += 1;
            let missing: Vec<usize> = needed.iter().copied().filter(|&n| !kept[n]).collect();
            match missing.as_slice() {
                [] => Trial::Fits,
                _ if blames => Trial::Misses(missing),
                _ => Trial::Misses(Vec::new()),
            }
        });
        ((0..count).filter(|&place| kept[place]).collect(), trials)
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
        let kept = thin_out(2, usize::MAX, |kept| match kept {
            [false, false] => Trial::Misses(vec![0, 1]),
            _ => Trial::Fits,
        });
        assert_eq!(kept, [false, true]);
    }

    #[test]
    fn without_time_all_stay() {
        assert_eq!(thin_out(5, usize::MAX, |_| Trial::Spent), [true; 5]);
    }
}
