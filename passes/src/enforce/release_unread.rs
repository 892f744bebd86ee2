//! Frees results that nobody reads.
//!
//! Runtime fact (measured): the memory of an output without readers is not freed before
//! the end of the step. Mirrors leave such outputs behind: a pooling mask whose readers now read
//! the mirror's, statistics of a batch normalization that is repeated for its first output.
//! A `Size` node reads a tensor without touching its contents; both execution orders run it directly
//! behind the producer, and constant folding leaves it alone, other than `Shape`.

use std::convert::Infallible;

use crate::graph::{Graph, Node, NodeId, TensorId, Uses};
use crate::operators;
use crate::pass::{Changed, Pass};
use crate::plan::RELEASED_FROM;
use crate::runtime::Release;
use crate::runtime::fused_pairs::normalized_at_once;
use crate::runtime::fusing::drops_for_nobody;

/// **Does**: lets a Size node read every large result that nobody else reads.
/// **Needs**: concrete shapes.
/// **Keeps**: everything that is there.
pub struct ReleaseUnread {
    /// The runtime that is to run the graph.
    pub release: &'static Release,
}

impl Pass for ReleaseUnread {
    const NAME: &str = "release-unread";
    type Error = Infallible;

    fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
        Ok(read_by_sizes(graph, self.release, |graph, uses, id| {
            unread(graph, uses, id, self.release)
        }))
    }
}

/// Puts a Size behind every node for each of those tensors that `chosen` finds among its results, if one can read it.
pub(super) fn read_by_sizes(
    graph: &mut Graph,
    of: &Release,
    chosen: impl Fn(&Graph, &Uses, NodeId) -> Vec<TensorId>,
) -> Changed {
    let uses = Uses::of(graph);
    let before = graph.order().to_vec();
    let mut order = Vec::with_capacity(before.len());
    for &id in &before {
        order.push(id);
        let mut chosen = chosen(graph, &uses, id);
        chosen.retain(|&tensor| of.tells_size(graph.tensor(tensor)));
        for tensor in chosen {
            order.push(release(graph, tensor));
        }
    }
    if order.len() == before.len() {
        return Changed::No;
    }
    graph.set_order(order);
    Changed::Yes
}

fn unread(graph: &Graph, uses: &Uses, id: NodeId, by: &Release) -> Vec<TensorId> {
    let node = graph.node(id);
    // A Dropout that goes as nobody reads its mask would stay, and drop.
    if drops_for_nobody(by, graph, uses, id) || is_normalized_at_once(graph, uses, node) {
        return Vec::new();
    }
    let aliases = operators::aliases(node);
    let own_memory = |position: usize| !aliases.iter().any(|&(output, _)| output == position);
    let outputs = node
        .outputs
        .iter()
        .enumerate()
        .filter(|&(position, _)| own_memory(position));
    outputs
        .filter_map(|(_, tensor)| *tensor)
        .filter(|&tensor| uses.readers(tensor).is_empty())
        .filter(|tensor| !graph.outputs.contains(tensor))
        .filter(|&tensor| graph.tensor(tensor).bytes() >= Some(RELEASED_FROM))
        .collect()
}

/// Is it a layer normalization that is made one node with the sum before it? That gives no statistics, and a Size that reads some fails.
fn is_normalized_at_once(graph: &Graph, uses: &Uses, node: &Node) -> bool {
    let sum = node.input(0).and_then(|read| uses.producer(read));
    sum.is_some_and(|sum| normalized_at_once(graph, uses, sum).is_some())
}

/// Adds a Size that reads the tensor.
pub(super) fn release(graph: &mut Graph, tensor: TensorId) -> NodeId {
    let of = &graph.tensor(tensor).name;
    let (node, output) = (format!("ckpt-opt/release/{of}"), format!("{of}/size"));
    graph.add_size(&node, tensor, &output).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::text::diff;
    use crate::runtime::{STOCK, TRAINING};

    fn changes(text: &str) -> String {
        changes_for(&TRAINING, text)
    }

    fn changes_for(release: &'static Release, text: &str) -> String {
        let graph = Graph::parse(text).unwrap();
        let mut rewritten = graph.clone();
        let changed = ReleaseUnread { release }.run(&mut rewritten).unwrap();
        assert_eq!(changed == Changed::Yes, rewritten != graph);
        diff(&graph.to_listing(), &rewritten.to_listing())
    }

    #[test]
    fn a_large_result_that_nobody_reads_is_read_by_a_size() {
        // 32 * 32 elements of 8 bytes are 8192 bytes.
        let text = "g (float[1,1,64,64] x) => (float[1,1,32,32] z)
           <float[1,1,32,32] y, int64[1,1,32,32] mask>
           {
              y, mask = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
              z = Exp(y)
           }";
        insta::assert_snapshot!(changes(text), @r#"
             y, mask = MaxPool(x)
           + "mask/size" = Size(mask)
             z = Exp(y)
           "#);
    }

    /// The runtime makes one node of the sum and the normalization, which writes neither, and a Size that reads one fails.
    #[test]
    fn statistics_of_a_layer_normalization_that_takes_in_a_sum_are_read_by_nobody() {
        let text = "g (float[4,1024,8] x, float[8] s) => (float[4,1024,8] y)
            <float[4,1024,8] a, float[4,1024,8] n, float[4,1024,1] m, float[4,1024,1] v>
            { a = Add(x, x) n, m, v = LayerNormalization(a, s, s) y = Exp(n) }";
        assert_eq!(changes(text), "");
        assert_ne!(changes(&text.replace("Add(x, x)", "Mul(x, x)")), "");
    }

    /// A session without training takes it out as long as nobody reads its mask.
    #[test]
    fn the_mask_of_a_dropout_that_drops_for_nobody_is_read_by_nobody() {
        let text = r#"<ir_version: 8, opset_import: ["" : 17]> g (float[4,2048] x, bool told) => (float[4,2048] y)
            <float half = {0.5}, float[4,2048] a, float[4,2048] b, bool[4,2048] m> { a = Exp(x) b, m = Dropout(a, half, told) y = Neg(b) }"#;
        assert_eq!(changes_for(&STOCK, text), "");
        assert_ne!(changes_for(&TRAINING, text), "");
    }

    /// No Size would read them, and no session could be made of the graph.
    #[test]
    fn a_bfloat16_that_nobody_reads_stays_as_it_is() {
        let text = "g (bfloat16[4096] x) => () <bfloat16[4096] y> { y = Neg(x) }";
        assert_eq!(changes(text), "");
        assert_ne!(changes(&text.replace("bfloat16", "float16")), "");
    }

    #[test]
    fn the_limit_is_4096_bytes() {
        let text = |elements| {
            format!("g (float[{elements}] x) => () <float[{elements}] y> {{ y = Exp(x) }}")
        };
        // 1023 * 4 = 4092 and 1024 * 4 = 4096.
        assert_eq!(changes(&text(1023)), "");
        insta::assert_snapshot!(changes(&text(1024)), @r#"
          y = Exp(x)
        + "y/size" = Size(y)
        "#);
    }

    #[test]
    fn what_is_read_aliased_or_given_to_the_caller_stays_as_it_is() {
        let text = "g (float[2048] x) => (float[2048] y)
           <int64[2] to = {2, 1024}, float[2048] a, float[2,1024] alias>
           {
              a = Exp(x)
              alias = Reshape(a, to)
              y = Exp(a)
           }";
        assert_eq!(changes(text), "");
    }

    #[test]
    fn a_taken_name_is_avoided() {
        let text = r#"g (float[1024] x, float[1] "y/size") => () <float[1024] y> { y = Exp(x) }"#;
        insta::assert_snapshot!(changes(text), @r#"
          y = Exp(x)
        + "y/size_1" = Size(y)
        "#);
    }
}
