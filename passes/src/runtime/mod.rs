//! What is known of ONNX Runtime: in which orders it runs a graph, what it makes of the graph before, and how much memory
//! each step takes then. Nothing outside this room names a release of it.

pub(crate) mod allocation;
pub(crate) mod arena;
pub mod convolution_costs;
pub mod convolutions;
pub mod device;
pub(crate) mod equal;
pub mod executions;
pub mod liveness;
mod memory_efficient;
mod named_sizes;
pub mod optimized;
pub mod order;
pub(crate) mod pattern;
pub(crate) mod rounding;
pub mod settings;
pub mod shapes;
pub(crate) mod skeleton;
