//! From a model and a budget to a file that is proved.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ckpt_passes::graph::Graph;
use ckpt_passes::optimize::{self, Optimized, Summary, verify_written};
use ckpt_passes::runtime::Release;

use crate::control::{Event, Warning};
use crate::error::Error;
use crate::inputs::Budget;
use crate::job::{self, Job, counterparts};
use crate::onnx::{self, Model, Pending, Sink, check_destination, export_with};
use crate::options::Options;
use crate::provenance;
use crate::report::rows::Comparison;
use crate::session::Session;
use crate::sweep::{sweep, usual_budgets};

/// What is planned anew is planned for this part of the budget less.
const LESS: u64 = 64;

/// Finds a graph that computes what `model` computes and fits the budget, with the least added time.
///
/// The same model, budget and options give the same graph, unless the search is ended early. If nothing fits, the error
/// has the smallest peak and what holds it ([`Error::smallest`]).
pub fn optimize(model: &Model, budget: &Budget, options: &Options) -> Result<Rewritten, Error> {
    let job = Job::new(model, options, optimize::check_plannable)?;
    Rewritten::planned(job, budget, Duration::ZERO)
}

/// A graph that fits, and what is known of it; not written yet.
#[derive(Debug)]
pub struct Rewritten {
    job: Job,
    budget: Budget,
    /// For what the graph holds: with the choice of algorithms that was planned.
    plan_options: optimize::PlanOptions,
    optimized: Optimized,
    search_time: Duration,
}

impl Rewritten {
    /// `spent` went into searches before.
    fn planned(mut job: Job, budget: &Budget, spent: Duration) -> Result<Rewritten, Error> {
        let mut plan_options = job.options.to_plan(budget.request)?;
        let control = job.options.control.clone();
        control.tell(&Event::Planning {
            nodes: job.graph.order().len(),
            strategy: job.options.strategy,
            budget: Some(&budget.to_string()),
        });
        let begun = Instant::now();
        let row = control.watching(&plan_options.watch, || {
            job.options
                .plan(&job.graph, &plan_options, &[plan_options.budget])
        });
        let optimized = row.and_then(|mut row| row.pop().expect("one result for one budget"));
        job.go_on()?;
        let ended_early = plan_options.watch.is_stopped();
        if optimized.is_err() && ended_early {
            job.warn(Warning::Doubt(
                "--time-limit ended the search early; with more time there may be a plan"
                    .to_owned(),
            ));
        }
        let optimized = optimized.map_err(|error| job.not_found(error, ended_early))?;
        for fault in &optimized.summary.faults {
            job.warn(Warning::GivenUp(fault.to_string()));
        }
        plan_options.runtime.promise = optimized.summary.promise;
        let (order, level) = optimized.summary.reported;
        for way in optimized.summary.over_budget() {
            job.warn(Warning::Doubt(format!(
                "the graph stays as it is, which fits the budget in {} order at {}, and takes {} in {} order at {}",
                order.name(),
                level.name(),
                way.bytes,
                way.order.name(),
                way.level.name()
            )));
        }
        if let Some(choice) = optimized.summary.convolutions {
            plan_options.device.convolutions.choice = choice;
        }
        Ok(Rewritten {
            job,
            budget: budget.clone(),
            plan_options,
            optimized,
            search_time: spent + begun.elapsed(),
        })
    }

    /// What was done, and what the graph needs.
    pub fn summary(&self) -> &Summary {
        &self.optimized.summary
    }

    /// What the usual budgets cost beside this one, as far as that is found within `limit`.
    pub fn trade_off(&self, limit: Duration) -> Result<Comparison, Error> {
        let mut options = self.job.options.clone();
        options.time_limit = Some(limit);
        options.control.on_event = None;
        sweep(
            &self.job.model,
            &usual_budgets(),
            &[options.strategy],
            &options,
        )
    }

    /// The file that was read, as errors call it.
    pub fn file_name(&self) -> String {
        self.job.model.file_name()
    }

    /// The graph that was read.
    pub fn original(&self) -> &Graph {
        &self.job.graph
    }

    /// The graph that was made of it.
    pub fn graph(&self) -> &Graph {
        &self.optimized.graph
    }

    /// What the user should look at.
    pub fn warnings(&self) -> &[Warning] {
        &self.job.warnings
    }

    /// For what it was asked.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// With what it was planned.
    pub fn options(&self) -> &Options {
        &self.job.options
    }

    /// What runs it.
    pub fn runtime(&self) -> &'static Release {
        self.plan_options.runtime.release
    }

    /// The optimizers that a session must not use, so that the budget holds.
    pub(crate) fn switched_off(&self) -> Vec<&'static str> {
        let graph = &self.optimized.graph;
        self.runtime()
            .switched_off(graph, self.plan_options.device.provider)
    }

    /// How long the searches took.
    pub fn search_time(&self) -> Duration {
        self.search_time
    }

    /// How long everything took, up to now.
    pub(crate) fn total_time(&self) -> Duration {
        self.job.begun.elapsed()
    }

    /// What a session has to be made with, so that the budget holds.
    pub fn session(&self) -> Session {
        Session::of(
            &self.plan_options,
            &self.optimized.summary,
            self.switched_off(),
        )
    }

    /// Writes the graph to `out`, whole and proved, or not at all.
    pub fn write(self, out: &Path) -> Result<Rewritten, Error> {
        let target = Target::new(&self.job.model, out)?;
        self.prepare(&target)?.commit()
    }

    /// The file as bytes, proved like one that is written. Not for models that keep data in other files.
    pub fn to_bytes(self) -> Result<(Vec<u8>, Rewritten), Error> {
        let folder = tempfile::tempdir().map_err(Error::Temporary)?;
        let file = folder.path().join("rewritten.onnx");
        let rewritten = self.write(&file)?;
        let bytes = std::fs::read(&file).map_err(Error::Temporary)?;
        Ok((bytes, rewritten))
    }

    /// Writes the graph beside its place, and proves that what lies on the disk is what was promised. A file that
    /// fails that gives way to another one, with a warning: without variants, or else planned for a little less.
    pub fn prepare(mut self, target: &Target) -> Result<Prepared, Error> {
        let mut may_ask_for_less = true;
        loop {
            let control = &self.job.options.control;
            control.tell(&Event::Writing { path: &target.path });
            self.job.unchanged()?;
            let mut metadata = self.session().metadata();
            metadata.extend(provenance::metadata(&self.job, &self.budget));
            let graph = &self.optimized.graph;
            let file = export_with(&self.job.model, graph, &target.path, &metadata);
            // Where the model changed, that is why it could not be copied.
            self.job.unchanged()?;
            let file = file?;
            match self.proved(&file) {
                Ok(()) => {
                    self.job.go_on()?;
                    return Ok(Prepared {
                        rewritten: self,
                        file,
                    });
                }
                Err(error) if !self.optimized.summary.variants.is_empty() => {
                    let Rewritten { mut job, .. } = self;
                    job.warn(Warning::GivenUp(format!("with variants, {error}")));
                    job.options.variants.clear();
                    job.options.allow.clear();
                    self = Rewritten::planned(job, &self.budget, self.search_time)?;
                }
                Err(error) if std::mem::take(&mut may_ask_for_less) => {
                    self = self.planned_for_less(error)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Another plan, for a little less memory, in place of one that could not be proved; `error` if there is none.
    fn planned_for_less(self, error: Error) -> Result<Rewritten, Error> {
        let Rewritten {
            mut job,
            budget,
            optimized,
            search_time,
            ..
        } = self;
        job.warn(Warning::GivenUp(error.to_string()));
        let most = optimized.summary.budget;
        let less = Budget::from(most - crate::Bytes(most.0 / LESS));
        let found = Rewritten::planned(job, &less, search_time);
        found
            .map(|found| Rewritten { budget, ..found })
            .map_err(|_| error)
    }

    /// Reads the file back, as it lies on the disk, and proves that it is what was promised.
    fn proved(&self, file: &Pending) -> Result<(), Error> {
        #[cfg(test)]
        faults::fault()?;
        let budget = self.optimized.summary.budget;
        proved(&self.job, file, &self.plan_options, budget)
    }
}

fn proved(
    job: &Job,
    file: &Pending,
    plan_options: &optimize::PlanOptions,
    budget: crate::Bytes,
) -> Result<(), Error> {
    let profile = job.options.profile.as_deref();
    let file = Model::open(file.path()).map_err(Error::Unreadable)?;
    let written = job::graph(&file, plan_options, profile).map_err(Error::Unreadable)?;
    let found = verify_written(&job.graph, &written, plan_options, budget)
        .map_err(|error| Error::Written(error.into()))?;
    let nodes = counterparts(&job.graph, &written, &found);
    onnx::compare(&job.model, &file, &nodes, onnx::METADATA).map_err(Error::WrittenDiffers)
}

/// Where a graph shall be written, found to be possible: a search that may take long lies before it.
#[derive(Debug)]
pub struct Target {
    path: PathBuf,
    pub(crate) sink: Sink,
}

impl Target {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// `out`, for what is made of `model`; `-` is standard output. An error if it cannot be written, or is the model or
    /// its data.
    pub fn new(model: &Model, out: &Path) -> Result<Target, Error> {
        Ok(Target {
            path: out.to_owned(),
            sink: check_destination(model, out)?,
        })
    }
}

/// A file that is written and proved, and not yet in its place. Dropping it removes it.
#[derive(Debug)]
pub struct Prepared {
    rewritten: Rewritten,
    file: Pending,
}

impl Prepared {
    /// What is in the file.
    pub fn rewritten(&self) -> &Rewritten {
        &self.rewritten
    }

    /// Moves the file to its place, in one step.
    pub fn commit(self) -> Result<Rewritten, Error> {
        self.file.commit()?;
        Ok(self.rewritten)
    }
}

#[cfg(test)]
mod tests {
    use ckpt_passes::bytes::Bytes;
    use ckpt_passes::optimize::BudgetRequest;
    use ckpt_passes::runtime::settings::RuntimeSettings;
    use insta::assert_snapshot;

    use super::*;

    /// What becomes of a file with `change` made to the graph, when it is verified within
    /// `budget`.
    fn refused(change: impl FnOnce(&mut Graph), budget: Bytes) -> String {
        let file = "testdata/onnx/conv_bn_relu_train.onnx";
        let model = Model::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let options = Options {
            runtime_settings: Some(RuntimeSettings::LEAN),
            ..Options::default()
        };
        let job = Job::new(&model, &options, optimize::check_plannable).unwrap();
        let plan_options = job.options.to_plan(BudgetRequest::Smallest).unwrap();
        let mut changed = model.graph().unwrap();
        change(&mut changed);
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out.onnx");
        let pending = export_with(&model, &changed, &out, &[]).unwrap();
        let error = proved(&job, &pending, &plan_options, budget).unwrap_err();
        drop(pending);
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 0, "no file is left behind");
        error.explained()
    }

    #[test]
    fn a_file_that_computes_something_else_is_not_kept() {
        let other_activation = |graph: &mut Graph| {
            let relu = |&id: &_| graph.node(id).name == "relu1";
            let id = *graph.order().iter().find(|id| relu(id)).unwrap();
            graph.node_mut(id).op_type = "Sigmoid".to_owned();
        };
        assert_snapshot!(refused(other_activation, Bytes(u64::MAX)), @r#"the written file failed verification, so it was not kept: Sigmoid "relu1" must keep its operator: expected Relu, found Sigmoid"#);
    }

    #[test]
    fn a_file_that_needs_more_than_the_budget_is_not_kept() {
        assert_snapshot!(refused(|_| (), Bytes(100_000)), @"the written file failed verification, so it was not kept: the peak in DEFAULT order is 188 KiB, above the budget of 97.7 KiB");
    }
}

#[cfg(test)]
mod faults {
    use std::cell::Cell;

    use ckpt_passes::runtime::settings::RuntimeSettings;

    use super::*;

    thread_local! {
        /// So many files are found wrong.
        static FAULTS: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn fault() -> Result<(), Error> {
        match FAULTS.get().checked_sub(1) {
            None => Ok(()),
            Some(left) => {
                FAULTS.set(left);
                Err(Error::Changed {
                    path: PathBuf::from("a fault that a test made"),
                })
            }
        }
    }

    /// Without variants; what the warnings say, or the error.
    fn rewritten(faults: usize) -> Result<(Rewritten, Vec<u8>), Error> {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/onnx/conv_bn_relu_train.onnx");
        let model = Model::open(&file).expect("the model");
        let mut options = Options::default();
        options.variants.clear();
        options.runtime_settings = Some(RuntimeSettings::LEAN);
        let budget: Budget = "fixed+90%".parse().expect("a budget");
        let planned = optimize(&model, &budget, &options)?;
        FAULTS.set(faults);
        planned
            .to_bytes()
            .map(|(bytes, rewritten)| (rewritten, bytes))
    }

    #[test]
    fn a_file_that_cannot_be_proved_gives_way_to_one_planned_for_less() {
        let (first, bytes) = rewritten(0).expect("a plan");
        let (second, others) = rewritten(1).expect("another plan");
        assert!(first.warnings().is_empty() && bytes != others);
        assert!(second.summary().budget < first.summary().budget);
        assert_eq!(second.budget(), first.budget());
        let said = second.warnings()[0].to_string();
        assert!(said.contains("a fault that a test made"), "{said}");
        let error = rewritten(2).expect_err("nothing is left").to_string();
        assert!(error.contains("a fault that a test made"), "{error}");
    }
}
