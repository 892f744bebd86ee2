//! What only training has: dropout's gradient and accumulation.

use super::operation::op;
use super::site::{LoweringSite, Obstacle, case, cast};
use crate::graph::{Constant, ElementType, TensorId};

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

/// From so many numbers on, a kernel that chooses element by element takes several times as long as the sum, and twice the memory.
const MANY: i64 = 4096;

/// InPlaceAccumulatorV2(buffer, value, overwrite) -> (done, buffer). No standard kernel writes to what the caller owns: the
/// new value is what comes out in place of *done*. What is added to the value is the buffer, or zeros.
pub(super) fn in_place_accumulator(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [buffer, value] = site.inputs()?;
    let done = site.result()?;
    let (of_buffer, of_value) = (site.element(buffer)?, site.element(value)?);
    let value = site.as_type(value, of_value, of_buffer);
    let sum = site.output(1);
    let large = site.numbers(buffer).filter(|sizes| {
        !sizes.is_empty() && sizes.iter().fold(1, |n: i64, &d| n.saturating_mul(d)) >= MANY
    });
    let last = match site.node.input(2) {
        None => op("Add", [buffer, value]),
        Some(overwrite) => {
            let from = site.element(overwrite)?;
            let overwrite = site.as_type(overwrite, from, ElementType::Bool);
            match large {
                Some(sizes) => {
                    let kept = kept_unless(site, overwrite, buffer, value, &sizes)?;
                    op("Add", [value, kept])
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

/// The buffer, or zeros where it is to be overwritten, whatever it holds: as a matrix, all of it is below a diagonal far to the right, and
/// nothing below one far to the left. Its size is the same in all steps, so a step's memory is as well. It waits for the value: made
/// sooner, it would only be there longer.
fn kept_unless(
    site: &mut LoweringSite,
    overwrite: TensorId,
    buffer: TensorId,
    value: TensorId,
    sizes: &[i64],
) -> Result<TensorId, Obstacle> {
    const FAR: i64 = 1 << 30;
    site.needs_opset(14)?;
    let diagonal = match site.shared_by("Trilu", overwrite) {
        Some(known) => known,
        None => {
            let is_kept = site.add(op("Not", [overwrite]));
            let is_kept = site.reshaped(is_kept, &[]);
            let is_kept = site.add(cast(is_kept, ElementType::Int64));
            let (width, left) = (site.int(2 * FAR), site.int(-FAR));
            let right = site.add(op("Mul", [is_kept, width]));
            let diagonal = site.add(op("Add", [right, left]));
            site.share("Trilu", overwrite, diagonal);
            diagonal
        }
    };
    let numbers = site.add_kept(op("Size", [value]));
    let diagonal = site.add(op("Min", [diagonal, numbers]));
    let below = |matrix| op("Trilu", [matrix, diagonal]).int("upper", 0);
    if sizes.len() == 2 {
        return Ok(site.add(below(buffer)));
    }
    let matrix = match sizes {
        [_] => site.reshaped(buffer, &[1, -1]),
        _ => site.reshaped(buffer, &[sizes[0], -1]),
    };
    let kept = site.add(below(matrix));
    Ok(site.reshaped(kept, sizes))
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
