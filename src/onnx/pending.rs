//! A file that is written, but not yet in its place.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use super::export::ExportError;
use super::model::{FileIdentity, folder_of};

/// Where a file shall be written, found to be possible.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    pub(crate) folder: PathBuf,
    existing: Option<FileIdentity>,
}

impl Destination {
    /// A file, existing or new, in a folder that exists. (A symbolic link to a file counts as
    /// that file here, but will be replaced itself: then the model lies where its name says.)
    pub(crate) fn of(path: &Path) -> Result<Destination, ExportError> {
        let refused = |what| ExportError::NotAFile {
            path: path.to_owned(),
            what,
        };
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => {}
            Ok(metadata) if metadata.is_dir() => return Err(refused("a folder")),
            Ok(_) => return Err(refused("not a regular file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(ExportError::Write {
                    path: path.to_owned(),
                    error,
                });
            }
        }
        if path.file_name().is_none() {
            return Err(refused("no file name"));
        }
        let folder = folder_of(path);
        if !folder.is_dir() {
            return Err(ExportError::NoFolder {
                path: path.to_owned(),
                folder,
            });
        }
        let existing = FileIdentity::of(path).ok();
        Ok(Destination {
            path: path.to_owned(),
            folder,
            existing,
        })
    }

    /// Is there such a file already, and is it `file`?
    pub(crate) fn is(&self, file: &FileIdentity) -> bool {
        self.existing.as_ref() == Some(file)
    }
}

/// A complete file beside its destination, safely on disk. Dropping it removes it.
#[derive(Debug)]
pub struct Pending {
    temporary: TempPath,
    destination: Destination,
}

impl Pending {
    /// Writes a new file beside `destination`, with the rights that it has or would get.
    pub(crate) fn write(
        destination: Destination,
        contents: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    ) -> Result<Pending, ExportError> {
        let write = || {
            let mut builder = tempfile::Builder::new();
            builder.prefix(".ckpt-opt-").suffix(".tmp");
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt;
                // As any new file: the system takes away what the user's umask says.
                builder.permissions(fs::Permissions::from_mode(0o666));
            }
            let file = builder.tempfile_in(&destination.folder)?;
            let mut out = BufWriter::with_capacity(1 << 16, file.as_file());
            contents(&mut out)?;
            out.flush()?;
            drop(out);
            if destination.existing.is_some() {
                let permissions = fs::metadata(&destination.path)?.permissions();
                file.as_file().set_permissions(permissions)?;
            }
            file.as_file().sync_all()?;
            Ok(file.into_temp_path())
        };
        let temporary = write().map_err(|error| ExportError::Write {
            path: destination.path.clone(),
            error,
        })?;
        Ok(Pending {
            temporary,
            destination,
        })
    }

    /// The file, to be checked.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Moves the file to its destination, in one step.
    pub fn commit(self) -> Result<(), ExportError> {
        let Destination { path, folder, .. } = self.destination;
        self.temporary
            .persist(&path)
            .map_err(|refused| ExportError::Write {
                path: path.clone(),
                error: refused.error,
            })?;
        // Only now does the new name survive a crash.
        #[cfg(unix)]
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| ExportError::Write { path, error })?;
        Ok(())
    }
}
