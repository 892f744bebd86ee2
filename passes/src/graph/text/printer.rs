//! Graph to text.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::super::{
    AttributeValue, Constant, Dimension, ElementType, Graph, Node, Tensor, TensorId, TensorKind,
};
use super::values::NOT_TENSORS;

/// The IR version that goes with ONNX 1.10 and later up to opset 18; a [`Graph`] holds none.
const IR_VERSION: i64 = 8;

pub(super) fn to_text(graph: &Graph) -> String {
    let opsets: Vec<String> = graph
        .opsets
        .iter()
        .map(|(domain, v)| format!("{} : {v}", string(domain)))
        .collect();
    let mut text = String::new();
    if !opsets.is_empty() {
        let opsets = opsets.join(", ");
        text = format!("<ir_version: {IR_VERSION}, opset_import: [{opsets}]>\n");
    }
    let typed = |ids: &[TensorId], contents: bool| {
        let list = ids
            .iter()
            .map(|&id| declaration(graph.tensor(id), contents));
        list.collect::<Vec<_>>().join(", ")
    };
    let (inputs, outputs) = (typed(&graph.inputs, true), typed(&graph.outputs, false));
    let _ = writeln!(text, "{} ({inputs}) => ({outputs})", name(&graph.name));

    let signature: BTreeSet<TensorId> =
        graph.inputs.iter().chain(&graph.outputs).copied().collect();
    let inputs: BTreeSet<TensorId> = graph.inputs.iter().copied().collect();
    let infos: Vec<String> = graph
        .tensor_ids()
        .filter(|id| {
            let tensor = graph.tensor(*id);
            match tensor.kind {
                TensorKind::Initializer => !inputs.contains(id),
                _ => tensor.element.is_some() && !signature.contains(id),
            }
        })
        .map(|id| format!("   {}", declaration(graph.tensor(id), true)))
        .collect();
    if !infos.is_empty() {
        let _ = writeln!(text, "<\n{}\n>", infos.join(",\n"));
    }

    text.push_str("{\n");
    for node in graph.nodes() {
        text.push_str("   ");
        if !node.name.is_empty() {
            let _ = write!(text, "[{}] ", name(&node.name));
        }
        line(graph, node, true, &mut text);
    }
    text.push_str("}\n");
    text
}

pub(super) fn to_listing(graph: &Graph) -> String {
    let mut text = String::new();
    for &id in graph.order() {
        line(graph, graph.node(id), false, &mut text);
    }
    text
}

/// One node; in short form without domain, and with only the attributes named `__...`.
fn line(graph: &Graph, node: &Node, full: bool, text: &mut String) {
    let _ = write!(text, "{} = ", tensors(graph, node.outputs.iter().copied()));
    if full && !node.domain.is_empty() {
        for part in node.domain.split('.') {
            let _ = write!(text, "{}.", name(part));
        }
    }
    text.push_str(&name(&node.op_type));
    let attributes: Vec<String> = node
        .attributes
        .iter()
        .filter(|a| full || a.name.starts_with("__"))
        .map(|a| attribute(&a.name, &a.value))
        .collect();
    if !attributes.is_empty() {
        let _ = write!(text, " <{}> ", attributes.join(", "));
    }
    let _ = write!(text, "({}", tensors(graph, node.inputs.iter().copied()));
    if !node.captures.is_empty() {
        let _ = write!(
            text,
            "; {}",
            tensors(graph, node.captures.iter().copied().map(Some))
        );
    }
    text.push_str(")\n");
}

fn tensors(graph: &Graph, ids: impl Iterator<Item = Option<TensorId>>) -> String {
    let names = ids.map(|id| match id {
        Some(id) => name(&graph.tensor(id).name),
        None => "\"\"".to_owned(),
    });
    names.collect::<Vec<_>>().join(", ")
}

fn declaration(tensor: &Tensor, contents: bool) -> String {
    let mut text = String::new();
    if let Some(element) = tensor.element {
        text.push_str(element.name());
        let dimensions: Option<Vec<String>> = match (&tensor.shape, &tensor.declared) {
            (Some(shape), _) => Some(shape.iter().map(u64::to_string).collect()),
            (None, Some(declared)) => Some(declared.iter().map(dimension).collect()),
            (None, None) => None,
        };
        match dimensions.as_deref() {
            None => text.push_str("[]"),
            Some([]) => {}
            Some(dimensions) => {
                let _ = write!(text, "[{}]", dimensions.join(","));
            }
        }
        text.push(' ');
    }
    text.push_str(&name(&tensor.name));
    if contents && tensor.kind == TensorKind::Initializer {
        let element = tensor.element.unwrap_or(ElementType::Double);
        let _ = write!(text, " = {}", constant(element, tensor.constant.as_ref()));
    }
    text
}

fn dimension(dimension: &Dimension) -> String {
    match dimension {
        Dimension::Known(size) => size.to_string(),
        Dimension::Symbol(symbol) => name(symbol),
        Dimension::Unknown => "?".to_owned(),
    }
}

fn constant(element: ElementType, constant: Option<&Constant>) -> String {
    let items: Vec<String> = match constant {
        None => vec!["...".to_owned()],
        Some(Constant::Ints(values)) => values.iter().map(i64::to_string).collect(),
        Some(Constant::Floats(values)) if element == ElementType::Float => {
            values.iter().map(|&v| float(&(v as f32))).collect()
        }
        Some(Constant::Floats(values)) => values.iter().map(float).collect(),
    };
    format!("{{{}}}", items.join(", "))
}

fn attribute(key: &str, value: &AttributeValue) -> String {
    let list = |items: Vec<String>, kind: &str| match items.as_slice() {
        [] => format!(" : {kind} = []"),
        items => format!(" = [{}]", items.join(", ")),
    };
    let value = match value {
        AttributeValue::Int(value) => format!(" = {value}"),
        AttributeValue::Float(value) => format!(" = {}", float(value)),
        AttributeValue::String(value) => format!(" = {}", bytes(value)),
        AttributeValue::Ints(values) => list(values.iter().map(i64::to_string).collect(), "ints"),
        AttributeValue::Floats(values) => list(values.iter().map(float).collect(), "floats"),
        AttributeValue::Strings(values) => {
            list(values.iter().map(|v| bytes(v)).collect(), "strings")
        }
        AttributeValue::Tensor {
            element,
            shape,
            constant: contents,
        } => {
            let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
            let dimensions = if shape.is_empty() {
                String::new()
            } else {
                format!("[{}]", shape.join(","))
            };
            let contents = constant(*element, contents.as_ref());
            format!(" = {}{dimensions} {contents}", element.name())
        }
        AttributeValue::Opaque => " = ...".to_owned(),
    };
    format!("{}{value}", name(key))
}

/// The shortest text that reads back as the same number and as a float.
fn float<F: std::fmt::Debug>(value: &F) -> String {
    let text = format!("{value:?}");
    if text == "NaN" {
        "nan".to_owned()
    } else {
        text
    }
}

/// Bare if it is an identifier that cannot be taken for a type.
fn name(name: &str) -> String {
    let bare = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && ElementType::from_name(name).is_none()
        && !NOT_TENSORS.contains(&name);
    if bare { name.to_owned() } else { string(name) }
}

fn string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn bytes(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\\\").replace('"', "\\\""));
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text.push('"');
    text
}
