//! A graph without the nodes that only hand on what they read.

use super::{Graph, NodeId, TensorId, in_sequence};

/// A graph without its Identities. Nodes and tensors keep their ids.
#[derive(Clone, Debug, PartialEq)]
pub struct WithoutIdentities {
    /// The graph; its order lists the nodes that are left.
    pub graph: Graph,
    /// By tensor of the graph with them: what is read in its place.
    pub source: Vec<TensorId>,
}

impl Graph {
    /// The graph as a runtime has it once it has optimized it: who reads what an Identity writes reads what that reads. One that
    /// writes a graph output, or what a subgraph reads by its name, stays. `None` if none goes. O(nodes).
    pub fn without_identities(&self) -> Option<WithoutIdentities> {
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
        let mut graph = self.clone();
        let mut source: Vec<TensorId> = self.tensor_ids().collect();
        for &id in in_sequence(self).iter() {
            match handed_on(id) {
                Some((read, written)) => source[written.index()] = source[read.index()],
                None => {
                    for read in self.node(id).inputs.iter().flatten() {
                        let from = source[read.index()];
                        if from != *read {
                            graph.node_mut(id).read_instead(*read, from);
                        }
                    }
                }
            }
        }
        graph.order.retain(|&id| handed_on(id).is_none());
        let goes = graph.order.len() < self.order.len();
        goes.then_some(WithoutIdentities { graph, source })
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
        let WithoutIdentities {
            graph: without,
            source,
        } = graph.without_identities().unwrap();
        let named = |name: &str| graph.tensor_named(name).unwrap();
        assert_eq!(source[named("b").index()], named("x"));
        assert_eq!(source[named("z").index()], named("z"));
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
