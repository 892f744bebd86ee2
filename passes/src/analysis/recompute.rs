//! What may be computed twice in one particular graph.

use std::collections::BTreeMap;

use super::cost::Overrides;
use crate::cost::Cost;
use crate::graph::{Graph, NodeId, TensorId, TensorKind, Uses};
use crate::operators::variants::Part;
use crate::operators::{self, Provider, Recompute};
use crate::runtime::Release;
use crate::runtime::fused_pairs::{divided_at_once, normalized_at_once};
use crate::runtime::rounding::Rounding;
use crate::verify;

/// How each node is recomputed, and which tensors only their original may supply.
#[derive(Clone, Debug, PartialEq)]
pub struct Recomputation {
    rules: Vec<Recompute>,
    pinned: Vec<bool>,
    /// What a copy costs that is made otherwise than its original.
    copies: BTreeMap<NodeId, Cost>,
    /// Of what copies consist that are other nodes than their originals.
    parts: BTreeMap<NodeId, Vec<Part>>,
}

impl Recomputation {
    /// Reads the operators' rules, which the user may override for pure operators that the
    /// program does not know. Where verification, whose list is its own, would not take a copy, none is made.
    pub fn of(graph: &Graph, overrides: &Overrides) -> Recomputation {
        let mut rules = vec![Recompute::Never("not in the graph's order"); graph.node_count()];
        let mut pinned = vec![false; graph.tensor_count()];
        for output in &graph.outputs {
            pinned[output.index()] = true;
        }
        let uses = Uses::of(graph);
        let permitted = overrides
            .iter()
            .filter(|(_, said)| said.recomputable == Some(true));
        let untrusted =
            verify::unrepeatable(graph, &permitted.map(|(name, _)| name.clone()).collect());
        for (id, node) in graph.listed() {
            let said = overrides.get(&node.name).and_then(|said| said.recomputable);
            rules[id.index()] = match (operators::recompute_in(graph, &uses, node), said) {
                (_, Some(false)) => Recompute::Never("the cost table says so"),
                (Recompute::Never(_), Some(true)) if operators::is_unknown(node) => {
                    Recompute::Clone
                }
                (rule, _) => rule,
            };
            if let (Recompute::Clone, Some(why)) = (rules[id.index()], untrusted[id.index()]) {
                rules[id.index()] = Recompute::Never(why);
            }
            for capture in &node.captures {
                pinned[capture.index()] = true;
            }
        }
        let mut recomputation = Recomputation {
            rules,
            pinned,
            copies: BTreeMap::new(),
            parts: BTreeMap::new(),
        };
        // Readers stand behind writers, so a chain of aliases is pinned from its end.
        for &id in graph.order().iter().rev() {
            recomputation.pin_aliased(graph, id);
        }
        recomputation
    }

    /// Where the release does not train, no copies by operators that it does not have: a Dropout's, from its mask, is a DropoutGrad.
    /// And none of a layer normalization that it makes one node with the sum before it: two readers keep the sum apart, and bits are the
    /// same at every level there. Likewise none of a product that becomes a Div.
    pub(crate) fn keep_to_release(&mut self, graph: &Graph, release: &Release) {
        if release.trains {
            return;
        }
        let from_mask = |rule: &&mut Recompute| **rule == Recompute::DropoutFromMask;
        for rule in self.rules.iter_mut().filter(from_mask) {
            *rule = Recompute::Never(
                "random, and no operator of the runtime makes it again from its mask",
            );
        }
        let uses = Uses::of(graph);
        for &id in graph.order() {
            if let Some(normalization) = normalized_at_once(graph, &uses, id) {
                self.rules[normalization.index()] = Recompute::Never(
                    "the runtime adds and normalizes at once, and rounds otherwise where it does not",
                );
            }
            if let Some(product) = divided_at_once(graph, &uses, id) {
                self.rules[product.index()] = Recompute::Never(
                    "the runtime divides in place of it, and rounds otherwise where it does not",
                );
            }
        }
    }

    /// No copies of what the runtime would round otherwise; and of what touches 16 bits only nodes like it.
    pub(crate) fn keep_rounding(&mut self, graph: &Graph, provider: Provider, release: &Release) {
        let rounding = Rounding::of(graph, provider, release);
        let uses = Uses::of(graph);
        for (id, node) in graph.listed() {
            if !rounding.touches(node) {
                continue;
            }
            if self.parts.remove(&id).is_some() {
                self.copies.remove(&id);
                self.rules[id.index()] = operators::recompute_in(graph, &uses, node);
            }
            let by_others = self.rules[id.index()] == Recompute::DropoutFromMask;
            if by_others || rounding.is_single(graph, id) {
                self.rules[id.index()] =
                    Recompute::Never("the runtime rounds 16-bit values by who reads them");
                self.copies.remove(&id);
            }
        }
    }

    /// Copies of `node` are made of these parts, at this cost.
    pub fn copy_from_parts(&mut self, node: NodeId, parts: Vec<Part>, cost: Cost) {
        self.rules[node.index()] = Recompute::FromParts;
        self.parts.insert(node, parts);
        self.copies.insert(node, cost);
    }

    /// Copies of `node` cost this, as its rule makes them.
    pub fn set_copy_cost(&mut self, node: NodeId, cost: Cost) {
        self.copies.insert(node, cost);
    }

    /// Of what copies of the node consist; none where they are nodes like it.
    pub fn parts(&self, id: NodeId) -> Option<&[Part]> {
        self.parts.get(&id).map(Vec::as_slice)
    }

    /// Are copies of any node made of parts?
    pub fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    /// The tensors that a copy of the node reads.
    pub fn copy_reads(&self, graph: &Graph, id: NodeId) -> Vec<TensorId> {
        if let Some(parts) = self.parts.get(&id) {
            return parts.iter().flat_map(Part::tensors_read).collect();
        }
        let node = graph.node(id);
        let own = self.rule(id).reads_own_outputs().iter();
        let own = own.filter_map(|&output| node.output(output));
        node.reads().chain(own).collect()
    }

    /// What a copy of the node costs, where that is not what the original does.
    pub fn copy_cost(&self, id: NodeId) -> Option<Cost> {
        self.copies.get(&id).copied()
    }

    /// How the node is recomputed.
    pub fn rule(&self, id: NodeId) -> Recompute {
        self.rules[id.index()]
    }

    /// Does a copy of node `id` supply `tensor`, its output at `position`, to later readers?
    pub fn supplies(&self, id: NodeId, position: usize, tensor: TensorId) -> bool {
        self.rules[id.index()].recomputes(position) && !self.pinned[tensor.index()]
    }

    /// Does a copy of the node do all that the node does, for all readers?
    pub fn is_whole(&self, graph: &Graph, id: NodeId) -> bool {
        let mut outputs = graph.node(id).outputs.iter().enumerate();
        let supplied = |(output, tensor): (usize, &Option<TensorId>)| {
            tensor.is_none_or(|tensor| self.supplies(id, output, tensor))
        };
        self.rule(id) == Recompute::Clone && outputs.all(supplied)
    }

    /// A tensor whose alias cannot be renewed has to stay: if the alias is pinned, or comes from
    /// a node that does more than alias.
    fn pin_aliased(&mut self, graph: &Graph, id: NodeId) {
        let renewable = only_aliases(graph, id) && self.rule(id) == Recompute::Clone;
        for (output, input) in operators::aliased(graph.node(id)) {
            if graph.tensor(input).kind == TensorKind::Value
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::cost::NodeOverride;
    use crate::runtime::{STOCK, TRAINING};

    fn said(graph: &Graph, overrides: &[(&str, bool)]) -> Recomputation {
        let overrides = overrides.iter().map(|&(name, recomputable)| {
            let said = NodeOverride {
                recomputable: Some(recomputable),
                ..NodeOverride::default()
            };
            (name.to_owned(), said)
        });
        Recomputation::of(graph, &overrides.collect())
    }

    /// That of the second node, where the release runs the graph.
    fn rule_of_second(text: &str, release: &Release) -> Recompute {
        let graph = Graph::parse(text).unwrap();
        let mut rules = said(&graph, &[]);
        rules.keep_to_release(&graph, release);
        rules.rule(graph.order()[1])
    }

    /// The tensors that a copy of their producer supplies.
    fn supplied(text: &str) -> Vec<String> {
        let graph = Graph::parse(text).unwrap();
        let rules = said(&graph, &[]);
        let mut names = Vec::new();
        for &id in graph.order() {
            for (position, tensor) in graph.node(id).outputs.iter().enumerate() {
                let tensor = tensor.unwrap();
                if rules.supplies(id, position, tensor) {
                    names.push(graph.tensor(tensor).name.clone());
                }
            }
        }
        names
    }

    #[test]
    fn a_dropout_is_made_again_where_the_release_has_the_operator() {
        let text = "g (float[4] x) => (bool[4] m) <float r = {0.5}, bool t = {1}, float[4] y>
            { y, m = Dropout(x, r, t) z = Exp(y) }";
        let graph = Graph::parse(text).unwrap();
        let rule = |release: &Release| {
            let mut rules = said(&graph, &[]);
            rules.keep_to_release(&graph, release);
            rules.rule(graph.order()[0])
        };
        let (training, stock) = (&TRAINING, &STOCK);
        assert_eq!(rule(training), Recompute::DropoutFromMask);
        assert!(matches!(rule(stock), Recompute::Never(_)));
    }

    /// Measured in 1.32.0: a frozen BERT, a copy of whose normalization had other gradients at ORT_ENABLE_ALL.
    #[test]
    fn a_normalization_that_takes_in_a_sum_is_not_copied_where_that_rounds_otherwise() {
        let text = "g (float[2,4] x, float[4] s) => (float[2,4] y) <float[2,4] a, float[2,4] n> {
            a = Add(x, x) n, m, v = LayerNormalization(a, s, s) y = Exp(n) }";
        let rule = rule_of_second;
        let (training, stock) = (&TRAINING, &STOCK);
        assert_eq!(rule(text, training), Recompute::Clone);
        assert!(matches!(rule(text, stock), Recompute::Never(_)));
        // With a reader of its statistics it does not take in the sum, nor one that others read.
        let read = text.replace("y = Exp(n)", "y = Mul(n, v)");
        assert_eq!(rule(&read, stock), Recompute::Clone);
        let others = text.replace("y = Exp(n)", "y = Mul(n, a)");
        assert_eq!(rule(&others, stock), Recompute::Clone);
    }

    /// Measured in 1.32.0: copies of a weighted loss's gradient shared the Div, and were no Div any more.
    #[test]
    fn a_product_that_becomes_a_div_is_not_copied_where_that_rounds_otherwise() {
        let text = "g (float[2,4] x) => (float[2,4] y, float[2,4] z) <float one = {1}, float[2,4] d, float[2,4] p> {
            d = Div(one, x) p = Mul(x, d) y = Exp(p) z = Exp(x) }";
        let rule = rule_of_second;
        let (training, stock) = (&TRAINING, &STOCK);
        assert_eq!(rule(text, training), Recompute::Clone);
        assert!(matches!(rule(text, stock), Recompute::Never(_)));
        // None becomes one that divides something else than a number, or with a result that others read.
        for other in [
            text.replace("Div(one, x)", "Div(x, x)"),
            text.replace("z = Exp(x)", "z = Exp(d)"),
        ] {
            assert_eq!(rule(&other, stock), Recompute::Clone, "{other}");
        }
    }

    #[test]
    fn a_graph_output_comes_from_its_original() {
        assert_eq!(
            supplied("g (x) => (b) { a = Exp(x) b = Exp(a) c = Exp(b) }"),
            ["a", "c"]
        );
    }

    #[test]
    fn what_a_subgraph_reads_comes_from_its_original() {
        let text = "g (x, c) => () { a = Exp(x) b = Exp(x) y = If <then_branch = ...> (c; a) }";
        assert_eq!(supplied(text), ["b"]);
    }

    #[test]
    fn what_a_pinned_alias_lies_in_comes_from_its_original() {
        let text = "g (x, c, to) => () {
            a = Exp(x) flat = Reshape(a, to) flatter = Reshape(flat, to)
            b = Exp(x) bent = Reshape(b, to)
            y = If <then_branch = ...> (c; flatter)
        }";
        assert_eq!(supplied(text), ["b", "bent"]);
    }

    #[test]
    fn an_alias_that_is_a_graph_output_pins_nothing_else() {
        // It gets memory of its own.
        let text = "g (x, to) => (flat) { a = Exp(x) flat = Reshape(a, to) b = Exp(a) }";
        assert_eq!(supplied(text), ["a", "b"]);
    }

    #[test]
    fn a_batch_norm_supplies_its_results_but_not_the_running_statistics() {
        let text = "g (x, s, t, m, v) => () {
            n, mean, var, saved, inv = com.microsoft.BatchNormInternal (x, s, t, m, v)
        }";
        assert_eq!(supplied(text), ["n", "saved", "inv"]);
    }

    #[test]
    fn the_user_may_forbid_anything_and_permit_what_is_unknown() {
        let text = "g (x, w, r) => () {
            [known] a = Exp(x)
            [unknown] b = Foo(a)
            [sum] done = com.microsoft.InPlaceAccumulatorV2(w, b, r)
        }";
        let graph = Graph::parse(text).unwrap();
        let [known, unknown, sum] = [0, 1, 2].map(|i| graph.order()[i]);
        let rules = said(&graph, &[]);
        assert_eq!(rules.rule(known), Recompute::Clone);
        assert!(matches!(rules.rule(unknown), Recompute::Never(_)));
        let rules = said(
            &graph,
            &[("known", false), ("unknown", true), ("sum", true)],
        );
        assert_eq!(
            rules.rule(known),
            Recompute::Never("the cost table says so")
        );
        assert_eq!(rules.rule(unknown), Recompute::Clone);
        assert!(matches!(rules.rule(sum), Recompute::Never(_)));
    }

    #[test]
    fn only_a_node_without_other_results_only_aliases() {
        let text = "g (x, to) => (out) {
            a = Exp(x) view = Reshape(a, to) out = Reshape(a, to)
        }";
        let graph = Graph::parse(text).unwrap();
        let only: Vec<bool> = graph
            .order()
            .iter()
            .map(|&id| only_aliases(&graph, id))
            .collect();
        assert_eq!(only, [false, true, false]);
    }
}
