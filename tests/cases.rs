//! Files that went wrong once, and what is right (`testdata/cases`). What becomes of them at run time is in `real_runs.rs`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/cases")
}

fn ckpt_opt(folder: &Path, arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ckpt-opt"))
        .current_dir(folder)
        .args(arguments.split_whitespace())
        .output()
        .expect("ckpt-opt starts")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn assert_planned(arguments: &str) -> String {
    let output = ckpt_opt(&cases(), &format!("{arguments} --dry-run --quiet"));
    let errors = errors(&output);
    assert_eq!(output.status.code(), Some(0), "{arguments}: {errors}");
    errors
}

#[track_caller]
fn assert_refused(arguments: &str, names: &[&str]) {
    let output = ckpt_opt(&cases(), &format!("{arguments} --dry-run --quiet"));
    let errors = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{arguments}: {errors}");
    for name in names {
        assert!(errors.contains(name), "{arguments}: {errors}");
    }
}

#[test]
fn nodes_that_are_put_off_to_one_place_keep_their_order() {
    assert_planned(
        "read_too_early.onnx --budget fixed+90% --costs read_too_early.costs.json \
         --runtime-settings lean",
    );
}

#[test]
fn nodes_in_any_order_and_sequences_are_planned() {
    for case in ["unsorted", "sequence_vi"] {
        assert_planned(&format!("{case}.onnx --budget fixed+60% --dim batch=256"));
    }
}

/// The sequence of a file is nobody's order: both say what the same session takes.
#[test]
fn before_is_the_same_in_the_table_and_by_order_and_level() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let original = cases().join("unsorted.onnx");
    let arguments = format!(
        "{} --budget fixed+60% --dim batch=256 --dry-run --json --quiet",
        original.display()
    );
    let output = ckpt_opt(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(figures["before_order"], "DEFAULT");
    assert_eq!(figures["before_level"], "ORT_ENABLE_ALL");
    let mut ways = figures["peaks_before"].as_array().expect("a list").iter();
    let told = ways.find(|way| way["order"] == "DEFAULT" && way["level"] == "ORT_ENABLE_ALL");
    assert_eq!(
        told.expect("that way")["bytes"],
        figures["peak_before_bytes"]
    );
}

#[test]
fn stale_sizes_are_named_and_not_believed() {
    let warnings = assert_planned("stale_value_info.onnx --budget fixed+60% --dim batch=256");
    assert!(warnings.contains("is declared as [4, 64]"), "{warnings}");
    assert!(warnings.contains("makes it [256, 64]"), "{warnings}");
}

#[test]
fn dimensions_without_names_are_asked_for_and_given_by_place() {
    let asked = ["--dim x:0=N", "from which labels:0 follows"];
    assert_refused("unnamed_dims.onnx --budget fixed+60%", &asked);
    assert_planned("unnamed_dims.onnx --budget fixed+60% --dim x:0=256 --dim labels:0=256");
    // There are as many labels as scores.
    assert_planned("unnamed_dims.onnx --budget fixed+60% --dim x:0=256");
    assert_planned("unnamed_dims.onnx --budget fixed+60% --dim labels:0=256");
}

#[test]
fn two_nodes_of_one_name_are_both_named() {
    let found = ["\"n\"", "node 0 (LayerNormalization)", "node 1 (Gemm)"];
    assert_refused(
        "dup_node_names.onnx --budget fixed+60% --dim batch=256",
        &found,
    );
    let found = [
        "\"/d/Dropout\"",
        "node 18 (Dropout)",
        "node 48 (InPlaceAccumulatorV2)",
    ];
    assert_refused(
        "running_statistic_reader.onnx --budget fixed+60% --dim batch=16",
        &found,
    );
}

#[test]
fn a_graph_fits_its_own_peak_and_says_where_it_takes_more() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let original = cases().join("mlp_train.onnx");
    let arguments = format!(
        "{} out.onnx --budget 100% --json --quiet --session-options session.json",
        original.display()
    );
    let asked = || {
        let text = std::fs::read(folder.path().join("session.json")).expect("session options");
        let said: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let named = |key: &str| said["session_options"].get(key).cloned();
        ["execution_order", "graph_optimization_level"].map(named)
    };
    // It is promised where it fits, and the session options ask for that.
    let output = ckpt_opt(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(figures["nodes_after"], figures["nodes_before"]);
    assert_eq!(
        (&figures["order"], &figures["level"]),
        (&"default".into(), &"all".into())
    );
    let usual = ["DEFAULT", "ORT_ENABLE_ALL"].map(|name| Some(name.into()));
    assert_eq!(asked(), usual);
    // What holds everywhere asks for nothing.
    let roomy = ckpt_opt(folder.path(), &arguments.replace("100%", "1GiB"));
    assert_eq!(roomy.status.code(), Some(0), "{}", errors(&roomy));
    assert_eq!(asked(), [None, None]);
    // Where it was to hold everywhere, a warning says where it does not.
    let arguments = format!("{arguments} --order any --level any");
    let output = ckpt_opt(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert!(errors(&output).contains("PRIORITY_BASED order at ORT_DISABLE_ALL"));
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(figures["peak_after_bytes"], figures["peak_before_bytes"]);
    let over = figures["peaks_after"].as_array().expect("a list").iter();
    let over = over.filter(|way| way["within_budget"] == false);
    assert!(over.clone().count() > 0);
    assert!(over.clone().all(|way| way["order"] == "PRIORITY_BASED"));
}

#[test]
fn what_differs_between_two_files_is_named() {
    for (pair, name) in [
        ("constant_5000", "\"cb\""),
        ("external_offset", "\"ex\""),
        ("loop_body_changed", "\"lp\""),
        ("nan_payload", "\"nno\""),
        ("string_init", "\"st\""),
        ("uint64_large_init", "\"u6\""),
    ] {
        let verify = |a: &str, b: &str| {
            let arguments = format!("verify {pair}_{a}.onnx {pair}_{b}.onnx");
            ckpt_opt(&cases().join("verify"), &arguments)
        };
        for (a, b) in [("a", "b"), ("b", "a")] {
            let output = verify(a, b);
            let errors = errors(&output);
            assert_eq!(output.status.code(), Some(1), "{pair}: {errors}");
            assert!(errors.contains("does not stand for"), "{pair}: {errors}");
            assert!(errors.contains(name), "{pair}: {errors}");
        }
        let same = verify("a", "a");
        assert_eq!(same.status.code(), Some(0), "{pair}: {}", errors(&same));
    }
}

/// As the runtime does: shapes follow, and their nodes can be computed again one by one.
#[test]
fn functions_of_the_model_are_taken_apart_and_stay_calls_in_a_file_that_fits() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("out.onnx");
    let original = std::fs::read(cases().join("own_functions.onnx")).expect("the file");
    let write = |budget: &str| {
        let out = out.display();
        let arguments =
            format!("own_functions.onnx {out} --dim batch=4096 --quiet --json --budget {budget}");
        let output = ckpt_opt(&cases(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        let written = std::fs::read(out.to_string()).expect("written");
        let plan: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (
            written,
            plan["recomputed_nodes"].as_u64().expect("a number"),
        )
    };
    let (written, copies) = write("1GiB");
    assert!(written == original, "a graph that fits keeps its bytes");
    assert_eq!(copies, 0);
    let (written, copies) = write("fixed+50%");
    assert!(copies > 0);
    // The functions are still there, though nothing calls them.
    for text in ["ActGrad", "slope"] {
        let is_there = written
            .windows(text.len())
            .any(|part| part == text.as_bytes());
        assert!(is_there, "{text}");
    }
}
