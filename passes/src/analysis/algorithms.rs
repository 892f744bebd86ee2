//! How long convolutions take on a device with each of cuDNN's algorithms.

use super::cost::{Device, Nanos, efficiency, nanos, rate};
use crate::bytes::Bytes;
use crate::graph::{Graph, Node};
use crate::operators::algorithms::{Direction, algorithms};
use crate::operators::family;

/// One algorithm on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// As the table names it.
    pub name: &'static str,
    /// By the roofline model of [`super::cost`].
    pub time: Nanos,
    /// What it allocates besides its results.
    pub workspace: Bytes,
}

/// For each product that `node` computes, its algorithms, the fastest first; empty for nodes that are
/// no convolutions. Needs concrete shapes.
pub fn timed(graph: &Graph, node: &Node, device: &Device) -> Vec<(Direction, Vec<Timed>)> {
    let (arithmetic, memory) = efficiency(device.provider, family(graph, node));
    let rate = rate(graph, node, device) * arithmetic;
    let bandwidth = device.bytes_per_second * memory;
    let products = algorithms(graph, node).into_iter();
    let each = products.map(|(direction, all)| {
        let timed = all.into_iter().map(|one| {
            let work = (one.operations / rate).max(one.bytes / bandwidth);
            Timed {
                name: one.name,
                time: nanos(device.launch.0 as f64 * 1e-9 + work),
                workspace: one.workspace,
            }
        });
        let mut timed: Vec<Timed> = timed.collect();
        timed.sort_by_key(|one| (one.time, one.workspace));
        (direction, timed)
    });
    each.collect()
}
