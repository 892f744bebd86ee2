//! What the runtime does not load.
//!
//! Observed of ONNX Runtime: it refuses an attribute without a type, with a type that does not exist, and with
//! a value of another kind than its type says, at every operator; and a tensor of a type that does not exist.

use super::difference::Difference;
use super::labels::label;
use super::rules::{Kind, Rule, rule};
use crate::onnx::model::Model;
use crate::onnx::schema::{attribute, attribute_type, tensor};
use crate::onnx::wire::Message;

/// Messages nested deeper are not looked at; protobuf's readers refuse them.
const DEEPEST: usize = 100;

/// Would the runtime read all attributes and tensors of the model?
pub(super) fn model(model: &Model) -> Result<(), Difference> {
    inside(Kind::Model, model.message(), 0)?;
    model
        .graph_message()
        .try_for_each(|piece| inside(Kind::Graph, piece, 0))
}

fn inside(kind: Kind, message: Message<'_>, depth: usize) -> Result<(), Difference> {
    match kind {
        Kind::Attribute => typed(message)?,
        Kind::Tensor => element_type(message)?,
        _ => {}
    }
    if depth == DEEPEST {
        return Ok(());
    }
    let (mut once, mut twice) = (0_u64, 0_u64);
    for field in message.fields() {
        let bit = 1_u64.checked_shl(field?.number).unwrap_or(0);
        (once, twice) = (once | bit, twice | once & bit);
    }
    for field in message.fields() {
        let field = field?;
        let inner = match rule(kind, field.number) {
            // A piece of a message may lack what another has.
            Some(Rule::Merged(_)) if twice >> field.number & 1 == 1 => continue,
            Some(Rule::Each(inner) | Rule::Merged(inner)) => inner,
            _ => continue,
        };
        let contents = field.message()?;
        inside(inner, contents, depth + 1).map_err(|difference| {
            let place = || match inner {
                Kind::Graph => String::from("a graph in it"),
                _ => label(inner, contents),
            };
            difference.within(place)
        })?;
    }
    Ok(())
}

/// One value, of the kind that the type says.
fn typed(message: Message<'_>) -> Result<(), Difference> {
    use attribute::*;
    /// Type and field.
    const KINDS: [(i32, u32); 14] = [
        (attribute_type::FLOAT, F),
        (attribute_type::INT, I),
        (attribute_type::STRING, S),
        (attribute_type::TENSOR, T),
        (attribute_type::GRAPH, G),
        (attribute_type::SPARSE_TENSOR, SPARSE_TENSOR),
        (attribute_type::TYPE_PROTO, TP),
        (attribute_type::FLOATS, FLOATS),
        (attribute_type::INTS, INTS),
        (attribute_type::STRINGS, STRINGS),
        (attribute_type::TENSORS, TENSORS),
        (attribute_type::GRAPHS, GRAPHS),
        (attribute_type::SPARSE_TENSORS, SPARSE_TENSORS),
        (attribute_type::TYPE_PROTOS, TYPE_PROTOS),
    ];
    let mut kind = 0;
    let mut reference = false;
    let mut present = 0_u64;
    for field in message.fields() {
        let field = field?;
        match field.number {
            TYPE => kind = field.varint()?,
            REF_ATTR_NAME => reference = !field.message()?.bytes.is_empty(),
            number if number < u64::BITS => present |= 1 << number,
            _ => {}
        }
    }
    if reference {
        return Ok(());
    }
    if kind == 0 {
        return Err(Difference::new(
            "it has no type, and ONNX Runtime does not load a model with such an attribute",
        ));
    }
    let row = i32::try_from(kind)
        .ok()
        .and_then(|kind| KINDS.iter().find(|row| row.0 == kind));
    let Some(&(_, expected)) = row else {
        return Err(Difference::new(format!("its type, {kind}, does not exist")));
    };
    match KINDS
        .iter()
        .find(|row| row.1 != expected && present >> row.1 & 1 == 1)
    {
        None => Ok(()),
        Some(other) => Err(Difference::new(format!(
            "its type is {kind}, but it has a value of type {}",
            other.0
        ))),
    }
}

/// The types that ONNX has up to 1.20, newer than the runtime's.
fn element_type(message: Message<'_>) -> Result<(), Difference> {
    const LAST: u64 = 26;
    let mut number = 0;
    for field in message.fields() {
        let field = field?;
        if field.number == tensor::DATA_TYPE {
            number = field.varint()?;
        }
    }
    match (1..=LAST).contains(&number) {
        true => Ok(()),
        false => Err(Difference::new(format!(
            "its element type, {number}, does not exist"
        ))),
    }
}
