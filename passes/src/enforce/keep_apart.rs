//! Keeps the runtime from merging mirrors after it has fused them.
//!
//! A Gemm that is made of several nodes (`reads_of_gemm`) has none of their attributes, so no marker either, and is then merged with one of the original or of another
//! mirror that reads the same. From ORT_ENABLE_BASIC on a result would be kept that the plan computes again. None of these
//! fusions is made where a second node reads what the first one writes; a Size takes neither time nor memory, where it runs directly behind
//! what it reads. Builds without training run it at the end of the step in DEFAULT order, and what it reads is kept for it (measured in
//! 1.32.0): there a barrier that waits for nothing else stands between the nodes. And there all bits are the same at every level, so a mirror
//! has to become a Gemm where its original does: it reads one tensor, the smallest, from such a barrier, and what reads something else is not merged.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::convert::Infallible;

use super::hide_sizes::anchor;
use super::release_unread::{read_by_sizes, release};
use crate::analysis::mirrors::MARKER;
use crate::graph::{Graph, NodeId, TensorId, Uses};
use crate::operators::Provider;
use crate::pass::{Changed, Pass};
use crate::runtime::Release;
use crate::runtime::barrier::BarrierWriter;
use crate::runtime::fused_pairs::{
    is_newly_added, is_newly_fused, is_part_of_depth, is_piece_of_an_activation, is_read_past,
    loses_statistics, read_by_several, read_once, reads_of_gemm,
};
use crate::runtime::rounding::Rounding;
use crate::runtime::transposes::is_moved_behind;

/// **Does**: gives what the runtime would make one node of a second reader that only asks for its size, or in builds without training a
/// barrier that waits for nothing else, between both:
///
/// - a mirror that becomes a Gemm without a marker, where another reads the same (in builds without training what it reads comes from the barrier);
/// - a sum, and the layer normalization whose statistics are read;
/// - the pieces of an activation, a Transpose and what it would be moved behind, and the first of four Slices that become a
///   SpaceToDepth: the search simulates none of them;
/// - where copies have left one reader of several: a convolution and a sum, a sum and its layer normalization, a product and
///   a number, a Div of a number and a product, a Pad and a convolution, a Gemm and the Transpose it reads. One node rounds otherwise, or takes
///   its memory at another time.
///
/// In builds without training it also puts a barrier that waits for a graph input behind what a Gemm writes that reads past a Transpose:
/// so the result is read once, whoever waits for it (`read_once`).
/// **Needs**: concrete shapes; nodes listed in a topological order.
/// **Keeps**: everything that is there; behind a barrier, readers read what it hands on.
pub struct KeepApart {
    /// What runs the nodes.
    pub provider: Provider,
    /// Who runs the graph.
    pub release: &'static Release,
}

impl Pass for KeepApart {
    const NAME: &str = "keep-apart";
    type Error = Infallible;

    fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
        let several = read_by_several(graph, &Uses::of(graph));
        let moves = self.release.moves_transposes();
        let fused = |graph: &Graph, uses: &Uses, id| {
            let is_moved = || moves && is_moved_behind(graph, uses, id);
            let written = graph.node(id).output(0);
            written.filter(|_| is_fused(graph, uses, id, &several) || is_moved())
        };
        let sized = self.release.shapes_follow || !self.release.barrier.is_possible(graph);
        Ok(match sized {
            true => read_by_sizes(graph, self.release, |graph, uses, id| {
                let merged = || loses_marker(graph, uses, id);
                let merged = || graph.node(id).output(0).filter(|_| merged());
                Vec::from_iter(fused(graph, uses, id).or_else(merged))
            }),
            false => self.part(graph, &several, fused),
        })
    }
}

impl KeepApart {
    /// Puts a barrier behind each of those tensors, or lets a Size read what no barrier hands on; and one before a mirror that would be
    /// merged.
    fn part(
        &self,
        graph: &mut Graph,
        several: &HashSet<u32>,
        fused: impl Fn(&Graph, &Uses, NodeId) -> Option<TensorId>,
    ) -> Changed {
        let uses = Uses::of(graph);
        let rounding = Rounding::of(graph, self.provider, self.release);
        // Does nobody round otherwise what a barrier hands on to all?
        let may_hand_on = |graph: &Graph, tensor: TensorId| {
            let mut readers = uses.readers(tensor).iter();
            self.release.may_hand_on(graph.tensor(tensor))
                && readers.all(|&reader| rounding.may_pass(tensor, reader))
        };
        let before = graph.order().to_vec();
        let fused = before.iter().map(|&id| fused(graph, &uses, id));
        let mut behind: Vec<Option<TensorId>> = fused.collect();
        // By node: what it reads from a barrier.
        let mut handed = HashMap::new();
        let mut gemms = HashSet::new();
        for (&id, behind) in before.iter().zip(&mut behind) {
            if behind.is_none() && self.is_merged(graph, &uses, id, &mut gemms) {
                let to_hand_on = self.to_hand_on(graph, &uses, id, &rounding);
                match to_hand_on {
                    Some((reader, tensor)) => drop(handed.insert(reader, tensor)),
                    None => *behind = graph.node(id).output(0),
                }
            }
        }
        let anchor = anchor(graph, |input| self.release.may_wait_for(input));
        let mut once = anchor.map_or_else(BTreeSet::new, |_| read_once(graph, &uses));
        once.retain(|&tensor| {
            let is_barrier = |&id: &NodeId| self.release.is_barrier(graph.node(id));
            let by = uses.producer(tensor).map(|id| graph.node(id));
            let template = by.and_then(|by| by.template);
            // Where copies have left one reader of several, the Gemm is to have two.
            !template.is_some_and(|of| several.contains(&of))
                && may_hand_on(graph, tensor)
                && !uses.readers(tensor).iter().any(is_barrier)
        });
        if handed.is_empty() && once.is_empty() && behind.iter().all(Option::is_none) {
            return Changed::No;
        }
        let mut barriers = BarrierWriter::new(self.release, graph);
        let mut order = Vec::with_capacity(before.len());
        for (id, behind) in before.into_iter().zip(behind) {
            if let Some(&tensor) = handed.get(&id) {
                let handed_on = barriers.add_for_one(graph, &mut order, tensor);
                graph.node_mut(id).read_instead(tensor, handed_on);
            }
            order.push(id);
            let written = graph.node(id).output(0);
            if let (Some(tensor), Some(anchor)) = (written.filter(|of| once.contains(of)), anchor) {
                let handed_on = barriers.add(graph, &mut order, tensor, &[anchor]);
                for &reader in uses.readers(tensor) {
                    graph.node_mut(reader).read_instead(tensor, handed_on);
                }
                continue;
            }
            let Some(tensor) = behind else { continue };
            if !may_hand_on(graph, tensor) {
                if self.release.tells_size(graph.tensor(tensor)) {
                    order.push(release(graph, tensor));
                }
                continue;
            }
            let handed_on = barriers.add(graph, &mut order, tensor, &[tensor]);
            for &reader in uses.readers(tensor) {
                graph.node_mut(reader).read_instead(tensor, handed_on);
            }
        }
        graph.set_order(order);
        Changed::Yes
    }

    /// Is it a mirror that loses its marker, of which the runtime makes what it makes of others, too? `gemms` are what those before read.
    fn is_merged(
        &self,
        graph: &Graph,
        uses: &Uses,
        id: NodeId,
        gemms: &mut HashSet<Vec<TensorId>>,
    ) -> bool {
        let read = reads_of_gemm(graph, uses, id).into_iter();
        let read: Vec<TensorId> = read
            .map(|(_, tensor)| self.source(graph, uses, tensor))
            .collect();
        !read.is_empty() && !gemms.insert(read) && loses_marker(graph, uses, id)
    }

    /// A tensor that the Gemm made of this node can read from a barrier, and still is made; and the node that reads it now. Of all the smallest,
    /// what the caller owns before the rest, as it is there anyway.
    fn to_hand_on(
        &self,
        graph: &Graph,
        uses: &Uses,
        id: NodeId,
        rounding: &Rounding,
    ) -> Option<(NodeId, TensorId)> {
        let may = |&(reader, read): &(NodeId, TensorId)| {
            let by = uses.producer(read).map(|id| graph.node(id));
            let is_taken_in = by.is_some_and(|node| node.is("", "Transpose"));
            !is_taken_in
                && self.release.may_hand_on(graph.tensor(read))
                && rounding.may_pass(read, reader)
        };
        let price = |&(_, read): &(NodeId, TensorId)| {
            (uses.producer(read).is_some(), graph.tensor(read).bytes())
        };
        let read = reads_of_gemm(graph, uses, id).into_iter();
        read.filter(may).min_by_key(price)
    }

    /// What the tensor is, whoever handed it on, or transposed it.
    fn source(&self, graph: &Graph, uses: &Uses, tensor: TensorId) -> TensorId {
        let mut at = tensor;
        while let Some(id) = uses.producer(at) {
            let node = graph.node(id);
            let hands_on = self.release.is_barrier(node) || is_read_past(node);
            match node.input(0).filter(|_| hands_on) {
                Some(read) => at = read,
                None => break,
            }
        }
        at
    }
}

/// Is what the node writes, and one other node reads, one of those tensors?
fn is_fused(graph: &Graph, uses: &Uses, id: NodeId, several: &HashSet<u32>) -> bool {
    loses_statistics(graph, uses, id)
        || is_newly_fused(graph, uses, id, several)
        || is_part_of_depth(graph, uses, id)
        || is_piece_of_an_activation(graph, uses, id)
        || is_newly_added(graph, uses, id)
}

/// Is it a mirror of which a Gemm is made that has no marker?
fn loses_marker(graph: &Graph, uses: &Uses, id: NodeId) -> bool {
    graph.node(id).attribute(MARKER).is_some() && !reads_of_gemm(graph, uses, id).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::text::diff;
    use crate::runtime::{STOCK, TRAINING};

    fn on_cpu(release: &'static Release) -> KeepApart {
        let provider = Provider::Cpu;
        KeepApart { provider, release }
    }

    fn kept_apart(graph: &mut Graph) -> Result<Changed, Infallible> {
        on_cpu(&TRAINING).run(graph)
    }

    #[test]
    fn a_sum_that_a_layer_normalization_would_take_in_with_its_statistics_has_a_second_reader() {
        let text = "g (float[2,4] x, float[4] s) => (float[2,4] y, float[2,1] d)
            <float[2,4] a, float[2,4] n, float[2,1] m, float[2,1] v> {
                a = Add(x, x)
                n, m, v = LayerNormalization(a, s, s)
                y = Relu(n)
                d = Neg(v)
            }";
        let mut graph = Graph::parse(text).unwrap();
        let before = graph.to_listing();
        assert_eq!(kept_apart(&mut graph), Ok(Changed::Yes));
        insta::assert_snapshot!(diff(&before, &graph.to_listing()), @r#"
          a = Add(x, x)
        + "a/size" = Size(a)
          n, m, v = LayerNormalization(a, s, s)
        "#);
        assert_eq!(kept_apart(&mut graph), Ok(Changed::No));
        // Whoever reads no statistics misses none, and what has two readers is left alone.
        for other in [
            text.replace("Neg(v)", "Neg(s)"),
            text.replace("Relu(n)", "Add(n, a)"),
        ] {
            let mut graph = Graph::parse(&other).unwrap();
            assert_eq!(kept_apart(&mut graph), Ok(Changed::No), "{other}");
        }
    }

    #[test]
    fn pieces_of_an_activation_have_a_second_reader() {
        let read = |nodes: &str| {
            let text = format!(
                "g (float[4,4] x) => (float[4,4] y) <float one = {{1}}, float[4,4] s, float[4,4] t, float[4,4] m> {{ {nodes} }}"
            );
            let mut graph = Graph::parse(&text).unwrap();
            kept_apart(&mut graph) == Ok(Changed::Yes)
        };
        assert!(read("s = Sigmoid(x) y = Mul(x, s)"));
        assert!(read("m = Mul(x, one) s = Sigmoid(m) y = Mul(s, x)"));
        assert!(read("s = Erf(x) y = Add(s, one)"));
        assert!(read("s = Tanh(x) y = Add(one, s)"));
        // Others, and such that have a second reader.
        assert!(!read("t = Exp(x) s = Sigmoid(t) y = Mul(x, s)"));
        assert!(!read("s = Sigmoid(x) y = Add(x, s)"));
        assert!(!read("s = Tanh(x) y = Add(x, s)"));
        assert!(!read(
            "s = Sigmoid(x) t = Exp(s) m = Mul(x, s) y = Add(t, m)"
        ));
    }

    #[test]
    fn a_sum_that_only_a_layer_normalization_still_reads_has_a_second_reader() {
        let sizes = |first: &str| {
            let text = format!(
                r#"g (float[2,4] x, float[2,4] w, float[4] s) => (float[2,4] y, float[2,4] z)
                <float[2,4] a, float[2,4] b, float[2,4] n> {{
                    a = Add(x, w) {first} b = Add<__recompute = 1>(x, w) n = LayerNormalization(b, s, s) z = Exp(n)
                }}"#
            );
            let mut graph = Graph::parse(&text).unwrap();
            for id in graph.order().to_vec() {
                let of = graph.node(id).op_type.len() as u32;
                graph.node_mut(id).template = Some(of);
            }
            kept_apart(&mut graph).unwrap();
            let nodes = graph.nodes();
            nodes.filter(|node| node.is("", "Size")).count()
        };
        // The first instance is read by somebody else, or by another normalization of the file alone, as the runtime has it then.
        assert_eq!(sizes("y = Relu(a)"), 1);
        assert_eq!(sizes("y = LayerNormalization(a, s, s)"), 0);
    }

    /// How many Sizes there are, where each node comes from the node of the file that has its operator.
    fn sizes(nodes: &str) -> usize {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]> g (float[1,2,4,4] x, float[1,2,4,4] w) => (float[1,2,4,4] y, float[1,2,4,4] z)
            <float half = {{0.5}}, int64[8] pads = {{0, 0, 0, 0, 0, 0, 0, 0}}, float[1,2,4,4] a, float[1,2,4,4] b> {{ {nodes} }}"#
        );
        let mut graph = Graph::parse(&text).unwrap();
        for id in graph.order().to_vec() {
            let of = graph
                .node(id)
                .op_type
                .bytes()
                .fold(0, |sum, letter| sum + u32::from(letter));
            graph.node_mut(id).template = Some(of);
        }
        kept_apart(&mut graph).unwrap();
        let nodes = graph.nodes();
        nodes.filter(|node| node.is("", "Size")).count()
    }

    #[test]
    fn what_copies_leave_to_one_reader_that_would_take_it_in_has_a_second_one() {
        // A product and its multiplication by a number: whichever instance is left to that.
        assert_eq!(
            sizes("a = MatMul(x, w) y = Exp(a) b = MatMul(x, w) z = Mul(b, half)"),
            1
        );
        assert_eq!(
            sizes("a = MatMul(x, w) z = Mul(a, half) b = MatMul(x, w) y = Exp(b)"),
            1
        );
        assert_eq!(
            sizes(
                "a = MatMul(x, w) i = Identity(a) y = Exp(a) b = MatMul(x, w) j = Identity(b) z = Mul(j, half)"
            ),
            1
        );
        assert_eq!(
            sizes("a = Pad(x, pads) y = Exp(a) b = Pad(x, pads) z = Conv(b, w)"),
            1
        );
        // The runtime takes those in as they are in the file, too.
        assert_eq!(
            sizes("a = MatMul(x, w) y = Mul(a, half) b = MatMul(x, w) z = Mul(b, half)"),
            0
        );
        assert_eq!(
            sizes("a = Pad(x, pads) y = Conv(a, w) b = Pad(x, pads) z = Conv(b, w)"),
            0
        );
        // Nor does a product take in what is no number, or one that is no Gemm a Sum.
        assert_eq!(
            sizes("a = MatMul(x, w) y = Exp(a) b = MatMul(x, w) z = Mul(b, x)"),
            0
        );
        let summed = "a = com.microsoft.FusedMatMul(x, w) y = Exp(a) b = com.microsoft.FusedMatMul(x, w) z = Sum(b, x)";
        assert_eq!(sizes(summed), 0);
        assert_eq!(
            sizes("a = Div(half, w) y = Exp(a) b = Div(half, w) z = Mul(b, x)"),
            1
        );
        // A Shape of what has no number is a reader.
        let shape = "a = MatMul(x, w) s = Shape(a) t = Expand(s, s) b = MatMul(x, w) y = Mul(b, half) z = Mul(a, t)";
        assert_eq!(sizes(shape), 0);
    }

    #[test]
    fn what_a_gemm_writes_that_reads_past_a_transpose_is_read_once_whoever_waits_for_it() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[9,5] x, float[9,7] d, float[5,7] e) => (float[5,7] y) <float[5,9] s, float[5,7] a, float[5,7] b>
            { s = Transpose <perm = [1, 0]> (x) a = MatMul(s, d) b = Add(a, e) y = Neg(b) }"#;
        let of = |text: &str| {
            let graph = Graph::parse(text).unwrap();
            let mut kept = graph.clone();
            let release = &STOCK;
            let changed = on_cpu(release).run(&mut kept);
            assert_eq!(on_cpu(release).run(&mut kept), Ok(Changed::No));
            (changed, diff(&graph.to_listing(), &kept.to_listing()))
        };
        let (changed, difference) = of(text);
        assert_eq!(changed, Ok(Changed::Yes));
        insta::assert_snapshot!(difference, @r#"
          b = Add(a, e)
        - y = Neg(b)
        + "ckpt-opt/barrier_0/size_0" = Size(e)
        + "ckpt-opt/barrier_0/zeros" = Constant()
        + "ckpt-opt/barrier_0/shape" = Min("ckpt-opt/barrier_0/size_0", "ckpt-opt/barrier_0/zeros")
        + "b/barrier_0" = Reshape(b, "ckpt-opt/barrier_0/shape")
        + y = Neg("b/barrier_0")
        "#);
        // Where copies have left one reader of several, it has two: the Gemm did not read past the Transpose in the file.
        let several = text
            .replace("=> (float[5,7] y)", "=> (float[5,7] y, float[5,7] z)")
            .replace("float[5,7] b>", "float[5,7] b, float[5,9] t, float[5,7] c, float[5,7] f>")
            .replace(
                "y = Neg(b) }",
                "y = Neg(b) t = Transpose <perm = [1, 0], __recompute = 1> (x) c = MatMul <__recompute = 1> (t, d) f = Add <__recompute = 1> (c, e) z = Exp(f) }",
            );
        let mut graph = Graph::parse(&several).unwrap();
        for id in graph.order().to_vec() {
            let of = graph.node(id).op_type.len() as u32;
            graph.node_mut(id).template = Some(of);
        }
        let release = &STOCK;
        assert_eq!(on_cpu(release).run(&mut graph), Ok(Changed::Yes));
        let sum = graph.tensor_named("b");
        let sizes = graph.nodes();
        let sizes = sizes.filter(|node| node.is("", "Size") && node.input(0) == sum);
        assert_eq!(sizes.count(), 1, "{}", graph.to_listing());
        // What leaves the graph, and what has two readers in the file.
        for other in [
            text.replace("Neg(b)", "Identity(b)"),
            text.replace("Neg(b)", "Pow(b, c) c = Exp(b)")
                .replace("float[5,7] b>", "float[5,7] b, float[5,7] c>"),
            text.replace("MatMul(s, d)", "MatMul(q, d)")
                .replace("float[5,7] e) =>", "float[5,7] e, float[5,9] q) =>"),
        ] {
            assert_eq!(of(&other).0, Ok(Changed::No), "{other}");
        }
    }

    #[test]
    fn builds_without_training_have_a_barrier_that_keeps_nothing() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]> g (float[2,4] x) => (float[2,4] y) <float[2,4] s> {
            s = Sigmoid(x) y = Mul(x, s) }"#;
        let mut graph = Graph::parse(text).unwrap();
        let before = graph.to_listing();
        let release = &STOCK;
        assert_eq!(on_cpu(release).run(&mut graph), Ok(Changed::Yes));
        insta::assert_snapshot!(diff(&before, &graph.to_listing()), @r#"
          s = Sigmoid(x)
        - y = Mul(x, s)
        + "ckpt-opt/barrier_0/size_0" = Size(s)
        + "ckpt-opt/barrier_0/zeros" = Constant()
        + "ckpt-opt/barrier_0/shape" = Min("ckpt-opt/barrier_0/size_0", "ckpt-opt/barrier_0/zeros")
        + "s/barrier_0" = Reshape(s, "ckpt-opt/barrier_0/shape")
        + y = Mul(x, "s/barrier_0")
        "#);
        assert_eq!(on_cpu(release).run(&mut graph), Ok(Changed::No));
        // An older operator set has no barriers.
        let mut graph = Graph::parse(&text.replace(": 15", ": 11")).unwrap();
        assert_eq!(on_cpu(release).run(&mut graph), Ok(Changed::Yes));
        assert!(graph.to_listing().contains("Size(s)"));
    }

    #[test]
    fn builds_without_training_let_a_mirror_become_a_gemm_that_reads_something_else() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]> g (float[4,2] x, float[2,2] w, float[2] v) => (float[4,2] y)
            <float[4,2] p, float[4,2] a, float[4,2] q, float[4,2] b, float[4,2] r, float[4,2] c, float[4,2] s, float[4,2] d, float[4,2] t> {
            p = MatMul(x, w) a = Add(p, v)
            q = MatMul<__recompute = 1>(x, w) b = Add<__recompute = 1>(q, v)
            r = MatMul<__recompute = 2>(x, w) c = Add<__recompute = 2>(r, v)
            s = MatMul<__recompute = 1>(a, w) d = Add<__recompute = 1>(s, v)
            t = Sum(b, c) y = Sum(t, d) }"#;
        let mut graph = Graph::parse(text).unwrap();
        let before = graph.to_listing();
        let release = &STOCK;
        assert_eq!(on_cpu(release).run(&mut graph), Ok(Changed::Yes));
        insta::assert_snapshot!(diff(&before, &graph.to_listing()), @r#"
          q = MatMul <__recompute = 1> (x, w)
        - b = Add <__recompute = 1> (q, v)
        + "ckpt-opt/barrier_0/size_0" = Size(v)
        + "ckpt-opt/barrier_0/zeros" = Constant()
        + "ckpt-opt/barrier_0/shape" = Min("ckpt-opt/barrier_0/size_0", "ckpt-opt/barrier_0/zeros")
        + "v/barrier_0" = Reshape(v, "ckpt-opt/barrier_0/shape")
        + b = Add <__recompute = 1> (q, "v/barrier_0")
          r = MatMul <__recompute = 2> (x, w)
        - c = Add <__recompute = 2> (r, v)
        + "ckpt-opt/barrier_1/size_0" = Size("v/barrier_0")
        + "ckpt-opt/barrier_1/shape" = Min("ckpt-opt/barrier_1/size_0", "ckpt-opt/barrier_0/zeros")
        + "v/barrier_0/barrier_1" = Reshape("v/barrier_0", "ckpt-opt/barrier_1/shape")
        + c = Add <__recompute = 2> (r, "v/barrier_0/barrier_1")
          s = MatMul <__recompute = 1> (a, w)
        "#);
    }

    #[test]
    fn four_slices_that_become_a_space_to_depth_have_a_second_reader() {
        let four = "s = Slice(x, one, two) t = Slice(x, two, two) u = Slice(x, one, one) v = Slice(x, two, one)
            y = Concat <axis = 1> (s, t, u, v) z = Exp(y)";
        assert_eq!(sizes(four), 1);
        assert_eq!(sizes(&four.replace("(s, t, u, v)", "(s, t, u)")), 0);
        assert_eq!(
            sizes(&four.replace("Slice(x, two, one)", "Slice(w, two, one)")),
            0
        );
    }

    #[test]
    fn a_convolution_that_only_a_sum_still_reads_has_a_second_reader() {
        let read = |nodes: &str| {
            let text = format!(
                "g (float[1,2,4,4] x, float[2,2,1,1] w, float[2] v) => (float[1,2,4,4] y, float[1,2,4,4] z)
                 <float[1,2,4,4] a, float[1,2,4,4] b> {{ {nodes} }}"
            );
            let mut graph = Graph::parse(&text).unwrap();
            kept_apart(&mut graph) == Ok(Changed::Yes)
        };
        // What reads the copy, and what reads the first instance, read one tensor once.
        assert!(read(
            "a = Conv(x, w, v) z = Exp(a) b = Conv<__recompute = 1>(x, w, v) y = Add(b, x)"
        ));
        assert!(read(
            "a = Conv(x, w, v) y = Add(a, x) b = Conv<__recompute = 1>(x, w, v) z = Exp(b)"
        ));
        // The runtime fused it before as well; there is no bias, of which the fused node needs one.
        assert!(!read(
            "a = Conv(x, w, v) y = Add(a, x) b = Conv<__recompute = 1>(x, w, v) z = Add(x, b)"
        ));
        assert!(!read(
            "a = Conv(x, w) z = Exp(a) b = Conv<__recompute = 1>(x, w) y = Add(b, x)"
        ));
    }

    #[test]
    fn a_transpose_before_another_has_a_second_reader() {
        let read = |nodes: &str| {
            let text = format!(
                "g (float[4,4] x) => (float[4,4] y) <float[4,4] t, float[4,4] a, float[4,4] b> {{ t = Transpose<perm = [1, 0]>(x) {nodes} }}"
            );
            let mut graph = Graph::parse(&text).unwrap();
            kept_apart(&mut graph) == Ok(Changed::Yes)
        };
        assert!(read(
            "a = Exp(t) b = Add(a, x) y = Transpose<perm = [1, 0]>(b)"
        ));
        assert!(!read("y = Exp(t)"));
        // One that reads it reads past it then: a Size would be left as its only reader, and it would run late.
        let direct = "y = Transpose<perm = [1, 0]>(t)";
        assert!(!read(direct));
        assert!(!read(&format!("{direct} a = Shape(t)")));
        let through = "a = Exp(t) b = Transpose<perm = [1, 0]>(a)";
        assert!(read(&format!("{direct} {through}")));
        assert!(!read("a = MatMul(t, x) y = Transpose<perm = [1, 0]>(a)"));
    }

    #[test]
    fn what_would_become_a_gemm_without_a_marker_has_a_second_reader() {
        let mut graph = Graph::parse(
            "g (float[2,2] x, float[2,2] w, float[2] v, float[2,2,2] cube) => (float[2,2] y, float[2,2,2] z)
             <float[2,2] a, float[2,2] b, float[2,2] c, float[2,2] d, float[2,2] e, float[2,2] f, float[2,2] g,
              float[2,2] h, float[2,2] i, float[2,2] t, float[2,2,2] k> {
                a = MatMul<__recompute = 1>(x, w)
                b = Add<__recompute = 1>(a, v)
                c = MatMul(b, w)
                d = Add(c, v)
                e = Gemm<__recompute = 1>(d, w)
                f = Sum<__recompute = 1>(e, d)
                t = Transpose(w)
                g = Gemm<__recompute = 1>(f, t)
                h = Gemm<__recompute = 1>(g, w, v)
                i = Sum<__recompute = 1>(h, f)
                k = MatMul<__recompute = 1>(cube, w)
                z = Add<__recompute = 1>(k, v)
                y = Relu(i)
             }",
        )
        .unwrap();
        let before = graph.to_listing();
        assert_eq!(kept_apart(&mut graph), Ok(Changed::Yes));
        insta::assert_snapshot!(diff(&before, &graph.to_listing()), @r#"
          a = MatMul <__recompute = 1> (x, w)
        + "a/size" = Size(a)
          b = Add <__recompute = 1> (a, v)
        ...
          e = Gemm <__recompute = 1> (d, w)
        + "e/size" = Size(e)
          f = Sum <__recompute = 1> (e, d)
        ...
          g = Gemm <__recompute = 1> (f, t)
        + "g/size" = Size(g)
          h = Gemm <__recompute = 1> (g, w, v)
        "#);
        assert_eq!(kept_apart(&mut graph), Ok(Changed::No));
    }

    /// Behind a barrier the sum would be rounded, which a Cast widens that gives it to the caller.
    #[test]
    fn no_barrier_stands_behind_a_product_where_that_rounds() {
        let parted = |cast: &str| {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 17]> g (float16[8,4] x, float16[8,5] d, float16[4,5] k) => (float[4,5] y)
                <float16[4,8] t, float16[4,5] m, float16[4,5] s, float16[4,5] u> {{
                    t = Transpose<perm = [1, 0]>(x) m = MatMul(t, d) s = Add(k, m) {cast} }}"#
            );
            let mut graph = Graph::parse(&text).unwrap();
            for (place, id) in graph.order().to_vec().into_iter().enumerate() {
                graph.node_mut(id).template = Some(place as u32);
            }
            on_cpu(&STOCK).run(&mut graph) == Ok(Changed::Yes)
        };
        assert!(parted("u = Tanh(s) y = Cast<to = 1>(u)"));
        assert!(!parted("y = Cast<to = 1>(s)"));
    }
}
