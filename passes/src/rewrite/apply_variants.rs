//! Replaces nodes by other nodes that compute the same.

use std::convert::Infallible;

use crate::graph::{Graph, NodeId, Uses, topological};
use crate::operators::variants::nodes::make;
use crate::operators::variants::{Part, Variant};
use crate::pass::{Changed, Pass};

/// **Does**: replaces each chosen node by the parts of its variant, which stand where it stood, or behind what they read
/// should that be computed later (see `nodes::fits_in_place`).
/// **Needs**: concrete shapes; nodes listed in a topological order; no node chosen twice.
/// **Keeps**: everything else, all names and their values. The replaced node's name and place go to
/// the part with the same operator, or else to the last one.
pub struct ApplyVariants<'v> {
    /// Which nodes to replace, and by what.
    pub choices: &'v [(NodeId, &'static Variant)],
}

impl Pass for ApplyVariants<'_> {
    const NAME: &'static str = "apply-variants";
    type Error = Infallible;

    fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
        Ok(Changed::from(!self.replace(graph).is_empty()))
    }
}

impl ApplyVariants<'_> {
    /// The same, and says which nodes stand where each replaced one stood, in the order in which
    /// they run. The replaced node's number is among them.
    pub fn replace(&self, graph: &mut Graph) -> Vec<(NodeId, Vec<NodeId>)> {
        let uses = Uses::of(graph);
        let found = self.choices.iter().map(|&(id, variant)| {
            let parts = variant.parts(graph, &uses, id);
            (id, parts.unwrap_or_default())
        });
        let found: Vec<(NodeId, Vec<Part>)> =
            found.filter(|(_, parts)| !parts.is_empty()).collect();
        let mut by_node: Vec<Vec<NodeId>> = vec![Vec::new(); graph.node_count()];
        let before = graph.order().to_vec();
        let mut replaced = Vec::with_capacity(found.len());
        for (id, parts) in &found {
            let nodes = replace(graph, *id, parts);
            by_node[id.index()].clone_from(&nodes);
            replaced.push((*id, nodes));
        }
        let mut order = Vec::with_capacity(graph.node_count());
        for id in before {
            match by_node[id.index()].as_slice() {
                [] => order.push(id),
                parts => order.extend(parts),
            }
        }
        graph.set_order(order);
        // No variant reads what is computed from the replaced node, so there is an order.
        if let Ok(order) = topological(graph, &Uses::of(graph)) {
            graph.set_order(order);
        }
        replaced
    }
}

/// The nodes that stand where `id` stood.
fn replace(graph: &mut Graph, id: NodeId, parts: &[Part]) -> Vec<NodeId> {
    let (made, heir) = make(graph, id, parts);
    let mut nodes = Vec::new();
    for (position, node) in made.into_iter().enumerate() {
        if position == heir {
            *graph.node_mut(id) = node;
            nodes.push(id);
        } else {
            nodes.push(graph.add_node(node));
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::text::diff;
    use crate::operators::variants::VARIANTS;
    use crate::rewrite::infer_shapes::InferShapes;
    use crate::verify;

    const HEAD: &str = r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>"#;

    /// What the variant called `name` makes of every node that it applies to.
    fn changes(name: &str, text: &str) -> String {
        let graph = Graph::parse(&format!("{HEAD} {text}")).unwrap();
        let variant = VARIANTS.iter().find(|v| v.name == name).unwrap();
        let uses = Uses::of(&graph);
        let applies = |&id: &NodeId| variant.parts(&graph, &uses, id).is_some();
        let chosen: Vec<_> = graph
            .order()
            .iter()
            .copied()
            .filter(applies)
            .map(|id| (id, variant))
            .collect();
        let mut rewritten = graph.clone();
        let changed = ApplyVariants { choices: &chosen }
            .run(&mut rewritten)
            .unwrap();
        assert_eq!(changed == Changed::Yes, rewritten != graph);
        verify::equivalence(&graph, &rewritten, &Default::default()).unwrap();
        diff(&graph.to_listing(), &rewritten.to_listing())
    }

    #[test]
    fn a_sum_becomes_a_chain_of_additions_in_the_order_of_its_inputs() {
        // 64 * 64 * 4 = 16384 bytes.
        let text = "g (float[64,64] x) => (float[64,64] y)
           <float[64,64] a, float[64,64] b, float[64,64] c>
           {
              a = Exp(x)
              b = Neg(x)
              c = Abs(x)
              [all] y = Sum(c, a, b, x)
           }";
        insta::assert_snapshot!(changes("running-sum", text), @r#"
          c = Abs(x)
        - y = Sum(c, a, b, x)
        + "y/sum_1" = Add(c, a)
        + "y/sum_2" = Add("y/sum_1", b)
        + y = Add("y/sum_2", x)
        "#);
    }

    #[test]
    fn the_gradient_of_an_activation_goes_over_images_one_after_another() {
        let text =
            "g (float[2,1,2,2] x, float[3,1,1,1] w, float[2,3,2,2] dy) => (float[2,3,2,2] dx)
           <float[2,3,2,2] y, float[2,3,2,2] a>
           {
              y = Conv (x, w)
              a = Relu(y)
              [node] dx = com.microsoft.ReluGrad(dy, a)
           }";
        insta::assert_snapshot!(changes("relu-gradient-by-images", text), @r#"
          a = Relu(y)
        - dx = ReluGrad(dy, a)
        + "dx/from_0" = Constant()
        + "dx/to_0" = Constant()
        + "dx/from_1" = Constant()
        + "dx/to_1" = Constant()
        + "dx/axes" = Constant()
        + "dx/begins" = Constant()
        + "dx/most" = Constant()
        + "dx/zero" = Constant()
        + "dx/one" = Constant()
        + "dx/shape" = Shape(dy)
        + "dx/size" = Slice("dx/shape", "dx/zero", "dx/one", "dx/zero")
        + "dx/left" = Sub("dx/size", "dx/begins")
        + "dx/left_at_least" = Max("dx/left", "dx/zero")
        + "dx/sizes" = Min("dx/left_at_least", "dx/most")
        + "dx/dy_0", "dx/dy_1" = Split(dy, "dx/sizes")
        + "dx/x_0" = Slice(x, "dx/from_0", "dx/to_0", "dx/axes")
        + "dx/y_0" = Conv("dx/x_0", w)
        + "dx/dx_0" = ReluGrad("dx/dy_0", "dx/y_0")
        + "dx/x_1" = Slice(x, "dx/from_1", "dx/to_1", "dx/axes")
        + "dx/y_1" = Conv("dx/x_1", w)
        + "dx/dx_1" = ReluGrad("dx/dy_1", "dx/y_1")
        + dx = Concat("dx/dx_0", "dx/dx_1")
        "#);
    }

    #[test]
    fn what_a_constant_of_a_variant_says_is_known_as_from_a_file() {
        let text =
            "g (float[2,1,2,2] x, float[3,1,1,1] w, float[2,3,2,2] dy) => (float[2,3,2,2] dx)
           <float[2,3,2,2] y, float[2,3,2,2] a>
           { y = Conv (x, w) a = Relu(y) dx = com.microsoft.ReluGrad(dy, a) }";
        let mut graph = Graph::parse(&format!("{HEAD} {text}")).unwrap();
        let last = *graph.order().last().unwrap();
        let mut variants = VARIANTS.iter();
        let variant = variants.find(|v| v.name == "relu-gradient-by-images");
        let choices = &[(last, variant.unwrap())];
        assert_eq!(ApplyVariants { choices }.replace(&mut graph).len(), 1);
        let constants = |graph: &Graph| -> Vec<_> {
            let nodes = graph.nodes();
            let written = nodes.filter(|node| node.is("", "Constant"));
            let written = written.flat_map(crate::graph::Node::writes);
            written
                .map(|id| graph.tensor(id).constant.clone())
                .collect()
        };
        let planned = constants(&graph);
        assert!(planned.len() > 4 && planned.iter().all(Option::is_some));
        let mut read = graph.clone();
        InferShapes::default().run(&mut read).unwrap();
        assert_eq!(planned, constants(&read));
    }

    #[test]
    fn small_and_broadcast_sums_stay() {
        let text = "g (float[64,64] x, float[63,64] u, float[1,64] v) => ()
           <float[64,64] y, float[63,64] z>
           {
              y = Sum(x, x, v)
              z = Sum(u, u, u)
           }";
        assert_eq!(changes("running-sum", text), "");
    }

    const GRADIENT: &str = "g (float[1,4,9,8] x, float[6,2,3,3] w, float[1,6,4,4] dy) => ()
           <float[1,4,9,8] dx, float[6,2,3,3] dw, float[6] db>
           {
              [grad] dx, dw, db = com.microsoft.ConvGrad <group = 2, strides = [2, 2], pads = [0, 1, 0, 1]> (dy, x, w)
           }";

    #[test]
    fn a_convolution_s_gradient_is_split() {
        insta::assert_snapshot!(changes("split-gradient", GRADIENT), @r#"
        - dx, dw, db = ConvGrad(dy, x, w)
        + dx = ConvGrad(dy, x, w)
        + "", dw, db = ConvGrad(dy, x, w)
        "#);
    }

    #[test]
    fn a_transposed_convolution_pads_what_the_windows_left_over() {
        // Rows: (4 - 1) * 2 + 3 = 9 of 9 + 0. Columns: 9 of 8 + 2, so one is left.
        insta::assert_snapshot!(changes("transposed-convolution", GRADIENT), @r#"
        - dx, dw, db = ConvGrad(dy, x, w)
        + dx = ConvTranspose(dy, w)
        + "", dw, db = ConvGrad(dy, x, w)
        "#);
    }

    const POINTWISE: &str = "g (float[N,4,9,8] x, float[6,4,1,1] w, float[N,6,9,8] dy) => ()
           <float[N,4,9,8] dx, float[6,4,1,1] dw>
           {
              [grad] dx, dw = com.microsoft.ConvGrad <kernel_shape = [1, 1]> (dy, x, w)
           }";

    #[test]
    fn the_gradients_of_a_pointwise_convolution_of_one_image_are_products() {
        insta::assert_snapshot!(changes("pointwise-product", &POINTWISE.replace('N', "1")), @r#"
        - dx, dw = ConvGrad(dy, x, w)
        + "dx/zero" = Constant()
        + "dx/dy_shape" = Constant()
        + "dx/dy_matrix" = Reshape(dy, "dx/dy_shape")
        + "dx/w_shape" = Constant()
        + "dx/w_matrix" = Reshape(w, "dx/w_shape")
        + "dx/dx_product" = Gemm("dx/w_matrix", "dx/dy_matrix", "dx/zero")
        + "dx/dx_shape" = Constant()
        + dx = Reshape("dx/dx_product", "dx/dx_shape")
        + "dx/x_shape" = Constant()
        + "dx/x_matrix" = Reshape(x, "dx/x_shape")
        + "dx/dw_product" = Gemm("dx/dy_matrix", "dx/x_matrix", "dx/zero")
        + "dx/dw_shape" = Constant()
        + dw = Reshape("dx/dw_product", "dx/dw_shape")
        "#);
        assert_eq!(
            changes("pointwise-product", &POINTWISE.replace('N', "2")),
            ""
        );
    }

    #[test]
    fn other_convolutions_are_no_products() {
        // Two groups, every other window, one more row.
        let others = [
            ("group = 2", "[6,2,1,1]", "[1,6,9,8]"),
            ("strides = [2, 2]", "[6,4,1,1]", "[1,6,5,4]"),
            ("pads = [0, 0, 1, 0]", "[6,4,1,1]", "[1,6,10,8]"),
        ];
        for (attribute, w, dy) in others {
            let text = POINTWISE.replace("kernel_shape = [1, 1]", attribute);
            let text = text.replace("[6,4,1,1]", w).replace("[N,6,9,8]", dy);
            assert_eq!(changes("pointwise-product", &text.replace('N', "1")), "");
        }
    }

    const RELU: &str = "g (float[64] x, float[64] dy) => (float[64] y) <float[64] dx>
           {
              y = Relu(x)
              [grad] dx = com.microsoft.ReluGrad(dy, y)
           }";

    #[test]
    fn the_gradient_of_relu_reads_its_input_or_its_output() {
        insta::assert_snapshot!(changes("relu-from-input", RELU), @r"
          y = Relu(x)
        - dx = ReluGrad(dy, y)
        + dx = ReluGrad(dy, x)
        ");
        insta::assert_snapshot!(changes("relu-from-output", &RELU.replace("(dy, y)", "(dy, x)")), @r"
          y = Relu(x)
        - dx = ReluGrad(dy, x)
        + dx = ReluGrad(dy, y)
        ");
    }

    #[test]
    fn the_gradient_of_relu_reads_a_mask() {
        insta::assert_snapshot!(changes("relu-bool-mask", RELU), @r#"
          y = Relu(x)
        - dx = ReluGrad(dy, y)
        + "dx/zero" = Constant()
        + "dx/mask" = Greater(y, "dx/zero")
        + "dx/mask_float" = Cast("dx/mask")
        + dx = ReluGrad(dy, "dx/mask_float")
        "#);
    }

    #[test]
    fn the_gradient_of_leaky_relu_keeps_its_alpha() {
        let leaky = RELU.replace("Relu(x)", "LeakyRelu <alpha = 0.5> (x)");
        let leaky = leaky.replace("ReluGrad(", "LeakyReluGrad <alpha = 0.5> (");
        assert_ne!(changes("relu-from-input", &leaky), "");
        assert_ne!(changes("relu-bool-mask", &leaky), "");
        // Below zero where its input is above it.
        let falling = leaky.replace("0.5", "-0.5");
        assert_eq!(changes("relu-from-input", &falling), "");
        assert_ne!(changes("relu-bool-mask", &falling), "");
    }

    #[test]
    fn a_pooling_mask_is_kept_in_half_the_memory() {
        let text = "g (float[1,1,64,64] x, float[1,1,32,32] dy) => ()
           <float[1,1,32,32] y, int64[1,1,32,32] mask, float[1,1,64,64] dx>
           {
              [pool] y, mask = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
              dx = MaxPoolGrad <kernel_shape = [2, 2], strides = [2, 2]> (dy, mask)
           }";
        insta::assert_snapshot!(changes("narrow-pooling-mask", text), @r#"
        - y, mask = MaxPool(x)
        + y, "y/mask_int64" = MaxPool(x)
        + "y/mask_int32" = Cast("y/mask_int64")
        + mask = Cast("y/mask_int32")
          dx = MaxPoolGrad(dy, mask)
        "#);
    }
}
