//! What may differ between a rewritten file and its original, and how everything else is compared.
//!
//! Each field of each message is compared, in the sequence in which it occurs among those of its number, as bytes: unless [`RULES`]
//! has it. So a field that is newer than this program has to stay as it was.
//!
//! A rewriting may change, and verification looks at by what it means:
//! - nodes: their sequence, inputs, and names of outputs; new nodes (those have no field but the known ones, or as
//!   in the node that they stand for; `doc_string` and `metadata_props` are free there);
//! - of an attribute that only advises ([`SETTINGS`]), the value;
//! - `value_info`: new entries, of existing ones the dimensions, and those of tensors that nothing computes any more are free to be missing;
//! - `opset_import`: domains that the original does not import;
//! - `metadata_props` of the model: entries of ours.

use super::difference::Difference;
use super::fields::bytes;
use crate::onnx::schema::{
    attribute, attribute_type, function, graph, model, node, sparse_tensor, tensor, training_info,
};
use crate::onnx::wire::{Message, Width};

/// The messages whose fields are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Model,
    Training,
    Function,
    /// The model's own graph, ...
    MainGraph,
    /// ... its nodes, ...
    MainNode,
    /// ... and any other graph and node.
    Graph,
    Node,
    Attribute,
    Sparse,
    Tensor,
    ValueInfo,
}

/// How a field is compared, if not as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Elsewhere.
    Apart,
    /// Repeated messages, each with that at the same place.
    Each(Kind),
    /// One message; where the field occurs again, it goes on.
    Merged(Kind),
    /// Repeated numbers, packed or not.
    Numbers(Width),
    /// Like [`Rule::Apart`], with what holds the elements of a tensor.
    Contents,
}

use Rule::{Apart, Contents, Each, Merged, Numbers};

const RULES: [(Kind, u32, Rule); 49] = [
    (Kind::Model, model::GRAPH, Apart),
    (Kind::Model, model::OPSET_IMPORT, Apart),
    (Kind::Model, model::METADATA_PROPS, Apart),
    (Kind::Model, model::TRAINING_INFO, Each(Kind::Training)),
    (Kind::Model, model::FUNCTIONS, Each(Kind::Function)),
    (
        Kind::Training,
        training_info::INITIALIZATION,
        Merged(Kind::Graph),
    ),
    (
        Kind::Training,
        training_info::ALGORITHM,
        Merged(Kind::Graph),
    ),
    (Kind::Function, function::NODE, Each(Kind::Node)),
    (
        Kind::Function,
        function::ATTRIBUTE_PROTO,
        Each(Kind::Attribute),
    ),
    (Kind::MainGraph, graph::NODE, Apart),
    (Kind::MainGraph, graph::INITIALIZER, Apart),
    (Kind::MainGraph, graph::SPARSE_INITIALIZER, Apart),
    (Kind::MainGraph, graph::VALUE_INFO, Apart),
    (Kind::MainNode, node::INPUT, Apart),
    (Kind::MainNode, node::OUTPUT, Apart),
    (Kind::MainNode, node::NAME, Apart),
    (Kind::MainNode, node::OP_TYPE, Apart),
    (Kind::MainNode, node::DOMAIN, Apart),
    (Kind::MainNode, node::ATTRIBUTE, Apart),
    (Kind::Graph, graph::NODE, Each(Kind::Node)),
    (Kind::Graph, graph::INITIALIZER, Each(Kind::Tensor)),
    (Kind::Graph, graph::SPARSE_INITIALIZER, Each(Kind::Sparse)),
    (Kind::Graph, graph::INPUT, Each(Kind::ValueInfo)),
    (Kind::Graph, graph::OUTPUT, Each(Kind::ValueInfo)),
    (Kind::Graph, graph::VALUE_INFO, Each(Kind::ValueInfo)),
    (Kind::MainGraph, graph::INPUT, Each(Kind::ValueInfo)),
    (Kind::MainGraph, graph::OUTPUT, Each(Kind::ValueInfo)),
    (Kind::Node, node::ATTRIBUTE, Each(Kind::Attribute)),
    (Kind::Attribute, attribute::FLOATS, Numbers(Width::Fixed32)),
    (Kind::Attribute, attribute::INTS, Numbers(Width::Varint)),
    (Kind::Attribute, attribute::T, Merged(Kind::Tensor)),
    (Kind::Attribute, attribute::G, Merged(Kind::Graph)),
    (Kind::Attribute, attribute::TENSORS, Each(Kind::Tensor)),
    (Kind::Attribute, attribute::GRAPHS, Each(Kind::Graph)),
    (
        Kind::Attribute,
        attribute::SPARSE_TENSOR,
        Merged(Kind::Sparse),
    ),
    (
        Kind::Attribute,
        attribute::SPARSE_TENSORS,
        Each(Kind::Sparse),
    ),
    (Kind::Sparse, sparse_tensor::VALUES, Merged(Kind::Tensor)),
    (Kind::Sparse, sparse_tensor::INDICES, Merged(Kind::Tensor)),
    (Kind::Sparse, sparse_tensor::DIMS, Numbers(Width::Varint)),
    (Kind::Tensor, tensor::DIMS, Numbers(Width::Varint)),
    (Kind::Tensor, tensor::FLOAT_DATA, Contents),
    (Kind::Tensor, tensor::INT32_DATA, Contents),
    (Kind::Tensor, tensor::STRING_DATA, Contents),
    (Kind::Tensor, tensor::INT64_DATA, Contents),
    (Kind::Tensor, tensor::RAW_DATA, Contents),
    (Kind::Tensor, tensor::DOUBLE_DATA, Contents),
    (Kind::Tensor, tensor::UINT64_DATA, Contents),
    (Kind::Tensor, tensor::EXTERNAL_DATA, Contents),
    (Kind::Tensor, tensor::DATA_LOCATION, Contents),
];

/// The rule of a field; `None`: as bytes.
pub(super) fn rule(kind: Kind, number: u32) -> Option<Rule> {
    let found = RULES.iter().find(|row| (row.0, row.1) == (kind, number));
    found.map(|row| row.2)
}

/// Attributes that advise the runtime, and change no result: a convolution's algorithm, the number of a copy.
pub(super) const SETTINGS: [&str; 2] = ["__ckpt_conv_algo", "__recompute"];

/// NodeProto.overload.
pub(super) const OVERLOAD: u32 = 8;

/// What a node that is new may have: what verification reads, `doc_string` (6) and `metadata_props` (9).
pub(super) fn of_new_nodes(number: u32) -> bool {
    use node::*;
    [INPUT, OUTPUT, NAME, OP_TYPE, ATTRIBUTE, DOMAIN, 6, 9].contains(&number)
}

/// Does verification read all of the attribute's value?
pub(super) fn plain(attribute: Message<'_>) -> Result<bool, Difference> {
    use attribute_type::*;
    let mut kind = 0;
    for field in attribute.fields() {
        let field = field?;
        if field.number == attribute::TYPE {
            kind = field.varint()?;
        }
        if field.number == attribute::REF_ATTR_NAME {
            return Ok(false);
        }
    }
    Ok([INT, FLOAT, STRING, INTS, FLOATS, STRINGS].contains(&i32::try_from(kind).unwrap_or(0)))
}

/// Are the fields that hold no value (`doc_string` is free) as in the original?
pub(super) fn known_besides(
    original: Message<'_>,
    attribute: Message<'_>,
) -> Result<(), Difference> {
    for field in attribute.fields() {
        let field = field?;
        if is_attribute_field(field.number) {
            continue;
        }
        let mut same = false;
        for other in original.fields() {
            let other = other?;
            same |= other.number == field.number && bytes(&other, &field);
        }
        if !same {
            return Err(unknown(field.number));
        }
    }
    Ok(())
}

/// Does it have known fields alone?
pub(super) fn all_known(attribute: Message<'_>) -> Result<(), Difference> {
    for field in attribute.fields() {
        let field = field?;
        if !is_attribute_field(field.number) {
            return Err(unknown(field.number));
        }
    }
    Ok(())
}

fn is_attribute_field(number: u32) -> bool {
    const DOC_STRING: u32 = 13;
    number == attribute::NAME || number == DOC_STRING || attribute::VALUES.contains(&number)
}

fn unknown(number: u32) -> Difference {
    Difference::new(format!(
        "{} is not known, and the original does not have it so",
        field_name(Kind::Attribute, number)
    ))
}

/// How messages call a field.
pub(super) fn field_name(kind: Kind, number: u32) -> String {
    let name = match (kind, number) {
        (Kind::Model, 1) => "ir_version",
        (Kind::Model, 2) => "producer_name",
        (Kind::Model, 3) => "producer_version",
        (Kind::Model, 4) | (Kind::Node | Kind::MainNode, 7) => "domain",
        (Kind::Model, 5) => "model_version",
        (Kind::Model, 6) | (Kind::Node | Kind::MainNode, 6) => "doc_string",
        (Kind::Model, 20) => "training_info",
        (Kind::Model, 25) => "functions",
        (Kind::Graph | Kind::MainGraph, 1) => "node",
        (Kind::Graph | Kind::MainGraph | Kind::Function, 10) | (Kind::Attribute, 13) => {
            "doc_string"
        }
        (Kind::Graph | Kind::MainGraph, 2) | (Kind::Attribute | Kind::Function, 1) => "name",
        (Kind::Graph | Kind::MainGraph, 5) => "initializer",
        (Kind::Graph | Kind::MainGraph, 11) => "input",
        (Kind::Graph | Kind::MainGraph, 12) => "output",
        (Kind::Graph | Kind::MainGraph, 13) => "value_info",
        (Kind::Graph | Kind::MainGraph, 14) => "quantization_annotation",
        (Kind::Graph | Kind::MainGraph, 15) => "sparse_initializer",
        (Kind::Graph | Kind::MainGraph, 16) => "metadata_props",
        (Kind::Node | Kind::MainNode, 1) => "input",
        (Kind::Node | Kind::MainNode, 2) => "output",
        (Kind::Node | Kind::MainNode, 3) => "name",
        (Kind::Node | Kind::MainNode, 4) => "op_type",
        (Kind::Node | Kind::MainNode, 5) => "attribute",
        (Kind::Node | Kind::MainNode, 8) => "overload",
        (Kind::Node | Kind::MainNode, 9) => "metadata_props",
        (Kind::Attribute, 2) => "f",
        (Kind::Attribute, 3) => "i",
        (Kind::Attribute, 4) => "s",
        (Kind::Attribute, 5) => "the tensor",
        (Kind::Attribute, 6) => "its graph",
        (Kind::Attribute, 22) => "the sparse tensor",
        (Kind::Attribute, 7) => "floats",
        (Kind::Attribute, 8) => "ints",
        (Kind::Attribute, 9) => "strings",
        (Kind::Attribute, 20) => "type",
        (Kind::Attribute, 21) => "ref_attr_name",
        (Kind::Sparse, 1) => "values",
        (Kind::Sparse, 2) => "indices",
        (Kind::Tensor | Kind::Sparse, 1 | 3) => "dims",
        (Kind::Tensor, 2) => "data_type",
        (Kind::Tensor, 8) => "name",
        (Kind::ValueInfo, 1) => "name",
        (Kind::ValueInfo, 2) => "type",
        _ => return format!("field {number}"),
    };
    name.to_owned()
}
