//! ONNX files in and out, losing nothing.
//!
//! A file is mapped, not decoded: [`Model`] knows where its graph and nodes lie, and
//! [`Model::graph`] reads what the passes need. [`export()`] splices: what a changed graph left
//! alone is copied byte for byte, whether this program understands it or not, and only new and
//! changed nodes and declarations are encoded. Protobuf is known in this module only.

mod attribute;
mod compare;
mod constant;
mod destination;
mod export;
mod export_error;
mod external_data;
mod external_file;
mod file;
mod functions;
mod import;
mod import_error;
mod model;
mod node;
pub(crate) mod overwrites;
mod pending;
mod schema;
mod splice;
mod subgraph;
mod tensor;
mod wire;

pub use compare::{Counterpart, Difference, compare, sound};
pub(crate) use destination::Destination;
pub(crate) use export::check_destination;
pub use export::{export, export_lowered, export_with};
pub use export_error::ExportError;
pub use external_file::{ExternalFile, Fault, Unresolved};
pub(crate) use file::{FileIdentity, folder_of, kind};
pub use import_error::{ImportError, ImportProblem};
pub use model::Model;
pub(crate) use model::{LONGEST, METADATA};
pub use node::NodeProblem;
pub use pending::Pending;
pub(crate) use pending::Sink;
pub use wire::WireError;
