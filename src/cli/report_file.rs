//! The files of `--report`, `--session-options`, `--plot` and `--trace`.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::failure::Failure;
use crate::error::Error;
use crate::onnx::{Destination, FileIdentity, Pending, Sink, kind};

/// A file that is read, and what names it.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) option: String,
    pub(crate) path: PathBuf,
}

/// Where a report shall be written.
#[derive(Debug)]
pub(crate) struct ReportFile {
    option: &'static str,
    /// As the user called it.
    path: PathBuf,
    place: Place,
}

#[derive(Debug)]
enum Place {
    File(Destination),
    /// What can only be written to: a pipe, a terminal.
    Open,
    /// `-`.
    Output,
}

impl ReportFile {
    /// As the user called it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file that `option` names, found to be possible, and none of those that are read.
    pub(crate) fn at(
        option: &'static str,
        path: &Path,
        sources: &[Source],
    ) -> Result<ReportFile, Failure> {
        let is_open = || {
            let found = fs::metadata(path);
            found.is_ok_and(|found| !found.is_dir() && kind(&found).is_some())
        };
        let place = match () {
            () if path == Path::new("-") => Place::Output,
            () if is_open() => Place::Open,
            () => Place::File(Destination::of(path).map_err(Error::from)?),
        };
        if let Place::File(destination) = &place {
            replaces_none(option, destination, sources)?;
        }
        Ok(ReportFile {
            option,
            path: path.to_owned(),
            place,
        })
    }

    /// Is it to be written where `other` is?
    pub(crate) fn is_at(&self, other: &Sink) -> bool {
        match (&self.place, other) {
            (Place::File(a), Sink::File(b)) => a.is_same(b),
            (Place::Output, Sink::Output) => true,
            _ => false,
        }
    }

    /// Refuses two reports in one file; what can only be written to takes both.
    pub(crate) fn differs_from(&self, other: &ReportFile) -> Result<(), Failure> {
        match (&self.place, &other.place) {
            (Place::File(a), Place::File(b)) if a.is_same(b) => Err(Failure::SameFile {
                path: self.path.clone(),
                one: self.option,
                other: other.option.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Writes the report, all of it or nothing.
    pub(crate) fn write(self, text: &str) -> Result<(), Failure> {
        let written = match self.place {
            Place::File(destination) => {
                let sink = Sink::File(destination);
                let file = Pending::write(sink, |file| file.write_all(text.as_bytes()));
                file.and_then(Pending::commit).map_err(Error::from)?;
                Ok(())
            }
            Place::Open => fs::write(&self.path, text),
            Place::Output => {
                let mut out = io::stdout().lock();
                out.write_all(text.as_bytes()).and_then(|()| out.flush())
            }
        };
        written.map_err(|error| Failure::Report {
            path: self.path,
            error,
        })
    }
}

/// Refuses a file, named by `option`, that is one of those that are read, by whatever name.
pub(crate) fn replaces_none(
    option: &'static str,
    destination: &Destination,
    sources: &[Source],
) -> Result<(), Failure> {
    let read = sources
        .iter()
        .find(|source| FileIdentity::of(&source.path).is_ok_and(|file| destination.is(&file)));
    match read {
        None => Ok(()),
        Some(source) => Err(Failure::SameFile {
            path: destination.name.clone(),
            one: option,
            other: source.option.clone(),
        }),
    }
}
