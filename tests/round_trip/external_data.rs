//! Models whose weights lie in other files.

use std::fs;
use std::path::{Path, PathBuf};

use ckpt_opt::onnx::{ExportError, Fault, Model, export};

use crate::build::{field, model, relu};
use crate::testdata;

/// A folder with `in/external.onnx`, `in/external.bin` and an empty `out`.
fn folder() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (inside, out) = (folder.path().join("in"), folder.path().join("out"));
    fs::create_dir(&inside).unwrap();
    fs::create_dir(&out).unwrap();
    for name in ["external.onnx", "external.bin"] {
        fs::copy(testdata("onnx").join(name), inside.join(name)).unwrap();
    }
    (folder, inside, out)
}

fn write(input: &Path, out: &Path) -> Result<(), ExportError> {
    let model = Model::open(input).unwrap();
    export(&model, &model.graph().unwrap(), out)?.commit()
}

#[test]
fn data_is_found_wherever_a_tensor_can_be() {
    let outside = |name: &str, file: &str| {
        let entry = [field(1, "location"), field(2, file)].concat();
        [field(8, name), field(13, entry)].concat()
    };
    let attribute = |number: u32, contents: Vec<u8>| {
        field(
            5,
            [field(1, format!("a{number}")), field(number, contents)].concat(),
        )
    };
    let inner = field(1, attribute(5, outside("t5", "in_subgraph")));
    let node = [
        field(4, "Op"),
        attribute(5, outside("t1", "b_in_attribute")),
        attribute(10, outside("t2", "in_tensors")),
        attribute(6, inner),
        attribute(11, field(5, outside("t6", "in_graphs"))),
        attribute(22, field(1, outside("t3", "in_sparse"))),
        attribute(23, field(2, outside("t4", "in_sparse_indices"))),
    ]
    .concat();
    let graph = [
        relu(),
        field(1, &node),
        field(5, outside("w", "a_initializer")),
        field(5, outside("v", "a_initializer")),
        field(15, field(1, outside("s", "sparse_initializer"))),
    ]
    .concat();
    let in_function = field(
        5,
        [field(1, "a"), field(5, outside("t7", "in_function"))].concat(),
    );
    let in_training = field(5, outside("t8", "in_training"));
    let bytes = [
        model(graph),
        field(25, field(7, in_function)),
        field(20, field(2, in_training)),
    ]
    .concat();
    let model = Model::from_bytes(bytes.into()).unwrap();
    let found = model.external_data();
    let lines: Vec<String> = found
        .iter()
        .map(|file| format!("{}: {}", file.location, file.tensor))
        .collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    a_initializer: w
    b_in_attribute: t1
    in_function: t7
    in_graphs: t6
    in_sparse: t3
    in_sparse_indices: t4
    in_subgraph: t5
    in_tensors: t2
    in_training: t8
    sparse_initializer: s
    ");
}

#[test]
fn in_the_same_folder_data_stays_where_it_is() {
    let (_folder, inside, _) = folder();
    write(&inside.join("external.onnx"), &inside.join("out.onnx")).unwrap();
    let same = fs::read(inside.join("out.onnx")).unwrap();
    assert_eq!(same, fs::read(inside.join("external.onnx")).unwrap());
}

#[test]
fn in_another_folder_the_error_says_how() {
    let (folder, inside, out) = folder();
    let error = write(&inside.join("external.onnx"), &out.join("out.onnx")).unwrap_err();
    let text = error
        .to_string()
        .replace(&folder.path().display().to_string(), "FOLDER");
    insta::assert_snapshot!(text, @"FOLDER/out/out.onnx: the model's external data would not be found beside the output; write the output into FOLDER/in, or first copy FOLDER/in/external.bin to FOLDER/out/external.bin");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
}

#[test]
fn data_that_was_copied_or_linked_before_resolves() {
    let (_folder, inside, out) = folder();
    let (input, target) = (inside.join("external.onnx"), out.join("external.bin"));
    fs::copy(inside.join("external.bin"), &target).unwrap();
    write(&input, &out.join("out.onnx")).unwrap();
    fs::remove_file(&target).unwrap();
    fs::hard_link(inside.join("external.bin"), &target).unwrap();
    write(&input, &out.join("out.onnx")).unwrap();
    #[cfg(unix)]
    {
        fs::remove_file(&target).unwrap();
        std::os::unix::fs::symlink("../in/external.bin", &target).unwrap();
        write(&input, &out.join("out.onnx")).unwrap();
    }
    // Moved rather than copied.
    fs::remove_file(&target).unwrap();
    fs::rename(inside.join("external.bin"), &target).unwrap();
    write(&input, &out.join("out.onnx")).unwrap();
}

#[test]
fn other_data_of_the_same_name_does_not_pass_for_it() {
    let (_folder, inside, out) = folder();
    let mut data = fs::read(inside.join("external.bin")).unwrap();
    *data.last_mut().unwrap() ^= 1;
    for data in [&data[..], &data[..31]] {
        fs::write(out.join("external.bin"), data).unwrap();
        let error = write(&inside.join("external.onnx"), &out.join("out.onnx")).unwrap_err();
        assert!(matches!(error, ExportError::ExternalData { .. }), "{error}");
    }
}

#[test]
fn a_data_file_is_never_overwritten() {
    let (_folder, inside, _) = folder();
    let before = fs::read(inside.join("external.bin")).unwrap();
    let error = write(&inside.join("external.onnx"), &inside.join("external.bin")).unwrap_err();
    assert!(
        matches!(error, ExportError::OntoExternalData { .. }),
        "{error}"
    );
    assert_eq!(fs::read(inside.join("external.bin")).unwrap(), before);
}

#[test]
fn missing_data_is_known_and_does_not_matter_here() {
    let (_folder, inside, _) = folder();
    let model = Model::open(&inside.join("external.onnx")).unwrap();
    let fault = || model.external_data()[0].fault();
    let data = inside.join("external.bin");
    assert_eq!(fault(), None);
    let bytes = model.external_data()[0].bytes;
    assert!(bytes > 0 && bytes <= fs::metadata(&data).unwrap().len());
    fs::File::options()
        .write(true)
        .open(&data)
        .and_then(|file| file.set_len(bytes - 1))
        .unwrap();
    assert_eq!(fault(), Some(Fault::Ends(bytes - 1)));
    fs::remove_file(&data).unwrap();
    assert_eq!(fault(), Some(Fault::Missing));
    fs::create_dir(&data).unwrap();
    assert_eq!(fault(), Some(Fault::NotAFile));
    write(&inside.join("external.onnx"), &inside.join("out.onnx")).unwrap();
}

/// A model whose one initializer lies at `location`, in FOLDER/in, and what is said where it is to be
/// written into FOLDER/out.
fn advice(location: &str) -> String {
    let (folder, inside, out) = folder();
    let entry = [field(1, "location"), field(2, location)].concat();
    let tensor = [field(8, "w"), field(13, entry)].concat();
    let input = inside.join("in.onnx");
    fs::write(&input, model([relu(), field(5, tensor)].concat())).unwrap();
    let error = write(&input, &out.join("out.onnx")).unwrap_err();
    error
        .to_string()
        .replace(&folder.path().display().to_string(), "FOLDER")
}

#[test]
fn advice_names_the_folder_of_the_model_and_no_place_outside_of_it() {
    let all = ["deep/d.bin", "../../w.bin", "a/../../w.bin", "a/../w.bin"].map(advice);
    insta::assert_snapshot!(all.join("\n"), @r#"
    FOLDER/out/out.onnx: the model's external data would not be found beside the output; write the output into FOLDER/in, or first copy FOLDER/in/deep/d.bin to FOLDER/out/deep/d.bin
    FOLDER/out/out.onnx: the model's external data would not be found beside the output; write the output into FOLDER/in: the location "../../w.bin" leads out of the model's folder
    FOLDER/out/out.onnx: the model's external data would not be found beside the output; write the output into FOLDER/in: the location "a/../../w.bin" leads out of the model's folder
    FOLDER/out/out.onnx: the model's external data would not be found beside the output; write the output into FOLDER/in, or first copy FOLDER/in/a/../w.bin to FOLDER/out/a/../w.bin
    "#);
}

#[cfg(unix)]
#[test]
fn pipes_are_no_data_and_nobody_waits_for_them() {
    let (_folder, inside, out) = folder();
    let data = inside.join("external.bin");
    fs::copy(&data, out.join("external.bin")).unwrap();
    fs::remove_file(&data).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&data).status();
    assert!(made.unwrap().success());
    let input = inside.join("external.onnx");
    assert_eq!(
        Model::open(&input).unwrap().external_data()[0].fault(),
        Some(Fault::NotAFile)
    );
    let error = write(&input, &out.join("out.onnx")).unwrap_err();
    assert!(matches!(error, ExportError::ExternalData { .. }), "{error}");
}

#[test]
fn beside_standard_output_no_data_is_found() {
    let (_folder, inside, _) = folder();
    let error = write(&inside.join("external.onnx"), Path::new("-")).unwrap_err();
    insta::assert_snapshot!(error, @r#"-: the model keeps data in "external.bin", which has to be found beside the output: give OUT a name instead of standard output"#);
}
