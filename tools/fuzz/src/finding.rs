//! What goes wrong with an input, and the file that repeats it.

use std::fs;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::limits;
use crate::source::{Source, shrink};
use crate::targets::{TARGETS, Target};

/// Tries to make a finding smaller.
const ATTEMPTS: usize = 2_000;
/// For so long.
const PATIENCE: Duration = Duration::from_secs(5);

/// The first panic of the current input, with its place.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Panics are kept, not printed.
pub fn keep_panics() {
    panic::set_hook(Box::new(|panicked| {
        let place = panicked
            .location()
            .map(|at| format!(" at {}:{}", at.file(), at.line()));
        let payload = panicked.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("panic");
        let text = format!("panic{}: {text}", place.unwrap_or_default());
        if let Ok(mut kept) = PANIC.lock() {
            // Later ones follow from it.
            kept.get_or_insert(text);
        }
    }));
}

/// What is wrong with the input that the source gives, if anything is.
pub fn try_input(target: &Target, source: &mut Source) -> Result<(), String> {
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(source)));
    outcome.unwrap_or_else(|_| {
        let kept = PANIC.lock().ok().and_then(|mut kept| kept.take());
        Err(kept.unwrap_or_else(|| "panic".to_owned()))
    })
}

/// A tape that fails, and how.
#[derive(Debug)]
pub struct Finding {
    /// The target's name.
    pub target: &'static str,
    /// What was wrong, in its own words.
    pub what: String,
    /// The numbers that the input is made of.
    pub tape: Vec<u64>,
}

impl Finding {
    /// What tells this kind of finding from others: its text without numbers and quoted names.
    pub fn kind(&self) -> String {
        kind(&self.what)
    }

    /// The smallest input of the same kind that is found.
    pub fn smaller(self, target: &Target) -> Finding {
        let wanted = self.kind();
        let until = Instant::now() + PATIENCE;
        let fails = |tape: &[u64]| {
            if Instant::now() > until {
                return false;
            }
            limits::begin();
            let found = try_input(target, &mut Source::replay(tape));
            found.is_err_and(|what| kind(&what) == wanted)
        };
        let tape = shrink(&self.tape, ATTEMPTS, fails);
        let mut source = Source::replay(&tape);
        let what = try_input(target, &mut source).err().unwrap_or(self.what);
        Finding {
            target: self.target,
            what,
            tape,
        }
    }

    /// Where findings of this kind lie.
    pub fn path(&self, folder: &Path) -> PathBuf {
        let hash = self
            .kind()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            });
        folder.join(format!("{}-{:08x}.find", self.target, hash >> 32))
    }

    /// Writes it to a file of its kind, with the files that show it beside it; false if there is one already.
    pub fn save(&self, folder: &Path) -> io::Result<bool> {
        let path = self.path(folder);
        if path.exists() {
            return Ok(false);
        }
        fs::create_dir_all(folder)?;
        let numbers: Vec<String> = self.tape.iter().map(u64::to_string).collect();
        let text = format!(
            "{}\n{}\n\n{}\n\nrepeat: cargo run --profile fuzz -p ckpt-fuzz -- repeat {}\n",
            self.target,
            numbers.join(" "),
            self.what,
            path.display()
        );
        fs::write(&path, text)?;
        let Some(target) = TARGETS.iter().find(|target| target.name == self.target) else {
            return Ok(true);
        };
        let mut source = Source::replay(&self.tape).keeping_files();
        let _ = try_input(target, &mut source);
        for (name, contents) in source.into_files() {
            fs::write(path.with_extension(name), contents)?;
        }
        Ok(true)
    }
}

/// The target and the numbers of a saved finding.
pub fn load(path: &Path) -> Result<(&'static Target, Vec<u64>), String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut lines = text.lines();
    let name = lines.next().unwrap_or_default();
    let target = TARGETS.iter().find(|target| target.name == name);
    let target =
        target.ok_or_else(|| format!("{}: no target is called {name:?}", path.display()))?;
    let numbers = lines.next().unwrap_or_default().split_whitespace();
    let numbers: Result<Vec<u64>, _> = numbers.map(str::parse).collect();
    let numbers = numbers.map_err(|error| format!("{}: line 2: {error}", path.display()))?;
    Ok((target, numbers))
}

/// The text without numbers and quoted names, which differ from input to input; a panic is known by its place.
fn kind(what: &str) -> String {
    let first = what.lines().next().unwrap_or_default();
    if let Some(place) = first.strip_prefix("panic at ") {
        return place.split(": ").next().unwrap_or_default().to_owned();
    }
    let mut quoted = false;
    let mut text = String::new();
    for letter in first.chars() {
        if letter == '"' {
            quoted = !quoted;
        } else if !quoted && !letter.is_ascii_digit() {
            text.push(letter);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::kind;

    #[test]
    fn findings_of_a_kind_differ_in_names_and_numbers_only() {
        assert_eq!(kind("node \"a\" reads 3"), kind("node \"b\" reads 17"));
        assert_ne!(kind("node \"a\" reads 3"), kind("node \"a\" writes 3"));
        assert_eq!(
            kind("panic at src/a.rs:3: index 5"),
            kind("panic at src/a.rs:3: index 6")
        );
        assert_ne!(
            kind("panic at src/a.rs:3: x"),
            kind("panic at src/a.rs:4: x")
        );
    }
}
