//! What is known of ONNX Runtime: in which orders it runs a graph, what it makes of the graph before, and how much memory
//! each step takes then. Nothing outside this room names a release of it.

pub(crate) mod allocation;
pub(crate) mod arena;
pub(crate) mod bodies;
pub(crate) mod casting;
pub(crate) mod casts;
pub mod convolution_costs;
pub mod convolutions;
pub mod device;
pub mod executions;
pub mod functions;
pub mod fused_graph;
pub mod fusing;
mod half;
pub mod inferred_shapes;
pub mod known_shapes;
pub mod liveness;
mod memory_efficient_order;
pub(crate) mod memory_pattern;
pub(crate) mod merged;
mod named_sizes;
pub mod order;
pub(crate) mod rounding;
pub mod settings;
pub(crate) mod skeleton;

use crate::graph::{Node, TensorId};
use settings::RuntimeSettings;

/// One release, and what it calls what another may call otherwise. All that this room knows is true of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Release {
    /// As messages call it.
    pub name: &'static str,
    /// Domain and name of the operator that hands its inputs on without a copy: a barrier for whoever reads its results.
    barrier: (&'static str, &'static str),
}

/// The release that is known.
pub const ONNX_RUNTIME: Release = Release {
    name: "ONNX Runtime 1.19.2",
    barrier: ("com.microsoft", "PassThrough"),
};

/// What a graph is planned for and written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Which release runs it.
    pub release: &'static Release,
    /// How a session uses memory.
    pub settings: RuntimeSettings,
}

impl Runtime {
    /// As sessions run unless told otherwise.
    pub const DEFAULT: Runtime = Runtime::of(RuntimeSettings::DEFAULT);

    /// Without what is planned ahead.
    pub const LEAN: Runtime = Runtime::of(RuntimeSettings::LEAN);

    /// The known release in these settings.
    pub const fn of(settings: RuntimeSettings) -> Runtime {
        Runtime {
            release: &ONNX_RUNTIME,
            settings,
        }
    }

    /// A node that hands each of its inputs on: whoever reads one of its results runs after the producers of all inputs.
    pub fn barrier(
        &self,
        name: impl Into<String>,
        inputs: Vec<Option<TensorId>>,
        outputs: Vec<Option<TensorId>>,
    ) -> Node {
        let (domain, op_type) = self.release.barrier;
        Node::new(name, domain, op_type, inputs, outputs)
    }

    /// Is it such a node?
    pub fn is_barrier(&self, node: &Node) -> bool {
        let (domain, op_type) = self.release.barrier;
        node.is(domain, op_type)
    }
}

/// Can the CPU compute the node in float16? Tests hold verification's opinion against it.
#[cfg(test)]
pub(crate) fn rounds_in_half(graph: &crate::graph::Graph, node: &Node) -> bool {
    matches!(half::half(graph, node), half::Half::Kernel { .. })
}
