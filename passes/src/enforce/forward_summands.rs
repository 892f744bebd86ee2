//! Lets a convolution add an image that has a name of its own.
//!
//! Runtime fact (measured in 1.32.0): at ORT_ENABLE_ALL a convolution adds what the sum adds that alone reads its result, and rounds otherwise than
//! both do, if the runtime knows that both summands have the same shape. It compares names, by which
//! [`ColourShapes`](super::colour_shapes::ColourShapes) keeps tensors from sharing memory. What a barrier hands on lies where it did, so it can have the
//! name of the other summand: then each of both is kept and freed as planned, and the bits stay.
//!
//! Of two convolutions that are added, the one that the file has first adds the other; of two products of matrices, the last, from ORT_ENABLE_BASIC
//! on (measured in 1.20.1 and 1.32.0). Rewritten, another can be first: behind a barrier the other is none.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;

use crate::graph::{Graph, NodeId, TensorId, Uses};
use crate::operators::Provider;
use crate::pass::{Changed, Pass};
use crate::runtime::Release;
use crate::runtime::barrier::BarrierWriter;
use crate::runtime::fused_pairs::{sum_of_convolution, sum_of_product};
use crate::runtime::known_shapes::is_known_to_equal;
use crate::runtime::optimized_shapes::runtime_shapes_once_optimized;
use crate::runtime::rounding::Rounding;

/// **Does**: lets sums that a convolution takes in read their other summand from a barrier that waits for nothing else, and sums of two products of
/// which another than in the file would take the sum in, in builds whose bits are the same at every level.
/// **Needs**: concrete shapes; nodes listed in a topological order.
/// **Keeps**: everything that is there.
pub struct ForwardSummands {
    /// What runs the nodes.
    pub provider: Provider,
    /// Who runs the graph.
    pub release: &'static Release,
    /// Which sums of those?
    pub sums: Sums,
}

/// Sums that a convolution takes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// All, where dimensions get names of their own.
    All,
    /// Those of two convolutions.
    OfTwoConvolutions,
}

impl Pass for ForwardSummands {
    const NAME: &str = "forward-summands";
    type Error = Infallible;

    fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
        let form = self.release.barrier;
        if self.release.trains || !form.is_possible(graph) {
            return Ok(Changed::No);
        }
        let uses = Uses::of(graph);
        let rounding = Rounding::of(graph, self.provider, self.release);
        let is_free = |sum: NodeId, other: TensorId| {
            let by = uses.producer(other).map(|id| graph.node(id));
            self.release.may_hand_on(graph.tensor(other))
                && rounding.may_pass(other, sum)
                && !by.is_some_and(|by| self.release.is_barrier(by))
        };
        let mut others = self.convolved(graph, &uses);
        others.extend(swapped_products(graph, &uses));
        others.retain(|&sum, &mut other| is_free(sum, other));
        if others.is_empty() {
            return Ok(Changed::No);
        }
        let mut barriers = BarrierWriter::new(self.release, graph);
        let before = graph.order().to_vec();
        let mut order = Vec::with_capacity(before.len());
        for id in before {
            if let Some(&other) = others.get(&id) {
                let handed_on = barriers.add_for_one(graph, &mut order, other);
                graph.node_mut(id).read_instead(other, handed_on);
            }
            order.push(id);
        }
        graph.set_order(order);
        Ok(Changed::Yes)
    }
}

impl ForwardSummands {
    /// By sum that a convolution takes in: what it adds there.
    fn convolved(&self, graph: &Graph, uses: &Uses) -> HashMap<NodeId, TensorId> {
        let is_sum = |&id: &NodeId| sum_of_convolution(graph, uses, id).is_some();
        if !graph.order().iter().any(is_sum) {
            return HashMap::new();
        }
        // Of two convolutions the runtime takes the one that the file has first; sums keep what comes last here.
        let mut nodes = graph.order().to_vec();
        nodes.sort_by_key(|&id| std::cmp::Reverse((graph.node(id).template, id)));
        let convolved = nodes.iter();
        let convolved = convolved.filter_map(|&id| sum_of_convolution(graph, uses, id));
        let shapes = runtime_shapes_once_optimized(graph);
        let convolved = convolved.filter(|of| is_known_to_equal(&shapes, of.convolved, of.other));
        let mut others: HashMap<NodeId, TensorId> = HashMap::new();
        let mut of_two: HashSet<NodeId> = HashSet::new();
        for of in convolved {
            if others.insert(of.sum, of.other).is_some() {
                of_two.insert(of.sum);
            }
        }
        others.retain(|sum, _| self.sums == Sums::All || of_two.contains(sum));
        others
    }
}

/// By sum of two products of which the last in the file is listed first now: what the other one writes.
fn swapped_products(graph: &Graph, uses: &Uses) -> HashMap<NodeId, TensorId> {
    let mut taken: HashMap<NodeId, NodeId> = HashMap::new();
    let mut swapped = HashMap::new();
    for &id in graph.order() {
        let Some((sum, _)) = sum_of_product(graph, uses, id) else {
            continue;
        };
        let place = |id: NodeId| (graph.node(id).template, id);
        if let Some(first) = taken.insert(sum, id)
            && place(first) > place(id)
        {
            swapped.extend(graph.node(id).output(0).map(|written| (sum, written)));
        }
    }
    swapped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::text::diff;
    use crate::runtime::{STOCK, TRAINING};

    fn over(release: &'static Release, sums: Sums) -> ForwardSummands {
        let provider = Provider::Cpu;
        ForwardSummands {
            provider,
            release,
            sums,
        }
    }

    #[test]
    fn of_two_products_the_one_takes_a_sum_in_that_is_last_in_the_file() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[2,4] x, float[4,3] w) => (float[2,3] z) <float[2,3] a, float[2,3] b, float[2,4] n> {
                a = Gemm(x, w) n = Neg(x) b = Gemm(n, w) z = Sum(a, b)
            }"#;
        let mut graph = Graph::parse(text).unwrap();
        for (place, id) in graph.order().to_vec().into_iter().enumerate() {
            graph.node_mut(id).template = Some(place as u32);
        }
        let pass = over(&STOCK, Sums::OfTwoConvolutions);
        assert_eq!(pass.run(&mut graph), Ok(Changed::No));
        let [a, n, b, z] = *graph.order() else {
            unreachable!()
        };
        graph.set_order(vec![n, b, a, z]);
        let before = graph.to_listing();
        assert_eq!(pass.run(&mut graph), Ok(Changed::Yes));
        insta::assert_snapshot!(diff(&before, &graph.to_listing()), @r#"
          a = Gemm(x, w)
        - z = Sum(a, b)
        + "ckpt-opt/barrier_0/size_0" = Size(a)
        + "ckpt-opt/barrier_0/zeros" = Constant()
        + "ckpt-opt/barrier_0/shape" = Min("ckpt-opt/barrier_0/size_0", "ckpt-opt/barrier_0/zeros")
        + "a/barrier_0" = Reshape(a, "ckpt-opt/barrier_0/shape")
        + z = Sum("a/barrier_0", b)
        "#);
    }

    #[test]
    fn a_sum_that_a_convolution_takes_in_reads_its_other_summand_from_a_barrier() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[N,2,4,4] x, float[2,2,1,1] w, float[2] v) => (float[N,2,4,4] y, float[N,2,4,4] z)
            <float[N,2,4,4] a, float[N,2,4,4] b, float[N,2,4,4] e, float[N,2,4,4] h, float[N,2,4,4] i, float[N,2,4,4] c, float[N,2,4,4] d, float[2,1,1] k = {...},
             float[2,2,1,1] f = {...}> {
                a = Conv(x, w, v) b = Add(x, a)
                c = Conv(b, f) d = Add(c, k) y = Add(d, b)
                e = Conv<__recompute = 1>(x, w, v) h = Add(x, e)
                i = Add(b, y) z = Mul(i, h)
            }"#;
        let mut graph = Graph::parse(text).unwrap();
        let bindings = [("N".to_owned(), 2)].into_iter().collect();
        crate::rewrite::infer_shapes::InferShapes { bindings }
            .run(&mut graph)
            .unwrap();
        let before = graph.to_listing();
        let training = over(&TRAINING, Sums::All).run(&mut graph);
        assert_eq!(training, Ok(Changed::No));
        let of_two = over(&STOCK, Sums::OfTwoConvolutions).run(&mut graph);
        assert_eq!(of_two, Ok(Changed::No));
        let stock = over(&STOCK, Sums::All);
        assert_eq!(stock.run(&mut graph), Ok(Changed::Yes));
        insta::assert_snapshot!(diff(&before, &graph.to_listing()), @r#"
          a = Conv(x, w, v)
        - b = Add(x, a)
        + "ckpt-opt/barrier_0/size_0" = Size(x)
        + "ckpt-opt/barrier_0/zeros" = Constant()
        + "ckpt-opt/barrier_0/shape" = Min("ckpt-opt/barrier_0/size_0", "ckpt-opt/barrier_0/zeros")
        + "x/barrier_0" = Reshape(x, "ckpt-opt/barrier_0/shape")
        + b = Add("x/barrier_0", a)
          c = Conv(b, f)
          d = Add(c, k)
        - y = Add(d, b)
        + "ckpt-opt/barrier_1/size_0" = Size(b)
        + "ckpt-opt/barrier_1/shape" = Min("ckpt-opt/barrier_1/size_0", "ckpt-opt/barrier_0/zeros")
        + "b/barrier_1" = Reshape(b, "ckpt-opt/barrier_1/shape")
        + y = Add(d, "b/barrier_1")
          e = Conv <__recompute = 1> (x, w, v)
        - h = Add(x, e)
        + "ckpt-opt/barrier_2/size_0" = Size("x/barrier_0")
        + "ckpt-opt/barrier_2/shape" = Min("ckpt-opt/barrier_2/size_0", "ckpt-opt/barrier_0/zeros")
        + "x/barrier_0/barrier_2" = Reshape("x/barrier_0", "ckpt-opt/barrier_2/shape")
        + h = Add("x/barrier_0/barrier_2", e)
          i = Add(b, y)
        "#);
        assert_eq!(stock.run(&mut graph), Ok(Changed::No));
    }

    #[test]
    fn a_sum_of_images_that_the_runtime_does_not_know_to_be_alike_stays() {
        let changed = |other: &str| {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 15]>
                g (float[N,2,4,4] x, float[{other},2,4,4] u, float[2,2,1,1] w, float[2] v) => (float[N,2,4,4] y)
                <float[N,2,4,4] a> {{ a = Conv(x, w, v) y = Add(u, a) }}"#
            );
            let mut graph = Graph::parse(&text).unwrap();
            let bindings = [("N", 2), (other, 2)].map(|(name, size)| (name.to_owned(), size));
            let bindings = bindings.into_iter().collect();
            crate::rewrite::infer_shapes::InferShapes { bindings }
                .run(&mut graph)
                .unwrap();
            over(&STOCK, Sums::All).run(&mut graph)
        };
        assert_eq!(changed("N"), Ok(Changed::Yes));
        assert_eq!(changed("M"), Ok(Changed::No));
    }

    #[test]
    fn of_two_convolutions_the_first_of_the_file_adds_the_other_wherever_it_stands() {
        for (nodes, sums) in [
            (["Conv(x, w, v)", "Conv(x, v2, v)"], Sums::All),
            (["Conv(x, v2, v)", "Conv(x, w, v)"], Sums::All),
            (["Conv(x, w, v)", "Conv(x, v2, v)"], Sums::OfTwoConvolutions),
            (["Conv(x, v2, v)", "Conv(x, w, v)"], Sums::OfTwoConvolutions),
        ] {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 15]>
                g (float[2,2,4,4] x, float[2,2,1,1] w, float[2,2,1,1] v2, float[2] v) => (float[2,2,4,4] y)
                <float[2,2,4,4] a, float[2,2,4,4] b> {{ a = {} b = {} y = Add(a, b) }}"#,
                nodes[0], nodes[1]
            );
            let mut graph = Graph::parse(&text).unwrap();
            let w = graph.tensor_named("w");
            for id in graph.order().to_vec() {
                let is_first = graph.node(id).input(1) == w;
                graph.node_mut(id).template = Some(if is_first { 1 } else { 2 });
            }
            over(&STOCK, sums).run(&mut graph).unwrap();
            let first = graph
                .order()
                .iter()
                .find(|&&id| graph.node(id).input(1) == w);
            let first = graph.node(*first.unwrap()).output(0);
            let sum = graph.node(*graph.order().last().unwrap());
            assert!(sum.inputs.contains(&first), "{}", graph.to_listing());
        }
    }
}
