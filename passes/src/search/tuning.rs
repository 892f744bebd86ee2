//! The numbers by which the search decides what to try.
//!
//! What each is worth, `cargo xtask heuristics` says. "Without" stands for what it said of ResNet-18 and the GAN's
//! discriminator at `fixed+55%` in both settings: points of overhead, and evaluations (the measure of work). "Of five" are ResNet-18, that
//! discriminator, a Llama, GRUs that translate, and a temporal convolution network, at `fixed+50%` and `fixed+30%`: what is a tenth of a point
//! of the Llama alone is within what any change brings about there.

use super::profile::Exponent;

/// An exponent, a stride, and work; see [`Tuning::descents`].
pub(crate) type PeakDescent = (Exponent, f64, u64);

crate::tuning::tuning! {
    /// How the search goes about it.
    Tuning as SEARCH {
        /// A move whose score is up to so many times the next one's is made at once.
        /// Without: -0.05 to 0 points, 3 % more evaluations.
        as_good: f64 = 1.1, off 1.0;
        /// The same in a large graph, where many are worth much the same.
        as_good_if_large: f64 = 1.3, off 1.1;
        /// Moves that cost more than so many times as much as the last accepted one are not looked at yet.
        /// Without: -0.05 to +0.01 points, 7 % more evaluations.
        ceiling: f64 = 20.0, off f64::MAX;
        /// Where nothing is left below the ceiling, it is as many times as high from then on: else everything would be
        /// looked at once more for each move.
        more_patience: f64 = 4.0, off 1.0;
        /// A copy may be made where what it reads is still there.
        /// Without this, `mixed`, `slack` and `rounds_to_return`: nothing on fifteen real graphs at `fixed+50%` to `fixed+60%` (-0.06 to
        /// +0.001 points), but a small transformer at `fixed+70%` is 0.65 points dearer, and smallest peaks are 2 to 6 % larger.
        earlier: bool = true, off false;
        /// Copies of what else is computed from a value may be made together.
        /// Without: +0.001 points at `fixed+50%`.
        siblings: bool = true, off false;
        /// What a copy reads may be computed again as far as that is cheaper.
        /// Without, of five: -0.05 to +0.40 points, 4 % fewer evaluations.
        mixed: bool = true, off false;
        /// A copy may be kept for the next one.
        /// Without: -0.05 to +0.001 points, 3 % more evaluations.
        hoisted: bool = true, off false;
        /// No closure of copies grows past this: what is still missing then lives longer.
        largest_closure: usize = 200, off usize::MAX;
        /// Below this part of the budget a value is not worth computing again.
        /// Without, of five: -0.21 to +0.12 points, 4 % fewer evaluations.
        negligible: f64 = 1e-4, off 0.0;
        /// A schedule this much worse than the best is still accepted by the neighbourhood search at first; none at the end.
        /// Without, of five: -0.03 to +0.06 points, 3 % fewer evaluations.
        slack: f64 = 0.02, off 0.0;
        /// After so many rounds it returns to the best schedule.
        rounds_to_return: u64 = 64, off u64::MAX;
        /// The most neighbouring copies that one of its rounds takes out.
        /// Without, of five: -0.09 to +0.12 points, 2 % fewer evaluations.
        largest_hole: usize = 100, off 1;
        /// The most copies that one of its rounds takes out at random.
        /// Without, of five: -0.27 to +0.07 points, 4 % fewer evaluations.
        scattered: usize = 8, off 1;
        /// How much each neighbourhood search may distort its scores: little finds what is near, much finds what is not.
        /// Without, of five: -0.13 to +0.15 points, 3 % fewer evaluations.
        noise: &'static [f64] = &[0.6, 5.0], off &[0.6];
        /// In so many rounds the neighbourhood searches use up their effort; each begins from the best of the round before.
        /// Without: 286 % more evaluations for the same overhead.
        rounds: u64 = 4, off 1;
        /// So many rounds there are at most, while the gap is wide.
        /// Without: 57 % fewer evaluations for the same overhead there.
        most_rounds: u64 = 10, off 4;
        /// A gap this narrow is not worth another round.
        /// Without, of five: -0.15 to 0 points, 16 % more evaluations.
        gap: f64 = 0.0075, off 0.0005;
        /// Neither is one where the last round gained no more than this part of a step's time.
        /// Without: 12 % more evaluations for the same overhead, where GoogLeNet and BiLSTM are looked at as well.
        gain: f64 = 0.0001, off 0.0;
        /// Nor is one after so many that gained no more, however wide the gap ...
        /// Without this and `idle_rounds_to_beat`, of eight graphs at `fixed+30%`: -0.07 to 0 points, and up to three times the evaluations where
        /// the bound is far off (transformers, graph networks).
        idle_rounds: u64 = 4, off u64::MAX;
        /// ... or after so many where there is a plan already, which the search has to beat.
        idle_rounds_to_beat: u64 = 2, off u64::MAX;
        /// A gap this narrow is not worth any.
        /// Without: -0.05 to 0 points, 10 % more evaluations.
        gap_not_worth_rounds: f64 = 0.0005, off 0.0;
        /// A search that has to add less than something is given up where what came of a round would have to lose more than this part
        /// of its gap for that.
        /// Without, of five: the same plans, 17 % more evaluations.
        hope: f64 = 0.25, off 2.0;
        /// A search takes at most so many evaluations for each pair of steps: small graphs have been looked at all over by then.
        /// Without: eight times the work for the same plan of a network of 33 nodes.
        evaluations_per_pair: u64 = 50, off u64::MAX;
        /// What the greedy search begins with, each by itself.
        /// Without, of five: 0 to +0.21 points, 9 % fewer evaluations.
        exponents: &'static [Exponent] = &[Exponent::One, Exponent::Half, Exponent::Two], off &[Exponent::One];
        /// Everything up to a price is computed again at first, for prices below which these parts of all bytes lie.
        /// Without, of five: 0 to +0.18 points, 4 % fewer evaluations.
        plenty: &'static [f64] = &[0.3, 0.5, 0.7, 0.85, 1.0], off &[];
        /// Schedules for very little memory are starts too.
        /// Without, of five: no dearer or cheaper plan, 3 % fewer evaluations.
        frugal: bool = true, off false;
        /// A start may evaluate so much for each step: of 100,000 nodes, 300 to 460 for each were needed.
        start_per_step: u64 = 1000, off 100_000;
        /// One of those that mostly are beaten may evaluate so much: where they take more they are.
        other_per_step: u64 = 300, off 100_000;
        /// In a small graph those may evaluate one of so many parts of the effort.
        /// Without, of five: the same plans, 2 % more evaluations.
        other: u64 = 10, off 1;
        /// A rough estimate begins with so few prices.
        rough: usize = 2, off 0;
        /// A descent's greedy searches may evaluate so much for each step.
        descent_per_step: u64 = 500, off 100_000;
        /// How to look for the smallest peak: the exponent; the part of the way to the structural bound to take at first (what
        /// is aimed low from the beginning ends elsewhere than what gets there by and by); and the work, as a
        /// multiple of that of a neighbourhood search.
        descents: &'static [PeakDescent] = &[(Exponent::One, 0.5, 2), (Exponent::One, 1.0, 2), (Exponent::Two, 1.0, 1)],
            off &[(Exponent::One, 0.5, 2)];
        /// A look at how little memory is possible takes one of so many parts of a descent's work.
        small: u64 = 8, off 1;
        /// A chain is reversed with up to so many checkpoints; with more the other starts do as well. In a large graph, which
        /// has fewer of those, it is reversed with twice as many and so on instead.
        /// Without, of five: no dearer or cheaper plan, 2 % fewer evaluations.
        most_checkpoints: usize = 32, off 0;
        /// A descent ends when it is stuck at strides of this size.
        shortest_stride: f64 = 0.01, off 0.2;
        /// Nodes may run late, where their readers are.
        /// Without, of five: -0.10 to +0.003 points, 3 % fewer evaluations.
        lazy: bool = true, off false;
        /// Nodes may run as soon as they free as much as they take.
        /// Without, of five: 0 to +2.64 points, 4 % fewer evaluations.
        eager: bool = true, off false;
        /// ... and so many that only together free something.
        together: bool = true, off false;
        /// What runs at the peak may be put off.
        postponed: bool = true, off false;
        /// An order is looked at in which large results are computed at the end.
        late_results: bool = true, off false;
        /// An order is looked at besides another where its peak or its sum of needs is at most this percentage of the other's.
        another_order: u128 = 99, off 0;
        /// Down to this part of a budget, what was the best order for it still is.
        same_order: f64 = 0.98, off 1.0;
        /// Plans of a few quick published strategies are starts where the own plan is dear.
        portfolio: bool = true, off false;
        /// An own plan that adds one part in so many of the step's time or less stands.
        own_stands_below: u64 = 20, off u64::MAX;
    }
}
