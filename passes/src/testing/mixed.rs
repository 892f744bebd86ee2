//! Random training graphs in mixed precision.

use std::collections::{BTreeMap, BTreeSet};

use super::SplitMix64;
use super::graphs::random_training_graph;
use crate::graph::{
    AttributeValue, Dimension, ElementType, Graph, Node, NodeId, Tensor, TensorId, TensorKind,
};

/// What computes in 16 bits on a GPU, and on the CPU with a kernel or between casts.
const IN_HALF: [&str; 22] = [
    "Add",
    "Concat",
    "Conv",
    "ConvGrad",
    "Expand",
    "Flatten",
    "FusedMatMul",
    "Gemm",
    "Identity",
    "MatMul",
    "Mul",
    "Neg",
    "ReduceMean",
    "ReduceSum",
    "Relu",
    "ReluGrad",
    "Reshape",
    "Sigmoid",
    "Split",
    "Sub",
    "Sum",
    "Tanh",
];

/// A [`random_training_graph`] of which most nodes compute in float16 ([`in_16_bits`]).
pub fn random_mixed_graph(seed: u64, size: usize) -> Graph {
    let graph = random_training_graph(seed, size);
    in_16_bits(graph, seed, ElementType::Float16)
}

/// The graph with most nodes in a type of 16 bits: casts stand before what they read, one of a tensor for all (at times one
/// more), and behind what they write, where it is read in float32.
pub fn in_16_bits(graph: Graph, seed: u64, narrow: ElementType) -> Graph {
    let mut mixing = Mixing {
        graph,
        element: narrow,
        random: SplitMix64::new(seed ^ 0x0016),
        half: BTreeMap::new(),
        narrow: BTreeSet::new(),
        order: Vec::new(),
    };
    for id in mixing.graph.order().to_vec() {
        mixing.node(id);
    }
    let outputs: Vec<TensorId> = mixing.graph.outputs.iter().copied().collect();
    for output in outputs {
        mixing.widen(output);
    }
    let Mixing {
        mut graph, order, ..
    } = mixing;
    graph.set_order(order);
    graph
}

struct Mixing {
    graph: Graph,
    /// The type of 16 bits.
    element: ElementType,
    random: SplitMix64,
    /// By tensor in float32: the same in 16 bits.
    half: BTreeMap<TensorId, TensorId>,
    /// Those that nobody has written in float32 so far.
    narrow: BTreeSet<TensorId>,
    order: Vec<NodeId>,
}

impl Mixing {
    fn node(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let name = node.op_type.as_str();
        let fits = IN_HALF.contains(&name) && node.reads().any(|tensor| self.is_float(tensor));
        if !fits || self.random.one_in(4) {
            for read in node.reads().collect::<Vec<_>>() {
                self.widen(read);
            }
            self.order.push(id);
            return;
        }
        let (inputs, outputs) = (node.inputs.clone(), node.outputs.clone());
        for (position, input) in inputs.into_iter().enumerate() {
            let Some(input) = input.filter(|&input| self.is_float(input)) else {
                continue;
            };
            let known = self.half.get(&input).copied();
            let half = match known.filter(|_| !self.random.one_in(6)) {
                Some(half) => half,
                None => {
                    self.widen(input);
                    let half = self.like(input, self.element);
                    self.cast(input, half, self.element);
                    self.half.insert(input, half);
                    half
                }
            };
            self.graph.node_mut(id).inputs[position] = Some(half);
        }
        self.order.push(id);
        for (position, output) in outputs.into_iter().enumerate() {
            let Some(output) = output.filter(|&output| self.is_float(output)) else {
                continue;
            };
            let half = self.like(output, self.element);
            self.graph.node_mut(id).outputs[position] = Some(half);
            self.half.insert(output, half);
            self.narrow.insert(output);
        }
    }

    /// Writes the tensor in float32, if only its form in 16 bits is there.
    fn widen(&mut self, tensor: TensorId) {
        if self.narrow.remove(&tensor)
            && let Some(&half) = self.half.get(&tensor)
        {
            self.cast(half, tensor, ElementType::Float);
        }
    }

    fn is_float(&self, tensor: TensorId) -> bool {
        self.graph.tensor(tensor).element == Some(ElementType::Float)
    }

    fn like(&mut self, tensor: TensorId, element: ElementType) -> TensorId {
        let like = self.graph.tensor(tensor);
        let (declared, shape) = (like.declared.clone(), like.shape.clone());
        let name = self.graph.free_tensor_name(&format!("{}/half", like.name));
        self.graph.add_tensor(Tensor {
            element: Some(element),
            declared: declared.or_else(|| {
                let known = |&size: &u64| Dimension::Known(size);
                shape
                    .as_ref()
                    .map(|shape| shape.iter().map(known).collect())
            }),
            shape: shape.clone(),
            ..Tensor::new(name, TensorKind::Value)
        })
    }

    fn cast(&mut self, from: TensorId, to: TensorId, element: ElementType) {
        let name = format!("cast_{}", self.graph.node_count());
        let mut node = Node::new(name, "", "Cast", vec![Some(from)], vec![Some(to)]);
        node.set_attribute("to", AttributeValue::Int(element as i64));
        let id = self.graph.add_node(node);
        self.order.push(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Uses;
    use crate::operators::Provider;
    use crate::runtime::STOCK;
    use crate::runtime::optimized_shapes::runtime_shapes_once_optimized;
    use crate::runtime::rounding::Rounding;
    use crate::verify::{self, Violation};

    const GRAPHS: u64 = 40;

    /// What verification says of the rounding in `rewritten`.
    fn verified(original: &Graph, rewritten: &Graph) -> Result<(), Violation> {
        let found = verify::equivalence(original, rewritten, &BTreeSet::new()).unwrap();
        verify::rounding(original, rewritten, &found)?;
        verify::rounding_optimized(original, rewritten, &found, runtime_shapes_once_optimized)
    }

    fn value(graph: &mut Graph, like: TensorId, name: &str) -> TensorId {
        let tensor = graph.tensor(like);
        let new = Tensor {
            element: tensor.element,
            declared: tensor.declared.clone(),
            shape: tensor.shape.clone(),
            ..Tensor::new(graph.free_tensor_name(name), TensorKind::Value)
        };
        graph.add_tensor(new)
    }

    /// The graph with a node at a place, from whose first result these readers read what they read from `old`.
    fn with(graph: Graph, place: usize, new: Node, old: TensorId, readers: &[NodeId]) -> Graph {
        let mut changed = graph;
        let instead = new.output(0);
        let mut order = changed.order().to_vec();
        order.insert(place, changed.add_node(new));
        changed.set_order(order);
        for &reader in readers {
            for input in &mut changed.node_mut(reader).inputs {
                if *input == Some(old) {
                    *input = instead;
                }
            }
        }
        changed
    }

    #[test]
    fn whoever_may_read_from_a_barrier_is_not_rounded_otherwise() {
        let (mut may, mut refused) = (0, 0);
        for seed in 0..GRAPHS {
            let graph = random_mixed_graph(seed, 30);
            let rounding = Rounding::of(&graph, Provider::Cpu, &STOCK);
            let uses = Uses::of(&graph);
            let reads: Vec<(usize, NodeId, TensorId)> = graph
                .order()
                .iter()
                .enumerate()
                .flat_map(|(place, &id)| {
                    graph
                        .node(id)
                        .reads()
                        .map(move |t| (place, id, t))
                        .collect::<Vec<_>>()
                })
                .filter(|&(_, _, read)| rounding.depends(read) && uses.producer(read).is_some())
                .collect();
            for (place, reader, read) in reads {
                let mut changed = graph.clone();
                let late = value(&mut changed, read, "late");
                let (reads, writes) = (vec![Some(read)], vec![Some(late)]);
                let barrier = Node::new("barrier", "com.microsoft", "PassThrough", reads, writes);
                let changed = with(changed, place, barrier, read, &[reader]);
                let said = verified(&graph, &changed);
                if rounding.may_pass(read, reader) {
                    assert_eq!(said, Ok(()), "seed {seed}, {}", graph.tensor(read).name);
                    may += 1;
                } else {
                    refused += usize::from(said.is_err());
                }
            }
        }
        assert!(may > 300 && refused > 300, "{may} {refused}");
    }

    #[test]
    fn what_may_be_waited_for_is_not_rounded_otherwise() {
        let (mut may, mut refused) = (0, 0);
        for seed in 0..GRAPHS {
            let graph = random_mixed_graph(seed, 30);
            let rounding = Rounding::of(&graph, Provider::Cpu, &STOCK);
            let last = graph.order().len() - 1;
            let reader = graph.order()[last];
            let uses = Uses::of(&graph);
            let is_wide = |&t: &TensorId| !rounding.depends(t) && uses.producer(t).is_some();
            let Some(passed) = graph.node(reader).reads().find(is_wide) else {
                continue;
            };
            let depends = graph.tensor_ids().filter(|&t| rounding.depends(t));
            let depends: Vec<TensorId> = depends.filter(|&t| uses.producer(t).is_some()).collect();
            for waits in depends {
                if graph.node(reader).writes().any(|written| written == waits) {
                    continue;
                }
                let mut changed = graph.clone();
                let late = value(&mut changed, passed, "late");
                let unread = value(&mut changed, waits, "unread");
                let (reads, writes) = (
                    vec![Some(passed), Some(waits)],
                    vec![Some(late), Some(unread)],
                );
                let barrier = Node::new("barrier", "com.microsoft", "PassThrough", reads, writes);
                let changed = with(changed, last, barrier, passed, &[reader]);
                let said = verified(&graph, &changed);
                match rounding.may_wait(waits) {
                    true => {
                        assert_eq!(said, Ok(()), "seed {seed}, {}", graph.tensor(waits).name);
                        may += 1;
                    }
                    false => refused += usize::from(said.is_err()),
                }
            }
        }
        assert!(may > 300 && refused > 2, "{may} {refused}");
    }

    #[test]
    fn what_may_be_repeated_is_not_rounded_otherwise_whoever_reads_the_copy() {
        let (mut may, mut refused) = (0, 0);
        for seed in 0..GRAPHS {
            let graph = random_mixed_graph(seed, 30);
            let rounding = Rounding::of(&graph, Provider::Cpu, &STOCK);
            let uses = Uses::of(&graph);
            let mut random = SplitMix64::new(seed);
            for (place, id) in graph.order().to_vec().into_iter().enumerate() {
                let node = graph.node(id).clone();
                let &[Some(written)] = node.outputs.as_slice() else {
                    continue;
                };
                let readers: Vec<NodeId> = uses
                    .readers(written)
                    .iter()
                    .copied()
                    .filter(|_| random.one_in(2))
                    .collect();
                let unsure = verify::unrepeatable(&graph, &BTreeSet::new())[id.index()].is_some();
                if !rounding.touches(&node)
                    || unsure
                    || readers.is_empty()
                    || graph.outputs.contains(&written)
                {
                    continue;
                }
                let mut changed = graph.clone();
                let again = value(&mut changed, written, "again");
                let mut copy = node.clone();
                copy.name = "again".to_owned();
                copy.outputs = vec![Some(again)];
                copy.set_attribute("__recompute", AttributeValue::Int(1));
                let changed = with(changed, place + 1, copy, written, &readers);
                let said = verified(&graph, &changed);
                match rounding.is_single(&graph, id) {
                    false => {
                        assert_eq!(said, Ok(()), "seed {seed}, {}", node.name);
                        may += 1;
                    }
                    true => refused += usize::from(said.is_err()),
                }
            }
        }
        assert!(may > 300 && refused > 5, "{may} {refused}");
    }
}
