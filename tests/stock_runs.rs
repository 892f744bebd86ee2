//! ckpt-opt's promises for graphs in standard operators, kept by an ONNX Runtime without training.
//!
//! The runtime comes as a Python package. `tools/setup.sh stock` installs it into `.venv-stock` once, which needs the
//! network and Python 3.11.

mod support;

use std::fs;
use std::process::{Command, Output};

use ckpt_opt::onnx::Model;
use ckpt_passes::cost::Cost;
use ckpt_passes::operators::Provider;
use ckpt_passes::runtime::STOCK;
use ckpt_passes::runtime::executions::Executions;
use ckpt_passes::runtime::settings::RuntimeSettings;
use serde_json::Value;
use support::{assert_success, malloc_counter, python, root};

fn ckpt_opt<const N: usize>(arguments: [&str; N]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"));
    let output = command.args(arguments).output().expect("ckpt-opt starts");
    assert_success(&output);
    output
}

/// A script of `tools/`, run by the runtime without training.
fn run<const N: usize>(arguments: [&str; N]) -> Output {
    let mut command = Command::new(python(&["stock"]));
    command.args(arguments).current_dir(root());
    command.env("MALLOC_COUNTER", malloc_counter());
    command.output().expect("Python starts")
}

#[test]
fn a_lowered_graph_computes_the_same_bits_within_its_budget() {
    const DIM: &str = "batch=2";
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (lowered, planned) = (path("lowered.onnx"), path("planned.onnx"));
    ckpt_opt(["lower", "testdata/models/resnet18.onnx", &lowered]);
    // Order alone does it. A tenth of the barriers would not.
    let output = ckpt_opt([
        &lowered,
        &planned,
        "--dim",
        DIM,
        "--budget",
        "fixed+75%",
        "--runtime-settings",
        "lean",
        "--json",
        "--quiet",
    ]);
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(result["runtime"], "stock");
    assert!(result["barriers"].as_u64() > Some(0), "{result}");
    let python = python(&["stock"]);
    let python = python.to_str().expect("text");
    let checked = run([
        "tools/check_model.py",
        &lowered,
        &planned,
        "--dim",
        DIM,
        "--runtime",
        "stock",
        "--python",
        python,
        "--json",
    ]);
    assert_success(&checked);
    let checked: Value = serde_json::from_slice(&checked.stdout).expect("JSON");
    assert_eq!(checked["bits_equal"], true, "{checked}");
    let bytes = |value: &Value| value.as_f64().expect("a number");
    let fixed = bytes(&result["fixed_bytes"]);
    for way in result["peaks_after"]
        .as_array()
        .expect("all ways to run it")
    {
        let name = match (way["order"].as_str(), way["level"].as_str()) {
            (Some("DEFAULT"), Some("ORT_DISABLE_ALL")) => "default",
            (Some("PRIORITY_BASED"), Some("ORT_DISABLE_ALL")) => "priority",
            (Some("DEFAULT"), _) => "enable_all",
            _ => "enable_all_priority",
        };
        let measured = bytes(&checked["rewritten"][name]);
        let predicted = bytes(&way["bytes"]) - fixed;
        assert!(fixed + measured <= bytes(&result["budget_bytes"]), "{name}");
        let off = predicted / measured - 1.0;
        assert!(off.abs() < 0.005, "{name}: {predicted}, {measured}");
    }
    let before = bytes(&checked["original"]["default"]);
    assert!(bytes(&checked["rewritten"]["default"]) < 0.75 * before);
}

#[test]
fn both_execution_orders_are_simulated_exactly() {
    const GRAPHS: usize = 60;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("text");
    let count = GRAPHS.to_string();
    let script = "tools/execution_order.py";
    assert_success(&run([
        script,
        "--random",
        &count,
        "--standard",
        "--write",
        path,
    ]));
    for number in 0..GRAPHS {
        let file = |ending: &str| folder.path().join(format!("{number}.{ending}"));
        let graph = Model::open(&file("onnx"))
            .expect("a model")
            .graph()
            .expect("a graph");
        let costs = vec![Cost::default(); graph.node_count()];
        let executions = Executions::of(&graph, &STOCK, Provider::Cpu, &costs);
        let runs = executions.simulate(RuntimeSettings::LEAN);
        for ((_, run), ending) in runs.iter().zip(["default", "priority"]) {
            let nodes = run.nodes().into_iter().map(|id| graph.node(id));
            let nodes = nodes.filter(|node| !node.is("", "Constant"));
            let names: Vec<&str> = nodes.map(|node| node.name.as_str()).collect();
            let executed = fs::read_to_string(file(ending)).expect("what the runtime ran");
            assert_eq!(names.join("\n"), executed, "graph {number}, {ending}");
        }
    }
}
