//! A file that is written, but not yet in its place.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use super::destination::Destination;
use super::export_error::ExportError;
use crate::signals;

/// Where the bytes of a model go.
#[derive(Clone, Debug)]
pub(crate) enum Sink {
    /// To a file.
    File(Destination),
    /// To whoever reads the program's standard output.
    Output,
}

/// A complete file, safely on disk: beside its destination, or where temporary files lie if it goes to
/// standard output. Dropping it removes it.
#[derive(Debug)]
pub struct Pending {
    /// `None` when it is in its place.
    temporary: Option<TempPath>,
    path: PathBuf,
    sink: Sink,
}

impl Pending {
    /// Writes a new file beside its destination, with the rights that it has or would get.
    pub(crate) fn write(
        sink: Sink,
        contents: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    ) -> Result<Pending, ExportError> {
        let name = sink.name();
        Pending::written(sink, contents).map_err(|error| ExportError::Write { path: name, error })
    }

    fn written(
        sink: Sink,
        contents: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    ) -> io::Result<Pending> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".ckpt-opt-").suffix(".tmp");
        let folder = match &sink {
            Sink::File(destination) => {
                #[cfg(unix)]
                {
                    use std::os::unix::fs::PermissionsExt;
                    // As any new file: the system takes away what the user's umask says.
                    builder.permissions(fs::Permissions::from_mode(0o666));
                }
                destination.folder.clone()
            }
            Sink::Output => std::env::temp_dir(),
        };
        let made = signals::begin(|| builder.tempfile_in(&folder), |file| file.path())?;
        let (file, temporary) = made.into_parts();
        // From here on, dropping it removes the file whatever fails.
        let pending = Pending {
            path: temporary.to_path_buf(),
            temporary: Some(temporary),
            sink,
        };
        let mut out = BufWriter::with_capacity(1 << 16, &file);
        contents(&mut out)?;
        out.flush()?;
        drop(out);
        if let Sink::File(destination) = &pending.sink {
            if destination.existing.is_some() {
                file.set_permissions(fs::metadata(&destination.path)?.permissions())?;
            }
            file.sync_all()?;
        }
        Ok(pending)
    }

    /// The file, to be checked.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the file to its destination, in one step; or writes it all to standard output.
    pub fn commit(mut self) -> Result<(), ExportError> {
        let Some(temporary) = self.temporary.take() else {
            return Ok(());
        };
        let ended = match &self.sink {
            Sink::File(destination) => signals::finish(&self.path, || {
                // Dropping what was refused removes it.
                let moved = temporary.persist(&destination.path);
                moved.map_err(|refused| refused.error)
            })
            // Only now does the new name survive a crash.
            .and_then(|()| sync(&destination.folder)),
            Sink::Output => {
                let copied = copy_to_output(&self.path);
                self.temporary = Some(temporary);
                copied
            }
        };
        ended.map_err(|error| ExportError::Write {
            path: self.sink.name(),
            error,
        })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            signals::finish(&self.path, || drop(temporary));
        }
    }
}

impl Sink {
    /// As errors call it.
    pub(crate) fn name(&self) -> PathBuf {
        match self {
            Sink::File(destination) => destination.name.clone(),
            Sink::Output => PathBuf::from("standard output"),
        }
    }
}

#[cfg(unix)]
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all())
}

#[cfg(not(unix))]
fn sync(_: &Path) -> io::Result<()> {
    Ok(())
}

fn copy_to_output(path: &Path) -> io::Result<()> {
    let mut out = io::stdout().lock();
    io::copy(&mut File::open(path)?, &mut out)?;
    out.flush()
}
