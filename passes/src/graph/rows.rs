//! Products of rows, as a runtime multiplies them: as matrices, between Reshapes.

use std::collections::{BTreeMap, BTreeSet};

use super::{Graph, Node, NodeId, Tensor, TensorId, TensorKind};

/// A graph with Reshapes around products of rows. Its nodes and tensors keep their ids; those that are new come last.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MultipliedRows {
    /// The graph.
    pub(crate) graph: Graph,
    /// By product: what it read first, and the Reshape that reads it now.
    pub(crate) before: BTreeMap<NodeId, (TensorId, NodeId)>,
    /// By addition behind a product: the Reshape that writes its result.
    pub(crate) behind: BTreeMap<NodeId, NodeId>,
}

impl Graph {
    /// The graph with a Reshape of what each of these products reads first, and one of what the addition writes that alone reads its result. A runtime
    /// makes one node of what is between. `products`: by product, that addition. `None` if there are none. O(nodes).
    pub(crate) fn multiplying_rows(
        &self,
        products: &BTreeMap<NodeId, NodeId>,
    ) -> Option<MultipliedRows> {
        let additions: BTreeSet<NodeId> = products.values().copied().collect();
        let mut rows = MultipliedRows {
            graph: self.clone(),
            before: BTreeMap::new(),
            behind: BTreeMap::new(),
        };
        let mut order = Vec::with_capacity(self.order.len() + 2 * products.len());
        for &id in &self.order {
            let ends = (self.node(id).input(0), self.node(id).output(0));
            if let (true, Some(read)) = (products.contains_key(&id), ends.0) {
                let matrix = rows.matrix(read);
                let reshape = rows.reshape(read, matrix);
                rows.graph.node_mut(id).inputs[0] = Some(matrix);
                rows.before.insert(id, (read, reshape));
                order.push(reshape);
            }
            order.push(id);
            if let (true, Some(written)) = (additions.contains(&id), ends.1) {
                let matrix = rows.matrix(written);
                let reshape = rows.reshape(matrix, written);
                rows.graph.node_mut(id).outputs[0] = Some(matrix);
                rows.behind.insert(id, reshape);
                order.push(reshape);
            }
        }
        rows.graph.order = order;
        (!rows.before.is_empty()).then_some(rows)
    }
}

impl MultipliedRows {
    fn matrix(&mut self, of: TensorId) -> TensorId {
        let like = self.graph.tensor(of);
        let wish = format!("{}/rows", like.name);
        let tensor = Tensor {
            element: like.element,
            ..Tensor::new(self.graph.free_tensor_name(&wish), TensorKind::Value)
        };
        self.graph.add_tensor(tensor)
    }

    fn reshape(&mut self, read: TensorId, written: TensorId) -> NodeId {
        let node = Node::new("", "", "Reshape", vec![Some(read)], vec![Some(written)]);
        self.graph.add_node(node)
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
        let rows = graph.multiplying_rows(&BTreeMap::from([(product, addition)]));
        let rows = rows.unwrap();
        let x = graph.tensor_named("x").unwrap();
        assert_eq!(rows.before, BTreeMap::from([(product, (x, NodeId(3)))]));
        assert_eq!(rows.behind, BTreeMap::from([(addition, NodeId(4))]));
        let changed = diff(&graph.to_listing(), &rows.graph.to_listing());
        insta::assert_snapshot!(changed, @r#"
        - a = MatMul(x, w)
        - s = Add(v, a)
        + "x/rows" = Reshape(x)
        + a = MatMul("x/rows", w)
        + "s/rows" = Add(v, a)
        + s = Reshape("s/rows")
          y = Exp(s)
        "#);
        assert_eq!(graph.multiplying_rows(&BTreeMap::new()), None);
    }
}
