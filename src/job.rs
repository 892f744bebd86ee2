//! A model and options, brought together: the graph that all calls begin with.

use std::path::PathBuf;
use std::time::Instant;

use ckpt_passes::graph::Graph;
use ckpt_passes::optimize::{self, BudgetRequest, Measured, OptimizeError, PlanOptions, measure};
use ckpt_passes::runtime::Release;
use ckpt_passes::runtime::settings::RuntimeSettings;
use ckpt_passes::verify::{Correspondence, Role};

use crate::control::{Event, Warning};
use crate::error::Error;
use crate::inputs::Profile;
use crate::onnx::{self, Counterpart, ImportError, Model};
use crate::options::Options;
use crate::warnings;

/// A graph, and what is to be done with it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) model: Model,
    /// As the user gave them, with what runs the graph, and what the optimizer holds in the reserve.
    pub(crate) options: Options,
    /// With what the profile tells of its shapes.
    pub(crate) graph: Graph,
    pub(crate) begun: Instant,
    /// What was said so far that the user should look at.
    pub(crate) warnings: Vec<Warning>,
}

/// Why nothing can be done with a graph, whatever else the user should look at.
pub(crate) type Check = fn(&Graph, &PlanOptions) -> Result<(), OptimizeError>;

impl Job {
    /// Reads the graph, refuses what does not pass the check, and only then warns of what does not go together.
    pub(crate) fn new(model: &Model, options: &Options, check: Check) -> Result<Job, Error> {
        let begun = Instant::now();
        let plan_options = options.to_plan(BudgetRequest::Smallest)?;
        let graph = graph(model, &plan_options, options.profile.as_deref())?;
        loads(model)?;
        let mut options = options.clone();
        if let Some(optimizer) = options.optimizer.take() {
            let shaped = optimize::with_shapes(&graph, &plan_options);
            let shaped = shaped.map_err(|error| failed(model, options.settings(), error.into()))?;
            options.reserve += optimizer.memory(&shaped)?;
        }
        options.runtime.get_or_insert_with(|| Release::of(&graph));
        let plan_options = options.to_plan(BudgetRequest::Smallest)?;
        let mut job = Job {
            model: model.clone(),
            options,
            graph,
            begun,
            warnings: Vec::new(),
        };
        let profile = job.options.profile.clone();
        let profile = profile.as_deref();
        let refused = check(&job.graph, &plan_options);
        let doubts = match &refused {
            Ok(()) => warnings::doubts(model, &job.graph, &plan_options, profile),
            // Shapes that it tells may be why.
            Err(OptimizeError::Shape(_)) => {
                let doubt = profile.and_then(|one| one.other_size(&job.graph, &job.options.dims));
                doubt.into_iter().collect()
            }
            Err(_) => Vec::new(),
        };
        for doubt in doubts {
            job.warn(Warning::Doubt(doubt));
        }
        refused.map_err(|error| job.failed(error))?;
        job.go_on()?;
        Ok(job)
    }

    /// Tells of it, and keeps it for the result.
    pub(crate) fn warn(&mut self, warning: Warning) {
        self.options.control.tell(&Event::Warning(&warning));
        self.warnings.push(warning);
    }

    /// An error if somebody said that it is enough.
    pub(crate) fn go_on(&self) -> Result<(), Error> {
        match self.options.control.cancel.is_cancelled() {
            true => Err(Error::Cancelled),
            false => Ok(()),
        }
    }

    /// The error of a pass, with the file's name.
    pub(crate) fn failed(&self, error: OptimizeError) -> Error {
        failed(&self.model, self.options.settings(), error)
    }

    /// The error of a search, which the time limit may have ended.
    pub(crate) fn not_found(&self, error: OptimizeError, ended_early: bool) -> Error {
        Error::Optimize {
            file: self.model.file_name(),
            error: error.into(),
            settings: self.options.settings(),
            ended_early,
        }
    }

    /// The file was written to while it was worked on.
    pub(crate) fn unchanged(&self) -> Result<(), Error> {
        match self.model.has_changed() {
            true => Err(Error::Changed {
                path: PathBuf::from(self.model.file_name()),
            }),
            false => Ok(()),
        }
    }
}

/// An error if the runtime would not load the model, nor what is made of it.
pub(crate) fn loads(model: &Model) -> Result<(), Error> {
    onnx::sound(model).map_err(|difference| Error::Unsound {
        file: model.file_name(),
        difference,
    })
}

/// What a step of the model takes.
pub(crate) fn measured(
    model: &Model,
    graph: &Graph,
    options: &PlanOptions,
) -> Result<Measured, Error> {
    measure(graph, options).map_err(|error| failed(model, options.runtime.settings, error))
}

fn failed(model: &Model, settings: RuntimeSettings, error: OptimizeError) -> Error {
    Error::Optimize {
        file: model.file_name(),
        error: error.into(),
        settings,
        ended_early: false,
    }
}

/// The model's graph, with what the profile tells of its shapes.
pub(crate) fn graph(
    model: &Model,
    options: &PlanOptions,
    profile: Option<&Profile>,
) -> Result<Graph, ImportError> {
    let mut graph = model.sorted_graph()?;
    if let Some(profile) = profile {
        profile.tell(&mut graph, &options.bindings);
    }
    Ok(graph)
}

/// What the nodes of the written file come from, by their places in the files.
pub(crate) fn counterparts(
    original: &Graph,
    written: &Graph,
    found: &Correspondence,
) -> Vec<Counterpart> {
    let in_file = |id| written.node(id).template.or(written.node(id).piece_of);
    let count = written.node_ids().filter_map(in_file).max();
    let mut nodes = vec![Counterpart::New; count.map_or(0, |last| last as usize + 1)];
    let place = |graph: &Graph, id| graph.node(id).template.map(|place| place as usize);
    let call = |graph: &Graph, id| graph.node(id).piece_of.map(|place| place as usize);
    for id in written.node_ids() {
        if let (Role::Original(of), Some(now)) = (found.role(id), call(written, id))
            && let Some(then) = call(original, of)
        {
            nodes[now] = Counterpart::Same(then);
            continue;
        }
        let counterpart = match found.role(id) {
            Role::Original(of) => place(original, of).map(Counterpart::Same),
            Role::Copy(of) | Role::Variant(of) => place(original, of).map(Counterpart::InsteadOf),
            Role::Barrier | Role::Release => None,
        };
        if let (Some(counterpart), Some(place)) = (counterpart, place(written, id)) {
            nodes[place] = counterpart;
        }
    }
    nodes
}
