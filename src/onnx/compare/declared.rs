//! Declarations of values that a rewriting may change.

use prost::Message as _;

use super::contents::Sides;
use super::difference::Difference;
use super::messages::numbered;
use super::rules::Kind;
use crate::onnx::schema::{ValueInfoProto, value_info as field};
use crate::onnx::tensor;
use crate::onnx::wire::Message;

/// All but the type must stay. The type is the same, or one that we write, with the original's element type and
/// number of dimensions (if the original says them); their sizes are for verification, which works all of them out. Where what the
/// original says contradicts the node, another number of dimensions may be written, but no number for one.
pub(super) fn value_info(
    sides: &Sides,
    original: Message<'_>,
    written: Message<'_>,
) -> Result<(), Difference> {
    if sides.equal(original.bytes, written.bytes) {
        return Ok(());
    }
    if numbered(sides, Kind::ValueInfo, &[original], &[written]).is_ok() {
        return Ok(());
    }
    made_from(original, written)?;
    let types = [original, written].map(|contents| ValueInfoProto::decode(contents.bytes));
    let [original, written] = types;
    let (original, written) = (original?, written?);
    let tensor = |info: &ValueInfoProto| info.r#type.clone().and_then(|t| t.tensor_type);
    match (tensor(&original), tensor(&written)) {
        // It was declared without a type.
        (None, Some(_)) if original.r#type.is_none() => Ok(()),
        (Some(a), Some(b)) if a.elem_type == b.elem_type => {
            let rank = |t: &crate::onnx::schema::TensorType| t.shape.as_ref().map(|s| s.dim.len());
            let says_numbers = |t: &crate::onnx::schema::TensorType| {
                let mut dimensions = t.shape.iter().flat_map(|shape| &shape.dim);
                dimensions.any(|dimension| dimension.dim_value.is_some())
            };
            let agrees = rank(&a).is_none_or(|expected| rank(&b) == Some(expected));
            match agrees || rank(&b).is_some() && !says_numbers(&b) {
                true => Ok(()),
                false => Err(Difference::new("its number of dimensions differs")),
            }
        }
        _ => Err(Difference::new("its type differs")),
    }
}

/// Fields but the type, as in the original; and a type with nothing that is not known.
fn made_from(original: Message<'_>, written: Message<'_>) -> Result<(), Difference> {
    let rest = |info: Message<'_>| -> Result<Vec<u8>, Difference> {
        let mut rest = Vec::new();
        for part in info.fields() {
            let part = part?;
            if part.number != field::TYPE {
                let at = part.span.start - info.start..part.span.end - info.start;
                rest.extend_from_slice(&info.bytes[at]);
            }
        }
        Ok(rest)
    };
    if rest(original)? != rest(written)? {
        return Err(Difference::new("a field besides its type differs"));
    }
    known_type(written)
}

/// A declaration without original: a name and a type, and nothing that is not known.
pub(super) fn made_here(written: Message<'_>) -> Result<(), Difference> {
    for part in written.fields() {
        let part = part?;
        if ![field::NAME, field::TYPE].contains(&part.number) {
            return Err(Difference::new(format!(
                "field {} is not known, and the original does not have it",
                part.number
            )));
        }
    }
    known_type(written)
}

fn known_type(written: Message<'_>) -> Result<(), Difference> {
    let info = ValueInfoProto::decode(written.bytes)?;
    let mut types = 0;
    for part in written.fields() {
        let part = part?;
        if part.number == field::TYPE {
            types += 1;
            let made = info.r#type.as_ref().map(|t| t.encode_to_vec());
            if made.as_deref() != Some(part.message()?.bytes) {
                return Err(Difference::new("its type has fields that are not known"));
            }
        }
    }
    let element = info.r#type.and_then(|t| t.tensor_type).map(|t| t.elem_type);
    match element {
        Some(number) if types == 1 => {
            let known = u64::try_from(number).ok().and_then(tensor::element);
            known.map(drop).ok_or_else(|| {
                Difference::new(format!("its element type, {number}, does not exist"))
            })
        }
        _ => Err(Difference::new("it does not have one tensor type")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::schema::{DimensionProto, TensorShapeProto, TensorType, TypeProto};

    /// A declaration with these dimensions: names and numbers.
    fn declared(dimensions: &[&str]) -> Vec<u8> {
        let dim = dimensions.iter().map(|text| DimensionProto {
            dim_value: text.parse().ok(),
            dim_param: Some((*text).to_owned()).filter(|text| text.parse::<i64>().is_err()),
        });
        let dim = dim.collect();
        let tensor_type = Some(TensorType {
            elem_type: 1,
            shape: Some(TensorShapeProto { dim }),
        });
        let info = ValueInfoProto {
            name: "x".to_owned(),
            r#type: Some(TypeProto {
                tensor_type,
                ..TypeProto::default()
            }),
        };
        info.encode_to_vec()
    }

    #[test]
    fn another_number_of_dimensions_is_written_without_sizes_alone() {
        let may_become = |before: &[&str], after: &[&str]| {
            let [before, after] = [before, after].map(declared);
            let [before, after] = [&before, &after].map(|bytes| Message { bytes, start: 0 });
            value_info(&Sides::alone(), before, after).is_ok()
        };
        assert!(may_become(&["n", "4"], &["memory_0", "4"]));
        assert!(may_become(&[], &["hidden_1"]));
        assert!(!may_become(&[], &["1"]));
        assert!(!may_become(&["n", "4"], &["memory_0", "4", "4"]));
    }
}
