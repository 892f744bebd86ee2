//! Where a model is written, and what is never overwritten.

use std::fs;
use std::path::Path;

use ckpt_opt::onnx::{Model, export};

use crate::build::{model, relu, varint};

/// A folder with `in.onnx`, and the model in it.
fn folder() -> (tempfile::TempDir, Model) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.onnx");
    fs::write(&path, model(relu())).unwrap();
    let model = Model::open(&path).unwrap();
    (folder, model)
}

/// Why the model cannot be written to `out`, in words that do not name the folder.
fn refusal(folder: &Path, model: &Model, out: &Path) -> String {
    let graph = model.graph().unwrap();
    let error = export(model, &graph, out).unwrap_err().to_string();
    error.replace(&folder.display().to_string(), "FOLDER")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn nothing_is_in_place_before_the_commit() {
    let (folder, model) = folder();
    let out = folder.path().join("out.onnx");
    fs::write(&out, "precious").unwrap();
    let pending = export(&model, &model.graph().unwrap(), &out).unwrap();
    assert_eq!(fs::read(&out).unwrap(), b"precious");
    assert_eq!(pending.path().parent(), Some(folder.path()));
    assert_eq!(
        fs::read(pending.path()).unwrap(),
        crate::build::model(relu())
    );
    pending.commit().unwrap();
    assert_eq!(fs::read(&out).unwrap(), crate::build::model(relu()));
    assert_eq!(names(folder.path()), ["in.onnx", "out.onnx"]);
}

#[test]
fn a_file_that_is_not_committed_disappears() {
    let (folder, model) = folder();
    let pending = export(
        &model,
        &model.graph().unwrap(),
        &folder.path().join("out.onnx"),
    )
    .unwrap();
    assert_eq!(names(folder.path()).len(), 2);
    drop(pending);
    assert_eq!(names(folder.path()), ["in.onnx"]);
}

#[test]
fn the_input_is_never_overwritten() {
    let (folder, model) = folder();
    let path = folder.path();
    fs::hard_link(path.join("in.onnx"), path.join("hard.onnx")).unwrap();
    let mut outs = vec!["in.onnx", "./in.onnx", "hard.onnx"];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("in.onnx", path.join("soft.onnx")).unwrap();
        outs.push("soft.onnx");
    }
    for out in outs {
        let text = refusal(path, &model, &path.join(out));
        assert_eq!(
            text,
            format!("FOLDER/{out}: the output would replace the input; write to another file")
        );
    }
    assert_eq!(
        fs::read(path.join("in.onnx")).unwrap(),
        crate::build::model(relu())
    );
}

#[test]
fn a_destination_that_cannot_be_is_refused() {
    let (folder, model) = folder();
    let path = folder.path();
    fs::create_dir(path.join("sub")).unwrap();
    let refusals = [
        refusal(path, &model, &path.join("sub")),
        refusal(path, &model, &path.join("missing/out.onnx")),
        refusal(path, &model, &path.join("in.onnx/out.onnx")),
        refusal(path, &model, Path::new("")),
        refusal(path, &model, &path.join("sub/missing/..")),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r"
    FOLDER/sub: cannot write there: it is a folder
    FOLDER/missing/out.onnx: cannot write there: the folder FOLDER/missing does not exist
    FOLDER/in.onnx/out.onnx: cannot write: Not a directory (os error 20)
    : cannot write there: it is no file name
    FOLDER/sub/missing/..: cannot write there: it is no file name
    ");
    assert_eq!(names(path), ["in.onnx", "sub"]);
}

#[test]
fn a_model_beyond_protobufs_limit_is_refused() {
    use std::io::{Seek, SeekFrom, Write};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.onnx");
    // A field that this program does not know, 2 GiB of zeros that take no room on disk.
    let hole = 1u64 << 31;
    let prefix = [varint(99 << 3 | 2), varint(hole)].concat();
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(&prefix).unwrap();
    file.seek(SeekFrom::Current(hole as i64)).unwrap();
    file.write_all(&crate::build::model(relu())).unwrap();
    let model = Model::open(&path).unwrap();
    // 2147483648 bytes; their key and length, 2 + 5; IR version and operator set, 2 + 4; the
    // graph, 55, with key and length, 2.
    insta::assert_snapshot!(
        refusal(folder.path(), &model, &folder.path().join("out.onnx")),
        @"the model would take 2147483718 bytes, and an ONNX file can have at most 2147483647; keep its weights in external data"
    );
    assert_eq!(names(folder.path()), ["in.onnx"]);
}

#[cfg(unix)]
#[test]
fn a_new_file_has_the_rights_of_any_new_file_and_a_replaced_one_keeps_its_own() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, model) = folder();
    let mode = |name: &str| {
        let path = folder.path().join(name);
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    let write = |name: &str| {
        let out = folder.path().join(name);
        export(&model, &model.graph().unwrap(), &out)
            .unwrap()
            .commit()
            .unwrap();
    };
    // in.onnx was made by an ordinary write: the same umask applied.
    write("new.onnx");
    assert_eq!(mode("new.onnx"), mode("in.onnx"));
    fs::write(folder.path().join("old.onnx"), "").unwrap();
    fs::set_permissions(
        folder.path().join("old.onnx"),
        fs::Permissions::from_mode(0o640),
    )
    .unwrap();
    write("old.onnx");
    assert_eq!(mode("old.onnx"), 0o640);
}

#[cfg(target_os = "linux")]
#[test]
fn devices_are_neither_read_nor_replaced() {
    let (folder, model) = folder();
    insta::assert_snapshot!(
        refusal(folder.path(), &model, Path::new("/dev/null")),
        @"/dev/null: cannot write there: it is not a regular file"
    );
    insta::assert_snapshot!(Model::open(Path::new("/dev/null")).unwrap_err(), @"/dev/null: expected an ONNX model, but this is not a regular file");
}
