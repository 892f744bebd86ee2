//! Rewritten files with something changed: what no longer computes what the original does must not pass `verify`.

use std::path::Path;
use std::sync::LazyLock;

use ckpt_passes::testing::{Draw, random_training_graph, varied_training_graph};
use tempfile::TempDir;

use crate::mutants::{Pair, model_of};
use crate::source::Source;

/// Changes to one file in one input.
const MUTANTS: u64 = 4;

/// Small graphs, and what the program makes of them; they last as long as the process.
static PAIRS: LazyLock<Option<(TempDir, Vec<Pair>)>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().ok()?;
    let bundled = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testdata/onnx/conv_bn_relu_train.onnx"
    );
    let mut pairs: Vec<Pair> = Pair::of(Path::new(bundled), &[], folder.path())
        .into_iter()
        .collect();
    for seed in 0..3 {
        let size = 12 + 3 * seed as usize;
        let graphs = [
            random_training_graph(seed, size),
            varied_training_graph(seed, size),
        ];
        for (number, graph) in graphs.iter().enumerate() {
            let file = folder.path().join(format!("{seed}_{number}.onnx"));
            std::fs::write(&file, model_of(graph)).ok()?;
            // What fits no budget, or has a batch of any size, is left out.
            pairs.extend(Pair::of(&file, &[], folder.path()));
        }
    }
    Some((folder, pairs))
});

pub(super) fn prepare() {
    LazyLock::force(&PAIRS);
}

pub(super) fn run(source: &mut Source) -> Result<(), String> {
    let Some((folder, pairs)) = &*PAIRS else {
        return Err("there is no folder for temporary files".to_owned());
    };
    let pair = &pairs[source.below(pairs.len())];
    let mut escaped = None;
    pair.mutants(MUTANTS, source, folder.path(), |how, bytes| {
        escaped.get_or_insert_with(|| (how.to_owned(), bytes.to_vec()));
    });
    let Some((how, bytes)) = escaped else {
        return Ok(());
    };
    source.file("onnx", || bytes);
    source.file("original.onnx", || {
        std::fs::read(&pair.original).unwrap_or_default()
    });
    Err(format!("harmful, and taken for the original: {how}"))
}
