//! What newer builds for inference know of numbers that are computed from shapes, though they fold nothing: at ORT_DISABLE_ALL as well.
//!
//! Source: the standard's data propagation and the runtime's own for single numbers; measured in 1.26.0 and 1.32.0 with
//! `tools/measure_known_shapes.py`. 1.20.1 has none of it. It is no constant folding: nothing is computed before the first step, and
//! constants of the file take part in nothing but as an index.

use super::folding::Folding;
use crate::graph::{Dimension, Graph, Node, TensorId, all_numbers};
use crate::operators::shape_bounds;

/// Whose numbers such a build knows.
#[derive(Debug, Default)]
pub(super) struct Propagation {
    /// By tensor.
    known: Vec<bool>,
}

impl Propagation {
    /// Does it know the tensor's numbers?
    pub(super) fn knows(&self, tensor: TensorId) -> bool {
        self.known.get(tensor.index()) == Some(&true)
    }

    /// Looks at a node of a graph of concrete shapes, once what it reads has been looked at.
    pub(super) fn look_at(
        &mut self,
        graph: &Graph,
        node: &Node,
        shapes: &[Option<Vec<Dimension>>],
        constants: &Folding,
    ) {
        let Some(written) = node.output(0) else {
            return;
        };
        let is_known = self.follows(graph, node, shapes, constants);
        if is_known && self.known.len() < graph.tensor_count() {
            self.known.resize(graph.tensor_count(), false);
        }
        if let Some(known) = self.known.get_mut(written.index()) {
            *known = is_known;
        }
    }

    fn follows(
        &self,
        graph: &Graph,
        node: &Node,
        shapes: &[Option<Vec<Dimension>>],
        constants: &Folding,
    ) -> bool {
        if !node.domain.is_empty() {
            return false;
        }
        let sizes = |tensor: TensorId| graph.tensor(tensor).shape.as_deref();
        let is_single = |tensor: TensorId| matches!(sizes(tensor), Some([] | [1]));
        let is_list = |tensor: TensorId| matches!(sizes(tensor), Some([_]));
        let all_known = || node.reads().all(|read| self.knows(read));
        let first = || node.input(0).filter(|&read| self.knows(read));
        match node.op_type.as_str() {
            // Names among what it takes are not passed on.
            "Shape" => node
                .input(0)
                .and_then(|read| shapes[read.index()].as_deref())
                .is_some_and(|shape| all_numbers(&shape[shape_bounds(node, shape.len())])),
            "Cast" => first().is_some_and(is_list),
            "Gather" => {
                let index = node.input(1).filter(|&index| constants.is_constant(index));
                first().is_some_and(is_list) && index.is_some_and(is_single)
            }
            "Unsqueeze" => first().is_some_and(|read| sizes(read) == Some(&[])),
            "Squeeze" => first().is_some_and(|read| sizes(read) == Some(&[1])),
            "Concat" => all_known(),
            "Add" | "Mul" | "Sub" => {
                all_known() && (node.reads().all(is_single) || node.reads().all(is_list))
            }
            "Div" => all_known() && node.reads().all(is_single),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::{Dimension, Graph};
    use crate::pass::Pass;
    use crate::rewrite::infer_shapes::InferShapes;
    use crate::runtime::known_shapes::infer_as;
    use crate::runtime::{STOCK, TRAINING};

    /// What is declared of the Expand to what these nodes make of shapes.
    fn declared(nodes: &str) -> Option<Vec<u64>> {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 17]> g (float[8,5,4] b, float[n,5,4] c, float[1] v) => (float[] loss)
            <int64 zero = {{0}}, int64 one = {{1}}, int64[1] at_zero = {{0}}, int64[1] at_one = {{1}}, int64[2] both = {{0, 1}}> {{
                of_b = Shape (b) of_c = Shape (c)
                single = Gather <axis = 0> (of_b, zero) list = Gather <axis = 0> (of_b, at_one)
                {nodes}
                wide = Expand (v, to) loss = ReduceSum <keepdims = 0> (wide)
            }}"#
        );
        let of = |release| {
            let mut graph = Graph::parse(&text).unwrap();
            let bindings = [("n".to_owned(), 3)].into();
            InferShapes { bindings }.run(&mut graph).unwrap();
            infer_as(&mut graph, release);
            let wide = graph.tensor_named("wide").unwrap();
            graph.tensor(wide).declared.clone()
        };
        assert_eq!(of(&TRAINING), None);
        let number = |dimension: Dimension| match dimension {
            Dimension::Known(size) => size,
            other => panic!("{nodes}: {other:?}"),
        };
        Some(of(&STOCK)?.into_iter().map(number).collect())
    }

    // As `tools/measure_known_shapes.py` says of 1.32.0; of 1.20.1 it says that none is known.
    #[test]
    fn newer_builds_pass_on_numbers_of_shapes_through_few_operators() {
        for (nodes, sizes) in [
            ("to = Shape (b)", vec![8, 5, 4]),
            ("to = Shape <start = 1> (c)", vec![5, 4]),
            ("to = Shape <start = -2, end = 100> (c)", vec![5, 4]),
            ("to = Cast <to = 7> (of_b)", vec![8, 5, 4]),
            ("to = Gather <axis = 0> (of_b, at_one)", vec![5]),
            ("to = Unsqueeze (single, at_zero)", vec![8]),
            (
                "squeezed = Squeeze (list) to = Unsqueeze (squeezed, at_zero)",
                vec![5],
            ),
            (
                "first = Unsqueeze (single, at_zero) to = Concat <axis = 0> (first, list)",
                vec![8, 5],
            ),
            ("to = Mul (of_b, list)", vec![40, 25, 20]),
            ("to = Mul (single, list)", vec![40]),
            ("to = Add (of_b, of_b)", vec![16, 10, 8]),
            (
                "other = Gather <axis = 0> (of_b, one) by = Div (single, other) to = Unsqueeze (by, at_zero)",
                vec![1],
            ),
        ] {
            assert_eq!(declared(nodes), Some(sizes), "{nodes}");
        }
        for nodes in [
            "to = Shape (c)",
            "to = Identity (of_b)",
            "to = Gather <axis = 0> (of_b, both)",
            "first = Gather <axis = 0> (of_c, at_one) to = Cast <to = 7> (first)",
            "to = Concat <axis = 0> (list, at_one)",
            "to = Mul (of_b, at_one)",
            "to = Mul (of_b, single)",
            "to = Div (of_b, of_b)",
            "to = Max (of_b, of_b)",
            "cast = Cast <to = 7> (single) to = Unsqueeze (cast, at_zero)",
            "all = Size (b) to = Unsqueeze (all, at_zero)",
        ] {
            assert_eq!(declared(nodes), None, "{nodes}");
        }
    }
}
