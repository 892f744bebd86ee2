//! Why a call did not do what it was asked to do.

use std::io;
use std::path::PathBuf;

use ckpt_passes::bytes::Bytes;
use ckpt_passes::lower::LowerError;
use ckpt_passes::optimize::{Floor, OptimizeError, Peak};
use ckpt_passes::runtime::settings::RuntimeSettings;
use ckpt_passes::verify::Violation;
use thiserror::Error;

use crate::cudnn::GpuError;
use crate::inputs::{
    ConvTableError, CostsError, DeviceError, OptimizerError, ProfileError, SizeProblem,
};
use crate::onnx::{Difference, ExportError, ImportError};
use crate::report::png::PngError;

/// Why a call did not do what it was asked to do. Nothing was written.
#[derive(Debug, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Size(#[from] SizeProblem),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    #[error(transparent)]
    Costs(#[from] CostsError),
    #[error(transparent)]
    ConvTable(#[from] ConvTableError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Picture(#[from] PngError),
    #[error(
        "--device {device} has no cuDNN; {asked} is for v100, a100, h100, h200 or a file with the provider cuda"
    )]
    NoCudnn { asked: &'static str, device: String },
    #[error(
        "--certify needs a solver, which this build does not have: cargo xtask highs builds it with one"
    )]
    NoSolver,
    #[error(
        "expected a budget in bytes, such as 8GiB: {budget} is of a peak that grows with the dimension"
    )]
    RelativeBudget { budget: String },
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error("{file}: {error}")]
    Optimize {
        file: String,
        #[source]
        error: Box<OptimizeError>,
        /// Those of the session that was planned for.
        settings: RuntimeSettings,
        /// Did the time limit end the search?
        ended_early: bool,
    },
    #[error("{file}: {error}")]
    Lower {
        file: String,
        #[source]
        error: LowerError,
    },
    #[error(
        "{file}: with the update in the graph a weight could be overwritten before it was read: {violation}"
    )]
    ReadTooLate {
        file: String,
        #[source]
        violation: Box<Violation>,
    },
    #[error("the written file is not what was to be written, so it was not kept: {what}")]
    LoweredDiffers { what: String },
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error("the written file cannot be read back, so it was not kept: {0}")]
    Unreadable(#[source] ImportError),
    #[error("the written file failed verification, so it was not kept: {}", cause(.0))]
    Written(#[source] Box<OptimizeError>),
    #[error("the written file failed verification, so it was not kept: {0}")]
    WrittenDiffers(#[source] Difference),
    #[error("{file}: ONNX Runtime does not load it: {difference}")]
    Unsound {
        file: String,
        #[source]
        difference: Difference,
    },
    #[error("{output} does not stand for {input}: {difference}")]
    DifferentFile {
        input: String,
        output: String,
        #[source]
        difference: Difference,
    },
    #[error(
        "{output} is in standard operators and {input} is not, and they are compared node by node: expected the graph that \
         ckpt-opt lower wrote in place of {input}"
    )]
    Lowered { input: String, output: String },
    #[error("{output} does not stand for {input}: {}", cause(error))]
    Different {
        input: String,
        output: String,
        #[source]
        error: Box<OptimizeError>,
    },
    #[error("{}: it was changed while this program worked on it; nothing was written", path.display())]
    Changed { path: PathBuf },
    #[error("cannot make a temporary file: {0}")]
    Temporary(#[source] io::Error),
    #[error("cancelled; nothing was written")]
    Cancelled,
}

impl Error {
    /// Where nothing fits the budget: the smallest peak that was found, and what holds it.
    pub fn smallest(&self) -> Option<&Peak> {
        self.infeasible().map(|(_, smallest)| smallest)
    }

    /// The same, with the budget.
    pub fn infeasible(&self) -> Option<(Bytes, &Peak)> {
        match self {
            Error::Optimize { error, .. } => match &**error {
                OptimizeError::Infeasible {
                    budget, smallest, ..
                } => Some((*budget, smallest)),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Error {
    /// Did the time limit end the search?
    pub(crate) fn ended_early(&self) -> bool {
        matches!(
            self,
            Error::Optimize {
                ended_early: true,
                ..
            }
        )
    }

    /// What no plan can need less than, where that is known to be above the budget.
    pub fn floor(&self) -> Option<&Floor> {
        match self {
            Error::Optimize { error, .. } => match &**error {
                OptimizeError::Infeasible { floor, .. } => floor.as_deref(),
                _ => None,
            },
            _ => None,
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
