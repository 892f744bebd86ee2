//! The decision as data. A planner says which nodes run, and in which sequence ([`Plan`]); how each of these instances is
//! computed, and what is read of it, follows from the rules of recomputation and is decided here too
//! ([`Plan::instances`]), so that whoever rewrites the graph decides nothing.

use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId, TensorId};
use crate::operators::Recompute;
use crate::operators::variants::{Part, Variant};

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
    /// Nanoseconds that the planner believes its copies and variants to add.
    pub added: u64,
    /// Which nodes are replaced, and by what, ascending by node. The sequence has the numbers that
    /// nodes have then (see [`crate::rewrite::apply_variants`]).
    pub variants: Vec<(NodeId, &'static Variant)>,
}

/// Results that a plan leaves without readers are let go of from this size on; smaller ones are not worth a node.
pub const RELEASED_FROM: Bytes = Bytes(4096);

/// One tensor that an instance reads, and the instance that computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The tensor, by its original.
    pub tensor: TensorId,
    /// The computing instance's position in [`Plan::sequence`].
    pub from: usize,
}

/// One computation of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance<'p> {
    /// Of which node.
    pub node: NodeId,
    /// How.
    pub how: How<'p>,
    /// What becomes of the node's outputs, by position; empty for an original, of which all are there for all readers.
    pub outputs: Vec<OutputUse>,
}

/// How an instance is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum How<'p> {
    /// The node itself.
    Original,
    /// A node like it.
    Clone,
    /// A node like it, but for that it leaves running statistics as they are.
    LeavingStatistics,
    /// From the mask that the original left.
    FromMask,
    /// By these nodes instead.
    FromParts(&'p [Part]),
}

/// Where an original runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Originals {
    /// Where the plan has it.
    AsPlanned,
    /// Where its first copy does, if that does all that it does and nobody reads it before.
    Late,
}

/// What becomes of an output of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputUse {
    /// Does anybody read it?
    pub read: bool,
    /// Do readers behind it take it of this instance, and not of one before?
    pub supplied: bool,
}

impl Plan {
    /// The instances of the plan, but for copies whose results nobody reads.
    pub fn instances<'p>(
        &self,
        graph: &Graph,
        recomputation: &'p Recomputation,
        originals: Originals,
    ) -> Vec<Instance<'p>> {
        let plan = match originals {
            Originals::AsPlanned => self.without_unread_copies(graph, recomputation),
            Originals::Late => self.without_unread(graph, recomputation),
        };
        let instance = |(&node, copy): (&NodeId, bool)| Instance {
            node,
            how: match copy {
                false => How::Original,
                true => how(recomputation, node),
            },
            outputs: match copy {
                false => Vec::new(),
                true => vec![OutputUse::default(); graph.node(node).outputs.len()],
            },
        };
        let all = plan.sequence.iter().zip(plan.copies()).map(instance);
        let mut all: Vec<Instance<'p>> = all.collect();
        for binding in plan.bindings(graph, recomputation).into_iter().flatten() {
            let of = &mut all[binding.from];
            let mut outputs = graph.node(of.node).outputs.iter();
            let position = outputs.position(|&output| output == Some(binding.tensor));
            if let Some(output) = position.and_then(|position| of.outputs.get_mut(position)) {
                output.read = true;
            }
        }
        for of in &mut all {
            let node = of.node;
            let tensors = graph.node(node).outputs.iter().enumerate();
            for (output, (position, tensor)) in of.outputs.iter_mut().zip(tensors) {
                let supplies = |tensor| recomputation.supplies(node, position, tensor);
                output.supplied = tensor.is_some_and(supplies);
            }
        }
        all
    }

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
            let reads = match copy {
                true => recomputation.copy_reads(graph, id),
                false => node.reads().collect(),
            };
            bindings.push(
                reads
                    .into_iter()
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
        self.without_unread_if(graph, recomputation, |_| false)
    }

    /// The same, in which a node that is read of its copies alone first runs where the first of them does.
    pub fn without_unread(&self, graph: &Graph, recomputation: &Recomputation) -> Plan {
        let is_whole = |id| recomputation.is_whole(graph, id);
        self.without_unread_if(graph, recomputation, is_whole)
    }

    /// The plan without copies whose results nobody reads, and without such originals whose nodes have a copy that
    /// `may_be_original`.
    fn without_unread_if(
        &self,
        graph: &Graph,
        recomputation: &Recomputation,
        may_be_original: impl Fn(NodeId) -> bool,
    ) -> Plan {
        let bindings = self.bindings(graph, recomputation);
        let copies = self.copies();
        let mut needed = vec![false; self.sequence.len()];
        // By node: is there a copy that will be the original?
        let mut replaced = vec![false; graph.node_count()];
        // Readers stand behind what they read.
        for (position, &id) in self.sequence.iter().enumerate().rev() {
            needed[position] |= !copies[position] && !replaced[id.index()];
            if needed[position] {
                replaced[id.index()] |= copies[position] && may_be_original(id);
                for binding in &bindings[position] {
                    needed[binding.from] = true;
                }
            }
        }
        let kept = self.sequence.iter().zip(needed).filter(|kept| kept.1);
        Plan {
            sequence: kept.map(|(&id, _)| id).collect(),
            ..self.clone()
        }
    }
}

/// How copies of the node are computed.
fn how(recomputation: &Recomputation, node: NodeId) -> How<'_> {
    match recomputation.rule(node) {
        Recompute::Clone | Recompute::Never(_) => How::Clone,
        Recompute::BatchNorm => How::LeavingStatistics,
        Recompute::DropoutFromMask => How::FromMask,
        Recompute::FromParts => recomputation.parts(node).map_or(How::Clone, How::FromParts),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const TEXT: &str = "g (x) => (d) { a = Exp(x) b = Exp(a) c = Exp(b) d = Add(c, a) }";

    fn plan(graph: &Graph, sequence: &[usize]) -> (Plan, Recomputation) {
        let plan = Plan {
            sequence: sequence.iter().map(|&i| graph.order()[i]).collect(),
            predicted_peak: Bytes(5),
            ..Plan::default()
        };
        (plan, Recomputation::of(graph, &BTreeMap::new()))
    }

    fn bindings(text: &str, sequence: &[usize]) -> Vec<String> {
        let graph = Graph::parse(text).unwrap();
        let (plan, rules) = plan(&graph, sequence);
        let shown =
            |binding: &Binding| format!("{}@{}", graph.tensor(binding.tensor).name, binding.from);
        let all = plan.bindings(&graph, &rules);
        all.iter()
            .map(|of_one| of_one.iter().map(shown).collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn every_instance_reads_the_latest_before_it() {
        assert_eq!(
            bindings(TEXT, &[0, 1, 0, 1, 2, 0, 3]),
            ["", "a@0", "", "a@2", "b@3", "", "c@4 a@5"]
        );
    }

    #[test]
    fn a_graph_output_is_read_from_its_original() {
        let text = "g (x) => (a) { a = Exp(x) b = Exp(a) }";
        assert_eq!(bindings(text, &[0, 0, 1]), ["", "", "a@0"]);
    }

    #[test]
    fn a_copy_of_a_dropout_reads_the_originals_mask() {
        let text = "g (float[2] x) => (z) <float r = {0.5}, bool t = {1}, float[2] y, bool[2] m> {
            y, m = Dropout(x, r, t) z = Exp(y)
        }";
        assert_eq!(bindings(text, &[0, 0, 1]), ["", "m@0", "y@1"]);
    }

    #[test]
    fn an_instance_says_how_it_is_computed_and_what_is_read_of_it() {
        let text =
            "g (float[2] x) => (y2, z) <float r = {0.5}, bool t = {1}, float[2] y, bool[2] m> {
            y, m = Dropout(x, r, t) z = Exp(y) y2 = Exp(z)
        }";
        let graph = Graph::parse(text).unwrap();
        let (plan, rules) = plan(&graph, &[0, 0, 1, 1, 2]);
        let shown = plan
            .instances(&graph, &rules, Originals::AsPlanned)
            .into_iter()
            .map(|of| {
                let outputs = of.outputs.iter().map(|of| (of.read, of.supplied));
                (of.node.index(), of.how, outputs.collect::<Vec<_>>())
            });
        let mask = vec![(true, true), (false, false)];
        // The caller gets z of its original, so nobody reads the copy.
        let expected = [
            (0, How::Original, vec![]),
            (0, How::FromMask, mask),
            (1, How::Original, vec![]),
            (2, How::Original, vec![]),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_first_occurrence_is_the_original() {
        let graph = Graph::parse(TEXT).unwrap();
        let (plan, _) = plan(&graph, &[0, 1, 0, 2, 0, 3]);
        assert_eq!(plan.copies(), [false, false, true, false, true, false]);
        assert_eq!(Plan::default().copies(), []);
    }

    #[test]
    fn an_original_that_nobody_reads_runs_where_its_first_copy_does() {
        let after = |text: &str, sequence: &[usize]| -> Vec<usize> {
            let graph = Graph::parse(text).unwrap();
            let (plan, rules) = plan(&graph, sequence);
            let plan = plan.without_unread(&graph, &rules);
            plan.sequence.iter().map(|id| id.index()).collect()
        };
        // b is read of its second computation, which reads the second of a; c has only one.
        assert_eq!(after(TEXT, &[0, 1, 0, 1, 2, 3]), [0, 1, 2, 3]);
        assert_eq!(after(TEXT, &[0, 1, 1, 2, 1, 3]), [0, 1, 2, 3]);
        // The first b is read, the second reads the second a.
        assert_eq!(after(TEXT, &[0, 1, 2, 0, 1, 3]), [0, 1, 2, 0, 3]);
        // What the caller gets is the original's.
        let text = "g (x) => (a, d) { a = Exp(x) b = Exp(a) c = Exp(b) d = Add(c, a) }";
        assert_eq!(after(text, &[0, 0, 1, 1, 2, 3]), [0, 1, 2, 3]);
        // So is the mask of a Dropout.
        let text = "g (float[2] x) => (z) <float r = {0.5}, bool t = {1}, float[2] y, bool[2] m> {
            y, m = Dropout(x, r, t) z = Exp(y)
        }";
        assert_eq!(after(text, &[0, 0, 1]), [0, 0, 1]);
        // Nobody reads a node that has no copy.
        assert_eq!(
            after("g (x) => (b) { a = Exp(x) b = Exp(x) }", &[0, 1]),
            [0, 1]
        );
    }

    #[test]
    fn copies_that_only_feed_unread_copies_are_dropped_too() {
        let graph = Graph::parse(TEXT).unwrap();
        let (with, rules) = plan(&graph, &[0, 1, 2, 0, 3, 0, 1]);
        let (without, _) = plan(&graph, &[0, 1, 2, 0, 3]);
        assert_eq!(with.without_unread_copies(&graph, &rules), without);
        assert_eq!(without.without_unread_copies(&graph, &rules), without);
    }
}
