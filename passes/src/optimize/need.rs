//! What a graph needs when the runtime runs it: both execution orders, and the runtime's own share.

use super::{Options, Peak};
use crate::analysis::cost::{Cost, costs};
use crate::analysis::liveness::{Holder, Liveness};
use crate::analysis::order::ExecutionOrder;
use crate::bytes::Bytes;
use crate::graph::Graph;

/// A graph that runs, and its worse order.
#[derive(Clone)]
pub(super) struct Candidate {
    pub(super) graph: Graph,
    /// By node id.
    pub(super) costs: Vec<Cost>,
    worst: Liveness,
}

impl Candidate {
    pub(super) fn new(graph: Graph, options: &Options) -> Candidate {
        let costs = costs(&graph, &options.device, &options.overrides);
        let provider = options.device.provider;
        let [default, priority] =
            ExecutionOrder::ALL.map(|order| Liveness::simulate(&graph, order, provider, &costs));
        let worst = if need(&graph, &priority) > need(&graph, &default) {
            priority
        } else {
            default
        };
        Candidate {
            graph,
            costs,
            worst,
        }
    }

    /// The larger need of both orders.
    pub(super) fn need(&self) -> Bytes {
        need(&self.graph, &self.worst)
    }

    /// That need in detail.
    pub(super) fn peak(&self, reserve: Bytes) -> Peak {
        describe(&self.graph, &self.worst, reserve)
    }
}

/// The need of one order in detail.
pub(super) fn describe(graph: &Graph, liveness: &Liveness, reserve: Bytes) -> Peak {
    let named = |holder: &Holder| match *holder {
        Holder::Tensor(id, size) => (graph.tensor(id).name.clone(), size),
        Holder::Workspace(id, size) => (format!("workspace of {}", graph.node(id).name), size),
    };
    Peak {
        bytes: need(graph, liveness) + reserve,
        step: liveness.step,
        node: liveness
            .peak_node()
            .map_or_else(String::new, |id| graph.node(id).name.clone()),
        holders: liveness.holders.iter().map(named).collect(),
    }
}

/// What a graph needs in one order, the runtime's own share included.
pub(super) fn need(graph: &Graph, liveness: &Liveness) -> Bytes {
    with_objects(liveness) + frame(graph)
}

/// The most that any step needs, with the runtime's objects for tensors.
pub(crate) fn with_objects(liveness: &Liveness) -> Bytes {
    let steps = liveness.profile.iter().zip(&liveness.tensors);
    let needs = steps.map(|(&bytes, &tensors)| bytes + Bytes(TENSOR.0.saturating_mul(tensors)));
    needs.max().unwrap_or(liveness.fixed)
}

/// What the runtime allocates for a tensor that lives, besides its elements: the object with its
/// shape, the reference count, the padding of the block. Runtime fact: 314 bytes (what the unmodified
/// and the rewritten ResNet-18, ResNet-152 and GoogLeNet need beyond their elements, measured by
/// `tools/measure.py`; with [`SLOT`] and [`FEED`] it explains each of them to 0.2 %).
pub(crate) const TENSOR: Bytes = Bytes(320);

/// A tensor's place in the runtime's frame, whether it lives or not.
const SLOT: u64 = 25;

/// What is kept for a tensor that the caller feeds.
const FEED: u64 = 90;

/// Kernels' small vectors, names, and what else does not grow with the graph.
const CONSTANT: u64 = 4096;

/// What the runtime itself allocates for a step, whatever its order.
pub(super) fn frame(graph: &Graph) -> Bytes {
    Bytes(graph.tensor_count() as u64 * SLOT + graph.inputs.len() as u64 * FEED + CONSTANT)
}
