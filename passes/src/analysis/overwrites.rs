//! Who reads what the caller has overwritten, and may still do so when it is.
//!
//! An output can be written to the memory of an input ([`Tensor::overwrites`](crate::graph::Tensor::overwrites)): the new value
//! of a weight to the weight's. Nothing of the graph's operators says so, and no execution order is promised: all that read the
//! input have to run before the output is written because it follows from what they compute.

use std::collections::BTreeMap;

use crate::graph::{Graph, NodeId, TensorId};
use crate::operators;

/// Pairs of a node that reads an input, or the same memory under another name, and the node that overwrites it, which nothing
/// makes wait for the first. The nodes must be listed in a topological order.
pub fn unordered(graph: &Graph) -> Vec<(NodeId, NodeId)> {
    let mut writer_of: BTreeMap<TensorId, usize> = BTreeMap::new();
    let mut writers: Vec<NodeId> = Vec::new();
    let overwritten: BTreeMap<TensorId, TensorId> = graph.overwritten().collect();
    if overwritten.is_empty() {
        return Vec::new();
    }
    // By input that is overwritten and by tensors that are its memory: the number of the writer.
    for &id in graph.order() {
        for input in graph
            .node(id)
            .writes()
            .filter_map(|output| overwritten.get(&output))
        {
            writer_of.insert(*input, writers.len());
            writers.push(id);
        }
    }
    let mut read: Vec<(NodeId, usize)> = Vec::new();
    for &id in graph.order() {
        let node = graph.node(id);
        for tensor in node.reads() {
            read.extend(writer_of.get(&tensor).map(|&writer| (id, writer)));
        }
        for (output, input) in operators::aliases(node) {
            if let (Some(output), Some(input)) = (node.output(output), node.input(input))
                && let Some(&writer) = writer_of.get(&input)
                && !graph.outputs.contains(&output)
            {
                writer_of.insert(output, writer);
            }
        }
    }
    let before = Ancestors::of(graph, &writers);
    let waits = |&(reader, writer): &(NodeId, usize)| before.has(reader, writer);
    read.retain(|pair| !waits(pair));
    let mut pairs: Vec<_> = read
        .into_iter()
        .map(|(reader, writer)| (reader, writers[writer]))
        .collect();
    pairs.dedup();
    pairs
}

/// Which nodes have to run before each of some others, or are one of these.
struct Ancestors {
    /// By node, so many words of bits, one for each of the others.
    bits: Vec<u64>,
    words: usize,
}

impl Ancestors {
    fn of(graph: &Graph, nodes: &[NodeId]) -> Ancestors {
        let words = nodes.len().div_ceil(64);
        let mut producers = vec![None; graph.tensor_count()];
        for &id in graph.order() {
            for tensor in graph.node(id).writes() {
                producers[tensor.index()] = Some(id);
            }
        }
        let mut bits = vec![0; words * graph.node_count()];
        for (number, id) in nodes.iter().enumerate() {
            bits[id.index() * words + number / 64] |= 1 << (number % 64);
        }
        // Readers stand behind what they read.
        for &id in graph.order().iter().rev() {
            let producers = graph
                .node(id)
                .reads()
                .filter_map(|tensor| producers[tensor.index()]);
            for producer in producers.collect::<Vec<NodeId>>() {
                for word in 0..words {
                    bits[producer.index() * words + word] |= bits[id.index() * words + word];
                }
            }
        }
        Ancestors { bits, words }
    }

    fn has(&self, ancestor: NodeId, of: usize) -> bool {
        self.bits[ancestor.index() * self.words + of / 64] >> (of % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who reads w and may run after the node that writes `new` over it.
    fn free(nodes: &str) -> Vec<String> {
        let mut graph = Graph::parse(&format!("g (x, w) => (new, y) {{ {nodes} }}")).unwrap();
        let named = |name| graph.tensor_named(name).unwrap();
        let (new, w) = (named("new"), named("w"));
        graph.tensor_mut(new).overwrites = Some(w);
        let pairs = unordered(&graph).into_iter();
        pairs
            .map(|(reader, _)| graph.node(reader).name.clone())
            .collect()
    }

    #[test]
    fn who_computes_the_new_value_has_read_the_old_one() {
        let free = free("[in] a = Mul(x, w) [out] new = Sub(w, a) [other] y = Mul(x, w)");
        assert_eq!(free, ["other"]);
    }

    #[test]
    fn another_name_of_the_memory_is_read_like_it() {
        let free = free(
            "[view] v = Reshape(w, x) [late] y = Exp(v) [early] a = Exp(v) [out] new = Sub(w, a)",
        );
        assert_eq!(free, ["late"]);
    }

    #[test]
    fn of_what_nobody_overwrites_nothing_is_said() {
        let graph = Graph::parse("g (x, w) => (y) { a = Mul(x, w) y = Mul(a, w) }").unwrap();
        assert_eq!(unordered(&graph), []);
    }
}
