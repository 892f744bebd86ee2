//! Is this a graph that can be run at all?

use super::Violation;
use super::violation::label;
use crate::graph::{self, Graph, NodeId, TensorKind, Uses};

/// Checks that every tensor is written once and by one node, or belongs to the caller; that
/// whatever is read or put out is there; that there is no cycle; and that the nodes are listed in
/// a topological order.
pub fn structure(graph: &Graph) -> Result<(), Violation> {
    let writers = writers(graph)?;
    acyclic(graph)?;
    let mut place = vec![0; graph.node_count()];
    for (position, id) in graph.order().iter().enumerate() {
        place[id.index()] = position;
    }
    for &id in graph.order() {
        for tensor in graph.node(id).reads() {
            if let Some(writer) = writers[tensor.index()]
                && place[writer.index()] > place[id.index()]
            {
                return Err(Violation::ReadTooEarly {
                    node: label(graph, id),
                    tensor: graph.tensor(tensor).name.clone(),
                    writer: label(graph, writer),
                });
            }
        }
    }
    Ok(())
}

/// The nodes in a topological order, for a graph whose file order may be another; with all the
/// checks of [`structure`] but that of the order.
pub(super) fn topological(graph: &Graph) -> Result<Vec<NodeId>, Violation> {
    writers(graph)?;
    acyclic(graph)
}

/// The nodes in a topological order, if there is one.
fn acyclic(graph: &Graph) -> Result<Vec<NodeId>, Violation> {
    let uses = Uses::of(graph);
    graph::topological(graph, &uses).map_err(|cycle| Violation::Cycle {
        circle: cycle.show(graph, &uses, |id| label(graph, id)),
    })
}

/// The writer of every tensor; `None` for what the caller owns.
fn writers(graph: &Graph) -> Result<Vec<Option<NodeId>>, Violation> {
    let mut writers: Vec<Option<NodeId>> = vec![None; graph.tensor_count()];
    for &id in graph.order() {
        for tensor in graph.node(id).writes() {
            let name = || graph.tensor(tensor).name.clone();
            if graph.tensor(tensor).kind != TensorKind::Value {
                return Err(Violation::WritesOwned {
                    node: label(graph, id),
                    tensor: name(),
                });
            }
            if let Some(first) = writers[tensor.index()].replace(id) {
                return Err(Violation::WrittenTwice {
                    tensor: name(),
                    first: label(graph, first),
                    second: label(graph, id),
                });
            }
        }
    }
    for &input in &graph.inputs {
        if graph.tensor(input).kind == TensorKind::Value {
            return Err(Violation::InputIsComputed {
                tensor: graph.tensor(input).name.clone(),
            });
        }
    }
    let missing = |tensor: crate::graph::TensorId| {
        graph.tensor(tensor).kind == TensorKind::Value && writers[tensor.index()].is_none()
    };
    for &id in graph.order() {
        if let Some(tensor) = graph.node(id).reads().find(|&tensor| missing(tensor)) {
            let tensor = graph.tensor(tensor).name.clone();
            return Err(Violation::NeverWritten {
                reader: label(graph, id),
                tensor,
            });
        }
    }
    match graph.outputs.iter().find(|&&tensor| missing(tensor)) {
        None => Ok(writers),
        Some(&tensor) => Err(Violation::NeverWritten {
            reader: "the caller".to_owned(),
            tensor: graph.tensor(tensor).name.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random_training_graph;

    fn check(nodes: &str) -> String {
        let text = format!("g (float x, float w = {{1}}) => (float y) {{ {nodes} }}");
        match structure(&Graph::parse(&text).unwrap()) {
            Ok(()) => "fine".to_owned(),
            Err(violation) => violation.to_string(),
        }
    }

    #[test]
    fn says_what_is_wrong() {
        insta::assert_snapshot!(check("[a] t = Exp(x) [b] y = Add(t, w)"), @"fine");
        insta::assert_snapshot!(check("[a] y = Exp(x) [b] y = Neg(x)"), @r#"tensor "y" is written by both Exp "a" and Neg "b""#);
        insta::assert_snapshot!(check("[a] y = Exp(x) [b] x = Neg(w)"), @r#"Neg "b" writes "x", which belongs to the caller"#);
        insta::assert_snapshot!(check("[a] y = Exp(x) [b] w = Neg(x)"), @r#"Neg "b" writes "w", which belongs to the caller"#);
        insta::assert_snapshot!(check("[a] y = Add(x, t)"), @r#"Add "a" reads "t", which nobody writes"#);
        insta::assert_snapshot!(check("[a] y = If <b = ...> (x; t)"), @r#"If "a" reads "t", which nobody writes"#);
        insta::assert_snapshot!(check("[a] t = Exp(x)"), @r#"the caller reads "y", which nobody writes"#);
        insta::assert_snapshot!(check("y = Neg(t) [a] t = Exp(x)"), @r#"the Neg that writes "y" reads "t" but is listed before Exp "a", which writes it"#);
        insta::assert_snapshot!(check("[a] y = Neg(x) [b] t = Exp(u) [c] u = Exp(v) [d] v = Neg(t)"), @r#"3 nodes need each other's results, in a circle: Exp "c", Exp "b", Neg "d""#);
        insta::assert_snapshot!(check("[a] y = Add(x, y)"), @r#"Add "a" needs its own result, "y""#);
    }

    #[test]
    fn random_training_graphs_are_sound() {
        for seed in 0..200 {
            assert_eq!(
                structure(&random_training_graph(seed, 3 + seed as usize)),
                Ok(())
            );
        }
    }
}
