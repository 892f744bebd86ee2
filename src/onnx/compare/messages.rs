//! Two messages side by side.

use super::contents::{Sides, contents};
use super::difference::Difference;
use super::rules::{Kind, Rule, field_name, rule};
use crate::onnx::schema::{attribute, graph, node, tensor};
use crate::onnx::tensor::text;
use crate::onnx::wire::{Field, Message, Value, Width, WireError};

/// Messages nested deeper are compared as bytes; protobuf's own readers refuse them.
const DEEPEST: usize = 100;

/// Are the messages that the pieces make up the same?
pub(super) fn message(
    sides: &Sides,
    kind: Kind,
    a: &[Message<'_>],
    b: &[Message<'_>],
) -> Result<(), Difference> {
    if let ([a], [b]) = (a, b)
        && sides.equal(a.bytes, b.bytes)
    {
        return Ok(());
    }
    let Some(sides) = sides.deeper(DEEPEST) else {
        let same = a.iter().map(|m| m.bytes).eq(b.iter().map(|m| m.bytes));
        return same
            .then_some(())
            .ok_or_else(|| Difference::new("it is nested too deep, and differs"));
    };
    numbered(&sides, kind, a, b)?;
    match kind {
        Kind::Tensor => contents(&sides, a, b),
        _ => Ok(()),
    }
}

/// The fields of two messages, number by number, by the rules.
pub(super) fn numbered(
    sides: &Sides,
    kind: Kind,
    a: &[Message<'_>],
    b: &[Message<'_>],
) -> Result<(), Difference> {
    let present = numbers(a)? | numbers(b)?;
    for number in (1..u64::BITS).filter(|number| present >> number & 1 == 1) {
        let with_number = |field: &Result<Field<'_>, WireError>| {
            field.as_ref().map_or(true, |field| field.number == number)
        };
        let of = |pieces| fields(pieces).filter(with_number);
        let within = |position: usize| {
            move |difference: Difference| {
                difference.within(|| format!("{} number {position}", field_name(kind, number)))
            }
        };
        match rule(kind, number) {
            Some(Rule::Apart | Rule::Contents) => {}
            Some(Rule::Each(inner)) => {
                let mut both = (of(a), of(b));
                for position in 0.. {
                    match (both.0.next().transpose()?, both.1.next().transpose()?) {
                        (None, None) => break,
                        (Some(a), Some(b)) => {
                            let (a, b) = (a.message()?, b.message()?);
                            message(sides, inner, &[a], &[b])
                                .map_err(|difference| difference.within(|| label(inner, b)))?;
                        }
                        (a, _) => {
                            let what = match a {
                                Some(_) => "it is missing",
                                None => "the original has no such",
                            };
                            return Err(within(position)(Difference::new(what)));
                        }
                    }
                }
            }
            Some(Rule::Merged(inner)) => {
                let pieces = |pieces| -> Result<Vec<Message<'_>>, WireError> {
                    of(pieces).map(|field| field?.message()).collect()
                };
                let (a, b) = (pieces(a)?, pieces(b)?);
                if a.is_empty() != b.is_empty() {
                    return Err(Difference::new(format!(
                        "{} is missing",
                        field_name(kind, number)
                    )));
                }
                message(sides, inner, &a, &b)
                    .map_err(|difference| difference.within(|| field_name(kind, number)))?;
            }
            Some(Rule::Numbers(width)) => {
                let mut both = (Numbers::of(a, number, width), Numbers::of(b, number, width));
                for position in 0.. {
                    let (a, b) = (both.0.next().transpose()?, both.1.next().transpose()?);
                    if a != b {
                        return Err(within(position)(Difference::new("it differs")));
                    }
                    if a.is_none() {
                        break;
                    }
                }
            }
            None => {
                let mut both = (of(a), of(b));
                loop {
                    match (both.0.next().transpose()?, both.1.next().transpose()?) {
                        (None, None) => break,
                        (Some(a), Some(b)) if bytes(&a, &b) => {}
                        _ => return Err(differs(kind, number)),
                    }
                }
            }
        }
    }
    // ONNX has no such numbers yet.
    let far = |field: &Result<Field<'_>, WireError>| {
        field
            .as_ref()
            .map_or(true, |field| field.number >= u64::BITS)
    };
    let mut both = (fields(a).filter(far), fields(b).filter(far));
    loop {
        match (both.0.next().transpose()?, both.1.next().transpose()?) {
            (None, None) => return Ok(()),
            (Some(a), Some(b)) if a.number == b.number && bytes(&a, &b) => {}
            (Some(field), _) | (None, Some(field)) => return Err(differs(kind, field.number)),
        }
    }
}

fn differs(kind: Kind, number: u32) -> Difference {
    Difference::new(format!("{} differs", field_name(kind, number)))
}

/// Which of the first 63 numbers occur, as bits.
fn numbers(pieces: &[Message<'_>]) -> Result<u64, WireError> {
    fields(pieces).try_fold(0, |present, field| {
        let number = field?.number;
        Ok(present | if number < u64::BITS { 1 << number } else { 0 })
    })
}

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
    fields: Option<crate::onnx::wire::Fields<'m>>,
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

/// The name of an attribute, a tensor or a value.
pub(super) fn name(kind: Kind, contents: Message<'_>) -> Result<String, WireError> {
    let number = match kind {
        Kind::Tensor => tensor::NAME,
        Kind::Node | Kind::MainNode => node::NAME,
        Kind::Graph | Kind::MainGraph => graph::NAME,
        _ => attribute::NAME,
    };
    last_text(contents, number)
}

/// A node's domain, operator and overload decide what it computes; these are the first two.
pub(super) fn operator(contents: Message<'_>) -> Result<(String, String), WireError> {
    Ok((
        last_text(contents, node::DOMAIN)?,
        last_text(contents, node::OP_TYPE)?,
    ))
}

fn last_text(contents: Message<'_>, number: u32) -> Result<String, WireError> {
    let mut found = String::new();
    for field in contents.fields() {
        let field = field?;
        if field.number == number {
            found = text(field.message()?)?;
        }
    }
    Ok(found)
}

/// How messages call a part.
pub(super) fn label(kind: Kind, contents: Message<'_>) -> String {
    let name = name(kind, contents).unwrap_or_default();
    match kind {
        Kind::Node | Kind::MainNode => {
            let op_type = last_text(contents, node::OP_TYPE).unwrap_or_default();
            let output = first_output(contents).unwrap_or_default();
            match (name.as_str(), output.as_str()) {
                ("", "") => format!("a nameless {op_type}"),
                ("", output) => format!("the {op_type} that writes {output:?}"),
                (name, _) => format!("{op_type} {name:?}"),
            }
        }
        Kind::Attribute => format!("attribute {name:?}"),
        Kind::Tensor => format!("tensor {name:?}"),
        Kind::Function => format!("function {name:?}"),
        Kind::ValueInfo => format!("the declaration of {name:?}"),
        Kind::Sparse => "a sparse tensor".to_owned(),
        Kind::Training => "training_info".to_owned(),
        Kind::Graph | Kind::MainGraph | Kind::Model => format!("graph {name:?}"),
    }
}

/// The first output's name.
fn first_output(contents: Message<'_>) -> Result<String, WireError> {
    for field in contents.fields() {
        let field = field?;
        if field.number == node::OUTPUT {
            return text(field.message()?);
        }
    }
    Ok(String::new())
}
