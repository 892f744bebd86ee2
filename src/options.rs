//! What may be said beside the model and the budget.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use ckpt_passes::analysis::cost::Overrides;
use ckpt_passes::bytes::Bytes;
use ckpt_passes::graph::Graph;
use ckpt_passes::operators::variants::Group;
use ckpt_passes::operators::{CpuKernels, Provider};
use ckpt_passes::optimize::{self, BudgetRequest, OptimizeError, Optimized};
use ckpt_passes::program::{Solver, Solving};
use ckpt_passes::runtime::device::Device;
use ckpt_passes::runtime::promise::Promise;
use ckpt_passes::runtime::settings::RuntimeSettings;
use ckpt_passes::runtime::{Release, Runtime};
use ckpt_passes::search::Effort;
use ckpt_passes::strategy::Strategy;

use crate::control::Control;
use crate::error::Error;
use crate::inputs::{Optimizer, Profile};

/// How much work each part of the search may do, in lifetimes worked out: a microsecond each at most.
const EVALUATIONS: u64 = 1_000_000;

/// What a graph runs with and on, and how it is planned. Each field is the option of the command line with its name.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes of symbolic dimensions by name; patterns with `*` and `?` bound what depends on data.
    pub dims: BTreeMap<String, u64>,
    /// Memory that the graph does not show: a CUDA context, other models.
    pub reserve: Bytes,
    /// What holds memory from step to step; it comes on top of the reserve.
    pub optimizer: Option<Optimizer>,
    /// What the graph runs on; with a table of convolutions in [`Device::convolutions`], if there is one.
    pub device: Device,
    /// What is said of single nodes; it goes before the profile.
    pub costs: Overrides,
    /// Node times, and shapes where nothing else tells them.
    pub profile: Option<Arc<Profile>>,
    /// What runs the graph; without, what the graph is for ([`Release::of`]).
    pub runtime: Option<&'static Release>,
    /// The settings of the session that the peak is for. Without, [`RuntimeSettings::DEFAULT`] on a CPU and [`RuntimeSettings::LEAN`] on a
    /// GPU, where what the runtime shares is not known.
    pub runtime_settings: Option<RuntimeSettings>,
    /// The session's worker threads (`intra_op_num_threads`), where kernels' buffers depend on them; without,
    /// [`CpuKernels::DEFAULT`] has it; what is not within [`Options::THREADS`], the nearest of these.
    pub threads: Option<u32>,
    /// For which of its orders and levels of optimization the budget holds, and what is told of the graph as it is. Without, that is
    /// a session of which nobody has changed either ([`Promise::USUAL`]), and the budget holds in every other one as well where that
    /// costs next to nothing ([`optimize::optimize_usual`]). On a GPU it is the one session that is known there ([`Promise::ON_GPU`]),
    /// and never another order unless that is named.
    pub promise: Option<Promise>,
    /// How to plan.
    pub strategy: Strategy,
    /// Which operators may be replaced by others that compute the same bits.
    pub variants: BTreeSet<Group>,
    /// Variants whose results differ in the last bits or more, by name.
    pub allow: BTreeSet<String>,
    /// The same input, options and seed give the same file.
    pub seed: u64,
    /// Ends the search early, with what is found by then.
    pub time_limit: Option<Duration>,
    /// Proves a higher lower bound with a solver, if this build has one.
    pub certify: bool,
    /// Who is told of what is done, and who may end it.
    pub control: Control,
}

impl Default for Options {
    /// A CPU and a session as it is unless told otherwise; all variants that compute the same bits.
    fn default() -> Options {
        Options {
            dims: BTreeMap::new(),
            reserve: Bytes::ZERO,
            optimizer: None,
            device: Device::cpu(),
            costs: Overrides::new(),
            profile: None,
            runtime: None,
            runtime_settings: None,
            threads: None,
            promise: None,
            strategy: Strategy::Auto,
            variants: Group::ALL.into_iter().collect(),
            allow: BTreeSet::new(),
            seed: 0,
            time_limit: None,
            certify: false,
            control: Control::default(),
        }
    }
}

impl Options {
    /// How many threads a session may have.
    pub const THREADS: RangeInclusive<u32> = 1..=1024;

    /// As planning takes them, for one search that begins now.
    pub(crate) fn to_plan(&self, budget: BudgetRequest) -> Result<optimize::PlanOptions, Error> {
        let release = self.runtime.unwrap_or_default();
        let mut device = self.device.clone();
        if let Some(&first) = release.convolutions.first() {
            device.convolutions.choice = first;
        }
        device.kernels = CpuKernels {
            threads: self.threads(),
            whole_columns: release.whole_columns,
        };
        let promise = self.promised();
        Ok(optimize::PlanOptions {
            bindings: self.dims.clone(),
            budget,
            reserve: self.reserve,
            overrides: self.overrides(),
            strategy: self.strategy,
            variants: self.variants.clone(),
            allowed: self.allow.clone(),
            effort: Effort {
                seed: self.seed,
                evaluations: EVALUATIONS,
            },
            runtime: Runtime {
                promise,
                ..release
                    .on(device.provider, promise.level)
                    .with(self.settings())
            },
            device,
            watch: self.control.watch(self.time_limit),
            solving: self.solving()?,
            runner: self.control.passes(),
        })
    }

    /// Where the budget is planned to hold first.
    fn promised(&self) -> Promise {
        let known = match self.device.provider {
            Provider::Cpu => return self.promise.unwrap_or(Promise::USUAL),
            Provider::Cuda => Promise::ON_GPU,
        };
        let promise = self.promise.unwrap_or(known);
        Promise {
            order: promise.order.or(known.order),
            ..promise
        }
    }

    /// The settings of the session, if nobody says others.
    pub(crate) fn settings(&self) -> RuntimeSettings {
        self.runtime_settings.unwrap_or(match self.device.provider {
            Provider::Cpu => RuntimeSettings::DEFAULT,
            Provider::Cuda => RuntimeSettings::LEAN,
        })
    }

    /// How many threads kernels' buffers are counted for.
    pub(crate) fn threads(&self) -> u32 {
        let threads = self.threads.unwrap_or(CpuKernels::DEFAULT.threads);
        threads.clamp(*Options::THREADS.start(), *Options::THREADS.end())
    }

    /// One plan for each budget, for the promise that was asked for. `plan_options` are of these options.
    pub(crate) fn plan(
        &self,
        graph: &Graph,
        plan_options: &optimize::PlanOptions,
        budgets: &[BudgetRequest],
    ) -> Result<Vec<Result<Optimized, OptimizeError>>, OptimizeError> {
        match (self.promise, self.device.provider) {
            (None, Provider::Cpu) => optimize::optimize_usual(graph, plan_options, budgets),
            _ => optimize::optimize_each(graph, plan_options, budgets),
        }
    }

    /// What the profile and the costs say; the latter go first, entry by entry.
    fn overrides(&self) -> Overrides {
        let times = self.profile.as_ref().map(|profile| profile.times.clone());
        let mut overrides = times.unwrap_or_default();
        for (node, said) in &self.costs {
            let entry = overrides.entry(node.clone()).or_default();
            entry.time_us = said.time_us.or(entry.time_us);
            entry.workspace_bytes = said.workspace_bytes.or(entry.workspace_bytes);
            entry.recomputable = said.recomputable.or(entry.recomputable);
            entry.mirrors = said.mirrors.or(entry.mirrors);
        }
        overrides
    }

    /// The solver of this build, for a search that is to end within the limit, and what it is to do.
    fn solving(&self) -> Result<Solving, Error> {
        #[cfg(feature = "highs")]
        let solver: Option<Arc<dyn Solver>> = Some(Arc::new(crate::solver::Highs {
            until: self
                .time_limit
                .and_then(|limit| std::time::Instant::now().checked_add(limit)),
        }));
        #[cfg(not(feature = "highs"))]
        let solver: Option<Arc<dyn Solver>> = None;
        if self.certify && solver.is_none() {
            return Err(Error::NoSolver);
        }
        Ok(Solving {
            solver,
            certify: self.certify,
            seconds: self.time_limit.map(|limit| limit.as_secs_f64()),
            ..Solving::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use ckpt_passes::runtime::level::Level;
    use ckpt_passes::runtime::order::ExecutionOrder;

    use super::*;

    #[test]
    fn on_a_gpu_the_session_is_meant_that_is_known_there() {
        let asked = |device: &str, promise| {
            let options = Options {
                device: Device::preset(device).expect("a preset"),
                promise,
                ..Options::default()
            };
            let plan_options = options.to_plan(BudgetRequest::Smallest).expect("options");
            (plan_options.runtime.settings, plan_options.runtime.promise)
        };
        assert_eq!(
            asked("cpu", None),
            (RuntimeSettings::DEFAULT, Promise::USUAL)
        );
        assert_eq!(
            asked("h100", None),
            (RuntimeSettings::LEAN, Promise::ON_GPU)
        );
        // Who names a level alone means no other order.
        let at_all = Promise {
            order: None,
            level: Some(Level::EnableAll),
        };
        assert_eq!(
            asked("h100", Some(at_all)).1.order,
            Some(ExecutionOrder::Default)
        );
        assert_eq!(asked("cpu", Some(at_all)).1, at_all);
    }
}
