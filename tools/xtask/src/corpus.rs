//! What must not change when the code is only moved about: the bytes that are written for a fixed set of graphs, and the
//! figures that are told of them.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value, json};

/// Roomy, as in most tables, and short.
const BUDGETS: [&str; 3] = ["fixed+70%", "fixed+50%", "fixed+30%"];

const SETTINGS: [&str; 2] = ["default", "lean"];

/// Where every budget holds, so that bounds are known.
const EVERY_SESSION: [&str; 4] = ["--order", "any", "--level", "any"];

/// Where the graphs of the corpus are, other than those asked for.
const FOLDERS: [&str; 3] = ["testdata/models", "testdata/cases", "testdata/onnx"];

/// The names of these files' dimensions, with the sizes that tables use.
const DIMENSIONS: &str = "tools/truth_models.json";

/// What `cargo xtask corpus` is asked for.
#[derive(Default)]
pub(crate) struct Request {
    file: PathBuf,
    save: bool,
    folders: Vec<PathBuf>,
    /// Instead of [`BUDGETS`], if there are any.
    budgets: Vec<String>,
    /// Only graphs with these file names, if there are any.
    only: Vec<String>,
    /// Which build of the program to run, if not this tree's.
    pub(crate) binary: Option<PathBuf>,
    /// What the ablation switches off, or several with commas between; each by itself, if nothing is named.
    without: Vec<String>,
}

impl Request {
    /// `(--save | --against) FILE [--models DIR | --budget SIZE | --only NAME | --binary FILE]...`; none where it is anything else.
    pub(crate) fn parse(arguments: &[String]) -> Option<Request> {
        let [mode, file, rest @ ..] = arguments else {
            return None;
        };
        let save = match mode.as_str() {
            "--save" => true,
            "--against" => false,
            _ => return None,
        };
        let mut request = Request::with_options(rest)?;
        (request.file, request.save) = (file.into(), save);
        Some(request)
    }

    /// Only the options, for what neither saves nor compares a file.
    pub(crate) fn with_options(options: &[String]) -> Option<Request> {
        let mut request = Request::default();
        for pair in options.chunks(2) {
            match pair {
                [option, folder] if option == "--models" => request.folders.push(folder.into()),
                [option, size] if option == "--budget" => request.budgets.push(size.clone()),
                [option, name] if option == "--only" => request.only.push(name.clone()),
                [option, name] if option == "--without" => request.without.push(name.clone()),
                [option, file] if option == "--binary" => request.binary = Some(file.into()),
                _ => return None,
            }
        }
        Some(request)
    }

    fn budgets(&self) -> Vec<&str> {
        match self.budgets.is_empty() {
            true => BUDGETS.to_vec(),
            false => self.budgets.iter().map(String::as_str).collect(),
        }
    }

    fn wants(&self, model: &Path) -> bool {
        let name = model.file_stem().unwrap_or_default();
        self.only.is_empty() || self.only.iter().any(|only| name == only.as_str())
    }
}

/// Runs `binary` on the corpus; how many of its rows differ from those of the file, each printed.
#[allow(clippy::print_stdout)]
pub(crate) fn run(request: &Request, binary: &Path, root: &Path) -> Result<usize, String> {
    let saved = if request.save {
        Map::new()
    } else {
        object(&request.file)?
    };
    let mut all = Comparison::default();
    let rows = rows(request, binary, None, root, &mut |name, row| {
        if !request.save {
            let before = saved.get(name).unwrap_or(&Value::Null);
            if all.differs(name, before, row) {
                println!("{name}\n  before {before}\n  now    {row}");
            }
        }
    })?;
    println!("{} rows, {} of them differ", rows.len(), all.differing);
    if request.save {
        let text = format!("{:#}\n", Value::Object(rows));
        fs::write(&request.file, text)
            .map_err(|error| format!("{}: {error}", request.file.display()))?;
    } else {
        println!("{}", all.said());
    }
    Ok(all.differing)
}

/// Runs `binary`, which is built for it, without one after another of the things that can be switched off, and prints what
/// that changes.
#[allow(clippy::print_stdout)]
pub(crate) fn ablation(request: &Request, binary: &Path, root: &Path) -> Result<(), String> {
    let list = Command::new(binary).env(WITHOUT, "list").output();
    let list = list.map_err(|error| format!("{}: {error}", binary.display()))?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let whole = rows(request, binary, None, root, &mut |_, _| {})?;
    println!("{} plans; without", whole.len());
    let wanted: Vec<&str> = match request.without.is_empty() {
        true => list.lines().collect(),
        false => request.without.iter().map(String::as_str).collect(),
    };
    for name in wanted {
        let mut all = Comparison::default();
        rows(request, binary, Some(name), root, &mut |row, now| {
            all.differs(row, whole.get(row).unwrap_or(&Value::Null), now);
        })?;
        println!("{name:26} {:3} differ; {}", all.differing, all.said());
    }
    Ok(())
}

/// What a build for the ablation is told not to use by.
const WITHOUT: &str = "CKPT_OPT_WITHOUT";

/// What comes of each graph, budget and setting; `tell` hears of each.
fn rows(
    request: &Request,
    binary: &Path,
    without: Option<&str>,
    root: &Path,
    tell: &mut dyn FnMut(&str, &Value),
) -> Result<Map<String, Value>, String> {
    let dimensions = object(&root.join(DIMENSIONS))?;
    let folders = FOLDERS.iter().map(PathBuf::from);
    let mut rows = Map::new();
    for model in models(root, folders.chain(request.folders.iter().cloned()))? {
        if !request.wants(&model) {
            continue;
        }
        let options = sizes(&model, &dimensions);
        for settings in SETTINGS {
            for budget in request.budgets() {
                let name = format!("{} {settings} {budget}", model.display());
                let mut options: Vec<&str> = options.iter().map(String::as_str).collect();
                options.extend(["--runtime-settings", settings, "--budget", budget]);
                options.extend(EVERY_SESSION);
                let row = planned(binary, without, &model, &options, root)?;
                tell(&name, &row);
                rows.insert(name, row);
            }
        }
    }
    Ok(rows)
}

/// What all rows together say of a change.
#[derive(Default)]
struct Comparison {
    differing: usize,
    /// Plans that are there no longer, and that were not there before.
    lost: usize,
    won: usize,
    /// By how many points the overhead grew most, and where; by how many it shrank most.
    dearest: (f64, String),
    cheapest: (f64, String),
    /// By how many percent the smallest peak grew most, and where; by how many it shrank most.
    largest: (f64, String),
    smallest: (f64, String),
    evaluations_before: f64,
    evaluations: f64,
}

impl Comparison {
    /// Is another file written, or something else said of it? How much work it was may differ.
    fn differs(&mut self, name: &str, before: &Value, now: &Value) -> bool {
        let both = |key: &str| Some((before[key].as_f64()?, now[key].as_f64()?));
        let changed = match name.ends_with(" min") {
            true => both("peak_bytes").map(|(before, now)| 100.0 * (now / before - 1.0)),
            false => both("overhead").map(|(before, now)| 100.0 * (now - before)),
        };
        let (more, less) = match name.ends_with(" min") {
            true => (&mut self.largest, &mut self.smallest),
            false => (&mut self.dearest, &mut self.cheapest),
        };
        if let Some(changed) = changed.filter(|&changed| changed > more.0) {
            *more = (changed, name.to_owned());
        }
        if let Some(changed) = changed.filter(|&changed| changed < less.0) {
            *less = (changed, name.to_owned());
        }
        if let Some((before, now)) = both("evaluations") {
            self.evaluations_before += before;
            self.evaluations += now;
        }
        let is_plan = |row: &Value| row["overhead"].is_number();
        self.lost += usize::from(is_plan(before) && !is_plan(now));
        self.won += usize::from(!is_plan(before) && is_plan(now));
        let without_work = |row: &Value| {
            let mut row = row.clone();
            if let Some(row) = row.as_object_mut() {
                row.remove("evaluations");
            }
            row
        };
        let differs = without_work(before) != without_work(now);
        self.differing += usize::from(differs);
        differs
    }

    fn said(&self) -> String {
        let of = |(by, at): &(f64, String)| match at.is_empty() {
            true => "0".to_owned(),
            false => {
                let file = at.rsplit('/').next().unwrap_or(at);
                format!("{by:+.3} ({file})")
            }
        };
        format!(
            "overhead in points {} to {}; smallest peak in % {} to {}; plans lost {}, won {}; evaluations {:+.1} %",
            of(&self.cheapest),
            of(&self.dearest),
            of(&self.smallest),
            of(&self.largest),
            self.lost,
            self.won,
            100.0 * (self.evaluations / self.evaluations_before.max(1.0) - 1.0)
        )
    }
}

/// The graphs in `folders`, which are relative to `root` where messages should not name it; by name; of two with one file name the first, since shared folders hold testdata's too.
fn models(root: &Path, folders: impl Iterator<Item = PathBuf>) -> Result<Vec<PathBuf>, String> {
    let mut found: Vec<PathBuf> = Vec::new();
    for folder in folders {
        let entries = fs::read_dir(root.join(&folder))
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut here: Vec<PathBuf> = entries
            .filter_map(|entry| Some(folder.join(entry.ok()?.file_name())))
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "onnx")
            })
            .filter(|path| found.iter().all(|one| one.file_name() != path.file_name()))
            .collect();
        here.sort();
        found.extend(here);
    }
    Ok(found)
}

/// Options for the sizes of symbolic dimensions: as listed, or one for all.
fn sizes(model: &Path, dimensions: &Map<String, Value>) -> Vec<String> {
    let stem = model.file_stem().unwrap_or_default().to_string_lossy();
    let listed = dimensions
        .get(&*stem)
        .and_then(|entry| entry["dims"].as_object());
    let sizes: Vec<String> = match listed {
        Some(listed) => listed
            .iter()
            .map(|(name, size)| format!("{name}={size}"))
            .collect(),
        None => vec!["*=8".to_owned()],
    };
    sizes
        .into_iter()
        .flat_map(|size| ["--dim".to_owned(), size])
        .collect()
}

/// What the program made of one graph: a file and its figures, or what it said instead.
fn planned(
    binary: &Path,
    without: Option<&str>,
    model: &Path,
    options: &[&str],
    root: &Path,
) -> Result<Value, String> {
    // Two comparisons may run at once.
    let written = format!("target/corpus_{}.onnx", std::process::id());
    let written = root.join(written);
    let _ = fs::remove_file(&written);
    let mut command = Command::new(binary);
    command.envs(without.map(|name| (WITHOUT, name)));
    command.current_dir(root).arg(model).arg(&written);
    command.args(["--json", "--quiet"]).args(options);
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if let ["--dim", "*=8", rest @ ..] = options
            && said.contains("no dimension")
        {
            return planned(binary, without, model, rest, root);
        }
        // It is another for every comparison.
        let said = said.replace(&*written.to_string_lossy(), "OUT");
        return Ok(json!({"exit": output.status.code(), "said": said}));
    }
    let figures: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{command:?}: its JSON: {error}"))?;
    let bytes = fs::read(&written).map_err(|error| format!("{}: {error}", written.display()))?;
    let _ = fs::remove_file(&written);
    let mut hash = DefaultHasher::new();
    hash.write(&bytes);
    Ok(json!({
        "written": format!("{:016x}", hash.finish()),
        "overhead": figures["overhead"],
        "peak_bytes": figures["peak_after_bytes"],
        "evaluations": figures["evaluations"],
    }))
}

fn object(file: &Path) -> Result<Map<String, Value>, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_is_saved_or_compared_and_may_have_more_folders() {
        let parse = |line: &str| {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            Request::parse(&arguments).map(|request| (request.save, request.folders.len()))
        };
        assert_eq!(parse("--save a"), Some((true, 0)));
        assert_eq!(parse("--against a --models b --models c"), Some((false, 2)));
        assert_eq!(parse("--against a --budget min --only b"), Some((false, 0)));
        for line in [
            "",
            "--save",
            "--keep a",
            "--save a --models",
            "--save a b c",
        ] {
            assert_eq!(parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn rows_differ_by_what_is_written_and_not_by_the_work_it_took() {
        let row = |overhead: f64, evaluations: u64| json!({"written": "a", "overhead": overhead, "evaluations": evaluations});
        let mut all = Comparison::default();
        assert!(!all.differs("same", &row(0.02, 100), &row(0.02, 150)));
        assert!(all.differs("dearer", &row(0.02, 100), &row(0.0225, 50)));
        assert!(all.differs("gone", &row(0.02, 100), &json!({"exit": 3})));
        assert_eq!(
            all.said(),
            "overhead in points 0 to +0.250 (dearer); smallest peak in % 0 to 0; plans lost 1, won 0; evaluations +0.0 %"
        );
    }
}
