//! A little of what `cargo xtask fuzz` does at length, the same inputs every time.

use std::process::Command;

fn fuzz(arguments: &[&str]) -> (bool, String) {
    let finds = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_ckpt-fuzz"))
        .args(arguments)
        .arg("--finds")
        .arg(finds.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text)
}

#[test]
fn nothing_is_wrong_with_the_first_inputs_of_every_target() {
    // Cheap targets first: a model file or a table takes microseconds, a plan milliseconds.
    let cheap = [
        "bytes",
        "costs",
        "profile",
        "device",
        "conv-table",
        "graphs",
    ];
    let only = |names: &[&'static str]| {
        names
            .iter()
            .flat_map(|&name| ["--only", name])
            .collect::<Vec<_>>()
    };
    let (clean, text) = fuzz(
        &[
            vec!["run", "--workers", "2", "--inputs", "300"],
            only(&cheap),
        ]
        .concat(),
    );
    assert!(clean, "{text}");
    let planned = only(&["dags", "training", "mutants"]);
    let (clean, text) = fuzz(&[vec!["run", "--workers", "2", "--inputs", "4"], planned].concat());
    assert!(clean, "{text}");
}
