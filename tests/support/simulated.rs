//! What a runtime makes of a graph before it runs it, held against what is simulated.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ckpt_opt::onnx::Model;
use ckpt_passes::graph::{Dimension, Graph, Node, TensorId};
use ckpt_passes::operators::Provider;
use ckpt_passes::pass::Pass as _;
use ckpt_passes::rewrite::infer_shapes::InferShapes;
use ckpt_passes::runtime::Release;
use ckpt_passes::runtime::fused_graph::optimized_order;
use ckpt_passes::runtime::known_shapes::{infer_as, runtime_shapes};
use ckpt_passes::runtime::optimized_shapes::runtime_shapes_once_optimized;
use ckpt_passes::runtime::order::ExecutionOrder;
use serde_json::Value;

use super::{assert_success, python, root};

/// A script, run by the release.
fn run(release: &Release, script: &str, arguments: &[&Path]) -> Output {
    let environment: &[&str] = if release.trains { &[] } else { &["stock"] };
    let mut command = Command::new(python(environment));
    command.arg(script).args(arguments).current_dir(root());
    let output = command.output().expect("Python starts");
    assert_success(&output);
    output
}

/// Returns how many shapes were compared. Graphs that have none of the dimensions take none.
pub(crate) fn assert_shapes_known(release: &Release, paths: &[PathBuf], dims: &str) -> usize {
    let files: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    let output = run(release, "tools/measure_known_shapes.py", &files);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(text.lines().count(), paths.len());
    let measured = text.lines().map(serde_json::from_str);
    let each = paths.iter().zip(measured);
    each.map(|(path, measured)| compare_shapes(release, (path, dims), &measured.expect("JSON")))
        .sum()
}

/// The same of what a session at ORT_ENABLE_BASIC knows, as far as that is numbers.
pub(crate) fn assert_sizes_known_once_optimized(
    release: &Release,
    paths: &[PathBuf],
    dims: &str,
) -> usize {
    let mut arguments = vec![Path::new("--optimized")];
    arguments.extend(paths.iter().map(PathBuf::as_path));
    let output = run(release, "tools/measure_known_shapes.py", &arguments);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(text.lines().count(), paths.len());
    let mut compared = 0;
    for (path, line) in paths.iter().zip(text.lines()) {
        let measured: BTreeSet<String> = serde_json::from_str(line).expect("JSON");
        let graph = shaped(release, path, dims);
        let shapes = runtime_shapes_once_optimized(&graph);
        let is_number = |dimension: &Dimension| matches!(dimension, Dimension::Known(_));
        let mut faults = Vec::new();
        // An Identity is gone by then.
        let is_there = |node: &&Node| !node.is("", "Constant") && !node.is("", "Identity");
        let nodes = graph.order().iter().map(|&id| graph.node(id));
        for node in nodes.filter(is_there) {
            for written in node.writes() {
                let shape = shapes[written.index()].as_ref();
                let known = shape.is_some_and(|shape| shape.iter().all(is_number));
                let name = &graph.tensor(written).name;
                if known != measured.contains(name) {
                    faults.push(format!("{} {name}: {shape:?}", node.op_type));
                }
                compared += 1;
            }
        }
        assert!(faults.is_empty(), "{}: {faults:#?}", path.display());
    }
    compared
}

fn compare_shapes(release: &Release, (path, dims): (&Path, &str), measured: &Value) -> usize {
    let graph = shaped(release, path, dims);
    let shapes = runtime_shapes(&graph);
    let shape = |id: TensorId| -> Value {
        let dimension = |dimension: &Dimension| match dimension {
            Dimension::Known(size) => Value::from(*size),
            Dimension::Symbol(name) => Value::from(name.as_str()),
            Dimension::Unknown => Value::Null,
        };
        // A session does not tell scalars from unknown shapes.
        let shape = shapes[id.index()].as_ref().filter(|s| !s.is_empty());
        shape.map_or(Value::Null, |shape| shape.iter().map(dimension).collect())
    };
    let measured = measured.as_object().expect("an object");
    let mut faults = Vec::new();
    for (name, measured) in measured {
        let known = shape(graph.tensor_named(name).expect("a tensor"));
        if known != *measured {
            faults.push(format!("{name}: {known}, measured {measured}"));
        }
    }
    assert!(faults.is_empty(), "{}: {faults:#?}", path.display());
    measured.len()
}

/// The graph of a file, with shapes.
fn shaped(release: &Release, path: &Path, dims: &str) -> Graph {
    let mut graph = Model::open(path)
        .and_then(|model| model.graph())
        .expect("a graph");
    let named: BTreeSet<String> = graph
        .inputs
        .iter()
        .filter_map(|&id| graph.tensor(id).declared.as_ref())
        .flatten()
        .filter_map(|dimension| match dimension {
            Dimension::Symbol(name) => Some(name.clone()),
            _ => None,
        })
        .collect();
    let bindings = dims.split_whitespace().map(|dim| {
        let (name, size) = dim.split_once('=').expect("a dimension");
        (name.to_owned(), size.parse().expect("a size"))
    });
    let bindings = bindings.filter(|(name, _)| named.contains(name)).collect();
    InferShapes { bindings }.run(&mut graph).expect("shapes");
    infer_as(&mut graph, release);
    graph
}

/// What the runtime runs of a file at ENABLE_ALL is in the simulated order, but for what it does besides with
/// numbers and shapes. Of a lowered graph it takes some more out, which only hand on what they read: multiplications by one, and
/// what changes no shape that is read.
pub(crate) fn assert_optimized_as_simulated(release: &'static Release, path: &Path, dims: &str) {
    assert_order_as_simulated(release, (path, dims), ExecutionOrder::Default);
}

/// The same in an order; in others than DEFAULT a step is run for it.
pub(crate) fn assert_order_as_simulated(
    release: &'static Release,
    (path, dims): (&Path, &str),
    order: ExecutionOrder,
) {
    const ABOUT_SHAPES: [&str; 6] = [
        "Shape",
        "Size",
        "Gather",
        "Unsqueeze",
        "Concat",
        "ConcatTraining",
    ];
    const FEW: u64 = 64;
    /// What the file does not have.
    const MADE: &str = "~";
    /// What the names of results begin with that would be in float16 but for casts.
    const CAST: &str = "InsertedPrecisionFreeCast_";
    let graph = shaped(release, path, dims);
    let off = format!(
        "--disable-optimizers={}",
        release.switched_off(&graph, Provider::Cpu).join(";")
    );
    let named = match order {
        ExecutionOrder::PriorityBased => "--order=priority",
        _ => "--order=default",
    };
    let dims = dims.split_whitespace().map(|dim| format!("--dim={dim}"));
    let told: Vec<String> = [off, named.to_owned()].into_iter().chain(dims).collect();
    let mut arguments = vec![path, Path::new("--optimized")];
    arguments.extend(told.iter().map(Path::new));
    let output = run(release, "tools/execution_order.py", &arguments);
    let text = String::from_utf8(output.stdout).expect("text");
    // Where the file has the tensor, the operator that it has for it: the runtime has a Transpose write what one is moved behind.
    let operator_of = |tensor: TensorId| {
        let mut nodes = graph.order().iter().map(|&id| graph.node(id));
        let producer = nodes.find(|node| node.writes().any(|written| written == tensor));
        producer.map_or_else(String::new, |node| node.op_type.clone())
    };
    let executed = text.lines().map(|line| {
        let (operator, written) = line.split_once(' ').expect("an operator");
        let known = |name: &str| graph.tensor_named(name);
        let names = written.split(' ').map(|name| {
            let name = name.strip_prefix(CAST).unwrap_or(name);
            match known(name) {
                Some(_) => name,
                None => MADE,
            }
        });
        let names: Vec<&str> = names.collect();
        let first = written.split(' ').next().and_then(known);
        let operator = first.map_or_else(|| operator.to_owned(), operator_of);
        (operator, names.join(" "))
    });
    let simulated = optimized_order(&graph, release, Provider::Cpu, order)
        .into_iter()
        .filter(|written| !written.is_empty())
        .map(|written| {
            let names = written.iter().map(|written| match written.is_made {
                true => MADE,
                false => graph.tensor(written.tensor).name.as_str(),
            });
            let names: Vec<&str> = names.collect();
            let by = written[0].made_by.map(str::to_owned);
            let operator = by.unwrap_or_else(|| operator_of(written[0].tensor));
            (operator, names.join(" "))
        });
    let is_small = |name: &str| {
        let shape = |id: TensorId| graph.tensor(id).shape.as_ref();
        let shape = graph.tensor_named(name).and_then(shape);
        shape.is_some_and(|shape| shape.iter().product::<u64>() <= FEW)
    };
    let large = |nodes: &mut dyn Iterator<Item = (String, String)>| -> Vec<String> {
        let large = nodes.filter(|(operator, written)| {
            !ABOUT_SHAPES.contains(&operator.as_str()) && !written.split(' ').all(is_small)
        });
        large.map(|(_, written)| written).collect()
    };
    let executed = large(&mut { executed });
    let ran: BTreeSet<&String> = executed.iter().collect();
    let is_out = |(operator, written): &(String, String)| {
        let hands_on = ["Mul", "Reshape", "Squeeze"].contains(&operator.as_str());
        !release.trains && hands_on && !ran.contains(written)
    };
    let simulated = large(&mut { simulated }.filter(|node| !is_out(node)));
    assert_eq!(simulated, executed, "{}, {order:?}", path.display());
}
