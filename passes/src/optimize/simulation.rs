//! What a graph needs when the runtime runs it: each order at each level, and the runtime's own share.

use std::borrow::Cow;

use super::listing::as_listed;
use super::variant_graph::{Choices, Form};
use super::{Execution, Peak, PlanOptions, buffers};
use crate::analysis::cost::costs;
use crate::bytes::Bytes;
use crate::cost::Cost;
use crate::enforce::colour_shapes::ColourShapes;
use crate::graph::{Graph, TensorId};
use crate::runtime::executions::{Executions, Reserved};
use crate::runtime::level::Level;
use crate::runtime::liveness::{Holder, Liveness, OtherTensors, TENSOR};
use crate::runtime::order::ExecutionOrder;
use crate::runtime::settings::RuntimeSettings;
use crate::search::{RewrittenRun, Search};

/// A graph that runs, and the way of running it that needs most.
#[derive(Clone)]
pub(super) struct Candidate {
    pub(super) graph: Graph,
    /// By node id.
    pub(super) costs: Vec<Cost>,
    /// The variants that the search put into it.
    pub(super) variants: Choices,
    /// Nanoseconds that its barriers would take as a quick look leaves them, or none if it was not thinned out further.
    pub(super) quick_barriers: u64,
    /// Is it to be written with its nodes as the file lists them, which need not be topological?
    pub(super) listed: bool,
    worst: Liveness,
    /// What it needs in each way of running it, without the reserve.
    executions: Vec<Execution>,
}

impl Candidate {
    /// `graph`, with names for its dimensions that keep the runtime's memory planner from undoing
    /// what the plan saves, should the settings let it. Sizes are hidden already, if at all.
    pub(super) fn coloured(mut graph: Graph, options: &PlanOptions) -> Candidate {
        let provider = options.device.provider;
        if options.runtime.settings != RuntimeSettings::LEAN {
            let runtime = options.runtime;
            let colour = ColourShapes { provider, runtime };
            let Ok(_) = options.runner.run(&colour, &mut graph);
        }
        Candidate::new(graph, options)
    }

    pub(super) fn new(mut graph: Graph, options: &PlanOptions) -> Candidate {
        graph.own_pieces();
        Candidate::judged_by(graph, None, options, |_| true)
    }

    /// `graph` as its file has it.
    pub(super) fn as_listed(graph: &Graph, options: &PlanOptions) -> Candidate {
        Candidate {
            listed: true,
            ..Candidate::judged_by(graph.clone(), Some(&as_listed(graph)), options, |_| true)
        }
    }

    /// What is written, where its nodes stand in another sequence than in the graph.
    pub(super) fn listing(&self) -> Option<Cow<'_, Graph>> {
        self.listed.then(|| as_listed(&self.graph))
    }

    /// `graph` as its file has it, for whoever runs it in one of the ways in which it takes at most `budget`: of these its need is
    /// the largest. Nothing if there is none.
    pub(super) fn where_it_fits(
        graph: &Graph,
        options: &PlanOptions,
        budget: Bytes,
    ) -> Option<Candidate> {
        let fits = |need| need <= budget;
        let candidate = Candidate {
            listed: true,
            ..Candidate::judged_by(graph.clone(), Some(&as_listed(graph)), options, fits)
        };
        (candidate.need() <= budget).then_some(candidate)
    }

    /// What it needs is the largest need of those ways to run it that count.
    fn judged_by(
        graph: Graph,
        listed: Option<&Graph>,
        options: &PlanOptions,
        counts: impl Fn(Bytes) -> bool,
    ) -> Candidate {
        let costs = costs(&graph, &options.device, &options.overrides);
        let executions = executions_of(listed.unwrap_or(&graph), &costs, options);
        let all = executions.simulate(options.runtime.settings);
        let by_level = by_level(&graph, &executions, &all, options);
        let promised = executions.promised(options.runtime.promise);
        // The first of equals, so that the plain DEFAULT order is described where it can be.
        let all = all.into_iter().zip(promised).rev();
        let all = all.filter(|&(_, promised)| promised);
        let worst = all
            .map(|((_, liveness), _)| liveness)
            .filter(|liveness| counts(need(&graph, liveness)))
            .max_by_key(|liveness| need(&graph, liveness))
            .unwrap_or_else(|| Liveness::in_file_order(&graph, options.device.provider, &costs));
        Candidate {
            graph,
            costs,
            variants: Choices::new(),
            quick_barriers: 0,
            listed: false,
            worst,
            executions: by_level,
        }
    }

    /// The largest need: of all orders and levels for which it is promised.
    pub(super) fn need(&self) -> Bytes {
        need(&self.graph, &self.worst)
    }

    /// What the arena reserves, should there be one: the largest of every way of running it.
    pub(super) fn reserved(&self, options: &PlanOptions) -> Reserved {
        let listing = self.listing();
        let graph = listing.as_deref().unwrap_or(&self.graph);
        let executions = executions_of(graph, &self.costs, options);
        let all = executions.reserved(options.runtime.settings).into_iter();
        let promised = executions.promised(options.runtime.promise);
        let all = all.zip(promised).filter(|&(_, promised)| promised);
        all.fold(Reserved::default(), |most, (one, _)| most.max(one))
    }

    /// A lower bound's view of it in the session of which its peak is told; `planned` is what it was planned for. Nothing where nothing is
    /// known of that session.
    pub(super) fn fused_search(&self, planned: &Form, options: &PlanOptions) -> Option<Search> {
        let listing = self.listing();
        let graph = listing.as_deref().unwrap_or(&self.graph);
        let executions = executions_of(graph, &self.costs, options);
        let (order, level) = options.runtime.promise.reported();
        let search = Search::fused(
            RewrittenRun {
                rewritten: graph,
                run: executions.run_in(order, level)?,
                planned: &planned.graph,
                provider: options.device.provider,
                costs: &planned.costs,
                recomputation: &planned.recomputation,
            },
            options.effort,
        );
        Some(match options.runtime.keeps_results_apart() {
            true => search.with_outputs_apart(),
            false => search,
        })
    }

    /// What it needs in each order and at each level.
    pub(super) fn executions(&self, reserve: Bytes) -> Vec<Execution> {
        let all = self.executions.iter().map(|&execution| Execution {
            bytes: execution.bytes + reserve,
            ..execution
        });
        all.collect()
    }

    /// That need in detail.
    pub(super) fn peak(&self, reserve: Bytes) -> Peak {
        describe(&self.graph, &self.costs, &self.worst, reserve)
    }
}

/// A way in which the runtime may run a graph.
pub(super) struct SimulatedRun {
    pub(super) order: ExecutionOrder,
    /// Is its need promised?
    pub(super) promised: bool,
    /// Is it the one of which the peak is told if the graph is unmodified?
    pub(super) reported: bool,
    pub(super) liveness: Liveness,
}

/// Every way in which the runtime may run `graph` with the options' settings, the first of them DEFAULT order, unoptimized; `costs`
/// by node id.
pub(super) fn simulated(graph: &Graph, costs: &[Cost], options: &PlanOptions) -> Vec<SimulatedRun> {
    let executions = executions_of(graph, costs, options);
    let all = executions.simulate(options.runtime.settings).into_iter();
    let promised = executions.promised(options.runtime.promise);
    let (order, level) = options.runtime.promise.reported();
    let reported = executions.at(order, level);
    let runs = all.zip(promised).enumerate();
    let runs = runs.map(|(number, ((order, liveness), promised))| SimulatedRun {
        order,
        promised,
        reported: reported == Some(number),
        liveness,
    });
    runs.collect()
}

/// What `graph` needs at that level, order by order.
pub(super) fn at_level(
    graph: &Graph,
    costs: &[Cost],
    level: Level,
    options: &PlanOptions,
) -> Vec<(ExecutionOrder, Liveness)> {
    let executions = executions_of(graph, costs, options);
    let mut all: Vec<Option<_>> = executions
        .simulate(options.runtime.settings)
        .into_iter()
        .map(Some)
        .collect();
    let ways = executions.by_level(&[level]).into_iter();
    ways.filter_map(|(_, _, way)| all[way].take()).collect()
}

/// What an unmodified graph needs in the session of which its peak is told.
pub(super) fn in_reported_session(
    graph: &Graph,
    costs: &[Cost],
    options: &PlanOptions,
) -> Liveness {
    let (order, level) = options.runtime.promise.reported();
    if (order, level) == (ExecutionOrder::Default, Level::DisableAll) {
        return in_default_order(graph, costs, options);
    }
    let runs = at_level(graph, costs, level, options).into_iter();
    let mut of_order = runs.filter(|&(other, _)| other == order);
    let reported = of_order.next().map(|(_, liveness)| liveness);
    reported.unwrap_or_else(|| in_default_order(graph, costs, options))
}

fn executions_of<'g>(graph: &'g Graph, costs: &[Cost], options: &PlanOptions) -> Executions<'g> {
    let (release, provider) = (options.runtime.release, options.device.provider);
    Executions::of(graph, release, provider, costs)
}

/// The first of [`simulated`], with less work.
pub(super) fn in_default_order(graph: &Graph, costs: &[Cost], options: &PlanOptions) -> Liveness {
    let (provider, runtime) = (options.device.provider, options.runtime);
    Executions::in_default_order(graph, runtime.release, provider, costs, runtime.settings)
        .unwrap_or_else(|| Liveness::in_file_order(graph, provider, costs))
}

/// Which of two runs of the same graph needs more.
pub(super) fn larger(graph: &Graph, one: Liveness, other: Liveness) -> Liveness {
    match need(graph, &one) < need(graph, &other) {
        true => other,
        false => one,
    }
}

/// What `graph` needs as its file has it in each order and at each level, and what the arena reserves for it in the session of which
/// its peak is told.
pub(super) fn unmodified(
    graph: &Graph,
    costs: &[Cost],
    options: &PlanOptions,
) -> (Vec<Execution>, Reserved) {
    let listed = as_listed(graph);
    let executions = executions_of(&listed, costs, options);
    let settings = options.runtime.settings;
    let all = executions.simulate(settings);
    let (order, level) = options.runtime.promise.reported();
    let reported = executions.at(order, level).unwrap_or_default();
    let reserved = executions.reserved(settings).get(reported).copied();
    let mut needs = by_level(graph, &executions, &all, options);
    for need in &mut needs {
        need.bytes += options.reserve;
    }
    (needs, reserved.unwrap_or_default())
}

/// Of what was simulated, what is needed in each order and at each level.
fn by_level(
    graph: &Graph,
    executions: &Executions<'_>,
    simulated: &[(ExecutionOrder, Liveness)],
    options: &PlanOptions,
) -> Vec<Execution> {
    let mut levels = vec![Level::DisableAll, Level::EnableAll];
    // And the one that is promised.
    let named = options.runtime.promise.level;
    levels.extend(named.filter(|level| !levels.contains(level)));
    let release = options.runtime.release;
    let mut nodes = graph.order().iter().map(|&id| graph.node(id));
    if nodes.any(|node| release.is_barrier(node)) {
        levels.retain(|&level| release.has_barriers_at(level));
    }
    let ways = executions.by_level(&levels).into_iter();
    let ways = ways.map(|(order, level, way)| Execution {
        order,
        level,
        bytes: need(graph, &simulated[way].1),
    });
    ways.collect()
}

/// The need of one order in detail; `costs` by node id.
pub(super) fn describe(graph: &Graph, costs: &[Cost], liveness: &Liveness, reserve: Bytes) -> Peak {
    let named = |holder: &Holder| match *holder {
        Holder::Tensor(id, size) => (graph.tensor(id).name.clone(), size),
        Holder::Pattern(size) => ("the memory pattern".to_owned(), size),
        Holder::Workspace(id, size) => (format!("workspace of {}", graph.node(id).name), size),
    };
    let always = beside_steps(graph, liveness) + reserve;
    let times = liveness.order.iter().map(|id| costs[id.index()].time.0);
    let steps = times
        .zip(liveness.needs())
        .map(|(time, bytes)| (time, bytes + always));
    Peak {
        bytes: need(graph, liveness) + reserve,
        step: liveness.step,
        node: liveness
            .peak_node()
            .map_or_else(String::new, |id| graph.node(id).name.clone()),
        holders: liveness.holders.iter().map(named).collect(),
        steps: steps.collect(),
        nodes: liveness
            .order
            .iter()
            .map(|&id| graph.node(id).name.clone())
            .collect(),
        buffers: buffers::of(graph, liveness),
        pattern: liveness.pattern.unwrap_or(Bytes::ZERO),
        workspaces: liveness.workspaces(),
    }
}

/// What a graph needs in one order, the runtime's own share included.
pub(super) fn need(graph: &Graph, liveness: &Liveness) -> Bytes {
    liveness.peak_with_objects() + beside_steps(graph, liveness)
}

/// The part of it that is the same at every step.
pub(super) fn beside_steps(graph: &Graph, liveness: &Liveness) -> Bytes {
    let OtherTensors { absent, squeezed } = liveness.optimized;
    let (tensors, buffers) = (graph.tensor_count(), liveness.buffers.len());
    let absent = Bytes(PLACE.saturating_mul(absent));
    let without_buffer = Bytes(COUNT.saturating_mul(tensors.saturating_sub(buffers) as u64));
    let squeezed = Bytes((PLACE + TENSOR.0).saturating_mul(squeezed));
    frame(graph) - absent - without_buffer + squeezed + liveness.pattern_tables
}

/// A tensor's place in the runtime's frame, whether it lives or not. Runtime fact, from the blocks that live at the peaks of
/// rewritten graphs, as what follows.
const PLACE: u64 = 24;

/// For a buffer: the count of nodes after which it is given back.
const COUNT: u64 = 4;

/// What is kept for a tensor that the caller feeds, besides its name; likewise a runtime fact.
const FEED: u64 = 48;

/// What is kept for a tensor that the caller fetches, besides its name; likewise a runtime fact.
const FETCH: u64 = 52;

/// Kernels' small vectors, names, and what else does not grow with the graph.
const CONSTANT: u64 = 4096;

/// What the runtime itself allocates for a step, whatever its order and whatever it optimizes, if every tensor has a buffer.
pub(super) fn frame(graph: &Graph) -> Bytes {
    let name = |id: &TensorId| graph.tensor(*id).name.len() as u64 + 1;
    let feeds = graph.inputs.iter().map(|id| FEED + name(id));
    let fetches = graph.outputs.iter().map(|id| FETCH + name(id));
    let interface: u64 = feeds.chain(fetches).sum();
    Bytes(graph.tensor_count() as u64 * (PLACE + COUNT) + interface + CONSTANT)
}
