//! A training graph in standard operators.

use std::collections::BTreeMap;
use std::path::Path;

use ckpt_passes::graph::{Graph, Node, TensorId};
use ckpt_passes::lower::{self, LoweringSummary, Update};
use ckpt_passes::verify;

use crate::error::Error;
use crate::job;
use crate::onnx::{Model, Pending, export_lowered, overwrites};
use crate::rewrite::Target;

/// Writes the training operators of `model` in standard ones, so that a runtime without training runs it. `dims` are
/// sizes of symbolic dimensions, on which the result does not depend; they help where the graph accepts few sizes and the file says too
/// little of its tensors. With an `update` the
/// weights follow their gradients in the graph, which then is a whole training step.
pub fn lower(
    model: &Model,
    dims: &BTreeMap<String, u64>,
    update: Option<Update>,
) -> Result<LoweredModel, Error> {
    let mut graph = model.sorted_graph()?;
    job::loads(model)?;
    let nodes = graph.order().len();
    let lowered = lower::lower(&mut graph, dims, update).map_err(|error| Error::Lower {
        file: model.file_name(),
        error,
    })?;
    // Nothing else looks at it unless it is planned.
    verify::overwrites(&graph).map_err(|violation| Error::ReadTooLate {
        file: model.file_name(),
        violation: Box::new(violation),
    })?;
    Ok(LoweredModel {
        model: model.clone(),
        graph,
        nodes,
        lowered,
    })
}

/// A graph in standard operators; not written yet.
#[derive(Debug)]
pub struct LoweredModel {
    model: Model,
    graph: Graph,
    nodes: usize,
    lowered: LoweringSummary,
}

impl LoweredModel {
    /// What was done.
    pub fn lowered(&self) -> &LoweringSummary {
        &self.lowered
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// How many nodes the file had.
    pub fn nodes_before(&self) -> usize {
        self.nodes
    }

    /// Writes the graph to `out`, whole or not at all.
    pub fn write(&self, out: &Path) -> Result<(), Error> {
        let target = Target::new(&self.model, out)?;
        self.prepare(&target)?.commit()?;
        Ok(())
    }

    /// Writes the graph beside its place, and reads it back.
    pub(crate) fn prepare(&self, target: &Target) -> Result<Pending, Error> {
        let metadata = overwrites::metadata(&self.graph);
        let metadata = metadata.as_slice();
        let file = export_lowered(&self.model, &self.graph, target.path(), metadata)?;
        let written = Model::open(file.path()).map_err(Error::Unreadable)?;
        let written = written.sorted_graph().map_err(Error::Unreadable)?;
        same(&self.graph, &written).map_err(|what| Error::LoweredDiffers { what })?;
        Ok(file)
    }
}

/// Do both have the same nodes in the same sequence? What differs, if not.
fn same(expected: &Graph, written: &Graph) -> Result<(), String> {
    if expected.order().len() != written.order().len() {
        let (expected, found) = (expected.order().len(), written.order().len());
        return Err(format!("it has {found} nodes, expected {expected}"));
    }
    let interface = |graph: &Graph| -> Vec<String> {
        let inputs = graph.inputs.iter().map(|&id| (id, "input"));
        let outputs = graph.outputs.iter().map(|&id| (id, "output"));
        let mut all: Vec<String> = inputs
            .chain(outputs)
            .map(|(id, what)| {
                let tensor = graph.tensor(id);
                let over = tensor
                    .overwrites
                    .map(|over| format!(" over {:?}", graph.tensor(over).name));
                format!("{what} {:?}{}", tensor.name, over.unwrap_or_default())
            })
            .collect();
        all.sort_unstable();
        all
    };
    let (ours, theirs) = (interface(expected), interface(written));
    if let Some(missing) = ours.iter().find(|one| theirs.binary_search(one).is_err()) {
        return Err(format!("there is no {missing}"));
    }
    if ours.len() != theirs.len() {
        return Err(format!(
            "it has {} inputs and outputs, expected {}",
            theirs.len(),
            ours.len()
        ));
    }
    for (&one, &other) in expected.order().iter().zip(written.order()) {
        let (one, other) = (expected.node(one), written.node(other));
        let is_same = one.name == other.name
            && one.domain == other.domain
            && one.op_type == other.op_type
            && names(expected, one) == names(written, other);
        if !is_same {
            return Err(format!(
                "where {} {:?} was expected there is {} {:?}",
                one.op_type, one.name, other.op_type, other.name
            ));
        }
    }
    Ok(())
}

fn names<'g>(graph: &'g Graph, node: &'g Node) -> Vec<Option<&'g str>> {
    let name = |id: &Option<TensorId>| id.map(|id| graph.tensor(id).name.as_str());
    let all = node.inputs.iter().chain([&None]).chain(&node.outputs);
    all.map(name).collect()
}
