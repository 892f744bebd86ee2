//! No change in, identical bytes out.

use ckpt_opt::onnx::Model;

use crate::build::{field, int, long_varint, model, node, relu, unknown, value, varint};
use crate::{every_model, read, written};

#[track_caller]
fn check(bytes: Vec<u8>) {
    let (model, graph) = read(bytes.clone());
    assert!(written(&model, &graph) == bytes, "the bytes differ");
}

#[test]
fn every_bundled_model_keeps_its_bytes() {
    for path in every_model() {
        let model = Model::open(&path).unwrap();
        let graph = model.graph().unwrap();
        // Beside a copy of the input, so that external data stays where it is.
        let folder = tempfile::tempdir().unwrap();
        let data = "external.bin";
        std::fs::copy(crate::testdata("onnx").join(data), folder.path().join(data)).unwrap();
        let out = folder.path().join("out.onnx");
        ckpt_opt::onnx::export(&model, &graph, &out)
            .unwrap()
            .commit()
            .unwrap();
        assert!(
            std::fs::read(&out).unwrap() == std::fs::read(&path).unwrap(),
            "{path:?}"
        );
    }
}

#[test]
fn fields_newer_than_this_program_stay_at_every_level() {
    let attribute = [field(1, "alpha"), int(3, 4), int(20, 2), unknown()].concat();
    // An attribute of a kind that does not exist yet.
    let newer = [field(1, "newer"), int(20, 99), unknown()].concat();
    let node = [
        unknown(),
        node("Newer", "x", "y"),
        field(7, "com.example.newer"),
        field(5, attribute),
        field(5, newer),
        unknown(),
    ]
    .concat();
    let tensor = [
        field(8, "w"),
        int(1, 2),
        int(2, 77),
        field(99, "contents"),
        unknown(),
    ]
    .concat();
    let graph = [
        unknown(),
        field(1, node),
        field(5, tensor),
        unknown(),
        field(11, [value("x", 4), unknown()].concat()),
        field(12, value("y", 4)),
        unknown(),
    ]
    .concat();
    check([unknown(), model(graph), unknown()].concat());
}

#[test]
fn fields_in_any_order_stay_in_that_order() {
    let graph = [
        field(12, value("y", 4)),
        field(1, node("Relu", "m", "y")),
        field(13, value("m", 4)),
        field(1, node("Neg", "x", "m")),
        field(2, "first name"),
        field(11, value("x", 4)),
        field(2, "second name"),
    ]
    .concat();
    check([field(7, graph), int(1, 8), field(8, int(2, 15))].concat());
}

#[test]
fn numbers_that_are_longer_than_needed_stay_so() {
    let name = [varint(3 << 3 | 2), long_varint(1), b"n".to_vec()].concat();
    let node = [node("Relu", "x", "y"), name].concat();
    let length = long_varint(node.len() as u8);
    let graph = [
        [varint(1 << 3 | 2), length, node].concat(),
        field(11, value("x", 4)),
        field(12, value("y", 4)),
    ]
    .concat();
    let length = long_varint(graph.len() as u8);
    check([int(1, 8), varint(7 << 3 | 2), length, graph].concat());
}

#[test]
fn a_graph_in_two_pieces_stays_so() {
    let bytes = [
        field(
            7,
            [field(1, node("Relu", "x", "m")), field(11, value("x", 4))].concat(),
        ),
        field(8, int(2, 15)),
        field(
            7,
            [field(1, node("Neg", "m", "y")), field(12, value("y", 4))].concat(),
        ),
    ]
    .concat();
    let (_, graph) = read(bytes.clone());
    assert_eq!(graph.node_count(), 2);
    check(bytes);
}

#[test]
fn a_node_that_is_not_a_number_equals_itself() {
    // Any NaN: attribute values are compared bit by bit.
    let nan = [vec![2 << 3 | 5], 0x7fc0_1234_u32.to_le_bytes().to_vec()].concat();
    let attribute = [field(1, "alpha"), nan, int(20, 1)].concat();
    let node = [node("Elu", "x", "y"), field(5, attribute)].concat();
    let graph = [
        field(1, node),
        field(11, value("x", 4)),
        field(12, value("y", 4)),
    ]
    .concat();
    check(model(graph));
}

#[test]
fn a_model_without_operator_sets_stays_without() {
    check(field(7, relu()));
}
