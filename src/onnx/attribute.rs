//! Attribute values, from their encoding.

use ckpt_passes::graph::AttributeValue;

use super::schema::{AttributeProto, attribute_type};
use super::tensor::{TensorHeader, pieces};
use super::wire::WireError;

/// The value of an attribute; what no pass reads, or is newer than this program, is opaque.
pub(crate) fn value(attribute: &AttributeProto) -> Result<AttributeValue, WireError> {
    if !attribute.ref_attr_name.is_empty() {
        return Ok(AttributeValue::Opaque);
    }
    Ok(match kind(attribute) {
        attribute_type::FLOAT => AttributeValue::Float(attribute.f.unwrap_or_default()),
        attribute_type::INT => AttributeValue::Int(attribute.i.unwrap_or_default()),
        attribute_type::STRING => AttributeValue::String(attribute.s.clone().unwrap_or_default()),
        attribute_type::FLOATS => AttributeValue::Floats(attribute.floats.clone()),
        attribute_type::INTS => AttributeValue::Ints(attribute.ints.clone()),
        attribute_type::STRINGS => AttributeValue::Strings(attribute.strings.clone()),
        attribute_type::TENSOR => {
            let pieces = pieces(&attribute.t);
            let header = TensorHeader::of(&pieces)?;
            let constant = header.constant(&pieces)?;
            match (header.element, header.shape) {
                (Some(element), Some(shape)) => AttributeValue::Tensor {
                    element,
                    shape,
                    constant,
                },
                _ => AttributeValue::Opaque,
            }
        }
        _ => AttributeValue::Opaque,
    })
}

/// The attribute's type; files of IR version 1 leave it out and hold one value.
fn kind(attribute: &AttributeProto) -> i32 {
    use attribute_type::*;
    let present = [
        (FLOAT, attribute.f.is_some()),
        (INT, attribute.i.is_some()),
        (STRING, attribute.s.is_some()),
        (TENSOR, !attribute.t.is_empty()),
        (FLOATS, !attribute.floats.is_empty()),
        (INTS, !attribute.ints.is_empty()),
        (STRINGS, !attribute.strings.is_empty()),
    ];
    match attribute.r#type {
        0 => present.iter().find(|row| row.1).map_or(0, |row| row.0),
        kind => kind,
    }
}

/// Are two values the same bit for bit? (`==` tells NaN from itself, and not 0 from -0.)
pub(crate) fn same(a: &AttributeValue, b: &AttributeValue) -> bool {
    use AttributeValue::*;
    use ckpt_passes::graph::Constant;
    match (a, b) {
        (Float(a), Float(b)) => a.to_bits() == b.to_bits(),
        (Floats(a), Floats(b)) => a
            .iter()
            .map(|x| x.to_bits())
            .eq(b.iter().map(|x| x.to_bits())),
        (
            Tensor {
                element: a_element,
                shape: a_shape,
                constant: Some(Constant::Floats(a)),
            },
            Tensor {
                element: b_element,
                shape: b_shape,
                constant: Some(Constant::Floats(b)),
            },
        ) => {
            a_element == b_element
                && a_shape == b_shape
                && a.iter()
                    .map(|x| x.to_bits())
                    .eq(b.iter().map(|x| x.to_bits()))
        }
        _ => a == b,
    }
}
