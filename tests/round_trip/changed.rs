//! What a change writes, and what it leaves alone.

use ckpt_opt::onnx::Model;
use ckpt_passes::graph::{AttributeValue, Constant, ElementType, Graph, Node, Tensor, TensorKind};
use onnx_protobuf::{ModelProto, NodeProto};
use protobuf::Message as _;

use crate::build::{field, int, model, node, relu, unknown, value};
use crate::{every_model, node_named, read, rewritten, testdata};

pub(crate) fn everything() -> Vec<u8> {
    std::fs::read(testdata("onnx/everything.onnx")).unwrap()
}

/// The model as another reader sees it.
pub(crate) fn second_reader(bytes: &[u8]) -> ModelProto {
    ModelProto::parse_from_bytes(bytes).unwrap()
}

/// A tensor of two floats.
pub(crate) fn pair(name: &str) -> Tensor {
    Tensor {
        element: Some(ElementType::Float),
        shape: Some(vec![2]),
        ..Tensor::new(name, TensorKind::Value)
    }
}

/// Adds a copy of the node `name` with new outputs, as recomputation does.
fn add_mirror(graph: &mut Graph, name: &str) {
    let mut mirror = graph.node(node_named(graph, name)).clone();
    mirror.name = format!("{name}_again");
    for output in mirror.outputs.iter_mut().flatten() {
        let name = graph.free_tensor_name(&format!("{}_again", graph.tensor(*output).name));
        *output = graph.add_tensor(Tensor {
            name,
            ..graph.tensor(*output).clone()
        });
    }
    mirror.set_attribute("__recompute", AttributeValue::Int(1));
    graph.add_node(mirror);
}

#[test]
fn a_mirror_keeps_documentation_metadata_and_newer_fields_of_its_original() {
    let bytes = rewritten(everything(), |graph| add_mirror(graph, "gemm"));
    let (before, after) = (second_reader(&everything()), second_reader(&bytes));
    let (original, mirror) = (&before.graph.node[0], after.graph.node.last().unwrap());

    let mut expected: NodeProto = original.clone();
    expected.name = "gemm_again".to_owned();
    expected.output = vec!["gemm_again".to_owned()];
    let mut marker = onnx_protobuf::AttributeProto::new();
    marker.name = "__recompute".to_owned();
    marker.i = 1;
    marker.type_ = onnx_protobuf::attribute_proto::AttributeType::INT.into();
    expected.attribute.push(marker);
    assert_eq!(mirror, &expected);
    assert_eq!(mirror.doc_string, "a general matrix product");

    // All else is as it was, but for the new tensor's declaration.
    let mut rest = after.clone();
    rest.graph.as_mut().unwrap().node.pop();
    let declaration = rest.graph.as_mut().unwrap().value_info.pop().unwrap();
    assert_eq!(declaration.name, "gemm_again");
    // A call of one of the model's functions is what the runtime makes of it.
    let mut before = before;
    let call = &mut before.graph.as_mut().unwrap().node[1];
    let mut product = NodeProto::new();
    product.op_type = "Mul".to_owned();
    product.name = "call/Mul_0".to_owned();
    product.input = vec!["gemm".to_owned(), "gemm".to_owned()];
    product.output = vec!["scaled".to_owned()];
    *call = product;
    // Compared as text: the file holds a NaN, which equals nothing.
    assert_eq!(format!("{rest:?}"), format!("{before:?}"));
}

#[test]
fn unknown_fields_of_a_changed_node_stay_where_they_were() {
    let attribute = [
        unknown(),
        field(1, "alpha"),
        int(3, 4),
        int(20, 2),
        field(13, "doc"),
    ]
    .concat();
    let old = [
        unknown(),
        node("Elu", "x", "y"),
        field(5, attribute),
        field(6, "text"),
        unknown(),
    ];
    let with = |node: Vec<u8>| {
        model(
            [
                field(1, node),
                field(11, value("x", 4)),
                field(12, value("y", 4)),
            ]
            .concat(),
        )
    };
    let bytes = rewritten(with(old.concat()), |graph| {
        let id = node_named(graph, "");
        graph.node_mut(id).name = "named".to_owned();
        graph
            .node_mut(id)
            .set_attribute("alpha", AttributeValue::Int(5));
    });
    let attribute = [
        unknown(),
        field(1, "alpha"),
        field(13, "doc"),
        int(3, 5),
        int(20, 2),
    ]
    .concat();
    let new = [
        unknown(),
        node("Elu", "x", "y"),
        field(5, attribute),
        field(6, "text"),
        unknown(),
        field(3, "named"),
    ];
    assert_eq!(bytes, with(new.concat()));
}

#[test]
fn another_order_moves_nodes_and_nothing_else() {
    let graph = |first: Vec<u8>, second: Vec<u8>| {
        [
            field(13, value("a", 4)),
            first,
            second,
            field(2, "name"),
            unknown(),
        ]
        .concat()
    };
    let (a, b) = (
        field(1, node("Relu", "x", "a")),
        field(1, node("Neg", "x", "b")),
    );
    let rest = [field(11, value("x", 4)), field(12, value("b", 4))].concat();
    let bytes = rewritten(
        model([graph(a.clone(), b.clone()), rest.clone()].concat()),
        |graph| {
            graph.set_order(graph.order().iter().rev().copied().collect());
        },
    );
    assert_eq!(bytes, model([graph(b, a), rest].concat()));
}

#[test]
fn interleaved_nodes_gather_where_the_first_one_was() {
    let (a, b) = (
        field(1, node("Relu", "x", "a")),
        field(1, node("Neg", "x", "b")),
    );
    let io = [field(11, value("x", 4)), field(12, value("b", 4))].concat();
    let old = [a.clone(), io.clone(), b.clone(), unknown()].concat();
    let bytes = rewritten(model(old), |graph| {
        graph.set_order(graph.order().iter().rev().copied().collect());
    });
    assert_eq!(bytes, model([b, a, io, unknown()].concat()));
}

#[test]
fn a_changed_graph_in_two_pieces_becomes_one() {
    let first = [field(1, node("Relu", "x", "m")), field(11, value("x", 4))].concat();
    let second = [field(1, node("Neg", "m", "y")), field(12, value("y", 4))].concat();
    let old = [field(7, first), field(8, int(2, 15)), field(7, second)].concat();
    let bytes = rewritten(old, |graph| {
        let id = graph.order()[1];
        graph.node_mut(id).name = "last".to_owned();
    });
    let graph = [
        field(1, node("Relu", "x", "m")),
        field(1, [node("Neg", "m", "y"), field(3, "last")].concat()),
        field(11, value("x", 4)),
        field(12, value("y", 4)),
    ];
    assert_eq!(
        bytes,
        [field(7, graph.concat()), field(8, int(2, 15))].concat()
    );
}

#[test]
fn a_node_from_scratch_is_read_as_it_was_meant() {
    let attributes = [
        ("int", AttributeValue::Int(-3)),
        ("float", AttributeValue::Float(0.5)),
        ("string", AttributeValue::String(b"text".to_vec())),
        ("ints", AttributeValue::Ints(vec![1, -2])),
        ("floats", AttributeValue::Floats(vec![0.5, -0.0])),
        (
            "strings",
            AttributeValue::Strings(vec![b"a".to_vec(), vec![]]),
        ),
        ("no_ints", AttributeValue::Ints(vec![])),
        (
            "int64",
            tensor(
                ElementType::Int64,
                vec![2],
                Constant::Ints(vec![i64::MIN, 3]),
            ),
        ),
        (
            "int32",
            tensor(ElementType::Int32, vec![1], Constant::Ints(vec![-1])),
        ),
        (
            "bool",
            tensor(ElementType::Bool, vec![2], Constant::Ints(vec![1, 0])),
        ),
        (
            "scalar",
            tensor(
                ElementType::Float,
                vec![],
                Constant::Floats(vec![0.1f32.into()]),
            ),
        ),
        (
            "double",
            tensor(ElementType::Double, vec![0], Constant::Floats(vec![])),
        ),
    ];
    let mut expected = Graph::default();
    let bytes = rewritten(model(relu()), |graph| {
        let x = graph.tensor_named("x");
        let output = Some(graph.add_tensor(pair("new")));
        let mut node = Node::new(
            "scratch",
            "com.microsoft",
            "New",
            vec![None, x, None],
            vec![output],
        );
        for (name, value) in &attributes {
            node.set_attribute(name, value.clone());
        }
        graph.add_node(node);
        expected = graph.clone();
    });
    let (_, after) = read(bytes.clone());
    let new = after.node(node_named(&after, "scratch"));
    let meant = expected.node(node_named(&expected, "scratch"));
    assert_eq!(
        new,
        &Node {
            template: Some(1),
            ..meant.clone()
        }
    );
    // The new domain is imported.
    assert_eq!(after.opsets.get("com.microsoft"), Some(&1));
    let second = second_reader(&bytes);
    assert_eq!(second.graph.node[1].input, ["", "x", ""]);
    assert_eq!(second.opset_import[1].domain, "com.microsoft");
    assert_eq!(second.opset_import[1].version, 1);
}

pub(crate) fn tensor(element: ElementType, shape: Vec<u64>, constant: Constant) -> AttributeValue {
    AttributeValue::Tensor {
        element,
        shape,
        constant: Some(constant),
    }
}

#[test]
fn a_domain_that_is_imported_is_not_imported_again() {
    let bytes = rewritten(everything(), |graph| {
        let x = graph.tensor_named("x");
        let output = Some(graph.add_tensor(pair("new")));
        graph.add_node(Node::new("", "com.example", "New", vec![x], vec![output]));
    });
    assert_eq!(
        second_reader(&bytes).opset_import,
        second_reader(&everything()).opset_import
    );
}

#[test]
fn attributes_can_be_taken_away() {
    let bytes = rewritten(everything(), |graph| {
        let id = node_named(graph, "unknown");
        graph
            .node_mut(id)
            .attributes
            .retain(|attribute| attribute.name == "tensors");
    });
    let (before, after) = (second_reader(&everything()), second_reader(&bytes));
    let tensors = before.graph.node[9]
        .attribute
        .iter()
        .filter(|a| a.name == "tensors");
    assert!(after.graph.node[9].attribute.iter().eq(tensors));
    assert_eq!(after.graph.node[9].attribute.len(), 1);
}

#[test]
fn a_mirror_of_every_node_of_every_model_is_read_back() {
    for path in every_model()
        .iter()
        .filter(|path| !path.ends_with("external.onnx"))
    {
        let mut meant = Graph::default();
        let bytes = rewritten(std::fs::read(path).unwrap(), |graph| {
            for id in graph.order().to_vec() {
                let name = format!("node_{}", id.index());
                graph.node_mut(id).name = name.clone();
                add_mirror(graph, &name);
            }
            graph.set_order(graph.order().iter().rev().copied().collect());
            meant = graph.clone();
        });
        second_reader(&bytes);
        let (_, graph) = read(bytes);
        assert_eq!(listing(&graph), listing(&meant), "{path:?}");
    }
}

/// Nodes in order, by names only: ids and templates differ between a graph and its file.
fn listing(graph: &Graph) -> Vec<String> {
    let names = |ids: Vec<Option<_>>| -> Vec<String> {
        let name = |id: Option<_>| {
            id.map_or("", |id| graph.tensor(id).name.as_str())
                .to_owned()
        };
        ids.into_iter().map(name).collect()
    };
    let line = |&id: &_| {
        let node = graph.node(id);
        format!(
            "{} {}.{} {:?} {:?} {:?} {:?}",
            node.name,
            node.domain,
            node.op_type,
            names(node.inputs.clone()),
            names(node.outputs.clone()),
            names(node.captures.iter().copied().map(Some).collect()),
            node.attributes,
        )
    };
    graph.order().iter().map(line).collect()
}

#[test]
fn subgraphs_stay_with_their_node() {
    let path = testdata("onnx/control_flow.onnx");
    let bytes = rewritten(std::fs::read(&path).unwrap(), |graph| {
        add_mirror(graph, "loop")
    });
    let (before, after) = (
        second_reader(&std::fs::read(&path).unwrap()),
        second_reader(&bytes),
    );
    assert_eq!(
        after.graph.node[4].attribute[0],
        before.graph.node[3].attribute[0]
    );
    let model = Model::from_bytes(bytes.into()).unwrap();
    let graph = model.graph().unwrap();
    let captures = |name| &graph.node(node_named(&graph, name)).captures;
    assert_eq!(captures("loop_again"), captures("loop"));
}
