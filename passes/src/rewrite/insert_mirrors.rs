//! Inserts the copies that a plan has, as it says how, and lists the nodes in the plan's order.

use std::collections::BTreeMap;
use std::convert::Infallible;

use crate::analysis::mirrors::{MARKER, mirror_name, mirror_number, mirrored};
use crate::graph::{
    AttributeValue, Graph, Node, NodeId, Tensor, TensorId, TensorKind, writers_first,
};
use crate::operators;
use crate::operators::variants::Part;
use crate::operators::variants::nodes::nodes_of;
use crate::pass::{Changed, Pass};
use crate::plan::{How, Instance};

/// **Does**: lists the nodes in the plan's order, or one that can run; for every copy in the plan adds a mirror
/// node and lets its readers read the mirror's results.
/// **Needs**: the instances of a plan of this graph.
/// **Keeps**: originals (all but the inputs that now read a mirror), graph inputs and outputs,
/// initializers, all names.
pub struct InsertMirrors<'p> {
    /// What runs, in this sequence.
    pub instances: &'p [Instance<'p>],
}

impl Pass for InsertMirrors<'_> {
    const NAME: &'static str = "insert-mirrors";
    type Error = Infallible;

    fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
        let before = graph.order().to_vec();
        // An original's inputs change when it is placed; its mirrors start from the first ones.
        let inputs: Vec<Vec<Option<TensorId>>> = (0..graph.node_count() as u32)
            .map(|id| graph.node(NodeId(id)).inputs.clone())
            .collect();
        // By tensor: the tensor that holds its latest computation.
        let mut latest: Vec<TensorId> = graph.tensor_ids().collect();
        let mut made: Vec<u32> = vec![0; graph.node_count()];
        // A rewritten file has mirrors already. A mirror of a mirror and one of its original must not be alike.
        let mut latest_number = before
            .iter()
            .filter_map(|&id| mirror_number(graph.node(id)))
            .max();
        let mut order = Vec::with_capacity(self.instances.len());
        for instance in self.instances {
            let id = instance.node;
            if instance.how == How::Original {
                let node = graph.node_mut(id);
                for input in node.inputs.iter_mut().flatten() {
                    *input = latest[input.index()];
                }
                order.push(id);
                continue;
            }
            let counter = latest_number.as_mut().unwrap_or(&mut made[id.index()]);
            *counter = counter.saturating_add(1);
            let number = *counter;
            if let How::FromParts(parts) = instance.how {
                let name = readable_name(graph, graph.node(id));
                order.extend(mirror_of_parts(graph, parts, &name, number, &mut latest));
                continue;
            }
            let original = Node {
                inputs: inputs[id.index()].clone(),
                ..graph.node(id).clone()
            };
            order.push(mirror(graph, instance, original, number, &mut latest));
        }
        graph.set_order(order);
        // A plan may have what reads before what writes: what is computed before the step needs no place in it.
        let order = writers_first(graph);
        graph.set_order(order);
        Ok(Changed::from(graph.order() != before))
    }
}

/// Adds copy number `number` of the `original`, and says in `latest` what it computes.
fn mirror(
    graph: &mut Graph,
    instance: &Instance<'_>,
    original: Node,
    number: u32,
    latest: &mut [TensorId],
) -> NodeId {
    let mut node = match instance.how {
        How::FromMask => dropout_from_mask(&original),
        _ => original.clone(),
    };
    if instance.how == How::LeavingStatistics {
        node.set_attribute("momentum", AttributeValue::Float(1.0));
    }
    node.name = mirror_name(&readable_name(graph, &original), number);
    node.set_attribute(MARKER, AttributeValue::Int(i64::from(number)));
    for input in node.inputs.iter_mut().flatten() {
        *input = latest[input.index()];
    }
    // A mirror may be another operator with fewer outputs.
    let places = original.outputs.iter().zip(&instance.outputs).enumerate();
    for (position, (&tensor, output)) in places.take(node.outputs.len()) {
        let Some(tensor) = tensor else {
            continue;
        };
        if !output.read && operators::may_omit_output(&original, position) {
            node.outputs[position] = None;
            continue;
        }
        let new = result_of_mirror(graph, tensor, number);
        node.outputs[position] = Some(new);
        if output.supplied {
            latest[tensor.index()] = new;
        }
    }
    let is_dropped = |output: &Option<TensorId>| output.is_none();
    while !operators::keeps_places(&original) && node.outputs.last().is_some_and(is_dropped) {
        node.outputs.pop();
    }
    graph.add_node(node)
}

/// Adds a tensor for what copy number `number` computes of this one.
fn result_of_mirror(graph: &mut Graph, of: TensorId, number: u32) -> TensorId {
    let of = graph.tensor(of).clone();
    let name = graph.free_tensor_name(&mirror_name(&of.name, number));
    let kind = TensorKind::Value;
    graph.add_tensor(Tensor { name, kind, ..of })
}

/// Adds copy number `number` of the node called `name`, made of `parts`, and says in `latest` what it
/// computes. The last part has the mirror's name.
pub(crate) fn mirror_of_parts(
    graph: &mut Graph,
    parts: &[Part],
    name: &str,
    number: u32,
    latest: &mut [TensorId],
) -> Vec<NodeId> {
    let mirror = mirror_name(name, number);
    let written: BTreeMap<TensorId, TensorId> = parts
        .iter()
        .flat_map(Part::tensors_written)
        .map(|tensor| (tensor, result_of_mirror(graph, tensor, number)))
        .collect();
    let read = |tensor: TensorId| latest[tensor.index()];
    let nodes = nodes_of(graph, parts, &mirror, read, |tensor| written[&tensor]);
    let last = nodes.len() - 1;
    let added = nodes.into_iter().enumerate().map(|(position, mut node)| {
        node.name = match position == last {
            true => mirror.clone(),
            false => format!("{mirror}/{position}"),
        };
        node.set_attribute(MARKER, AttributeValue::Int(i64::from(number)));
        graph.add_node(node)
    });
    let added = added.collect();
    for (of, new) in written {
        latest[of.index()] = new;
    }
    added
}

/// Adds a node that does what copies of the Dropout called `id` do.
pub(crate) fn mirror_of_dropout(graph: &mut Graph, id: NodeId) -> NodeId {
    let original = graph.node(id);
    let mut node = dropout_from_mask(original);
    node.name = mirror_name(&readable_name(graph, original), 1);
    node.set_attribute(MARKER, AttributeValue::Int(1));
    if let Some(written) = original.output(0) {
        node.outputs = vec![Some(result_of_mirror(graph, written, 1))];
    }
    graph.add_node(node)
}

/// The name of the node that this is a mirror of; that of `node` if it is none.
pub fn original_name(graph: &Graph, node: &Node) -> String {
    mirrored(node).map_or_else(|| readable_name(graph, node), str::to_owned)
}

/// DropoutGrad multiplies by the same mask and the same scale as Dropout did.
fn dropout_from_mask(original: &Node) -> Node {
    let mut inputs = vec![original.input(0), original.output(1)];
    inputs.extend(original.inputs.iter().skip(1));
    while inputs.last().is_some_and(Option::is_none) {
        inputs.pop();
    }
    Node::new(
        "",
        "com.microsoft",
        "DropoutGrad",
        inputs,
        vec![original.output(0)],
    )
}

/// The name of `node`; its operator and first output where it has none.
pub fn readable_name(graph: &Graph, node: &Node) -> String {
    if !node.name.is_empty() {
        return node.name.clone();
    }
    let output = node
        .writes()
        .next()
        .map_or("", |tensor| &graph.tensor(tensor).name);
    format!("{}:{output}", node.op_type)
}

#[cfg(test)]
mod tests;
