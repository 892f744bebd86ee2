//! Where a file shall be written, found to be possible before it is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::export_error::ExportError;
use super::file::{FileIdentity, folder_of, kind};

/// How many links to links are followed, as Linux does.
const MOST_LINKS: usize = 40;

/// A file, existing or new, that can be written.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    /// As the user called it.
    pub(crate) name: PathBuf,
    /// Where the file itself lies: behind all links.
    pub(crate) path: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) existing: Option<FileIdentity>,
}

impl Destination {
    /// Follows links to the file that they stand for, which is replaced while they stay. What is no
    /// regular file is refused, and so is a folder that nothing can be written to.
    pub(crate) fn of(name: &Path) -> Result<Destination, ExportError> {
        let refused = |what| ExportError::NotAFile {
            path: name.to_owned(),
            what,
        };
        let failed = |error| ExportError::Write {
            path: name.to_owned(),
            error,
        };
        if ends_with_slash(name) {
            // Only folders are called so; without the slash it may be right.
            return Err(refused(match name.is_dir() {
                true => "a folder",
                false => "the name of a folder, with a slash at the end",
            }));
        }
        let path = behind_links(name)?;
        match fs::metadata(&path) {
            Ok(metadata) => {
                if let Some(what) = kind(&metadata) {
                    return Err(refused(what));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if path != name {
                    return Err(ExportError::DanglingLink {
                        path: name.to_owned(),
                        target: path,
                    });
                }
            }
            Err(error) => return Err(failed(error)),
        }
        if path.file_name().is_none() {
            return Err(refused("no file name"));
        }
        let folder = folder_of(&path);
        if !folder.is_dir() {
            return Err(ExportError::NoFolder {
                path: name.to_owned(),
                folder,
            });
        }
        // The surest way to know that a file can be made there. This one has no name where the system
        // has such files, and is gone at once.
        tempfile::tempfile_in(&folder).map_err(|error| ExportError::Folder {
            path: name.to_owned(),
            folder: folder.clone(),
            error: error.kind().into(),
        })?;
        Ok(Destination {
            name: name.to_owned(),
            existing: FileIdentity::of(&path).ok(),
            path,
            folder,
        })
    }

    /// Is there such a file already, and is it `file`?
    pub(crate) fn is(&self, file: &FileIdentity) -> bool {
        self.existing.as_ref() == Some(file)
    }

    /// Do both name one file, now or once it is written?
    pub(crate) fn is_same(&self, other: &Destination) -> bool {
        match (&self.existing, &other.existing) {
            (Some(a), Some(b)) => a == b,
            (None, None) => {
                let folder = |one: &Destination| FileIdentity::of(&one.folder).ok();
                self.path.file_name() == other.path.file_name() && folder(self) == folder(other)
            }
            _ => false,
        }
    }
}

fn ends_with_slash(path: &Path) -> bool {
    let last = path.as_os_str().as_encoded_bytes().last();
    last.is_some_and(|&byte| std::path::is_separator(byte.into()))
}

/// What `name` stands for. Links into /proc (as `/dev/stdout` is one) stand for what a program has
/// open rather than for a name, and cannot be replaced.
fn behind_links(name: &Path) -> Result<PathBuf, ExportError> {
    let mut path = name.to_owned();
    for _ in 0..MOST_LINKS {
        let is_link = fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
        if !is_link {
            return Ok(path);
        }
        let folder = folder_of(&path);
        if folder
            .canonicalize()
            .is_ok_and(|folder| folder.starts_with("/proc"))
        {
            return Err(ExportError::OpenFile {
                path: name.to_owned(),
            });
        }
        let target = fs::read_link(&path).map_err(|error| ExportError::Write {
            path: name.to_owned(),
            error,
        })?;
        // A path from the root replaces the folder.
        path = folder.join(target);
    }
    Err(ExportError::NotAFile {
        path: name.to_owned(),
        what: "a link that leads to itself",
    })
}
