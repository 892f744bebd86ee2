//! Progress, warnings and errors, on standard error.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ckpt_passes::watch::{Best, Watch};
use indicatif::ProgressBar;

use crate::report::text;

/// Where messages go. That nobody reads them is no reason to stop.
#[derive(Clone, Copy, Debug)]
pub struct Messages {
    quiet: bool,
}

impl Messages {
    /// `quiet` leaves out progress.
    pub fn new(quiet: bool) -> Messages {
        Messages { quiet }
    }

    /// What is being done.
    pub fn progress(&self, text: impl Display) {
        if !self.quiet {
            let _ = writeln!(io::stderr(), "{}", message(text));
        }
    }

    /// Shows on a terminal how far the work is.
    pub fn watching<T>(&self, watch: &Watch, work: impl FnOnce() -> T) -> T {
        let bar = ProgressBar::new_spinner();
        if self.quiet || bar.is_hidden() {
            return work();
        }
        let done = AtomicBool::new(false);
        let result = thread::scope(|scope| {
            let show = || {
                while !done.load(Ordering::Relaxed) {
                    bar.set_message(state(watch));
                    bar.tick();
                    thread::sleep(Duration::from_millis(100));
                }
            };
            // Without a thread to spare, nothing is shown.
            let _ = thread::Builder::new().spawn_scoped(scope, show);
            let result = work();
            done.store(true, Ordering::Relaxed);
            result
        });
        bar.finish_and_clear();
        result
    }

    /// The result, where standard output has something else.
    pub fn result(&self, text: &str) -> io::Result<()> {
        io::stderr().write_all(text.as_bytes())
    }

    /// What the user should look at.
    pub fn warning(&self, text: impl Display) {
        let _ = writeln!(io::stderr(), "warning: {}", message(text));
    }

    /// Why nothing came of it.
    pub fn error(&self, text: impl Display) {
        let _ = writeln!(io::stderr(), "error: {}", message(text));
    }
}

/// A message as it is shown: no longer than a screen or two, and without what a terminal would obey.
fn message(text: impl Display) -> String {
    text::bounded(&text::printable(&text.to_string()))
}

/// The overhead, the bound and the gap between them, in percent of a step.
fn state(watch: &Watch) -> String {
    let evaluations = watch.evaluations();
    let Some(Best { added, least, step }) = watch.best() else {
        return format!("{evaluations} evaluations");
    };
    let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
    format!(
        "{evaluations} evaluations: adds {:.2} %, every plan at least {:.2} %, gap {:.2} %",
        percent(added, step),
        percent(least, step),
        percent(added.saturating_sub(least), step.saturating_add(least)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_there_is_a_plan_only_the_work_is_shown() {
        assert_eq!(state(&Watch::default()), "0 evaluations");
    }
}
