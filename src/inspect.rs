//! What a step of a graph needs.

use ckpt_passes::optimize::{BudgetRequest, Measured, StepLimits, check_measurable, limits};

use crate::control::Warning;
use crate::error::Error;
use crate::job::{Job, measured};
use crate::onnx::Model;
use crate::options::Options;

/// What one training step of a graph takes.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// How many nodes the graph has.
    pub nodes: usize,
    /// What the caller owns, and the peak in each execution order with what holds it.
    pub measured: Measured,
    /// What no plan can get round.
    pub limits: StepLimits,
    /// What the user should look at.
    pub warnings: Vec<Warning>,
}

/// Measures what one training step of `model` takes as it is.
pub fn inspect(model: &Model, options: &Options) -> Result<Inspection, Error> {
    let job = Job::new(model, options, check_measurable)?;
    let plan_options = job.options.to_plan(BudgetRequest::Smallest)?;
    Ok(Inspection {
        nodes: job.graph.order().len(),
        measured: measured(model, &job.graph, &plan_options)?,
        limits: limits(&job.graph, &plan_options).map_err(|error| job.failed(error))?,
        warnings: job.warnings,
    })
}
