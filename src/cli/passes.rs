//! `--dump-after` and `--timings`: what passes left, and how long they took.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ckpt_passes::pass::{Changed, NAMES, Ran};

use super::messages::Messages;
use crate::control::{Control, Event};

/// What `--dump-after` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dump {
    pass: &'static str,
    /// Gets a number into its name.
    file: PathBuf,
}

impl FromStr for Dump {
    type Err = String;

    /// `NAME[=FILE]`.
    fn from_str(text: &str) -> Result<Dump, String> {
        let (name, file) = match text.split_once('=') {
            Some((name, file)) => (name, file.to_owned()),
            None => (text, format!("{text}.onnxtxt")),
        };
        let pass = NAMES.iter().find(|&&pass| pass == name);
        match pass {
            Some(pass) if !file.is_empty() => Ok(Dump {
                pass,
                file: file.into(),
            }),
            Some(_) => Err("expected NAME or NAME=FILE".to_owned()),
            None => Err(format!(
                "no pass is called {name:?}; there are {}",
                NAMES.join(", ")
            )),
        }
    }
}

/// Looks on while passes run.
#[derive(Debug, Default)]
pub(super) struct PassLog {
    dumps: Vec<Dump>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    passes: BTreeMap<&'static str, Runs>,
    /// The first file that could not be written, and why.
    failed: Option<(PathBuf, io::Error)>,
}

#[derive(Debug, Default)]
struct Runs {
    all: usize,
    changing: usize,
    took: Duration,
}

impl PassLog {
    /// `control`, which tells this of passes and everybody else of everything else.
    pub(super) fn watch(dumps: &[Dump], control: Control) -> (Arc<PassLog>, Control) {
        let log = Arc::new(PassLog {
            dumps: dumps.to_vec(),
            ..PassLog::default()
        });
        let (noting, others) = (log.clone(), control.on_event);
        let on_event = move |event: &Event<'_>| match (event, &others) {
            (Event::Ran(ran), _) => noting.note(ran),
            (event, Some(others)) => others(event),
            (_, None) => {}
        };
        let control = Control {
            on_event: Some(Arc::new(on_event)),
            ..control
        };
        (log, control)
    }

    fn note(&self, ran: &Ran<'_>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = seen.passes.entry(ran.pass).or_default();
        runs.all += 1;
        runs.changing += usize::from(ran.changed == Changed::Yes);
        runs.took += ran.took;
        let number = runs.all;
        for dump in self.dumps.iter().filter(|dump| dump.pass == ran.pass) {
            let file = numbered(&dump.file, number);
            let written = fs::write(&file, ran.graph.to_text());
            if let Err(error) = written {
                seen.failed.get_or_insert((file, error));
            }
        }
    }

    /// Says what could not be written; with `timings`, how long the passes took.
    pub(super) fn end(&self, timings: bool, messages: &Messages) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((file, error)) = &seen.failed {
            let file = file.display();
            messages.warning(format_args!("--dump-after: {file}: {error}"));
        }
        if timings {
            let _ = messages.result(&table(&seen.passes));
        }
    }
}

/// `dir/name.onnxtxt` with a number: `dir/name.3.onnxtxt`.
fn numbered(file: &Path, number: usize) -> PathBuf {
    let mut name = file.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{number}"));
    if let Some(extension) = file.extension() {
        name.push(".");
        name.push(extension);
    }
    file.with_file_name(name)
}

/// In the sequence in which they run.
fn table(passes: &BTreeMap<&'static str, Runs>) -> String {
    let mut text = format!(
        "{:<16} {:>6} {:>8} {:>10}\n",
        "pass", "runs", "changed", "ms"
    );
    for (pass, runs) in NAMES.iter().filter_map(|name| passes.get_key_value(name)) {
        let took = runs.took.as_secs_f64() * 1e3;
        let (all, changing) = (runs.all, runs.changing);
        text += &format!("{pass:<16} {all:>6} {changing:>8} {took:>10.1}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_is_a_pass_and_perhaps_a_file() {
        let parsed = |text: &str| text.parse::<Dump>();
        let dump = |file: &str| Dump {
            pass: "keep-apart",
            file: file.into(),
        };
        assert_eq!(parsed("keep-apart"), Ok(dump("keep-apart.onnxtxt")));
        assert_eq!(parsed("keep-apart=a=b"), Ok(dump("a=b")));
        assert!(parsed("keep-apart=").is_err());
        let unknown = parsed("keep").expect_err("no such pass");
        assert!(unknown.contains("keep-apart"), "{unknown}");
    }

    #[test]
    fn files_are_numbered_before_their_extension() {
        assert_eq!(numbered(Path::new("d/a.txt"), 3), Path::new("d/a.3.txt"));
        assert_eq!(numbered(Path::new("a"), 12), Path::new("a.12"));
    }
}
