//! What a graph costs as it stands: execution order, liveness, time.

pub mod cost;
