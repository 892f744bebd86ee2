//! What runs once the runtime has optimized a graph, as it can be compared with the runtime.

use super::OptimizedGraph;
use crate::graph::{Graph, TensorId};
use crate::operators::Provider;
use crate::runtime::known_shapes::{Targets, runtime_shapes};
use crate::runtime::optimized_shapes::{OptimizedShapes, optimized_shapes};
use crate::runtime::order::{ExecutionOrder, execution_order};
use crate::runtime::release::Release;
use crate::runtime::skeleton::Skeleton;

/// What a node writes that runs once the runtime has optimized a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The tensor of the graph.
    pub tensor: TensorId,
    /// Is it another one that the runtime makes of it?
    pub is_made: bool,
    /// The operator that makes it, where that is none of the graph's.
    pub made_by: Option<&'static str>,
}

/// What runs when the runtime has optimized `graph` as far as it can, in `order`: a node by what it writes.
/// To be compared with the runtime.
pub fn optimized_order(
    graph: &Graph,
    release: &'static Release,
    provider: Provider,
    order: ExecutionOrder,
) -> Vec<Vec<Written>> {
    let shapes = runtime_shapes(graph);
    let optimized = optimized_shapes(graph, &shapes);
    let OptimizedShapes { targets, shapes } = optimized.unwrap_or(OptimizedShapes {
        targets: Targets::new(),
        shapes,
    });
    let skeleton = Skeleton::without_costs(graph, &shapes, provider);
    let skeleton = skeleton.run_by(release).assembling(graph, &targets);
    let skeleton = skeleton.moving(graph, &shapes);
    let optimized = skeleton.optimized().pop();
    let run = optimized.unwrap_or_else(|| skeleton.into_run()).0;
    let names = run.names();
    let written = |&node: &u32| run.writes.get(node as usize).iter();
    let is_other = |tensor: u32| run.added(tensor).is_some() || run.flattens(tensor).is_some();
    let named = |&tensor: &u32| Written {
        tensor: TensorId(names[tensor as usize]),
        // Or what casts make of such a one.
        is_made: std::iter::successors(Some(tensor), |&of| run.made_of(of)).any(is_other),
        made_by: run.added(tensor).and_then(|added| added.made_by),
    };
    let executed = execution_order(&run, order);
    executed
        .iter()
        .map(|node| written(node).map(named).collect())
        .collect()
}

impl Skeleton {
    /// [`Skeleton::optimized_by_level`] in the newest release.
    pub(crate) fn optimized(&self) -> Vec<OptimizedGraph> {
        let (mut forms, levels) = self.optimized_by_level();
        forms.truncate(levels.newest.count);
        forms
    }
}
