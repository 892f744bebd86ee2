//! Is an input of the graph that an output overwrites read before only?
//!
//! The runtime merges nodes, so that who reads what was computed of the input alone may read the input itself.

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
    let mut fixed = vec![false; graph.tensor_count()];
    for id in graph.tensor_ids() {
        fixed[id.index()] = graph.tensor(id).kind == TensorKind::Initializer;
    }
    // By tensor: the inputs that whoever reads it may read itself, once the runtime has merged the two.
    let mut of: BTreeMap<TensorId, BTreeSet<TensorId>> =
        taken.iter().map(|&input| (input, [input].into())).collect();
    for (id, node) in graph.listed() {
        let root = |tensor: TensorId| of.get(&tensor).or_else(|| of.get(&roots[tensor.index()]));
        let read: Vec<TensorId> = node.reads().collect();
        let inputs: BTreeSet<TensorId> = read
            .iter()
            .filter_map(|&t| root(t))
            .flatten()
            .copied()
            .collect();
        for input in &inputs {
            if let Some(readers) = readers.get_mut(input).filter(|_| !trust::reads_sizes(node)) {
                readers.push(id);
            }
        }
        let is_fixed = read.iter().all(|tensor| fixed[tensor.index()]);
        let alone = read
            .iter()
            .all(|&tensor| fixed[tensor.index()] || root(tensor).is_some());
        for output in node.writes() {
            fixed[output.index()] = is_fixed;
            if !inputs.is_empty() && !trust::reads_sizes(node) && (alone || trust::is_unknown(node))
            {
                of.insert(output, inputs.clone());
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
        if let Some(merged) = merged(graph, &uses, writer, &open) {
            let node = label(graph, merged);
            return Err(broken(
                output,
                input,
                format!("which {node} may read when it is merged with the node that writes"),
            ));
        }
        let mut next = vec![writer];
        while let Some(id) = next.pop().filter(|_| !open.is_empty()) {
            let node = graph.node(id);
            for id in node.reads().filter_map(|tensor| uses.producer(tensor)) {
                // The runtime takes the size of what was cast before it is cast.
                if trust::reads_sizes(node) && graph.node(id).is("", "Cast") {
                    continue;
                }
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

/// A product among the readers whose result nobody but the writer gets, handed on number by number at most, so that the runtime may merge
/// the two into one node that writes while it reads.
fn merged(
    graph: &Graph,
    uses: &Uses,
    writer: NodeId,
    readers: &BTreeSet<NodeId>,
) -> Option<NodeId> {
    let mut next = vec![writer];
    while let Some(id) = next.pop() {
        for tensor in graph.node(id).reads() {
            let alone = uses.readers(tensor) == [id] && !graph.outputs.contains(&tensor);
            let Some(producer) = uses.producer(tensor).filter(|_| alone) else {
                continue;
            };
            match trust::writes_where_it_reads(graph.node(producer)) {
                true => next.push(producer),
                false if readers.contains(&producer) && trust::is_product(graph.node(producer)) => {
                    return Some(producer);
                }
                false => (),
            }
        }
    }
    None
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
    fn who_is_merged_with_another_reader_or_with_the_writer_is_seen() {
        let new = ("new", "w");
        let nodes =
            "[turn] t = Transpose(w) [use] y = Mul(x, t) [step] d = Exp(y) [out] new = Sub(w, d)";
        assert_eq!(check("float[4] new", nodes, &[new]), "right");
        let late = format!("{nodes} [late] z = Mul(x, t)");
        insta::assert_snapshot!(check("float[4] new, float[4] z", &late, &[new]), @r#"output "new" is to overwrite "w", which Mul "late" may read afterwards"#);
        let cast = "[half] h = Cast <to = 10> (w) [size] s = Size(h) [wait] u = Reshape(x, s) [out] new = Sub(w, u)";
        insta::assert_snapshot!(check("float[4] new, float16[4] h", cast, &[new]), @r#"output "new" is to overwrite "w", which Cast "half" may read afterwards"#);
        let unknown =
            "[view] t = com.microsoft.ExpandDims(w, x) [use] y = Exp(t) [out] new = Sub(w, x)";
        insta::assert_snapshot!(check("float[4] new, float[4] y", unknown, &[new]), @r#"output "new" is to overwrite "w", which ExpandDims "view" may read afterwards"#);
        let product = "[use] y = MatMul(x, w) [sum] z = Add(y, x) [out] new = Sub(z, x)";
        insta::assert_snapshot!(check("float[4] new", product, &[new]), @r#"output "new" is to overwrite "w", which MatMul "use" may read when it is merged with the node that writes"#);
    }

    #[test]
    fn memory_is_overwritten_once_by_what_fits() {
        let nodes = "[a] a = Exp(w) [b] b = Exp(v) [c] c = Cast <to = 7> (w)";
        let outputs = "float[4] a, float[4] b, int64[4] c";
        insta::assert_snapshot!(check(outputs, nodes, &[("a", "w"), ("b", "w")]), @r#"output "b" is to overwrite "w", which another output overwrites"#);
        insta::assert_snapshot!(check(outputs, nodes, &[("c", "w")]), @r#"output "c" is to overwrite "w", which is of another type or shape"#);
    }
}
