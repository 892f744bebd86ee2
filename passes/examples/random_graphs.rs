//! Writes random training graphs as ONNX text: `random_graphs COUNT SIZE FOLDER [varied|mixed]`. Varied ones have all layers that ONNX
//! Runtime runs on a CPU, and some have a `batch` of any size; mixed ones are in
//! mixed precision.
//!
//! `tools/fixtures/text_to_onnx.py` turns them into files that ONNX Runtime runs.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use ckpt_passes::testing::{random_mixed_graph, random_training_graph, varied_training_graph};

#[allow(clippy::print_stderr)]
fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [count, size, folder, kind @ ..] = arguments.as_slice() else {
        eprintln!("usage: random_graphs COUNT SIZE FOLDER [varied|mixed]");
        return ExitCode::from(2);
    };
    let make = match kind.first().map(String::as_str) {
        None => random_training_graph,
        Some("varied") => varied_training_graph,
        Some("mixed") => random_mixed_graph,
        Some(other) => {
            eprintln!("{other} is no kind: expected varied, mixed or nothing");
            return ExitCode::from(2);
        }
    };
    let (Ok(count), Ok(size)) = (count.parse::<u64>(), size.parse()) else {
        eprintln!("COUNT and SIZE are numbers");
        return ExitCode::from(2);
    };
    let folder = Path::new(folder);
    for seed in 0..count {
        let text = make(seed, size).to_text();
        let path = folder.join(format!("random_{size}_{seed}.onnxtxt"));
        if let Err(error) = fs::create_dir_all(folder).and_then(|()| fs::write(&path, text)) {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
