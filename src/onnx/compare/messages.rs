//! Two messages side by side.

use super::contents::{Sides, contents};
use super::difference::Difference;
use super::fields::{Numbers, bytes, fields};
use super::labels::label;
use super::rules::{Kind, Rule, field_name, rule};
use crate::onnx::wire::{Field, Message, WireError};

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
