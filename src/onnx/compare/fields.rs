//! The fields of messages that come in pieces.

use crate::onnx::wire::{Field, Fields, Message, Value, Width, WireError};

/// Of all pieces, one after another.
pub(super) fn fields<'m>(
    pieces: &'m [Message<'m>],
) -> impl Iterator<Item = Result<Field<'m>, WireError>> {
    pieces.iter().flat_map(|piece| piece.fields())
}

/// Do they hold the same?
pub(super) fn bytes(a: &Field<'_>, b: &Field<'_>) -> bool {
    encoded(a) == encoded(b)
}

/// What a field holds: its kind, and a number or bytes.
pub(super) fn encoded<'m>(field: &Field<'m>) -> (u8, u64, &'m [u8]) {
    match field.value {
        Value::Varint(value) => (0, value, &[]),
        Value::Fixed32(value) => (1, value.into(), &[]),
        Value::Fixed64(value) => (2, value, &[]),
        Value::Bytes(contents) => (3, 0, contents.bytes),
        Value::Group(contents) => (4, 0, contents.bytes),
    }
}

/// The values of a repeated number, one by one, as bit patterns.
pub(super) struct Numbers<'m> {
    pieces: &'m [Message<'m>],
    fields: Option<Fields<'m>>,
    packed: Option<Message<'m>>,
    number: u32,
    width: Width,
}

impl<'m> Numbers<'m> {
    pub(super) fn of(pieces: &'m [Message<'m>], number: u32, width: Width) -> Numbers<'m> {
        Numbers {
            pieces,
            fields: None,
            packed: None,
            number,
            width,
        }
    }

    fn step(&mut self) -> Result<Option<u64>, WireError> {
        loop {
            if let Some(packed) = self
                .packed
                .as_mut()
                .filter(|packed| !packed.bytes.is_empty())
            {
                return packed.number(self.number, self.width).map(Some);
            }
            let Some(fields) = &mut self.fields else {
                let Some((first, rest)) = self.pieces.split_first() else {
                    return Ok(None);
                };
                self.pieces = rest;
                self.fields = Some(first.fields());
                continue;
            };
            match fields.next().transpose()? {
                None => self.fields = None,
                Some(field) if field.number == self.number => match field.value {
                    Value::Bytes(packed) => self.packed = Some(packed),
                    _ => return Ok(field.numbers(self.width)?.first().copied()),
                },
                Some(_) => {}
            }
        }
    }
}

impl Iterator for Numbers<'_> {
    type Item = Result<u64, WireError>;

    fn next(&mut self) -> Option<Result<u64, WireError>> {
        self.step().transpose()
    }
}
