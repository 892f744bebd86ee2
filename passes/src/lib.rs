//! The pure core of ckpt-opt. No file, protobuf or terminal is known here.
//!
//! Start at [`optimize::optimize_usual`] and [`optimize::optimize_each`]: from a [`graph::Graph`] to a rewritten one.

#[cfg(feature = "ablation")]
pub mod ablation;
pub mod analysis;
mod binomial;
pub mod bytes;
pub mod cost;
pub mod enforce;
pub mod graph;
pub mod lower;
pub mod operators;
pub mod optimize;
mod parallel;
pub mod pass;
pub mod plan;
pub mod program;
mod random;
pub mod rewrite;
pub mod runtime;
pub mod search;
pub mod strategy;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tuning;
pub mod verify;
pub mod watch;
