//! Gradients of operators that broadcast.

use super::operation::{NewNode, fused_matmul, op, op_of};
use super::site::{LoweringSite, Obstacle, case, cast};
use crate::graph::{AttributeValue, ElementType, Node, TensorId};

/// DivGrad(dY, A, B) -> (dA, dB): dA = Σ dY / B, dB = Σ dY · (−A / B²), the sums over what was broadcast.
pub(super) fn div_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, a, b] = site.inputs()?;
    let (of_a, of_b) = (site.output(0), site.output(1));
    if let Some(output) = of_b {
        let square = site.add(op("Mul", [b, b]));
        let negative = site.add(op("Neg", [a]));
        let slope = site.add(op("Div", [negative, square]));
        let whole = op("Mul", [dy, slope]);
        sum_like(site, whole, b, a, output)?;
    }
    if let Some(output) = of_a {
        sum_like(site, op("Div", [dy, b]), a, b, output)?;
    }
    Ok(())
}

/// The result, summed over what `like` was broadcast on to go with `other`.
fn sum_like(
    site: &mut LoweringSite,
    whole: NewNode,
    like: TensorId,
    other: TensorId,
    output: TensorId,
) -> Result<(), Obstacle> {
    let (rank, of_other) = (site.rank(like)?, site.rank(other)?);
    let all = rank.max(of_other);
    let mut axes: Vec<i64> = (0..(all - rank) as i64).collect();
    let mut is_known = true;
    for axis in 0..rank {
        let Some(there) = (axis + of_other).checked_sub(rank) else {
            continue;
        };
        let (mine, theirs) = (site.size(like, axis), site.size(other, there));
        match (mine, theirs) {
            (Some(1), Some(1)) => {}
            (Some(1), _) => axes.push((axis + all - rank) as i64),
            (Some(_), _) | (None, Some(1)) => {}
            (None, _) => is_known = false,
        }
    }
    if is_known && axes.is_empty() {
        site.put(whole, output);
        return Ok(());
    }
    let whole = site.add(whole);
    let sum = if is_known {
        let sum = site.reduced("ReduceSum", whole, &axes, true);
        if rank == all {
            site.put(sum, output);
            return Ok(());
        }
        sum
    } else {
        let (mine, theirs) = (
            site.add(op("Shape", [like])),
            site.add(op("Shape", [other])),
        );
        let ones = ones(site, like);
        let axes = broadcast_axes(site, (mine, rank), (theirs, of_other), &ones);
        op("ReduceSum", [whole, axes])
            .int("keepdims", 1)
            .int("noop_with_empty_axes", 1)
    };
    let sum = site.add(sum);
    let shape = site.add(op("Shape", [like]));
    site.put(op("Reshape", [sum, shape]), output);
    Ok(())
}

/// BroadcastGradientArgs(shape of A, shape of B) -> (axes of A, axes of B): those on which one was broadcast.
pub(super) fn broadcast_gradient_args(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let shapes: [TensorId; 2] = site.inputs()?;
    let mut ranks = [0; 2];
    for (rank, shape) in ranks.iter_mut().zip(shapes) {
        *rank = length(site, shape)?;
    }
    for (mine, theirs) in [(0, 1), (1, 0)] {
        let Some(output) = site.output(mine) else {
            continue;
        };
        let of = |place: usize| (shapes[place], ranks[place]);
        let ones = match only_sums_along(site, output) {
            true => shape_of(site, shapes[mine]).map(|tensor| ones(site, tensor)),
            false => None,
        };
        let axes = broadcast_axes(site, of(mine), of(theirs), &ones.unwrap_or_default());
        site.put(op("Identity", [axes]), output);
    }
    Ok(())
}

/// What it is the shape of.
fn shape_of(site: &LoweringSite, shape: TensorId) -> Option<TensorId> {
    let of = site.producer(shape).filter(|node| node.is("", "Shape"));
    of.and_then(|node| node.input(0))
}

/// The dimensions of size one, whatever the sizes of others are.
fn ones(site: &LoweringSite, tensor: TensorId) -> Vec<usize> {
    let rank = site.rank(tensor).unwrap_or(0);
    (0..rank)
        .filter(|&axis| site.size(tensor, axis) == Some(1))
        .collect()
}

/// Are these the axes of sums, and nothing else? A sum along an axis of size one changes nothing; nor may one along no axis.
fn only_sums_along(site: &LoweringSite, axes: TensorId) -> bool {
    let is_sum = |node: &Node| {
        let named = node.is("", "ReduceSum") || node.is(super::site::CONTRIB, "ReduceSumTraining");
        named
            && node.input(1) == Some(axes)
            && node.int("keepdims").unwrap_or(1) == 1
            && node.int("noop_with_empty_axes") == Some(1)
    };
    !site.is_output(axes) && site.readers(axes).all(is_sum)
}

/// How many numbers a shape has.
fn length(site: &LoweringSite, shape: TensorId) -> Result<usize, Obstacle> {
    if let Some(size) = site.size(shape, 0) {
        return Ok(size as usize);
    }
    match shape_of(site, shape) {
        Some(tensor) => site.rank(tensor),
        None => Err(site.unknown_size(shape, 0)),
    }
}

/// The axes of the result on which a tensor of the first shape has size 1 and one of the second does not, or has no size
/// at all; and the first one's `ones`.
fn broadcast_axes(
    site: &mut LoweringSite,
    (mine, rank): (TensorId, usize),
    (theirs, of_other): (TensorId, usize),
    ones: &[usize],
) -> TensorId {
    let all = rank.max(of_other);
    let mine = behind_ones(site, mine, all - rank);
    let theirs = behind_ones(site, theirs, all - of_other);
    let one = site.int(1);
    let is_one = site.add(op("Equal", [mine, one]));
    let is_same = site.add(op("Equal", [mine, theirs]));
    let differs = site.add(op("Not", [is_same]));
    let mut broadcast = site.add(op("And", [is_one, differs]));
    if all > rank || !ones.is_empty() {
        let mut always = vec![0; all];
        always[..all - rank].fill(1);
        for axis in ones {
            always[axis + all - rank] = 1;
        }
        let always = site.ints(&always);
        let always = site.add(cast(always, ElementType::Bool));
        broadcast = site.add(op("Or", [broadcast, always]));
    }
    let axes = site.add(op("NonZero", [broadcast]));
    site.reshaped(axes, &[-1])
}

fn behind_ones(site: &mut LoweringSite, shape: TensorId, count: usize) -> TensorId {
    if count == 0 {
        return shape;
    }
    let ones = site.ints(&vec![1; count]);
    site.add(op("Concat", [ones, shape]).int("axis", 0))
}

/// ReduceSumTraining(data, axes) is ReduceSum.
pub(super) fn reduce_sum_training(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [data, axes] = site.inputs()?;
    let y = site.result()?;
    let keep = site.node.int("keepdims").unwrap_or(1);
    let noop = site.node.int("noop_with_empty_axes").unwrap_or(0);
    let sum = op("ReduceSum", [data, axes])
        .int("keepdims", keep)
        .int("noop_with_empty_axes", noop);
    site.put(sum, y);
    Ok(())
}

/// Scale(X, scale): X · scale, or X / scale.
pub(super) fn scale(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [x, scale] = site.inputs()?;
    let y = site.result()?;
    let (of_x, of_scale) = (site.element(x)?, site.element(scale)?);
    let factor = site.as_type(scale, of_scale, of_x);
    let is_divided = site.node.int("scale_down").unwrap_or(0) != 0;
    let factor = site.reshaped(factor, &[]);
    site.put(op(if is_divided { "Div" } else { "Mul" }, [x, factor]), y);
    Ok(())
}

/// MixedPrecisionScale(S, X…): each X · S as another type.
pub(super) fn mixed_precision_scale(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let scale = site.input(0)?;
    let Some(AttributeValue::Int(to)) = site.node.attribute("to").cloned() else {
        return case("without the attribute to");
    };
    if site.node.int("fuse_outputs").unwrap_or(0) != 0 {
        return case("with fuse_outputs");
    }
    let of_scale = site.element(scale)?;
    for place in 1..site.node.inputs.len() {
        let (x, Some(y)) = (site.input(place)?, site.output(place - 1)) else {
            continue;
        };
        let wide = site.converted(x, of_scale)?;
        let scaled = site.add(op("Mul", [wide, scale]));
        site.put(op("Cast", [scaled]).int("to", to), y);
    }
    Ok(())
}

/// ReduceAllL2(X…): the root of the sum of all squares.
pub(super) fn reduce_all_l2(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let y = site.result()?;
    let mut sums = Vec::new();
    for place in 0..site.node.inputs.len() {
        let x = site.input(place)?;
        let from = site.element(x)?;
        let row = site.reshaped(x, &[1, -1]);
        let wide = site.as_type(row, from, ElementType::Float);
        let dot = fused_matmul(wide, wide).int("transB", 1);
        let dot = site.add(dot);
        sums.push(Some(site.reshaped(dot, &[])));
    }
    let sum = site.add(op_of("Sum", sums));
    let to = site.element(y)?;
    site.put_as(op("Sqrt", [sum]), ElementType::Float, to, y);
    Ok(())
}
