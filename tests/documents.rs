//! What the documents say is so: links lead somewhere, files that are named are there, commands run and print what is
//! quoted, and the reference has every option and every key.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ckpt_opt::Code;
use serde_json::Value;
use tempfile::TempDir;

use support::blocks::{Block, parts};
use support::package::package;
use support::{python, root};

/// Their commands run here.
const RUN: [&str; 4] = [
    "README.md",
    "docs/guide.md",
    "docs/reference.md",
    "docs/faq.md",
];

/// Its commands and its Python run as well, in a runtime without training.
const STOCK: &str = "docs/stock.md";

/// Commands that do not, by how they begin, and why.
const NOT_RUN: [(&str, &str); 2] = [
    ("cargo xtask ci", "it runs this test"),
    (
        "cargo xtask highs",
        "it builds HiGHS, which takes minutes and cmake",
    ),
];

/// With this variable what is quoted in README.md is written anew instead of compared.
const UPDATE: &str = "UPDATE_DOCUMENTS";

/// What the Python in the documents finds: a forward model, which PyTorch would export, and data. ONNX Runtime's package
/// for training begins by importing PyTorch, which the tests do without.
const PROLOGUE: &str = r#"
import os, sys, types, numpy, onnx, onnxruntime
from onnx import TensorProto, helper, numpy_helper
package = types.ModuleType("onnxruntime.training")
package.__path__ = [os.path.join(os.path.dirname(onnxruntime.__file__), "training")]
sys.modules["onnxruntime.training"] = package
random = numpy.random.default_rng(0)
trained = ["fc.weight", "fc.bias", "scale"]
weights = [numpy_helper.from_array(random.random(shape, dtype=numpy.float32), name)
           for name, shape in zip(trained, [(10, 192), (10,), (3, 8, 8)])]
names = ["scaled"] + [f"layer{i}" for i in range(24)]
nodes = [helper.make_node("Tanh" if i % 2 else "Sigmoid", [names[i]], [names[i + 1]]) for i in range(24)]
nodes = [helper.make_node("Mul", ["images", "scale"], ["scaled"]), *nodes, helper.make_node("Flatten", [names[-1]], ["flat"]),
         helper.make_node("Gemm", ["flat", *trained[:2]], ["scores"], transB=1)]
values = [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 8, 8]),
          helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])]
graph = helper.make_graph(nodes, "forward", values[:1], values[1:], weights)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8), "forward.onnx")
batches = [(random.random((16, 3, 8, 8), dtype=numpy.float32), random.integers(0, 10, 16)) for _ in range(2)]
"#;

/// The training graph that the page about current runtimes begins with.
const ARTIFACTS: &str = r#"
from onnxruntime.training import artifacts
artifacts.generate_artifacts(onnx.load("forward.onnx"), requires_grad=trained, loss=artifacts.LossType.CrossEntropyLoss)
"#;

/// What that page's Python finds.
const STOCK_PROLOGUE: &str = r#"
import numpy, onnx
random = numpy.random.default_rng(0)
batches = [(random.random((16, 3, 8, 8), dtype=numpy.float32), random.integers(0, 10, 16)) for _ in range(2)]
weights = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load("forward.onnx").graph.initializer}
losses = []
"#;

/// Its loop of one's own defines a step.
const OWN_LOOP: &str = r#"
losses = [step({"images": images, "labels": labels}, 0.1) for images, labels in 4 * batches]
assert losses[-2] < losses[0], losses
"#;

fn read(document: &Path) -> String {
    fs::read_to_string(document).unwrap_or_else(|error| panic!("{}: {error}", document.display()))
}

/// Every Markdown file that people read.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = ["docs", "tools", "testdata"]
        .map(|name| root().join(name))
        .to_vec();
    let markdown = |path: &PathBuf| path.extension().is_some_and(|end| end == "md");
    let entries = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).expect("a folder of the project");
        entries
            .map(|entry| entry.expect("an entry").path())
            .collect()
    };
    found.extend(entries(root()).into_iter().filter(markdown));
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            match path.is_dir() {
                true => folders.push(path),
                false => found.extend(Some(path).filter(markdown)),
            }
        }
    }
    found.sort();
    assert!(found.len() > 10, "{found:?}");
    found
}

/// The places in a document that links can lead to, as GitHub names them.
fn anchors(document: &str) -> BTreeSet<String> {
    let (_, prose) = parts(document);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for path in documents() {
        let text = read(&path);
        let (_, prose) = parts(&text);
        for link in prose
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split_once(')'))
        {
            let link = link.0;
            if link.starts_with("http") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().expect("a folder").join(file),
            };
            let found =
                target.exists() && (anchor.is_empty() || anchors(&read(&target)).contains(anchor));
            if !found {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The names of files in the sources, wherever they lie.
fn source_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut folders = ["passes", "src", "tests", "tools"]
        .map(|name| root().join(name))
        .to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of the project") {
            let entry = entry.expect("an entry");
            names.insert(entry.file_name().to_string_lossy().into_owned());
            if entry.path().is_dir() {
                folders.push(entry.path());
            }
        }
    }
    names
}

#[test]
fn files_that_are_named_are_there() {
    // Beside what a reader makes: examples' names, and what programs write.
    const ROOMS: [&str; 6] = [
        "",
        "passes/src",
        "src",
        "passes",
        "tools",
        "passes/src/optimize",
    ];
    let names = source_names();
    let is_source = |word: &str| {
        [".rs", ".py", ".sh", ".toml"]
            .iter()
            .any(|end| word.ends_with(end))
    };
    let mut missing = Vec::new();
    for path in documents() {
        let text = read(&path);
        let (_, prose) = parts(&text);
        let spans = prose.split('`').skip(1).step_by(2);
        for word in spans.flat_map(str::split_whitespace) {
            let word = word.trim_matches(|c: char| ",;:()".contains(c));
            let is_ours = ["src/", "passes/", "tests/", "tools/", "docs/", "testdata/"];
            let is_ours = is_ours.iter().any(|folder| word.starts_with(folder));
            let is_plain = word
                .chars()
                .all(|c| c.is_alphanumeric() || "/._-".contains(c));
            // What a recipe lets the reader choose.
            let is_blank = ["NAME.rs", "FAMILY.rs"]
                .iter()
                .any(|end| word.ends_with(end));
            if !is_plain || is_blank || !(is_ours || is_source(word) || word.ends_with('/')) {
                continue;
            }
            let is_there = ROOMS
                .iter()
                .any(|room| root().join(room).join(word).exists());
            let is_named = !word.contains('/') && names.contains(word);
            let is_made = word.starts_with("target/") || word.starts_with("shown/");
            if !is_there && !is_named && !is_made {
                missing.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_script_has_a_line_in_the_list_of_scripts() {
    let list = read(&root().join("tools/README.md"));
    let entries = fs::read_dir(root().join("tools")).expect("the scripts");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let is_script = |name: &String| name.ends_with(".py") || name.ends_with(".sh");
    let names = names.map(|name| name.to_string_lossy().into_owned());
    let missing: Vec<String> = names
        .filter(is_script)
        .filter(|name| !list.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// A folder in which a document's commands run, one after another.
struct Workshop(TempDir);

impl Workshop {
    fn new() -> Workshop {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["testdata", "tools", ".venv"] {
            symlink(root().join(name), folder.path().join(name)).expect("a link");
        }
        Workshop(folder)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let binary = Path::new(env!("CARGO_BIN_EXE_ckpt-opt"));
        let folder = binary.parent().expect("a folder").to_str().expect("text");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.0.path());
        command.env("PATH", format!("{folder}:{path}"));
        command.output().expect("it starts")
    }

    fn block(&self, document: &str, block: &Block) {
        let text = &block.text;
        match block.language.as_str() {
            "sh" => text.lines().for_each(|line| self.line(document, line)),
            "python" if text.contains("torch.onnx.export(\n") => (), // tests/pytorch.rs runs it.
            "python" => {
                let script = format!("{PROLOGUE}{text}");
                self.must(
                    "a Python block",
                    document,
                    ".venv/bin/python",
                    &["-c", &script],
                );
            }
            _ => (),
        }
    }

    fn line(&self, document: &str, line: &str) {
        if NOT_RUN.iter().any(|(begin, _)| line.starts_with(begin)) {
            return;
        }
        let line = line.replacen("cargo run --release -- ", "ckpt-opt ", 1);
        let known = ["ckpt-opt ", ".venv/bin/python "];
        assert!(
            known.iter().any(|begin| line.starts_with(begin)),
            "{document}: is {line:?} safe to run in a test? If not, say why in NOT_RUN"
        );
        self.must(&line, document, "sh", &["-c", &line]);
    }

    fn must(&self, what: &str, document: &str, program: &str, arguments: &[&str]) {
        let output = self.run(program, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{document}: {what}: {said}");
    }
}

#[test]
fn commands_in_readme_guide_and_reference_run() {
    python(&[]);
    for document in RUN {
        let workshop = Workshop::new();
        let (blocks, _) = parts(&read(&root().join(document)));
        for block in &blocks {
            workshop.block(document, block);
        }
    }
}

#[test]
fn what_the_page_about_current_runtimes_says_trains_there() {
    python(&[]);
    let stock = python(&["stock"]);
    let stock = stock.to_str().expect("text");
    let (workshop, package) = (Workshop::new(), package());
    let made = format!("{PROLOGUE}{ARTIFACTS}");
    workshop.must("artifacts", STOCK, ".venv/bin/python", &["-c", &made]);
    let path = format!("PYTHONPATH={}", package.path().display());
    let (blocks, _) = parts(&read(&root().join(STOCK)));
    let mut ran = 0;
    for block in &blocks {
        if block.language != "python" {
            workshop.block(STOCK, block);
            continue;
        }
        let own = if block.text.contains("def step") {
            OWN_LOOP
        } else {
            ""
        };
        let script = format!("{STOCK_PROLOGUE}{}{own}", block.text);
        workshop.must(
            "a Python block",
            STOCK,
            "env",
            &[&path, stock, "-c", &script],
        );
        ran += 1;
    }
    assert_eq!(ran, 2);
}

#[test]
fn readme_and_guide_show_what_their_commands_print() {
    assert_quoted("README.md", "cargo run --release -- ");
    assert_quoted("docs/guide.md", "ckpt-opt inspect ");
}

/// Does the document quote the first lines of what its first command prints that begins so?
fn assert_quoted(document: &str, begins: &str) {
    let path = root().join(document);
    let (blocks, _) = parts(&read(&path));
    let at = |block: &Block| block.text.starts_with(begins);
    let at = blocks.iter().position(at).expect("the command");
    let command = blocks[at]
        .text
        .trim_end()
        .replacen("cargo run --release -- ", "ckpt-opt ", 1);
    let output = Workshop::new().run("sh", &["-c", &command]);
    let printed = String::from_utf8(output.stdout).expect("text");
    let quoted = &blocks[at + 1];
    assert_eq!(quoted.language, "text");
    let begin = quoted
        .text
        .strip_suffix("...\n")
        .expect("the rest is left out");
    if std::env::var_os(UPDATE).is_some() {
        let lines = begin.lines().count();
        let now: String = printed
            .lines()
            .take(lines)
            .map(|line| format!("{line}\n"))
            .collect();
        fs::write(&path, read(&path).replace(begin, &now)).expect("it can be written");
        return;
    }
    assert!(
        printed.starts_with(begin),
        "{document} quotes\n{begin}\nand what is printed is\n{printed}"
    );
}

#[test]
fn readme_shows_the_picture_that_its_command_draws() {
    let (blocks, _) = parts(&read(&root().join("README.md")));
    let command = blocks[0].text.trim_end();
    let workshop = Workshop::new();
    workshop.line("README.md", command);
    let drawn = read(&workshop.0.path().join("step.svg"));
    let picture = root().join("docs/figures/step.svg");
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&picture, drawn).expect("the picture can be written");
        return;
    }
    assert!(
        drawn == read(&picture),
        "`{command}` draws another picture than {}; {UPDATE}=1 makes it anew",
        picture.display()
    );
}

#[test]
fn documents_are_short_and_quote_no_commits() {
    for (document, most) in [("README.md", 900), ("ARCHITECTURE.md", 2500)] {
        let words = read(&root().join(document)).split_whitespace().count();
        assert!(words <= most, "{document} has {words} words, of {most}");
    }
    let is_commit = |word: &&str| {
        let has = |digit: fn(&char) -> bool| word.chars().any(|c| digit(&c));
        [7, 40].contains(&word.len())
            && word.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
            && has(char::is_ascii_digit)
            && has(char::is_ascii_alphabetic)
    };
    for path in documents() {
        let text = read(&path);
        let mut words = text.split(|c: char| !c.is_alphanumeric());
        assert_eq!(words.find(is_commit), None, "{}", path.display());
    }
}

/// The first cells of the rows below the heading, each with the whole row.
fn rows(document: &str, heading: &str) -> BTreeMap<String, String> {
    let (_, prose) = parts(document);
    let (_, section) = prose.split_once(heading).expect("the section");
    let section = section.split("\n## ").next().expect("the section");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.flat_map(|row| {
        let first = row.replace("\\|", "/");
        let first = first
            .trim_start_matches("| ")
            .split(" | ")
            .next()
            .expect("a cell")
            .to_owned();
        let names: Vec<String> = first
            .split("`")
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect();
        names.into_iter().map(move |name| (name, row.to_owned()))
    });
    cells.collect()
}

/// What `ckpt-opt ARGUMENTS --help` says, by line.
fn help(workshop: &Workshop, command: Option<&str>) -> Vec<String> {
    let arguments: Vec<&str> = command.into_iter().chain(["--help"]).collect();
    let help = workshop.run("ckpt-opt", &arguments).stdout;
    let help = String::from_utf8(help).expect("text");
    help.lines().map(str::to_owned).collect()
}

/// The options of every command; rewriting is one, with another name than on the command line.
fn options() -> BTreeMap<String, BTreeSet<String>> {
    let workshop = Workshop::new();
    let main = help(&workshop, None);
    let listed = main.iter().skip_while(|line| *line != "Commands:").skip(1);
    let name = |line: &String| {
        let name = line.strip_prefix("  ")?;
        let name = name.split(' ').next()?;
        (!name.is_empty() && name != "help").then(|| name.to_owned())
    };
    let mut commands: Vec<String> = listed
        .take_while(|line| !line.is_empty())
        .filter_map(name)
        .collect();
    assert!(commands.len() >= 7, "{commands:?}");
    commands.push("rewrite".to_owned());
    let mut options: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for command in commands {
        let help = help(
            &workshop,
            Some(command.as_str()).filter(|c| *c != "rewrite"),
        );
        for line in help {
            // In front of it may stand one letter: "  -b, --budget <SIZE>".
            let is_option = line.starts_with("      --") || line.starts_with("  -");
            if let Some(name) = long_name(&line).filter(|_| is_option) {
                options.entry(name).or_default().insert(command.clone());
            }
        }
    }
    options
}

/// The first name with two dashes in a text.
fn long_name(text: &str) -> Option<String> {
    let words = text.split([' ', '`', ',']);
    let is_name = |word: &&str| word.len() > 2 && word.starts_with("--");
    let mut names = words.filter(|word| is_name(word) && !["--help", "--version"].contains(word));
    names.next().map(str::to_owned)
}

#[test]
fn the_reference_has_every_option_of_every_command() {
    let options = options();
    // What plans, inspects or measures a graph says what a step takes.
    let all = options["--reserve"].clone();
    let reference = read(&root().join("docs/reference.md"));
    let said: BTreeMap<String, BTreeSet<String>> = rows(&reference, "\n## Options\n")
        .iter()
        .filter_map(|(cell, row)| {
            // Beside it may stand one letter.
            let name = long_name(cell)?;
            let row = row.replace("\\|", "/");
            let listed = row.split(" | ").nth(1).expect("a cell");
            let commands = match listed {
                "all" => all.clone(),
                "all, lower" => all.iter().cloned().chain(["lower".to_owned()]).collect(),
                some => some.split(", ").map(str::to_owned).collect(),
            };
            Some((name, commands))
        })
        .collect();
    assert_eq!(said, options);
}

#[test]
fn the_reference_has_every_key() {
    let workshop = Workshop::new();
    let command = "ckpt-opt testdata/onnx/conv_bn_relu_train.onnx out.onnx --budget fixed+95% --json \
                   --report report.json --device a100 --runtime-settings lean";
    let output = workshop.run("sh", &["-c", command]);
    let keys = |text: &[u8]| -> BTreeSet<String> {
        let value: Value = serde_json::from_slice(text).expect("an object");
        value
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect()
    };
    let printed = keys(&output.stdout);
    let report = keys(&fs::read(workshop.0.path().join("report.json")).expect("a report"));
    let reference = read(&root().join("docs/reference.md"));
    let (json, rest) = reference
        .split_once("`--report FILE` writes the same")
        .expect("both tables");
    let json: BTreeSet<String> = rows(json, "\n## JSON\n").into_keys().collect();
    assert_eq!(json, printed);
    let only: BTreeSet<String> = report.difference(&printed).cloned().collect();
    let besides: BTreeSet<String> = rows(rest, "").into_keys().collect();
    assert_eq!(besides, only);

    let model = fs::read(workshop.0.path().join("out.onnx")).expect("a model");
    let metadata = rows(&reference, "\n## Metadata\n");
    assert!(!metadata.is_empty());
    for key in metadata.into_keys() {
        let is_there = model.windows(key.len()).any(|at| at == key.as_bytes());
        assert!(is_there, "{key}");
    }
}

/// The table below the heading, written anew where [`UPDATE`] says so.
#[test]
fn the_reference_has_every_code_of_an_error() {
    let path = root().join("docs/reference.md");
    let reference = read(&path);
    let head = "| code | exits with | means | what to do |\n|---|---|---|---|\n";
    let (before, rest) = reference.split_once(head).expect("the table of codes");
    let (said, after) = rest.split_once("\n\n").unwrap_or(("", rest));
    let row = |code: &Code| {
        let Code {
            name,
            meaning,
            remedy,
            exit_status,
        } = code;
        format!("| `{name}` | {exit_status} | {meaning} | {remedy} |")
    };
    let rows: Vec<String> = Code::ALL.iter().map(row).collect();
    let rows = rows.join("\n");
    if env::var_os(UPDATE).is_some() {
        let written = format!("{before}{head}{rows}\n\n{}", after.trim_start());
        fs::write(&path, written).expect("a file");
    } else {
        assert_eq!(said, rows, "{UPDATE}=1 writes the table anew");
    }
}
