//! The files of `--report`, `--session-options` and `--plot`.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::onnx::{Destination, Pending};
use crate::run::Failure;

/// Where a report shall be written.
#[derive(Debug)]
pub struct ReportFile {
    path: PathBuf,
    /// `None` for what can only be written to: a pipe, a terminal.
    destination: Option<Destination>,
}

impl ReportFile {
    /// A report at `path`, found to be possible, that replaces none of the files that are `taken`.
    pub fn at(path: &Path, taken: &[PathBuf]) -> Result<ReportFile, Failure> {
        let is_special =
            fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir());
        if taken.iter().any(|taken| is_same(path, taken)) {
            return Err(Failure::ReportOntoModel {
                path: path.to_owned(),
            });
        }
        Ok(ReportFile {
            path: path.to_owned(),
            destination: match is_special {
                true => None,
                false => Some(Destination::of(path)?),
            },
        })
    }

    /// Refuses two reports in one file; what can only be written to takes both.
    pub fn differs_from(&self, other: &ReportFile) -> Result<(), Failure> {
        if self.destination.is_some() && is_same(&self.path, &other.path) {
            return Err(Failure::ReportsClash {
                path: self.path.clone(),
            });
        }
        Ok(())
    }

    /// Writes the report, all of it or nothing.
    pub fn write(self, text: &str) -> Result<(), Failure> {
        match self.destination {
            Some(destination) => {
                Pending::write(destination, |file| file.write_all(text.as_bytes()))?.commit()?;
                Ok(())
            }
            None => fs::write(&self.path, text).map_err(|error| Failure::Report {
                path: self.path,
                error,
            }),
        }
    }
}

/// Do both paths name one file, now or once it is written?
fn is_same(a: &Path, b: &Path) -> bool {
    if let (Ok(a), Ok(b)) = (a.canonicalize(), b.canonicalize()) {
        return a == b;
    }
    let folder = |path: &Path| {
        let folder = path
            .parent()
            .filter(|folder| *folder != Path::new(""))
            .unwrap_or(Path::new("."));
        folder.canonicalize().ok()
    };
    a.file_name() == b.file_name() && folder(a) == folder(b)
}
