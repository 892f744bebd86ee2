//! `ckpt-opt profile-conv`, with a cuDNN that computes nothing but checks what it is called with (`fake_cudnn`).

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

/// The built library.
fn fake() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("libfake_cudnn.so");
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let done = Command::new(rustc)
            .args([
                "--edition",
                "2024",
                "--crate-type",
                "cdylib",
                "--crate-name",
                "fake_cudnn",
            ])
            .args(["-A", "warnings", "tests/fake_cudnn/lib.rs", "-o"])
            .arg(&path)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("rustc starts");
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        (folder, path)
    });
    path
}

fn profile_conv(arguments: &[&str], library: &Path, without_gpu: bool) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"));
    command
        .args([
            "profile-conv",
            "testdata/models/resnet18.onnx",
            "--dim",
            "batch=2",
        ])
        .args(arguments)
        .args([
            Path::new("--cudart"),
            library,
            Path::new("--cudnn"),
            library,
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if without_gpu {
        command.env("FAKE_CUDNN_WITHOUT_GPU", "1");
    }
    command.output().expect("ckpt-opt starts")
}

fn text(stream: &[u8]) -> String {
    String::from_utf8_lossy(stream).into_owned()
}

#[test]
fn a_table_is_filled_with_what_cudnn_takes() {
    let output = profile_conv(&["--device", "v100"], fake(), false);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(table["device"], "v100");
    assert_eq!(table["source"], "cudnn 9.1.3");
    let convolutions = table["convolutions"].as_array().expect("a list");
    let of = |product: &str| {
        let mut all = convolutions.iter().filter(|one| one["product"] == product);
        let algorithms = all.next().expect("one").clone();
        assert!(all.all(|one| one["algorithms"] == algorithms["algorithms"]));
        let list = algorithms["algorithms"].as_array().expect("a list").clone();
        let figures = list.iter().map(|one| {
            let number = |key: &str| one[key].as_u64().expect("a number");
            // Floats of milliseconds: to a tenth of a microsecond.
            let microseconds = (number("time_ns") as f64 / 1000.0).round() as u64;
            let name = one["algorithm"].as_str().expect("a name").to_owned();
            (name, microseconds, number("workspace_bytes"))
        });
        figures.collect::<Vec<_>>()
    };
    let named = |list: &[(&str, u64, u64)]| -> Vec<(String, u64, u64)> {
        list.iter()
            .map(|&(name, time, bytes)| (name.to_owned(), time, bytes))
            .collect()
    };
    // 100 µs and 10 µs times the number in cuDNN, and 1,000 bytes times that; the first run does not count.
    let forward = [
        ("implicit-gemm", 100, 0),
        ("precomputed-gemm", 110, 1000),
        ("gemm", 120, 2000),
        ("winograd-non-fused", 170, 7000),
    ];
    assert_eq!(of("forward"), named(&forward));
    let data = [
        ("implicit-gemm", 100, 0),
        ("deterministic-gemm", 110, 1000),
        ("winograd-non-fused", 150, 5000),
    ];
    assert_eq!(of("backward-data"), named(&data));
    let filter = [
        ("implicit-gemm", 100, 0),
        ("deterministic-gemm", 110, 1000),
        ("split-gemm", 130, 3000),
    ];
    assert_eq!(of("backward-filter"), named(&filter));

    // A plan can be made with it, and nothing is missing.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("table.json");
    std::fs::write(&path, &output.stdout).expect("written");
    let planned = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"))
        .args([
            "testdata/models/resnet18.onnx",
            "--dry-run",
            "--quiet",
            "--json",
            "--dim",
            "batch=2",
        ])
        .args(["--budget", "fixed+80%", "--device", "v100", "--conv-table"])
        .arg(&path)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("ckpt-opt starts");
    assert_eq!(planned.status.code(), Some(0), "{}", text(&planned.stderr));
    // Nothing is missing in the table.
    assert!(
        !text(&planned.stderr).contains("table"),
        "{}",
        text(&planned.stderr)
    );
}

#[test]
fn without_a_gpu_it_says_so() {
    let output = profile_conv(&["--device", "v100"], fake(), true);
    assert_eq!(output.status.code(), Some(1));
    insta::assert_snapshot!(text(&output.stderr), @r"
    error[gpu]: there is no GPU: cudaGetDeviceCount says 100, and 0 devices
    help: run ckpt-opt profile-conv where ONNX Runtime trains on the GPU, and give its table with --conv-table
    ");
    let output = profile_conv(&["--device", "v100"], Path::new("/nowhere/lib.so"), false);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.starts_with("error[gpu]: no CUDA runtime (libcudart) can be loaded; it is needed, and a GPU (/nowhere/lib.so: "), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_table_is_for_a_device_with_cudnn() {
    let output = profile_conv(&[], fake(), false);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}
