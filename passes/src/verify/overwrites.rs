//! Is an input of the graph that an output overwrites read before only?

use std::collections::{BTreeMap, BTreeSet};

use super::values::roots;
use super::violation::label;
use super::{Violation, trust};
use crate::graph::{Graph, NodeId, TensorId, TensorKind, Uses};

/// Checks that each output that the caller has written to the memory of an input is of its type and shape, that no two share
/// one, and that all nodes that read that memory come before by what they compute, whatever the execution order is. The shapes
/// of all tensors must be known.
pub fn overwrites(graph: &Graph) -> Result<(), Violation> {
    let uses = Uses::of(graph);
    let roots = roots(graph, graph.order());
    let name = |id: TensorId| graph.tensor(id).name.clone();
    let broken = |output: TensorId, input: TensorId, why: String| Violation::Overwrites {
        output: name(output),
        input: name(input),
        why,
    };
    let mut readers: BTreeMap<TensorId, Vec<NodeId>> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for (output, input) in graph.overwritten() {
        let (old, new) = (graph.tensor(input), graph.tensor(output));
        if old.kind != TensorKind::Input {
            return Err(broken(
                output,
                input,
                "which is no input of the graph".to_owned(),
            ));
        }
        if !taken.insert(input) {
            return Err(broken(
                output,
                input,
                "which another output overwrites".to_owned(),
            ));
        }
        if (old.element, &old.shape) != (new.element, &new.shape) {
            return Err(broken(
                output,
                input,
                "which is of another type or shape".to_owned(),
            ));
        }
        readers.insert(input, Vec::new());
    }
    if taken.is_empty() {
        return Ok(());
    }
    for &id in graph.order() {
        let node = graph.node(id);
        for tensor in node.reads() {
            if let Some(readers) = readers.get_mut(&roots[tensor.index()]) {
                readers.push(id);
            }
        }
    }
    let mut seen_for: Vec<Option<TensorId>> = vec![None; graph.node_count()];
    for (output, input) in graph.overwritten() {
        let Some(writer) = uses.producer(output) else {
            return Err(broken(
                output,
                input,
                "and which no node computes".to_owned(),
            ));
        };
        let mut open: BTreeSet<NodeId> = readers[&input].iter().copied().collect();
        if open.remove(&writer) && !trust::writes_where_it_reads(graph.node(writer)) {
            let node = label(graph, writer);
            return Err(broken(
                output,
                input,
                format!("which {node} still reads when it writes"),
            ));
        }
        let mut next = vec![writer];
        while let Some(id) = next.pop().filter(|_| !open.is_empty()) {
            let before = graph
                .node(id)
                .reads()
                .filter_map(|tensor| uses.producer(tensor));
            for id in before {
                open.remove(&id);
                if seen_for[id.index()].replace(output) != Some(output) {
                    next.push(id);
                }
            }
        }
        if let Some(&late) = open.first() {
            let node = label(graph, late);
            return Err(broken(
                output,
                input,
                format!("which {node} may read afterwards"),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(outputs: &str, nodes: &str, pairs: &[(&str, &str)]) -> String {
        let text = format!("g (float[4] x, float[4] w, float[4] v) => ({outputs}) {{ {nodes} }}");
        let mut graph = Graph::parse(&text).unwrap();
        for &(output, input) in pairs {
            let [output, input] = [output, input].map(|name| graph.tensor_named(name).unwrap());
            graph.tensor_mut(output).overwrites = Some(input);
        }
        for id in graph.tensor_ids().collect::<Vec<_>>() {
            graph.tensor_mut(id).shape = Some(vec![4]);
        }
        overwrites(&graph).map_or_else(|error| error.to_string(), |()| "right".to_owned())
    }

    #[test]
    fn an_input_may_be_overwritten_once_all_that_read_it_are_done() {
        let nodes = "[use] y = Mul(x, w) [step] d = Exp(y) [out] new = Sub(w, d)";
        let new = ("new", "w");
        assert_eq!(check("float[4] new", nodes, &[new]), "right");
        let late = format!("{nodes} [late] z = Mul(x, w)");
        insta::assert_snapshot!(check("float[4] new, float[4] z", &late, &[new]), @r#"output "new" is to overwrite "w", which Mul "late" may read afterwards"#);
        let view = format!("{nodes} [view] t = Identity(w) [late] z = Exp(t)");
        insta::assert_snapshot!(check("float[4] new, float[4] z", &view, &[new]), @r#"output "new" is to overwrite "w", which Identity "view" may read afterwards"#);
        let whole = "[out] new = MatMul(w, x)";
        insta::assert_snapshot!(check("float[4] new", whole, &[new]), @r#"output "new" is to overwrite "w", which MatMul "out" still reads when it writes"#);
    }

    #[test]
    fn memory_is_overwritten_once_by_what_fits() {
        let nodes = "[a] a = Exp(w) [b] b = Exp(v) [c] c = Cast <to = 7> (w)";
        let outputs = "float[4] a, float[4] b, int64[4] c";
        insta::assert_snapshot!(check(outputs, nodes, &[("a", "w"), ("b", "w")]), @r#"output "b" is to overwrite "w", which another output overwrites"#);
        insta::assert_snapshot!(check(outputs, nodes, &[("c", "w")]), @r#"output "c" is to overwrite "w", which is of another type or shape"#);
    }
}
