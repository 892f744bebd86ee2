//! What a session knows of shapes once it has optimized a graph, from ORT_ENABLE_BASIC on, beyond what it knows of the file.
//!
//! - What is folded (`folding.rs`) is constant then: sizes that follow from the shapes of weights, to which gradients are reshaped.
//! - A Concat that one Reshape alone reads becomes constant if each of its inputs is a constant, the size of what is reshaped at the same
//!   place (0), or, once, any other single number (-1). Source: `ReshapeFusion`; compared with what sessions of 1.19.2 and 1.26.0 saved.
//!   (1.32.0 also finds sizes of other tensors by their names, which is not simulated.)

use super::folding::Folding;
use super::known_shapes::{Targets, runtime_shapes, runtime_shapes_optimized};
use super::merged::equal_nodes;
use crate::graph::{Dimension, Graph, Node, NodeId, TensorId, Uses};
use crate::operators::MICROSOFT;

/// What a session knows of a graph that it has optimized.
pub(crate) struct OptimizedShapes {
    /// The shapes, put together from sizes, that are constants then.
    pub(crate) targets: Targets,
    /// In the form of [`runtime_shapes`].
    pub(crate) shapes: Vec<Option<Vec<Dimension>>>,
}

/// `None` if it knows nothing more than without. `graph` needs concrete shapes, and `shapes` are what is known without.
pub(crate) fn optimized_shapes(
    graph: &Graph,
    shapes: &[Option<Vec<Dimension>>],
) -> Option<OptimizedShapes> {
    /// The runtime looks again as long as something changes.
    const PASSES: usize = 10;
    let mut folding = Folding::of(graph, shapes);
    let has_numbers = |id: TensorId| folding.is_folded(id) && graph.tensor(id).constant.is_some();
    let assembles = |&id: &NodeId| is_concat(graph.node(id));
    if !graph.tensor_ids().any(has_numbers) && !graph.order().iter().any(assembles) {
        return None;
    }
    let (uses, equal) = (Uses::of(graph), equal_nodes(graph));
    let mut found: Option<OptimizedShapes> = None;
    for _ in 0..PASSES {
        let known = found.as_ref().map_or(shapes, |found| &found.shapes);
        let targets = targets(graph, (&uses, &equal), known, &folding);
        // With the same targets the same shapes follow.
        if found.as_ref().is_some_and(|found| found.targets == targets) {
            break;
        }
        let shapes = runtime_shapes_optimized(graph, &targets);
        if found.is_none() && targets.is_empty() && shapes == known {
            break;
        }
        folding = Folding::of(graph, &shapes);
        found = Some(OptimizedShapes { targets, shapes });
    }
    found
}

/// What [`runtime_shapes`] says of a session that has optimized the graph, from ORT_ENABLE_BASIC on. To be compared with the runtime.
pub fn runtime_shapes_once_optimized(graph: &Graph) -> Vec<Option<Vec<Dimension>>> {
    once_optimized(graph, runtime_shapes(graph))
}

/// The same, where what is known without is known already.
pub(crate) fn once_optimized(
    graph: &Graph,
    plain: Vec<Option<Vec<Dimension>>>,
) -> Vec<Option<Vec<Dimension>>> {
    optimized_shapes(graph, &plain).map_or(plain, |optimized| optimized.shapes)
}

fn targets(
    graph: &Graph,
    (uses, equal): (&Uses, &[u32]),
    shapes: &[Option<Vec<Dimension>>],
    folding: &Folding,
) -> Targets {
    let order = graph.order().iter().zip(equal);
    // Of equal nodes one is left, with the readers of all.
    let alone = order.filter(|&(_, &equal)| equal == 0);
    alone
        .filter_map(|(&id, _)| target(graph, uses, id, (shapes, folding)))
        .collect()
}

/// The shape that this node puts together, if it becomes constant.
fn target(
    graph: &Graph,
    uses: &Uses,
    id: NodeId,
    (shapes, folding): (&[Option<Vec<Dimension>>], &Folding),
) -> Option<(TensorId, Vec<i64>)> {
    let node = graph.node(id);
    let target = node.output(0).filter(|_| is_concat(node))?;
    let &[reader] = uses.readers(target) else {
        return None;
    };
    let reshape = graph.node(reader);
    let copies = reshape.int("allowzero").unwrap_or(0) == 0;
    let is_read = reshape.is("", "Reshape") && reshape.input(1) == Some(target) && copies;
    let reshaped = reshape.input(0).filter(|_| is_read)?;
    if graph.outputs.contains(&target) {
        return None;
    }
    let shape = |id: TensorId| shapes[id.index()].as_deref();
    let mut sizes = Vec::new();
    for &input in &node.inputs {
        let input = input?;
        if folding.is_constant(input) {
            sizes.extend(graph.tensor(input).ints()?);
        } else if is_size(graph, uses, input, (reshaped, sizes.len())) {
            sizes.push(0);
        } else if shape(input) == Some(&[Dimension::Known(1)]) {
            sizes.push(-1);
        } else {
            return None;
        }
    }
    let left_over = sizes.iter().filter(|&&size| size == -1).count();
    (left_over <= 1).then_some((target, sizes))
}

fn is_concat(node: &Node) -> bool {
    node.is("", "Concat") || node.is(MICROSOFT, "ConcatTraining")
}

/// Is `tensor` the size of another at that axis, as a list of one number that a Shape, a Gather and an Unsqueeze make?
fn is_size(graph: &Graph, uses: &Uses, tensor: TensorId, of: (TensorId, usize)) -> bool {
    let made_by = |tensor: TensorId, operator: &str| {
        let node = graph.node(uses.producer(tensor)?);
        node.is("", operator).then_some(node)
    };
    let gather = || {
        let unsqueeze = made_by(tensor, "Unsqueeze")?;
        let gather = made_by(unsqueeze.input(0)?, "Gather")?;
        let shape = made_by(gather.input(0)?, "Shape")?;
        Some((source(graph, uses, shape.input(0)?), gather.input(1)?))
    };
    gather().is_some_and(|(measured, axis)| {
        let is_axis = graph.tensor(axis).ints() == Some(&[of.1 as i64]);
        measured == source(graph, uses, of.0) && is_axis
    })
}

/// What Identity nodes hand on.
fn source(graph: &Graph, uses: &Uses, mut tensor: TensorId) -> TensorId {
    while let Some(node) = uses.producer(tensor).map(|id| graph.node(id))
        && node.is("", "Identity")
        && let Some(read) = node.input(0)
    {
        tensor = read;
    }
    tensor
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::Pass;
    use crate::rewrite::infer_shapes::InferShapes;

    /// The shapes that become constant, and what is known of `y` then.
    fn all(nodes: &str) -> String {
        // What the caller says cannot be worked out.
        let declared = if nodes.contains("(k, ") {
            ", float[1,2,3] y"
        } else {
            ""
        };
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
            g (float[n,m,6] x, float[n,6] z, int64[1] k) => ()
            <int64 i0 = {{0}}, int64 i1 = {{1}}, int64[1] ax = {{0}}, int64[1] two = {{2}}, int64[1] three = {{3}},
             int64[1] rest = {{-1}}, int64[2] both = {{2, 3}}{declared}>
            {{ s = Shape(x) g0 = Gather(s, i0) u0 = Unsqueeze(g0, ax) g1 = Gather(s, i1) u1 = Unsqueeze(g1, ax)
              r = Shape(z) h = Gather(r, i0) v = Unsqueeze(h, ax) {nodes} }}"#
        );
        let mut graph = Graph::parse(&text).unwrap();
        let bindings = [("n", 1), ("m", 1)]
            .map(|(name, size)| (name.to_owned(), size))
            .into();
        InferShapes { bindings }.run(&mut graph).unwrap();
        match optimized_shapes(&graph, &runtime_shapes(&graph)) {
            None => "none".to_owned(),
            Some(OptimizedShapes { targets, shapes }) => {
                let y = graph.tensor_named("y").unwrap();
                let sizes = targets.into_values().next().unwrap();
                format!("{sizes:?} {:?}", shapes[y.index()].as_ref().unwrap())
            }
        }
    }

    // As sessions of 1.19.2 saved them.
    #[test]
    fn a_shape_that_is_put_together_for_one_reshape_becomes_constant() {
        let known = |nodes: &str| all(nodes).split(']').next().unwrap().to_owned() + "]";
        let reshape =
            |list: &str| known(&format!("t = Concat<axis = 0>({list}) y = Reshape(x, t)"));
        assert_eq!(reshape("u0, two, three"), "[0, 2, 3]");
        assert_eq!(reshape("v, two, three"), "[-1, 2, 3]");
        assert_eq!(reshape("k, two, three"), "[-1, 2, 3]");
        assert_eq!(reshape("u1, two, three"), "[-1, 2, 3]");
        assert_eq!(reshape("u0, both"), "[0, 2, 3]");
        assert_eq!(reshape("both, u1"), "[2, 3, -1]");
        assert_eq!(reshape("u0, u1, two, three"), "[0, 0, 2, 3]");
        assert_eq!(reshape("u0, rest, two"), "[0, -1, 2]");
        // Two numbers that it would have to work out.
        assert_eq!(reshape("u1, u0, two, three"), "none]");
        assert_eq!(reshape("v, rest, two"), "none]");
        // Other readers, and another meaning of zero.
        let made = "t, q = com.microsoft.ConcatTraining<axis = 0>(v, two, three)";
        assert_eq!(known(&format!("{made} y = Reshape(x, t)")), "[-1, 2, 3]");
        assert_eq!(
            known(&format!("{made} y = Reshape(x, t) w = Neg(t)")),
            "none]"
        );
        let keeps = format!("{made} y = Reshape<allowzero = 1>(x, t)");
        assert_eq!(known(&keeps), "none]");
    }

    #[test]
    fn what_is_reshaped_to_a_constant_shape_has_its_numbers() {
        let all = all("t = Concat<axis = 0>(v, two, three) y = Reshape(x, t)");
        assert_eq!(all, "[-1, 2, 3] [Unknown, Known(2), Known(3)]");
    }

    // The gradient of a bias. In sessions of 1.19.2, 1.20.1 and 1.32.0 a Shape of `y` is folded as well, from ORT_ENABLE_BASIC on.
    #[test]
    fn what_is_reshaped_to_the_shape_of_a_weight_has_its_numbers_once_that_is_folded() {
        let known = |weight: &str| {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 15]> g (float[n,m] x, float[{weight}] b) => () {{
                    s = Shape(b)
                    y = Reshape(x, s)
                }}"#
            );
            let mut graph = Graph::parse(&text).unwrap();
            let bindings =
                [("n", 2), ("m", 3), ("k", 6)].map(|(name, size)| (name.to_owned(), size));
            let bindings = bindings.into_iter().filter(|(name, _)| text.contains(name));
            InferShapes {
                bindings: bindings.collect(),
            }
            .run(&mut graph)
            .unwrap();
            let y = graph.tensor_named("y").unwrap().index();
            let plain = runtime_shapes(&graph);
            let optimized = optimized_shapes(&graph, &plain);
            (plain[y].clone(), optimized.map(|all| all.shapes[y].clone()))
        };
        let unknown = Some(vec![Dimension::Unknown]);
        let six = Some(vec![Dimension::Known(6)]);
        assert_eq!(known("6"), (unknown.clone(), Some(six)));
        assert_eq!(known("k"), (unknown, None));
    }
}
