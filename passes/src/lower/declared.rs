//! Declares the shapes that only some of the releases that run the graph work out, so that all share the same memory.

use std::collections::BTreeMap;

use super::facts::tried;
use crate::graph::Graph;
use crate::runtime::known_shapes::{has_newly_known, newly_known};

/// See the [module](self). `bindings` are sizes of symbolic dimensions.
pub(super) fn declare(graph: &mut Graph, bindings: &BTreeMap<String, u64>) {
    if !has_newly_known(graph) {
        return;
    }
    let Some(shaped) = tried(graph, bindings) else {
        return;
    };
    for (id, shape) in newly_known(&shaped) {
        let tensor = graph.tensor_mut(id);
        tensor.element = shaped.tensor(id).element;
        tensor.declared = Some(shape);
    }
}
