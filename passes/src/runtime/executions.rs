//! Every way in which ONNX Runtime may run a graph.

use super::allocation::{self, Allocation};
use super::arena::{self, Growth};
use super::fused_graph::GraphsOfLevels;
use super::fusing::Fusing;
use super::known_shapes::{Shapes, runtime_shapes};
use super::level::Level;
use super::liveness::{Liveness, OtherTensors, WorkedOut, fixed_bytes, profile};
use super::optimized_shapes::{OptimizedShapes, optimized_shapes};
use super::order::{ExecutionOrder, execution_order};
use super::promise::Promise;
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
    /// What is known of shapes once the graph is optimized, if that is more.
    shapes_optimized: Option<Shapes>,
    /// By optimized form: what is known of shapes in it, if it has tensors of its own.
    shapes_of_forms: Vec<Option<Shapes>>,
    /// With the positions of their nodes in the graph.
    optimized: Vec<(Skeleton, Vec<u32>)>,
    /// By optimized form.
    other_tensors: Vec<OtherTensors>,
    levels: GraphsOfLevels,
    ways: Vec<Way>,
}

/// How a session runs a graph.
#[derive(Clone, Copy)]
pub(crate) struct FusedRun<'e> {
    /// The nodes that run. Those tensors that are no tensors of the graph come last.
    pub(crate) nodes: &'e Skeleton,
    /// Positions in it.
    pub(crate) executed: &'e [u32],
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
        Executions::at_levels(graph, release, provider, costs, true)
    }

    /// The first of [`Executions::simulate`], with little work.
    pub fn in_default_order(
        graph: &'g Graph,
        release: &'static Release,
        provider: Provider,
        costs: &[Cost],
        settings: RuntimeSettings,
    ) -> Option<Liveness> {
        let all = Executions::at_levels(graph, release, provider, costs, false);
        let first = all.ways.first()?;
        Some(all.simulate_one(first, settings))
    }

    /// Optimized as well, or only as it is.
    fn at_levels(
        graph: &'g Graph,
        release: &'static Release,
        provider: Provider,
        costs: &[Cost],
        optimizes: bool,
    ) -> Executions<'g> {
        let shapes = runtime_shapes(graph);
        let skeleton = Skeleton::with_shapes(graph, &shapes, provider, costs).run_by(release);
        let known = |shapes: &[_], skeleton: &Skeleton, added: &[_]| {
            let shapes = skeleton.shapes(graph, shapes, added);
            shapes.for_pattern(release.pattern)
        };
        let more_known = optimizes
            .then(|| optimized_shapes(graph, &shapes))
            .flatten();
        let assembling = more_known
            .as_ref()
            .map(|OptimizedShapes { targets, shapes }| {
                let skeleton = Skeleton::with_shapes(graph, shapes, provider, costs);
                skeleton.run_by(release).assembling(graph, targets)
            });
        let before = assembling.as_ref().unwrap_or(&skeleton);
        let known_before = more_known.as_ref().map_or(&shapes, |more| &more.shapes);
        let (optimized, levels) = match optimizes {
            true => before
                .clone()
                .moving(graph, known_before)
                .optimized_by_level(),
            false => Default::default(),
        };
        let of_form = |(form, _): &(Skeleton, Vec<u32>)| {
            let has_own = !form.added.is_empty();
            has_own.then(|| known(known_before, before, &form.added))
        };
        let shapes_of_forms = optimized.iter().map(of_form).collect();
        let shapes_optimized = assembling.as_ref().map(|of| known(known_before, of, &[]));
        let shapes = known(&shapes, &skeleton, &[]);
        let (skeleton, positions) = skeleton.into_run();
        let other_tensors = optimized.iter().map(|(form, _)| others(&skeleton, form));
        let other_tensors = other_tensors.collect();
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
            shapes_optimized,
            shapes_of_forms,
            skeleton,
            positions,
            optimized,
            other_tensors,
            levels,
            ways,
        }
    }

    /// What each way needs with `settings`, with the name of its order; the first is DEFAULT, unoptimized.
    pub fn simulate(&self, settings: RuntimeSettings) -> Vec<(ExecutionOrder, Liveness)> {
        parallel::map(&self.ways, |way| {
            (way.order, self.simulate_one(way, settings))
        })
    }

    /// Which of what [`Executions::simulate`] says holds for each order and these levels.
    pub fn by_level(&self, levels: &[Level]) -> Vec<(ExecutionOrder, Level, usize)> {
        let as_it_is = self.ways.iter().filter(|way| way.form.is_none());
        let mut found = Vec::new();
        for way in as_it_is {
            for &level in levels {
                found.extend(
                    self.at(way.order, level)
                        .map(|index| (way.order, level, index)),
                );
            }
        }
        found
    }

    /// Which of what [`Executions::simulate`] says holds for that order and level.
    pub fn at(&self, order: ExecutionOrder, level: Level) -> Option<usize> {
        let form = self.levels.at(level);
        let is_it = |way: &Way| way.order == order && way.form == form;
        self.ways.iter().position(is_it)
    }

    /// What runs in that order and at that level.
    pub(crate) fn run_in(&self, order: ExecutionOrder, level: Level) -> Option<FusedRun<'_>> {
        let way = &self.ways[self.at(order, level)?];
        Some(FusedRun {
            nodes: self.form(way),
            executed: &way.executed,
        })
    }

    /// By what [`Executions::simulate`] says: is it promised?
    pub fn promised(&self, promise: Promise) -> Vec<bool> {
        let holds =
            |way: &Way| promise.holds_in(way.order, |level| self.levels.run_at(level, way.form));
        self.ways.iter().map(holds).collect()
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
            optimized: way
                .form
                .map_or_else(Default::default, |form| self.other_tensors[form]),
        };
        let positions = way
            .form
            .map_or(&self.positions, |form| &self.optimized[form].1);
        let mut executed = way.executed.clone();
        for node in &mut executed {
            *node = positions[*node as usize];
        }
        let inserted = run.inserted_in(&way.executed);
        Liveness::describe(self.graph, run, &executed, inserted, known)
    }

    fn form(&self, way: &Way) -> &Skeleton {
        way.form
            .map_or(&self.skeleton, |form| &self.optimized[form].0)
    }

    fn allocate(&self, way: &Way, settings: RuntimeSettings) -> Allocation {
        let optimized = self
            .shapes_optimized
            .as_ref()
            .filter(|_| way.form.is_some());
        let of_form = way
            .form
            .and_then(|form| self.shapes_of_forms[form].as_ref());
        let shapes = of_form.or(optimized).unwrap_or(&self.shapes);
        allocation::allocate(self.form(way), shapes, &way.executed, settings)
    }
}

/// Which tensors the nodes of `form` read and write, beside those of the graph `as_it_is`; without what the caller owns.
fn others(as_it_is: &Skeleton, form: &Skeleton) -> OtherTensors {
    let touched = |skeleton: &Skeleton| {
        let mut is_touched = vec![false; skeleton.size.len()];
        for node in 0..skeleton.len() {
            let (reads, writes) = (skeleton.reads.get(node), skeleton.writes.get(node));
            for &tensor in reads.iter().chain(writes) {
                is_touched[tensor as usize] = !skeleton.owned[tensor as usize];
            }
        }
        is_touched.into_iter().filter(|&is| is).count() as u64
    };
    // What is written beside something else.
    let mut together = vec![false; form.size.len()];
    for written in (0..form.len()).map(|node| form.writes.get(node)) {
        for &tensor in written.iter().filter(|_| written.len() > 1) {
            together[tensor as usize] = true;
        }
    }
    let rows = (0..as_it_is.len()).filter(|&node| {
        let is_row = matches!(
            as_it_is.fusing.get(node),
            Some(Fusing::Splits { squeezes: true, .. })
        );
        let mut written = as_it_is.writes.get(node).iter();
        is_row && written.any(|&tensor| together[tensor as usize])
    });
    OtherTensors {
        absent: touched(as_it_is).saturating_sub(touched(form)),
        squeezed: rows.count() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::Pass;
    use crate::rewrite::infer_shapes::InferShapes;
    use crate::runtime::TRAINING;

    /// An Identity is gone, and of a tensor that is split into two rows, Squeezes take the axis off.
    #[test]
    fn an_optimized_graph_has_other_tensors() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[2,8] x) => (float[2,8] y, float[8] z) <int64 first = {0}, int64 second = {1}> {
                a = Exp(x) same = Identity(a) y = Log(same)
                b = Sin(x) p = Gather <axis = 0> (b, first) q = Gather <axis = 0> (b, second) z = Mul(p, q)
            }"#;
        let mut graph = Graph::parse(text).unwrap();
        let bindings = Default::default();
        InferShapes { bindings }.run(&mut graph).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let executions = Executions::of(&graph, &TRAINING, Provider::Cpu, &costs);
        let all = executions.simulate(RuntimeSettings::LEAN);
        let others = |level: Level| {
            let way = executions.at(ExecutionOrder::Default, level).unwrap();
            all[way].1.optimized
        };
        let none = OtherTensors::default();
        assert_eq!(others(Level::DisableAll), none);
        let optimized = OtherTensors {
            absent: 1,
            squeezed: 2,
        };
        assert_eq!(others(Level::EnableAll), optimized);
    }
}
