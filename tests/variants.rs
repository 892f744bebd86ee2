//! Every operator variant, run by ONNX Runtime beside what it replaces, on random shapes, attributes
//! and numbers: the bits are the same.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use ckpt_opt::onnx::{Model, export};
use ckpt_passes::analysis::recompute::Recomputation;
use ckpt_passes::cost::Cost;
use ckpt_passes::graph::{Graph, NodeId, Uses};
use ckpt_passes::operators::variants::{
    APPROXIMATIONS, Approximation, Part, VARIANTS, Variant, copy_parts,
};
use ckpt_passes::pass::Pass;
use ckpt_passes::plan::{Originals, Plan};
use ckpt_passes::rewrite::apply_variants::ApplyVariants;
use ckpt_passes::rewrite::infer_shapes::InferShapes;
use ckpt_passes::rewrite::insert_mirrors::InsertMirrors;
use ckpt_passes::verify;
use serde_json::Value;

/// `tools/variants.py` makes kinds of nodes in turn.
const GRAPHS: usize = 1200;
const INEXACT_GRAPHS: usize = 240;

#[test]
fn both_forms_give_the_same_bits() {
    let bitwise: Vec<&'static Variant> = VARIANTS.iter().collect();
    compare_forms("write", GRAPHS, &bitwise, &[], &[RELU, CLIP]);
}

#[test]
fn what_is_not_bitwise_is_within_its_bound_and_only_where_it_is_allowed() {
    let variants = APPROXIMATIONS
        .iter()
        .flat_map(|one| one.variants)
        .collect::<Vec<_>>();
    let names: Vec<&str> = APPROXIMATIONS.iter().map(|one| one.name).collect();
    compare_forms("write-inexact", INEXACT_GRAPHS, &variants, &names, &[]);
}

/// Writes all forms of so many graphs, and lets ONNX Runtime compare them with the originals.
fn compare_forms(
    command: &str,
    graphs: usize,
    variants: &[&'static Variant],
    allowed: &[&str],
    others: &[&'static str],
) {
    let allowed = allowed.iter().map(|&name| name.to_owned()).collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let count = graphs.to_string();
    let path = folder.path().as_os_str();
    variants_py([command.as_ref(), path, count.as_ref()]);
    let mut written: BTreeMap<&str, u64> = BTreeMap::new();
    for number in 0..graphs {
        for name in write_variants(folder.path(), number, variants, &allowed) {
            *written.entry(name).or_default() += 1;
        }
    }
    let output = variants_py(["compare".as_ref(), path]);
    let compared: Value = serde_json::from_slice(&output).expect("one JSON object");
    assert_eq!(compared["differ"], serde_json::json!([]));
    let names = variants.iter().map(|variant| variant.name);
    for name in names.chain(others.iter().copied()) {
        let (tried, equal) = (written.get(name), &compared["equal"][name]);
        assert!(tried >= Some(&20), "{name}: {tried:?} tried");
        assert_eq!(equal.as_u64().as_ref(), tried, "{name}");
    }
}

/// Writes every form of the graph's node called "node"; gives the names of the variants.
fn write_variants(
    folder: &Path,
    number: usize,
    variants: &[&'static Variant],
    allowed: &BTreeSet<String>,
) -> Vec<&'static str> {
    let model = Model::open(&folder.join(format!("{number}.onnx"))).expect("a model");
    let mut graph = model.graph().expect("a graph");
    let bindings = BTreeMap::new();
    InferShapes { bindings }.run(&mut graph).expect("shapes");
    let uses = Uses::of(&graph);
    let is_replaced = |id: &&_| graph.node(**id).name == "node";
    let node = *graph.order().iter().find(is_replaced).expect("a node");
    let apply = variants
        .iter()
        .copied()
        .filter(|variant| variant.parts(&graph, &uses, node).is_some());
    let forms = apply.map(|variant| {
        let mut form = graph.clone();
        let choices = [(node, variant)];
        let _ = ApplyVariants { choices: &choices }.run(&mut form);
        (variant.name, form)
    });
    let copied = copy_parts(&graph, &uses, node).map(|parts| {
        let name = match graph.node(node).op_type.as_str() {
            "Relu" => RELU,
            _ => CLIP,
        };
        (name, with_copy(&graph, node, parts))
    });
    forms
        .chain(copied)
        .map(|(name, form)| {
            let proof = verify::equivalence_allowing(&graph, &form, &Default::default(), allowed);
            assert!(proof.is_ok(), "graph {number}, {name}: {proof:?}");
            // What is not bitwise is not proved unless it is allowed.
            let strict = verify::equivalence(&graph, &form, &Default::default());
            let is_bitwise = Approximation::of(name).is_none();
            // Some sums are in the order of appearance already.
            let may_be = is_bitwise || name == "sum-by-appearance";
            assert!(
                if is_bitwise {
                    strict.is_ok()
                } else {
                    may_be || strict.is_err()
                },
                "{name}"
            );
            let file = folder.join(format!("{number}.{name}.onnx"));
            let pending = export(&model, &form, &file).expect("a file");
            pending.commit().expect("a file");
            name
        })
        .collect()
}

/// What activations of a batch normalization again from its statistics are called here.
const RELU: &str = "relu-from-statistics";
const CLIP: &str = "clip-from-statistics";

/// The graph in which whoever reads `node` reads a copy made of these parts.
fn with_copy(graph: &Graph, node: NodeId, parts: Vec<Part>) -> Graph {
    let mut recomputation = Recomputation::of(graph, &Default::default());
    recomputation.copy_from_parts(node, parts, Cost::default());
    let place = graph.order().iter().position(|&id| id == node);
    let mut sequence = graph.order().to_vec();
    sequence.insert(place.expect("a node") + 1, node);
    let plan = Plan {
        sequence,
        ..Plan::default()
    };
    let mut form = graph.clone();
    let insert = InsertMirrors {
        instances: &plan.instances(graph, &recomputation, Originals::AsPlanned),
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
