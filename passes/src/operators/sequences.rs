//! Operators on sequences, optional values and maps: what they make is no tensor, so nothing of a plan touches it. It is
//! neither copied nor passed through a barrier, and only counted.

use super::open::Open;
use super::view::{Fault, Known, Outputs, View, known, one, unknown};
use super::{Family, Operator, Recompute, onnx, resolve_axis};
use crate::graph::{ElementType, Node};

pub(super) const OPERATORS: &[Operator] = &[
    entry("SequenceAt", |_| unknown()),
    entry("SequenceConstruct", |_| unknown()),
    entry("SequenceEmpty", |_| unknown()),
    entry("SequenceErase", |_| unknown()),
    entry("SequenceInsert", |_| unknown()),
    entry("SequenceLength", number),
    entry("SequenceMap", |_| unknown()),
    entry("SplitToSequence", |_| unknown()),
    entry("ConcatFromSequence", concatenated),
    entry("Optional", |_| unknown()),
    entry("OptionalGetElement", |_| unknown()),
    entry("OptionalHasElement", flag),
];

const fn entry(name: &'static str, rule: super::ShapeRule) -> Operator {
    onnx(name, Family::Movement, rule)
        .operations(|_| None)
        .recompute(|_| Recompute::Never("it deals with what is no tensor"))
}

/// Is what the node writes no tensor, whatever the file says? (What a SequenceMap writes are sequences, all of them.)
pub(crate) fn makes_no_tensor(node: &Node) -> bool {
    const NONE: [&str; 8] = [
        "Optional",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceMap",
        "SplitToSequence",
        "ZipMap",
    ];
    matches!(node.domain.as_str(), "" | "ai.onnx.ml") && NONE.contains(&node.op_type.as_str())
}

/// What is in a sequence or an optional value, as far as that is known. All sizes are bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// What has room for each of the tensors, axis by axis; `None` where there are none.
    largest: Option<(ElementType, Vec<u64>)>,
    /// How many there are, and what their sizes along each axis add up to.
    all: Option<(u64, Vec<u64>)>,
}

impl Contents {
    /// One tensor.
    fn one(of: &Known) -> Contents {
        Contents {
            largest: Some((of.element, of.shape.clone())),
            all: Some((1, of.shape.clone())),
        }
    }

    fn none() -> Contents {
        Contents {
            largest: None,
            all: Some((0, Vec::new())),
        }
    }

    /// What has room for both, and adds them up if they are there at once; `None` where they have not the same number of axes.
    fn joined(self, other: Contents, at_once: bool) -> Option<Contents> {
        let largest = match (self.largest, other.largest) {
            (Some((element, a)), Some((_, b))) if a.len() == b.len() => {
                let both = a.into_iter().zip(b);
                Some((element, both.map(|(a, b)| a.max(b)).collect()))
            }
            (Some(_), Some(_)) => return None,
            (one, other) => one.or(other),
        };
        let put = |a: u64, b: u64| match at_once {
            true => a.saturating_add(b),
            false => a.max(b),
        };
        let all = self.all.zip(other.all).map(|((n, a), (m, b))| {
            let sums = (0..a.len().max(b.len())).map(|axis| {
                let size = |sums: &[u64]| sums.get(axis).copied().unwrap_or(0);
                put(size(&a), size(&b))
            });
            (put(n, m), sums.collect())
        });
        Some(Contents { largest, all })
    }

    /// What has room for one of both.
    pub(crate) fn either(self, other: Contents) -> Option<Contents> {
        self.joined(other, false)
    }

    /// The same without a word on how many there are.
    pub(crate) fn uncounted(self) -> Contents {
        Contents { all: None, ..self }
    }

    /// Of any number of these.
    pub(crate) fn has_room_for(&self, other: &Contents) -> bool {
        match (&self.largest, &other.largest) {
            (_, None) => true,
            (Some((_, a)), Some((_, b))) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a >= b)
            }
            (None, Some(_)) => false,
        }
    }
}

/// What the node puts into what it writes, which is no tensor: of tensors and of `held` that it reads, by position.
pub(crate) fn put_in(
    node: &Node,
    tensor: impl Fn(usize) -> Option<Known>,
    held: impl Fn(usize) -> Option<Contents>,
) -> Option<Contents> {
    match node.op_type.as_str() {
        "SequenceEmpty" => Some(Contents::none()),
        "SequenceConstruct" => (0..node.inputs.len()).try_fold(Contents::none(), |all, at| {
            all.joined(Contents::one(&tensor(at)?), true)
        }),
        "SequenceInsert" => held(0)?.joined(Contents::one(&tensor(1)?), true),
        "SequenceErase" | "Identity" => held(0),
        "Optional" => Some(Contents::one(&tensor(0)?)),
        "SplitToSequence" => {
            let whole = tensor(0)?;
            let mut shape = whole.shape;
            let axis = resolve_axis(node.int("axis").unwrap_or(0), shape.len())?;
            let mut sums = shape.clone();
            let length = shape[axis];
            if node.input(1).is_some() {
                return Some(Contents {
                    largest: Some((whole.element, shape)),
                    all: None,
                });
            }
            for (at, sum) in sums.iter_mut().enumerate().filter(|&(at, _)| at != axis) {
                *sum = shape[at].saturating_mul(length);
            }
            if node.int("keepdims") == Some(0) {
                shape.remove(axis);
                sums.remove(axis);
            } else {
                shape[axis] = shape[axis].min(1);
            }
            Some(Contents {
                largest: Some((whole.element, shape)),
                all: Some((length, sums)),
            })
        }
        _ => None,
    }
}

/// The tensor that the node makes of what is in the `held` that it reads.
pub(crate) fn taken_out(node: &Node, held: &Contents) -> Option<Open> {
    let (element, shape) = held.largest.clone()?;
    let mut sizes: Vec<Option<u64>> = shape.into_iter().map(Some).collect();
    match node.op_type.as_str() {
        "SequenceAt" | "OptionalGetElement" => {}
        "ConcatFromSequence" => {
            let axis = node.int("axis")?;
            if node.int("new_axis") == Some(1) {
                let axis = resolve_axis(axis, sizes.len() + 1)?;
                sizes.insert(axis, held.all.as_ref().map(|(count, _)| *count));
            } else {
                let axis = resolve_axis(axis, sizes.len())?;
                let sum = held.all.as_ref();
                sizes[axis] = sum.and_then(|(_, sums)| sums.get(axis).copied());
            }
        }
        _ => return None,
    }
    Some(Open { element, sizes })
}

fn number(_: &View) -> Result<Outputs, Fault> {
    one(ElementType::Int64, Vec::new())
}

fn flag(_: &View) -> Result<Outputs, Fault> {
    one(ElementType::Bool, Vec::new())
}

/// What was split is put together again; of other sequences nothing is known.
fn concatenated(view: &View) -> Result<Outputs, Fault> {
    let sequence = view.node.input(0).ok_or(Fault::MissingInput(0))?;
    let Some(split) = view.uses.and_then(|uses| uses.producer(sequence)) else {
        return unknown();
    };
    let split = view.graph.node(split);
    let new_axis = view.node.int("new_axis").unwrap_or(0);
    if !split.is("", "SplitToSequence") || new_axis != 0 {
        return unknown();
    }
    // Without sizes and axes of its own, each part has lost the axis.
    if split.input(1).is_none() && split.int("keepdims") == Some(0) {
        return unknown();
    }
    let Some(whole) = split.input(0).map(|whole| view.graph.tensor(whole)) else {
        return unknown();
    };
    let (Some(element), Some(shape)) = (whole.element, whole.shape.clone()) else {
        return unknown();
    };
    let axis = |node: &Node, default: i64| {
        let axis = node.int("axis").unwrap_or(default);
        super::view::resolve_axis(axis, shape.len())
    };
    // A ConcatFromSequence has to name its axis.
    if axis(split, 0) != axis(view.node, 0) {
        return unknown();
    }
    Ok(vec![known(element, shape)])
}
