//! What a rule sees of a node: its inputs with their shapes, its attributes, and how it
//! complains.

use std::fmt;

use thiserror::Error;

use super::workspace::CpuKernels;
use crate::bytes::Bytes;
use crate::graph::{
    Constant, ElementType, Graph, Node, Tensor, TensorId, Uses, checked_count, count,
};

/// Contents of larger tensors are not kept.
pub(crate) const LARGEST_CONSTANT: u64 = 4096;

/// More dimensions than any runtime handles are refused, so that hostile ranks cost nothing.
pub(crate) const HIGHEST_RANK: usize = 64;

/// What is known of one output.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// The type of its elements.
    pub element: ElementType,
    /// Its concrete shape.
    pub shape: Vec<u64>,
    /// Its contents, where shapes may depend on them.
    pub constant: Option<Constant>,
}

/// Known outputs by position. What is missing or `None` has to come from the file.
pub(crate) type Outputs = Vec<Option<Known>>;

/// Why a shape rule refuses a node. The node's name is added by the caller.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)]
pub enum Fault {
    #[error("input {0} is missing")]
    MissingInput(usize),
    #[error("input {0} is not a tensor of known type and shape")]
    NotATensor(usize),
    #[error("input {input} has shape {found}; expected {expected}")]
    Shape {
        input: usize,
        found: Shape,
        expected: &'static str,
    },
    #[error("shapes {left} and {right} do not fit: {why}")]
    Mismatch {
        left: Shape,
        right: Shape,
        why: &'static str,
    },
    #[error("attribute {name:?} is {found}; expected {expected}")]
    Attribute {
        name: &'static str,
        found: String,
        expected: &'static str,
    },
    #[error("input {input} says {found}; expected {expected}")]
    Value {
        input: usize,
        found: String,
        expected: &'static str,
    },
    #[error("a tensor of this size does not fit into any memory")]
    TooLarge,
}

/// A shape as messages show it: `[2, 3]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape(pub Vec<u64>);

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// One input of a node, its type and shape known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    pub(crate) element: ElementType,
    pub(crate) shape: &'a [u64],
    pub(crate) constant: Option<&'a Constant>,
}

impl<'a> Input<'a> {
    fn of(tensor: &'a Tensor) -> Option<Input<'a>> {
        Some(Input {
            element: tensor.element?,
            shape: tensor.shape.as_deref()?,
            constant: tensor.constant.as_ref(),
        })
    }

    pub(crate) fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Saturates; exact for the sizes that shape inference lets through.
    pub(crate) fn count(&self) -> u64 {
        count(self.shape)
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.element.bytes(self.count())
    }

    /// The contents as integers, where they are known.
    pub(crate) fn ints(&self) -> Option<&'a [i64]> {
        self.constant?.ints()
    }

    /// The contents as floating point numbers, where they are known.
    pub(crate) fn floats(&self) -> Option<&'a [f64]> {
        self.constant?.floats()
    }

    /// The single number it holds, where it is known.
    pub(crate) fn number(&self) -> Option<f64> {
        match self.constant? {
            Constant::Ints(values) => values.first().map(|&v| v as f64),
            Constant::Floats(values) => values.first().copied(),
        }
    }

    /// Another tensor of this type and shape.
    pub(crate) fn same(&self) -> Option<Known> {
        self.with_shape(self.shape.to_vec())
    }

    /// Another tensor of this type.
    pub(crate) fn with_shape(&self, shape: Vec<u64>) -> Option<Known> {
        known(self.element, shape)
    }

    pub(crate) fn wrong(&self, input: usize, expected: &'static str) -> Fault {
        Fault::Shape {
            input,
            found: Shape(self.shape.to_vec()),
            expected,
        }
    }
}

/// A node of a graph in which the shapes of the node's inputs are known.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) node: &'a Node,
    /// Who makes the inputs, where that is known.
    pub(crate) uses: Option<&'a Uses>,
    /// What stands in for inputs, by tensor; empty for the graph as it is.
    pub(crate) stand_ins: &'a [StandIn],
    /// What the CPU's kernels allocate by.
    pub(crate) kernels: CpuKernels,
}

/// An input of another shape than the graph's.
#[derive(Clone, Debug)]
pub(crate) struct StandIn {
    /// Instead of this one.
    pub(crate) tensor: TensorId,
    /// `None`: unknown.
    pub(crate) shape: Option<Vec<u64>>,
    /// Are its contents those of the tensor, as far as they are known, or unknown?
    pub(crate) keeps_contents: bool,
}

impl<'a> View<'a> {
    /// Of a node whose surroundings do not matter.
    pub(crate) fn alone(graph: &'a Graph, node: &'a Node) -> View<'a> {
        View {
            graph,
            node,
            uses: None,
            stand_ins: &[],
            kernels: CpuKernels::DEFAULT,
        }
    }

    /// The input at `position`, which must be there.
    pub(crate) fn input(&self, position: usize) -> Result<Input<'a>, Fault> {
        self.optional(position)?
            .ok_or(Fault::MissingInput(position))
    }

    /// The input at `position`, if there is one.
    pub(crate) fn optional(&self, position: usize) -> Result<Option<Input<'a>>, Fault> {
        match self.node.input(position) {
            None => Ok(None),
            Some(id) => self.tensor(id).map(Some).ok_or(Fault::NotATensor(position)),
        }
    }

    /// All inputs that are there.
    pub(crate) fn inputs(&self) -> Result<Vec<Input<'a>>, Fault> {
        let there = (0..self.node.inputs.len()).filter(|&i| self.node.input(i).is_some());
        there.map(|i| self.input(i)).collect()
    }

    /// The output at `position`, once inferred.
    pub(crate) fn output(&self, position: usize) -> Option<Input<'a>> {
        self.tensor(self.node.output(position)?)
    }

    fn tensor(&self, id: TensorId) -> Option<Input<'a>> {
        let tensor = self.graph.tensor(id);
        match self
            .stand_ins
            .binary_search_by_key(&id, |other| other.tensor)
        {
            Err(_) => Input::of(tensor),
            Ok(place) => {
                let other = &self.stand_ins[place];
                Some(Input {
                    element: tensor.element?,
                    shape: other.shape.as_deref()?,
                    constant: tensor.constant.as_ref().filter(|_| other.keeps_contents),
                })
            }
        }
    }

    /// Is the output at `position` wanted?
    pub(crate) fn has_output(&self, position: usize) -> bool {
        self.node.output(position).is_some()
    }

    /// The version of the standard operators.
    pub(crate) fn opset(&self) -> i64 {
        self.graph.opset().unwrap_or(i64::MAX)
    }

    /// An axis attribute, counted from the back if negative; at most `rank - 1`.
    pub(crate) fn axis(
        &self,
        name: &'static str,
        default: i64,
        rank: usize,
    ) -> Result<usize, Fault> {
        let value = self.node.int(name).unwrap_or(default);
        resolve_axis(value, rank).ok_or_else(|| self.bad(name, value, "an axis of input 0"))
    }

    /// An integer attribute that must not be negative.
    pub(crate) fn natural(&self, name: &'static str, default: u64) -> Result<u64, Fault> {
        match self.node.int(name) {
            None => Ok(default),
            Some(value) => {
                u64::try_from(value).map_err(|_| self.bad(name, value, "a number from 0 up"))
            }
        }
    }

    /// An integer attribute that must be positive.
    pub(crate) fn positive(&self, name: &'static str, default: u64) -> Result<u64, Fault> {
        match self.natural(name, default)? {
            0 => Err(self.bad(name, 0, "a number from 1 up")),
            value => Ok(value),
        }
    }

    /// The complaint that attribute `name` is `found`.
    pub(crate) fn bad(
        &self,
        name: &'static str,
        found: impl fmt::Debug,
        expected: &'static str,
    ) -> Fault {
        Fault::Attribute {
            name,
            found: format!("{found:?}"),
            expected,
        }
    }

    /// The complaint that input `input` holds `found`.
    pub(crate) fn bad_value(
        &self,
        input: usize,
        found: impl fmt::Debug,
        expected: &'static str,
    ) -> Fault {
        Fault::Value {
            input,
            found: format!("{found:?}"),
            expected,
        }
    }

    /// The axes that an attribute (older operator sets) or an input (newer ones) names, or
    /// `None` where neither is there.
    pub(crate) fn axes(
        &self,
        name: &'static str,
        position: usize,
        rank: usize,
    ) -> Result<Axes, Fault> {
        let (values, from_attribute) = match (self.node.ints(name), self.optional(position)?) {
            (Some(values), _) => (values, true),
            (None, None) => return Ok(Axes::Absent),
            (None, Some(input)) => match input.ints() {
                Some(values) => (values, false),
                None => return Ok(Axes::Unknown),
            },
        };
        let mut axes = Vec::new();
        for &value in values {
            match resolve_axis(value, rank) {
                Some(axis) if !axes.contains(&axis) => axes.push(axis),
                _ if from_attribute => return Err(self.bad(name, value, "a new axis of the data")),
                _ => return Err(self.bad_value(position, value, "a new axis of the data")),
            }
        }
        Ok(Axes::These(axes))
    }
}

/// What a node says about axes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Axes {
    Absent,
    /// They are computed, and could not be followed.
    Unknown,
    These(Vec<usize>),
}

/// A known output without known contents.
pub(crate) fn known(element: ElementType, shape: Vec<u64>) -> Option<Known> {
    Some(Known {
        element,
        shape,
        constant: None,
    })
}

/// The answer of a rule with one output.
pub(crate) fn one(element: ElementType, shape: Vec<u64>) -> Result<Outputs, Fault> {
    Ok(vec![known(element, shape)])
}

/// The answer of a rule that cannot say: the file has to.
pub(crate) fn unknown() -> Result<Outputs, Fault> {
    Ok(Vec::new())
}

/// `axis`, counted from the back if negative.
pub(crate) fn resolve_axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 {
        axis.checked_add(rank)?
    } else {
        axis
    };
    (0..rank).contains(&axis).then_some(axis as usize)
}

/// The product of dimensions.
pub(crate) fn product(dims: &[u64]) -> Result<u64, Fault> {
    checked_count(dims).ok_or(Fault::TooLarge)
}

/// The dimension that `value` stands for.
pub(crate) fn dimension(value: i64) -> Result<u64, Fault> {
    u64::try_from(value).map_err(|_| Fault::TooLarge)
}

/// Numpy's broadcasting of two shapes.
pub(crate) fn broadcast(left: &[u64], right: &[u64]) -> Result<Vec<u64>, Fault> {
    let rank = left.len().max(right.len());
    let at = |shape: &[u64], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    let dims = (0..rank).map(|i| match (at(left, i), at(right, i)) {
        (1, d) | (d, 1) => Some(d),
        (a, b) if a == b => Some(a),
        _ => None,
    });
    dims.collect::<Option<Vec<u64>>>()
        .ok_or_else(|| Fault::Mismatch {
            left: Shape(left.to_vec()),
            right: Shape(right.to_vec()),
            why: "they do not broadcast",
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_aligns_at_the_back() {
        assert_eq!(broadcast(&[2, 1, 4], &[3, 1]), Ok(vec![2, 3, 4]));
        assert_eq!(broadcast(&[], &[5]), Ok(vec![5]));
        assert_eq!(broadcast(&[0, 1], &[1, 7]), Ok(vec![0, 7]));
        assert!(broadcast(&[2], &[3]).is_err());
    }

    #[test]
    fn axes_count_from_the_back() {
        assert_eq!(resolve_axis(-1, 3), Some(2));
        assert_eq!(resolve_axis(3, 3), None);
        assert_eq!(resolve_axis(-4, 3), None);
        assert_eq!(resolve_axis(i64::MIN, 3), None);
    }
}
