//! Rewriting: one pass per file. Rewriting never decides; what to do is in a pass's fields.

pub mod enforce_order;
pub mod insert_mirrors;
