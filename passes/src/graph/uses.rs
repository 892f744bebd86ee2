//! Who writes and who reads each tensor.

use super::{Graph, NodeId, TensorId};

/// Producers and readers of every tensor, for one state of a graph.
#[derive(Clone, Debug)]
pub struct Uses {
    producers: Vec<Option<NodeId>>,
    starts: Vec<u32>,
    readers: Vec<NodeId>,
}

impl Uses {
    /// Collects them in O(nodes + edges).
    pub fn of(graph: &Graph) -> Uses {
        let mut producers = vec![None; graph.tensor_count()];
        let mut starts = vec![0u32; graph.tensor_count() + 1];
        for (id, node) in graph.listed() {
            for tensor in node.writes() {
                producers[tensor.index()] = Some(id);
            }
            for tensor in node.reads() {
                starts[tensor.index() + 1] += 1;
            }
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut readers = vec![NodeId(0); starts[graph.tensor_count()] as usize];
        let mut next = starts.clone();
        for &id in graph.order() {
            for tensor in graph.node(id).reads() {
                readers[next[tensor.index()] as usize] = id;
                next[tensor.index()] += 1;
            }
        }
        Uses {
            producers,
            starts,
            readers,
        }
    }

    /// The node that writes `tensor`; `None` for graph inputs and initializers.
    pub fn producer(&self, tensor: TensorId) -> Option<NodeId> {
        self.producers[tensor.index()]
    }

    /// The nodes that read `tensor`, in file order; one that reads it twice is there twice.
    pub fn readers(&self, tensor: TensorId) -> &[NodeId] {
        let i = tensor.index();
        &self.readers[self.starts[i] as usize..self.starts[i + 1] as usize]
    }
}
