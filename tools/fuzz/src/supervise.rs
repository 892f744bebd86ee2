//! One process for each processor tries inputs, and one looks after them: an input that ends its process is a
//! finding like any other.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use ckpt_fuzz::finding::{Finding, keep_panics, try_input};
use ckpt_fuzz::limits::{self, TOO_LONG, TOO_MUCH};
use ckpt_fuzz::{Source, TARGETS};
use ckpt_passes::testing::Draw;

use crate::Run;

/// What an input may take. Planning a few dozen nodes with a small effort takes milliseconds.
const LONGEST: Duration = Duration::from_secs(10);
const MOST_BYTES: usize = 1 << 30;
/// A target's turn, times its share.
const TURN: Duration = Duration::from_millis(100);

/// What a process tells, in a file: the current target, then for each target the next input and the findings.
const FIELDS: usize = 1 + 2 * TARGETS.len();

fn field(file: &File, at: usize, value: u64) {
    // A count that cannot be written is missing in the table, no more.
    let _ = file.write_at(&value.to_le_bytes(), 8 * at as u64);
}

fn fields(path: &Path) -> [u64; FIELDS] {
    let mut bytes = [0; 8 * FIELDS];
    let mut fields = [0; FIELDS];
    if File::open(path)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .is_ok()
    {
        let (numbers, _) = bytes.as_chunks::<8>();
        for (field, number) in fields.iter_mut().zip(numbers) {
            *field = u64::from_le_bytes(*number);
        }
    }
    fields
}

/// The seed of an input: each run, process, target and number has its own.
fn seed(run: &Run, worker: usize, target: usize, input: u64) -> u64 {
    let numbers = [run.seed, worker as u64, target as u64, input];
    numbers.into_iter().fold(0x5eed, |hash, number| {
        Source::new(hash ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).bits()
    })
}

/// Tries inputs until it is over.
pub(crate) fn work(run: &Run, worker: usize, progress: &Path) -> Result<(), String> {
    let started = Instant::now();
    limits::keep_to_processor(worker);
    keep_panics();
    let cannot = |error| format!("{}: {error}", progress.display());
    let mut next = fields(progress);
    let file = OpenOptions::new()
        .write(true)
        .open(progress)
        .map_err(cannot)?;
    for (_, target) in run.targets() {
        (target.prepare)();
    }
    limits::begin();
    limits::enforce(MOST_BYTES, LONGEST);
    let end = Duration::from_secs_f64(run.minutes * 60.0);
    loop {
        let mut busy = false;
        for (at, target) in run.targets() {
            let most = run
                .inputs
                .map_or(u64::MAX, |inputs| inputs * u64::from(target.share));
            let turn = Instant::now();
            field(&file, 0, at as u64);
            while next[1 + 2 * at] < most && turn.elapsed() < TURN * target.share {
                let number = next[1 + 2 * at];
                next[1 + 2 * at] += 1;
                field(&file, 1 + 2 * at, next[1 + 2 * at]);
                limits::begin();
                let mut source = Source::new(seed(run, worker, at, number));
                if let Err(what) = try_input(target, &mut source) {
                    next[2 + 2 * at] += 1;
                    field(&file, 2 + 2 * at, next[2 + 2 * at]);
                    let tape = source.drawn().to_vec();
                    found(
                        run,
                        Finding {
                            target: target.name,
                            what,
                            tape,
                        },
                    )?;
                }
            }
            busy |= next[1 + 2 * at] < most;
        }
        if !busy || (run.inputs.is_none() && started.elapsed() > end) {
            return Ok(());
        }
    }
}

/// Keeps the first of its kind, made smaller.
fn found(run: &Run, finding: Finding) -> Result<(), String> {
    let target = TARGETS.iter().find(|target| target.name == finding.target);
    if finding.path(&run.finds).exists() {
        return Ok(());
    }
    // Should making it smaller take too long, it is there as it was found.
    let cannot = |error| format!("{}: {error}", run.finds.display());
    finding.save(&run.finds).map_err(cannot)?;
    let path = finding.path(&run.finds);
    if let Some(target) = target {
        let smaller = finding.smaller(target);
        let _ = fs::remove_file(&path);
        smaller.save(&run.finds).map_err(cannot)?;
        println!(
            "{}: {}\n    {}",
            smaller.target,
            smaller.what,
            path.display()
        );
    }
    Ok(())
}

/// Starts the processes, starts those again that an input ended, and prints what was done; true if nothing was found.
pub(crate) fn supervise(run: &Run) -> Result<bool, String> {
    let started = Instant::now();
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let progress: Vec<_> = (0..run.workers)
        .map(|worker| folder.path().join(worker.to_string()))
        .collect();
    let mut clean = true;
    let mut left = Vec::new();
    for (worker, path) in progress.iter().enumerate() {
        fs::write(path, [0; 8 * FIELDS]).map_err(|error| error.to_string())?;
        left.push((worker, start(run, worker, path, started)?));
    }
    while !left.is_empty() {
        std::thread::sleep(Duration::from_millis(20));
        let mut still = Vec::new();
        for (worker, mut child) in left {
            let path = &progress[worker];
            match child.try_wait().map_err(|error| error.to_string())? {
                None => still.push((worker, child)),
                Some(status) if status.success() => {}
                Some(status) if status.code() == Some(2) => {
                    return Err(format!("process {worker} ended"));
                }
                Some(status) => {
                    clean = false;
                    ended(run, worker, path, status)?;
                    if run.inputs.is_some() || started.elapsed().as_secs_f64() < run.minutes * 60.0
                    {
                        still.push((worker, start(run, worker, path, started)?));
                    }
                }
            }
        }
        left = still;
    }
    Ok(table(run, &progress, started.elapsed()) && clean)
}

fn start(run: &Run, worker: usize, progress: &Path, started: Instant) -> Result<Child, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let minutes = (run.minutes - started.elapsed().as_secs_f64() / 60.0).max(0.001);
    let mut command = Command::new(program);
    command.args([
        "run",
        "--minutes",
        &minutes.to_string(),
        "--seed",
        &run.seed.to_string(),
    ]);
    command.arg("--finds").arg(&run.finds);
    if let Some(inputs) = run.inputs {
        command.args(["--inputs", &inputs.to_string()]);
    }
    for name in &run.only {
        command.args(["--only", name]);
    }
    command
        .args(["--worker", &worker.to_string()])
        .arg(progress);
    command.spawn().map_err(|error| error.to_string())
}

/// An input ended its process: it is saved as it was drawn.
fn ended(run: &Run, worker: usize, progress: &Path, status: ExitStatus) -> Result<(), String> {
    let all = fields(progress);
    let at = (all[0] as usize).min(TARGETS.len() - 1);
    let input = all[1 + 2 * at].saturating_sub(1);
    let seed = seed(run, worker, at, input);
    let what = match status.code() {
        Some(TOO_LONG) => format!("took more than {} seconds", LONGEST.as_secs()),
        Some(TOO_MUCH) => format!("took more than {} MiB", MOST_BYTES >> 20),
        _ => format!("ended the process: {status}"),
    };
    let name = TARGETS[at].name;
    if let Ok(file) = OpenOptions::new().write(true).open(progress) {
        field(&file, 2 + 2 * at, all[2 + 2 * at] + 1);
    }
    fs::create_dir_all(&run.finds).map_err(|error| error.to_string())?;
    let path = run.finds.join(format!("{name}-{seed}.ended"));
    let text = format!(
        "{name}: {what}\nrepeat: cargo run --profile fuzz -p ckpt-fuzz -- input {name} {seed}\n"
    );
    println!("{name}: {what}\n    {}", path.display());
    fs::write(path, text).map_err(|error| error.to_string())
}

fn table(run: &Run, progress: &[std::path::PathBuf], took: Duration) -> bool {
    let all: Vec<_> = progress.iter().map(|path| fields(path)).collect();
    let sum = |at: usize| all.iter().map(|fields| fields[at]).sum::<u64>();
    let (mut inputs, mut findings) = (0, 0);
    println!("{:<12} {:>12} {:>9}", "target", "inputs", "findings");
    for (at, target) in run.targets() {
        println!(
            "{:<12} {:>12} {:>9}",
            target.name,
            sum(1 + 2 * at),
            sum(2 + 2 * at)
        );
        inputs += sum(1 + 2 * at);
        findings += sum(2 + 2 * at);
    }
    println!("{:<12} {inputs:>12} {findings:>9}", "all");
    println!(
        "{:.1} minutes, {} processes, seed {}",
        took.as_secs_f64() / 60.0,
        run.workers,
        run.seed
    );
    findings == 0
}
