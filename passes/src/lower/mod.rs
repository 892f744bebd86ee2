//! Training operators written in standard ones, so that a runtime without training runs the graph.
//!
//! **Does**: replaces each operator of the [table](table::TABLE) by nodes that compute the same; then shapes are
//! settled, so that no tensor is kept only to be asked for its shape. Constants come first, as `Constant` nodes, then shapes; all other new
//! nodes stand where the operator stood. A Sum of two that a Gemm would take in becomes an Add (`sums`).
//!
//! **Needs**: ranks and types of what the operators read. They come from the file's declarations, or follow from them.
//!
//! **Keeps**: all results and their names, but for accumulation buffers: a kernel that writes to what the caller owns
//! has no standard counterpart, so the output that said *it is done* becomes the new value itself.

mod activation;
mod arithmetic;
mod body;
mod buffers;
mod convolution;
mod declared;
mod dropout;
mod facts;
mod gather;
mod gru;
mod loss;
mod lstm;
mod normalization;
mod operation;
mod pooling;
mod probe;
mod recurrent;
mod resize;
mod settled;
mod site;
mod slice;
mod softmax;
mod sums;
mod table;
mod training;
mod update;

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::graph::{Graph, Node, NodeId, TensorId, Uses, topological};
use crate::rewrite::infer_shapes::{InferShapes, InferShapesError, undeclared_input};
use facts::{Facts, fault_of_shapes};
use probe::Probes;
use site::{LoweringSite, Shared};

pub use site::Obstacle;
pub use table::{Exactness, Lowering, TABLE};
pub use update::{AdamW, Update};

/// What was done to a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoweringSummary {
    /// How many nodes of each operator were replaced.
    pub replaced: BTreeMap<&'static str, usize>,
    /// The outputs that have the new value of an accumulation buffer, which stays as it was: the output, the buffer.
    pub accumulated: Vec<(String, String)>,
    /// How many weights the graph updates itself.
    pub updated: usize,
    /// The operator set that the file asked for, and the one that it needs now, where that is newer.
    pub raised: Option<(i64, i64)>,
}

/// Why a graph cannot be lowered.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)]
pub enum LowerError {
    #[error("{node}: there is no form of {operator} in standard operators")]
    NoForm { node: String, operator: String },
    #[error("{node}: its subgraph has a {operator}, and is not looked into")]
    InBody { node: String, operator: String },
    #[error("{node}: {problem}")]
    Node { node: String, problem: Obstacle },
    #[error(
        "graph input {tensor:?} is not declared as a tensor of known type and rank, so shapes cannot be worked out; {node}: {problem}"
    )]
    Undeclared {
        tensor: String,
        node: String,
        problem: Obstacle,
    },
    #[error("{fault}, so shapes cannot be worked out; {node}: {problem}")]
    Shapeless {
        fault: Box<InferShapesError>,
        node: String,
        problem: Obstacle,
    },
    #[error(transparent)]
    Sizes(#[from] Box<InferShapesError>),
    #[error(
        "the file asks for operator set {found} of ai.onnx; expected {OLDEST} or newer: export it again"
    )]
    Opset { found: i64 },
    #[error("the nodes form a circle")]
    Circle,
    #[error(
        "no node accumulates the gradient of a weight (InPlaceAccumulatorV2), so there is no weight to update; expected \
         training_model.onnx as onnxruntime.training.artifacts.generate_artifacts writes it"
    )]
    NothingToUpdate,
}

/// Below, axes are attributes of operators for which they became inputs.
const OLDEST: i64 = 13;

/// Replaces all operators of the table. `bindings` are sizes of symbolic dimensions; they only help to find out how many
/// dimensions a tensor has, and those that the graph does not accept change nothing. With an `update`, weights are updated in
/// place of the accumulation of their gradients. After an error the graph must not be used.
pub fn lower(
    graph: &mut Graph,
    bindings: &BTreeMap<String, u64>,
    update: Option<Update>,
) -> Result<LoweringSummary, LowerError> {
    if topological(graph, &Uses::of(graph)).is_err() {
        return Err(LowerError::Circle);
    }
    let given = InferShapes {
        bindings: bindings.clone(),
    };
    given.check_bindings(graph).map_err(Box::new)?;
    let original = graph.clone();
    let mut facts = Facts::of(graph, bindings);
    let find_out = |facts: &mut Facts| {
        let probes = Probes::of(&original, &original);
        probes.map(|probes| facts.take_numbers(&|id, axis| probes.number(id, axis)))
    };
    // What the file says is enough for most graphs, and what follows from it takes longer to find out.
    if convolution::want_sizes(graph, &facts) {
        find_out(&mut facts);
    }
    let lowered = lower_by(graph, bindings, &facts, update);
    if let Err(LowerError::Node {
        problem: Obstacle::Size { .. },
        ..
    }) = lowered
        && find_out(&mut facts).is_some()
    {
        *graph = original;
        return lower_by(graph, bindings, &facts, update);
    }
    lowered
}

/// The same by these facts.
fn lower_by(
    graph: &mut Graph,
    bindings: &BTreeMap<String, u64>,
    facts: &Facts,
    update: Option<Update>,
) -> Result<LoweringSummary, LowerError> {
    let opset = graph.opset().unwrap_or(OLDEST);
    let uses = Uses::of(graph);
    let original = graph.clone();
    if let Some((id, problem)) = buffers::fault(graph, &uses) {
        let node = describe(graph, id);
        return Err(LowerError::Node { node, problem });
    }
    let mut shared = Shared::new(graph);
    let mut lowered = LoweringSummary::default();
    let mut order: Vec<NodeId> = Vec::with_capacity(graph.order().len());
    let mut updates: Vec<Vec<NodeId>> = Vec::new();
    for id in graph.order().to_vec() {
        let node = graph.node(id);
        let Some(entry) = table::entry(node) else {
            if let Some(inner) = within_bodies(node) {
                return Err(LowerError::InBody {
                    node: describe(graph, id),
                    operator: inner,
                });
            }
            if table::is_training_only(node) {
                return Err(LowerError::NoForm {
                    node: describe(graph, id),
                    operator: node.op_type.clone(),
                });
            }
            order.push(id);
            continue;
        };
        if opset < OLDEST {
            return Err(LowerError::Opset { found: opset });
        }
        let described = describe(graph, id);
        let update = update.filter(|_| buffers::accumulates(node));
        let mut site = LoweringSite::new(graph, &uses, facts, &mut shared, id);
        let written = match update {
            Some(update) => update::update(&mut site, update),
            None => (entry.write)(&mut site),
        };
        let made = written.and_then(|()| site.finish());
        let made = made.map_err(|problem| {
            let node = described;
            if !problem.is_unknown() {
                return LowerError::Node { node, problem };
            }
            if let Some(input) = undeclared_input(&original) {
                let tensor = original.tensor(input).name.clone();
                return LowerError::Undeclared {
                    tensor,
                    node,
                    problem,
                };
            }
            match fault_of_shapes(&original, bindings) {
                Some(fault) => LowerError::Shapeless {
                    fault: Box::new(fault),
                    node,
                    problem,
                },
                None => LowerError::Node { node, problem },
            }
        })?;
        order.extend(&made);
        if update.is_some() {
            updates.push(made);
        }
        *lowered.replaced.entry(entry.name).or_default() += 1;
    }
    let constants = shared.constants();
    graph.set_order(constants.into_iter().chain(order).collect());
    lowered.updated = updates.len();
    match shared.step {
        Some(_) => drop_unread(graph, &shared.dropped),
        None if update.is_some() => return Err(LowerError::NothingToUpdate),
        None => {}
    }
    // By what they write: nodes get other numbers.
    let updates: Vec<Vec<TensorId>> = updates
        .iter()
        .map(|nodes| {
            nodes
                .iter()
                .flat_map(|&id| graph.node(id).writes())
                .collect()
        })
        .collect();
    if !lowered.replaced.is_empty() {
        settled::settle(graph, &original, &mut shared);
        dropout::keep(graph);
        sums::add_instead(graph, facts);
        declared::declare(graph, bindings);
    }
    // Who waited for a shape only waits for nothing once shapes are settled.
    if let Some(step) = shared.step {
        update::wait_for_readers(graph, step, &updates);
    }
    lowered.accumulated = shared.accumulated;
    if shared.opset > opset {
        graph.opsets.insert(String::new(), shared.opset);
        lowered.raised = Some((opset, shared.opset));
    }
    let contrib = graph
        .node_ids()
        .any(|id| graph.node(id).domain == site::CONTRIB);
    if contrib {
        graph.opsets.entry(site::CONTRIB.to_owned()).or_insert(1);
    }
    Ok(lowered)
}

/// Takes out the outputs among `dropped`, and the inputs that nobody reads any more.
fn drop_unread(graph: &mut Graph, dropped: &BTreeSet<TensorId>) {
    let outputs = graph.outputs.iter().copied();
    graph.outputs = outputs.filter(|output| !dropped.contains(output)).collect();
    let uses = Uses::of(graph);
    let is_left = |input: &TensorId| !dropped.contains(input) || !uses.readers(*input).is_empty();
    graph.inputs.retain(is_left);
}

/// An operator of the runtime that trains in a subgraph of the node.
fn within_bodies(node: &Node) -> Option<String> {
    node.bodies.iter().find_map(|body| {
        let mut nodes = body.graph.node_ids().map(|id| body.graph.node(id));
        nodes.find_map(|inner| {
            let trains = table::entry(inner).is_some() || table::is_training_only(inner);
            match trains {
                true => Some(inner.op_type.clone()),
                false => within_bodies(inner),
            }
        })
    })
}

/// As the file names it.
fn describe(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    match node.name.is_empty() {
        false => format!("{} {:?}", node.op_type, node.name),
        true => format!("node {} ({})", id.index(), node.op_type),
    }
}

#[cfg(test)]
mod tests;
