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

/// Where the graphs of the corpus are, other than those asked for.
const FOLDERS: [&str; 3] = ["testdata/models", "testdata/cases", "testdata/onnx"];

/// The names of these files' dimensions, with the sizes that tables use.
const DIMENSIONS: &str = "tools/truth_models.json";

/// What `cargo xtask corpus` is asked for.
pub(crate) struct Request {
    file: PathBuf,
    save: bool,
    folders: Vec<PathBuf>,
}

impl Request {
    /// `(--save | --against) FILE [--models DIR]...`; none where it is anything else.
    pub(crate) fn parse(arguments: &[String]) -> Option<Request> {
        let [mode, file, rest @ ..] = arguments else {
            return None;
        };
        let save = match mode.as_str() {
            "--save" => true,
            "--against" => false,
            _ => return None,
        };
        let folders = rest.chunks(2).map(|pair| match pair {
            [option, folder] if option == "--models" => Some(PathBuf::from(folder)),
            _ => None,
        });
        Some(Request {
            file: file.into(),
            save,
            folders: folders.collect::<Option<_>>()?,
        })
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
    let dimensions = object(&root.join(DIMENSIONS))?;
    let folders = FOLDERS.iter().map(PathBuf::from);
    let mut rows = Map::new();
    let mut differing = 0;
    for model in models(root, folders.chain(request.folders.iter().cloned()))? {
        let options = sizes(&model, &dimensions);
        for settings in SETTINGS {
            for budget in BUDGETS {
                let name = format!("{} {settings} {budget}", model.display());
                let mut options: Vec<&str> = options.iter().map(String::as_str).collect();
                options.extend(["--runtime-settings", settings, "--budget", budget]);
                let row = planned(binary, &model, &options, root)?;
                if !request.save && saved.get(&name) != Some(&row) {
                    differing += 1;
                    let before = saved.get(&name).unwrap_or(&Value::Null);
                    println!("{name}\n  before {before}\n  now    {row}");
                }
                rows.insert(name, row);
            }
        }
    }
    println!("{} rows, {differing} of them differ", rows.len());
    if request.save {
        let text = format!("{:#}\n", Value::Object(rows));
        fs::write(&request.file, text)
            .map_err(|error| format!("{}: {error}", request.file.display()))?;
    }
    Ok(differing)
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
fn planned(binary: &Path, model: &Path, options: &[&str], root: &Path) -> Result<Value, String> {
    let written = root.join("target/corpus.onnx");
    let _ = fs::remove_file(&written);
    let mut command = Command::new(binary);
    command
        .current_dir(root)
        .arg(model)
        .arg("target/corpus.onnx");
    command.args(["--json", "--quiet"]).args(options);
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if let ["--dim", "*=8", rest @ ..] = options
            && said.contains("no dimension")
        {
            return planned(binary, model, rest, root);
        }
        return Ok(json!({"exit": output.status.code(), "said": said}));
    }
    let figures: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{command:?}: its JSON: {error}"))?;
    let bytes = fs::read(&written).map_err(|error| format!("{}: {error}", written.display()))?;
    let mut hash = DefaultHasher::new();
    hash.write(&bytes);
    Ok(json!({
        "written": format!("{:016x}", hash.finish()),
        "overhead": figures["overhead"],
        "peak_bytes": figures["peak_after_bytes"],
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
}
