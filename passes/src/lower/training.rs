//! What only training has: dropout's gradient and accumulation.

use super::operation::{NewNode, op};
use super::site::{LoweringSite, Obstacle, case, cast};
use crate::graph::{Constant, Dimension, ElementType, TensorId};

/// DropoutGrad(dY, mask, ratio, training_mode): dX = dY · mask / (1 − ratio). Where dropout does nothing, the mask is of
/// ones, and the ratio does not count.
pub(super) fn dropout_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, mask] = site.inputs()?;
    let dx = site.result()?;
    let element = site.element(dy)?;
    let one = site.number(1.0, element);
    let factor = match site.node.input(2) {
        None => site.number(2.0, element),
        Some(ratio) => {
            let from = site.element(ratio)?;
            let ratio = site.as_type(ratio, from, element);
            let kept = site.add(op("Sub", [one, ratio]));
            site.add(op("Div", [one, kept]))
        }
    };
    let factor = match site.node.input(3) {
        None => factor,
        Some(mode) => match site.constant(mode) {
            Some(Constant::Ints(values)) if values[..] == [1] => factor,
            _ => site.add(op("Where", [mode, factor, one])),
        },
    };
    let kept = site.add(cast(mask, element));
    let product = site.add(op("Mul", [kept, factor]));
    site.put(op("Mul", [product, dy]), dx);
    Ok(())
}

/// From so many numbers on, a buffer is added by places.
const MANY: i64 = 4096;

/// InPlaceAccumulatorV2(buffer, value, overwrite) -> (done, buffer). No standard kernel writes to what the caller owns: the
/// new value is what comes out in place of *done*. The buffer is added at all places of its first axis, or at none: a
/// kernel that chooses element by element takes several times as long, and twice the memory.
pub(super) fn in_place_accumulator(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [buffer, value] = site.inputs()?;
    let done = site.result()?;
    let (of_buffer, of_value) = (site.element(buffer)?, site.element(value)?);
    let value = site.as_type(value, of_value, of_buffer);
    let sum = site.output(1);
    let numbers = site.numbers(buffer);
    let is_large = numbers
        .as_ref()
        .is_some_and(|sizes| sizes.iter().fold(1, |n: i64, &d| n.saturating_mul(d)) >= MANY);
    let last = match site.node.input(2) {
        None => op("Add", [buffer, value]),
        Some(overwrite) => {
            let from = site.element(overwrite)?;
            let overwrite = site.as_type(overwrite, from, ElementType::Bool);
            match numbers
                .filter(|_| is_large)
                .and_then(|n| n.first().copied())
            {
                Some(rows) => {
                    site.needs_opset(16)?;
                    added_unless(site, buffer, value, overwrite, rows)
                }
                None => {
                    let both = site.add(op("Add", [buffer, value]));
                    op("Where", [overwrite, value, both])
                }
            }
        }
    };
    site.accumulates(done, buffer);
    site.put(last, done);
    if let Some(sum) = sum {
        site.put(op("Identity", [done]), sum);
    }
    Ok(())
}

/// `value`, to which the rows of `buffer` are added unless it is to be overwritten. No row is there twice.
fn added_unless(
    site: &mut LoweringSite,
    buffer: TensorId,
    value: TensorId,
    overwrite: TensorId,
    rows: i64,
) -> NewNode {
    let (until, places) = match site.kept_rows(overwrite, rows) {
        Some(known) => known,
        None => {
            let is_kept = site.add(op("Not", [overwrite]));
            let is_kept = site.reshaped(is_kept, &[]);
            let is_kept = site.add(cast(is_kept, ElementType::Int64));
            let (count, zero, one) = (site.int(rows), site.int(0), site.int(1));
            let count = site.add(op("Mul", [is_kept, count]));
            let until = site.reshaped(count, &[1]);
            let places = site.add(op("Range", [zero, count, one]));
            site.declare(places, ElementType::Int64, vec![at_most(rows)]);
            let places = site.reshaped(places, &[-1, 1]);
            let sizes = vec![at_most(rows), Dimension::Known(1)];
            site.declare(places, ElementType::Int64, sizes);
            site.keep_rows(overwrite, rows, (until, places));
            (until, places)
        }
    };
    let zero = site.ints(&[0]);
    let kept = site.add(op("Slice", [buffer, zero, until, zero]));
    site.declare_like(kept, buffer, at_most(rows));
    op("ScatterND", [value, places, kept]).string("reduction", "add")
}

/// A size that is this one or 0, which only a step tells. It has a name: whoever plans for it works it out, and to the
/// runtime all names are names.
fn at_most(rows: i64) -> Dimension {
    Dimension::Symbol(format!("1*{rows}"))
}

/// InPlaceAccumulator(old, value) -> sum, which is the old one's memory: the caller's, if it is an input.
pub(super) fn accumulator(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [old, value] = site.inputs()?;
    if site.node.input(2).is_some() {
        return case("with a third input, which says whether to add");
    }
    let sum = site.result()?;
    let (of_old, of_value) = (site.element(old)?, site.element(value)?);
    let value = site.as_type(value, of_value, of_old);
    site.put(op("Add", [old, value]), sum);
    Ok(())
}

/// FakeQuantGrad(dY, mask): dX = dY · mask.
pub(super) fn fake_quant_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, mask] = site.inputs()?;
    let dx = site.result()?;
    let element = site.element(dy)?;
    let kept = site.add(cast(mask, element));
    site.put(op("Mul", [dy, kept]), dx);
    Ok(())
}
