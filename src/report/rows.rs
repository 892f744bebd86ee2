//! The results of `sweep` and `compare`, for people and for programs.

use std::fmt::Write;

use ckpt_passes::bytes::Bytes;
use ckpt_passes::optimize::StopReason;
use ckpt_passes::runtime::promise::Promise;
use serde::Serialize;

use super::names::{sessions, stop_reason};
use super::plot::{self, Curve};
use crate::control::Warning;
use crate::text::on_one_line;

/// What some strategies make of some budgets.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What the caller owns.
    pub fixed: Bytes,
    /// The peak of the unmodified graph in DEFAULT order.
    pub before: Bytes,
    /// As they were asked for.
    pub budgets: Vec<String>,
    /// Strategy by strategy.
    pub tried: Vec<Tried>,
    /// What the user should look at.
    pub warnings: Vec<Warning>,
}

/// What one strategy makes of them.
#[derive(Clone, Debug)]
pub struct Tried {
    /// Its name.
    pub strategy: &'static str,
    /// What planning for all budgets took.
    pub seconds: f64,
    /// Why it does not plan this graph.
    pub refused: Option<String>,
    /// The smallest peak that it reaches.
    pub smallest: Bytes,
    /// By budget; none if it refused.
    pub cells: Vec<Cell>,
}

/// What one strategy makes of one budget.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The budget in bytes.
    pub budget: Bytes,
    /// Its plan; `None` if none fits.
    pub plan: Option<Fitting>,
    /// Why the search ended; `None` where none fits, although it had the time it takes.
    pub stop_reason: Option<StopReason>,
    /// What the strategy says of the plan.
    pub notes: Vec<String>,
}

/// The figures of a plan that fits.
#[derive(Clone, Copy, Debug)]
pub struct Fitting {
    /// What the rewritten graph needs.
    pub peak: Bytes,
    /// Added time / time of the unmodified step.
    pub overhead: f64,
    /// What every plan adds that keeps the order of first computations.
    pub lower_bound: f64,
    /// Mirrors.
    pub recomputed: usize,
    /// PassThrough nodes.
    pub barriers: usize,
    /// In which sessions the budget holds.
    pub promise: Promise,
}

#[derive(Serialize)]
struct Object<'a> {
    fixed_bytes: u64,
    peak_before_bytes: u64,
    budgets: &'a [String],
    strategies: Vec<StrategyObject<'a>>,
}

#[derive(Serialize)]
struct StrategyObject<'a> {
    strategy: &'a str,
    search_seconds: f64,
    refused: Option<&'a str>,
    smallest_peak_bytes: Option<u64>,
    /// In the sequence of the budgets.
    rows: Vec<RowObject<'a>>,
}

/// Without a plan there are no figures.
#[derive(Serialize)]
struct RowObject<'a> {
    budget_bytes: u64,
    fits: bool,
    peak_after_bytes: Option<u64>,
    overhead: Option<f64>,
    lower_bound_overhead: Option<f64>,
    recomputed_nodes: Option<usize>,
    barriers: Option<usize>,
    order: Option<&'static str>,
    level: Option<&'static str>,
    stop_reason: Option<&'static str>,
    notes: &'a [String],
}

impl StrategyObject<'_> {
    fn of(tried: &Tried) -> StrategyObject<'_> {
        StrategyObject {
            strategy: tried.strategy,
            search_seconds: tried.seconds,
            refused: tried.refused.as_deref(),
            smallest_peak_bytes: tried.refused.is_none().then_some(tried.smallest.0),
            rows: tried.cells.iter().map(RowObject::of).collect(),
        }
    }
}

impl RowObject<'_> {
    fn of(cell: &Cell) -> RowObject<'_> {
        let plan = cell.plan;
        RowObject {
            budget_bytes: cell.budget.0,
            fits: plan.is_some(),
            peak_after_bytes: plan.map(|plan| plan.peak.0),
            overhead: plan.map(|plan| plan.overhead),
            lower_bound_overhead: plan.map(|plan| plan.lower_bound),
            recomputed_nodes: plan.map(|plan| plan.recomputed),
            barriers: plan.map(|plan| plan.barriers),
            order: plan.map(|plan| plan.promise.order_name()),
            level: plan.map(|plan| plan.promise.level_name()),
            stop_reason: cell.stop_reason.map(stop_reason),
            notes: &cell.notes,
        }
    }
}

impl Comparison {
    /// Strategies by row; overheads by budget, then peaks.
    pub fn table(&self) -> String {
        let mut text = self.heading();
        let held = self.held();
        let _ = write!(text, "{:<26}{:>12}", "strategy", "smallest");
        for budget in &self.budgets {
            let _ = write!(text, "{budget:>12}");
        }
        let _ = writeln!(text, "{:>10}", "seconds");
        let sizes = self.tried.iter().find(|tried| tried.refused.is_none());
        if let Some(sizes) = sizes {
            let _ = write!(text, "{:<38}", "");
            for cell in &sizes.cells {
                let _ = write!(text, "{:>12}", cell.budget.to_string());
            }
            text.push('\n');
        }
        for tried in &self.tried {
            let _ = write!(text, "{:<26}", tried.strategy);
            if let Some(reason) = &tried.refused {
                let _ = writeln!(text, "  refused: {}", on_one_line(reason));
                continue;
            }
            let _ = write!(text, "{:>12}", tried.smallest.to_string());
            for cell in &tried.cells {
                let shown = cell.plan.map_or_else(
                    || "-".to_owned(),
                    |plan| {
                        let mark = held.iter().position(|&one| one == plan.promise);
                        percent(plan.overhead) + &"*".repeat(mark.unwrap_or(0))
                    },
                );
                let _ = write!(text, "{shown:>12}");
            }
            let _ = writeln!(text, "{:>10.1}", tried.seconds);
        }
        let _ = writeln!(text, "\npeaks of the rewritten graphs");
        for tried in self.tried.iter().filter(|tried| tried.refused.is_none()) {
            let _ = write!(text, "{:<38}", tried.strategy);
            for cell in &tried.cells {
                let shown = cell
                    .plan
                    .map_or_else(|| "-".to_owned(), |plan| plan.peak.to_string());
                let _ = write!(text, "{shown:>12}");
            }
            text.push('\n');
        }
        for (place, &promise) in held.iter().enumerate() {
            let sessions = sessions(promise);
            let _ = match place {
                0 => write!(text, "\nthe budgets hold in {sessions}"),
                _ => write!(text, "; with {}, in {sessions}", "*".repeat(place)),
            };
        }
        if !held.is_empty() {
            text.push('\n');
        }
        if let Some(ended) = self.ended_early() {
            let _ = writeln!(text, "\n{ended}");
        }
        text
    }

    /// Budgets by row, for the first strategy.
    pub fn sweep(&self) -> String {
        let Some(tried) = self.tried.first() else {
            return String::new();
        };
        let mut text = self.heading();
        if let Some(reason) = &tried.refused {
            let _ = writeln!(text, "{} refused: {}", tried.strategy, on_one_line(reason));
            return text;
        }
        let _ = writeln!(
            text,
            "{:<14}{:>12}{:>12}{:>10}{:>10}{:>12}{:>10}  holds in",
            "budget", "size", "peak", "added", "at least", "recomputed", "barriers"
        );
        for (name, cell) in self.budgets.iter().zip(&tried.cells) {
            let size = cell.budget.to_string();
            let Some(plan) = cell.plan else {
                let _ = writeln!(text, "{name:<14}{size:>12}{:>12}", "-");
                continue;
            };
            let bound = percent(plan.lower_bound);
            let added = percent(plan.overhead);
            let _ = writeln!(
                text,
                "{name:<14}{size:>12}{:>12}{added:>10}{bound:>10}{:>12}{:>10}  {}",
                plan.peak.to_string(),
                plan.recomputed,
                plan.barriers,
                sessions(plan.promise)
            );
        }
        let _ = writeln!(
            text,
            "\nthe smallest peak that {} finds is {}; planning took {:.1} s",
            tried.strategy, tried.smallest, tried.seconds
        );
        if let Some(ended) = self.ended_early() {
            let _ = writeln!(text, "{ended}");
        }
        text
    }

    /// In which sessions budgets hold; where in most sessions, first.
    fn held(&self) -> Vec<Promise> {
        let cells = self.tried.iter().flat_map(|tried| &tried.cells);
        let mut held = Vec::new();
        for plan in cells.filter_map(|cell| cell.plan) {
            if !held.contains(&plan.promise) {
                held.push(plan.promise);
            }
        }
        held.sort_by_key(|one| u8::from(one.order.is_some()) + u8::from(one.level.is_some()));
        held
    }

    /// What is to be said where the time limit ended a search.
    fn ended_early(&self) -> Option<&'static str> {
        let mut cells = self.tried.iter().flat_map(|tried| &tried.cells);
        let ended = cells.any(|cell| cell.stop_reason == Some(StopReason::TimeLimit));
        ended.then_some(
            "--time-limit ended the search; with more time, plans may add less and smaller budgets may fit",
        )
    }

    /// One JSON object on one line.
    pub fn json(&self) -> String {
        crate::json::line(&Object {
            fixed_bytes: self.fixed.0,
            peak_before_bytes: self.before.0,
            budgets: &self.budgets,
            strategies: self.tried.iter().map(StrategyObject::of).collect(),
        })
    }

    /// Overhead over budget as an SVG image, a curve for each strategy; the legend names the smallest peaks.
    pub fn plot(&self) -> String {
        let curve = |tried: &Tried| {
            let point = |cell: &Cell| {
                let overhead = cell.plan?.overhead;
                Some((cell.budget.0 as f64 / GIB, overhead * 100.0))
            };
            let mut points: Vec<(f64, f64)> = tried.cells.iter().filter_map(point).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Curve {
                name: match tried.refused {
                    Some(_) => format!("{} refused", tried.strategy),
                    None => format!("{}, from {}", tried.strategy, tried.smallest),
                },
                points,
            }
        };
        let curves: Vec<Curve> = self.tried.iter().map(curve).collect();
        plot::svg("budget in GiB", "added time in %", &curves)
    }

    fn heading(&self) -> String {
        format!(
            "unmodified: {}; the caller owns {}\n\n",
            self.before, self.fixed
        )
    }
}

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

fn percent(part: f64) -> String {
    format!("{:.2} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn comparison() -> Comparison {
        let cell = |budget: u64, overhead: f64| Cell {
            budget: Bytes(budget << 20),
            plan: Some(Fitting {
                peak: Bytes((budget << 20) - 512),
                overhead,
                lower_bound: overhead / 2.0,
                recomputed: 7,
                barriers: 2,
                promise: Promise::ANY,
            }),
            stop_reason: Some(StopReason::Evaluations),
            notes: vec!["as an example".to_owned()],
        };
        let too_large = Cell {
            budget: Bytes(20 << 20),
            plan: None,
            stop_reason: None,
            notes: Vec::new(),
        };
        let tried = |strategy, cells| Tried {
            strategy,
            seconds: 0.25,
            refused: None,
            smallest: Bytes(30 << 20),
            cells,
        };
        let mut refusing = tried("lower-set-exact", Vec::new());
        refusing.refused = Some("too many lower sets".to_owned());
        Comparison {
            fixed: Bytes(10 << 20),
            before: Bytes(100 << 20),
            budgets: vec!["fixed+90%".to_owned(), "20MB".to_owned()],
            tried: vec![
                tried("auto", vec![cell(91, 0.0125), cell(20, 0.5)]),
                tried("chen-sqrt", vec![cell(91, 0.25), too_large]),
                refusing,
            ],
            warnings: Vec::new(),
        }
    }

    #[test]
    fn a_comparison_shows_who_refused_and_what_does_not_fit() {
        assert_snapshot!(comparison().table(), @r"
        unmodified: 100 MiB; the caller owns 10.0 MiB

        strategy                      smallest   fixed+90%        20MB   seconds
                                                  91.0 MiB    20.0 MiB
        auto                          30.0 MiB      1.25 %     50.00 %       0.2
        chen-sqrt                     30.0 MiB     25.00 %           -       0.2
        lower-set-exact             refused: too many lower sets

        peaks of the rewritten graphs
        auto                                      91.0 MiB    20.0 MiB
        chen-sqrt                                 91.0 MiB           -

        the budgets hold in every session
        ");
    }

    #[test]
    fn a_sweep_shows_budgets_by_row() {
        assert_snapshot!(comparison().sweep(), @r"
        unmodified: 100 MiB; the caller owns 10.0 MiB

        budget                size        peak     added  at least  recomputed  barriers  holds in
        fixed+90%         91.0 MiB    91.0 MiB    1.25 %    0.62 %           7         2  every session
        20MB              20.0 MiB    20.0 MiB   50.00 %   25.00 %           7         2  every session

        the smallest peak that auto finds is 30.0 MiB; planning took 0.2 s
        ");
    }

    #[test]
    fn budgets_that_hold_in_different_sessions_say_so() {
        let mut mixed = comparison();
        let plan = &mut mixed.tried[0].cells[1].plan;
        plan.as_mut().expect("a plan").promise = Promise::USUAL;
        assert_snapshot!(mixed.sweep(), @r"
        unmodified: 100 MiB; the caller owns 10.0 MiB

        budget                size        peak     added  at least  recomputed  barriers  holds in
        fixed+90%         91.0 MiB    91.0 MiB    1.25 %    0.62 %           7         2  every session
        20MB              20.0 MiB    20.0 MiB   50.00 %   25.00 %           7         2  DEFAULT, ORT_ENABLE_ALL

        the smallest peak that auto finds is 30.0 MiB; planning took 0.2 s
        ");
        assert_snapshot!(mixed.table(), @r"
        unmodified: 100 MiB; the caller owns 10.0 MiB

        strategy                      smallest   fixed+90%        20MB   seconds
                                                  91.0 MiB    20.0 MiB
        auto                          30.0 MiB      1.25 %    50.00 %*       0.2
        chen-sqrt                     30.0 MiB     25.00 %           -       0.2
        lower-set-exact             refused: too many lower sets

        peaks of the rewritten graphs
        auto                                      91.0 MiB    20.0 MiB
        chen-sqrt                                 91.0 MiB           -

        the budgets hold in every session; with *, in DEFAULT, ORT_ENABLE_ALL
        ");
        assert!(
            mixed
                .json()
                .contains(r#""barriers":2,"order":"default","level":"all""#)
        );
    }

    #[test]
    fn what_a_time_limit_ended_is_said_below() {
        let mut ended = comparison();
        ended.tried[1].cells[1].stop_reason = Some(StopReason::TimeLimit);
        let said = "\n--time-limit ended the search; with more time, plans may add less and smaller budgets may fit\n";
        for (text, other) in [
            (ended.table(), comparison().table()),
            (ended.sweep(), comparison().sweep()),
        ] {
            assert!(text.ends_with(said) && !other.contains(said), "{text}");
        }
        assert!(ended.json().contains(r#""stop_reason":"time_limit""#));
    }

    #[test]
    fn a_comparison_is_one_object_without_figures_where_there_is_no_plan() {
        assert_snapshot!(comparison().json(), @r#"{"fixed_bytes":10485760,"peak_before_bytes":104857600,"budgets":["fixed+90%","20MB"],"strategies":[{"strategy":"auto","search_seconds":0.25,"refused":null,"smallest_peak_bytes":31457280,"rows":[{"budget_bytes":95420416,"fits":true,"peak_after_bytes":95419904,"overhead":0.0125,"lower_bound_overhead":0.00625,"recomputed_nodes":7,"barriers":2,"order":"any","level":"any","stop_reason":"evaluations","notes":["as an example"]},{"budget_bytes":20971520,"fits":true,"peak_after_bytes":20971008,"overhead":0.5,"lower_bound_overhead":0.25,"recomputed_nodes":7,"barriers":2,"order":"any","level":"any","stop_reason":"evaluations","notes":["as an example"]}]},{"strategy":"chen-sqrt","search_seconds":0.25,"refused":null,"smallest_peak_bytes":31457280,"rows":[{"budget_bytes":95420416,"fits":true,"peak_after_bytes":95419904,"overhead":0.25,"lower_bound_overhead":0.125,"recomputed_nodes":7,"barriers":2,"order":"any","level":"any","stop_reason":"evaluations","notes":["as an example"]},{"budget_bytes":20971520,"fits":false,"peak_after_bytes":null,"overhead":null,"lower_bound_overhead":null,"recomputed_nodes":null,"barriers":null,"order":null,"level":null,"stop_reason":null,"notes":[]}]},{"strategy":"lower-set-exact","search_seconds":0.25,"refused":"too many lower sets","smallest_peak_bytes":null,"rows":[]}]}"#);
    }

    #[test]
    fn a_plot_leaves_out_what_does_not_fit() {
        let image = comparison().plot();
        assert!(image.starts_with("<svg ") && image.ends_with("</svg>\n"));
        // auto has two points, chen-sqrt one.
        assert_eq!(image.matches("<circle").count(), 3);
        assert!(image.contains("\nauto, from 30.0 MiB\n"), "{image}");
        assert!(image.contains("\nlower-set-exact refused\n"), "{image}");
    }
}
