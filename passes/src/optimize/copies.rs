//! Copies that are made otherwise than their originals, where that is faster.

use super::Options;
use crate::analysis::cost::{Cost, Nanos, costs};
use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId, TensorId, Uses};
use crate::operators::variants::{Group, copy_parts};
use crate::operators::{Provider, Recompute};
use crate::transform::insert_mirrors::mirror_of_parts;

/// Lets copies be made from what their originals left where the model says that this is faster;
/// `before` are the costs by node.
pub(super) fn use_cheaper_copies(
    recomputation: &mut Recomputation,
    graph: &Graph,
    before: &[Cost],
    options: &Options,
) {
    // The bits are only known to agree on the CPU.
    if !options.variants.contains(&Group::Copies) || options.device.provider != Provider::Cpu {
        return;
    }
    let uses = Uses::of(graph);
    let mut with = graph.clone();
    let mut latest: Vec<TensorId> = graph.tensor_ids().collect();
    let mut made: Vec<(NodeId, Vec<NodeId>)> = Vec::new();
    for &id in graph.order() {
        if recomputation.rule(id) == Recompute::BatchNorm
            && let Some(parts) = copy_parts(graph, &uses, id)
        {
            let name = &graph.node(id).name;
            made.push((id, mirror_of_parts(&mut with, &parts, name, 1, &mut latest)));
        }
    }
    let costs = costs(&with, &options.device, &options.overrides);
    for (id, parts) in made {
        let of = |id: &NodeId| costs[id.index()];
        let cost = Cost {
            time: Nanos(
                parts
                    .iter()
                    .map(|id| of(id).time.0)
                    .fold(0, u64::saturating_add),
            ),
            workspace: parts
                .iter()
                .map(|id| of(id).workspace)
                .max()
                .unwrap_or(Bytes::ZERO),
        };
        // The search knows one workspace for a node and its copies.
        if cost.time < before[id.index()].time && cost.workspace <= before[id.index()].workspace {
            recomputation.copy_from_statistics(id, cost);
        }
    }
}
