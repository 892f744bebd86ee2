//! Lowered operators and graphs, in a runtime without training beside the one with it.

mod support;

use std::collections::BTreeMap;
use std::process::{Command, Output};

use support::{assert_success, malloc_counter, python, root};

/// A script of `tools/`, run by the runtime that trains, with the other one beside it.
fn script(arguments: &[&str]) -> Output {
    let mut script = Command::new(python(&[]));
    let script = script
        .args(arguments)
        .arg("--stock")
        .arg(python(&["stock"]));
    let script = script
        .env("MALLOC_COUNTER", malloc_counter())
        .current_dir(root());
    script.output().expect("Python starts")
}

fn succeeds(arguments: &[&str]) -> String {
    let done = script(arguments);
    assert_success(&done);
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Each error is at most twice that of the kernel; inputs stay as they are, with one thread and with four.
#[test]
fn lowered_operators_are_as_exact_as_their_kernels_and_write_to_no_input() {
    let program = env!("CARGO_BIN_EXE_ckpt-opt");
    let check = [
        "tools/lowering_check.py",
        "--every",
        "4",
        "--program",
        program,
    ];
    let printed = succeeds(&check);
    assert!(printed.contains("1.32.0: 1"), "{printed}");
}

#[test]
fn an_error_beyond_the_kernel_s_is_found() {
    // A program that leaves the operator as it is: nothing but an error comes of that.
    let copies = tempfile::tempdir().expect("a folder");
    let program = copies.path().join("copies");
    std::fs::write(&program, "#!/bin/sh\ncp \"$2\" \"$3\"\n").expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).expect("it may run");
    let program = program.to_str().expect("a path");
    let check = [
        "tools/lowering_check.py",
        "--only",
        "TanhGrad",
        "--program",
        program,
    ];
    assert!(!script(&check).status.success());
}

/// Loss and gradients of a whole step.
#[test]
fn a_lowered_graph_gives_the_losses_and_gradients_of_the_original() {
    let folder = tempfile::tempdir().expect("a folder");
    for (model, dims) in MODELS {
        let out = folder.path().join("lowered.onnx");
        let path = format!("testdata/{model}");
        let mut lower = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"));
        let lower = lower.arg("lower").arg(&path).arg(&out).current_dir(root());
        assert_success(&lower.output().expect("it starts"));
        let out = out.to_str().expect("a path");
        let mut step = vec!["tools/lowered_model.py", &path, out, "--steps", "1"];
        dims.iter().for_each(|dim| step.extend(["--dim", dim]));
        succeeds(&step);
    }
}

/// A tensor whose shape is asked for late stays until then.
#[test]
fn a_lowered_graph_asks_for_the_shapes_of_inputs_alone() {
    for name in ["cross_modal", "resnet18", "triplet", "unet_nearest"] {
        let path = root().join(format!("testdata/models/{name}.onnx"));
        let model = ckpt_opt::Model::open(&path).expect("it is there");
        let lowered = ckpt_opt::lower(&model, &BTreeMap::new(), None).expect("it can be lowered");
        let graph = lowered.graph();
        let nodes = graph.order().iter().map(|&id| graph.node(id));
        let asked = nodes.filter(|node| node.op_type == "Shape");
        let asked: Vec<_> = asked.filter_map(|node| node.input(0)).collect();
        assert!(!asked.is_empty(), "{name}");
        let of_values = asked.iter().filter(|id| !graph.inputs.contains(id));
        let of_values: Vec<&str> = of_values
            .map(|&id| graph.tensor(id).name.as_str())
            .collect();
        assert!(of_values.is_empty(), "{name}: {of_values:?}");
    }
}

const MODELS: [(&str, &[&str]); 2] = [
    ("models/cross_modal.onnx", &["batch=4"]),
    ("models/resnet18.onnx", &["batch=2"]),
];

/// Of the runtime's list of kernels: nobody ran them.
#[test]
fn nodes_of_lowered_graphs_have_kernels_on_cuda() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |model: &std::path::Path| {
        let mut check = Command::new(python(&[]));
        let check = check.arg("tools/cuda_kernels.py").arg(model);
        check.current_dir(root()).output().expect("Python starts")
    };
    for name in [
        "cross_modal",
        "resnet18",
        "triplet",
        "unet_nearest",
        "vgg16",
    ] {
        let original = root().join(format!("testdata/models/{name}.onnx"));
        let lowered = folder.path().join(format!("{name}.onnx"));
        let mut lower = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"));
        let lower = lower.arg("lower").arg(&original).arg(&lowered).output();
        assert_success(&lower.expect("ckpt-opt starts"));
        assert_success(&check(&lowered));
        let refused = check(&original);
        let said = String::from_utf8_lossy(&refused.stdout);
        assert!(!refused.status.success(), "{name}: {said}");
        assert!(said.contains("InPlaceAccumulatorV2 of float"), "{said}");
    }
}
