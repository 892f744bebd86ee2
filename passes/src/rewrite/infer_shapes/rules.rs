//! What of a graph with shapes is known without anybody's word for it.

use std::collections::BTreeSet;

use crate::graph::{Graph, TensorId, Uses, topological};
use crate::operators;

/// By tensor: is it the caller's, or does a rule say all of it from tensors of which that is true? What a file declares, a bound of what
/// data decide, or numbers in place of which the caller may feed others, is nothing to go by here. `None` where nodes form a circle.
pub(crate) fn follows_from_rules(shaped: &Graph) -> Option<Vec<bool>> {
    let uses = Uses::of(shaped);
    let fed: BTreeSet<TensorId> = shaped.inputs.iter().copied().collect();
    let mut follows: Vec<bool> = shaped
        .tensor_ids()
        .map(|id| {
            let may_be_fed = fed.contains(&id) && shaped.tensor(id).constant.is_some();
            uses.producer(id).is_none() && !may_be_fed
        })
        .collect();
    for id in topological(shaped, &uses).ok()? {
        let node = shaped.node(id);
        if !node.bodies.is_empty() || !node.reads().all(|read| follows[read.index()]) {
            continue;
        }
        let Some(Ok(known)) = operators::infer(shaped, &uses, node) else {
            continue;
        };
        for (output, known) in node.outputs.iter().zip(known) {
            if let (Some(output), Some(_)) = (output, known) {
                follows[output.index()] = true;
            }
        }
    }
    Some(follows)
}
