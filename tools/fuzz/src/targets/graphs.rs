//! Model files that are protobuf of onnx.proto's messages, and as odd as these allow.

use bytes::Bytes;
use ckpt_opt::onnx::Model;
use ckpt_passes::testing::Draw;

use super::plan;
use super::protobuf::Message;
use crate::source::Source;

/// Operators with a rule of their own, forward and backward, and some that nobody knows.
const OPERATORS: [&str; 76] = [
    "Relu",
    "Add",
    "Mul",
    "MatMul",
    "Conv",
    "Reshape",
    "Transpose",
    "Gather",
    "Slice",
    "Split",
    "Concat",
    "Shape",
    "Size",
    "Cast",
    "Expand",
    "Tile",
    "Pad",
    "Where",
    "Div",
    "Pow",
    "Erf",
    "Squeeze",
    "Unsqueeze",
    "Einsum",
    "LSTM",
    "GRU",
    "RNN",
    "ConstantOfShape",
    "Constant",
    "If",
    "Loop",
    "Scan",
    "Resize",
    "AveragePool",
    "GlobalAveragePool",
    "MaxPool",
    "ConvTranspose",
    "BatchNormalization",
    "LayerNormalization",
    "Softmax",
    "Gemm",
    "Dropout",
    "Identity",
    "ReduceSum",
    "ReduceMean",
    "Range",
    "NonZero",
    "TopK",
    "GatherND",
    "ScatterND",
    "GatherElements",
    "OneHot",
    "Trilu",
    "Flatten",
    "DepthToSpace",
    "SequenceAt",
    "SplitToSequence",
    "OptionalGetElement",
    ".ReluGrad",
    ".ConvGrad",
    ".SoftmaxGrad_13",
    ".LayerNormalizationGrad",
    ".GatherGrad",
    ".InPlaceAccumulatorV2",
    ".DropoutGrad",
    ".BatchNormInternal",
    ".BatchNormalizationGrad",
    ".SoftmaxCrossEntropyLossGrad",
    ".DivGrad",
    ".SliceGrad",
    ".FusedMatMul",
    ".YieldOp",
    ".PassThrough",
    ".LSTMTraining",
    ".UnknownGrad",
    "Unknown",
];

const ATTRIBUTES: [&str; 40] = [
    "axis",
    "axes",
    "kernel_shape",
    "pads",
    "strides",
    "dilations",
    "group",
    "perm",
    "to",
    "alpha",
    "beta",
    "transA",
    "transB",
    "equation",
    "hidden_size",
    "direction",
    "num_outputs",
    "keepdims",
    "mode",
    "epsilon",
    "momentum",
    "training_mode",
    "value",
    "ceil_mode",
    "auto_pad",
    "output_padding",
    "output_shape",
    "blocksize",
    "allowzero",
    "num_scan_inputs",
    "scan_input_axes",
    "batch_dims",
    "split",
    "ratio",
    "seed",
    "then_branch",
    "else_branch",
    "body",
    "training_outputs",
    "non_differentiable_outputs",
];

pub(super) fn run(source: &mut Source) -> Result<(), String> {
    let bytes = model(source);
    source.file("onnx", || bytes.clone());
    let Ok(model) = Model::from_bytes(Bytes::from(bytes)) else {
        return Ok(());
    };
    let Ok(graph) = model.sorted_graph() else {
        return Ok(());
    };
    let mut options = plan::options(source);
    options.bindings.insert("N".to_owned(), number(source));
    options.bindings.insert("M".to_owned(), 4);
    plan::plan(source, &graph, &options, Some(&model)).map(drop)
}

/// ModelProto.
pub(super) fn model(source: &mut Source) -> Vec<u8> {
    let mut model = Message::default()
        .int(1, 8)
        .message(7, &graph(source, 0, &[]))
        .message(
            8,
            &Message::default().int(2, source.pick(&[15, 13, 17, 9, 1, 21])),
        )
        .message(8, &Message::default().text(1, "com.microsoft").int(2, 1));
    if source.one_in(8) {
        let function = Message::default()
            .text(1, "Unknown")
            .text(4, "a")
            .text(5, "b")
            .message(7, &node(source, 1, &mut vec!["a".to_owned()], 0));
        model = model.message(25, &function);
    }
    if source.one_in(20) {
        let bits = source.bits();
        model = model.int(1 + bits % 40, bits);
    }
    model.0
}

/// GraphProto; a body sees what is `outside`.
fn graph(source: &mut Source, depth: usize, outside: &[String]) -> Message {
    let mut graph = Message::default().text(2, "g");
    let mut names: Vec<String> = outside.to_vec();
    for at in 0..source.below(4) {
        let name = format!("x{depth}_{at}");
        graph = graph.message(11, &value_info(source, &name));
        names.push(name);
    }
    for at in 0..source.below(4) {
        let name = match source.one_in(10) && !names.is_empty() {
            true => source.pick(&names),
            false => format!("w{depth}_{at}"),
        };
        graph = graph.message(5, &tensor(source, &name));
        names.push(name);
    }
    for at in 0..source.below(if depth == 0 { 12 } else { 3 }) {
        let node = node(source, depth, &mut names, at);
        graph = graph.message(1, &node);
    }
    for _ in 0..source.below(4) {
        if !names.is_empty() {
            let name = source.pick(&names);
            graph = graph.message(13, &value_info(source, &name));
            if source.one_in(2) {
                graph = graph.message(12, &value_info(source, &name));
            }
        }
    }
    graph
}

fn node(source: &mut Source, depth: usize, names: &mut Vec<String>, at: usize) -> Message {
    let mut node = Message::default();
    for _ in 0..source.below(5) {
        let name = match source.below(16) {
            0 => String::new(),
            // What comes later, or never.
            1 => format!("t{depth}_{}_0", source.below(12)),
            _ if names.is_empty() => String::new(),
            _ => source.pick(names),
        };
        node = node.text(1, &name);
    }
    for position in 0..source.below(4) {
        let name = match source.below(24) {
            0 => String::new(),
            1 if !names.is_empty() => source.pick(names),
            _ => format!("t{depth}_{at}_{position}"),
        };
        node = node.text(2, &name);
        names.push(name);
    }
    let operator = source.pick(&OPERATORS);
    let name = if source.one_in(12) {
        String::new()
    } else {
        format!("n{depth}_{at}")
    };
    node = node
        .text(3, &name)
        .text(4, operator.trim_start_matches('.'));
    if operator.starts_with('.') {
        node = node.text(7, "com.microsoft");
    }
    let bodies = match operator {
        "If" => vec!["then_branch", "else_branch"],
        "Loop" | "Scan" => vec!["body"],
        _ => vec![],
    };
    for body in bodies {
        if depth < 3 {
            let contents = graph(source, depth + 1, names);
            node = node.message(
                5,
                &Message::default()
                    .text(1, body)
                    .message(6, &contents)
                    .int(20, 5),
            );
        }
    }
    for _ in 0..source.below(4) {
        node = node.message(5, &attribute(source));
    }
    node
}

fn attribute(source: &mut Source) -> Message {
    let message = Message::default().text(1, source.pick(&ATTRIBUTES));
    let (mut message, kind) = match source.below(9) {
        0 | 1 => (message.int(3, signed(source)), 2),
        2 => (
            message.float(2, source.pick(&[0.5, 0.0, -1.0, f32::NAN, f32::MAX])),
            1,
        ),
        3 => {
            let texts = [
                "ij,jk->ik",
                "bij,bjk->",
                "...",
                "linear",
                "bidirectional",
                "",
                "SAME_UPPER",
                "i->ii",
            ];
            (message.text(4, source.pick(&texts)), 3)
        }
        4 => (message.message(5, &tensor(source, "")), 4),
        _ => {
            let ints = (0..source.below(7)).map(|_| signed(source));
            let ints: Vec<u64> = ints.collect();
            (
                ints.into_iter()
                    .fold(message, |message, int| message.int(8, int)),
                7,
            )
        }
    };
    if !source.one_in(16) {
        message = message.int(20, kind);
    }
    message
}

fn value_info(source: &mut Source, name: &str) -> Message {
    let mut dims = Message::default();
    for _ in 0..source.below(5) {
        let dim = match source.below(6) {
            0 => Message::default().text(2, source.pick(&["N", "M", "other", ""])),
            1 if source.one_in(3) => Message::default(),
            _ => Message::default().int(1, number(source)),
        };
        dims = dims.message(1, &dim);
    }
    let tensor = Message::default().int(1, element(source)).message(2, &dims);
    // Optional, sequence, map; mostly a tensor.
    let field = if source.one_in(24) {
        source.pick(&[4, 9, 5])
    } else {
        1
    };
    Message::default()
        .text(1, name)
        .message(2, &Message::default().message(field, &tensor))
}

/// TensorProto.
fn tensor(source: &mut Source, name: &str) -> Message {
    let mut tensor = Message::default().text(8, name);
    let mut count = 1_u64;
    for _ in 0..source.below(4) {
        let size = number(source);
        count = count.saturating_mul(size);
        tensor = tensor.int(1, size);
    }
    let element = element(source);
    tensor = tensor.int(2, element);
    match source.below(4) {
        0 => tensor.bytes(9, &vec![source.bits() as u8; count.min(64) as usize * 4]),
        1 => (0..count.min(8)).fold(tensor, |tensor, _| tensor.int(7, signed(source))),
        2 => {
            let numbers = (0..count.min(8)).flat_map(|_| signed(source).to_le_bytes());
            let numbers: Vec<u8> = numbers.collect();
            tensor.bytes(9, &numbers)
        }
        _ => tensor,
    }
}

fn element(source: &mut Source) -> u64 {
    match source.below(10) {
        0 => source.pick(&[10, 16, 11, 8]),
        1 => source.below(30) as u64,
        2 | 3 => 7,
        _ => 1,
    }
}

/// A size: mostly small, now and then of any magnitude.
fn number(source: &mut Source) -> u64 {
    match source.below(16) {
        0 => source.bits() >> source.below(64),
        1 => source.pick(&[0, u64::MAX, 1 << 63, 1 << 32, (1 << 62) + 1]),
        _ => source.pick(&[4, 1, 2, 3, 8, 16]),
    }
}

fn signed(source: &mut Source) -> u64 {
    match source.below(8) {
        0 => source.bits(),
        1 => source.pick(&[u64::MAX, i64::MAX as u64, i64::MIN as u64, (-2_i64) as u64]),
        _ => source.below(5) as u64,
    }
}
