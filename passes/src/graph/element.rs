//! Element types, by ONNX's numbers.

use crate::bytes::Bytes;

/// TensorProto.DataType.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum ElementType {
    Float = 1,
    Uint8 = 2,
    Int8 = 3,
    Uint16 = 4,
    Int16 = 5,
    Int32 = 6,
    Int64 = 7,
    String = 8,
    Bool = 9,
    Float16 = 10,
    Double = 11,
    Uint32 = 12,
    Uint64 = 13,
    Complex64 = 14,
    Complex128 = 15,
    Bfloat16 = 16,
    Float8E4M3Fn = 17,
    Float8E4M3Fnuz = 18,
    Float8E5M2 = 19,
    Float8E5M2Fnuz = 20,
    Uint4 = 21,
    Int4 = 22,
}

const ALL: [(ElementType, &str, u64); 22] = [
    (ElementType::Float, "float", 32),
    (ElementType::Uint8, "uint8", 8),
    (ElementType::Int8, "int8", 8),
    (ElementType::Uint16, "uint16", 16),
    (ElementType::Int16, "int16", 16),
    (ElementType::Int32, "int32", 32),
    (ElementType::Int64, "int64", 64),
    // An ONNX Runtime string tensor holds one std::string object, 32 bytes, per element.
    (ElementType::String, "string", 256),
    (ElementType::Bool, "bool", 8),
    (ElementType::Float16, "float16", 16),
    (ElementType::Double, "double", 64),
    (ElementType::Uint32, "uint32", 32),
    (ElementType::Uint64, "uint64", 64),
    (ElementType::Complex64, "complex64", 64),
    (ElementType::Complex128, "complex128", 128),
    (ElementType::Bfloat16, "bfloat16", 16),
    (ElementType::Float8E4M3Fn, "float8e4m3fn", 8),
    (ElementType::Float8E4M3Fnuz, "float8e4m3fnuz", 8),
    (ElementType::Float8E5M2, "float8e5m2", 8),
    (ElementType::Float8E5M2Fnuz, "float8e5m2fnuz", 8),
    (ElementType::Uint4, "uint4", 4),
    (ElementType::Int4, "int4", 4),
];

impl ElementType {
    /// By TensorProto.DataType's number.
    pub fn from_onnx(number: i32) -> Option<ElementType> {
        ALL.iter().map(|row| row.0).find(|&e| e as i32 == number)
    }

    /// By the name that ONNX's text form uses, such as `float` or `int64`.
    pub fn from_name(name: &str) -> Option<ElementType> {
        ALL.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The name that ONNX's text form uses.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The memory that `count` elements take. Saturates.
    pub fn bytes(self, count: u64) -> Bytes {
        Bytes(count.saturating_mul(self.row().2).div_ceil(8))
    }

    /// Is it a floating point type?
    pub fn is_float(self) -> bool {
        matches!(
            self,
            ElementType::Float | ElementType::Float16 | ElementType::Double | ElementType::Bfloat16
        )
    }

    fn row(self) -> &'static (ElementType, &'static str, u64) {
        &ALL[self as usize - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_names_and_sizes_agree() {
        for (element, name, _) in ALL {
            assert_eq!(ElementType::from_onnx(element as i32), Some(element));
            assert_eq!(ElementType::from_name(name), Some(element));
            assert_eq!(element.name(), name);
        }
        assert_eq!(ElementType::Float.bytes(3), Bytes(12));
        assert_eq!(ElementType::Int4.bytes(3), Bytes(2));
        assert_eq!(ElementType::from_onnx(0), None);
        assert_eq!(ElementType::from_onnx(99), None);
    }
}
