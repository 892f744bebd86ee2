//! What can be wrong.

use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId};

/// A rewritten graph is not what it must be. Nodes and tensors are given by their ONNX names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Violation {
    #[error("tensor \"{tensor}\" is written by both {first} and {second}")]
    WrittenTwice {
        tensor: String,
        first: String,
        second: String,
    },
    #[error("{node} writes \"{tensor}\", which belongs to the caller")]
    WritesOwned { node: String, tensor: String },
    #[error("{reader} reads \"{tensor}\", which nobody writes")]
    NeverWritten { reader: String, tensor: String },
    #[error("{node} reads \"{tensor}\" but is listed before {writer}, which writes it")]
    ReadTooEarly {
        node: String,
        tensor: String,
        writer: String,
    },
    #[error("{circle}")]
    Cycle { circle: String },
    #[error(
        "{first} and {second} compute the same from the same inputs and attributes, but \"{tensor}\" is {said} and \
         \"{other}\" is {otherwise}; expected one type and one shape for both"
    )]
    Declarations {
        first: Box<str>,
        second: Box<str>,
        tensor: Box<str>,
        other: Box<str>,
        said: Box<str>,
        otherwise: Box<str>,
    },
    #[error(
        "{node} updates \"{tensor}\" in place, which {writer} computes and the runtime takes apart: expected memory that no \
         such node writes"
    )]
    UpdatesPieces {
        node: String,
        tensor: String,
        writer: String,
    },
    #[error("graph input \"{tensor}\" is the result of a node")]
    InputIsComputed { tensor: String },

    #[error("the graph's {what} must stay: expected {expected}, found {found}")]
    Interface {
        what: &'static str,
        expected: String,
        found: String,
    },
    #[error("{node} of the original is missing")]
    NodeMissing { node: String },
    #[error("{node} must keep its {what}: expected {expected}, found {found}")]
    NodeChanged {
        node: String,
        what: &'static str,
        expected: String,
        found: String,
    },
    #[error("{node} reads {found} as input {position}, not the value of {expected}")]
    WrongInput {
        node: String,
        position: usize,
        expected: String,
        found: String,
    },
    #[error("\"{tensor}\", which {node} writes, does not hold the original's value")]
    WrongValue { node: String, tensor: String },
    #[error("{node} updates {found} in place, not {expected} itself")]
    WrongBuffer {
        node: String,
        expected: String,
        found: String,
    },

    #[error("{node} is no node of the original, no barrier and no copy: {why}")]
    Unjustified { node: String, why: String },
    #[error("{node} computes {original} again, but {why}")]
    MustNotRepeat {
        node: String,
        original: String,
        why: &'static str,
    },
    #[error("{node} must write output {position}, as {original} does")]
    OutputOmitted {
        node: String,
        position: usize,
        original: String,
    },
    #[error("barrier {node} must forward each of its inputs under a new name")]
    BrokenBarrier { node: String },
    #[error("{reader} hands over what barrier {node} forwards, which the runtime refuses")]
    BarrierHandsOver { node: String, reader: String },
    #[error("nobody may read the result of {node}, which reads one tensor so that it is freed")]
    BrokenRelease { node: String },
    #[error("{node} is new, but another node has its name")]
    NameTaken { node: String },
    #[error("nobody reads a result of {node}, which the original does not have")]
    Unused { node: String },
    #[error("tensor \"{tensor}\" is declared as {found}, but its value is {expected}")]
    WrongType {
        tensor: String,
        expected: String,
        found: String,
    },

    #[error("on the CPU {node} would {found}, and in the original it would {expected}")]
    RoundedOtherwise {
        node: String,
        expected: String,
        found: String,
    },

    #[error("{node} reads \"{tensor}\" after {found} updates of it in place, not after {expected}")]
    ReadAtAnotherTime {
        node: String,
        tensor: String,
        expected: usize,
        found: usize,
    },
    #[error("update {position} of \"{tensor}\" is made by {found}, not by {expected}")]
    UpdateOrder {
        tensor: String,
        position: usize,
        expected: String,
        found: String,
    },

    #[error("output \"{output}\" is to overwrite \"{input}\", {why}")]
    Overwrites {
        output: String,
        input: String,
        why: String,
    },

    #[error("the peak in {order} order is {peak}, above the budget of {budget}")]
    OverBudget {
        order: String,
        peak: Bytes,
        budget: Bytes,
    },
}

/// How a message calls a node.
pub(super) fn label(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    let first = node
        .writes()
        .next()
        .map(|tensor| graph.tensor(tensor).name.as_str());
    match (node.name.as_str(), first) {
        ("", Some(tensor)) => format!("the {} that writes \"{tensor}\"", node.op_type),
        ("", None) => format!("a nameless {}", node.op_type),
        (name, _) => format!("{} \"{name}\"", node.op_type),
    }
}
