//! How the program ends when it is told to: without files that nobody finished.
//!
//! Files that are written but not yet in their place are listed here. A signal that ends the
//! program removes them first; it then dies by that signal, so that whoever started it sees why.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The unfinished files. Whoever holds the lock keeps the program from being ended by a signal.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a file that a signal removes until [`finish`] is called: no signal comes between.
pub(crate) fn begin<T>(
    make: impl FnOnce() -> io::Result<T>,
    path: impl FnOnce(&T) -> &Path,
) -> io::Result<T> {
    let mut unfinished = unfinished();
    let made = make()?;
    unfinished.push(path(&made).to_owned());
    Ok(made)
}

/// Puts a file in its place or removes it, with no signal between that and its being forgotten.
pub(crate) fn finish<T>(path: &Path, end: impl FnOnce() -> T) -> T {
    let mut unfinished = unfinished();
    let ended = end();
    unfinished.retain(|one| one != path);
    ended
}

/// Removes what is unfinished; nothing is begun or finished after it.
fn clean_up() -> MutexGuard<'static, Vec<PathBuf>> {
    let unfinished = unfinished();
    for path in unfinished.iter() {
        // There is nobody left to tell.
        let _ = fs::remove_file(path);
    }
    unfinished
}

/// From now on, signals that end the program leave no files behind.
///
/// Where there can be no thread to wait for them they end it as ever, and may leave a file whose
/// name says what it is.
#[cfg(unix)]
pub(crate) fn handle() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use std::thread;

    mapped_files_may_shrink();
    // What the caller had ignored (nohup, a shell's background jobs) stays so.
    let caught: Vec<i32> = [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .filter(|&signal| !is_ignored(signal))
        .collect();
    // The thread first: signals that are caught and that nobody waits for would be lost.
    let wait = move || {
        let Ok(mut signals) = signal_hook::iterator::Signals::new(caught) else {
            return;
        };
        if let Some(signal) = signals.forever().next() {
            let _held = clean_up();
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    let _ = thread::Builder::new().spawn(wait);
}

/// Elsewhere the system ends the program as it likes.
#[cfg(not(unix))]
pub(crate) fn handle() {}

/// Was the signal ignored when the program started? Known on Linux.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// A mapped file that somebody else cuts off is noticed by reading where nothing is any more: the
/// system then sends SIGBUS, which ends the program with an error instead of a crash.
#[cfg(unix)]
fn mapped_files_may_shrink() {
    let end = || {
        let _held = clean_up();
        let _ = writeln!(
            io::stderr(),
            "error: a file that was being read became shorter meanwhile, or its disk failed; nothing was written"
        );
        signal_hook::low_level::exit(1);
    };
    #[allow(unsafe_code)]
    // SAFETY: what the handler does is not among what signal handlers may do at any time. This
    // signal comes only at an instruction that reads a mapped file (`Model::open` makes the only
    // mappings). None of those runs inside the allocator, or holds the lock of standard error or
    // of the unfinished files, so that the handler is as good as a call from there.
    let _ = unsafe { signal_hook::low_level::register(signal_hook::consts::SIGBUS, end) };
}
