//! ONNX files in and out, losing nothing.
//!
//! A file is mapped, not decoded: [`Model`] knows where its graph and nodes lie, and
//! [`Model::graph`] reads what the passes need. Protobuf is known in this module only.

mod attribute;
mod import;
mod model;
mod schema;
mod subgraph;
mod tensor;
mod wire;

pub use import::{ImportError, ImportProblem};
pub use model::Model;
pub use wire::WireError;
