//! What a graph costs as it stands: execution order, memory, time.

pub mod algorithms;
pub(crate) mod allocation;
pub(crate) mod arena;
pub mod cost;
pub(crate) mod equal;
pub mod executions;
pub mod liveness;
mod memory_efficient;
pub mod mirrors;
mod named_sizes;
pub mod optimized;
pub mod order;
pub(crate) mod pattern;
pub mod recompute;
pub(crate) mod rounding;
pub mod sequences;
pub mod settings;
pub mod shapes;
pub(crate) mod skeleton;
