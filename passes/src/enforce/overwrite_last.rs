//! Lets an output that overwrites an input of the graph wait for all that read the input, copies among them.
//!
//! What makes it wait for the original readers is in the graph that is planned. A copy of such a reader can be read by nodes for
//! which it does not wait: then it does, by a barrier, whatever the execution order is.

use std::collections::BTreeMap;
use std::convert::Infallible;

use crate::analysis::overwrites::unordered;
use crate::graph::{Graph, NodeId, TensorId};
use crate::operators::reads_only_shape;
use crate::pass::{Changed, Pass};
use crate::runtime::Release;
use crate::runtime::barrier::BarrierWriter;

/// **Does**: puts the nodes that write such outputs behind all readers of what they overwrite, and lets them wait for those.
/// **Needs**: concrete shapes; nodes listed in a topological order.
/// **Keeps**: everything that is there.
pub struct OverwriteLast {
    /// Who runs the graph.
    pub release: &'static Release,
}

impl Pass for OverwriteLast {
    const NAME: &str = "overwrite-last";
    type Error = Infallible;

    fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
        let mut readers: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for (reader, writer) in unordered(graph) {
            readers.entry(writer).or_default().push(reader);
        }
        if readers.is_empty() {
            return Ok(Changed::No);
        }
        let positions = graph.positions();
        // By reader that is the last one: who comes behind it.
        let mut behind: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for (&writer, readers) in &readers {
            let last = readers
                .iter()
                .chain([&writer])
                .max_by_key(|id| positions[id.index()]);
            behind
                .entry(*last.unwrap_or(&writer))
                .or_default()
                .push(writer);
        }
        let before = graph.order().to_vec();
        let mut order = Vec::with_capacity(before.len());
        // By node: what tells the size of its result at once, so that the result need not be there until the last reader has run.
        let mut told: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        let mut barriers = BarrierWriter::new(self.release, graph);
        for id in before {
            if !readers.contains_key(&id) {
                order.push(id);
            }
            for &writer in behind.get(&id).into_iter().flatten() {
                let waits = readers[&writer].iter();
                let waits = waits.filter_map(|&reader| {
                    let written = graph.node(reader).writes().next()?;
                    Some((written, reader))
                });
                let waits: BTreeMap<TensorId, NodeId> = waits.collect();
                if let Some(place) = handed_on(graph, writer, self.release) {
                    let written: Vec<TensorId> = waits.keys().copied().collect();
                    let mut made = Vec::new();
                    let passed = graph.node(writer).input(place);
                    let passed =
                        passed.map(|passed| barriers.add(graph, &mut made, passed, &written));
                    graph.node_mut(writer).inputs[place] = passed;
                    for id in made {
                        match teller(graph, id).and_then(|read| waits.get(&read)) {
                            Some(&reader) => told.entry(reader).or_default().push(id),
                            None => order.push(id),
                        }
                    }
                }
                order.push(writer);
            }
        }
        let early = |id: NodeId| std::iter::once(id).chain(told.remove(&id).unwrap_or_default());
        let order = order.into_iter().flat_map(early).collect();
        graph.set_order(order);
        Ok(Changed::Yes)
    }
}

/// Of what the node tells the size, if it does nothing else.
fn teller(graph: &Graph, id: NodeId) -> Option<TensorId> {
    let node = graph.node(id);
    reads_only_shape(node).then(|| node.input(0)).flatten()
}

/// The input of the node that a barrier can hand on to it; verification refuses what is made where there is none.
fn handed_on(graph: &Graph, id: NodeId, release: &Release) -> Option<usize> {
    let mut inputs = graph.node(id).inputs.iter();
    inputs.position(|input| input.is_some_and(|input| release.may_hand_on(graph.tensor(input))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::text::diff;
    use crate::runtime::STOCK;
    use crate::verify;

    fn run(nodes: &str) -> (Graph, String) {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 17]> g (float[4] x, float[4] w) => (float[4] new, float[4] z)
            <float[4] y, float[4] again, float[4] d> {{ {nodes} }}"#
        );
        let mut graph = Graph::parse(&text).unwrap();
        let [new, w] = ["new", "w"].map(|name| graph.tensor_named(name).unwrap());
        graph.tensor_mut(new).overwrites = Some(w);
        let before = graph.to_listing();
        let release = &STOCK;
        let Ok(changed) = (OverwriteLast { release }).run(&mut graph);
        verify::structure(&graph).unwrap();
        assert_eq!(OverwriteLast { release }.run(&mut graph), Ok(Changed::No));
        let listing = diff(&before, &graph.to_listing());
        assert_eq!(changed == Changed::No, listing.is_empty(), "{listing}");
        (graph, listing)
    }

    #[test]
    fn an_update_waits_for_a_copy_that_reads_the_weight_later() {
        let (graph, changes) =
            run("y = Mul(x, w) d = Exp(y) new = Sub(w, d) again = Mul(x, w) z = Exp(again)");
        insta::assert_snapshot!(changes, @r#"
          d = Exp(y)
        - new = Sub(w, d)
          again = Mul(x, w)
        + "ckpt-opt/barrier_0/size_0" = Size(again)
        + "ckpt-opt/barrier_0/zeros" = Constant()
        + "ckpt-opt/barrier_0/shape" = Min("ckpt-opt/barrier_0/size_0", "ckpt-opt/barrier_0/zeros")
        + "w/barrier_0" = Reshape(w, "ckpt-opt/barrier_0/shape")
        + new = Sub("w/barrier_0", d)
          z = Exp(again)
        "#);
        assert_eq!(verify::overwrites(&graph), Ok(()));
    }

    /// Its result need not be kept for the update to know that it is there.
    #[test]
    fn an_early_copy_tells_its_size_at_once() {
        let (_, changes) = run(
            "y = Mul(x, w) d = Exp(y) again = Mul(x, w) new = Sub(w, d) q = Exp(again) late = Mul(w, q) z = Exp(late)",
        );
        insta::assert_snapshot!(changes, @r#"
          again = Mul(x, w)
        - new = Sub(w, d)
        + "ckpt-opt/barrier_0/size_0" = Size(again)
          q = Exp(again)
          late = Mul(w, q)
        + "ckpt-opt/barrier_0/size_1" = Size(late)
        + "ckpt-opt/barrier_0/zeros" = Constant()
        + "ckpt-opt/barrier_0/shape" = Min("ckpt-opt/barrier_0/size_0", "ckpt-opt/barrier_0/size_1", "ckpt-opt/barrier_0/zeros")
        + "w/barrier_0" = Reshape(w, "ckpt-opt/barrier_0/shape")
        + new = Sub("w/barrier_0", d)
          z = Exp(late)
        "#);
    }

    #[test]
    fn an_update_that_waits_already_stays_where_it_is() {
        let (_, changes) = run("y = Mul(x, w) d = Exp(y) new = Sub(w, d) z = Exp(y)");
        assert_eq!(changes, "");
    }
}
