//! The files of `--report`, `--session-options`, `--plot`, `--trace`, `--depfile` and `--dump-after`.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::failure::Failure;
use crate::error::Error;
use crate::onnx::{Destination, FileIdentity, Pending, Sink, kind};
use crate::report::png::png;

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
            () => return ReportFile::regular(option, path, sources),
        };
        Ok(ReportFile {
            option,
            path: path.to_owned(),
            place,
        })
    }

    /// The same for what has to be a regular file.
    pub(crate) fn regular(
        option: &'static str,
        path: &Path,
        sources: &[Source],
    ) -> Result<ReportFile, Failure> {
        let destination = Destination::of(path).map_err(Error::from)?;
        replaces_none(option, &destination, sources)?;
        Ok(ReportFile {
            option,
            path: path.to_owned(),
            place: Place::File(destination),
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

    /// Refuses the name of a picture in a form that is not written.
    pub(crate) fn check_picture(&self) -> Result<(), Failure> {
        match self.path.extension() {
            Some(ending) if !self.ends_with(&["svg", "png"]) => Err(Failure::Usage(format!(
                "{} {} ends with .{}; expected .svg or .png",
                self.option,
                self.path.display(),
                ending.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Writes the report, all of it or nothing.
    pub(crate) fn write(self, text: &str) -> Result<(), Failure> {
        self.write_bytes(text.as_bytes())
    }

    /// Writes a picture, in the form that the file's name asks for.
    pub(crate) fn write_picture(self, svg: &str) -> Result<(), Failure> {
        match self.ends_with(&["png"]) {
            true => self.write_bytes(&png(svg).map_err(Error::from)?),
            false => self.write(svg),
        }
    }

    /// Does the file's name end with one of these, in capitals or not?
    pub(crate) fn ends_with(&self, endings: &[&str]) -> bool {
        let ending = self.path.extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| endings.iter().any(|one| ending.eq_ignore_ascii_case(one)))
    }

    fn write_bytes(self, bytes: &[u8]) -> Result<(), Failure> {
        let written = match self.place {
            Place::File(destination) => {
                let sink = Sink::File(destination);
                let file = Pending::write(sink, |file| file.write_all(bytes));
                file.and_then(Pending::commit).map_err(Error::from)?;
                Ok(())
            }
            Place::Open => fs::write(&self.path, bytes),
            Place::Output => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
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
