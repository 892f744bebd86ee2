//! Which nodes the runtime takes for the same, and computes once.
//!
//! Source: ONNX Runtime's `CommonSubexpressionElimination` and, for what they read, `ConstantSharing` and
//! `EliminateIdentity`, all from ORT_ENABLE_BASIC on.

use std::collections::HashMap;

use super::default_attributes::with_default;
use crate::graph::{
    Attribute, AttributeValue, Constant, Graph, Node, NodeId, TensorId, TensorKind,
};

/// Constants of more elements are not shared.
const SHARED: usize = 8;

/// By position in the file: nodes with the same number compute the same; 0 where no other does. Small ones count like large ones: what
/// reads them can run earlier then, and may be large.
pub(crate) fn equal_nodes(graph: &Graph) -> Vec<u32> {
    let mut value = constants(graph);
    let mut first: HashMap<Key<'_>, Vec<(NodeId, usize)>> = HashMap::new();
    let mut equal = vec![0; graph.order().len()];
    let mut numbers = 0;
    let opset = graph.opset().unwrap_or(i64::MAX);
    for (position, &id) in graph.order().iter().enumerate() {
        let node = graph.node(id);
        if let ("Identity", &[Some(read)], &[Some(written)]) =
            (node.op_type.as_str(), &*node.inputs, &*node.outputs)
            && !graph.outputs.contains(&written)
        {
            value[written.index()] = value[read.index()];
            continue;
        }
        if !is_merged(node) {
            continue;
        }
        let alike = first.entry(key(node, &value)).or_default();
        let mut alike_nodes = alike.iter();
        let attributes = with_default(node, opset);
        let same = alike_nodes.find(|(other, _)| {
            same_attributes(&attributes, &with_default(graph.node(*other), opset))
        });
        let Some(&(other, place)) = same else {
            alike.push((id, position));
            continue;
        };
        if equal[place] == 0 {
            numbers += 1;
            equal[place] = numbers;
        }
        equal[position] = equal[place];
        for (written, other) in node.writes().zip(graph.node(other).writes()) {
            value[written.index()] = other;
        }
    }
    equal
}

/// Operator, values read, and which results are there.
type Key<'g> = (&'g str, &'g str, Vec<Option<TensorId>>, Vec<bool>);

fn key<'g>(node: &'g Node, value: &[TensorId]) -> Key<'g> {
    let read = |input: &Option<TensorId>| input.map(|tensor| value[tensor.index()]);
    (
        &node.domain,
        &node.op_type,
        node.inputs.iter().map(read).collect(),
        node.outputs.iter().map(Option::is_some).collect(),
    )
}

/// Constants of which the runtime reads an earlier one instead.
pub(crate) fn shared_constants(graph: &Graph) -> Vec<(u32, u32)> {
    let all = constants(graph).into_iter().enumerate();
    let others = all.filter(|&(tensor, value)| value.index() != tensor);
    others
        .map(|(tensor, value)| (tensor as u32, value.0))
        .collect()
}

/// By tensor: itself, or an earlier constant with the same contents.
fn constants(graph: &Graph) -> Vec<TensorId> {
    let mut value: Vec<TensorId> = graph.tensor_ids().collect();
    let of_nodes = graph.nodes();
    let of_nodes = of_nodes.filter(|node| node.is("", "Constant"));
    let of_nodes: Vec<TensorId> = of_nodes.flat_map(Node::writes).collect();
    let all = graph.tensor_ids();
    let owned = all.filter(|&id| graph.tensor(id).kind == TensorKind::Initializer);
    let mut first = HashMap::new();
    for id in owned.chain(of_nodes) {
        let tensor = graph.tensor(id);
        let bits = tensor.constant.as_ref().map(Constant::bits);
        if let Some(bits) = bits.filter(|bits| bits.len() <= SHARED) {
            let contents = (tensor.element, tensor.shape.clone(), bits);
            value[id.index()] = *first.entry(contents).or_insert(id);
        }
    }
    value
}

/// Are two of it that read the same merged?
fn is_merged(node: &Node) -> bool {
    is_known_to_repeat(node) && node.captures.is_empty()
}

/// Does the runtime know that the operator computes the same from the same? Of its own operators it knows that of few (source:
/// `IsOperationDeterministic`).
pub(super) fn is_known_to_repeat(node: &Node) -> bool {
    const RANDOM: [&str; 6] = [
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    ];
    const KNOWN: [&str; 4] = [
        "ConcatTraining",
        "DequantizeLinear",
        "QuantizeLinear",
        "ShrunkenGather",
    ];
    let name = node.op_type.as_str();
    match node.domain.as_str() {
        "" => !RANDOM.contains(&name) && name != "Constant",
        "com.microsoft" => KNOWN.contains(&name),
        _ => false,
    }
}

/// Whatever their sequence. Files may hold very many: a search for each would take forever.
fn same_attributes(attributes: &[Attribute], others: &[Attribute]) -> bool {
    let same = |(a, b): (&Attribute, &Attribute)| {
        let comparable = !matches!(
            a.value,
            AttributeValue::Tensor { constant: None, .. } | AttributeValue::Opaque
        );
        comparable && a == b
    };
    if attributes.len() != others.len() {
        return false;
    }
    let mut both = attributes.iter().zip(others);
    if both.all(|(a, b)| a.name == b.name) {
        return attributes.iter().zip(others).all(same);
    }
    fn sorted(all: &[Attribute]) -> Vec<&Attribute> {
        let mut all: Vec<&Attribute> = all.iter().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
    sorted(attributes).into_iter().zip(sorted(others)).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(nodes: &str) -> Vec<u32> {
        let text = format!("g (float[4] x, float[4] w) => (float[4] y) {{ {nodes} y = Neg(x) }}");
        equal_nodes(&Graph::parse(&text).unwrap())
    }

    #[test]
    fn the_same_operator_of_the_same_values_is_the_same() {
        assert_eq!(equal("a = Exp(x) b = Exp(w) c = Exp(x)"), [1, 0, 1, 0]);
        assert_eq!(equal("a = Exp(x) b = Log(x)"), [0, 0, 0]);
        assert_eq!(equal("a = Add(x, w) b = Add(w, x)"), [0, 0, 0]);
        // What follows from it, too, and an Identity is what it reads.
        let text = "a = Exp(x) b = Identity(a) c = Log(b) d = Exp(x) e = Log(d)";
        assert_eq!(equal(text), [1, 0, 2, 1, 2, 0]);
    }

    #[test]
    fn attributes_and_numbers_of_results_tell_apart() {
        let text =
            "a = Elu<alpha = 3.0>(x) b = Elu<alpha = 2.0>(x) c = Elu<alpha = 3.0>(x) d = Elu(x)";
        assert_eq!(equal(text), [1, 0, 1, 0, 0]);
        assert_eq!(equal("a = Exp(x) b = Exp<__recompute = 1>(x)"), [0, 0, 0]);
        assert_eq!(equal("a, b = Split(x) c = Split(x)"), [0, 0, 0]);
        assert_eq!(equal("a, b = Split(x) c, d = Split(x)"), [1, 1, 0]);
    }

    #[test]
    fn the_sequence_of_attributes_means_nothing_and_their_number_takes_no_time() {
        let with = |values: &mut dyn Iterator<Item = i64>| {
            let attribute = |value| Attribute {
                name: format!("a{value}"),
                value: AttributeValue::Int(value / 3),
            };
            values.map(attribute).collect::<Vec<_>>()
        };
        const MANY: i64 = 100_000;
        let started = std::time::Instant::now();
        let all = with(&mut (0..MANY));
        assert!(same_attributes(&all, &all.clone()));
        let mut other = with(&mut (0..MANY).rev());
        assert!(same_attributes(&all, &other));
        other[5].value = AttributeValue::Int(-1);
        assert!(!same_attributes(&all, &other));
        other.pop();
        assert!(!same_attributes(&all, &other));
        // A search for each would take a minute.
        assert!(started.elapsed().as_secs() < 10);
    }

    // What sessions of 1.19.2, 1.20.1 and 1.32.0 saved.
    #[test]
    fn what_an_only_attribute_is_anyway_can_be_left_out() {
        assert_eq!(equal("a = Elu<alpha = 1.0>(x) b = Elu(x)"), [1, 1, 0]);
        assert_eq!(equal("a = Shape(x) b = Shape<start = 0>(x)"), [1, 1, 0]);
        assert_eq!(equal("a = Shape(x) b = Shape<start = 1>(x)"), [0, 0, 0]);
        // The hash table of several goes through them in one sequence or the other.
        assert_eq!(
            equal("a = Gemm(x, w) b = Gemm<alpha = 1.0>(x, w)"),
            [0, 0, 0]
        );
        let softmax = |opset| {
            let nodes = "a = Softmax<axis = -1>(x) y = Softmax(x)";
            let text = format!("g (float[4] x) => (float[4] y) {{ {nodes} }}");
            let mut graph = Graph::parse(&text).unwrap();
            graph.opsets.insert(String::new(), opset);
            equal_nodes(&graph)
        };
        assert_eq!([12, 13].map(softmax), [[0, 0], [1, 1]]);
    }

    // What sessions of 1.19.2 and 1.32.0 saved.
    #[test]
    fn zeros_of_one_size_are_the_same() {
        let zeros = |a: &str, b: &str| {
            let of = |value| format!("ConstantOfShape <value = float[1] {{{value}}}> (s)");
            equal(&format!("s = Shape(x) a = {} b = {}", of(a), of(b)))
        };
        assert_eq!(zeros("0", "0"), [0, 1, 1, 0]);
        assert_eq!(zeros("0", "1"), [0, 0, 0, 0]);
    }

    #[test]
    fn random_and_foreign_operators_stay_apart() {
        assert_eq!(equal("a, b = Dropout(x) c, d = Dropout(x)"), [0, 0, 0]);
        let text = "a = com.microsoft.Gelu(x) b = com.microsoft.Gelu(x)";
        assert_eq!(equal(text), [0, 0, 0]);
    }

    #[test]
    fn equal_constants_are_one() {
        let equal = |other: &str| {
            let text = format!(
                "g (float[4] x) => (float[2,2] y) <int64[2] a = {{2, 2}}, int64[2] b = {{{other}}}>
                {{ c = Reshape(x, a) d = Reshape(x, b) y = Add(c, d) }}"
            );
            equal_nodes(&Graph::parse(&text).unwrap())
        };
        assert_eq!(equal("2, 2"), [1, 1, 0]);
        assert_eq!(equal("4, 1"), [0, 0, 0]);
    }
}
