//! Takes the marker from activations that the runtime fuses.
//!
//! Runtime fact (measured): `GemmActivationFusion` makes one FusedGemm of a Gemm and the activation that
//! alone reads it, and calls the activation's attributes `activation_…` there. Of those that FusedGemm does not
//! know the session says "Unrecognized attribute: activation___recompute" and does not load, at `ORT_ENABLE_ALL`. A MatMul
//! and an Add, or a Gemm and a Sum, become a Gemm before that, and Shapes of known sizes are folded away.

use std::convert::Infallible;

use crate::analysis::mirrors::{MARKER, may_be_unmarked};
use crate::graph::{Graph, NodeId, TensorId, TensorKind, Uses};
use crate::pass::{Changed, Pass};
use crate::runtime::fused_pairs::is_folded;

/// **Does**: takes the marker from every mirror of an activation that alone reads a computed tensor. Without one it stays what it
/// is: it could only be merged with another reader of the same tensor.
/// **Needs**: nothing.
/// **Keeps**: everything else.
pub struct UnmarkFused;

impl Pass for UnmarkFused {
    const NAME: &str = "unmark-fused";
    type Error = Infallible;

    fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
        let uses = Uses::of(graph);
        let marked = graph.order().iter().copied();
        let marked: Vec<NodeId> = marked.filter(|&id| is_fused(graph, &uses, id)).collect();
        for &id in &marked {
            let attributes = &mut graph.node_mut(id).attributes;
            attributes.retain(|attribute| attribute.name != MARKER);
        }
        Ok(Changed::from(!marked.is_empty()))
    }
}

fn is_fused(graph: &Graph, uses: &Uses, id: NodeId) -> bool {
    let node = graph.node(id);
    let alone = |tensor: TensorId| {
        let readers = uses.readers(tensor).iter();
        let mut lasting = readers.filter(|&&reader| !is_folded(graph.node(reader)));
        graph.tensor(tensor).kind == TensorKind::Value && lasting.all(|&reader| reader == id)
    };
    may_be_unmarked(node) && node.attribute(MARKER).is_some() && node.input(0).is_some_and(alone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::text::diff;

    #[test]
    fn only_a_mirror_of_an_activation_that_alone_reads_is_unmarked() {
        let mut graph = Graph::parse(
            r#"
            unmarked (float[2, 2] x, float[2, 2] w) => (float[2, 2] y, float[2, 2] z) {
                a = Gemm (x, w)
                s = Shape (a)
                ["r/recompute_1"] b = Relu <__recompute = 1> (a)
                c = Gemm <__recompute = 1> (b, w)
                ["t/recompute_1"] d = Tanh <__recompute = 1> (c)
                ["t/recompute_2"] e = Tanh <__recompute = 2> (c)
                f = Gemm <__recompute = 3> (d, e)
                ["x/recompute_1"] g = Exp <__recompute = 1> (f)
                ["q/recompute_1"] h = Relu <__recompute = 1> (x)
                k = Gemm (g, h)
                ["l"] l = LeakyRelu <alpha = 0.5> (k)
                ["l/recompute_1"] m = LeakyRelu <alpha = 0.5, __recompute = 1> (l)
                y = Reshape (m, s)
                z = Neg (b)
            }
            "#,
        )
        .unwrap();
        let before = graph.to_listing();
        assert_eq!(UnmarkFused.run(&mut graph), Ok(Changed::Yes));
        insta::assert_snapshot!(diff(&before, &graph.to_listing()), @r"
          s = Shape(a)
        - b = Relu <__recompute = 1> (a)
        + b = Relu(a)
          c = Gemm <__recompute = 1> (b, w)
        ...
          l = LeakyRelu(k)
        - m = LeakyRelu <__recompute = 1> (l)
        + m = LeakyRelu(l)
          y = Reshape(m, s)
        ");
        assert_eq!(UnmarkFused.run(&mut graph), Ok(Changed::No));
    }
}
