//! Keeps a Gemm from waiting for what is added to its result.
//!
//! Of a Gemm and a Sum of two the runtime makes one node, which runs when the other summand is there. A plan that has the Gemm run long before, as for the
//! gradient of an embedding that is the last layer's weights, too, would keep what it reads until then: the logits' gradient to the end of the step.

use std::convert::Infallible;

use crate::graph::{Graph, NodeId, TensorId, Uses};
use crate::pass::{Changed, Pass};
use crate::runtime::Release;
use crate::runtime::fused_pairs::gemm_of_sum;

/// **Does**: makes an Add of each such Sum whose other summand is computed behind the Gemm, in builds in which bits are promised only for sessions that fuse
/// nothing.
/// **Needs**: concrete shapes; nodes listed in the order in which they are to run.
/// **Keeps**: everything else.
pub struct AddApart {
    /// Who runs the graph.
    pub release: &'static Release,
}

impl Pass for AddApart {
    const NAME: &str = "add-apart";
    type Error = Infallible;

    fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
        if !self.release.trains {
            return Ok(Changed::No);
        }
        let (uses, positions) = (Uses::of(graph), graph.positions());
        let waits = |&id: &NodeId| {
            gemm_of_sum(graph, &uses, id).is_some_and(|(gemm, other)| {
                let shape = |id: TensorId| graph.tensor(id).shape.as_ref();
                let mut summands = graph.node(id).reads().map(shape);
                let alike = summands.all(|one| one.is_some() && one == shape(other));
                let other = uses.producer(other).filter(|_| alike);
                other.is_some_and(|other| positions[other.index()] > positions[gemm.index()])
            })
        };
        let sums: Vec<NodeId> = graph.order().iter().copied().filter(waits).collect();
        for &id in &sums {
            graph.node_mut(id).op_type = "Add".to_owned();
        }
        Ok(Changed::from(!sums.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rewrite::infer_shapes::InferShapes;
    use crate::runtime::{STOCK, TRAINING};
    use crate::verify;

    fn graph(nodes: &str) -> Graph {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[6,100] dlogits, float[6,8] x, float[100,8] e) => (float[100,8] dw) {{ {nodes} }}"#
        );
        let mut graph = Graph::parse(&text).unwrap();
        let bindings = Default::default();
        InferShapes { bindings }.run(&mut graph).unwrap();
        graph
    }

    #[test]
    fn a_gemm_does_not_wait_for_what_is_added_later() {
        let added = |nodes: &str, release| {
            let before = graph(nodes);
            let mut after = before.clone();
            let Ok(changed) = (AddApart { release }).run(&mut after);
            verify::equivalence(&before, &after, &Default::default()).unwrap();
            assert_eq!(changed == Changed::Yes, before != after);
            changed == Changed::Yes
        };
        let gemm = "g = Gemm <transA = 1> (x, dlogits) t = Transpose <perm = [1, 0]> (g)";
        let other = "o = Exp (e)";
        assert!(added(&format!("{gemm} {other} dw = Sum (o, t)"), &TRAINING));
        assert!(added(&format!("{gemm} {other} dw = Sum (t, o)"), &TRAINING));
        // It is there.
        assert!(!added(
            &format!("{other} {gemm} dw = Sum (o, t)"),
            &TRAINING
        ));
        assert!(!added(&format!("{gemm} dw = Sum (e, t)"), &TRAINING));
        // There bits are the same at every level.
        assert!(!added(&format!("{gemm} {other} dw = Sum (o, t)"), &STOCK));
        // Who else reads the result keeps it apart.
        let read = format!("{gemm} u = Neg (t) o = Exp (u) dw = Sum (o, t)");
        assert!(!added(&read, &TRAINING));
    }
}
