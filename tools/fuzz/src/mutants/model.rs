//! A graph as a file, from nothing: for graphs that are made or written as text.

use ckpt_passes::graph::{
    AttributeValue, Constant, Dimension, ElementType, Graph, Tensor, TensorKind,
};

use super::wire::{Msg, Value};

fn text(number: u32, text: &str) -> (u32, Value) {
    (number, Value::Bytes(text.as_bytes().to_vec()))
}

fn int(number: u32, value: i64) -> (u32, Value) {
    (number, Value::Varint(value as u64))
}

fn message(number: u32, fields: Vec<(u32, Value)>) -> (u32, Value) {
    (number, Value::Bytes(Msg(fields).encode()))
}

/// ModelProto.
pub(crate) fn of(graph: &Graph) -> Vec<u8> {
    let mut fields = Vec::new();
    for &id in graph.order() {
        let node = graph.node(id);
        let name = |tensor: &Option<_>| tensor.map_or("", |id| graph.tensor(id).name.as_str());
        let mut parts: Vec<_> = node
            .inputs
            .iter()
            .map(|input| text(1, name(input)))
            .collect();
        parts.extend(node.outputs.iter().map(|output| text(2, name(output))));
        parts.extend([text(3, &node.name), text(4, &node.op_type)]);
        for attribute in &node.attributes {
            parts.push(message(5, value(&attribute.name, &attribute.value)));
        }
        parts.push(text(7, &node.domain));
        fields.push(message(1, parts));
    }
    fields.push(text(2, &graph.name));
    for id in graph.tensor_ids() {
        let tensor = graph.tensor(id);
        if tensor.kind == TensorKind::Initializer {
            fields.push((5, Value::Bytes(Msg(contents(tensor)).encode())));
        }
    }
    fields.extend(
        graph
            .inputs
            .iter()
            .map(|&id| message(11, declared(graph.tensor(id)))),
    );
    fields.extend(
        graph
            .outputs
            .iter()
            .map(|&id| message(12, declared(graph.tensor(id)))),
    );
    for id in graph.tensor_ids() {
        let tensor = graph.tensor(id);
        if tensor.kind == TensorKind::Value
            && !graph.outputs.contains(&id)
            && tensor.element.is_some()
        {
            fields.push(message(13, declared(tensor)));
        }
    }
    let mut model = vec![int(1, 8), message(7, fields)];
    for (domain, version) in &graph.opsets {
        model.push(message(8, vec![text(1, domain), int(2, *version)]));
    }
    Msg(model).encode()
}

fn value(name: &str, value: &AttributeValue) -> Vec<(u32, Value)> {
    let float = |number, value: &f32| (number, Value::Fixed32(value.to_le_bytes()));
    let (mut fields, kind) = match value {
        AttributeValue::Float(value) => (vec![float(2, value)], 1),
        AttributeValue::Int(value) => (vec![int(3, *value)], 2),
        AttributeValue::String(value) => (vec![(4, Value::Bytes(value.clone()))], 3),
        AttributeValue::Floats(values) => (values.iter().map(|value| float(7, value)).collect(), 6),
        AttributeValue::Ints(values) => (values.iter().map(|&value| int(8, value)).collect(), 7),
        AttributeValue::Strings(values) => (
            values
                .iter()
                .map(|value| (9, Value::Bytes(value.clone())))
                .collect(),
            8,
        ),
        AttributeValue::Tensor {
            element,
            shape,
            constant,
        } => {
            let tensor = Tensor {
                element: Some(*element),
                shape: Some(shape.clone()),
                constant: constant.clone(),
                ..Tensor::new("value", TensorKind::Initializer)
            };
            (vec![message(5, contents(&tensor))], 4)
        }
        // No random graph has any.
        other => panic!("an attribute cannot be written: {other:?}"),
    };
    fields.insert(0, text(1, name));
    fields.push(int(20, kind));
    fields
}

/// TensorProto: zeros where the contents are not known.
fn contents(tensor: &Tensor) -> Vec<(u32, Value)> {
    let element = tensor.element.unwrap_or(ElementType::Float);
    let known = tensor.declared.as_ref().map(|dims| {
        let size = |dim: &Dimension| {
            if let Dimension::Known(size) = dim {
                *size
            } else {
                1
            }
        };
        dims.iter().map(size).collect::<Vec<u64>>()
    });
    let shape = tensor.shape.clone().or(known).unwrap_or_default();
    let raw: Vec<u8> = match (&tensor.constant, element) {
        (Some(Constant::Ints(values)), ElementType::Int64) => values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
        (Some(Constant::Ints(values)), ElementType::Int32) => values
            .iter()
            .flat_map(|&value| (value as i32).to_le_bytes())
            .collect(),
        (Some(Constant::Ints(values)), _) => values.iter().map(|&value| value as u8).collect(),
        (Some(Constant::Floats(values)), ElementType::Double) => values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
        (Some(Constant::Floats(values)), _) => values
            .iter()
            .flat_map(|&value| (value as f32).to_le_bytes())
            .collect(),
        (None, _) => vec![0; element.bytes(shape.iter().product()).0 as usize],
    };
    let mut fields: Vec<_> = shape.iter().map(|&dim| int(1, dim as i64)).collect();
    fields.extend([
        int(2, element as i64),
        text(8, &tensor.name),
        (9, Value::Bytes(raw)),
    ]);
    fields
}

/// ValueInfoProto.
fn declared(tensor: &Tensor) -> Vec<(u32, Value)> {
    let dims = tensor.declared.iter().flatten().map(|dim| {
        message(
            1,
            match dim {
                Dimension::Known(size) => vec![int(1, *size as i64)],
                Dimension::Symbol(name) => vec![text(2, name)],
                Dimension::Unknown => Vec::new(),
            },
        )
    });
    let mut kind = vec![int(1, tensor.element.unwrap_or(ElementType::Float) as i64)];
    if tensor.declared.is_some() {
        kind.push(message(2, dims.collect()));
    }
    vec![text(1, &tensor.name), message(2, vec![message(1, kind)])]
}
