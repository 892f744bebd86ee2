//! Of what a written file was made, and how: in its metadata, so that anybody can make it again.

use ckpt_passes::runtime::promise::Promise;
use serde::Serialize;

use crate::inputs::Budget;
use crate::job::Job;
use crate::json::line;
use crate::onnx::METADATA;

/// The options that reach the plan, named as on the command line. What is in files (costs, profiles, tables of convolutions) is
/// not said, only that there was something.
#[derive(Serialize)]
struct Request<'a> {
    budget: String,
    strategy: &'static str,
    variants: Vec<&'static str>,
    allow: Vec<&'a str>,
    seed: u64,
    runtime_settings: &'static str,
    threads: u32,
    /// Nothing where none was named.
    order: Option<&'static str>,
    level: Option<&'static str>,
    device: &'a str,
    reserve_bytes: u64,
    /// Did files say something of nodes?
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    from_files: bool,
}

/// Keys and values for `metadata_props`.
pub(crate) fn metadata(job: &Job, budget: &Budget) -> Vec<(String, String)> {
    let options = &job.options;
    let request = Request {
        budget: budget.to_string(),
        strategy: options.strategy.name(),
        variants: options.variants.iter().map(|group| group.name()).collect(),
        allow: options.allow.iter().map(String::as_str).collect(),
        seed: options.seed,
        runtime_settings: options.settings().name(),
        threads: options.threads(),
        order: options.promise.map(Promise::order_name),
        level: options.promise.map(Promise::level_name),
        device: &options.device.name,
        reserve_bytes: options.reserve.0,
        from_files: !options.costs.is_empty()
            || options.profile.is_some()
            || !options.device.convolutions.table.is_empty(),
    };
    let said = [
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("source_sha256", job.model.sha256()),
        ("options", line(&request).trim_end().to_owned()),
    ];
    said.map(|(key, value)| (format!("{METADATA}{key}"), value))
        .into()
}
