//! Breaks rewritten files in every way that comes to mind, and asks `verify` what it thinks of them.

use std::fs;
use std::path::{Path, PathBuf};

use ckpt_opt::{Budget, Error, Model, Options, optimize, verify};
use ckpt_passes::runtime::settings::RuntimeSettings;
use ckpt_passes::testing::Draw;

use super::meaning::meaning;
use super::mutation::{Harm, mutated};

/// A graph and what the program made of it.
pub(crate) struct Pair {
    pub(crate) original: PathBuf,
    bytes: Vec<u8>,
    options: Options,
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
    /// Rewrites the file, with the sizes of dimensions (`batch=8`), within the smallest of a few budgets. An error if nothing
    /// fits.
    pub(crate) fn of(original: &Path, dims: &[String], folder: &Path) -> Result<Pair, String> {
        let sizes = dims.iter().map(|dim| {
            let (name, size) = dim.split_once('=').expect("name=size");
            (name.to_owned(), size.parse().expect("a number"))
        });
        let options = Options {
            dims: sizes.collect(),
            variants: Default::default(),
            runtime_settings: Some(RuntimeSettings::LEAN),
            ..Options::default()
        };
        let out = folder.join("rewriting.onnx");
        let mut refused = String::new();
        for budget in ["fixed+50%", "fixed+70%", "fixed+90%", "200%"] {
            let budget: Budget = budget.parse().expect("a budget");
            let written = Model::open(original)
                .map_err(Error::from)
                .and_then(|model| optimize(&model, &budget, &options)?.write(&out));
            match written {
                Err(error) => refused = error.to_string(),
                Ok(_) => {
                    let bytes = fs::read(&out).expect("it was written");
                    let pair = Pair {
                        original: original.to_owned(),
                        meaning: meaning(&bytes),
                        bytes,
                        options,
                    };
                    pair.verify(&out)
                        .expect("what the program wrote is accepted");
                    assert!(pair.meaning.is_some(), "{}: no meaning", original.display());
                    return Ok(pair);
                }
            }
        }
        Err(refused)
    }

    /// Does the file stand for the original?
    fn verify(&self, file: &Path) -> Result<(), String> {
        let files = Model::open(&self.original).and_then(|one| Ok((one, Model::open(file)?)));
        let found = files
            .map_err(Error::from)
            .and_then(|(original, written)| verify(&original, &written, &self.options));
        found.map(drop).map_err(|error| error.to_string())
    }

    /// Makes as many mutants; `escaped` hears of each harmful one that was accepted: how it was made, and its bytes.
    pub(crate) fn mutants(
        &self,
        count: u64,
        random: &mut impl Draw,
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
