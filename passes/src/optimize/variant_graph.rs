//! A graph with variants in it, and what a planner has to know of it.

use super::Options;
use super::cheaper_copies::{cost_copies_of_dropouts, use_cheaper_copies};
use crate::analysis::cost::costs;
use crate::analysis::recompute::Recomputation;
use crate::cost::Cost;
use crate::graph::{Graph, NodeId};
use crate::operators::variants::Variant;
use crate::rewrite::apply_variants::ApplyVariants;

/// Which nodes to replace, and by what; ascending by node.
pub(super) type Choices = Vec<(NodeId, &'static Variant)>;

pub(super) struct Form {
    pub(super) graph: Graph,
    /// By node id.
    pub(super) costs: Vec<Cost>,
    pub(super) recomputation: Recomputation,
}

impl Form {
    pub(super) fn new(graph: Graph, options: &Options) -> Form {
        let costs = costs(&graph, &options.device, &options.overrides);
        let mut recomputation = Recomputation::of(&graph, &options.overrides);
        cost_copies_of_dropouts(&mut recomputation, &graph, options);
        use_cheaper_copies(&mut recomputation, &graph, &costs, options);
        recomputation.keep_rounding(&graph, options.device.provider);
        Form {
            graph,
            costs,
            recomputation,
        }
    }
}

/// `graph` with these nodes replaced.
pub(super) fn apply(graph: &Graph, choices: &Choices, options: &Options) -> Graph {
    let mut form = graph.clone();
    let Ok(_) = options.passes.run(&ApplyVariants { choices }, &mut form);
    form
}
