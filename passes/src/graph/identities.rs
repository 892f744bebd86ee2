//! A graph without the nodes that only hand on what they read.

use super::{Graph, NodeId, TensorId, in_sequence};

impl Graph {
    /// The graph without its Identities, as a runtime has it once it has optimized it: who reads what one writes reads what that reads. One that
    /// writes a graph output, or what a subgraph reads by its name, stays. Nodes and tensors keep their ids. `None` if none goes. O(nodes).
    pub fn without_identities(&self) -> Option<Graph> {
        let mut stays = vec![false; self.tensor_count()];
        let captured = self.order().iter().flat_map(|&id| &self.node(id).captures);
        for tensor in captured.chain(self.outputs.iter()) {
            stays[tensor.index()] = true;
        }
        let handed_on = |id: NodeId| -> Option<(TensorId, TensorId)> {
            let node = self.node(id);
            let (read, written) = (node.input(0)?, node.output(0)?);
            let goes = node.is("", "Identity") && !stays[written.index()];
            goes.then_some((read, written))
        };
        let mut without = self.clone();
        let mut source: Vec<TensorId> = self.tensor_ids().collect();
        for &id in in_sequence(self).iter() {
            match handed_on(id) {
                Some((read, written)) => source[written.index()] = source[read.index()],
                None => {
                    for read in self.node(id).inputs.iter().flatten() {
                        let from = source[read.index()];
                        if from != *read {
                            without.node_mut(id).read_instead(*read, from);
                        }
                    }
                }
            }
        }
        without.order.retain(|&id| handed_on(id).is_none());
        (without.order.len() < self.order.len()).then_some(without)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::text::diff;

    #[test]
    fn readers_of_an_identity_read_what_it_reads() {
        let text =
            "g (float[4] x) => (float[4] y, float[4] z) <float[4] a, float[4] b, float[4] c> {
            a = Identity(x) b = Identity(a) c = Add(a, b) z = Identity(c) y = Exp(c) }";
        let graph = Graph::parse(text).unwrap();
        let without = graph.without_identities().unwrap();
        insta::assert_snapshot!(diff(&graph.to_listing(), &without.to_listing()), @r"
        - a = Identity(x)
        - b = Identity(a)
        - c = Add(a, b)
        + c = Add(x, x)
          z = Identity(c)
        ");
        assert_eq!(without.without_identities(), None);
    }
}
