//! The decision as data: what search hands to the transforms.

use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId, TensorId};

/// Which nodes run, in which order, and which of them again.
///
/// The first occurrence of a node is its original, every later one a copy. Every input reads the
/// latest instance of its producer that computes it and stands before the reader
/// (see [`Recomputation::supplies`]). Every node occurs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The instances, in the order in which they are to run.
    pub sequence: Vec<NodeId>,
    /// What the search believes the peak to be, everything included.
    pub predicted_peak: Bytes,
}

/// One tensor that an instance reads, and the instance that computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The tensor, by its original.
    pub tensor: TensorId,
    /// The computing instance's position in [`Plan::sequence`].
    pub from: usize,
}

impl Plan {
    /// Which positions of the sequence are copies.
    pub fn copies(&self) -> Vec<bool> {
        let nodes = self
            .sequence
            .iter()
            .map(|id| id.index() + 1)
            .max()
            .unwrap_or(0);
        let mut seen = vec![false; nodes];
        let repeated = |id: &NodeId| std::mem::replace(&mut seen[id.index()], true);
        self.sequence.iter().map(repeated).collect()
    }

    /// What every instance reads of which other one; what the caller owns is left out.
    /// Linear in the plan.
    pub fn bindings(&self, graph: &Graph, recomputation: &Recomputation) -> Vec<Vec<Binding>> {
        let mut latest: Vec<Option<usize>> = vec![None; graph.tensor_count()];
        let mut bindings = Vec::with_capacity(self.sequence.len());
        for (position, (&id, copy)) in self.sequence.iter().zip(self.copies()).enumerate() {
            let node = graph.node(id);
            let rule = recomputation.rule(id);
            let own: &[usize] = if copy { rule.reads_own_outputs() } else { &[] };
            let reads = node
                .reads()
                .chain(own.iter().filter_map(|&output| node.output(output)));
            bindings.push(
                reads
                    .filter_map(|tensor| {
                        latest[tensor.index()].map(|from| Binding { tensor, from })
                    })
                    .collect(),
            );
            for (output, tensor) in node.outputs.iter().enumerate() {
                if let Some(tensor) = tensor
                    && (!copy || recomputation.supplies(id, output, *tensor))
                {
                    latest[tensor.index()] = Some(position);
                }
            }
        }
        bindings
    }

    /// The plan without copies whose results nobody reads.
    pub fn without_unread_copies(&self, graph: &Graph, recomputation: &Recomputation) -> Plan {
        let bindings = self.bindings(graph, recomputation);
        let mut needed: Vec<bool> = self.copies().into_iter().map(|copy| !copy).collect();
        // Readers stand behind what they read.
        for position in (0..self.sequence.len()).rev() {
            if needed[position] {
                for binding in &bindings[position] {
                    needed[binding.from] = true;
                }
            }
        }
        let kept = self
            .sequence
            .iter()
            .zip(needed)
            .filter(|&(_, needed)| needed);
        Plan {
            sequence: kept.map(|(&id, _)| id).collect(),
            ..*self
        }
    }
}
