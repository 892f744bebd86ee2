//! Weights are not copied in memory. Alone in its process, whose memory it measures.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ckpt_opt::onnx::{Model, export};

const WEIGHTS: u64 = 400_000_000;

/// Private memory in use, in bytes.
fn private() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("RssAnon:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 1024
}

/// The most private memory in use while `work` runs, above what was in use before.
fn growth(work: impl FnOnce()) -> u64 {
    let before = private();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                most = most.max(private());
                std::thread::sleep(Duration::from_millis(1));
            }
            most
        });
        work();
        done.store(true, Ordering::Relaxed);
        watch.join().unwrap().saturating_sub(before)
    })
}

/// `number: contents`, of which the last `hole` bytes are still to come.
fn field(number: u8, contents: &[u8], hole: u64) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = contents.len() as u64 + hole;
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(contents);
    bytes
}

/// A model `y = Neg(w)` with `w` all zeros, which take no room on most disks.
fn write_model(path: &Path) {
    let raw_data = field(9, &[], WEIGHTS);
    // float_data would hold as many; dims = [1e8], data_type = float.
    let tensor = [
        field(8, b"w", 0),
        vec![8, 0x80, 0xc2, 0xd7, 0x2f, 16, 1],
        raw_data,
    ]
    .concat();
    let node = [field(1, b"w", 0), field(2, b"y", 0), field(4, b"Neg", 0)].concat();
    let graph = [
        field(1, &node, 0),
        field(12, &field(1, b"y", 0), 0),
        field(5, &tensor, WEIGHTS),
    ]
    .concat();
    let mut file = File::create(path).unwrap();
    file.write_all(&field(7, &graph, WEIGHTS)).unwrap();
    file.seek(SeekFrom::Current(WEIGHTS as i64)).unwrap();
    // Behind the weights: the operator set, version 15.
    file.write_all(&[8 << 3 | 2, 2, 16, 15]).unwrap();
}

#[test]
fn reading_and_writing_400_mb_takes_less_than_50_mb_of_private_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (
        folder.path().join("in.onnx"),
        folder.path().join("out.onnx"),
    );
    write_model(&input);
    let grown = growth(|| {
        let model = Model::open(&input).unwrap();
        let mut graph = model.graph().unwrap();
        let w = graph.tensor(graph.tensor_named("w").unwrap());
        assert_eq!(w.shape, Some(vec![100_000_000]));
        let id = graph.order()[0];
        graph.node_mut(id).name = "renamed".to_owned();
        let pending = export(&model, &graph, &out).unwrap();
        let written = Model::open(pending.path()).unwrap().graph().unwrap();
        assert_eq!(written.node(written.order()[0]).name, "renamed");
        pending.commit().unwrap();
    });
    assert!(grown < 50_000_000, "{grown}");
    // The name: a key, a length and seven letters; all lengths around it keep their width.
    assert_eq!(
        out.metadata().unwrap().len(),
        input.metadata().unwrap().len() + 9
    );
}
