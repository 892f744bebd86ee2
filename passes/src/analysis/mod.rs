//! What a graph costs as it stands, and what may be repeated in it.

pub mod cost;
pub mod mirrors;
pub mod overwrites;
pub mod recompute;
pub mod sequences;
