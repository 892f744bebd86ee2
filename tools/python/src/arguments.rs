//! What Python passes, as the library takes it; and what the library refuses, as Python sees it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ckpt_opt::inputs::{Optimizer, OptimizerError};
use ckpt_opt::{Error, Model, Options, inputs};
use ckpt_passes::operators::variants::{APPROXIMATIONS, Group};
use ckpt_passes::runtime::Release;
use ckpt_passes::runtime::promise::Promise;
use ckpt_passes::runtime::settings::RuntimeSettings;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyKeyboardInterrupt};
use pyo3::prelude::*;

create_exception!(
    ckpt_opt,
    CkptOptError,
    PyException,
    "Nothing was written, for the reason that this says."
);
create_exception!(
    ckpt_opt,
    UsageError,
    CkptOptError,
    "An argument is not what was expected."
);
create_exception!(
    ckpt_opt,
    InfeasibleError,
    CkptOptError,
    "No plan fits the budget. Its arguments are a text, the budget and the smallest peak that was found in bytes, and what \
     holds that: names and bytes."
);

/// A file, or what would be in it.
#[derive(FromPyObject)]
pub(crate) enum Source {
    /// `bytes`.
    Bytes(Vec<u8>),
    /// A path.
    File(PathBuf),
}

impl Source {
    pub(crate) fn open(self) -> Result<Model, Error> {
        Ok(match self {
            Source::File(path) => Model::open(&path)?,
            Source::Bytes(bytes) => Model::from_bytes(bytes.into())?,
        })
    }
}

/// The optimizer of that name, or of the optimizer model that it is.
pub(crate) fn find_optimizer(source: &Source) -> Result<Optimizer, OptimizerError> {
    match source {
        Source::File(name) => Optimizer::find(&name.to_string_lossy()),
        Source::Bytes(model) => {
            let model = Model::from_bytes(model.clone().into())?;
            Optimizer::of_model(&model, Path::new(ARGUMENT))
        }
    }
}

/// What [`Options`] has, as a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Settings {
    dims: BTreeMap<String, u64>,
    reserve: String,
    /// A name, a file, or a model.
    optimizer: Option<Source>,
    /// A name, a file, or JSON.
    device: Source,
    costs: Option<Source>,
    profile: Option<Source>,
    conv_table: Option<Source>,
    runtime: Option<String>,
    runtime_settings: Option<String>,
    threads: Option<i64>,
    order: Option<String>,
    level: Option<String>,
    strategy: String,
    variants: Vec<String>,
    allow: Vec<String>,
    seed: u64,
    time_limit: Option<f64>,
    certify: bool,
}

/// As errors call what is no file.
const ARGUMENT: &str = "the argument";

impl Settings {
    pub(crate) fn options(self) -> PyResult<Options> {
        let usage = |text: String| UsageError::new_err(text);
        let reserve = inputs::parse_size(&self.reserve)
            .map_err(|problem| usage(format!("reserve {:?}: {problem}", self.reserve)))?;
        let runtime_settings = match self.runtime_settings.as_deref() {
            None => None,
            Some(given) => {
                let named = |one: &RuntimeSettings| one.name() == given;
                let found = RuntimeSettings::ALL.into_iter().find(named);
                Some(found.ok_or_else(|| {
                    usage(format!(
                        "runtime_settings {given:?}: expected default, no-pattern or lean"
                    ))
                })?)
            }
        };
        let threads =
            match self.threads {
                None => None,
                Some(count) => {
                    let threads = u32::try_from(count)
                        .ok()
                        .filter(|count| Options::THREADS.contains(count));
                    let [first, last] = [Options::THREADS.start(), Options::THREADS.end()];
                    Some(threads.ok_or_else(|| {
                        usage(format!("threads {count}: expected {first} to {last}"))
                    })?)
                }
            };
        let (order, level) = (self.order.as_deref(), self.level.as_deref());
        let promise = Promise::said(order, level).ok_or_else(|| {
            let orders = Promise::ORDERS.map(|(name, _)| name).join(", ");
            let levels = Promise::LEVELS.map(|(name, _)| name).join(", ");
            usage(format!(
                "order {:?} and level {:?}: expected one of {orders}, and one of {levels}",
                order.unwrap_or("any"),
                level.unwrap_or("any")
            ))
        })?;
        let runtime = match self.runtime.as_deref() {
            None => None,
            Some(name) => Some(Release::named(name).ok_or_else(|| {
                let known = Release::ALL.map(|release| release.name).join(", ");
                usage(format!("runtime {name:?}: expected one of {known}"))
            })?),
        };
        let strategy = self
            .strategy
            .parse()
            .map_err(|problem| usage(format!("strategy {:?}: {problem}", self.strategy)))?;
        let mut variants = Vec::new();
        for name in &self.variants {
            match name.as_str() {
                "none" => {}
                "all" => variants.extend(Group::ALL),
                name => {
                    let group = Group::ALL.into_iter().find(|group| group.name() == name);
                    let known = || Group::ALL.map(Group::name).join(", ");
                    variants.push(group.ok_or_else(|| {
                        usage(format!(
                            "variants {name:?}: expected none, all, {}",
                            known()
                        ))
                    })?);
                }
            }
        }
        for name in &self.allow {
            if !APPROXIMATIONS.iter().any(|one| one.name == name) {
                let known: Vec<&str> = APPROXIMATIONS.iter().map(|one| one.name).collect();
                return Err(usage(format!(
                    "allow {name:?}: expected one of {}",
                    known.join(", ")
                )));
            }
        }
        let time_limit = match self.time_limit {
            None => None,
            Some(seconds) => Some(
                Duration::try_from_secs_f64(seconds)
                    .ok()
                    .filter(|limit| !limit.is_zero())
                    .ok_or_else(|| {
                        usage(format!("time_limit {seconds}: expected seconds above 0"))
                    })?,
            ),
        };
        let mut device = match &self.device {
            Source::File(name) => inputs::find_device(&name.to_string_lossy()),
            Source::Bytes(text) => inputs::parse_device(text, Path::new(ARGUMENT)),
        }
        .map_err(|error| failed(error.into()))?;
        if let Some(table) = &self.conv_table {
            let table = match table {
                Source::File(path) => inputs::read_conv_table(path, &device.name)
                    .map_err(|error| failed(error.into()))?,
                Source::Bytes(text) => inputs::parse_conv_table(text, &device.name)
                    .map_err(|problem| usage(format!("conv_table: {problem}")))?,
            };
            device.convolutions.table = Arc::new(table);
        }
        let optimizer = self.optimizer.as_ref().map(find_optimizer).transpose();
        let optimizer = optimizer.map_err(|error| failed(error.into()))?;
        let costs = match &self.costs {
            None => Ok(Default::default()),
            Some(Source::File(path)) => inputs::read_costs(path),
            Some(Source::Bytes(text)) => inputs::parse_costs(text, Path::new(ARGUMENT)),
        }
        .map_err(|error| failed(error.into()))?;
        let profile = match &self.profile {
            None => None,
            Some(Source::File(path)) => Some(inputs::read_profile(path)),
            Some(Source::Bytes(text)) => Some(inputs::parse_profile(text, Path::new(ARGUMENT))),
        };
        let profile = profile.transpose().map_err(|error| failed(error.into()))?;
        Ok(Options {
            dims: self.dims,
            reserve,
            optimizer,
            device,
            costs,
            profile: profile.map(Arc::new),
            runtime,
            runtime_settings,
            threads,
            promise,
            strategy,
            variants: variants.into_iter().collect(),
            allow: self.allow.into_iter().collect(),
            seed: self.seed,
            time_limit,
            certify: self.certify,
            ..Options::default()
        })
    }
}

/// The exception for an error.
pub(crate) fn failed(error: Error) -> PyErr {
    if let Error::Cancelled = error {
        return PyKeyboardInterrupt::new_err(error.to_string());
    }
    let (text, code) = (error.explained(), error.code());
    let exception = match error.infeasible() {
        Some((budget, smallest)) => {
            let holders: Vec<(String, u64)> = smallest
                .holders
                .iter()
                .map(|(name, bytes)| (name.clone(), bytes.0))
                .collect();
            InfeasibleError::new_err((text, budget.0, smallest.bytes.0, holders))
        }
        None if code.is_usage() => UsageError::new_err(text),
        None => CkptOptError::new_err(text),
    };
    Python::attach(|py| {
        let value = exception.value(py);
        let named = value.setattr("code", code.name);
        named.and_then(|()| value.setattr("help", error.remedy()))
    })
    .map_or_else(|problem| problem, |()| exception)
}
