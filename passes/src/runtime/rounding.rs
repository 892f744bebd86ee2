//! Values that the runtime rounds, or does not, by who reads and writes them.
//!
//! Source: `InsertCastTransformer` of the runtime, which runs at every level of optimization; measured at
//! ORT_DISABLE_ALL. Where the CPU has no kernel for float16, the node computes in float32 between casts. Then pairs of
//! casts that undo each other are removed, and with them the rounding to 16 bits. Whether there is such a pair depends on the
//! readers of a value: a PassThrough between two nodes keeps the rounding that the unmodified graph does not do, a
//! copy that only some read may lose it. So what is added to a graph must leave the readers and writers of such
//! values alone.

use crate::graph::{ElementType, Graph, Node, TensorId};
use crate::operators::Provider;

/// Which values of a graph have to keep their writer and their readers for the bits to stay.
pub(crate) struct Rounding {
    /// By tensor.
    depends: Vec<bool>,
}

impl Rounding {
    /// O(nodes).
    pub(crate) fn of(graph: &Graph, provider: Provider) -> Rounding {
        let is_half = |id: TensorId| {
            let element = graph.tensor(id).element;
            matches!(element, Some(ElementType::Float16 | ElementType::Bfloat16))
        };
        let mut depends: Vec<bool> = match provider {
            Provider::Cpu => graph.tensor_ids().map(is_half).collect(),
            // It has the kernels.
            Provider::Cuda => Vec::new(),
        };
        // Casts alone all have kernels.
        let computes = |node: &Node| {
            let mut all = node.reads().chain(node.writes());
            !node.is("", "Cast") && all.any(|id| depends.get(id.index()) == Some(&true))
        };
        if !graph.order().iter().any(|&id| computes(graph.node(id))) {
            depends.clear();
            return Rounding { depends };
        }
        // With casts that the runtime inserts, those of the graph are removed in pairs as well.
        let mut cast = vec![false; depends.len()];
        for &id in graph.order() {
            let node = graph.node(id);
            if !node.is("", "Cast") {
                continue;
            }
            for tensor in node.reads().filter(|tensor| cast[tensor.index()]) {
                depends[tensor.index()] = true;
            }
            for tensor in node.writes() {
                cast[tensor.index()] = true;
            }
        }
        Rounding { depends }
    }

    /// Does it matter who reads the tensor, and who writes it?
    pub(crate) fn depends(&self, tensor: TensorId) -> bool {
        // What was added to the graph since is not rounded.
        self.depends
            .get(tensor.index())
            .is_some_and(|&depends| depends)
    }

    /// Does the node read or write such a tensor?
    pub(crate) fn touches(&self, node: &Node) -> bool {
        let mut all = node.reads().chain(node.writes());
        all.any(|tensor| self.depends(tensor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bits_and_what_lies_between_two_casts_keep_their_readers_on_the_cpu() {
        let graph = Graph::parse(
            "g (float[4] x) => (double[4] y, float[4] z)
            <float16[4] h, float16[4] g, float[4] f, double[4] d, float[4] e>
            { h = Cast<to = 10>(x) g = Exp(h) f = Cast<to = 1>(g) d = Cast<to = 11>(f) y = Exp(d) e = Exp(x)
              z = Cast<to = 1>(e) }",
        )
        .unwrap();
        let depending = |provider| {
            let rounding = Rounding::of(&graph, provider);
            let all = graph.tensor_ids().filter(|&id| rounding.depends(id));
            let names = all.map(|id| graph.tensor(id).name.as_str());
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(depending(Provider::Cpu), "h g f");
        assert_eq!(depending(Provider::Cuda), "");
    }

    #[test]
    fn casts_alone_round_as_they_say() {
        let graph = Graph::parse(
            "g (float[4] x) => (float[4] y) <float16[4] h, float[4] f>
            { h = Cast<to = 10>(x) f = Cast<to = 1>(h) y = Exp(f) }",
        )
        .unwrap();
        let rounding = Rounding::of(&graph, Provider::Cpu);
        assert!(graph.tensor_ids().all(|id| !rounding.depends(id)));
    }
}
