//! What each command does with its arguments: the library's call, and the text of the result.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ckpt_passes::analysis::cost::Overrides;
use ckpt_passes::runtime::Release;
use ckpt_passes::runtime::device::Device;
use ckpt_passes::runtime::promise::Promise;
use ckpt_passes::strategy::Strategy;

use super::arguments::{
    Compare, ConvTable, Inspect, Largest, Lower, ProfileConv, Rewrite, Row, Setting, Sweep,
    Variants, Verify,
};
use super::depfile;
use super::failure::Failure;
use super::messages::Messages;
use super::passes::PassLog;
use super::report_file::{ReportFile, Source, replaces_none};
use crate::conv_table;
use crate::error::Error;
use crate::inputs;
use crate::onnx::{Model, Sink};
use crate::options::Options;
use crate::report::{self, Outcome, rows::Comparison};
use crate::rewrite::{Rewritten, Target, optimize};

/// The text that a command prints, and what it is beside.
#[derive(Debug)]
pub(super) enum Printed {
    /// All that the command was asked for.
    Result(String),
    /// What is said of a file that is in its place already.
    After(String, PathBuf),
    /// The same, where standard output has the file.
    Aside(String),
}

/// Rewrites IN to OUT, and gives the text of the result.
pub(super) fn rewrite(
    arguments: &Rewrite,
    started: Instant,
    messages: &Messages,
) -> Result<Printed, Failure> {
    let setting = options(&arguments.setting, arguments.setting.bindings()?, messages)?;
    let (log, control) = PassLog::watch(&arguments.dump_after, setting.control.clone());
    let options = Options {
        strategy: arguments.strategy,
        control,
        variants: Variants::all_groups(&arguments.variants)?,
        allow: arguments.allow.iter().cloned().collect(),
        seed: arguments.search.seed,
        time_limit: arguments.search.time_limit,
        certify: arguments.certify,
        ..setting
    };
    let output = arguments.out();
    let output = output.map(PathBuf::as_path).filter(|_| !arguments.dry_run);
    messages.progress(format_args!("reading {}", arguments.input.display()));
    let model = open(&arguments.input)?;
    // Before the search, which may take long.
    let target = output.map(|output| Target::new(&model, output));
    let target = target.transpose()?;
    let sources = sources(&model, &arguments.input, &arguments.setting);
    let sink = target.as_ref().map(|target| &target.sink);
    match sink {
        Some(Sink::File(destination)) => replaces_none("OUT", destination, &sources)?,
        Some(Sink::Output) => takes_a_model()?,
        None => {}
    }
    let beside_out = |option, path: &Path, file: ReportFile| match sink {
        Some(sink) if file.is_at(sink) => Err(Failure::SameFile {
            path: path.to_owned(),
            one: option,
            other: "OUT".to_owned(),
        }),
        _ => Ok(Some(file)),
    };
    let file = |option, path: &Option<PathBuf>| {
        let Some(path) = path else { return Ok(None) };
        beside_out(option, path, ReportFile::at(option, path, &sources)?)
    };
    let report_file = file("--report", &arguments.report)?;
    let session_file = file("--session-options", &arguments.session_options)?;
    let plot_file = file("--plot", &arguments.plot)?;
    let trace_file = file("--trace", &arguments.trace)?;
    let depfile = file("--depfile", &arguments.depfile)?;
    let named = [
        output,
        arguments.report.as_deref(),
        arguments.session_options.as_deref(),
        arguments.plot.as_deref(),
        arguments.trace.as_deref(),
        arguments.depfile.as_deref(),
    ];
    let named: Vec<&Path> = named.into_iter().flatten().collect();
    let dumps = arguments.dump_after.iter();
    let dumps = dumps.flat_map(|dump| dump.files(&named)).map(|path| {
        let option = "--dump-after";
        beside_out(option, &path, ReportFile::regular(option, &path, &sources)?)
    });
    let dumps = dumps.collect::<Result<Vec<_>, Failure>>()?;
    let files = [
        &report_file,
        &session_file,
        &plot_file,
        &trace_file,
        &depfile,
    ];
    let files: Vec<_> = files.into_iter().chain(&dumps).collect();
    for (i, one) in files.iter().enumerate() {
        for other in &files[i + 1..] {
            if let (Some(one), Some(other)) = (one, other) {
                one.differs_from(other)?;
            }
        }
    }
    plot_file
        .as_ref()
        .map_or(Ok(()), ReportFile::check_picture)?;
    let optimized = optimize(&model, &arguments.budget, &options);
    let dumped = log.end(arguments.timings, messages);
    let mut rewritten = Some(optimized?);
    dumped.map_err(Error::from)?;
    let prepared = match (&target, rewritten.take_if(|_| target.is_some())) {
        (Some(target), Some(rewritten)) => Some(rewritten.prepare(target)?),
        _ => None,
    };
    let rewritten = match (&prepared, &rewritten) {
        (Some(prepared), _) => prepared.rewritten(),
        (None, Some(rewritten)) => rewritten,
        (None, None) => unreachable!("it is prepared where it was taken"),
    };
    let outcome = Outcome {
        rewritten,
        output,
        costs: arguments.setting.costs.as_deref(),
        total_time: started.elapsed(),
    };
    if let Some(file) = session_file {
        file.write(&rewritten.session().json())?;
    }
    if let Some(file) = report_file {
        let text = match file.ends_with(&["html", "htm"]) {
            true => outcome.page(trade_off(rewritten, messages).as_ref()),
            false => outcome.full_json(),
        };
        file.write(&text)?;
    }
    if let Some(file) = plot_file {
        file.write_picture(&outcome.plot())?;
    }
    if let Some(file) = trace_file {
        file.write(&outcome.trace())?;
    }
    if let (Some(file), Some(output)) = (depfile, output) {
        let paths = sources.iter().map(|source| source.path.as_path());
        file.write(&depfile::line(
            output,
            paths.filter(|path| *path != Path::new(STANDARD)),
        ))?;
    }
    let text = match arguments.search.json {
        true => outcome.json(),
        false => outcome.table(),
    };
    // At last, so that where anything fails there is no file.
    if let Some(prepared) = prepared {
        prepared.commit()?;
    }
    Ok(match target.map(|target| target.sink) {
        Some(Sink::Output) => Printed::Aside(text),
        Some(Sink::File(destination)) => Printed::After(text, destination.name),
        None => Printed::Result(text),
    })
}

/// What other budgets cost, as far as that takes about as long as the plan took; nothing where it cannot be told.
fn trade_off(rewritten: &Rewritten, messages: &Messages) -> Option<Comparison> {
    const LEAST: Duration = Duration::from_secs(2);
    const MOST: Duration = Duration::from_secs(30);
    messages.progress(format_args!("looking at other budgets, for the report"));
    let limit = rewritten.search_time().clamp(LEAST, MOST);
    rewritten.trade_off(limit).ok()
}

/// Shows what a step of IN needs.
pub(super) fn inspect(arguments: &Inspect, messages: &Messages) -> Result<String, Failure> {
    let options = options(&arguments.setting, arguments.setting.bindings()?, messages)?;
    let inspection = crate::inspect(&open(&arguments.input)?, &options)?;
    Ok(match arguments.json {
        true => inspection.json(),
        false => inspection.table(),
    })
}

/// Proves that OUT computes what IN computes, and shows what both need.
pub(super) fn verify(arguments: &Verify, messages: &Messages) -> Result<String, Failure> {
    let options = Options {
        allow: arguments.allow.iter().cloned().collect(),
        ..options(&arguments.setting, arguments.setting.bindings()?, messages)?
    };
    let original = open(&arguments.input)?;
    let written = open(&arguments.output)?;
    let verification = crate::verify(&original, &written, &options)?;
    Ok(report::verification(&verification))
}

/// Writes the training operators of IN in standard ones to OUT, and shows which they were.
pub(super) fn lower(arguments: &Lower, messages: &Messages) -> Result<Printed, Failure> {
    let dims = arguments.bindings()?;
    messages.progress(format_args!("reading {}", arguments.input.display()));
    let model = open(&arguments.input)?;
    let target = Target::new(&model, arguments.out())?;
    match &target.sink {
        Sink::File(destination) => {
            let mut sources = model_files(&model, &arguments.input);
            sources.extend(optimizer_file(arguments.optimizer.as_deref()));
            replaces_none("OUT", destination, &sources)?;
        }
        Sink::Output => takes_a_model()?,
    }
    let optimizer = arguments.optimizer.as_deref().map(inputs::Optimizer::find);
    let update = optimizer.map(|found| found.and_then(inputs::Optimizer::update));
    let update = update.transpose().map_err(Error::from)?;
    let lowered = crate::lower(&model, &dims, update)?;
    messages.progress(format_args!("writing {}", target.path().display()));
    let text = match arguments.json {
        true => report::lowering_json(&lowered),
        false => report::lowering(&lowered),
    };
    lowered.prepare(&target)?.commit().map_err(Error::from)?;
    Ok(match target.sink {
        Sink::Output => Printed::Aside(text),
        Sink::File(destination) => Printed::After(text, destination.name),
    })
}

/// Shows what a row of budgets costs.
pub(super) fn sweep(arguments: &Sweep, messages: &Messages) -> Result<String, Failure> {
    let comparison = compared(&arguments.row, &[arguments.strategy], messages)?;
    Ok(match arguments.row.search.json {
        true => comparison.json(),
        false => comparison.sweep(),
    })
}

/// Shows what every strategy makes of the same graph.
pub(super) fn compare(arguments: &Compare, messages: &Messages) -> Result<String, Failure> {
    let strategies = match arguments.strategies.is_empty() {
        true => Strategy::ALL.to_vec(),
        false => arguments.strategies.clone(),
    };
    let comparison = compared(&arguments.row, &strategies, messages)?;
    Ok(match arguments.row.search.json {
        true => comparison.json(),
        false => comparison.table(),
    })
}

fn compared(
    row: &Row,
    strategies: &[Strategy],
    messages: &Messages,
) -> Result<Comparison, Failure> {
    let options = Options {
        seed: row.search.seed,
        variants: Variants::all_groups(&row.variants)?,
        time_limit: row.search.time_limit,
        ..options(&row.setting, row.setting.bindings()?, messages)?
    };
    let model = open(&row.input)?;
    // Before the search, which may take long.
    let sources = sources(&model, &row.input, &row.setting);
    let plot = row.plot.as_deref();
    let plot = plot
        .map(|path| ReportFile::at("--plot", path, &sources))
        .transpose()?;
    plot.as_ref().map_or(Ok(()), ReportFile::check_picture)?;
    let budgets = match row.budgets.is_empty() {
        true => crate::usual_budgets(),
        false => row.budgets.clone(),
    };
    let comparison = crate::sweep(&model, &budgets, strategies, &options)?;
    if let Some(plot) = plot {
        plot.write_picture(&comparison.plot())?;
    }
    Ok(comparison)
}

/// Finds the largest size of a dimension that fits.
pub(super) fn largest(arguments: &Largest, messages: &Messages) -> Result<String, Failure> {
    let (dim, dims) = arguments.setting.wanted_and_bindings()?;
    let options = Options {
        seed: arguments.search.seed,
        time_limit: arguments.search.time_limit,
        ..options(&arguments.setting, dims, messages)?
    };
    let (budget, at_most) = (&arguments.budget, arguments.at_most);
    let found = crate::largest(&open(&arguments.input)?, &dim, budget, at_most, &options)?;
    Ok(match arguments.search.json {
        true => found.json(&dim),
        false => found.text(&dim, budget, at_most),
    })
}

/// What each convolution takes with each of cuDNN's algorithms, as JSON.
pub(super) fn conv_table(arguments: &ConvTable, messages: &Messages) -> Result<String, Failure> {
    let options = options(&arguments.setting, arguments.setting.bindings()?, messages)?;
    conv_table::has_cudnn("conv-table", &options.device)?;
    Ok(conv_table::modelled(&open(&arguments.input)?, &options)?)
}

/// The same, measured on this machine's GPU.
pub(super) fn profile_conv(
    arguments: &ProfileConv,
    messages: &Messages,
) -> Result<String, Failure> {
    // Whoever has none need not wait.
    let gpu = conv_table::open_gpu(arguments.cudart.as_deref(), arguments.cudnn.as_deref())?;
    let table = &arguments.table;
    let options = options(&table.setting, table.setting.bindings()?, messages)?;
    conv_table::has_cudnn("profile-conv", &options.device)?;
    Ok(conv_table::measured(&gpu, &open(&table.input)?, &options)?)
}

/// As a name: standard input or output.
pub(super) const STANDARD: &str = "-";

fn open(path: &Path) -> Result<Model, Failure> {
    if path != Path::new(STANDARD) {
        return Ok(Model::open(path).map_err(Error::from)?);
    }
    let input = io::stdin();
    if input.is_terminal() {
        return Err(Failure::Usage(
            "standard input is a terminal; expected an ONNX model there, from a file or a program"
                .to_owned(),
        ));
    }
    // One byte more than a model can have, so that reading it says that it is too large.
    let mut bytes = Vec::new();
    let read = input.lock().take((1 << 31) + 1).read_to_end(&mut bytes);
    read.map_err(Failure::Input)?;
    Ok(Model::from_bytes(bytes.into()).map_err(Error::from)?)
}

/// An error if what goes to standard output is for nobody.
fn takes_a_model() -> Result<(), Failure> {
    match () {
        () if io::stdout().is_terminal() => Err(Failure::Terminal),
        () if is_output_closed() => Err(Failure::Closed),
        () => Ok(()),
    }
}

/// Was standard output closed when the program began? Then Rust has opened the null device in its place, for reading as
/// well, which whoever throws an output away need not do.
fn is_output_closed() -> bool {
    let state = fs::read_to_string("/proc/self/fdinfo/1").unwrap_or_default();
    let flags = state.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    let file = fs::read_link("/proc/self/fd/1").unwrap_or_default();
    file == Path::new("/dev/null") && flags.is_some_and(|flags| flags & 3 == 2)
}

/// What the arguments and the files that they name say.
fn options(
    setting: &Setting,
    dims: BTreeMap<String, u64>,
    messages: &Messages,
) -> Result<Options, Failure> {
    let profile = setting.profile.as_deref().map(inputs::read_profile);
    let profile = profile.transpose().map_err(Error::from)?;
    let optimizer = setting.optimizer.as_deref().map(inputs::Optimizer::find);
    Ok(Options {
        dims,
        reserve: setting.reserve,
        optimizer: optimizer.transpose().map_err(Error::from)?,
        device: device(setting)?,
        costs: costs(setting)?,
        profile: profile.map(Arc::new),
        runtime: setting.runtime.as_deref().and_then(Release::named),
        runtime_settings: setting.runtime_settings.map(|settings| settings.settings()),
        threads: setting.threads,
        promise: Promise::said(setting.order.as_deref(), setting.level.as_deref()).flatten(),
        control: messages.control(),
        ..Options::default()
    })
}

fn costs(setting: &Setting) -> Result<Overrides, Error> {
    let costs = setting.costs.as_deref().map(inputs::read_costs);
    Ok(costs.transpose()?.unwrap_or_default())
}

/// The device, with what the table says of its convolutions.
fn device(setting: &Setting) -> Result<Device, Error> {
    let mut device = inputs::find_device(&setting.device)?;
    if let Some(path) = &setting.conv_table {
        conv_table::has_cudnn("--conv-table", &device)?;
        let table = inputs::read_conv_table(path, &device.name)?;
        device.convolutions.table = Arc::new(table);
    }
    Ok(device)
}

/// The files that are read, which nothing may replace: the model and its data, and what the options
/// name.
fn sources(model: &Model, input: &Path, setting: &Setting) -> Vec<Source> {
    let source = |option: &str, path: PathBuf| Source {
        option: option.to_owned(),
        path,
    };
    let named = [
        ("--costs", &setting.costs),
        ("--profile", &setting.profile),
        ("--conv-table", &setting.conv_table),
    ];
    let named = named.map(|(option, path)| path.clone().map(|path| source(option, path)));
    let device = Some(PathBuf::from(&setting.device)).filter(|path| path.is_file());
    model_files(model, input)
        .into_iter()
        .chain(named.into_iter().flatten())
        .chain(device.map(|path| source("--device", path)))
        .chain(optimizer_file(setting.optimizer.as_deref()))
        .collect()
}

/// The optimizer's model, where the option names a file.
fn optimizer_file(name: Option<&str>) -> Option<Source> {
    let path = name.map(PathBuf::from).filter(|path| path.is_file())?;
    Some(Source {
        option: "--optimizer".to_owned(),
        path,
    })
}

/// The model and its data.
fn model_files(model: &Model, input: &Path) -> Vec<Source> {
    let source = |option: String, path: PathBuf| Source { option, path };
    let data = model.external_data().into_iter();
    let data = data.filter_map(|file| {
        let what = format!("the external data {:?}", file.location);
        Some(source(what, file.path?))
    });
    std::iter::once(source("IN".to_owned(), input.to_owned()))
        .chain(data)
        .collect()
}
