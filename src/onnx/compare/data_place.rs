//! Where a tensor's contents lie, if in another file.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::difference::Difference;
use super::fields::fields;
use crate::onnx::file::FileIdentity;
use crate::onnx::schema::external_data as entry;
use crate::onnx::schema::tensor;
use crate::onnx::tensor::text;
use crate::onnx::wire::Message;

/// What `external_data` says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DataPlace {
    pub(super) location: String,
    offset: Option<String>,
    length: Option<String>,
    /// Keys and values that are not known.
    pub(super) others: Vec<(String, String)>,
}

/// A part of a file that is there.
pub(super) struct Extent {
    identity: FileIdentity,
    offset: u64,
    pub(super) length: u64,
    pub(super) file: File,
}

impl Extent {
    /// Is it the very same part, so that nothing has to be read?
    pub(super) fn is(&self, other: &Extent) -> bool {
        self.identity == other.identity
            && (self.offset, self.length) == (other.offset, other.length)
    }
}

impl DataPlace {
    /// `None`: the tensor has no such entries.
    pub(super) fn of(pieces: &[Message<'_>]) -> Result<Option<DataPlace>, Difference> {
        let mut place: Option<DataPlace> = None;
        for field in fields(pieces) {
            let field = field?;
            if field.number != tensor::EXTERNAL_DATA {
                continue;
            }
            let (mut key, mut value) = (String::new(), String::new());
            for part in field.message()?.fields() {
                let part = part?;
                match part.number {
                    entry::KEY => key = text(part.message()?)?,
                    entry::VALUE => value = text(part.message()?)?,
                    number => {
                        return Err(Difference::new(format!(
                            "external_data has field {number}, which is not known"
                        )));
                    }
                }
            }
            let place = place.get_or_insert_default();
            match key.as_str() {
                "location" => place.location = value,
                "offset" => place.offset = Some(value),
                "length" => place.length = Some(value),
                _ => place.others.push((key, value)),
            }
        }
        Ok(place)
    }

    /// How messages call it.
    pub(super) fn show(&self) -> String {
        let number = |number: &Option<String>| number.clone().unwrap_or_else(|| "?".to_owned());
        format!(
            "{:?} at offset {}, {} bytes",
            self.location,
            self.offset.as_deref().unwrap_or("0"),
            number(&self.length)
        )
    }

    /// The part of the file, found in `folder`. Where no length is said, it is `size`, or the rest of the file.
    pub(super) fn open(&self, folder: Option<&Path>, size: Option<u64>) -> io::Result<Extent> {
        let other = |what: &str| io::Error::other(what.to_owned());
        let folder = folder.ok_or_else(|| other("the model is not in a folder"))?;
        let number = |text: &Option<String>| {
            let parsed = text.as_ref().map(|text| text.parse::<u64>());
            parsed
                .transpose()
                .map_err(|_| other("offset or length is no number"))
        };
        let (offset, length) = (number(&self.offset)?.unwrap_or(0), number(&self.length)?);
        let path = folder.join(&self.location);
        // Before opening: to open a pipe would wait for its writer.
        let metadata = fs::metadata(&path)?;
        if !metadata.is_file() {
            return Err(other("not a regular file"));
        }
        let rest = metadata.len().checked_sub(offset);
        let length = length.or(size).or(rest).unwrap_or(0);
        if rest.is_none_or(|rest| rest < length) {
            return Err(other("the file ends before the tensor does"));
        }
        let mut file = File::open(&path)?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(Extent {
            identity: FileIdentity::of(&path)?,
            offset,
            length,
            file,
        })
    }
}

/// Reads until the block is full or nothing is left.
pub(super) fn fill(from: &mut impl Read, block: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < block.len() {
        match from.read(&mut block[filled..]) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
