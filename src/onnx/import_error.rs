//! Why a file could not be read.

use std::io;

use thiserror::Error;

use super::wire::WireError;

/// Subgraphs deeper than this are refused. Protobuf's readers stop at 100 nested messages: a
/// model, its graph and a node, then attribute, graph and node for each level. (ONNX Runtime
/// loads 32 levels and refuses 33.)
pub(crate) const DEEPEST: usize = 32;

/// Why a file could not be read as a model.
#[derive(Debug, Error)]
#[error("{file}: {problem}")]
pub struct ImportError {
    /// The file.
    pub file: String,
    /// What is wrong with it.
    pub problem: ImportProblem,
}

/// What is wrong with a file.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum ImportProblem {
    #[error("cannot open it: {source}")]
    Open { source: io::Error },
    #[error("expected an ONNX model, but this is {what}")]
    NotAFile { what: &'static str },
    #[error("expected an ONNX model, but this is {found}")]
    NotOnnx { found: &'static str },
    #[error(
        "it has {bytes} bytes, and an ONNX file can have at most 2147483647: nobody can load it; keep its weights in \
         external data, as onnx.save_model(..., save_as_external_data=True) does"
    )]
    TooLarge { bytes: u64 },
    #[error("damaged, or not an ONNX model: {source}")]
    Malformed {
        #[from]
        source: WireError,
    },
    #[error("damaged, or not an ONNX model: {source}")]
    Undecodable {
        #[from]
        source: prost::DecodeError,
    },
    #[error("not an ONNX model: it has no graph")]
    NoGraph,
    #[error("it has more {what} than this program can number")]
    TooMany { what: &'static str },
    #[error("{node}: {problem}")]
    Node {
        node: String,
        problem: Box<ImportProblem>,
    },
    #[error("tensor {tensor:?}: {problem}")]
    Tensor {
        tensor: String,
        problem: Box<ImportProblem>,
    },
    #[error("its {attribute}: {problem}")]
    Body {
        attribute: String,
        problem: Box<ImportProblem>,
    },
    #[error("it names no operator (op_type)")]
    NoOperator,
    #[error("attribute {name:?} is there twice; attribute names are unique")]
    DuplicateAttribute { name: String },
    #[error("an attribute has no name")]
    UnnamedAttribute,
    #[error("its subgraphs are nested deeper than {} levels", DEEPEST)]
    TooDeep,
    #[error("{list} number {position} has no name")]
    Unnamed { list: &'static str, position: usize },
    #[error("it is defined twice: as {first}, and as {second}; names are unique")]
    DefinedTwice { first: String, second: String },
    #[error(
        "two nodes are called {name:?}: {first} and {second}; names of nodes are unique, and ONNX Runtime does not load \
         such a file either. Rename one"
    )]
    SameName {
        name: String,
        first: String,
        second: String,
    },
    #[error("it is read by {reader}, but no node writes it, and it is no input or initializer")]
    NeverWritten { reader: String },
    #[error(
        "it is declared as a sparse tensor, of which nothing says how large it is; expected a dense tensor (sparse \
         initializers are fine: ONNX Runtime makes dense ones of them)"
    )]
    Sparse,
    #[error(
        "metadata {key:?} is {value}: {problem}; expected a JSON object with the name of an input for the name of each output \
         that is written over it"
    )]
    Overwrites {
        key: &'static str,
        value: String,
        problem: String,
    },
    #[error("it is an initializer and has a negative dimension")]
    NegativeDimension,
}
