//! Slice and its gradient.

use super::evaluate::{positions, select, strides, with_contents};
use super::view::{Fault, Outputs, View, known, resolve_axis, unknown};
use super::{Family, Operator, microsoft, onnx, output_twice};
use crate::graph::Constant;

pub(super) const OPERATORS: &[Operator] = &[
    onnx("Slice", Family::Movement, slice)
        .operations(|_| None)
        .traffic(output_twice),
    microsoft("SliceGrad", Family::Movement, |view| shape_from(view, 1, 0))
        .operations(|_| None)
        .traffic(output_twice),
];

/// An output of the type of input `data`, shaped as the contents of input `shape` say.
pub(super) fn shape_from(view: &View, shape: usize, data: usize) -> Result<Outputs, Fault> {
    let Some(dims) = view.input(shape)?.ints() else {
        return unknown();
    };
    let sizes: Option<Vec<u64>> = dims.iter().map(|&d| u64::try_from(d).ok()).collect();
    let sizes = sizes.ok_or_else(|| view.bad_value(shape, dims, "sizes from 0 up"))?;
    Ok(vec![known(view.input(data)?.element, sizes)])
}

/// The elements that are taken along one axis: `start`, `start + step`, ..., `count` of them.
#[derive(Clone, Copy)]
struct TakenElements {
    start: u64,
    step: i64,
    count: u64,
}

fn slice(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    // Slice-1 has attributes instead of inputs.
    let from_attributes = view.node.ints("starts").is_some();
    let list = |name: &str, position: usize| -> Result<List, Fault> {
        if from_attributes {
            return Ok(view.node.ints(name).map_or(List::Absent, List::These));
        }
        Ok(match view.optional(position)? {
            None => List::Absent,
            Some(input) => input.ints().map_or(List::Unknown, List::These),
        })
    };
    let (starts, ends) = match (list("starts", 1)?, list("ends", 2)?) {
        (List::These(starts), List::These(ends)) if starts.len() == ends.len() => (starts, ends),
        (List::These(_), List::These(ends)) => {
            return Err(view.bad_value(2, ends, "as many ends as starts"));
        }
        (List::Absent, _) => return Err(Fault::MissingInput(1)),
        (_, List::Absent) => return Err(Fault::MissingInput(2)),
        _ => return unknown(),
    };
    let default_axes: Vec<i64> = (0..starts.len() as i64).collect();
    let axes = match list("axes", 3)? {
        List::These(axes) => axes,
        List::Absent => &default_axes,
        List::Unknown => return unknown(),
    };
    let default_steps = vec![1; starts.len()];
    let steps = match list("steps", 4)? {
        List::These(steps) => steps,
        List::Absent => &default_steps,
        List::Unknown => return unknown(),
    };
    if axes.len() != starts.len() || steps.len() != starts.len() {
        return Err(view.bad_value(3, axes, "as many axes and steps as starts"));
    }
    let mut runs: Vec<TakenElements> = x
        .shape
        .iter()
        .map(|&count| TakenElements {
            start: 0,
            step: 1,
            count,
        })
        .collect();
    for (i, &axis) in axes.iter().enumerate() {
        let axis = resolve_axis(axis, x.rank())
            .ok_or_else(|| view.bad_value(3, axes, "axes of input 0"))?;
        runs[axis] = run(x.shape[axis], starts[i], ends[i], steps[i])
            .ok_or_else(|| view.bad_value(4, steps, "steps other than 0"))?;
    }
    let shape: Vec<u64> = runs.iter().map(|run| run.count).collect();
    let contents = x.constant.and_then(|c| taken(c, x.shape, &runs, &shape));
    Ok(vec![with_contents(x.with_shape(shape), contents)])
}

enum List<'a> {
    Absent,
    Unknown,
    These(&'a [i64]),
}

/// What `[start:end:step]` takes of an axis of `size`, by numpy's rules; `None` if `step` is 0.
fn run(size: u64, start: i64, end: i64, step: i64) -> Option<TakenElements> {
    let size = i64::try_from(size).ok()?;
    let from_front = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
    let (start, end) = (from_front(start), from_front(end));
    let (start, distance) = match step {
        0 => return None,
        1.. => {
            let start = start.clamp(0, size);
            (start, end.clamp(0, size) - start)
        }
        _ => {
            let start = start.clamp(-1, size - 1);
            (start, start - end.clamp(-1, size - 1))
        }
    };
    let count = if distance <= 0 {
        0
    } else {
        (distance as u64).div_ceil(step.unsigned_abs())
    };
    Some(TakenElements {
        start: start.max(0) as u64,
        step,
        count,
    })
}

fn taken(
    contents: &Constant,
    from: &[u64],
    runs: &[TakenElements],
    to: &[u64],
) -> Option<Constant> {
    let strides = strides(from)?;
    let at = |axis: usize, i: u64| {
        let offset = i.wrapping_mul(runs[axis].step as u64);
        runs[axis]
            .start
            .wrapping_add(offset)
            .wrapping_mul(strides[axis])
    };
    select(contents, &positions(to, at)?)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::*;

    fn slice(x: Case, starts: &[i64], ends: &[i64], axes: &[i64], steps: &[i64]) -> Case {
        let n = starts.len() as u64;
        x.ints(&[n], starts)
            .ints(&[n], ends)
            .ints(&[n], axes)
            .ints(&[n], steps)
    }

    #[test]
    fn bounds_are_clamped() {
        let x = || Case::onnx("Slice").float(&[10, 4]);
        assert_eq!(
            slice(x(), &[2], &[i64::MAX], &[0], &[3]).shapes(),
            ["float[3, 4]"]
        ); // 2 5 8
        assert_eq!(
            slice(x(), &[-3], &[-1], &[0], &[1]).shapes(),
            ["float[2, 4]"]
        );
        assert_eq!(slice(x(), &[5], &[2], &[0], &[1]).shapes(), ["float[0, 4]"]);
        assert_eq!(
            slice(x(), &[-1], &[i64::MIN], &[1], &[-1]).shapes(),
            ["float[10, 4]"]
        );
        insta::assert_snapshot!(slice(x(), &[0], &[1], &[0], &[0]).fault(),
            @"input 4 says [0]; expected steps other than 0");
        insta::assert_snapshot!(slice(x(), &[0], &[1], &[2], &[1]).fault(),
            @"input 3 says [2]; expected axes of input 0");
    }

    #[test]
    fn contents_are_sliced() {
        let x = Case::onnx("Slice").ints(&[4], &[1, 2, 3, 4]);
        let case = slice(x.clone(), &[1], &[3], &[0], &[1]);
        assert_eq!(case.shapes(), ["int64[2] = [2, 3]"]);
        let case = slice(x, &[-1], &[i64::MIN], &[0], &[-1]);
        assert_eq!(case.shapes(), ["int64[4] = [4, 3, 2, 1]"]);
        // the rows of a padding list, as PyTorch turns them around
        let x = Case::onnx("Slice").ints(&[2, 2], &[1, 2, 3, 4]);
        let case = slice(x, &[-1], &[i64::MIN], &[0], &[-1]);
        assert_eq!(case.shapes(), ["int64[2, 2] = [3, 4, 1, 2]"]);
    }

    #[test]
    fn old_slices_have_attributes() {
        let case = Case::onnx("Slice")
            .float(&[10])
            .list("starts", &[2])
            .list("ends", &[5])
            .list("axes", &[0]);
        assert_eq!(case.shapes(), ["float[3]"]);
    }

    #[test]
    fn the_gradient_has_the_shape_it_is_told() {
        let case = Case::microsoft("SliceGrad").float(&[2]).ints(&[2], &[3, 4]);
        assert_eq!(case.shapes(), ["float[3, 4]"]);
        insta::assert_snapshot!(
            Case::microsoft("SliceGrad").float(&[2]).ints(&[1], &[-3]).fault(),
            @"input 1 says [-3]; expected sizes from 0 up");
    }

    #[test]
    fn runs_follow_numpy() {
        let count = |size, start, end, step| run(size, start, end, step).map(|r| r.count);
        assert_eq!(count(5, 4, -6, -2), Some(3)); // 4 2 0
        assert_eq!(count(0, 0, 5, 1), Some(0));
        assert_eq!(count(5, i64::MIN, i64::MAX, i64::MAX), Some(1));
        assert_eq!(count(5, i64::MAX, i64::MIN, i64::MIN), Some(1));
    }
}
