//! Model files with bytes changed.

use std::sync::LazyLock;

use bytes::Bytes;
use ckpt_opt::onnx::Model;
use ckpt_passes::testing::Draw;

use super::{graphs, plan};
use crate::source::Source;

/// The small files of the tests. What they have inside is changed, so a missing file only means less variety.
static SEEDS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/onnx");
    let names = [
        "conv_bn_relu_train",
        "everything",
        "control_flow",
        "external",
    ];
    let read = |name| std::fs::read(format!("{folder}/{name}.onnx")).ok();
    names.into_iter().filter_map(read).collect()
});

/// One input in so many is planned as well.
const PLANNED: usize = 64;

pub(super) fn run(source: &mut Source) -> Result<(), String> {
    let mut bytes = match source.one_in(4) || SEEDS.is_empty() {
        true => graphs::model(source),
        false => source.pick(&SEEDS),
    };
    mutate(source, &mut bytes);
    source.file("onnx", || bytes.clone());
    let Ok(model) = Model::from_bytes(Bytes::from(bytes)) else {
        return Ok(());
    };
    let Ok(graph) = model.sorted_graph() else {
        return Ok(());
    };
    let mut options = plan::options(source);
    for name in ["batch", "N", "n", "d"] {
        options.bindings.insert(name.to_owned(), 4);
    }
    if source.one_in(PLANNED) {
        return plan::plan(source, &graph, &options, Some(&model)).map(drop);
    }
    // Any error is fine: what must not happen is a panic.
    let _ = ckpt_passes::optimize::measure(&graph, &options);
    Ok(())
}

/// Changes a few places, as damage or a careless tool would.
pub(super) fn mutate(source: &mut Source, bytes: &mut Vec<u8>) {
    for _ in 0..=source.below(6) {
        let at = source.below(bytes.len() + 1);
        let most = 1 << source.below(7);
        let length = source.below(most).min(bytes.len() - at);
        match source.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << source.below(8),
            1 if at < bytes.len() => bytes[at] = source.pick(&[0, 1, 0x7f, 0x80, 0xff, 0x22, 0x5c]),
            2 => drop(bytes.drain(at..at + length)),
            3 => {
                let part = bytes[at..at + length].to_vec();
                let to = source.below(bytes.len() + 1);
                bytes.splice(to..to, part);
            }
            4 => {
                let part = bytes[at..at + length].to_vec();
                let to = source.below(bytes.len() - length + 1);
                bytes[to..to + length].copy_from_slice(&part);
            }
            5 => bytes.insert(at, source.bits() as u8),
            6 if source.one_in(4) => bytes.truncate(at),
            // A number of many bytes.
            _ => {
                let large = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0x01];
                let length = source.below(large.len());
                bytes.splice(at..at, large[large.len() - 1 - length..].iter().copied());
            }
        }
    }
}
