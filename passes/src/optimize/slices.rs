//! Which gradients are computed slice by slice: those of nodes that need so much that no plan gets below it.

use super::PlanOptions;
use super::original::Original;
use super::tuning::STAGES;
use super::variant_graph::Choices;
use crate::bytes::Bytes;
use crate::graph::{NodeId, TensorKind, Uses};
use crate::operators::variants::nodes::fits_in_place;
use crate::operators::variants::{Group, Part, Variant};
use crate::runtime::rounding::Rounding;

/// The nodes to replace: those that need more than they would slice by slice, if all did that need most.
pub(super) fn slices(original: &Original<'_>, options: &PlanOptions) -> Choices {
    let graph = original.graph;
    let offered = options.offered().into_iter();
    let variants: Vec<&Variant> = offered.filter(|one| one.group == Group::Slices).collect();
    if variants.is_empty() {
        return Choices::new();
    }
    let nodes = graph.order().iter();
    let most = nodes
        .map(|&id| need(original, id))
        .max()
        .unwrap_or_default();
    let uses = Uses::of(graph);
    let rounding = Rounding::of(graph, options.device.provider, options.runtime.release);
    let mut places = vec![None; graph.node_count()];
    for (place, id) in graph.order().iter().enumerate() {
        places[id.index()] = Some(place);
    }
    let may = |id: NodeId, parts: &[Part]| {
        // What else reads the same may have to do so before an update.
        let read = parts.iter().flat_map(Part::tensors_read);
        let mut readers = read.flat_map(|tensor| uses.readers(tensor));
        !rounding.touches(graph.node(id))
            && !original.is_in_sequence(id)
            && !readers.any(|&reader| original.is_in_sequence(reader))
            && fits_in_place(&uses, |id| places[id.index()], id, parts)
    };
    let choice = |&id: &NodeId| {
        let need = need(original, id);
        let is_large =
            need.0.saturating_mul(STAGES.sliced) > most.0.saturating_mul(STAGES.sliced - 1);
        let mut variants = variants.iter().filter(|_| is_large);
        let fits = |variant: &&&'static Variant| {
            let parts = variant.parts(graph, &uses, id);
            parts.is_some_and(|parts| may(id, &parts))
        };
        variants.find(fits).map(|&variant| (id, variant))
    };
    graph.order().iter().filter_map(choice).collect()
}

/// What a node reads, writes and allocates for itself, without what the caller owns. Nothing is written in place of anything: of
/// what an activation reads or writes, the node in front of it may need another piece of the same size at that time.
fn need(original: &Original<'_>, id: NodeId) -> Bytes {
    let (graph, node) = (original.graph, original.graph.node(id));
    let mut tensors: Vec<_> = node.reads().chain(node.writes()).collect();
    tensors.sort();
    tensors.dedup();
    let tensors = tensors.into_iter().map(|id| graph.tensor(id));
    let own = tensors.filter(|tensor| tensor.kind == TensorKind::Value);
    let sizes = own.filter_map(|tensor| tensor.bytes());
    sizes.fold(original.costs[id.index()].workspace, |sum, bytes| {
        sum + bytes
    })
}
