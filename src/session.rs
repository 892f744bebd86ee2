//! What the budget holds for: the options that a session has to be made with, and what a step then takes.

use std::collections::BTreeMap;

use ckpt_passes::optimize::{Options, Summary};
use serde::Serialize;

use crate::json::line;

/// What keys of the model's metadata begin with that is our own.
pub(crate) const METADATA: &str = "ckpt-opt.";

/// What `--session-options` writes, and the metadata of OUT. Other people's scripts rely on the names.
#[derive(Debug, Serialize)]
pub struct Session {
    /// As `--runtime` calls it.
    runtime: &'static str,
    session_options: SessionOptions,
    /// What `SessionOptions.add_session_config_entry` takes, where any matter.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    session_config_entries: BTreeMap<&'static str, String>,
    /// By provider, as ONNX Runtime's Python takes them; where any matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    provider_options: Option<ProviderOptions>,
    /// The dimensions that were bound: `batch=4`, with blanks between them.
    dimensions: String,
    budget_bytes: u64,
    /// What the caller owns.
    fixed_bytes: u64,
    /// The predicted peak of both execution orders, with what the caller owns.
    peak_bytes: u64,
}

/// Named as in ONNX Runtime's Python.
#[derive(Debug, Serialize)]
struct SessionOptions {
    enable_mem_reuse: bool,
    enable_mem_pattern: bool,
    /// The arena reserves more than is in use, which no budget counts.
    enable_cpu_mem_arena: bool,
}

impl Session {
    /// What a plan holds for.
    pub fn of(options: &Options, summary: &Summary, switched_off: Vec<&'static str>) -> Session {
        let bound = options.bindings.iter();
        let dimensions: Vec<String> = bound.map(|(name, size)| format!("{name}={size}")).collect();
        Session {
            runtime: options.runtime.release.name,
            session_options: SessionOptions {
                enable_mem_reuse: options.runtime.settings.reuse,
                enable_mem_pattern: options.runtime.settings.pattern,
                enable_cpu_mem_arena: false,
            },
            session_config_entries: config_entries(&switched_off),
            provider_options: provider_options(summary),
            dimensions: dimensions.join(" "),
            budget_bytes: summary.budget.0,
            fixed_bytes: summary.fixed.0,
            peak_bytes: summary.after.bytes.0,
        }
    }

    /// One JSON object, with a line feed.
    pub fn json(&self) -> String {
        line(self)
    }

    /// The same as keys and values for the model's `metadata_props`; what is not a text is JSON.
    pub fn metadata(&self) -> Vec<(String, String)> {
        let options = line(&self.session_options);
        let providers = self.provider_options.as_ref().map(|options| {
            let text = line(options).trim_end().to_owned();
            ("provider_options", text)
        });
        let entries = (!self.session_config_entries.is_empty()).then(|| {
            let text = line(&self.session_config_entries).trim_end().to_owned();
            ("session_config_entries", text)
        });
        [
            ("runtime", self.runtime.to_owned()),
            ("session_options", options.trim_end().to_owned()),
            ("dimensions", self.dimensions.clone()),
            ("budget_bytes", self.budget_bytes.to_string()),
            ("fixed_bytes", self.fixed_bytes.to_string()),
            ("peak_bytes", self.peak_bytes.to_string()),
        ]
        .into_iter()
        .chain(providers)
        .chain(entries)
        .map(|(key, value)| (format!("{METADATA}{key}"), value))
        .collect()
    }
}

/// What switches optimizers off.
fn config_entries(switched_off: &[&str]) -> BTreeMap<&'static str, String> {
    let names = switched_off.join(";");
    let off = (!names.is_empty()).then_some(("optimization.disable_specified_optimizers", names));
    off.into_iter().collect()
}

/// Options by provider.
pub(crate) type ProviderOptions = BTreeMap<&'static str, BTreeMap<&'static str, &'static str>>;

/// What the plan needs the provider to be told, in ONNX Runtime's names; nothing where nothing matters.
pub(crate) fn provider_options(summary: &Summary) -> Option<ProviderOptions> {
    let options = summary.convolutions?.provider_options();
    Some([("CUDAExecutionProvider", options.into())].into())
}
