//! The gradient of Slice: zeros around dY.

use super::operation::op;
use super::site::{LoweringSite, Obstacle, case};
use crate::graph::{ElementType, TensorId};

/// What is known of a slice on one axis.
struct Cut {
    axis: usize,
    start: i64,
    step: i64,
}

/// SliceGrad(dY, shape, starts, ends, axes, steps).
pub(super) fn slice_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, shape, starts] = site.inputs()?;
    let dx = site.result()?;
    let rank = site.rank(dy)?;
    let axes = axes(site, rank)?;
    let steps = match site.node.input(5) {
        None => Some(vec![1; axes.as_ref().map_or(0, Vec::len)]),
        Some(steps) => site.constant_ints(steps),
    };
    let Some(steps) = steps else {
        return case("where its steps are computed");
    };
    if let (Some(axes), Some(starts)) = (&axes, site.constant_ints(starts))
        && let Some(pads) = pads(site, dy, dx, axes, &starts, &steps)
    {
        return padded(site, dy, dx, pads);
    }
    let mut data = dy;
    if steps.iter().any(|&step| step != 1) {
        let Some(axes) = axes.as_ref().filter(|axes| axes.len() == steps.len()) else {
            return case("where steps are not 1 and axes are computed");
        };
        for (&axis, &step) in axes.iter().zip(&steps) {
            if step < 1 {
                return case("where steps are negative and a size is not known");
            }
            data = spread(site, data, axis, step, rank);
        }
    }
    let starts = site.converted(starts, ElementType::Int64)?;
    let places = match (&axes, site.node.input(4)) {
        (Some(axes), _) => {
            let axes: Vec<i64> = axes.iter().map(|&axis| axis as i64).collect();
            site.ints(&axes)
        }
        (None, Some(axes)) => site.converted(axes, ElementType::Int64)?,
        (None, None) => {
            // All from the first on, as many as there are starts.
            let (zero, one) = (site.int(0), site.int(1));
            let count = site.add(op("Size", [starts]));
            site.add(op("Range", [zero, count, one]))
        }
    };
    let sizes = site.add(op("Gather", [shape, places]).int("axis", 0));
    let zero = site.int(0);
    let is_negative = site.add(op("Less", [starts, zero]));
    let behind = site.add(op("Add", [starts, sizes]));
    let starts = site.add(op("Where", [is_negative, behind, starts]));
    let starts = site.add(op("Max", [starts, zero]));
    let starts = site.add(op("Min", [starts, sizes]));
    let none = site.ints(&vec![0; rank]);
    let begins = site.add(op("ScatterElements", [none, places, starts]).int("axis", 0));
    // Fewer than none where zeros behind the last number are too many.
    let taken = site.add(op("Shape", [data]));
    let ends = site.add(op("Sub", [shape, taken]));
    let ends = site.add(op("Sub", [ends, begins]));
    let pads = site.add(op("Concat", [begins, ends]).int("axis", 0));
    site.put(op("Pad", [data, pads]), dx);
    Ok(())
}

/// `data` with zeros behind each number on an axis, so that they are `apart`.
fn spread(
    site: &mut LoweringSite,
    data: TensorId,
    axis: usize,
    apart: i64,
    rank: usize,
) -> TensorId {
    if apart == 1 {
        return data;
    }
    let behind = site.ints(&[axis as i64 + 1]);
    let data = site.add(op("Unsqueeze", [data, behind]));
    let mut zeros = vec![0; 2 * (rank + 1)];
    zeros[rank + 1 + axis + 1] = apart - 1;
    let zeros = site.ints(&zeros);
    let data = site.add(op("Pad", [data, zeros]));
    let shape = site.add(op("Shape", [data]));
    // All sizes are kept but that of the axis, which takes in the one behind it.
    let together = (0..=rank as i64).filter(|&place| place != axis as i64 + 1);
    let kept = site.ints(&together.collect::<Vec<_>>());
    let sizes = site.add(op("Gather", [shape, kept]).int("axis", 0));
    let (at, minus) = (site.ints(&[axis as i64]), site.ints(&[-1]));
    let sizes = site.add(op("ScatterElements", [sizes, at, minus]).int("axis", 0));
    site.add(op("Reshape", [data, sizes]))
}

/// The axes as places, where they are constants, or none are given and it is known how many starts there are.
fn axes(site: &LoweringSite, rank: usize) -> Result<Option<Vec<usize>>, Obstacle> {
    let list = match site.node.input(4) {
        Some(axes) => site.constant_ints(axes),
        None => {
            let starts = site.input(2)?;
            let count = site.size(starts, 0);
            count.map(|count| (0..count as i64).collect())
        }
    };
    let Some(list) = list else { return Ok(None) };
    let place = |axis: i64| {
        let place = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(place).ok().filter(|&place| place < rank)
    };
    match list.into_iter().map(place).collect() {
        Some(places) => Ok(Some(places)),
        None => case("where an axis is none of X"),
    }
}

/// Where dY starts on each axis, how far apart its numbers are, and the size of X, if all is known.
fn pads(
    site: &LoweringSite,
    dy: TensorId,
    dx: TensorId,
    axes: &[usize],
    starts: &[i64],
    steps: &[i64],
) -> Option<Vec<(Cut, i64)>> {
    if starts.len() != axes.len() || steps.len() != axes.len() {
        return None;
    }
    let mut cuts = Vec::with_capacity(axes.len());
    for ((&axis, &start), &step) in axes.iter().zip(starts).zip(steps) {
        let size = i64::try_from(site.size(dx, axis)?).ok()?;
        let start = if start < 0 {
            start.checked_add(size)?
        } else {
            start
        };
        let limit = if step < 0 { size - 1 } else { size };
        let start = start.clamp(0, limit.max(0));
        let count = i64::try_from(site.size(dy, axis)?).ok()?;
        let reach = count
            .checked_sub(1)?
            .checked_mul(step.checked_abs()?)?
            .checked_add(1)?;
        if count == 0 || step == 0 {
            return None;
        }
        let first = if step < 0 { start - (reach - 1) } else { start };
        let end = size.checked_sub(first.checked_add(reach)?)?;
        if first < 0 || end < 0 {
            return None;
        }
        let cut = Cut {
            axis,
            start: first,
            step,
        };
        cuts.push((cut, end));
    }
    Some(cuts)
}

fn padded(
    site: &mut LoweringSite,
    dy: TensorId,
    dx: TensorId,
    cuts: Vec<(Cut, i64)>,
) -> Result<(), Obstacle> {
    let rank = site.rank(dy)?;
    let (mut begins, mut ends) = (vec![0; rank], vec![0; rank]);
    let mut data = dy;
    for (cut, end) in cuts {
        begins[cut.axis] = cut.start;
        ends[cut.axis] = end;
        let axis = cut.axis as i64;
        if cut.step < 0 {
            let lists = [-1, i64::MIN, axis, -1].map(|value| site.ints(&[value]));
            let [start, until, axis, step] = lists;
            data = site.add(op("Slice", [data, start, until, axis, step]));
        }
        let apart = cut.step.abs();
        // The zeros behind the last number are cut off again.
        data = spread(site, data, cut.axis, apart, rank);
        ends[cut.axis] -= apart - 1;
    }
    let pads = site.ints(&[begins, ends].concat());
    site.put(op("Pad", [data, pads]), dx);
    Ok(())
}
