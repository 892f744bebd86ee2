//! What a Constant node says of its output.

use ckpt_passes::graph::{Attribute, AttributeValue, Tensor, TensorKind};
use prost::Message as _;

use super::import_error::ImportProblem;
use super::node::canonical_domain;
use super::schema::{AttributeProto, NodeProto};
use super::tensor::{self, TensorHeader};

/// What is known of the output of a Constant that holds a tensor.
pub(super) fn constant_output(
    node: &NodeProto,
    attributes: &[Attribute],
) -> Result<Option<Tensor>, ImportProblem> {
    if node.op_type != "Constant" || !canonical_domain(&node.domain).is_empty() {
        return Ok(None);
    }
    let mut values = attributes.iter();
    let value = values.find(|attribute| attribute.name == "value");
    if let Some(AttributeValue::Tensor {
        element,
        shape,
        constant,
    }) = value.map(|attribute| &attribute.value)
    {
        return Ok(Some(Tensor {
            element: Some(*element),
            shape: Some(shape.clone()),
            constant: constant.clone(),
            ..Tensor::new("", TensorKind::Value)
        }));
    }
    // The runtime makes a dense one of a sparse one.
    for bytes in &node.attribute {
        let attribute = AttributeProto::decode(bytes.clone())?;
        if let ("sparse_value", [sparse]) =
            (attribute.name.as_str(), attribute.sparse_tensor.as_slice())
        {
            let header = TensorHeader::of_sparse(tensor::pieces(std::slice::from_ref(sparse))[0])?;
            return Ok(Some(Tensor {
                element: header.element,
                shape: header.shape,
                ..Tensor::new("", TensorKind::Value)
            }));
        }
    }
    Ok(None)
}
