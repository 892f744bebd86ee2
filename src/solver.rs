//! Programs solved by HiGHS.

use std::ffi::CStr;
use std::time::Instant;

use ckpt_passes::program::{Answer, Limits, Program, Solver};
use highs::{HighsModelStatus, HighsSolutionStatus, RowProblem, Sense};

/// HiGHS, on one thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Highs {
    /// When the user wants a plan.
    pub until: Option<Instant>,
}

/// The proved bound of a 0-1 program, as HiGHS calls it.
const DUAL_BOUND: &CStr = c"mip_dual_bound";

impl Solver for Highs {
    fn solve(&self, program: &Program, limits: Limits) -> Answer {
        let nothing = Answer {
            values: None,
            bound: f64::NEG_INFINITY,
            proved: false,
        };
        let mut rows = RowProblem::default();
        let columns: Vec<_> = program
            .costs
            .iter()
            .zip(&program.whole)
            .map(|(&cost, &whole)| rows.add_column_with_integrality(cost, 0..=1, whole))
            .collect();
        for row in &program.rows {
            let terms = row.terms.iter().map(|&(at, factor)| (columns[at], factor));
            rows.add_row(..=row.limit, terms.collect::<Vec<_>>());
        }
        let Ok(mut model) = rows.try_optimise(Sense::Minimise) else {
            return nothing;
        };
        model.make_quiet();
        let nodes = i32::try_from(limits.nodes).unwrap_or(i32::MAX);
        let options = [
            model.try_set_option("threads", 1),
            model.try_set_option("parallel", "off"),
            model.try_set_option("random_seed", 0),
            model.try_set_option("mip_max_nodes", nodes),
            model.try_set_option("mip_rel_gap", limits.gap),
            model.try_set_option("mip_feasibility_tolerance", 1e-9),
            model.try_set_option("primal_feasibility_tolerance", 1e-9),
            model.try_set_option("time_limit", limits.seconds.unwrap_or(f64::INFINITY)),
        ];
        if options.iter().any(Result::is_err) {
            return nothing;
        }
        if let Some(start) = &program.start {
            // A start that does not meet the rows is of no use, and does no harm.
            let _ = model.try_set_solution(Some(start), None, None, None);
        }
        let Ok(solved) = model.try_solve() else {
            return nothing;
        };
        let status = solved.status();
        if status == HighsModelStatus::Infeasible {
            return Answer {
                bound: f64::INFINITY,
                proved: true,
                ..nothing
            };
        }
        let feasible = solved.primal_solution_status() == HighsSolutionStatus::Feasible;
        let optimal = status == HighsModelStatus::Optimal;
        let bound = if program.whole.contains(&true) {
            solved.double_info_value(DUAL_BOUND).ok()
        } else {
            optimal.then(|| solved.objective_value())
        };
        Answer {
            values: feasible.then(|| solved.get_solution().columns().to_vec()),
            bound: bound.unwrap_or(f64::NEG_INFINITY),
            proved: optimal,
        }
    }

    fn seconds_left(&self) -> Option<f64> {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        self.until.map(|until| left(until).as_secs_f64())
    }
}
