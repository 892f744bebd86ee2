//! The arguments of all commands, as clap parses them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ckpt_passes::bytes::Bytes;
use ckpt_passes::operators::variants::Group;
use ckpt_passes::runtime::settings;
use ckpt_passes::strategy::Strategy;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::failure::Failure;
use super::passes::Dump;
use super::values::{
    DIMENSION, Dimension, approximations, levels, orders, parse_budget, parse_dimension,
    parse_percent, parse_seconds, parse_seed, parse_threads, releases, strategies,
};
use crate::inputs::{Budget, parse_size};

/// What stands behind the options in the help.
const AFTER_HELP: &str = "\
The promise: run by ONNX Runtime in its default execution order at its default level of optimization, and in every \
other where that costs next to nothing (the table says where the budget holds), or in the order and at the level that \
--order and --level name, with the session's settings as --runtime-settings says, one training step of the written graph \
stays within the budget. Where the session does not \
optimize graphs (ORT_DISABLE_ALL) it computes the same results, bit for bit; at other levels the last bits can differ, as \
between any two levels. What the arena reserves without using it comes on top.

Exit status: 0 written; 1 error; 2 usage; 3 no plan fits the budget. OUT is whole or not there: where it was \
written and only the result could not be printed, that is a warning.";

/// Rewrites an ONNX Runtime training graph so that one training step fits a memory budget:
/// nodes are reordered, some run a second time instead of keeping their results, some are replaced by
/// others that compute the same bits, and nothing else changes.
#[derive(Debug, Parser)]
#[command(name = "ckpt-opt", version, after_help = AFTER_HELP)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) command: Option<Command>,
    #[command(flatten)]
    pub(super) rewrite: Option<Rewrite>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Shows what one training step of a graph needs, and which tensors hold its peak.
    Inspect(Inspect),
    /// Checks that OUT computes what IN computes, and shows what both need.
    Verify(Verify),
    /// Shows what a row of budgets costs, in added time; writes no graph.
    Sweep(Sweep),
    /// Finds the largest size of a dimension, such as the batch, with which a step fits a budget; writes no graph.
    Largest(Largest),
    /// Plans with all strategies, and shows the exact figures of each; writes no graph.
    Compare(Compare),
    /// Writes the training operators of a graph in standard ones, so that an ONNX Runtime without training runs it.
    Lower(Lower),
    /// Prints time and workspace of each convolution with each of cuDNN's algorithms as JSON, by a
    /// model that was not compared with a GPU, or as --conv-table has them.
    ConvTable(ConvTable),
    /// Prints the same, measured with cuDNN on this machine's first GPU, for --conv-table. The libraries are
    /// loaded when it runs; without a GPU it says so.
    ProfileConv(ProfileConv),
    /// Prints what lets a shell complete this program's options.
    Completions {
        /// Which shell.
        shell: Shell,
    },
    /// Prints the manual page, for man.
    Man,
}

/// `ckpt-opt IN OUT --budget SIZE`.
#[derive(Clone, Debug, Args)]
// By its presence clap knows that this, and no subcommand, is meant: nested groups hide the rest.
#[group(arg = "input")]
pub(super) struct Rewrite {
    /// The training graph, forward and backward in one ONNX file; or - for standard input.
    #[arg(value_name = "IN")]
    pub(super) input: PathBuf,
    /// The file to write, or - for standard output (what would be printed there then goes to standard error). A
    /// link is written through. With --dry-run it may be left out.
    #[arg(value_name = "OUT", required_unless_present_any = ["dry_run", "named_output"])]
    pub(super) output: Option<PathBuf>,
    /// OUT, as an option.
    #[arg(
        short = 'o',
        long = "output",
        value_name = "OUT",
        conflicts_with = "output"
    )]
    pub(super) named_output: Option<PathBuf>,
    /// What one training step may take, what the caller owns included: 8GiB, 800MB, 1.5GB,
    /// 123456789 (bytes); 60% (of the peak of the unmodified graph); fixed+50% (what the caller
    /// owns and half of the rest); or min (at most 0.5 % above the smallest peak that is
    /// found, the cheapest of such plans).
    #[arg(short, long, value_name = "SIZE", value_parser = parse_budget, allow_hyphen_values = true)]
    pub(super) budget: Budget,
    /// How to plan: auto is this program's own search, the others are published algorithms.
    #[arg(long, value_name = "NAME", default_value_t = Strategy::Auto, value_parser = strategies())]
    pub(super) strategy: Strategy,
    /// Prove a higher lower bound with a solver, which takes longer. Needs a build with
    /// --features highs.
    #[arg(long)]
    pub(super) certify: bool,
    /// Which operators may be replaced by others that compute the same bits, if that helps:
    /// none, all, or some of sums (gradients are added up one after another), convolution (other
    /// forms of convolutions' gradients), output-activated (gradients from an activation's output
    /// instead of its input, or back), masks (smaller masks), copies (batch normalizations again
    /// from their statistics) and slices (the largest gradients slice by slice), with commas
    /// between.
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "all"
    )]
    pub(super) variants: Vec<Variants>,
    /// Allow variants whose results differ in the last bits or more, by name: batch-slices
    /// (gradients of convolutions in parts of the batch), invertible-layer-norm (gradients of layer
    /// normalizations from the output), reassociated-sums (gradients added up as they appear),
    /// half-precision (inputs of convolutions kept in 16 bits), convolution-algorithms (other ones for copies, in
    /// runtimes that obey). The report says how far off a node can be. Only auto replaces nodes.
    #[arg(long, value_name = "NAME", value_parser = approximations())]
    pub(super) allow: Vec<String>,
    /// What the step is run with.
    #[command(flatten)]
    pub(super) setting: Setting,
    /// Write the result as JSON, with the recomputed nodes and the tensors that hold the peaks; or, where FILE ends with
    /// .html, as a page for a browser, with memory over the step and what other budgets cost.
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Write the session options that the budget holds for (on a GPU, the provider's options for convolutions
    /// too), and the predicted peaks, as JSON. OUT has the same in its metadata.
    #[arg(long, value_name = "FILE")]
    pub(super) session_options: Option<PathBuf>,
    /// Draw what each moment of a step needs, before and after, as an SVG file or, where FILE ends with .png, in pixels.
    #[arg(long, value_name = "FILE")]
    pub(super) plot: Option<PathBuf>,
    /// Write both steps as a trace that Perfetto and Chrome show, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Write a line for make that says which files OUT was made of. Not with --dry-run, which makes no OUT.
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub(super) depfile: Option<PathBuf>,
    /// Plan and verify, but do not write OUT.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// For those who work on this program: write each graph that the pass NAME leaves, as text, to FILE
    /// (NAME.onnxtxt), with a number in its name; more graphs are tried than one is written.
    #[arg(long, value_name = "NAME[=FILE]")]
    pub(super) dump_after: Vec<Dump>,
    /// For them too: say on standard error how often each pass ran, and how long that took.
    #[arg(long)]
    pub(super) timings: bool,
    /// How to search, and what to say.
    #[command(flatten)]
    pub(super) search: Searching,
}

impl Rewrite {
    /// OUT, wherever it was named.
    pub(super) fn out(&self) -> Option<&PathBuf> {
        self.output.as_ref().or(self.named_output.as_ref())
    }
}

/// How to search, and what to say of it.
#[derive(Clone, Debug, Args)]
pub(super) struct Searching {
    /// The seed of the search. The same input, options and seed give the same file.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = parse_seed)]
    #[arg(allow_negative_numbers = true)]
    pub(super) seed: u64,
    /// End each search after so many seconds, with what is found by then: in sweep and compare one search is for all
    /// budgets of a strategy, in largest each size is one. Where it ended one, the result says so. Without it, the search
    /// ends by the work it has done, and the result does not depend on the machine's speed.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, allow_negative_numbers = true)]
    pub(super) time_limit: Option<Duration>,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(super) json: bool,
    /// No progress on standard error; warnings and errors still appear.
    #[arg(short, long)]
    pub(super) quiet: bool,
}

/// What a graph runs with and on.
#[derive(Clone, Debug, Args)]
pub(super) struct Setting {
    /// A value for a symbolic dimension, such as batch=8; once for each. A dimension without a name is called by its
    /// tensor and its place, from 0 up: x:0=8. A pattern gives what depends on data an upper bound: 'unk__*=4096', where *
    /// is any text and ? one letter. Names go before patterns, patterns with more letters before others; what the
    /// graph itself tells goes before patterns too.
    #[arg(long = "dim", value_name = "NAME=N", value_parser = parse_dimension)]
    pub(super) dimensions: Vec<Dimension>,
    /// Count what the optimizer holds as the caller's: adamw, sgd, or the optimizer_model.onnx that
    /// generate_artifacts wrote.
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) optimizer: Option<String>,
    /// Memory that neither the graph nor --optimizer shows: a CUDA context, another model.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    #[arg(allow_hyphen_values = true)]
    pub(super) reserve: Bytes,
    /// What the graph runs on: a preset, or a JSON file that describes a device.
    #[arg(long, value_name = "NAME|FILE", default_value = "cpu")]
    pub(super) device: String,
    /// Measured costs by node, as JSON: {"nodes": {"NAME": {"time_us": 12.5,
    /// "workspace_bytes": 0, "recomputable": true}}}. With "mirrors": 2 the strategies chen-sqrt,
    /// chen-budget, chen-recursive and cheap-ops compute a node's results again twice; with 0 they
    /// keep them.
    #[arg(long, value_name = "FILE")]
    pub(super) costs: Option<PathBuf>,
    /// Time and workspace of convolutions with cuDNN's algorithms, as JSON of the form that ckpt-opt conv-table
    /// prints; for a device with cuDNN. What is not in it is worked out.
    #[arg(long, value_name = "FILE")]
    pub(super) conv_table: Option<PathBuf>,
    /// Node times from a profile that ONNX Runtime wrote of the unmodified graph, optimizations
    /// off, and shapes where nothing else tells them. --costs goes before it.
    #[arg(long, value_name = "FILE")]
    pub(super) profile: Option<PathBuf>,
    /// What runs the graph: the last release with training operators, or the builds for inference, which run a graph
    /// whose training operators are lowered to standard ones. Unless told, what the graph's operators ask for.
    #[arg(long, value_name = "NAME", value_parser = releases())]
    pub(super) runtime: Option<String>,
    /// The runtime settings that the peak is for. Unless told, default on the CPU and lean on a GPU, where nothing else is known.
    #[arg(long, value_name = "NAME", value_enum)]
    pub(super) runtime_settings: Option<RuntimeSettings>,
    /// The session's worker threads (intra_op_num_threads), where the buffers of kernels on the CPU depend on them: 2, unless told.
    #[arg(long, value_name = "N", value_parser = parse_threads, allow_negative_numbers = true)]
    pub(super) threads: Option<u32>,
    /// In which order of execution the budget holds: default (what every session uses unless told otherwise), priority, or any of
    /// those that there are. Other orders compute the same and may take more. Without --order and --level, the budget holds in
    /// DEFAULT order at ORT_ENABLE_ALL, and everywhere else as well where that costs next to nothing.
    #[arg(long, value_name = "NAME", value_parser = orders())]
    pub(super) order: Option<String>,
    /// At which level of optimization the budget holds: all (what every session uses unless told otherwise), extended, basic,
    /// disable, or any of them. At other levels a step may take more. What stands in the table before and after is for that
    /// order and level; any tells of DEFAULT and ORT_DISABLE_ALL before, of the most after. With --order alone, any.
    #[arg(long, value_name = "NAME", value_parser = levels())]
    pub(super) level: Option<String>,
}

/// `ckpt-opt inspect IN`.
#[derive(Clone, Debug, Args)]
pub(super) struct Inspect {
    /// The training graph.
    #[arg(value_name = "IN")]
    pub(super) input: PathBuf,
    /// What the step is run with.
    #[command(flatten)]
    pub(super) setting: Setting,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

/// `ckpt-opt lower IN OUT`.
#[derive(Clone, Debug, Args)]
pub(super) struct Lower {
    /// The training graph.
    #[arg(value_name = "IN")]
    pub(super) input: PathBuf,
    /// The file to write, or - for standard output (what would be printed there then goes to standard error).
    #[arg(value_name = "OUT", required_unless_present = "named_output")]
    output: Option<PathBuf>,
    /// OUT, as an option.
    #[arg(
        short = 'o',
        long = "output",
        value_name = "OUT",
        conflicts_with = "output"
    )]
    named_output: Option<PathBuf>,
    /// Put the update of the weights into the graph, so that it is a whole training step and keeps no gradient: adamw, sgd, or the
    /// optimizer_model.onnx of the training artifacts, with its numbers. The learning rate is an input of OUT.
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) optimizer: Option<String>,
    /// A size of a symbolic dimension, such as batch=8, which OUT does not depend on: it only helps where the graph accepts few
    /// sizes and the file says too little of its tensors.
    #[arg(long = "dim", value_name = "NAME=N", value_parser = parse_dimension)]
    dimensions: Vec<Dimension>,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(super) json: bool,
    /// No progress on standard error; errors still appear.
    #[arg(short, long)]
    pub(super) quiet: bool,
}

impl Lower {
    /// The dimensions by name; an error if one has two sizes, or none.
    pub(super) fn bindings(&self) -> Result<BTreeMap<String, u64>, Failure> {
        bindings(&self.dimensions)
    }

    /// OUT, wherever it was named; clap sees to it that it is.
    pub(super) fn out(&self) -> &Path {
        let named = self.output.as_ref().or(self.named_output.as_ref());
        named.map_or(Path::new(""), PathBuf::as_path)
    }
}

/// `ckpt-opt conv-table IN`.
#[derive(Clone, Debug, Args)]
pub(super) struct ConvTable {
    /// The training graph.
    #[arg(value_name = "IN")]
    pub(super) input: PathBuf,
    /// What the step is run with; --device has to name a GPU.
    #[command(flatten)]
    pub(super) setting: Setting,
}

/// `ckpt-opt profile-conv IN`.
#[derive(Clone, Debug, Args)]
pub(super) struct ProfileConv {
    /// What to measure, and for which device.
    #[command(flatten)]
    pub(super) table: ConvTable,
    /// The CUDA runtime, where the system does not find libcudart.so.
    #[arg(long, value_name = "FILE")]
    pub(super) cudart: Option<PathBuf>,
    /// cuDNN, version 8 or 9, where the system does not find libcudnn.so.
    #[arg(long, value_name = "FILE")]
    pub(super) cudnn: Option<PathBuf>,
}

/// `ckpt-opt verify IN OUT`.
#[derive(Clone, Debug, Args)]
pub(super) struct Verify {
    /// The unmodified training graph.
    #[arg(value_name = "IN")]
    pub(super) input: PathBuf,
    /// What ckpt-opt made of it.
    #[arg(value_name = "OUT")]
    pub(super) output: PathBuf,
    /// What OUT was allowed to do that is not bitwise.
    #[arg(long, value_name = "NAME", value_parser = approximations())]
    pub(super) allow: Vec<String>,
    /// What the step is run with.
    #[command(flatten)]
    pub(super) setting: Setting,
}

/// Which operators may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub(super) enum Variants {
    None,
    All,
    Sums,
    Convolution,
    OutputActivated,
    Masks,
    Copies,
    Slices,
}

impl Variants {
    /// What all of them stand for; none of them goes with none.
    pub(super) fn all_groups(chosen: &[Variants]) -> Result<BTreeSet<Group>, Failure> {
        match chosen.len() > 1 && chosen.contains(&Variants::None) {
            true => Err(Failure::Usage(
                "--variants none goes with no other name; expected all, none, or some of the others"
                    .to_owned(),
            )),
            false => Ok(chosen.iter().flat_map(|one| one.groups()).collect()),
        }
    }

    /// What the name stands for.
    fn groups(self) -> Vec<Group> {
        match self {
            Variants::None => Vec::new(),
            Variants::All => Group::ALL.to_vec(),
            Variants::Sums => vec![Group::Sums],
            Variants::Convolution => vec![Group::Convolution],
            Variants::OutputActivated => vec![Group::OutputActivated],
            Variants::Masks => vec![Group::Masks],
            Variants::Copies => vec![Group::Copies],
            Variants::Slices => vec![Group::Slices],
        }
    }
}

/// The settings of ONNX Runtime that a peak is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum RuntimeSettings {
    /// As sessions run unless told otherwise: enable_mem_reuse and enable_mem_pattern on.
    Default,
    /// enable_mem_pattern off: all that C, C++, C# and Java can switch off (DisableMemPattern, EnableMemoryPattern,
    /// setMemoryPatternOptimization).
    NoPattern,
    /// enable_mem_reuse and enable_mem_pattern off, as Python can.
    Lean,
}

impl RuntimeSettings {
    /// What they are.
    pub(super) fn settings(self) -> settings::RuntimeSettings {
        match self {
            RuntimeSettings::Default => settings::RuntimeSettings::DEFAULT,
            RuntimeSettings::NoPattern => settings::RuntimeSettings::NO_PATTERN,
            RuntimeSettings::Lean => settings::RuntimeSettings::LEAN,
        }
    }
}

/// `ckpt-opt sweep IN`.
#[derive(Clone, Debug, Args)]
pub(super) struct Sweep {
    /// How to plan.
    #[arg(long, value_name = "NAME", default_value_t = Strategy::Auto, value_parser = strategies())]
    pub(super) strategy: Strategy,
    /// What both commands take.
    #[command(flatten)]
    pub(super) row: Row,
}

/// `ckpt-opt compare IN`.
#[derive(Clone, Debug, Args)]
pub(super) struct Compare {
    /// Only these strategies, separated by commas; all of them without it.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = strategies())]
    pub(super) strategies: Vec<Strategy>,
    /// What both commands take.
    #[command(flatten)]
    pub(super) row: Row,
}

/// A graph and a row of budgets.
#[derive(Clone, Debug, Args)]
pub(super) struct Row {
    /// The training graph.
    #[arg(value_name = "IN")]
    pub(super) input: PathBuf,
    /// A budget as for rewriting; may be repeated, or a list with commas. Without it: fixed+90%, fixed+80% and so on
    /// down to fixed+20%.
    #[arg(short, long = "budget", value_name = "SIZE", value_parser = parse_budget)]
    #[arg(allow_hyphen_values = true, value_delimiter = ',')]
    pub(super) budgets: Vec<Budget>,
    /// Which operators may be replaced, as for rewriting. Auto uses them, and monet-ilp all but
    /// sums unless they are none.
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "all"
    )]
    pub(super) variants: Vec<Variants>,
    /// What the step is run with.
    #[command(flatten)]
    pub(super) setting: Setting,
    /// Draw the added time over the budget, as an SVG file or, where FILE ends with .png, in pixels.
    #[arg(long, value_name = "FILE")]
    pub(super) plot: Option<PathBuf>,
    /// How to search, and what to say.
    #[command(flatten)]
    pub(super) search: Searching,
}

/// `ckpt-opt largest IN --budget SIZE --dim NAME`; the dimension without a size is the one whose largest size is wanted.
#[derive(Clone, Debug, Args)]
pub(super) struct Largest {
    /// The training graph.
    #[arg(value_name = "IN")]
    pub(super) input: PathBuf,
    /// What one training step may take, what the caller owns included: 8GiB, 800MB, 1.5GB, 123456789 (bytes).
    #[arg(short, long, value_name = "SIZE", value_parser = parse_budget, allow_hyphen_values = true)]
    pub(super) budget: Budget,
    /// The most that the plan may add to a step: 10%.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, allow_hyphen_values = true)]
    pub(super) at_most: Option<f64>,
    /// What the step is run with.
    #[command(flatten)]
    pub(super) setting: Setting,
    /// How to search, and what to say.
    #[command(flatten)]
    pub(super) search: Searching,
}

impl Setting {
    /// The dimensions by name; an error if one has two sizes, or none.
    pub(super) fn bindings(&self) -> Result<BTreeMap<String, u64>, Failure> {
        bindings(&self.dimensions)
    }

    /// The dimension whose size is wanted, and the sizes of the others; an error if it is not one.
    pub(super) fn wanted_and_bindings(&self) -> Result<(String, BTreeMap<String, u64>), Failure> {
        let given = given(&self.dimensions)?;
        match wanted(&self.dimensions)[..] {
            [name] if !given.contains_key(name) => Ok((name.to_owned(), given)),
            [name] => Err(Failure::Usage(format!(
                "--dim gives {name:?} a size, which is to be found"
            ))),
            [] => {
                let named = given.keys().next().map_or("batch", String::as_str);
                Err(Failure::Usage(format!(
                    "expected --dim NAME without a size for the dimension whose largest size is wanted, for example --dim {named}"
                )))
            }
            [one, other, ..] => Err(Failure::Usage(format!(
                "--dim {one}, --dim {other}: only the dimension whose largest size is wanted has none; expected NAME=N \
                 for the other"
            ))),
        }
    }
}

fn bindings(dimensions: &[Dimension]) -> Result<BTreeMap<String, u64>, Failure> {
    match wanted(dimensions).first() {
        Some(name) => Err(Failure::Usage(format!("--dim {name}: {DIMENSION}"))),
        None => given(dimensions),
    }
}

/// The names without sizes.
fn wanted(dimensions: &[Dimension]) -> Vec<&str> {
    let wanted = dimensions.iter().filter(|one| one.size.is_none());
    wanted.map(|one| one.name.as_str()).collect()
}

fn given(dimensions: &[Dimension]) -> Result<BTreeMap<String, u64>, Failure> {
    let mut bindings = BTreeMap::new();
    for Dimension { name, size } in dimensions {
        let Some(size) = *size else { continue };
        let before = bindings.insert(name.clone(), size);
        if let Some(before) = before.filter(|&before| before != size) {
            return Err(Failure::Usage(format!(
                "--dim gives {name:?} two values, {before} and {size}"
            )));
        }
    }
    Ok(bindings)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn options_are_declared_without_conflict() {
        Arguments::command().debug_assert();
    }
}
