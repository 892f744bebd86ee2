//! What is read of a graph before it is planned: the shapes of all tensors, what the runtime takes apart, and whether it runs at all.

use std::borrow::Cow;

use super::listing::as_listed;
use super::sizes::{LIMIT, check_sizes};
use super::updates;
use super::{OptimizeError, Optimized, PlanOptions};
use crate::graph::{Graph, Node, NodeId};
use crate::operators::{self, Provider};
use crate::rewrite::infer_shapes::{
    self, InferShapes, InferShapesError, Stale, advised, without_stale,
};
use crate::rewrite::take_apart::TakeApart;
use crate::runtime::functions::awaits_types;
use crate::runtime::known_shapes::infer_as;
use crate::runtime::{Release, is_for_training};
use crate::verify;

/// The graph with the shapes of all tensors, by the given dimensions.
pub fn with_shapes(graph: &Graph, options: &PlanOptions) -> Result<Graph, InferShapesError> {
    let mut shaped = graph.clone();
    let bindings = options.bindings.clone();
    let run = options.runner.run(&InferShapes { bindings }, &mut shaped);
    run.map_err(|error| advised(graph, &options.bindings, error))?;
    infer_as(&mut shaped, options.runtime.release);
    Ok(shaped)
}

/// `graph`, with the types of all tensors where they decide what is taken apart.
fn with_types<'a>(
    graph: &'a Graph,
    options: &PlanOptions,
) -> Result<Cow<'a, Graph>, InferShapesError> {
    let mut nodes = graph.order().iter().map(|&id| graph.node(id));
    match nodes.any(|node| awaits_types(graph, node, options.device.provider)) {
        true => with_shapes(graph, options).map(Cow::Owned),
        false => Ok(Cow::Borrowed(graph)),
    }
}

/// The graph as the runtime has it before it runs or optimizes anything, with the shapes of all tensors. The pieces of what it takes
/// apart come last, whatever reads them.
pub(super) fn as_loaded(graph: &Graph, options: &PlanOptions) -> Result<Graph, InferShapesError> {
    let provider = options.device.provider;
    let mut graph = with_types(graph, options)?.into_owned();
    let pieces = TakeApart { provider }.as_the_runtime_does(&mut graph);
    let mut graph = with_shapes(&graph, options)?;
    if !pieces.is_empty() {
        let mut last = vec![false; graph.node_count()];
        for piece in &pieces {
            last[piece.index()] = true;
        }
        let mut order = graph.order().to_vec();
        order.sort_by_key(|id| last[id.index()]);
        graph.set_order(order);
    }
    Ok(graph)
}

/// The graph as it is measured: as the runtime has it, of sizes that can be.
pub(super) fn weigh(graph: &Graph, options: &PlanOptions) -> Result<Graph, OptimizeError> {
    verify::structure(graph).map_err(OptimizeError::Input)?;
    let graph = as_loaded(graph, options)?;
    check_sizes(&graph, options, LIMIT)?;
    Ok(graph)
}

/// What `graph` declares of sizes otherwise than its nodes make them, by the given dimensions.
pub fn stale(graph: &Graph, options: &PlanOptions) -> Vec<Stale> {
    match with_shapes(graph, options) {
        Ok(shaped) => infer_shapes::stale(graph, &shaped),
        // Whoever plans will say so.
        Err(_) => Vec::new(),
    }
}

/// Nodes of which the subgraphs' memory is not counted, and why, by the given dimensions and unless the user says it.
pub fn uncounted(graph: &Graph, options: &PlanOptions) -> Vec<(String, String)> {
    let is_said = |node: &Node| {
        let said = options.overrides.get(&node.name);
        said.is_some_and(|said| said.workspace_bytes.is_some())
    };
    match with_shapes(graph, options) {
        Ok(shaped) => infer_shapes::uncounted(&shaped, is_said),
        Err(_) => Vec::new(),
    }
}

/// The graph as it is planned: as the runtime takes it apart, with the shapes of all tensors.
pub(super) fn understand(input: &Graph, options: &PlanOptions) -> Result<Graph, OptimizeError> {
    verify::structure(input).map_err(OptimizeError::Input)?;
    check_runs(input, options.runtime.release)?;
    let provider = options.device.provider;
    let mut graph = with_types(input, options)?.into_owned();
    if provider == Provider::Cpu {
        check_half(&graph, options.runtime.release)?;
    }
    updates::check(&graph, provider).map_err(OptimizeError::Input)?;
    let Ok(_) = options.runner.run(&TakeApart { provider }, &mut graph);
    let graph = with_shapes(&graph, options)?;
    verify::declarations(&graph, &options.permitted()).map_err(OptimizeError::Input)?;
    verify::overwrites(&graph).map_err(OptimizeError::Input)?;
    check_sizes(&graph, options, LIMIT)?;
    Ok(graph)
}

/// Gives `input` itself where the result is it, only taken apart: the runtime does that to it as well.
pub(super) fn put_together(
    row: &mut [Result<Optimized, OptimizeError>],
    apart: &Graph,
    input: &Graph,
    options: &PlanOptions,
) -> Result<(), OptimizeError> {
    let is_whole = |&id: &NodeId| apart.node(id).op_type == input.node(id).op_type;
    if input.order().iter().all(is_whole) {
        return Ok(());
    }
    let listed = as_listed(apart);
    let found = row.iter_mut().flatten();
    for found in found.filter(|found| found.graph == *listed) {
        let whole = with_shapes(input, options)?;
        found.graph = as_listed(&without_stale(&whole)).into_owned();
    }
    Ok(())
}

/// Is it a graph that ckpt-opt plans, and that `release` runs?
fn check_runs(graph: &Graph, release: &'static Release) -> Result<(), OptimizeError> {
    let nodes = graph.order().len();
    if release.trains {
        let is_one = is_training_graph(graph);
        return is_one
            .then_some(())
            .ok_or(OptimizeError::NotTraining { nodes });
    }
    let nodes = || graph.order().iter().map(|&id| graph.node(id));
    let named = |node: &Node| format!("{} \"{}\"", node.op_type, node.name);
    if let Some(node) = nodes().find(|node| is_for_training(node)) {
        let node = named(node);
        return Err(OptimizeError::ForTraining { node, release });
    }
    if let Some(node) = nodes().find(|node| release.takes_apart(node)) {
        let node = named(node);
        return Err(OptimizeError::TakenApart { node, release });
    }
    Ok(())
}

/// Does `release` round on the CPU as is known here? The types of all tensors must be known.
fn check_half(graph: &Graph, release: &'static Release) -> Result<(), OptimizeError> {
    let mut nodes = graph.order().iter().map(|&id| graph.node(id));
    match nodes.find(|node| release.has_other_kernel(graph, node)) {
        Some(node) => Err(OptimizeError::HalfKernel {
            node: format!("{} \"{}\"", node.op_type, node.name),
            release,
        }),
        None => Ok(()),
    }
}

/// Does any node compute a gradient or accumulate one? Of what the model's own functions are made of, nothing tells.
fn is_training_graph(graph: &Graph) -> bool {
    let mut nodes = graph.order().iter().map(|&id| graph.node(id));
    nodes.any(|node| operators::computes_gradients(node) || node.piece_of.is_some())
}
