//! Dropouts that a current session would take out.

use crate::graph::{ElementType, Graph, Node, NodeId, Tensor, TensorId, Uses};

/// Has the size of the mask read of each Dropout that may drop something, where nobody reads the mask: from ORT_ENABLE_BASIC on, builds
/// without training take out a Dropout whose mask is not read, training or not (`EliminateDropout`; measured in 1.20.1, 1.26.0
/// and 1.32.0), and who trains behind it would train on something else. So it is where no gradient goes through the Dropout.
pub(super) fn keep(graph: &mut Graph) {
    let uses = Uses::of(graph);
    let mut order = Vec::with_capacity(graph.order().len());
    for id in graph.order().to_vec() {
        order.push(id);
        if may_drop(graph.node(id)) && !is_mask_read(graph, &uses, id) {
            order.extend(measure(graph, id));
        }
    }
    graph.set_order(order);
}

/// Without a training_mode it drops nothing.
fn may_drop(node: &Node) -> bool {
    node.is("", "Dropout") && node.input(2).is_some()
}

fn is_mask_read(graph: &Graph, uses: &Uses, id: NodeId) -> bool {
    let is_read = |mask: TensorId| !uses.readers(mask).is_empty() || graph.outputs.contains(&mask);
    graph.node(id).output(1).is_some_and(is_read)
}

/// A node that reads the size of the mask.
fn measure(graph: &mut Graph, id: NodeId) -> Option<NodeId> {
    let (dropped, mask) = (graph.node(id).output(0)?, graph.node(id).output(1));
    let mask = mask.unwrap_or_else(|| {
        let mask = Tensor {
            element: Some(ElementType::Bool),
            ..graph.alike(dropped, "/mask")
        };
        let mask = graph.add_tensor(mask);
        graph.node_mut(id).outputs.resize(2, None);
        graph.node_mut(id).outputs[1] = Some(mask);
        mask
    });
    let name = format!("{}/size", graph.tensor(mask).name);
    Some(graph.add_size(&name, mask, &name).0)
}
