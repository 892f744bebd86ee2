//! The command line keeps its contract: what it prints, where, and its exit status.
//!
//! `testdata/onnx/conv_bn_relu_train.onnx` is made from `testdata/text` by
//! `tools/fixtures/text_to_onnx.py`.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ckpt_passes::strategy::Strategy;
use insta::assert_snapshot;
use serde_json::Value;
use tempfile::TempDir;

const SETTINGS: &str = "--runtime-settings";

/// What every rewriting run says: a small graph that fits after one recomputation.
const SMALL: [&str; 4] = ["in.onnx", "out.onnx", "--budget", "fixed+95%"];

/// A folder with a small training graph, `in.onnx`, in which commands run.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().expect("a temporary folder"));
        folder.add("testdata/onnx/conv_bn_relu_train.onnx", "in.onnx");
        folder
    }

    /// Copies a file of the project.
    fn add(&self, file: &str, name: &str) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        fs::copy(&from, self.path(name)).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    fn write(&self, name: &str, contents: &str) {
        fs::write(self.path(name), contents).expect("the folder can be written to");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// In lean settings unless the arguments say otherwise: in the default ones, weights' shapes make
    /// most of what graphs as small as these need.
    fn command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut arguments: Vec<&str> = arguments.into_iter().collect();
        let rewrites = arguments.contains(&"--budget") && arguments.len() > 3;
        let measures = rewrites
            || ["inspect", "verify", "compare", "sweep"]
                .iter()
                .any(|c| arguments.contains(c));
        if measures && !arguments.contains(&SETTINGS) {
            arguments.extend([SETTINGS, "lean"]);
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt-opt"));
        command.args(arguments).current_dir(self.0.path());
        command
    }

    fn output<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Output {
        self.command(arguments).output().expect("ckpt-opt starts")
    }

    /// Runs a command, and shows all that can be seen of it.
    fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> String {
        shown(&self.output(arguments))
    }

    /// The names of its files.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).expect("the folder can be read");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<String> = entries
            .map(|entry| name(entry).to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

fn shown(output: &Output) -> String {
    let status = output.status.code().expect("it ends by itself");
    let mut text = format!("exit status {status}\n");
    for (name, stream) in [("output", &output.stdout), ("errors", &output.stderr)] {
        if !stream.is_empty() {
            text += &format!(
                "--- {name}\n{}",
                without_times(&String::from_utf8_lossy(stream))
            );
        }
    }
    text
}

/// Times differ from run to run.
fn without_times(text: &str) -> String {
    let time = |line: &str| match line.starts_with("planned in") {
        true => "planned in              TIME\n".to_owned(),
        false => format!("{line}\n"),
    };
    text.lines().map(time).collect()
}

fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", shown(output));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn the_result_compares_before_and_after() {
    let folder = Folder::new();
    assert_snapshot!(folder.run(SMALL), @r"
    exit status 0
    --- output
    wrote out.onnx

                                  before       after
    peak of a step               188 KiB     161 KiB  85.4 %
      owned by the caller       18.9 KiB    18.9 KiB
      the rest                   169 KiB     142 KiB  83.8 %
      without copies                         188 KiB  in the same order
    time of a step                208 us      219 us  +5.10 %, estimated for cpu
    nodes                             33          35
      recomputed                                   1
      barriers                                     1

    budget                  180 KiB (fixed+95%)
    smallest peak found     161 KiB at a quick look; --budget min searches fully
    lower bound             no plan that keeps the order adds less than 0.64 %
    session options         enable_mem_reuse and enable_mem_pattern off, no arena
    planned in              TIME

    before (DEFAULT, ORT_ENABLE_ALL): peak 188 KiB at step 4 (node conv2)
        64.0 KiB  workspace of conv2
        32.0 KiB  c1
        32.0 KiB  n1
        16.0 KiB  p1_mask
        8.00 KiB  p1
        8.06 KiB  in 3 more

    after (PRIORITY_BASED, ORT_DISABLE_ALL): peak 161 KiB at step 25 (node conv1/recompute_1)
        64.0 KiB  workspace of conv1/recompute_1
        32.0 KiB  n1_grad
        32.0 KiB  c1/recompute_1
        2.25 KiB  w2_grad
           160 B  fc_grad
           132 B  in 5 more
    --- errors
    reading in.onnx
    planning 33 nodes for a budget of fixed+95%
    writing out.onnx
    ");
    assert_eq!(folder.files(), ["in.onnx", "out.onnx"]);
}

#[test]
fn json_has_the_promised_keys() {
    let folder = Folder::new();
    let mut figures = json(&folder.output(SMALL.into_iter().chain(["--json"])));
    for seconds in ["search_seconds", "total_seconds"] {
        let took = figures[seconds].take().as_f64();
        assert!(took.is_some_and(|took| took > 0.0), "{seconds}: {took:?}");
    }
    assert_snapshot!(serde_json::to_string_pretty(&figures).unwrap(), @r#"
    {
      "budget_bytes": 184172,
      "fixed_bytes": 19369,
      "peak_before_bytes": 192846,
      "peak_after_bytes": 164758,
      "peaks_before": [
        {
          "order": "DEFAULT",
          "level": "ORT_DISABLE_ALL",
          "bytes": 192902,
          "within_budget": false
        },
        {
          "order": "DEFAULT",
          "level": "ORT_ENABLE_ALL",
          "bytes": 192846,
          "within_budget": false
        },
        {
          "order": "PRIORITY_BASED",
          "level": "ORT_DISABLE_ALL",
          "bytes": 192902,
          "within_budget": false
        },
        {
          "order": "PRIORITY_BASED",
          "level": "ORT_ENABLE_ALL",
          "bytes": 192846,
          "within_budget": false
        }
      ],
      "peaks_after": [
        {
          "order": "DEFAULT",
          "level": "ORT_DISABLE_ALL",
          "bytes": 162234,
          "within_budget": true
        },
        {
          "order": "DEFAULT",
          "level": "ORT_ENABLE_ALL",
          "bytes": 162178,
          "within_budget": true
        },
        {
          "order": "PRIORITY_BASED",
          "level": "ORT_DISABLE_ALL",
          "bytes": 164758,
          "within_budget": true
        },
        {
          "order": "PRIORITY_BASED",
          "level": "ORT_ENABLE_ALL",
          "bytes": 164702,
          "within_budget": true
        }
      ],
      "smallest_peak_bytes": 164758,
      "reordered_peak_bytes": 192354,
      "reserved_before_bytes": 1100713,
      "reserved_after_bytes": 1100713,
      "reserved_before_as_requested_bytes": 230569,
      "reserved_after_as_requested_bytes": 255913,
      "overhead": 0.05098989705070673,
      "recomputation_overhead": 0.03179189364306112,
      "lower_bound_overhead": 0.006412133138153632,
      "overhead_in_every_session": null,
      "recomputed_nodes": 1,
      "evaluations": 1749631,
      "barriers": 1,
      "variants": 0,
      "nodes_before": 33,
      "nodes_after": 35,
      "strategy": "auto",
      "stop_reason": "evaluations",
      "search_seconds": null,
      "total_seconds": null,
      "runtime": "training-1.19.2",
      "runtime_settings": "lean",
      "threads": 2,
      "before_order": "DEFAULT",
      "before_level": "ORT_ENABLE_ALL",
      "order": "any",
      "level": "any",
      "device": "cpu"
    }
    "#);
}

#[test]
fn what_session_a_budget_is_for_is_written_and_told() {
    let folder = Folder::new();
    let one_session = ["--order", "priority", "--level", "all", "--json", "--quiet"];
    let output = folder.output(
        SMALL
            .into_iter()
            .chain(one_session)
            .chain(["--session-options", "session.json"]),
    );
    assert!(output.status.success(), "{}", shown(&output));
    let told: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(
        (&told["order"], &told["level"]),
        (&"priority".into(), &"all".into())
    );
    // The graph that runs is another, and has a bound of its own.
    let [added, bound] = ["overhead", "lower_bound_overhead"].map(|key| told[key].as_f64());
    assert!(bound > Some(0.0) && bound <= added, "{bound:?}, {added:?}");
    // What stands first is that session's.
    let of_session = |ways: &Value| {
        let mut ways = ways.as_array().expect("a list").iter();
        let way =
            ways.find(|way| way["order"] == "PRIORITY_BASED" && way["level"] == "ORT_ENABLE_ALL");
        way.expect("that session")["bytes"].clone()
    };
    assert_eq!(told["peak_before_bytes"], of_session(&told["peaks_before"]));
    assert_eq!(told["peak_after_bytes"], of_session(&told["peaks_after"]));
    let session = fs::read(folder.path("session.json")).expect("it is written");
    let session: Value = serde_json::from_slice(&session).expect("JSON");
    let options = &session["session_options"];
    assert_eq!(options["execution_order"], "PRIORITY_BASED");
    assert_eq!(options["graph_optimization_level"], "ORT_ENABLE_ALL");
}

#[test]
fn verify_holds_a_file_against_the_budget_that_it_names() {
    let folder = Folder::new();
    assert!(folder.output(SMALL).status.success());
    let verify = || folder.output(["verify", "in.onnx", "out.onnx"]);
    assert!(verify().status.success(), "{}", shown(&verify()));
    // The first digit of the budget, behind the key and the value's tag and length.
    let mut file = fs::read(folder.path("out.onnx")).expect("it is written");
    let key = b"ckpt-opt.budget_bytes";
    let at = file.windows(key.len()).position(|part| part == key);
    file[at.expect("the key") + key.len() + 2] = b'0';
    fs::write(folder.path("out.onnx"), file).expect("it can be written");
    let refused = verify();
    assert_eq!(refused.status.code(), Some(1), "{}", shown(&refused));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("error[different]"), "{said}");
}

#[test]
fn a_file_says_how_many_threads_it_was_planned_for_where_its_release_takes_by_them() {
    let folder = Folder::new();
    let run = |arguments: &[&str]| {
        let output = folder.output(arguments.iter().copied());
        assert!(output.status.success(), "{}", shown(&output));
        output
    };
    run(&["lower", "in.onnx", "lowered.onnx"]);
    let plan = |release: &'static str| {
        let files = [
            "lowered.onnx",
            "out.onnx",
            "--budget",
            "fixed+95%",
            "--quiet",
        ];
        let told = ["--runtime", release, "--threads", "4"];
        let asked = ["--session-options", "session.json"];
        run(&[&files[..], &told, &asked].concat());
        let text = fs::read(folder.path("session.json")).expect("it is written");
        let session: Value = serde_json::from_slice(&text).expect("JSON");
        session["session_options"]["intra_op_num_threads"].clone()
    };
    assert_eq!(plan("stock"), Value::Null);
    assert_eq!(plan("stock-1.26"), 4);
    let verified = |more: &[&'static str]| {
        let output = run(&[&["verify", "lowered.onnx", "out.onnx"], more].concat());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(verified(&[]).contains("stays within its budget"));
    assert!(verified(&["--threads", "3"]).contains("stays within its budget"));
    assert!(verified(&["--threads", "5"]).contains("was not looked at"));
}

#[test]
fn quiet_runs_print_only_the_result() {
    let folder = Folder::new();
    let output = folder.output(SMALL.into_iter().chain(["--json", "--quiet"]));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let lines = String::from_utf8_lossy(&output.stdout).lines().count();
    assert_eq!(lines, 1);
}

#[test]
fn same_input_and_options_give_the_same_bytes() {
    let folder = Folder::new();
    let written = |name: &str| {
        json(&folder.output(["in.onnx", name, "--budget", "min", "--seed", "7", "--json"]));
        fs::read(folder.path(name)).unwrap()
    };
    assert!(written("first.onnx") == written("second.onnx"));
}

#[test]
fn a_time_limit_ends_the_search_early_with_a_valid_result() {
    let folder = Folder::new();
    folder.add("testdata/models/cross_modal.onnx", "model.onnx");
    let rewritten = |more: &[&'static str]| {
        let arguments = ["model.onnx", "out.onnx", "--dim", "batch=2", "--json"];
        let budget = ["--budget", "fixed+65%"];
        json(
            &folder.output(
                arguments
                    .into_iter()
                    .chain(budget)
                    .chain(more.iter().copied()),
            ),
        )
    };
    let whole = rewritten(&[]);
    let early = rewritten(&["--time-limit", "0.001"]);
    assert_eq!(whole["stop_reason"], "evaluations");
    assert_eq!(early["stop_reason"], "time_limit");
    let number = |result: &Value, key: &str| result[key].as_f64().unwrap();
    assert!(number(&early, "peak_after_bytes") <= number(&early, "budget_bytes"));
    assert!(number(&early, "overhead") >= number(&whole, "overhead"));
    let verified = folder.output(["verify", "model.onnx", "out.onnx", "--dim", "batch=2"]);
    assert_eq!(verified.status.code(), Some(0), "{}", shown(&verified));
}

#[test]
fn a_time_limit_that_is_not_reached_changes_nothing() {
    let folder = Folder::new();
    let unlimited = json(&folder.output(SMALL.into_iter().chain(["--json"])));
    let bytes = fs::read(folder.path("out.onnx")).unwrap();
    let limit = ["--json", "--time-limit", "100000"];
    let limited = json(&folder.output(SMALL.into_iter().chain(limit)));
    assert_eq!(limited["stop_reason"], unlimited["stop_reason"]);
    assert!(fs::read(folder.path("out.onnx")).unwrap() == bytes);
}

#[test]
fn dry_runs_write_nothing_and_need_no_output() {
    let folder = Folder::new();
    let dry = folder.output(["in.onnx", "--budget", "fixed+90%", "--dry-run", "--json"]);
    let wet = folder.output(SMALL.into_iter().chain(["--json", "--dry-run"]));
    assert_eq!(folder.files(), ["in.onnx"]);
    assert_eq!(
        json(&dry)["peak_after_bytes"],
        json(&wet)["peak_after_bytes"]
    );
}

#[test]
fn short_names_pipes_and_a_line_for_make_do_what_the_long_forms_do() {
    let folder = Folder::new();
    let long = folder.output(SMALL);
    assert!(long.status.success(), "{long:?}");
    let short = [
        "in.onnx",
        "-o",
        "short.onnx",
        "-b",
        "fixed+95%",
        "-q",
        SETTINGS,
        "lean",
        "--depfile",
        "short.d",
    ];
    let output = folder.output(short);
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let read = |name: &str| fs::read(folder.path(name)).unwrap();
    assert!(read("out.onnx") == read("short.onnx"));
    assert_eq!(read("short.d"), b"short.onnx: in.onnx\n");
    // From standard input to standard output.
    let mut piped = folder.command(["-", "-", "--budget", "fixed+95%"]);
    let piped = piped
        .stdin(fs::File::open(folder.path("in.onnx")).unwrap())
        .output()
        .unwrap();
    assert!(piped.status.success(), "{piped:?}");
    assert!(piped.stdout == read("out.onnx"));
    let empty = folder
        .command(["inspect", "-"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_snapshot!(shown(&empty), @r"
    exit status 1
    --- errors
    error[not-onnx]: model in memory: expected an ONNX model, but this is an empty file
    help: export the model or copy the file again
    ");
}

#[test]
fn shells_and_man_are_told_of_every_command() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = String::from_utf8(folder.output(["completions", shell]).stdout).unwrap();
        for name in ["inspect", "largest", "budget"] {
            assert!(script.contains(name), "{shell}: {name}");
        }
    }
    let page = String::from_utf8(folder.output(["man"]).stdout).unwrap();
    assert!(
        page.contains(".TH ckpt-opt 1") && page.contains("\\-\\-budget"),
        "{page}"
    );
}

#[test]
fn a_report_for_a_browser_needs_nothing_else() {
    let folder = Folder::new();
    let output = folder.output(SMALL.into_iter().chain(["--report", "report.html"]));
    assert!(output.status.success(), "{output:?}");
    let page = fs::read_to_string(folder.path("report.html")).unwrap();
    for part in [
        "in.onnx",
        "conv1/recompute_1",
        "enable_mem_reuse",
        "<svg",
        "fixed+95%",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("{{"), "something was not filled in");
    // What is there at each moment; the largest tensor first.
    let data = page.split_once("id=\"data\">").unwrap().1;
    let data: Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    assert_eq!(data["before"]["total"], 31);
    assert_snapshot!(data["after"]["buffers"][0], @r#"["c1",32768,0,1,"activations"]"#);
    // Nothing is fetched. (Names of formats are not.)
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for foreign in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
}

#[test]
fn a_trace_has_every_node_and_the_memory_there() {
    let folder = Folder::new();
    let output = folder.output(SMALL.into_iter().chain(["--json", "--trace", "trace.json"]));
    let trace: Value =
        serde_json::from_slice(&fs::read(folder.path("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let after = |phase: &str| -> Vec<&Value> {
        let wanted = |event: &&Value| event["ph"] == phase && event["pid"] == 2;
        events.iter().filter(wanted).collect()
    };
    let figures = json(&output);
    assert_eq!(
        after("X").len() as u64,
        figures["nodes_after"].as_u64().unwrap()
    );
    let needs = after("C")
        .into_iter()
        .map(|event| event["args"]["bytes"].as_u64().unwrap());
    assert_eq!(needs.max(), figures["peak_after_bytes"].as_u64());
    let copies: Vec<&str> = after("X")
        .iter()
        .filter(|event| event["cat"] == "copy")
        .map(|event| event["name"].as_str().unwrap())
        .collect();
    assert_eq!(copies, ["conv1/recompute_1"]);
    let ends = after("X").windows(2).all(|pair| {
        let [begin, took] = ["ts", "dur"].map(|key| pair[0][key].as_f64().unwrap());
        (begin + took - pair[1]["ts"].as_f64().unwrap()).abs() < 1e-6
    });
    assert!(ends, "nodes follow each other");
}

#[test]
fn reports_add_what_was_recomputed_and_what_holds_the_peak() {
    let folder = Folder::new();
    folder.write("report.json", "an older report");
    let output = folder.output(
        SMALL
            .into_iter()
            .chain(["--json", "--report", "report.json"]),
    );
    let report: Value =
        serde_json::from_slice(&fs::read(folder.path("report.json")).unwrap()).unwrap();
    for (key, value) in json(&output).as_object().unwrap() {
        assert_eq!(&report[key], value, "{key}");
    }
    assert_snapshot!(report["recomputed"], @r#"["conv1/recompute_1"]"#);
    assert_snapshot!(report["before"], @r#"{"step":4,"node":"conv2","holders":[{"name":"workspace of conv2","bytes":65536},{"name":"c1","bytes":32768},{"name":"n1","bytes":32768},{"name":"p1_mask","bytes":16384},{"name":"p1","bytes":8192},{"name":"c2","bytes":8192},{"name":"mean1_saved","bytes":32},{"name":"inv1_saved","bytes":32}],"kinds":{"activations":98368,"workspace of the node":65536},"layers":[{"name":"bn1","bytes":32832,"tensors":3},{"name":"conv1","bytes":32768,"tensors":1},{"name":"pool","bytes":24576,"tensors":2},{"name":"conv2","bytes":8192,"tensors":1}]}"#);
    assert_snapshot!(report["after"], @r#"{"step":25,"node":"conv1/recompute_1","holders":[{"name":"workspace of conv1/recompute_1","bytes":65536},{"name":"n1_grad","bytes":32768},{"name":"c1/recompute_1","bytes":32768},{"name":"w2_grad","bytes":2304},{"name":"fc_grad","bytes":160},{"name":"mean1_saved","bytes":32},{"name":"inv1_saved","bytes":32},{"name":"scale2_grad","bytes":32},{"name":"shift2_grad","bytes":32},{"name":"loss","bytes":4}],"kinds":{"activations":64,"activations computed again":32768,"gradients":35296,"results for the caller":4,"workspace of the node":65536},"layers":[{"name":"conv1","bytes":32768,"tensors":1},{"name":"relu1_grad","bytes":32768,"tensors":1},{"name":"conv2_grad","bytes":2304,"tensors":1},{"name":"fc_w_grad","bytes":160,"tensors":1},{"name":"bn1","bytes":64,"tensors":2},{"name":"bn2_grad","bytes":64,"tensors":2},{"name":"loss","bytes":4,"tensors":1}]}"#);
}

#[cfg(unix)]
#[test]
fn reports_go_to_pipes_too() {
    let folder = Folder::new();
    let arguments = ["--dry-run", "--report", "/dev/stdout", "--json", "--quiet"];
    let output = folder.output(SMALL.into_iter().chain(arguments));
    let text = String::from_utf8(output.stdout).unwrap();
    let objects: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(objects.len(), 2, "{text}");
}

#[test]
fn without_its_report_no_file_is_written() {
    let folder = Folder::new();
    for option in ["--report", "--session-options", "--plot"] {
        let output = folder.output(SMALL.into_iter().chain([option, "/dev/full"]));
        assert_eq!(output.status.code(), Some(1), "{option}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains("/dev/full: cannot write the report"),
            "{said}"
        );
        assert_eq!(folder.files(), ["in.onnx"]);
    }
}

#[test]
fn the_session_that_the_budget_holds_for_is_in_a_file_and_in_the_model() {
    let folder = Folder::new();
    let arguments = ["--json", "--session-options", "session.json"];
    let result = json(&folder.output(SMALL.into_iter().chain(arguments)));
    let session: Value =
        serde_json::from_slice(&fs::read(folder.path("session.json")).unwrap()).unwrap();
    assert_snapshot!(session["session_options"], @r#"{"enable_mem_reuse":false,"enable_mem_pattern":false,"enable_cpu_mem_arena":false}"#);
    assert_eq!(session["peak_bytes"], result["peak_after_bytes"]);
    assert_eq!(session["budget_bytes"], result["budget_bytes"]);
    let model = fs::read(folder.path("out.onnx")).unwrap();
    let contains = |text: &str| model.windows(text.len()).any(|at| at == text.as_bytes());
    assert!(contains("ckpt-opt.session_options"));
    assert!(contains(&result["peak_after_bytes"].to_string()));
}

#[test]
fn memory_over_one_step_is_drawn_before_and_after() {
    let folder = Folder::new();
    let arguments = ["--dry-run", "--plot", "step.svg"];
    folder.output(SMALL.into_iter().chain(arguments));
    let plot = fs::read_to_string(folder.path("step.svg")).expect("a plot");
    for name in ["before, peak ", "after, peak ", "budget, "] {
        assert!(plot.contains(name), "{plot}");
    }
    let arguments = ["--dry-run", "--plot", "step.PNG"];
    folder.output(SMALL.into_iter().chain(arguments));
    let picture = fs::read(folder.path("step.PNG")).expect("a picture");
    assert_eq!(picture, ckpt_opt::report::png::png(&plot).expect("a PNG"));
    let output = folder.output(SMALL.into_iter().chain(["--plot", "step.jpg"]));
    assert_eq!(output.status.code(), Some(2));
    let said = shown(&output);
    assert!(
        said.contains("--plot step.jpg ends with .jpg; expected .svg or .png"),
        "{said}"
    );
    assert_eq!(folder.files(), ["in.onnx", "step.PNG", "step.svg"]);
}

#[test]
fn reports_do_not_replace_the_model() {
    let folder = Folder::new();
    for name in ["in.onnx", "./out.onnx"] {
        let output = folder.output(SMALL.into_iter().chain(["--report", name]));
        assert_eq!(output.status.code(), Some(1), "{name}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains("--report and ") && said.contains(" name one file"),
            "{said}"
        );
    }
    assert_eq!(folder.files(), ["in.onnx"]);
}

#[test]
fn reports_and_plots_do_not_replace_what_is_read() {
    let folder = Folder::new();
    let costs = r#"{"nodes": {}}"#;
    fs::write(folder.path("costs.json"), costs).unwrap();
    for option in ["--report", "--session-options", "--plot"] {
        let arguments = ["--costs", "costs.json", option, "costs.json"];
        let output = folder.output(SMALL.into_iter().chain(arguments));
        assert_eq!(output.status.code(), Some(1), "{option}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = format!("{option} and --costs name one file");
        assert!(said.contains(&expected), "{said}");
    }
    let model = fs::read(folder.path("in.onnx")).unwrap();
    for command in ["sweep", "compare"] {
        let arguments = [command, "in.onnx", "--dim", "batch=8", "--plot", "in.onnx"];
        let output = folder.output(arguments);
        assert_eq!(output.status.code(), Some(1), "{command}");
    }
    assert_eq!(
        fs::read_to_string(folder.path("costs.json")).unwrap(),
        costs
    );
    assert_eq!(fs::read(folder.path("in.onnx")).unwrap(), model);
    assert_eq!(folder.files(), ["costs.json", "in.onnx"]);
}

#[test]
fn reports_do_not_replace_each_other() {
    let folder = Folder::new();
    for (one, other) in [
        ("--report", "--session-options"),
        ("--report", "--plot"),
        ("--session-options", "--plot"),
    ] {
        let both = [one, "r.json", other, "./r.json"];
        let output = folder.output(SMALL.into_iter().chain(both));
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = format!("{one} and {other} name one file");
        assert!(said.contains(&expected), "{said}");
    }
    assert_eq!(folder.files(), ["in.onnx"]);
}

#[test]
fn what_was_rewritten_can_be_rewritten_again() {
    let folder = Folder::new();
    folder.add("testdata/models/triplet.onnx", "in.onnx");
    let rewrite = |from, to, budget| {
        let arguments = [from, to, "--dim", "batch=4", "--budget", budget, "--json"];
        let result = json(&folder.output(arguments));
        let count = |key: &str| result[key].as_u64().unwrap();
        (count("recomputed_nodes"), count("barriers"))
    };
    let (mirrors, barriers) = rewrite("in.onnx", "out.onnx", "fixed+60%");
    assert!(mirrors > 0 && barriers > 0);
    let (mirrors, barriers) = rewrite("out.onnx", "again.onnx", "fixed+80%");
    assert!(mirrors > 0 && barriers > 0);
}

#[test]
fn reserved_memory_counts_as_owned_by_the_caller() {
    let folder = Folder::new();
    let figures = |reserve| {
        let arguments = [
            "in.onnx",
            "--dry-run",
            "--json",
            "--budget",
            "fixed+90%",
            "--reserve",
        ];
        json(&folder.output(arguments.into_iter().chain([reserve])))
    };
    let (without, with) = (figures("0"), figures("1MB"));
    let bytes = |figures: &Value, key: &str| figures[key].as_u64().unwrap();
    for key in [
        "budget_bytes",
        "fixed_bytes",
        "peak_before_bytes",
        "peak_after_bytes",
    ] {
        assert_eq!(bytes(&with, key), bytes(&without, key) + 1_000_000, "{key}");
    }
}

#[test]
fn a_reserve_beyond_all_memory_is_refused_by_name() {
    let folder = Folder::new();
    for reserve in ["18446744073709551615", "1152921504606846976"] {
        let reserved = ["--reserve", reserve];
        let runs: [&[&str]; 5] = [
            &["in.onnx", "out.onnx", "--budget", "min"],
            &["in.onnx", "out.onnx", "--budget", "18446744073709551615"],
            &["inspect", "in.onnx"],
            &["verify", "in.onnx", "in.onnx"],
            &["sweep", "in.onnx"],
        ];
        for arguments in runs {
            let output = folder.output(arguments.iter().copied().chain(reserved));
            let said = String::from_utf8_lossy(&output.stderr);
            let expected = format!("in.onnx: --reserve {reserve} and the rest of what a step has");
            assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
            assert!(said.contains(&expected), "{arguments:?}: {said}");
            assert!(said.contains("expected less than 1.00 EiB"), "{said}");
        }
        assert_eq!(folder.files(), ["in.onnx"]);
    }
    // As much as can be.
    let largest = ["inspect", "in.onnx", "--reserve", "1152921504600000000"];
    assert!(folder.output(largest).status.success());
}

#[test]
fn what_fails_is_told_as_json_as_well() {
    let folder = Folder::new();
    let told = |arguments: &[&str]| {
        let output = folder.output(arguments.iter().copied().chain(["--json"]));
        assert_ne!(output.status.code(), Some(0));
        serde_json::from_slice::<Value>(&output.stdout).ok()
    };
    let refused = ["in.onnx", "out.onnx", "--budget", "100KiB"];
    let refused = told(&refused).expect("an object");
    assert_eq!(refused["error"], "no-plan-fits");
    assert_eq!(refused["budget_bytes"], 100 << 10);
    assert_eq!(refused["smallest_peak_bytes"], 148_075);
    let missing = told(&["inspect", "missing.onnx"]).expect("an object");
    assert_eq!(missing["error"], "unreadable");
    assert!(missing.get("budget_bytes").is_none(), "{missing}");
    // Where the model would be there is nothing else.
    assert_eq!(told(&["in.onnx", "-", "--budget", "100KiB"]), None);
}

#[test]
fn a_budget_that_nothing_fits_is_explained() {
    let folder = Folder::new();
    folder.write("out.onnx", "an older file");
    assert_snapshot!(folder.run(["in.onnx", "out.onnx", "--budget", "100KiB"]), @"
    exit status 3
    --- errors
    reading in.onnx
    planning 33 nodes for a budget of 100KiB
    error[no-plan-fits]: in.onnx: no plan fits the budget of 100 KiB: the smallest peak found is 145 KiB
    of that, the caller and the runtime itself own 40.3 KiB; the rest is held at step 27 of 148 (node conv1/recompute_1)
           200 B  activations
        8.14 KiB  gradients
        32.0 KiB  activations computed again
             5 B  results for the caller
        64.0 KiB  workspace of the node
    by layer, with the number of tensors
        32.0 KiB  conv1 (1)
        8.00 KiB  conv2_grad (1)
           128 B  gap (1)
            80 B  loss_grad (1)
            64 B  bn2_grad (2)
            77 B  5 more
    no plan can need less than 115 KiB: the caller owns a part of it, and node conv1 takes the rest with what it reads and writes
    so the search was short, and smaller peaks may exist; --budget min searches fully
    nothing was written
    help: raise the budget (--budget 148075 is enough), make the batch smaller (ckpt-opt largest finds the largest that fits), or allow variants with --allow
    ");
    assert_eq!(folder.files(), ["in.onnx", "out.onnx"]);
    assert_eq!(
        fs::read_to_string(folder.path("out.onnx")).unwrap(),
        "an older file"
    );
}

#[test]
fn a_budget_below_the_reserve_is_called_as_it_was_given() {
    let folder = Folder::new();
    let arguments = [
        "in.onnx",
        "out.onnx",
        "--budget",
        "3GiB",
        "--reserve",
        "10GiB",
    ];
    let output = folder.output(arguments);
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("no plan fits the budget of 3.00 GiB"),
        "{said}"
    );
}

#[test]
fn budgets_that_are_no_sizes_are_usage_errors() {
    let folder = Folder::new();
    let small = folder.run(["in.onnx", "out.onnx", "--budget", "0.0001%", "-q"]);
    let expected = "no plan fits the budget of less than a byte: the smallest peak found is ";
    assert!(small.contains(expected), "{small}");
    for budget in [
        "0",
        "-5GiB",
        "-1",
        "NaN",
        "8G",
        "0%",
        "-5%",
        "fixed+",
        "99999999999TiB",
        "",
    ] {
        let output = folder.output(["in.onnx", "out.onnx", "--budget", budget]);
        assert_eq!(output.status.code(), Some(2), "{budget}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains(&format!("'{budget}'")) || budget.is_empty(),
            "{said}"
        );
        assert!(
            said.contains("expected bytes (8GiB, 800MB, 1.5GB, 123456789)"),
            "{said}"
        );
    }
    assert_snapshot!(folder.run(["in.onnx", "out.onnx", "--budget", "0"]), @r"
    exit status 2
    --- errors
    error: invalid value '0' for '--budget <SIZE>': it must be more than zero; expected bytes (8GiB, 800MB, 1.5GB, 123456789), a part of the peak of the unmodified graph (60%), what the caller owns and a part of the rest (fixed+50%), or min

    For more information, try '--help'.
    ");
    assert_snapshot!(folder.run(["in.onnx", "out.onnx"]), @r"
    exit status 2
    --- errors
    error: the following required arguments were not provided:
      --budget <SIZE>

    Usage: ckpt-opt --budget <SIZE> <IN> <OUT>

    For more information, try '--help'.
    ");
    assert_snapshot!(folder.run(["in.onnx", "--budget", "8GiB"]), @r"
    exit status 2
    --- errors
    error: the following required arguments were not provided:
      <OUT>

    Usage: ckpt-opt --budget <SIZE> <IN> <OUT>

    For more information, try '--help'.
    ");
}

#[cfg(not(feature = "highs"))]
#[test]
fn certifying_without_a_solver_says_how_to_get_one() {
    let folder = Folder::new();
    assert_snapshot!(folder.run(SMALL.into_iter().chain(["--certify"])), @r"
    exit status 2
    --- errors
    reading in.onnx
    error[usage]: --certify needs a solver, which this build does not have: cargo xtask highs builds it with one
    help: ckpt-opt --help and ckpt-opt COMMAND --help list what there is
    ");
}

#[test]
fn options_that_do_not_exist_are_usage_errors() {
    let folder = Folder::new();
    let run = |option: [&'static str; 2]| folder.run(SMALL.into_iter().chain(option));
    let refused = run(["--strategy", "best"]);
    assert!(refused.starts_with("exit status 2\n"), "{refused}");
    assert!(refused.contains("[possible values: auto, "), "{refused}");
    assert_snapshot!(run([SETTINGS, "frugal"]), @r"
    exit status 2
    --- errors
    error: invalid value 'frugal' for '--runtime-settings <NAME>'
      [possible values: default, no-pattern, lean]

    For more information, try '--help'.
    ");
    assert_snapshot!(run(["--reserve", "10%"]), @r"
    exit status 2
    --- errors
    error: invalid value '10%' for '--reserve <SIZE>': expected bytes: 8GiB, 800MB, 1.5GB or 123456789

    For more information, try '--help'.
    ");
    assert_snapshot!(run(["--device", "abacus"]), @r#"
    exit status 2
    --- errors
    error[usage]: no device is called "abacus", and there is no such file; known are cpu, v100, a100, h100, h200
    help: ckpt-opt --help and ckpt-opt COMMAND --help list what there is
    "#);
    assert_snapshot!(run(["--dim", "batch"]), @r"
    exit status 2
    --- errors
    error[usage]: --dim batch: expected NAME=N with a whole number N of at least 1, for example batch=8
    help: ckpt-opt --help and ckpt-opt COMMAND --help list what there is
    ");
}

#[test]
fn options_that_contradict_each_other_are_usage_errors() {
    let folder = Folder::new();
    let variants = ["--variants", "none,all", "-q"];
    assert_snapshot!(folder.run(SMALL.into_iter().chain(variants)), @r"
    exit status 2
    --- errors
    error[usage]: --variants none goes with no other name; expected all, none, or some of the others
    help: ckpt-opt --help and ckpt-opt COMMAND --help list what there is
    ");
    let twice = [
        "compare",
        "in.onnx",
        "--variants",
        "sums",
        "--variants",
        "none",
    ];
    assert_eq!(folder.output(twice).status.code(), Some(2));
    let depfile = ["--dry-run", "--depfile", "d"];
    let refused = folder.run(SMALL.into_iter().chain(depfile));
    assert!(
        refused.contains("'--dry-run' cannot be used with '--depfile <FILE>'"),
        "{refused}"
    );
    assert_eq!(folder.files(), ["in.onnx"]);
}

#[test]
fn an_argument_too_many_is_not_called_a_command() {
    let folder = Folder::new();
    let run = |more: &[&'static str]| folder.run(SMALL.iter().chain(more).copied());
    assert_snapshot!(run(&["--dim", "batch", "8"]), @r"
    exit status 2
    --- errors
    error: unexpected argument '8' found: beside the options there are IN and OUT alone, and values have no blanks, as in --dim batch=8 --budget 60MB

    Usage: ckpt-opt [OPTIONS] --budget <SIZE> <IN> [OUT]
           ckpt-opt <COMMAND>

    For more information, try '--help'.
    ");
    let command = run(&["inspect"]);
    assert!(
        command.contains(
            "error: 'inspect' is a command, which comes first: ckpt-opt inspect --help shows how"
        ),
        "{command}"
    );
}

#[test]
fn the_largest_size_is_asked_of_a_dimension_without_one() {
    let folder = Folder::new();
    let sized = ["largest", "in.onnx", "--budget", "1MB", "--dim", "tokens=8"];
    assert_snapshot!(folder.run(sized), @r"
    exit status 2
    --- errors
    error[usage]: expected --dim NAME without a size for the dimension whose largest size is wanted, for example --dim tokens
    help: ckpt-opt --help and ckpt-opt COMMAND --help list what there is
    ");
}

#[test]
fn numbers_that_do_not_fit_an_option_say_what_does() {
    let folder = Folder::new();
    for (option, values, expected) in [
        (
            "--threads",
            ["0", "-1", "1025", "two"],
            "expected a whole number from 1 to 1024",
        ),
        (
            "--seed",
            ["-1", "1.5", "x", "18446744073709551616"],
            "expected a whole number from 0 to 18446744073709551615",
        ),
        (
            "--time-limit",
            ["0", "-1", "10s", ""],
            "expected a number of seconds above 0, such as 30 or 0.5",
        ),
    ] {
        for value in values {
            let said = folder.run(SMALL.into_iter().chain([option, value]));
            assert!(said.starts_with("exit status 2"), "{said}");
            assert!(
                said.contains(&format!("'{value}' for '{option} <")),
                "{said}"
            );
            assert!(said.contains(expected), "{said}");
        }
    }
}

#[test]
fn unbound_dimensions_are_all_listed() {
    let folder = Folder::new();
    let dims = ["--dim", "batch=2", "-q"];
    assert_snapshot!(folder.run(SMALL.into_iter().chain(dims)), @r#"
    exit status 1
    --- errors
    error[dimension]: in.onnx: there is no dimension "batch"; the graph has no symbolic dimensions
    help: all sizes are in the file: leave --dim out, or export the graph again with a name for what is to change
    "#);
    folder.add("testdata/models/cross_modal.onnx", "in.onnx");
    assert_snapshot!(folder.run(["in.onnx", "out.onnx", "--budget", "min"]), @r"
    exit status 1
    --- errors
    reading in.onnx
    error[unbound-dimension]: in.onnx: the size of 1 dimension is not given: batch
    help: add --dim batch=N
    ");
    let dims = ["--dim", "batch=2", "--dim", "bach=2"];
    assert_snapshot!(folder.run(SMALL.into_iter().chain(dims)), @r#"
    exit status 1
    --- errors
    reading in.onnx
    error[dimension]: in.onnx: there is no dimension "bach"; the graph has batch
    help: give a size that fits, of a dimension that the graph has; the message of ckpt-opt inspect IN names those that need one
    "#);
    let dims = ["--dim", "batch=2", "--dim", "batch=3"];
    assert_snapshot!(folder.run(SMALL.into_iter().chain(dims)), @r#"
    exit status 2
    --- errors
    error[usage]: --dim gives "batch" two values, 2 and 3
    help: ckpt-opt --help and ckpt-opt COMMAND --help list what there is
    "#);
}

/// Replaces what the model of the folder has of one text by another, which is as long.
fn renamed(folder: &Folder, file: &str, from: &[u8], to: &[u8]) {
    let mut model = fs::read(folder.path(file)).unwrap();
    let places = |model: &[u8]| model.windows(from.len()).position(|bytes| bytes == from);
    assert!(places(&model).is_some(), "{file}");
    while let Some(place) = places(&model) {
        model[place..place + from.len()].copy_from_slice(to);
    }
    fs::write(folder.path(file), model).unwrap();
}

#[test]
fn no_name_makes_a_line_of_its_own() {
    let folder = Folder::new();
    folder.add("testdata/models/cross_modal.onnx", "sizes.onnx");
    renamed(&folder, "sizes.onnx", b"\x12\x05batch", b"\x12\x05a\nerr");
    assert_snapshot!(folder.run(["sizes.onnx", "o.onnx", "--budget", "min", "-q"]), @r"
    exit status 1
    --- errors
    error[unbound-dimension]: sizes.onnx: the size of 1 dimension is not given: a\nerr
    help: add --dim a\nerr=N
    ");
    renamed(&folder, "in.onnx", b"\x22\x04Relu", b"\x22\x04a\n:b");
    let unknown = folder.run(["inspect", "in.onnx"]);
    assert!(unknown.contains("kept as they are: a\\n:b ("), "{unknown}");
    assert_snapshot!(folder.run(["a\nb: c", "o.onnx", "--budget", "min"]), @r"
    exit status 1
    --- errors
    reading a\nb: c
    error[unreadable]: a\nb: c: cannot open it: No such file or directory (os error 2)
    help: check that the path is right and that you may read it
    ");
}

#[test]
fn what_is_refused_is_not_warned_of_first() {
    let folder = Folder::new();
    folder.add("testdata/models/cross_modal.onnx", "model.onnx");
    folder.write("costs.json", r#"{"nodes": {"nobody": {"time_us": 1}}}"#);
    let said = |arguments: &[&str]| {
        let costs = ["--costs", "costs.json"];
        let output = folder.output(arguments.iter().copied().chain(costs));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let commands: [&[&str]; 5] = [
        &["model.onnx", "out.onnx", "--budget", "min"],
        &["sweep", "model.onnx"],
        &["inspect", "model.onnx"],
        &["verify", "model.onnx", "model.onnx"],
        &["conv-table", "model.onnx", "--device", "h100"],
    ];
    for command in commands {
        let said = said(command);
        assert!(said.contains("error[unbound-dimension]"), "{said}");
        assert!(!said.contains("warning"), "{said}");
    }
    let inspect = ["inspect", "model.onnx", "--dim", "batch=2"];
    assert!(said(&inspect).starts_with("warning: the cost table has 1 of 1 entries"));
    let mut stock = SMALL.to_vec();
    stock.extend(["--runtime", "stock"]);
    assert_snapshot!(said(&stock), @r#"
    reading in.onnx
    error[runtime]: in.onnx: BatchNormInternal "bn1" is a training operator, which ONNX Runtime 1.20 to 1.32 has not: expected a graph in standard operators only, as ckpt-opt lower writes it, or --runtime training-1.19.2
    help: name the other runtime with --runtime, or write the graph in standard operators with ckpt-opt lower
    "#);
}

#[test]
fn for_which_sizes_a_profile_is_stands_before_an_error_of_shapes() {
    let folder = Folder::new();
    folder.add("testdata/models/cross_modal.onnx", "model.onnx");
    let node = "/img/net/net.0/net.0.0/Conv";
    let profile = format!(
        r#"[{{"cat": "Node", "name": "{node}_kernel_time", "dur": 1,
              "args": {{"output_type_shape": [{{"float": [2, 32, 128, 128]}}]}}}}]"#
    );
    folder.write("profile.json", &profile);
    let arguments = ["inspect", "model.onnx", "--profile", "profile.json"];
    let said = folder.run(
        arguments
            .into_iter()
            .chain(["--dim", "batch=4", "--dim", "bach=4"]),
    );
    assert_snapshot!(said, @r#"
    exit status 1
    --- errors
    warning: the profile was made with batch=2, its times are not those of batch=4 (see "/img/net/net.0/net.0.0/Conv_output_0")
    error[dimension]: model.onnx: there is no dimension "bach"; the graph has batch
    help: give a size that fits, of a dimension that the graph has; the message of ckpt-opt inspect IN names those that need one
    "#);
}

#[test]
fn forward_graphs_are_refused_with_advice() {
    let folder = Folder::new();
    folder.add("testdata/onnx/control_flow.onnx", "in.onnx");
    assert_snapshot!(folder.run(SMALL), @r"
    exit status 1
    --- errors
    reading in.onnx
    error[not-training]: in.onnx: this is not a training graph: none of its 4 nodes computes a gradient
    help: make one with onnxruntime.training.artifacts.generate_artifacts(forward_model, requires_grad=..., loss=...), and give its training_model.onnx; a step in standard operators is taken with --runtime stock
    ");
    // Nothing in them is to be lowered.
    assert_snapshot!(folder.run(["lower", "in.onnx", "out.onnx", "-q"]), @r"
    exit status 0
    --- output
    nothing to lower, so the file is written as it is: 4 nodes, all in standard operators, as in a forward model or a graph that was lowered before
    ");
}

#[test]
fn what_is_no_model_is_named() {
    let folder = Folder::new();
    let run = |input: &str| folder.run([input, "out.onnx", "--budget", "min", "--quiet"]);
    assert_snapshot!(run("missing.onnx"), @r"
    exit status 1
    --- errors
    error[unreadable]: missing.onnx: cannot open it: No such file or directory (os error 2)
    help: check that the path is right and that you may read it
    ");
    assert_snapshot!(run("."), @r"
    exit status 1
    --- errors
    error[not-onnx]: .: expected an ONNX model, but this is a folder
    help: export the model or copy the file again
    ");
    folder.write("notes.onnx", "These are only words.\n");
    assert_snapshot!(run("notes.onnx"), @r"
    exit status 1
    --- errors
    error[not-onnx]: notes.onnx: expected an ONNX model, but this is text
    help: export the model or copy the file again
    ");
    let model = fs::read(folder.path("in.onnx")).unwrap();
    fs::write(folder.path("cut.onnx"), &model[..model.len() / 2]).unwrap();
    assert_snapshot!(run("cut.onnx"), @r"
    exit status 1
    --- errors
    error[not-onnx]: cut.onnx: damaged, or not an ONNX model: field 7 at byte 5 claims 5340 bytes where only 2680 are left: the file is truncated or damaged
    help: export the model or copy the file again
    ");
}

/// ONNX Runtime loads no attribute without a type, at any operator.
#[test]
fn what_no_runtime_loads_is_an_invalid_graph_whatever_is_done_with_it() {
    let folder = Folder::new();
    let mut model = fs::read(folder.path("in.onnx")).unwrap();
    // The field `type` of an attribute, and INTS.
    let field = [0xa0, 0x01, 7];
    let place = model.windows(3).position(|bytes| bytes == field);
    model[place.expect("an attribute") + 2] = 0;
    fs::write(folder.path("in.onnx"), model).unwrap();
    let quiet = SMALL.into_iter().chain(["-q"]);
    assert_snapshot!(folder.run(quiet), @r#"
    exit status 1
    --- errors
    error[invalid-graph]: in.onnx: ONNX Runtime does not load it: Conv "conv1": attribute "kernel_shape": it has no type, and ONNX Runtime does not load a model with such an attribute
    help: correct what the message names; onnx.checker.check_model(path, full_check=True) may tell more
    "#);
    let said = "error[invalid-graph]: in.onnx: ONNX Runtime does not load it: ";
    for arguments in [
        &["inspect", "in.onnx"][..],
        &["lower", "in.onnx", "o", "-q"],
    ] {
        let output = folder.output(arguments.iter().copied());
        assert_eq!(output.status.code(), Some(1));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.starts_with(said), "{errors}");
    }
    assert_eq!(folder.files(), ["in.onnx"]);
}

#[test]
fn data_that_is_not_beside_the_output_is_asked_for() {
    let folder = Folder::new();
    fs::create_dir(folder.path("out")).unwrap();
    folder.add("testdata/onnx/external.onnx", "in.onnx");
    folder.add("testdata/onnx/external.bin", "external.bin");
    assert_snapshot!(folder.run(["in.onnx", "out/o.onnx", "--budget", "min", "-q"]), @r"
    exit status 1
    --- errors
    error[unreadable]: out/o.onnx: the model's external data would not be found beside the output; write the output into ., or first copy ./external.bin to out/external.bin
    help: OUT reads the same data files as IN, from its own folder: copy them there first, or write OUT into the folder of IN
    ");
}

#[test]
fn the_input_is_never_overwritten() {
    let folder = Folder::new();
    let before = fs::read(folder.path("in.onnx")).unwrap();
    let mut outputs = vec!["in.onnx", "./in.onnx"];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("in.onnx", folder.path("symbolic.onnx")).unwrap();
        outputs.push("symbolic.onnx");
    }
    fs::hard_link(folder.path("in.onnx"), folder.path("hard.onnx")).unwrap();
    outputs.push("hard.onnx");
    for output in outputs {
        let run = folder.output(["in.onnx", output, "--budget", "min"]);
        assert_eq!(run.status.code(), Some(1), "{output}");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(
            said.contains("the output would replace the input"),
            "{said}"
        );
        assert!(
            !said.contains("planning"),
            "known before the search: {said}"
        );
    }
    assert!(before == fs::read(folder.path("in.onnx")).unwrap());
}

#[test]
fn places_that_cannot_be_written_to_are_known_before_the_search() {
    let folder = Folder::new();
    fs::create_dir(folder.path("folder")).unwrap();
    let run = |output: &str| folder.run(["in.onnx", output, "--budget", "min"]);
    assert_snapshot!(run("folder"), @r"
    exit status 1
    --- errors
    reading in.onnx
    error[cannot-write]: folder: cannot write there: it is a folder
    help: give it a place that exists and that you may write to
    ");
    assert_snapshot!(run("nowhere/out.onnx"), @r"
    exit status 1
    --- errors
    reading in.onnx
    error[cannot-write]: nowhere/out.onnx: cannot write there: the folder nowhere does not exist
    help: give it a place that exists and that you may write to
    ");
    let report = ["--report", "nowhere/report.json"];
    assert_snapshot!(folder.run(SMALL.into_iter().chain(report)), @r"
    exit status 1
    --- errors
    reading in.onnx
    error[cannot-write]: nowhere/report.json: cannot write there: the folder nowhere does not exist
    help: give it a place that exists and that you may write to
    ");
}

#[test]
fn cost_tables_override_the_model_node_by_node() {
    let folder = Folder::new();
    let figures = |costs: &str| {
        folder.write("costs.json", costs);
        json(&folder.output(SMALL.into_iter().chain(["--json", "--costs", "costs.json"])))
    };
    // The only node that is recomputed otherwise; again it would add a second to little more.
    let cheap = figures(r#"{"nodes": {}}"#)["overhead"].as_f64().unwrap();
    let costly = figures(r#"{"nodes": {"conv1": {"time_us": 1e6}}}"#);
    let costly = costly["overhead"].as_f64().unwrap();
    assert!(costly < 0.1 * cheap, "{costly} after, {cheap} before");
}

#[test]
fn cost_tables_that_do_not_fit_are_noticed() {
    let folder = Folder::new();
    let run = |costs: &str| {
        folder.write("costs.json", costs);
        let arguments = [
            "in.onnx",
            "out.onnx",
            "--budget",
            "1KiB",
            "--costs",
            "costs.json",
        ];
        folder.run(arguments)
    };
    assert_snapshot!(run("{\"nodes\": {\n\"conv1\": 5}}"), @r#"
    exit status 1
    --- errors
    error[option-file]: costs.json: not a cost table: invalid type: integer `5`, expected an object for a node at line 2 column 10; expected {"nodes": {"NAME": {"time_us": 12.5, "workspace_bytes": 0, "recomputable": true, "mirrors": 1}}}
    help: docs/reference.md says what the file of each option holds
    "#);
    let warned = run(r#"{"nodes": {"a": {}, "b": {}, "c": {}, "d": {}, "conv1": {}}}"#);
    let warning = warned.lines().find(|line| line.starts_with("warning"));
    assert_snapshot!(warning.unwrap_or_default(), @r#"warning: the cost table has 4 of 5 entries for nodes that the graph does not have: "a", "b", "c" and 1 more"#);
    assert_snapshot!(folder.run(SMALL.into_iter().chain(["--costs", "missing.json"])), @r"
    exit status 1
    --- errors
    error[option-file]: missing.json: cannot read the cost table: No such file or directory (os error 2)
    help: docs/reference.md says what the file of each option holds
    ");
}

#[test]
fn a_file_can_describe_the_device() {
    let folder = Folder::new();
    folder.write(
        "device.json",
        r#"{"provider": "cuda", "operations_per_second": 1e13, "bytes_per_second": 1e12,
            "launch_us": 5, "name": "my card"}"#,
    );
    let arguments = SMALL
        .into_iter()
        .chain(["--json", "--device", "device.json"]);
    assert_eq!(json(&folder.output(arguments))["device"], "my card");
}

#[test]
fn written_files_can_be_verified_again() {
    let folder = Folder::new();
    json(&folder.output(SMALL.into_iter().chain(["--json"])));
    assert_snapshot!(folder.run(["verify", "in.onnx", "out.onnx"]), @r"
    exit status 0
    --- output
    equivalent: every tensor of the first graph is computed by the same operators from the same inputs, or by a variant that is known to compute the same, or was allowed

    peak                          before       after
    DEFAULT order                188 KiB     158 KiB
    PRIORITY_BASED order         188 KiB     161 KiB

    the second stays within its budget, 180 KiB
    ");
    let otherwise = ["verify", "in.onnx", "out.onnx", "--reserve", "1KiB"];
    let said = folder.run(otherwise);
    assert!(
        said.contains("was not looked at: it was planned with other options"),
        "{said}"
    );
    folder.add("testdata/models/vgg16.onnx", "other.onnx");
    let other = ["verify", "in.onnx", "other.onnx", "--dim", "batch=1"];
    assert_eq!(folder.output(other).status.code(), Some(1));
    // Barriers only forward, so a copy has the original's value.
    assert_snapshot!(folder.run(["verify", "out.onnx", "in.onnx"]), @r"
    exit status 0
    --- output
    equivalent: every tensor of the first graph is computed by the same operators from the same inputs, or by a variant that is known to compute the same, or was allowed

    peak                          before       after
    DEFAULT order                158 KiB     188 KiB
    PRIORITY_BASED order         161 KiB     188 KiB
    ");
}

#[test]
fn a_lowered_graph_is_no_plan_of_what_was_lowered() {
    let folder = Folder::new();
    assert!(
        folder
            .output(["lower", "in.onnx", "lowered.onnx"])
            .status
            .success()
    );
    let said = folder.run(["verify", "in.onnx", "lowered.onnx"]);
    assert!(
        said.contains("error[different]: lowered.onnx is in standard operators and in.onnx is not"),
        "{said}"
    );
    assert!(
        said.contains("help: ckpt-opt lower IN LOWERED, then ckpt-opt verify LOWERED lowered.onnx"),
        "{said}"
    );
}

#[test]
fn what_is_lowered_is_the_same_for_all_sizes() {
    let folder = Folder::new();
    folder.add("testdata/models/cross_modal.onnx", "model.onnx");
    let lower = |out: &'static str, more: &[&'static str]| {
        folder.run(["lower", "model.onnx", out].iter().chain(more).copied())
    };
    let told = lower("plain.onnx", &[]);
    assert!(
        told.ends_with("--- errors\nreading model.onnx\nwriting plain.onnx\n"),
        "{told}"
    );
    let quiet = lower("sized.onnx", &["--quiet", "--dim", "batch=2"]);
    assert!(quiet.starts_with("exit status 0"), "{quiet}");
    assert!(!quiet.contains("--- errors"), "{quiet}");
    let bytes = |name| fs::read(folder.path(name)).expect("it is written");
    assert!(bytes("plain.onnx") == bytes("sized.onnx"));
    assert_snapshot!(lower("out.onnx", &["-q", "--dim", "bach=2"]), @r#"
    exit status 1
    --- errors
    error[dimension]: model.onnx: there is no dimension "bach"; the graph has batch
    help: give a size that fits, of a dimension that the graph has; the message of ckpt-opt inspect IN names those that need one
    "#);
    let sizeless = lower("out.onnx", &["-q", "--dim", "batch"]);
    assert!(
        sizeless.contains("error[usage]: --dim batch: expected NAME=N"),
        "{sizeless}"
    );
}

#[test]
fn scripts_read_what_was_lowered() {
    let folder = Folder::new();
    let told = ["lower", "in.onnx", "-o", "lowered.onnx", "--json"];
    let said = folder.output(told);
    assert!(said.status.success());
    let said: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(said["nodes_before"], 33);
    assert!(said["nodes_after"].as_u64() > Some(33), "{said}");
    assert!(said["lowered"]["ConvGrad"].as_u64() > Some(0), "{said}");
    assert_eq!(said["overwrites"], serde_json::json!({}));
    // Standard operators alone have no training operators to lower.
    let again = folder.output(["lower", "lowered.onnx", "-o", "again.onnx", "--json"]);
    let again: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(again["lowered"], serde_json::json!({}));
    let refused = folder.output(["lower", "none.onnx", "-o", "x.onnx", "--json"]);
    let refused: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(refused["error"], "unreadable");
    let updated = ["lower", "lowered.onnx", "x.onnx", "--optimizer", "sgd"];
    let said = folder.run(updated);
    assert!(
        said.contains("help: lower training_model.onnx itself with --optimizer, not what was lowered without it before"),
        "{said}"
    );
}

#[test]
fn inspection_shows_what_holds_the_peak() {
    let folder = Folder::new();
    assert_snapshot!(folder.run(["inspect", "in.onnx"]), @"
    exit status 0
    --- output
    33 nodes; the caller owns 18.9 KiB

    DEFAULT order, ORT_ENABLE_ALL: peak 188 KiB at step 4 of 31 (node conv2)
         188 KiB │              ██
                 │              ██                 ▂▂▂   ▄▄▄▂▂▂▂▅▅▅▅▅▅
                 │              ██▄▄▄▄▄▄▄▄▄▄▄▄▄▄██████▇▁▁█████████████▁▁▁
                 │██   ▅▅▅▅▅▅▅▅▅█████████████████████████████████████████
                 │██▄▄▄██████████████████████████████████████████████████ ▄▄▄
                 │███████████████████████████████████████████████████████▁███
                 │███████████████████████████████████████████████████████████
        18.9 KiB │███████████████████████████████████████████████████████████▅
                 └────────────────────────────────────────────────────────────
    held there besides what the caller owns
        96.1 KiB  activations
        64.0 KiB  workspace of the node
        9.35 KiB  the runtime's own accounts
    by layer, with the number of tensors
        32.1 KiB  bn1 (3)
        32.0 KiB  conv1 (1)
        24.0 KiB  pool (2)
        8.00 KiB  conv2 (1)
    the largest
        32.0 KiB  c1, from step 0 to 26
        32.0 KiB  n1, from step 1 to 25
        16.0 KiB  p1_mask, from step 3 to 24
        8.00 KiB  p1, from step 3 to 22
        8.00 KiB  c2, from step 4 to 19

    PRIORITY_BASED order, ORT_ENABLE_ALL: peak 188 KiB at step 4 of 31 (node conv2)
         188 KiB │              ██
                 │              ██                ▂▂▂▄▄▄▃▃▃▆▆▆▆▆▆
                 │              ██▄▄▄▄▄▄▄▄▄▄▄▄▅██████████████████▂▂▂
                 │██   ▅▅▅▅▅▅▅▅▅████████████████████████████████████
                 │██▄▄▄█████████████████████████████████████████████▅▅
                 │████████████████████████████████████████████████████
                 │████████████████████████████████████████████████████
        18.9 KiB │████████████████████████████████████████████████████▆▆▆▆▆▅▅▅
                 └────────────────────────────────────────────────────────────
    held there besides what the caller owns
        96.1 KiB  activations
        64.0 KiB  workspace of the node
        9.35 KiB  the runtime's own accounts
    by layer, with the number of tensors
        32.1 KiB  bn1 (3)
        32.0 KiB  conv1 (1)
        24.0 KiB  pool (2)
        8.00 KiB  conv2 (1)
    the largest
        32.0 KiB  c1, from step 0 to 22
        32.0 KiB  n1, from step 1 to 21
        16.0 KiB  p1_mask, from step 3 to 20
        8.00 KiB  p1, from step 3 to 19
        8.00 KiB  c2, from step 4 to 18

    no plan that keeps bn1_grad as it is needs less than 115 KiB
    ");
}

#[test]
fn what_an_optimizer_holds_counts_as_the_callers() {
    let folder = Folder::new();
    let fixed = |options: &[&str]| {
        let arguments = ["inspect", "in.onnx", "--json"].iter().chain(options);
        let output = folder.output(arguments.copied());
        let text = String::from_utf8(output.stdout).unwrap();
        let found: serde_json::Value = serde_json::from_str(&text).expect(&text);
        found["fixed_bytes"].as_u64().unwrap()
    };
    let states = fixed(&["--optimizer", "adamw"]) - fixed(&[]);
    // Of 32 bits each.
    assert!(states > 0 && states % 8 == 0, "{states}");
    assert_eq!(fixed(&["--optimizer", "sgd"]), fixed(&[]));
    assert_snapshot!(folder.run(["inspect", "in.onnx", "--optimizer", "in.onnx"]), @r"
    exit status 1
    --- errors
    error[option-file]: in.onnx: not an optimizer's model: none of its nodes is AdamWOptimizer or SGDOptimizerV2; expected the optimizer_model.onnx that onnxruntime.training.artifacts.generate_artifacts writes
    help: docs/reference.md says what the file of each option holds
    ");
    assert_snapshot!(folder.run(["inspect", "in.onnx", "--optimizer", "adagrad"]), @r#"
    exit status 2
    --- errors
    error[usage]: no optimizer is called "adagrad", and there is no such file; known are adamw, sgd
    help: ckpt-opt --help and ckpt-opt COMMAND --help list what there is
    "#);
}

#[test]
fn readers_may_leave_early() {
    let folder = Folder::new();
    for arguments in [&["--help"][..], &["inspect", "in.onnx"], &SMALL] {
        let mut child = folder
            .command(arguments.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("ckpt-opt starts");
        drop(child.stdout.take());
        let mut said = String::new();
        let mut errors = child.stderr.take().expect("a pipe");
        errors.read_to_string(&mut said).expect("text");
        let status = child.wait().expect("it ends");
        assert_eq!(status.code(), Some(0), "{arguments:?}: {said}");
        assert!(!said.contains("error"), "{arguments:?}: {said}");
    }
    assert_eq!(folder.files(), ["in.onnx", "out.onnx"]);
}

#[test]
fn nobody_has_to_read_the_messages() {
    let folder = Folder::new();
    let mut child = folder
        .command(SMALL)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ckpt-opt starts");
    drop(child.stderr.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout.starts_with(b"wrote out.onnx"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_result_that_cannot_be_printed_is_an_error() {
    let folder = Folder::new();
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut command = folder.command(["inspect", "in.onnx"]);
    let output = command.stdout(full).output().expect("ckpt-opt starts");
    assert_snapshot!(shown(&output), @r"
    exit status 1
    --- errors
    error[cannot-write]: cannot print the result: No space left on device (os error 28)
    help: give it a place that exists and that you may write to
    ");
}

#[test]
fn help_states_the_promise_and_the_exit_statuses() {
    let folder = Folder::new();
    let help = String::from_utf8(folder.output(["--help"]).stdout).unwrap();
    let text = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for promise in [
        "with the session's settings as --runtime-settings says",
        "What the arena reserves without using it comes on top",
        "0 written; 1 error; 2 usage; 3 no plan fits the budget",
    ] {
        assert!(text.contains(promise), "{help}");
    }
}

#[test]
fn a_comparison_has_every_strategy_and_every_budget() {
    let folder = Folder::new();
    let budgets = ["--budget", "fixed+95%", "--budget", "fixed+1%"];
    let arguments = [
        "compare", "in.onnx", "--json", "--quiet", "--plot", "plot.svg",
    ];
    let output = folder.output(arguments.into_iter().chain(budgets));
    assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
    let result: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let strategies = result["strategies"].as_array().expect("a list");
    let names: Vec<&str> = strategies
        .iter()
        .filter_map(|s| s["strategy"].as_str())
        .collect();
    assert_eq!(names, Strategy::ALL.map(Strategy::name));
    for strategy in strategies {
        let rows = strategy["rows"].as_array().expect("a list");
        assert!(is_finite(&strategy["search_seconds"]), "{strategy}");
        if let Some(reason) = strategy["refused"].as_str() {
            assert!(!reason.is_empty() && rows.is_empty(), "{strategy}");
            assert!(strategy["smallest_peak_bytes"].is_null(), "{strategy}");
            continue;
        }
        let smallest = strategy["smallest_peak_bytes"].as_u64().expect("a peak");
        assert_eq!(rows.len(), 2, "{strategy}");
        assert_eq!(
            rows[1]["fits"], false,
            "a hundredth fits nothing: {strategy}"
        );
        for row in rows {
            let figures = ["peak_after_bytes", "overhead", "recomputed_nodes"];
            assert!(row["notes"].is_array(), "{strategy}");
            if row["fits"] == false {
                assert!(figures.iter().all(|&key| row[key].is_null()), "{strategy}");
                continue;
            }
            assert!(is_finite(&row["overhead"]), "{strategy}");
            let peak = row["peak_after_bytes"].as_u64().expect("a peak");
            let budget = row["budget_bytes"].as_u64().expect("a budget");
            assert!(smallest <= peak && peak <= budget, "{strategy}");
        }
    }
    assert_eq!(strategies[0]["rows"][0]["fits"], true);
    let plot = fs::read_to_string(folder.path("plot.svg")).expect("a plot");
    assert!(plot.contains("chen-sqrt"));
}

/// Is it a number that is not negative?
fn is_finite(value: &Value) -> bool {
    let number = value.as_f64();
    number.is_some_and(|number| number.is_finite() && number >= 0.0)
}

#[test]
fn a_sweep_goes_down_to_what_does_not_fit() {
    let folder = Folder::new();
    let shown = folder.run(["sweep", "in.onnx", "--strategy", "chen-budget", "--quiet"]);
    assert!(shown.starts_with("exit status 0\n"), "{shown}");
    let rows = shown.lines().filter(|line| line.starts_with("fixed+"));
    assert_eq!(rows.count(), 8, "{shown}");
    assert!(
        shown.contains("the smallest peak that chen-budget finds is "),
        "{shown}"
    );
}

#[test]
fn a_row_says_in_which_sessions_each_budget_holds() {
    let folder = Folder::new();
    let row = |more: &[&'static str]| {
        let budgets = ["--budget", "fixed+100%", "--budget", "fixed+95%", "--quiet"];
        let arguments = ["sweep", "in.onnx"].iter().chain(&budgets).chain(more);
        folder.output(arguments.copied())
    };
    let told = json(&row(&["--order", "priority", "--json"]));
    let rows = told.pointer("/strategies/0/rows").and_then(Value::as_array);
    for row in rows.expect("a list") {
        assert_eq!(
            (&row["order"], &row["level"]),
            (&"priority".into(), &"any".into())
        );
    }
    let shown = shown(&row(&[]));
    // Once it is optimized, a graph as small as this takes less.
    for holds_in in ["every session", "DEFAULT, ORT_ENABLE_ALL"] {
        assert_eq!(shown.matches(holds_in).count(), 1, "{shown}");
    }
}

#[test]
fn where_a_time_limit_left_no_plan_the_limit_is_named() {
    let folder = Folder::new();
    folder.add("testdata/models/cross_modal.onnx", "model.onnx");
    let arguments = ["model.onnx", "out.onnx", "--dim", "batch=2", "--budget"];
    let limited = arguments.into_iter().chain(["1B", "--time-limit", "0.001"]);
    let refused = folder.output(limited);
    assert_eq!(refused.status.code(), Some(3), "{}", shown(&refused));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("--time-limit ended the search early"),
        "{said}"
    );
}

#[test]
fn rows_and_sizes_say_where_a_time_limit_ended_the_search() {
    let folder = Folder::new();
    folder.add("testdata/models/cross_modal.onnx", "model.onnx");
    let row = [
        "sweep",
        "model.onnx",
        "--dim",
        "batch=2",
        "--budget",
        "fixed+50%",
        "-q",
    ];
    let sizes = [
        "largest",
        "model.onnx",
        "--dim",
        "batch",
        "--budget",
        "30MB",
        "-q",
    ];
    for (arguments, list, said) in [
        (
            row,
            "/strategies/0/rows",
            "plans may add less and smaller budgets may fit",
        ),
        (sizes, "/tried", "a larger size may fit"),
    ] {
        let run = |more: &[&'static str]| {
            let output = folder.output(arguments.iter().chain(more).copied());
            assert!(output.status.success(), "{}", shown(&output));
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let limited = ["--time-limit", "0.001"];
        let text = run(&limited);
        assert!(
            text.contains("--time-limit ended ") && text.ends_with(&format!("{said}\n")),
            "{text}"
        );
        let told: Value =
            serde_json::from_str(&run(&[&limited[..], &["--json"]].concat())).expect("JSON");
        let told = told
            .pointer(list)
            .and_then(Value::as_array)
            .expect("a list");
        assert_eq!(told.last().expect("an entry")["stop_reason"], "time_limit");
    }
}

#[test]
fn what_is_not_bitwise_is_allowed_by_name_only() {
    let folder = Folder::new();
    let output = folder.output([&SMALL[..], &["--allow", "luck"]].concat());
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("[possible values: batch-slices, invertible-layer-norm, reassociated-sums, half-precision, convolution-algorithms]"), "{text}");
    let allowed = [&SMALL[..], &["--allow", "half-precision"]].concat();
    let output = folder.output(allowed.clone());
    assert_eq!(output.status.code(), Some(0));
    assert!(!String::from_utf8_lossy(&output.stderr).contains("changes nothing"));
    // The published strategies plan the graph as it is.
    let output = folder.output([&allowed[..], &["--strategy", "chen-sqrt"]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("--allow half-precision changes nothing with --strategy chen-sqrt"),
        "{said}"
    );
}

#[test]
fn algorithms_are_listed_for_each_product_of_a_convolution() {
    let folder = Folder::new();
    let output = folder.output(["conv-table", "in.onnx", "--device", "a100"]);
    let table = json(&output);
    let convolutions = table["convolutions"].as_array().expect("a list");
    let products: Vec<&str> = convolutions
        .iter()
        .filter_map(|c| c["product"].as_str())
        .collect();
    for product in ["forward", "backward-filter"] {
        assert!(products.contains(&product), "{products:?}");
    }
    for convolution in convolutions {
        let times: Vec<u64> = convolution["algorithms"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|one| one["time_ns"].as_u64())
            .collect();
        assert!(times.len() >= 3 && times.is_sorted(), "{convolution}");
    }
    let cpu = folder.output(["conv-table", "in.onnx"]);
    assert_eq!(cpu.status.code(), Some(2));
}

/// A table of the small graph's convolutions on a V100, `change`d.
fn written_table(folder: &Folder, change: impl FnOnce(&mut Value)) {
    let output = folder.output(["conv-table", "in.onnx", "--device", "v100"]);
    let mut table = json(&output);
    change(&mut table);
    folder.write("table.json", &table.to_string());
}

#[test]
fn plans_for_a_gpu_go_by_the_table_and_say_what_the_provider_has_to_be_told() {
    let folder = Folder::new();
    let on_gpu = [&SMALL[..], &["--json", "--device", "v100"]].concat();
    let with_table = [
        &on_gpu[..],
        &["--conv-table", "table.json", "--session-options", "s.json"],
    ]
    .concat();
    let figures = |result: &Value| {
        let names = ["peak_before_bytes", "peak_after_bytes", "overhead"];
        names.map(|name| result[name].clone())
    };
    let modelled = json(&folder.output(on_gpu));
    // The model's own figures change nothing.
    written_table(&folder, |_| ());
    assert_eq!(
        figures(&json(&folder.output(with_table.clone()))),
        figures(&modelled)
    );
    let model = fs::read(folder.path("out.onnx")).unwrap();
    let contains = |text: &str| model.windows(text.len()).any(|at| at == text.as_bytes());
    assert!(contains("ckpt-opt.provider_options"));
    assert!(contains(&modelled["provider_options"].to_string()));

    // The fastest algorithm of one product takes 1 GiB: others are told to be taken.
    written_table(&folder, |table| {
        let fastest = &mut table["convolutions"][0]["algorithms"][0];
        fastest["workspace_bytes"] = (1u64 << 30).into();
        fastest["time_ns"] = 1.into();
    });
    let smaller = with_table.iter().map(|&argument| match argument {
        "fixed+95%" => "100MiB",
        other => other,
    });
    let report = ["--report", "r.json"].into_iter();
    let result = json(&folder.output(smaller.chain(report)));
    assert!(result["peak_before_bytes"].as_u64().unwrap() > 1 << 30);
    assert!(result["peak_after_bytes"].as_u64().unwrap() < 100 << 20);
    assert!(result["overhead"].as_f64().unwrap() > 0.0);
    let session: Value = serde_json::from_slice(&fs::read(folder.path("s.json")).unwrap()).unwrap();
    assert_eq!(session["provider_options"], result["provider_options"]);
    assert_snapshot!(session["provider_options"], @r#"{"CUDAExecutionProvider":{"cudnn_conv_algo_search":"EXHAUSTIVE","cudnn_conv_use_max_workspace":"0"}}"#);

    // With room for it, the fastest are taken.
    let larger = with_table.iter().map(|&argument| match argument {
        "fixed+95%" => "2GiB",
        other => other,
    });
    let report = ["--report", "r.json"].into_iter();
    let result = json(&folder.output(larger.chain(report)));
    let report: Value = serde_json::from_slice(&fs::read(folder.path("r.json")).unwrap()).unwrap();
    assert_eq!(report["convolutions"], Value::Null, "nothing is rewritten");
    assert_snapshot!(result["provider_options"], @r#"{"CUDAExecutionProvider":{"cudnn_conv_algo_search":"HEURISTIC","cudnn_conv_use_max_workspace":"1"}}"#);
    assert!(result["peak_after_bytes"].as_u64().unwrap() > 1 << 30);
}

#[test]
fn convolution_tables_are_for_gpus_and_checked() {
    let folder = Folder::new();
    written_table(&folder, |table| {
        table["convolutions"][1]["element_type"] = 7.into();
    });
    let with_table = [&SMALL[..], &["--conv-table", "table.json"]].concat();
    assert_snapshot!(folder.run(with_table.clone()), @r"
    exit status 2
    --- errors
    error[usage]: --device cpu has no cuDNN; --conv-table is for v100, a100, h100, h200 or a file with the provider cuda
    help: ckpt-opt --help and ckpt-opt COMMAND --help list what there is
    ");
    let on_gpu = [&with_table[..], &["--device", "v100"]].concat();
    assert_snapshot!(folder.run(on_gpu.clone()), @r"
    exit status 1
    --- errors
    error[option-file]: table.json: not a convolution table: convolutions[1].element_type: invalid type: integer `7`, expected a string
    help: docs/reference.md says what the file of each option holds
    ");
    written_table(&folder, |table| {
        let all = table["convolutions"].as_array_mut().unwrap();
        all.truncate(1);
    });
    let output = folder.output(on_gpu);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let warnings: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("warning"))
        .collect();
    assert_snapshot!(warnings.join("\n"), @r"
    warning: what CUDA, cuDNN and cuBLAS hold for themselves comes beside what is said: leave room with --reserve
    warning: plans for ONNX Runtime 1.19.2 were not run on a GPU; those for current builds were: ckpt-opt lower writes the graph for them
    warning: the convolution table has nothing for 4 of 5 products of convolutions, which are worked out
    ");
    // Nothing of the sort where there is no cuDNN.
    let on_cpu = json(&folder.output(SMALL.into_iter().chain(["--json"])));
    assert_eq!(on_cpu.get("provider_options"), None);
}

#[test]
fn what_a_pass_leaves_and_how_long_passes_take_can_be_seen() {
    let folder = Folder::new();
    let dump = "--dump-after=insert-mirrors=mirrors.txt";
    let mut command = folder.command(SMALL);
    command.args([dump, "--timings", "--quiet"]);
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", shown(&output));
    let text = fs::read_to_string(folder.path("mirrors.1.txt")).expect("a dump");
    let graph = ckpt_passes::graph::Graph::parse(&text).expect("a graph in text form");
    assert!(
        graph
            .node_ids()
            .any(|id| graph.node(id).name.ends_with("/recompute_1"))
    );
    let table = String::from_utf8_lossy(&output.stderr);
    let ran = |pass| table.lines().any(|line| line.starts_with(pass));
    assert!(ran("insert-mirrors ") && ran("insert-barriers "), "{table}");
    let unknown = folder.run(SMALL.into_iter().chain(["--dump-after", "mirrors"]));
    assert!(unknown.contains("no pass is called"), "{unknown}");
}
