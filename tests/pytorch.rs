//! What only PyTorch can show. Its packages are 5 GB, so that this is built and run with the feature `pytorch` alone: `cargo xtask pytorch`.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use support::blocks::parts;
use support::package::package;
use support::{assert_success, malloc_counter, python, root};

/// What the guide leaves to its reader: data.
const BATCHES: &str = "
import numpy
random = numpy.random.default_rng(0)
batches = [(random.random((16, 3, 32, 32), dtype=numpy.float32), random.integers(0, 10, 16)) for _ in range(5)]
";

/// Prints what was trained, so that two runs can be compared to the bit.
const TRAINED: &str = "
import hashlib
for name, parameter in sorted(state.parameters):
    print(name, hashlib.sha256(parameter.data.tobytes()).hexdigest())
print('loss', float(loss).hex())
";

/// A Python with PyTorch and ORTModule's extension, which is compiled once, in four minutes.
fn torch() -> Command {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    let python = PYTHON.get_or_init(|| {
        let python = python(&["torch"]);
        let package = "onnxruntime.training.ortmodule.torch_cpp_extensions";
        let is_built = format!(
            "import os, sys, {package} as one; sys.exit(not one.is_installed(os.path.dirname(one.__file__)))"
        );
        let is_built = Command::new(&python).args(["-c", &is_built]).output();
        if !is_built.expect("Python starts").status.success() {
            let module = format!("{package}.install");
            let build = Command::new(&python).args(["-m", &module]).output();
            assert_success(&build.expect("Python starts"));
        }
        python
    });
    Command::new(python)
}

fn printed(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert_success(&output);
    String::from_utf8(output.stdout).expect("text")
}

/// The guide's blocks of Python about making a training graph, or about training with one.
fn blocks_with(words: &str) -> Vec<String> {
    let guide = fs::read_to_string(root().join("docs/guide.md")).expect("the guide");
    let (blocks, _) = parts(&guide);
    let python = blocks
        .into_iter()
        .filter(|block| block.language == "python");
    python
        .map(|block| block.text)
        .filter(|text| text.contains(words))
        .collect()
}

/// From a network in PyTorch, by what the guide says, to weights that are the same with and without a budget.
#[test]
fn the_guide_leads_from_a_network_to_a_trained_step() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = |script: &str| printed(torch().args(["-c", script]).current_dir(folder.path()));
    let (exporting, making) = (
        blocks_with("torch.onnx.export"),
        blocks_with("generate_artifacts"),
    );
    let training = blocks_with("api.Module");
    assert_eq!([exporting.len(), making.len(), training.len()], [1; 3]);
    run(&format!("{}{}", exporting[0], making[0]));
    let planned = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"))
        .args(["training_model.onnx", "small.onnx", "--dim", "batch=16"])
        .args(["--budget", "fixed+50%", "--json"])
        .current_dir(folder.path())
        .output()
        .expect("it starts");
    assert_success(&planned);
    let said: Value = serde_json::from_slice(&planned.stdout).expect("JSON");
    assert!(said["recomputed_nodes"].as_u64() > Some(0), "{said}");
    let small = run(&format!("{BATCHES}{}{TRAINED}", training[0]));
    let whole = training[0].replace("small.onnx", "training_model.onnx");
    assert_ne!(whole, training[0]);
    assert_eq!(small, run(&format!("{BATCHES}{whole}{TRAINED}")));
    assert!(small.lines().count() > 5, "{small}");
}

/// Losses, parameters and statistics are the same, bit by bit (the script compares them), and memory is less.
#[test]
fn ortmodule_trains_with_its_graph_rewritten() {
    let package = package();
    for network in ["transformer", "convolutions"] {
        let mut script = torch();
        let script = script
            .args([
                "tools/train_ortmodule.py",
                "--network",
                network,
                "--malloc-counter",
            ])
            .arg(malloc_counter())
            .env("PYTHONPATH", package.path())
            .current_dir(root());
        let said: Value = serde_json::from_str(&printed(script)).expect("JSON");
        let bytes = |key: &str| said[key].as_f64().expect("bytes");
        assert!(bytes("peak_after") < 0.7 * bytes("peak_before"), "{said}");
        assert!(said["recomputed_nodes"].as_u64() > Some(0), "{said}");
    }
}

/// Gradients are averaged between the processes, each of which has a plan of its own.
#[test]
fn two_processes_have_the_same_losses_within_a_budget() {
    let package = package();
    let losses = |budget: &[&str]| {
        let mut script = torch();
        let script = script
            .args([
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc_per_node",
                "2",
            ])
            .arg(Path::new("examples/distributed/train.py"))
            .args(budget)
            .env("PYTHONPATH", package.path())
            .env("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
            .current_dir(root());
        let text = printed(script);
        let mut lines: Vec<String> = text
            .lines()
            .filter(|line| line.contains(": loss "))
            .map(str::to_owned)
            .collect();
        lines.sort();
        assert_eq!(text.contains("Result("), !budget.is_empty(), "{text}");
        lines
    };
    let whole = losses(&[]);
    assert_eq!(whole.len(), 10, "{whole:?}");
    assert_eq!(whole, losses(&["--budget", "fixed+60%"]));
}
