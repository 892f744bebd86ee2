//! The profile of `--profile`, as ONNX Runtime writes it (`SessionOptions.enable_profiling`).
//!
//! A list of events; those of category `Node` that are named `<node name>_kernel_time` have the
//! kernel's time `dur` in microseconds, once for every step that was profiled.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use ckpt_passes::analysis::cost::{NodeOverride, Overrides};
use serde::Deserialize;
use thiserror::Error;

/// Why a profile cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum ProfileError {
    #[error("{}: cannot read the profile: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error(
        "{}: not a profile: {error}; expected what ONNX Runtime writes with \
         SessionOptions.enable_profiling", path.display()
    )]
    Form {
        path: PathBuf,
        error: serde_json::Error,
    },
    #[error("{}: the profile has no kernel times", path.display())]
    Empty { path: PathBuf },
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    cat: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    dur: f64,
}

/// The least time of each node over the steps in the profile at `path`; the first step, in which
/// memory is touched for the first time, only if there is no other.
pub fn read(path: &Path) -> Result<Overrides, ProfileError> {
    let text = fs::read(path).map_err(|error| ProfileError::Read {
        path: path.to_owned(),
        error,
    })?;
    parse(&text, path)
}

fn parse(text: &[u8], path: &Path) -> Result<Overrides, ProfileError> {
    let events: Vec<Event> = serde_json::from_slice(text).map_err(|error| ProfileError::Form {
        path: path.to_owned(),
        error,
    })?;
    let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.cat == "Node") {
        if let Some(node) = event.name.strip_suffix("_kernel_time") {
            times
                .entry(node.to_owned())
                .or_default()
                .push(event.dur.max(0.0));
        }
    }
    if times.is_empty() {
        return Err(ProfileError::Empty {
            path: path.to_owned(),
        });
    }
    let least = |times: Vec<f64>| {
        let warm = if times.len() > 1 {
            &times[1..]
        } else {
            &times[..]
        };
        warm.iter().copied().fold(f64::INFINITY, f64::min)
    };
    let entry = |(node, times)| {
        let time_us = Some(least(times));
        let entry = NodeOverride {
            time_us,
            ..NodeOverride::default()
        };
        (node, entry)
    };
    Ok(times.into_iter().map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(text: &str) -> Result<Vec<(String, f64)>, String> {
        let read = parse(text.as_bytes(), Path::new("profile.json"));
        let pair = |(node, entry): (String, NodeOverride)| (node, entry.time_us.unwrap_or(-1.0));
        read.map(|table| table.into_iter().map(pair).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn takes_the_least_time_of_the_steps_after_the_first() {
        let text = r#"[{"cat": "Session", "name": "model_run", "dur": 99},
            {"cat": "Node", "name": "a_kernel_time", "dur": 3},
            {"cat": "Node", "name": "a_fence_before", "dur": 1},
            {"cat": "Node", "name": "b_kernel_time", "dur": 4},
            {"cat": "Node", "name": "a_kernel_time", "dur": 9},
            {"cat": "Node", "name": "a_kernel_time", "dur": 7}]"#;
        let expected = vec![("a".to_owned(), 7.0), ("b".to_owned(), 4.0)];
        assert_eq!(times(text), Ok(expected));
    }

    #[test]
    fn says_what_is_not_a_profile() {
        insta::assert_snapshot!(times("[]").unwrap_err(), @"profile.json: the profile has no kernel times");
        insta::assert_snapshot!(times("{").unwrap_err(), @"profile.json: not a profile: invalid type: map, expected a sequence at line 1 column 0; expected what ONNX Runtime writes with SessionOptions.enable_profiling");
    }
}
