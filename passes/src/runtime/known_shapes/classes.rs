//! What the runtime knows of the tensors' sizes before a step, and which have the same, as numbers.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Dimension, ElementType, Graph, TensorId, checked_count, count, numbers};
use crate::runtime::casting::NO_TENSOR;
use crate::runtime::moving::{Added, KnownDimensions};
use crate::runtime::release::PatternOf;
use crate::runtime::transposes::shapes_of_transposed;

/// See the module's documentation. By tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shapes {
    /// Equal numbers: equal shapes and element sizes. `None`: unknown, a scalar, or not a tensor.
    pub(crate) class: Vec<Option<u32>>,
    /// How many classes there are.
    pub(crate) classes: usize,
    /// Is the size known once the inputs are?
    pub(crate) resolved: Vec<bool>,
    /// The tensors that have another size than the runtime knows before a step, by a wrong declaration: the bytes of that.
    pub(crate) mistaken: BTreeMap<u32, u64>,
}

impl Shapes {
    /// Takes in one more tensor, which forwards what another has, and what casts make of it, which are [`wide`] by tensor.
    ///
    /// [`wide`]: crate::runtime::skeleton::Skeleton::wide
    pub(crate) fn forward(&mut self, tensor: u32, wide: &[u32]) {
        let mut all = vec![tensor];
        if let Some(&wide) = wide.get(tensor as usize).filter(|&&wide| wide != NO_TENSOR) {
            all.extend([wide, wide + 1]);
        }
        for tensor in all {
            self.class.push(self.class[tensor as usize]);
            self.resolved.push(self.resolved[tensor as usize]);
        }
    }

    /// The same for how a release makes patterns.
    pub(crate) fn for_pattern(mut self, pattern: PatternOf) -> Shapes {
        if pattern == PatternOf::FirstStep {
            self.resolved.fill(true);
            self.mistaken.clear();
        }
        self
    }

    /// Takes in one more tensor, of a size that is known and has no axes, or few numbers.
    pub(crate) fn add_scalar(&mut self) {
        self.class.push(None);
        self.resolved.push(true);
    }

    /// What the runtime knows of `graph`, of whose tensors it has these [`runtime_shapes`]; so many tensors, with what casts make
    /// of those in float16, and `added` behind these.
    ///
    /// [`runtime_shapes`]: super::runtime_shapes
    pub(crate) fn of(
        graph: &Graph,
        shapes: &[KnownDimensions],
        tensors: usize,
        added: &[&Added],
    ) -> Shapes {
        let bound = bound_symbols(graph);
        let mut numbers: BTreeMap<(u64, &[Dimension]), u32> = BTreeMap::new();
        let mut known = Shapes::default();
        let moved = shapes
            .len()
            .saturating_sub(shapes_of_transposed(graph).len());
        let added_shapes = added.iter().map(|added| &added.shape);
        let all = shapes.iter().take(tensors).chain(added_shapes);
        for (tensor, shape) in all.enumerate() {
            let bytes = match tensor {
                _ if tensor < graph.tensor_count() => graph.tensor(TensorId(tensor as u32)).element,
                _ if tensor < moved => Some(ElementType::Float),
                _ => Some(ElementType::Int64),
            };
            let bytes = match tensor.checked_sub(tensors.min(shapes.len())) {
                Some(place) => Some(added[place].element),
                None => bytes.map(|element| element.bytes(1).0),
            };
            let (Some(shape), Some(bytes)) = (shape, bytes) else {
                known.class.push(None);
                known.resolved.push(false);
                continue;
            };
            known.resolved.push(are_bound(&bound, shape));
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
        if graph
            .tensor_ids()
            .any(|id| graph.tensor(id).stale.is_some())
        {
            known.mistaken = mistaken(graph, shapes, &known.resolved);
        }
        known
    }
}

/// The shape of a matrix with the rows of a tensor whose sizes are numbers.
pub(crate) fn flattened(shape: &[Dimension]) -> Option<Vec<Dimension>> {
    let (columns, axes) = shape.split_last()?;
    let rows = checked_count(&numbers(axes)?)?;
    Some(vec![
        Dimension::Known(rows),
        Dimension::Known(columns.number()?),
    ])
}

/// Does the runtime know a tensor's size before a step, of which it knows these dimensions?
pub(in crate::runtime) fn is_resolved(graph: &Graph, shape: &[Dimension]) -> bool {
    are_bound(&bound_symbols(graph), shape)
}

fn are_bound(bound: &BTreeSet<&str>, shape: &[Dimension]) -> bool {
    let is_bound = |dimension: &Dimension| match dimension {
        Dimension::Known(size) => *size > 0,
        Dimension::Symbol(name) => bound.contains(name.as_str()),
        Dimension::Unknown => false,
    };
    shape.iter().all(is_bound)
}

/// The sizes of `resolved` tensors as the runtime has them by what is declared wrong, where they are others.
fn mistaken(graph: &Graph, shapes: &[KnownDimensions], resolved: &[bool]) -> BTreeMap<u32, u64> {
    let mut found = BTreeMap::new();
    for id in graph.tensor_ids().filter(|id| resolved[id.index()]) {
        let tensor = graph.tensor(id);
        let (Some(shape), Some(sizes), Some(element)) =
            (&shapes[id.index()], &tensor.shape, tensor.element)
        else {
            continue;
        };
        let size = |(at, dimension): (usize, &Dimension)| match dimension {
            Dimension::Known(size) => *size,
            _ => sizes.get(at).copied().unwrap_or(1),
        };
        let all: Vec<u64> = shape.iter().enumerate().map(size).collect();
        let bytes = element.bytes(count(&all));
        if tensor.bytes() != Some(bytes) {
            found.insert(id.0, bytes.0);
        }
    }
    found
}

/// The symbols that get a value when the inputs are fed.
fn bound_symbols(graph: &Graph) -> BTreeSet<&str> {
    let declared = graph
        .inputs
        .iter()
        .filter_map(|&id| graph.tensor(id).declared.as_ref());
    declared.flatten().filter_map(Dimension::name).collect()
}
