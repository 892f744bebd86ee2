//! Replaces operators without a kernel by their pieces, as the runtime does.

use std::collections::HashMap;
use std::convert::Infallible;

use crate::graph::{Attribute, Graph, Node, NodeId, Tensor, TensorId, TensorKind};
use crate::operators::Provider;
use crate::pass::{Changed, Pass};
use crate::runtime::functions::{Function, FunctionNode, function};

/// **Does**: replaces each node that the runtime would take apart by its pieces, which stand where it stood;
/// pieces that only an omitted output is made of are left out.
/// **Needs**: nothing; shapes are inferred afterwards.
/// **Keeps**: all names and their values.
#[derive(Clone, Copy, Debug)]
pub struct TakeApart {
    /// Whose kernels there are.
    pub provider: Provider,
}

impl Pass for TakeApart {
    type Error = Infallible;

    fn name(&self) -> &'static str {
        "take-apart"
    }

    fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
        let pieces = self.pieces(graph, false);
        Ok(match pieces.is_empty() {
            true => Changed::No,
            false => Changed::Yes,
        })
    }
}

impl TakeApart {
    /// The same with all pieces, as the runtime has them; says which nodes they are, in its order.
    /// It gives them the highest numbers.
    pub fn as_the_runtime_does(&self, graph: &mut Graph) -> Vec<NodeId> {
        self.pieces(graph, true)
    }

    fn pieces(&self, graph: &mut Graph, all: bool) -> Vec<NodeId> {
        let (mut order, mut pieces) = (Vec::with_capacity(graph.order().len()), Vec::new());
        for id in graph.order().to_vec() {
            let Some(function) = function(graph, graph.node(id), self.provider) else {
                order.push(id);
                continue;
            };
            let made = take_apart(graph, id, &function, all);
            order.extend(&made);
            pieces.extend(made);
        }
        if !pieces.is_empty() {
            graph.set_order(order);
        }
        pieces
    }
}

/// The nodes that stand where `id` stood; the last one has its name and number.
fn take_apart(graph: &mut Graph, id: NodeId, function: &Function, all: bool) -> Vec<NodeId> {
    let original = graph.node(id).clone();
    let Some(first) = original.writes().next() else {
        return vec![id];
    };
    let base = graph.tensor(first).name.clone();
    let mut known: HashMap<&str, TensorId> = HashMap::new();
    let outside = |names: &'static [&'static str], tensors: &[Option<TensorId>]| {
        let pairs = names.iter().copied().zip(tensors.iter().copied());
        pairs
            .filter_map(|(name, tensor)| Some((name, tensor?)))
            .collect::<Vec<_>>()
    };
    known.extend(outside(function.inputs, &original.inputs));
    known.extend(outside(function.outputs, &original.outputs));
    let mut steps: Vec<&FunctionNode> = Vec::new();
    for (position, step) in function.body.iter().enumerate() {
        if all || is_needed(function, &original, position) {
            steps.push(step);
        }
    }
    let mut nodes = Vec::with_capacity(steps.len());
    for (position, step) in steps.iter().enumerate() {
        let mut resolve = |name: &&'static str| {
            Some(*known.entry(name).or_insert_with(|| {
                let name = graph.free_tensor_name(&format!("{base}/{name}"));
                graph.add_tensor(Tensor::new(name, TensorKind::Value))
            }))
        };
        let inputs = step.inputs.iter().map(&mut resolve).collect();
        let outputs: Vec<Option<TensorId>> = step.outputs.iter().map(&mut resolve).collect();
        let written = outputs.iter().flatten().next().copied();
        let mut node = Node::new("", step.domain, step.op_type, inputs, outputs);
        for (name, value) in &step.attributes {
            node.attributes.push(Attribute {
                name: (*name).to_owned(),
                value: value.clone(),
            });
        }
        if position + 1 == steps.len() {
            node.name.clone_from(&original.name);
            *graph.node_mut(id) = node;
            nodes.push(id);
        } else {
            if let Some(written) = written {
                node.name = format!("{}{}", PREFIX, graph.tensor(written).name);
            }
            nodes.push(graph.add_node(node));
        }
    }
    nodes
}

const PREFIX: &str = "ckpt-opt/function/";

/// Is the piece at `position` needed for an output that `node` has?
fn is_needed(function: &Function, node: &Node, position: usize) -> bool {
    let written = function.body[position].outputs;
    let wanted = |name: &&str| {
        let output = function.outputs.iter().position(|output| output == name);
        output.is_some_and(|output| node.output(output).is_some())
    };
    let readers = (position + 1..function.body.len()).filter(|&later| {
        function.body[later]
            .inputs
            .iter()
            .any(|read| written.contains(read))
    });
    written.iter().any(wanted)
        || readers
            .into_iter()
            .any(|later| is_needed(function, node, later))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;
    use crate::graph::AttributeValue;
    use crate::optimize::{BudgetRequest, measure};
    use crate::rewrite::infer_shapes::InferShapes;
    use crate::strategy::Strategy;
    use crate::strategy::tests::options;
    use crate::verify;

    fn graph(outputs: &str) -> Graph {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
            g (float[N,4] dy, float[N,4] a, float[4] b) => (float[N,4] p, float[4] q) {{
                {outputs} = com.microsoft.DivGrad (dy, a, b)
                p = Neg (x)
                q = Neg (y)
            }}"#
        );
        Graph::parse(&text).unwrap()
    }

    fn operators(graph: &Graph) -> Vec<&str> {
        let nodes = graph.order().iter();
        nodes.map(|&id| graph.node(id).op_type.as_str()).collect()
    }

    fn inferred(mut graph: Graph) -> Graph {
        let bindings = [("N".to_owned(), 8)].into_iter().collect();
        InferShapes { bindings }.run(&mut graph).unwrap();
        graph
    }

    #[test]
    fn a_division_s_gradient_becomes_what_the_runtime_makes_of_it() {
        let before = graph("x, y");
        let mut after = before.clone();
        let provider = Provider::Cpu;
        assert_eq!(TakeApart { provider }.run(&mut after), Ok(Changed::Yes));
        insta::assert_snapshot!(operators(&after).join(" "), @"Shape Shape BroadcastGradientArgs Div ReduceSumTraining Reshape Mul Neg Div Mul ReduceSumTraining Reshape Neg Neg");
        let (before, after) = (inferred(before), inferred(after));
        for name in ["x", "y"] {
            let shape = |graph: &Graph| {
                let id = graph.tensor_named(name).unwrap();
                graph.tensor(id).shape.clone()
            };
            assert_eq!(shape(&before), shape(&after));
        }
        verify::equivalence(&before, &after, &Default::default()).unwrap();
    }

    /// In tensors of dY's size, as the runtime was measured: the pieces that were added last come first, and within an output
    /// they come in the body's sequence.
    #[test]
    fn each_order_runs_the_pieces_in_its_own_sequence() {
        let same = "g (float[1024,64] dy, float[1024,64] a, float[1024,64] b) => (float[1024,64] p, float[1024,64] q)";
        let one_for_a_row = same.replace("float[1024,64] b)", "float[1024,1] b)");
        for (interface, default, priority) in [
            (same.to_owned(), 3, 4),
            (one_for_a_row.replace("64] q)", "1] q)"), 2, 3),
        ] {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
                {interface} {{ p, q = com.microsoft.DivGrad (dy, a, b) }}"#
            );
            let graph = Graph::parse(&text).unwrap();
            let options = options(Strategy::Auto, BudgetRequest::Smallest);
            let measured = measure(&graph, &options).unwrap();
            let tensors = |bytes: Bytes| (bytes - measured.fixed).0 / (1024 * 64 * 4);
            let needs = (
                tensors(measured.default.bytes),
                tensors(measured.priority.bytes),
            );
            assert_eq!(needs, (default, priority), "{interface}");
        }
    }

    #[test]
    fn swapped_pieces_are_no_division_s_gradient() {
        let before = graph("x, y");
        let mut after = before.clone();
        let provider = Provider::Cpu;
        TakeApart { provider }.run(&mut after).unwrap();
        let is_division = |id: &NodeId| after.node(*id).is("", "Div");
        let id = after.order().iter().copied().rfind(is_division).unwrap();
        let node = after.node_mut(id);
        node.inputs.swap(0, 1);
        let (before, after) = (inferred(before), inferred(after));
        assert!(verify::equivalence(&before, &after, &Default::default()).is_err());
    }

    /// A graph with one such node between two others, and the same taken apart.
    fn one(node: &str) -> (Graph, Graph) {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
            g (float[N,4,6] x, float[2] s, float[2] b, double[1] d) => (float[N,4,6] p) {{
                a = Exp (x) y = {node} p = Cast <to = 1> (y)
            }}"#
        );
        let before = Graph::parse(&text).unwrap();
        let mut after = before.clone();
        let provider = Provider::Cpu;
        assert_eq!(TakeApart { provider }.run(&mut after), Ok(Changed::Yes));
        (inferred(before), inferred(after))
    }

    const FUNCTIONS: [&str; 4] = [
        "HardSwish (a)",
        "Mish (a)",
        "CastLike (a, d)",
        "GroupNormalization <num_groups = 2, epsilon = 0.001> (a, s, b)",
    ];

    #[test]
    fn pieces_compute_what_the_operator_does() {
        for node in FUNCTIONS {
            let (before, after) = one(node);
            verify::equivalence(&before, &after, &Default::default()).unwrap();
            let described = |graph: &Graph| {
                let tensor = graph.tensor(graph.tensor_named("y").unwrap());
                (tensor.element, tensor.shape.clone())
            };
            assert_eq!(described(&before), described(&after), "{node}");
        }
        let (_, after) = one(FUNCTIONS[0]);
        insta::assert_snapshot!(operators(&after).join(" "), @"Exp HardSigmoid Mul Cast");
        let (_, after) = one(FUNCTIONS[1]);
        insta::assert_snapshot!(operators(&after).join(" "), @"Exp Softplus Tanh Mul Cast");
        let (_, after) = one(FUNCTIONS[3]);
        insta::assert_snapshot!(operators(&after).join(" "), @"Exp Constant Cast Shape Shape Constant Div Shape Shape Concat Reshape Constant Reshape Constant ReduceMean Mul ReduceMean Mul Sub Add Sqrt Sub Div Constant Cast Cast Reshape Reshape Mul Add Reshape Cast");
    }

    #[test]
    fn no_piece_may_have_another_attribute_or_operand() {
        for node in FUNCTIONS {
            let (before, after) = one(node);
            for &id in after.order() {
                let piece = after.node(id).clone();
                for place in 0..piece.attributes.len() {
                    let mut changed = after.clone();
                    let value = &mut changed.node_mut(id).attributes[place].value;
                    *value = match value.clone() {
                        AttributeValue::Int(value) => AttributeValue::Int(value + 1),
                        AttributeValue::Ints(values) => {
                            AttributeValue::Ints(values.iter().map(|value| value + 1).collect())
                        }
                        AttributeValue::Floats(values) => {
                            AttributeValue::Floats(values.iter().map(|value| value + 1.0).collect())
                        }
                        AttributeValue::Float(value) => AttributeValue::Float(value + 1.0),
                        other => other,
                    };
                    let verified = verify::equivalence(&before, &changed, &Default::default());
                    assert!(verified.is_err(), "{node}: {piece:?}");
                }
                if piece.inputs.len() == 2 && piece.inputs[0] != piece.inputs[1] {
                    let mut changed = after.clone();
                    changed.node_mut(id).inputs.swap(0, 1);
                    let verified = verify::equivalence(&before, &changed, &Default::default());
                    assert!(verified.is_err(), "{node}: {piece:?}");
                }
            }
        }
    }

    #[test]
    fn cuda_has_a_kernel() {
        let mut after = graph("x, y");
        let provider = Provider::Cuda;
        assert_eq!(TakeApart { provider }.run(&mut after), Ok(Changed::No));
    }

    #[test]
    fn a_division_of_several_types_stays_whole() {
        let apart = |dy: &str| {
            let text = format!(
                "g ({dy}[4] dy, float[4] a, float[4] b) => (float[4] da)
                 {{ da = com.microsoft.DivGrad(dy, a, b) }}"
            );
            let mut graph = Graph::parse(&text).unwrap();
            let provider = Provider::Cpu;
            TakeApart { provider }.run(&mut graph).unwrap()
        };
        assert_eq!(apart("float"), Changed::Yes);
        assert_eq!(apart("float16"), Changed::No);
    }
}
