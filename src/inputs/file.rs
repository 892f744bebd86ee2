//! The file that an option names.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::onnx::{LONGEST, kind};

/// What it holds. What is no regular file is refused before it is opened: to open a pipe would wait for its writer, and a
/// device may never end.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let metadata = fs::metadata(path)?;
    if let Some(what) = kind(&metadata) {
        return Err(refused(format!("expected a file, but this is {what}")));
    }
    let mut bytes = Vec::new();
    // Files that the system makes up say nothing of their length.
    let read = File::open(path)?.take(LONGEST + 1).read_to_end(&mut bytes);
    match read? as u64 > LONGEST {
        true => Err(refused(format!("expected at most {LONGEST} bytes"))),
        false => Ok(bytes),
    }
}

fn refused(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
