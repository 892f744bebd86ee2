//! What kind of trouble an error is, under a name that scripts can rely on, and what to do about it.

use ckpt_passes::bytes::Bytes;
use ckpt_passes::lower::LowerError;
use ckpt_passes::optimize::{OptimizeError, Peak};
use ckpt_passes::rewrite::infer_shapes::{InferShapesError, MOST_NAMES};
use ckpt_passes::runtime::settings::RuntimeSettings;

use crate::error::Error;
use crate::inputs::{DeviceError, OptimizerError};
use crate::onnx::{ExportError, ImportError, ImportProblem};

/// A kind of trouble. Its name does not change from release to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// `no-plan-fits`.
    pub name: &'static str,
    /// What has happened, in general.
    pub meaning: &'static str,
    /// What to do about it, in general.
    pub remedy: &'static str,
    /// What the program exits with.
    pub exit_status: u8,
}

/// Declares the codes, and the list of all of them.
macro_rules! codes {
    ($($code:ident $name:literal $exit_status:literal $meaning:literal, $remedy:literal;)*) => {
        $(pub(crate) const $code: Code = Code {
            name: $name,
            meaning: $meaning,
            remedy: $remedy,
            exit_status: $exit_status,
        };)*

        impl Code {
            /// All there are.
            pub const ALL: &[Code] = &[$($code),*];
        }
    };
}

codes! {
    NO_PLAN_FITS "no-plan-fits" 3
        "No plan fits the budget. The message says the smallest peak that was found and what holds it; of a budget below \
         what one node takes by itself, it says that, and the smallest peak is that of a quick look",
        "raise --budget to the smallest peak or above, make the batch smaller (ckpt-opt largest finds the largest that \
         fits), plan for a session that takes less (--runtime-settings lean), or allow variants with --allow";
    USAGE "usage" 2
        "An option or argument is not what was expected",
        "ckpt-opt --help and ckpt-opt COMMAND --help list what there is";
    UNBOUND_DIMENSION "unbound-dimension" 1
        "A dimension has a name and no size, so that nobody can say how much memory a tensor takes",
        "give each a size with --dim NAME=N";
    DIMENSION "dimension" 1
        "A size that was given is out of range, or is of a dimension that the graph does not have",
        "give a size that fits, of a dimension that the graph has; the message of ckpt-opt inspect IN names those that need one";
    NOT_TRAINING "not-training" 1
        "The graph is no training graph",
        "make one with onnxruntime.training.artifacts.generate_artifacts(forward_model, requires_grad=..., loss=...), and \
         give its training_model.onnx; a step in standard operators is taken with --runtime stock";
    RUNTIME "runtime" 1
        "The runtime that was named has no kernel for a node, or one whose results are not known",
        "name the other runtime with --runtime, or write the graph in standard operators with ckpt-opt lower";
    UNREADABLE "unreadable" 1
        "A file cannot be opened or read",
        "check that the path is right and that you may read it";
    NOT_ONNX "not-onnx" 1
        "The file is no ONNX model, or it is damaged",
        "export the model or copy the file again";
    TOO_LARGE "too-large" 1
        "The model is larger than an ONNX file can be, 2 GiB",
        "keep its weights in external data: onnx.save_model(model, path, save_as_external_data=True)";
    INVALID_GRAPH "invalid-graph" 1
        "The graph breaks a rule of ONNX; most such graphs ONNX Runtime does not load either",
        "correct what the message names; onnx.checker.check_model(path, full_check=True) may tell more";
    CONTRADICTION "contradiction" 1
        "The file declares a tensor otherwise than the inputs of its node make it",
        "correct the declaration, or take it out: what the inputs tell need not be declared";
    UNKNOWN_SHAPE "unknown-shape" 1
        "Nothing says how large a tensor is",
        "declare it (onnx.shape_inference.infer_shapes adds what standard operators tell), or bound a size that depends \
         on data with --dim 'PATTERN=N'";
    STRATEGY "strategy" 1
        "The strategy that was named cannot plan such a graph",
        "leave out --strategy: auto plans every graph";
    LOWERING "lowering" 1
        "The graph, or an operator of it, has no form in standard operators that computes the same",
        "run it in the runtime that trains, or change what the message names before the training graph is made";
    OPTION_FILE "option-file" 1
        "A file that an option names (costs, profile, device, convolution table, optimizer) is not what it reads",
        "docs/reference.md says what the file of each option holds";
    GPU "gpu" 1
        "Convolutions cannot be measured: there is no GPU, CUDA or cuDNN, or it failed",
        "run ckpt-opt profile-conv where ONNX Runtime trains on the GPU, and give its table with --conv-table";
    REPLACES "replaces" 1
        "An output would replace a file that is read, or another output",
        "give the output another name";
    CANNOT_WRITE "cannot-write" 1
        "An output cannot be written where it was asked for",
        "give it a place that exists and that you may write to";
    CHANGED "changed" 1
        "A file was changed while it was worked on",
        "run the command again when nothing else writes to the file";
    DIFFERENT "different" 1
        "verify: the second graph does not stand for the first, or ONNX Runtime does not load it",
        "do not train with it; rewrite the first graph again";
    UNPROVED "unproved" 1
        "What was made could not be proved to be right, so it was not kept. It is a fault of this program",
        "report it with the file that was read; --variants none or another budget may work";
    CANCELLED "cancelled" 1
        "The caller ended the work",
        "nothing was written; call again";
}

impl Code {
    /// Is it of the options, whatever the file is?
    pub fn is_usage(self) -> bool {
        self == USAGE
    }
}

impl Error {
    /// What kind of trouble it is.
    pub fn code(&self) -> Code {
        match self {
            Error::Size(_) | Error::NoCudnn { .. } | Error::NoSolver => USAGE,
            Error::RelativeBudget { .. } | Error::Device(DeviceError::Unknown { .. }) => USAGE,
            Error::Optimizer(OptimizerError::Unknown { .. }) => USAGE,
            Error::Optimizer(OptimizerError::Read(error)) | Error::Import(error) => imported(error),
            Error::Device(_) | Error::Optimizer(_) | Error::Costs(_) => OPTION_FILE,
            Error::ConvTable(_) | Error::Profile(_) => OPTION_FILE,
            Error::Gpu(_) => GPU,
            Error::Picture(_) => CANNOT_WRITE,
            Error::Optimize { error, .. } => optimized(error),
            Error::Lower {
                error: LowerError::Circle,
                ..
            } => INVALID_GRAPH,
            Error::Lower {
                error: LowerError::Sizes(error),
                ..
            } => shaped(error),
            Error::Lower {
                error: LowerError::Undeclared { .. } | LowerError::Shapeless { .. },
                ..
            } => UNKNOWN_SHAPE,
            Error::Lower { .. } | Error::ReadTooLate { .. } => LOWERING,
            Error::Export(error) => exported(error),
            Error::LoweredDiffers { .. } | Error::Unreadable(_) => UNPROVED,
            Error::Written(_) | Error::WrittenDiffers(_) => UNPROVED,
            Error::Unsound { .. } => INVALID_GRAPH,
            Error::DifferentFile { .. } | Error::Different { .. } => DIFFERENT,
            Error::Lowered { .. } => DIFFERENT,
            Error::Changed { .. } => CHANGED,
            Error::Temporary(_) => CANNOT_WRITE,
            Error::Cancelled => CANCELLED,
        }
    }

    /// What is wrong with shapes or sizes, where that is it.
    fn of_shapes(&self) -> Option<&InferShapesError> {
        match self {
            Error::Optimize { error, .. } => match &**error {
                OptimizeError::Shape(error) => Some(error),
                _ => None,
            },
            Error::Lower {
                error: LowerError::Sizes(error),
                ..
            } => Some(error),
            _ => None,
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> String {
        if let Some(error) = self.of_shapes() {
            match error {
                InferShapesError::Unbound { names, .. } => {
                    let dims = names.iter().take(MOST_NAMES);
                    let dims: Vec<_> = dims.map(|name| format!("--dim {name}=N")).collect();
                    let more = match names.len() - dims.len() {
                        0 => String::new(),
                        more => format!(", and {more} more"),
                    };
                    return format!("add {}{more}", dims.join(" "));
                }
                InferShapesError::AtOdds { name, given, .. } => {
                    return format!("leave --dim {name}={given} out, or correct the other sizes");
                }
                InferShapesError::Gradient { .. } => return NUMBERS.to_owned(),
                error if !error.names().is_empty() => {
                    return "bound each size that is named with --dim NAME=N, or all with --dim 'PATTERN=N': what depends on data is planned as \
                            large as that; or declare the tensor"
                        .to_owned();
                }
                InferShapesError::NoSuchDimension { existing, .. } if existing.is_empty() => {
                    return "all sizes are in the file: leave --dim out, or export the graph again with a name for what is to change"
                        .to_owned();
                }
                _ => {}
            }
        }
        if let Error::Lower {
            error: LowerError::Shapeless { .. },
            ..
        } = self
        {
            return "give sizes that the graph accepts with --dim NAME=N, or declare what the message names \
                    (onnx.shape_inference.infer_shapes adds what standard operators tell)"
                .to_owned();
        }
        if let Error::Lower {
            error: LowerError::NothingToUpdate,
            ..
        } = self
        {
            return "lower training_model.onnx itself with --optimizer, not what was lowered without it before".to_owned();
        }
        if let Error::Lowered { output, .. } = self {
            return format!(
                "ckpt-opt lower IN LOWERED, then ckpt-opt verify LOWERED {output}; lower itself is tested operator by operator"
            );
        }
        if let Error::Export(ExportError::ExternalData { .. }) = self {
            return "OUT reads the same data files as IN, from its own folder: copy them there first, or write OUT into the folder of IN"
                .to_owned();
        }
        match (self, self.infeasible()) {
            (Error::Optimize { settings, .. }, Some((budget, smallest))) => {
                to_fit(budget, smallest, *settings)
            }
            _ => self.code().remedy.to_owned(),
        }
    }
}

/// What helps where a gradient is of something else: sizes that do not fit, or a sum that ONNX Runtime left out of the training graph.
const NUMBERS: &str = "if the sizes given with --dim are right, make the training graph again from a forward graph whose sizes are numbers \
                       (torch.onnx.export without dynamic_axes): where a size of one has a name, ONNX Runtime leaves out the sum over what is broadcast";

/// What helps where no plan fits.
fn to_fit(budget: Bytes, smallest: &Peak, settings: RuntimeSettings) -> String {
    let owned = smallest.owned();
    let enough = format!("--budget {} is enough", smallest.bytes.0);
    if budget < owned {
        return format!(
            "the caller and the runtime itself own more than the budget, which no plan changes; {enough}"
        );
    }
    let lean = match settings == RuntimeSettings::LEAN {
        true => "",
        false if settings.pattern => {
            "plan for a session that takes less (--runtime-settings lean or no-pattern), "
        }
        false => "plan for a session that takes less (--runtime-settings lean), ",
    };
    format!(
        "raise the budget ({enough}), make the batch smaller (ckpt-opt largest finds the largest that fits), {lean}or allow \
         variants with --allow"
    )
}

fn imported(error: &ImportError) -> Code {
    use ImportProblem as Problem;
    match &error.problem {
        Problem::Open { .. } => UNREADABLE,
        Problem::NotAFile { .. } | Problem::NotOnnx { .. } | Problem::NoGraph => NOT_ONNX,
        Problem::Malformed { .. } | Problem::Undecodable { .. } => NOT_ONNX,
        Problem::TooLarge { .. } => TOO_LARGE,
        _ => INVALID_GRAPH,
    }
}

fn optimized(error: &OptimizeError) -> Code {
    match error {
        OptimizeError::NotTraining { .. } => NOT_TRAINING,
        OptimizeError::ForTraining { .. }
        | OptimizeError::TakenApart { .. }
        | OptimizeError::HalfKernel { .. } => RUNTIME,
        OptimizeError::Shape(error) => shaped(error),
        OptimizeError::Input(_) => INVALID_GRAPH,
        OptimizeError::Refused { .. } => STRATEGY,
        OptimizeError::TooMuch { .. } => DIMENSION,
        OptimizeError::Infeasible { .. } => NO_PLAN_FITS,
        OptimizeError::Verification(_) | OptimizeError::Unproved { .. } => UNPROVED,
    }
}

fn shaped(error: &InferShapesError) -> Code {
    match error {
        InferShapesError::Zero { .. } | InferShapesError::NoSuchDimension { .. } => DIMENSION,
        InferShapesError::AtOdds { .. } => DIMENSION,
        InferShapesError::TooLarge { .. } => DIMENSION,
        InferShapesError::Unbound { .. } => UNBOUND_DIMENSION,
        InferShapesError::Undeclared { .. } | InferShapesError::Unknown { .. } => UNKNOWN_SHAPE,
        InferShapesError::Cycle { .. } | InferShapesError::Node { .. } => INVALID_GRAPH,
        InferShapesError::Gradient { .. } => INVALID_GRAPH,
        InferShapesError::Inside { error, .. } => shaped(error),
        InferShapesError::Contradiction { .. } => CONTRADICTION,
    }
}

fn exported(error: &ExportError) -> Code {
    match error {
        ExportError::OntoInput { .. } | ExportError::OntoExternalData { .. } => REPLACES,
        ExportError::NotAFile { .. } | ExportError::NoFolder { .. } => CANNOT_WRITE,
        ExportError::DanglingLink { .. } | ExportError::OpenFile { .. } => CANNOT_WRITE,
        ExportError::DataBesideOutput { .. } | ExportError::Folder { .. } => CANNOT_WRITE,
        ExportError::Write { .. } => CANNOT_WRITE,
        ExportError::ExternalData { .. } => UNREADABLE,
        ExportError::TooLarge { .. } => TOO_LARGE,
        ExportError::Source(error) => imported(error),
        ExportError::Damaged(_) | ExportError::Undecodable(_) => NOT_ONNX,
        ExportError::Node { .. } | ExportError::Interface { .. } => UNPROVED,
        ExportError::NewInitializer { .. } | ExportError::Declaration { .. } => UNPROVED,
    }
}
