//! Makes ONNX Runtime run the nodes in an order that fits the budget, whatever order it is set to.
//!
//! Left alone, the DEFAULT order hoists mirrors to the front and puts accumulators off to the
//! end. A barrier hands a tensor x on as x' without a copy once other nodes ran (`runtime/barrier.rs`), so a reader of x'
//! runs after all of these. Whoever reads x further on in the file reads x' as well: it is to run
//! after them anyway, and needs no barrier of its own for that. A barrier before node i waits for every *open* node:
//! earlier in the file, and read by nobody up to i. With it, all earlier nodes run before i.
//!
//! A barrier at every node makes any order a chain. Most are not needed: barriers are added where
//! a simulated run exceeds the budget, then taken out again while all simulated runs still
//! fit, and in the end each waits for no more nodes than it has to. What fits is what the runtime's settings make of an
//! order: its memory pattern and the buffers that it uses again take more where nodes run as they please.

mod blame;
mod choice;
mod packing;
mod placement;
mod runs;
mod thinning;

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::bytes::Bytes;
use crate::cost::Cost;
use crate::graph::{Graph, NodeId, TensorId};
use crate::operators::Provider;
use crate::runtime::Runtime;
use crate::runtime::barrier::BarrierWriter;
use crate::runtime::liveness;
use crate::watch::Watch;

use choice::{BarrierChoice, PlannedOrder};
use placement::{Barrier, Placement};

/// What barriers have to hold in, but for the budget.
#[derive(Clone, Copy, Debug)]
pub struct Conditions<'c> {
    /// What the runtime keeps for each tensor that lives, besides its elements. The outputs of a
    /// barrier that nobody reads live to the end of the step.
    pub object: Bytes,
    /// Who runs the graph.
    pub provider: Provider,
    /// How it uses memory. Dimensions get names afterwards
    /// ([`ColourShapes`](super::colour_shapes::ColourShapes)), unless both settings are off.
    pub runtime: Runtime,
    /// Pairs of nodes of which the first has to run before the second in every order.
    pub sequences: &'c [(NodeId, NodeId)],
    /// Who may end the choice: what barriers are there then stay, should they fit.
    pub watch: Option<&'c Watch>,
}

/// A graph whose order barriers can enforce, within one budget or another.
/// **Needs**: nodes listed in a topological order; concrete shapes.
pub struct Enforceable<'c> {
    graph: Graph,
    /// By node id.
    costs: Vec<Cost>,
    conditions: Conditions<'c>,
    /// Made once somebody asks.
    placement: OnceLock<Placement>,
    planned: OnceLock<PlannedOrder>,
}

/// How long to look for barriers that are not needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinning {
    /// Most are found: for a graph that is only looked at.
    Quick,
    /// As good as all are found.
    Thorough,
}

/// No set of barriers keeps the peak within the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peak is {reached} in the runtime's order, above the budget of {budget}")]
pub struct NotEnforceable {
    /// The smallest peak that barriers reached.
    pub reached: Bytes,
    /// Was it reached by leaving barriers out? Then leaving more out may reach less.
    pub by_fewer: bool,
    /// What it should have been.
    pub budget: Bytes,
}

impl<'c> Enforceable<'c> {
    /// `costs` are by node id.
    pub fn new(graph: Graph, costs: Vec<Cost>, conditions: Conditions<'c>) -> Enforceable<'c> {
        Enforceable {
            graph,
            costs,
            conditions,
            placement: OnceLock::new(),
            planned: OnceLock::new(),
        }
    }

    /// The graph without barriers.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The same.
    pub fn into_graph(self) -> Graph {
        self.graph
    }

    /// What its nodes cost, by node id.
    pub fn costs(&self) -> &[Cost] {
        &self.costs
    }

    /// **Does**: inserts as few barriers as it can so that the peak stays within the
    /// budget, what the caller owns included, and the sequences are kept, in every execution order.
    /// **Needs**: that the order of the file fits the budget itself.
    /// **Keeps**: every node's computation; graph inputs, outputs, initializers; all names.
    pub fn within(&self, budget: Bytes, thinning: Thinning) -> Result<Graph, NotEnforceable> {
        let fixed = liveness::fixed_bytes(&self.graph);
        let choice = BarrierChoice::new(self, (budget - fixed).0, thinning);
        let barriers = choice.choose().map_err(|missed| NotEnforceable {
            reached: fixed + Bytes(missed.peak),
            by_fewer: missed.by_fewer,
            budget,
        })?;
        Ok(self.with(&barriers))
    }

    /// What the file's order itself needs, without any barriers: as the graph is optimized for the session that is promised, or as it is,
    /// whichever is less.
    pub fn planned_peak(&self) -> Bytes {
        let choice = BarrierChoice::new(self, 0, Thinning::Quick);
        liveness::fixed_bytes(&self.graph) + Bytes(choice.planned().need.most)
    }

    /// The same with both settings off.
    pub fn lean_peak(&self) -> Bytes {
        let choice = BarrierChoice::new(self, 0, Thinning::Quick);
        liveness::fixed_bytes(&self.graph) + Bytes(choice.planned().lean)
    }

    /// The same nodes in another order that needs at most `most` without barriers, where it is the memory pattern that needs more:
    /// each tensor gets the smallest gap that is large enough when it is computed, so that what is there when others are placed
    /// decides how large the block becomes.
    /// **Keeps**: everything but the order of the nodes.
    pub fn packed(&self, most: Bytes) -> Option<Enforceable<'c>> {
        let within = most.0.checked_sub(liveness::fixed_bytes(&self.graph).0)?;
        let order = BarrierChoice::new(self, 0, Thinning::Quick).packed(within)?;
        let mut graph = self.graph.clone();
        let listed = self.graph.order();
        let packed = order.iter().map(|&place| listed[place as usize]);
        // Constants do not run, so nothing says where they stand.
        let is_constant = |id: &NodeId| self.graph.node(*id).is("", "Constant");
        let (constants, others): (Vec<_>, Vec<_>) = packed.partition(is_constant);
        graph.set_order([constants, others].concat());
        Some(Enforceable::new(graph, self.costs.clone(), self.conditions))
    }

    /// As [`Enforceable::within`] the smallest peak that barriers reach.
    pub fn within_smallest_peak(&self, thinning: Thinning) -> Graph {
        // It fits by construction; if not, the simulation of the graph tells.
        let barriers = BarrierChoice::new(self, self.smallest(), thinning).choose();
        self.with(&barriers.unwrap_or_default())
    }

    fn placement(&self) -> &Placement {
        let Conditions {
            provider, runtime, ..
        } = self.conditions;
        self.placement
            .get_or_init(|| Placement::new(&self.graph, provider, &self.costs, runtime))
    }

    /// Without what the caller owns.
    fn smallest(&self) -> u64 {
        let all = vec![true; self.graph.order().len()];
        BarrierChoice::new(self, 0, Thinning::Quick).peak(&all)
    }

    fn with(&self, barriers: &[Barrier]) -> Graph {
        let mut graph = self.graph.clone();
        insert(&mut graph, barriers, self.conditions.runtime);
        graph
    }
}

/// Adds the barriers to the graph.
fn insert(graph: &mut Graph, barriers: &[Barrier], runtime: Runtime) {
    let old = graph.order().to_vec();
    let mut order = Vec::with_capacity(old.len() + barriers.len());
    let mut writer = BarrierWriter::new(runtime.release, graph);
    let mut next = barriers.iter().peekable();
    // By tensor: what its readers read instead.
    let mut latest: HashMap<TensorId, TensorId> = HashMap::new();
    for (position, &id) in old.iter().enumerate() {
        let mut waits = None;
        if let Some(barrier) = next.next_if(|b| b.before as usize == position) {
            let passed = TensorId(barrier.passed);
            let now = latest.get(&passed).copied().unwrap_or(passed);
            let waits_for: Vec<TensorId> = barrier.waits.iter().copied().map(TensorId).collect();
            let handed_on = writer.add(graph, &mut order, now, &waits_for);
            latest.insert(passed, handed_on);
            waits = Some(barrier);
        }
        let follows = placement::follows(graph.node(id));
        let is_waited = |tensor: TensorId| waits.is_some_and(|b| TensorId(b.passed) == tensor);
        for input in graph.node_mut(id).inputs.iter_mut().flatten() {
            if let Some(&barrier) = latest.get(input)
                && (follows || is_waited(*input))
            {
                *input = barrier;
            }
        }
        if let Some(barrier) = waits.filter(|barrier| !barrier.lasts) {
            latest.remove(&TensorId(barrier.passed));
        }
        order.push(id);
    }
    graph.set_order(order);
}

#[cfg(test)]
mod tests;
