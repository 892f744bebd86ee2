//! The result for people.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use ckpt_passes::bytes::Bytes;
use ckpt_passes::operators::variants::Approximation;
use ckpt_passes::optimize::{BudgetRequest, Execution, StopReason, Summary};
use ckpt_passes::runtime::level::Level;
use ckpt_passes::runtime::order::ExecutionOrder;
use ckpt_passes::runtime::promise::Promise;
use ckpt_passes::runtime::settings::RuntimeSettings;

use super::names::sessions;
use super::{Outcome, peak_and_holders};
use crate::text::on_one_line;

/// From this part of a step on, what is added is worth other session options.
const DEAR: f64 = 0.05;

/// Label, before, after, remark.
type Row = (&'static str, String, String, String);

pub(super) fn table(outcome: &Outcome<'_>) -> String {
    let summary = outcome.rewritten.summary();
    let mut text = match outcome.output {
        Some(path) if path == Path::new("-") => "wrote the graph to standard output\n\n".to_owned(),
        Some(path) => format!("wrote {}\n\n", on_one_line(&path.display().to_string())),
        None => "dry run, nothing was written\n\n".to_owned(),
    };
    for (label, before, after, remark) in rows(outcome) {
        let line = format!("{label:<24}{before:>12}{after:>12}  {remark}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text.push('\n');
    for (label, value) in facts(outcome) {
        let _ = writeln!(text, "{label:<24}{}", on_one_line(&value));
    }
    let (order, level) = summary.reported;
    let before = format!("{}, {}", order.name(), level.name());
    let _ = write!(
        text,
        "\nbefore ({before}): {}",
        peak_and_holders(&summary.before)
    );
    let after = way_of_peak(summary);
    let _ = write!(
        text,
        "\nafter ({after}): {}",
        peak_and_holders(&summary.after)
    );
    text
}

/// What is known besides before and after: a label and a text each.
pub(super) fn facts(outcome: &Outcome<'_>) -> Vec<(&'static str, String)> {
    let summary = outcome.rewritten.summary();
    let mut facts = vec![
        (
            "budget",
            format!("{} ({})", summary.budget, outcome.rewritten.budget()),
        ),
        (
            "smallest peak found",
            match outcome.rewritten.budget().request == BudgetRequest::Smallest {
                true => summary.smallest_peak.to_string(),
                false => format!(
                    "{} at a quick look; --budget min searches fully",
                    summary.smallest_peak
                ),
            },
        ),
    ];
    if let Some(usual) = usual_before(summary) {
        facts.push(("before, by default", usual));
    }
    if let Some(over) = over_budget(summary) {
        facts.push((
            "over the budget",
            format!("the graph as it is takes {over}"),
        ));
    }
    // Rounded down, and silent where nothing is left to say.
    let bound = summary.lower_bound_overhead();
    let bound = (1e4 * bound).floor() / 100.0;
    if bound > 0.0 {
        let bound = format!("no plan that keeps the order adds less than {bound:.2} %");
        facts.push(("lower bound", bound));
    }
    for note in &summary.notes {
        facts.push(("strategy", note.clone()));
    }
    for (name, count) in approximations(summary) {
        facts.push((
            "not bitwise",
            format!("{count} nodes by {name}; see --report"),
        ));
    }
    facts.push((
        "session options",
        match outcome.rewritten.options().settings() {
            RuntimeSettings::LEAN => {
                "enable_mem_reuse and enable_mem_pattern off, no arena".to_owned()
            }
            RuntimeSettings::NO_PATTERN => "enable_mem_pattern off, no arena".to_owned(),
            _ => format!(
                "defaults; the arena, unless it is off, can reserve {} in all",
                summary.reserved_after.powers_of_two
            ),
        },
    ));
    let settings = outcome.rewritten.options().settings();
    if settings.pattern && summary.overhead() > DEAR {
        let lean =
            "--runtime-settings lean or no-pattern (no memory pattern, so no gaps to make up for)";
        facts.push(("may add less", lean.to_owned()));
    }
    if summary.promise != Promise::ANY {
        facts.push(("the budget holds in", sessions(summary.promise)));
    }
    if let Some(overhead) = summary.overhead_for_all() {
        let all = format!("+{:.2} % (--order any --level any)", 100.0 * overhead);
        facts.push(("in every session", all));
    }
    let off = outcome.rewritten.switched_off();
    if !off.is_empty() {
        let off = format!("{} switched off (see --session-options)", off.join(", "));
        facts.push(("graph optimizers", off));
    }
    if let Some(choice) = summary.convolutions {
        let options = choice.provider_options();
        let each = options.map(|(name, value)| format!("{name}={value}"));
        facts.push(("CUDA provider options", each.join(", ")));
    }
    if summary.stop_reason == StopReason::TimeLimit {
        let more = "--time-limit ended it; with more time a cheaper plan may be found";
        facts.push(("search", more.to_owned()));
    }
    facts.push((
        "planned in",
        format!("{:.2} s", outcome.rewritten.search_time().as_secs_f64()),
    ));
    facts
}

/// In which order and at which level the rewritten graph needs what is said to be its peak.
fn way_of_peak(summary: &Summary) -> String {
    let promise = summary.promise;
    let mut ways = summary.executions.iter();
    match ways.find(|way| way.bytes == summary.after.bytes && promise.holds(way.order, way.level)) {
        Some(way) => format!("{}, {}", way.order.name(), way.level.name()),
        // At a level between the two that the result tells of.
        None => "the most of all orders and levels".to_owned(),
    }
}

/// What the unmodified graph takes in a session of which nobody has changed order or level, where that is not what stands in
/// the table.
fn usual_before(summary: &Summary) -> Option<String> {
    let is_usual =
        |way: &&Execution| way.order == ExecutionOrder::Default && way.level == Level::EnableAll;
    let usual = summary.executions_before.iter().find(is_usual)?;
    let text = usual.bytes.to_string();
    (text != summary.before.bytes.to_string())
        .then(|| format!("{text} (DEFAULT, {})", usual.level.name()))
}

/// What a graph takes that stays as it is, where that is over its budget.
fn over_budget(summary: &Summary) -> Option<String> {
    let over = summary.over_budget().map(|way| {
        let (order, level) = (way.order.name(), way.level.name());
        format!("{} ({order}, {level})", way.bytes)
    });
    let over: Vec<String> = over.collect();
    (!over.is_empty()).then(|| over.join(", "))
}

/// The approximations that were used, and for how many nodes.
fn approximations(summary: &Summary) -> BTreeMap<&'static str, usize> {
    let mut used = BTreeMap::new();
    for (_, variant) in &summary.variants {
        if let Some(one) = Approximation::of(variant) {
            *used.entry(one.name).or_default() += 1;
        }
    }
    used
}

fn rows(outcome: &Outcome<'_>) -> Vec<Row> {
    let summary = outcome.rewritten.summary();
    let (before, after, fixed) = (summary.before.bytes, summary.after.bytes, summary.fixed);
    let memory = |label, before: Bytes, after: Bytes| -> Row {
        let remark = match before {
            Bytes::ZERO => String::new(),
            before => format!("{:.1} %", 100.0 * after.0 as f64 / before.0 as f64),
        };
        (label, before.to_string(), after.to_string(), remark)
    };
    let time_after = summary.time_before.saturating_add(summary.time_added);
    let estimate = match outcome.costs {
        None => format!("estimated for {}", outcome.rewritten.options().device.name),
        Some(costs) => format!(
            "by {}, the rest for {}",
            costs.display(),
            outcome.rewritten.options().device.name
        ),
    };
    let count = |label, count: usize| (label, String::new(), count.to_string(), String::new());
    let mut rows = vec![
        ("", "before".to_owned(), "after".to_owned(), String::new()),
        memory("peak of a step", before, after),
        (
            "  owned by the caller",
            fixed.to_string(),
            fixed.to_string(),
            String::new(),
        ),
        memory("  the rest", before - fixed, after - fixed),
        (
            "  without copies",
            String::new(),
            summary.reordered_peak.to_string(),
            "in the same order".to_owned(),
        ),
        (
            "time of a step",
            duration(summary.time_before),
            duration(time_after),
            format!("+{:.2} %, {estimate}", 100.0 * summary.overhead()),
        ),
        (
            "nodes",
            summary.nodes_before.to_string(),
            summary.nodes_after.to_string(),
            String::new(),
        ),
        count("  recomputed", summary.recomputed_nodes),
        count("  barriers", summary.barriers),
    ];
    if !summary.variants.is_empty() {
        rows.push(count("  in another form", summary.variants.len()));
    }
    rows
}

/// Nanoseconds with three significant digits.
pub(super) fn duration(nanos: u64) -> String {
    const UNITS: [&str; 4] = ["ns", "us", "ms", "s"];
    let mut value = nanos as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_have_three_digits() {
        for (nanos, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_500, "1.50 us"),
            (99_940_000, "99.9 ms"),
            (999_600_000, "1.00 s"),
            (123_456_000_000, "123 s"),
        ] {
            assert_eq!(duration(nanos), text);
        }
    }
}
