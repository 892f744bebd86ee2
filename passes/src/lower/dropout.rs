//! Dropouts that a current session would take out.

use crate::graph::{ElementType, Graph, Node, NodeId, Tensor, TensorId, TensorKind, Uses};

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
        let of = graph.tensor(dropped).clone();
        let mask = Tensor {
            name: graph.free_tensor_name(&format!("{}/mask", of.name)),
            kind: TensorKind::Value,
            element: Some(ElementType::Bool),
            ..of
        };
        let mask = graph.add_tensor(mask);
        graph.node_mut(id).outputs.resize(2, None);
        graph.node_mut(id).outputs[1] = Some(mask);
        mask
    });
    let name = format!("{}/size", graph.tensor(mask).name);
    let size = graph.add_tensor(Tensor {
        element: Some(ElementType::Int64),
        declared: Some(Vec::new()),
        shape: Some(Vec::new()),
        ..Tensor::new(graph.free_tensor_name(&name), TensorKind::Value)
    });
    let node = Node::new(name, "", "Size", vec![Some(mask)], vec![Some(size)]);
    Some(graph.add_node(node))
}
