//! The largest size of a dimension that fits a budget.

use std::sync::Arc;

use ckpt_passes::optimize::{BudgetRequest, OptimizeError, StopReason};
use ckpt_passes::rewrite::infer_shapes::InferShapesError;

use crate::control::Event;
use crate::error::Error;
use crate::inputs::Budget;
use crate::onnx::Model;
use crate::options::Options;
use crate::rewrite::{Rewritten, optimize};

/// No size above it is tried.
const MOST: u64 = 1 << 30;

/// What was found.
#[derive(Debug)]
pub struct Largest {
    /// The graph of the largest size that fits; `None` if not even 1 does.
    pub rewritten: Option<Rewritten>,
    /// Every size that was tried, in that sequence.
    pub tried: Vec<Attempt>,
}

/// One size that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// The size.
    pub size: u64,
    /// Added time / time of the unmodified step; `None` where nothing fits the budget.
    pub overhead: Option<f64>,
    /// Does it fit, and adds no more than was allowed?
    pub fits: bool,
    /// Why the search ended; `None` where nothing fits, although it had the time it takes.
    pub stop_reason: Option<StopReason>,
}

impl Largest {
    /// The largest size that fits; `None` if not even 1 does.
    pub fn size(&self) -> Option<u64> {
        let fits = self.tried.iter().filter(|attempt| attempt.fits);
        fits.map(|attempt| attempt.size).max()
    }
}

/// The largest size of the dimension `dim` with which a step fits `budget`, a number of bytes, and takes at most the
/// part `at_most` of a step longer (0.1 for 10 %).
///
/// Sizes are doubled until one does not fit, and the gap is then halved. It is the largest if all below it fit as well,
/// which a search that is not exhaustive does not promise.
pub fn largest(
    model: &Model,
    dim: &str,
    budget: &Budget,
    at_most: Option<f64>,
    options: &Options,
) -> Result<Largest, Error> {
    if !matches!(budget.request, BudgetRequest::Bytes(_)) {
        return Err(Error::RelativeBudget {
            budget: budget.to_string(),
        });
    }
    let mut found = Largest {
        rewritten: None,
        tried: Vec::new(),
    };
    let quiet = without_warnings(options);
    let mut fits = |size: u64| -> Result<bool, Error> {
        options.control.tell(&Event::Trying { dim, size });
        let mut options = quiet.clone();
        options.dims.insert(dim.to_owned(), size);
        let (rewritten, stop_reason) = match optimize(model, budget, &options) {
            Ok(rewritten) => {
                let stop_reason = rewritten.summary().stop_reason;
                (Some(rewritten), Some(stop_reason))
            }
            Err(error) if is_too_large(&error) => {
                (None, error.ended_early().then_some(StopReason::TimeLimit))
            }
            Err(error) => return Err(error),
        };
        let overhead = rewritten.as_ref().map(|one| one.summary().overhead());
        let fits = overhead.is_some_and(|overhead| at_most.is_none_or(|most| overhead <= most));
        found.tried.push(Attempt {
            size,
            overhead,
            fits,
            stop_reason,
        });
        if fits {
            found.rewritten = rewritten;
        }
        Ok(fits)
    };
    let (mut largest, mut too_large) = (0, 1);
    while too_large <= MOST && fits(too_large)? {
        (largest, too_large) = (too_large, 2 * too_large);
    }
    while too_large - largest > 1 && too_large <= MOST {
        let middle = largest + (too_large - largest) / 2;
        match fits(middle)? {
            true => largest = middle,
            false => too_large = middle,
        }
    }
    for warning in found.rewritten.iter().flat_map(Rewritten::warnings) {
        options.control.tell(&Event::Warning(warning));
    }
    Ok(found)
}

/// Is the size the reason?
fn is_too_large(error: &Error) -> bool {
    let Error::Optimize { error, .. } = error else {
        return false;
    };
    matches!(
        **error,
        OptimizeError::Infeasible { .. } | OptimizeError::Shape(InferShapesError::TooLarge { .. })
    )
}

/// The same options for one attempt of many: what it warns of is told once, of the size that is taken.
fn without_warnings(options: &Options) -> Options {
    let mut quiet = options.clone();
    if let Some(on_event) = options.control.on_event.clone() {
        quiet.control.on_event = Some(Arc::new(move |event| match event {
            Event::Warning(_) => {}
            other => on_event(other),
        }));
    }
    quiet
}
