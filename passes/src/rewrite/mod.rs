//! Applying: one pass per file. Applying never decides; what to do is in a pass's fields.

pub mod apply_variants;
pub mod infer_shapes;
pub mod insert_mirrors;
pub mod take_apart;
