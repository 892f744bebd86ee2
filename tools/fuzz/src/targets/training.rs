//! Random training graphs, with costs as odd as they may be.

use ckpt_passes::analysis::cost::NodeOverride;
use ckpt_passes::graph::{Dimension, Graph};
use ckpt_passes::testing::{
    Draw, random_training_graph, strange_training_graph, varied_training_graph,
};

use super::plan;
use crate::source::Source;

pub(super) fn run(source: &mut Source) -> Result<(), String> {
    let most = 4 << source.below(5);
    let size = 3 + source.below(most);
    let make = source.pick(&[
        random_training_graph,
        varied_training_graph,
        strange_training_graph,
    ]);
    let mut graph = make(source.bits(), size);
    // Where updates have a sequence that sorting changes, barriers keep it, and the graph may not fit its own peak then.
    if source.one_in(4) && !updates_twice(&graph) {
        list_otherwise(source, &mut graph);
    }
    source.file("txt", || graph.to_listing().into_bytes());
    let mut options = plan::options(source);
    let batch = Dimension::Symbol("batch".to_owned());
    let mut inputs = graph.inputs.iter().map(|&id| graph.tensor(id));
    if inputs.any(|input| input.declared.iter().flatten().any(|size| *size == batch)) {
        options.bindings.insert("batch".to_owned(), 4);
    }
    if source.one_in(4) {
        for &id in graph.order() {
            if source.one_in(2) {
                continue;
            }
            let said = NodeOverride {
                time_us: source
                    .one_in(2)
                    .then(|| source.pick(&[1.0, 0.0, 1e6, 1e19, f64::MAX])),
                workspace_bytes: source.one_in(4).then(|| source.bits() >> source.below(64)),
                recomputable: source.one_in(3).then(|| source.one_in(2)),
                ..NodeOverride::default()
            };
            options.overrides.insert(graph.node(id).name.clone(), said);
        }
    }
    source.file("options.txt", || format!("{options:#?}").into_bytes());
    plan::plan(source, &graph, &options, None).map(drop)
}

/// As if it was read from a file that lists the nodes in any sequence.
fn list_otherwise(source: &mut Source, graph: &mut Graph) {
    let mut places: Vec<u32> = (0..graph.node_count() as u32).collect();
    for at in (1..places.len()).rev() {
        places.swap(at, source.below(at + 1));
    }
    for (id, place) in graph.order().to_vec().into_iter().zip(places) {
        graph.node_mut(id).template = Some(place);
    }
}

/// Do two nodes update the same running statistics?
fn updates_twice(graph: &Graph) -> bool {
    let nodes = graph.order().iter().map(|&id| graph.node(id));
    let mut updated: Vec<_> = nodes
        .filter(|node| node.op_type == "BatchNormInternal")
        .filter_map(|node| node.input(3))
        .collect();
    let count = updated.len();
    updated.sort();
    updated.dedup();
    updated.len() < count
}
