//! Both steps as a trace, which Perfetto and Chrome show: nodes over the estimated time, with the memory that is needed.

use ckpt_passes::analysis::mirrors::is_mirror;
use ckpt_passes::optimize::Peak;
use serde::Serialize;
use serde_json::{Value, json};

use super::Outcome;

/// The "JSON object format" of Chrome's trace events.
#[derive(Serialize)]
struct Trace {
    #[serde(rename = "traceEvents")]
    events: Vec<Value>,
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
}

pub(super) fn json(outcome: &Outcome<'_>) -> String {
    let summary = outcome.rewritten.summary();
    let graph = outcome.rewritten.graph();
    let nodes = graph.order().iter().map(|&id| graph.node(id));
    let copies = nodes.filter(|node| is_mirror(node));
    let copies: std::collections::BTreeSet<&str> = copies.map(|node| node.name.as_str()).collect();
    let category = |node: &str| {
        if copies.contains(node) {
            "copy"
        } else {
            "node"
        }
    };
    let mut events = Vec::new();
    add(&mut events, 1, "before", &summary.before, |_| "node");
    add(&mut events, 2, "after", &summary.after, category);
    crate::json::line(&Trace { events, unit: "ms" })
}

/// One step as a process of its own.
fn add<'a>(
    events: &mut Vec<Value>,
    process: u32,
    name: &str,
    peak: &'a Peak,
    category: impl Fn(&'a str) -> &'static str,
) {
    events.push(json!({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}));
    let mut begin = 0u64;
    for (&(time, need), node) in peak.steps.iter().zip(&peak.nodes) {
        let (at, took) = (micros(begin), micros(time));
        events.push(json!({
            "ph": "X", "name": node, "cat": category(node), "pid": process, "tid": 1, "ts": at, "dur": took,
        }));
        events.push(json!({
            "ph": "C", "name": "memory in bytes", "pid": process, "ts": at, "args": {"bytes": need.0},
        }));
        begin = begin.saturating_add(time);
    }
}

/// Nanoseconds as trace events count.
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}
