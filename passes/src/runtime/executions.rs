//! Every way in which ONNX Runtime may run a graph.

use super::allocation::{self, Allocation};
use super::arena::{self, Growth};
use super::known_shapes::{Shapes, runtime_shapes};
use super::liveness::{Liveness, WorkedOut, fixed_bytes, profile};
use super::order::{ExecutionOrder, execution_order};
use super::release::Release;
use super::settings::RuntimeSettings;
use super::skeleton::Skeleton;
use crate::bytes::Bytes;
use crate::cost::Cost;
use crate::graph::Graph;
use crate::operators::Provider;
use crate::parallel;

/// What the arena reserves, by how it grows (`arena_extend_strategy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// kNextPowerOfTwo, the default.
    pub powers_of_two: Bytes,
    /// kSameAsRequested.
    pub as_requested: Bytes,
}

impl Reserved {
    /// The larger of each.
    pub fn max(self, other: Reserved) -> Reserved {
        Reserved {
            powers_of_two: self.powers_of_two.max(other.powers_of_two),
            as_requested: self.as_requested.max(other.as_requested),
        }
    }
}

/// A graph in all its execution orders, as it is and, where that differs, as the runtime optimizes it.
pub struct Executions<'g> {
    graph: &'g Graph,
    /// The graph as it is, and the positions of its nodes in it.
    skeleton: Skeleton,
    positions: Vec<u32>,
    shapes: Shapes,
    /// With the positions of their nodes in the graph.
    optimized: Vec<(Skeleton, Vec<u32>)>,
    ways: Vec<Way>,
}

/// `SessionOptions.graph_optimization_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The graph runs as it is.
    DisableAll,
    /// What every session uses unless told otherwise.
    EnableAll,
}

impl Level {
    /// What ONNX Runtime calls it.
    pub fn name(self) -> &'static str {
        match self {
            Level::DisableAll => "ORT_DISABLE_ALL",
            Level::EnableAll => "ORT_ENABLE_ALL",
        }
    }
}

struct Way {
    order: ExecutionOrder,
    /// Which of the optimized forms; `None` for the graph as it is.
    form: Option<usize>,
    /// Positions in that form.
    executed: Vec<u32>,
}

impl<'g> Executions<'g> {
    /// Tensors of unknown size count nothing: infer shapes first. `costs` are by node id.
    pub fn of(
        graph: &'g Graph,
        release: &'static Release,
        provider: Provider,
        costs: &[Cost],
    ) -> Executions<'g> {
        Executions::with_forms(graph, release, provider, costs, Skeleton::optimized)
    }

    /// The first of [`Executions::simulate`], with little work.
    pub fn in_default_order(
        graph: &'g Graph,
        release: &'static Release,
        provider: Provider,
        costs: &[Cost],
        settings: RuntimeSettings,
    ) -> Option<Liveness> {
        let all = Executions::with_forms(graph, release, provider, costs, |_| Vec::new());
        let first = all.ways.first()?;
        Some(all.simulate_one(first, settings))
    }

    fn with_forms(
        graph: &'g Graph,
        release: &'static Release,
        provider: Provider,
        costs: &[Cost],
        optimized: impl FnOnce(&Skeleton) -> Vec<(Skeleton, Vec<u32>)>,
    ) -> Executions<'g> {
        let shapes = runtime_shapes(graph);
        let skeleton = Skeleton::with_shapes(graph, &shapes, provider, costs).run_by(release);
        let shapes = Shapes::of(graph, &shapes, skeleton.size.len()).for_pattern(release.pattern);
        let optimized = optimized(&skeleton);
        let (skeleton, positions) = skeleton.into_run();
        let all = (0..optimized.len()).map(Some);
        let forms = std::iter::once(None).chain(all);
        let ways: Vec<_> = forms
            .flat_map(|form| {
                let run = form.map_or(&skeleton, |form| &optimized[form].0);
                let orders = ExecutionOrder::of(run).iter();
                orders.map(move |&order| (order, form, run))
            })
            .collect();
        let ways = parallel::map(&ways, |&(order, form, run)| Way {
            order,
            form,
            executed: execution_order(run, order),
        });
        Executions {
            graph,
            shapes,
            skeleton,
            positions,
            optimized,
            ways,
        }
    }

    /// What each way needs with `settings`, with the name of its order; the first is DEFAULT, unoptimized.
    pub fn simulate(&self, settings: RuntimeSettings) -> Vec<(ExecutionOrder, Liveness)> {
        parallel::map(&self.ways, |way| {
            (way.order, self.simulate_one(way, settings))
        })
    }

    /// Which of what [`Executions::simulate`] says holds for each order and level.
    pub fn by_level(&self) -> Vec<(ExecutionOrder, Level, usize)> {
        let as_it_is = self.ways.iter().filter(|way| way.form.is_none());
        let mut found = Vec::new();
        for way in as_it_is {
            let at = |form: Option<usize>| {
                let mut ways = self.ways.iter().enumerate();
                ways.find(|(_, other)| other.order == way.order && other.form == form)
            };
            // The last form is that of the highest level.
            for (level, form) in [
                (Level::DisableAll, None),
                (Level::EnableAll, self.optimized.len().checked_sub(1)),
            ] {
                found.extend(at(form).map(|(index, _)| (way.order, level, index)));
            }
        }
        found
    }

    /// What the arena reserves with `settings`, by way, what the caller owns included.
    pub fn reserved(&self, settings: RuntimeSettings) -> Vec<Reserved> {
        let fixed = fixed_bytes(self.graph);
        parallel::map(&self.ways, |way| {
            let run = self.form(way);
            let allocation = self.allocate(way, settings);
            let reserved =
                |growth| fixed + Bytes(arena::reserved(run, &way.executed, &allocation, growth));
            Reserved {
                powers_of_two: reserved(Growth::PowersOfTwo),
                as_requested: reserved(Growth::AsRequested),
            }
        })
    }

    fn simulate_one(&self, way: &Way, settings: RuntimeSettings) -> Liveness {
        let (run, allocation) = (self.form(way), self.allocate(way, settings));
        let known = WorkedOut {
            allocation: &allocation,
            needs: profile(run, &way.executed, &allocation),
        };
        let positions = way
            .form
            .map_or(&self.positions, |form| &self.optimized[form].1);
        let mut executed = way.executed.clone();
        for node in &mut executed {
            *node = positions[*node as usize];
        }
        let inserted = run.inserted_in(&way.executed);
        Liveness::describe(self.graph, &self.skeleton, &executed, inserted, known)
    }

    fn form(&self, way: &Way) -> &Skeleton {
        way.form
            .map_or(&self.skeleton, |form| &self.optimized[form].0)
    }

    fn allocate(&self, way: &Way, settings: RuntimeSettings) -> Allocation {
        allocation::allocate(self.form(way), &self.shapes, &way.executed, settings)
    }
}
