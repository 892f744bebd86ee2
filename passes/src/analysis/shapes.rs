//! What ONNX Runtime knows of shapes before a step runs: where tensors may share memory, and what
//! lies in the memory pattern.
//!
//! The runtime compares declared shapes, dimension by dimension: numbers with numbers, names of
//! symbols with names (source: the allocation planner's SameShape). Two tensors with one concrete
//! shape and different names do not match. A tensor has a place in the memory pattern if all its
//! dimensions are numbers or symbols that a graph input has as well, which are known once the step
//! is fed (source: the training build's GeneratePatternGroupCache; measured).

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Dimension, Graph, NodeId, TensorId, TensorKind};
use crate::operators;

/// See the module's documentation. By tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shapes {
    /// Equal numbers: equal shapes and element sizes. `None`: unknown, a scalar, or not a tensor.
    pub(crate) class: Vec<Option<u32>>,
    /// How many classes there are.
    pub(crate) classes: usize,
    /// Is the size known once the inputs are?
    pub(crate) resolved: Vec<bool>,
}

impl Shapes {
    /// What the runtime knows of `graph`, which needs concrete shapes.
    pub(crate) fn of(graph: &Graph) -> Shapes {
        let shapes = runtime_shapes(graph);
        let bound = bound_symbols(graph);
        let mut numbers: BTreeMap<(u64, &[Dimension]), u32> = BTreeMap::new();
        let mut known = Shapes::default();
        for (id, shape) in graph.tensor_ids().zip(&shapes) {
            let bytes = graph.tensor(id).element.map(|element| element.bytes(1).0);
            let (Some(shape), Some(bytes)) = (shape, bytes) else {
                known.class.push(None);
                known.resolved.push(false);
                continue;
            };
            let is_bound = |dimension: &Dimension| match dimension {
                Dimension::Known(size) => *size > 0,
                Dimension::Symbol(name) => bound.contains(name.as_str()),
                Dimension::Unknown => false,
            };
            known.resolved.push(shape.iter().all(is_bound));
            if shape.is_empty() || shape.contains(&Dimension::Unknown) {
                known.class.push(None);
                continue;
            }
            let next = numbers.len() as u32;
            known
                .class
                .push(Some(*numbers.entry((bytes, shape)).or_insert(next)));
        }
        known.classes = numbers.len();
        known
    }
}

/// The symbols that get a value when the inputs are fed.
pub(crate) fn bound_symbols(graph: &Graph) -> BTreeSet<&str> {
    let declared = graph
        .inputs
        .iter()
        .filter_map(|&id| graph.tensor(id).declared.as_ref());
    declared
        .flatten()
        .filter_map(|dimension| match dimension {
            Dimension::Symbol(name) => Some(name.as_str()),
            _ => None,
        })
        .collect()
}

/// By tensor: its shape as the runtime has it, `None` where it has none. Where the file declares
/// none, the runtime infers one for the operators that it has a rule for.
pub(crate) fn runtime_shapes(graph: &Graph) -> Vec<Option<Vec<Dimension>>> {
    let declared = graph.tensor_ids().map(|id| {
        let tensor = graph.tensor(id);
        let owned = tensor.kind != TensorKind::Value;
        let concrete = tensor.shape.as_ref().filter(|_| owned);
        let numbers = concrete.map(|sizes| sizes.iter().map(|&size| Dimension::Known(size)));
        let numbers = numbers.map(Iterator::collect);
        tensor.declared.clone().or(numbers)
    });
    let mut shapes: Vec<Option<Vec<Dimension>>> = declared.collect();
    for &id in graph.order() {
        for (position, output) in graph.node(id).outputs.iter().enumerate() {
            let Some(output) = *output else { continue };
            if shapes[output.index()].is_none()
                && operators::runtime_infers(graph.node(id), position)
            {
                shapes[output.index()] = inferred(graph, &shapes, id, output);
            }
        }
    }
    shapes
}

/// The concrete shape, with the symbols of those inputs that have the same dimension.
fn inferred(
    graph: &Graph,
    shapes: &[Option<Vec<Dimension>>],
    node: NodeId,
    output: TensorId,
) -> Option<Vec<Dimension>> {
    let shape = graph.tensor(output).shape.as_ref()?;
    let node = graph.node(node);
    let of_shape = node.is("", "Shape") || node.is("", "Size");
    if !of_shape && node.input(0).is_some_and(|id| shapes[id.index()].is_none()) {
        return None;
    }
    let reads = node.inputs.iter().flatten();
    let inputs: Vec<(&[u64], &[Dimension])> = reads
        .filter_map(|&id| {
            let concrete = graph.tensor(id).shape.as_ref()?;
            let known = shapes[id.index()].as_ref()?;
            (concrete.len() == known.len()).then_some((concrete.as_slice(), known.as_slice()))
        })
        .collect();
    let symbol = |position: usize, size: u64| {
        let here = inputs
            .iter()
            .filter(|(concrete, _)| concrete.get(position) == Some(&size))
            .map(|(_, known)| &known[position]);
        let anywhere = inputs.iter().flat_map(|(concrete, known)| {
            let same = concrete.iter().zip(known.iter());
            same.filter(|&(&s, _)| s == size)
                .map(|(_, dimension)| dimension)
        });
        let number = Dimension::Known(size);
        here.chain(anywhere).next().cloned().unwrap_or(number)
    };
    let dimensions = shape.iter().enumerate();
    Some(dimensions.map(|(i, &size)| symbol(i, size)).collect())
}
