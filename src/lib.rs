//! The shell around [`ckpt_passes`]: command line, ONNX files, reports.
//!
//! Start at [`run::rewrite`]: from the file that is read to the file that is written.

#![deny(unsafe_code)]

pub mod cli;
pub mod compare;
pub mod conv_table;
pub mod cudnn;
pub mod onnx;
pub mod report;
pub mod run;
mod signals;
#[cfg(feature = "highs")]
pub mod solver;
