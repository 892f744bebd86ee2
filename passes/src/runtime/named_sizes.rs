//! What an operator's rule about sizes says of names: which dimensions of the outputs are which dimensions of the inputs.
//!
//! The rule is asked again with another size for each name. A dimension that becomes this size has the name; one that changes
//! otherwise is unknown; one that no name changes is a number.

use crate::graph::{Dimension, Graph, Node, TensorId};
use crate::operators::{self, StandIn};

/// Of a node with more names nothing is said: the rule would be asked too often.
const MOST_NAMES: usize = 64;

/// An input, as the runtime knows it.
pub(super) struct KnownInput<'a> {
    pub(super) tensor: TensorId,
    pub(super) shape: Option<&'a [Dimension]>,
    /// Does the runtime know what is in it?
    pub(super) is_constant: bool,
}

/// What inputs have instead of a number. Unknown dimensions of one size count as one.
struct Name<'a> {
    dimension: &'a Dimension,
    /// What it is.
    size: u64,
    /// Inputs, and where in their shapes.
    places: Vec<(usize, usize)>,
}

impl Name<'_> {
    /// Whatever divides the size divides this one.
    fn other_size(&self) -> u64 {
        self.size.saturating_mul(4)
    }
}

/// By output of `node`: what its rule says. `reads` are its inputs, each once; `graph` needs concrete shapes.
/// O(names · inputs and outputs).
pub(super) fn outputs(
    graph: &Graph,
    node: &Node,
    mut reads: Vec<KnownInput<'_>>,
) -> Vec<Option<Vec<Dimension>>> {
    reads.sort_by_key(|read| read.tensor);
    reads.dedup_by_key(|read| read.tensor);
    let stand_in = |read: &KnownInput| StandIn {
        tensor: read.tensor,
        shape: read
            .shape
            .and_then(|_| graph.tensor(read.tensor).shape.clone()),
        keeps_contents: read.is_constant,
    };
    let mut stand_ins: Vec<StandIn> = reads.iter().map(stand_in).collect();
    let mut ask = |varied: &[&Name]| {
        vary(&mut stand_ins, varied, |name| name.other_size());
        let outputs = operators::infer_instead(graph, node, &stand_ins);
        vary(&mut stand_ins, varied, |name| name.size);
        outputs
    };
    let (Some(names), Some(plain)) = (names(graph, &reads), ask(&[])) else {
        return Vec::new();
    };
    let number = |&size: &u64| Dimension::Known(size);
    let mut shapes: Vec<Option<Vec<Dimension>>> = plain
        .iter()
        .map(|output| Some(output.as_ref()?.shape.iter().map(number).collect()))
        .collect();
    for name in &names {
        // What has to be equal changes together. What may not change at all has to be some number.
        let equal = || {
            let equal = names.iter().filter(|other| other.size == name.size);
            equal.collect::<Vec<_>>()
        };
        let alone = ask(&[name]);
        // Matrices are broadcast to each other, and then the runtime chooses no name of several.
        let is_broadcast = alone.is_none() && is_product(node);
        let called = match is_broadcast && equal().len() > 1 {
            true => &Dimension::Unknown,
            false => name.dimension,
        };
        if let Some(others) = alone.or_else(|| ask(&equal())) {
            let compared = plain.iter().zip(&others);
            for (shape, (plain, other)) in shapes.iter_mut().zip(compared) {
                if let (Some(shape), Some(plain), Some(other)) = (shape, plain, other) {
                    compare(shape, &plain.shape, &other.shape, name, called);
                }
            }
        }
    }
    shapes
}

/// Gives the names these sizes.
fn vary(stand_ins: &mut [StandIn], names: &[&Name], size: impl Fn(&Name) -> u64) {
    for name in names {
        for &(input, place) in &name.places {
            if let Some(shape) = &mut stand_ins[input].shape {
                shape[place] = size(name);
            }
        }
    }
}

/// Of all inputs; `None` if there are too many.
fn names<'r>(graph: &Graph, reads: &[KnownInput<'r>]) -> Option<Vec<Name<'r>>> {
    let mut names: Vec<Name> = Vec::new();
    for (i, read) in reads.iter().enumerate() {
        let sizes = graph.tensor(read.tensor).shape.iter().flatten();
        let dimensions = read.shape.into_iter().flatten().zip(sizes);
        let named = |&(_, (dimension, _)): &(usize, (&Dimension, &u64))| {
            !matches!(dimension, Dimension::Known(_))
        };
        for (j, (dimension, &size)) in dimensions.enumerate().filter(named) {
            let key = (dimension, size);
            match names.iter().position(|n| (n.dimension, n.size) == key) {
                Some(name) => names[name].places.push((i, j)),
                None if names.len() == MOST_NAMES => return None,
                None => names.push(Name {
                    dimension,
                    size,
                    places: vec![(i, j)],
                }),
            }
        }
    }
    Some(names)
}

fn is_product(node: &Node) -> bool {
    node.is("", "MatMul") || node.is(operators::MICROSOFT, "FusedMatMul")
}

/// Says in `shape` what `name` is responsible for, as `called`: sizes that are `others` when it has its other size.
fn compare(
    shape: &mut [Dimension],
    sizes: &[u64],
    others: &[u64],
    name: &Name,
    called: &Dimension,
) {
    if sizes.len() != others.len() {
        return;
    }
    for ((dimension, &size), &other) in shape.iter_mut().zip(sizes).zip(others) {
        let is_named = (size, other) == (name.size, name.other_size());
        match dimension {
            _ if other == size => {}
            Dimension::Known(_) if is_named => *dimension = called.clone(),
            Dimension::Symbol(_) if is_named => {}
            _ => *dimension = Dimension::Unknown,
        }
    }
}
