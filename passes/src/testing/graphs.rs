//! Random training graphs that ONNX Runtime can run.

use super::SplitMix64;
use super::forward::Forward;
use super::further::Variety;
use crate::graph::{
    Attribute, AttributeValue, Constant, Dimension, ElementType, Graph, Node, NodeId, Tensor,
    TensorId, TensorKind, Uses,
};

/// A training graph of about `size` nodes (at least 3), the same for the same arguments.
///
/// It looks like what ONNX Runtime's `generate_artifacts` makes: a forward part over images or
/// rows (convolutions, products, normalizations, activations, pooling, dropout, views, skips,
/// splits and joins, shared weights), its mirrored backward part with ONNX Runtime's gradient
/// operators, and one InPlaceAccumulatorV2 per weight; batch 4, concrete shapes everywhere. Small
/// ones have no weights and give the gradient of their input instead. Values stay finite.
pub fn random_training_graph(seed: u64, size: usize) -> Graph {
    made(seed, size, Variety::Usual)
}

/// The same of all that real training graphs are made of: with transpositions, gathers, slices, recurrent layers and so on, with
/// batches of any size (4, where `batch` is bound to that) and without declared sizes; of what ONNX Runtime runs on a CPU.
pub fn varied_training_graph(seed: u64, size: usize) -> Graph {
    made(seed, size, Variety::Runnable)
}

/// The same, with what the runtime has no CPU kernels for, bodies that are not looked into, and a YieldOp.
pub fn strange_training_graph(seed: u64, size: usize) -> Graph {
    made(seed, size, Variety::Any)
}

fn made(seed: u64, size: usize, variety: Variety) -> Graph {
    let mut builder = Builder::new(seed, variety);
    let mut forward = Forward::new(&mut builder, size);
    forward.grow(&mut builder);
    let heads = forward.heads(&mut builder);
    builder.backward(&forward, heads);
    if variety != Variety::Usual && builder.random.one_in(2) {
        let labels = builder.graph.tensor_named("labels");
        let batched: Vec<TensorId> = [forward.input].into_iter().chain(labels).collect();
        builder.leave_batch_open(&batched);
    }
    builder.finish()
}

/// A graph in the making; the operators' sequence is the file's order.
pub(super) struct Builder {
    pub(super) graph: Graph,
    pub(super) random: SplitMix64,
    /// Names look like PyTorch's export: `/layer/Relu_3_output_0`.
    slashes: bool,
    pub(super) variety: Variety,
}

impl Builder {
    fn new(seed: u64, variety: Variety) -> Builder {
        let mut random = SplitMix64::new(seed);
        let mut graph = Graph::new(format!("random_{seed}"));
        graph.opsets.insert(String::new(), 15);
        graph.opsets.insert("com.microsoft".to_owned(), 1);
        let slashes = random.one_in(4);
        Builder {
            graph,
            random,
            slashes,
            variety,
        }
    }

    /// A tensor with everything known. The wish becomes its name, with a number if taken.
    pub(super) fn tensor(
        &mut self,
        wish: &str,
        kind: TensorKind,
        element: ElementType,
        shape: &[u64],
    ) -> TensorId {
        let name = self.graph.free_tensor_name(wish);
        let mut tensor = Tensor::new(name, kind);
        tensor.element = Some(element);
        tensor.declared = Some(shape.iter().map(|&size| Dimension::Known(size)).collect());
        tensor.shape = Some(shape.to_vec());
        let id = self.graph.add_tensor(tensor);
        if kind == TensorKind::Input {
            self.graph.inputs.push(id);
        }
        id
    }

    pub(super) fn floats(&mut self, wish: &str, shape: &[u64], values: Vec<f64>) -> TensorId {
        let id = self.tensor(wish, TensorKind::Initializer, ElementType::Float, shape);
        self.graph.tensor_mut(id).constant = Some(Constant::Floats(values));
        id
    }

    pub(super) fn ints(&mut self, wish: &str, values: &[u64]) -> TensorId {
        let shape = [values.len() as u64];
        let id = self.tensor(wish, TensorKind::Initializer, ElementType::Int64, &shape);
        let values = values.iter().map(|&value| value as i64).collect();
        self.graph.tensor_mut(id).constant = Some(Constant::Ints(values));
        id
    }

    pub(super) fn truth(&mut self, wish: &str) -> TensorId {
        let id = self.tensor(wish, TensorKind::Initializer, ElementType::Bool, &[]);
        self.graph.tensor_mut(id).constant = Some(Constant::Ints(vec![1]));
        id
    }

    pub(super) fn shape(&self, tensor: TensorId) -> Vec<u64> {
        self.graph.tensor(tensor).shape.clone().unwrap_or_default()
    }

    /// Adds a node with one float output of the given shape.
    pub(super) fn node(
        &mut self,
        operator: &str,
        inputs: &[TensorId],
        shape: &[u64],
        attributes: &[(&str, AttributeValue)],
    ) -> TensorId {
        let outputs = [Some((ElementType::Float, shape.to_vec()))];
        self.node_with(operator, inputs, &outputs, attributes)[0]
    }

    /// Adds a node; `None` omits an output, which then repeats the one before in the result.
    /// The domain is com.microsoft where `operator` starts with a dot.
    pub(super) fn node_with(
        &mut self,
        operator: &str,
        inputs: &[TensorId],
        outputs: &[Option<(ElementType, Vec<u64>)>],
        attributes: &[(&str, AttributeValue)],
    ) -> Vec<TensorId> {
        let inputs: Vec<Option<TensorId>> = inputs.iter().copied().map(Some).collect();
        self.node_of(operator, &inputs, outputs, attributes)
    }

    /// The same, with omitted inputs.
    pub(super) fn node_of(
        &mut self,
        operator: &str,
        inputs: &[Option<TensorId>],
        outputs: &[Option<(ElementType, Vec<u64>)>],
        attributes: &[(&str, AttributeValue)],
    ) -> Vec<TensorId> {
        let (domain, op_type) = match operator.strip_prefix('.') {
            Some(op_type) => ("com.microsoft", op_type),
            None => ("", operator),
        };
        let number = self.graph.node_count();
        let name = match self.slashes {
            true => format!("/layer/{op_type}_{number}"),
            false => format!("{op_type}_{number}").to_lowercase(),
        };
        let mut ids: Vec<Option<TensorId>> = Vec::new();
        for (position, output) in outputs.iter().enumerate() {
            let wish = match self.slashes {
                true => format!("{name}_output_{position}"),
                false if position == 0 => format!("{name}_y"),
                false => format!("{name}_y{position}"),
            };
            let made = output
                .as_ref()
                .map(|(element, shape)| self.tensor(&wish, TensorKind::Value, *element, shape));
            ids.push(made);
        }
        let mut node = Node::new(name, domain, op_type, inputs.to_vec(), ids.clone());
        node.attributes = attributes
            .iter()
            .map(|(name, value)| Attribute {
                name: (*name).to_owned(),
                value: value.clone(),
            })
            .collect();
        self.graph.add_node(node);
        ids.into_iter().flatten().collect()
    }

    /// Three in four keep the order of construction, as files have it; the others are listed in
    /// a random topological order.
    fn finish(mut self) -> Graph {
        if self.random.one_in(4) {
            let order = self.random_order();
            self.graph.set_order(order);
        }
        self.graph
    }

    fn random_order(&mut self) -> Vec<NodeId> {
        let graph = &self.graph;
        let uses = Uses::of(graph);
        let mut missing = vec![0; graph.node_count()];
        for &id in graph.order() {
            let produced = |tensor: &TensorId| uses.producer(*tensor).is_some();
            missing[id.index()] = graph.node(id).reads().filter(produced).count();
        }
        let mut ready: Vec<NodeId> = graph
            .order()
            .iter()
            .copied()
            .filter(|id| missing[id.index()] == 0)
            .collect();
        let mut order = Vec::new();
        while !ready.is_empty() {
            let id = ready.swap_remove(self.random.below(ready.len()));
            order.push(id);
            for tensor in graph.node(id).writes() {
                for reader in uses.readers(tensor) {
                    missing[reader.index()] -= 1;
                    if missing[reader.index()] == 0 {
                        ready.push(*reader);
                    }
                }
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_graph() {
        assert_eq!(random_training_graph(7, 50), random_training_graph(7, 50));
        assert_ne!(random_training_graph(7, 50), random_training_graph(8, 50));
    }

    #[test]
    fn sizes_are_near_the_wish() {
        for size in [3, 5, 8, 12, 30, 100, 200] {
            for seed in 0..50 {
                let nodes = random_training_graph(seed, size).node_count();
                let near = 2..=size + 4 + size / 3;
                assert!(
                    near.contains(&nodes),
                    "seed {seed}: {nodes} nodes, not {size}"
                );
            }
        }
    }

    #[test]
    fn every_tensor_has_type_and_shape() {
        for seed in 0..50 {
            let graph = random_training_graph(seed, 60);
            for id in graph.tensor_ids() {
                assert!(
                    graph.tensor(id).bytes().is_some(),
                    "{}",
                    graph.tensor(id).name
                );
            }
        }
    }

    #[test]
    fn every_further_layer_occurs_and_every_size_that_is_not_declared_follows() {
        use crate::pass::Pass;
        use crate::rewrite::infer_shapes::InferShapes;
        let (mut open, mut seen) = (0, std::collections::BTreeSet::new());
        for seed in 0..300 {
            for graph in [
                varied_training_graph(seed, 12 + seed as usize % 60),
                strange_training_graph(seed, 12 + seed as usize % 60),
            ] {
                let operators = graph.nodes();
                seen.extend(operators.map(|node| node.op_type.clone()));
                assert_eq!(crate::verify::structure(&graph), Ok(()), "seed {seed}");
                let mut blank = graph.clone();
                for id in graph.tensor_ids() {
                    if graph.tensor(id).kind == TensorKind::Value {
                        let tensor = blank.tensor_mut(id);
                        (tensor.shape, tensor.constant) = (None, None);
                        // A declared type stays, and nothing else.
                        tensor.element = tensor
                            .declared
                            .is_some()
                            .then_some(tensor.element)
                            .flatten();
                    }
                }
                let batch = Dimension::Symbol("batch".to_owned());
                let declared = |id: &TensorId| graph.tensor(*id).declared.clone();
                let is_open = graph
                    .inputs
                    .iter()
                    .filter_map(declared)
                    .any(|d| d.contains(&batch));
                let bindings = is_open
                    .then(|| ("batch".to_owned(), 4))
                    .into_iter()
                    .collect();
                InferShapes { bindings }
                    .run(&mut blank)
                    .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                for id in graph.tensor_ids() {
                    let (there, expected) = (blank.tensor(id), graph.tensor(id));
                    assert_eq!(
                        there.shape, expected.shape,
                        "seed {seed}: {}",
                        expected.name
                    );
                    assert_eq!(
                        there.element, expected.element,
                        "seed {seed}: {}",
                        expected.name
                    );
                }
                open += usize::from(is_open);
            }
        }
        assert!(open > 100, "{open}");
        let seen: Vec<&str> = seen.iter().map(String::as_str).collect();
        insta::assert_snapshot!(seen.join(" "), @"Add AveragePool AveragePoolGrad BatchNormInternal BatchNormalizationGrad Cast Concat ConstantOfShape Conv ConvGrad ConvTranspose ConvTransposeGrad Div DivGrad Dropout DropoutGrad Einsum Erf Exp Expand Flatten FusedMatMul Gather GatherGrad Gelu GeluGrad Gemm GlobalAveragePool Greater Identity If InPlaceAccumulatorV2 LSTMGrad LSTMTraining LayerNormalization LayerNormalizationGrad Loop MatMul MaxPool MaxPoolGrad Mul Neg Pad PassThrough Pow RandomNormalLike ReduceMean ReduceSum Relu ReluGrad Reshape Resize ResizeGrad Scale Scan Shape Sigmoid SigmoidGrad Slice SliceGrad Softmax SoftmaxCrossEntropyLoss SoftmaxCrossEntropyLossGrad SoftmaxGrad_13 Split Squeeze Sub Sum Tanh TanhGrad Tile Transpose Unsqueeze Where YieldOp");
    }

    #[test]
    fn a_small_one_looks_like_this() {
        insta::assert_snapshot!(random_training_graph(3, 8).to_listing(), @r#"
        "/layer/Gelu_0_output_0" = Gelu(x)
        "/layer/Sub_1_output_0" = Sub(x, x)
        "/layer/Neg_2_output_0" = Neg("/layer/Sub_1_output_0")
        "/layer/Neg_3_output_0" = Neg(y_grad_1)
        "/layer/Identity_4_output_0" = Identity("/layer/Neg_3_output_0")
        "/layer/Neg_5_output_0" = Neg("/layer/Neg_3_output_0")
        "/layer/GeluGrad_6_output_0" = GeluGrad(y_grad, x)
        "/layer/Sum_7_output_0" = Sum("/layer/Identity_4_output_0", "/layer/Neg_5_output_0", "/layer/GeluGrad_6_output_0")
        "#);
    }

    #[test]
    fn all_kinds_of_operators_occur() {
        let mut seen: Vec<String> = (0..100)
            .map(|seed| random_training_graph(seed, 80))
            .flat_map(|graph| {
                let operator = |&id: &NodeId| graph.node(id).op_type.clone();
                graph.order().iter().map(operator).collect::<Vec<_>>()
            })
            .collect();
        seen.sort();
        seen.dedup();
        insta::assert_snapshot!(seen.join(" "), @"Add BatchNormInternal BatchNormalizationGrad Concat Conv ConvGrad Dropout DropoutGrad Expand Flatten FusedMatMul Gelu GeluGrad Gemm Identity InPlaceAccumulatorV2 LayerNormalization LayerNormalizationGrad MatMul MaxPool MaxPoolGrad Mul Neg RandomNormalLike ReduceMean ReduceSum Relu ReluGrad Reshape Shape Sigmoid SigmoidGrad Softmax SoftmaxCrossEntropyLoss SoftmaxCrossEntropyLossGrad SoftmaxGrad_13 Split Sub Sum Tanh TanhGrad");
    }
}
