//! A graph with variants in it, and what a planner has to know of it.

use std::borrow::Cow;
use std::sync::OnceLock;

use super::PlanOptions;
use super::cheaper_copies::{copies_of_dropouts, use_cheaper_copies};
use crate::analysis::cost::costs;
use crate::analysis::recompute::Recomputation;
use crate::cost::Cost;
use crate::graph::{Graph, NodeId};
use crate::operators::Recompute;
use crate::operators::variants::Variant;
use crate::rewrite::apply_variants::ApplyVariants;
use crate::runtime::as_run::as_run;

/// Which nodes to replace, and by what; ascending by node.
pub(super) type Choices = Vec<(NodeId, &'static Variant)>;

pub(super) struct Form {
    pub(super) graph: Graph,
    /// By node id.
    pub(super) costs: Vec<Cost>,
    pub(super) recomputation: Recomputation,
    /// See [`Form::run`]; nothing where that is the graph.
    run: OnceLock<Option<Graph>>,
}

impl Form {
    pub(super) fn new(graph: Graph, options: &PlanOptions) -> Form {
        let costs = costs(&graph, &options.device, &options.overrides);
        let mut recomputation = Recomputation::of(&graph, &options.overrides);
        copies_of_dropouts(&mut recomputation, &graph, options);
        use_cheaper_copies(&mut recomputation, &graph, &costs, options);
        recomputation.keep_rounding(&graph, options.device.provider, options.runtime.release);
        Form {
            graph,
            costs,
            recomputation,
            run: OnceLock::new(),
        }
    }

    /// The graph as it runs at the level that is promised: see [`as_run`]. `options` are those that it was made with.
    pub(super) fn run(&self, options: &PlanOptions) -> &Graph {
        let run = self.run.get_or_init(|| {
            let is_copied = |id| self.recomputation.rule(id) == Recompute::Clone;
            let provider = options.device.provider;
            match as_run(&self.graph, provider, options.runtime, is_copied) {
                Cow::Borrowed(_) => None,
                Cow::Owned(run) => Some(run),
            }
        });
        run.as_ref().unwrap_or(&self.graph)
    }
}

/// `graph` with these nodes replaced.
pub(super) fn apply(graph: &Graph, choices: &Choices, options: &PlanOptions) -> Graph {
    let mut form = graph.clone();
    let Ok(_) = options.runner.run(&ApplyVariants { choices }, &mut form);
    form
}
