//! Dropout, a second time, in standard operators.

use super::{Like, Part, Read, Site, Write, cast, part, tensor};
use crate::graph::{AttributeValue, ElementType};
use crate::operators::is_fixed;

/// What is kept where nobody says otherwise.
const RATIO: f64 = 0.5;

/// Y of a Dropout in training, from its input and the mask that it left: `X / (rate / mask)` with `rate = 1 - ratio`.
///
/// Runtime fact (measured, `tools/test_variants.py`): the CPU kernel multiplies X by the mask and divides by that rate, all in single precision.
/// Divided by infinity, a number gives the same zero as multiplied by 0, and what is infinite the same that is no number. The rate is not the last
/// divisor: the runtime would put that into a product of matrices which reads the result.
pub(super) fn from_mask(site: &Site) -> Option<Vec<Part>> {
    let node = site.node;
    let (x, mask, y) = (node.input(0)?, node.output(1)?, node.output(0)?);
    let element = |id| site.graph.tensor(id).element;
    let ratio = match node.input(1) {
        None => RATIO,
        Some(id) => {
            let known =
                is_fixed(site.graph, site.uses, id) && element(id) == Some(ElementType::Float);
            match site.graph.tensor(id).floats() {
                Some(&[ratio]) if known => ratio,
                _ => return None,
            }
        }
    };
    let is_float = [x, y].map(element) == [Some(ElementType::Float); 2];
    if !is_float || !node.is("", "Dropout") || !(0.0..1.0).contains(&(ratio as f32)) {
        return None;
    }
    let new = |suffix: &str, shape| Write::new(suffix, shape, ElementType::Float);
    let [kept, rate, divisor] = [0, 1, 2].map(|position| Some(Read::Output(position, 0)));
    let number = AttributeValue::Float(1.0 - ratio as f32);
    let (scalar, like_x) = (Like::Static(Vec::new()), Like::Tensor(x));
    Some(vec![
        cast(
            Read::Tensor(mask),
            ElementType::Float,
            new("kept", like_x.clone()),
        ),
        part("", "Constant", [], [Some(new("rate", scalar))]).with("value_float", number),
        part("", "Div", [rate, kept], [Some(new("divisor", like_x))]),
        part("", "Div", [tensor(x), divisor], [Some(Write::Tensor(y))]),
    ])
}
