//! `cargo xtask NAME`: what CI runs, and what needs ONNX Runtime.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod corpus;
mod dependencies;
mod structure;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
cargo xtask ci             format, lints, documentation, all tests; installs what they need
cargo xtask dependencies   checks licences, sources and reasons (deny.toml) of what the program is built from, as
                           ci does, without a network
cargo xtask deny           checks that, and known flaws, by cargo-deny (installed where it is missing). The list
                           of flaws comes from the network
cargo xtask structure      counts circles of imports, uses of rooms that are not allowed, names used twice, and what is
                           known of ONNX Runtime where it should not be; fails where there is more than allowed
cargo xtask setup          only makes .venv with ONNX Runtime, for the Python tools
cargo xtask truth [DIR] [NAME...]
                           rewrites the graphs in DIR (testdata/models), runs them before and after,
                           and prints what was predicted beside what was measured
cargo xtask quality [DIR] [OPTION...]
                           plans the graphs in DIR (testdata/models) and generated ones at many budgets,
                           and prints how good the plans are; --sweep checks that a larger budget never
                           costs more. Options: .venv/bin/python tools/quality.py --help
cargo xtask never-worse DIR [OPTION...]
                           plans the graphs in DIR with auto and the published strategies, in both runtime
                           settings, and fails where one of them beats auto. Options: --only NAME...,
                           --settings lean, --strategies NAME,..., --time-limit SECONDS
cargo xtask published DIR [OPTION...]
                           plans the networks of the lower-set paper's Table 1 that are in DIR with every
                           strategy, and prints their peaks beside the paper's
cargo xtask highs          builds target/release/ckpt-opt with HiGHS, for --certify and the strategies
                           checkmate-ilp and monet-ilp; installs what that needs (Debian, as root). With --test it
                           then compares the search with exact programs and with MONeT's, in about five minutes
cargo xtask ablation DIR [OPTION...]
                           plans the networks of MONeT's Figure 4 that are in DIR with no variants, with each
                           group of them, and with all
cargo xtask corpus --save FILE | --against FILE [--models DIR]... [--budget SIZE]... [--only NAME]... [--binary FILE]
                           plans testdata's graphs, and those in DIR, for three budgets in both runtime settings, and
                           keeps in FILE, or compares with it, what was written: for changes that must change nothing.
                           With --budget these instead of the three, with --only graphs of these names alone, with --binary
                           that build instead of this tree's
cargo xtask heuristics [--models DIR]... [--budget SIZE]... [--only NAME]... [--without NAME]...
                           plans the same graphs without one after another of the numbers and habits that decide what is
                           tried (or those that are named), and prints what becomes of overhead, smallest peaks and work
cargo xtask pytorch        trains with PyTorch: the guide's way from a network to a trained step, ORTModule, and two processes;
                           all with and without a budget. Installs PyTorch in .venv-torch (5 GB)
cargo xtask gpu [DIR]      packs target/gpu.tar.gz for a machine with a GPU: the program, the scripts and the graphs in DIR
                           (testdata/models). There `sh gpu/run.sh` makes the tables of docs/gpu.md
cargo xtask fuzz [OPTION...]
                           tries random inputs (docs/fuzzing.md), in one process for each processor, and keeps
                           in target/finds what goes wrong. Options: --minutes N, --seed S, --workers N, --only TARGET,
                           --finds DIR
cargo xtask figures [DIR]  draws the trade-off curves of the chain and join papers, as CSV and SVG in DIR
                           (target/figures)";

/// The command that failed, in words.
struct Failed(String);

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("ci") => ci(),
        Some("dependencies") => check_dependencies(),
        Some("deny") => deny(),
        Some("structure") => check_structure(),
        Some("setup") => setup(),
        Some("truth") => truth(&arguments[1..]),
        Some("quality") => quality(&arguments[1..]),
        Some("never-worse") => planned_in("never_worse.py", &arguments[1..]),
        Some("published") => planned_in("published_table.py", &arguments[1..]),
        Some("highs") => highs(&arguments[1..]),
        Some("ablation") => ablation(&arguments[1..]),
        Some("corpus") => compared(&arguments[1..]),
        Some("heuristics") => heuristics(&arguments[1..]),
        Some("pytorch") => pytorch(),
        Some("gpu") => gpu(&arguments[1..]),
        Some("fuzz") => fuzz(&arguments[1..]),
        Some("figures") => figures(&arguments[1..]),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed(what)) => {
            eprintln!("xtask: failed: {what}");
            ExitCode::FAILURE
        }
    }
}

fn highs(arguments: &[String]) -> Result<(), Failed> {
    let tests = match arguments {
        [] => false,
        [option] if option == "--test" => true,
        _ => return Err(Failed("highs takes --test alone".to_owned())),
    };
    built_with_highs()?;
    if !tests {
        return Ok(());
    }
    let with = ["test", "--release", "--features", "highs,testing"];
    cargo(&[&with[..], &["--test", "exact", "--test", "joint"]].concat())
}

/// HiGHS is built from source by cmake, and its interface is read by libclang.
fn built_with_highs() -> Result<(), Failed> {
    let build = || cargo(&["build", "--release", "--features", "highs"]);
    let installs = command("apt-get").arg("--version").output();
    if build().is_ok() {
        return Ok(());
    }
    if installs.is_ok() {
        run(command("apt-get").args(["update", "-qq"]))?;
        let packages = ["cmake", "g++", "libclang-dev"];
        run(command("apt-get")
            .args(["install", "-y", "-qq"])
            .args(packages))?;
    }
    build()
}

fn compared(arguments: &[String]) -> Result<(), Failed> {
    let usage = || {
        Failed(
            "expected --save FILE or --against FILE, then --models DIR, --budget SIZE, --only NAME"
                .to_owned(),
        )
    };
    let request = corpus::Request::parse(arguments).ok_or_else(usage)?;
    let binary = match &request.binary {
        Some(binary) => binary.clone(),
        None => {
            release(&["ckpt-opt"])?;
            target().join("release/ckpt-opt")
        }
    };
    match corpus::run(&request, &binary, root()) {
        Ok(0) => Ok(()),
        Ok(differing) => Err(Failed(format!("{differing} rows differ"))),
        Err(what) => Err(Failed(what)),
    }
}

/// In a build in which what decides what is tried can be switched off.
fn heuristics(arguments: &[String]) -> Result<(), Failed> {
    let usage = || {
        Failed(
            "expected --models DIR, --budget SIZE, --only NAME, --without NAME, --binary FILE"
                .to_owned(),
        )
    };
    let request = corpus::Request::with_options(arguments).ok_or_else(usage)?;
    let binary = match &request.binary {
        Some(binary) => binary.clone(),
        None => {
            let build = ["build", "--quiet", "--release", "--package", "ckpt-opt"];
            cargo(&[&build[..], &["--features", "ablation"]].concat())?;
            target().join("release/ckpt-opt")
        }
    };
    corpus::ablation(&request, &binary, root()).map_err(Failed)
}

/// The tests that CI leaves out.
fn pytorch() -> Result<(), Failed> {
    run(command("sh").args(["tools/setup.sh", "torch"]))?;
    cargo(&["test", "--features", "pytorch", "--test", "pytorch"])
}

/// In a build that is fast and checks arithmetic.
fn fuzz(arguments: &[String]) -> Result<(), Failed> {
    let program = [
        "run",
        "--quiet",
        "--profile",
        "fuzz",
        "--package",
        "ckpt-fuzz",
    ];
    run(command("cargo")
        .args(program)
        .args(["--", "run"])
        .args(arguments))
}

/// Needs no ONNX Runtime.
fn figures(arguments: &[String]) -> Result<(), Failed> {
    let directory = arguments.first().map_or("target/figures", String::as_str);
    cargo(&[
        "run",
        "--quiet",
        "--release",
        "--package",
        "ckpt-opt",
        "--example",
        "figures",
        "--",
        directory,
    ])
}

/// Ends with the tests, so that their summary is the last thing printed.
fn ci() -> Result<(), Failed> {
    install_components()?;
    check_dependencies()?;
    check_structure()?;
    setup()?;
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&[
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ])?;
    run(command("cargo").env("RUSTDOCFLAGS", "-D warnings").args([
        "doc",
        "--quiet",
        "--workspace",
        "--no-deps",
        "--document-private-items",
    ]))?;
    cargo(&["test", "--workspace", "--doc"])?;
    // All at once: crates that are chosen one by one have other features, and are compiled once more for each choice.
    let kinds = ["--lib", "--bins", "--examples", "--tests"];
    cargo(&[&["test", "--workspace"], &kinds[..]].concat())
}

/// Licences, sources and reasons. Needs no network where all crates are there, those for other systems too.
fn check_dependencies() -> Result<(), Failed> {
    let mut metadata = command("cargo");
    let form = ["--all-features", "--format-version", "1"];
    metadata.args(["metadata", "--locked", "--offline"]);
    metadata.args(form);
    let read = |metadata: &mut Command| {
        let output = metadata.output();
        output.map_err(|error| Failed(format!("{metadata:?}: {error}")))
    };
    let mut output = read(&mut metadata)?;
    if !output.status.success() {
        cargo(&["fetch", "--locked"])?;
        output = read(&mut metadata)?;
    }
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failed(format!("{metadata:?}: {}", said.trim_end())));
    }
    let metadata = serde_json::from_slice(&output.stdout)
        .map_err(|error| Failed(format!("cargo metadata: {error}")))?;
    let rules = std::fs::read_to_string(root().join("deny.toml"))
        .map_err(|error| Failed(format!("deny.toml: {error}")))?;
    match dependencies::problems(&metadata, &rules).join("\n") {
        problems if problems.is_empty() => Ok(()),
        problems => Err(Failed(format!("dependencies:\n{problems}"))),
    }
}

fn check_structure() -> Result<(), Failed> {
    let counts = structure::counted(root()).map_err(Failed)?;
    let problems: Vec<String> = counts
        .iter()
        .filter_map(structure::Count::problem)
        .collect();
    match problems.join("; ") {
        problems if problems.is_empty() => Ok(()),
        problems => Err(Failed(problems)),
    }
}

/// All that cargo-deny checks. Advisories go last: without a network they alone are not known.
fn deny() -> Result<(), Failed> {
    check_dependencies()?;
    let present = command("cargo").args(["deny", "--version"]).output();
    if !present.is_ok_and(|output| output.status.success()) {
        cargo(&["install", "--locked", "cargo-deny"])?;
    }
    cargo(&["deny", "check", "licenses", "bans", "sources"])?;
    let fetched = cargo(&["deny", "fetch", "db"]);
    fetched.map_err(|Failed(what)| {
        Failed(format!(
            "ADVISORIES WERE NOT CHECKED: their list cannot be had ({what}). Licences, bans and sources are in order."
        ))
    })?;
    cargo(&["deny", "check", "--disable-fetch", "advisories"])
}

/// Toolchains of the minimal profile lack rustfmt and clippy.
fn install_components() -> Result<(), Failed> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        let present = command("cargo").args([subcommand, "--version"]).output();
        if !present.is_ok_and(|output| output.status.success()) {
            run(command("rustup").args(["component", "add", component]))?;
        }
    }
    Ok(())
}

fn setup() -> Result<(), Failed> {
    run(command("sh").arg("tools/setup.sh"))
}

fn truth(arguments: &[String]) -> Result<(), Failed> {
    setup()?;
    release(&["ckpt-opt", "malloc-counter"])?;
    let (models, names) = match arguments {
        [models, names @ ..] => (models.as_str(), names),
        [] => ("testdata/models", arguments),
    };
    let mut table = tool("truth_table.py", models);
    let record = target().join("truth.jsonl");
    // The file is for going on after a break (the script itself); a new run of this command starts over.
    let _ = std::fs::remove_file(&record);
    table.arg("--json").arg(record);
    if !names.is_empty() {
        table.arg("--only").args(names);
    }
    run(&mut table)
}

fn quality(arguments: &[String]) -> Result<(), Failed> {
    setup()?;
    release(&["ckpt-opt"])?;
    let (models, options) = match arguments {
        [models, options @ ..] if !models.starts_with('-') => (models.as_str(), options),
        options => ("testdata/models", options),
    };
    run(tool("quality.py", models).args(options))
}

/// A tool that plans the graphs of a folder, which has to be named.
fn planned_in(name: &str, arguments: &[String]) -> Result<(), Failed> {
    let [models, options @ ..] = arguments else {
        return Err(Failed("which folder has the graphs?".to_owned()));
    };
    setup()?;
    release(&["ckpt-opt"])?;
    run(tool(name, models).args(options))
}

fn ablation(arguments: &[String]) -> Result<(), Failed> {
    let [models, options @ ..] = arguments else {
        return Err(Failed("which folder has the networks?".to_owned()));
    };
    setup()?;
    release(&["ckpt-opt"])?;
    run(tool("ablation.py", models).args(options))
}

/// An archive with all that a machine with a GPU needs besides Python.
fn gpu(arguments: &[String]) -> Result<(), Failed> {
    let models = arguments.first().map_or("testdata/models", String::as_str);
    release(&["ckpt-opt"])?;
    let folder = target().join("gpu");
    let script = "set -e; rm -rf \"$1\"; mkdir -p \"$1/tools\" \"$1/models\"; cp \"$2/release/ckpt-opt\" \"$1\"; \
                  cp tools/gpu.sh \"$1/run.sh\"; cp tools/*.py tools/*.json \"$1/tools\"; cp \"$3\"/*.onnx \"$1/models\"; \
                  tar czf \"$1.tar.gz\" -C \"$2\" gpu";
    run(command("sh")
        .args(["-c", script, "sh"])
        .arg(&folder)
        .arg(target())
        .arg(models))?;
    println!("{}", folder.with_extension("tar.gz").display());
    Ok(())
}

fn release(packages: &[&str]) -> Result<(), Failed> {
    let packages = packages.iter().flat_map(|name| ["--package", name]);
    run(command("cargo")
        .args(["build", "--quiet", "--release"])
        .args(packages))
}

/// A Python tool that runs the release binary on a folder of graphs.
fn tool(name: &str, models: &str) -> Command {
    let mut tool = command(".venv/bin/python");
    tool.arg(Path::new("tools").join(name));
    tool.arg("--binary").arg(target().join("release/ckpt-opt"));
    tool.args(["--models", models]);
    tool
}

fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

fn cargo(arguments: &[&str]) -> Result<(), Failed> {
    run(command("cargo").args(arguments))
}

/// A command that runs in the project's folder.
fn command(program: &str) -> Command {
    let program = match program {
        "cargo" => env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()),
        other => other.to_owned(),
    };
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

fn run(command: &mut Command) -> Result<(), Failed> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failed(format!("{command:?}: {status}"))),
        Err(error) => Err(Failed(format!("{command:?}: {error}"))),
    }
}

fn root() -> &'static Path {
    // tools/xtask -> tools -> the project
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}
