//! The numbers by which the pipeline decides what to try. None of them can make a result wrong: what is written is
//! proved whatever they are.

/// How far planning, enforcing and simulating go. "One part in N" is written as N.
pub(super) struct Tuning {
    /// Attempts: plans for one budget, each for less, because the runtime's order needs more than the plan's.
    pub(super) plans: usize,
    /// Attempts: choices of barriers for one plan, because they leave another room than they were chosen for.
    pub(super) barrier_choices: usize,
    /// Attempts: plans that leave barriers more room.
    pub(super) plans_with_fewer_barriers: usize,
    /// Attempts: budgets below the smallest peak that was found.
    pub(super) smaller_budgets: usize,
    /// Attempts: how many sizes are hidden.
    pub(super) hidings: usize,
    /// One part in so many of a budget is left free by the next attempt, so that other barriers fit ...
    pub(super) spare: u64,
    /// ... and this part where the runtime's settings add to a plan what only the plan itself tells; ...
    pub(super) spare_for_settings: u64,
    /// ... the next attempt after it so many times as much.
    pub(super) more_spare: u64,
    /// Barriers have one output for so many nodes, where a plan needs many of them.
    pub(super) nodes_for_output: u64,
    /// Barriers are too many where they take more than one part in so many of what a plan adds ...
    pub(super) many_barriers: u64,
    /// ... and more than one part in so many of a step's time.
    pub(super) notable: u64,
    /// Plans with fewer barriers leave them one part in so many of what a step takes, each time once more.
    pub(super) room_for_barriers: u64,
    /// What the settings add to a quick plan may be more for the one that is made, by one part in so many.
    pub(super) altered: u64,
    /// A plan that adds one part in so many of the step's time or less stands: nobody else is asked.
    pub(super) stands_below: u64,
    /// One part in so many of a budget need not be used.
    pub(super) unused_part: u64,
    /// Smaller budgets are tried down to one part in so many of what a step takes.
    pub(super) worth_trying: u64,
    /// Peaks that differ by one part in so many are as good as the same.
    pub(super) same_peak: u64,
    /// Hiding sizes may take one part in so many of a step's time.
    pub(super) hiding: u64,
    /// Variants are offered for nodes with one part in so many of the peak at stake.
    pub(super) worth: u64,
}

/// As planned for everybody.
pub(super) const TUNING: Tuning = Tuning {
    plans: 6,
    barrier_choices: 4,
    plans_with_fewer_barriers: 3,
    smaller_budgets: 5,
    hidings: 4,
    spare: 20_000,
    spare_for_settings: 2_000,
    more_spare: 4,
    nodes_for_output: 4,
    many_barriers: 4,
    notable: 200,
    room_for_barriers: 50,
    altered: 2,
    stands_below: 20,
    unused_part: 400,
    worth_trying: 50,
    same_peak: 500,
    hiding: 200,
    worth: 200,
};
