//! ckpt-opt as a library: a training graph in, an equivalent one that fits a memory budget out.
//!
//! ```
//! use ckpt_opt::{Model, Options, optimize};
//!
//! # fn main() -> Result<(), ckpt_opt::Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let out = folder.path().join("out.onnx");
//! let model = Model::open("testdata/models/triplet.onnx".as_ref())?;
//! let mut options = Options::default();
//! options.dims.insert("batch".to_owned(), 4);
//! let rewritten = optimize(&model, &"fixed+70%".parse()?, &options)?;
//! let summary = rewritten.summary();
//! assert!(summary.after.bytes <= summary.budget && summary.budget < summary.before.bytes);
//! println!("{} -> {}, {:.1} % more time", summary.before.bytes, summary.after.bytes, 100.0 * summary.overhead());
//! rewritten.write(&out)?;
//! # assert!(out.is_file());
//! # Ok(())
//! # }
//! ```
//!
//! | question | call |
//! |---|---|
//! | What does a step need, and what holds its peak? | [`inspect()`] |
//! | What does this budget cost, and where is the graph? | [`optimize`], [`Rewritten::write`] |
//! | What do many budgets cost? | [`sweep()`] |
//! | What is the largest batch that fits? | [`largest()`] |
//! | Does that file compute what this one does? | [`verify()`] |
//! | Can a runtime without training run it? | [`lower()`], [`LoweredModel::write`] |
//!
//! Nothing here prints, reads arguments or ends the program. [`Options::control`] tells of what is being done, and ends
//! it early. The command line (`cli`) is one caller of all this.

#![deny(unsafe_code)]

pub mod cli;
mod control;
pub mod conv_table;
pub mod cudnn;
mod error;
mod error_code;
pub mod inputs;
mod inspect;
mod job;
mod json;
mod largest;
mod lower;
pub mod onnx;
mod options;
mod products;
mod provenance;
pub mod report;
mod rewrite;
mod session;
mod signals;
#[cfg(feature = "highs")]
pub mod solver;
mod sweep;
mod text;
mod verify;
mod warnings;

pub use ckpt_passes::bytes::Bytes;

pub use control::{Cancel, Control, Event, OnEvent, Warning};
pub use error::Error;
pub use error_code::Code;
pub use inputs::Budget;
pub use inspect::{Inspection, inspect};
pub use largest::{Attempt, Largest, largest};
pub use lower::{LoweredModel, lower};
pub use onnx::Model;
pub use options::Options;
pub use report::rows::{Cell, Comparison, Fitting, Tried};
pub use rewrite::{Prepared, Rewritten, Target, optimize};
pub use session::Session;
pub use sweep::{sweep, usual_budgets};
pub use verify::{Claim, Verification, verify};
