//! Writes random training graphs as ONNX text: `random_graphs COUNT SIZE FOLDER`.
//!
//! `tools/fixtures/text_to_onnx.py` turns them into files that ONNX Runtime runs.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use ckpt_passes::testing::random_training_graph;

#[allow(clippy::print_stderr)]
fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [count, size, folder] = arguments.as_slice() else {
        eprintln!("usage: random_graphs COUNT SIZE FOLDER");
        return ExitCode::from(2);
    };
    let (Ok(count), Ok(size)) = (count.parse::<u64>(), size.parse()) else {
        eprintln!("COUNT and SIZE are numbers");
        return ExitCode::from(2);
    };
    let folder = Path::new(folder);
    for seed in 0..count {
        let text = random_training_graph(seed, size).to_text();
        let path = folder.join(format!("random_{size}_{seed}.onnxtxt"));
        if let Err(error) = fs::create_dir_all(folder).and_then(|()| fs::write(&path, text)) {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
