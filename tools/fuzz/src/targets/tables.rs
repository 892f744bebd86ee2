//! The JSON files that options name: made of what they may hold and of what they may not, then with bytes changed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use ckpt_opt::inputs::{parse_conv_table, parse_costs, parse_device, parse_profile};
use ckpt_passes::graph::Graph;
use ckpt_passes::runtime::device::Device;
use ckpt_passes::testing::{Draw, random_training_graph};
use serde_json::{Map, Value, json};

use super::{bytes::mutate, plan};
use crate::source::Source;

/// One file in so many that can be read is planned with.
const PLANNED: usize = 48;

/// Small graphs that the files are used with.
static GRAPHS: LazyLock<Vec<Graph>> = LazyLock::new(|| {
    (0..32)
        .map(|seed| random_training_graph(seed, 4 + seed as usize))
        .collect()
});

pub(super) fn costs(source: &mut Source) -> Result<(), String> {
    let graph = source.pick(&[0, 5, 9, 20]);
    let graph = &GRAPHS[graph];
    let entries = (0..source.below(6)).map(|_| {
        let keys = [
            "time_us",
            "workspace_bytes",
            "recomputable",
            "mirrors",
            "other",
        ];
        (name(source, graph), object(source, &keys))
    });
    let nodes: Map<String, Value> = entries.collect();
    let text = text(source, json!({ "nodes": nodes }));
    let read = parse_costs(&text, Path::new("costs.json"));
    let Ok(overrides) = outcome(read)? else {
        return Ok(());
    };
    if !source.one_in(PLANNED) {
        return Ok(());
    }
    let mut options = plan::options(source);
    options.overrides = overrides;
    plan::plan(source, graph, &options, None).map(drop)
}

pub(super) fn device(source: &mut Source) -> Result<(), String> {
    let keys = [
        "operations_per_second",
        "bytes_per_second",
        "launch_us",
        "half_operations_per_second",
        "name",
    ];
    let mut described = object(source, &keys);
    let regular = source.one_in(2);
    if let Some(described) = described.as_object_mut() {
        described.insert("provider".to_owned(), json!(source.pick(&["cpu", "cuda"])));
        if regular {
            for key in &keys[..3] {
                let value = source.pick(&[1.0, 1e12, 1e-300, 1e300, f64::MIN_POSITIVE, f64::MAX]);
                described.insert((*key).to_owned(), json!(value));
            }
        }
    }
    let text = text(source, described);
    let Ok(device) = outcome(parse_device(&text, Path::new("device.json")))? else {
        return Ok(());
    };
    if !source.one_in(PLANNED) {
        return Ok(());
    }
    let mut options = plan::options(source);
    options.device = device;
    let graph = &GRAPHS[source.below(GRAPHS.len())];
    plan::plan(source, graph, &options, None).map(drop)
}

pub(super) fn profile(source: &mut Source) -> Result<(), String> {
    let graph = &GRAPHS[source.below(GRAPHS.len())];
    let events = (0..source.below(6)).map(|_| {
        let mut event = object(source, &["dur", "ts", "pid"]);
        if let Some(event) = event.as_object_mut() {
            event.insert(
                "cat".to_owned(),
                json!(source.pick(&["Node", "Node", "Session"])),
            );
            let suffix = source.pick(&["_kernel_time", "_kernel_time", "", "_fence_before"]);
            event.insert("name".to_owned(), json!(name(source, graph) + suffix));
            let dims: Vec<Value> = (0..source.below(4)).map(|_| value(source, 0)).collect();
            let types = ["float", "int64", "float16", "nothing"];
            let shapes = json!([{ source.pick(&types): dims }]);
            event.insert("args".to_owned(), json!({ "output_type_shape": shapes }));
        }
        event
    });
    let events: Vec<Value> = events.collect();
    let text = text(source, Value::Array(events));
    let Ok(profile) = outcome(parse_profile(&text, Path::new("profile.json")))? else {
        return Ok(());
    };
    if !source.one_in(PLANNED) {
        return Ok(());
    }
    let mut graph = graph.clone();
    let mut options = plan::options(source);
    profile.tell(&mut graph, &options.bindings);
    let _ = profile.doubts(&graph, &BTreeMap::new());
    options.overrides = profile.times;
    plan::plan(source, &graph, &options, None).map(drop)
}

pub(super) fn conv_table(source: &mut Source) -> Result<(), String> {
    let entries = (0..source.below(3)).map(|_| {
        let algorithms = (0..source.below(3)).map(|_| {
            let mut one = object(source, &["time_ns", "workspace_bytes"]);
            if let Some(one) = one.as_object_mut() {
                let name = source.pick(&["IMPLICIT_PRECOMP_GEMM", "FFT", "0", ""]);
                one.insert("algorithm".to_owned(), json!(name));
            }
            one
        });
        let algorithms: Vec<Value> = algorithms.collect();
        let attributes = ["pads", "strides", "dilations", "group", "auto_pad"];
        let attributes = object(source, &attributes);
        let inputs: Vec<Value> = (0..source.below(3)).map(|_| value(source, 1)).collect();
        json!({
            "product": source.pick(&["y", "dx", "dw", "forward", "data"]),
            "operator": source.pick(&["Conv", "ConvGrad"]),
            "inputs": inputs,
            "attributes": attributes,
            "element_type": source.pick(&["float", "float16"]),
            "algorithms": algorithms,
        })
    });
    let entries: Vec<Value> = entries.collect();
    let text = text(source, json!({ "device": "a100", "convolutions": entries }));
    let Ok(table) = outcome(parse_conv_table(&text, "a100"))? else {
        return Ok(());
    };
    if !source.one_in(PLANNED) {
        return Ok(());
    }
    let mut options = plan::options(source);
    if let Some(mut device) = Device::preset("a100") {
        device.convolutions.table = Arc::new(table);
        options.device = device;
    }
    let graph = &GRAPHS[source.below(GRAPHS.len())];
    plan::plan(source, graph, &options, None).map(drop)
}

/// An error has to say something.
fn outcome<T, E: ToString>(read: Result<T, E>) -> Result<Result<T, ()>, String> {
    match read {
        Ok(read) => Ok(Ok(read)),
        Err(error) if error.to_string().len() < 5 => Err("an error without words".to_owned()),
        Err(_) => Ok(Err(())),
    }
}

/// A node of the graph, or a name that is none.
fn name(source: &mut Source, graph: &Graph) -> String {
    if graph.order().is_empty() || source.one_in(5) {
        return source
            .pick(&["", "no such node", "a\u{1b}[31m", "\u{0}"])
            .to_owned();
    }
    let at = source.below(graph.order().len());
    graph.node(graph.order()[at]).name.clone()
}

fn object(source: &mut Source, keys: &[&str]) -> Value {
    let mut object = Map::new();
    for key in keys {
        if source.one_in(2) {
            object.insert((*key).to_owned(), value(source, 2));
        }
    }
    Value::Object(object)
}

/// Mostly numbers, of any magnitude.
fn value(source: &mut Source, depth: usize) -> Value {
    match source.below(12) {
        0..=2 => json!(source.below(100)),
        3 => json!(source.pick(&[0.5, -1.0, 1e300, f64::MAX, 1e-320, -0.0])),
        4 => json!(source.bits() >> source.below(64)),
        5 => json!(source.bits() as i64),
        6 => json!(source.one_in(2)),
        7 => Value::Null,
        8 => json!(source.pick(&["", "NOTSET", "SAME_UPPER", "text"])),
        _ if depth == 0 => json!(1),
        9 => {
            let items = (0..source.below(5)).map(|_| value(source, depth - 1));
            Value::Array(items.collect())
        }
        _ => json!([
            source.below(9),
            source.below(9),
            source.below(9),
            source.below(9)
        ]),
    }
}

/// The text of the file; one in three has bytes changed.
fn text(source: &mut Source, value: Value) -> Vec<u8> {
    let mut text = value.to_string().into_bytes();
    match source.below(24) {
        0..=7 => mutate(source, &mut text),
        // Deep nesting.
        8 => text = vec![source.pick(b"[{"); source.below(100_000)],
        _ => {}
    }
    source.file("json", || text.clone());
    text
}
