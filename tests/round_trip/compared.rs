//! Two files are equal only if everything in them is, wherever it lies.

use std::fs;
use std::path::Path;

use ckpt_opt::onnx::{Counterpart, Model, compare};
use insta::assert_snapshot;

use crate::build::{field, int, model, node, relu, unknown, value};

/// What is said of two files in a folder.
fn between(folder: &Path, a: &[u8], b: &[u8]) -> String {
    let [a, b] = [("a.onnx", a), ("b.onnx", b)].map(|(name, bytes)| {
        fs::write(folder.join(name), bytes).unwrap();
        Model::open(&folder.join(name)).unwrap()
    });
    let nodes: Vec<_> = (0..b.graph().unwrap().node_count())
        .map(Counterpart::Same)
        .collect();
    match compare(&a, &b, &nodes, "ours.") {
        Ok(()) => "equal".to_owned(),
        Err(difference) => difference.to_string(),
    }
}

fn compared(a: impl AsRef<[u8]>, b: impl AsRef<[u8]>) -> String {
    between(tempfile::tempdir().unwrap().path(), a.as_ref(), b.as_ref())
}

/// Of models with this in their graph.
fn graphs(a: impl AsRef<[u8]>, b: impl AsRef<[u8]>) -> String {
    let with = |part: &[u8]| model([relu(), part.to_vec()].concat());
    compared(with(a.as_ref()), with(b.as_ref()))
}

/// TensorProto `w` of a type and a size, with other fields.
fn tensor(element: u64, size: u64, contents: &[u8]) -> Vec<u8> {
    [
        int(1, size),
        int(2, element),
        field(8, "w"),
        contents.to_vec(),
    ]
    .concat()
}

/// Of initializers.
fn tensors(element: u64, size: u64, a: &[u8], b: &[u8]) -> String {
    graphs(
        field(5, tensor(element, size, a)),
        field(5, tensor(element, size, b)),
    )
}

fn raw(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    field(9, bytes)
}

/// `external_data` and `data_location`.
fn outside(location: &str, offset: &str, length: &str) -> Vec<u8> {
    let entry = |key: &str, text: &str| field(13, [field(1, key), field(2, text)].concat());
    [
        entry("location", location),
        entry("offset", offset),
        entry("length", length),
        int(14, 1),
    ]
    .concat()
}

/// Of models in which the only node has this attribute.
fn attributes(a: impl AsRef<[u8]>, b: impl AsRef<[u8]>) -> String {
    let with = |attribute: &[u8]| {
        let node = [node("Relu", "x", "y"), field(5, attribute)].concat();
        model(
            [
                field(1, node),
                field(2, "graph"),
                field(11, value("x", 4)),
                field(12, value("y", 4)),
            ]
            .concat(),
        )
    };
    compared(with(a.as_ref()), with(b.as_ref()))
}

fn attribute(kind: u64, contents: Vec<u8>) -> Vec<u8> {
    [field(1, "a"), contents, int(20, kind)].concat()
}

#[test]
fn initializers_of_every_size_and_type_are_compared() {
    let mut large = vec![7; 4 * 8192];
    let before = raw(&large);
    large[4 * 8000] ^= 1;
    assert_snapshot!(tensors(1, 8192, &before, &raw(large)), @r#"initializer "w": its contents differ, first at element 8000"#);
    let float = |bits: u32| raw(bits.to_le_bytes());
    // NaN and another NaN, 0 and -0.
    assert_snapshot!(tensors(1, 1, &float(0x7fc0_0000), &float(0x7fc0_0001)), @r#"initializer "w": its contents differ, first at element 0"#);
    assert_snapshot!(tensors(1, 1, &float(0x7f80_0001), &float(0x7fc0_0001)), @r#"initializer "w": its contents differ, first at element 0"#);
    assert_snapshot!(tensors(1, 1, &float(0), &float(0x8000_0000)), @r#"initializer "w": its contents differ, first at element 0"#);
    // A half, and a number above 2^63.
    assert_snapshot!(tensors(10, 1, &raw([1, 0x7e]), &raw([2, 0x7e])), @r#"initializer "w": its contents differ, first at element 0"#);
    assert_snapshot!(tensors(13, 2, &[int(11, 1), int(11, u64::MAX)].concat(), &[int(11, 1), int(11, u64::MAX - 1)].concat()), @r#"initializer "w": its contents differ, first at element 1"#);
    // Texts; one type of which this program knows nothing; bits of four.
    assert_snapshot!(tensors(8, 2, &[field(6, "a"), field(6, "b")].concat(), &[field(6, "a"), field(6, "c")].concat()), @r#"initializer "w": its contents differ, first at element 1"#);
    assert_snapshot!(tensors(8, 2, &[field(6, "ab"), field(6, "")].concat(), &[field(6, "a"), field(6, "b")].concat()), @r#"initializer "w": its contents differ, first at element 0"#);
    assert_snapshot!(tensors(23, 2, &raw([1]), &raw([2])), @r#"initializer "w": its contents differ, first at element 0"#);
    assert_snapshot!(tensors(22, 2, &int(5, 0x12), &int(5, 0x13)), @r#"initializer "w": its contents differ, first at element 0"#);
    assert_snapshot!(tensors(1, 2, &raw([0; 8]), &raw([0; 4])), @r#"initializer "w": its contents differ: one of the two ends at element 1"#);
}

#[test]
fn equal_numbers_may_be_written_in_two_ways() {
    let bits = 1.5_f32.to_le_bytes();
    let packed = field(4, [bits, bits].concat());
    let single = |bits: [u8; 4]| [&[4 << 3 | 5][..], &bits].concat();
    let unpacked = [single(bits), single(bits)].concat();
    assert_snapshot!(tensors(1, 2, &packed, &unpacked), @"equal");
    assert_snapshot!(tensors(1, 2, &packed, &raw([bits, bits].concat())), @"equal");
    assert_snapshot!(tensors(1, 2, &packed, &raw([bits, 1.25_f32.to_le_bytes()].concat())), @r#"initializer "w": its contents differ, first at element 1"#);
    assert_snapshot!(tensors(2, 2, &field(5, [3, 4]), &raw([3, 4])), @"equal");
    assert_snapshot!(tensors(2, 2, &field(5, [3, 4]), &raw([3, 5])), @r#"initializer "w": its contents differ, first at element 1"#);
    assert_snapshot!(tensors(2, 2, &field(5, [3, 4]), &raw([3])), @r#"initializer "w": its contents differ: one of the two ends at element 1"#);
}

#[test]
fn external_data_is_what_lies_at_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("w1.bin"), [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 5]).unwrap();
    fs::write(path.join("w2.bin"), [1, 2, 3, 4]).unwrap();
    let with = |contents: Vec<u8>| model([relu(), field(5, tensor(2, 4, &contents))].concat());
    let at = |location, offset| with(outside(location, offset, "4"));
    let check = |a: Vec<u8>, b: Vec<u8>| between(path, &a, &b);
    assert_snapshot!(check(at("w1.bin", "0"), at("w1.bin", "4")), @"equal");
    assert_snapshot!(check(at("w1.bin", "0"), at("w2.bin", "0")), @"equal");
    assert_snapshot!(check(at("w1.bin", "0"), with(raw([1, 2, 3, 4]))), @"equal");
    assert_snapshot!(check(at("w1.bin", "0"), at("w1.bin", "8")), @r#"initializer "w": external data ("w1.bin" at offset 0, 4 bytes, and "w1.bin" at offset 8, 4 bytes): its contents differ, first at element 3"#);
    assert_snapshot!(check(at("w2.bin", "0"), at("w1.bin", "8")), @r#"initializer "w": external data ("w2.bin" at offset 0, 4 bytes, and "w1.bin" at offset 8, 4 bytes): its contents differ, first at element 3"#);
    assert_snapshot!(check(at("w1.bin", "0"), with(raw([1, 2, 3, 5]))), @r#"initializer "w": its contents differ, first at element 3"#);
    assert_snapshot!(check(with(raw([1, 2, 3, 5])), at("w1.bin", "0")), @r#"initializer "w": its contents differ, first at element 3"#);
    assert_snapshot!(check(at("w1.bin", "0"), at("w1.bin", "9")), @r#"initializer "w": its contents are in "w1.bin" at offset 9, 4 bytes, which cannot be read: the file ends before the tensor does"#);
    assert_snapshot!(check(at("w1.bin", "0"), at("w3.bin", "0")), @r#"initializer "w": its contents are in "w3.bin" at offset 0, 4 bytes, which cannot be read: No such file or directory (os error 2)"#);
    assert_snapshot!(check(at("w1.bin", "0"), at("w1.bin", "x")), @r#"initializer "w": its contents are in "w1.bin" at offset x, 4 bytes, which cannot be read: offset or length is no number"#);
    assert_snapshot!(check(at("w1.bin", "0"), with(outside("w1.bin", "0", "3"))), @r#"initializer "w": external data ("w1.bin" at offset 0, 4 bytes, and "w1.bin" at offset 0, 3 bytes): expected 4 bytes, found 3"#);
    assert_snapshot!(check(at(".", "0"), at("w1.bin", "0")), @r#"initializer "w": the original's contents are in "." at offset 0, 4 bytes, which cannot be read: not a regular file"#);
    // Nobody can tell what was there; the same words then mean the same.
    assert_snapshot!(check(at("w3.bin", "0"), at("w3.bin", "0")), @"equal");
}

#[test]
fn the_same_words_in_another_folder_mean_the_file_there() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let bytes = model([relu(), field(5, tensor(2, 4, &outside("w.bin", "0", "4")))].concat());
    let models = || {
        folders.each_ref().map(|folder| {
            fs::write(folder.path().join("m.onnx"), &bytes).unwrap();
            Model::open(&folder.path().join("m.onnx")).unwrap()
        })
    };
    let check = || {
        let [a, b] = models();
        compare(&a, &b, &[Counterpart::Same(0)], "ours.")
            .map_err(|difference| difference.to_string())
    };
    fs::write(folders[0].path().join("w.bin"), [1, 2, 3, 4]).unwrap();
    fs::write(folders[1].path().join("w.bin"), [1, 2, 3, 4]).unwrap();
    assert_eq!(check(), Ok(()));
    fs::write(folders[1].path().join("w.bin"), [1, 2, 3, 5]).unwrap();
    assert_snapshot!(check().unwrap_err(), @r#"initializer "w": external data ("w.bin" at offset 0, 4 bytes, and "w.bin" at offset 0, 4 bytes): its contents differ, first at element 3"#);
    fs::remove_file(folders[1].path().join("w.bin")).unwrap();
    assert_snapshot!(check().unwrap_err(), @r#"initializer "w": its contents are in "w.bin" at offset 0, 4 bytes, which cannot be read: No such file or directory (os error 2)"#);
}

#[test]
fn sparse_tensors_are_compared() {
    let sparse = |values: [u8; 2], indices: [u64; 2], size| {
        let values = [int(1, 2), int(2, 2), field(8, "s"), raw(values)].concat();
        let numbers = [int(7, indices[0]), int(7, indices[1])].concat();
        let indices = [int(1, 2), int(2, 7), numbers].concat();
        field(
            15,
            [field(1, values), field(2, indices), int(3, size)].concat(),
        )
    };
    let of =
        |values, indices, size| graphs(sparse([1, 2], [3, 5], 9), sparse(values, indices, size));
    assert_snapshot!(of([1, 2], [3, 5], 9), @"equal");
    assert_snapshot!(of([1, 3], [3, 5], 9), @r#"sparse initializer "s": values: its contents differ, first at element 1"#);
    assert_snapshot!(of([1, 2], [3, 6], 9), @r#"sparse initializer "s": indices: its contents differ, first at element 1"#);
    assert_snapshot!(of([1, 2], [3, 5], 10), @r#"sparse initializer "s": dims number 0: it differs"#);
}

#[test]
fn attributes_of_every_kind_are_compared() {
    let body = |op_type: &str| {
        attribute(
            5,
            field(
                6,
                [
                    field(1, node(op_type, "x", "b")),
                    field(2, "body"),
                    field(12, value("b", 4)),
                ]
                .concat(),
            ),
        )
    };
    assert_snapshot!(attributes(body("Relu"), body("Tanh")), @r#"the Relu that writes "y": attribute "a": its graph: the Tanh that writes "b": op_type differs"#);
    let nested = |op_type: &str| {
        let inner = [node("If", "x", "b"), field(5, body(op_type))].concat();
        attribute(
            5,
            field(
                6,
                [field(1, inner), field(2, "body"), field(12, value("b", 4))].concat(),
            ),
        )
    };
    assert_snapshot!(attributes(nested("Relu"), nested("Tanh")), @r#"the Relu that writes "y": attribute "a": its graph: the If that writes "b": attribute "a": its graph: the Tanh that writes "b": op_type differs"#);
    let large = |last: u8| {
        attribute(
            4,
            field(
                5,
                tensor(2, 5000, &raw([vec![0; 4999], vec![last]].concat())),
            ),
        )
    };
    assert_snapshot!(attributes(large(0), large(1)), @r#"the Relu that writes "y": attribute "a": the tensor: its contents differ, first at element 4999"#);
    let list = |last| {
        attribute(
            9,
            [
                field(10, tensor(2, 1, &raw([1]))),
                field(10, tensor(2, 1, &raw([last]))),
            ]
            .concat(),
        )
    };
    assert_snapshot!(attributes(list(0), list(1)), @r#"the Relu that writes "y": attribute "a": tensor "w": its contents differ, first at element 0"#);
    let kind = |element| attribute(13, field(14, field(4, field(1, field(1, int(1, element))))));
    assert_snapshot!(attributes(kind(1), kind(2)), @r#"the Relu that writes "y": attribute "a": field 14 differs"#);
    let float = |bits: u32| attribute(1, [&[2 << 3 | 5][..], &bits.to_le_bytes()].concat());
    assert_snapshot!(attributes(float(0), float(0x8000_0000)), @r#"the Relu that writes "y": attribute "a": f differs"#);
    let number = |more: Vec<u8>| attribute(2, [int(3, 1), more].concat());
    assert_snapshot!(attributes(number(Vec::new()), number(unknown())), @r#"the Relu that writes "y": attribute "a": field 5001 differs"#);
    assert_snapshot!(attributes(number(unknown()), number(unknown())), @"equal");
}

#[test]
fn what_is_newer_than_this_program_is_compared_at_every_level() {
    assert_snapshot!(graphs([], unknown()), @"the graph: field 5001 differs");
    assert_snapshot!(compared(model(relu()), [model(relu()), unknown()].concat()), @"field 5001 differs");
    assert_snapshot!(tensors(2, 1, &raw([1]), &[raw([1]), unknown()].concat()), @r#"initializer "w": field 5001 differs"#);
    let info = |more: Vec<u8>| field(13, [value("y", 4), more].concat());
    assert_snapshot!(graphs(info(Vec::new()), info(unknown())), @r#"value_info of "y": a field besides its type differs"#);
    let inputs = |more: Vec<u8>| field(11, [value("z", 4), more].concat());
    assert_snapshot!(graphs(inputs(Vec::new()), inputs(unknown())), @r#"the graph: the declaration of "z": field 5001 differs"#);
    let function = |op_type| {
        field(
            25,
            [field(1, "F"), field(7, node(op_type, "x", "y"))].concat(),
        )
    };
    let with = |function| [model(relu()), function].concat();
    assert_snapshot!(compared(with(function("Relu")), with(function("Tanh"))), @r#"function "F": the Tanh that writes "y": op_type differs"#);
    assert_snapshot!(compared(with(function("Relu")), model(relu())), @"functions number 0: it is missing");
    let metadata = |key| {
        [
            model(relu()),
            field(14, [field(1, key), field(2, "1")].concat()),
        ]
        .concat()
    };
    assert_snapshot!(compared(model(relu()), metadata("other")), @"the model's metadata_props differ");
    assert_snapshot!(compared(model(relu()), metadata("ours.peak")), @"equal");
}

#[test]
fn what_the_runtime_does_not_load_is_named() {
    let typeless = [field(1, "a"), int(3, 1)].concat();
    assert_snapshot!(attributes(&typeless, &typeless), @r#"the Relu that writes "y": attribute "a": it has no type, and ONNX Runtime does not load a model with such an attribute"#);
    let strange = attribute(77, int(3, 1));
    assert_snapshot!(attributes(&strange, &strange), @r#"the Relu that writes "y": attribute "a": its type, 77, does not exist"#);
    let two = attribute(2, [int(3, 1), field(4, "text")].concat());
    assert_snapshot!(attributes(&two, &two), @r#"the Relu that writes "y": attribute "a": its type is 2, but it has a value of type 3"#);
    assert_snapshot!(tensors(99, 1, &raw([1]), &raw([1])), @r#"tensor "w": its element type, 99, does not exist"#);
    let body = attribute(
        5,
        field(
            6,
            [
                field(1, [node("Relu", "x", "b"), field(5, typeless)].concat()),
                field(12, value("b", 4)),
            ]
            .concat(),
        ),
    );
    assert_snapshot!(attributes(&body, &body), @r#"the Relu that writes "y": attribute "a": a graph in it: the Relu that writes "b": attribute "a": it has no type, and ONNX Runtime does not load a model with such an attribute"#);
}
