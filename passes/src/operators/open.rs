//! Results of which some sizes depend on what is in the inputs, without a bound, but not how many dimensions there are: somebody
//! has to say how large they are at most.

use super::activation::element_attribute;
use super::resize::resized_axes;
use super::resolve_axis;
use super::view::{Axes, HIGHEST_RANK, Input, View};
use crate::graph::{AttributeValue, ElementType, Node};

/// A result with sizes that are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    /// The type of its elements.
    pub(crate) element: ElementType,
    /// By axis; `None` where it is not known.
    pub(crate) sizes: Vec<Option<u64>>,
}

impl Open {
    fn of(element: ElementType, sizes: Vec<Option<u64>>) -> Option<Open> {
        (sizes.len() <= HIGHEST_RANK).then_some(Open { element, sizes })
    }

    fn all(element: ElementType, rank: usize) -> Option<Open> {
        Open::of(element, vec![None; rank.min(HIGHEST_RANK + 1)])
    }

    /// Of the input's sizes, but for those along `axes`.
    fn along(x: Input, axes: &[usize]) -> Option<Open> {
        let sizes = x.shape.iter().enumerate();
        let sizes = sizes.map(|(axis, &size)| (!axes.contains(&axis)).then_some(size));
        Open::of(x.element, sizes.collect())
    }
}

/// May [`open`] know something of what it writes?
pub(super) fn may_be_open(node: &Node) -> bool {
    const OPERATORS: [&str; 18] = [
        "BlackmanWindow",
        "CenterCropPad",
        "ConcatFromSequence",
        "ConstantOfShape",
        "Expand",
        "HammingWindow",
        "HannWindow",
        "Loop",
        "OneHot",
        "OptionalGetElement",
        "Pad",
        "Range",
        "Reshape",
        "Resize",
        "SequenceAt",
        "Split",
        "Tile",
        "Upsample",
    ];
    node.domain.is_empty() && OPERATORS.contains(&node.op_type.as_str())
}

/// Each result of a node whose rule does not know it. Where sizes of inputs are bounds, so are those that this knows.
pub(super) fn open(view: &View, of_bounds: bool) -> Option<Open> {
    let node = view.node;
    if !may_be_open(node) {
        return None;
    }
    let x = view.input(0).ok()?;
    let count = |position: usize| {
        let [count] = view.input(position).ok()?.shape else {
            return None;
        };
        usize::try_from(*count).ok()
    };
    let all: Vec<usize> = (0..x.rank()).collect();
    match node.op_type.as_str() {
        "Range" => Open::all(x.element, 1),
        "HannWindow" | "HammingWindow" | "BlackmanWindow" => {
            let element = match node.int("output_datatype") {
                Some(_) => element_attribute(view, "output_datatype").ok()?,
                None => ElementType::Float,
            };
            Open::all(element, 1)
        }
        "ConstantOfShape" => {
            let element = match node.attribute("value") {
                Some(AttributeValue::Tensor { element, .. }) => *element,
                Some(_) => return None,
                None => ElementType::Float,
            };
            Open::all(element, count(0)?)
        }
        "Expand" => {
            let rank = count(1)?.max(x.rank());
            let mut open = Open::all(x.element, rank)?;
            // An axis of more than one element stays as it is; where there may be fewer, there may be one.
            for (size, &before) in open.sizes.iter_mut().rev().zip(x.shape.iter().rev()) {
                *size = (before != 1 && !of_bounds).then_some(before);
            }
            Some(open)
        }
        // Into one axis goes all there is.
        "Reshape" => match count(1)? {
            1 => Open::of(x.element, vec![Some(x.count())]),
            rank => Open::all(x.element, rank),
        },
        "Tile" | "Upsample" => Open::all(x.element, x.rank()),
        "Resize" => Open::along(x, &resized_axes(view, x.rank()).ok()?),
        "Pad" => match view.axes("axes", 3, x.rank()).ok()? {
            Axes::These(axes) => Open::along(x, &axes),
            Axes::Absent | Axes::Unknown => Open::along(x, &all),
        },
        "CenterCropPad" => match node.ints("axes") {
            None => Open::along(x, &all),
            Some(axes) => {
                let axes = axes.iter().map(|&axis| resolve_axis(axis, x.rank()));
                Open::along(x, &axes.collect::<Option<Vec<usize>>>()?)
            }
        },
        "Split" => Open::along(x, &[view.axis("axis", 0, x.rank()).ok()?]),
        "OneHot" => {
            let axis = view.axis("axis", -1, x.rank() + 1).ok()?;
            let mut sizes: Vec<Option<u64>> = x.shape.iter().copied().map(Some).collect();
            sizes.insert(axis, None);
            Open::of(view.input(2).ok()?.element, sizes)
        }
        _ => None,
    }
}
