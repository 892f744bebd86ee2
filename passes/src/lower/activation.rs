//! Gradients of activations: products of elements, with as few passes over the data as the operators allow.

use super::operation::op;
use super::site::{LoweringSite, Obstacle, case, cast};
use crate::graph::{ElementType, TensorId};

const HALF_ROOT: f64 = std::f64::consts::FRAC_1_SQRT_2;
/// ln(1 / √π)
const LOG_DENSITY: f64 = -0.572_364_942_924_700_1;

/// dX = dY · (Y > 0). A product with a mask of numbers: choosing element by element takes ten times as long.
pub(super) fn relu(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, y] = site.inputs()?;
    let mask = above_zero(site, y)?;
    let dx = site.result()?;
    site.put(op("Mul", [dy, mask]), dx);
    Ok(())
}

/// dX = dY where Y > 0, α · dY elsewhere. With m the mask of Y > 0: max(m, α) for α within 0 and 1, m + α · (1 − m) for
/// others.
pub(super) fn leaky_relu(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, y] = site.inputs()?;
    let (dx, element) = (site.result()?, site.element(y)?);
    let alpha = f64::from(site.node.float("alpha").unwrap_or(0.01));
    let mask = above_zero(site, y)?;
    let slope = site.number(alpha, element);
    let factor = if (0.0..=1.0).contains(&alpha) {
        site.add(op("Max", [mask, slope]))
    } else {
        let one = site.number(1.0, element);
        let below = site.add(op("Sub", [one, mask]));
        let below = site.add(op("Mul", [below, slope]));
        site.add(op("Add", [below, mask]))
    };
    site.put(op("Mul", [dy, factor]), dx);
    Ok(())
}

fn above_zero(site: &mut LoweringSite, y: TensorId) -> Result<TensorId, Obstacle> {
    let element = site.element(y)?;
    let zero = site.number(0.0, element);
    let above = site.add(op("Greater", [y, zero]));
    Ok(site.add(cast(above, element)))
}

/// dX = dY · Y · (1 − Y)
pub(super) fn sigmoid(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, y] = site.inputs()?;
    let (dx, element) = (site.result()?, site.element(y)?);
    let one = site.number(1.0, element);
    let rest = site.add(op("Sub", [one, y]));
    let product = site.add(op("Mul", [dy, y]));
    site.put(op("Mul", [product, rest]), dx);
    Ok(())
}

/// dX = dY · (1 − Y²)
pub(super) fn tanh(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, y] = site.inputs()?;
    let (dx, element) = (site.result()?, site.element(y)?);
    let one = site.number(1.0, element);
    let square = site.add(op("Mul", [y, y]));
    let rest = site.add(op("Sub", [one, square]));
    site.put(op("Mul", [dy, rest]), dx);
    Ok(())
}

/// dX = dY · (Φ(X) + X · φ(X)), Φ and φ the normal distribution and its density.
pub(super) fn gelu(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, x] = site.inputs()?;
    gelu_of(site, dy, x)
}

/// The same of X + B.
pub(super) fn bias_gelu(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, x, bias] = site.inputs()?;
    let sum = site.add(op("Add", [x, bias]));
    gelu_of(site, dy, sum)
}

fn gelu_of(site: &mut LoweringSite, dy: TensorId, x: TensorId) -> Result<(), Obstacle> {
    if site.node.string("approximate") == Some("tanh") {
        return fast_gelu_of(site, dy, x);
    }
    let (dx, element) = (site.result()?, site.element(dy)?);
    if element == ElementType::Double {
        return case("for numbers of 64 bits: Erf has no kernel for them");
    }
    // With u = X / √2, Φ(X) = ½ · erf(u) + ½ and X · φ(X) = u · exp(ln(1 / √π) − u²).
    let root = site.number(HALF_ROOT, element);
    let scaled = site.add(op("Mul", [x, root]));
    let square = site.add(op("Mul", [scaled, scaled]));
    let log_density = site.number(LOG_DENSITY, element);
    let exponent = site.add(op("Sub", [log_density, square]));
    let bell = site.add(op("Exp", [exponent]));
    let slope = site.add(op("Mul", [bell, scaled]));
    let erf = site.add(op("Erf", [scaled]));
    // 0.5 · erf + 0.5 in one node: an error function lies within −1 and 1, where nothing is cut.
    let distribution = half_and_half(site, erf, element);
    let derivative = site.add(op("Add", [distribution, slope]));
    site.put(op("Mul", [derivative, dy]), dx);
    Ok(())
}

/// x / 2 + 1 / 2 for x within −1 and 1, in one node where there is a kernel.
fn half_and_half(site: &mut LoweringSite, x: TensorId, element: ElementType) -> TensorId {
    if element == ElementType::Double {
        let half = site.number(0.5, element);
        let scaled = site.add(op("Mul", [x, half]));
        return site.add(op("Add", [scaled, half]));
    }
    let affine = op("HardSigmoid", [x]).float("alpha", 0.5);
    site.add(affine.float("beta", 0.5))
}

/// With t = tanh(√(2/π) · (X + 0.044715 · X³)): dX = dY · (½ · (1 + t) + ½ · X · (1 − t²) · √(2/π) · (1 + 3 · 0.044715 · X²)).
pub(super) fn fast_gelu(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, x] = site.inputs()?;
    fast_gelu_of(site, dy, x)
}

/// The same of X + B.
pub(super) fn bias_fast_gelu(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, x, bias] = site.inputs()?;
    let sum = site.add(op("Add", [x, bias]));
    fast_gelu_of(site, dy, sum)
}

fn fast_gelu_of(site: &mut LoweringSite, dy: TensorId, x: TensorId) -> Result<(), Obstacle> {
    const ALPHA: f64 = 0.797_884_560_802_865_4;
    const GAMMA: f64 = 0.044_715 * ALPHA;
    let (dx, element) = (site.result()?, site.element(dy)?);
    let [alpha, gamma, slope, half, one] =
        [ALPHA, GAMMA, 1.5 * GAMMA, 0.5 * ALPHA, 1.0].map(|value| site.number(value, element));
    let square = site.add(op("Mul", [x, x]));
    let inner = site.add(op("Mul", [square, gamma]));
    let inner = site.add(op("Add", [inner, alpha]));
    let inner = site.add(op("Mul", [inner, x]));
    let t = site.add(op("Tanh", [inner]));
    // ½ · X · √(2/π) · (1 + 3 · 0.044715 · X²)
    let outer = site.add(op("Mul", [square, slope]));
    let outer = site.add(op("Add", [outer, half]));
    let outer = site.add(op("Mul", [outer, x]));
    let squared = site.add(op("Mul", [t, t]));
    let rest = site.add(op("Sub", [one, squared]));
    let outer = site.add(op("Mul", [outer, rest]));
    let level = half_and_half(site, t, element);
    let derivative = site.add(op("Add", [level, outer]));
    site.put(op("Mul", [derivative, dy]), dx);
    Ok(())
}

/// With s = sigmoid(α · X): dX = dY · s · (1 + α · X · (1 − s)).
pub(super) fn quick_gelu(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, x] = site.inputs()?;
    let (dx, element) = (site.result()?, site.element(dy)?);
    let alpha = f64::from(site.node.float("alpha").unwrap_or(1.702));
    let one = site.number(1.0, element);
    let scaled = match alpha == 1.0 {
        true => x,
        false => {
            let alpha = site.number(alpha, element);
            site.add(op("Mul", [x, alpha]))
        }
    };
    let s = site.add(op("Sigmoid", [scaled]));
    let rest = site.add(op("Sub", [one, s]));
    let rest = site.add(op("Mul", [rest, scaled]));
    let rest = site.add(op("Add", [rest, one]));
    let derivative = site.add(op("Mul", [rest, s]));
    site.put(op("Mul", [derivative, dy]), dx);
    Ok(())
}
