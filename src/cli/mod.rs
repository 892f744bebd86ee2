//! The command line: from arguments to what [`crate::run`] is asked to do, and from what it
//! says to an exit status.

mod convolutions;
mod costs;
mod device;
mod messages;
mod profile;
mod rows;
mod size;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use std::time::Instant;

use ckpt_passes::bytes::Bytes;
use ckpt_passes::operators::variants::{APPROXIMATIONS, Group};
use ckpt_passes::optimize::BudgetRequest;
use ckpt_passes::runtime::settings;
use ckpt_passes::strategy::Strategy;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

pub use convolutions::{ConvTableError, parse as parse_conv_table, read as read_conv_table};
pub use costs::{CostsError, parse as parse_costs, read as read_costs, unknown_nodes};
pub use device::{DeviceError, find as find_device, parse as parse_device};
pub use messages::Messages;
pub use profile::{Profile, ProfileError, parse as parse_profile, read as read_profile};
pub use rows::{Compare, Row, Sweep};

use crate::compare;
use crate::conv_table;
use crate::report;
use crate::report::text::printable;
use crate::run::{self, Failure, Printed};
use crate::signals;

/// What stands behind the options in the help.
const AFTER_HELP: &str = "\
The promise: run by ONNX Runtime, in DEFAULT as well as in PRIORITY_BASED execution order, with the \
session's settings as --runtime-settings says, one training step of the written graph stays within \
the budget and computes the same results, bit for bit. What the arena reserves without using it \
comes on top.

Exit status: 0 written; 1 error; 2 usage; 3 no plan fits the budget. OUT is whole or not there: where it was \
written and only the result could not be printed, that is a warning.";

/// Rewrites an ONNX Runtime training graph so that one training step fits a memory budget:
/// nodes are reordered, some run a second time instead of keeping their results, some are replaced by
/// others that compute the same bits, and nothing else changes.
#[derive(Debug, Parser)]
#[command(name = "ckpt-opt", version, after_help = AFTER_HELP)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    rewrite: Option<Rewrite>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows what one training step of a graph needs, and which tensors hold its peak.
    Inspect(Inspect),
    /// Checks that OUT computes what IN computes, and shows what both need.
    Verify(Verify),
    /// Shows what a row of budgets costs, in added time; writes no graph.
    Sweep(Sweep),
    /// Plans with all strategies, and shows the exact figures of each; writes no graph.
    Compare(Compare),
    /// Prints time and workspace of each convolution with each of cuDNN's algorithms as JSON, by a
    /// model that was not compared with a GPU, or as --conv-table has them.
    ConvTable(ConvTable),
    /// Prints the same, measured with cuDNN on this machine's first GPU, for --conv-table. The libraries are
    /// loaded when it runs; without a GPU it says so.
    ProfileConv(ProfileConv),
}

/// `ckpt-opt IN OUT --budget SIZE`.
#[derive(Clone, Debug, Args)]
// By its presence clap knows that this, and no subcommand, is meant: nested groups hide the rest.
#[group(arg = "input")]
pub struct Rewrite {
    /// The training graph, forward and backward in one ONNX file.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The file to write, or - for standard output (what would be printed there then goes to standard error). A
    /// link is written through. With --dry-run it may be left out.
    #[arg(value_name = "OUT", required_unless_present = "dry_run")]
    pub output: Option<PathBuf>,
    /// What one training step may take, what the caller owns included: 8GiB, 800MB, 1.5GB,
    /// 123456789 (bytes); 60% (of the peak of the unmodified graph); fixed+50% (what the caller
    /// owns and half of the rest); or min (the smallest peak that is found).
    #[arg(long, value_name = "SIZE", value_parser = parse_budget, allow_hyphen_values = true)]
    pub budget: Requested,
    /// How to plan: auto is this program's own search, the others are published algorithms.
    #[arg(long, value_name = "NAME", default_value_t = Strategy::Auto, value_parser = strategies())]
    pub strategy: Strategy,
    /// The seed of the search. The same input, options and seed give the same file.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// End the search after so many seconds, with what is found by then. Without it, the search
    /// ends by the work it has done, and the result does not depend on the machine's speed.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub time_limit: Option<Duration>,
    /// Prove a higher lower bound with a solver, which takes longer. Needs a build with
    /// --features highs.
    #[arg(long)]
    pub certify: bool,
    /// Which operators may be replaced by others that compute the same bits, if that helps:
    /// none, all, or some of sums (gradients are added up one after another), convolution (other
    /// forms of convolutions' gradients), output-activated (gradients from an activation's output
    /// instead of its input, or back), masks (smaller masks) and copies (batch normalizations again
    /// from their statistics), with commas between.
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "all"
    )]
    pub variants: Vec<Variants>,
    /// Allow variants whose results differ in the last bits or more, by name: batch-slices
    /// (gradients of convolutions in parts of the batch), invertible-layer-norm (gradients of layer
    /// normalizations from the output), reassociated-sums (gradients added up as they appear),
    /// half-precision (inputs of convolutions kept in 16 bits), convolution-algorithms (other ones for copies, in
    /// runtimes that obey). The report says how far off a node can be. Only auto replaces nodes.
    #[arg(long, value_name = "NAME", value_parser = approximations())]
    pub allow: Vec<String>,
    /// What the step is run with.
    #[command(flatten)]
    pub setting: Setting,
    /// Write the result as JSON, with the recomputed nodes and the tensors that hold the peaks.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write the session options that the budget holds for (on a GPU, the provider's options for convolutions
    /// too), and the predicted peaks, as JSON. OUT has the same in its metadata.
    #[arg(long, value_name = "FILE")]
    pub session_options: Option<PathBuf>,
    /// Draw what each moment of a step needs, before and after, as an SVG file.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Plan and verify, but do not write OUT.
    #[arg(long)]
    pub dry_run: bool,
    /// No progress on standard error; warnings and errors still appear.
    #[arg(long)]
    pub quiet: bool,
}

/// What a graph runs with and on.
#[derive(Clone, Debug, Args)]
pub struct Setting {
    /// A value for a symbolic dimension, such as batch=8; once for each. A dimension without a name is called by its
    /// tensor and its place, from 0 up: x:0=8. A pattern gives what depends on data an upper bound: 'unk__*=4096', where *
    /// is any text and ? one letter. Names go before patterns, patterns with more letters before others; what the
    /// graph itself tells goes before patterns too.
    #[arg(long = "dim", value_name = "NAME=N", value_parser = parse_dimension)]
    pub dimensions: Vec<(String, u64)>,
    /// Memory that the graph does not show: optimizer state, CUDA context.
    #[arg(long, value_name = "SIZE", value_parser = size::size, default_value = "0")]
    #[arg(allow_hyphen_values = true)]
    pub reserve: Bytes,
    /// What the graph runs on: a preset, or a JSON file that describes a device.
    #[arg(long, value_name = "NAME|FILE", default_value = "cpu")]
    pub device: String,
    /// Measured costs by node, as JSON: {"nodes": {"NAME": {"time_us": 12.5,
    /// "workspace_bytes": 0, "recomputable": true}}}. With "mirrors": 2 the strategies chen-sqrt,
    /// chen-budget, chen-recursive and cheap-ops compute a node's results again twice; with 0 they
    /// keep them.
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// Time and workspace of convolutions with cuDNN's algorithms, as JSON of the form that ckpt-opt conv-table
    /// prints; for a device with cuDNN. What is not in it is worked out.
    #[arg(long, value_name = "FILE")]
    pub conv_table: Option<PathBuf>,
    /// Node times from a profile that ONNX Runtime wrote of the unmodified graph, optimizations
    /// off, and shapes where nothing else tells them. --costs goes before it.
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// The runtime settings that the peak is for.
    #[arg(long, value_name = "NAME", value_enum, default_value = "default")]
    pub runtime_settings: RuntimeSettings,
}

/// `ckpt-opt inspect IN`.
#[derive(Clone, Debug, Args)]
pub struct Inspect {
    /// The training graph.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// What the step is run with.
    #[command(flatten)]
    pub setting: Setting,
}

/// `ckpt-opt conv-table IN`.
#[derive(Clone, Debug, Args)]
pub struct ConvTable {
    /// The training graph.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// What the step is run with; --device has to name a GPU.
    #[command(flatten)]
    pub setting: Setting,
}

/// `ckpt-opt profile-conv IN`.
#[derive(Clone, Debug, Args)]
pub struct ProfileConv {
    /// What to measure, and for which device.
    #[command(flatten)]
    pub table: ConvTable,
    /// The CUDA runtime, where the system does not find libcudart.so.
    #[arg(long, value_name = "FILE")]
    pub cudart: Option<PathBuf>,
    /// cuDNN, version 8 or 9, where the system does not find libcudnn.so.
    #[arg(long, value_name = "FILE")]
    pub cudnn: Option<PathBuf>,
}

/// `ckpt-opt verify IN OUT`.
#[derive(Clone, Debug, Args)]
pub struct Verify {
    /// The unmodified training graph.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// What ckpt-opt made of it.
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// What OUT was allowed to do that is not bitwise.
    #[arg(long, value_name = "NAME", value_parser = approximations())]
    pub allow: Vec<String>,
    /// What the step is run with.
    #[command(flatten)]
    pub setting: Setting,
}

/// A budget, and how it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Requested {
    /// What it means.
    pub budget: BudgetRequest,
    /// As the user wrote it.
    pub text: String,
}

/// Which operators may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Variants {
    None,
    All,
    Sums,
    Convolution,
    OutputActivated,
    Masks,
    Copies,
}

impl Variants {
    /// What the name stands for.
    pub fn groups(self) -> Vec<Group> {
        match self {
            Variants::None => Vec::new(),
            Variants::All => Group::ALL.to_vec(),
            Variants::Sums => vec![Group::Sums],
            Variants::Convolution => vec![Group::Convolution],
            Variants::OutputActivated => vec![Group::OutputActivated],
            Variants::Masks => vec![Group::Masks],
            Variants::Copies => vec![Group::Copies],
        }
    }
}

/// The settings of ONNX Runtime that a peak is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RuntimeSettings {
    /// As sessions run unless told otherwise: enable_mem_reuse and enable_mem_pattern on.
    Default,
    /// enable_mem_reuse and enable_mem_pattern off.
    Lean,
}

impl RuntimeSettings {
    /// As `--runtime-settings` takes it.
    pub fn name(self) -> &'static str {
        match self {
            RuntimeSettings::Default => "default",
            RuntimeSettings::Lean => "lean",
        }
    }

    /// What they are.
    pub fn settings(self) -> settings::RuntimeSettings {
        match self {
            RuntimeSettings::Default => settings::RuntimeSettings::DEFAULT,
            RuntimeSettings::Lean => settings::RuntimeSettings::LEAN,
        }
    }
}

impl Setting {
    /// The dimensions by name; an error if one has two values.
    pub fn bindings(&self) -> Result<BTreeMap<String, u64>, Failure> {
        let mut bindings = BTreeMap::new();
        for (name, value) in &self.dimensions {
            let before = bindings.insert(name.clone(), *value);
            if let Some(before) = before.filter(|before| before != value) {
                return Err(Failure::Usage(format!(
                    "--dim gives {name:?} two values, {before} and {value}"
                )));
            }
        }
        Ok(bindings)
    }
}

/// Does what the command line says; the exit status says how it went.
pub fn main() -> ExitCode {
    let started = Instant::now();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(refused) => {
            // Whoever closed the stream does not want to read it.
            let _ = refused.print();
            return ExitCode::from(u8::try_from(refused.exit_code()).unwrap_or(2));
        }
    };
    let quiet = match (&arguments.command, &arguments.rewrite) {
        (Some(Command::Sweep(sweep)), _) => sweep.row.quiet,
        (Some(Command::Compare(compare)), _) => compare.row.quiet,
        (_, Some(rewrite)) => rewrite.quiet,
        (_, None) => true,
    };
    let messages = Messages::new(quiet);
    signals::handle();
    let result = match (arguments.command, arguments.rewrite) {
        (Some(Command::Inspect(inspect)), _) => {
            run::inspect(&inspect, &messages).map(Printed::Result)
        }
        (Some(Command::Verify(verify)), _) => run::verify(&verify, &messages).map(Printed::Result),
        (Some(Command::ConvTable(table)), _) => {
            conv_table::conv_table(&table, &messages).map(Printed::Result)
        }
        (Some(Command::ProfileConv(profile)), _) => {
            conv_table::profile_conv(&profile, &messages).map(Printed::Result)
        }
        (Some(Command::Sweep(sweep)), _) => compare::sweep(&sweep, &messages).map(Printed::Result),
        (Some(Command::Compare(compare)), _) => {
            compare::compare(&compare, &messages).map(Printed::Result)
        }
        (None, Some(rewrite)) => run::rewrite(&rewrite, started, &messages),
        (None, None) => Err(Failure::Usage("expected IN and OUT; see --help".to_owned())),
    };
    match result.and_then(|printed| show(printed, &messages)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            messages.error(report::failure(&failure));
            ExitCode::from(failure.exit_status())
        }
    }
}

/// Prints the result. Where a file is in its place already, that nobody could be told is no failure: an exit status
/// that says so would tell a script that there is no file.
fn show(printed: Printed, messages: &Messages) -> Result<(), Failure> {
    match printed {
        Printed::Result(text) => print(&text),
        Printed::After(text, file) => {
            if let Err(error) = print(&text) {
                let file = file.display();
                messages.warning(format_args!(
                    "{file} was written and is complete, but: {error}"
                ));
            }
            Ok(())
        }
        // Nobody has to read the messages.
        Printed::Aside(text) => {
            let _ = messages.result(&printable(&text));
            Ok(())
        }
    }
}

fn print(text: &str) -> Result<(), Failure> {
    let text = printable(text);
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        // Whoever closed the pipe has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(Failure::Print),
    }
}

fn parse_budget(text: &str) -> Result<Requested, size::SizeProblem> {
    Ok(Requested {
        budget: size::budget(text)?,
        text: text.trim().to_owned(),
    })
}

fn strategies() -> impl TypedValueParser<Value = Strategy> {
    PossibleValuesParser::new(Strategy::ALL.map(Strategy::name)).try_map(|name| name.parse())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|&s: &f64| s > 0.0);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "expected a number of seconds above 0, such as 30 or 0.5".to_owned())
}

fn approximations() -> PossibleValuesParser {
    PossibleValuesParser::new(APPROXIMATIONS.iter().map(|one| one.name))
}

fn parse_dimension(text: &str) -> Result<(String, u64), &'static str> {
    const EXPECTED: &str =
        "expected NAME=N with a whole number N of at least 1, for example batch=8";
    let (name, value) = text.rsplit_once('=').ok_or(EXPECTED)?;
    match value.trim().parse() {
        Ok(value) if value > 0 && !name.trim().is_empty() => Ok((name.trim().to_owned(), value)),
        _ => Err(EXPECTED),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn options_are_declared_without_conflict() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn dimensions_are_names_with_numbers() {
        assert_eq!(parse_dimension("batch=8"), Ok(("batch".to_owned(), 8)));
        assert_eq!(parse_dimension("a=b=8"), Ok(("a=b".to_owned(), 8)));
        for text in [
            "batch",
            "batch=",
            "=8",
            "batch=0",
            "batch=-1",
            "batch=8.5",
            "batch=x",
        ] {
            assert!(parse_dimension(text).is_err(), "{text}");
        }
    }
}
