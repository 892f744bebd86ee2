//! Progress, warnings and errors, on standard error.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use ckpt_passes::watch::Best;
use indicatif::ProgressBar;

use super::failure::Failure;
use super::fault;
use crate::control::{Control, Event, Warning};
use crate::text;

/// Where messages go. That nobody reads them is no reason to stop.
#[derive(Clone, Debug)]
pub(super) struct Messages {
    quiet: bool,
    /// How far a search is; shown on terminals only.
    bar: Arc<Mutex<Option<ProgressBar>>>,
}

impl Messages {
    /// `quiet` leaves out progress.
    pub(super) fn new(quiet: bool) -> Messages {
        Messages {
            quiet,
            bar: Arc::default(),
        }
    }

    /// Shows what the library tells.
    pub(super) fn control(&self) -> Control {
        let messages = self.clone();
        Control {
            on_event: Some(Arc::new(move |event| messages.show(event))),
            ..Control::default()
        }
    }

    fn show(&self, event: &Event<'_>) {
        match event {
            Event::Planning {
                nodes,
                budget: Some(budget),
                ..
            } => self.progress(format_args!(
                "planning {nodes} nodes for a budget of {budget}"
            )),
            Event::Planning { strategy, .. } => {
                self.progress(format_args!("planning with {strategy}"));
            }
            Event::Trying { dim, size } => self.progress(format_args!("trying {dim}={size}")),
            Event::Writing { path } => self.progress(format_args!("writing {}", path.display())),
            Event::Measuring { done, all, what } => {
                self.progress(format_args!("{done} of {all}: {what}"));
            }
            Event::Warning(Warning::GivenUp(fault)) => self.warning(fault::given_up(fault)),
            Event::Warning(Warning::Doubt(text)) => self.warning(text),
            Event::Ran(_) => {}
            Event::Searching { evaluations, best } => self.searching(*evaluations, *best),
        }
    }

    /// What is being done.
    pub(super) fn progress(&self, text: impl Display) {
        self.end_bar();
        if !self.quiet {
            let _ = writeln!(io::stderr(), "{}", message(text));
        }
    }

    fn searching(&self, evaluations: u64, best: Option<Best>) {
        if self.quiet {
            return;
        }
        let mut bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        let bar = bar.get_or_insert_with(ProgressBar::new_spinner);
        if !bar.is_hidden() {
            bar.set_message(state(evaluations, best));
            bar.tick();
        }
    }

    fn end_bar(&self) {
        let mut bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = bar.take() {
            bar.finish_and_clear();
        }
    }

    /// The result, where standard output has something else.
    pub(super) fn result(&self, text: &str) -> io::Result<()> {
        self.end_bar();
        io::stderr().write_all(text.as_bytes())
    }

    /// What the user should look at.
    pub(super) fn warning(&self, text: impl Display) {
        self.end_bar();
        let _ = writeln!(io::stderr(), "warning: {}", message(text));
    }

    /// Why nothing came of it.
    pub(super) fn error(&self, failure: &Failure) {
        self.end_bar();
        let (name, remedy) = (failure.code().name, message(failure.remedy()));
        let text = text::bounded(&failure.explained());
        let _ = writeln!(io::stderr(), "error[{name}]: {text}\nhelp: {remedy}");
    }
}

/// A message as it is shown: one line, not too long, and without what a terminal would obey.
fn message(text: impl Display) -> String {
    text::bounded(&text::on_one_line(&text.to_string()))
}

/// The overhead, the bound and the gap between them, in percent of a step.
fn state(evaluations: u64, best: Option<Best>) -> String {
    let Some(Best { added, least, step }) = best else {
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
        assert_eq!(state(0, None), "0 evaluations");
    }
}
