//! What is known of ONNX Runtime: in which orders it runs a graph, what it makes of the graph before, and how much memory
//! each step takes then. Outside this room releases differ only by what [`Release`] says.
//!
//! | question | file |
//! |---|---|
//! | Which release, which settings, for which sessions? | `release`, `settings`, `level`, `promise` |
//! | In which order do nodes run? | `order`, `memory_efficient_order` |
//! | What does the planner see of a graph? | `skeleton` |
//! | What is a node to the optimizer, and what becomes of the graph? | `fusing`, `fused_graph`, `merged`, `folding`, `default_attributes` |
//! | What do Transposes do, and how does one get behind a node? | `transposes`, `moving` |
//! | What does the optimizer do that a plan has to prevent, or to keep? | `fused_pairs`, `blocks` |
//! | What is taken apart, because there is no kernel? | `functions` |
//! | What is in 16 bits: kernels, casts, roundings? | `half`, `casting` (what a node is to casts), `casts` (where they stand), `rounding` |
//! | What is known of shapes by the file, by a node, by names, once optimized? | `known_shapes`, `inferred_shapes`, `named_sizes`, `propagation`, `optimized_shapes` |
//! | What shares memory, what does a step take, and a session? | `allocation`, `memory_pattern`, `arena`, `liveness`, `bodies` |
//! | What are all ways to run a graph, and what does the search see? | `executions`, `as_run` |
//! | How does a barrier look? | `barrier_kind`, `barrier` |
//! | What does a device do? | `device`, `convolutions`, `convolution_costs` |

pub(crate) mod allocation;
pub(crate) mod arena;
pub(crate) mod as_run;
pub(crate) mod barrier;
pub(crate) mod barrier_kind;
pub mod blocks;
pub(crate) mod bodies;
pub(crate) mod casting;
pub(crate) mod casts;
pub mod convolution_costs;
pub mod convolutions;
pub(crate) mod default_attributes;
pub mod device;
pub mod executions;
pub(crate) mod folding;
pub mod functions;
pub mod fused_graph;
pub mod fused_pairs;
pub mod fusing;
mod half;
pub mod inferred_shapes;
pub mod known_shapes;
pub mod level;
pub mod liveness;
mod memory_efficient_order;
pub(crate) mod memory_pattern;
pub(crate) mod merged;
pub(crate) mod moving;
mod named_sizes;
pub mod optimized_shapes;
pub mod order;
pub mod promise;
mod propagation;
mod release;
pub(crate) mod rounding;
pub mod settings;
pub(crate) mod skeleton;
pub mod transposes;

use promise::Promise;
use settings::RuntimeSettings;

pub use release::{Release, STOCK, STOCK_WITH_COLUMNS, TRAINING, is_for_training};

/// What a graph is planned for and written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Which release runs it.
    pub release: &'static Release,
    /// How a session uses memory.
    pub settings: RuntimeSettings,
    /// For which of its sessions a budget holds.
    pub promise: Promise,
}

impl Runtime {
    /// As sessions of the release that trains run unless told otherwise.
    pub const DEFAULT: Runtime = Runtime::of(RuntimeSettings::DEFAULT);

    /// Without what is planned ahead.
    pub const LEAN: Runtime = Runtime::of(RuntimeSettings::LEAN);

    /// The release that trains, in these settings.
    pub const fn of(settings: RuntimeSettings) -> Runtime {
        TRAINING.with(settings)
    }

    /// Is there a block for a whole step in which all results lie but those of the graph? What these take comes on top, and at the end
    /// of the step all of them are there: what counts in any order is the most that the others need at a time.
    pub fn keeps_results_apart(self) -> bool {
        self.settings.pattern && self.release.pattern == release::PatternOf::FirstStep
    }
}

impl Release {
    /// In these settings, for any session.
    pub const fn with(&'static self, settings: RuntimeSettings) -> Runtime {
        Runtime {
            release: self,
            settings,
            promise: Promise::ANY,
        }
    }
}

/// Can the CPU compute the node in float16? Tests hold verification's opinion against it.
#[cfg(test)]
pub(crate) fn rounds_in_half(graph: &crate::graph::Graph, node: &crate::graph::Node) -> bool {
    matches!(half::half(graph, node), half::Half::Kernel { .. })
}
