//! What was done, for people and for programs.

mod course;
mod inspection;
mod json;
mod largest;
mod layers;
mod lowering;
mod names;
mod page;
pub mod plot;
pub mod png;
pub mod rows;
mod sketch;
mod table;
mod trace;

use std::fmt::{self, Display, Write};
use std::path::Path;
use std::time::Duration;

use ckpt_passes::bytes::Bytes;
use ckpt_passes::optimize::{Measured, Peak};

use self::rows::Comparison;
use crate::error::Error;
use crate::inspect::Inspection;
use crate::rewrite::Rewritten;
use crate::text::{self, LONGEST_NAME};
use crate::verify::{Claim, Verification};

pub(crate) use lowering::{lowering, lowering_json};

/// A graph that was rewritten, and what is known about it.
pub(crate) struct Outcome<'a> {
    /// What was found.
    pub(crate) rewritten: &'a Rewritten,
    /// What was written; nothing in a dry run.
    pub(crate) output: Option<&'a Path>,
    /// The file that says what nodes cost.
    pub(crate) costs: Option<&'a Path>,
    /// What everything took.
    pub(crate) total_time: Duration,
}

impl Outcome<'_> {
    /// The result for people: before and after, and what holds the peaks.
    pub(crate) fn table(&self) -> String {
        table::table(self)
    }

    /// The result as one JSON object on one line.
    pub(crate) fn json(&self) -> String {
        json::json(self)
    }

    /// Memory over one step, before and after, as an SVG image.
    pub(crate) fn plot(&self) -> String {
        course::picture(self.rewritten.summary()).svg
    }

    /// The result as a page for a browser, with what other budgets cost.
    pub(crate) fn page(&self, trade_off: Option<&Comparison>) -> String {
        page::html(self, trade_off)
    }

    /// Both steps as a trace for Perfetto or Chrome.
    pub(crate) fn trace(&self) -> String {
        trace::json(self)
    }

    /// The same object, with the recomputed nodes and what holds the peaks.
    pub(crate) fn full_json(&self) -> String {
        json::full_json(self)
    }
}

impl Rewritten {
    /// What was done, as `ckpt-opt` prints it; `output` is where it was written.
    pub fn table(&self, output: Option<&Path>) -> String {
        self.outcome(output).table()
    }

    /// What `--report` writes: one JSON object, as the reference describes it.
    pub fn report(&self) -> String {
        self.outcome(None).full_json()
    }

    /// Memory over one step, before and after, as an SVG image.
    pub fn plot(&self) -> String {
        self.outcome(None).plot()
    }

    /// The same in pixels, as a PNG file, for places that show no SVG.
    pub fn png(&self) -> Result<Vec<u8>, Error> {
        Ok(png::png(&self.plot())?)
    }

    /// Both steps, before and after, as a trace that Perfetto and Chrome show: nodes over the estimated time, and the
    /// memory that is needed.
    pub fn trace(&self) -> String {
        self.outcome(None).trace()
    }

    /// The result as one page for a browser, which needs nothing else: memory over the step with what is there at each moment,
    /// what is computed again and why, and, where it is given, what other budgets cost.
    pub fn page(&self, trade_off: Option<&Comparison>) -> String {
        self.outcome(None).page(trade_off)
    }

    fn outcome<'a>(&'a self, output: Option<&'a Path>) -> Outcome<'a> {
        Outcome {
            rewritten: self,
            output,
            costs: None,
            total_time: self.total_time(),
        }
    }
}

impl Inspection {
    /// Memory over the step, what holds its peak, and what limits any plan, as `ckpt-opt inspect` prints it.
    pub fn table(&self) -> String {
        inspection::text(self)
    }

    /// The same as one JSON object on one line.
    pub fn json(&self) -> String {
        json::inspected(self)
    }
}

impl Verification {
    /// The same as one JSON object on one line.
    pub fn json(&self) -> String {
        json::verification(self)
    }
}

/// The result of `verify`.
pub(crate) fn verification(verification: &Verification) -> String {
    let Verification { before, after, .. } = verification;
    let mut text = "equivalent: every tensor of the first graph is computed by the same operators \
                    from the same inputs, or by a variant that is known to compute the same, or was allowed\n\n"
        .to_owned();
    let _ = writeln!(text, "{:<24}{:>12}{:>12}", "peak", "before", "after");
    for ((order, before), (_, after)) in peaks(before).zip(peaks(after)) {
        let (order, before) = (format!("{order} order"), before.bytes.to_string());
        let after = after.bytes.to_string();
        let _ = writeln!(text, "{order:<24}{before:>12}{after:>12}");
    }
    let claim = match verification.claim {
        Claim::None => return text,
        Claim::Holds(budget) => format!("the second stays within its budget, {budget}"),
        Claim::NotHeld => "the budget that the second names was not looked at: it was planned with other options than those given".to_owned(),
    };
    let _ = writeln!(text, "\n{claim}");
    text
}

/// By execution order.
fn peaks(measured: &Measured) -> impl Iterator<Item = (&'static str, &Peak)> {
    let memory_efficient = measured.memory_efficient.as_ref();
    [
        ("DEFAULT", &measured.default),
        ("PRIORITY_BASED", &measured.priority),
    ]
    .into_iter()
    .chain(memory_efficient.map(|peak| ("MEMORY_EFFICIENT", peak)))
}

impl Error {
    /// What happened, for people; where nothing fits, with what holds the smallest peak.
    pub fn explained(&self) -> String {
        let mut text = text::on_one_line(&self.to_string());
        if let Some((_, smallest)) = self.infeasible() {
            let (held, layers) = (inspection::held(smallest), inspection::by_layer(smallest));
            let _ = write!(
                text,
                "\nof that, the caller and the runtime itself own {}; the rest is held at step {} of {} (node {})\n\
                 {held}{layers}",
                smallest.owned(),
                smallest.step,
                smallest.nodes.len(),
                Name(&smallest.node),
            );
            if let Some(floor) = self.floor() {
                let _ = writeln!(
                    text,
                    "no plan can need less than {}: the caller owns a part of it, and node {} takes the rest with what it reads and \
                     writes\n\
                     so the search was short, and smaller peaks may exist; --budget min searches fully",
                    floor.bytes,
                    Name(&floor.node),
                );
            }
            text.push_str("nothing was written");
        }
        text
    }
}

fn peak_and_holders(peak: &Peak) -> String {
    format!("peak {}{}", peak.bytes, holders(peak))
}

/// Where a peak is, and what holds it besides what the caller owns: one line each.
fn holders(peak: &Peak) -> String {
    const SHOWN: usize = 5;
    let mut text = format!(" at step {} (node {})\n", peak.step, Name(&peak.node));
    for (name, size) in peak.holders.iter().take(SHOWN) {
        let _ = writeln!(text, "{:>12}  {}", size.to_string(), Name(name));
    }
    let more = peak.holders.iter().skip(SHOWN);
    let count = more.clone().count();
    if count > 0 {
        let size: Bytes = more.map(|&(_, size)| size).sum();
        let _ = writeln!(text, "{:>12}  in {count} more", size.to_string());
    }
    text
}

/// A name from a file, on one line whatever is in it.
struct Name<'a>(&'a str);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::shortened(&text::on_one_line(self.0), LONGEST_NAME))
    }
}
