//! Replaces operators without a kernel by their pieces, as the runtime does.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;

use crate::graph::{Graph, Node, NodeId, Tensor, TensorId, TensorKind};
use crate::operators::Provider;
use crate::pass::{Changed, Pass};
use crate::runtime::functions::function;
use crate::runtime::inferred_shapes::{InferredBy, inferred_by};

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
    const NAME: &str = "take-apart";
    type Error = Infallible;

    fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
        let pieces = self.pieces(graph, false);
        Ok(Changed::from(!pieces.is_empty()))
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
fn take_apart(graph: &mut Graph, id: NodeId, function: &Graph, all: bool) -> Vec<NodeId> {
    let original = graph.node(id).clone();
    let Some(first) = original.writes().next() else {
        return vec![id];
    };
    for (position, output) in original.outputs.iter().enumerate() {
        if let (Some(output), InferredBy::Of(input)) = (*output, inferred_by(&original, position)) {
            graph.tensor_mut(output).like = original.input(input);
        }
    }
    let base = graph.tensor(first).name.clone();
    let outside = |inside: &[TensorId], tensors: &[Option<TensorId>]| {
        let pairs = inside.iter().copied().zip(tensors.iter().copied());
        let pairs = pairs.filter_map(|(inside, tensor)| Some((inside, tensor?)));
        pairs.collect::<Vec<_>>()
    };
    let mut known: HashMap<TensorId, TensorId> = HashMap::new();
    known.extend(outside(&function.inputs, &original.inputs));
    known.extend(outside(&function.outputs, &original.outputs));
    let steps = match all {
        true => function.order().to_vec(),
        false => needed(function, &original),
    };
    let mut nodes = Vec::with_capacity(steps.len());
    for (position, &step) in steps.iter().enumerate() {
        let mut node = function.node(step).clone();
        node.piece_of = original.template;
        let places = node.inputs.iter_mut().chain(&mut node.outputs);
        for inside in places.flatten() {
            *inside = *known.entry(*inside).or_insert_with(|| {
                let name = format!("{base}/{}", function.tensor(*inside).name);
                let name = graph.free_tensor_name(&name);
                graph.add_tensor(Tensor::new(name, TensorKind::Value))
            });
        }
        if position + 1 == steps.len() {
            node.name.clone_from(&original.name);
            *graph.node_mut(id) = node;
            nodes.push(id);
        } else {
            let written = node.writes().next();
            if let Some(written) = written {
                node.name = format!("{}{}", PREFIX, graph.tensor(written).name);
            }
            nodes.push(graph.add_node(node));
        }
    }
    nodes
}

const PREFIX: &str = "ckpt-opt/function/";

/// The nodes of a body that are needed for the outputs that `node` has.
fn needed(function: &Graph, node: &Node) -> Vec<NodeId> {
    let outputs = function.outputs.iter().zip(&node.outputs);
    let wanted = outputs.filter_map(|(&inside, output)| output.map(|_| inside));
    let mut wanted: HashSet<TensorId> = wanted.collect();
    let mut needed = Vec::new();
    for &step in function.order().iter().rev() {
        let step_node = function.node(step);
        if step_node.writes().any(|written| wanted.contains(&written)) {
            wanted.extend(step_node.reads());
            needed.push(step);
        }
    }
    needed.reverse();
    needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;
    use crate::graph::{AttributeValue, Constant};
    use crate::optimize::{BudgetRequest, measure, optimize};
    use crate::rewrite::infer_shapes::InferShapes;
    use crate::runtime::known_shapes::runtime_shapes;
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

    /// The runtime refuses it, and what is not written by a piece would have no shape.
    #[test]
    fn a_node_with_more_outputs_than_its_operator_has_stays() {
        let (mut before, provider) = (graph("x, y, more"), Provider::Cpu);
        assert_eq!(TakeApart { provider }.run(&mut before), Ok(Changed::No));
    }

    // Measured: a session knows the shapes by the rule of the whole, which its pieces have not; a file that is written with pieces has them alone.
    #[test]
    fn results_have_the_shapes_that_the_whole_tells_until_the_pieces_are_written() {
        let mut graph = graph("x, y");
        let provider = Provider::Cpu;
        TakeApart { provider }.as_the_runtime_does(&mut graph);
        let shapes = |graph: &Graph| {
            let known = runtime_shapes(&inferred(graph.clone()));
            ["x", "y"].map(|name| {
                let shape = known[graph.tensor_named(name).unwrap().index()].clone();
                shape
                    .unwrap()
                    .iter()
                    .map(|size| size.number())
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(shapes(&graph), [vec![None, Some(4)], vec![Some(4)]]);
        graph.own_pieces();
        assert_eq!(shapes(&graph), [vec![None, None], vec![None]]);
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

    /// A graph with one such node behind another and before casts of what it writes, and the same taken apart.
    fn one((opset, element, node): (i64, &str, &str)) -> (Graph, Graph) {
        let written = node.split('=').next().unwrap_or_default();
        let written: Vec<&str> = written.split(',').map(str::trim).collect();
        let outputs: Vec<String> = written
            .iter()
            .map(|name| format!("float p{name}"))
            .collect();
        let casts = written
            .iter()
            .map(|name| format!("p{name} = Cast <to = 1> ({name})"));
        let casts: Vec<String> = casts.collect();
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>
            g ({element}[N,4,6] x, {element}[2] s, {element}[2] b, {element}[4] c, {element}[4] e, {element}[6] l, {element}[6] k,
               {element}[4,6] q, float[N,4,1] m, float[N,4,1] o, bool[N,4,6] mask, float r, double[1] d) => ({}) <{element}[N,4,6] a> {{
                a = Exp (x) {node} {}
            }}"#,
            outputs.join(", ").replace("float p", "float[] p"),
            casts.join(" ")
        );
        let before = Graph::parse(&text).unwrap();
        let mut after = before.clone();
        let provider = Provider::Cpu;
        assert_eq!(
            TakeApart { provider }.run(&mut after),
            Ok(Changed::Yes),
            "{node}"
        );
        (inferred(before), inferred(after))
    }

    const FUNCTIONS: [(i64, &str, &str); 21] = [
        (18, "float", "y = HardSwish (a)"),
        (18, "float", "y = Mish (a)"),
        (18, "float", "y = CastLike (a, d)"),
        (
            18,
            "float",
            "y = GroupNormalization <num_groups = 2, epsilon = 0.001> (a, s, b)",
        ),
        (
            21,
            "float",
            "y = GroupNormalization <num_groups = 2> (a, c, e)",
        ),
        (
            15,
            "float16",
            "y, v, w = LayerNormalization <epsilon = 0.001> (a, l, k)",
        ),
        (
            18,
            "float16",
            "y, v, w = LayerNormalization <axis = 1> (a, q)",
        ),
        (
            15,
            "float16",
            "y, v, w = com.microsoft.LayerNormalizationGrad (x, a, l, m, o)",
        ),
        (15, "float16", "y = Softmax <axis = 1> (a)"),
        (18, "float16", "y = LogSoftmax (a)"),
        (15, "float16", "y = com.microsoft.Gelu (a)"),
        (15, "float16", "y = com.microsoft.GeluGrad (x, a)"),
        (15, "float16", "y = com.microsoft.FastGelu (a, l)"),
        (15, "float16", "y = com.microsoft.FastGelu (a)"),
        (15, "float16", "y = com.microsoft.FastGeluGrad (x, a)"),
        (15, "double", "y = com.microsoft.FastGeluGrad (x, a)"),
        (15, "float16", "y = com.microsoft.SigmoidGrad (x, a)"),
        (15, "double", "y = com.microsoft.SigmoidGrad (x, a)"),
        (15, "float16", "y = com.microsoft.TanhGrad (x, a)"),
        (15, "float16", "y = com.microsoft.DropoutGrad (a, mask, r)"),
        (15, "float16", "y = com.microsoft.DropoutGrad (a, mask)"),
    ];

    #[test]
    fn pieces_compute_what_the_operator_does() {
        for of in FUNCTIONS {
            let (before, after) = one(of);
            verify::equivalence(&before, &after, &Default::default())
                .unwrap_or_else(|said| panic!("{of:?}: {said}"));
            let described = |graph: &Graph| {
                let tensor = graph.tensor(graph.tensor_named("y").unwrap());
                (tensor.element, tensor.shape.clone())
            };
            assert_eq!(described(&before), described(&after), "{of:?}");
        }
        let (_, after) = one(FUNCTIONS[0]);
        insta::assert_snapshot!(operators(&after).join(" "), @"Exp HardSigmoid Mul Cast");
        let (_, after) = one(FUNCTIONS[1]);
        insta::assert_snapshot!(operators(&after).join(" "), @"Exp Softplus Tanh Mul Cast");
        let (_, after) = one(FUNCTIONS[3]);
        insta::assert_snapshot!(operators(&after).join(" "), @"Exp Constant Cast Shape Shape Constant Div Shape Shape Concat Reshape Constant Reshape Constant ReduceMean Mul ReduceMean Mul Sub Add Sqrt Sub Div Constant Cast Cast Reshape Reshape Mul Add Reshape Cast");
    }

    #[test]
    fn what_has_a_kernel_for_its_type_stays_whole() {
        for (_, element, node) in FUNCTIONS
            .into_iter()
            .filter(|(_, element, _)| *element != "float")
        {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
                g (float[8,4,6] x, float[8,4,6] a, float[6] l, float[6] k, float[4,6] q, float[8,4,1] m, float[8,4,1] o,
                   bool[8,4,6] mask, float r) => (float[8,4,6] y) {{ {node} }}"#
            );
            let mut graph = Graph::parse(&text).unwrap();
            let provider = Provider::Cpu;
            let changed = TakeApart { provider }.run(&mut graph);
            assert_eq!(changed, Ok(Changed::No), "{element}: {node}");
        }
    }

    #[test]
    fn no_piece_may_have_another_attribute_or_operand() {
        for of in FUNCTIONS {
            let (before, after) = one(of);
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
                        AttributeValue::Tensor {
                            element,
                            shape,
                            constant: Some(constant),
                        } => AttributeValue::Tensor {
                            element,
                            shape,
                            constant: Some(match constant {
                                Constant::Ints(n) => {
                                    Constant::Ints(n.iter().map(|n| n + 1).collect())
                                }
                                Constant::Floats(n) => {
                                    Constant::Floats(n.iter().map(|n| n + 1.0).collect())
                                }
                            }),
                        },
                        other => other,
                    };
                    let verified = verify::equivalence(&before, &changed, &Default::default());
                    assert!(verified.is_err(), "{of:?}: {piece:?}");
                }
                if piece.inputs.len() == 2 && piece.inputs[0] != piece.inputs[1] {
                    let mut changed = after.clone();
                    changed.node_mut(id).inputs.swap(0, 1);
                    let verified = verify::equivalence(&before, &changed, &Default::default());
                    assert!(verified.is_err(), "{of:?}: {piece:?}");
                }
            }
        }
    }

    #[test]
    fn types_that_no_file_declares_decide_as_well() {
        let graph = Graph::parse(
            r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
            g (float16[8,8] dy, float16[8,8] x) => (float16[8,8] y, float16[8,8] dx) {
                a = Neg (x)
                y = Softmax (a)
                dx = com.microsoft.ReluGrad (dy, a)
            }"#,
        );
        let options = options(Strategy::Auto, BudgetRequest::Smallest);
        let after = optimize(&graph.unwrap(), &options).unwrap().graph;
        insta::assert_snapshot!(operators(&after).join(" "), @"Constant Neg ReluGrad ReduceMax Sub Exp ReduceSum Div");
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
