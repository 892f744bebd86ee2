//! ckpt-opt's promises, kept by ONNX Runtime itself: rewritten graphs run, compute the same bits, and
//! take the memory that was predicted.
//!
//! The runtime comes as a Python package. `tools/setup.sh` installs it into `.venv` once, which needs
//! the network and Python 3.8 to 3.11.

mod support;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use ckpt_opt::onnx::Model;
use ckpt_passes::analysis::cost::Overrides;
use ckpt_passes::bytes::Bytes;
use ckpt_passes::cost::Cost;
use ckpt_passes::graph::{Dimension, Graph, TensorId};
use ckpt_passes::operators::Provider;
use ckpt_passes::optimize::{BudgetRequest, PlanOptions, measure};
use ckpt_passes::program::Solving;
use ckpt_passes::runtime::TRAINING;
use ckpt_passes::runtime::device::Device;
use ckpt_passes::runtime::liveness::Liveness;
use ckpt_passes::runtime::order::ExecutionOrder;
use ckpt_passes::runtime::settings::RuntimeSettings;
use ckpt_passes::search::Effort;
use ckpt_passes::strategy::Strategy;
use serde_json::Value;
use support::simulated::{
    assert_optimized_as_simulated, assert_order_as_simulated, assert_shapes_known,
    assert_sizes_known_once_optimized,
};
use support::{assert_success, malloc_counter, root};

/// How far a predicted peak may lie from the measured one, beyond what the caller owns.
const ACCURACY: f64 = 0.03;

/// The same of what an arena reserves that grows as requested: which piece of it each allocation gets decides how often it grows.
const AS_REQUESTED: f64 = 0.1;

#[test]
fn both_execution_orders_are_simulated_exactly() {
    const GRAPHS: usize = 60;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("a temporary path is text");
    let count = GRAPHS.to_string();
    let output = python([
        "tools/execution_order.py",
        "--random",
        &count,
        "--write",
        path,
    ]);
    assert_success(&output);
    let orders = [
        (ExecutionOrder::Default, "default"),
        (ExecutionOrder::PriorityBased, "priority"),
    ];
    assert_simulated(folder.path(), GRAPHS, &orders);
}

#[test]
fn all_execution_orders_of_graphs_with_a_yield_op_are_simulated_exactly() {
    const GRAPHS: usize = 300;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("a temporary path is text");
    let count = GRAPHS.to_string();
    assert_success(&python(["tools/yield_step.py", "--random", &count, path]));
    let orders = [
        (ExecutionOrder::Default, "default"),
        (ExecutionOrder::PriorityBased, "priority"),
        (ExecutionOrder::MemoryEfficient, "memory-efficient"),
    ];
    assert_simulated(folder.path(), GRAPHS, &orders);
}

/// The bundled graphs, sizes, and budgets that are feasible in any settings.
const BUNDLED: [(&str, &str, &str); 6] = [
    ("resnet18", "batch=2", "fixed+40%"),
    ("vgg16", "batch=2", "fixed+90%"),
    ("triplet", "batch=1", "fixed+40%"),
    ("cross_modal", "batch=2", "fixed+40%"),
    ("unet_nearest", "batch=1", "fixed+75%"),
    ("ortmodule_gpt_small", "x_dim0=8 y_dim0=1024", "fixed+40%"),
];

/// A bundled graph, and what becomes of it in the folder.
fn rewrite(folder: &Path, bundled: (&str, &str, &str), settings: &str) -> [PathBuf; 2] {
    let (model, dims, budget) = bundled;
    let original = root().join(format!("testdata/models/{model}.onnx"));
    rewrite_file(folder, original, dims, budget, settings)
}

fn rewrite_file(
    folder: &Path,
    original: PathBuf,
    dims: &str,
    budget: &str,
    settings: &str,
) -> [PathBuf; 2] {
    let rewritten = folder.join("rewritten.onnx");
    let output = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"))
        .args([&original, &rewritten])
        .args(["--budget", budget, "--runtime-settings", settings])
        .args(dims.split_whitespace().flat_map(|dim| ["--dim", dim]))
        .output()
        .expect("ckpt-opt starts");
    assert_success(&output);
    [original, rewritten]
}

/// Devices take models in the format of the runtime's own, which is made once for all.
#[test]
fn a_written_file_in_the_ort_format_takes_and_computes_the_same() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundled = ("triplet", "batch=64", "fixed+60%");
    let [_, rewritten] = rewrite(folder.path(), bundled, "lean");
    let converter = "onnxruntime.tools.convert_onnx_models_to_ort";
    let models = folder.path().to_str().expect("a text");
    assert_success(&python([
        "-m",
        converter,
        models,
        "--optimization_style",
        "Fixed",
    ]));
    let step = |path: &Path| -> Value {
        let path = path.to_str().expect("a text");
        let onnx = rewritten.to_str().expect("a text");
        let done = preloaded([
            "tools/run_step.py",
            path,
            "--inputs-of",
            onnx,
            "--dim",
            "batch=64",
            "--level",
            "enable_all",
        ]);
        assert_success(&done);
        serde_json::from_slice(&done.stdout).expect("JSON")
    };
    let (converted, written) = (step(&rewritten.with_extension("ort")), step(&rewritten));
    assert_eq!(converted["digests"], written["digests"]);
    let [converted, written] = [converted, written].map(|step| number(&step, "peak_bytes"));
    assert!(converted == written, "{converted} {written}");
}

#[test]
fn what_the_runtime_makes_of_every_bundled_graph_runs_in_the_simulated_order() {
    for bundled in BUNDLED {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for path in rewrite(folder.path(), bundled, "lean") {
            assert_optimized_as_simulated(&TRAINING, &path, bundled.1);
        }
    }
}

#[test]
fn what_the_runtime_makes_of_layers_of_any_kind_runs_in_the_simulated_order() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for seed in 0..20 {
        let file = generate(folder.path(), "mixed", seed);
        for order in [ExecutionOrder::Default, ExecutionOrder::PriorityBased] {
            assert_order_as_simulated(&TRAINING, (&file, ""), order);
        }
    }
}

/// One for each way in which a Transpose gets behind what reads it, and those in which it does not.
#[test]
fn what_transposes_are_moved_behind_runs_in_the_simulated_order() {
    const BACK: &str = "y = Transpose<perm=[0,3,1,2]>(z)";
    let same = |z: &str| (format!("{z} {BACK}"), "");
    let weighted = |z: &str, inputs: &'static str| (format!("{z} {BACK}"), inputs);
    let graphs = [
        same("a = Relu(t) b = Sigmoid(a) z = Softmax<axis=-1>(b)"),
        weighted("z = Mul(t, w)", "float[6] w"),
        weighted(
            "a = Mul(t, w) b = Add(a, v) z = Mul(b, w)",
            "float[6] w, float[6] v",
        ),
        weighted("z = Mul(t, w)", "float[8,10,6] w"),
        weighted(
            "b = Exp(w) u = Transpose<perm=[1,0]>(b) z = Add(t, u)",
            "float[6,10] w",
        ),
        weighted("a = Relu(t) z = MatMul(a, w)", "float[6,6] w"),
        same("l = Log(x) u = Transpose<perm=[0,2,3,1]>(l) z = Concat<axis=3>(t, u)"),
        same("p, q = Split<axis=3>(t) r = Mul(p, q) z = Neg(r)"),
        same(
            "r = Slice(t, zero, three, three) s = Slice(t, three, six, three) m = Relu(r) z = Concat<axis=3>(m, s)",
        ),
        same("r = ReduceMean<axes=[3]>(t) z = Sub(t, r)"),
        same("z = Mul(t, c)"),
        weighted(
            "a = Mul(t, c) z = Neg(a) m = Mul(w, c) k = Exp(m)",
            "float[N,20,6] w",
        ),
        same("a = Mul(t, two) b = Add(a, two) z = Neg(b)"),
        same("s = Shape(t) r = Relu(t) z = Expand(r, s)"),
        same(
            "s = Shape(t) p = Gather(s, i0) q = Gather(s, i1) r = Gather(s, i2) u = Gather(s, i3) j = Add(p, q) l = Add(r, u) m = Add(j, l) f = Cast<to=1>(m) z = Mul(t, f)",
        ),
        same("z = Tile(t, twice)"),
        same("z = Relu(t) l = Transpose<perm=[0,3,2,1]>(z) k = ReduceSum<keepdims=0>(l, zero)"),
        same(
            "a = Relu(t) b = Transpose<perm=[0,3,1,2]>(a) d = Add(b, x) f = Transpose<perm=[0,2,3,1]>(d) z = Sigmoid(f)",
        ),
        same("a = Relu(t) z = MaxPool<kernel_shape=[2,2]>(a)"),
    ];
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (number, (nodes, inputs)) in graphs.into_iter().enumerate() {
        let inputs = match inputs {
            "" => String::new(),
            more => format!(", {more}"),
        };
        let more = if nodes.contains(" k = ") {
            ", float k"
        } else {
            ""
        };
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[N,6,8,10] x{inputs}) => (float[N,a,b,c] y{more}) <float[6] c = {{1, 2, 3, 4, 5, 6}},
            int64[1] zero = {{0}}, int64[1] three = {{3}}, int64[1] six = {{6}}, float[1] two = {{2}}, int64[4] twice = {{1, 2, 1, 1}},
            int64 i0 = {{0}}, int64 i1 = {{1}}, int64 i2 = {{2}}, int64 i3 = {{3}}>
            {{ e = Exp(x) t = Transpose<perm=[0,2,3,1]>(e) {nodes} }}"#
        );
        let text = text.replace("float k)", "float[p,q,r] k)");
        let file = folder.path().join(format!("moved_{number}.onnxtxt"));
        fs::write(&file, text).expect("a file");
        let file = from_text(&file, folder.path());
        for order in [ExecutionOrder::Default, ExecutionOrder::PriorityBased] {
            assert_order_as_simulated(&TRAINING, (&file, "N=4"), order);
        }
    }
}

#[test]
fn what_a_session_knows_of_the_shapes_in_every_bundled_graph_is_known() {
    for bundled in BUNDLED {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let paths = rewrite(folder.path(), bundled, "default");
        let (model, dims, _) = bundled;
        let compared = assert_shapes_known(&TRAINING, &paths, dims);
        assert!(compared > 200, "{model}: {compared} tensors");
    }
}

/// All sizes of these are fixed, and hidden from a session.
#[test]
fn what_a_session_knows_of_the_shapes_where_the_batch_is_fixed_is_known() {
    for (family, seed) in [("mixed", 1), ("mixed", 4), ("mixed", 5), ("cnn", 0)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let original = generate(folder.path(), family, seed);
        let paths = rewrite_file(folder.path(), original, "", "fixed+90%", "default");
        let compared = assert_shapes_known(&TRAINING, &paths, "");
        assert!(compared > 200, "{family} {seed}: {compared} tensors");
        let rewritten = Model::open(&paths[1]).and_then(|model| model.graph());
        let rewritten = rewritten.expect("a graph");
        let hides = |id: TensorId| rewritten.tensor(id).name.ends_with("/hidden");
        assert!(rewritten.tensor_ids().any(hides), "{family} {seed}");
    }
}

/// What a session has of a Reshape to a computed shape depends on the opset.
#[test]
fn what_a_session_knows_of_computed_shapes_is_known_at_every_opset() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let written = |n: &str, opset: usize| {
        let name = format!("opset_{opset}_{n}");
        let text = folder.path().join(format!("{name}.onnxtxt"));
        let graph = format!(
            r#"<ir_version: 7, opset_import: ["" : {opset}, "com.microsoft" : 1]>
            computed (float[{n},4] x, float[3,4] w, float[4] s) => (float[{n},4] y) <int64[2] to = {{-1, 4}}>
            {{ sizes = Shape(x) same = Reshape(x, sizes) sum = Add(same, w) zeros = ConstantOfShape(sizes)
              wide = Expand(x, sizes) known = Reshape(sum, to) of = Shape(same)
              normal, a, b, c, d = com.microsoft.BatchNormInternal(same, s, s, s, s)
              y = Sum(known, zeros, wide, normal) }}"#
        );
        fs::write(&text, graph).expect("a file");
        from_text(&text, folder.path())
    };
    let opsets = [11, 13, 14, 17];
    let graphs = opsets.map(|opset| written("n", opset));
    assert_eq!(assert_shapes_known(&TRAINING, &graphs, "n=3"), 4 * 13);
    // A session that optimizes folds the sizes, where they are numbers.
    let fixed = opsets.map(|opset| written("3", opset));
    let compared = assert_sizes_known_once_optimized(&TRAINING, &fixed, "");
    assert_eq!(compared, 4 * 13);
}

#[test]
fn a_profile_of_every_bundled_graph_has_a_simulated_order() {
    for (model, dim) in [
        ("resnet18", "batch=1"),
        ("vgg16", "batch=1"),
        ("triplet", "batch=1"),
        ("cross_modal", "batch=2"),
        ("unet_nearest", "batch=1"),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let profile = folder.path().join("profile.json");
        let graph = root().join(format!("testdata/models/{model}.onnx"));
        let script: [&OsStr; 7] = [
            "tools/make_profile.py".as_ref(),
            graph.as_os_str(),
            profile.as_os_str(),
            "--dim".as_ref(),
            dim.as_ref(),
            "--steps".as_ref(),
            "1".as_ref(),
        ];
        assert_success(&python(script));
        let inspected = |profile: &Path| {
            let output = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"))
                .arg("inspect")
                .args([&graph, Path::new("--profile"), profile])
                .args(["--dim", dim])
                .output()
                .expect("ckpt-opt starts");
            assert_success(&output);
            String::from_utf8(output.stderr).expect("text")
        };
        assert_eq!(inspected(&profile), "", "{model}");
        // It can tell: the first two kernels the other way round.
        let text = fs::read(&profile).expect("a profile");
        let mut events: Vec<Value> = serde_json::from_slice(&text).expect("events");
        let is_kernel = |event: &Value| {
            let name = event["name"].as_str();
            name.is_some_and(|name| name.ends_with("_kernel_time"))
        };
        let kernels: Vec<usize> = (0..events.len())
            .filter(|&i| is_kernel(&events[i]))
            .collect();
        events.swap(kernels[0], kernels[1]);
        let swapped = folder.path().join("swapped.json");
        fs::write(&swapped, serde_json::to_vec(&events).expect("JSON")).expect("a file");
        let said = inspected(&swapped);
        assert!(
            said.contains("another order than DEFAULT: at step 0"),
            "{model}: {said}"
        );
    }
}

/// The graphs in the folder run, in each of the orders, as they are simulated.
fn assert_simulated(folder: &Path, graphs: usize, orders: &[(ExecutionOrder, &str)]) {
    for number in 0..graphs {
        let model = Model::open(&folder.join(format!("{number}.onnx"))).expect("a model");
        let graph = model.graph().expect("a graph");
        for &(order, file) in orders {
            let executed = fs::read_to_string(folder.join(format!("{number}.{file}")))
                .expect("what the runtime ran");
            assert_eq!(
                simulated(&graph, order),
                executed,
                "graph {number}, {order:?}"
            );
        }
    }
}

/// The names of the nodes as they run, a line each. The runtime runs no Constant: it makes them
/// initializers; and its profile has no YieldOp.
fn simulated(graph: &Graph, order: ExecutionOrder) -> String {
    let costs = vec![Cost::default(); graph.node_count()];
    let nodes = Liveness::simulate(graph, order, Provider::Cpu, &costs).order;
    let nodes = nodes.into_iter().map(|id| graph.node(id));
    let names: Vec<&str> = nodes
        .filter(|node| !node.is("", "Constant") && !node.is("com.microsoft", "YieldOp"))
        .map(|node| node.name.as_str())
        .collect();
    names.join("\n")
}

#[test]
fn no_random_graph_takes_more_than_predicted_in_any_settings() {
    const GRAPHS: usize = 60;
    /// Of a few hundred KB: the smallest graphs take little more than the runtime's own share.
    const ABOVE: f64 = 0.05;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("a temporary path is text");
    let script = ["tools/planner_check.py", &GRAPHS.to_string(), path];
    assert_success(&preloaded(script));
    let measured = fs::read(folder.path().join("measured.json")).expect("what was measured");
    let measured: Vec<Value> = serde_json::from_slice(&measured).expect("measured peaks");
    let files = 0..measured.len();
    let files = files.map(|index| folder.path().join(format!("{index}.onnx")));
    assert_shapes_known(&TRAINING, &files.collect::<Vec<_>>(), "batch=8");
    let mut wrong = Vec::new();
    for (index, measured) in measured.iter().enumerate() {
        let model = Model::open(&folder.path().join(format!("{index}.onnx"))).expect("a model");
        let graph = model.graph().expect("a graph");
        let symbol = Some(vec![Dimension::Symbol("batch".to_owned())]);
        let first = |id: &TensorId| graph.tensor(*id).declared.as_ref().map(|d| d[..1].to_vec());
        let symbolic = graph.inputs.iter().any(|id| first(id) == symbol);
        for (settings, reuse, pattern) in [
            ("lean", false, false),
            ("no-pattern", true, false),
            ("pattern", false, true),
            ("default", true, true),
        ] {
            let bindings = symbolic.then(|| ("batch".to_owned(), 8));
            let options = PlanOptions {
                bindings: bindings.into_iter().collect(),
                runtime: ckpt_passes::runtime::Runtime::of(RuntimeSettings { reuse, pattern }),
                ..plain_options()
            };
            let predicted = measure(&graph, &options).expect("a simulation");
            for (order, peak) in [
                ("default", &predicted.default),
                ("priority", &predicted.priority),
            ] {
                let predicted = (peak.bytes - predicted.fixed).0 as f64;
                let measured = number(&measured[settings], order);
                if predicted < measured || predicted > measured * (1.0 + ABOVE) {
                    wrong.push(format!(
                        "{index}, {settings}, {order}: {predicted}, measured {measured} ({:+.2} %)",
                        100.0 * (predicted / measured - 1.0)
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Sizes in subgraphs follow from what they read, and what they take is counted.
#[test]
fn no_random_graph_with_subgraphs_takes_more_than_predicted() {
    const GRAPHS: usize = 60;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("a temporary path is text");
    let script = ["tools/measure_bodies.py", &GRAPHS.to_string(), path];
    assert_success(&preloaded(script));
    let measured = fs::read(folder.path().join("measured.json")).expect("what was measured");
    let measured: Vec<Value> = serde_json::from_slice(&measured).expect("measured peaks");
    let mut wrong = Vec::new();
    let mut above = 0.0;
    for (index, measured) in measured.iter().enumerate() {
        let model = Model::open(&folder.path().join(format!("{index}.onnx"))).expect("a model");
        let graph = model.graph().expect("a graph");
        let is_named = graph.inputs.iter().any(|&id| {
            let declared = graph.tensor(id).declared.iter().flatten();
            declared
                .into_iter()
                .any(|d| matches!(d, Dimension::Symbol(_)))
        });
        for (settings, reuse, pattern) in [("lean", false, false), ("default", true, true)] {
            let bindings = is_named.then(|| ("rows".to_owned(), 256));
            let options = PlanOptions {
                bindings: bindings.into_iter().collect(),
                runtime: ckpt_passes::runtime::Runtime::of(RuntimeSettings { reuse, pattern }),
                ..plain_options()
            };
            let predicted = measure(&graph, &options).expect("a simulation");
            for (order, peak) in [
                ("default", &predicted.default),
                ("priority", &predicted.priority),
            ] {
                let predicted = (peak.bytes - predicted.fixed).0 as f64;
                let measured = number(&measured[settings], order);
                above += predicted / measured - 1.0;
                // Some are told too high on purpose: what the runtime knows of sizes inside is not followed.
                if predicted < measured || predicted > 2.6 * measured {
                    wrong.push(format!(
                        "{index}, {settings}, {order}: {predicted}, measured {measured} ({:+.2} %)",
                        100.0 * (predicted / measured - 1.0)
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let above = above / (4 * GRAPHS) as f64;
    assert!(above < 0.3, "predicted {above} above on average");
}

fn plain_options() -> PlanOptions {
    PlanOptions {
        bindings: Default::default(),
        runtime: ckpt_passes::runtime::Runtime::DEFAULT,
        budget: BudgetRequest::Smallest,
        reserve: Bytes::ZERO,
        device: Device::preset("cpu").expect("a preset"),
        overrides: Overrides::default(),
        strategy: Strategy::Auto,
        variants: BTreeSet::new(),
        allowed: BTreeSet::new(),
        effort: Effort {
            seed: 0,
            evaluations: 0,
        },
        watch: Arc::default(),
        solving: Solving::default(),
        runner: ckpt_passes::pass::Runner::default(),
    }
}

#[test]
fn checks_see_what_they_must() {
    let output = python(["-m", "unittest", "discover", "-s", "tools"]);
    assert_success(&output);
}

#[test]
fn resnet18_runs_in_half_the_memory() {
    check("resnet18", &["batch=2"], "fixed+50%");
}

#[test]
fn resnet18_runs_at_the_smallest_peak() {
    check("resnet18", &["batch=2"], "min");
}

#[test]
fn gradients_of_the_first_layer_run_slice_by_slice() {
    // Before its pooling, a tensor takes 4 * 64 * 112 * 112 * 4 bytes, 12.25 MiB. What the caller owns takes 91.6 MiB, so there is
    // room for two and a half, where gradients of normalizations and activations in one piece need three.
    check("resnet18", &["batch=4"], "122MiB");
}

#[test]
fn branches_that_share_running_statistics_update_them_in_the_same_order() {
    check("triplet", &["batch=2"], "fixed+50%");
}

#[test]
fn resnet18_runs_in_half_the_memory_in_settings_that_nobody_changed() {
    check_in("default", "resnet18", &["batch=2"], "fixed+50%");
}

#[test]
fn triplet_runs_at_the_smallest_peak_in_settings_that_nobody_changed() {
    check_in("default", "triplet", &["batch=4"], "min");
}

#[test]
fn branches_joined_by_the_loss_run_in_settings_that_nobody_changed() {
    check_in("default", "cross_modal", &["batch=2"], "fixed+50%");
}

#[test]
fn triplet_runs_at_the_smallest_peak() {
    check("triplet", &["batch=2"], "min");
}

#[test]
fn branches_joined_by_the_loss_run_in_half_the_memory() {
    check("cross_modal", &["batch=2"], "fixed+50%");
}

#[test]
fn vgg16_runs_at_the_smallest_peak() {
    check("vgg16", &["batch=1"], "min");
}

// The gradient of its pooling is expanded to a Shape, which sessions that optimize know.
#[test]
fn what_sessions_know_once_they_fold_is_in_the_smallest_peak() {
    let original = root().join("testdata/onnx/conv_bn_relu_train.onnx");
    check_bits_and_budget(&original, &[], "min", "default");
}

/// Small ones of the families that the benchmarks are made of.
#[test]
fn generated_graphs_run_in_less_memory() {
    for (family, settings, budget) in [
        ("rnn", "lean", "fixed+50%"),
        ("layered", "lean", "fixed+65%"),
        ("cnn", "default", "fixed+65%"),
        ("cnn", "no-pattern", "fixed+65%"),
    ] {
        check_generated(settings, family, 0, budget);
    }
}

/// The more is computed again, the more the runtime's fusions find.
#[test]
fn layers_of_any_kind_run_at_the_smallest_peak() {
    for (seed, settings) in [
        (0, "lean"),
        (1, "default"),
        (3, "lean"),
        (4, "default"),
        (6, "lean"),
    ] {
        check_generated(settings, "mixed", seed, "min");
    }
}

fn check_generated(settings: &str, family: &str, seed: u64, budget: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let original = generate(folder.path(), family, seed);
    check_file(settings, &original, &[], budget);
}

fn generate(folder: &Path, family: &str, seed: u64) -> PathBuf {
    let path = folder.join(format!("{family}_{seed}.onnx"));
    let seed = seed.to_string();
    let script: [&OsStr; 6] = [
        "tools/generate.py".as_ref(),
        family.as_ref(),
        "250".as_ref(),
        path.as_os_str(),
        "--seed".as_ref(),
        seed.as_ref(),
    ];
    assert_success(&python(script));
    path
}

#[test]
fn names_of_algorithms_change_no_bits() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let original = root().join("testdata/models/resnet18.onnx");
    let rewritten = folder.path().join("rewritten.onnx");
    let report = folder.path().join("report.json");
    let dim = ["--dim", "batch=2"];
    let output = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"))
        .args([&original, &rewritten])
        .args(["--budget", "fixed+50%", "--device", "a100", "--quiet"])
        .args(dim)
        .args([Path::new("--report"), &report])
        .output()
        .expect("ckpt-opt starts");
    assert_success(&output);
    let report: Value = serde_json::from_slice(&fs::read(report).expect("a report")).expect("JSON");
    let model = Model::open(&rewritten).expect("a model");
    let graph = model.graph().expect("a graph");
    let named = graph.order().iter().map(|&id| graph.node(id));
    let named = named.filter(|node| node.attribute("__ckpt_conv_algo").is_some());
    let products = report["convolutions"].as_array().expect("a list").len();
    // 20 convolutions and the gradients of all, the first one of its weights alone, and copies.
    let (nodes, copies) = (
        named.clone().count(),
        named.filter(|n| n.int("__recompute").is_some()),
    );
    assert!(nodes >= 40 && products >= nodes + 19, "{nodes} {products}");
    assert!(copies.count() > 0);

    let script: [&OsStr; 3] = [
        "tools/check_model.py".as_ref(),
        original.as_os_str(),
        rewritten.as_os_str(),
    ];
    // Equal bits at DISABLE_ALL in both orders, and within 1e-5 at ENABLE_ALL.
    assert_success(&python(script.into_iter().chain(dim.map(OsStr::new))));
}

/// Files that went wrong once: planned for 60 % of what the caller does not own, they keep bits and budgets.
#[test]
fn what_went_wrong_once_keeps_its_bits_and_budgets() {
    for (case, dim, budget) in [
        ("unsorted", "batch=256", "fixed+60%"),
        ("stale_value_info", "batch=256", "fixed+60%"),
        ("sequence_vi", "batch=256", "fixed+60%"),
        ("mixed_fp16", "batch=256", "fixed+50%"),
        ("if_unknown_size", "batch=16", "fixed+60%"),
        ("own_functions", "batch=4096", "fixed+60%"),
    ] {
        let original = root().join(format!("testdata/cases/{case}.onnx"));
        check_bits_and_budget(&original, &[dim], budget, "default");
    }
}

/// Plans, writes and runs a graph: the bits stay, and no way of running it takes more than the budget.
/// In no order and at no level: some of its tensors have places of the wrong size in the block, and memory of their own besides.
#[test]
fn a_file_with_wrong_sizes_takes_no_more_than_is_said() {
    let original = root().join("testdata/cases/stale_value_info.onnx");
    let (plan, checked) = check_bits_and_budget(&original, &["batch=256"], "fixed+60%", "default");
    let fixed = number(&plan, "fixed_bytes");
    let ways = plan["peaks_before"].as_array().expect("a list");
    let keys = ["default", "enable_all", "priority", "enable_all_priority"];
    assert_eq!(ways.len(), keys.len());
    for (way, key) in ways.iter().zip(keys) {
        let (said, took) = (
            number(way, "bytes") - fixed,
            number(&checked["original"], key),
        );
        assert!(took <= said && said < 1.03 * took, "{key}: {took}, {said}");
    }
}

/// Graphs that took more than was counted: a division's gradient, which the runtime takes apart, and a plan in which every copy of a
/// convolution's gradient by slices keeps its own.
#[test]
fn graphs_that_took_more_than_was_counted_take_what_is_said() {
    for (case, dims) in [
        ("divgrad_same", &[][..]),
        ("divgrad_broadcast", &[]),
        ("diffusion_conv_variant_over_budget", &["batch=2"]),
    ] {
        let original = root().join(format!("testdata/cases/{case}.onnx"));
        for settings in ["default", "lean"] {
            let (plan, checked) = check_bits_and_budget(&original, dims, "1GiB", settings);
            assert_all_ways_predicted(case, &plan, &checked);
        }
    }
}

/// Sizes that only data tell are as large as the user says at most; what is in sequences is as large as what was put in.
#[test]
fn what_data_tell_and_what_is_in_sequences_take_no_more_than_is_said() {
    for case in ["range_dyn", "loop_grow", "loop_seq", "if_seq"] {
        let original = root().join(format!("testdata/cases/{case}.onnx"));
        let dims = ["batch=8", "*=64"];
        let (plan, checked) = check_bits_and_budget(&original, &dims, "1GiB", "default");
        let fixed = number(&plan, "fixed_bytes");
        for (way, key) in each_way(&plan) {
            let said = number(way, "bytes") - fixed;
            let took = number(&checked["rewritten"], key);
            assert!(took <= said, "{case} {key}: {took}, {said}");
        }
    }
}

/// The plan, and what was measured.
fn check_bits_and_budget(
    original: &Path,
    dims: &[&str],
    budget: &str,
    settings: &str,
) -> (Value, Value) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let rewritten = folder.path().join("rewritten.onnx");
    let session = folder.path().join("session.json");
    let dims = dims.iter().flat_map(|dim| ["--dim", dim]);
    let output = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"))
        .args([original, &rewritten])
        .args(["--budget", budget, "--runtime-settings", settings])
        .args(["--json", "--quiet"])
        .args(support::EVERY_SESSION)
        .arg("--session-options")
        .arg(&session)
        .args(dims.clone())
        .output()
        .expect("ckpt-opt starts");
    assert_success(&output);
    let plan: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let script: [&OsStr; 6] = [
        "tools/check_model.py".as_ref(),
        "--json".as_ref(),
        "--settings".as_ref(),
        settings.as_ref(),
        original.as_os_str(),
        rewritten.as_os_str(),
    ];
    let output = python(script.into_iter().chain(dims.map(OsStr::new)));
    let checked: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let case = original.display();
    assert!(checked["ok"] == true, "{case}: {checked}");
    let session = fs::read(&session).expect("session options");
    let session: Value = serde_json::from_slice(&session).expect("one JSON object");
    assert_eq!(session.get("session_config_entries"), None, "{case}");
    let room = number(&plan, "budget_bytes") - number(&plan, "fixed_bytes");
    for way in ["default", "priority", "enable_all", "enable_all_priority"] {
        let took = number(&checked["rewritten"], way);
        assert!(took <= room, "{case}, {way}: {took} of {room}");
    }
    (plan, checked)
}

/// It has as many heads as there are examples in the batch, and multiplies by roots that are constants once they are folded.
#[test]
fn an_encoder_and_a_decoder_take_what_is_predicted_in_all_settings() {
    let path = root().join("testdata/cases/encoder_decoder.onnx");
    let compared = assert_shapes_known(&TRAINING, std::slice::from_ref(&path), "batch=4");
    assert!(compared > 300, "{compared}");
    for settings in ["default", "lean"] {
        let (plan, checked) = check_bits_and_budget(&path, &["batch=4"], "fixed+75%", settings);
        let fixed = number(&plan, "fixed_bytes");
        assert_all_ways_predicted(settings, &plan, &checked);
        let before = number(&plan, "peak_before_bytes") - fixed;
        let took = number(&checked["original"], "default");
        assert!(
            took <= before && before - took < OBJECTS,
            "{settings}: {took}, predicted {before}"
        );
    }
}

/// Of Shapes behind Transposes a session makes two small tensors each, which may lie behind a large one that dies.
#[test]
fn shapes_of_what_is_transposed_take_what_is_predicted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = root().join("testdata/text/transposed_shapes.onnxtxt");
    let original = from_text(&text, folder.path());
    let (plan, checked) = check_bits_and_budget(&original, &["N=4"], "100%", "default");
    assert_all_ways_predicted("default", &plan, &checked);
}

/// 1.19.2 has one node of a convolution and what is added to it, which is not where its result is written. It took 24 % more than was said.
#[test]
fn a_residual_behind_a_convolution_with_a_bias_takes_what_is_predicted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = root().join("testdata/text/biased_residual.onnxtxt");
    let original = from_text(&text, folder.path());
    let options = ["--budget", "101%", "--level", "all"];
    let orders = ["DEFAULT", "PRIORITY_BASED"];
    assert_promise_holds(&original, &["--dim", "N=8"], &options, &orders);
}

/// What is predicted for each way to run what was written, and what the checks call that way.
fn each_way(plan: &Value) -> impl Iterator<Item = (&Value, &'static str)> {
    let ways = plan["peaks_after"].as_array().expect("all ways").iter();
    ways.map(|way| {
        let key = match (way["order"].as_str(), way["level"].as_str()) {
            (Some("DEFAULT"), Some("ORT_DISABLE_ALL")) => "default",
            (Some("PRIORITY_BASED"), Some("ORT_DISABLE_ALL")) => "priority",
            (Some("DEFAULT"), _) => "enable_all",
            _ => "enable_all_priority",
        };
        (way, key)
    })
}

/// Does each of the four ways to run what was written take what was said of it?
fn assert_all_ways_predicted(case: &str, plan: &Value, checked: &Value) {
    let fixed = number(plan, "fixed_bytes");
    for (way, key) in each_way(plan) {
        let predicted = number(way, "bytes") - fixed;
        let took = number(&checked["rewritten"], key);
        assert!(
            took <= predicted && predicted - took < OBJECTS,
            "{case} {key}: {took}, predicted {predicted}"
        );
    }
}

/// Bytes that are counted for tensors' objects and are not there, in a graph of some hundred nodes.
const OBJECTS: f64 = 20_000.0;

/// What is promised for one level holds there in both orders, and is predicted.
#[test]
fn a_budget_for_one_level_holds_at_that_level() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let original = folder.path().join("original.onnx");
    let path = original.to_str().expect("a text");
    assert_success(&python(["tools/generate.py", "transformer", "300", path]));
    let options = ["--budget", "fixed+60%", "--level", "all"];
    assert_promise_holds(&original, &[], &options, &["DEFAULT", "PRIORITY_BASED"]);
}

/// Where nothing is said of the session, the budget holds in one that changes nothing, and costs no more than in all.
#[test]
fn a_budget_holds_in_a_session_as_it_is_by_default() {
    let original = root().join("testdata/cases/encoder_decoder.onnx");
    let dims = ["--dim", "batch=16"];
    let usual = assert_promise_holds(&original, &dims, &["--budget", "fixed+80%"], &["DEFAULT"]);
    assert_eq!(
        (&usual["order"], &usual["level"]),
        (&"default".into(), &"all".into())
    );
    let said = (&usual["before_order"], &usual["before_level"]);
    assert_eq!(said, (&"DEFAULT".into(), &"ORT_ENABLE_ALL".into()));
    assert!(number(&usual, "overhead") < number(&usual, "overhead_in_every_session"));
}

/// What sessions fold, move and share decides here: one took 1.2 % more than its budget, the other was planned for every session
/// alike, for 1.4 points more.
#[test]
fn an_encoder_with_a_decoder_and_experts_keep_their_budgets_by_default() {
    for (model, dims, most) in [
        ("whisper", &["--dim", "batch=2"][..], 0.07),
        ("moe", &["--dim", "batch=16", "--dim", "seq=64"], 0.06),
    ] {
        let original = root().join(format!("testdata/cases/{model}.onnx"));
        let options = ["--budget", "fixed+50%"];
        let plan = assert_promise_holds(&original, dims, &options, &["DEFAULT"]);
        let overhead = number(&plan, "overhead");
        assert!(overhead < most, "{model}: {overhead}");
    }
}

/// Plans with these options, and holds what is said of these orders at ORT_ENABLE_ALL against real runs. The plan.
fn assert_promise_holds(
    original: &Path,
    dims: &[&str],
    options: &[&str],
    orders: &[&str],
) -> Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let rewritten = folder.path().join("rewritten.onnx");
    let output = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"))
        .args([original, &rewritten])
        .args(["--json", "--quiet"])
        .args(dims)
        .args(options)
        .output()
        .expect("ckpt-opt starts");
    assert_success(&output);
    let planned: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let script: [&OsStr; 6] = [
        "tools/check_model.py".as_ref(),
        "--json".as_ref(),
        "--settings".as_ref(),
        "default".as_ref(),
        original.as_os_str(),
        rewritten.as_os_str(),
    ];
    let checked = python(script.into_iter().chain(dims.iter().map(OsStr::new)));
    let checked: Value = serde_json::from_slice(&checked.stdout).expect("JSON");
    assert!(checked["ok"] == true, "{checked}");
    let (budget, fixed) = (
        number(&planned, "budget_bytes"),
        number(&planned, "fixed_bytes"),
    );
    let ways = planned["peaks_after"].as_array().expect("a list");
    for &order in orders {
        let way = match order {
            "DEFAULT" => "enable_all",
            _ => "enable_all_priority",
        };
        let predicted = ways
            .iter()
            .find(|way| way["order"] == order && way["level"] == "ORT_ENABLE_ALL");
        let predicted = number(predicted.expect("that way"), "bytes") - fixed;
        let took = number(&checked["rewritten"], way);
        assert!(took <= budget - fixed, "{way}: {took} of {budget}");
        let off = (took - predicted).abs() / predicted;
        assert!(off < 0.01, "{way}: {took}, predicted {predicted}");
    }
    let before = &checked["original"]["enable_all"];
    let told = number(&planned, "peak_before_bytes") - fixed;
    let off = (before.as_f64().expect("a number") - told).abs() / told;
    assert!(off < 0.01, "{before}, predicted {told}");
    planned
}

#[test]
fn graphs_in_mixed_precision_keep_their_bits_and_budgets() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mixed = folder.path().join("mixed.onnx");
    let model = root().join("testdata/models/triplet.onnx");
    let script: [&OsStr; 4] = [
        "tools/mixed_precision.py".as_ref(),
        model.as_os_str(),
        mixed.as_os_str(),
        "--operators".as_ref(),
    ];
    let operators = [
        "Conv",
        "ConvGrad",
        "Relu",
        "ReluGrad",
        "Add",
        "Sum",
        "Gemm",
        "MatMul",
        "Transpose",
    ];
    assert_success(&python(script.into_iter().chain(operators.map(OsStr::new))));
    for settings in ["lean", "default"] {
        check_bits_and_budget(&mixed, &["batch=4"], "fixed+60%", settings);
    }
}

#[test]
fn random_graphs_in_mixed_precision_keep_their_bits_at_the_smallest_peak() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for seed in [0, 4, 5] {
        let text = root().join(format!("testdata/text/random_30_{seed}_mixed.onnxtxt"));
        let original = from_text(&text, folder.path());
        check_bits_and_budget(&original, &[], "min", "lean");
    }
}

/// Of products that Shapes measure behind a cast, a session keeps narrowed copies till the end: a plan for the smallest peak took more
/// than three times its budget at ORT_ENABLE_ALL. What is not trained it computes in blocks of channels, unless it is kept from it: twice the
/// budget. No session has to be told.
#[test]
fn graphs_in_text_keep_their_budgets_at_every_level() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, dim) in [
        ("mixed_shapes", "N=256"),
        ("frozen_trunk", "N=8"),
        ("frozen_pools", "N=8"),
    ] {
        let text = root().join(format!("testdata/text/{name}.onnxtxt"));
        let original = from_text(&text, folder.path());
        for settings in ["lean", "default"] {
            check_bits_and_budget(&original, &[dim], "min", settings);
        }
    }
}

/// A teacher that is not trained has operators which the runtime takes apart; as they are, the graph took 8 % more than predicted.
#[test]
fn what_the_runtime_takes_apart_takes_what_is_predicted() {
    let original = root().join("testdata/cases/frozen_hard_swish.onnx");
    check_file("default", &original, &["batch=8"], "fixed+60%");
}

/// Random flags are numbers, a comparison and a cast, which run behind all other nodes in an order by priority.
#[test]
fn random_flags_take_what_is_predicted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = root().join("testdata/text/random_flags.onnxtxt");
    let original = from_text(&text, folder.path());
    for settings in ["default", "lean"] {
        let dims = ["N=4096"];
        let (plan, checked) = check_bits_and_budget(&original, &dims, "fixed+70%", settings);
        assert_all_ways_predicted(settings, &plan, &checked);
    }
}

/// Dropped and wrong declarations, other sequences of nodes, what is computed twice, exposed, read elsewhere, summed up in one
/// buffer: see the script. `tools/mutated_runs.py` does the same to any files for as long as asked.
#[test]
fn changed_graphs_keep_their_bits_or_are_refused_with_a_reason() {
    let script = [
        "tools/mutated_runs.py",
        "--binary",
        env!("CARGO_BIN_EXE_ckpt-opt"),
    ];
    let small = ["--count", "12", "testdata/onnx/conv_bn_relu_train.onnx"];
    assert_success(&python(script.into_iter().chain(small)));
    // Branches that share running statistics, in a file that is not sorted.
    let shared = [
        "--count",
        "1",
        "--first",
        "7",
        "testdata/models/triplet.onnx@batch=2",
    ];
    assert_success(&python(script.into_iter().chain(shared)));
}

#[test]
fn a_rewritten_graph_trains_as_the_original_does() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let original = root().join("testdata/models/resnet18.onnx");
    let rewritten = folder.path().join("rewritten.onnx");
    let output = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"))
        .args([&original, &rewritten])
        .args(["--budget", "fixed+65%", "--dim", "batch=2", "--json"])
        .output()
        .expect("ckpt-opt starts");
    assert_success(&output);
    let plan: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert!(number(&plan, "recomputed_nodes") > 0.0);
    let script: [&OsStr; 5] = [
        "tools/train.py".as_ref(),
        original.as_os_str(),
        rewritten.as_os_str(),
        "--dim".as_ref(),
        "batch=2".as_ref(),
    ];
    assert_success(&python(script));
}

#[test]
fn the_arena_reserves_what_is_predicted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let original = root().join("testdata/models/resnet18.onnx");
    let rewritten = folder.path().join("rewritten.onnx");
    let output = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"))
        .args([&original, &rewritten])
        .args(["--budget", "fixed+50%", "--dim", "batch=8"])
        .args(["--json", "--quiet"])
        .args(support::EVERY_SESSION)
        .output()
        .expect("ckpt-opt starts");
    assert_success(&output);
    let plan: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    for (growth, key) in [("powers-of-two", ""), ("as-requested", "_as_requested")] {
        for (when, graph) in [("before", &original), ("after", &rewritten)] {
            let measure = |order: &str| {
                let script = ["tools/run_step.py".as_ref(), graph.as_os_str()];
                let options = [
                    "--settings",
                    "default",
                    "--dim",
                    "batch=8",
                    "--order",
                    order,
                ];
                let options = options.into_iter().chain(["--growth", growth]);
                let like = ["--inputs-of".as_ref(), original.as_os_str()];
                let script = script.into_iter().chain(options.map(OsStr::new));
                let output = preloaded(script.chain(like));
                assert_success(&output);
                let run: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
                run["kept_bytes_per_step"][0].as_f64().expect("bytes")
            };
            // What is rewritten may run in any order, and the most is told.
            let measured = match when {
                "before" => measure("default"),
                _ => measure("default").max(measure("priority")),
            };
            let key = format!("reserved_{when}{key}_bytes");
            let predicted = number(&plan, &key) - number(&plan, "fixed_bytes");
            let accuracy = match growth {
                "as-requested" => AS_REQUESTED,
                _ => ACCURACY,
            };
            assert_within(accuracy, &key, predicted, measured);
        }
    }
}

#[test]
fn the_halves_of_a_graph_with_a_yield_op_compute_the_same_bits_in_less() {
    let dims = ["--dim", "x_dim0=2", "--dim", "y_dim0=256"];
    let folder = tempfile::tempdir().expect("a temporary folder");
    let original = root().join("testdata/models/ortmodule_gpt_small.onnx");
    let rewritten = folder.path().join("rewritten.onnx");
    let output = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"))
        .args([&original, &rewritten])
        .args(["--budget", "fixed+60%", "--runtime-settings", "lean"])
        .args(["--json", "--quiet"])
        .args(support::EVERY_SESSION)
        .args(dims)
        .output()
        .expect("ckpt-opt starts");
    assert_success(&output);
    let plan: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let script = [
        "tools/yield_step.py".as_ref(),
        original.as_os_str(),
        rewritten.as_os_str(),
    ];
    let output = preloaded(script.into_iter().chain(dims.map(OsStr::new)));
    assert_success(&output);
    let measured: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let peak = |file: &str| {
        let orders = ["default", "priority", "memory-efficient"];
        let peaks = orders.map(|order| number(&measured["peaks"][file], order));
        peaks.into_iter().fold(0.0, f64::max)
    };
    let fixed = number(&plan, "fixed_bytes");
    let (before, after) = (peak("ortmodule_gpt_small.onnx"), peak("rewritten.onnx"));
    assert_close("before", number(&plan, "peak_before_bytes") - fixed, before);
    assert_close("after", number(&plan, "peak_after_bytes") - fixed, after);
    assert!(fixed + after <= number(&plan, "budget_bytes"));
    assert!(
        after < 0.65 * before,
        "{after} bytes after, {before} before"
    );
}

#[test]
fn what_the_strategies_write_for_chains_computes_the_same_bits_in_less() {
    let strategies = Strategy::ALL.into_iter();
    // Auto has its own tests, and ResNet-18's branches do not meet in the loss.
    let others = [Strategy::Auto, Strategy::JoinDp];
    check_strategies("resnet18", strategies.filter(|s| !others.contains(s)));
}

#[test]
fn what_the_strategies_write_for_joins_computes_the_same_bits_in_less() {
    let strategies = [
        Strategy::JoinDp,
        Strategy::PreciseDp,
        Strategy::LowerSetApproxMemory,
    ];
    check_strategies("triplet", strategies.into_iter());
}

/// Rewrites the graph with each of the strategies for its smallest peak, and runs what they write.
fn check_strategies(model: &str, strategies: impl Iterator<Item = Strategy>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let original = root().join(format!("testdata/models/{model}.onnx"));
    let needs_solver = [Strategy::CheckmateIlp, Strategy::MonetIlp];
    let (mut files, mut plans) = (Vec::new(), Vec::new());
    for strategy in strategies {
        let rewritten = folder.path().join(format!("{strategy}.onnx"));
        let output = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"))
            .args([&original, &rewritten])
            .args(["--strategy", strategy.name(), "--budget", "min", "--dim"])
            .args(["batch=1", "--runtime-settings", "lean", "--json", "--quiet"])
            .args(["--time-limit", "20"])
            .args(support::EVERY_SESSION)
            .output()
            .expect("ckpt-opt starts");
        if needs_solver.contains(&strategy) && !cfg!(feature = "highs") {
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{strategy}: {error}");
            assert!(error.contains("cargo xtask highs"), "{strategy}: {error}");
            continue;
        }
        assert_success(&output);
        let plan: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        assert!(number(&plan, "recomputed_nodes") > 0.0, "{strategy}");
        files.push(rewritten);
        plans.push((strategy, plan));
    }
    let script: [&OsStr; 4] = [
        "tools/check_bits.py".as_ref(),
        "--dim".as_ref(),
        "batch=1".as_ref(),
        original.as_os_str(),
    ];
    let output = python(script.into_iter().chain(files.iter().map(AsRef::as_ref)));
    let checked: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let checked = checked.as_array().expect("a list");
    assert_eq!(checked.len(), plans.len());
    for (checked, (strategy, plan)) in checked.iter().zip(plans) {
        let differing = checked["differing"].as_array().expect("a list");
        assert!(differing.is_empty(), "{strategy}: {differing:?}");
        let predicted = number(&plan, "peak_after_bytes") - number(&plan, "fixed_bytes");
        let measured = number(checked, "peak_bytes");
        // Predicted is the worse of both orders.
        assert!(
            measured <= predicted * (1.0 + ACCURACY),
            "{strategy}: {measured} bytes measured, {predicted} predicted"
        );
    }
}

/// Rewrites a graph of `testdata/models` for `budget`, runs it before and after, and compares bits,
/// peaks and predictions.
fn check(model: &str, dims: &[&str], budget: &str) {
    check_in("lean", model, dims, budget);
}

/// As [`check`], in the runtime settings `settings`.
fn check_in(settings: &str, model: &str, dims: &[&str], budget: &str) {
    let original = root().join(format!("testdata/models/{model}.onnx"));
    check_file(settings, &original, dims, budget);
}

/// As [`check_in`], of any file.
fn check_file(settings: &str, original: &Path, dims: &[&str], budget: &str) {
    let model = original.display();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let rewritten = folder.path().join("rewritten.onnx");
    let bound = dims.join(" ");
    let dims = dims.iter().flat_map(|dim| ["--dim", dim]);

    let output = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"))
        .args([original, &rewritten])
        .args([
            "--budget",
            budget,
            "--runtime-settings",
            settings,
            "--json",
            "--quiet",
        ])
        .args(support::EVERY_SESSION)
        .args(dims.clone())
        .output()
        .expect("ckpt-opt starts");
    assert_success(&output);
    let plan: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_optimized_as_simulated(&TRAINING, &rewritten, &bound);

    let script: [&OsStr; 6] = [
        "tools/check_model.py".as_ref(),
        "--json".as_ref(),
        "--settings".as_ref(),
        settings.as_ref(),
        original.as_os_str(),
        rewritten.as_os_str(),
    ];
    let output = python(script.into_iter().chain(dims.map(OsStr::new)));
    let checked: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert!(
        checked["ok"] == true,
        "{model}: differing {}, not finite {}, at ENABLE_ALL {} in {}",
        checked["differing"],
        checked["not_finite"],
        checked["max_relative_difference"],
        checked["most_different"],
    );

    let fixed = number(&plan, "fixed_bytes");
    let before = number(&checked["original"], "default");
    let after =
        number(&checked["rewritten"], "default").max(number(&checked["rewritten"], "priority"));
    assert_close("before", number(&plan, "peak_before_bytes") - fixed, before);
    assert_close("after", number(&plan, "peak_after_bytes") - fixed, after);
    let ways = plan["peaks_after"].as_array().expect("a list");
    assert_eq!(ways.len(), 4);
    for way in ways {
        let key = match (way["order"].as_str(), way["level"].as_str()) {
            (Some("DEFAULT"), Some("ORT_DISABLE_ALL")) => "default",
            (Some("PRIORITY_BASED"), Some("ORT_DISABLE_ALL")) => "priority",
            (Some("DEFAULT"), Some("ORT_ENABLE_ALL")) => "enable_all",
            (Some("PRIORITY_BASED"), Some("ORT_ENABLE_ALL")) => "enable_all_priority",
            other => panic!("no such way: {other:?}"),
        };
        let measured = number(&checked["rewritten"], key);
        assert_close(key, number(way, "bytes") - fixed, measured);
    }
    assert!(
        after < before,
        "{model}: {after} bytes after, {before} before"
    );
    // The budget of `min` is what the planner found: it holds as far as the prediction does.
    let slack = if budget == "min" {
        ACCURACY * after
    } else {
        0.0
    };
    let allowed = number(&plan, "budget_bytes") - fixed + slack;
    assert!(
        after <= allowed,
        "{model}: {after} bytes measured, {allowed} allowed"
    );
    for order in ["enable_all", "enable_all_priority"] {
        let optimized = number(&checked["rewritten"], order);
        assert!(
            optimized <= allowed,
            "{model}: {optimized} bytes measured, {order}, {allowed} allowed"
        );
    }
}

fn assert_close(which: &str, predicted: f64, measured: f64) {
    assert_within(ACCURACY, which, predicted, measured);
}

fn assert_within(accuracy: f64, which: &str, predicted: f64, measured: f64) {
    let error = predicted / measured - 1.0;
    assert!(
        error.abs() <= accuracy,
        "peak {which}: {predicted} bytes predicted, {measured} measured ({:+.1} %)",
        100.0 * error
    );
}

fn number(object: &Value, key: &str) -> f64 {
    object[key]
        .as_f64()
        .unwrap_or_else(|| panic!("{key} is {} in {object}", object[key]))
}

/// Runs the Python of the environment with ONNX Runtime, in the project's folder.
/// The graph that a file has in text, as a file of the same name in the folder.
fn from_text(text: &Path, folder: &Path) -> PathBuf {
    let script: [&OsStr; 3] = [
        "tools/fixtures/text_to_onnx.py".as_ref(),
        text.as_os_str(),
        folder.as_os_str(),
    ];
    assert_success(&python(script));
    let name = text.with_extension("onnx");
    folder.join(name.file_name().expect("a name"))
}

fn python<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Output {
    Command::new(support::python(&[]))
        .args(arguments)
        .current_dir(root())
        .env("MALLOC_COUNTER", malloc_counter())
        .output()
        .expect("Python starts")
}

/// As [`python`], with the malloc counter in the process itself.
fn preloaded<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Output {
    Command::new(support::python(&[]))
        .args(arguments)
        .current_dir(root())
        .env("LD_PRELOAD", malloc_counter())
        .output()
        .expect("Python starts")
}
