//! What is written where, whatever happens meanwhile: links, standard output, signals, full disks.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The graph fits as it is, so that most of the time is spent on files.
const SMALL: [&str; 4] = ["--budget", "8GiB", "--quiet", "in.onnx"];

/// The time of one node.
const PROFILE: &str = r#"[{"cat": "Node", "name": "conv1_kernel_time", "ph": "X", "pid": 1, "tid": 1, "ts": 1,
    "dur": 5, "args": {"op_name": "Conv", "node_index": "0"}}]"#;

/// A folder with a small training graph, `in.onnx`, in which commands run.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        let model = "testdata/onnx/conv_bn_relu_train.onnx";
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(model);
        fs::copy(from, folder.path("in.onnx")).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A quiet rewriting run.
    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"));
        command.args(SMALL).args(more).current_dir(self.0.path());
        command
    }

    fn run(&self, more: &[&str]) -> Output {
        self.command(more).output().unwrap()
    }

    /// The graph that such a run writes.
    fn rewritten(&self) -> Vec<u8> {
        assert!(self.run(&["reference.onnx"]).status.success());
        let bytes = fs::read(self.path("reference.onnx")).unwrap();
        fs::remove_file(self.path("reference.onnx")).unwrap();
        bytes
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn kill(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-s", signal, &pid]).status();
    // It may have ended by itself.
    let _ = sent.unwrap();
}

#[test]
fn a_dash_is_standard_output() {
    let folder = Folder::new();
    let expected = folder.rewritten();
    let output = folder.run(&["-"]);
    assert!(output.status.success(), "{}", errors(&output));
    assert!(output.stdout == expected, "the graph and nothing else");
    assert!(errors(&output).starts_with("wrote the graph to standard output\n"));
    assert_eq!(folder.files(), ["in.onnx"]);
    // Whole only: where no plan fits, nothing.
    let refused = folder.run(&["-", "--report", "-"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stdout.is_empty());
    assert!(
        errors(&refused).contains("--report and OUT name one file"),
        "{}",
        errors(&refused)
    );
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = folder.command(&["-"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors(&output).contains("standard output: cannot write"),
        "{}",
        errors(&output)
    );
}

#[test]
fn no_model_goes_to_a_standard_output_that_is_closed() {
    let folder = Folder::new();
    let program = env!("CARGO_BIN_EXE_ckpt-opt");
    let run = |command: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("'{program}' {command}")]);
        shell.current_dir(folder.0.path()).output().unwrap()
    };
    let rewrites = format!("{} -", SMALL.join(" "));
    for command in [rewrites.as_str(), "lower in.onnx -"] {
        let output = run(&format!("{command} >&-"));
        assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
        let said = errors(&output);
        assert!(
            said.contains("error[cannot-write]: standard output is closed"),
            "{said}"
        );
        // Whoever throws it away knows that.
        let output = run(&format!("{command} > /dev/null"));
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    }
}

#[test]
fn a_dash_as_a_report_is_standard_output() {
    let folder = Folder::new();
    let output = folder.run(&["--dry-run", "--report", "-", "--json"]);
    assert!(output.status.success(), "{}", errors(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert_eq!(folder.files(), ["in.onnx"]);
}

#[test]
fn what_standard_output_leads_to_is_not_replaced() {
    let folder = Folder::new();
    let file = fs::File::create(folder.path("redirected")).unwrap();
    let output = folder
        .command(&["/dev/stdout"])
        .stdout(file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors(&output).contains("give - for standard output"),
        "{}",
        errors(&output)
    );
    let piped = folder.run(&["/dev/stdout"]);
    assert_eq!(piped.status.code(), Some(1));
    assert!(
        errors(&piped).contains("give - for standard output"),
        "{}",
        errors(&piped)
    );
    assert!(piped.stdout.is_empty());
}

#[test]
fn files_that_options_name_are_not_replaced_under_any_name() {
    let folder = Folder::new();
    let costs = r#"{"nodes": {}}"#;
    let device = r#"{"provider": "cuda", "operations_per_second": 1e13, "bytes_per_second": 1e12, "launch_us": 4, "name": "d"}"#;
    let table = r#"{"device": "d", "convolutions": []}"#;
    let all = [
        ("--costs", "costs.json", costs),
        ("--profile", "profile.json", PROFILE),
        ("--device", "device.json", device),
        ("--conv-table", "table.json", table),
    ];
    for (_, name, contents) in all {
        fs::write(folder.path(name), contents).unwrap();
    }
    for (option, name, contents) in all {
        let (soft, hard) = (format!("soft.{name}"), format!("hard.{name}"));
        std::os::unix::fs::symlink(name, folder.path(&soft)).unwrap();
        fs::hard_link(folder.path(name), folder.path(&hard)).unwrap();
        let same = format!("./{name}");
        for out in [&same, &soft, &hard] {
            let device = match option {
                "--conv-table" => &["--device", "device.json"][..],
                _ => &[],
            };
            let named = [&[out.as_str(), option, name][..], device].concat();
            for arguments in [named.clone(), [&["o", "--report"], &named[..]].concat()] {
                let output = folder.run(&arguments);
                assert_eq!(output.status.code(), Some(1), "{arguments:?}");
                let one = if arguments[0] == "o" {
                    "--report"
                } else {
                    "OUT"
                };
                let expected = format!("{one} and {option} name one file");
                assert!(errors(&output).contains(&expected), "{}", errors(&output));
            }
        }
        assert_eq!(fs::read_to_string(folder.path(name)).unwrap(), contents);
    }
}

#[test]
fn what_passes_leave_replaces_nothing() {
    let folder = Folder::new();
    let model = fs::read(folder.path("in.onnx")).unwrap();
    fs::rename(folder.path("in.onnx"), folder.path("x.1")).unwrap();
    fs::hard_link(folder.path("x.1"), folder.path("in.onnx")).unwrap();
    fs::hard_link(folder.path("x.1"), folder.path("l.3.txt")).unwrap();
    for file in ["x", "./x", "l.txt"] {
        let dump = format!("infer-shapes={file}");
        let output = folder.run(&["--dry-run", "--dump-after", &dump]);
        assert_eq!(output.status.code(), Some(1), "{file}");
        let said = errors(&output);
        assert!(
            said.starts_with("error[replaces]: ")
                && said.contains("--dump-after and IN name one file"),
            "{said}"
        );
    }
    // Outputs that are not there yet.
    for (option, file) in [("OUT", "o.2"), ("--report", "o.1")] {
        let dump = ["--dump-after", "infer-shapes=o"];
        let arguments = match option {
            "OUT" => [&dump[..], &[file]].concat(),
            _ => [&dump[..], &["y", option, file]].concat(),
        };
        let output = folder.run(&arguments);
        assert_eq!(output.status.code(), Some(1), "{file}");
        let said = errors(&output);
        assert!(said.contains("name one file"), "{said}");
    }
    let pipe = Command::new("mkfifo").arg(folder.path("p.1")).status();
    assert!(pipe.unwrap().success());
    for (file, expected) in [("p", "it is a pipe"), ("none/x", "does not exist")] {
        let dump = format!("infer-shapes={file}");
        let output = folder.run(&["--dry-run", "--dump-after", &dump]);
        assert_eq!(output.status.code(), Some(1), "{file}");
        let said = errors(&output);
        assert!(
            said.starts_with("error[cannot-write]: ") && said.contains(expected),
            "{said}"
        );
    }
    assert_eq!(folder.files(), ["in.onnx", "l.3.txt", "p.1", "x.1"]);
    assert_eq!(fs::read(folder.path("x.1")).unwrap(), model);
}

/// To open a pipe waits for its writer, and a device may never end.
#[test]
fn files_that_options_name_are_neither_pipes_nor_devices() {
    let folder = Folder::new();
    let pipe = Command::new("mkfifo").arg(folder.path("pipe")).status();
    assert!(pipe.unwrap().success());
    for (file, what) in [("pipe", "a pipe"), ("/dev/zero", "a device")] {
        for option in ["--costs", "--profile", "--device", "--conv-table"] {
            let device = match option {
                "--conv-table" => &["--device", "h100"][..],
                _ => &[],
            };
            let output = folder.run(&[&["--dry-run", option, file][..], device].concat());
            assert_eq!(output.status.code(), Some(1), "{option}");
            let said = errors(&output);
            let expected = format!("expected a file, but this is {what}");
            assert!(
                said.starts_with(&format!("error[option-file]: {file}: cannot read the "))
                    && said.contains(&expected),
                "{said}"
            );
        }
    }
}

#[test]
fn signals_end_the_program_without_a_trace() {
    let folder = Folder::new();
    let expected = folder.rewritten();
    let started = Instant::now();
    assert!(folder.run(&["out.onnx"]).status.success());
    // Follows what it takes beside other tests, so that some runs end by the signal and some before it.
    let mut takes = started.elapsed();
    let mut ended = [0; 2];
    for run in 0..40 {
        fs::write(folder.path("out.onnx"), "old").unwrap();
        let arguments = ["out.onnx", "--report", "report.json"];
        let mut command = folder.command(&arguments);
        let quietly = command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = quietly.spawn().unwrap();
        // More often near the end, where files are written.
        let part = 1.0 - f64::from(run % 20) / 20.0 * f64::from(run % 20) / 20.0;
        thread::sleep(takes.mul_f64(part));
        let (name, number) = [("INT", 2), ("TERM", 15), ("HUP", 1)][run as usize % 3];
        kill(&child, name);
        let status = child.wait().unwrap();
        let out = fs::read(folder.path("out.onnx")).unwrap();
        match status.signal() {
            None => assert!(status.success() && out == expected, "{status}"),
            Some(signal) => assert!(signal == number && (out == b"old" || out == expected)),
        }
        ended[usize::from(status.success())] += 1;
        takes = takes.mul_f64(if status.success() { 0.8 } else { 1.1 });
        let _ = fs::remove_file(folder.path("report.json"));
        assert_eq!(folder.files(), ["in.onnx", "out.onnx"]);
    }
    assert!(ended[0] > 5, "{ended:?}: hardly any was interrupted");
}

/// A program whose graph is so large that writing it takes a while.
#[test]
fn a_signal_while_a_file_is_written_leaves_nothing() {
    let folder = Folder::new();
    let path = folder.path("in.onnx");
    let small = fs::read(&path).unwrap();
    // A field that nobody knows, of 400 MB that take no room: number 99, which is varint 99 << 3 | 2.
    let length: usize = 400_000_000;
    let mut bytes = vec![0x9a, 0x06];
    let mut rest = length;
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    let file = fs::File::create(&path).unwrap();
    use std::os::unix::fs::FileExt;
    file.write_all_at(&bytes, 0).unwrap();
    file.write_all_at(&small, (bytes.len() + length) as u64)
        .unwrap();
    // On a busy machine the file can be whole before the signal comes.
    let is_killed = |signal: &str| {
        let mut command = folder.command(&["out.onnx"]);
        let quietly = command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = quietly.spawn().unwrap();
        let started = Instant::now();
        while !folder.files().iter().any(|name| name.ends_with(".tmp")) {
            assert!(started.elapsed() < Duration::from_secs(60));
            assert!(
                child.try_wait().unwrap().is_none(),
                "it ended without a temporary file"
            );
        }
        kill(&child, signal);
        let status = child.wait().unwrap();
        if status.success() {
            fs::remove_file(folder.path("out.onnx")).unwrap();
        } else {
            assert!(status.signal().is_some(), "{status}");
        }
        assert_eq!(folder.files(), ["in.onnx"], "{signal}");
        !status.success()
    };
    // What whoever started the tests ignores, a background job INT and nohup HUP, the program ignores too.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap());
    for (signal, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let is_ignored = ignored >> (number - 1) & 1 == 1;
        assert!(
            is_ignored || (0..5).any(|_| is_killed(signal)),
            "{signal} comes too late"
        );
    }
}

#[test]
fn signals_that_are_ignored_stay_so() {
    let folder = Folder::new();
    let command = format!(
        "trap '' HUP; {} {} out.onnx",
        env!("CARGO_BIN_EXE_ckpt-opt"),
        SMALL.join(" ")
    );
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        &format!("{command} & p=$!; sleep 0.02; kill -s HUP $p; wait $p"),
    ]);
    let status = shell
        .current_dir(folder.0.path())
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    assert_eq!(folder.files(), ["in.onnx", "out.onnx"]);
}

#[test]
fn a_result_that_nobody_can_be_told_is_no_failure_where_the_file_is_there() {
    let folder = Folder::new();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let output = folder
        .command(&["out.onnx"])
        .stdout(full())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let said = errors(&output);
    assert!(
        said.contains(
            "warning: out.onnx was written and is complete, but: cannot print the result"
        ),
        "{said}"
    );
    assert_eq!(folder.files(), ["in.onnx", "out.onnx"]);
    let output = folder
        .command(&["--dry-run"])
        .stdout(full())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
}

/// Threads with stacks that no machine has cannot be started.
#[test]
fn without_a_thread_to_be_had_the_result_is_the_same() {
    let folder = Folder::new();
    let run = |out: &str, stack: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"));
        command.args(["in.onnx", out, "--quiet", "--runtime-settings", "lean"]);
        command.args(["--budget", "fixed+95%", "--time-limit", "1000"]);
        command
            .env("RUST_MIN_STACK", stack)
            .current_dir(folder.0.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        fs::read(folder.path(out)).unwrap()
    };
    assert!(run("a.onnx", "2000000") == run("b.onnx", "100000000000000000"));
}

/// A run that says what it is at, stopped at the first line with `until`.
fn spoken(folder: &Folder, arguments: &[&str], until: &str) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"))
        .args(arguments)
        .current_dir(folder.0.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(until) {
        line.clear();
        assert!(
            said.read_line(&mut line).unwrap() > 0,
            "{until} was never said"
        );
    }
    // What follows is for whoever waits.
    child.stderr = Some(said.into_inner());
    child
}

/// The model with an initializer of so many zeros, for which the disk needs no room.
fn grow(path: &Path, zeros: u64) {
    let mut message = vec![0x08, 1, 0x10, 3, 0x42, 5];
    message.splice(0..2, varint(0x08, zeros));
    message.extend(b"zeros");
    message.extend(varint(0x4a, zeros));
    let tensor = message.len() as u64 + zeros;
    let mut head = varint(0x2a, tensor);
    head.extend(message);
    let graph = varint(0x3a, head.len() as u64 + zeros);
    let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(&graph).unwrap();
    file.write_all(&head).unwrap();
    let end = file.metadata().unwrap().len() + zeros;
    file.set_len(end).unwrap();
}

/// A key of one byte, and a number.
fn varint(key: u8, mut number: u64) -> Vec<u8> {
    let mut bytes = vec![key];
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

#[test]
fn a_model_that_is_written_to_meanwhile_is_refused() {
    let folder = Folder::new();
    grow(&folder.path("in.onnx"), 1 << 26);
    let arguments = ["in.onnx", "out.onnx", "--budget", "8GiB"];
    let child = spoken(&folder, &arguments, "planning");
    let mut file = fs::OpenOptions::new();
    let mut file = file.append(true).open(folder.path("in.onnx")).unwrap();
    file.write_all(&[0x12, 0]).unwrap();
    drop(file);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    assert!(errors(&output).contains("in.onnx"), "{}", errors(&output));
    assert_eq!(folder.files(), ["in.onnx"]);
}

#[test]
fn a_model_that_is_cut_off_while_it_is_copied_ends_with_an_error() {
    // The later it is cut off, the more of it has been written; a system that is slow notices before.
    for wait in [0, 5, 20] {
        let folder = Folder::new();
        grow(&folder.path("in.onnx"), 1 << 28);
        let arguments = ["in.onnx", "out.onnx", "--budget", "8GiB"];
        let child = spoken(&folder, &arguments, "writing");
        thread::sleep(Duration::from_millis(wait));
        let file = fs::OpenOptions::new()
            .write(true)
            .open(folder.path("in.onnx"));
        file.unwrap().set_len(100).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
        let said = errors(&output);
        let is_told = said.contains("became shorter meanwhile") || said.contains("in.onnx");
        assert!(is_told, "{said}");
        assert_eq!(folder.files(), ["in.onnx"]);
    }
}

#[test]
fn no_model_is_printed_on_a_terminal() {
    let folder = Folder::new();
    let program = env!("CARGO_BIN_EXE_ckpt-opt");
    // It runs the command on a terminal of its own, and gives its exit status.
    let run = |to: &str| {
        let command = format!("'{program}' in.onnx - --budget 8GiB {to}");
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
        script.current_dir(folder.0.path()).stdin(Stdio::null());
        script.output().expect("script (util-linux) starts")
    };
    let refused = run("");
    let said = String::from_utf8_lossy(&refused.stdout);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.contains("terminal") && !said.contains("conv1"),
        "{said}"
    );
    let piped = run("| cat > piped.onnx");
    assert_eq!(piped.status.code(), Some(0));
    assert_eq!(
        fs::read(folder.path("piped.onnx")).unwrap(),
        folder.rewritten()
    );
}
