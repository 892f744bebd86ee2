//! `ckpt-fuzz`: tries random inputs, in one process for each processor, and keeps what goes wrong.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod supervise;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ckpt_fuzz::finding::{self, try_input};
use ckpt_fuzz::limits::Limited;
use ckpt_fuzz::source::Source;
use ckpt_fuzz::{TARGETS, Target};

#[global_allocator]
static ALLOCATOR: Limited = Limited;

const USAGE: &str = "\
ckpt-fuzz run [--minutes N | --inputs N] [--seed S] [--workers N] [--finds DIR] [--only TARGET]...
              tries inputs for so long, or so many of each share of a target; exits with 1 if anything is found
ckpt-fuzz repeat FILE
              tries the input of a finding again
ckpt-fuzz input TARGET SEED [FOLDER]
              tries one input, and writes the files that show it to the folder";

/// What `run` is asked to do.
#[derive(Clone, Debug)]
struct Run {
    minutes: f64,
    /// In place of minutes: inputs of each target, times its share, in each process.
    inputs: Option<u64>,
    seed: u64,
    workers: usize,
    finds: PathBuf,
    only: Vec<String>,
    /// Set in a process that tries inputs: which one it is, and the file for its counts.
    worker: Option<(usize, PathBuf)>,
}

impl Run {
    fn targets(&self) -> Vec<(usize, &'static Target)> {
        let wanted = |target: &Target| {
            self.only.is_empty() || self.only.iter().any(|name| name == target.name)
        };
        TARGETS
            .iter()
            .enumerate()
            .filter(|(_, target)| wanted(target))
            .collect()
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["run", ref options @ ..] => parse(options).and_then(|run| match run.worker.clone() {
            Some((number, progress)) => supervise::work(&run, number, &progress).map(|()| true),
            None => supervise::supervise(&run),
        }),
        ["repeat", file] => finding::load(Path::new(file))
            .map(|(target, tape)| report(target, Source::replay(&tape), None)),
        ["input", name, seed] => one(name, seed, None),
        ["input", name, seed, folder] => one(name, seed, Some(Path::new(folder))),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::from(2)
        }
    }
}

fn parse(options: &[&str]) -> Result<Run, String> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut run = Run {
        minutes: 1.0,
        inputs: None,
        seed: 0,
        workers: processors,
        finds: PathBuf::from("target/finds"),
        only: Vec::new(),
        worker: None,
    };
    let mut options = options.iter();
    while let Some(&option) = options.next() {
        let mut value = || {
            options
                .next()
                .copied()
                .ok_or_else(|| format!("{option} needs a value"))
        };
        let number = |text: &str| {
            text.parse()
                .map_err(|_| format!("{option}: {text:?} is no number"))
        };
        match option {
            "--minutes" => {
                let text = value()?;
                let minutes = text.parse().ok().filter(|minutes: &f64| *minutes > 0.0);
                run.minutes =
                    minutes.ok_or_else(|| format!("--minutes: {text:?} is not above zero"))?;
            }
            "--inputs" => run.inputs = Some(number(value()?)?),
            "--seed" => run.seed = number(value()?)?,
            "--workers" => run.workers = number(value()?)?.max(1) as usize,
            "--finds" => run.finds = PathBuf::from(value()?),
            "--only" => {
                let name = value()?;
                if !TARGETS.iter().any(|target| target.name == name) {
                    let known = TARGETS.map(|target| target.name).join(", ");
                    return Err(format!(
                        "--only: no target is called {name:?}; there are {known}"
                    ));
                }
                run.only.push(name.to_owned());
            }
            "--worker" => run.worker = Some((number(value()?)? as usize, PathBuf::from(value()?))),
            _ => return Err(format!("{option} is no option\n{USAGE}")),
        }
    }
    Ok(run)
}

fn one(name: &str, seed: &str, folder: Option<&Path>) -> Result<bool, String> {
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.ok_or_else(|| format!("no target is called {name:?}"))?;
    let seed = seed.parse().map_err(|_| format!("{seed:?} is no seed"))?;
    Ok(report(target, Source::new(seed), folder))
}

fn report(target: &Target, source: Source, folder: Option<&Path>) -> bool {
    let mut source = source.keeping_files();
    // Before: an input that takes too long is to be seen as well.
    let outcome = try_input(target, &mut source);
    for (name, contents) in source.into_files() {
        if let Some(folder) = folder {
            let _ = std::fs::create_dir_all(folder);
            if let Err(error) = std::fs::write(folder.join(&name), contents) {
                eprintln!("{name}: {error}");
            }
        }
    }
    match outcome {
        Ok(()) => println!("{}: nothing is wrong", target.name),
        Err(ref what) => println!("{}: {what}", target.name),
    }
    outcome.is_ok()
}
