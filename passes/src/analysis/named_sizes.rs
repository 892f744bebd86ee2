//! What an operator's rule about sizes says of names: which dimension of an output is which dimension of an input.
//!
//! The rule is asked again with another size for each name. A dimension that becomes this size has the name; one that changes
//! otherwise is unknown; one that no name changes is a number.

use crate::graph::{Dimension, Graph, Node, TensorId};
use crate::operators::{self, StandIn};

/// An input, as the runtime knows it.
pub(super) struct Read<'a> {
    pub(super) tensor: TensorId,
    pub(super) shape: Option<&'a [Dimension]>,
    /// Does the runtime know what is in it?
    pub(super) is_constant: bool,
}

/// A node whose rule is asked.
pub(super) struct Asked<'a> {
    graph: &'a Graph,
    node: &'a Node,
    /// The output's.
    position: usize,
    reads: Vec<Read<'a>>,
    names: Vec<Name<'a>>,
}

/// What inputs have instead of a number.
struct Name<'a> {
    dimension: &'a Dimension,
    /// What it is.
    size: u64,
    /// Positions in `reads`, and in their shapes.
    places: Vec<(usize, usize)>,
}

impl Name<'_> {
    /// Whatever divides the size divides this one.
    fn other_size(&self) -> u64 {
        self.size.saturating_mul(4)
    }
}

impl<'a> Asked<'a> {
    /// `graph` needs concrete shapes.
    pub(super) fn new(
        graph: &'a Graph,
        node: &'a Node,
        position: usize,
        reads: Vec<Read<'a>>,
    ) -> Asked<'a> {
        let mut names: Vec<Name> = Vec::new();
        for (i, read) in reads.iter().enumerate() {
            let sizes = graph.tensor(read.tensor).shape.iter().flatten();
            let dimensions = read.shape.into_iter().flatten().zip(sizes);
            for (j, (dimension, &size)) in dimensions.enumerate() {
                let known = names
                    .iter_mut()
                    .find(|name| (name.dimension, name.size) == (dimension, size));
                match (dimension, known) {
                    (Dimension::Known(_), _) => {}
                    (Dimension::Symbol(_), Some(name)) => name.places.push((i, j)),
                    _ => names.push(Name {
                        dimension,
                        size,
                        places: vec![(i, j)],
                    }),
                }
            }
        }
        Asked {
            graph,
            node,
            position,
            reads,
            names,
        }
    }

    /// `None` if the rule needs to know more.
    pub(super) fn answer(&self) -> Option<Vec<Dimension>> {
        let sizes = self.with_other_sizes(|_| false)?;
        let mut shape: Vec<Dimension> = sizes.iter().map(|&n| Dimension::Known(n)).collect();
        for (i, name) in self.names.iter().enumerate() {
            // What has to be equal changes together. What may not change at all has to be some number.
            let others = self
                .with_other_sizes(|other| other == i)
                .or_else(|| self.with_other_sizes(|other| self.names[other].size == name.size));
            let Some(others) = others.filter(|others| others.len() == sizes.len()) else {
                continue;
            };
            for ((dimension, &size), other) in shape.iter_mut().zip(&sizes).zip(others) {
                let is_named = (size, other) == (name.size, name.other_size());
                match dimension {
                    _ if other == size => {}
                    Dimension::Known(_) if is_named => *dimension = name.dimension.clone(),
                    Dimension::Symbol(_) if is_named => {}
                    _ => *dimension = Dimension::Unknown,
                }
            }
        }
        Some(shape)
    }

    /// The output's sizes, if the names that are `varied`, by their positions, have other ones.
    fn with_other_sizes(&self, varied: impl Fn(usize) -> bool) -> Option<Vec<u64>> {
        let stand_in = |(i, read): (usize, &Read)| {
            let mut shape = self.graph.tensor(read.tensor).shape.clone();
            for (n, name) in self.names.iter().enumerate() {
                let places = name.places.iter().filter(|(of, _)| *of == i && varied(n));
                if let Some(shape) = &mut shape {
                    places.for_each(|&(_, place)| shape[place] = name.other_size());
                }
            }
            StandIn {
                tensor: read.tensor,
                shape: shape.filter(|_| read.shape.is_some()),
                keeps_contents: read.is_constant,
            }
        };
        let stand_ins: Vec<StandIn> = self.reads.iter().enumerate().map(stand_in).collect();
        let mut outputs = operators::infer_instead(self.graph, self.node, &stand_ins)?;
        outputs
            .get_mut(self.position)?
            .take()
            .map(|known| known.shape)
    }
}
