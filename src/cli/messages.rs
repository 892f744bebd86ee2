//! Progress, warnings and errors, on standard error.

use std::fmt::Display;
use std::io::{self, Write};

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
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// What the user should look at.
    pub fn warning(&self, text: impl Display) {
        let _ = writeln!(io::stderr(), "warning: {text}");
    }

    /// Why nothing came of it.
    pub fn error(&self, text: impl Display) {
        let _ = writeln!(io::stderr(), "error: {text}");
    }
}
