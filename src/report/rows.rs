//! The results of `sweep` and `compare`, for people and for programs.

use std::fmt::Write;

use ckpt_passes::bytes::Bytes;
use serde::Serialize;

use super::plot::{self, Curve};

/// What some strategies make of some budgets.
pub struct Comparison {
    /// What the caller owns.
    pub fixed: Bytes,
    /// The peak of the unmodified graph in DEFAULT order.
    pub before: Bytes,
    /// As they were asked for.
    pub budgets: Vec<String>,
    /// Strategy by strategy.
    pub tried: Vec<Tried>,
}

/// What one strategy makes of them.
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

/// One strategy's plan within one budget.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The budget in bytes.
    #[serde(rename = "budget_bytes", serialize_with = "number")]
    pub budget: Bytes,
    /// Is there a plan?
    pub fits: bool,
    /// What the rewritten graph needs; 0 without a plan.
    #[serde(rename = "peak_after_bytes", serialize_with = "number")]
    pub peak: Bytes,
    /// Added time / time of the unmodified step.
    pub overhead: f64,
    /// What every plan adds that keeps the order of first computations.
    #[serde(rename = "lower_bound_overhead")]
    pub lower_bound: f64,
    /// Mirrors.
    #[serde(rename = "recomputed_nodes")]
    pub recomputed: usize,
    /// PassThrough nodes.
    pub barriers: usize,
}

impl Cell {
    /// No plan fits this budget.
    pub fn too_large(budget: Bytes) -> Cell {
        Cell {
            budget,
            fits: false,
            peak: Bytes::ZERO,
            overhead: 0.0,
            lower_bound: 0.0,
            recomputed: 0,
            barriers: 0,
        }
    }
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
    smallest_peak_bytes: u64,
    /// In the sequence of the budgets.
    rows: &'a [Cell],
}

impl StrategyObject<'_> {
    fn of(tried: &Tried) -> StrategyObject<'_> {
        StrategyObject {
            strategy: tried.strategy,
            search_seconds: tried.seconds,
            refused: tried.refused.as_deref(),
            smallest_peak_bytes: tried.smallest.0,
            rows: &tried.cells,
        }
    }
}

impl Comparison {
    /// Strategies by row, overheads by budget.
    pub fn table(&self) -> String {
        let mut text = self.heading();
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
                let _ = writeln!(text, "  refused: {reason}");
                continue;
            }
            let _ = write!(text, "{:>12}", tried.smallest.to_string());
            for cell in &tried.cells {
                let shown = match cell.fits {
                    true => percent(cell.overhead),
                    false => "-".to_owned(),
                };
                let _ = write!(text, "{shown:>12}");
            }
            let _ = writeln!(text, "{:>10.1}", tried.seconds);
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
            let _ = writeln!(text, "{} refused: {reason}", tried.strategy);
            return text;
        }
        let _ = writeln!(
            text,
            "{:<14}{:>12}{:>12}{:>10}{:>10}{:>12}{:>10}",
            "budget", "size", "peak", "added", "at least", "recomputed", "barriers"
        );
        for (name, cell) in self.budgets.iter().zip(&tried.cells) {
            let size = cell.budget.to_string();
            if !cell.fits {
                let _ = writeln!(text, "{name:<14}{size:>12}{:>12}", "-");
                continue;
            }
            let (added, bound) = (percent(cell.overhead), percent(cell.lower_bound));
            let _ = writeln!(
                text,
                "{name:<14}{size:>12}{:>12}{added:>10}{bound:>10}{:>12}{:>10}",
                cell.peak.to_string(),
                cell.recomputed,
                cell.barriers
            );
        }
        let _ = writeln!(
            text,
            "\nthe smallest peak that {} finds is {}; planning took {:.1} s",
            tried.strategy, tried.smallest, tried.seconds
        );
        text
    }

    /// One JSON object on one line.
    pub fn json(&self) -> String {
        super::json::line(&Object {
            fixed_bytes: self.fixed.0,
            peak_before_bytes: self.before.0,
            budgets: &self.budgets,
            strategies: self.tried.iter().map(StrategyObject::of).collect(),
        })
    }

    /// Overhead over budget as an SVG image, a curve for each strategy.
    pub fn plot(&self) -> String {
        let curve = |tried: &Tried| {
            let fitting = tried.cells.iter().filter(|cell| cell.fits);
            let mut points: Vec<(f64, f64)> = fitting
                .map(|cell| (cell.budget.0 as f64 / GIB, cell.overhead * 100.0))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Curve {
                name: tried.strategy.to_owned(),
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

fn number<S: serde::Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(bytes.0)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn comparison() -> Comparison {
        let cell = |budget: u64, overhead: f64| Cell {
            budget: Bytes(budget << 20),
            fits: true,
            peak: Bytes((budget << 20) - 512),
            overhead,
            lower_bound: overhead / 2.0,
            recomputed: 7,
            barriers: 2,
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
                tried(
                    "chen-sqrt",
                    vec![cell(91, 0.25), Cell::too_large(Bytes(20 << 20))],
                ),
                refusing,
            ],
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
        ");
    }

    #[test]
    fn a_sweep_shows_budgets_by_row() {
        assert_snapshot!(comparison().sweep(), @r"
        unmodified: 100 MiB; the caller owns 10.0 MiB

        budget                size        peak     added  at least  recomputed  barriers
        fixed+90%         91.0 MiB    91.0 MiB    1.25 %    0.62 %           7         2
        20MB              20.0 MiB    20.0 MiB   50.00 %   25.00 %           7         2

        the smallest peak that auto finds is 30.0 MiB; planning took 0.2 s
        ");
    }

    #[test]
    fn a_comparison_is_one_object() {
        assert_snapshot!(comparison().json(), @r#"{"fixed_bytes":10485760,"peak_before_bytes":104857600,"budgets":["fixed+90%","20MB"],"strategies":[{"strategy":"auto","search_seconds":0.25,"refused":null,"smallest_peak_bytes":31457280,"rows":[{"budget_bytes":95420416,"fits":true,"peak_after_bytes":95419904,"overhead":0.0125,"lower_bound_overhead":0.00625,"recomputed_nodes":7,"barriers":2},{"budget_bytes":20971520,"fits":true,"peak_after_bytes":20971008,"overhead":0.5,"lower_bound_overhead":0.25,"recomputed_nodes":7,"barriers":2}]},{"strategy":"chen-sqrt","search_seconds":0.25,"refused":null,"smallest_peak_bytes":31457280,"rows":[{"budget_bytes":95420416,"fits":true,"peak_after_bytes":95419904,"overhead":0.25,"lower_bound_overhead":0.125,"recomputed_nodes":7,"barriers":2},{"budget_bytes":20971520,"fits":false,"peak_after_bytes":0,"overhead":0.0,"lower_bound_overhead":0.0,"recomputed_nodes":0,"barriers":0}]},{"strategy":"lower-set-exact","search_seconds":0.25,"refused":"too many lower sets","smallest_peak_bytes":31457280,"rows":[]}]}"#);
    }

    #[test]
    fn a_plot_leaves_out_what_does_not_fit() {
        let image = comparison().plot();
        assert!(image.starts_with("<svg ") && image.ends_with("</svg>\n"));
        // auto has two points, chen-sqrt one.
        assert_eq!(image.matches("<circle").count(), 3);
    }
}
