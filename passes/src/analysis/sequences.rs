//! Which nodes must keep their sequence although no tensor passes between them.
//!
//! Memory that is updated in place (running statistics of a batch normalization that branches
//! share, accumulation buffers) has to be updated and read in the sequence of the unmodified
//! graph: updates do not commute.

use std::collections::BTreeMap;

use crate::graph::{Graph, NodeId, TensorId, TensorKind};
use crate::operators;

/// Pairs of nodes of which the first must run before the second. `order` is how the unmodified
/// graph runs.
pub fn sequences(graph: &Graph, order: &[NodeId]) -> Vec<(NodeId, NodeId)> {
    // By buffer: its updates so far, and who has read it since the last.
    let mut updated: BTreeMap<TensorId, Option<NodeId>> = BTreeMap::new();
    for &id in order {
        let node = graph.node(id);
        for position in operators::updated_inputs(node) {
            if let Some(buffer) = node.input(position)
                && graph.tensor(buffer).kind != TensorKind::Value
            {
                updated.insert(buffer, None);
            }
        }
    }
    let mut readers: BTreeMap<TensorId, Vec<NodeId>> = BTreeMap::new();
    let mut pairs = Vec::new();
    for &id in order {
        let node = graph.node(id);
        let updates: Vec<TensorId> = operators::updated_inputs(node)
            .into_iter()
            .filter_map(|position| node.input(position))
            .collect();
        for tensor in node.reads() {
            let Some(last) = updated.get(&tensor).copied() else {
                continue;
            };
            pairs.extend(last.map(|last| (last, id)));
            if updates.contains(&tensor) {
                let before = readers.remove(&tensor).unwrap_or_default();
                pairs.extend(before.into_iter().map(|reader| (reader, id)));
                updated.insert(tensor, Some(id));
            } else {
                readers.entry(tensor).or_default().push(id);
            }
        }
    }
    pairs.retain(|(first, second)| first != second);
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pairs by node name, `first < second`.
    fn pairs(text: &str) -> Vec<String> {
        let graph = Graph::parse(text).unwrap();
        let name = |id: NodeId| &graph.node(id).name;
        let pairs = sequences(&graph, graph.order());
        let pairs = pairs
            .into_iter()
            .map(|(a, b)| format!("{} < {}", name(a), name(b)));
        pairs.collect()
    }

    #[test]
    fn branches_that_share_a_batch_norm_update_it_in_sequence() {
        let text = "g (x, y, s, t, m, v) => () {
            [left] a, am, av, as, ai = com.microsoft.BatchNormInternal (x, s, t, m, v)
            [right] b, bm, bv, bs, bi = com.microsoft.BatchNormInternal (y, s, t, m, v)
        }";
        assert_eq!(pairs(text), ["left < right"]);
    }

    #[test]
    fn a_reader_stays_between_two_updates() {
        let text = "g (w, r, ga, gb) => () {
            [early] e = Exp(w)
            [first] a = com.microsoft.InPlaceAccumulatorV2(w, ga, r)
            [reader] n = Exp(w)
            [second] b = com.microsoft.InPlaceAccumulatorV2(w, gb, r)
            [late] l = Exp(w)
        }";
        assert_eq!(
            pairs(text),
            [
                "early < first",
                "first < reader",
                "first < second",
                "reader < second",
                "second < late",
            ]
        );
    }

    #[test]
    fn what_is_only_read_and_what_is_updated_once_is_free() {
        let text = "g (w, r, ga, p) => () {
            [a] a = Exp(p)
            [b] b = Exp(p)
            [sum] s = com.microsoft.InPlaceAccumulatorV2(w, ga, r)
        }";
        assert_eq!(pairs(text), [""; 0]);
    }

    #[test]
    fn the_given_order_decides_which_is_first() {
        let text = "g (w, r, ga, gb) => () {
            [one] a = com.microsoft.InPlaceAccumulatorV2(w, ga, r)
            [two] b = com.microsoft.InPlaceAccumulatorV2(w, gb, r)
        }";
        let graph = Graph::parse(text).unwrap();
        let [one, two] = [graph.order()[0], graph.order()[1]];
        assert_eq!(sequences(&graph, &[two, one]), [(two, one)]);
    }
}
