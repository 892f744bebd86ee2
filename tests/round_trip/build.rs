//! Protobuf by hand: for what no writer of ONNX files makes.

/// `number: value` as a variable-length integer.
pub(crate) fn int(number: u32, value: u64) -> Vec<u8> {
    [varint(u64::from(number) << 3), varint(value)].concat()
}

/// `number: contents` as a length and bytes.
pub(crate) fn field(number: u32, contents: impl AsRef<[u8]>) -> Vec<u8> {
    let contents = contents.as_ref();
    let length = varint(contents.len() as u64);
    [
        varint(u64::from(number) << 3 | 2),
        length,
        contents.to_vec(),
    ]
    .concat()
}

/// Fields with numbers that no version of ONNX has, of every wire type.
pub(crate) fn unknown() -> Vec<u8> {
    [
        int(5001, 1),
        field(5002, "text"),
        [varint(5003 << 3 | 1), 8u64.to_le_bytes().to_vec()].concat(),
        [varint(5004 << 3 | 5), 4u32.to_le_bytes().to_vec()].concat(),
        [varint(5005 << 3 | 3), int(1, 7), varint(5005 << 3 | 4)].concat(),
    ]
    .concat()
}

pub(crate) fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A number in five bytes where fewer would do.
pub(crate) fn long_varint(value: u8) -> Vec<u8> {
    vec![value | 0x80, 0x80, 0x80, 0x80, 0x00]
}

/// NodeProto: `output = op_type(input)`.
pub(crate) fn node(op_type: &str, input: &str, output: &str) -> Vec<u8> {
    [field(1, input), field(2, output), field(4, op_type)].concat()
}

/// ValueInfoProto of a float tensor with one dimension.
pub(crate) fn value(name: &str, size: u64) -> Vec<u8> {
    let shape = field(1, int(1, size));
    let tensor_type = [int(1, 1), field(2, shape)].concat();
    [field(1, name), field(2, field(1, tensor_type))].concat()
}

/// ModelProto with IR version 8 and operator set 15.
pub(crate) fn model(graph: impl AsRef<[u8]>) -> Vec<u8> {
    [int(1, 8), field(8, int(2, 15)), field(7, graph)].concat()
}

/// A GraphProto from `x` to `y` with one Relu.
pub(crate) fn relu() -> Vec<u8> {
    [
        field(1, node("Relu", "x", "y")),
        field(2, "graph"),
        field(11, value("x", 4)),
        field(12, value("y", 4)),
    ]
    .concat()
}
