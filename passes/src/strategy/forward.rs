//! The forward part of a training graph: what the loss depends on.
//!
//! The papers' graphs have a vertex for every variable. Here a vertex is a node with all that it
//! writes, together with the nodes that only give other names to its memory: neither can be
//! dropped without the other. Weights, inputs and constants are no vertices.

use std::collections::BTreeSet;

use petgraph::algo::articulation_points::articulation_points;
use petgraph::graph::UnGraph;

use super::Task;
use crate::analysis::recompute::only_aliases;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId, TensorId, TensorKind, Uses};
use crate::operators::{self, Recompute};

/// A variable of the forward part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vertex {
    /// The node that computes it, and the nodes that only give it other names.
    pub nodes: Vec<NodeId>,
    /// The vertices that it is computed from, ascending, each once; all before itself.
    pub before: Vec<u32>,
    /// The vertices that are computed from it, ascending, each once; all behind itself.
    pub after: Vec<u32>,
    /// The vertices that have to run before it although it reads none of them, all before itself:
    /// updates of running statistics that branches share.
    pub waits_for: Vec<u32>,
    /// M(v): the memory that its node writes, aliases left out.
    pub bytes: Bytes,
    /// T(v): nanoseconds of all its nodes.
    pub time: u64,
    /// May it be computed again, and would anybody read the copy?
    pub recomputable: bool,
    /// Does the backward part read it?
    pub read_backward: bool,
}

/// The forward part, and what the rest of the graph wants of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardPart {
    /// In topological order: by their first nodes' places in the task's order.
    pub vertices: Vec<Vertex>,
    /// By node id: the vertex that it belongs to.
    pub vertex_of: Vec<Option<u32>>,
    /// By node id: is it in the backward part? Nodes in neither only prepare something, such as
    /// shapes, while the forward part runs.
    pub backward: Vec<bool>,
    /// By tensor: the node that writes it.
    producers: Vec<Option<NodeId>>,
}

impl ForwardPart {
    /// Finds it. O(nodes + edges).
    ///
    /// A node is in the forward part if a graph output depends on it that itself depends on no
    /// gradient (the loss), or if a YieldOp does, by which ORTModule hands the forward part's
    /// results to PyTorch. In a graph that gives out gradients alone, it is what needs no gradient.
    pub fn of(task: &Task<'_>) -> ForwardPart {
        let graph = task.graph;
        let uses = Uses::of(graph);
        let producers: Vec<Option<NodeId>> = graph
            .tensor_ids()
            .map(|tensor| uses.producer(tensor))
            .collect();
        let gradient = depend_on_gradients(task, &producers);
        let needed = needed_by_loss(task, &producers, &gradient);
        let mut forward = ForwardPart {
            vertices: Vec::new(),
            vertex_of: vec![None; graph.node_count()],
            backward: vec![false; graph.node_count()],
            producers,
        };
        let is_last = |id: &NodeId| needed[id.index()];
        let end = task
            .order
            .iter()
            .rposition(is_last)
            .map_or(0, |last| last + 1);
        for (place, &id) in task.order.iter().enumerate() {
            if needed[id.index()] {
                forward.add(task, id);
            } else {
                forward.backward[id.index()] = gradient[id.index()] || place >= end;
            }
        }
        forward.connect(task);
        forward
    }

    /// The vertex that computes `tensor`.
    pub fn vertex(&self, tensor: TensorId) -> Option<u32> {
        self.vertex_of[self.producers[tensor.index()]?.index()]
    }

    /// The node that writes `tensor`.
    pub fn producer(&self, tensor: TensorId) -> Option<NodeId> {
        self.producers[tensor.index()]
    }

    /// M(V): the memory of all vertices.
    pub fn bytes(&self) -> Bytes {
        self.vertices.iter().map(|vertex| vertex.bytes).sum()
    }

    /// T(V): nanoseconds of all vertices.
    pub fn time(&self) -> u64 {
        let times = self.vertices.iter().map(|vertex| vertex.time);
        times.fold(0, u64::saturating_add)
    }

    /// The vertices without which the forward part falls apart, ascending: its articulation
    /// points (Hopcroft and Tarjan, 1973). Where a chain of layers can be split.
    pub fn articulation_points(&self) -> Vec<u32> {
        let mut view: UnGraph<u32, ()> = UnGraph::default();
        let places: Vec<_> = (0..self.vertices.len() as u32)
            .map(|vertex| view.add_node(vertex))
            .collect();
        for (v, vertex) in self.vertices.iter().enumerate() {
            for &u in &vertex.before {
                view.add_edge(places[u as usize], places[v], ());
            }
        }
        let points = articulation_points(&view);
        let sorted: BTreeSet<u32> = points.into_iter().map(|place| view[place]).collect();
        sorted.into_iter().collect()
    }

    /// A topological order by depth-first search: what leads to a vertex directly before it, so that
    /// branches run one after the other. O(vertices + edges).
    pub fn depth_first(&self) -> Vec<u32> {
        let mut order = Vec::with_capacity(self.vertices.len());
        let mut seen = vec![false; self.vertices.len()];
        let last = |v: &u32| self.vertices[*v as usize].after.is_empty();
        for end in (0..self.vertices.len() as u32).filter(last) {
            // A vertex with how much of what leads to it was looked at.
            let mut open = vec![(end, 0)];
            seen[end as usize] = true;
            while let Some((v, looked)) = open.last_mut() {
                let vertex = &self.vertices[*v as usize];
                let mut earlier = vertex.before.iter().chain(&vertex.waits_for);
                match earlier.nth(*looked) {
                    Some(&u) => {
                        *looked += 1;
                        if !std::mem::replace(&mut seen[u as usize], true) {
                            open.push((u, 0));
                        }
                    }
                    None => {
                        order.push(*v);
                        open.pop();
                    }
                }
            }
        }
        order
    }

    /// The articulation points that alone connect what is computed up to them with everything
    /// behind: between two of them lies a block of the chain.
    pub fn cuts(&self) -> Vec<u32> {
        // The last vertex that reads anything computed so far, without the vertex itself.
        let mut reach = 0;
        let mut single = vec![false; self.vertices.len()];
        for (v, vertex) in self.vertices.iter().enumerate() {
            single[v] = reach <= v as u32;
            reach = reach.max(vertex.after.last().copied().unwrap_or(0));
        }
        let mut cuts = self.articulation_points();
        cuts.retain(|&v| single[v as usize]);
        cuts
    }

    fn add(&mut self, task: &Task<'_>, id: NodeId) {
        let graph = task.graph;
        let node = graph.node(id);
        if node.is("", "Constant") {
            // The session owns it before the first step.
            return;
        }
        let joined = self.only_names(graph, id);
        let place = joined.unwrap_or(self.vertices.len() as u32);
        if joined.is_none() {
            self.vertices.push(Vertex {
                recomputable: true,
                ..Vertex::default()
            });
        }
        self.vertex_of[id.index()] = Some(place);
        let may_repeat = !matches!(task.recomputation.rule(id), Recompute::Never(_));
        let supplies = node
            .output(0)
            .is_none_or(|tensor| joined.is_some() || task.recomputation.supplies(id, 0, tensor));
        let vertex = &mut self.vertices[place as usize];
        vertex.nodes.push(id);
        vertex.time = vertex.time.saturating_add(task.costs[id.index()].time.0);
        vertex.recomputable &= may_repeat && supplies;
        if !only_aliases(graph, id) {
            let aliases = operators::aliases(node);
            for (position, output) in node.outputs.iter().enumerate() {
                let is_alias = aliases.iter().any(|alias| alias.0 == position);
                if let (Some(tensor), false) = (output, is_alias) {
                    vertex.bytes += graph.tensor(*tensor).bytes().unwrap_or(Bytes::ZERO);
                }
            }
        }
    }

    /// The vertex whose memory the node only names anew, if it reads nothing else computed.
    fn only_names(&self, graph: &Graph, id: NodeId) -> Option<u32> {
        if !only_aliases(graph, id) {
            return None;
        }
        let computed = |tensor: &TensorId| graph.tensor(*tensor).kind == TensorKind::Value;
        let mut read = graph
            .node(id)
            .reads()
            .filter(computed)
            .map(|tensor| self.vertex(tensor));
        let first = read.next()??;
        read.all(|vertex| vertex == Some(first)).then_some(first)
    }

    fn connect(&mut self, task: &Task<'_>) {
        let mut edges: BTreeSet<(u32, u32)> = BTreeSet::new();
        for &id in task.order {
            let to = self.vertex_of[id.index()];
            for tensor in task.graph.node(id).reads() {
                let Some(from) = self.vertex(tensor) else {
                    continue;
                };
                match to {
                    Some(to) => {
                        edges.insert((from, to));
                    }
                    None if self.backward[id.index()] => {
                        self.vertices[from as usize].read_backward = true;
                    }
                    None => {}
                }
            }
        }
        for &(from, to) in edges.iter().filter(|(from, to)| from < to) {
            self.vertices[from as usize].after.push(to);
            self.vertices[to as usize].before.push(from);
        }
        for (first, second) in task.sequences {
            let pair = (
                self.vertex_of[first.index()],
                self.vertex_of[second.index()],
            );
            if let (Some(first), Some(second)) = pair
                && first < second
                && !edges.contains(&(first, second))
            {
                self.vertices[second as usize].waits_for.push(first);
            }
        }
    }
}

/// By node id: is it a gradient, or computed from one?
fn depend_on_gradients(task: &Task<'_>, producers: &[Option<NodeId>]) -> Vec<bool> {
    let mut gradient = vec![false; task.graph.node_count()];
    let mut handed_over = vec![false; task.graph.node_count()];
    for &id in task.order {
        let node = task.graph.node(id);
        handed_over[id.index()] = operators::hands_over(node);
        let from_gradient = node.reads().filter_map(|t| producers[t.index()]);
        gradient[id.index()] = operators::computes_gradients(node)
            || from_gradient
                .into_iter()
                .any(|p| gradient[p.index()] || handed_over[p.index()]);
    }
    gradient
}

/// By node id: does the loss, or what a YieldOp hands over, depend on it?
fn needed_by_loss(task: &Task<'_>, producers: &[Option<NodeId>], gradient: &[bool]) -> Vec<bool> {
    let graph = task.graph;
    let mut needed = vec![false; graph.node_count()];
    for &output in &graph.outputs {
        if let Some(id) = producers[output.index()]
            && !gradient[id.index()]
            && !operators::hands_over(graph.node(id))
        {
            needed[id.index()] = true;
        }
    }
    if !needed.contains(&true)
        && !graph
            .order()
            .iter()
            .any(|&id| operators::hands_over(graph.node(id)))
    {
        // A graph without a loss: what needs no gradient is forward.
        for &id in graph.order() {
            needed[id.index()] = !gradient[id.index()];
        }
    }
    for &id in task.order.iter().rev() {
        let node = graph.node(id);
        if needed[id.index()] || operators::hands_over(node) && !gradient[id.index()] {
            for producer in node.reads().filter_map(|t| producers[t.index()]) {
                needed[producer.index()] |= !operators::hands_over(graph.node(producer));
            }
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::strategy::tests::with_task;

    /// Two residual blocks behind a first layer, and a loss.
    const RESIDUAL: &str = "g (float[10] x, float[10] w) => (float loss, float[10] done) <
        float[10] a, float[10] b, float[10] c, float[10] d, float[5, 2] view, float[10] e,
        float[10] f, float[10] de, float[10] dc, float[10] da, int64[2] to = {5, 2}
    > {
        [a] a = Exp(x) [b] b = Exp(a) [c] c = Add(b, a)
        [d] d = Exp(c) [view] view = Reshape(d, to) [e] e = Flatten(view) [f] f = Add(d, c)
        [loss] loss = ReduceSum(f)
        [de] de = com.microsoft.GeluGrad(f, e) [dc] dc = Mul(de, c) [da] da = Mul(dc, a)
        [done] done = com.microsoft.InPlaceAccumulatorV2(w, da)
    }";

    #[test]
    fn vertices_are_what_the_loss_depends_on() {
        let graph = Graph::parse(RESIDUAL).unwrap();
        let text = with_task(&graph, |task| {
            let forward = ForwardPart::of(task);
            let line = |vertex: &Vertex| {
                let names = vertex.nodes.iter().map(|&id| graph.node(id).name.as_str());
                let names: Vec<&str> = names.collect();
                let read = if vertex.read_backward {
                    ", read backward"
                } else {
                    ""
                };
                let (before, bytes) = (&vertex.before, vertex.bytes);
                format!("{} from {before:?}: {bytes}{read}", names.join("+"))
            };
            let lines: Vec<String> = forward.vertices.iter().map(line).collect();
            lines.join("\n")
        });
        // e is no reader of the loss, yet it only gives d another name: it belongs to the backward
        // part, which reads d by it.
        assert_snapshot!(text, @r"
        a from []: 40 B, read backward
        b from [0]: 40 B
        c from [0, 1]: 40 B, read backward
        d from [2]: 40 B
        f from [2, 3]: 40 B, read backward
        loss from [4]: 4 B
        ");
    }

    #[test]
    fn a_chain_is_cut_where_one_value_alone_leads_on() {
        let graph = Graph::parse(RESIDUAL).unwrap();
        let cut: Vec<u32> = with_task(&graph, |task| ForwardPart::of(task).cuts());
        // Behind c and behind f; past b and d lead a and c.
        assert_eq!(cut, [2, 4]);
    }
}
