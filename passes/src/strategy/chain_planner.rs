//! The chain strategies on graphs: one knob, the memory of the abstract chain.

use std::collections::BTreeMap;

use super::chain::{Chain, Operation};
use super::chain_graph::{ChainGraph, Ends};
use super::precise_dp::{PreciseDp, SizeRounding};
use super::uniform_dp::UniformDp;
use super::{ForwardPart, Planner, Strategy, Task, Unplanned, revolve};
use crate::bytes::Bytes;
use crate::plan::Plan;

/// Stages that a chain is cut into at most: the tables grow with the third power.
const MOST_STAGES: usize = 160;

/// Cells of the precise tables at most.
const MOST_CELLS: usize = 4_000_000;

/// Steps of the precise tables' innermost loop at most.
const MOST_STEPS: usize = 250_000_000;

/// Neighbours of the bisected knob that are judged as well: more memory for the chain does not
/// always mean more on the graph.
const NEIGHBOURS: usize = 8;

/// The planner of a chain strategy.
pub(super) fn planner<'t>(strategy: Strategy, task: &'t Task<'t>) -> Box<dyn Planner + 't> {
    let forward = ForwardPart::of(task);
    let cut = |&ends| ChainGraph::of(task, &forward, MOST_STAGES, ends);
    let ends: &[Ends] = match strategy {
        Strategy::PreciseDp => &[Ends::First],
        _ => &[Ends::Both, Ends::Points],
    };
    match ends.iter().map(cut).collect() {
        Ok(graphs) => {
            let settings = ChainSettings::of(strategy, graphs);
            Box::new(Knob::of(task, Box::new(settings)))
        }
        Err(reason) => Box::new(Refusing(reason)),
    }
}

/// A strategy that cannot plan the graph.
pub(super) struct Refusing(pub(super) String);

impl Planner for Refusing {
    fn within(&mut self, _: Bytes) -> Result<Plan, Unplanned> {
        Err(Unplanned::Refused(self.0.clone()))
    }
}

/// How schedules are made.
enum ChainSolver {
    /// By checkpoints, from 1.
    Revolve,
    /// By slots, from 1.
    Uniform(UniformDp),
    Precise(Box<Precise>),
}

struct Precise {
    tables: PreciseDp,
    /// The same with sizes rounded down: a bound.
    bound: PreciseDp,
    /// Every memory at which the plan is another one.
    memories: Vec<u32>,
}

/// The plans of a strategy, by one setting: the more of it, the more memory they should take.
pub(super) trait Settings: Send {
    /// How many settings there are.
    fn count(&self) -> usize;

    /// The plan of a setting below [`Settings::count`].
    fn plan(&self, setting: usize) -> Plan;

    /// What to say of a plan that was handed out; `None` if it is the one without copies.
    fn notes(&self, setting: Option<usize>) -> Vec<String>;
}

/// Finds the setting for a budget, judging plans as they are needed.
pub(super) struct Knob<'t> {
    task: &'t Task<'t>,
    settings: Box<dyn Settings + 't>,
    judged: BTreeMap<usize, Plan>,
    unmodified: Plan,
    /// The setting of the last plan that was handed out.
    chosen: Option<usize>,
}

impl<'t> Knob<'t> {
    pub(super) fn of(task: &'t Task<'t>, settings: Box<dyn Settings + 't>) -> Knob<'t> {
        Knob {
            task,
            settings,
            judged: BTreeMap::new(),
            unmodified: task.judge(task.without_copies()),
            chosen: None,
        }
    }

    /// The figures of one setting.
    fn judge(&mut self, setting: usize) -> &Plan {
        let (task, settings) = (self.task, &self.settings);
        self.judged.entry(setting).or_insert_with(|| {
            let plan = settings.plan(setting);
            task.judge(plan.without_unread_copies(task.graph, task.recomputation))
        })
    }

    /// Judges the settings around the largest that fits.
    fn look(&mut self, budget: Bytes) {
        let (mut low, mut high) = (0, self.settings.count());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.judge(middle).predicted_peak <= budget {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let last = (low + NEIGHBOURS).min(self.settings.count());
        for setting in low.saturating_sub(NEIGHBOURS)..last {
            self.judge(setting);
        }
    }
}

impl Planner for Knob<'_> {
    fn within(&mut self, budget: Bytes) -> Result<Plan, Unplanned> {
        self.look(budget);
        let all = || {
            let settings = self.judged.iter();
            let settings = settings.map(|(&setting, judged)| (Some(setting), judged));
            settings.chain([(None, &self.unmodified)])
        };
        let peak = |judged: &Plan| judged.predicted_peak;
        let cheapest = all()
            .filter(|(_, judged)| peak(judged) <= budget)
            .min_by_key(|(_, judged)| (judged.added, peak(judged)));
        if let Some((setting, judged)) = cheapest {
            let plan = judged.clone();
            self.chosen = setting;
            return Ok(plan);
        }
        let smallest = all().min_by_key(|(_, judged)| (peak(judged), judged.added));
        let plan = smallest.map(|(_, judged)| judged.clone());
        Err(Unplanned::TooLarge(plan.unwrap_or_default()))
    }

    fn notes(&self) -> Vec<String> {
        self.settings.notes(self.chosen)
    }
}

/// A chain strategy: the setting is the memory of the chain.
struct ChainSettings {
    /// The graph, cut in different ways: with each memory, each of them is a setting.
    graphs: Vec<ChainGraph>,
    solver: ChainSolver,
}

impl ChainSettings {
    fn of(strategy: Strategy, graphs: Vec<ChainGraph>) -> ChainSettings {
        let stages = graphs.iter().map(|graph| graph.chain.stages.len());
        let stages = stages.max().unwrap_or(0);
        let solver = match strategy {
            Strategy::PreciseDp => ChainSolver::Precise(Box::new(Precise::of(&graphs[0].chain))),
            Strategy::UniformDp => ChainSolver::Uniform(UniformDp::solve(stages, stages)),
            _ => ChainSolver::Revolve,
        };
        ChainSettings { graphs, solver }
    }

    fn graph(&self, setting: usize) -> &ChainGraph {
        &self.graphs[setting % self.graphs.len()]
    }

    fn schedule(&self, setting: usize) -> Vec<Operation> {
        let chain = &self.graph(setting).chain;
        let memory = setting / self.graphs.len();
        match &self.solver {
            ChainSolver::Revolve => revolve::schedule(chain, memory as u64 + 1),
            ChainSolver::Uniform(tables) => tables.schedule(chain, memory + 1),
            ChainSolver::Precise(precise) => {
                let schedule = precise.tables.schedule(chain, precise.memories[memory]);
                schedule.unwrap_or_default()
            }
        }
    }
}

impl Settings for ChainSettings {
    fn count(&self) -> usize {
        match &self.solver {
            ChainSolver::Precise(precise) => precise.memories.len(),
            _ => self
                .graphs
                .iter()
                .map(|graph| graph.chain.stages.len())
                .sum(),
        }
    }

    fn plan(&self, setting: usize) -> Plan {
        self.graph(setting).plan(&self.schedule(setting))
    }

    fn notes(&self, setting: Option<usize>) -> Vec<String> {
        let graph = self.graph(setting.unwrap_or(0));
        let stages = graph.chain.stages.len();
        let mut notes = vec![format!(
            "cut into a chain of {stages} blocks at {} of {} articulation points",
            stages - 1,
            graph.points
        )];
        if let (ChainSolver::Precise(precise), Some(setting)) = (&self.solver, setting) {
            notes.push(precise.note(setting));
        }
        notes
    }
}

impl Precise {
    fn of(chain: &Chain) -> Precise {
        let stages = chain.stages.len().max(1);
        let pairs = stages * (stages + 1) / 2;
        let steps = pairs * (stages + 2) / 3;
        let buckets = (MOST_CELLS / pairs)
            .min(MOST_STEPS / steps)
            .clamp(16, 1 << 13);
        // Everything kept, and the largest backward part.
        let kept = chain
            .stages
            .iter()
            .map(|s| s.result.saturating_add(s.internals));
        let during = chain.stages.iter().enumerate().map(|(i, s)| {
            let gradients = s.gradient.saturating_add(chain.gradient(i + 1));
            let passing = s.forward_workspace.max(s.taped_workspace);
            let workspace = s.backward_workspace.max(passing);
            gradients.saturating_add(workspace)
        });
        let most = kept
            .fold(0, u64::saturating_add)
            .saturating_add(during.max().unwrap_or(0));
        let bucket = most.div_ceil(buckets as u64).max(1);
        // Rounding up takes at most a bucket more for each thing that is counted.
        let memory = buckets as u32 + 3 * stages as u32;
        let tables = PreciseDp::solve(chain, memory, bucket, SizeRounding::Up);
        Precise {
            memories: tables.memories(),
            bound: PreciseDp::solve(chain, memory, bucket, SizeRounding::Down),
            tables,
        }
    }

    /// What the buckets may have cost.
    fn note(&self, setting: usize) -> String {
        let memory = self.memories[setting];
        let time = |tables: &PreciseDp| tables.cost(memory).map_or(0, |cost| cost.0);
        let (planned, least) = (time(&self.tables), time(&self.bound));
        let lost = match least {
            0 => 0.0,
            least => 100.0 * (planned as f64 / least as f64 - 1.0),
        };
        format!(
            "memory in {memory} buckets of {}; rounding sizes up to them costs at most {lost:.1} % \
             of the step",
            Bytes(self.tables.bucket())
        )
    }
}
