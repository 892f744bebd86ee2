//! The shell around [`ckpt_passes`]: command line, ONNX files, reports.

pub mod onnx;
