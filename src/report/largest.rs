//! The result of `largest`.

use std::fmt::Write;

use ckpt_passes::optimize::StopReason;
use serde::Serialize;

use super::names::stop_reason;
use crate::inputs::Budget;
use crate::largest::{Attempt, Largest};

/// What `--json` prints. Other people's scripts rely on the names.
#[derive(Serialize)]
struct Found<'a> {
    dimension: &'a str,
    /// `null` if not even 1 fits.
    largest: Option<u64>,
    peak_after_bytes: Option<u64>,
    overhead: Option<f64>,
    /// In the sequence in which they were tried.
    tried: Vec<AttemptObject>,
}

#[derive(Serialize)]
struct AttemptObject {
    size: u64,
    fits: bool,
    /// `null` where nothing fits the budget.
    overhead: Option<f64>,
    stop_reason: Option<&'static str>,
}

impl Largest {
    /// One JSON object on one line.
    pub fn json(&self, dim: &str) -> String {
        let summary = self.rewritten.as_ref().map(|one| one.summary());
        crate::json::line(&Found {
            dimension: dim,
            largest: self.size(),
            peak_after_bytes: summary.map(|summary| summary.after.bytes.0),
            overhead: summary.map(|summary| summary.overhead()),
            tried: self
                .tried
                .iter()
                .map(|attempt| AttemptObject {
                    size: attempt.size,
                    fits: attempt.fits,
                    overhead: attempt.overhead,
                    stop_reason: attempt.stop_reason.map(stop_reason),
                })
                .collect(),
        })
    }

    /// The same for people.
    pub fn text(&self, dim: &str, budget: &Budget, at_most: Option<f64>) -> String {
        let mut text = match &self.rewritten {
            Some(rewritten) => format!(
                "{dim}={} fits {budget}: peak {}, {:.2} % more time\n",
                self.size().unwrap_or_default(),
                rewritten.summary().after.bytes,
                100.0 * rewritten.summary().overhead()
            ),
            None => format!("not even {dim}=1 fits {budget}{}\n", within(at_most)),
        };
        let mut tried: Vec<&Attempt> = self.tried.iter().collect();
        tried.sort_by_key(|attempt| attempt.size);
        let _ = writeln!(text, "\n{:<14}{:>10}", dim, "added");
        for attempt in tried {
            let added = match attempt.overhead {
                Some(overhead) => format!("{:.2} %", 100.0 * overhead),
                None => "-".to_owned(),
            };
            let too_slow = match attempt.overhead.is_some() && !attempt.fits {
                true => "  more than allowed",
                false => "",
            };
            let _ = writeln!(text, "{:<14}{added:>10}{too_slow}", attempt.size);
        }
        let mut attempts = self.tried.iter();
        if attempts.any(|attempt| attempt.stop_reason == Some(StopReason::TimeLimit)) {
            let _ = writeln!(
                text,
                "\n--time-limit ended a search; with more time, a larger size may fit"
            );
        }
        text
    }
}

fn within(at_most: Option<f64>) -> String {
    at_most.map_or_else(String::new, |most| {
        format!(" with at most {} % more time", 100.0 * most)
    })
}
