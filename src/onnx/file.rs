//! Files as the system knows them: which one a name stands for, what kind it is, whether it has changed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What changes when a file does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    length: u64,
    modified: Option<SystemTime>,
}

impl FileState {
    pub(crate) fn of(file: &File) -> io::Result<FileState> {
        let metadata = file.metadata()?;
        Ok(FileState {
            length: metadata.len(),
            modified: metadata.modified().ok(),
        })
    }
}

/// Tells whether two paths name one file, whatever links lead there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    #[cfg(unix)]
    device_and_inode: (u64, u64),
    #[cfg(not(unix))]
    path: PathBuf,
}

/// The folder that a file lies in.
pub(crate) fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

impl FileIdentity {
    pub(crate) fn of(path: &Path) -> io::Result<FileIdentity> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let metadata = std::fs::metadata(path)?;
            Ok(FileIdentity {
                device_and_inode: (metadata.dev(), metadata.ino()),
            })
        }
        #[cfg(not(unix))]
        Ok(FileIdentity {
            path: std::fs::canonicalize(path)?,
        })
    }
}

/// What a thing is that is no regular file, in words that complete "it is ...".
pub(crate) fn kind(metadata: &fs::Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return Some("a pipe");
        }
        if kind.is_socket() {
            return Some("a socket");
        }
        if kind.is_char_device() || kind.is_block_device() {
            return Some("a device");
        }
    }
    match () {
        () if kind.is_file() => None,
        () if kind.is_dir() => Some("a folder"),
        () => Some("not a regular file"),
    }
}
