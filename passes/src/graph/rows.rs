//! Products of rows, as a runtime multiplies them: as matrices, between Reshapes.

use std::collections::BTreeMap;

use super::{Graph, Node, NodeId, Tensor, TensorId, TensorKind};

/// A graph with Reshapes around products of rows. Its nodes and tensors keep their ids.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MultipliedRows {
    /// The graph. The products take in what was added to their results, and Reshapes stand in place of the additions.
    pub(crate) graph: Graph,
    /// By product: what it read first, and the new node that reads it now.
    pub(crate) before: BTreeMap<NodeId, (TensorId, NodeId)>,
}

impl Graph {
    /// The graph as a runtime has it that makes a Gemm of each of these products and the addition that alone reads its result, with a Reshape before it
    /// and one behind it. `products`: by product, that addition and the vector that it adds. `None` if there are none. O(nodes).
    pub(crate) fn multiplying_rows(
        &self,
        products: &BTreeMap<NodeId, (NodeId, TensorId)>,
    ) -> Option<MultipliedRows> {
        let reshape = |read, written| Node::new("", "", "Reshape", vec![read], vec![written]);
        let mut graph = self.clone();
        let mut order = Vec::with_capacity(self.order.len() + products.len());
        let mut before = BTreeMap::new();
        for &id in &self.order {
            let product = self.node(id);
            let first = product.input(0);
            if let (Some(&(addition, vector)), Some(read)) = (products.get(&id), first) {
                let name = self.free_tensor_name(&format!("{}/rows/{}", product.name, id.0));
                let rows = graph.add_tensor(Tensor {
                    element: self.tensor(read).element,
                    ..Tensor::new(name, TensorKind::Value)
                });
                let reshaped = graph.add_node(reshape(first, Some(rows)));
                before.insert(id, (read, reshaped));
                order.push(reshaped);
                let node = graph.node_mut(id);
                node.inputs[0] = Some(rows);
                node.inputs.push(Some(vector));
                let sum = self.node(addition).output(0);
                *graph.node_mut(addition) = reshape(product.output(0), sum);
            }
            order.push(id);
        }
        graph.order = order;
        (!before.is_empty()).then_some(MultipliedRows { graph, before })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::text::diff;

    #[test]
    fn a_product_of_rows_stands_between_reshapes() {
        let text = "g (float[2,3,4] x, float[4,5] w, float[5] v) => (float[2,3,5] y)
            <float[2,3,5] a, float[2,3,5] s> { a = MatMul(x, w) s = Add(v, a) y = Exp(s) }";
        let graph = Graph::parse(text).unwrap();
        let &[product, addition, _] = graph.order() else {
            unreachable!()
        };
        let [x, v] = ["x", "v"].map(|name| graph.tensor_named(name).unwrap());
        let rows = graph.multiplying_rows(&BTreeMap::from([(product, (addition, v))]));
        let rows = rows.unwrap();
        let reshaped = NodeId(3);
        assert_eq!(rows.before, BTreeMap::from([(product, (x, reshaped))]));
        let changed = diff(&graph.to_listing(), &rows.graph.to_listing());
        insta::assert_snapshot!(changed, @r#"
        - a = MatMul(x, w)
        - s = Add(v, a)
        + "/rows/0" = Reshape(x)
        + a = MatMul("/rows/0", w, v)
        + s = Reshape(a)
          y = Exp(s)
        "#);
        assert_eq!(graph.multiplying_rows(&BTreeMap::new()), None);
    }
}
