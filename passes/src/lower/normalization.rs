//! Normalizations and their gradients. Algebra per channel or row comes before work on elements.

use super::operation::{NewNode, fused_matmul, op};
use super::site::{LoweringSite, Obstacle, case, cast};
use crate::graph::{ElementType, TensorId};

/// BatchNormInternal(X, scale, B, mean, var) -> (Y, running mean, running var, saved mean, saved inverse deviation).
///
/// The statistics by reductions, Y by a batch normalization that only applies them: one that also finds them has no
/// CUDA kernel, and on the CPU it writes them into the caller's memory.
pub(super) fn batch_norm_internal(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [x, scale, bias, old_mean, old_var] = site.inputs()?;
    let rank = site.rank(x)?;
    if rank < 2 {
        return case("where X has fewer than two dimensions");
    }
    let epsilon = site.node.float("epsilon").unwrap_or(1e-5);
    let momentum = f64::from(site.node.float("momentum").unwrap_or(0.9));
    let (of_x, of_mean) = (site.element(x)?, site.element(old_mean)?);
    let wide = widened(of_x);
    let x = site.as_type(x, of_x, wide);
    let mean = site.reduced_to_channels("ReduceMean", x, rank);
    let mean = site.add(mean);
    let centred = {
        let column = channels(site, mean, rank);
        site.add(op("Sub", [x, column]))
    };
    let original = site.input(0)?;
    let sum = dot_of_channels(site, (centred, centred), original, rank);
    let others: Vec<usize> = (0..rank).filter(|&axis| axis != 1).collect();
    let count = site.count_of(original, &others, wide);
    let var = site.add(op("Div", [sum, count]));
    for (place, new, old) in [(1, mean, old_mean), (2, var, old_var)] {
        let Some(output) = site.output(place) else {
            continue;
        };
        let [keep, rest] = [momentum, 1.0 - momentum].map(|part| site.number(part, of_mean));
        let new = site.as_type(new, wide, of_mean);
        let old = site.add(op("Mul", [old, keep]));
        let new = site.add(op("Mul", [new, rest]));
        site.put(op("Add", [old, new]), output);
    }
    if let Some(output) = site.output(3) {
        site.put(cast_or_same(mean, wide, of_mean), output);
    }
    if let Some(output) = site.output(4) {
        let epsilon = site.number(f64::from(epsilon), wide);
        let shifted = site.add(op("Add", [var, epsilon]));
        let deviation = site.add(op("Sqrt", [shifted]));
        site.put_as(op("Reciprocal", [deviation]), wide, of_mean, output);
    }
    let y = site.result()?;
    let of_scale = site.element(scale)?;
    let scale = site.as_type(scale, of_scale, wide);
    let bias = site.as_type(bias, of_scale, wide);
    let apply = op("BatchNormalization", [x, scale, bias, mean, var]).float("epsilon", epsilon);
    site.put_as(apply, wide, of_x, y);
    Ok(())
}

/// A node that does nothing but giving a tensor another name, or another type.
fn cast_or_same(id: TensorId, from: ElementType, to: ElementType) -> NewNode {
    match from == to {
        true => op("Identity", [id]),
        false => cast(id, to),
    }
}

/// Sums over many elements need more than 16 bits.
fn widened(element: ElementType) -> ElementType {
    match element {
        ElementType::Float16 | ElementType::Bfloat16 => ElementType::Float,
        other => other,
    }
}

/// BatchNormalizationGrad(dY, X, scale, mean, inverse deviation) -> (dX, dscale, dB).
///
/// With Z = mean − X, n elements of each channel: dB = Σ dY, dscale = −inv · Σ dY · Z, and dX = A · dY + B · Z + C with
/// A = scale · inv, B = A · inv · dscale / n, C = −A · dB / n for each channel. A · dY + C is one node: a batch
/// normalization with mean 0 and variance 1. The forward step has X − mean: a session that optimizes would make one node of
/// two, and keep what it writes for every layer from the forward step to the backward step.
pub(super) fn batch_norm_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, x, scale, mean, inverse] = site.inputs()?;
    let rank = site.rank(x)?;
    if rank < 2 {
        return case("where X has fewer than two dimensions");
    }
    let (of_x, of_scale, of_mean) = (site.element(x)?, site.element(scale)?, site.element(mean)?);
    let wide = widened(of_x);
    let [x, dy] = [x, dy].map(|id| site.as_type(id, of_x, wide));
    let scale = site.as_type(scale, of_scale, wide);
    let mean = site.as_type(mean, of_mean, wide);
    let inverse = site.as_type(inverse, of_mean, wide);
    let column = channels(site, mean, rank);
    let centred = site.add(op("Sub", [column, x]));
    let original = site.input(1)?;
    let dot = dot_of_channels(site, (dy, centred), original, rank);
    let (as_it_is, outputs) = (wide == of_scale, [site.output(1), site.output(2)]);
    let opposite = site.add(op("Neg", [inverse]));
    let dscale = site.put_or_add(op("Mul", [dot, opposite]), outputs[0].filter(|_| as_it_is));
    let dbias = site.reduced_to_channels("ReduceSum", dy, rank);
    let dbias = site.put_or_add(dbias, outputs[1].filter(|_| as_it_is));
    if !as_it_is {
        for (value, output) in [(dscale, outputs[0]), (dbias, outputs[1])] {
            if let Some(output) = output {
                site.put(cast(value, of_scale), output);
            }
        }
    }
    let Some(dx) = site.output(0) else {
        return Ok(());
    };
    let others: Vec<usize> = (0..rank).filter(|&axis| axis != 1).collect();
    let count = site.count_of(original, &others, wide);
    let factor = site.add(op("Mul", [scale, inverse]));
    let per_element = site.add(op("Div", [factor, count]));
    let opposite = site.add(op("Neg", [per_element]));
    let shift = site.add(op("Mul", [opposite, dbias]));
    let slope = site.add(op("Mul", [per_element, inverse]));
    let slope = site.add(op("Mul", [slope, dscale]));
    let slope = channels(site, slope, rank);
    let part = site.add(op("Mul", [centred, slope]));
    // Zero and one for each channel.
    let zeros = site.add(op("Sub", [factor, factor]));
    let one = site.number(1.0, wide);
    let ones = site.add(op("Add", [zeros, one]));
    let moved =
        site.add(op("BatchNormalization", [dy, factor, shift, zeros, ones]).float("epsilon", 0.0));
    site.put_as(op("Add", [moved, part]), wide, of_x, dx);
    Ok(())
}

/// One number for each channel, so shaped that it is broadcast.
pub(super) fn channels(site: &mut LoweringSite, values: TensorId, rank: usize) -> TensorId {
    let mut shape = vec![1; rank - 1];
    shape[0] = -1;
    site.reshaped(values, &shape)
}

/// Up to so many numbers in each channel of an image, their products are summed up at once. Runtime fact: a product of matrices for each channel of
/// each image takes 2.7 to 30 times as long with 196 to 4 numbers; with 784 both take as long, and with more it takes less, and no memory for the
/// products (1.32.0 on the CPU).
const FEW_NUMBERS: u64 = 256;

/// Σ a · b over all dimensions but the second, where `images` have the same sizes; where they are large, without memory for a · b.
fn dot_of_channels(
    site: &mut LoweringSite,
    (a, b): (TensorId, TensorId),
    images: TensorId,
    rank: usize,
) -> TensorId {
    if site
        .positions(images)
        .is_some_and(|count| count <= FEW_NUMBERS)
    {
        let product = site.add(op("Mul", [a, b]));
        let sum = site.reduced_to_channels("ReduceSum", product, rank);
        return site.add(sum);
    }
    let rows = [0, 0, 1, -1];
    let left = site.reshaped(a, &rows);
    let right = match a == b {
        true => left,
        false => site.reshaped(b, &rows),
    };
    let dots = site.add(fused_matmul(left, right).int("transB", 1));
    let sum = site.reduced("ReduceSum", dots, &[0, 2, 3], false);
    site.add(sum)
}

/// LayerNormalizationGrad(dY, X, scale, mean, inverse deviation) -> (dX, dscale, dB).
///
/// With Z = (X − mean) · inv and n elements in a row: dB = Σ dY, dscale = Σ dY · Z over the rows, and
/// dX = inv · (dY · scale − mean(dY · scale) − Z · mean(dY · scale · Z)); the means are products with the vector scale / n.
/// Mean and inverse deviation have a number for each row, with dimensions of size 1 in place of the row's.
pub(super) fn layer_norm_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, x, scale, mean, inverse] = site.inputs()?;
    let row = NormalizedRow::of(site, x)?;
    let mean = site.converted(mean, row.element)?;
    let inverse = site.converted(inverse, row.element)?;
    let [x, dy] = row.wide(site, [x, dy]);
    let centred = site.add(op("Sub", [x, mean]));
    let z = site.add(op("Mul", [centred, inverse]));
    row.gradient(site, dy, z, scale, inverse, true, [1, 2])
}

/// The same without a mean: SimplifiedLayerNormalizationGrad(dY, X, scale, inverse deviation) -> (dX, dscale).
pub(super) fn simplified_layer_norm_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, x, scale, inverse] = site.inputs()?;
    let row = NormalizedRow::of(site, x)?;
    let inverse = site.converted(inverse, row.element)?;
    let [x, dy] = row.wide(site, [x, dy]);
    let z = site.add(op("Mul", [x, inverse]));
    row.gradient(site, dy, z, scale, inverse, false, [1, usize::MAX])
}

/// Of the output: InvertibleLayerNormalizationGrad(dY, Y, scale, B, inverse deviation), Z = (Y − B) / scale.
pub(super) fn invertible_layer_norm_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, y, scale, bias, inverse] = site.inputs()?;
    let row = NormalizedRow::of(site, y)?;
    let inverse = site.converted(inverse, row.element)?;
    let [y, dy] = row.wide(site, [y, dy]);
    let element = site.element(scale)?;
    let wide_scale = site.as_type(scale, element, row.element);
    let bias = site.as_type(bias, element, row.element);
    let shifted = site.add(op("Sub", [y, bias]));
    let z = site.add(op("Div", [shifted, wide_scale]));
    row.gradient(site, dy, z, scale, inverse, true, [1, 2])
}

/// What is normalized together.
struct NormalizedRow {
    rank: usize,
    axis: usize,
    /// Of X, and of what is computed.
    of_x: ElementType,
    element: ElementType,
}

impl NormalizedRow {
    fn of(site: &LoweringSite, x: TensorId) -> Result<NormalizedRow, Obstacle> {
        let rank = site.rank(x)?;
        let of_x = site.element(x)?;
        Ok(NormalizedRow {
            rank,
            axis: site.axis(-1, rank)?,
            of_x,
            element: widened(of_x),
        })
    }

    fn wide(&self, site: &mut LoweringSite, both: [TensorId; 2]) -> [TensorId; 2] {
        both.map(|id| site.as_type(id, self.of_x, self.element))
    }

    #[allow(clippy::too_many_arguments)]
    fn gradient(
        &self,
        site: &mut LoweringSite,
        dy: TensorId,
        z: TensorId,
        scale: TensorId,
        inverse: TensorId,
        has_mean: bool,
        [dscale, dbias]: [usize; 2],
    ) -> Result<(), Obstacle> {
        let of_scale = site.element(scale)?;
        let scale = site.as_type(scale, of_scale, self.element);
        let rows: Vec<i64> = (0..self.axis as i64).collect();
        if let Some(output) = site.output(dbias) {
            self.sum_of_rows(site, dy, &rows, of_scale, output);
        }
        let product = site.add(op("Mul", [dy, z]));
        if let Some(output) = site.output(dscale) {
            self.sum_of_rows(site, product, &rows, of_scale, output);
        }
        let Some(dx) = site.output(0) else {
            return Ok(());
        };
        let weights = self.weights(site, scale)?;
        let along = self.mean(site, product, &weights);
        let part = site.add(op("Mul", [z, along]));
        let scaled = site.add(op("Mul", [dy, scale]));
        let mut rest = site.add(op("Sub", [scaled, part]));
        if has_mean {
            let mean = self.mean(site, dy, &weights);
            rest = site.add(op("Sub", [rest, mean]));
        }
        site.put_as(op("Mul", [rest, inverse]), self.element, self.of_x, dx);
        Ok(())
    }

    fn sum_of_rows(
        &self,
        site: &mut LoweringSite,
        data: TensorId,
        rows: &[i64],
        to: ElementType,
        output: TensorId,
    ) {
        let sum = match rows.is_empty() {
            true => op("Identity", [data]),
            false => site.reduced("ReduceSum", data, rows, false),
        };
        site.put_as(sum, self.element, to, output);
    }

    fn weights(&self, site: &mut LoweringSite, scale: TensorId) -> Result<RowWeights, Obstacle> {
        if self.axis + 1 < self.rank || self.rank < 2 {
            return Ok(RowWeights::Scale(scale));
        }
        let original = site.input(1)?;
        let count = site.count_of(original, &[self.axis], self.element);
        let vector = site.add(op("Div", [scale, count]));
        Ok(RowWeights::Shares(site.reshaped(vector, &[-1, 1])))
    }

    /// The mean of data · scale for each row.
    fn mean(&self, site: &mut LoweringSite, data: TensorId, weights: &RowWeights) -> TensorId {
        match *weights {
            RowWeights::Shares(column) => site.add(op("MatMul", [data, column])),
            RowWeights::Scale(scale) => {
                let weighted = site.add(op("Mul", [data, scale]));
                let axes: Vec<i64> = (self.axis..self.rank).map(|axis| axis as i64).collect();
                let mean = site.reduced("ReduceMean", weighted, &axes, true);
                site.add(mean)
            }
        }
    }
}

/// What the elements of a row count in its mean.
enum RowWeights {
    /// scale / n as a column: a product with it adds them up.
    Shares(TensorId),
    Scale(TensorId),
}
