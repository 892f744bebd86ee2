//! Messages being written: slices of the source file and, between them, new bytes.

use std::io::{self, Write};
use std::ops::Range;

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

/// What a message will consist of. Nothing of the source is copied before it is written out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Splice {
    pieces: Vec<Piece>,
    len: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Source(Range<usize>),
    New(Vec<u8>),
}

impl Splice {
    /// The length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Goes on with a part of the source.
    pub(crate) fn keep(&mut self, range: Range<usize>) {
        self.len += range.len() as u64;
        match self.pieces.last_mut() {
            Some(Piece::Source(last)) if last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => self.pieces.push(Piece::Source(range)),
        }
    }

    /// Goes on with new bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        match self.pieces.last_mut() {
            Some(Piece::New(last)) => last.extend_from_slice(bytes),
            _ => self.pieces.push(Piece::New(bytes.to_vec())),
        }
    }

    /// Goes on with a field that holds a string.
    pub(crate) fn add_text(&mut self, number: u32, text: &str) {
        self.add_length(number, text.len() as u64);
        self.add(text.as_bytes());
    }

    /// Goes on with a field that holds a new message.
    pub(crate) fn add_message(&mut self, number: u32, message: &impl Message) {
        let bytes = message.encode_to_vec();
        self.add_length(number, bytes.len() as u64);
        self.add(&bytes);
    }

    /// Goes on with a field that holds the message `contents`.
    pub(crate) fn add_field(&mut self, number: u32, contents: Splice) {
        self.add_length(number, contents.len);
        self.append(contents);
    }

    /// Goes on with all of `other`.
    pub(crate) fn append(&mut self, other: Splice) {
        for piece in other.pieces {
            match piece {
                Piece::Source(range) => self.keep(range),
                Piece::New(bytes) => self.add(&bytes),
            }
        }
    }

    /// Writes everything, taking the kept parts from `source`.
    pub(crate) fn write(&self, source: &[u8], out: &mut impl Write) -> io::Result<()> {
        for piece in &self.pieces {
            match piece {
                Piece::Source(range) => out.write_all(&source[range.clone()])?,
                Piece::New(bytes) => out.write_all(bytes)?,
            }
        }
        Ok(())
    }

    fn add_length(&mut self, number: u32, length: u64) {
        let mut prefix = Vec::with_capacity(5 + encoded_len_varint(length));
        encode_key(number, WireType::LengthDelimited, &mut prefix);
        encode_varint(length, &mut prefix);
        self.add(&prefix);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_parts_of_the_source_become_one() {
        let mut parts = Splice::default();
        parts.keep(0..2);
        parts.keep(2..4);
        let mut rest = Splice::default();
        rest.keep(4..5);
        parts.append(rest);
        let mut whole = Splice::default();
        whole.keep(0..5);
        assert_eq!(parts, whole);
    }

    #[test]
    fn lengths_are_those_of_what_is_written() {
        let mut inner = Splice::default();
        inner.keep(1..3);
        inner.add_text(2, "new");
        let mut outer = Splice::default();
        outer.add_field(1, inner);
        let mut out = Vec::new();
        outer.write(b"abcd", &mut out).unwrap();
        // Key 1 << 3 | 2 = 10, length 2 + 5; then "bc"; then key 2 << 3 | 2 = 18, length 3, "new".
        assert_eq!(out, b"\x0a\x07bc\x12\x03new");
        assert_eq!(outer.len(), out.len() as u64);
    }
}
