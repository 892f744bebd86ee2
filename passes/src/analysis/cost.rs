//! Time and workspace of every node on a device.

use std::collections::BTreeMap;

use crate::bytes::Bytes;
use crate::graph::Graph;
use crate::operators::Provider;

/// A duration in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

/// The rates of a device, for the roofline model
/// `time = launch + max(operations / rate, bytes / bandwidth)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Its name, as `--device` takes it.
    pub name: String,
    /// Which of ONNX Runtime's execution providers runs on it.
    pub provider: Provider,
    /// Floating point operations per second that good kernels reach.
    pub operations_per_second: f64,
    /// Bytes per second to and from its memory.
    pub bytes_per_second: f64,
    /// What starting one node costs.
    pub launch: Nanos,
}

/// What the user says of one node (`--costs`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeOverride {
    /// Its measured time in microseconds.
    pub time_us: Option<f64>,
    /// What its kernel allocates besides its outputs.
    pub workspace_bytes: Option<u64>,
    /// Whether it may be computed twice.
    pub recomputable: Option<bool>,
}

/// Overrides by node name.
pub type Overrides = BTreeMap<String, NodeOverride>;

/// What one node costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The time it takes.
    pub time: Nanos,
    /// What its kernel allocates besides its outputs, only while it runs.
    pub workspace: Bytes,
}

/// The cost of every node, by node id. Needs concrete shapes.
pub fn costs(graph: &Graph, device: &Device, overrides: &Overrides) -> Vec<Cost> {
    let _ = (device, overrides);
    vec![Cost::default(); graph.node_count()]
}
