//! Graphs that update their weights themselves: they train as a graph and an optimizer beside it do, and in less memory.
//!
//! All runtimes come as Python packages; `tools/setup.sh`, `tools/setup.sh stock` and `tools/setup.sh stock 1.20.1` install them.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ckpt_opt::{Model, onnx::ImportProblem};
use serde_json::Value;
use support::{EVERY_SESSION, assert_success, malloc_counter, python, root};

fn ckpt_opt(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"));
    command.args(arguments).current_dir(root());
    command.output().expect("ckpt-opt starts")
}

/// A folder with files in it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self, name: &str) -> String {
        let path: PathBuf = self.0.path().join(name);
        path.to_str().expect("text").to_owned()
    }

    /// A bundled model in standard operators, as it is and with the update of its weights.
    fn lowered(&self, model: &str, optimizer: &str) -> [String; 2] {
        let model = format!("testdata/models/{model}.onnx");
        let [plain, whole] = ["lowered.onnx", "whole.onnx"].map(|name| self.path(name));
        assert_success(&ckpt_opt(&["lower", &model, &plain]));
        assert_success(&ckpt_opt(&[
            "lower",
            &model,
            &whole,
            "--optimizer",
            optimizer,
        ]));
        [plain, whole]
    }
}

/// `tools/whole_step.py` in an environment of `tools/setup.sh`.
fn steps(environment: &[&str], arguments: &[&str]) -> Output {
    let mut command = Command::new(python(environment));
    command
        .arg("tools/whole_step.py")
        .args(arguments)
        .current_dir(root());
    command.env("LD_PRELOAD", malloc_counter());
    command.output().expect("Python starts")
}

/// What a step took.
fn peak(output: &Output) -> f64 {
    assert_success(output);
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    said["peak_bytes"].as_f64().expect("bytes")
}

/// In ONNX Runtime 1.19.2, which has the kernels of both optimizers.
#[test]
fn a_whole_step_rounds_as_the_graph_and_the_kernel_of_its_optimizer() {
    let numbers = "testdata/onnx/adamw_decays_first.onnx";
    for (optimizer, count) in [("adamw", "20"), ("sgd", "4"), (numbers, "4")] {
        let folder = Folder::new();
        let [plain, whole] = folder.lowered("triplet", optimizer);
        let [kernel, run] = ["kernel.npz", "run.npz"].map(|name| folder.path(name));
        let dim = ["--dim", "batch=2", "--inputs-of", &plain, "--steps", count];
        let beside = [
            "kernel",
            &plain,
            "--optimizer",
            optimizer,
            "--dump",
            &kernel,
        ];
        assert_success(&steps(&[], &[&beside[..], &dim].concat()));
        assert_success(&steps(
            &[],
            &[&["run", &whole, "--dump", &run], &dim[..]].concat(),
        ));
        assert_success(&steps(&[], &["compare", &kernel, &run]));
    }
}

#[test]
fn a_planned_step_updates_its_weights_in_place_within_its_budget() {
    let folder = Folder::new();
    let [plain, whole] = folder.lowered("resnet18", "adamw");
    let planned = folder.path("planned.onnx");
    let budget = ["--budget", "fixed+60%", "--runtime-settings", "lean"];
    let plan = [
        &[&whole, &planned, "--dim", "batch=2", "--json", "--quiet"],
        &budget[..],
        &EVERY_SESSION,
    ]
    .concat();
    let plan = ckpt_opt(&plan);
    assert_success(&plan);
    let result: Value = serde_json::from_slice(&plan.stdout).expect("JSON");
    assert!(result["recomputed_nodes"].as_u64() > Some(0), "{result}");
    let off = "TransposeOptimizer;TransposeOptimizer_CPUExecutionProvider";
    let common = [
        "--dim",
        "batch=2",
        "--settings",
        "lean",
        "--steps",
        "5",
        "--disable-optimizers",
        off,
    ];
    let like = ["--inputs-of", &plain];
    let fed = folder.path("fed.npz");
    let unplanned = [&["feed", &whole, "--dump", &fed], &common[..], &like].concat();
    assert_success(&steps(&["stock"], &unplanned));
    for level in ["disable_all", "enable_all"] {
        let dump = folder.path(level);
        let dump = format!("{dump}.npz");
        let run = ["run", &planned, "--dump", &dump, "--level", level];
        let measured = peak(&steps(&["stock"], &[&run, &common[..], &like].concat()));
        let bytes = |key: &str| result[key].as_f64().expect("a number");
        assert!(
            bytes("fixed_bytes") + measured <= bytes("budget_bytes"),
            "{level}: {measured}, {result}"
        );
        let off = (bytes("peak_after_bytes") - bytes("fixed_bytes")) / measured - 1.0;
        assert!(off.abs() < 0.005, "{level}: {off}");
        assert_success(&steps(&["stock"], &["compare", &fed, &dump]));
    }
}

/// In default settings the first step lays out a block for all that follow it.
#[test]
fn a_planned_step_keeps_its_budget_in_default_settings_in_both_orders_and_in_an_older_release() {
    let folder = Folder::new();
    let [plain, whole] = folder.lowered("resnet18", "adamw");
    let planned = folder.path("planned.onnx");
    let dim = ["--dim", "batch=2"];
    let budget = ["--budget", "fixed+90%", "--json", "--quiet"];
    let files: [&str; 2] = [&whole, &planned];
    let plan = ckpt_opt(&[&files[..], &dim, &budget, &EVERY_SESSION].concat());
    assert_success(&plan);
    let result: Value = serde_json::from_slice(&plan.stdout).expect("JSON");
    let bytes = |value: &Value| value.as_f64().expect("a number");
    let off = "TransposeOptimizer;TransposeOptimizer_CPUExecutionProvider";
    let run = [
        "--inputs-of",
        &plain,
        "--steps",
        "3",
        "--disable-optimizers",
        off,
    ];
    let fed = folder.path("fed.npz");
    let unplanned = ["feed", &whole, "--dump", &fed];
    assert_success(&steps(&["stock"], &[&unplanned[..], &run, &dim].concat()));
    let newest: &[&str] = &["stock"];
    // Releases between these two take more in convolutions than plans count (docs/truth-stock.md).
    let older: &[&str] = &["stock", "1.20.1"];
    let ways = [
        (newest, "DEFAULT", "ORT_DISABLE_ALL"),
        (newest, "DEFAULT", "ORT_ENABLE_ALL"),
        (newest, "PRIORITY_BASED", "ORT_DISABLE_ALL"),
        (newest, "PRIORITY_BASED", "ORT_ENABLE_ALL"),
        (older, "DEFAULT", "ORT_ENABLE_ALL"),
        (older, "PRIORITY_BASED", "ORT_ENABLE_ALL"),
    ];
    for (runtime, order, level) in ways {
        let all = result["peaks_after"].as_array().expect("all ways");
        let mut all = all.iter();
        let way = all.find(|way| way["order"] == order && way["level"] == level);
        let predicted = bytes(&way.expect("that way")["bytes"]) - bytes(&result["fixed_bytes"]);
        let dump = folder.path("run.npz");
        let named = [
            "--order",
            if order == "DEFAULT" {
                "default"
            } else {
                "priority"
            },
            "--level",
            if level == "ORT_DISABLE_ALL" {
                "disable_all"
            } else {
                "enable_all"
            },
        ];
        let planned = ["run", &planned, "--dump", &dump];
        let measured = peak(&steps(
            runtime,
            &[&planned[..], &named, &run, &dim].concat(),
        ));
        let name = format!("{runtime:?} {order} {level}: {predicted}, {measured}");
        assert!(
            bytes(&result["fixed_bytes"]) + measured <= bytes(&result["budget_bytes"]),
            "{name}"
        );
        assert!((predicted / measured - 1.0).abs() < 0.005, "{name}");
        if runtime == newest {
            assert_success(&steps(newest, &["compare", &fed, &dump]));
        }
    }
}

/// From ORT_ENABLE_BASIC on, the runtime has the gradient's product read the weight itself, and not its Transpose.
#[test]
fn a_weight_that_is_read_through_others_is_overwritten_once_they_are_done() {
    for optimizer in ["adamw", "sgd"] {
        let folder = Folder::new();
        let model = "testdata/cases/linear_layers.onnx";
        let [plain, whole, planned] = ["plain", "whole", "planned"].map(|name| folder.path(name));
        assert_success(&ckpt_opt(&["lower", model, &plain]));
        assert_success(&ckpt_opt(&[
            "lower",
            model,
            &whole,
            "--optimizer",
            optimizer,
        ]));
        let dim = ["--dim", "batch=8"];
        let budget = ["--budget", "min", "--runtime-settings", "lean"];
        assert_success(&ckpt_opt(
            &[&[whole.as_str(), &planned][..], &budget, &dim].concat(),
        ));
        let begin = ["--inputs-of", &plain, "--steps", "4", "--rate", "0.01"];
        let common = [&dim[..], &["--settings", "lean"], &begin].concat();
        let run = |mode: &str, file: &str, level: &str| {
            let dump = format!("{}.npz", folder.path("run"));
            let said = [mode, file, "--dump", &dump, "--level", level];
            assert_success(&steps(&["stock"], &[&said, &common[..]].concat()));
            let kept = folder.path(&format!("{mode}.npz"));
            std::fs::rename(&dump, &kept).expect("renamed");
            kept
        };
        for level in ["disable_all", "enable_all"] {
            for file in [&whole, &planned] {
                let (fed, over) = (run("feed", file, level), run("run", file, level));
                assert_success(&steps(&["stock"], &["compare", &fed, &over]));
            }
        }
    }
}

#[test]
fn what_a_step_overwrites_must_be_said_alike_in_both_files() {
    let folder = Folder::new();
    let [_, whole] = folder.lowered("triplet", "sgd");
    let renamed = |from: &str, to: &str| {
        let bytes = std::fs::read(&whole).expect("a file");
        let place = bytes
            .windows(from.len())
            .rposition(|part| part == from.as_bytes());
        let place = place.expect("it is there");
        let mut other = bytes.clone();
        other[place..place + to.len()].copy_from_slice(to.as_bytes());
        let path = folder.path("other.onnx");
        std::fs::write(&path, other).expect("written");
        path
    };
    // A file without it is another one.
    let other = renamed("ckpt-opt.overwrites", "ckpt-opt.overwrltes");
    let verify = ["verify", &whole, &other, "--dim", "batch=2"];
    let refused = ckpt_opt(&verify);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("outputs that overwrite inputs"), "{text}");
    assert_eq!(refused.status.code(), Some(1));
    // One that names what is not there is none.
    let other = renamed("\"b.fc.bias.next\":", "\"b.fc.bias.naxt\":");
    let error = Model::open(Path::new(&other))
        .and_then(|model| model.graph())
        .unwrap_err();
    assert!(matches!(error.problem, ImportProblem::Overwrites { .. }));
    assert!(
        error
            .to_string()
            .contains("the graph has no output \"b.fc.bias.naxt\""),
        "{error}"
    );
}
