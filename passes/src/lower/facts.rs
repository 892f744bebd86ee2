//! What is known of every tensor whatever the sizes of symbolic dimensions are.

use std::collections::BTreeMap;

use crate::graph::{Dimension, ElementType, Graph, Node, TensorId, TensorKind, Uses, topological};
use crate::pass::Pass as _;
use crate::rewrite::infer_shapes::{InferShapes, InferShapesError};

/// Sizes, the numbers among them.
pub(super) type KnownSizes = Vec<Option<u64>>;

/// Ranks, types, and sizes that do not depend on a binding.
#[derive(Debug)]
pub(super) struct Facts {
    sizes: Vec<Option<KnownSizes>>,
    elements: Vec<Option<ElementType>>,
}

/// Sizes that are tried for symbolic dimensions where none are given. Only ranks are taken from what follows.
const TRIED: [u64; 7] = [64, 32, 256, 60, 840, 4, 1];

impl Facts {
    /// From the declarations, as far as they are right, and from what follows of them.
    pub(super) fn of(graph: &Graph, bindings: &BTreeMap<String, u64>) -> Facts {
        let mut facts = Facts {
            sizes: Vec::with_capacity(graph.tensor_count()),
            elements: Vec::with_capacity(graph.tensor_count()),
        };
        let shaped = tried(graph, bindings);
        for id in graph.tensor_ids() {
            let tensor = graph.tensor(id);
            // Without the numbers that shape inference found to be wrong.
            let declared = shaped
                .as_ref()
                .unwrap_or(graph)
                .tensor(id)
                .declared
                .as_ref();
            let owned = tensor.kind == TensorKind::Initializer || tensor.constant.is_some();
            let shape = tensor.shape.as_ref().filter(|_| owned);
            facts.elements.push(tensor.element);
            facts.sizes.push(match (shape, declared) {
                (Some(shape), _) => Some(shape.iter().copied().map(Some).collect()),
                (None, Some(declared)) => Some(declared.iter().map(Dimension::number).collect()),
                (None, None) => None,
            });
        }
        let uses = Uses::of(graph);
        if let Ok(order) = topological(graph, &uses) {
            for id in order {
                facts.follow(graph.node(id));
            }
        }
        if let Some(shaped) = shaped {
            facts.fill_in(&shaped);
        }
        facts
    }

    /// Takes in the `number` of each dimension of which none was known, where it is one whatever is fed.
    pub(super) fn take_numbers(&mut self, number: &dyn Fn(TensorId, usize) -> Option<u64>) {
        for (at, sizes) in self.sizes.iter_mut().enumerate() {
            for (axis, size) in sizes.iter_mut().flatten().enumerate() {
                *size = size.or_else(|| number(TensorId(at as u32), axis));
            }
        }
    }

    /// One entry for each dimension; a number where it does not depend on a binding.
    pub(super) fn sizes(&self, id: TensorId) -> Option<&KnownSizes> {
        self.sizes.get(id.index())?.as_ref()
    }

    pub(super) fn element(&self, id: TensorId) -> Option<ElementType> {
        *self.elements.get(id.index())?
    }

    /// Outputs that files leave undeclared, and that have the sizes of an input, and its type.
    fn follow(&mut self, node: &Node) {
        if node.op_type == "Concat" || node.op_type == "ConcatTraining" {
            let (Some(out), Some(axis)) = (node.output(0), node.int("axis")) else {
                return;
            };
            if self.sizes[out.index()].is_none() {
                self.sizes[out.index()] = self.concatenated(node, axis);
            }
            return;
        }
        let same: &[(usize, usize)] = match node.op_type.as_str() {
            "BatchNormInternal" => &[(0, 0), (1, 3), (2, 4), (3, 1), (4, 1)],
            "BatchNormalization" | "LayerNormalization" | "Dropout" => &[(0, 0)],
            "Relu" | "Sigmoid" | "Tanh" | "Gelu" | "QuickGelu" | "LeakyRelu" | "Identity"
            | "Cast" | "Clip" => &[(0, 0)],
            "ConvGrad" | "ConvTransposeGrad" => &[(0, 1), (1, 2)],
            "BatchNormalizationGrad" | "LayerNormalizationGrad" => &[(0, 1)],
            "ReluGrad" | "SigmoidGrad" | "TanhGrad" | "GeluGrad" => &[(0, 1)],
            "SoftmaxCrossEntropyLoss" => &[(1, 0)],
            _ => return,
        };
        for &(output, input) in same {
            let (Some(output), Some(input)) = (node.output(output), node.input(input)) else {
                continue;
            };
            if self.sizes[output.index()].is_none() {
                self.sizes[output.index()] = self.sizes[input.index()].clone();
            }
            if self.elements[output.index()].is_none() && node.op_type != "Cast" {
                self.elements[output.index()] = self.elements[input.index()];
            }
        }
    }

    fn concatenated(&self, node: &Node, axis: i64) -> Option<KnownSizes> {
        let inputs: Option<Vec<&KnownSizes>> = node
            .inputs
            .iter()
            .map(|input| self.sizes((*input)?))
            .collect();
        let inputs = inputs?;
        let mut sizes = (*inputs.first()?).clone();
        let axis = usize::try_from(if axis < 0 {
            axis + sizes.len() as i64
        } else {
            axis
        })
        .ok()?;
        if axis >= sizes.len() || inputs.iter().any(|other| other.len() != sizes.len()) {
            return None;
        }
        for other in &inputs[1..] {
            for (position, size) in sizes.iter_mut().enumerate() {
                *size = match position == axis {
                    true => size.zip(other[position]).map(|(a, b)| a.saturating_add(b)),
                    false => size.or(other[position]),
                };
            }
        }
        Some(sizes)
    }

    /// Ranks and types that only show when sizes are given.
    fn fill_in(&mut self, shaped: &Graph) {
        for id in shaped.tensor_ids() {
            let tensor = shaped.tensor(id);
            let element = &mut self.elements[id.index()];
            *element = element.or(tensor.element);
            let sizes = &mut self.sizes[id.index()];
            if let (None, Some(shape)) = (&sizes, &tensor.shape) {
                *sizes = Some(vec![None; shape.len()]);
            }
        }
    }
}

/// The graph with all shapes, for some sizes that its nodes accept: with those that are given, if they do.
pub(super) fn tried(graph: &Graph, bindings: &BTreeMap<String, u64>) -> Option<Graph> {
    let with = |bindings: &BTreeMap<String, u64>| {
        let mut tried = TRIED.iter();
        tried.find_map(|&size| inferred(graph, bindings, &mut || Some(size)).ok())
    };
    // Where a few are given, others may have to be equal to one of them.
    let shaped = match bindings.is_empty() {
        true => with(bindings),
        false => with(bindings).or_else(|| with(&BTreeMap::new())),
    };
    shaped.map(|(shaped, _)| shaped)
}

/// What keeps shapes from being worked out whatever sizes are tried: of the first of them.
pub(super) fn fault_of_shapes(
    graph: &Graph,
    bindings: &BTreeMap<String, u64>,
) -> Option<InferShapesError> {
    let mut faults = TRIED
        .iter()
        .map(|&size| inferred(graph, bindings, &mut || Some(size)).err());
    let first = faults.next().flatten()?;
    faults.all(|fault| fault.is_some()).then_some(first)
}

/// So many dimensions are given a size one by one, each with a look at what follows from it; then two at once, four, and so on.
const ONE_BY_ONE: u32 = 64;

/// The graph with all shapes, where each dimension that does not follow from others has the `next` size; and these sizes.
pub(super) fn inferred(
    graph: &Graph,
    bindings: &BTreeMap<String, u64>,
    next: &mut dyn FnMut() -> Option<u64>,
) -> Result<(Graph, BTreeMap<String, u64>), InferShapesError> {
    let mut bindings = bindings.clone();
    let mut looks = 0u32;
    loop {
        let mut inferred = graph.clone();
        let bound = bindings.clone();
        let missing = match (InferShapes { bindings: bound }).run(&mut inferred) {
            Ok(_) => return Ok((inferred, bindings)),
            Err(error) => error,
        };
        let names = match &missing {
            InferShapesError::Unbound { names, .. } | InferShapesError::Unknown { names, .. } => {
                names
            }
            _ => return Err(missing),
        };
        let open = names.iter().filter(|name| !bindings.contains_key(*name));
        let at_once = 1usize << looks.saturating_sub(ONE_BY_ONE).min(30);
        let open: Vec<String> = open.take(at_once).cloned().collect();
        looks += 1;
        if open.is_empty() {
            return Err(missing);
        }
        for name in open {
            let Some(size) = next() else {
                return Err(missing);
            };
            bindings.insert(name, size);
        }
    }
}
