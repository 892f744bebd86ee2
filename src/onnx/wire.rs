//! Walks protobuf messages one level at a time, on slices of the file's bytes.
//!
//! Nothing is copied, and every field keeps its place in the file, so that a writer can splice.
//! Protobuf lets a message lie in several pieces (a message field that occurs twice is merged,
//! which is the same as reading the pieces one after the other); callers walk piece by piece.

use std::ops::Range;

use prost::encoding::{self, DecodeContext, WireType};
use thiserror::Error;

/// Why bytes are not a protobuf message. Places count from the beginning of the file, or, when
/// reported of a node, from the beginning of the tensor or subgraph that the node holds.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum WireError {
    #[error("no field starts at byte {at}")]
    Key { at: usize },
    #[error("the number at byte {at} is cut off or takes more than 64 bits")]
    Number { at: usize },
    #[error(
        "field {field} at byte {at} claims {claimed} bytes where only {left} are left: \
         the file is truncated or damaged"
    )]
    PastEnd {
        field: u32,
        at: usize,
        claimed: u64,
        left: usize,
    },
    #[error("the group (field {field}) at byte {at} does not end")]
    Group { field: u32, at: usize },
    #[error("the text at byte {at} is not UTF-8")]
    Text { at: usize },
    #[error("field {field} at byte {at} should be {expected}")]
    Kind {
        field: u32,
        at: usize,
        expected: &'static str,
    },
}

/// The bytes of a message, and where in the file they start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) start: usize,
}

/// One field of a message.
#[derive(Clone, Debug)]
pub(crate) struct Field<'a> {
    pub(crate) number: u32,
    pub(crate) value: Value<'a>,
    /// All of it in the file: key, length, contents.
    pub(crate) span: Range<usize>,
}

/// What a field holds, by its wire type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Fixed32(u32),
    Fixed64(u64),
    Bytes(Message<'a>),
    /// With the key that ends it.
    Group(Message<'a>),
}

impl<'a> Message<'a> {
    /// The part `range` of the file.
    pub(crate) fn of(file: &'a [u8], range: &Range<usize>) -> Message<'a> {
        Message {
            bytes: &file[range.clone()],
            start: range.start,
        }
    }

    /// Where it lies in the file.
    pub(crate) fn range(self) -> Range<usize> {
        self.start..self.start + self.bytes.len()
    }

    /// Its fields, in order. Ends after the first error.
    pub(crate) fn fields(self) -> Fields<'a> {
        Fields { rest: self }
    }
}

impl<'a> Field<'a> {
    /// The contents of a string, bytes, packed or message field.
    pub(crate) fn message(&self) -> Result<Message<'a>, WireError> {
        match self.value {
            Value::Bytes(message) => Ok(message),
            _ => Err(self.kind("a message or a string")),
        }
    }

    /// The contents of an integer field.
    pub(crate) fn varint(&self) -> Result<u64, WireError> {
        match self.value {
            Value::Varint(value) => Ok(value),
            _ => Err(self.kind("an integer")),
        }
    }

    /// The values of a repeated number: one, or many where they are packed, as bit patterns.
    pub(crate) fn numbers(&self, width: Width) -> Result<Vec<u64>, WireError> {
        match (self.value, width) {
            (Value::Varint(value), Width::Varint) => Ok(vec![value]),
            (Value::Fixed32(value), Width::Fixed32) => Ok(vec![value.into()]),
            (Value::Fixed64(value), Width::Fixed64) => Ok(vec![value]),
            (Value::Bytes(packed), Width::Varint) => {
                let mut rest = packed;
                let mut values = Vec::new();
                while !rest.bytes.is_empty() {
                    values.push(rest.varint()?);
                }
                Ok(values)
            }
            (Value::Bytes(packed), Width::Fixed32) if packed.bytes.len() % 4 == 0 => {
                let words = packed.bytes.chunks_exact(4);
                Ok(words.map(little_endian).collect())
            }
            (Value::Bytes(packed), Width::Fixed64) if packed.bytes.len() % 8 == 0 => {
                let words = packed.bytes.chunks_exact(8);
                Ok(words.map(little_endian).collect())
            }
            _ => Err(self.kind("numbers")),
        }
    }

    fn kind(&self, expected: &'static str) -> WireError {
        WireError::Kind {
            field: self.number,
            at: self.span.start,
            expected,
        }
    }
}

/// How a repeated number is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Varint,
    Fixed32,
    Fixed64,
}

/// Up to eight bytes, least significant first.
pub(crate) fn little_endian(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// Iterates over the fields of a message.
pub(crate) struct Fields<'a> {
    rest: Message<'a>,
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.bytes.is_empty() {
            return None;
        }
        let field = self.rest.field();
        if field.is_err() {
            self.rest.bytes = &[];
        }
        Some(field)
    }
}

impl<'a> Message<'a> {
    fn field(&mut self) -> Result<Field<'a>, WireError> {
        let at = self.start;
        let mut rest = self.bytes;
        let (number, wire) = encoding::decode_key(&mut rest).map_err(|_| WireError::Key { at })?;
        self.skip_to(rest);
        let value = match wire {
            WireType::Varint => Value::Varint(self.varint()?),
            WireType::ThirtyTwoBit => {
                Value::Fixed32(little_endian(self.take(number, 4)?.bytes) as u32)
            }
            WireType::SixtyFourBit => Value::Fixed64(little_endian(self.take(number, 8)?.bytes)),
            WireType::LengthDelimited => {
                let length = self.varint()?;
                Value::Bytes(self.take(number, length)?)
            }
            // prost limits the nesting of groups itself.
            WireType::StartGroup => {
                let mut rest = self.bytes;
                encoding::skip_field(wire, number, &mut rest, DecodeContext::default())
                    .map_err(|_| WireError::Group { field: number, at })?;
                let contents = Message {
                    bytes: &self.bytes[..self.bytes.len() - rest.len()],
                    start: self.start,
                };
                self.skip_to(rest);
                Value::Group(contents)
            }
            WireType::EndGroup => return Err(WireError::Key { at }),
        };
        Ok(Field {
            number,
            value,
            span: at..self.start,
        })
    }

    /// The next of packed numbers.
    pub(crate) fn number(&mut self, field: u32, width: Width) -> Result<u64, WireError> {
        match width {
            Width::Varint => self.varint(),
            Width::Fixed32 => Ok(little_endian(self.take(field, 4)?.bytes)),
            Width::Fixed64 => Ok(little_endian(self.take(field, 8)?.bytes)),
        }
    }

    fn varint(&mut self) -> Result<u64, WireError> {
        let mut rest = self.bytes;
        let value =
            encoding::decode_varint(&mut rest).map_err(|_| WireError::Number { at: self.start })?;
        self.skip_to(rest);
        Ok(value)
    }

    fn take(&mut self, field: u32, length: u64) -> Result<Message<'a>, WireError> {
        let left = self.bytes.len();
        let Some(length) = usize::try_from(length)
            .ok()
            .filter(|&length| length <= left)
        else {
            return Err(WireError::PastEnd {
                field,
                at: self.start,
                claimed: length,
                left,
            });
        };
        let (taken, rest) = self.bytes.split_at(length);
        let message = Message {
            bytes: taken,
            start: self.start,
        };
        self.skip_to(rest);
        Ok(message)
    }

    fn skip_to(&mut self, rest: &'a [u8]) {
        self.start += self.bytes.len() - rest.len();
        self.bytes = rest;
    }
}
