//! A training graph in standard operators.

use std::collections::BTreeMap;
use std::path::Path;

use ckpt_passes::graph::{Graph, Node, TensorId};
use ckpt_passes::lower::{self, LoweringSummary};

use crate::error::Error;
use crate::onnx::{Model, Pending, export_lowered};
use crate::rewrite::Target;

/// Writes the training operators of `model` in standard ones, so that a runtime without training runs it. `dims` are
/// sizes of symbolic dimensions; they are needed only where a file says too little of its tensors.
pub fn lower(model: &Model, dims: &BTreeMap<String, u64>) -> Result<LoweredModel, Error> {
    let mut graph = model.sorted_graph()?;
    let nodes = graph.order().len();
    let lowered = lower::lower(&mut graph, dims).map_err(|error| Error::Lower {
        file: model.file_name(),
        error,
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
        let file = export_lowered(&self.model, &self.graph, target.path(), &[])?;
        let written = Model::open(file.path()).map_err(Error::Unreadable)?;
        let written = written.sorted_graph().map_err(Error::Unreadable)?;
        same(&self.graph, &written).map_err(|what| Error::LoweredDiffers { what })?;
        Ok(file)
    }
}

/// Do both have the same nodes in the same sequence? What differs, if not.
fn same(expected: &Graph, found: &Graph) -> Result<(), String> {
    if expected.order().len() != found.order().len() {
        let (expected, found) = (expected.order().len(), found.order().len());
        return Err(format!("it has {found} nodes, expected {expected}"));
    }
    for (&one, &other) in expected.order().iter().zip(found.order()) {
        let (one, other) = (expected.node(one), found.node(other));
        let is_same = one.name == other.name
            && one.domain == other.domain
            && one.op_type == other.op_type
            && names(expected, one) == names(found, other);
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
