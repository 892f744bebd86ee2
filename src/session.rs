//! What the budget holds for: the options that a session has to be made with, and what a step then takes.

use std::collections::BTreeMap;

use ckpt_passes::bytes::Bytes;
use ckpt_passes::operators::Provider;
use ckpt_passes::optimize::{PlanOptions, Summary};
use ckpt_passes::runtime::Release;
use ckpt_passes::runtime::level::Level;
use ckpt_passes::runtime::order::ExecutionOrder;
use ckpt_passes::runtime::promise::Promise;
use ckpt_passes::runtime::settings::RuntimeSettings;
use serde::Serialize;

use crate::json::line;
use crate::onnx::{METADATA, Model};
use crate::options::Options;

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
    /// The predicted peak, the most of all orders and levels for which the budget holds, with what the caller owns.
    peak_bytes: u64,
}

/// Named as in ONNX Runtime's Python.
#[derive(Debug, Serialize)]
struct SessionOptions {
    enable_mem_reuse: bool,
    enable_mem_pattern: bool,
    /// The arena reserves more than is in use, which no budget counts.
    enable_cpu_mem_arena: bool,
    /// Where the peak depends on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    intra_op_num_threads: Option<u32>,
    /// The name in `onnxruntime.ExecutionOrder`, where the budget holds in one order alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_order: Option<&'static str>,
    /// The name in `onnxruntime.GraphOptimizationLevel`, where it holds at one level alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    graph_optimization_level: Option<&'static str>,
}

impl Session {
    /// What a plan holds for.
    pub fn of(
        options: &PlanOptions,
        summary: &Summary,
        switched_off: Vec<&'static str>,
    ) -> Session {
        let kernels = options.device.kernels;
        let takes_by_threads = options.device.provider == Provider::Cpu && kernels.whole_columns;
        Session {
            runtime: options.runtime.release.name,
            session_options: SessionOptions {
                enable_mem_reuse: options.runtime.settings.reuse,
                enable_mem_pattern: options.runtime.settings.pattern,
                enable_cpu_mem_arena: false,
                intra_op_num_threads: takes_by_threads.then_some(kernels.threads),
                execution_order: options.runtime.promise.order.map(ExecutionOrder::name),
                graph_optimization_level: options.runtime.promise.level.map(Level::name),
            },
            session_config_entries: config_entries(&switched_off),
            provider_options: provider_options(summary),
            dimensions: dimensions(options),
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

/// What a written file says of its budget.
pub(crate) struct Said {
    /// Without the prefix.
    entries: BTreeMap<String, String>,
}

impl Said {
    pub(crate) fn by(model: &Model) -> Said {
        let entries = model.metadata().into_iter();
        let own = entries.filter_map(|(key, value)| {
            let key = key.strip_prefix(METADATA)?.to_owned();
            Some((key, value))
        });
        Said {
            entries: own.collect(),
        }
    }

    /// The sessions for which the budget holds; what the user says of them goes before.
    pub(crate) fn promise(&self, user: Promise) -> Promise {
        let options = self.json("session_options");
        let named = |key: &str| options[key].as_str().unwrap_or_default().to_owned();
        let (order, level) = (named("execution_order"), named("graph_optimization_level"));
        let mut orders = Promise::ORDERS.into_iter().filter_map(|(_, order)| order);
        let mut levels = Promise::LEVELS.into_iter().filter_map(|(_, level)| level);
        Promise {
            order: user
                .order
                .or_else(|| orders.find(|one| one.name() == order)),
            level: user
                .level
                .or_else(|| levels.find(|one| one.name() == level)),
        }
    }

    /// The budget, if it is one for steps with these options, of which the caller owns as much as `fixed`. What files said of
    /// single nodes is not known here, nor what a provider was to be told.
    pub(crate) fn budget(&self, options: &PlanOptions, fixed: Bytes) -> Option<Bytes> {
        let number = |key: &str| self.entries.get(key)?.parse::<u64>().ok();
        let (session, request) = (self.json("session_options"), self.json("options"));
        let PlanOptions {
            runtime, device, ..
        } = options;
        let is_for_these = self.entries.get("dimensions") == Some(&dimensions(options))
            && self.entries.get("runtime").map(String::as_str) == Some(runtime.release.name)
            && session["enable_mem_reuse"] == runtime.settings.reuse
            && session["enable_mem_pattern"] == runtime.settings.pattern
            && request["device"] == device.name.as_str()
            && request["from_files"] != true
            && (request["threads"].as_u64())
                .is_none_or(|threads| threads >= device.kernels.threads.into())
            && number("fixed_bytes") == Some(fixed.0)
            && self.promise(Promise::ANY).covers(runtime.promise)
            && !self.entries.contains_key("provider_options");
        number("budget_bytes").filter(|_| is_for_these).map(Bytes)
    }

    /// The options, and what the file was planned with where they say nothing: sizes of dimensions, the release, the session's settings and
    /// threads, and what was reserved. What is not understood of that is left out.
    pub(crate) fn with_own(&self, options: &Options) -> Options {
        let mut options = options.clone();
        let request = self.json("options");
        if options.dims.is_empty() {
            let said = self.entries.get("dimensions").map_or("", String::as_str);
            let sizes = said.split(' ').filter_map(|one| {
                let (name, size) = one.rsplit_once('=')?;
                Some((name.to_owned(), size.parse().ok()?))
            });
            options.dims = sizes.collect();
        }
        if options.runtime.is_none() {
            let said = self.entries.get("runtime");
            options.runtime = said.and_then(|name| Release::named(name));
        }
        if options.runtime_settings.is_none() {
            let named = |one: &RuntimeSettings| request["runtime_settings"] == one.name();
            options.runtime_settings = RuntimeSettings::ALL.into_iter().find(named);
        }
        if options.threads.is_none() {
            let said = request["threads"].as_u64();
            options.threads = said.and_then(|threads| threads.try_into().ok());
        }
        if options.reserve == Bytes::ZERO && options.optimizer.is_none() {
            options.reserve = Bytes(request["reserve_bytes"].as_u64().unwrap_or(0));
        }
        options
    }

    /// Does the file say a budget at all?
    pub(crate) fn has_budget(&self) -> bool {
        self.entries.contains_key("budget_bytes")
    }

    fn json(&self, key: &str) -> serde_json::Value {
        let text = self.entries.get(key).map_or("", String::as_str);
        serde_json::from_str(text).unwrap_or_default()
    }
}

/// The dimensions that are bound: `batch=4`, with blanks between them.
fn dimensions(options: &PlanOptions) -> String {
    let bound = options.bindings.iter();
    let dimensions: Vec<String> = bound.map(|(name, size)| format!("{name}={size}")).collect();
    dimensions.join(" ")
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
