//! Why a graph could not be written.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::external_file::Unresolved;
use super::import_error::ImportError;
use super::node::NodeProblem;
use super::wire::WireError;

/// Why a graph could not be written.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum ExportError {
    #[error("{}: the output would replace the input; write to another file", path.display())]
    OntoInput { path: PathBuf },
    #[error(
        "{}: the output would replace the data file {location:?} of the model; \
         write to another file", path.display()
    )]
    OntoExternalData { path: PathBuf, location: String },
    #[error("{}: cannot write there: it is {what}", path.display())]
    NotAFile { path: PathBuf, what: &'static str },
    #[error("{}: cannot write there: the folder {} does not exist", path.display(), folder.display())]
    NoFolder { path: PathBuf, folder: PathBuf },
    #[error("{}: cannot write there: it is a link to {}, which does not exist", path.display(), target.display())]
    DanglingLink { path: PathBuf, target: PathBuf },
    #[error(
        "{}: cannot write there: it is a file that a program has open, and has no name to be replaced under; \
         give - for standard output, or the file's own name", path.display()
    )]
    OpenFile { path: PathBuf },
    #[error(
        "-: the model keeps data in {location:?}, which has to be found beside the output: give OUT a name instead of \
         standard output"
    )]
    DataBesideOutput { location: String },
    #[error("{}: cannot write there: no file can be made in the folder {}: {error}", path.display(), folder.display())]
    Folder {
        path: PathBuf,
        folder: PathBuf,
        error: io::Error,
    },
    #[error("{}: cannot write: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("{}: {problem}", path.display())]
    ExternalData { path: PathBuf, problem: Unresolved },
    #[error(
        "the model would take {bytes} bytes, and an ONNX file can have at most 2147483647; \
         keep its weights in external data"
    )]
    TooLarge { bytes: u64 },
    #[error("node {node:?}: {problem}")]
    Node { node: String, problem: NodeProblem },
    #[error("the graph's {what} are not those of the model it is written into")]
    Interface { what: &'static str },
    #[error("tensor {tensor:?} is an initializer that the model does not have")]
    NewInitializer { tensor: String },
    #[error("tensor {tensor:?} is declared otherwise than in the model, which only values can be")]
    Declaration { tensor: String },
    #[error("{0}")]
    Source(#[from] ImportError),
    #[error("the model is damaged: {0}")]
    Damaged(#[from] WireError),
    #[error("the model is damaged: {0}")]
    Undecodable(#[from] prost::DecodeError),
}
