//! What parts of a model are called.

use super::rules::Kind;
use crate::onnx::schema::{attribute, graph, node, tensor};
use crate::onnx::tensor::text;
use crate::onnx::wire::{Message, WireError};

/// The name of an attribute, a tensor or a value.
pub(super) fn name(kind: Kind, contents: Message<'_>) -> Result<String, WireError> {
    let number = match kind {
        Kind::Tensor => tensor::NAME,
        Kind::Node | Kind::MainNode => node::NAME,
        Kind::Graph | Kind::MainGraph => graph::NAME,
        _ => attribute::NAME,
    };
    last_text(contents, number)
}

/// A node's domain, operator and overload decide what it computes; these are the first two.
pub(super) fn operator(contents: Message<'_>) -> Result<(String, String), WireError> {
    Ok((
        last_text(contents, node::DOMAIN)?,
        last_text(contents, node::OP_TYPE)?,
    ))
}

fn last_text(contents: Message<'_>, number: u32) -> Result<String, WireError> {
    let mut found = String::new();
    for field in contents.fields() {
        let field = field?;
        if field.number == number {
            found = text(field.message()?)?;
        }
    }
    Ok(found)
}

/// How messages call a part.
pub(super) fn label(kind: Kind, contents: Message<'_>) -> String {
    let name = name(kind, contents).unwrap_or_default();
    match kind {
        Kind::Node | Kind::MainNode => {
            let op_type = last_text(contents, node::OP_TYPE).unwrap_or_default();
            let output = first_output(contents).unwrap_or_default();
            match (name.as_str(), output.as_str()) {
                ("", "") => format!("a nameless {op_type}"),
                ("", output) => format!("the {op_type} that writes {output:?}"),
                (name, _) => format!("{op_type} {name:?}"),
            }
        }
        Kind::Attribute => format!("attribute {name:?}"),
        Kind::Tensor => format!("tensor {name:?}"),
        Kind::Function => format!("function {name:?}"),
        Kind::ValueInfo => format!("the declaration of {name:?}"),
        Kind::Sparse => "a sparse tensor".to_owned(),
        Kind::Training => "training_info".to_owned(),
        Kind::Graph | Kind::MainGraph | Kind::Model => format!("graph {name:?}"),
    }
}

/// The first output's name.
fn first_output(contents: Message<'_>) -> Result<String, WireError> {
    for field in contents.fields() {
        let field = field?;
        if field.number == node::OUTPUT {
            return text(field.message()?);
        }
    }
    Ok(String::new())
}
