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
use super::{Judged, Planner, Strategy, Task, Unplanned};
use crate::bytes::Bytes;
use crate::graph::NodeId;
use crate::operators::variants::{Group, Variant};
use crate::plan::Plan;
use crate::program::{Answer, Column, Limits, Program, Solver};
use checkmate::Checkmate;
use monet::Monet;
use stages::{Keep, Stages};
use start::Starts;
use units::Units;

/// Most units of the forward and of the backward part. Checkmate's program has about n³/6 entries.
const CHECKMATE_UNITS: [usize; 2] = [28, 22];
const MONET_UNITS: [usize; 2] = [40, 40];

/// When the solver ends; the gap is a part of the added time.
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

/// Less seconds are not worth a try.
const WORTH_A_TRY: f64 = 0.1;

/// A plan for a budget this much above stands.
const NEAR: f64 = 0.98;

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
trait Model {
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

/// MONeT's choice of implementations together with a schedule within `budget`: which nodes to
/// replace, and by what. The schedule is planned anew in the graph with these variants.
///
/// The program chooses among the variants of backward nodes. Those of forward nodes (narrower
/// masks) read the same and write less: they are taken wherever they apply.
pub(crate) fn implementations(task: &Task<'_>, budget: Bytes) -> Vec<(NodeId, &'static Variant)> {
    let units = Units::of(task, MONET_UNITS);
    let (Some(solver), Some(units)) = (task.solving.solver.as_deref(), units) else {
        return Vec::new();
    };
    let mut chosen = choices::dominating(task, &units, &GROUPS);
    let choices = choices::choices(task, &units, &GROUPS);
    let ilp = Ilp::new(task, solver, Monet::new(units, choices));
    let room = ilp.room(budget);
    let within = (room > ilp.model.units().structural()).then_some(Aim::Within(room));
    for aim in within.into_iter().chain([Aim::Least(ilp.model_peak)]) {
        let (program, columns) = ilp.program(aim, ilp.begun(aim).as_ref());
        if let Some(values) = ilp.ask(&program, FIRST).values {
            chosen.extend(ilp.model.chosen(&columns, &values));
            break;
        }
    }
    chosen
}

struct Ilp<'t, M> {
    task: &'t Task<'t>,
    solver: &'t dyn Solver,
    model: M,
    /// Everything judged so far.
    known: Vec<Judged>,
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
        ilp.model_peak = ilp.model.units().peak(&once);
        let judged = ilp.judge(&once);
        ilp.offset = judged.0 as f64 - ilp.model_peak;
        ilp
    }

    fn judge(&mut self, stages: &Stages) -> Bytes {
        let plan = self.model.units().plan(self.task, &stages.runs());
        let judged = self.task.judge(plan);
        let peak = judged.plan.predicted_peak;
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
        self.solver.solve(program, Limits { seconds, ..LIMITS })
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
        let starts = Starts::of(
            self.model.units(),
            self.model.first_choice(),
            &self.task.watch,
        );
        match aim {
            Aim::Within(room) => starts.within(room),
            Aim::Least(most) => starts.smallest(most),
        }
    }

    /// One that is within `budget` when it is judged, if that is found quickly.
    fn begun_within(&mut self, budget: Bytes) -> Option<Stages> {
        let mut room = self.room(budget);
        for _ in 0..STARTS {
            let found = self.begun(Aim::Within(room))?;
            let peak = self.judge(&found);
            if peak <= budget || self.stopped() {
                return Some(found);
            }
            room = self.model.units().peak(&found).min(room) - (peak - budget).0 as f64;
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

    fn cheapest(&self, budget: Bytes) -> Option<&Judged> {
        let fits = self
            .known
            .iter()
            .filter(|j| j.plan.predicted_peak <= budget);
        fits.min_by_key(|judged| (judged.added, judged.plan.predicted_peak))
    }

    fn least(&self) -> Plan {
        let all = self.known.iter();
        let least = all.min_by_key(|j| (j.plan.predicted_peak, j.added));
        least.map(|judged| judged.plan.clone()).unwrap_or_default()
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
        let percent = |part: f64| format!("{:.2} %", 100.0 * part.max(0.0));
        if let Some(begun) = self.begun {
            notes.push(format!(
                "begun with a schedule by a cheap rule, which is not the paper's: {} added",
                percent(begun)
            ));
        }
        notes.push(match (self.objective, answer) {
            (Some(objective), Some(answer)) => format!(
                "0-1 program within {budget}: {} of {} added, bound {}, gap {} of the step",
                if answer.proved {
                    "optimum"
                } else {
                    "incumbent"
                },
                percent(objective),
                percent(answer.bound),
                percent((1.0 + objective) / (1.0 + answer.bound.max(0.0)) - 1.0),
            ),
            (None, Some(answer)) => format!(
                "0-1 program within {budget}: no incumbent, bound {}; the plan is its relaxation \
                 rounded, or what it was begun with",
                percent(answer.bound)
            ),
            (_, None) => format!("0-1 program within {budget}: no solution found in time"),
        });
        self.notes = notes;
    }
}

impl<M: Model> Planner for Ilp<'_, M> {
    fn within(&mut self, budget: Bytes) -> Result<Plan, Unplanned> {
        let near = |of: &(Bytes, f64)| budget <= of.0 && budget.0 as f64 >= of.0.0 as f64 * NEAR;
        let free = self
            .cheapest(budget)
            .is_some_and(|judged| judged.added == 0);
        let answered = self.solved.iter().any(near) && self.cheapest(budget).is_some();
        let possible = self.room(budget) > self.model.units().structural();
        if !free && !answered && possible {
            let start = self.begun_within(budget);
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
            Some(judged) => Ok(judged.plan.clone()),
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
            let peak = units.peak(&Stages::once(&units));
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
