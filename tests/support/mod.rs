//! What tests share: the Python environments with a runtime, and the malloc counter.

// Not every test that has this module needs all of it.
#![allow(dead_code)]

pub(crate) mod blocks;
pub(crate) mod package;
pub(crate) mod simulated;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The budget is to hold in every order and at every level.
pub(crate) const EVERY_SESSION: [&str; 4] = ["--order", "any", "--level", "any"];

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn assert_success(output: &Output) {
    assert!(
        output.status.success(),
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The Python of an environment, made unless it is there: without an argument that of the runtime that trains, with
/// `stock` that of one that does not, with `torch` that of one beside PyTorch. `tools/setup.sh` keeps several processes apart.
pub(crate) fn python(environment: &[&str]) -> PathBuf {
    let mut setup = Command::new("sh");
    let setup = setup.arg("tools/setup.sh").args(environment);
    let made = setup.current_dir(root()).output().expect("sh starts");
    assert_success(&made);
    let path = String::from_utf8(made.stdout).expect("a path");
    PathBuf::from(path.trim_end())
}

/// Built unless it is there, beside the tested binary, whatever the target folder and profile of this test run.
pub(crate) fn malloc_counter() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let binary = Path::new(env!("CARGO_BIN_EXE_ckpt-opt"));
        let target = binary.ancestors().nth(2).expect("target");
        let mut build = Command::new(env!("CARGO"));
        let build = build
            .args(["build", "--quiet", "--package", "malloc-counter"])
            .arg("--target-dir")
            .arg(target)
            .current_dir(root());
        assert_success(&build.output().expect("cargo starts"));
        target.join("debug/libmalloc_counter.so")
    })
}
