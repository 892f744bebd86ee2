//! What a graph costs as it stands: execution order, liveness, time.

pub mod cost;
pub mod liveness;
pub mod order;
pub mod recompute;
pub mod sequences;
pub(crate) mod skeleton;
