//! What was done to a graph that a runtime without training shall run.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::Name;
use crate::json::line;
use crate::lower::LoweredModel;

/// How many buffers are named.
const NAMED: usize = 3;

/// For people: the operators, and the outputs that mean something else now.
pub(crate) fn lowering(model: &LoweredModel) -> String {
    let lowered = model.lowered();
    let (before, after) = (model.nodes_before(), model.graph().order().len());
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = match lowered.replaced.is_empty() {
        true => writeln!(
            out,
            "nothing to lower, so the file is written as it is: {before} nodes, all in standard operators, as in a forward model or \
             a graph that was lowered before"
        ),
        false => writeln!(
            out,
            "{before} nodes -> {after}, all in standard operators; lowered:"
        ),
    };
    for (operator, count) in &lowered.replaced {
        let _ = writeln!(out, "  {count:>6}  {operator}");
    }
    if let Some((from, to)) = lowered.raised {
        let _ = writeln!(out, "operator set of ai.onnx: {from} -> {to}");
    }
    if lowered.updated > 0 {
        let over = model.graph().overwritten().count();
        let _ = writeln!(
            out,
            "{} weights are updated in the graph; {over} outputs are to be bound to the memory of the inputs that they are the \
             new values of",
            lowered.updated
        );
    }
    let accumulated = &lowered.accumulated;
    if !accumulated.is_empty() {
        let _ = writeln!(
            out,
            "{} outputs return accumulated gradients now, to be fed as the buffers of the next step, which changes no buffer itself:",
            accumulated.len()
        );
        for (output, buffer) in accumulated.iter().take(NAMED) {
            let _ = writeln!(out, "  {} of {}", Name(output), Name(buffer));
        }
        if accumulated.len() > NAMED {
            let _ = writeln!(out, "  and {} more", accumulated.len() - NAMED);
        }
    }
    out
}

/// What `--json` prints. Other people's scripts rely on the names.
#[derive(Serialize)]
struct Lowering<'m> {
    nodes_before: usize,
    nodes_after: usize,
    /// By operator: how many nodes.
    lowered: &'m BTreeMap<&'static str, usize>,
    /// Of ai.onnx, before and after, where it was raised.
    operator_set: Option<(i64, i64)>,
    /// By output that returns accumulated gradients: the input to feed it to in the next step.
    accumulated: BTreeMap<&'m str, &'m str>,
    updated_weights: usize,
    /// By output that is to be bound to the memory of an input: that input.
    overwrites: BTreeMap<&'m str, &'m str>,
}

/// The same for programs: one JSON object, with a line feed.
pub(crate) fn lowering_json(model: &LoweredModel) -> String {
    let (lowered, graph) = (model.lowered(), model.graph());
    let name = |id| graph.tensor(id).name.as_str();
    let overwritten = graph.overwritten();
    let accumulated = lowered.accumulated.iter();
    line(&Lowering {
        nodes_before: model.nodes_before(),
        nodes_after: graph.order().len(),
        lowered: &lowered.replaced,
        operator_set: lowered.raised,
        accumulated: accumulated
            .map(|(output, buffer)| (output.as_str(), buffer.as_str()))
            .collect(),
        updated_weights: lowered.updated,
        overwrites: overwritten
            .map(|(output, input)| (name(output), name(input)))
            .collect(),
    })
}
