//! Which nodes must keep their sequence although no tensor passes between them.
//!
//! Memory that is updated in place (running statistics of a batch normalization that branches
//! share, accumulation buffers) has to be updated and read in the sequence of the unmodified
//! graph: updates do not commute.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Graph, Node, NodeId, TensorId};
use crate::operators;

/// Pairs of nodes of which the first must run before the second, though it writes nothing that the second reads. `order` is
/// how the unmodified graph runs.
///
/// What another name of a buffer's memory is read by, such as a running statistic that a batch normalization hands on,
/// reads the buffer.
pub fn sequences(graph: &Graph, order: &[NodeId]) -> Vec<(NodeId, NodeId)> {
    let buffers = Buffers::of(graph, order);
    // By buffer: its updates so far, and who has read it since the last.
    let mut updated: BTreeMap<TensorId, Option<NodeId>> = BTreeMap::new();
    for &id in order {
        let updates = buffers.updates(graph.node(id));
        updated.extend(updates.into_iter().map(|buffer| (buffer, None)));
    }
    if updated.is_empty() {
        return Vec::new();
    }
    let mut readers: BTreeMap<TensorId, Vec<NodeId>> = BTreeMap::new();
    let mut pairs = Vec::new();
    for &id in order {
        let node = graph.node(id);
        let updates = buffers.updates(node);
        for buffer in buffers.accesses(node) {
            let Some(last) = updated.get(&buffer).copied() else {
                continue;
            };
            pairs.extend(last.map(|last| (last, id)));
            if updates.contains(&buffer) {
                let before = readers.remove(&buffer).unwrap_or_default();
                pairs.extend(before.into_iter().map(|reader| (reader, id)));
                updated.insert(buffer, Some(id));
            } else {
                readers.entry(buffer).or_default().push(id);
            }
        }
    }
    let passes_on = |first: NodeId, second: NodeId| {
        let mut written = graph.node(first).writes();
        written.any(|tensor| graph.node(second).reads().any(|read| read == tensor))
    };
    pairs.retain(|&(first, second)| first != second && !passes_on(first, second));
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

/// Whose memory each tensor is.
struct Buffers {
    /// By tensor.
    roots: Vec<TensorId>,
    is_output: Vec<bool>,
}

impl Buffers {
    fn of(graph: &Graph, order: &[NodeId]) -> Buffers {
        let mut is_output = vec![false; graph.tensor_count()];
        for output in &graph.outputs {
            is_output[output.index()] = true;
        }
        let mut buffers = Buffers {
            roots: graph.tensor_ids().collect(),
            is_output,
        };
        for &id in order {
            let node = graph.node(id);
            for (input, output) in buffers.aliases(node) {
                if let Some(input) = node.input(input) {
                    buffers.roots[output.index()] = buffers.roots[input.index()];
                }
            }
        }
        buffers
    }

    /// Inputs of the node, and what is their memory under another name. The runtime copies into graph outputs.
    fn aliases(&self, node: &Node) -> Vec<(usize, TensorId)> {
        let all = operators::aliases(node).into_iter();
        all.filter_map(|(output, input)| Some((input, node.output(output)?)))
            .filter(|(_, output)| !self.is_output[output.index()])
            .collect()
    }

    fn updates(&self, node: &Node) -> BTreeSet<TensorId> {
        let inputs = operators::updated_inputs(node).into_iter();
        let updated = inputs.filter_map(|position| node.input(position));
        updated.map(|tensor| self.roots[tensor.index()]).collect()
    }

    /// What the node reads or updates. Who only gives memory another name does neither: whoever reads that does.
    fn accesses(&self, node: &Node) -> BTreeSet<TensorId> {
        let aliases = self.aliases(node);
        let renames = |position: usize| aliases.iter().any(|&(input, _)| input == position);
        let inputs = node.inputs.iter().enumerate();
        let read = inputs.filter_map(|(position, input)| input.filter(|_| !renames(position)));
        let read = read.chain(node.captures.iter().copied());
        let mut accesses: BTreeSet<TensorId> =
            read.map(|tensor| self.roots[tensor.index()]).collect();
        accesses.extend(self.updates(node));
        accesses
    }
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

    #[test]
    fn who_reads_what_a_batch_norm_hands_on_reads_the_buffer() {
        // The first is kept before the second, which updates the same memory once more; the second reads
        // what the second update leaves, and has to wait for it anyway.
        let text = "g (x, y, s, t, m, v) => (once, twice) {
            [left] a, am, av, as, ai = com.microsoft.BatchNormInternal (x, s, t, m, v)
            [view] named = Identity (av)
            [once] once = Exp (named)
            [right] b, bm, bv, bs, bi = com.microsoft.BatchNormInternal (y, s, t, m, v)
            [twice] twice = Exp (bv)
        }";
        assert_eq!(pairs(text), ["left < once", "left < right", "once < right"]);
    }

    #[test]
    fn a_computed_buffer_is_read_in_sequence_too() {
        let text = "g (w, ga) => () {
            [zeros] z = Neg(w)
            [before] e = Exp(z)
            [first] r = com.microsoft.InPlaceAccumulatorV2(z, ga)
            [after] l = Exp(z)
        }";
        assert_eq!(pairs(text), ["before < first", "first < after"]);
    }
}
