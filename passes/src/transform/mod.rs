//! Rewriting: one pass per file. Rewriting never decides; what to do is in a pass's fields.

pub mod apply_variants;
pub mod colour_shapes;
pub mod enforce_order;
pub mod hide_sizes;
pub mod infer_shapes;
pub mod insert_mirrors;
pub mod keep_apart;
mod parts;
pub mod release_unread;
pub mod take_apart;
pub mod unmark_fused;
