//! Breaks rewritten files in every way that comes to mind, and asks `verify` what it thinks of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::random::Random;
use ckpt_opt::cli::{Messages, Rewrite, Verify};
use ckpt_opt::run;
use clap::Parser;

use super::meaning::meaning;
use super::mutation::{Harm, mutated};

#[derive(Parser)]
struct Verification {
    #[command(flatten)]
    verify: Verify,
}

#[derive(Parser)]
struct Rewriting {
    #[command(flatten)]
    rewrite: Rewrite,
}

/// A graph and what the program made of it.
pub(crate) struct Pair {
    pub(crate) original: PathBuf,
    bytes: Vec<u8>,
    options: Vec<String>,
    meaning: Option<u64>,
}

/// What came of mutants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) harmful: u64,
    pub(crate) caught: u64,
    pub(crate) harmless: u64,
    /// Of the harmless ones, those which verify takes for harmful: what differs is a difference.
    pub(crate) refused: u64,
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.harmful += other.harmful;
        self.caught += other.caught;
        self.harmless += other.harmless;
        self.refused += other.refused;
    }
}

impl Pair {
    /// Rewrites the file with the options (`--dim`, ...) within the smallest of a few budgets. An error if nothing fits.
    pub(crate) fn of(original: &Path, options: &[&str], folder: &Path) -> Result<Pair, String> {
        let mut refused = String::new();
        let out = folder.join("rewriting.onnx");
        for budget in ["fixed+50%", "fixed+70%", "fixed+90%", "200%"] {
            let arguments = ["rewrite"].map(PathBuf::from).into_iter();
            let arguments = arguments.chain([original.to_owned(), out.clone()]);
            let others = [
                "--budget",
                budget,
                "--variants",
                "none",
                "--runtime-settings",
                "lean",
            ];
            let arguments = arguments.chain(others.iter().chain(options).map(PathBuf::from));
            let parsed = Rewriting::try_parse_from(arguments)
                .expect("options are right")
                .rewrite;
            let written = run::rewrite(&parsed, Instant::now(), &Messages::new(true));
            if let Err(failure) = &written {
                refused = failure.to_string();
            }
            if written.is_ok() {
                let bytes = fs::read(&out).expect("it was written");
                let pair = Pair {
                    original: original.to_owned(),
                    meaning: meaning(&bytes),
                    bytes,
                    options: options.iter().map(|&option| option.to_owned()).collect(),
                };
                pair.verify(&out)
                    .expect("what the program wrote is accepted");
                assert!(pair.meaning.is_some(), "{}: no meaning", original.display());
                return Ok(pair);
            }
        }
        Err(refused)
    }

    /// Does the file stand for the original?
    fn verify(&self, file: &Path) -> Result<(), String> {
        let arguments = [
            PathBuf::from("verify"),
            self.original.clone(),
            file.to_owned(),
        ]
        .into_iter();
        let lean = ["--runtime-settings", "lean"].map(PathBuf::from);
        let arguments = arguments
            .chain(lean)
            .chain(self.options.iter().map(PathBuf::from));
        let parsed = Verification::try_parse_from(arguments)
            .expect("options are right")
            .verify;
        let found = run::verify(&parsed, &Messages::new(true));
        found.map(drop).map_err(|failure| failure.to_string())
    }

    /// Makes as many mutants; `escaped` hears of each harmful one that was accepted: how it was made, and its bytes.
    pub(crate) fn mutants(
        &self,
        count: u64,
        random: &mut Random,
        folder: &Path,
        mut escaped: impl FnMut(&str, &[u8]),
    ) -> Count {
        let mut found = Count::default();
        let file = folder.join("mutant.onnx");
        for _ in 0..count {
            let Some((how, harm, bytes)) = mutated(&self.bytes, random) else {
                continue;
            };
            if bytes == self.bytes {
                continue;
            }
            let harmful = harm == Harm::Always || meaning(&bytes) != self.meaning;
            fs::write(&file, &bytes).expect("the folder can be written to");
            let accepted = self.verify(&file).is_ok();
            match (harmful, accepted) {
                (true, false) => {
                    (found.harmful, found.caught) = (found.harmful + 1, found.caught + 1)
                }
                (true, true) => {
                    found.harmful += 1;
                    escaped(&how, &bytes);
                }
                (false, accepted) => {
                    found.harmless += 1;
                    found.refused += u64::from(!accepted);
                }
            }
        }
        found
    }
}
