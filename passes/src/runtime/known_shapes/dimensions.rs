//! What follows of dimensions from other dimensions: what two branches agree on, what is broadcast, what a few operators' rules say.

use super::KnownDimensions;
use crate::graph::{Dimension, Graph, Node, TensorId, all_numbers};
use crate::operators::{MICROSOFT, resolve_axis};

/// What two branches agree on.
pub(super) fn agreed(one: KnownDimensions, other: KnownDimensions) -> KnownDimensions {
    let (one, other) = (one?, other?);
    let both = one.iter().zip(&other);
    let agreed = both.map(|(a, b)| match a == b {
        true => a.clone(),
        false => Dimension::Unknown,
    });
    (one.len() == other.len()).then(|| agreed.collect())
}

/// `shape`, but that a dimension that is no number in the `first` input is unknown, unless the rule `says`, by its position
/// and what it is.
pub(super) fn by_numbers(
    first: &[Dimension],
    mut shape: Vec<Dimension>,
    says: impl Fn(usize, &Dimension) -> bool,
) -> Vec<Dimension> {
    for (at, (dimension, first)) in shape.iter_mut().zip(first).enumerate() {
        if !first.is_number() && !says(at, dimension) {
            *dimension = Dimension::Unknown;
        }
    }
    shape
}

pub(super) fn known(
    shapes: &[KnownDimensions],
    input: Option<TensorId>,
) -> Option<&Vec<Dimension>> {
    shapes[input?.index()].as_ref()
}

/// What the runtime makes of a declaration and what it infers: numbers go before names.
pub(super) fn merged(declared: KnownDimensions, inferred: KnownDimensions) -> KnownDimensions {
    let (declared, inferred) = match (declared, inferred) {
        (Some(declared), Some(inferred)) if declared.len() == inferred.len() => {
            (declared, inferred)
        }
        (declared, inferred) => return declared.or(inferred),
    };
    let both = declared.into_iter().zip(inferred);
    Some(both.map(|(one, other)| of_both(one, other)).collect())
}

/// What is known of a size of which both are known.
pub(super) fn of_both(one: Dimension, other: Dimension) -> Dimension {
    match (&one, &other) {
        (Dimension::Known(_), _) | (_, Dimension::Unknown) => one,
        (Dimension::Symbol(_), Dimension::Symbol(_)) => one,
        _ => other,
    }
}

/// The standard's rule: a number other than one wins; a name stands if it is the only one.
pub(super) fn broadcast(shapes: &[KnownDimensions], node: &Node) -> KnownDimensions {
    let inputs = node.inputs.iter();
    let inputs = inputs.map(|&input| known(shapes, input).map(Vec::as_slice));
    Some(broadcast_all(&inputs.collect::<Option<Vec<_>>>()?))
}

pub(super) fn broadcast_all(inputs: &[&[Dimension]]) -> Vec<Dimension> {
    let rank = inputs.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let dimension = |position: usize| {
        let here = inputs.iter().filter_map(|shape| {
            let back = rank - position;
            shape.len().checked_sub(back).map(|at| &shape[at])
        });
        let (mut size, mut names): (u64, Vec<&Dimension>) = (1, Vec::new());
        for dimension in here {
            match dimension {
                Dimension::Known(1) => {}
                Dimension::Known(other) => size = *other,
                name if names.contains(&name) => {}
                name => names.push(name),
            }
        }
        match names.as_slice() {
            [] => Dimension::Known(size),
            _ if size != 1 => Dimension::Known(size),
            [name] => (*name).clone(),
            _ => Dimension::Unknown,
        }
    };
    (0..rank).map(dimension).collect()
}

/// How many dimensions a tensor has whose shape is computed in the step, if the runtime knows that.
pub(super) fn rank_of(
    graph: &Graph,
    shapes: &[KnownDimensions],
    shape: TensorId,
    of: TensorId,
) -> KnownDimensions {
    let rank = graph.tensor(of).shape.as_ref()?.len();
    let is_known = known(shapes, Some(shape)).is_some_and(|shape| all_numbers(shape));
    is_known.then(|| vec![Dimension::Unknown; rank])
}

/// As many dimensions as the first input has, of which nothing is known.
pub(super) fn nothing_but_rank(first: Option<&Vec<Dimension>>) -> KnownDimensions {
    first.map(|first| vec![Dimension::Unknown; first.len()])
}

pub(super) fn has_statistics(node: &Node) -> bool {
    node.is("", "BatchNormalization") || node.is(MICROSOFT, "BatchNormInternal")
}

/// The statistics of a batch normalization of whose image nothing is known: one number for each that another input has.
pub(super) fn channels(shapes: &[KnownDimensions], node: &Node) -> KnownDimensions {
    let others = node.inputs.iter().skip(1);
    let others = others.filter_map(|&input| known(shapes, input)?.first().cloned());
    others.reduce(of_both).map(|channels| vec![channels])
}

/// The runtime does not read how many classes there are.
pub(super) fn one_hot(indices: &[Dimension], node: &Node) -> KnownDimensions {
    let mut shape = indices.to_vec();
    let axis = resolve_axis(node.int("axis").unwrap_or(-1), shape.len() + 1)?;
    shape.insert(axis, Dimension::Unknown);
    Some(shape)
}

/// What the runtime says of recurrent layers for training and their gradients: nothing of the hidden size, though it is an
/// attribute and the weights have it.
pub(super) fn recurrent(
    shapes: &[KnownDimensions],
    node: &Node,
    position: usize,
) -> KnownDimensions {
    node.int("hidden_size")?;
    let dimension = |input: usize, axis: usize| {
        let shape = known(shapes, node.input(input));
        let dimension = shape.and_then(|shape| shape.get(axis).cloned());
        dimension.unwrap_or(Dimension::Unknown)
    };
    let both = node.string("direction") == Some("bidirectional");
    let directions = || Dimension::Known(1 + u64::from(both));
    let (sequence, batch) = (|| dimension(0, 0), || dimension(0, 1));
    let (input, gates, hidden) = (
        || dimension(0, 2),
        || dimension(1, 1),
        || Dimension::Unknown,
    );
    let steps = |width| vec![sequence(), directions(), batch(), width];
    let state = || vec![directions(), batch(), hidden()];
    Some(match (node.op_type.as_str(), position) {
        ("GRUTraining", 0) | ("LSTMTraining", 0 | 3) => steps(hidden()),
        ("GRUTraining", 2) | ("LSTMTraining", 4) => steps(gates()),
        ("GRUTraining", _) | ("LSTMTraining", _) => state(),
        (_, 0) => vec![sequence(), batch(), input()],
        (_, 1) => vec![directions(), gates(), input()],
        (_, 2) => vec![directions(), gates(), hidden()],
        (_, 3 | 6) => vec![directions(), hidden()],
        ("GRUGrad", _) => return None,
        // It looks at this input, which is the cell state for the first hidden state.
        (_, position) => known(shapes, node.input(position + 1)).map(|_| state())?,
    })
}

/// Are both shapes known whole, and equal, number by number and name by name?
pub(crate) fn is_known_to_equal(
    shapes: &[KnownDimensions],
    one: TensorId,
    other: TensorId,
) -> bool {
    let (one, other) = (&shapes[one.index()], &shapes[other.index()]);
    let whole = |shape: &Vec<Dimension>| !shape.contains(&Dimension::Unknown);
    one.as_ref().is_some_and(whole) && one == other
}
