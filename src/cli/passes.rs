//! `--dump-after` and `--timings`: what passes left, and how long they took.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ckpt_passes::pass::{Changed, NAMES, Ran};

use super::messages::Messages;
use crate::control::{Control, Event};
use crate::onnx::{Destination, ExportError, Pending, Sink, folder_of};

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

impl Dump {
    /// The files that are known before the search: the first one, those that are there already, and those of which other
    /// outputs have the names.
    pub(super) fn files(&self, others: &[&Path]) -> Vec<PathBuf> {
        let there = fs::read_dir(folder_of(&self.file)).into_iter().flatten();
        let there = there.filter_map(|entry| Some(entry.ok()?.file_name()));
        let others = others.iter().filter_map(|path| path.file_name());
        let names = there.chain(others.map(OsString::from));
        let numbers: BTreeSet<usize> = names.filter_map(|name| self.number(&name)).collect();
        let numbers = std::iter::once(1).chain(numbers.into_iter().filter(|&number| number > 1));
        numbers.map(|number| numbered(&self.file, number)).collect()
    }

    /// Which of the files has this name, if one has.
    fn number(&self, name: &OsStr) -> Option<usize> {
        let is_named = |number: &usize| numbered(&self.file, *number).file_name() == Some(name);
        let name = name.to_string_lossy();
        let mut numbers = name.split('.').filter_map(|part| part.parse().ok());
        numbers.find(is_named)
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
    /// Why the first file was not written that could not be.
    failed: Option<ExportError>,
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
            let written = write(&numbered(&dump.file, number), &ran.graph.to_text());
            if let Err(error) = written {
                seen.failed.get_or_insert(error);
            }
        }
    }

    /// With `timings`, says how long the passes took; an error if a file could not be written.
    pub(super) fn end(&self, timings: bool, messages: &Messages) -> Result<(), ExportError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if timings {
            let _ = messages.result(&table(&seen.passes));
        }
        seen.failed.take().map_or(Ok(()), Err)
    }
}

fn write(file: &Path, text: &str) -> Result<(), ExportError> {
    let sink = Sink::File(Destination::of(file)?);
    Pending::write(sink, |file| file.write_all(text.as_bytes()))?.commit()
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
        let dump: Dump = "keep-apart=d/a.1.txt".parse().expect("a dump");
        let number = |name: &str| dump.number(OsStr::new(name));
        assert_eq!(number("a.1.3.txt"), Some(3));
        assert_eq!(number("a.1.1.txt"), Some(1));
        assert_eq!(number("a.1.03.txt"), None);
        assert_eq!(number("a.1.txt"), None);
    }
}
