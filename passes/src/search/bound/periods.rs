//! A 0-1 program over *periods*, which sees that what runs again needs what it reads.
//!
//! A few steps are chosen, each the end of a period. In every schedule within the budget let r(n, k) = 1 if node n is
//! computed again in period k, however often, and s(v, k) = 1 if value v is there when the last step of period k runs.
//! With "again" for "r of v's producer is 1, or the producer first runs in the period":
//!
//! - at the end of every period, what is there and what the step works with fits the budget;
//! - v is there at the end of a period only if it was at the end of the one before, or again in this one;
//! - what an original in a period reads was there at the end of the period before, or again in this one;
//! - so was what a copy in the period reads.
//!
//! Each of these holds because a life of a value has no holes. The cheapest values that meet them are a bound, whichever
//! steps are chosen. This is Checkmate's program (Jain et al. 2020, section 4) with most of its steps taken together:
//! that a run is paid once in a period, however it is used there, is what makes few periods prove more than many do
//! when columns may be parts.

use crate::program::{Column, Limits, Program, Solver};
use crate::search::problem::{Problem, Step, ValueId};

/// The first program has so many periods.
const PERIODS: usize = 4;

/// So many programs are solved at most, each with more periods where the answer of the one before takes too much.
const PROGRAMS: usize = 6;

/// So many steps become ends of periods at a time.
const AT_ONCE: usize = 2;

/// No program gets more nodes of the solver's tree: those of few periods take less.
const MOST_NODES: u64 = 500;

/// Programs with more columns are not solved.
const MOST_COLUMNS: usize = 8_000;

/// Values below this part of the budget are left out: the bound is lower for it, not wrong.
const NEGLIGIBLE: f64 = 1e-3;

/// By rounding alone nothing must be refused.
const ROUNDING: f64 = 1e-7;

/// The best lower bound proved, in nanoseconds; `memory` is the need of each step without copies.
pub(super) fn solve(
    problem: &Problem,
    memory: &[f64],
    budget: f64,
    solver: &dyn Solver,
    limits: Limits,
) -> f64 {
    let limits = Limits {
        nodes: limits.nodes.min(MOST_NODES),
        ..limits
    };
    let mut best: f64 = 0.0;
    let mut ends = first_ends(memory, budget);
    for _ in 0..PROGRAMS {
        let model = PeriodModel::new(problem, budget, &ends);
        if model.program.costs.len() > MOST_COLUMNS {
            break;
        }
        let answer = solver.solve(&model.program, limits);
        let bound = answer.bound * model.time_scale;
        if bound.is_finite() {
            best = best.max(bound);
        }
        // What is too hard does not become easier.
        let Some(values) = answer.values.filter(|_| answer.proved) else {
            break;
        };
        let more = more_ends(&model, &values, memory, budget);
        if more.is_empty() {
            break;
        }
        ends.extend(more);
        ends.sort_unstable();
    }
    best
}

/// A few steps that need more than the budget: of as many stretches of them each the neediest; and the last one, behind
/// which nothing would cost anything.
fn first_ends(memory: &[f64], budget: f64) -> Vec<Step> {
    let is_over = |&step: &usize| memory[step] > budget;
    let over: Vec<usize> = (0..memory.len()).filter(is_over).collect();
    let stretches = over.chunks(over.len().div_ceil(PERIODS).max(1));
    let needs = stretches.map(|stretch| stretch.iter().map(|&step| (step, memory[step])));
    let mut ends: Vec<Step> = needs.filter_map(neediest).collect();
    ends.extend(over.last().map(|&last| last as Step));
    ends.dedup();
    ends
}

/// The first of those that need most.
fn neediest(needs: impl Iterator<Item = (usize, f64)>) -> Option<Step> {
    let most = needs.reduce(|most, next| if next.1 > most.1 { next } else { most });
    most.map(|(step, _)| step as Step)
}

/// The steps at which the answer's needs are furthest above the budget; where they are nowhere, the neediest steps of the
/// widest periods.
fn more_ends(model: &PeriodModel<'_>, values: &[f64], memory: &[f64], budget: f64) -> Vec<Step> {
    let needs = model.needs(values);
    let mut over: Vec<usize> = (0..needs.len())
        .filter(|&step| needs[step] > budget * (1.0 + ROUNDING))
        .collect();
    over.sort_by(|&a, &b| needs[b].total_cmp(&needs[a]).then(a.cmp(&b)));
    let mut chosen: Vec<Step> = Vec::new();
    for step in over {
        // Those beside it are over for the same reason.
        if chosen.iter().all(|other| other.abs_diff(step as Step) > 2) {
            chosen.push(step as Step);
        }
        if chosen.len() == AT_ONCE {
            break;
        }
    }
    if chosen.is_empty() {
        let between = model
            .ends
            .windows(2)
            .map(|ends| ends[0] as usize + 1..ends[1] as usize);
        let over = |steps: std::ops::Range<usize>| -> Vec<(usize, f64)> {
            let needs = steps.map(|step| (step, memory[step]));
            needs.filter(|&(_, need)| need > budget).collect()
        };
        let mut widest: Vec<Vec<(usize, f64)>> = between.map(over).collect();
        widest.sort_by_key(|steps| std::cmp::Reverse(steps.len()));
        let middle = |steps: Vec<(usize, f64)>| {
            // Not beside an end, where little is different.
            let margin = steps.len() / 4;
            neediest(steps.into_iter().skip(margin).rev().skip(margin).rev())
        };
        chosen.extend(widest.into_iter().take(AT_ONCE).filter_map(middle));
    }
    chosen
}

/// Is a value there at the end of a period?
#[derive(Clone, Copy, Debug, PartialEq)]
enum AtEnd {
    Never,
    Always,
    If(Column),
}

struct PeriodModel<'p> {
    problem: &'p Problem,
    program: Program,
    /// Nanoseconds that one unit of its costs stands for.
    time_scale: f64,
    /// The last step of each period, the last period's but one.
    ends: &'p [Step],
    /// By value: is it large enough to count?
    counts: Vec<bool>,
    /// By node: the columns of its runs, by period, from the one after that in which it first runs.
    runs: Vec<Vec<Column>>,
    /// By value and end.
    there: Vec<Vec<AtEnd>>,
}

impl<'p> PeriodModel<'p> {
    fn new(problem: &'p Problem, budget: f64, ends: &'p [Step]) -> PeriodModel<'p> {
        let total: f64 = problem.steps.iter().map(|step| step.time as f64).sum();
        let counts = |value: &crate::search::problem::Value| value.size > budget * NEGLIGIBLE;
        let mut model = PeriodModel {
            problem,
            program: Program::default(),
            time_scale: (total / 1000.0).max(1.0),
            ends,
            counts: problem.values.iter().map(counts).collect(),
            runs: Vec::new(),
            there: Vec::new(),
        };
        for node in 0..problem.steps.len() {
            let runs = model.add_runs(node as Step);
            model.runs.push(runs);
        }
        for value in 0..problem.values.len() as ValueId {
            let there = model.add_presence(value);
            model.there.push(there);
        }
        for value in 0..problem.values.len() as ValueId {
            if model.counts[value as usize] {
                model.limit_presence(value);
                model.supply_readers(value);
            }
        }
        for node in 0..problem.steps.len() as Step {
            model.supply_runs(node);
        }
        model.limit_memory(budget);
        model
    }

    /// The period of a step.
    fn period(&self, step: Step) -> usize {
        self.ends.partition_point(|&end| end < step)
    }

    fn add_runs(&mut self, node: Step) -> Vec<Column> {
        let info = &self.problem.steps[node as usize];
        let is_of_use = |&value: &ValueId| {
            self.counts[value as usize] && self.problem.values[value as usize].recomputed
        };
        if !info.recomputable || !info.writes.iter().any(is_of_use) {
            return Vec::new();
        }
        let cost = info.again as f64 / self.time_scale;
        let periods = self.period(node) + 1..=self.ends.len();
        periods.map(|_| self.program.add(cost, true)).collect()
    }

    fn add_presence(&mut self, value: ValueId) -> Vec<AtEnd> {
        let info = &self.problem.values[value as usize];
        if !self.counts[value as usize] {
            return Vec::new();
        }
        let is_unread = info.readers.is_empty() && info.copy_readers.is_empty();
        let stays = info.kept || (is_unread && !info.released);
        let presence = |&end: &Step| {
            let is_read = info.readers.contains(&end) && !info.overwriters.contains(&end);
            match info.producer {
                producer if producer > end => AtEnd::Never,
                producer if producer == end || stays || is_read => AtEnd::Always,
                _ => AtEnd::If(self.program.add(0.0, true)),
            }
        };
        self.ends.iter().map(presence).collect()
    }

    /// The terms of "it was there at the end of the period before, or is computed again in this one"; `None` if its
    /// producer first runs in the period, or it was there for sure.
    fn supply(&self, value: ValueId, period: usize) -> Option<Vec<(Column, f64)>> {
        let info = &self.problem.values[value as usize];
        let first = self.period(info.producer);
        if first >= period {
            return None;
        }
        let mut terms = Vec::new();
        match self.there[value as usize][period - 1] {
            AtEnd::Always => return None,
            AtEnd::If(column) => terms.push((column, -1.0)),
            AtEnd::Never => {}
        }
        if info.recomputed
            && let Some(&run) = self.runs[info.producer as usize].get(period - first - 1)
        {
            terms.push((run, -1.0));
        }
        Some(terms)
    }

    fn limit_presence(&mut self, value: ValueId) {
        for period in 0..self.ends.len() {
            let AtEnd::If(there) = self.there[value as usize][period] else {
                continue;
            };
            if let Some(mut terms) = self.supply(value, period) {
                terms.push((there, 1.0));
                self.program.at_most(terms, 0.0);
            }
        }
    }

    fn supply_readers(&mut self, value: ValueId) {
        let readers = self.problem.values[value as usize].readers.iter();
        let mut periods: Vec<usize> = readers.map(|&reader| self.period(reader)).collect();
        periods.dedup();
        for period in periods {
            if let Some(terms) = self.supply(value, period) {
                self.program.at_most(terms, -1.0);
            }
        }
    }

    fn supply_runs(&mut self, node: Step) {
        let first = self.period(node) + 1;
        for at in 0..self.runs[node as usize].len() {
            let run = self.runs[node as usize][at];
            for &read in &self.problem.steps[node as usize].copy_reads {
                if !self.counts[read as usize] {
                    continue;
                }
                if let Some(mut terms) = self.supply(read, first + at) {
                    terms.push((run, 1.0));
                    self.program.at_most(terms, 0.0);
                }
            }
        }
    }

    fn limit_memory(&mut self, budget: f64) {
        for (period, &end) in self.ends.iter().enumerate() {
            let mut always = self.problem.steps[end as usize].workspace;
            let mut terms = Vec::new();
            for (value, there) in self.problem.values.iter().zip(&self.there) {
                match there.get(period) {
                    Some(AtEnd::Always) => always += value.size,
                    Some(&AtEnd::If(column)) => terms.push((column, value.size / budget)),
                    Some(AtEnd::Never) | None => {}
                }
            }
            self.program
                .at_most(terms, 1.0 - always / budget + ROUNDING);
        }
    }

    /// By step that ends no period: what it seems to need in an answer, where what runs again in a period is there only at
    /// its end. It is to choose by; nothing is proved with it.
    fn needs(&self, values: &[f64]) -> Vec<f64> {
        let steps = &self.problem.steps;
        let mut needs: Vec<f64> = steps.iter().map(|step| step.workspace).collect();
        for (id, value) in self.problem.values.iter().enumerate() {
            let there = |period: usize| match self.there[id].get(period) {
                Some(AtEnd::Always) => true,
                Some(&AtEnd::If(column)) => values[column] > 0.5,
                Some(AtEnd::Never) | None => false,
            };
            if !self.counts[id] {
                continue;
            }
            let first = self.period(value.producer);
            for step in value.producer..steps.len() as Step {
                let period = self.period(step);
                let end = self.ends.get(period).copied().unwrap_or(Step::MAX);
                let is_read = value.readers.binary_search(&step).is_ok();
                let overwrites = value.overwriters.contains(&step);
                let behind = value.readers.partition_point(|&reader| reader <= step);
                let is_read_later = value.readers.get(behind).is_some_and(|&next| next <= end);
                let run = period.checked_sub(first + 1);
                let runs = &self.runs[value.producer as usize];
                let runs_again = run
                    .and_then(|run| runs.get(run))
                    .is_some_and(|&run| values[run] > 0.5);
                let is_kept = match period == first {
                    true => there(period) || is_read_later,
                    false => {
                        let again = runs_again && value.recomputed;
                        !again && there(period - 1) && (there(period) || is_read_later)
                    }
                };
                if step == value.producer || (is_read && !overwrites) || is_kept {
                    needs[step as usize] += value.size;
                }
            }
        }
        for &end in self.ends {
            needs[end as usize] = 0.0;
        }
        needs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::search::profile::Exponent;
    use crate::search::random_copies::{problem, some_copies};
    use crate::search::state::State;
    use crate::testing::random_training_graph;

    /// What the schedule is in the program's columns.
    fn values(model: &PeriodModel<'_>, state: &State<'_>) -> Vec<f64> {
        let mut values = vec![0.0; model.program.costs.len()];
        for (node, runs) in model.runs.iter().enumerate() {
            let first = model.period(node as Step) + 1;
            for &before in state.copies_of(node as Step) {
                let at = model.period(before).checked_sub(first);
                if let Some(&run) = at.and_then(|at| runs.get(at)) {
                    values[run] = 1.0;
                }
            }
        }
        for (value, there) in model.there.iter().enumerate() {
            for (presence, &end) in there.iter().zip(model.ends) {
                let (value, producer) = (value as ValueId, model.problem.values[value].producer);
                // What the original has written can be there beside what a copy has.
                let lives = [(producer, producer + 1), (end, end + 1)];
                let mut lives = lives.iter().filter(|_| producer <= end);
                let is_there = lives.any(|&at| state.lives_until(value, at) > (end, end));
                match presence {
                    AtEnd::If(column) => values[*column] = f64::from(u8::from(is_there)),
                    AtEnd::Always => assert!(is_there, "value {value} at {end}"),
                    AtEnd::Never => {}
                }
            }
        }
        values
    }

    #[test]
    fn every_schedule_within_the_budget_meets_the_program() {
        let (mut schedules, mut tight) = (0, 0);
        for seed in 0..120 {
            let problem = problem(&random_training_graph(seed, 8 + seed as usize % 40));
            let mut random = Random::new(seed);
            for periods in 1..8 {
                let mut state = State::new(&problem, 0.0, Exponent::One);
                let _ = state.apply(&some_copies(&problem, &mut random, problem.steps.len()));
                // Any steps will do.
                let any = |_| random.below(problem.steps.len()) as Step;
                let mut ends: Vec<Step> = (0..periods).map(any).collect();
                ends.sort_unstable();
                ends.dedup();
                let model = PeriodModel::new(&problem, state.peak(), &ends);
                let values = values(&model, &state);
                let sum = |terms: &[(Column, f64)]| -> f64 {
                    let terms = terms.iter().map(|&(at, factor)| factor * values[at]);
                    terms.sum()
                };
                for row in &model.program.rows {
                    let over = sum(&row.terms) - row.limit;
                    assert!(over <= 1e-9, "seed {seed}, {periods} periods: {row:?}");
                    tight += usize::from(over > -1e-6 && row.limit < 0.0);
                }
                let costs = model.program.costs.iter().zip(&values);
                let cost: f64 = costs.map(|(cost, value)| cost * value).sum();
                let added = state.cost_with_originals() as f64;
                assert!(
                    cost * model.time_scale <= added * (1.0 + 1e-9),
                    "seed {seed}"
                );
                schedules += 1;
            }
        }
        assert!(schedules > 500 && tight > 1000, "{schedules} {tight}");
    }
}
