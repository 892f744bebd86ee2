//! Random inputs for everything that `ckpt-opt` reads and makes. `docs/fuzzing.md` says how to run it.
//!
//! A [`Target`] makes an input of a [`Source`] and says what is wrong, if anything is. The same numbers make the
//! same input, so every finding can be repeated, and is made smaller by leaving numbers out.

pub mod finding;
pub mod limits;
mod mutants;
pub mod source;
pub mod targets;

pub use source::Source;
pub use targets::{TARGETS, Target};
