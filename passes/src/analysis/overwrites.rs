//! Who reads what the caller has overwritten, and may still do so when it is.
//!
//! An output can be written to the memory of an input ([`Tensor::overwrites`](crate::graph::Tensor::overwrites)): the new value
//! of a weight to the weight's. Nothing of the graph's operators says so, and no execution order is promised: all that read the
//! input have to run before the output is written because it follows from what they compute.
//!
//! Runtime fact (of saved sessions, from ORT_ENABLE_BASIC on): a node that reads the Transpose of a weight, or a Cast, or a
//! multiple of it, is merged with that node and then reads the weight itself, however many others read it too. So what is
//! computed of an input and of constants alone counts as the input: whoever reads that has to run before as well.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Graph, NodeId, TensorId, TensorKind, Uses};
use crate::operators;

/// Pairs of a node that reads an input, or the same memory under another name, and the node that overwrites it, which nothing
/// makes wait for the first. The nodes must be listed in a topological order.
pub fn unordered(graph: &Graph) -> Vec<(NodeId, NodeId)> {
    unordered_by(graph, &graph.overwritten().collect())
}

/// The same where nodes write over tensors themselves: `overwritten` has these tensors by what the nodes write.
pub(crate) fn unordered_by(
    graph: &Graph,
    overwritten: &BTreeMap<TensorId, TensorId>,
) -> Vec<(NodeId, NodeId)> {
    let mut writers_of: BTreeMap<TensorId, BTreeSet<usize>> = BTreeMap::new();
    let mut writers: Vec<NodeId> = Vec::new();
    if overwritten.is_empty() {
        return Vec::new();
    }
    // By input that is overwritten, and by tensors that are its memory or computed of it alone: the numbers of the writers.
    for &id in graph.order() {
        for input in graph
            .node(id)
            .writes()
            .filter_map(|output| overwritten.get(&output))
        {
            writers_of.insert(*input, [writers.len()].into());
            writers.push(id);
        }
    }
    let uses = Uses::of(graph);
    let is_initializer = |id| graph.tensor(id).kind == TensorKind::Initializer;
    // The same in every step: initializers, and what is computed of these alone.
    let mut fixed: Vec<bool> = graph.tensor_ids().map(is_initializer).collect();
    let mut read: Vec<(NodeId, usize)> = Vec::new();
    for (id, node) in graph.listed() {
        if operators::reads_only_shape(node) {
            // As verification has it: sizes of what is the same in every step.
            let is_fixed = node.reads().all(|tensor| fixed[tensor.index()]);
            for output in node.writes() {
                fixed[output.index()] = is_fixed;
            }
            continue;
        }
        let mut sources: BTreeSet<usize> = BTreeSet::new();
        let mut alone = true;
        for tensor in node.reads() {
            match writers_of.get(&tensor) {
                Some(writers) => {
                    read.extend(writers.iter().map(|&writer| (id, writer)));
                    sources.extend(writers);
                }
                None => alone &= fixed[tensor.index()],
            }
        }
        // What it writes over something has the new value.
        let is_of_another = |writer: &usize| writers[*writer] != id;
        sources.retain(is_of_another);
        if sources.is_empty() {
            for output in node.writes() {
                fixed[output.index()] = alone;
            }
        } else if alone || operators::is_unknown(node) {
            let results = node.writes().map(|output| (output, sources.clone()));
            writers_of.extend(results);
        }
        for (output, input) in operators::aliased(node) {
            if let Some(mut writers) = writers_of.get(&input).cloned()
                && !graph.outputs.contains(&output)
            {
                writers.retain(is_of_another);
                writers_of.insert(output, writers);
            }
        }
    }
    let before = Ancestors::of(graph, &uses, &writers);
    read.retain(|&(reader, writer)| !before.has(reader, writer));
    read.dedup();
    // Whoever waits for one that reads another's result waits for that as well. And it is the last one that has to be waited
    // for: a node that comes before is left out by the runtime where it is merged.
    let found: BTreeSet<(NodeId, usize)> = read.iter().copied().collect();
    read.retain(|&(reader, writer)| {
        let results = graph.node(reader).writes();
        let mut next = results.flat_map(|result| uses.readers(result));
        !next.any(|&next| found.contains(&(next, writer)))
    });
    let pairs = read.into_iter();
    pairs
        .map(|(reader, writer)| (reader, writers[writer]))
        .collect()
}

/// Which nodes have to run before each of some others, or are one of these.
struct Ancestors {
    /// By node, so many words of bits, one for each of the others.
    bits: Vec<u64>,
    words: usize,
}

impl Ancestors {
    fn of(graph: &Graph, uses: &Uses, nodes: &[NodeId]) -> Ancestors {
        let words = nodes.len().div_ceil(64);
        let mut bits = vec![0; words * graph.node_count()];
        for (number, id) in nodes.iter().enumerate() {
            bits[id.index() * words + number / 64] |= 1 << (number % 64);
        }
        // Readers stand behind what they read.
        for &id in graph.order().iter().rev() {
            let producers = graph.node(id).reads().filter_map(|t| uses.producer(t));
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
    fn what_is_computed_of_the_memory_alone_is_read_like_it() {
        let nodes = "[turn] t = Transpose(w) [half] h = Cast <to = 10> (t) [early] a = Mul(h, x) [size] s = Size(t) \
                     [out] new = Sub(w, a) [late] b = Mul(h, x) [later] y = Mul(b, s)";
        assert_eq!(free(nodes), ["late"]);
        let unread = "[early] a = Mul(w, x) [out] new = Sub(w, a) [turn] y = Transpose(w)";
        assert_eq!(free(unread), ["turn"]);
    }

    #[test]
    fn of_what_nobody_overwrites_nothing_is_said() {
        let graph = Graph::parse("g (x, w) => (y) { a = Mul(x, w) y = Mul(a, w) }").unwrap();
        assert_eq!(unordered(&graph), []);
    }
}
