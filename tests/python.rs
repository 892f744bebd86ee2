//! The Python package, built and tried in the environment of `tools/setup.sh`.

mod support;

use std::env;
use std::process::Command;

use serde_json::Value;

use support::package::{package, target};
use support::{assert_success, malloc_counter, python, root};

#[test]
fn the_package_does_what_it_promises() {
    let package = package();
    let path = env::join_paths([package.path(), &root().join("tools")]).expect("a path");
    let tests = Command::new(python(&[]))
        .args(["-m", "unittest", "discover", "-s", "tools/python/tests"])
        .env("PYTHONPATH", path)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root())
        .output()
        .expect("Python starts");
    assert_success(&tests);
    let text = String::from_utf8_lossy(&tests.stderr);
    assert!(text.contains("\nOK") && !text.contains("skipped"), "{text}");
}

/// From nothing to a step that takes less.
#[test]
fn a_stranger_comes_from_an_empty_folder_to_a_trained_step() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut script = Command::new("sh");
    let script = script
        .arg("tools/stranger.sh")
        .arg(folder.path().join("stranger"))
        // What a user builds is optimized, which takes minutes more. With the features that the tests are built with.
        .env(
            "MATURIN_PEP517_ARGS",
            "--profile dev --features ckpt-passes/testing",
        )
        .env("CARGO_TARGET_DIR", target())
        .env("MALLOC_COUNTER", malloc_counter());
    let done = script.current_dir(root()).output().expect("sh starts");
    assert_success(&done);
    let printed = String::from_utf8_lossy(&done.stdout);
    let last = printed.lines().last().expect("a line");
    let checked: Value = serde_json::from_str(last).expect("JSON");
    assert_eq!(checked["bits_equal"], true, "{printed}");
    let peak = |graph: &str| checked[graph]["default"].as_f64().expect("bytes");
    assert!(peak("rewritten") < 0.75 * peak("original"), "{printed}");
}

/// What a cluster plans is what one machine plans.
#[test]
fn the_example_for_ray_plans_on_all_machines_of_a_cluster() {
    let package = package();
    let mut cluster = Command::new(python(&["ray"]));
    let cluster = cluster
        .arg("tools/python/tests/ray_cluster.py")
        .env("PYTHONPATH", package.path())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    assert_success(&cluster.current_dir(root()).output().expect("Python starts"));
}
