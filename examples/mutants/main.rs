//! Breaks rewritten files for as long as asked, and counts what `verify` catches:
//! `mutants [--minutes N] [--seed S] [FILE.onnx --dim NAME=N ...]`.
//!
//! Without a file it takes the bundled ones and random training graphs. What escapes is written to `target/mutants/`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod engine;
mod meaning;
mod model;
mod mutation;
mod random;
mod wire;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ckpt_passes::testing::random_training_graph;
use clap::Parser;
use engine::{Count, Pair};
use random::Random;

#[derive(Parser)]
struct Arguments {
    /// How long.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// What to begin with.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A training graph in place of the bundled ones.
    file: Option<PathBuf>,
    /// Its dimensions.
    #[arg(long = "dim")]
    dimensions: Vec<String>,
}

/// Bundled graphs small enough to be verified often.
const BUNDLED: [(&str, &str); 2] = [
    ("testdata/onnx/conv_bn_relu_train.onnx", ""),
    ("testdata/models/triplet.onnx", "batch=4"),
];

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut random = Random(arguments.seed);
    let mut pairs = Vec::new();
    let mut add =
        |file: &Path, dimensions: &[String]| match Pair::of(file, dimensions, folder.path()) {
            Ok(pair) => pairs.push(pair),
            Err(refused) => eprintln!("mutants: {}: {refused}", file.display()),
        };
    match &arguments.file {
        Some(file) => add(file, &arguments.dimensions),
        None => {
            for (file, dimensions) in BUNDLED {
                let dimensions: Vec<String> = dimensions
                    .split_terminator(' ')
                    .map(str::to_owned)
                    .collect();
                add(Path::new(file), &dimensions);
            }
            for seed in 0..16 {
                let graph = random_training_graph(arguments.seed + seed, 4 + seed as usize);
                let file = folder.path().join(format!("random_{seed}.onnx"));
                fs::write(&file, model::of(&graph)).expect("the folder can be written to");
                add(&file, &[]);
            }
        }
    }
    let escapes = Path::new("target/mutants");
    let started = Instant::now();
    let limit = Duration::from_secs_f64(arguments.minutes * 60.0);
    let (mut all, mut said, mut number) = (Count::default(), Instant::now(), 0);
    while started.elapsed() < limit && !pairs.is_empty() {
        for pair in &pairs {
            let found = pair.mutants(20, &mut random, folder.path(), |how, bytes| {
                number += 1;
                let file = escapes.join(format!("escaped-{}-{number}.onnx", arguments.seed));
                let kept = fs::create_dir_all(escapes)
                    .and_then(|()| fs::write(&file, bytes))
                    .and_then(|()| fs::copy(&pair.original, file.with_extension("original.onnx")));
                if let Err(error) = kept {
                    eprintln!("mutants: {}: {error}", file.display());
                }
                println!(
                    "escaped: {}: {how} ({})",
                    file.display(),
                    pair.original.display()
                );
            });
            all += found;
            if said.elapsed() > Duration::from_secs(60) {
                said = Instant::now();
                eprintln!("mutants: {all:?}");
            }
            if started.elapsed() > limit {
                break;
            }
        }
    }
    println!(
        "mutants: {} harmful, {} caught, {} harmless, {} of these refused; {} graphs",
        all.harmful,
        all.caught,
        all.harmless,
        all.refused,
        pairs.len()
    );
    match all.harmful == all.caught && all.harmful > 0 {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
