//! Operators that only look at shapes or only change them: nothing is computed, and where the
//! output is a tensor of the same contents, it is the input's memory.

use std::ops::Range;

use super::evaluate::with_contents;
use super::view::{
    Axes, Fault, HIGHEST_RANK, Input, Known, Outputs, Shape, View, dimension, known, product,
    resolve_axis, unknown,
};
use super::{Aliases, Family, Operator, microsoft, onnx};
use crate::graph::{Constant, ElementType, Node};

pub(super) const OPERATORS: &[Operator] = &[
    reads_shape("Shape", shape),
    reads_shape("Size", size),
    onnx("Identity", Family::View, same).alias(),
    onnx("Reshape", Family::View, reshape).alias(),
    onnx("Flatten", Family::View, flatten).alias(),
    onnx("Squeeze", Family::View, squeeze).alias(),
    onnx("Unsqueeze", Family::View, unsqueeze).alias(),
    microsoft("PassThrough", Family::View, each_to_each)
        .alias()
        .aliasing(Aliases::EachToEach),
    microsoft("BroadcastGradientArgs", Family::View, broadcast_axes)
        .operations(|_| None)
        .traffic(|_, _| Some(0.0)),
];

const fn reads_shape(name: &'static str, rule: super::ShapeRule) -> Operator {
    onnx(name, Family::View, rule)
        .operations(|_| None)
        .traffic(|_, _| Some(0.0))
}

/// A shape's numbers as a tensor's contents.
fn numbers(dims: &[u64]) -> Result<Constant, Fault> {
    let numbers = dims
        .iter()
        .map(|&d| i64::try_from(d).map_err(|_| Fault::TooLarge));
    numbers.collect::<Result<_, _>>().map(Constant::Ints)
}

/// Which of so many dimensions a Shape tells.
pub(crate) fn shape_bounds(node: &Node, rank: usize) -> Range<usize> {
    let bound = |name, default| {
        let at = node.int(name).unwrap_or(default);
        let at = match at < 0 {
            true => at.saturating_add_unsigned(rank as u64),
            false => at,
        };
        usize::try_from(at).map_or(0, |at| at.min(rank))
    };
    let (start, end) = (bound("start", 0), bound("end", i64::MAX));
    start..end.max(start)
}

fn shape(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let dims = &x.shape[shape_bounds(view.node, x.rank())];
    let output = known(ElementType::Int64, vec![dims.len() as u64]);
    Ok(vec![with_contents(output, Some(numbers(dims)?))])
}

fn size(view: &View) -> Result<Outputs, Fault> {
    let count = product(view.input(0)?.shape)?;
    let output = known(ElementType::Int64, Vec::new());
    Ok(vec![with_contents(output, Some(numbers(&[count])?))])
}

/// The same contents in another shape.
fn reshaped(x: Input, shape: Vec<u64>) -> Result<Outputs, Fault> {
    let output = Known {
        element: x.element,
        shape,
        constant: x.constant.cloned(),
    };
    Ok(vec![Some(output)])
}

fn same(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    reshaped(x, x.shape.to_vec())
}

fn each_to_each(view: &View) -> Result<Outputs, Fault> {
    let output = |position| {
        let Some(x) = view.optional(position)? else {
            return Ok(None);
        };
        let (element, shape) = (x.element, x.shape.to_vec());
        Ok(Some(Known {
            element,
            shape,
            constant: x.constant.cloned(),
        }))
    };
    (0..view.node.outputs.len()).map(output).collect()
}

fn reshape(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    // Reshape-1 has an attribute instead.
    let (wanted, position) = match view.node.ints("shape") {
        Some(wanted) => (wanted, 0),
        None => match view.input(1)?.ints() {
            Some(wanted) => (wanted, 1),
            None => return unknown(),
        },
    };
    if wanted.len() > HIGHEST_RANK {
        return Err(view.bad_value(position, wanted.len(), "a reasonable number of axes"));
    }
    let keep_zero = view.node.int("allowzero").unwrap_or(0) != 0;
    let mut shape = Vec::with_capacity(wanted.len());
    let mut open = None;
    for (axis, &size) in wanted.iter().enumerate() {
        match size {
            -1 if open.is_none() => {
                open = Some(axis);
                shape.push(1);
            }
            0 if !keep_zero => match x.shape.get(axis) {
                Some(&size) => shape.push(size),
                None => return Err(view.bad_value(position, wanted, "0 only for axes of input 0")),
            },
            size if size >= 0 => shape.push(dimension(size)?),
            _ => return Err(view.bad_value(position, wanted, "sizes, and -1 at most once")),
        }
    }
    let (count, rest) = (product(x.shape)?, product(&shape)?);
    let mismatch = || Fault::Mismatch {
        left: Shape(x.shape.to_vec()),
        right: Shape(shape.clone()),
        why: "the numbers of elements differ",
    };
    if let Some(axis) = open {
        if rest == 0 || count % rest != 0 {
            return Err(mismatch());
        }
        shape[axis] = count / rest;
    } else if rest != count {
        return Err(mismatch());
    }
    reshaped(x, shape)
}

fn flatten(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let wanted = view.node.int("axis").unwrap_or(1);
    // Unlike elsewhere, the axis may be the rank.
    let axis = if wanted == x.rank() as i64 {
        Some(x.rank())
    } else {
        resolve_axis(wanted, x.rank())
    };
    let Some(axis) = axis else {
        return Err(view.bad("axis", wanted, "an axis of input 0, or their number"));
    };
    reshaped(
        x,
        vec![product(&x.shape[..axis])?, product(&x.shape[axis..])?],
    )
}

fn squeeze(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let axes = match view.axes("axes", 1, x.rank())? {
        Axes::Unknown => return unknown(),
        Axes::These(axes) => axes,
        Axes::Absent => (0..x.rank()).filter(|&axis| x.shape[axis] == 1).collect(),
    };
    if axes.iter().any(|&axis| x.shape[axis] != 1) {
        return Err(x.wrong(0, "size 1 along the squeezed axes"));
    }
    let kept = (0..x.rank()).filter(|axis| !axes.contains(axis));
    reshaped(x, kept.map(|axis| x.shape[axis]).collect())
}

fn unsqueeze(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let added = match (view.node.ints("axes"), view.optional(1)?) {
        (Some(axes), _) => axes.len(),
        (None, Some(axes)) => match axes.ints() {
            Some(axes) => axes.len(),
            None => return unknown(),
        },
        (None, None) => return Err(Fault::MissingInput(1)),
    };
    let rank = x.rank() + added;
    if rank > HIGHEST_RANK {
        return Err(view.bad_value(1, added, "a reasonable number of axes"));
    }
    let axes = match view.axes("axes", 1, rank)? {
        Axes::These(axes) => axes,
        Axes::Absent | Axes::Unknown => return unknown(),
    };
    let mut old = x.shape.iter().copied();
    let shape = (0..rank).map(|axis| {
        if axes.contains(&axis) {
            Some(1)
        } else {
            old.next()
        }
    });
    reshaped(x, shape.flatten().collect())
}

/// BroadcastGradientArgs(shape of A, shape of B): the axes of the common shape along which A,
/// and along which B, were broadcast.
fn broadcast_axes(view: &View) -> Result<Outputs, Fault> {
    let (a, b) = (view.input(0)?, view.input(1)?);
    let (Some(a), Some(b)) = (a.ints(), b.ints()) else {
        return unknown();
    };
    let rank = a.len().max(b.len());
    let at = |dims: &[i64], axis: usize| (axis + dims.len()).checked_sub(rank).map(|i| dims[i]);
    let mut axes = [Vec::new(), Vec::new()];
    for axis in (0..rank).rev() {
        match (at(a, axis), at(b, axis)) {
            (None, Some(_)) => axes[0].push(axis as i64),
            (Some(_), None) => axes[1].push(axis as i64),
            (Some(x), Some(y)) if x == y => {}
            (Some(1), Some(_)) => axes[0].push(axis as i64),
            (Some(_), Some(1)) => axes[1].push(axis as i64),
            _ => return Err(view.bad_value(0, a, "a shape that broadcasts with input 1")),
        }
    }
    let output = |axes: Vec<i64>| {
        let known = known(ElementType::Int64, vec![axes.len() as u64]);
        with_contents(known, Some(Constant::Ints(axes)))
    };
    Ok(axes.map(output).into())
}

#[cfg(test)]
mod tests {
    use super::super::aliases;
    use super::super::testing::Case;

    #[test]
    fn shape_can_be_cut() {
        let case = Case::onnx("Shape").float(&[2, 3, 4]);
        assert_eq!(case.shapes(), ["int64[3] = [2, 3, 4]"]);
        let case = Case::onnx("Shape")
            .float(&[2, 3, 4])
            .int("start", -2)
            .int("end", 99);
        assert_eq!(case.shapes(), ["int64[2] = [3, 4]"]);
        let case = Case::onnx("Shape")
            .float(&[2, 3, 4])
            .int("start", 2)
            .int("end", 1);
        assert_eq!(case.shapes(), ["int64[0] = []"]);
        assert_eq!(
            Case::onnx("Size").float(&[2, 3]).shapes(),
            ["int64[] = [6]"]
        );
    }

    #[test]
    fn reshape_fills_the_open_axis_and_keeps_zeros() {
        // 24 / (2 * 3) = 4
        let case = Case::onnx("Reshape")
            .float(&[2, 12])
            .ints(&[3], &[0, -1, 3]);
        assert_eq!(case.shapes(), ["float[2, 4, 3]"]);
        let case = Case::onnx("Reshape")
            .float(&[0, 3])
            .ints(&[2], &[3, 0])
            .int("allowzero", 1);
        assert_eq!(case.shapes(), ["float[3, 0]"]);
        insta::assert_snapshot!(Case::onnx("Reshape").float(&[5]).ints(&[2], &[2, -1]).fault(),
            @"shapes [5] and [2, 1] do not fit: the numbers of elements differ");
        insta::assert_snapshot!(Case::onnx("Reshape").float(&[5]).ints(&[2], &[-1, -1]).fault(),
            @"input 1 says [-1, -1]; expected sizes, and -1 at most once");
        let computed = Case::onnx("Reshape").float(&[5]).int64(&[2]);
        assert_eq!(computed.shapes(), ["?"]);
    }

    #[test]
    fn contents_pass_through_views() {
        let case = Case::onnx("Unsqueeze").ints(&[2], &[5, 6]).ints(&[1], &[0]);
        assert_eq!(case.shapes(), ["int64[1, 2] = [5, 6]"]);
        let case = Case::onnx("Squeeze").ints(&[1, 1], &[5]);
        assert_eq!(case.shapes(), ["int64[] = [5]"]);
        let case = Case::onnx("Squeeze").float(&[2, 1, 3]).list("axes", &[-2]);
        assert_eq!(case.shapes(), ["float[2, 3]"]);
        insta::assert_snapshot!(Case::onnx("Squeeze").float(&[2, 3]).list("axes", &[0]).fault(),
            @"input 0 has shape [2, 3]; expected size 1 along the squeezed axes");
    }

    #[test]
    fn flatten_allows_the_rank_as_axis() {
        let flat = |axis| {
            Case::onnx("Flatten")
                .float(&[2, 3, 4])
                .int("axis", axis)
                .shapes()
        };
        assert_eq!(flat(0), ["float[1, 24]"]);
        assert_eq!(flat(3), ["float[24, 1]"]);
        assert_eq!(flat(-1), ["float[6, 4]"]);
    }

    #[test]
    fn broadcast_axes_are_found_from_the_back() {
        let case = Case::microsoft("BroadcastGradientArgs")
            .ints(&[3], &[2, 1, 4])
            .ints(&[1], &[4])
            .outputs(2);
        assert_eq!(case.shapes(), ["int64[0] = []", "int64[2] = [1, 0]"]);
    }

    #[test]
    fn barriers_forward_every_input() {
        let case = Case::microsoft("PassThrough")
            .float(&[2])
            .int64(&[3])
            .outputs(2);
        assert_eq!(case.shapes(), ["float[2]", "int64[3]"]);
        assert_eq!(aliases(&case.node()), [(0, 0), (1, 1)]);
        let one = Case::microsoft("PassThrough")
            .float(&[2])
            .int64(&[3])
            .no_output();
        assert_eq!(aliases(&one.node()), [(0, 0)]);
        assert_eq!(aliases(&Case::onnx("Relu").float(&[2]).node()), []);
    }
}
