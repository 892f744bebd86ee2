//! Random training graphs, with costs as odd as they may be.

use ckpt_passes::analysis::cost::NodeOverride;
use ckpt_passes::graph::{Dimension, ElementType};
use ckpt_passes::testing::{
    Draw, in_16_bits, random_training_graph, strange_training_graph, varied_training_graph,
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
    let seed = source.bits();
    let graph = make(seed, size);
    let graph = match source.one_in(3) {
        true => {
            let narrow = source.pick(&[ElementType::Float16, ElementType::Bfloat16]);
            in_16_bits(graph, seed, narrow)
        }
        false => graph,
    };
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
