//! The 0-1 programs of Checkmate and MONeT, as strategies.
//!
//! The published systems hand their programs to Gurobi; here they go to whatever [`Solver`] the
//! program was built with, and what comes back is judged by the same exact simulation as every
//! other plan. Where that needs more than the program thought, it is solved again for less.
//! Graphs with more units than a solver can deal with are coarsened (`units.rs`), and the notes
//! say so.

mod checkmate;
mod choices;
mod monet;
mod stages;
mod start;
mod units;

use super::chain_planner::Refusing;
use super::segments::is_allowed;
use super::{ForwardPart, Planner, Strategy, Task, Unplanned};
use crate::analysis::cost::costs;
use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::graph::NodeId;
use crate::operators::variants::{Group, Variant};
use crate::plan::Plan;
use crate::program::{Answer, Column, Limits, Program, Solver};
use checkmate::Checkmate;
use monet::Monet;
use stages::{Keep, Stages};
use start::UnitStarts;
use units::Units;

/// Most units of the forward and of the backward part. Checkmate's program has about n³/6 entries.
const CHECKMATE_UNITS: [usize; 2] = [28, 22];
const MONET_UNITS: [usize; 2] = [40, 40];

/// When the solver ends; the gap is a part of the added time. With a limit in seconds, nodes have none.
const LIMITS: Limits = Limits {
    nodes: 300,
    seconds: None,
    gap: 0.01,
};

/// So often a program is solved for less, since its plan needs more than it thought.
const CORRECTIONS: usize = 3;

/// So often a start is looked for in less, for the same reason.
const STARTS: usize = 4;

/// The part of the time left that a program may take: what comes behind it needs some.
const FIRST: f64 = 0.5;

/// The same for the choice of implementations, behind which all else comes.
const JOINT: f64 = 0.3;

/// Less seconds are not worth a try.
const WORTH_A_TRY: f64 = 0.1;

/// A plan for a budget this much above stands.
const STANDS_FROM: f64 = 0.98;

/// From which part on a rounded value counts as 1.
const THRESHOLDS: [f64; 5] = [0.1, 0.3, 0.5, 0.7, 0.9];

/// Why a build without a solver refuses.
const NO_SOLVER: &str = "its 0-1 program is solved by HiGHS, which this build is without; \
                         `cargo xtask highs` installs what it needs and builds with the feature \
                         \"highs\"";

/// What to minimise.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Aim {
    /// Added time, with so many bytes.
    Within(f64),
    /// The peak, which is at most so many bytes.
    Least(f64),
}

/// A published program over units.
trait Model: Send {
    /// How its columns are to be read.
    type Columns;

    fn units(&self) -> &Units;

    /// Time is in parts of the step, memory in parts of what the aim says.
    fn program(&self, aim: Aim) -> (Program, Self::Columns);

    /// The first stage at which it decides what is stored and what runs again.
    fn first_choice(&self) -> usize;

    /// Does the unit run again in this stage? `None` if that is settled.
    fn run(&self, columns: &Self::Columns, stage: usize, unit: usize) -> Option<Column>;

    /// Are the unit's results there when this stage begins? `None` if that is settled.
    fn stored(&self, columns: &Self::Columns, stage: usize, unit: usize) -> Option<Column>;

    /// Columns that are 1 where all nodes are as they are.
    fn settled(&self, _: &Self::Columns) -> Vec<Column> {
        Vec::new()
    }

    /// What the values say that runs.
    fn decode(&self, columns: &Self::Columns, values: &[f64]) -> Stages {
        let count = self.units().units.len();
        let is_set = |column: Option<Column>| column.is_some_and(|column| values[column] > 0.5);
        let stage = |t: usize| {
            let again = (0..t).filter(|&unit| is_set(self.run(columns, t, unit)));
            again.chain([t]).collect()
        };
        Stages((0..count).map(stage).collect())
    }

    /// The same for values that need not be whole: what is stored is what is above the threshold,
    /// and everything else follows (Checkmate's two-phase rounding, section 5).
    fn round(&self, columns: &Self::Columns, values: &[f64], threshold: f64) -> Stages {
        Stages::of(self.units(), |stage, unit| {
            let column = self.stored(columns, stage, unit);
            match column.is_some_and(|column| values[column] > threshold)
                || stage < self.first_choice()
            {
                true => Keep::Yes,
                false => Keep::No,
            }
        })
    }

    /// The values of a schedule in which all nodes are as they are, for columns that are whole.
    fn values(&self, columns: &Self::Columns, count: usize, stages: &Stages) -> Vec<f64> {
        let mut values = vec![0.0; count];
        let again = stages.in_stages().filter(|(stage, unit)| stage != unit);
        let runs = again.filter_map(|(stage, unit)| self.run(columns, stage, unit));
        let stored = stages.stored(self.units()).into_iter().enumerate();
        let stored = stored.flat_map(|(stage, units)| {
            let there = units.into_iter().enumerate().filter(|unit| unit.1);
            there.filter_map(move |(unit, _)| self.stored(columns, stage, unit))
        });
        for column in runs.chain(stored).chain(self.settled(columns)) {
            values[column] = 1.0;
        }
        values
    }
}

/// The planner of a program.
pub(super) fn planner<'t>(strategy: Strategy, task: &'t Task<'t>) -> Box<dyn Planner + 't> {
    let Some(solver) = task.solving.solver.as_deref() else {
        return Box::new(Refusing(NO_SOLVER.to_owned()));
    };
    let most = match strategy {
        Strategy::MonetIlp => MONET_UNITS,
        _ => CHECKMATE_UNITS,
    };
    let Some(units) = Units::of(task, most) else {
        let reason = "its order does not fall into a forward and a backward part";
        return Box::new(Refusing(reason.to_owned()));
    };
    match strategy {
        Strategy::MonetIlp => Box::new(Ilp::new(task, solver, Monet::new(units, Vec::new()))),
        _ => Box::new(Ilp::new(task, solver, Checkmate::new(units))),
    }
}

/// What MONeT calls output-activated, intermediate-activated and convolution implementations.
const GROUPS: [Group; 3] = [Group::OutputActivated, Group::Masks, Group::Convolution];

/// What MONeT's program for implementations and schedule together says.
#[derive(Clone, Debug, Default)]
pub(crate) struct JointAnswer {
    /// Which nodes to replace, and by what.
    pub chosen: Vec<(NodeId, &'static Variant)>,
    /// What runs then, in the graph in which these were replaced.
    pub sequence: Vec<NodeId>,
    /// What the program found.
    pub notes: Vec<String>,
}

/// The variants of forward nodes that MONeT would take whatever else it chooses: narrower masks,
/// which read the same and write less.
pub(crate) fn dominating(task: &Task<'_>) -> Vec<(NodeId, &'static Variant)> {
    let units = Units::of(task, MONET_UNITS);
    units.map_or_else(Vec::new, |units| choices::dominating(task, &units, &GROUPS))
}

/// MONeT's choice of implementations of backward nodes together with a schedule within `budget`.
/// Nodes have those variants that they `may`. The schedule is where planning in the graph with these
/// variants begins.
pub(crate) fn implementations(
    task: &Task<'_>,
    budget: Bytes,
    may: &dyn Fn(NodeId, &Variant) -> bool,
) -> JointAnswer {
    let units = Units::of(task, MONET_UNITS);
    let (Some(solver), Some(units)) = (task.solving.solver.as_deref(), units) else {
        return JointAnswer::default();
    };
    let choices = choices::choices(task, &units, &GROUPS, may);
    let count = choices.len();
    let mut ilp = Ilp::new(task, solver, Monet::new(units, choices));
    let begun = ilp.begun_within(budget);
    let (start, tight) = begun.map_or((None, None), |(start, room)| (Some(start), Some(room)));
    let units = ilp.model.units();
    let known = start.as_ref().map(|start| start.added(units) / units.step);
    let mut joint = JointAnswer::default();
    // What the unmodified graph says of the difference may not hold elsewhere: then with no more room
    // than a schedule has that is known to fit.
    for room in [Some(ilp.room(budget)), tight].into_iter().flatten() {
        if room <= ilp.model.units().structural() || ilp.stopped() {
            break;
        }
        let (program, columns) = ilp.program(Aim::Within(room), start.as_ref());
        let answer = ilp.ask(&program, JOINT);
        let objective = |values: &Vec<f64>| objective(&program, values);
        let objective = answer.values.as_ref().and_then(objective);
        let mut next = JointAnswer::default();
        next.notes.push(format!(
            "implementations of {count} nodes and schedule together: {}",
            said(budget, objective, &answer)
        ));
        // An incumbent that adds more than that schedule says nothing.
        let good = answer.proved || known.is_none_or(|known| objective <= Some(known));
        let values = answer.values.filter(|_| good);
        let peak = values.map(|values| next.take(&ilp, &columns, &values));
        let fits = peak.is_some_and(|peak| peak <= budget);
        if let Some(peak) = peak.filter(|_| !fits) {
            next.notes.push(format!(
                "its schedule needs {peak}, more than the program thought"
            ));
        }
        if fits || joint.notes.is_empty() {
            joint = next;
        }
        if fits {
            break;
        }
    }
    if joint.sequence.is_empty() && start.is_none() {
        let aim = Aim::Least(ilp.model_peak);
        let (program, columns) = ilp.program(aim, ilp.begun(aim).as_ref());
        if let Some(values) = ilp.ask(&program, JOINT).values {
            joint.take(&ilp, &columns, &values);
        }
    }
    joint
}

impl JointAnswer {
    /// Takes over what the values say, and tells what that needs.
    fn take(
        &mut self,
        ilp: &Ilp<'_, Monet>,
        columns: &monet::MonetColumns,
        values: &[f64],
    ) -> Bytes {
        self.chosen = ilp.model.chosen(columns, values);
        self.chosen.sort_by_key(|&(id, _)| id);
        let task = ilp.task;
        let mut graph = task.graph.clone();
        let parts = (task.rewriting.with_variants)(&mut graph, &self.chosen);
        self.sequence = ilp
            .model
            .sequence(columns, values, &parts.into_iter().collect());
        let mut recomputation = Recomputation::of(&graph, task.overrides);
        recomputation.keep_to_release(&graph, task.runtime.release);
        recomputation.keep_rounding(&graph, task.device.provider, task.runtime.release);
        let form = Task {
            graph: &graph,
            run: &graph,
            order: graph.order(),
            costs: &costs(&graph, task.device, task.overrides),
            recomputation: &recomputation,
            joint: None,
            ..task.clone()
        };
        let judged = begun(&form, &self.sequence);
        judged.map_or(Bytes(u64::MAX), |judged| judged.predicted_peak)
    }
}

/// What an answer says, in words.
fn said(budget: Bytes, objective: Option<f64>, answer: &Answer) -> String {
    match objective {
        Some(objective) => format!(
            "0-1 program within {budget}: {} of {} added, bound {}, gap {} of the step",
            if answer.proved {
                "optimum"
            } else {
                "incumbent"
            },
            percent(objective),
            percent(answer.bound),
            percent(match answer.bound.is_finite() {
                true => (1.0 + objective) / (1.0 + answer.bound) - 1.0,
                false => f64::INFINITY,
            }),
        ),
        None => format!(
            "0-1 program within {budget}: no incumbent, bound {}",
            percent(answer.bound)
        ),
    }
}

/// Other implementations may take less time than the nodes as they are.
fn percent(part: f64) -> String {
    match part.is_finite() {
        true => format!("{:.2} %", 100.0 * part + 0.0),
        false => "none".to_owned(),
    }
}

struct Ilp<'t, M> {
    task: &'t Task<'t>,
    solver: &'t dyn Solver,
    model: M,
    /// Everything judged so far.
    known: Vec<Plan>,
    /// For which budgets a program was solved, and its lower bound on added time in nanoseconds.
    solved: Vec<(Bytes, f64)>,
    /// What the program thinks that the unmodified graph needs.
    model_peak: f64,
    /// How much more than the program thinks is really needed.
    offset: f64,
    smallest: Option<Plan>,
    /// What the last answer's values cost, and what its start did.
    objective: Option<f64>,
    begun: Option<f64>,
    notes: Vec<String>,
}

impl<'t, M: Model> Ilp<'t, M> {
    fn new(task: &'t Task<'t>, solver: &'t dyn Solver, model: M) -> Ilp<'t, M> {
        let mut ilp = Ilp {
            task,
            solver,
            known: vec![task.judge(task.without_copies())],
            solved: Vec::new(),
            model_peak: 0.0,
            offset: 0.0,
            smallest: None,
            objective: None,
            begun: None,
            notes: Vec::new(),
            model,
        };
        let once = Stages::once(ilp.model.units());
        ilp.model_peak = once.peak(ilp.model.units());
        let judged = ilp.judge(&once);
        ilp.offset = judged.0 as f64 - ilp.model_peak;
        ilp.known.extend(begun(task, &task.solving.begun));
        ilp
    }

    fn judge(&mut self, stages: &Stages) -> Bytes {
        let plan = self.model.units().plan(self.task, &stages.runs());
        let judged = self.task.judge(plan);
        let peak = judged.predicted_peak;
        self.known.push(judged);
        peak
    }

    /// What of `budget` is left for what the program counts.
    fn room(&self, budget: Bytes) -> f64 {
        (budget.0 as f64 - self.offset).max(1.0)
    }

    fn stopped(&self) -> bool {
        self.task.watch.is_stopped()
    }

    /// Within a part of the time that the strategy may still use.
    fn ask(&self, program: &Program, part: f64) -> Answer {
        let left = self.solver.seconds_left();
        let seconds = left.map(|left| left * self.task.solving.share * part);
        if self.stopped() || seconds.is_some_and(|seconds| seconds < WORTH_A_TRY) {
            return Answer {
                values: None,
                bound: f64::NEG_INFINITY,
                proved: false,
            };
        }
        let nodes = seconds.map_or(LIMITS.nodes, |_| u64::MAX);
        self.solver.solve(
            program,
            Limits {
                nodes,
                seconds,
                ..LIMITS
            },
        )
    }

    /// The program, which begins with `start`.
    fn program(&self, aim: Aim, start: Option<&Stages>) -> (Program, M::Columns) {
        let (mut program, columns) = self.model.program(aim);
        let count = program.costs.len();
        program.start = start.map(|start| self.model.values(&columns, count, start));
        (program, columns)
    }

    /// A schedule by a cheap rule.
    fn begun(&self, aim: Aim) -> Option<Stages> {
        let starts = UnitStarts::of(
            self.model.units(),
            self.model.first_choice(),
            &self.task.watch,
        );
        match aim {
            Aim::Within(room) => starts.within(room),
            Aim::Least(most) => starts.smallest(most),
        }
    }

    /// One that is within `budget` when it is judged, if that is found quickly, and the room for it
    /// as the program counts.
    fn begun_within(&mut self, budget: Bytes) -> Option<(Stages, f64)> {
        let mut room = self.room(budget);
        for _ in 0..STARTS {
            let found = self.begun(Aim::Within(room))?;
            let peak = self.judge(&found);
            if peak <= budget || self.stopped() {
                return Some((found, room));
            }
            room = found.peak(self.model.units()).min(room) - (peak - budget).0 as f64;
        }
        None
    }

    /// Solves, judges what comes of it, and gives the lowest peak and the answer's bound.
    fn solve(&mut self, aim: Aim, start: Option<&Stages>) -> Option<(Bytes, Answer)> {
        let (program, columns) = self.program(aim, start);
        self.objective = None;
        let answer = self.ask(&program, FIRST);
        let mut least = None;
        if let Some(values) = &answer.values {
            // What is stored says what has to run; an incumbent may run more.
            let stored = self.model.round(&columns, values, 0.5);
            for stages in [self.model.decode(&columns, values), stored] {
                least = least.into_iter().chain([self.judge(&stages)]).min();
            }
            self.objective = objective(&program, values);
        }
        if answer.proved || self.stopped() {
            return least.map(|least| (least, answer));
        }
        // An incumbent at best: the paper rounds the relaxation.
        let mut relaxed = program;
        relaxed.whole.fill(false);
        relaxed.start = None;
        if let Some(values) = self.ask(&relaxed, FIRST).values {
            let rounded = THRESHOLDS.map(|threshold| {
                let stages = self.model.round(&columns, &values, threshold);
                self.judge(&stages)
            });
            least = rounded.into_iter().chain(least).min();
        }
        least.map(|least| (least, answer))
    }

    fn cheapest(&self, budget: Bytes) -> Option<&Plan> {
        let fits = self.known.iter().filter(|j| j.predicted_peak <= budget);
        fits.min_by_key(|judged| (judged.added, judged.predicted_peak))
    }

    fn least(&self) -> Plan {
        let all = self.known.iter();
        let least = all.min_by_key(|j| (j.predicted_peak, j.added));
        least.cloned().unwrap_or_default()
    }

    fn note(&mut self, budget: Bytes, answer: Option<&Answer>) {
        let units = self.model.units();
        let mut notes = Vec::new();
        if units.units.len() < units.fine {
            notes.push(format!(
                "{} nodes coarsened into {} units for the 0-1 program",
                units.fine,
                units.units.len()
            ));
        }
        if let Some(begun) = self.begun {
            notes.push(format!(
                "begun with a schedule by a cheap rule, which is not the paper's: {} added",
                percent(begun)
            ));
        }
        notes.push(match answer {
            Some(answer) => said(budget, self.objective, answer),
            None => format!("0-1 program within {budget}: no solution found in time"),
        });
        if self.objective.is_none() && answer.is_some() {
            notes.push(
                "the plan is the program's relaxation rounded, or what it was begun with".into(),
            );
        }
        self.notes = notes;
    }
}

impl<M: Model> Planner for Ilp<'_, M> {
    fn within(&mut self, budget: Bytes) -> Result<Plan, Unplanned> {
        let near =
            |of: &(Bytes, f64)| budget <= of.0 && budget.0 as f64 >= of.0.0 as f64 * STANDS_FROM;
        let free = self
            .cheapest(budget)
            .is_some_and(|judged| judged.added == 0);
        let answered = self.solved.iter().any(near) && self.cheapest(budget).is_some();
        let possible = self.room(budget) > self.model.units().structural();
        if !free && !answered && possible {
            let start = self.begun_within(budget).map(|(start, _)| start);
            let step = self.model.units().step;
            let added = |stages: &Stages| stages.added(self.model.units()) / step;
            self.begun = start.as_ref().map(added);
            self.note(budget, None);
            for _ in 0..CORRECTIONS {
                let room = self.room(budget);
                let Some((peak, answer)) = self.solve(Aim::Within(room), start.as_ref()) else {
                    break;
                };
                self.solved.push((budget, answer.bound));
                self.note(budget, Some(&answer));
                if peak <= budget || self.stopped() {
                    break;
                }
                self.offset += (peak - budget).0 as f64;
            }
        }
        match self.cheapest(budget) {
            Some(judged) => Ok(judged.clone()),
            None => Err(Unplanned::TooLarge(self.least())),
        }
    }

    fn smallest(&mut self) -> Result<Plan, String> {
        if self.smallest.is_none() {
            let aim = Aim::Least(self.model_peak);
            let start = self.begun(aim);
            if let Some(start) = &start {
                self.judge(start);
            }
            let _ = self.solve(aim, start.as_ref());
            self.smallest = Some(self.least());
        }
        Ok(self.smallest.clone().unwrap_or_default())
    }

    fn smallest_in_passing(&mut self) -> Result<Plan, String> {
        Ok(self.least())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}

/// The plan in which these nodes run, if it is one of this graph.
fn begun(task: &Task<'_>, nodes: &[NodeId]) -> Option<Plan> {
    let mut sequence = nodes.to_vec();
    // The runtime makes constants initializers.
    sequence.sort_by_key(|&id| {
        let node = task.graph.node(id);
        !node.is("", "Constant") || node.reads().next().is_some()
    });
    let mut done = vec![false; task.graph.node_count()];
    let is_first = |id: &NodeId| !std::mem::replace(&mut done[id.index()], true);
    let order: Vec<NodeId> = sequence.iter().copied().filter(is_first).collect();
    let complete = order.len() == task.order.len();
    let allowed = complete && is_allowed(task, &ForwardPart::of(task), &order);
    allowed.then(|| task.judge(units::plan(task, sequence.into_iter())))
}

fn objective(program: &Program, values: &[f64]) -> Option<f64> {
    let costs = program.costs.iter().zip(values);
    Some(costs.map(|(cost, value)| cost * value).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::with_task;
    use crate::testing::{UniformChain, random_training_graph};

    #[test]
    fn without_a_solver_the_refusal_names_the_feature_and_the_command() {
        let chain = UniformChain::new(3);
        with_task(&chain.graph, |task| {
            for strategy in [Strategy::CheckmateIlp, Strategy::MonetIlp] {
                let reason = planner(strategy, task).smallest().unwrap_err();
                assert!(reason.contains("cargo xtask highs"), "{reason}");
                assert!(reason.contains("the feature \"highs\""), "{reason}");
            }
        });
    }

    #[test]
    fn units_are_intervals_of_the_order_and_no_more_than_asked_for() {
        for seed in 0..20 {
            let graph = random_training_graph(seed, 30 + seed as usize);
            with_task(&graph, |task| {
                for most in [[usize::MAX; 2], [6, 4]] {
                    let Some(units) = Units::of(task, most) else {
                        panic!("seed {seed}: refused");
                    };
                    let forward = units.forward;
                    assert!(forward <= most[0] && units.units.len() - forward <= most[1]);
                    let every: Vec<usize> = (0..units.units.len()).collect();
                    let mut nodes = units.plan(task, &every).sequence;
                    for (unit, of) in units.units.iter().enumerate() {
                        assert!(of.reads.iter().all(|&from| from < unit), "seed {seed}");
                    }
                    nodes.sort();
                    let mut order = task.order.to_vec();
                    order.sort();
                    assert_eq!(nodes, order, "seed {seed}");
                }
            });
        }
    }

    #[test]
    fn fine_units_of_a_chain_are_its_nodes_and_need_what_they_need() {
        let chain = UniformChain::new(4);
        with_task(&chain.graph, |task| {
            let units = Units::of(task, [9; 2]).unwrap();
            // The turn's difference is a part of the forward part: it reads no gradient.
            assert_eq!((units.forward, units.units.len()), (5, 9));
            // At d4: x4 and labels are read, x1 to x3 wait, d4 is written: five units of memory.
            let peak = Stages::once(&units).peak(&units);
            assert!(
                (peak / UniformChain::UNIT.0 as f64 - 5.0).abs() < 0.01,
                "{peak}"
            );
            // Any node alone: two that it reads and one that it writes.
            let least = units.structural() / UniformChain::UNIT.0 as f64;
            assert!((least - 3.0).abs() < 0.01, "{least}");
        });
    }
}
