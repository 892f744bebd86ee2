//! How checkpoints divide a uniform chain: β(s, r) = (s + r choose s), of Griewank and Walther,
//! *Algorithm 799: Revolve* (ACM TOMS 26(1), 2000).

/// β(s, r) = (s + r choose s); what is larger than 2^64 is only known to be.
pub(crate) fn beta(s: u64, r: u64) -> u128 {
    let mut value: u128 = 1;
    for k in 1..=s.min(r) {
        // At least doubles each time.
        value = value * u128::from(s.max(r) + k) / u128::from(k);
        if value > u128::from(u64::MAX) {
            break;
        }
    }
    value
}

/// The r with β(s, r − 1) < l ≤ β(s, r); 0 for at most one step. `s` is at least 1.
pub(crate) fn repetitions(l: u64, s: u64) -> u64 {
    // β(s, ·) rises, so r is at most l.
    let (mut low, mut high) = (0, l);
    while low < high {
        let middle = low + (high - low) / 2;
        if beta(s, middle) >= u128::from(l) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// How many of `l` ≥ 2 steps to run before the next checkpoint: any k with
/// max(β(s, r − 2), l − β(s − 1, r)) ≤ k ≤ min(β(s, r − 1), l − β(s − 1, r − 1)) is optimal, for
/// then k steps need at most r − 1 and the rest at most r repetitions. The largest is taken: with
/// plenty of checkpoints, they come late. `s` is at least 2.
pub(crate) fn advance(l: u64, s: u64) -> u64 {
    let r = repetitions(l, s);
    let behind = u128::from(l).saturating_sub(beta(s - 1, r - 1));
    let most = beta(s, r - 1).min(behind).max(1);
    u64::try_from(most).unwrap_or(1).min(l - 1)
}
