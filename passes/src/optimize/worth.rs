//! What a variant is worth beside a plan that has none.
//!
//! The dual of the search's lower bound prices a byte at every step of the order of first
//! computations: zero where there is room, and otherwise the nanoseconds that one byte less saves in
//! copies. A variant moves the ends of a few lives. What it frees, times these prices, less what it
//! keeps and less the time that it adds, is its profit. A life that ends earlier is worth no
//! more than one copy of its producer, which would end it as well.
//!
//! The prices see the schedule without copies. Copies fill every other step up to the budget, so at
//! steps that are full in the plan, a variant that lowers the need of the step itself is worth a
//! small part of what the plan adds.

use std::collections::BTreeSet;

use crate::analysis::cost::Cost;
use crate::analysis::recompute::Recomputation;
use crate::graph::{Graph, NodeId, TensorId, TensorKind};
use crate::operators;

/// At a full step, this part of what the plan adds is not too much for a lower need.
const SMALL: f64 = 0.002;

/// A need lower by less than this part of the room is none.
const LOWER: f64 = 0.002;

/// What is known of the plan beside which variants are judged, or of the lack of one.
pub(super) struct Known<'p> {
    /// By place in the order of first computations: the nanoseconds that a byte less is worth.
    pub prices: &'p [f64],
    /// By node: is the plan's need as large as it may be, while it runs?
    pub full: Vec<bool>,
    /// Nanoseconds that the plan adds.
    pub added: f64,
    /// Bytes that the plan has for what the caller does not own.
    pub room: f64,
}

/// A plan, or the lack of one, in the light of which variants are judged.
pub(super) struct Market<'g> {
    graph: &'g Graph,
    recomputation: &'g Recomputation,
    costs: &'g [Cost],
    /// The order of first computations.
    order: &'g [NodeId],
    /// By node: its place in the order of first computations.
    place: Vec<usize>,
    /// By tensor: the one in whose memory it lies.
    root: Vec<TensorId>,
    /// By tensor that is a root: the places of its producer and of its readers.
    uses: Vec<Vec<usize>>,
    /// Prices per byte, summed up to each place.
    prices: Vec<f64>,
    /// By node, whether its step is full.
    full: Vec<bool>,
    /// Nanoseconds that the plan adds.
    added: f64,
    /// Bytes that the plan has for what the caller does not own.
    room: f64,
}

impl<'g> Market<'g> {
    /// `order` is the order of first computations.
    pub(super) fn new(
        graph: &'g Graph,
        recomputation: &'g Recomputation,
        costs: &'g [Cost],
        order: &'g [NodeId],
        plan: Known<'_>,
    ) -> Market<'g> {
        let mut place = vec![0; graph.node_count()];
        for (at, id) in order.iter().enumerate() {
            place[id.index()] = at;
        }
        let mut root: Vec<TensorId> = graph.tensor_ids().collect();
        let mut uses: Vec<Vec<usize>> = vec![Vec::new(); graph.tensor_count()];
        for &id in order {
            let node = graph.node(id);
            for (output, input) in operators::aliases(node) {
                if let (Some(output), Some(input)) = (node.output(output), node.input(input))
                    && !graph.outputs.contains(&output)
                {
                    root[output.index()] = root[input.index()];
                }
            }
            for tensor in node.reads().chain(node.writes()) {
                uses[root[tensor.index()].index()].push(place[id.index()]);
            }
        }
        for output in &graph.outputs {
            uses[root[output.index()].index()].push(order.len());
        }
        let mut sum = 0.0;
        let mut summed = vec![0.0];
        for price in plan.prices {
            sum += price;
            summed.push(sum);
        }
        Market {
            graph,
            recomputation,
            costs,
            order,
            place,
            root,
            uses,
            prices: summed,
            full: plan.full,
            added: plan.added,
            room: plan.room,
        }
    }

    /// Nanoseconds that it saves to replace `node` by `parts`, nodes of `form` with these `costs`.
    pub(super) fn profit(
        &self,
        node: NodeId,
        form: &Graph,
        parts: &[NodeId],
        costs: &[Cost],
    ) -> f64 {
        let at = self.place[node.index()];
        let times = parts.iter().map(|id| costs[id.index()].time.0 as f64);
        let longer = times.sum::<f64>() - self.costs[node.index()].time.0 as f64;
        let original = self.graph.node(node);
        let placed: Vec<(usize, NodeId)> = parts
            .iter()
            .map(|&part| (self.place_of(form, part, at), part))
            .collect();
        let touched: BTreeSet<TensorId> = parts
            .iter()
            .flat_map(|&part| form.node(part).reads().chain(form.node(part).writes()))
            .chain(original.reads().chain(original.writes()))
            .map(|tensor| self.root_of(tensor))
            .filter(|&tensor| form.tensor(tensor).kind == TensorKind::Value)
            .collect();
        let mut profit = -longer;
        for &tensor in &touched {
            let before = self
                .known(tensor)
                .map(|known| (known[0], known[known.len() - 1]));
            let known = self.known(tensor).unwrap_or_default().iter().copied();
            let mut after: Vec<usize> = known.filter(|&place| place != at).collect();
            for &(place, part) in &placed {
                let node = form.node(part);
                let mut uses = node.reads().chain(node.writes());
                if uses.any(|used| self.root_of(used) == tensor) {
                    after.push(place);
                }
            }
            let after = after.iter().min().copied().zip(after.iter().max().copied());
            profit += self.difference(form, tensor, before, after);
        }
        let here: Vec<NodeId> = placed
            .iter()
            .filter(|(place, _)| *place == at)
            .map(|&(_, part)| part)
            .collect();
        let mut reversed = here.clone();
        reversed.reverse();
        let mut need = self.need(form, &here, costs, at);
        if self.independent(form, &here) {
            need = need.min(self.need(form, &reversed, costs, at));
        }
        let lower = self.need(self.graph, &[node], self.costs, at) - need;
        profit += lower * (self.prices[at + 1] - self.prices[at]);
        if self.full[node.index()] && lower > self.room * LOWER {
            profit += SMALL * self.added;
        }
        profit
    }

    /// A part that makes something smaller runs as soon as it can, one that makes it larger as
    /// late as it can; others where the replaced node ran.
    fn place_of(&self, form: &Graph, part: NodeId, at: usize) -> usize {
        let node = form.node(part);
        let size = |tensor: TensorId| form.tensor(tensor).bytes().map_or(0, |bytes| bytes.0);
        let read: u64 = node.reads().map(size).max().unwrap_or(0);
        let written: u64 = node.writes().map(size).max().unwrap_or(0);
        let single = node.writes().count() == 1 && node.reads().count() <= 2 && read > 0;
        if single && written < read && node.domain.is_empty() {
            let born = node
                .reads()
                .filter_map(|tensor| self.known(tensor)?.first().copied());
            return born.max().unwrap_or(at).min(at);
        }
        let known = node.writes().filter_map(|tensor| self.known(tensor));
        let first_reader = known.filter_map(|uses| uses.iter().copied().find(|&use_| use_ > at));
        match first_reader.min() {
            Some(reader) if single && written > read => reader,
            _ => at,
        }
    }

    fn root_of(&self, tensor: TensorId) -> TensorId {
        self.root.get(tensor.index()).copied().unwrap_or(tensor)
    }

    /// The places at which the original graph uses the tensor.
    fn known(&self, tensor: TensorId) -> Option<&[usize]> {
        let uses = self.uses.get(self.root_of(tensor).index())?;
        (!uses.is_empty()).then_some(uses.as_slice())
    }

    /// What it saves if the tensor lives between other places; what is needed at the ends
    /// themselves is left to [`Market::need`].
    fn difference(
        &self,
        form: &Graph,
        tensor: TensorId,
        before: Option<(usize, usize)>,
        after: Option<(usize, usize)>,
    ) -> f64 {
        let size = form
            .tensor(tensor)
            .bytes()
            .map_or(0.0, |bytes| bytes.0 as f64);
        let price = |life: Option<(usize, usize)>| {
            let (from, until) = life?;
            let until = until.min(self.prices.len() - 1);
            (from + 1 < until).then(|| self.prices[until] - self.prices[from + 1])
        };
        let saved = size * (price(before).unwrap_or(0.0) - price(after).unwrap_or(0.0));
        // Another way to do without it is to compute it again.
        match self.producer_time(tensor) {
            Some(time) => saved.clamp(-time, time),
            None => saved,
        }
    }

    fn producer_time(&self, tensor: TensorId) -> Option<f64> {
        let id = *self.order.get(*self.known(tensor)?.first()?)?;
        let node = self.graph.node(id);
        let position = node.outputs.iter().position(|&o| o == Some(tensor))?;
        let supplies = self.recomputation.supplies(id, position, tensor);
        supplies.then(|| self.costs[id.index()].time.0 as f64)
    }

    /// The most that is needed of what `nodes` use, while they run one after another.
    fn need(&self, graph: &Graph, nodes: &[NodeId], costs: &[Cost], at: usize) -> f64 {
        let used = |id: NodeId| graph.node(id).reads().chain(graph.node(id).writes());
        let all: BTreeSet<TensorId> = nodes
            .iter()
            .flat_map(|&id| used(id))
            .map(|tensor| self.root_of(tensor))
            .filter(|&tensor| graph.tensor(tensor).kind == TensorKind::Value)
            .collect();
        let mut needs: Vec<f64> = nodes
            .iter()
            .map(|id| costs[id.index()].workspace.0 as f64)
            .collect();
        for tensor in all {
            let uses = |id: &NodeId| used(*id).any(|used| self.root_of(used) == tensor);
            let (Some(mut first), Some(mut last)) =
                (nodes.iter().position(uses), nodes.iter().rposition(uses))
            else {
                continue;
            };
            if let Some(known) = self.known(tensor) {
                if known.first().is_some_and(|&born| born < at) {
                    first = 0;
                }
                if known.last().is_some_and(|&read| read > at) {
                    last = nodes.len() - 1;
                }
            }
            let size = graph
                .tensor(tensor)
                .bytes()
                .map_or(0.0, |bytes| bytes.0 as f64);
            for need in &mut needs[first..=last] {
                *need += size;
            }
        }
        needs.into_iter().fold(0.0, f64::max)
    }

    fn independent(&self, form: &Graph, nodes: &[NodeId]) -> bool {
        let written: BTreeSet<TensorId> = nodes
            .iter()
            .flat_map(|&id| form.node(id).writes())
            .collect();
        let mut read = nodes.iter().flat_map(|&id| form.node(id).reads());
        read.all(|tensor| !written.contains(&tensor))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::analysis::cost::Nanos;
    use crate::bytes::Bytes;
    use crate::graph::Uses;
    use crate::operators::variants::VARIANTS;
    use crate::pass::Pass;
    use crate::transform::apply_variants::ApplyVariants;
    use crate::transform::infer_shapes::InferShapes;

    /// y is 4096 bytes, its mask 1024.
    const RELU: &str = r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
        g (float[1024] x, float[1024] d) => (float[1024] e, float[1024] dx) {
            y = Relu(x) a = Exp(d) b = Exp(a) e = Exp(b)
            [grad] dx = com.microsoft.ReluGrad(e, y)
        }"#;

    /// What `name` is worth in "grad" if a byte is worth so much at each of the five steps and every
    /// node takes 10 ns.
    fn profit(name: &str, prices: [f64; 5]) -> f64 {
        let mut graph = Graph::parse(RELU).unwrap();
        let bindings = BTreeMap::new();
        InferShapes { bindings }.run(&mut graph).unwrap();
        let cost = Cost {
            time: Nanos(10),
            workspace: Bytes::ZERO,
        };
        let costs = vec![cost; 20];
        let rules = Recomputation::of(&graph, &BTreeMap::new());
        let known = Known {
            prices: &prices,
            full: vec![false; 5],
            added: 0.0,
            room: 1e6,
        };
        let order = graph.order().to_vec();
        let market = Market::new(&graph, &rules, &costs, &order, known);
        let variant = VARIANTS.iter().find(|v| v.name == name).unwrap();
        let uses = Uses::of(&graph);
        let (node, none) = (order[4], &mut graph.clone());
        assert!(variant.parts(&graph, &uses, node).is_some());
        let choices = [(node, variant)];
        let replaced = ApplyVariants { choices: &choices }.replace(none);
        market.profit(node, none, &replaced[0].1, &costs)
    }

    #[test]
    fn what_is_freed_pays_for_the_time_that_a_variant_takes() {
        // Constant, Greater, Cast and ReluGrad take 40 ns in place of 10.
        assert_eq!(profit("relu-bool-mask", [0.0; 5]), -30.0);
        // Over two steps with a price of 0.001, y goes (4096 bytes would be worth 8.192 ns), and the mask
        // (1024: 2.048 ns) and the zero (4: 0.008) come.
        let worth = profit("relu-bool-mask", [0.0, 0.001, 0.001, 0.0, 0.0]);
        assert!(
            (worth - (-30.0 + 8.192 - 2.048 - 0.008)).abs() < 1e-9,
            "{worth}"
        );
    }

    #[test]
    fn what_can_be_computed_again_is_worth_no_more_than_that() {
        // At a price of 1, y would be worth 8192 ns, but a Relu takes 10; the mask is kept as well
        // as it can be computed again, by another 10.
        let worth = profit("relu-bool-mask", [0.0, 1.0, 1.0, 0.0, 0.0]);
        assert!(worth < -30.0 + 10.0 + 1e-9, "{worth}");
    }

    #[test]
    fn to_read_what_the_caller_owns_is_free() {
        // x is a graph input: nothing is kept instead of y.
        assert_eq!(profit("relu-from-input", [0.0; 5]), 0.0);
        let worth = profit("relu-from-input", [0.0, 0.001, 0.001, 0.0, 0.0]);
        assert!((worth - 8.192).abs() < 1e-9, "{worth}");
    }
}
