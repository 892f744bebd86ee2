//! Which outputs the caller has written to the memory of inputs, as a file says it in its metadata.

use std::collections::BTreeMap;

use ckpt_passes::graph::{Graph, TensorKind};
use prost::Message as _;

use super::import_error::ImportProblem;
use super::model::Model;
use super::schema::{StringStringEntryProto, model};
use crate::text::{LONGEST_NAME, shortened};

/// Its value is a JSON object: names of inputs by the names of outputs.
pub(super) const KEY: &str = "ckpt-opt.overwrites";

/// What the graph says of it, for `metadata_props`; nothing where no output overwrites anything.
pub(crate) fn metadata(graph: &Graph) -> Option<(String, String)> {
    let name = |id| graph.tensor(id).name.as_str();
    let pairs = graph.overwritten();
    let pairs: BTreeMap<&str, &str> = pairs
        .map(|(output, input)| (name(output), name(input)))
        .collect();
    // Fails for maps with keys that are not strings.
    let text = serde_json::to_string(&pairs).unwrap_or_default();
    (!pairs.is_empty()).then(|| (KEY.to_owned(), text))
}

/// Tells the graph what the model says of it.
pub(super) fn read(graph: &mut Graph, source: &Model) -> Result<(), ImportProblem> {
    let mut is_told = false;
    for field in source.message().fields() {
        let field = field?;
        if field.number != model::METADATA_PROPS {
            continue;
        }
        let Ok(entry) = StringStringEntryProto::decode(field.message()?.bytes) else {
            continue;
        };
        if entry.key == KEY {
            if std::mem::replace(&mut is_told, true) {
                return Err(broken(&entry.value, "the key is there twice".to_owned()));
            }
            let pairs = serde_json::from_str(&entry.value);
            let pairs: BTreeMap<String, String> =
                pairs.map_err(|problem| broken(&entry.value, problem.to_string()))?;
            for (output, input) in &pairs {
                tell(graph, output, input).map_err(|problem| broken(&entry.value, problem))?;
            }
        }
    }
    Ok(())
}

fn tell(graph: &mut Graph, output: &str, input: &str) -> Result<(), String> {
    let of_output = graph
        .tensor_named(output)
        .filter(|id| graph.outputs.contains(id));
    let of_output = of_output.ok_or_else(|| format!("the graph has no output {output:?}"))?;
    let is_input = |id| graph.tensor(id).kind == TensorKind::Input;
    let of_input = graph.tensor_named(input).filter(|&id| is_input(id));
    let of_input = of_input.ok_or_else(|| format!("the graph has no input {input:?}"))?;
    graph.tensor_mut(of_output).overwrites = Some(of_input);
    Ok(())
}

fn broken(value: &str, problem: String) -> ImportProblem {
    let value = shortened(value, LONGEST_NAME).into_owned();
    ImportProblem::Overwrites {
        key: KEY,
        value,
        problem,
    }
}
