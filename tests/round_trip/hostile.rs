//! Files that are not what they should be.

use bytes::Bytes;
use ckpt_opt::onnx::Model;
use ckpt_passes::graph::Graph;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use crate::build::{field, int, model, node, relu, value, varint};
use crate::{rewritten, testdata, written};

fn parse(bytes: Vec<u8>) -> Result<Graph, String> {
    let model = Model::from_bytes(Bytes::from(bytes)).map_err(|error| error.to_string())?;
    model.graph().map_err(|error| error.to_string())
}

fn refusal(bytes: impl Into<Vec<u8>>) -> String {
    parse(bytes.into())
        .unwrap_err()
        .replace("model in memory: ", "")
}

#[test]
fn what_is_no_model_is_called_what_it_is() {
    let refusals = [
        refusal(""),
        refusal("\n"),
        refusal("import torch\n"),
        refusal("<\n  ir_version: 8,\n>\nagraph (float[N] x) => (float[N] y) { y = Relu(x) }\n"),
        refusal("{\"peak\": \"größer\"}"),
        refusal("version https://git-lfs.github.com/spec/v1\n"),
        refusal("PK\x03\x04\x00\x00"),
        refusal(*b"\x20\x00\x00\x00ORTM\x00\x00"),
        refusal(*b"\x1f\x8b\x08\x00"),
        refusal([0xff; 64]),
        refusal([0; 64]),
        refusal(int(1, 8)),
        refusal(&model(relu())[..30]),
        refusal(int(7, 8)),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r"
    expected an ONNX model, but this is an empty file
    expected an ONNX model, but this is text
    expected an ONNX model, but this is text
    expected an ONNX model, but this is ONNX in text form: parse it with onnx.parser first
    expected an ONNX model, but this is text
    expected an ONNX model, but this is a Git LFS pointer: fetch the file itself with `git lfs pull`
    expected an ONNX model, but this is a ZIP archive, perhaps a PyTorch checkpoint: export it to ONNX first
    expected an ONNX model, but this is an ONNX Runtime .ort file: use the .onnx file it was made from
    expected an ONNX model, but this is gzip data: decompress it first
    damaged, or not an ONNX model: no field starts at byte 0
    damaged, or not an ONNX model: no field starts at byte 0
    not an ONNX model: it has no graph
    damaged, or not an ONNX model: field 7 at byte 8 claims 55 bytes where only 22 are left: the file is truncated or damaged
    damaged, or not an ONNX model: field 7 at byte 0 should be a message or a string
    ");
}

#[test]
fn a_graph_that_is_none_is_refused_by_name() {
    let graph = |parts: &[Vec<u8>]| {
        let io = [field(11, value("x", 4)), field(12, value("y", 4))].concat();
        model([parts.concat(), io].concat())
    };
    let named = |name: &str, node: Vec<u8>| field(1, [field(3, name), node].concat());
    let attribute = |name: &str| field(5, [field(1, name), int(3, 1), int(20, 2)].concat());
    let y = || field(1, node("Relu", "x", "y"));
    let refusals = [
        refusal(graph(&[])),
        refusal(graph(&[y(), y()])),
        refusal(graph(&[y(), field(1, node("Neg", "y", "x"))])),
        refusal(graph(&[
            y(),
            field(5, [field(8, "y"), int(1, 1), int(2, 1)].concat()),
        ])),
        refusal(graph(&[y(), field(11, value("x", 4))])),
        refusal(graph(&[named("n", node("Relu", "nowhere", "y"))])),
        refusal(graph(&[field(1, node("", "x", "y"))])),
        refusal(graph(&[y(), field(11, value("", 4))])),
        refusal(graph(&[y(), field(12, value("", 4))])),
        refusal(graph(&[y(), field(5, int(2, 1))])),
        refusal(graph(&[
            y(),
            field(5, [field(8, "w"), int(1, u64::MAX)].concat()),
        ])),
        refusal(graph(&[field(
            1,
            [node("Op", "x", "y"), attribute("a"), attribute("a")].concat(),
        )])),
        refusal(graph(&[field(
            1,
            [node("Op", "x", "y"), attribute("")].concat(),
        )])),
        refusal(graph(&[field(
            1,
            [node("Op", "x", "y"), field(3, b"\xff")].concat(),
        )])),
        refusal(graph(&[named(
            "n",
            [node("Op", "x", "y"), field(5, int(1, 1))].concat(),
        )])),
        refusal(graph(&[field(2, b"\xff"), y()])),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r#"
    tensor "y": it is read by the graph as an output, but no node writes it, and it is no input or initializer
    tensor "y": it is defined twice: as an output of node 0, and as an output of node 1; names are unique
    tensor "x": it is defined twice: as a graph input, and as an output of node 1; names are unique
    tensor "y": it is defined twice: as an initializer, and as an output of node 0; names are unique
    tensor "x": it is defined twice: as a graph input, and as a graph input; names are unique
    tensor "nowhere": it is read by node 0, "n" (Relu), but no node writes it, and it is no input or initializer
    node 0 (): it names no operator (op_type)
    graph input number 0 has no name
    graph output number 0 has no name
    initializer number 0 has no name
    tensor "w": it is an initializer and has a negative dimension
    node 0 (Op): attribute "a" is there twice; attribute names are unique
    node 0 (Op): an attribute has no name
    node 0: damaged, or not an ONNX model: failed to decode Protobuf message: NodeProto.name: invalid string value: data is not UTF-8 encoded
    node 0, "n" (Op): damaged, or not an ONNX model: failed to decode Protobuf message: AttributeProto.name: invalid wire type: Varint (expected LengthDelimited)
    damaged, or not an ONNX model: the text at byte 10 is not UTF-8
    "#);
}

#[test]
fn a_cycle_is_left_to_verification() {
    let graph = [
        field(1, node("Relu", "b", "a")),
        field(1, node("Relu", "a", "b")),
        field(12, value("b", 4)),
    ];
    assert_eq!(parse(model(graph.concat())).unwrap().node_count(), 2);
}

#[test]
fn every_truncation_is_an_error_or_a_model() {
    for name in ["onnx/everything.onnx", "onnx/control_flow.onnx"] {
        let bytes = std::fs::read(testdata(name)).unwrap();
        let mut accepted = 0;
        for length in 0..bytes.len() {
            accepted += usize::from(parse(bytes[..length].to_vec()).is_ok());
        }
        // Protobuf has no end mark: files cut between two of the fields behind the graph stay
        // models. There are seven at most.
        assert!(accepted <= 7, "{name}: {accepted}");
    }
}

#[test]
fn a_damaged_file_is_an_error_or_keeps_its_bytes() {
    let config = ProptestConfig {
        cases: 400,
        rng_seed: RngSeed::Fixed(2),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let file = std::fs::read(testdata("onnx/everything.onnx")).unwrap();
    let flips = prop::collection::vec((0..file.len(), any::<u8>()), 1..4);
    TestRunner::new(config)
        .run(&flips, |flips| {
            let mut bytes = file.clone();
            for (place, byte) in flips {
                bytes[place] = byte;
            }
            let Ok(graph) = parse(bytes.clone()) else {
                return Ok(());
            };
            let model = Model::from_bytes(Bytes::from(bytes.clone())).unwrap();
            prop_assert!(written(&model, &graph) == bytes);
            // A changed one is still read as it was meant.
            let last = *graph.order().last().unwrap();
            let rename = |graph: &mut Graph| graph.node_mut(last).name = "renamed".to_owned();
            let after = parse(rewritten(bytes, rename)).unwrap();
            prop_assert_eq!(&after.node(last).name, "renamed");
            prop_assert_eq!(after.node_count(), graph.node_count());
            prop_assert_eq!(after.tensor_count(), graph.tensor_count());
            Ok(())
        })
        .unwrap();
}

#[test]
fn noise_is_an_error_or_a_model() {
    let config = ProptestConfig {
        cases: 2000,
        rng_seed: RngSeed::Fixed(3),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let noise = prop::collection::vec(any::<u8>(), 0..200);
    TestRunner::new(config)
        .run(&noise, |noise| {
            let _ = parse(noise.clone());
            let _ = parse(field(7, &noise));
            let _ = parse(field(7, field(1, &noise)));
            let _ = parse(field(7, field(5, &noise)));
            let attribute = [field(1, "a"), int(20, 4), field(5, &noise)].concat();
            let _ = parse(field(
                7,
                field(1, [field(4, "Op"), field(5, attribute)].concat()),
            ));
            Ok(())
        })
        .unwrap();
}

/// A node whose subgraph holds such a node, and so on.
fn nested(levels: usize) -> Vec<u8> {
    // Inside out; put in front of one another at the end.
    let mut prefixes: Vec<Vec<u8>> = vec![node("Relu", "x", "deep")];
    let mut length = prefixes[0].len();
    for _ in 0..levels {
        for (number, before) in [(1, vec![]), (6, field(1, "body")), (5, field(4, "If"))] {
            let prefix = [before, varint(number << 3 | 2), varint(length as u64)].concat();
            length += prefix.len();
            prefixes.push(prefix);
        }
    }
    prefixes.reverse();
    model([relu(), field(1, prefixes.concat())].concat())
}

/// 32 levels: what ONNX Runtime 1.19.2 and onnx 1.16.2 load; both refuse 33.
#[test]
fn subgraphs_can_be_nested_as_deep_as_protobuf_reads_and_no_deeper() {
    let graph = parse(nested(32)).unwrap();
    let capturing = graph.node(graph.order()[1]);
    assert_eq!(capturing.captures, [graph.tensor_named("x").unwrap()]);
    insta::assert_snapshot!(refusal(nested(33)), @"node 1 (If): its subgraphs are nested deeper than 32 levels");
    insta::assert_snapshot!(refusal(nested(100_000)), @"node 1 (If): its subgraphs are nested deeper than 32 levels");
}

#[test]
fn groups_can_be_nested_a_hundred_thousand_times_without_harm() {
    let open = varint(99 << 3 | 3).repeat(100_000);
    let close = varint(99 << 3 | 4).repeat(100_000);
    for groups in [open.clone(), [open, close].concat()] {
        let text = refusal([model(relu()), groups].concat());
        let at = model(relu()).len();
        let expected = format!("the group (field 99) at byte {at} does not end");
        assert_eq!(text, format!("damaged, or not an ONNX model: {expected}"));
    }
}

#[test]
fn lengths_beyond_the_end_and_huge_dimensions_do_no_harm() {
    for length in [100, u64::from(u32::MAX), u64::MAX >> 1, u64::MAX] {
        let cut = [int(1, 8), varint(7 << 3 | 2), varint(length)].concat();
        assert!(refusal(cut).contains(&format!("claims {length} bytes where only 0 are left")));
    }
    let dims = int(1, i64::MAX as u64).repeat(4);
    let tensor = [field(8, "w"), dims, int(2, 1), field(9, "data")].concat();
    let graph = parse(model([relu(), field(5, tensor)].concat())).unwrap();
    let w = graph.tensor(graph.tensor_named("w").unwrap());
    assert_eq!(w.constant, None);
    assert_eq!(w.element_count(), Some(u64::MAX));
}

#[test]
fn very_many_attributes_and_outputs_take_no_time() {
    let attribute = |i: usize| field(5, [field(1, format!("a{i}")), int(3, 1)].concat());
    let attributes = (0..100_000).flat_map(attribute).collect::<Vec<u8>>();
    let outputs = (0..100_000)
        .flat_map(|i| field(2, format!("o{i}")))
        .collect::<Vec<u8>>();
    let bytes = model(
        [
            relu(),
            field(1, [field(4, "Op"), attributes, outputs].concat()),
        ]
        .concat(),
    );
    let after = rewritten(bytes, |graph| {
        let id = graph.order()[1];
        graph.node_mut(id).name = "op".to_owned();
        graph
            .node_mut(id)
            .set_attribute("a99999", ckpt_passes::graph::AttributeValue::Int(2));
    });
    let graph = parse(after).unwrap();
    assert_eq!(graph.node(graph.order()[1]).int("a99999"), Some(2));
}
