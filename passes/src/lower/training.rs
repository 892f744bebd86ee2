//! What only training has: dropout's gradient and accumulation.

use super::body::{NewBody, choice};
use super::operation::op;
use super::site::{LoweringSite, Obstacle, case, cast};
use crate::graph::{Constant, ElementType};

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
            let ratio = site.converted(ratio, element)?;
            let kept = site.add(op("Sub", [one, ratio]));
            // The same bits as 1 / kept, of which 1.20.1 makes one node with the product and crashes where the Cast below comes between.
            site.add(op("Reciprocal", [kept]))
        }
    };
    let factor = match site.node.input(3) {
        None => factor,
        Some(mode) => match site.constant(mode).and_then(Constant::ints) {
            Some([1]) => factor,
            _ => site.add(op("Where", [mode, factor, one])),
        },
    };
    let kept = site.add(cast(mask, element));
    let product = site.add(op("Mul", [kept, factor]));
    site.put(op("Mul", [product, dy]), dx);
    Ok(())
}

/// InPlaceAccumulatorV2(buffer, value, overwrite) -> (done, buffer). No standard kernel writes to what the caller owns: the
/// new value is what comes out in place of *done*. It takes no memory but its own: a chosen element (Where) would want the sum
/// beside it, and reads both.
pub(super) fn in_place_accumulator(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [buffer, value] = site.inputs()?;
    let done = site.result()?;
    let of_buffer = site.element(buffer)?;
    let value = site.converted(value, of_buffer)?;
    let sum = site.output(1);
    let last = match site.node.input(2) {
        None => op("Add", [buffer, value]),
        Some(overwrite) => {
            let overwrite = site.converted(overwrite, ElementType::Bool)?;
            let mut branch = |of| NewBody::new(&site.free_prefix(of), of_buffer);
            let (mut then, mut other) = (branch("overwrite"), branch("add"));
            let read = then.outer(site, value);
            let only = then.add(op("Identity", [read]));
            let read = [buffer, value].map(|id| other.outer(site, id));
            let both = other.add(op("Add", read));
            choice(overwrite, [(then, only), (other, both)])
        }
    };
    site.accumulates(done, buffer);
    site.put(last, done);
    if let Some(sum) = sum {
        site.put(op("Identity", [done]), sum);
    }
    Ok(())
}

/// InPlaceAccumulator(old, value) -> sum, which is the old one's memory: the caller's, if it is an input.
pub(super) fn accumulator(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [old, value] = site.inputs()?;
    if site.node.input(2).is_some() {
        return case("with a third input, which says whether to add");
    }
    let sum = site.result()?;
    let of_old = site.element(old)?;
    let value = site.converted(value, of_old)?;
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
