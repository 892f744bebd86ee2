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

/// What inputs have instead of a number. Unknown dimensions of one size count as one, and so does a name wherever it is; of products
/// each place is one, for there what is broadcast to a number has that number, whatever it is called elsewhere.
struct Name<'a> {
    dimension: &'a Dimension,
    /// What it is.
    size: u64,
    /// Inputs, and where in their shapes.
    places: Vec<(usize, usize)>,
}

impl Name<'_> {
    /// Is it the same dimension of some input as the other one is of another or the same?
    fn is_beside(&self, other: &Name) -> bool {
        let mut places = self.places.iter().map(|&(_, place)| place);
        places.any(|here| other.places.iter().any(|&(_, place)| place == here))
    }

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
    let is_product = is_product(node);
    let (Some(names), Some(plain)) = (names(graph, &reads, is_product), ask(&[])) else {
        return Vec::new();
    };
    let number = |&size: &u64| Dimension::Known(size);
    let mut shapes: Vec<Option<Vec<Dimension>>> = plain
        .iter()
        .map(|output| Some(output.as_ref()?.shape.iter().map(number).collect()))
        .collect();
    for name in &names {
        // What has to be equal changes together. What may not change at all has to be some number.
        let mut called = name.dimension;
        let alone = ask(&[name]);
        let others = alone.or_else(|| {
            let equal = || names.iter().filter(|other| other.size == name.size);
            let pair = |ask: &mut dyn FnMut(&[&Name]) -> Option<Vec<_>>| {
                equal().find_map(|other| Some((other, ask(&[name, other])?)))
            };
            if is_product {
                let (other, both) = pair(&mut ask)?;
                // Matrices are broadcast to each other, and then the runtime chooses no name of several.
                if other.dimension != name.dimension {
                    called = &Dimension::Unknown;
                }
                return Some(both);
            }
            // Sizes can be equal by chance, so few are tried before all.
            let beside: Vec<&Name> = equal().filter(|other| other.is_beside(name)).collect();
            ask(&beside)
                .or_else(|| Some(pair(&mut ask)?.1))
                .or_else(|| ask(&equal().collect::<Vec<_>>()))
        });
        if let Some(others) = others {
            let compared = plain.iter().zip(&others);
            for (shape, (plain, other)) in shapes.iter_mut().zip(compared) {
                if let (Some(shape), Some(plain), Some(other)) = (shape, plain, other) {
                    compare(
                        shape,
                        &plain.shape,
                        &other.shape,
                        name,
                        (called, is_product),
                    );
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

/// Of all inputs, those in different places `apart` or not; `None` if there are too many.
fn names<'r>(graph: &Graph, reads: &[KnownInput<'r>], apart: bool) -> Option<Vec<Name<'r>>> {
    let mut names: Vec<Name> = Vec::new();
    for (i, read) in reads.iter().enumerate() {
        let sizes = graph.tensor(read.tensor).shape.iter().flatten();
        let dimensions = read.shape.into_iter().flatten().zip(sizes);
        let named = |&(_, (dimension, _)): &(usize, (&Dimension, &u64))| !dimension.is_number();
        for (j, (dimension, &size)) in dimensions.enumerate().filter(named) {
            let key = (dimension, size);
            let mut known = names.iter();
            match known.position(|n| !apart && (n.dimension, n.size) == key) {
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

/// Says in `shape` what `name` is responsible for, as `called`: sizes that are `others` when it has its other size. Is what two names
/// are responsible for unknown, or does it have the first?
fn compare(
    shape: &mut [Dimension],
    sizes: &[u64],
    others: &[u64],
    name: &Name,
    (called, no_name_of_two): (&Dimension, bool),
) {
    if sizes.len() != others.len() {
        return;
    }
    for ((dimension, &size), &other) in shape.iter_mut().zip(sizes).zip(others) {
        let is_named = (size, other) == (name.size, name.other_size());
        match dimension {
            _ if other == size => {}
            Dimension::Known(_) if is_named => *dimension = called.clone(),
            found @ Dimension::Symbol(_) if is_named && (!no_name_of_two || found == called) => {}
            _ => *dimension = Dimension::Unknown,
        }
    }
}
