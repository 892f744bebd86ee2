//! What a graph needs when the runtime runs it: both execution orders, and the runtime's own share.

use super::{Options, Peak};
use crate::analysis::cost::{Cost, costs};
use crate::analysis::liveness::{Holder, Liveness};
use crate::analysis::order::ExecutionOrder;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId};
use crate::transform::insert_mirrors::MARKER;

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
        let worst = if priority.peak > default.peak {
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
        self.worst.peak + bookkeeping(&self.graph)
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
        bytes: liveness.peak + bookkeeping(graph) + reserve,
        step: liveness.step,
        node: liveness
            .peak_node()
            .map_or_else(String::new, |id| graph.node(id).name.clone()),
        holders: liveness.holders.iter().map(named).collect(),
    }
}

/// What the runtime itself allocates while a step runs: its frame of values, and an object with a
/// shape for each tensor that lives. Runtime fact: 118 bytes a tensor on the unmodified ResNet-152,
/// up to 215 a tensor with a thousand mirrors (measured less predicted, `cargo xtask truth`);
/// rounded up, so that what is promised holds.
pub(super) fn bookkeeping(graph: &Graph) -> Bytes {
    let is_mirror = |id: &&NodeId| graph.node(**id).attribute(MARKER).is_some();
    let mirrors = graph.order().iter().filter(is_mirror).count();
    Bytes(graph.tensor_count() as u64 * 150 + mirrors as u64 * 100)
}
