//! The cost table of `--costs`.
//!
//! `{"nodes": {"<node name>": {"time_us": 12.5, "workspace_bytes": 0, "recomputable": true}}}`;
//! with `"mirrors": 2` a node has that mirror count m(v) in the strategies of Chen et al.: 0 keeps its
//! results, k computes them again k times.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ckpt_passes::analysis::cost::{NodeOverride, Overrides};
use ckpt_passes::graph::Graph;
use serde::Deserialize;
use thiserror::Error;

use super::file;

/// Why a cost table cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum CostsError {
    #[error("{}: cannot read the cost table: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error(
        "{}: not a cost table: {error}; expected \
         {{\"nodes\": {{\"NAME\": {{\"time_us\": 12.5, \"workspace_bytes\": 0, \
         \"recomputable\": true, \"mirrors\": 1}}}}}}", path.display()
    )]
    Form {
        path: PathBuf,
        error: serde_json::Error,
    },
    #[error("{}: node {node:?}: time_us is {time_us}; a time is zero or more", path.display())]
    Time {
        path: PathBuf,
        node: String,
        time_us: f64,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with the key nodes")]
struct Table {
    nodes: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object for a node")]
struct Entry {
    time_us: Option<f64>,
    workspace_bytes: Option<u64>,
    recomputable: Option<bool>,
    mirrors: Option<u32>,
}

/// Reads the table at `path`.
pub fn read(path: &Path) -> Result<Overrides, CostsError> {
    let text = file::read(path).map_err(|error| CostsError::Read {
        path: path.to_owned(),
        error,
    })?;
    parse(&text, path)
}

/// The names in the table that no node of `graph` has.
pub(crate) fn unknown_nodes<'t>(table: &'t Overrides, graph: &Graph) -> Vec<&'t str> {
    let mut names: Vec<&str> = graph
        .order()
        .iter()
        .map(|&id| graph.node(id).name.as_str())
        .collect();
    names.sort_unstable();
    let unknown = |name: &&str| names.binary_search(name).is_err();
    table.keys().map(String::as_str).filter(unknown).collect()
}

/// The same of a text that is in memory; errors name it as `path`.
pub fn parse(text: &[u8], path: &Path) -> Result<Overrides, CostsError> {
    let table: Table = serde_json::from_slice(text).map_err(|error| CostsError::Form {
        path: path.to_owned(),
        error,
    })?;
    let mut overrides = Overrides::new();
    for (node, entry) in table.nodes {
        if let Some(time_us) = entry.time_us.filter(|&time| time < 0.0) {
            return Err(CostsError::Time {
                path: path.to_owned(),
                node,
                time_us,
            });
        }
        let entry = NodeOverride {
            time_us: entry.time_us,
            workspace_bytes: entry.workspace_bytes,
            recomputable: entry.recomputable,
            mirrors: entry.mirrors,
            modelled: None,
        };
        overrides.insert(node, entry);
    }
    Ok(overrides)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    #[test]
    fn every_key_is_optional() {
        let table = parse(
            br#"{"nodes": {"a": {}, "b": {"time_us": 1.5, "workspace_bytes": 7, "recomputable": false, "mirrors": 2}}}"#,
            Path::new("costs.json"),
        );
        let b = NodeOverride {
            time_us: Some(1.5),
            workspace_bytes: Some(7),
            recomputable: Some(false),
            mirrors: Some(2),
            modelled: None,
        };
        let expected = [("a", NodeOverride::default()), ("b", b)];
        assert_eq!(
            table.unwrap(),
            expected.map(|(name, said)| (name.to_owned(), said)).into()
        );
    }

    #[test]
    fn errors_say_where_and_what_is_expected() {
        let error = |text: &str| {
            parse(text.as_bytes(), Path::new("costs.json"))
                .unwrap_err()
                .to_string()
        };
        assert_snapshot!(error("{\"nodes\": {\n\"a\": {\"time\": 1}}}"), @r#"costs.json: not a cost table: unknown field `time`, expected one of `time_us`, `workspace_bytes`, `recomputable`, `mirrors` at line 2 column 12; expected {"nodes": {"NAME": {"time_us": 12.5, "workspace_bytes": 0, "recomputable": true, "mirrors": 1}}}"#);
        assert_snapshot!(error("{\"nodes\": {\"a\": {\"time_us\": -1}}}"), @r#"costs.json: node "a": time_us is -1; a time is zero or more"#);
        assert_snapshot!(error("{\"nodes\": {\"a\": {\"time_us\": 1e999}}}"), @r#"costs.json: not a cost table: number out of range at line 1 column 33; expected {"nodes": {"NAME": {"time_us": 12.5, "workspace_bytes": 0, "recomputable": true, "mirrors": 1}}}"#);
        assert_snapshot!(error("{\"nodes\": {\"a\": {\"workspace_bytes\": -1}}}"), @r#"costs.json: not a cost table: invalid value: integer `-1`, expected u64 at line 1 column 38; expected {"nodes": {"NAME": {"time_us": 12.5, "workspace_bytes": 0, "recomputable": true, "mirrors": 1}}}"#);
    }
}
