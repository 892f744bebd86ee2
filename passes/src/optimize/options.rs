//! What a caller asks for: the budget, the machine, and how to search.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::analysis::cost::{Overrides, beside_model, unawaited};
use crate::bytes::Bytes;
use crate::graph::Graph;
use crate::operators::Provider;
use crate::operators::variants::{Group, Variant, offered};
use crate::pass::Runner;
use crate::program::Solving;
use crate::rewrite::infer_shapes;
use crate::runtime::Runtime;
use crate::runtime::convolutions::AlgorithmChoice;
use crate::runtime::device::Device;
use crate::runtime::level::Level;
use crate::search::Effort;
use crate::strategy::Strategy;
use crate::watch::Watch;

/// A budget as the user states it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BudgetRequest {
    /// That many bytes.
    Bytes(Bytes),
    /// That part (0.6 for 60 %) of the peak of the unmodified graph.
    PartOfPeak(f64),
    /// What the caller owns plus that part of the rest of the peak.
    FixedPlusPart(f64),
    /// At most 0.5 % above the smallest peak that is found, at the least time.
    Smallest,
}

/// What to do and for which machine.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// Values of symbolic dimensions.
    pub bindings: BTreeMap<String, u64>,
    /// The budget of one training step.
    pub budget: BudgetRequest,
    /// Memory that the graph does not show. Counts as owned by the caller.
    pub reserve: Bytes,
    /// What the graph runs on.
    pub device: Device,
    /// What the user says of single nodes.
    pub overrides: Overrides,
    /// How to search.
    pub strategy: Strategy,
    /// Which variants may replace nodes.
    pub variants: BTreeSet<Group>,
    /// The names of approximations that may replace nodes as well
    /// ([`crate::operators::variants::APPROXIMATIONS`]).
    pub allowed: BTreeSet<String>,
    /// How hard to search.
    pub effort: Effort,
    /// What runs the graph, and how it uses memory.
    pub runtime: Runtime,
    /// Set from outside, it ends the search early: the result then depends on when.
    pub watch: Arc<Watch>,
    /// For what a solver is used.
    pub solving: Solving,
    /// Runs the passes.
    pub runner: Runner,
}

impl PlanOptions {
    /// The variants that may replace nodes.
    pub(crate) fn offered(&self) -> Vec<&'static Variant> {
        offered(&self.variants, &self.allowed, self.device.provider)
    }

    /// The same for what was made of a graph, which may have lost dimensions.
    pub fn for_written(&self, written: &Graph) -> PlanOptions {
        let mut options = self.clone();
        infer_shapes::retain_existing(&mut options.bindings, written);
        options
    }

    /// The same, with what is said of nodes beside what the model says of them in `original`, and the device as it is beside that.
    pub(super) fn beside_model(&self, original: &Graph) -> PlanOptions {
        let is_gpu = self.device.provider == Provider::Cuda;
        let waits = self.runtime.promise.level != Some(Level::DisableAll);
        let device = match is_gpu && !waits {
            true => unawaited(original, &self.device),
            false => self.device.clone(),
        };
        PlanOptions {
            overrides: beside_model(&self.overrides, original, &device),
            device,
            ..self.clone()
        }
    }

    /// The same for a session in which convolutions are as `choice` says; what is said of nodes stands beside
    /// what the model says then.
    pub(super) fn with_choice(&self, original: &Graph, choice: AlgorithmChoice) -> PlanOptions {
        let mut options = self.clone();
        options.device.convolutions.choice = choice;
        options.beside_model(original)
    }
    /// The nodes for which the user vouches that they may be repeated.
    pub(super) fn permitted(&self) -> BTreeSet<String> {
        let vouched = self.overrides.iter();
        let vouched = vouched.filter(|(_, said)| said.recomputable == Some(true));
        vouched.map(|(name, _)| name.clone()).collect()
    }
}
