//! What may be computed twice in one particular graph.

use super::cost::Overrides;
use crate::graph::{Graph, NodeId, TensorId, TensorKind, Uses};
use crate::operators::{self, Recompute};

/// How each node is recomputed, and which tensors only their original may supply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recomputation {
    rules: Vec<Recompute>,
    pinned: Vec<bool>,
}

impl Recomputation {
    /// Reads the operators' rules, which the user may override for pure operators that the
    /// program does not know.
    pub fn of(graph: &Graph, overrides: &Overrides) -> Recomputation {
        let mut rules = vec![Recompute::Never("not in the graph's order"); graph.node_count()];
        let mut pinned = vec![false; graph.tensor_count()];
        for output in &graph.outputs {
            pinned[output.index()] = true;
        }
        let uses = Uses::of(graph);
        for &id in graph.order() {
            let node = graph.node(id);
            let said = overrides.get(&node.name).and_then(|said| said.recomputable);
            rules[id.index()] = match (operators::recompute_in(graph, &uses, node), said) {
                (_, Some(false)) => Recompute::Never("the cost table says so"),
                (Recompute::Never(_), Some(true)) if operators::is_unknown(node) => {
                    Recompute::Clone
                }
                (rule, _) => rule,
            };
            for capture in &node.captures {
                pinned[capture.index()] = true;
            }
        }
        let mut recomputation = Recomputation { rules, pinned };
        // Readers stand behind writers, so a chain of aliases is pinned from its end.
        for &id in graph.order().iter().rev() {
            recomputation.pin_aliased(graph, id);
        }
        recomputation
    }

    /// How the node is recomputed.
    pub fn rule(&self, id: NodeId) -> Recompute {
        self.rules[id.index()]
    }

    /// Does a copy of node `id` supply `tensor`, its output at `position`, to later readers?
    pub fn supplies(&self, id: NodeId, position: usize, tensor: TensorId) -> bool {
        self.rules[id.index()].recomputes(position) && !self.pinned[tensor.index()]
    }

    /// A tensor whose alias cannot be renewed has to stay: if the alias is pinned, or comes from
    /// a node that does more than alias.
    fn pin_aliased(&mut self, graph: &Graph, id: NodeId) {
        let node = graph.node(id);
        let aliases = operators::aliases(node);
        let renewable = only_aliases(graph, id) && self.rule(id) == Recompute::Clone;
        for (output, input) in aliases {
            if let (Some(output), Some(input)) = (node.output(output), node.input(input))
                && graph.tensor(input).kind == TensorKind::Value
                && !graph.outputs.contains(&output)
                && (!renewable || self.pinned[output.index()])
            {
                self.pinned[input.index()] = true;
            }
        }
    }
}

/// Does the node only give other names to memory that exists?
pub fn only_aliases(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let aliases = operators::aliases(node);
    let is_alias = |position: usize| {
        aliases
            .iter()
            .any(|&(output, input)| output == position && node.input(input).is_some())
    };
    let mut outputs = node
        .outputs
        .iter()
        .enumerate()
        .filter(|(_, output)| output.is_some());
    let mut any = false;
    let all = outputs.all(|(position, output)| {
        any = true;
        is_alias(position) && output.is_some_and(|tensor| !graph.outputs.contains(&tensor))
    });
    any && all
}
