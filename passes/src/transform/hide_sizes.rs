//! Keeps from ONNX Runtime the sizes of large tensors that no symbol is in.
//!
//! In its default settings the runtime lays whatever has a known size out in one block that is there for
//! the whole step, or hands its memory on to tensors of the same size only. A name for a dimension prevents
//! both ([`ColourShapes`]), but a number that the runtime infers cannot be named: results with the shape of
//! a weight, or of a batch that is fixed. So such a result is computed from an input whose shape the runtime cannot
//! infer: a Reshape to a shape of zeros, each of which means the same dimension as before, and which comes
//! out of a PassThrough, the value of whose results is unknown. Both only forward. Measured: the smallest
//! peak of gpt2_small in the default settings, beyond what the caller owns, is 364 MB instead of 740 (docs/truth.md).
//!
//! [`ColourShapes`]: super::colour_shapes::ColourShapes

use std::collections::HashMap;
use std::convert::Infallible;

use crate::analysis::shapes::Inference;
use crate::bytes::Bytes;
use crate::graph::{
    AttributeValue, Dimension, ElementType, Graph, Node, NodeId, Tensor, TensorId, TensorKind, Uses,
};
use crate::operators::{self, RuntimeShape};
use crate::pass::{Changed, Pass};

/// What the names of hidden dimensions begin with.
pub const PREFIX: &str = "hidden_";

/// **Does**: makes the runtime forget one dimension of each result with at least `from` bytes all of whose dimensions it
/// knows as numbers, where the operator has an input from which alone it knows it.
/// **Needs**: concrete shapes; the nodes in an order that can run.
/// **Keeps**: all values; graph inputs, outputs and initializers. Graphs with a YieldOp stay as they are.
pub struct HideSizes {
    /// Smaller results stay as they are.
    pub from: Bytes,
}

impl Pass for HideSizes {
    type Error = Infallible;

    fn name(&self) -> &'static str {
        "hide-sizes"
    }

    fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
        let nodes = graph.order().iter().map(|&id| graph.node(id));
        let yields = nodes
            .clone()
            .any(|node| node.is("com.microsoft", "YieldOp"));
        let Some(anchor) =
            anchor(graph).filter(|_| !yields && graph.opsets.get("") >= Some(&OPSET))
        else {
            return Ok(Changed::No);
        };
        let mut hiding = Hiding {
            anchor,
            inference: Inference::of(graph),
            inferred: None,
            order: Vec::with_capacity(graph.order().len()),
            zeros: HashMap::new(),
            forwarded: HashMap::new(),
            uses: None,
            changed: Changed::No,
        };
        for id in graph.order().to_vec() {
            hiding.inference.node(graph, id);
            for position in 0..graph.node(id).outputs.len() {
                hiding.hide(graph, id, position, self.from);
            }
            hiding.order.push(id);
        }
        graph.set_order(hiding.order);
        Ok(hiding.changed)
    }
}

/// Since then a Constant may have a list of integers.
const OPSET: i64 = 12;

/// The smallest graph input: whatever a PassThrough of it and a constant writes is not constant.
fn anchor(graph: &Graph) -> Option<TensorId> {
    let inputs = graph.inputs.iter().copied();
    let fed = inputs.filter(|&id| graph.tensor(id).kind == TensorKind::Input);
    fed.filter_map(|id| Some((graph.tensor(id).bytes()?, id)))
        .min()
        .map(|(_, id)| id)
}

struct Hiding {
    anchor: TensorId,
    inference: Inference,
    /// Of one node: what the runtime infers of its results.
    inferred: Option<(NodeId, Vec<Option<Vec<Dimension>>>)>,
    order: Vec<NodeId>,
    /// By rank: as many zeros, of which the runtime does not know that they are.
    zeros: HashMap<usize, TensorId>,
    /// By tensor: the same without its sizes.
    forwarded: HashMap<TensorId, TensorId>,
    /// Until a node is added.
    uses: Option<Uses>,
    changed: Changed,
}

impl Hiding {
    fn hide(&mut self, graph: &mut Graph, id: NodeId, position: usize, from: Bytes) {
        let node = graph.node(id);
        let Some(output) = node.output(position) else {
            return;
        };
        let forwards = operators::aliases(node)
            .iter()
            .any(|&(to, _)| to == position);
        let is_inner = graph.tensor(output).kind == TensorKind::Value;
        let is_large = graph.tensor(output).bytes() >= Some(from);
        if !is_inner || graph.outputs.contains(&output) {
            return;
        }
        let shape = self.inference.shape(output).map(<[Dimension]>::to_vec);
        let Some(mut shape) = shape.filter(|shape| are_numbers(shape)) else {
            return;
        };
        let inferred = self.inferred(graph, id, position);
        let unknown = Dimension::Unknown;
        let hidden = match inferred.as_ref().filter(|here| here.len() == shape.len()) {
            // What follows from the inputs, if only it were not declared.
            Some(here) if !are_numbers(here) => {
                let mut here = here.iter().cloned().enumerate();
                here.find(|(_, dimension)| !is_number(dimension))
            }
            _ => match self.declared_alone(graph, id, position, inferred.is_none(), is_large) {
                Some(at) => Some((at, unknown)),
                None if is_large && !forwards => {
                    let at = self.read_otherwise(graph, id, position, shape.len());
                    at.map(|at| (at, unknown))
                }
                None => None,
            },
        };
        let Some((at, dimension)) = hidden else {
            return;
        };
        shape[at] = match (dimension, &shape[at]) {
            (Dimension::Unknown, Dimension::Known(size)) => name(*size),
            (dimension, _) => dimension,
        };
        graph.tensor_mut(output).declared = Some(shape);
        self.inference.node_again(graph, id);
        self.changed = Changed::Yes;
    }

    /// What the runtime infers of that result from the node's inputs.
    fn inferred(&mut self, graph: &Graph, id: NodeId, position: usize) -> Option<Vec<Dimension>> {
        let inferred = match self.inferred.take() {
            Some((of, inferred)) if of == id => inferred,
            _ => self.inference.inferred(graph, id),
        };
        let here = inferred.get(position).cloned().flatten();
        self.inferred = Some((id, inferred));
        here
    }

    /// A dimension that the runtime knows from the declaration alone. Of a small result only one that an input without
    /// sizes has as well: then others that are computed from it have none either.
    fn declared_alone(
        &mut self,
        graph: &Graph,
        id: NodeId,
        position: usize,
        nothing_inferred: bool,
        is_large: bool,
    ) -> Option<usize> {
        let node = graph.node(id);
        let alone = match operators::runtime_shape(node, position) {
            RuntimeShape::Unknown => true,
            RuntimeShape::Of(_) | RuntimeShape::Broadcast => nothing_inferred,
            RuntimeShape::AllNumbered => {
                let first = self.inference.shape(node.input(0)?);
                nothing_inferred && !first.is_some_and(are_numbers)
            }
            _ => false,
        };
        if !alone {
            return None;
        }
        // So that others find it, it must follow from the inputs.
        let uses = self.uses.get_or_insert_with(|| Uses::of(graph));
        let sizes = operators::infer(graph, uses, node)?.ok()?;
        let sizes = &sizes.get(position)?.as_ref()?.shape;
        if is_large {
            return Some(0);
        }
        (0..sizes.len()).find(|&at| {
            node.inputs.iter().flatten().any(|&input| {
                let known = self.inference.shape(input).and_then(|shape| shape.get(at));
                let is_named = known.is_some_and(|known| !is_number(known));
                let of = graph.tensor(input).shape.as_ref();
                is_named && of.is_some_and(|of| of[at] == sizes[at])
            })
        })
    }

    /// Lets the node read, without its sizes, the input from which a dimension of the result comes; which one.
    fn read_otherwise(
        &mut self,
        graph: &mut Graph,
        id: NodeId,
        position: usize,
        rank: usize,
    ) -> Option<usize> {
        let node = graph.node(id);
        let (input, pairs) = operators::dimensions_from(node, position, rank)?;
        let read = node.input(input)?;
        let known = self.inference.shape(read)?;
        let is_named = |&&(_, of): &&(usize, usize)| known.get(of).is_some_and(|of| !is_number(of));
        if let Some(&(at, _)) = pairs.iter().find(is_named) {
            return Some(at);
        }
        let rank = known.len();
        let &(at, _) = pairs.iter().find(|&&(_, of)| of < rank)?;
        let forwarded = self.forwarded(graph, read, rank);
        graph.node_mut(id).inputs[input] = Some(forwarded);
        self.inferred = None;
        Some(at)
    }

    /// `tensor` without its sizes.
    fn forwarded(&mut self, graph: &mut Graph, tensor: TensorId, rank: usize) -> TensorId {
        if let Some(&known) = self.forwarded.get(&tensor) {
            return known;
        }
        let zeros = self.zeros(graph, rank);
        let of = graph.tensor(tensor).clone();
        let hidden = Tensor {
            name: graph.free_tensor_name(&format!("{}/hidden", of.name)),
            kind: TensorKind::Value,
            declared: of
                .shape
                .as_ref()
                .map(|sizes| sizes.iter().map(|&size| name(size)).collect()),
            constant: None,
            ..of
        };
        let name = format!("ckpt-opt/hide/{}", graph.tensor(tensor).name);
        let hidden = graph.add_tensor(hidden);
        let inputs = vec![Some(tensor), Some(zeros)];
        self.add(
            graph,
            Node::new(name, "", "Reshape", inputs, vec![Some(hidden)]),
        );
        self.forwarded.insert(tensor, hidden);
        hidden
    }

    /// As many zeros as there are dimensions.
    fn zeros(&mut self, graph: &mut Graph, rank: usize) -> TensorId {
        if let Some(&known) = self.zeros.get(&rank) {
            return known;
        }
        let mut shape = |name: &str| {
            let tensor = Tensor {
                element: Some(ElementType::Int64),
                declared: Some(vec![Dimension::Known(rank as u64)]),
                shape: Some(vec![rank as u64]),
                constant: Some(crate::graph::Constant::Ints(vec![0; rank])),
                ..Tensor::new(graph.free_tensor_name(name), TensorKind::Value)
            };
            graph.add_tensor(tensor)
        };
        let zeros = shape(&format!("ckpt-opt/zeros/{rank}"));
        let forwarded = shape(&format!("ckpt-opt/shape/{rank}"));
        let of = graph.tensor(self.anchor).clone();
        let anchored = Tensor {
            name: graph.free_tensor_name(&format!("{}/hidden", of.name)),
            kind: TensorKind::Value,
            ..of
        };
        let anchored = graph.add_tensor(anchored);
        let name = graph.tensor(zeros).name.clone();
        let mut constant = Node::new(name, "", "Constant", Vec::new(), vec![Some(zeros)]);
        constant.set_attribute("value_ints", AttributeValue::Ints(vec![0; rank]));
        self.add(graph, constant);
        let name = graph.tensor(forwarded).name.clone();
        let inputs = vec![Some(zeros), Some(self.anchor)];
        let outputs = vec![Some(forwarded), Some(anchored)];
        let forward = Node::new(name, "com.microsoft", "PassThrough", inputs, outputs);
        self.add(graph, forward);
        self.zeros.insert(rank, forwarded);
        forwarded
    }

    fn add(&mut self, graph: &mut Graph, node: Node) {
        let id = graph.add_node(node);
        self.uses = None;
        self.inference.node_again(graph, id);
        self.order.push(id);
    }
}

/// The same name for the same size, so that results are still computed in place.
fn name(size: u64) -> Dimension {
    Dimension::Symbol(format!("{PREFIX}{size}"))
}

fn are_numbers(shape: &[Dimension]) -> bool {
    !shape.is_empty() && shape.iter().all(is_number)
}

fn is_number(dimension: &Dimension) -> bool {
    matches!(dimension, Dimension::Known(_))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::analysis::cost::Cost;
    use crate::analysis::executions::Executions;
    use crate::analysis::settings::RuntimeSettings;
    use crate::graph::text::diff;
    use crate::operators::Provider;
    use crate::transform::colour_shapes::ColourShapes;
    use crate::transform::infer_shapes::InferShapes;
    use crate::verify::equivalence;

    /// Matrices of 4 KiB.
    const TEXT: &str = "<ir_version: 8, opset_import: [\"\" : 15, \"com.microsoft\" : 1]>
        g (float[n,32] x, float[32,32] w, float[1] s) => (float[32,32] y)
        <float[32,32] t, float[32,32] a, float[32,32] b, float[32,32] c>
        { t = Transpose <perm = [1, 0]> (w) a = Gemm <transA = 1> (x, x) b = Relu(a) c = Gemm(b, t) y = Exp(c) }";

    fn hidden(text: &str) -> (Graph, Graph) {
        let mut graph = Graph::parse(text).unwrap();
        let bindings = BTreeMap::from([("n".to_owned(), 32)]);
        InferShapes { bindings }.run(&mut graph).unwrap();
        let mut hidden = graph.clone();
        let changed = HideSizes { from: Bytes(4096) }.run(&mut hidden).unwrap();
        assert_eq!(changed == Changed::Yes, hidden != graph);
        (graph, hidden)
    }

    #[test]
    fn results_whose_sizes_are_numbers_are_computed_from_inputs_without_sizes() {
        let (graph, hidden) = hidden(TEXT);
        insta::assert_snapshot!(diff(&graph.to_listing(), &hidden.to_listing()), @r#"
        - t = Transpose(w)
        - a = Gemm(x, x)
        + "ckpt-opt/zeros/2" = Constant()
        + "ckpt-opt/shape/2", "s/hidden" = PassThrough("ckpt-opt/zeros/2", s)
        + "w/hidden" = Reshape(w, "ckpt-opt/shape/2")
        + t = Transpose("w/hidden")
        + "x/hidden" = Reshape(x, "ckpt-opt/shape/2")
        + a = Gemm("x/hidden", x)
          b = Relu(a)
        "#);
        let forwards = equivalence(&graph, &hidden, &Default::default()).unwrap();
        assert_eq!((forwards.copies(), forwards.barriers()), (0, 4));
    }

    #[test]
    fn nothing_lies_in_the_memory_pattern_then() {
        let (graph, mut hidden) = hidden(TEXT);
        let provider = Provider::Cpu;
        let Ok(_) = ColourShapes { provider }.run(&mut hidden);
        let pattern = |graph: &Graph| {
            let costs = vec![Cost::default(); graph.node_count()];
            let settings = RuntimeSettings::DEFAULT;
            let mut all = Executions::of(graph, provider, &costs).simulate(settings);
            all.swap_remove(0).1.pattern
        };
        assert!(pattern(&graph) >= Some(Bytes(2 * 4096)));
        assert!(pattern(&hidden) < Some(Bytes(4096)));
    }

    #[test]
    fn old_operator_sets_and_graphs_that_yield_stay_as_they_are() {
        for text in [
            TEXT.replace(": 15", ": 11"),
            TEXT.replace("y = Exp(c)", "d = com.microsoft.YieldOp(c) y = Exp(d)"),
        ] {
            let (graph, hidden) = hidden(&text);
            assert_eq!(graph, hidden);
        }
    }

    #[test]
    fn a_reshape_to_anything_else_is_not_taken_for_the_same() {
        let (graph, hidden) = hidden(TEXT);
        let zeros = hidden.tensor_named("ckpt-opt/zeros/2").unwrap();
        let mut other = hidden.clone();
        let constant = other.order().iter().copied();
        let constant = constant
            .clone()
            .find(|&id| other.node(id).output(0) == Some(zeros));
        let node = other.node_mut(constant.unwrap());
        node.set_attribute("value_ints", AttributeValue::Ints(vec![32, 0]));
        assert!(equivalence(&graph, &other, &Default::default()).is_err());
    }
}
