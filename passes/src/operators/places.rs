//! Where operators that move elements take them from, for small known tensors, and reductions of these.

use super::evaluate::strides;
use super::view::{LARGEST_CONSTANT, resolve_axis};
use crate::graph::{Constant, checked_count};

/// A tensor seen along one axis: what lies before it, it, and what lies behind it.
#[derive(Clone, Copy)]
pub(crate) struct Along {
    before: usize,
    size: usize,
    behind: usize,
}

impl Along {
    /// `None` where the tensor has more than [`LARGEST_CONSTANT`] elements.
    pub(crate) fn of(shape: &[u64], axis: usize) -> Option<Along> {
        let (before, size, behind) = (
            checked_count(&shape[..axis])?,
            *shape.get(axis)?,
            checked_count(&shape[axis + 1..])?,
        );
        let all = before.checked_mul(size)?.checked_mul(behind)?;
        (all.max(before).max(size).max(behind) <= LARGEST_CONSTANT).then_some(Along {
            before: before as usize,
            size: size as usize,
            behind: behind as usize,
        })
    }

    fn at(&self, before: usize, along: usize, behind: usize) -> usize {
        (before * self.size + along) * self.behind + behind
    }

    /// Each line of elements along the axis, by their positions: row-major in what is not along it.
    fn lines(&self) -> impl Iterator<Item = Vec<usize>> + '_ {
        (0..self.before).flat_map(move |before| {
            (0..self.behind)
                .map(move |behind| (0..self.size).map(|i| self.at(before, i, behind)).collect())
        })
    }

    /// The positions of the elements `from..to` along the axis.
    pub(crate) fn part(&self, from: usize, to: usize) -> Vec<usize> {
        self.chosen(&(from..to).collect::<Vec<usize>>())
    }

    /// The positions of the elements at these places along the axis.
    fn chosen(&self, places: &[usize]) -> Vec<usize> {
        let mut positions = Vec::new();
        for before in 0..self.before {
            for &along in places {
                positions.extend((0..self.behind).map(|behind| self.at(before, along, behind)));
            }
        }
        positions
    }
}

/// Gather: what lies at `indices` along `axis`.
pub(crate) fn gathered(shape: &[u64], axis: usize, indices: &[i64]) -> Option<Vec<usize>> {
    let along = Along::of(shape, axis)?;
    let whole = (along.before * along.behind).checked_mul(indices.len())?;
    if whole as u64 > LARGEST_CONSTANT {
        return None;
    }
    let places: Option<Vec<usize>> = indices
        .iter()
        .map(|&i| resolve_axis(i, along.size))
        .collect();
    Some(along.chosen(&places?))
}

/// GatherElements, ScatterElements: where in data of `shape` each index points to.
pub(crate) fn by_element(
    shape: &[u64],
    axis: usize,
    indices: &[i64],
    indices_shape: &[u64],
) -> Option<Vec<usize>> {
    let strides = strides(shape)?;
    if indices.len() as u64 > LARGEST_CONSTANT {
        return None;
    }
    let size = usize::try_from(*shape.get(axis)?).ok()?;
    let own = super::evaluate::positions(indices_shape, |at, coordinate| match at == axis {
        true => 0,
        false => coordinate.saturating_mul(strides[at]),
    })?;
    let step = usize::try_from(strides[axis]).ok()?;
    let both = own.into_iter().zip(indices);
    both.map(|(base, &index)| {
        resolve_axis(index, size)?
            .checked_mul(step)?
            .checked_add(base)
    })
    .collect()
}

/// GatherND, ScatterND: where in data of `shape` the block begins that each tuple of indices points to, and how many
/// elements a block has.
pub(crate) fn by_tuple(
    shape: &[u64],
    batch: usize,
    indices: &[i64],
    indices_shape: &[u64],
) -> Option<(Vec<usize>, usize)> {
    let strides = strides(shape)?;
    let length = usize::try_from(*indices_shape.last()?).ok()?;
    let block = shape.get(batch.checked_add(length)?..)?;
    let block = checked_count(block)?;
    let leading = indices_shape.get(..batch)?;
    let batches = checked_count(leading)?;
    if length == 0 || batches == 0 || indices.len() as u64 > LARGEST_CONSTANT {
        return None;
    }
    let batch_block = checked_count(&shape[batch..])?;
    let tuples = indices.len() / length;
    let per_batch = (tuples / batches as usize).max(1);
    let begin = |(number, tuple): (usize, &[i64])| {
        let mut at = (number / per_batch) as u64 * batch_block;
        for (axis, &index) in tuple.iter().enumerate() {
            let size = usize::try_from(shape[batch + axis]).ok()?;
            at = at.checked_add(
                (resolve_axis(index, size)? as u64).checked_mul(strides[batch + axis])?,
            )?;
        }
        usize::try_from(at).ok()
    };
    let begins: Option<Vec<usize>> = indices.chunks(length).enumerate().map(begin).collect();
    Some((begins?, usize::try_from(block).ok()?))
}

/// `data` with `updates` at these positions, one after the other; with `combine`, of what is there and what comes.
pub(crate) fn scattered(
    data: &Constant,
    updates: &Constant,
    positions: &[usize],
    reduction: &str,
) -> Option<Constant> {
    fn put<T: Copy>(
        data: &[T],
        updates: &[T],
        positions: &[usize],
        combine: impl Fn(T, T) -> Option<T>,
    ) -> Option<Vec<T>> {
        let mut data = data.to_vec();
        for (&position, &update) in positions.iter().zip(updates) {
            let place = data.get_mut(position)?;
            *place = combine(*place, update)?;
        }
        (positions.len() == updates.len()).then_some(data)
    }
    match (data, updates) {
        (Constant::Ints(data), Constant::Ints(updates)) => {
            let combine = |a: i64, b: i64| match reduction {
                "none" => Some(b),
                "add" => a.checked_add(b),
                "mul" => a.checked_mul(b),
                "max" => Some(a.max(b)),
                "min" => Some(a.min(b)),
                _ => None,
            };
            put(data, updates, positions, combine).map(Constant::Ints)
        }
        (Constant::Floats(data), Constant::Floats(updates)) if reduction == "none" => {
            put(data, updates, positions, |_, b| Some(b)).map(Constant::Floats)
        }
        _ => None,
    }
}

/// A reduction of integers along `axes`; the result is row-major in the others.
pub(crate) fn reduced(op: &str, values: &[i64], shape: &[u64], axes: &[usize]) -> Option<Vec<i64>> {
    let kept: Vec<u64> = (0..shape.len())
        .map(|axis| if axes.contains(&axis) { 1 } else { shape[axis] })
        .collect();
    let strides = strides(&kept)?;
    let into = super::evaluate::positions(shape, |axis, at| match axes.contains(&axis) {
        true => 0,
        false => at * strides[axis],
    })?;
    let count = checked_count(&kept)?;
    if count > LARGEST_CONSTANT {
        return None;
    }
    let mut results: Vec<Option<i64>> = match op {
        "ReduceProd" => vec![Some(1); count as usize],
        "ReduceSum" => vec![Some(0); count as usize],
        _ => vec![None; count as usize],
    };
    for (&value, place) in values.iter().zip(into) {
        let result = results.get_mut(place)?;
        *result = Some(match (op, *result) {
            ("ReduceProd", Some(so_far)) => so_far.checked_mul(value)?,
            ("ReduceSum", Some(so_far)) => so_far.checked_add(value)?,
            ("ReduceMax", so_far) => so_far.map_or(value, |s| s.max(value)),
            ("ReduceMin", so_far) => so_far.map_or(value, |s| s.min(value)),
            _ => return None,
        });
    }
    results.into_iter().collect()
}

/// ArgMax, ArgMin: the place of the largest (smallest) along `axis`, the first of equals unless told otherwise.
pub(crate) fn extreme_places(
    values: &[i64],
    shape: &[u64],
    axis: usize,
    largest: bool,
    last: bool,
) -> Option<Vec<i64>> {
    let along = Along::of(shape, axis)?;
    let best = |line: Vec<usize>| {
        let mut best: Option<(usize, i64)> = None;
        for (place, at) in line.into_iter().enumerate() {
            let value = *values.get(at)?;
            let better = best.is_none_or(|(_, so_far)| match (value.cmp(&so_far), last) {
                (std::cmp::Ordering::Equal, last) => last,
                (order, _) => order.is_gt() == largest,
            });
            if better {
                best = Some((place, value));
            }
        }
        best.map(|(place, _)| place as i64)
    };
    along.lines().map(best).collect()
}

/// TopK: values and their places, sorted, the first of equals first.
pub(crate) fn top(
    values: &[i64],
    shape: &[u64],
    axis: usize,
    count: usize,
    largest: bool,
) -> Option<(Vec<i64>, Vec<i64>)> {
    let along = Along::of(shape, axis)?;
    let whole = (along.before * along.behind).checked_mul(count)?;
    if whole as u64 > LARGEST_CONSTANT || count > along.size {
        return None;
    }
    let (mut found, mut places) = (vec![0; whole], vec![0; whole]);
    for (number, line) in along.lines().enumerate() {
        let line: Option<Vec<i64>> = line.into_iter().map(|at| values.get(at).copied()).collect();
        let mut sorted: Vec<(usize, i64)> = line?.into_iter().enumerate().collect();
        sorted.sort_by_key(|&(_, value)| if largest { !value } else { value });
        let (before, behind) = (number / along.behind, number % along.behind);
        for (rank, (place, value)) in sorted.into_iter().take(count).enumerate() {
            let at = (before * count + rank) * along.behind + behind;
            found[at] = value;
            places[at] = place as i64;
        }
    }
    Some((found, places))
}

/// CumSum along `axis`.
pub(crate) fn running_sums(
    values: &[i64],
    shape: &[u64],
    axis: usize,
    exclusive: bool,
    reverse: bool,
) -> Option<Vec<i64>> {
    let along = Along::of(shape, axis)?;
    let mut sums = vec![0; values.len()];
    for mut line in along.lines() {
        if reverse {
            line.reverse();
        }
        let mut sum = 0i64;
        for at in line {
            let next = sum.checked_add(*values.get(at)?)?;
            sums[at] = if exclusive { sum } else { next };
            sum = next;
        }
    }
    Some(sums)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;

    #[test]
    fn contents_follow_any_axis() {
        let concat = Case::onnx("Concat")
            .ints(&[2, 1], &[1, 2])
            .ints(&[2, 1], &[3, 4])
            .int("axis", 1);
        assert_eq!(concat.shapes(), ["int64[2, 2] = [1, 3, 2, 4]"]);
        let gather = Case::onnx("Gather")
            .ints(&[2, 2], &[1, 2, 3, 4])
            .ints(&[1], &[-1])
            .int("axis", 1);
        assert_eq!(gather.shapes(), ["int64[2, 1] = [2, 4]"]);
        let split = Case::onnx("Split")
            .ints(&[2, 2], &[1, 2, 3, 4])
            .int("axis", 1)
            .outputs(2);
        assert_eq!(
            split.shapes(),
            ["int64[2, 1] = [1, 3]", "int64[2, 1] = [2, 4]"]
        );
        let product = Case::onnx("ReduceProd")
            .ints(&[2, 2], &[1, 2, 3, 4])
            .list("axes", &[1])
            .int("keepdims", 0);
        assert_eq!(product.shapes(), ["int64[2] = [2, 12]"]);
    }

    #[test]
    fn elements_are_found_and_put_by_their_indices() {
        let gather = Case::onnx("GatherElements")
            .ints(&[2, 2], &[1, 2, 3, 4])
            .ints(&[1, 2], &[1, 0]);
        assert_eq!(gather.shapes(), ["int64[1, 2] = [3, 2]"]);
        let gather = Case::onnx("GatherND")
            .ints(&[2, 2], &[1, 2, 3, 4])
            .ints(&[2, 1], &[1, 0]);
        assert_eq!(gather.shapes(), ["int64[2, 2] = [3, 4, 1, 2]"]);
        let scatter = Case::onnx("ScatterElements")
            .ints(&[3], &[1, 2, 3])
            .ints(&[1], &[-1])
            .ints(&[1], &[9]);
        assert_eq!(scatter.shapes(), ["int64[3] = [1, 2, 9]"]);
        let scatter = Case::onnx("ScatterND")
            .ints(&[3], &[1, 2, 3])
            .ints(&[1, 1], &[0])
            .ints(&[1], &[9]);
        assert_eq!(scatter.shapes(), ["int64[3] = [9, 2, 3]"]);
        let outside = Case::onnx("GatherElements")
            .ints(&[2], &[1, 2])
            .ints(&[1], &[2]);
        assert_eq!(outside.shapes(), ["int64[1]"]);
    }

    #[test]
    fn lines_are_summed_sorted_and_compared() {
        let sums = |case: Case| case.ints(&[3], &[1, 2, 3]).ints(&[], &[0]);
        assert_eq!(
            sums(Case::onnx("CumSum")).shapes(),
            ["int64[3] = [1, 3, 6]"]
        );
        let exclusive = sums(Case::onnx("CumSum"))
            .int("exclusive", 1)
            .int("reverse", 1);
        assert_eq!(exclusive.shapes(), ["int64[3] = [5, 3, 0]"]);
        let largest = Case::onnx("ArgMax")
            .ints(&[2, 2], &[1, 2, 4, 4])
            .int("axis", 1)
            .int("keepdims", 0);
        assert_eq!(largest.shapes(), ["int64[2] = [1, 0]"]);
        let top = Case::onnx("TopK")
            .ints(&[3], &[5, 9, 7])
            .ints(&[1], &[2])
            .outputs(2);
        assert_eq!(top.shapes(), ["int64[2] = [9, 7]", "int64[2] = [1, 2]"]);
    }
}
