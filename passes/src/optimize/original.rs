//! The unmodified graph, and what is known of it before anything is planned.

use std::ptr;
use std::sync::{Arc, OnceLock};

use super::listing::as_listed;
use super::simulation::{
    describe, in_default_order, in_reported_session, larger, need, simulated, unmodified,
};
use super::variant_graph::{Choices, apply};
use super::{BudgetRequest, Execution, Peak, PlanOptions};
use crate::analysis::cost::{costs, time_of_all};
use crate::analysis::sequences::sequences;
use crate::bytes::Bytes;
use crate::cost::Cost;
use crate::graph::{Graph, NodeId, Uses, topological};
use crate::operators::variants::{Group, TRANSPOSED};
use crate::operators::{Provider, clears_behind_its_result};
use crate::runtime::Runtime;
use crate::runtime::as_run::as_run;
use crate::runtime::executions::Reserved;
use crate::runtime::liveness::Liveness;
use crate::runtime::rounding::Rounding;
use crate::search::first_orders;
use crate::watch::Watch;

pub(super) struct Original<'g> {
    /// Without declarations that are wrong.
    pub(super) graph: &'g Graph,
    /// With them.
    declared: &'g Graph,
    /// By node id.
    pub(super) costs: Vec<Cost>,
    /// What it needs in the session of which its peak is told: as it is declared, or without declarations that are wrong, whichever
    /// is more, so that it fits that as it is written.
    pub(super) liveness: Liveness,
    /// Pairs of nodes of which the first has to run before the second in every order. Variants replace none of them.
    pub(super) sequences: Vec<(NodeId, NodeId)>,
    /// Nodes whose kernels write behind their results, and what every plan has in their place: where tensors lie elsewhere, something else is
    /// behind them.
    pub(super) mended: Choices,
    provider: Provider,
    runtime: Runtime,
    watch: Arc<Watch>,
    orders: OnceLock<Vec<Vec<NodeId>>>,
    run_orders: OnceLock<Vec<Vec<NodeId>>>,
    needs: OnceLock<(Vec<Execution>, Reserved)>,
}

impl<'g> Original<'g> {
    /// For the device and the settings in `options`; `declared` is the same graph with declarations that are wrong.
    pub(super) fn of(
        (graph, declared): (&'g Graph, &'g Graph),
        options: &PlanOptions,
    ) -> Original<'g> {
        let costs = costs(graph, &options.device, &options.overrides);
        let is_right = ptr::eq(graph, declared);
        let most = |of: &dyn Fn(&Graph) -> Liveness| match is_right {
            true => of(graph),
            false => larger(graph, of(declared), of(graph)),
        };
        let default = most(&|graph| in_default_order(&as_listed(graph), &costs, options));
        let liveness = most(&|graph| in_reported_session(&as_listed(graph), &costs, options));
        let sequences = sequences(graph, &default.nodes());
        Original {
            graph,
            declared,
            mended: mended(graph, &sequences, options),
            sequences,
            liveness,
            costs,
            provider: options.device.provider,
            runtime: options.runtime,
            watch: options.watch.clone(),
            orders: OnceLock::new(),
            run_orders: OnceLock::new(),
            needs: OnceLock::new(),
        }
    }

    /// That in detail.
    pub(super) fn peak(&self, reserve: Bytes) -> Peak {
        describe(self.graph, &self.costs, &self.liveness, reserve)
    }

    /// What a budget leaves for the graph besides the reserve; nothing for the smallest peak.
    pub(super) fn budget(&self, request: BudgetRequest, reserve: Bytes) -> Option<Bytes> {
        let (fixed, peak) = (self.liveness.fixed, need(self.graph, &self.liveness));
        match request {
            BudgetRequest::Bytes(bytes) => Some(bytes - reserve),
            BudgetRequest::PartOfPeak(of) => Some((peak + reserve).part(of) - reserve),
            BudgetRequest::FixedPlusPart(of) => Some(fixed + (peak - fixed).part(of)),
            BudgetRequest::Smallest => None,
        }
    }

    /// What it needs in each order and at each level, and what the arena reserves for it. `options` are those that it was made
    /// with.
    pub(super) fn needs(&self, options: &PlanOptions) -> &(Vec<Execution>, Reserved) {
        self.needs.get_or_init(|| {
            let of = |graph| unmodified(graph, &self.costs, options);
            let (mut needs, reserved) = of(self.graph);
            if ptr::eq(self.graph, self.declared) {
                return (needs, reserved);
            }
            let (declared, more) = of(self.declared);
            for (need, other) in needs.iter_mut().zip(declared) {
                need.bytes = need.bytes.max(other.bytes);
            }
            (needs, reserved.max(more))
        })
    }

    /// Has the node to run before or after another though nothing passes between them? It must stay what it is then.
    pub(super) fn is_in_sequence(&self, id: NodeId) -> bool {
        is_in(&self.sequences, id)
    }

    /// Is the node one of those that every plan replaces?
    pub(super) fn is_mended(&self, id: NodeId) -> bool {
        self.mended.iter().any(|&(mended, _)| mended == id)
    }

    /// It with what every plan replaces, should there be something.
    pub(super) fn with_mended(&self, options: &PlanOptions) -> Option<Graph> {
        (!self.mended.is_empty()).then(|| apply(self.graph, &self.mended, options))
    }

    /// Nanoseconds of all its nodes.
    pub(super) fn time(&self) -> u64 {
        time_of_all(self.graph, &self.costs)
    }

    /// The orders of first computations that are worth a look, the best first; never empty.
    pub(super) fn orders(&self) -> &[Vec<NodeId>] {
        self.orders
            .get_or_init(|| self.orders_of(self.graph, &self.costs))
    }

    /// The orders in which the runtime runs it, optimized and not, where its file lists its nodes as it does and where it lists them in
    /// each of [`Original::orders`]; each once, of all nodes, and only such as keep the sequences. `options` are those that it was made with.
    pub(super) fn run_orders(&self, options: &PlanOptions) -> &[Vec<NodeId>] {
        self.run_orders.get_or_init(|| {
            let mut listings = vec![as_listed(self.graph).into_owned()];
            listings.extend(self.orders().iter().map(|order| {
                let mut listing = self.graph.clone();
                listing.set_order(order.clone());
                listing
            }));
            let mut orders: Vec<Vec<NodeId>> = Vec::new();
            for listing in &listings {
                for run in simulated(listing, &self.costs, options) {
                    let order = with_all_nodes(listing, &run.liveness.nodes());
                    if !orders.contains(&order) && self.keeps_sequences(&order) {
                        orders.push(order);
                    }
                }
            }
            orders
        })
    }

    /// Does the first of each pair in [`Original::sequences`] run before the second in that order, which may have nodes that are new?
    pub(super) fn keeps_sequences(&self, order: &[NodeId]) -> bool {
        let nodes = order.iter().map(|id| id.index() + 1).max();
        let mut place = vec![0; nodes.unwrap_or(0).max(self.graph.node_count())];
        for (step, id) in order.iter().enumerate() {
            place[id.index()] = step;
        }
        let mut pairs = self.sequences.iter();
        pairs.all(|(first, second)| place[first.index()] < place[second.index()])
    }

    /// Those of the same graph with variants; `costs` by node id.
    pub(super) fn orders_of(&self, varied: &Graph, costs: &[Cost]) -> Vec<Vec<NodeId>> {
        let run = as_run(varied, self.provider, self.runtime, |_| true);
        let mut orders = first_orders(
            &run,
            self.provider,
            costs,
            &self.sequences,
            self.runtime,
            &self.watch,
        );
        for order in &mut orders {
            put_constants_first(varied, order);
        }
        orders
    }
}

/// Is the node in one of these pairs?
fn is_in(pairs: &[(NodeId, NodeId)], id: NodeId) -> bool {
    let mut pairs = pairs.iter();
    pairs.any(|&(first, second)| first == id || second == id)
}

/// What takes the place of kernels that write behind their results, as far as the user lets forms of convolutions be replaced.
fn mended(graph: &Graph, sequences: &[(NodeId, NodeId)], options: &PlanOptions) -> Choices {
    let provider = options.device.provider;
    let overrun = |id: &NodeId| clears_behind_its_result(graph, graph.node(*id));
    let mut nodes = graph.order().iter().copied().filter(overrun).peekable();
    if provider != Provider::Cpu
        || nodes.peek().is_none()
        || !options.variants.contains(&Group::Convolution)
    {
        return Choices::new();
    }
    let uses = Uses::of(graph);
    let rounding = Rounding::of(graph, provider, options.runtime.release);
    let can_be = |&id: &NodeId| {
        !rounding.touches(graph.node(id))
            && !is_in(sequences, id)
            && TRANSPOSED.parts(graph, &uses, id).is_some()
    };
    let mut mended: Choices = nodes.filter(can_be).map(|id| (id, &TRANSPOSED)).collect();
    mended.sort_by_key(|&(id, _)| id);
    mended
}

/// The runtime makes initializers of Constant nodes, so the simulation lets them stand anywhere; one that reads something, which the
/// runtime does not refuse, stands behind that.
fn put_constants_first(graph: &Graph, order: &mut [NodeId]) {
    order.sort_by_key(|&id| {
        let node = graph.node(id);
        !node.is("", "Constant") || node.reads().next().is_some()
    });
}

/// All nodes in the order of those that are `executed`; where the runtime merges, fuses or folds some away, they stand before
/// their first reader.
fn with_all_nodes(graph: &Graph, executed: &[NodeId]) -> Vec<NodeId> {
    let uses = Uses::of(graph);
    let mut place = vec![usize::MAX; graph.node_count()];
    for (step, id) in executed.iter().enumerate() {
        place[id.index()] = step;
    }
    for &id in graph.order().iter().rev() {
        if place[id.index()] == usize::MAX {
            let readers = graph.node(id).writes().flat_map(|t| uses.readers(t));
            let first = readers.map(|reader| place[reader.index()]).min();
            place[id.index()] = first.unwrap_or(usize::MAX);
        }
    }
    let mut ordered = graph.clone();
    let mut order = graph.order().to_vec();
    order.sort_by_key(|id| place[id.index()]);
    put_constants_first(graph, &mut order);
    ordered.set_order(order);
    topological(&ordered, &uses).unwrap_or_else(|_| graph.order().to_vec())
}
