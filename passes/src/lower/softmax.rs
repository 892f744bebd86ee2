//! Gradients of Softmax and LogSoftmax.

use super::operation::{fused_matmul, op};
use super::site::{LoweringSite, Obstacle};
use crate::graph::TensorId;

/// dX = (dY − Σ dY · Y) · Y, the sum over the axis.
pub(super) fn softmax(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let axis = softmax_axis(site)?;
    softmax_over(site, axis)
}

/// Softmax before operator set 13: over all dimensions from the axis on.
pub(super) fn softmax_of_rows(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, y] = site.inputs()?;
    let (rank, dx) = (site.rank(y)?, site.result()?);
    let axes = rows(site, rank)?;
    let product = site.add(op("Mul", [dy, y]));
    let sum = site.reduced("ReduceSum", product, &axes, true);
    let sum = site.add(sum);
    let difference = site.add(op("Sub", [dy, sum]));
    site.put(op("Mul", [difference, y]), dx);
    Ok(())
}

fn softmax_over(site: &mut LoweringSite, axis: usize) -> Result<(), Obstacle> {
    let [dy, y] = site.inputs()?;
    let (rank, dx) = (site.rank(y)?, site.result()?);
    let sum = if axis + 1 == rank && rank >= 2 {
        dot_of_rows(site, dy, y, rank)
    } else {
        let product = site.add(op("Mul", [dy, y]));
        let sum = site.reduced("ReduceSum", product, &[axis as i64], true);
        site.add(sum)
    };
    let difference = site.add(op("Sub", [dy, sum]));
    site.put(op("Mul", [difference, y]), dx);
    Ok(())
}

/// Σ a · b over the last dimension, which stays with size 1: a product of matrices for each row, which needs no memory for
/// a · b.
pub(super) fn dot_of_rows(
    site: &mut LoweringSite,
    a: TensorId,
    b: TensorId,
    rank: usize,
) -> TensorId {
    let axis = site.ints(&[rank as i64 - 1]);
    let a = site.add(op("Unsqueeze", [a, axis]));
    let b = site.add(op("Unsqueeze", [b, axis]));
    let dot = site.add(fused_matmul(a, b).int("transB", 1));
    site.add(op("Squeeze", [dot, axis]))
}

/// dX = dY − exp(Y) · Σ dY, the sum over the axis.
pub(super) fn log_softmax(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let axis = softmax_axis(site)?;
    log_softmax_over(site, &[axis as i64])
}

/// LogSoftmax before operator set 13: over all dimensions from the axis on.
pub(super) fn log_softmax_of_rows(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let y = site.input(1)?;
    let rank = site.rank(y)?;
    let axes = rows(site, rank)?;
    log_softmax_over(site, &axes)
}

fn log_softmax_over(site: &mut LoweringSite, axes: &[i64]) -> Result<(), Obstacle> {
    let [dy, y] = site.inputs()?;
    let dx = site.result()?;
    let sum = site.reduced("ReduceSum", dy, axes, true);
    let sum = site.add(sum);
    let probability = site.add(op("Exp", [y]));
    let part = site.add(op("Mul", [probability, sum]));
    site.put(op("Sub", [dy, part]), dx);
    Ok(())
}

fn softmax_axis(site: &LoweringSite) -> Result<usize, Obstacle> {
    let rank = site.rank(site.input(1)?)?;
    site.axis(-1, rank)
}

fn rows(site: &LoweringSite, rank: usize) -> Result<Vec<i64>, Obstacle> {
    let axis = site.axis(1, rank)?;
    Ok((axis as i64..rank as i64).collect())
}
