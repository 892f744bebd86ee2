//! What the graph says about a file.

use ckpt_opt::onnx::Model;
use ckpt_passes::graph::{AttributeValue, Graph};

use crate::build::{field, int, model, node, relu, value, varint};
use crate::{node_named, read, testdata};

fn graph_of(name: &str) -> Graph {
    read(std::fs::read(testdata(name)).unwrap()).1
}

/// Tensors as `name kind type declared = shape: contents`.
fn tensors(graph: &Graph) -> String {
    let mut text = String::new();
    for id in graph.tensor_ids() {
        let tensor = graph.tensor(id);
        text += &format!("{} {:?}", tensor.name, tensor.kind);
        text += &tensor
            .element
            .map_or(String::new(), |element| format!(" {}", element.name()));
        if let Some(declared) = &tensor.declared {
            text += &format!(" {declared:?}");
        }
        if let Some(shape) = &tensor.shape {
            text += &format!(" = {shape:?}");
        }
        if let Some(constant) = &tensor.constant {
            text += &format!(": {constant:?}");
        }
        text += "\n";
    }
    text
}

/// Nodes as `[index] outputs = domain.operator(inputs) {captures} attributes`.
fn nodes(graph: &Graph) -> String {
    let name = |id| graph.tensor(id).name.as_str();
    let names = |ids: &[Option<_>]| {
        let names: Vec<&str> = ids.iter().map(|id| id.map_or("-", name)).collect();
        names.join(", ")
    };
    let mut text = String::new();
    for &id in graph.order() {
        let node = graph.node(id);
        let dot = if node.domain.is_empty() { "" } else { "." };
        text += &format!(
            "[{}] {} = {}{dot}{}({})",
            node.template.or(node.piece_of).unwrap(),
            names(&node.outputs),
            node.domain,
            node.op_type,
            names(&node.inputs)
        );
        if !node.captures.is_empty() {
            let captures: Vec<&str> = node.captures.iter().map(|&id| name(id)).collect();
            text += &format!(" {{{}}}", captures.join(", "));
        }
        for attribute in &node.attributes {
            text += &format!(" {}={:?}", attribute.name, attribute.value);
        }
        text += "\n";
    }
    text
}

#[test]
fn tensors_have_types_shapes_and_small_contents() {
    insta::assert_snapshot!(tensors(&graph_of("onnx/everything.onnx")), @r#"
    x Input float [Symbol("batch"), Known(2)]
    weight Initializer float [Known(2), Known(3)] = [2, 3]: Floats([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    bias Initializer float = [3]: Floats([0.5, -0.5, 2.0])
    double Initializer double = [2]: Floats([0.25, -1e300])
    half Initializer float16 = [5]: Floats([1.0, -2.0, 5.960464477539063e-8, 6.103515625e-5, 65504.0])
    brain Initializer bfloat16 = [2]: Floats([1.0, -3.0])
    int8 Initializer int8 = [3]: Ints([-128, 0, 127])
    uint8 Initializer uint8 = [2]: Ints([0, 255])
    bool Initializer bool = [2]: Ints([1, 0])
    int32 Initializer int32 = [2]: Ints([-1, 2147483647])
    uint32 Initializer uint32 = [1]: Ints([4294967295])
    uint64 Initializer uint64 = [1]: Ints([7])
    shape Initializer int64 = [2]: Ints([-1, 3])
    text Initializer string = [1]
    nothing Initializer float = [0, 3]: Floats([])
    scalar Initializer int64 = []: Ints([7])
    half_raw Initializer float16 = [2]: Floats([0.0999755859375, inf])
    sparse Initializer float = [2, 3]
    gemm Value float [Symbol("batch"), Known(3)]
    scaled Value
    clipped Value float [Symbol("batch"), Unknown]
    limit Value float = []: Floats([3.0])
    two Value
    dropped Value
    sequence Value
    y Value float
    z Value float [Known(2), Known(3)]
    u Value float [Known(2), Known(3)]
    "#);
}

#[test]
fn nodes_have_inputs_outputs_and_attributes() {
    insta::assert_snapshot!(nodes(&graph_of("onnx/everything.onnx")), @r"
    [0] gemm = Gemm(x, weight, bias) alpha=Float(0.5) transB=Int(0)
    [1] scaled = Mul(gemm, gemm)
    [2] clipped = Clip(scaled, -, limit)
    [3] limit = Constant() value=Tensor { element: Float, shape: [], constant: Some(Floats([3.0])) }
    [4] two = Constant() value_int=Int(2)
    [5] dropped, - = Dropout(clipped)
    [6] sequence = SequenceConstruct(dropped)
    [7] y = Reshape(dropped, shape)
    [8] z = Add(sparse, weight)
    [9] u = com.example.Unknown(z) floats=Floats([0.5, NaN]) ints=Ints([1, -2, 3]) strings=Strings([[97], [254]]) tensors=Opaque text=String([116, 101, 120, 116])
    ");
}

#[test]
fn subgraphs_capture_what_they_do_not_define() {
    insta::assert_snapshot!(nodes(&graph_of("onnx/control_flow.onnx")), @r"
    [0] outer_a = Relu(x)
    [1] outer_b = Neg(x)
    [2] chosen = If(flag) {outer_a, flag, outer_b} else_branch=Opaque then_branch=Opaque
    [3] y = Loop(count, -, chosen) {outer_b} body=Opaque
    ");
}

#[test]
fn operator_sets_are_known_by_domain() {
    let graph = graph_of("onnx/everything.onnx");
    assert_eq!(graph.name, "everything");
    insta::assert_snapshot!(format!("{:?}", graph.opsets), @r#"{"": 15, "com.example": 3, "local": 1}"#);
}

#[test]
fn contents_in_other_files_are_unknown() {
    insta::assert_snapshot!(tensors(&graph_of("onnx/external.onnx")), @r"
    x Input float [Known(4)]
    w Initializer float = [4]
    c Value float = [4]
    s Value
    y Value float [Known(4)]
    ");
}

#[test]
fn repeated_numbers_may_be_packed_or_not() {
    let packed = [varint(1), varint(300)].concat();
    let ints = [field(8, &packed), int(8, 7)].concat();
    let attribute = [field(1, "axes"), ints, int(20, 7)].concat();
    let node = [node("Newer", "x", "y"), field(3, "n"), field(5, attribute)].concat();
    // Dimensions packed, contents half packed: int64_data 1, 300 and 7.
    let contents = [field(7, &packed), int(7, 7)].concat();
    let tensor = [field(8, "w"), field(1, varint(3)), int(2, 7), contents].concat();
    let graph = [
        field(1, node),
        field(5, tensor),
        field(11, value("x", 4)),
        field(12, value("y", 4)),
    ]
    .concat();
    let (_, graph) = read(model(graph));
    let n = graph.node(node_named(&graph, "n"));
    assert_eq!(
        n.attribute("axes"),
        Some(&AttributeValue::Ints(vec![1, 300, 7]))
    );
    let w = graph.tensor(graph.tensor_named("w").unwrap());
    assert_eq!(w.shape, Some(vec![3]));
    assert_eq!(
        w.constant,
        Some(ckpt_passes::graph::Constant::Ints(vec![1, 300, 7]))
    );
}

#[test]
fn an_attribute_without_a_type_is_what_it_holds() {
    let attribute = [field(1, "axis"), int(3, 2)].concat();
    let node = [
        node("Softmax", "x", "y"),
        field(3, "n"),
        field(5, attribute),
    ]
    .concat();
    let graph = [
        field(1, node),
        field(11, value("x", 4)),
        field(12, value("y", 4)),
    ]
    .concat();
    let (_, graph) = read(model(graph));
    assert_eq!(graph.node(node_named(&graph, "n")).int("axis"), Some(2));
}

#[test]
fn more_than_4096_numbers_are_not_decoded() {
    let with = |count: usize| {
        let data = vec![0; count];
        let tensor = [
            field(8, "w"),
            int(1, count as u64),
            int(2, 2),
            field(9, data),
        ]
        .concat();
        let (_, graph) = read(model([relu(), field(5, tensor)].concat()));
        graph
            .tensor(graph.tensor_named("w").unwrap())
            .constant
            .is_some()
    };
    assert!(with(4096));
    assert!(!with(4097));
}

#[test]
fn contents_of_another_length_than_the_shape_says_are_unknown() {
    for data in [vec![], vec![0; 3], vec![0; 5]] {
        // Four elements of uint8.
        let tensor = [field(8, "w"), int(1, 4), int(2, 2), field(9, data)].concat();
        let (_, graph) = read(model([relu(), field(5, tensor)].concat()));
        assert_eq!(
            graph.tensor(graph.tensor_named("w").unwrap()).constant,
            None
        );
    }
}

/// Nodes of a file in any order, and of any names.
fn listed(nodes: &[(&str, &str, &str)]) -> Vec<u8> {
    let text = |number: u8, text: &str| {
        let mut field = vec![number << 3 | 2, text.len() as u8];
        field.extend(text.bytes());
        field
    };
    let message = |number: u8, contents: &[u8]| {
        let mut field = vec![number << 3 | 2, contents.len() as u8];
        field.extend(contents);
        field
    };
    let mut graph = Vec::new();
    for (name, input, output) in nodes {
        let node = [
            text(1, input),
            text(2, output),
            text(3, name),
            text(4, "Exp"),
        ]
        .concat();
        graph.extend(message(1, &node));
    }
    graph.extend(message(11, &text(1, "x")));
    message(7, &graph)
}

#[test]
fn nodes_are_sorted_and_else_keep_the_order_of_the_file() {
    let bytes = listed(&[
        ("late", "t", "y"),
        ("c", "x", "c"),
        ("a", "x", "t"),
        ("b", "x", "b"),
    ]);
    let model = Model::from_bytes(bytes.into()).expect("a model");
    let graph = model.sorted_graph().expect("a graph");
    let names = graph.order().iter().map(|&id| graph.node(id).name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["c", "a", "late", "b"]);
}

#[test]
fn two_nodes_of_one_name_are_both_told() {
    let bytes = listed(&[("n", "x", "y"), ("m", "x", "c"), ("n", "x", "t")]);
    let model = Model::from_bytes(bytes.into()).expect("a model");
    let problem = model.graph().expect_err("a refusal").problem.to_string();
    assert!(
        problem.starts_with(r#"two nodes are called "n": node 0 (Exp) and node 2 (Exp); "#),
        "{problem}"
    );
}
