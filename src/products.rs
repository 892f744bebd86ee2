//! What convolutions of a graph compute, each product once: what a table of convolutions has entries for.

use std::collections::BTreeMap;

use ckpt_passes::graph::Graph;
use ckpt_passes::optimize::{PlanOptions, with_shapes};
use ckpt_passes::runtime::convolution_costs::timed;
use ckpt_passes::runtime::convolutions::{Product, Timed};

/// How many products of the graph the given table does not have, and how many there are; none where no table is
/// given or shapes are missing.
pub(crate) fn missing(graph: &Graph, options: &PlanOptions) -> (usize, usize) {
    let table = &options.device.convolutions.table;
    let Some(graph) = (!table.is_empty())
        .then(|| with_shapes(graph, options).ok())
        .flatten()
    else {
        return (0, 0);
    };
    let all = products(&graph, options);
    let missing = all.keys().filter(|product| !table.contains_key(product));
    (missing.count(), all.len())
}

/// By product, the nodes that compute it, and its algorithms.
pub(crate) type Products<'g> = BTreeMap<Product, (Vec<&'g str>, Vec<Timed>)>;

/// All that the graph computes.
pub(crate) fn products<'g>(graph: &'g Graph, options: &PlanOptions) -> Products<'g> {
    let mut products = Products::new();
    for &id in graph.order() {
        let node = graph.node(id);
        for (direction, algorithms) in timed(graph, node, &options.device) {
            let product = Product::of(graph, node, direction);
            let (nodes, _) = products
                .entry(product)
                .or_insert_with(|| (Vec::new(), algorithms));
            nodes.push(&node.name);
        }
    }
    products
}
