//! An algorithm for each convolution, for runtimes that can be told: the fastest that the budget has room for where
//! the node runs.
//!
//! ONNX Runtime itself takes what the provider's options make it take, and it is this that the budget counts. The
//! names here change nothing there.

use std::collections::BTreeMap;

use super::simulation::{SimulatedRun, beside_steps, simulated};
use super::{Chosen, Optimized, PlanOptions};
use crate::analysis::cost::costs;
use crate::bytes::Bytes;
use crate::graph::{AttributeValue, Graph, NodeId};
use crate::operators::algorithms::Direction;
use crate::rewrite::insert_mirrors::{original_name, readable_name};
use crate::runtime::convolution_costs::timed;
use crate::runtime::convolutions::Timed;
use crate::runtime::liveness::TENSOR;

/// The attribute: `backward-data=fft,backward-filter=gemm`. Names that begin so are accepted on every operator.
const ALGORITHM: &str = "__ckpt_conv_algo";

/// That results of a convolution may differ between it and its copies has this name.
const DIFFERING: &str = "convolution-algorithms";

/// Writes the choices into `found`, which is for the `original`. A graph that comes back as it is gets none.
pub(super) fn name_algorithms(found: &mut Optimized, original: &Graph, options: &PlanOptions) {
    let Some(choice) = found.summary.convolutions else {
        return;
    };
    if found.graph == *original {
        return;
    }
    let options = options.with_choice(original, choice);
    let graph = &found.graph;
    let rooms = rooms(graph, &options, found.summary.budget - options.reserve);
    let mut products = Vec::new();
    for &id in graph.order() {
        for (direction, all) in timed(graph, graph.node(id), &options.device) {
            products.push((id, direction, all));
        }
    }
    let chosen = chosen(
        graph,
        &products,
        &rooms,
        options.allowed.contains(DIFFERING),
    );
    let mut named: BTreeMap<NodeId, Vec<String>> = BTreeMap::new();
    for ((id, direction, all), algorithm) in products.iter().zip(&chosen) {
        let text = format!("{}={}", direction.name(), algorithm.name);
        named.entry(*id).or_default().push(text);
        found.summary.algorithms.push(Chosen {
            node: readable_name(graph, graph.node(*id)),
            direction: *direction,
            algorithm: *algorithm,
            followed: choice.takes(*direction, all) == Some(*algorithm),
        });
    }
    for (id, texts) in named {
        let value = AttributeValue::String(texts.join(",").into_bytes());
        found.graph.node_mut(id).set_attribute(ALGORITHM, value);
    }
}

/// By node id: what the budget leaves for the node's workspace, in every way of running the graph that is promised.
fn rooms(graph: &Graph, options: &PlanOptions, budget: Bytes) -> Vec<Bytes> {
    let costs = costs(graph, &options.device, &options.overrides);
    let mut rooms = vec![budget; graph.node_count()];
    let promised = |run: &SimulatedRun| run.promised;
    let runs = simulated(graph, &costs, options)
        .into_iter()
        .filter(promised);
    for SimulatedRun { liveness: run, .. } in runs {
        let beside = beside_steps(graph, &run);
        for ((&id, &need), &objects) in run.order.iter().zip(&run.profile).zip(&run.objects) {
            let others = need + Bytes(TENSOR.0.saturating_mul(objects)) + beside;
            let room = budget - (others - costs[id.index()].workspace);
            rooms[id.index()] = rooms[id.index()].min(room);
        }
    }
    rooms
}

/// By product. Unless they may differ, a convolution and its copies have to take the same, or their bits would not be.
fn chosen(
    graph: &Graph,
    products: &[(NodeId, Direction, Vec<Timed>)],
    rooms: &[Bytes],
    may_differ: bool,
) -> Vec<Timed> {
    let original = |id: &NodeId| original_name(graph, graph.node(*id));
    let mut least: BTreeMap<String, Bytes> = BTreeMap::new();
    for (id, ..) in products {
        let room = least.entry(original(id)).or_insert(Bytes(u64::MAX));
        *room = (*room).min(rooms[id.index()]);
    }
    let each = products.iter().map(|(id, _, all)| {
        let room = match may_differ {
            true => rooms[id.index()],
            false => least[&original(id)],
        };
        let fits = all.iter().find(|one| one.workspace <= room);
        let smallest = || all.iter().min_by_key(|one| one.workspace);
        *fits.or_else(smallest).expect("there is one everywhere")
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Nanos;

    /// The names of what is chosen for a convolution with room for 100 bytes, and its copy with room for 50.
    fn names(may_differ: bool) -> Vec<&'static str> {
        let graph = Graph::parse(
            "<ir_version: 8, opset_import: [\"\" : 17]>
            g (float[1,1,3,3] x, float[1,1,3,3] w) => (float[1,1,1,1] y, float[1,1,1,1] z)
            {
                [conv] y = Conv (x, w)
                [\"conv/recompute_1\"] z = Conv <__recompute = 1> (x, w)
            }",
        );
        let graph = graph.unwrap();
        let one = |name, time, workspace| Timed {
            name,
            time: Nanos(time),
            workspace: Bytes(workspace),
        };
        let all = vec![
            one("fft", 1, 80),
            one("winograd", 2, 40),
            one("implicit-gemm", 3, 0),
        ];
        let products: Vec<_> = graph
            .order()
            .iter()
            .map(|&id| (id, Direction::Forward, all.clone()))
            .collect();
        let chosen = chosen(&graph, &products, &[Bytes(100), Bytes(50)], may_differ);
        chosen.iter().map(|one| one.name).collect()
    }

    #[test]
    fn each_takes_the_fastest_that_it_has_room_for_and_copies_what_the_original_takes() {
        assert_eq!(names(false), ["winograd", "winograd"]);
        assert_eq!(names(true), ["fft", "winograd"]);
    }
}
