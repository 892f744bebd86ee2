//! Where a model is written, and what is never overwritten.

use std::fs;
use std::path::Path;

use ckpt_opt::onnx::{ExportError, Model, export};

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

/// A model with a field that this program does not know: zeros that take no room on disk.
fn sparse(path: &Path, hole: u64) {
    use std::io::{Seek, SeekFrom, Write};
    let prefix = [varint(99 << 3 | 2), varint(hole)].concat();
    let mut file = fs::File::create(path).unwrap();
    file.write_all(&prefix).unwrap();
    file.seek(SeekFrom::Current(hole as i64)).unwrap();
    file.write_all(&crate::build::model(relu())).unwrap();
}

#[test]
fn a_model_beyond_protobufs_limit_is_neither_read_nor_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.onnx");
    sparse(&path, 1 << 31);
    let error = Model::open(&path).unwrap_err().problem.to_string();
    // 2147483648 bytes; their key and length, 2 + 5; IR version and operator set, 2 + 4; the
    // graph, 55, with key and length, 2.
    insta::assert_snapshot!(error, @"it has 2147483718 bytes, and an ONNX file can have at most 2147483647: nobody can load it; keep its weights in external data, as onnx.save_model(..., save_as_external_data=True) does");
    // The longest that can be read, and a name that is longer than before.
    sparse(&path, (1 << 31) - 1 - 70);
    let model = Model::open(&path).unwrap();
    assert_eq!(path.metadata().unwrap().len(), (1 << 31) - 1);
    let mut graph = model.graph().unwrap();
    let id = graph.order()[0];
    graph.node_mut(id).name = "longer than before".to_owned();
    let error = export(&model, &graph, &folder.path().join("out.onnx")).unwrap_err();
    assert!(
        matches!(error, ExportError::TooLarge { bytes } if bytes > (1 << 31) - 1),
        "{error}"
    );
    assert_eq!(names(folder.path()), ["in.onnx"]);
}

#[cfg(unix)]
#[test]
fn links_are_written_through_and_stay() {
    use std::os::unix::fs::symlink;
    let (folder, model) = folder();
    let path = folder.path();
    fs::create_dir(path.join("real")).unwrap();
    fs::write(path.join("real/file.onnx"), "old").unwrap();
    symlink("real", path.join("dir")).unwrap();
    symlink("dir/file.onnx", path.join("first.onnx")).unwrap();
    symlink(path.join("first.onnx"), path.join("out.onnx")).unwrap();
    let pending = export(&model, &model.graph().unwrap(), &path.join("out.onnx")).unwrap();
    assert_eq!(fs::read(path.join("real/file.onnx")).unwrap(), b"old");
    pending.commit().unwrap();
    assert!(path.join("out.onnx").is_symlink() && path.join("first.onnx").is_symlink());
    let written = fs::read(path.join("real/file.onnx")).unwrap();
    assert_eq!(written, crate::build::model(relu()));
    assert_eq!(names(&path.join("real")), ["file.onnx"]);
    assert_eq!(
        names(path),
        ["dir", "first.onnx", "in.onnx", "out.onnx", "real"]
    );
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_no_file_and_cannot_become_one_is_refused() {
    use std::os::unix::fs::symlink;
    let (folder, model) = folder();
    let path = folder.path();
    symlink("nothing.onnx", path.join("dangling")).unwrap();
    symlink("loop", path.join("loop")).unwrap();
    fs::create_dir(path.join("sub")).unwrap();
    symlink("sub", path.join("to_folder")).unwrap();
    symlink("/dev/null", path.join("to_device")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path.join("socket")).unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(path.join("fifo"))
        .status();
    assert!(made.unwrap().success());
    let before = names(path);
    let all = [
        "dangling",
        "loop",
        "to_folder",
        "to_device",
        "socket",
        "fifo",
        "newf/",
        "sub/",
        "in.onnx/",
        "/proc/out.onnx",
        "/dev/null",
        "/proc/self/fd/0",
    ];
    let refusals = all.map(|out| refusal(path, &model, &path.join(out)));
    insta::assert_snapshot!(refusals.join("\n"), @r"
    FOLDER/dangling: cannot write there: it is a link to FOLDER/nothing.onnx, which does not exist
    FOLDER/loop: cannot write there: it is a link that leads to itself
    FOLDER/to_folder: cannot write there: it is a folder
    FOLDER/to_device: cannot write there: it is a device
    FOLDER/socket: cannot write there: it is a socket
    FOLDER/fifo: cannot write there: it is a pipe
    FOLDER/newf/: cannot write there: it is the name of a folder, with a slash at the end
    FOLDER/sub/: cannot write there: it is a folder
    FOLDER/in.onnx/: cannot write there: it is the name of a folder, with a slash at the end
    /proc/out.onnx: cannot write there: no file can be made in the folder /proc: entity not found
    /dev/null: cannot write there: it is a device
    /proc/self/fd/0: cannot write there: it is a file that a program has open, and has no name to be replaced under; give - for standard output, or the file's own name
    ");
    assert_eq!(names(path), before);
}

#[test]
fn a_file_that_is_written_to_is_known_to_have_changed() {
    let (folder, model) = folder();
    let path = folder.path().join("in.onnx");
    assert!(!model.has_changed());
    // Another file of the name is not the one that was read.
    fs::rename(&path, folder.path().join("moved.onnx")).unwrap();
    fs::write(&path, "another").unwrap();
    assert!(!model.has_changed());
    let moved = fs::File::options()
        .append(true)
        .open(folder.path().join("moved.onnx"));
    std::io::Write::write_all(&mut moved.unwrap(), b"more").unwrap();
    assert!(model.has_changed());
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
        @"/dev/null: cannot write there: it is a device"
    );
    insta::assert_snapshot!(Model::open(Path::new("/dev/null")).unwrap_err(), @"/dev/null: expected an ONNX model, but this is a device");
}
