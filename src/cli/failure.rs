//! Why a command did not do what it was asked to do, and the exit status that says so.

use std::io;
use std::path::PathBuf;

use ckpt_passes::optimize::OptimizeError;
use thiserror::Error;

use crate::error::Error;

/// Why a command did not do what it was asked to do.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error("{}", .0.explained())]
    Library(#[from] Error),
    #[error("{}: cannot write the report: {error}", path.display())]
    Report { path: PathBuf, error: io::Error },
    #[error("{}: {one} and {other} name one file, which would be lost; give {one} another name", path.display())]
    SameFile {
        path: PathBuf,
        one: &'static str,
        other: String,
    },
    #[error(
        "the written graph is binary, and standard output is a terminal; give OUT a name, or lead the output to a file \
         or a program"
    )]
    Terminal,
    #[error("cannot read standard input: {0}")]
    Input(io::Error),
    #[error("cannot print the result: {0}")]
    Print(io::Error),
}

impl Failure {
    /// The exit status that tells a script what went wrong: 1 error, 2 usage, 3 no plan fits.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Library(error) if error.is_usage() => 2,
            Failure::Library(Error::Optimize { error, .. })
                if matches!(**error, OptimizeError::Infeasible { .. }) =>
            {
                3
            }
            _ => 1,
        }
    }
}
