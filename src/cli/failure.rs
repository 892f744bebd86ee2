//! Why a command did not do what it was asked to do.

use std::io;
use std::path::PathBuf;

use serde::Serialize;
use thiserror::Error;

use crate::error::Error;
use crate::error_code::{self, Code};
use crate::json::line;
use crate::text::{bounded, on_one_line};

/// Why a command did not do what it was asked to do.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
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
    #[error(
        "standard output is closed, where the written graph would go; give OUT a name, or lead the output to a file or a program"
    )]
    Closed,
    #[error("cannot read standard input: {0}")]
    Input(io::Error),
    #[error("cannot print the result: {0}")]
    Print(io::Error),
}

/// What `--json` prints of a failure. Other people's scripts rely on the names.
#[derive(Serialize)]
struct Failed {
    error: &'static str,
    message: String,
    help: String,
    /// These where no plan fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    smallest_peak_bytes: Option<u64>,
}

impl Failure {
    /// One JSON object, with a line feed.
    pub(crate) fn json(&self) -> String {
        let infeasible = match self {
            Failure::Library(error) => error.infeasible(),
            _ => None,
        };
        line(&Failed {
            error: self.code().name,
            message: bounded(&self.to_string()),
            help: bounded(&self.remedy()),
            budget_bytes: infeasible.map(|(budget, _)| budget.0),
            smallest_peak_bytes: infeasible.map(|(_, smallest)| smallest.bytes.0),
        })
    }

    /// For people: all lines are this program's, whatever is in names from files.
    pub(crate) fn explained(&self) -> String {
        match self {
            Failure::Library(error) => error.explained(),
            other => on_one_line(&other.to_string()),
        }
    }

    /// What kind of trouble it is.
    pub(crate) fn code(&self) -> Code {
        match self {
            Failure::Usage(_) => error_code::USAGE,
            Failure::Library(error) => error.code(),
            Failure::Report { .. } | Failure::Print(_) => error_code::CANNOT_WRITE,
            Failure::Terminal | Failure::Closed => error_code::CANNOT_WRITE,
            Failure::SameFile { .. } => error_code::REPLACES,
            Failure::Input(_) => error_code::UNREADABLE,
        }
    }

    /// What to do about it.
    pub(crate) fn remedy(&self) -> String {
        match self {
            Failure::Library(error) => error.remedy(),
            other => other.code().remedy.to_owned(),
        }
    }
}
