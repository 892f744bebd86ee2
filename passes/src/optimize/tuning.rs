//! The numbers by which the stages decide what to try.

use crate::strategy::Strategy;

crate::tuning::tuning! {
    /// How far planning, enforcing and simulating go. "One part in N" is written as N.
    StageTuning as STAGES {
        /// Attempts: plans for one budget, each for less, because the runtime's order needs more than the plan's.
        plans: usize = 6, off 1;
        /// Attempts: choices of barriers for one plan, because they leave another room than they were chosen for.
        barrier_choices: usize = 4, off 1;
        /// Attempts: plans that leave barriers more room.
        plans_with_fewer_barriers: usize = 3, off 0;
        /// Attempts: orders of the runtime that are enforced without copies.
        orders_enforced: usize = 3, off 0;
        /// Attempts: plans for more than the one that fits was made for, as the settings may add less to another ...
        /// Without: a lowered resnet18 with a batch of 16 adds 9.6 % at `fixed+50%` in current builds, not 5.2; a lowered tcn 53.9 % at `min`, not 42.6.
        plans_for_settings: usize = 3, off 0;
        /// ... and where none of them fits, so many more, by how much they missed ...
        /// Without: two layers of known sizes (attention and feed-forward) add 130 % at `fixed+60%` in every session of current builds, not 42.
        more_plans_for_settings: usize = 2, off 0;
        /// ... if it adds more than one part in so many of a step's time.
        dear: u64 = 50, off 1;
        /// Attempts: plans for what the graph takes less at the level that is promised.
        plans_for_level: usize = 4, off 0;
        /// Attempts: budgets below the smallest peak that was found.
        smaller_budgets: usize = 5, off 0;
        /// Attempts: orders for the memory pattern that barriers do not keep within a budget.
        /// Without: prior_heads with a batch of 64 adds 102 % at `fixed+60%` in current builds, not 17.
        packings: usize = 3, off 0;
        /// Attempts: plans that barriers do not keep within a budget though they are chosen as if the memory pattern had no block.
        /// Without: linear layers of known sizes (`FIXED` in tests/stock_runs.rs) have no plan at `fixed+60%` in current builds, and with it add 17 %.
        beside_block: usize = 4, off 0;
        /// Attempts: how many sizes are hidden.
        hidings: usize = 4, off 0;
        /// One part in so many of a budget is left free by the next attempt, so that other barriers fit ...
        spare: u64 = 20_000, off u64::MAX;
        /// ... and this part where the runtime's settings add to a plan what only the plan itself tells; ...
        spare_for_settings: u64 = 2_000, off u64::MAX;
        /// ... the next attempt after it so many times as much.
        more_spare: u64 = 4, off 1;
        /// Barriers have one output for so many nodes, where a plan needs many of them.
        nodes_for_output: u64 = 4, off u64::MAX;
        /// Barriers are too many where they take more than one part in so many of what a plan adds ...
        many_barriers: u64 = 4, off 1;
        /// ... and more than one part in so many of a step's time.
        notable: u64 = 200, off u64::MAX;
        /// Plans with fewer barriers leave them one part in so many of what a step takes, each time once more.
        room_for_barriers: u64 = 50, off u64::MAX;
        /// What the settings add to a quick plan may be more for the one that is made, by one part in so many.
        altered: u64 = 2, off u64::MAX;
        /// A plan that adds one part in so many of the step's time or less stands: nobody else is asked.
        stands_below: u64 = 20, off u64::MAX;
        /// One part in so many of a budget need not be used.
        unused_part: u64 = 400, off u64::MAX;
        /// Smaller budgets are tried down to one part in so many of what a step takes.
        worth_trying: u64 = 50, off u64::MAX;
        /// Peaks that differ by one part in so many are as good as the same: the cheapest of the plans that come so near the
        /// smallest peak is taken for it.
        same_peak: u64 = 200, off u64::MAX;
        /// What a quick look brings to at most one part in so many above the smallest of all, without what the caller owns,
        /// is looked at thoroughly for the smallest peak.
        within_reach: u64 = 20, off 1;
        /// Hiding sizes may take one part in so many of a step's time, ...
        hiding: u64 = 200, off u64::MAX;
        /// ... or this part where that is worth it: ...
        more_hiding: u64 = 50, off u64::MAX;
        /// ... where what a step needs falls by so many times the part by which its time grows.
        /// Without: vit_mae with a batch of 8 as a number adds 25 % at `fixed+70%`, not 5, and has no plan at `fixed+50%`; moe as much.
        hiding_saves: u64 = 4, off u64::MAX;
        /// ... so many times where barriers hide them.
        /// Without: three layers of attention of known sizes (`ATTENTION` in tests/stock_runs.rs) have no plan at `fixed+50%` in current builds.
        barriers_save: u64 = 1, off u64::MAX;
        /// Attempts: more sizes hidden by barriers for one plan, because those that keep its order take room as well.
        more_hidden: usize = 2, off 0;
        /// Variants are offered for nodes with one part in so many of the peak at stake.
        worth: u64 = 200, off u64::MAX;
        /// Gradients are computed slice by slice where a node needs more than all but one part in so many of what the one needs that
        /// needs most: there would be two of three tensors at a time, then, in place of three.
        sliced: u64 = 3, off u64::MAX;
        /// That is tried where nothing else fits, and for budgets that leave at most one part in so many more than what one node
        /// needs ...
        room_without_slices: u64 = 32, off u64::MAX;
        /// ... if what fits adds more than one part in so many of a step's time.
        dear_without_slices: u64 = 10, off u64::MAX;
        /// An own plan stands only if barriers are at most one part in so many of what it adds ...
        few_barriers: u64 = 8, off 1;
        /// ... or at most one part in so many of a step's time.
        free_barriers: u64 = 2_000, off u64::MAX;
        /// A plan that holds in every order and at every level may add one part in so many of a step's time more than one that holds in
        /// the usual session.
        for_every_session: u64 = 1_000, off u64::MAX;
        /// Where levels are alike, a plan that holds in every session stands if barriers and other forms add one part in so many of a
        /// step's time or less: a plan for the usual session alone added as much on resnet18, googlenet and mobilenet_v2.
        barriers_for_every_session: u64 = 100, off u64::MAX;
        /// Levels at which what a graph takes differs by one part in so many, or less, are alike.
        /// With 64, moe at `fixed+50%`, where they differ by 1.4 %, adds 6.7 % in the usual session, not 5.3.
        alike: u64 = 200, off u64::MAX;
        /// Where they are, one part in so many of what a budget leaves is little.
        little: u64 = 64, off u64::MAX;
        /// A quick plan tells what the settings add to one.
        sketched: bool = true, off false;
        /// Sizes are hidden from the memory pattern.
        hidden: bool = true, off false;
        /// Running sums are decided before the search.
        sums: bool = true, off false;
        /// What is planned with variants is planned without them as well.
        fewer_variants: bool = true, off false;
        /// The smallest peak is looked for with fewer barriers as well.
        with_fewer_barriers: bool = true, off false;
        /// The published planners that are asked where the own plan is dear: those that are quick.
        published: &'static [Strategy] = &[
            Strategy::ChenSqrt,
            Strategy::ChenBudget,
            Strategy::ChenRecursive,
            Strategy::LowerSetApproxMemory,
            Strategy::LowerSetApproxTime,
            Strategy::PreciseDp,
            Strategy::UniformDp,
            Strategy::Revolve,
            Strategy::JoinDp,
            Strategy::Knapsack,
            Strategy::CheapOps,
            Strategy::GreedyRemat,
        ], off &[];
        /// Those that are asked where memory is shortest: what they plan takes little, and the own search does not begin with it.
        published_for_little: &'static [Strategy] = &[
            Strategy::PreciseDp,
            Strategy::UniformDp,
            Strategy::Revolve,
            Strategy::JoinDp,
            Strategy::GreedyRemat,
        ], off &[];
    }
}
