//! The Python package, as a folder that Python finds it in.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{assert_success, root};

/// The folder that cargo builds into.
pub(crate) fn target() -> &'static Path {
    let program = Path::new(env!("CARGO_BIN_EXE_ckpt-opt"));
    program.ancestors().nth(2).expect("target")
}

/// A folder with the package in it, as a wheel would install it.
pub(crate) fn package() -> tempfile::TempDir {
    let target = target();
    let build = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            // With the features that the tests are built with, so that little is compiled once more.
            "--workspace",
            "--lib",
            "--target-dir",
        ])
        .arg(target)
        .current_dir(root())
        .output()
        .expect("cargo starts");
    assert_success(&build);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let package = folder.path().join("ckpt_opt");
    fs::create_dir(&package).expect("a folder");
    let source = root().join("tools/python/python/ckpt_opt");
    for file in fs::read_dir(source).expect("the package") {
        let file = file.expect("a file");
        if file.file_type().expect("a type").is_file() {
            fs::copy(file.path(), package.join(file.file_name())).expect("a copy");
        }
    }
    let library = match cfg!(target_os = "macos") {
        true => "debug/lib_ckpt_opt.dylib",
        false => "debug/lib_ckpt_opt.so",
    };
    fs::copy(target.join(library), package.join("_ckpt_opt.abi3.so")).expect("the native half");
    folder
}
