//! The rules about operators against what ONNX Runtime did with them, one operator at a time
//! (`testdata/operators.json`, made by `tools/measure_operators.py`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use ckpt_passes::graph::{
    Attribute, AttributeValue, Constant, Dimension, ElementType, Graph, Node, Tensor, TensorId,
    TensorKind,
};
use ckpt_passes::operators::{CpuKernels, Provider, aliases, in_place, workspace};
use ckpt_passes::pass::Pass as _;
use ckpt_passes::rewrite::infer_shapes::InferShapes;
use ckpt_passes::runtime::known_shapes::runtime_shapes;
use serde_json::Value;

/// What the runtime allocates for its own bookkeeping in any step, at most, and for each tensor that is fed or fetched: bytes. As
/// much is counted for steps, beside the workspace.
const BOOKKEEPING: (u64, u64) = (4 << 10, 512);

fn cases() -> Vec<Value> {
    let text = fs::read_to_string("testdata/operators.json").expect("the measured cases");
    serde_json::from_str(&text).expect("a list of cases")
}

fn workspaces() -> Value {
    let text = fs::read_to_string("testdata/workspaces.json").expect("the measured workspaces");
    serde_json::from_str(&text).expect("an object")
}

/// Those of both files.
fn all_cases() -> Vec<Value> {
    let more = workspaces()["cases"].as_array().expect("a list").clone();
    cases().into_iter().chain(more).collect()
}

#[test]
fn each_operator_of_the_tables_is_measured_or_has_a_reason() {
    let of = |case: &Value| {
        (
            texts(case, "domain").to_owned(),
            texts(case, "op").to_owned(),
        )
    };
    let measured: BTreeSet<_> = all_cases().iter().map(of).collect();
    let recorded = workspaces();
    let pairs = recorded["no_kernel"].as_array().expect("a list").iter();
    let pair = |pair: &Value| {
        let text = |i: usize| pair[i].as_str().expect("a text").to_owned();
        (text(0), text(1))
    };
    let no_kernel: BTreeSet<_> = pairs.map(pair).collect();
    let reasons = recorded["unmeasured"].as_object().expect("reasons");
    let missing: Vec<_> = ckpt_passes::operators::all()
        .map(|(domain, name)| (domain.to_owned(), name.to_owned()))
        .filter(|known| !measured.contains(known) && !no_kernel.contains(known))
        .filter(|(_, name)| {
            reasons
                .get(name)
                .and_then(Value::as_str)
                .is_none_or(str::is_empty)
        })
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

fn texts<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().expect("a string")
}

fn integers<T: TryFrom<i64>>(value: &Value) -> Vec<T> {
    let list = value.as_array().expect("a list").iter();
    list.map(|v| T::try_from(integer(v)).ok().expect("a number in range"))
        .collect()
}

fn integer(value: &Value) -> i64 {
    value
        .as_i64()
        .unwrap_or_else(|| i64::from(value.as_bool().expect("an integer or boolean")))
}

fn attribute(value: &Value) -> AttributeValue {
    match value {
        Value::String(text) => AttributeValue::String(text.clone().into_bytes()),
        Value::Array(_) => AttributeValue::Ints(integers(value)),
        Value::Number(n) if n.is_f64() => {
            AttributeValue::Float(n.as_f64().expect("a float") as f32)
        }
        _ => AttributeValue::Int(integer(value)),
    }
}

fn element(value: &Value) -> ElementType {
    ElementType::from_name(texts(value, "type")).expect("a type")
}

fn input(graph: &mut Graph, position: usize, value: &Value) -> Option<TensorId> {
    if value.is_null() {
        return None;
    }
    let shape: Vec<u64> = integers(&value["shape"]);
    let mut tensor = Tensor::new(format!("in{position}"), TensorKind::Input);
    tensor.element = Some(element(value));
    tensor.declared = Some(shape.iter().map(|&d| Dimension::Known(d)).collect());
    if let Some(values) = value["values"].as_array() {
        tensor.kind = TensorKind::Initializer;
        tensor.shape = Some(shape);
        let floats = || {
            values
                .iter()
                .map(|v| v.as_f64().expect("a number"))
                .collect()
        };
        tensor.constant = Some(match element(value).is_float() {
            true => Constant::Floats(floats()),
            false => Constant::Ints(integers(&value["values"])),
        });
        return Some(graph.add_tensor(tensor));
    }
    let id = graph.add_tensor(tensor);
    graph.inputs.push(id);
    Some(id)
}

fn build(case: &Value) -> (Graph, Node) {
    let mut graph = Graph::new("case");
    graph.opsets.insert(String::new(), integer(&case["opset"]));
    let list = |key: &str| case[key].as_array().expect("a list").clone();
    let inputs = list("inputs")
        .iter()
        .enumerate()
        .map(|(i, v)| input(&mut graph, i, v))
        .collect();
    let outputs = (0..).zip(list("outputs")).map(|(i, v): (usize, Value)| {
        let there = !v.is_null();
        there.then(|| graph.add_tensor(Tensor::new(format!("out{i}"), TensorKind::Value)))
    });
    let outputs = outputs.collect();
    let mut node = Node::new(
        "node",
        texts(case, "domain"),
        texts(case, "op"),
        inputs,
        outputs,
    );
    for (name, value) in case["attributes"].as_object().expect("an object") {
        node.attributes.push(Attribute {
            name: name.clone(),
            value: attribute(value),
        });
    }
    graph.add_node(node.clone());
    (graph, node)
}

/// What went wrong with a case, and the case.
fn complaint(case: &Value, what: String) -> String {
    let mut short = case.clone();
    short["inputs"] = case["inputs"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|i| Value::String(format!("{}{}", i["type"], i["shape"])))
        .collect();
    format!("{what}: {short}")
}

fn check(faults: Vec<String>, cases: usize) {
    assert!(cases > 400, "only {cases} cases");
    assert!(
        faults.is_empty(),
        "{} of {cases}:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

const DEPEND_ON_CONTENTS: [&str; 4] = ["CenterCropPad", "Compress", "NonZero", "Unique"];

#[test]
fn shapes_are_those_of_the_runtime() {
    let cases = all_cases();
    let mut faults = Vec::new();
    for case in &cases {
        let (mut graph, node) = build(case);
        if DEPEND_ON_CONTENTS.contains(&texts(case, "op")) {
            continue;
        }
        if let Err(error) = InferShapes::default().run(&mut graph) {
            faults.push(complaint(case, error.to_string()));
            continue;
        }
        let measured = case["outputs"].as_array().expect("a list");
        for (id, measured) in node.outputs.iter().zip(measured) {
            let Some(id) = id else { continue };
            let tensor = graph.tensor(*id);
            let expected = (
                Some(element(measured)),
                Some(integers::<u64>(&measured["shape"])),
            );
            if (tensor.element, tensor.shape.clone()) != expected {
                let what = format!("{:?} {:?}", tensor.element, tensor.shape);
                faults.push(complaint(case, what));
            }
        }
    }
    check(faults, cases.len());
}

/// Which dimensions of a case's inputs have names.
#[derive(Clone, Copy, Debug)]
enum Named {
    Nothing,
    /// Sizes above two, equal ones alike; not in weights and what they are multiplied with.
    Most,
    /// Every dimension of the input at this position, each another.
    Alone(usize),
}

fn known_shapes(case: &Value, named: Named) -> Vec<Option<Vec<Dimension>>> {
    let (mut graph, node) = build(case);
    InferShapes::default().run(&mut graph).expect("shapes");
    let is = |names: &[&str]| names.iter().any(|name| node.op_type.starts_with(name));
    let recurrent = is(&["RNN", "GRU", "LSTM"]);
    for (position, &input) in node.inputs.iter().enumerate() {
        let Some(input) = input.filter(|input| graph.inputs.contains(input)) else {
            continue;
        };
        let sizes = graph.tensor(input).declared.clone().expect("a shape");
        let is_weight = position > 0 && (recurrent || is(&["Conv", "FusedConv"]));
        let last = match named {
            Named::Most if is_weight => 0,
            Named::Most if recurrent => 2,
            Named::Most => sizes.len(),
            _ => 0,
        };
        let name = |(axis, size)| match size {
            _ if matches!(named, Named::Alone(alone) if alone == position) => {
                Dimension::Symbol(format!("n{axis}"))
            }
            Dimension::Known(size @ 3..) if axis < last => Dimension::Symbol(format!("d{size}")),
            other => other,
        };
        graph.tensor_mut(input).declared = Some(sizes.into_iter().enumerate().map(name).collect());
    }
    let mut shapes = runtime_shapes(&graph);
    let outputs = node.outputs.iter();
    outputs.map(|id| shapes[(*id)?.index()].take()).collect()
}

/// Where these keep an aspect ratio or pad some axes alone, the runtime knows less than their rules.
const PARTLY_KNOWN: [&str; 2] = ["Pad", "Resize"];

#[test]
fn what_is_known_of_shapes_beforehand_is_what_a_session_knows() {
    let text = fs::read_to_string("testdata/known_shapes.json").expect("the measured shapes");
    let measured: Vec<Value> = serde_json::from_str(&text).expect("a list of cases");
    let cases = all_cases();
    assert_eq!(cases.len(), measured.len());
    let mut faults = Vec::new();
    for (case, measured) in cases.iter().zip(&measured) {
        assert_eq!(case["op"], measured["op"]);
        if DEPEND_ON_CONTENTS.contains(&texts(case, "op")) {
            continue;
        }
        let alone = measured["alone"].as_array().expect("a list").iter();
        let alone = (0..).zip(alone).map(|(i, of)| (Named::Alone(i), of));
        let all = [(Named::Nothing, "numbers"), (Named::Most, "names")];
        let all = all.map(|(named, key)| (named, &measured[key]));
        for (named, expected) in all.into_iter().chain(alone) {
            // The runtime refuses some.
            let Some(expected) = expected.as_array() else {
                continue;
            };
            let dimension = |dimension: &Value| match dimension {
                Value::Null => Dimension::Unknown,
                Value::String(name) => Dimension::Symbol(name.clone()),
                number => Dimension::Known(number.as_u64().expect("a size")),
            };
            // The rule of MaxPool rounds down whatever ceil_mode says, that of SimplifiedLayerNormalization reduces one axis
            // alone; then the runtime allocates what it needs. Which of two names for the batch a GridSample gets nobody asks for.
            let is_wrong = match texts(case, "op") {
                "GridSample" => true,
                "MaxPool" => case["attributes"]["ceil_mode"] == 1,
                "SimplifiedLayerNormalization" => case["attributes"]["axis"] == 1,
                _ => false,
            };
            let partly = PARTLY_KNOWN.contains(&texts(case, "op"));
            // A declaration stands wherever nothing is known.
            let compared = |shape: &Vec<Dimension>| match partly {
                true => !shape.contains(&Dimension::Unknown),
                false => shape.iter().any(|size| *size != Dimension::Unknown),
            };
            let known = known_shapes(case, named);
            for (known, expected) in known.into_iter().zip(expected) {
                let list = expected.as_array();
                let expected_shape = list.map(|list| list.iter().map(dimension).collect());
                let (known, expected_shape) =
                    (known.filter(compared), expected_shape.filter(compared));
                if *expected != Value::Bool(false) && !is_wrong && known != expected_shape {
                    let what = format!("{named:?}: {known:?}, a session has {expected}");
                    faults.push(complaint(case, what));
                }
            }
        }
    }
    check(faults, cases.len());
}

#[test]
fn workspaces_are_those_of_the_runtime() {
    let cases = all_cases();
    let mut faults = Vec::new();
    for case in &cases {
        let (mut graph, node) = build(case);
        if DEPEND_ON_CONTENTS.contains(&texts(case, "op")) {
            continue;
        }
        if InferShapes::default().run(&mut graph).is_err() {
            continue;
        }
        let predicted = workspace(&graph, &node, Provider::Cpu, CpuKernels::DEFAULT).0;
        let measured = u64::try_from(integer(&case["workspace"])).expect("a size");
        // Too little would break promises; too much only costs a little time.
        let missing = measured.saturating_sub(predicted);
        let excess = predicted.saturating_sub(measured);
        let tensors = case["inputs"].as_array().into_iter().flatten();
        let tensors = tensors.chain(case["outputs"].as_array().into_iter().flatten());
        let tensors = tensors.filter(|tensor| !tensor.is_null()).count() as u64;
        let bookkeeping = BOOKKEEPING.0 + tensors * BOOKKEEPING.1;
        let (unseen, spare) = match texts(case, "op") {
            // It may transpose operands and result, or not, and describes the products that it makes of them.
            "Einsum" => (measured / 50, measured),
            _ => (measured / 200, measured / 3),
        };
        if missing > bookkeeping + unseen || excess > bookkeeping + spare {
            faults.push(complaint(
                case,
                format!("predicted {predicted}, measured {measured}"),
            ));
        }
    }
    check(faults, cases.len());
}

#[test]
fn outputs_take_over_inputs_where_the_runtime_lets_them() {
    let cases = all_cases();
    let mut faults = Vec::new();
    for case in &cases {
        let Some(measured) = case["takes_over"].as_bool() else {
            continue;
        };
        let (graph, node) = build(case);
        let predicted = aliases(&node).contains(&(0, 0))
            || in_place(&graph, &node, Provider::Cpu).contains(&(0, 0));
        if predicted != measured {
            faults.push(complaint(
                case,
                format!("predicted {predicted}, measured {measured}"),
            ));
        }
    }
    check(faults, cases.len());
}

#[test]
fn what_cuda_kernels_write_to_their_input_is_known() {
    let text = fs::read_to_string("testdata/gpu_in_place.json").expect("what was measured");
    let measured: BTreeMap<String, bool> = serde_json::from_str(&text).expect("flags by operator");
    assert!(measured.len() > 40);
    let differing = measured.iter().filter(|&(name, &is)| {
        let (domain, operator) = name.rsplit_once('.').unwrap_or(("", name));
        let (input, output) = (Some(TensorId(0)), Some(TensorId(1)));
        let node = Node::new("node", domain, operator, vec![input], vec![output]);
        in_place(&Graph::new("none"), &node, Provider::Cuda).is_empty() == is
    });
    let differing: Vec<_> = differing.map(|(name, _)| name).collect();
    assert!(differing.is_empty(), "{differing:?}");
}

/// In releases in which they are whole, the columns of convolutions depend on the session's threads.
#[test]
fn whole_columns_are_those_of_the_runtime() {
    let text = fs::read_to_string("testdata/columns.json").expect("the measured columns");
    let cases: Vec<Value> = serde_json::from_str(&text).expect("a list of cases");
    let mut faults = Vec::new();
    for case in &cases {
        let kernel = case["w"][2].as_u64().expect("a size");
        let text = format!(
            "<ir_version: 8, opset_import: [\"\" : 17]> g (float{x} x, float{w} w) => (y)
            {{ y = Conv <pads = [{pad}, {pad}, {pad}, {pad}], group = {group}, strides = [{stride}, {stride}]> (x, w) }}",
            x = case["x"],
            w = case["w"],
            pad = kernel / 2,
            group = case["group"],
            stride = case["stride"],
        );
        let mut graph = Graph::parse(&text).expect("a graph");
        InferShapes::default().run(&mut graph).expect("shapes");
        let node = graph.node(graph.order()[0]);
        let kernels = CpuKernels {
            threads: u32::try_from(integer(&case["threads"])).expect("a number"),
            whole_columns: true,
        };
        let predicted = workspace(&graph, node, Provider::Cpu, kernels).0;
        let measured = u64::try_from(integer(&case["workspace"])).expect("a size");
        if predicted.abs_diff(measured) > 24 << 10 {
            faults.push(format!("{case}: predicted {predicted}"));
        }
    }
    assert_eq!(cases.len(), 80);
    assert!(faults.is_empty(), "{faults:#?}");
}
