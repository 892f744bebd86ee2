//! From the file that is read to the file that is written.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ckpt_passes::analysis::cost::Overrides;
use ckpt_passes::bytes::Bytes;
use ckpt_passes::graph::Graph;
use ckpt_passes::operators::Provider;
use ckpt_passes::operators::variants::{APPROXIMATIONS, Approximation};
use ckpt_passes::optimize::{
    BudgetRequest, Measured, OptimizeError, Options, measure, optimize, stale, verify_written,
};
use ckpt_passes::program::{Solver, Solving};
use ckpt_passes::runtime::device::Device;
use ckpt_passes::runtime::settings::RuntimeSettings;
use ckpt_passes::search::Effort;
use ckpt_passes::strategy::Strategy;
use ckpt_passes::verify::{Correspondence, Role};
use ckpt_passes::watch::Watch;
use thiserror::Error;

use crate::cli::{
    self, ConvTableError, CostsError, DeviceError, Inspect, Messages, Profile, ProfileError,
    Rewrite, Setting, Verify,
};
use crate::conv_table;
use crate::cudnn::GpuError;
use crate::onnx::{
    self, Counterpart, Difference, ExportError, Fault, ImportError, Model, Pending, Sink,
    check_destination, export_with,
};
use crate::report::{self, Outcome, ReportFile, Session};

/// How much work each part of the search may do, in lifetimes worked out: a microsecond each at most.
pub(crate) const EVALUATIONS: u64 = 1_000_000;

/// Why a command did not do what it was asked to do.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Costs(#[from] CostsError),
    #[error(transparent)]
    ConvTable(#[from] ConvTableError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error("{}: {error}", file.display())]
    Optimize {
        file: PathBuf,
        error: Box<OptimizeError>,
    },
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(
        "the written file cannot be read back, so it was not kept: {0}. Please report it with the file that was read"
    )]
    Unreadable(#[source] ImportError),
    #[error("the written file failed verification, so it was not kept: {}. Please report it with the file that was read; --variants none or another budget may work", cause(.0))]
    Written(#[source] Box<OptimizeError>),
    #[error(
        "the written file failed verification, so it was not kept: {0}. Please report it with the file that was read; --variants none or another budget may work"
    )]
    WrittenDiffers(#[source] Difference),
    #[error("{}: ONNX Runtime does not load it: {difference}", file.display())]
    Unsound {
        file: PathBuf,
        difference: Difference,
    },
    #[error("{} does not stand for {}: {difference}", output.display(), input.display())]
    DifferentFile {
        input: PathBuf,
        output: PathBuf,
        difference: Difference,
    },
    #[error("{} does not stand for {}: {}", output.display(), input.display(), cause(error))]
    Different {
        input: PathBuf,
        output: PathBuf,
        error: Box<OptimizeError>,
    },
    #[error("{}: cannot write the report: {error}", path.display())]
    Report { path: PathBuf, error: io::Error },
    #[error("{}: {one} and {other} name one file, which would be lost; give {one} another name", path.display())]
    SameFile {
        path: PathBuf,
        one: &'static str,
        other: String,
    },
    #[error(
        "the written graph is binary, and standard output is a terminal; give OUT a name, or lead the output to a file or a program"
    )]
    Terminal,
    #[error("{}: it was changed while this program worked on it; nothing was written", path.display())]
    Changed { path: PathBuf },
    #[error("cannot print the result: {0}")]
    Print(io::Error),
}

impl Failure {
    /// The exit status that tells a script what went wrong: 1 error, 2 usage, 3 no plan fits.
    pub fn exit_status(&self) -> u8 {
        match self {
            Failure::Usage(_) | Failure::Device(DeviceError::Unknown { .. }) => 2,
            Failure::Optimize { error, .. }
                if matches!(**error, OptimizeError::Infeasible { .. }) =>
            {
                3
            }
            _ => 1,
        }
    }
}

/// What verification found, without whose fault it is.
fn cause(error: &OptimizeError) -> String {
    match error {
        OptimizeError::Verification(violation) => violation.to_string(),
        other => other.to_string(),
    }
}

/// A file that is read, and what names it.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) option: String,
    pub(crate) path: PathBuf,
}

/// Rewrites IN to OUT, and gives the text of the result.
pub fn rewrite(
    arguments: &Rewrite,
    started: Instant,
    messages: &Messages,
) -> Result<Printed, Failure> {
    let profile = profile(&arguments.setting)?;
    let mut options = Options {
        budget: arguments.budget.budget,
        allowed: arguments.allow.iter().cloned().collect(),
        variants: arguments
            .variants
            .iter()
            .flat_map(|chosen| chosen.groups())
            .collect(),
        strategy: arguments.strategy,
        effort: Effort {
            seed: arguments.seed,
            evaluations: EVALUATIONS,
        },
        watch: arguments.time_limit.map_or_else(Arc::default, watch_for),
        solving: solving(arguments)?,
        ..options(&arguments.setting, profile.as_ref())?
    };
    let output = arguments.output.as_deref().filter(|_| !arguments.dry_run);
    messages.progress(format_args!("reading {}", arguments.input.display()));
    let model = Model::open(&arguments.input)?;
    // Before the search, which may take long.
    if output.is_some() {
        onnx::sound(&model).map_err(|difference| Failure::Unsound {
            file: arguments.input.clone(),
            difference,
        })?;
    }
    let sources = sources(&model, &arguments.input, &arguments.setting);
    let sink = output.map(|output| check_destination(&model, output));
    let sink = sink.transpose()?;
    match &sink {
        Some(Sink::File(destination)) => report::replaces_none("OUT", destination, &sources)?,
        Some(Sink::Output) if io::stdout().is_terminal() => return Err(Failure::Terminal),
        _ => {}
    }
    let file = |option, path: &Option<PathBuf>| {
        let Some(path) = path else { return Ok(None) };
        let file = ReportFile::at(option, path, &sources)?;
        match &sink {
            Some(sink) if file.is_at(sink) => Err(Failure::SameFile {
                path: path.clone(),
                one: option,
                other: "OUT".to_owned(),
            }),
            _ => Ok(Some(file)),
        }
    };
    let report_file = file("--report", &arguments.report)?;
    let session_file = file("--session-options", &arguments.session_options)?;
    let plot_file = file("--plot", &arguments.plot)?;
    let files = [&report_file, &session_file, &plot_file];
    for (i, one) in files.iter().enumerate() {
        for other in &files[i + 1..] {
            if let (Some(one), Some(other)) = (one, other) {
                one.differs_from(other)?;
            }
        }
    }
    let original = graph(&model, profile.as_ref(), &options)?;
    warn(&model, &original, &options, profile.as_ref(), messages);

    let nodes = original.order().len();
    messages.progress(format_args!(
        "planning {nodes} nodes for a budget of {}",
        arguments.budget.text
    ));
    let mut search_time = Duration::ZERO;
    let (optimized, planned, pending) = loop {
        let searching = Instant::now();
        let optimized = messages.watching(&options.watch, || optimize(&original, &options));
        search_time += searching.elapsed();
        if optimized.is_err() && options.watch.is_stopped() {
            messages
                .warning("--time-limit ended the search early; with more time there may be a plan");
        }
        let optimized = optimized.map_err(|error| Failure::Optimize {
            file: arguments.input.clone(),
            error: error.into(),
        })?;
        for fault in &optimized.summary.faults {
            messages.warning(report::given_up(fault));
        }
        // What the written file holds for.
        let mut planned = options.clone();
        if let Some(choice) = optimized.summary.convolutions {
            planned.device.convolutions.choice = choice;
        }
        let Some(output) = output else {
            break (optimized, planned, None);
        };
        messages.progress(format_args!("writing {}", output.display()));
        let unchanged = || match model.has_changed() {
            true => Err(Failure::Changed {
                path: arguments.input.clone(),
            }),
            false => Ok(()),
        };
        unchanged()?;
        let session = Session::of(&planned, &optimized.summary);
        let file = export_with(&model, &optimized.graph, output, &session.metadata())?;
        unchanged()?;
        let budget = optimized.summary.budget;
        match verify_pending(&model, &file, &original, &planned, profile.as_ref(), budget) {
            Ok(()) => break (optimized, planned, Some(file)),
            // Without them it is another file.
            Err(failure) if !optimized.summary.variants.is_empty() => {
                messages.warning(report::given_up(format_args!("with variants, {failure}")));
                options.variants.clear();
                options.allowed.clear();
            }
            Err(failure) => return Err(failure),
        }
    };
    for way in optimized.summary.over_budget() {
        messages.warning(format_args!(
            "the graph stays as it is, which fits the budget in DEFAULT order at ORT_DISABLE_ALL, and takes {} in {} order at {}",
            way.bytes,
            way.order.name(),
            way.level.name()
        ));
    }
    let options = planned;
    let session = Session::of(&options, &optimized.summary);
    let outcome = Outcome {
        arguments,
        output,
        device: &options.device.name,
        original: &original,
        optimized: &optimized,
        search_time,
        total_time: started.elapsed(),
    };
    if let Some(file) = session_file {
        file.write(&session.json())?;
    }
    if let Some(file) = report_file {
        file.write(&outcome.full_json())?;
    }
    if let Some(file) = plot_file {
        file.write(&outcome.plot())?;
    }
    // At last, so that where anything fails there is no file.
    if let Some(pending) = pending {
        pending.commit()?;
    }
    let text = match arguments.json {
        true => outcome.json(),
        false => outcome.table(),
    };
    Ok(match sink {
        Some(Sink::Output) => Printed::Aside(text),
        Some(Sink::File(destination)) => Printed::After(text, destination.name),
        None => Printed::Result(text),
    })
}

/// The text that a command prints, and what it is beside.
pub enum Printed {
    /// All that the command was asked for.
    Result(String),
    /// What is said of a file that is in its place already.
    After(String, PathBuf),
    /// The same, where standard output has the file.
    Aside(String),
}

/// Reads the file back, as it lies on the disk, and proves that it is what was promised.
fn verify_pending(
    model: &Model,
    pending: &Pending,
    original: &Graph,
    options: &Options,
    profile: Option<&Profile>,
    budget: Bytes,
) -> Result<(), Failure> {
    let file = Model::open(pending.path()).map_err(Failure::Unreadable)?;
    let written = graph(&file, profile, options).map_err(Failure::Unreadable)?;
    let found = verify_written(original, &written, options, budget)
        .map_err(|error| Failure::Written(error.into()))?;
    let nodes = counterparts(original, &written, &found);
    onnx::compare(model, &file, &nodes, report::METADATA).map_err(Failure::WrittenDiffers)
}

/// What the nodes of the written file come from, by their places in the files.
fn counterparts(original: &Graph, written: &Graph, found: &Correspondence) -> Vec<Counterpart> {
    let mut nodes = vec![Counterpart::New; written.node_count()];
    let place = |graph: &Graph, id| graph.node(id).template.map(|place| place as usize);
    for id in written.node_ids() {
        let counterpart = match found.role(id) {
            Role::Original(of) => place(original, of).map(Counterpart::Same),
            Role::Copy(of) | Role::Variant(of) => place(original, of).map(Counterpart::InsteadOf),
            Role::Barrier | Role::Release => None,
        };
        if let (Some(counterpart), Some(place)) = (counterpart, place(written, id)) {
            nodes[place] = counterpart;
        }
    }
    nodes
}

/// Shows what a step of IN needs.
pub fn inspect(arguments: &Inspect, messages: &Messages) -> Result<String, Failure> {
    let profile = profile(&arguments.setting)?;
    let options = options(&arguments.setting, profile.as_ref())?;
    let model = Model::open(&arguments.input)?;
    let graph = graph(&model, profile.as_ref(), &options)?;
    warn(&model, &graph, &options, profile.as_ref(), messages);
    let measured = measured(&arguments.input, &graph, &options)?;
    Ok(report::inspection(&graph, &measured))
}

/// Proves that OUT computes what IN computes, and shows what both need.
pub fn verify(arguments: &Verify, messages: &Messages) -> Result<String, Failure> {
    let profile = profile(&arguments.setting)?;
    let options = Options {
        allowed: arguments.allow.iter().cloned().collect(),
        ..options(&arguments.setting, profile.as_ref())?
    };
    let model = Model::open(&arguments.input)?;
    let original = graph(&model, profile.as_ref(), &options)?;
    warn(&model, &original, &options, profile.as_ref(), messages);
    let file = Model::open(&arguments.output)?;
    let written = graph(&file, profile.as_ref(), &options)?;
    let before = measured(&arguments.input, &original, &options)?;
    let after = measured(&arguments.output, &written, &options)?;
    let unlimited = Bytes(u64::MAX);
    let found = verify_written(&original, &written, &options, unlimited).map_err(|error| {
        Failure::Different {
            input: arguments.input.clone(),
            output: arguments.output.clone(),
            error: error.into(),
        }
    })?;
    let nodes = counterparts(&original, &written, &found);
    onnx::compare(&model, &file, &nodes, report::METADATA).map_err(|difference| {
        Failure::DifferentFile {
            input: arguments.input.clone(),
            output: arguments.output.clone(),
            difference,
        }
    })?;
    Ok(report::verification(&before, &after))
}

fn measured(file: &Path, graph: &Graph, options: &Options) -> Result<Measured, Failure> {
    measure(graph, options).map_err(|error| Failure::Optimize {
        file: file.to_owned(),
        error: error.into(),
    })
}

pub(crate) fn profile(setting: &Setting) -> Result<Option<Profile>, ProfileError> {
    let path = setting.profile.as_deref();
    path.map(cli::read_profile).transpose()
}

/// The model's graph, with what the profile tells of its shapes.
pub(crate) fn graph(
    model: &Model,
    profile: Option<&Profile>,
    options: &Options,
) -> Result<Graph, ImportError> {
    let mut graph = model.sorted_graph()?;
    if let Some(profile) = profile {
        profile.tell(&mut graph, &options.bindings);
    }
    Ok(graph)
}

/// What `--profile` and `--costs` say; the latter goes first, entry by entry.
fn overrides(setting: &Setting, profile: Option<&Profile>) -> Result<Overrides, Failure> {
    let mut overrides = profile.map_or_else(Overrides::new, |profile| profile.times.clone());
    if let Some(path) = &setting.costs {
        for (node, said) in cli::read_costs(path)? {
            let entry = overrides.entry(node).or_default();
            entry.time_us = said.time_us.or(entry.time_us);
            entry.workspace_bytes = said.workspace_bytes.or(entry.workspace_bytes);
            entry.recomputable = said.recomputable.or(entry.recomputable);
            entry.mirrors = said.mirrors.or(entry.mirrors);
        }
    }
    Ok(overrides)
}

/// Ends what it watches when the time is over. The thread ends with the program.
pub(crate) fn watch_for(limit: Duration) -> Arc<Watch> {
    let watch = Arc::new(Watch::default());
    let watched = watch.clone();
    let wait = move || {
        thread::sleep(limit);
        watched.stop();
    };
    if thread::Builder::new().spawn(wait).is_err()
        && let Some(end) = Instant::now().checked_add(limit)
    {
        // No thread is to be had: whoever searches looks at the clock.
        watch.stop_at(end);
    }
    watch
}

/// The solver of this build, and what it is to do.
fn solving(arguments: &Rewrite) -> Result<Solving, Failure> {
    let solving = Solving {
        certify: arguments.certify,
        ..solver(arguments.time_limit)
    };
    if solving.certify && solving.solver.is_none() {
        return Err(Failure::Usage(
            "--certify needs a solver, which this build does not have: cargo xtask highs builds it \
             with one"
                .to_owned(),
        ));
    }
    Ok(solving)
}

/// The solver of this build, for a strategy that is to end within the limit.
pub(crate) fn solver(limit: Option<Duration>) -> Solving {
    #[cfg(feature = "highs")]
    let solver: Option<Arc<dyn Solver>> = Some(Arc::new(crate::solver::Highs {
        until: limit.and_then(|limit| std::time::Instant::now().checked_add(limit)),
    }));
    #[cfg(not(feature = "highs"))]
    let solver: Option<Arc<dyn Solver>> = None;
    Solving {
        solver,
        seconds: limit.map(|limit| limit.as_secs_f64()),
        ..Solving::default()
    }
}

/// The device, with what the table says of its convolutions.
fn device(setting: &Setting) -> Result<Device, Failure> {
    let mut device = cli::find_device(&setting.device)?;
    if let Some(path) = &setting.conv_table {
        conv_table::has_cudnn("--conv-table", &device)?;
        device.convolutions.table = Arc::new(cli::read_conv_table(path, &device.name)?);
    }
    Ok(device)
}

/// What the arguments and the files that they name say; the budget is for the caller to set.
pub(crate) fn options(setting: &Setting, profile: Option<&Profile>) -> Result<Options, Failure> {
    Ok(Options {
        bindings: setting.bindings()?,
        budget: BudgetRequest::Smallest,
        reserve: setting.reserve,
        device: device(setting)?,
        overrides: overrides(setting, profile)?,
        variants: Default::default(),
        allowed: Default::default(),
        strategy: Strategy::Auto,
        effort: Effort {
            seed: 0,
            evaluations: EVALUATIONS,
        },
        settings: setting.runtime_settings.settings(),
        watch: Arc::default(),
        solving: Solving::default(),
    })
}

/// The files that are read, which nothing may replace: the model and its data, and what the options
/// name.
pub(crate) fn sources(model: &Model, input: &Path, setting: &Setting) -> Vec<Source> {
    let source = |option: &str, path: PathBuf| Source {
        option: option.to_owned(),
        path,
    };
    let data = model.external_data().into_iter();
    let data = data.filter_map(|file| {
        let what = format!("the external data {:?}", file.location);
        Some(source(&what, file.path?))
    });
    let named = [
        ("--costs", &setting.costs),
        ("--profile", &setting.profile),
        ("--conv-table", &setting.conv_table),
    ];
    let named = named.map(|(option, path)| path.clone().map(|path| source(option, path)));
    let device = Some(PathBuf::from(&setting.device)).filter(|path| path.is_file());
    std::iter::once(source("IN", input.to_owned()))
        .chain(data)
        .chain(named.into_iter().flatten())
        .chain(device.map(|path| source("--device", path)))
        .collect()
}

/// Says what in the model and the options does not go together.
pub(crate) fn warn(
    model: &Model,
    graph: &Graph,
    options: &Options,
    profile: Option<&Profile>,
    messages: &Messages,
) {
    for file in model.external_data() {
        let (tensor, location) = (&file.tensor, &file.location);
        match file.fault() {
            None => {}
            Some(Fault::Missing) => messages.warning(format_args!(
                "the model keeps {tensor:?} in {location:?}, which is missing: it cannot run without"
            )),
            Some(Fault::NotAFile) => messages.warning(format_args!(
                "the model keeps {tensor:?} in {location:?}, which is not a file: it cannot run so"
            )),
            Some(Fault::Ends(end)) => messages.warning(format_args!(
                "the model keeps {:?} in {location:?} up to byte {}, but that ends at byte {end}: it cannot run so",
                file.last, file.bytes
            )),
        }
    }
    let stale = stale(graph, options);
    if let Some(first) = stale.first() {
        let more = match stale.len() - 1 {
            0 => String::new(),
            more => format!(" (and so are {more} more)"),
        };
        messages.warning(format_args!(
            "{:?} is declared as {}, but {} makes it {}{more}: sizes are taken as the nodes make them",
            first.tensor, first.declared, first.node, first.inferred
        ));
    }
    if has_yield(graph) {
        let settings = match options.settings {
            RuntimeSettings::LEAN => "",
            _ => {
                "; ORTModule turns enable_mem_reuse and enable_mem_pattern off: --runtime-settings lean reaches less"
            }
        };
        messages.warning(format_args!(
            "the graph has a YieldOp, as ORTModule's graphs do: what PyTorch keeps between its two halves is not \
             counted{settings}"
        ));
    }
    let replaces =
        |one: &&Approximation| options.allowed.contains(one.name) && !one.variants.is_empty();
    if options.strategy != Strategy::Auto {
        for one in APPROXIMATIONS.iter().filter(replaces) {
            messages.warning(format_args!(
                "--allow {} changes nothing with --strategy {}: only auto replaces such nodes",
                one.name, options.strategy
            ));
        }
    }
    for doubt in profile
        .into_iter()
        .flat_map(|profile| profile.doubts(graph, &options.bindings))
    {
        messages.warning(doubt);
    }
    let (missing, all) = conv_table::missing(graph, options);
    if missing > 0 {
        messages.warning(format_args!(
            "the convolution table has nothing for {missing} of {all} products of convolutions, which are worked out"
        ));
    }
    let overrunning = overrunning(graph);
    if options.device.provider == Provider::Cpu && !overrunning.is_empty() {
        messages.warning(format_args!(
            "ONNX Runtime 1.19.2 clears memory behind the result of gradients of convolutions with groups and \
             one or three axes on the CPU, so gradients can be wrong, in either graph: {}",
            report::some_of(&overrunning)
        ));
    }
    let unknown = cli::unknown_nodes(&options.overrides, graph);
    if !unknown.is_empty() {
        messages.warning(format_args!(
            "the cost table has {} of {} entries for nodes that the graph does not have: {}",
            unknown.len(),
            options.overrides.len(),
            report::some_of(&unknown)
        ));
    }
}

/// The names of the nodes whose CPU kernel writes behind dX (`tools/test_variants.py`).
fn overrunning(graph: &Graph) -> Vec<&str> {
    let nodes = graph.order().iter().map(|&id| graph.node(id));
    let found = nodes.filter(|node| {
        let weights = node
            .input(2)
            .and_then(|w| graph.tensor(w).declared.as_ref());
        node.is("com.microsoft", "ConvGrad")
            && node.output(0).is_some()
            && node.int("group").unwrap_or(1) > 1
            && weights.is_some_and(|dims| dims.len() != 4)
    });
    found.map(|node| node.name.as_str()).collect()
}

/// Does the graph hand over to PyTorch in the middle?
fn has_yield(graph: &Graph) -> bool {
    let nodes = graph.order().iter().map(|&id| graph.node(id));
    nodes
        .into_iter()
        .any(|node| node.is("com.microsoft", "YieldOp"))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    /// What becomes of a file with `change` made to the graph, when it is verified within
    /// `budget`.
    fn refused(change: impl FnOnce(&mut Graph), budget: Bytes) -> String {
        let file = "testdata/onnx/conv_bn_relu_train.onnx";
        let model = Model::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let original = model.graph().unwrap();
        let mut changed = original.clone();
        change(&mut changed);
        let options = Options {
            bindings: Default::default(),
            budget: BudgetRequest::Smallest,
            reserve: Bytes::ZERO,
            device: Device::preset("cpu").unwrap(),
            overrides: Overrides::new(),
            variants: Default::default(),
            allowed: Default::default(),
            strategy: Strategy::Auto,
            effort: Effort {
                seed: 0,
                evaluations: 0,
            },
            settings: RuntimeSettings::LEAN,
            watch: Arc::default(),
            solving: Solving::default(),
        };
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out.onnx");
        let pending = export_with(&model, &changed, &out, &[]).unwrap();
        let failure =
            verify_pending(&model, &pending, &original, &options, None, budget).unwrap_err();
        drop(pending);
        assert_eq!(failure.exit_status(), 1);
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 0, "no file is left behind");
        report::failure(&failure)
    }

    #[test]
    fn gradients_that_the_runtime_gets_wrong_are_named() {
        let found = |axes: &str, attributes: &str| {
            let text = format!(
                "<ir_version: 8, opset_import: [\"com.microsoft\" : 1]>
                g (float[2,4,{axes}] dy, float[2,4,{axes}] x, float[4,2,{axes}] w) => (float[2,4,{axes}] dx)
                {{ [grad] dx = com.microsoft.ConvGrad {attributes} (dy, x, w) }}"
            );
            overrunning(&Graph::parse(&text).unwrap()).len()
        };
        assert_eq!(found("1", "<group = 2>"), 1);
        assert_eq!(found("1,1,1", "<group = 2>"), 1);
        assert_eq!(found("1,1", "<group = 2>"), 0);
        assert_eq!(found("1", ""), 0);
    }

    #[test]
    fn a_file_that_computes_something_else_is_not_kept() {
        let other_activation = |graph: &mut Graph| {
            let relu = |&id: &_| graph.node(id).name == "relu1";
            let id = *graph.order().iter().find(|id| relu(id)).unwrap();
            graph.node_mut(id).op_type = "Sigmoid".to_owned();
        };
        assert_snapshot!(refused(other_activation, Bytes(u64::MAX)), @r#"the written file failed verification, so it was not kept: Sigmoid "relu1" must keep its operator: expected Relu, found Sigmoid. Please report it with the file that was read; --variants none or another budget may work"#);
    }

    #[test]
    fn a_file_that_needs_more_than_the_budget_is_not_kept() {
        assert_snapshot!(refused(|_| (), Bytes(100_000)), @"the written file failed verification, so it was not kept: the peak in DEFAULT order is 189 KiB, above the budget of 97.7 KiB. Please report it with the file that was read; --variants none or another budget may work");
    }
}
