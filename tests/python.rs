//! The Python package, built and tried in the environment of `tools/setup.sh`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of this profile's programs.
fn profile() -> &'static Path {
    let program = Path::new(env!("CARGO_BIN_EXE_ckpt-opt"));
    program.parent().expect("target/PROFILE")
}

#[track_caller]
fn success(output: &Output) {
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{}\n{}", texts[0], texts[1]);
}

/// The Python that runs training graphs.
fn python() -> PathBuf {
    let setup = Command::new("sh")
        .arg("tools/setup.sh")
        .current_dir(root())
        .output()
        .expect("sh starts");
    success(&setup);
    PathBuf::from(String::from_utf8_lossy(&setup.stdout).trim())
}

/// A folder with the package in it, as a wheel would install it.
fn package() -> tempfile::TempDir {
    let target = profile().parent().expect("target");
    let build = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--package",
            "ckpt-opt-python",
            "--target-dir",
        ])
        .arg(target)
        .current_dir(root())
        .output()
        .expect("cargo starts");
    success(&build);
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

#[test]
fn the_package_does_what_it_promises() {
    let (python, package) = (python(), package());
    let path = std::env::join_paths([package.path(), &root().join("tools")]).expect("a path");
    let tests = Command::new(python)
        .args(["-m", "unittest", "discover", "-s", "tools/python/tests"])
        .env("PYTHONPATH", path)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root())
        .output()
        .expect("Python starts");
    success(&tests);
    let text = String::from_utf8_lossy(&tests.stderr);
    assert!(text.contains("\nOK") && !text.contains("skipped"), "{text}");
}
