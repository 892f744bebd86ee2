//! Every operator variant, run by ONNX Runtime beside what it replaces, on random shapes, attributes
//! and numbers: the bits are the same.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use ckpt_opt::onnx::{Model, export};
use ckpt_passes::analysis::cost::Cost;
use ckpt_passes::analysis::recompute::Recomputation;
use ckpt_passes::graph::{Graph, NodeId, Uses};
use ckpt_passes::operators::variants::{VARIANTS, copy_parts};
use ckpt_passes::pass::Pass;
use ckpt_passes::plan::Plan;
use ckpt_passes::transform::apply_variants::ApplyVariants;
use ckpt_passes::transform::infer_shapes::InferShapes;
use ckpt_passes::transform::insert_mirrors::InsertMirrors;
use ckpt_passes::verify;
use serde_json::Value;

/// `tools/variants.py` makes kinds of nodes in turn.
const GRAPHS: usize = 700;

#[test]
fn both_forms_give_the_same_bits() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let count = GRAPHS.to_string();
    let path = folder.path().as_os_str();
    variants_py(["write".as_ref(), path, count.as_ref()]);
    let mut written: BTreeMap<&str, u64> = BTreeMap::new();
    for number in 0..GRAPHS {
        for name in write_variants(folder.path(), number) {
            *written.entry(name).or_default() += 1;
        }
    }
    let output = variants_py(["compare".as_ref(), path]);
    let compared: Value = serde_json::from_slice(&output).expect("one JSON object");
    assert_eq!(compared["differ"], serde_json::json!([]));
    for name in VARIANTS.iter().map(|variant| variant.name).chain([COPY]) {
        let (tried, equal) = (written.get(name), &compared["equal"][name]);
        assert!(tried >= Some(&20), "{name}: {tried:?} tried");
        assert_eq!(equal.as_u64().as_ref(), tried, "{name}");
    }
}

/// Writes every form of the graph's node called "node"; gives the names of the variants.
fn write_variants(folder: &Path, number: usize) -> Vec<&'static str> {
    let model = Model::open(&folder.join(format!("{number}.onnx"))).expect("a model");
    let mut graph = model.graph().expect("a graph");
    let bindings = BTreeMap::new();
    InferShapes { bindings }.run(&mut graph).expect("shapes");
    let uses = Uses::of(&graph);
    let is_replaced = |id: &&_| graph.node(**id).name == "node";
    let node = *graph.order().iter().find(is_replaced).expect("a node");
    let apply = VARIANTS
        .iter()
        .filter(|variant| variant.parts(&graph, &uses, node).is_some());
    let forms = apply.map(|variant| {
        let mut form = graph.clone();
        let choices = [(node, variant)];
        let _ = ApplyVariants { choices: &choices }.run(&mut form);
        (variant.name, form)
    });
    let copied = copy_parts(&graph, &uses, node).map(|_| (COPY, with_copy(&graph, node)));
    forms
        .chain(copied)
        .map(|(name, form)| {
            let proof = verify::equivalence(&graph, &form, &Default::default());
            assert!(proof.is_ok(), "graph {number}, {name}: {proof:?}");
            let file = folder.join(format!("{number}.{name}.onnx"));
            let pending = export(&model, &form, &file).expect("a file");
            pending.commit().expect("a file");
            name
        })
        .collect()
}

/// What a batch normalization again from its statistics is called here.
const COPY: &str = "batch-norm-from-statistics";

/// The graph in which whoever reads `node` reads a copy from its statistics.
fn with_copy(graph: &Graph, node: NodeId) -> Graph {
    let mut recomputation = Recomputation::of(graph, &Default::default());
    recomputation.copy_from_statistics(node, Cost::default());
    let place = graph.order().iter().position(|&id| id == node);
    let mut sequence = graph.order().to_vec();
    sequence.insert(place.expect("a node") + 1, node);
    let plan = Plan {
        sequence,
        ..Plan::default()
    };
    let mut form = graph.clone();
    let insert = InsertMirrors {
        plan: &plan,
        recomputation: &recomputation,
    };
    let _ = insert.run(&mut form);
    form
}

/// What the script prints, run by the Python with ONNX Runtime that `tools/setup.sh` installs.
fn variants_py<'a>(arguments: impl IntoIterator<Item = &'a OsStr>) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut setup = Command::new("sh");
    let setup = setup.arg("tools/setup.sh").current_dir(root).status();
    assert!(setup.expect("sh starts").success());
    let output = Command::new(root.join(".venv/bin/python"))
        .arg("tools/variants.py")
        .args(arguments)
        .current_dir(root)
        .output()
        .expect("Python starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    output.stdout
}
