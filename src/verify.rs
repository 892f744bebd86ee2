//! A proof that one file stands for another.

use ckpt_passes::bytes::Bytes;
use ckpt_passes::optimize::{BudgetRequest, Measured, check_measurable, verify_written};
use ckpt_passes::runtime::Release;
use ckpt_passes::runtime::promise::Promise;

use crate::control::Warning;
use crate::error::Error;
use crate::job::{self, Job, counterparts, measured};
use crate::onnx::{self, Model};
use crate::options::Options;
use crate::session::Said;

/// What two files that compute the same need.
#[derive(Clone, Debug)]
pub struct Verification {
    /// The first.
    pub before: Measured,
    /// The one that stands for it.
    pub after: Measured,
    /// What the second says of its budget.
    pub claim: Claim,
    /// What the user should look at.
    pub warnings: Vec<Warning>,
}

/// What a file says of its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Nothing.
    None,
    /// A step stays within so much, and does.
    Holds(Bytes),
    /// It was planned with other options than those that were given, so that nothing is known of it.
    NotHeld,
}

/// Proves that `written` computes what `original` computes, but for what [`Options::allow`] names; an error says what
/// differs. Planning has no part in the proof. What `written` says of its budget is held against it where it was said of such a
/// step as `options` describe; where they say nothing of dimensions, settings or a reserve, what `written` says of these is taken.
pub fn verify(original: &Model, written: &Model, options: &Options) -> Result<Verification, Error> {
    let said = Said::by(written);
    let promise = said.promise(options.promise.unwrap_or(Promise::ANY));
    // What holds everywhere is told of the usual session, as everywhere.
    let told = match options.promise {
        None if promise == Promise::ANY => Promise::USUAL,
        _ => promise,
    };
    let options = &Options {
        promise: Some(promise),
        ..said.with_own(options)
    };
    let job = Job::new(original, options, check_measurable)?;
    let plan_options = job.options.to_plan(BudgetRequest::Smallest)?;
    let mut usual = plan_options.clone();
    usual.runtime.promise = told;
    let other = job::graph(written, &plan_options, options.profile.as_deref())?;
    let before = measured(original, &job.graph, &usual)?;
    let after = measured(written, &other, &usual.for_written(&other))?;
    let claim = match said.budget(&plan_options, after.fixed) {
        Some(budget) => Claim::Holds(budget),
        None if said.has_budget() => Claim::NotHeld,
        None => Claim::None,
    };
    let budget = match claim {
        Claim::Holds(budget) => budget,
        Claim::None | Claim::NotHeld => Bytes(u64::MAX),
    };
    let (input, output) = (original.file_name(), written.file_name());
    let found = verify_written(&job.graph, &other, &plan_options, budget).map_err(|error| {
        let (input, output) = (input.clone(), output.clone());
        let is_lowered = Release::of(&job.graph).trains && !Release::of(&other).trains;
        match is_lowered {
            true => Error::Lowered { input, output },
            false => Error::Different {
                input,
                output,
                error: error.into(),
            },
        }
    })?;
    let nodes = counterparts(&job.graph, &other, &found);
    onnx::compare(original, written, &nodes, onnx::METADATA).map_err(|difference| {
        Error::DifferentFile {
            input,
            output,
            difference,
        }
    })?;
    Ok(Verification {
        before,
        after,
        claim,
        warnings: job.warnings,
    })
}
