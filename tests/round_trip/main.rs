//! What is read is written again, losing nothing.

mod build;
mod changed;
mod compared;
mod declarations;
mod external_data;
mod files;
mod hostile;
mod reading;
mod unchanged;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use ckpt_opt::onnx::{Model, export};
use ckpt_passes::graph::{Graph, NodeId};

/// A file in testdata.
pub(crate) fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata")
        .join(name)
}

/// Every model in testdata, by path.
pub(crate) fn every_model() -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for folder in ["models", "onnx"] {
        let entries = std::fs::read_dir(testdata(folder)).unwrap();
        let files = entries.map(|entry| entry.unwrap().path());
        paths.extend(files.filter(|path| path.extension().is_some_and(|name| name == "onnx")));
    }
    paths.sort();
    assert!(paths.len() >= 8, "{paths:?}");
    paths
}

/// A model in memory, and its graph.
pub(crate) fn read(bytes: Vec<u8>) -> (Model, Graph) {
    let model = Model::from_bytes(Bytes::from(bytes)).unwrap();
    let graph = model.graph().unwrap();
    (model, graph)
}

/// The bytes that `graph` is written as.
pub(crate) fn written(model: &Model, graph: &Graph) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.onnx");
    export(model, graph, &out).unwrap().commit().unwrap();
    std::fs::read(out).unwrap()
}

/// The bytes of a model after `change`.
pub(crate) fn rewritten(bytes: Vec<u8>, change: impl FnOnce(&mut Graph)) -> Vec<u8> {
    let (model, mut graph) = read(bytes);
    change(&mut graph);
    written(&model, &graph)
}

/// The node called `name`.
pub(crate) fn node_named(graph: &Graph, name: &str) -> NodeId {
    let mut nodes = graph.order().iter().copied();
    nodes.find(|&id| graph.node(id).name == name).unwrap()
}
