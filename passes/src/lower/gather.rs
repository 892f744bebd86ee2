//! Gradients of what picks elements: they are added at the places where they came from.

use std::ops::Range;

use super::operation::{op, op_of};
use super::pooling::{added, zeros_for};
use super::site::{LoweringSite, Obstacle, case};
use crate::graph::TensorId;

/// GatherGrad(shape, indices, dY): places are repeated for all numbers that one of them stands for, since a kernel that
/// adds whole slices (ScatterND) loses some where several threads add at one place.
pub(super) fn gather_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [shape, indices, dy] = site.inputs()?;
    let dx = site.result()?;
    let (of_indices, of_dy) = (site.rank(indices)?, site.rank(dy)?);
    let Some(rank) = (of_dy + 1).checked_sub(of_indices) else {
        return case("where dY has fewer dimensions than the indices");
    };
    let axis = site.axis(0, rank)?;
    site.needs_opset(16)?;
    let element = site.element(dy)?;
    let updates = if of_indices == 1 {
        dy
    } else {
        let flat = match site.numbers(dx) {
            Some(mut numbers) => {
                numbers[axis] = -1;
                site.ints(&numbers)
            }
            None => with_at(site, shape, axis, -1),
        };
        site.add(op("Reshape", [dy, flat]))
    };
    let mut column = vec![1; rank];
    column[axis] = -1;
    let places = site.reshaped(indices, &column);
    let all = site.add(op("Shape", [updates]));
    let places = site.add(op("Expand", [places, all]));
    let zeros = zeros_for(site, dy, shape, element);
    site.declare_alike(zeros, dx, rank, element);
    site.put(added(zeros, places, updates, axis as i64), dx);
    Ok(())
}

/// The list of integers with another one at `place`.
fn with_at(site: &mut LoweringSite, list: TensorId, place: usize, value: i64) -> TensorId {
    let (place, value) = (site.ints(&[place as i64]), site.ints(&[value]));
    site.add(op("ScatterElements", [list, place, value]).int("axis", 0))
}

/// GatherElementsGrad(dY, shape, indices).
pub(super) fn gather_elements_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, shape, indices] = site.inputs()?;
    let dx = site.result()?;
    site.needs_opset(16)?;
    let element = site.element(dy)?;
    let rank = site.rank(dy)?;
    let axis = site.axis(0, rank)?;
    let zeros = zeros_for(site, dy, shape, element);
    site.declare_alike(zeros, dx, rank, element);
    site.put(added(zeros, indices, dy, axis as i64), dx);
    Ok(())
}

/// GatherNDGrad(shape, indices, dY): the indices become places in a list of slices, and these are added like those of
/// GatherGrad.
pub(super) fn gather_nd_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [shape, indices, dy] = site.inputs()?;
    let dx = site.result()?;
    if site.node.int("batch_dims").unwrap_or(0) != 0 {
        return case("with batch_dims");
    }
    let constant = site.constant_ints(shape);
    let rank = site.rank(dx)?;
    let sizes: Vec<Option<i64>> = (0..rank)
        .map(|axis| {
            let told = constant.as_ref().and_then(|sizes| sizes.get(axis)).copied();
            told.or_else(|| site.int_size(dx, axis))
        })
        .collect();
    let last = site.rank(indices)?.saturating_sub(1);
    let depth = site.size(indices, last);
    let depth = depth.ok_or_else(|| site.unknown_size(indices, last))? as usize;
    if depth == 0 || depth > rank {
        return case("where an index has no numbers, or more than X dimensions");
    }
    site.needs_opset(16)?;
    let element = site.element(dy)?;
    let each = (0..depth).map(|axis| axis..axis + 1).collect();
    let size = products(site, shape, &sizes, each);
    let zero = site.int(0);
    let is_negative = site.add(op("Less", [indices, zero]));
    let behind = site.add(op("Add", [indices, size]));
    let places = site.add(op("Where", [is_negative, behind, indices]));
    let strides = (0..depth).map(|axis| axis + 1..depth).collect();
    let strides = products(site, shape, &sizes, strides);
    let places = site.add(op("Mul", [places, strides]));
    let places = site.reduced("ReduceSum", places, &[last as i64], false);
    let places = site.add(places);
    let places = site.reshaped(places, &[-1, 1]);
    let updates = match product(&sizes[depth..]) {
        Some(inner) => site.reshaped(dy, &[-1, inner]),
        None => {
            let rest = site.ints(&[-1]);
            let inner = products(site, shape, &sizes, std::iter::once(depth..rank).collect());
            let rows = site.joined(vec![rest, inner], 0);
            site.add(op("Reshape", [dy, rows]))
        }
    };
    let all = site.add(op("Shape", [updates]));
    let places = site.add(op("Expand", [places, all]));
    let flat = products(site, shape, &sizes, vec![0..depth, depth..rank]);
    let zeros = zeros_for(site, dy, flat, element);
    let sum = site.new_tensor("ScatterElements");
    site.declare_alike(zeros, sum, 2, element);
    site.put(added(zeros, places, updates, 0), sum);
    site.put(op("Reshape", [sum, shape]), dx);
    Ok(())
}

/// If all are known.
fn product(sizes: &[Option<i64>]) -> Option<i64> {
    let mut sizes = sizes.iter();
    sizes.try_fold(1i64, |product, size| product.checked_mul((*size)?))
}

/// Some products of sizes, as a list; each of the sizes of a range of axes, which `shape` tells where the file does not.
fn products(
    site: &mut LoweringSite,
    shape: TensorId,
    sizes: &[Option<i64>],
    of: Vec<Range<usize>>,
) -> TensorId {
    let number = |axes: &Range<usize>| product(&sizes[axes.clone()]);
    if let Some(numbers) = of.iter().map(number).collect::<Option<Vec<i64>>>() {
        return site.ints(&numbers);
    }
    let mut parts = Vec::new();
    for axes in of {
        parts.push(match number(&axes) {
            Some(number) => site.ints(&[number]),
            None => {
                let count = axes.len();
                let axes: Vec<i64> = axes.map(|axis| axis as i64).collect();
                let axes = site.ints(&axes);
                let sizes = site.add(op("Gather", [shape, axes]).int("axis", 0));
                match count {
                    1 => sizes,
                    _ => {
                        let product = site.reduced("ReduceProd", sizes, &[0], true);
                        site.add(product)
                    }
                }
            }
        });
    }
    site.joined(parts, 0)
}

/// ShrunkenGather is Gather.
pub(super) fn shrunken_gather(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [data, indices] = site.inputs()?;
    let y = site.result()?;
    let axis = site.node.int("axis").unwrap_or(0);
    site.put(op("Gather", [data, indices]).int("axis", axis), y);
    Ok(())
}

/// ConcatTraining(…) -> (Y, sizes on the axis).
pub(super) fn concat_training(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let y = site.result()?;
    let first = site.input(0)?;
    let axis = site.node.int("axis").unwrap_or(0);
    let inputs = site.node.inputs.clone();
    if let Some(lengths) = site.output(1) {
        let rank = site.rank(first)?;
        let place = site.axis(0, rank)?;
        let list: Option<Vec<i64>> = inputs
            .iter()
            .flatten()
            .map(|input| i64::try_from(site.size(*input, place)?).ok())
            .collect();
        match list {
            Some(list) => site.put_ints(&list, lengths),
            None => {
                let sizes = inputs.iter().flatten();
                let sizes = sizes.map(|input| Some(site.size_of(*input, place)));
                let sizes = sizes.collect();
                site.put(op_of("Concat", sizes).int("axis", 0), lengths);
            }
        }
    }
    site.put(op_of("Concat", inputs).int("axis", axis), y);
    Ok(())
}

/// SplitTraining(X, sizes).
pub(super) fn split_training(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let axis = site.node.int("axis").unwrap_or(0);
    let (inputs, outputs) = (site.node.inputs.clone(), site.node.outputs.clone());
    site.put_all(op_of("Split", inputs).int("axis", axis), outputs);
    Ok(())
}
