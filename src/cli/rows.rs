//! The arguments of `sweep` and `compare`, which look at rows of budgets.

use std::path::PathBuf;
use std::time::Duration;

use ckpt_passes::strategy::Strategy;
use clap::Args;

use super::{Requested, Setting, Variants, parse_budget, parse_seconds, strategies};

/// `ckpt-opt sweep IN`.
#[derive(Clone, Debug, Args)]
pub struct Sweep {
    /// How to plan.
    #[arg(long, value_name = "NAME", default_value_t = Strategy::Auto, value_parser = strategies())]
    pub strategy: Strategy,
    /// What both commands take.
    #[command(flatten)]
    pub row: Row,
}

/// `ckpt-opt compare IN`.
#[derive(Clone, Debug, Args)]
pub struct Compare {
    /// Only these strategies, separated by commas; all of them without it.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = strategies())]
    pub strategies: Vec<Strategy>,
    /// What both commands take.
    #[command(flatten)]
    pub row: Row,
}

/// A graph and a row of budgets.
#[derive(Clone, Debug, Args)]
pub struct Row {
    /// The training graph.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// A budget as for rewriting; may be repeated. Without it: fixed+90%, fixed+80% and so on down
    /// to fixed+20%.
    #[arg(long = "budget", value_name = "SIZE", value_parser = parse_budget)]
    #[arg(allow_hyphen_values = true)]
    pub budgets: Vec<Requested>,
    /// The seed of the search.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// End the search of each strategy after so many seconds, with what is found by then.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub time_limit: Option<Duration>,
    /// Which operators may be replaced, as for rewriting. Auto uses them, and monet-ilp all but
    /// sums unless they are none.
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "all"
    )]
    pub variants: Vec<Variants>,
    /// What the step is run with.
    #[command(flatten)]
    pub setting: Setting,
    /// Draw the added time over the budget, as an SVG file.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub json: bool,
    /// No progress on standard error; warnings and errors still appear.
    #[arg(long)]
    pub quiet: bool,
}

impl Row {
    /// The budgets that are asked for, or the usual row.
    pub fn budgets(&self) -> Vec<Requested> {
        if !self.budgets.is_empty() {
            return self.budgets.clone();
        }
        let usual = (2..10u32).rev().map(|tenth| format!("fixed+{tenth}0%"));
        usual.filter_map(|text| parse_budget(&text).ok()).collect()
    }
}
