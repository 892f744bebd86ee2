//! A sequence in which every node comes behind the writers of what it reads.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use petgraph::Direction;
use petgraph::algo::toposort;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::Dfs;

use super::{Graph, NodeId, TensorId, Uses};

/// A node that needs its own result, and the tensor by which it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cycle {
    /// The node.
    pub node: NodeId,
    /// What it reads that is computed from its own result.
    pub tensor: TensorId,
}

impl Cycle {
    /// All nodes of a circle, each with the one behind it whose result it reads; the last reads the first's. A shortest one through
    /// [`Cycle::node`].
    pub fn nodes(&self, graph: &Graph, uses: &Uses) -> Vec<NodeId> {
        // What each node was reached from, backwards from the node to itself.
        let mut reader: Vec<Option<NodeId>> = vec![None; graph.node_count()];
        let mut next = VecDeque::from([self.node]);
        while let Some(id) = next.pop_front() {
            let writers = graph.node(id).reads().filter_map(|t| uses.producer(t));
            for writer in writers {
                if writer == self.node {
                    let mut nodes = vec![id];
                    let mut at = id;
                    while at != self.node {
                        let Some(reads) = reader[at.index()] else {
                            break;
                        };
                        nodes.push(reads);
                        at = reads;
                    }
                    nodes.rotate_right(1);
                    return nodes;
                }
                if reader[writer.index()].is_none() {
                    reader[writer.index()] = Some(id);
                    next.push_back(writer);
                }
            }
        }
        vec![self.node]
    }

    /// The same as a message, with the first ten by `name`.
    pub fn show(&self, graph: &Graph, uses: &Uses, name: impl Fn(NodeId) -> String) -> String {
        const MOST: usize = 10;
        let nodes = self.nodes(graph, uses);
        let names: Vec<String> = nodes.iter().take(MOST).map(|&id| name(id)).collect();
        let names = names.join(", ");
        match nodes.len() {
            1 => format!(
                "{names} needs its own result, {:?}",
                graph.tensor(self.tensor).name
            ),
            count if count <= MOST => {
                format!("{count} nodes need each other's results, in a circle: {names}")
            }
            count => format!(
                "{count} nodes need each other's results, in a circle: {names}, and {} more",
                count - MOST
            ),
        }
    }
}

/// The nodes of `graph` in a topological order: as the file lists them where that is one, else as close to it as can be:
/// whenever several nodes could be next, it is the one that is listed first. O((nodes + edges) · log nodes).
pub fn topological(graph: &Graph, uses: &Uses) -> Result<Vec<NodeId>, Cycle> {
    let mut written = vec![false; graph.node_count()];
    let in_order = graph.order().iter().all(|&id| {
        written[id.index()] = true;
        let mut writers = graph.node(id).reads().filter_map(|t| uses.producer(t));
        writers.all(|writer| writer != id && written[writer.index()])
    });
    if in_order {
        return Ok(graph.order().to_vec());
    }
    let view = view(graph, uses);
    if let Err(cycle) = toposort(&view, None) {
        return Err(closing(graph, uses, &view, cycle.node_id()));
    }
    // A node's place in the view is its place in the file.
    let mut waits: Vec<usize> = view
        .node_indices()
        .map(|place| view.edges_directed(place, Direction::Incoming).count())
        .collect();
    let ready = view
        .node_indices()
        .filter(|place| waits[place.index()] == 0);
    let mut ready: BinaryHeap<Reverse<NodeIndex>> = ready.map(Reverse).collect();
    let mut order = Vec::with_capacity(graph.order().len());
    while let Some(Reverse(next)) = ready.pop() {
        order.push(view[next]);
        for reader in view.neighbors_directed(next, Direction::Outgoing) {
            waits[reader.index()] -= 1;
            if waits[reader.index()] == 0 {
                ready.push(Reverse(reader));
            }
        }
    }
    Ok(order)
}

/// The nodes of `graph` as they are listed, or in a topological order where one is listed before what it reads: the runtime lists the pieces
/// of what it takes apart behind all others. As they are listed, too, if there is no such order.
pub fn in_sequence(graph: &Graph) -> Cow<'_, [NodeId]> {
    let mut is_missing = vec![false; graph.tensor_count()];
    for written in graph.order().iter().flat_map(|&id| graph.node(id).writes()) {
        is_missing[written.index()] = true;
    }
    let in_order = graph.order().iter().all(|&id| {
        let node = graph.node(id);
        let has_all = node.reads().all(|read| !is_missing[read.index()]);
        for written in node.writes() {
            is_missing[written.index()] = false;
        }
        has_all
    });
    if !in_order && let Ok(order) = topological(graph, &Uses::of(graph)) {
        return Cow::Owned(order);
    }
    Cow::Borrowed(graph.order())
}

/// The nodes of `graph` as they are listed, but for those that are listed behind a reader of what they write: they come directly before the
/// first, with what they read themselves. O(nodes + edges). Where there is a circle, some reader stays before what it reads.
pub fn writers_first(graph: &Graph) -> Vec<NodeId> {
    let uses = Uses::of(graph);
    let mut is_begun = vec![false; graph.node_count()];
    let mut order = Vec::with_capacity(graph.order().len());
    let mut open = Vec::new();
    for &id in graph.order() {
        open.push((id, false));
        while let Some((id, has_all)) = open.pop() {
            if has_all {
                order.push(id);
                continue;
            }
            if std::mem::replace(&mut is_begun[id.index()], true) {
                continue;
            }
            open.push((id, true));
            let read = graph.node(id).reads().collect::<Vec<_>>();
            let writers = read
                .into_iter()
                .rev()
                .filter_map(|read| uses.producer(read));
            open.extend(
                writers
                    .filter(|by| !is_begun[by.index()])
                    .map(|by| (by, false)),
            );
        }
    }
    order
}

/// An edge from each writer to each of its readers, in file order.
fn view(graph: &Graph, uses: &Uses) -> DiGraph<NodeId, ()> {
    let mut view = DiGraph::with_capacity(graph.order().len(), graph.order().len());
    let mut places = vec![NodeIndex::end(); graph.node_count()];
    for &id in graph.order() {
        places[id.index()] = view.add_node(id);
    }
    for &id in graph.order() {
        for writer in graph.node(id).reads().filter_map(|t| uses.producer(t)) {
            view.add_edge(places[writer.index()], places[id.index()], ());
        }
    }
    view
}

/// Which of the tensors that the node at `place`, on a cycle, reads closes it.
fn closing(graph: &Graph, uses: &Uses, view: &DiGraph<NodeId, ()>, place: NodeIndex) -> Cycle {
    let node = view[place];
    let mut reached = vec![false; graph.node_count()];
    let mut search = Dfs::new(view, place);
    while let Some(next) = search.next(view) {
        reached[view[next].index()] = true;
    }
    let closes = |tensor: &TensorId| uses.producer(*tensor).is_some_and(|w| reached[w.index()]);
    let tensor = graph.node(node).reads().find(closes);
    Cycle {
        node,
        tensor: tensor.expect("a node on a cycle reads a tensor from it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(nodes: &str) -> String {
        let text = format!("g (float x) => (float y) {{ {nodes} }}");
        let graph = Graph::parse(&text).unwrap();
        let name = |id: NodeId| graph.node(id).name.clone();
        match topological(&graph, &Uses::of(&graph)) {
            Ok(order) => order.into_iter().map(name).collect::<Vec<_>>().join(" "),
            Err(Cycle { node, tensor }) => {
                format!(
                    "{} needs itself by {}",
                    name(node),
                    graph.tensor(tensor).name
                )
            }
        }
    }

    #[test]
    fn a_sound_file_keeps_its_order() {
        assert_eq!(
            sorted("[c] u = Neg(x) [a] t = Exp(x) [b] y = Add(t, u)"),
            "c a b"
        );
    }

    #[test]
    fn writers_come_first() {
        assert_eq!(
            sorted("[c] y = Add(t, u) [b] u = Neg(t) [a] t = Exp(x)"),
            "a b c"
        );
    }

    #[test]
    fn what_could_be_next_keeps_the_order_of_the_file() {
        let nodes = "[late] y = Neg(t) [c] c = Exp(x) [a] t = Exp(x) [b] b = Exp(x)";
        assert_eq!(sorted(nodes), "c a late b");
    }

    #[test]
    fn what_is_written_too_late_comes_before_its_first_reader_and_the_rest_stays() {
        let listed = |nodes: &str| {
            let graph = Graph::parse(&format!("g (float x) => (float y) {{ {nodes} }}")).unwrap();
            let order = writers_first(&graph).into_iter();
            order
                .map(|id| graph.node(id).name.clone())
                .collect::<Vec<_>>()
                .join(" ")
        };
        let late = "[a] t = Exp(x) [d] u = Div(t, s) [e] v = Exp(u) [g] g = Neg(s) [c] c = Exp(x) [r] r = Neg(c) [s] s = Exp(r) y = Add(v, g)";
        assert_eq!(listed(late), "a c r s d e g ");
        assert_eq!(
            listed("[c] u = Neg(x) [a] t = Exp(x) [b] y = Add(t, u)"),
            "c a b"
        );
        // In a circle every node is there once.
        assert_eq!(
            listed("[late] y = Neg(t) [b] u = Add(x, t) [a] t = Exp(u)"),
            "b a late"
        );
    }

    #[test]
    fn a_circle_is_told_by_its_nodes_each_before_the_one_that_reads_its_result() {
        let told = |nodes: &str| {
            let graph = Graph::parse(&format!("g (float x) => (float y) {{ {nodes} }}")).unwrap();
            let uses = Uses::of(&graph);
            let cycle = topological(&graph, &uses).unwrap_err();
            cycle.show(&graph, &uses, |id| graph.node(id).name.clone())
        };
        insta::assert_snapshot!(told("[late] y = Neg(t) [b] u = Add(x, t) [a] t = Exp(u)"),
            @"2 nodes need each other's results, in a circle: a, b");
        insta::assert_snapshot!(told("[a] y = Add(x, y)"), @r#"a needs its own result, "y""#);
        // Of two circles that share a node, one; "x" only leads there.
        let nodes = "[x] o = Exp(x) [a] t = Sum(o, u, w) [b] v = Neg(t) [c] u = Neg(v) [d] w = Neg(t) y = Neg(v)";
        insta::assert_snapshot!(told(nodes), @"3 nodes need each other's results, in a circle: c, a, b");
        let mut long = "[n0] t0 = Add(x, t11)".to_owned();
        for i in 1..12 {
            long += &format!(" [n{i}] t{i} = Neg(t{})", i - 1);
        }
        insta::assert_snapshot!(told(&(long + " y = Neg(t3)")),
            @"12 nodes need each other's results, in a circle: n11, n0, n1, n2, n3, n4, n5, n6, n7, n8, and 2 more");
    }

    #[test]
    fn a_cycle_is_told_by_one_of_its_own_nodes() {
        // "late" waits for the cycle but is no part of it; "x" leads into it but does not close it.
        let nodes = "[late] y = Neg(t) [b] u = Add(x, t) [a] t = Exp(u)";
        assert_eq!(sorted(nodes), "a needs itself by u");
        assert_eq!(sorted("[a] y = Add(x, y)"), "a needs itself by y");
    }
}
