//! What the runtime writes into a node that leaves its only attribute out.
//!
//! Runtime fact: while it loads a graph it gives every attribute that is missing the value which the operator's definition (the
//! ONNX specification) says, so that `Shape` and `Shape<start = 0>` are the same to it from then on. Measured with pairs of
//! nodes, of which one says the value, in 1.19.2, 1.20.1 and 1.32.0: with one attribute in all they are merged. With more it depends on the
//! sequence in which a hash table goes through them, which is another in each release; those count as different here.

use std::borrow::Cow;

use crate::graph::{Attribute, AttributeValue, Node};

/// Since then Softmax and its like work along the last axis.
const ALONG_THE_LAST: i64 = 13;

/// The node's attributes as the runtime has them; `opset` is that of the standard operators.
pub(crate) fn with_default(node: &Node, opset: i64) -> Cow<'_, [Attribute]> {
    let default = || default_attribute(node, opset);
    match node.attributes.is_empty().then(default).flatten() {
        Some(default) => Cow::Owned(vec![default]),
        None => Cow::Borrowed(&node.attributes),
    }
}

/// The attribute that such an operator has alone, and what it is unless the node says it.
fn default_attribute(node: &Node, opset: i64) -> Option<Attribute> {
    use AttributeValue::{Float, Int};
    if !node.domain.is_empty() {
        return None;
    }
    let text = |value: &str| AttributeValue::String(value.as_bytes().to_vec());
    let (name, value) = match node.op_type.as_str() {
        "Celu" | "Elu" | "ThresholdedRelu" => ("alpha", Float(1.0)),
        "Flatten" => ("axis", Int(1)),
        "Gather" | "GatherElements" | "Split" => ("axis", Int(0)),
        "GatherND" => ("batch_dims", Int(0)),
        "Gelu" => ("approximate", text("none")),
        "InstanceNormalization" => ("epsilon", Float(1e-5)),
        "LeakyRelu" => ("alpha", Float(0.01)),
        "Mod" => ("fmod", Int(0)),
        "OneHot" => ("axis", Int(-1)),
        "Pad" => ("mode", text("constant")),
        "Reshape" => ("allowzero", Int(0)),
        "ScatterND" => ("reduction", text("none")),
        "Shape" => ("start", Int(0)),
        "Softmax" | "LogSoftmax" | "Hardmax" => match opset >= ALONG_THE_LAST {
            true => ("axis", Int(-1)),
            false => ("axis", Int(1)),
        },
        "Trilu" => ("upper", Int(1)),
        _ => return None,
    };
    Some(Attribute {
        name: name.to_owned(),
        value,
    })
}
