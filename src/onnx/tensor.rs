//! Reads a TensorProto: its header always, its contents only where they are few numbers.

use bytes::Bytes;
use ckpt_passes::graph::{Constant, ElementType};

use prost::Message as _;

use super::schema::{TensorProto, sparse_tensor, tensor};
use super::wire::{Message, Value, Width, WireError, little_endian};

/// Tensors with more elements are not decoded: no shape is computed from them.
pub(crate) const LARGEST_CONSTANT: u64 = 4096;

/// What a TensorProto says about its contents.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TensorHeader {
    pub(crate) name: String,
    /// `None` where the type is newer than this program.
    pub(crate) element: Option<ElementType>,
    /// `None` where a dimension is negative.
    pub(crate) shape: Option<Vec<u64>>,
    /// The contents lie in another file.
    pub(crate) external: bool,
}

impl TensorHeader {
    /// Reads the header of the message that `pieces` make up.
    pub(crate) fn of(pieces: &[Message<'_>]) -> Result<TensorHeader, WireError> {
        let mut header = TensorHeader::default();
        let mut dims = Vec::new();
        for field in pieces.iter().flat_map(|piece| piece.fields()) {
            let field = field?;
            match field.number {
                tensor::DIMS => dims.extend(field.numbers(Width::Varint)?),
                tensor::DATA_TYPE => header.element = element(field.varint()?),
                tensor::NAME => header.name = text(field.message()?)?,
                tensor::DATA_LOCATION => header.external = field.varint()? == 1,
                _ => {}
            }
        }
        header.shape = shape(&dims);
        Ok(header)
    }

    /// Reads the header of a SparseTensorProto: the name and type of its values, the shape of
    /// the dense tensor it stands for.
    pub(crate) fn of_sparse(message: Message<'_>) -> Result<TensorHeader, WireError> {
        let mut values = Vec::new();
        let mut dims = Vec::new();
        for field in message.fields() {
            let field = field?;
            match field.number {
                sparse_tensor::VALUES => values.push(field.message()?),
                sparse_tensor::DIMS => dims.extend(field.numbers(Width::Varint)?),
                _ => {}
            }
        }
        Ok(TensorHeader {
            shape: shape(&dims),
            ..TensorHeader::of(&values)?
        })
    }

    /// The contents of the tensor that `pieces` make up, where they are in the file, are
    /// numbers, at most [`LARGEST_CONSTANT`], and as many as the shape says.
    pub(crate) fn constant(&self, pieces: &[Message<'_>]) -> Result<Option<Constant>, WireError> {
        let (Some(element), Some(count)) = (self.element, self.small_count()) else {
            return Ok(None);
        };
        let Some(typed) = typed_field(element) else {
            return Ok(None);
        };
        if self.external {
            return Ok(None);
        }
        let mut raw = None;
        let mut bits = Vec::new();
        for field in pieces.iter().flat_map(|piece| piece.fields()) {
            let field = field?;
            if field.number == tensor::RAW_DATA {
                raw = Some(field.message()?.bytes);
            } else if field.number == typed.0 && fits(&field.value, count) {
                bits.extend(field.numbers(typed.1)?);
            }
            if bits.len() > count {
                return Ok(None);
            }
        }
        if let Some(raw) = raw {
            let width = element.bytes(1).0 as usize;
            if raw.len() != count * width {
                return Ok(None);
            }
            bits = raw.chunks_exact(width).map(little_endian).collect();
        }
        Ok(if bits.len() == count {
            numbers(element, &bits)
        } else {
            None
        })
    }

    fn small_count(&self) -> Option<usize> {
        let dims = self.shape.as_ref()?;
        let count = dims
            .iter()
            .try_fold(1u64, |count, &dim| count.checked_mul(dim))?;
        (count <= LARGEST_CONSTANT).then_some(count as usize)
    }
}

/// TensorProto for a small tensor. `None` if the contents do not fit type or shape, or if it is
/// of a type that is not written (half precision, eight bits and less, complex, text).
pub(crate) fn encode(element: ElementType, shape: &[u64], constant: &Constant) -> Option<Vec<u8>> {
    use ElementType::*;
    let raw: Vec<u8> = match (constant, element) {
        (Constant::Floats(x), Float) => x.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
        (Constant::Floats(x), Float16) => {
            let bits: Option<Vec<u16>> = x.iter().map(|&x| half_bits(x)).collect();
            bits?.iter().flat_map(|bits| bits.to_le_bytes()).collect()
        }
        (Constant::Floats(x), Double) => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
        (Constant::Ints(x), Int64) => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
        (Constant::Ints(x), Int32) => {
            let x: Vec<i32> = x
                .iter()
                .map(|&x| x.try_into().ok())
                .collect::<Option<_>>()?;
            x.iter().flat_map(|x| x.to_le_bytes()).collect()
        }
        (Constant::Ints(x), Bool) => x.iter().map(|&x| u8::from(x != 0)).collect(),
        _ => return None,
    };
    let count = shape
        .iter()
        .try_fold(1u64, |count, &dim| count.checked_mul(dim))?;
    if element.bytes(count).0 != raw.len() as u64 {
        return None;
    }
    let dims = shape
        .iter()
        .map(|&dim| dim.try_into().ok())
        .collect::<Option<_>>()?;
    let proto = TensorProto {
        dims,
        data_type: element as i32,
        raw_data: Some(raw),
    };
    Some(proto.encode_to_vec())
}

/// The pieces of a message that was cut out of a file. Places in errors count from the start
/// of each piece.
pub(crate) fn pieces(bytes: &[Bytes]) -> Vec<Message<'_>> {
    bytes
        .iter()
        .map(|bytes| Message { bytes, start: 0 })
        .collect()
}

/// The text of a string field.
pub(crate) fn text(message: Message<'_>) -> Result<String, WireError> {
    String::from_utf8(message.bytes.to_vec()).map_err(|_| WireError::Text { at: message.start })
}

/// An element type by its number, where this program knows it.
pub(crate) fn element(number: u64) -> Option<ElementType> {
    i32::try_from(number).ok().and_then(ElementType::from_onnx)
}

fn shape(dims: &[u64]) -> Option<Vec<u64>> {
    // int64 on the wire: the upper half is negative.
    dims.iter()
        .all(|&dim| i64::try_from(dim).is_ok())
        .then(|| dims.to_vec())
}

/// Can a repeated number hold so few values? A varint takes at most ten bytes.
fn fits(value: &Value<'_>, count: usize) -> bool {
    match value {
        Value::Bytes(packed) => packed.bytes.len() <= count * 10,
        _ => true,
    }
}

/// Where a tensor's contents lie if not in raw_data. `None`: this type is not read.
fn typed_field(element: ElementType) -> Option<(u32, Width)> {
    use ElementType::*;
    Some(match element {
        Float => (tensor::FLOAT_DATA, Width::Fixed32),
        Double => (tensor::DOUBLE_DATA, Width::Fixed64),
        Int64 => (tensor::INT64_DATA, Width::Varint),
        Uint32 | Uint64 => (tensor::UINT64_DATA, Width::Varint),
        Int32 | Int16 | Int8 | Uint16 | Uint8 | Bool | Float16 | Bfloat16 => {
            (tensor::INT32_DATA, Width::Varint)
        }
        String | Complex64 | Complex128 | Uint4 | Int4 => return None,
        Float8E4M3Fn | Float8E4M3Fnuz | Float8E5M2 | Float8E5M2Fnuz => return None,
    })
}

/// Numbers from their bit patterns. `None` if one does not fit.
fn numbers(element: ElementType, bits: &[u64]) -> Option<Constant> {
    use ElementType::*;
    if element.is_float() {
        let values = bits.iter().map(|&bits| match element {
            Float16 => half(bits as u16),
            Bfloat16 => f32::from_bits((bits as u32) << 16).into(),
            Float => f32::from_bits(bits as u32).into(),
            _ => f64::from_bits(bits),
        });
        return Some(Constant::Floats(values.collect()));
    }
    let values = bits.iter().map(|&bits| {
        Some(match element {
            Bool => (bits != 0).into(),
            Int8 => (bits as i8).into(),
            Uint8 => (bits as u8).into(),
            Int16 => (bits as i16).into(),
            Uint16 => (bits as u16).into(),
            Int32 => (bits as i32).into(),
            Uint32 => (bits as u32).into(),
            Int64 => bits as i64,
            _ => i64::try_from(bits).ok()?,
        })
    });
    values.collect::<Option<_>>().map(Constant::Ints)
}

/// The binary16 that is this number, if one is.
fn half_bits(value: f64) -> Option<u16> {
    const INFINITY: u16 = 0x7c00;
    let (mut low, mut high) = (0, INFINITY);
    while low < high {
        let middle = (low + high) / 2;
        match half(middle) < value.abs() {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    let sign = u16::from(value.is_sign_negative()) << 15;
    (half(low) == value.abs()).then_some(low | sign)
}

/// An IEEE 754 binary16.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 0x1f);
    let fraction = f64::from(bits & 0x3ff);
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        0x1f if fraction == 0.0 => f64::INFINITY,
        // With its bits: one NaN is not another.
        0x1f => {
            return f64::from_bits(
                f64::INFINITY.to_bits()
                    | u64::from(bits >> 15) << 63
                    | u64::from(bits & 0x3ff) << 42,
            );
        }
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    }
}
