//! The messages of onnx.proto that are decoded or made, with the fields that this program reads.
//!
//! Field numbers are those of onnx.proto (IR version 10). Messages that can be large or nested
//! appear as undecoded bytes: one entry for each time the field occurs, to be merged by walking
//! them in turn. So decoding copies no weights and never recurses.

use bytes::Bytes;
use prost::Message;

/// ModelProto's fields.
pub(crate) mod model {
    pub(crate) const GRAPH: u32 = 7;
    pub(crate) const OPSET_IMPORT: u32 = 8;
    pub(crate) const METADATA_PROPS: u32 = 14;
    pub(crate) const TRAINING_INFO: u32 = 20;
    pub(crate) const FUNCTIONS: u32 = 25;
}

/// TrainingInfoProto's fields.
pub(crate) mod training_info {
    pub(crate) const INITIALIZATION: u32 = 1;
    pub(crate) const ALGORITHM: u32 = 2;
}

/// FunctionProto's fields.
pub(crate) mod function {
    pub(crate) const NODE: u32 = 7;
    pub(crate) const ATTRIBUTE_PROTO: u32 = 11;
}

/// GraphProto's fields.
pub(crate) mod graph {
    pub(crate) const NODE: u32 = 1;
    pub(crate) const NAME: u32 = 2;
    pub(crate) const INITIALIZER: u32 = 5;
    pub(crate) const INPUT: u32 = 11;
    pub(crate) const OUTPUT: u32 = 12;
    pub(crate) const VALUE_INFO: u32 = 13;
    pub(crate) const SPARSE_INITIALIZER: u32 = 15;
}

/// NodeProto's fields.
pub(crate) mod node {
    pub(crate) const INPUT: u32 = 1;
    pub(crate) const OUTPUT: u32 = 2;
    pub(crate) const NAME: u32 = 3;
    pub(crate) const OP_TYPE: u32 = 4;
    pub(crate) const ATTRIBUTE: u32 = 5;
    pub(crate) const DOMAIN: u32 = 7;
}

/// AttributeProto's fields.
pub(crate) mod attribute {
    pub(crate) const NAME: u32 = 1;
    pub(crate) const F: u32 = 2;
    pub(crate) const I: u32 = 3;
    pub(crate) const S: u32 = 4;
    pub(crate) const T: u32 = 5;
    pub(crate) const G: u32 = 6;
    pub(crate) const FLOATS: u32 = 7;
    pub(crate) const INTS: u32 = 8;
    pub(crate) const STRINGS: u32 = 9;
    pub(crate) const TENSORS: u32 = 10;
    pub(crate) const GRAPHS: u32 = 11;
    pub(crate) const TP: u32 = 14;
    pub(crate) const TYPE_PROTOS: u32 = 15;
    pub(crate) const TYPE: u32 = 20;
    pub(crate) const REF_ATTR_NAME: u32 = 21;
    pub(crate) const SPARSE_TENSOR: u32 = 22;
    pub(crate) const SPARSE_TENSORS: u32 = 23;
    /// The type, the reference, and everything that holds a value.
    pub(crate) const VALUES: [u32; 16] = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15, 20, 21, 22, 23];
}

/// ValueInfoProto's fields.
pub(crate) mod value_info {
    pub(crate) const NAME: u32 = 1;
    pub(crate) const TYPE: u32 = 2;
}

/// TensorProto's fields.
pub(crate) mod tensor {
    pub(crate) const DIMS: u32 = 1;
    pub(crate) const DATA_TYPE: u32 = 2;
    pub(crate) const FLOAT_DATA: u32 = 4;
    pub(crate) const INT32_DATA: u32 = 5;
    pub(crate) const STRING_DATA: u32 = 6;
    pub(crate) const INT64_DATA: u32 = 7;
    pub(crate) const NAME: u32 = 8;
    pub(crate) const RAW_DATA: u32 = 9;
    pub(crate) const DOUBLE_DATA: u32 = 10;
    pub(crate) const UINT64_DATA: u32 = 11;
    pub(crate) const EXTERNAL_DATA: u32 = 13;
    pub(crate) const DATA_LOCATION: u32 = 14;
}

/// SparseTensorProto's fields.
pub(crate) mod sparse_tensor {
    pub(crate) const VALUES: u32 = 1;
    pub(crate) const INDICES: u32 = 2;
    pub(crate) const DIMS: u32 = 3;
}

/// AttributeProto.AttributeType.
pub(crate) mod attribute_type {
    pub(crate) const FLOAT: i32 = 1;
    pub(crate) const INT: i32 = 2;
    pub(crate) const STRING: i32 = 3;
    pub(crate) const TENSOR: i32 = 4;
    pub(crate) const GRAPH: i32 = 5;
    pub(crate) const FLOATS: i32 = 6;
    pub(crate) const INTS: i32 = 7;
    pub(crate) const STRINGS: i32 = 8;
    pub(crate) const TENSORS: i32 = 9;
    pub(crate) const GRAPHS: i32 = 10;
    pub(crate) const SPARSE_TENSOR: i32 = 11;
    pub(crate) const SPARSE_TENSORS: i32 = 12;
    pub(crate) const TYPE_PROTO: i32 = 13;
    pub(crate) const TYPE_PROTOS: i32 = 14;
}

/// StringStringEntryProto's fields, of TensorProto.external_data.
pub(crate) mod external_data {
    pub(crate) const KEY: u32 = 1;
    pub(crate) const VALUE: u32 = 2;
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OperatorSetIdProto {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(int64, tag = "2")]
    pub(crate) version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub(crate) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) output: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    #[prost(string, tag = "4")]
    pub(crate) op_type: String,
    /// AttributeProto
    #[prost(bytes = "bytes", repeated, tag = "5")]
    pub(crate) attribute: Vec<Bytes>,
    #[prost(string, tag = "7")]
    pub(crate) domain: String,
    #[prost(string, tag = "8")]
    pub(crate) overload: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FunctionProto {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) input: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub(crate) output: Vec<String>,
    /// NodeProto
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub(crate) node: Vec<Bytes>,
    #[prost(message, repeated, tag = "9")]
    pub(crate) opset_import: Vec<OperatorSetIdProto>,
    #[prost(string, tag = "10")]
    pub(crate) domain: String,
    /// AttributeProto: attributes with their defaults.
    #[prost(bytes = "bytes", repeated, tag = "11")]
    pub(crate) attribute_proto: Vec<Bytes>,
    #[prost(string, tag = "13")]
    pub(crate) overload: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AttributeProto {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(float, optional, tag = "2")]
    pub(crate) f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub(crate) i: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(crate) s: Option<Vec<u8>>,
    /// TensorProto
    #[prost(bytes = "bytes", repeated, tag = "5")]
    pub(crate) t: Vec<Bytes>,
    /// GraphProto
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub(crate) g: Vec<Bytes>,
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub(crate) floats: Vec<f32>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub(crate) ints: Vec<i64>,
    #[prost(bytes = "vec", repeated, tag = "9")]
    pub(crate) strings: Vec<Vec<u8>>,
    /// GraphProto
    #[prost(bytes = "bytes", repeated, tag = "11")]
    pub(crate) graphs: Vec<Bytes>,
    #[prost(int32, tag = "20")]
    pub(crate) r#type: i32,
    #[prost(string, tag = "21")]
    pub(crate) ref_attr_name: String,
    /// SparseTensorProto
    #[prost(bytes = "bytes", repeated, tag = "22")]
    pub(crate) sparse_tensor: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StringStringEntryProto {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ValueInfoProto {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) r#type: Option<TypeProto>,
}

/// Of types that are no dense tensor only that they are there.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub(crate) tensor_type: Option<TensorType>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(crate) sequence_type: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub(crate) map_type: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "8")]
    pub(crate) sparse_tensor_type: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub(crate) optional_type: Option<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorType {
    #[prost(int32, tag = "1")]
    pub(crate) elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) shape: Option<TensorShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub(crate) dim: Vec<DimensionProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DimensionProto {
    #[prost(int64, optional, tag = "1")]
    pub(crate) dim_value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) dim_param: Option<String>,
}

/// A small tensor, to be written; tensors are read by walking them.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorProto {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub(crate) dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub(crate) data_type: i32,
    #[prost(bytes = "vec", optional, tag = "9")]
    pub(crate) raw_data: Option<Vec<u8>>,
}
