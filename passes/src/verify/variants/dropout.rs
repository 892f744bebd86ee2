//! Dropout again, from its mask, in standard operators.

use super::{NewValue, Rules};
use crate::graph::ElementType;

impl Rules<'_> {
    /// In training, every number is multiplied by 0 or 1 and divided by `1 - ratio`. Multiplied by 1 it stays; by 0 it becomes a zero of its
    /// sign, or no number, whatever it is divided by then. So does what is divided by infinity, which the rate divided by 0 is.
    pub(super) fn dropped_again(&mut self, updated: &[bool]) -> Option<()> {
        let (x, [y, mask]) = (self.node.input(0)?, self.node.first_outputs()?);
        let constant = |position: usize| {
            let id = self.node.input(position)?;
            Some(self.graph.tensor(id)).filter(|_| self.fixed[id.index()])
        };
        match constant(2)?.ints()? {
            &[flag] if flag != 0 => {}
            _ => return None,
        }
        let ratio = match (self.node.input(1), constant(1)) {
            (None, _) => 0.5,
            (Some(_), Some(given)) if given.element == Some(ElementType::Float) => {
                match given.floats()? {
                    &[ratio] => ratio,
                    _ => return None,
                }
            }
            _ => return None,
        };
        let element = |id| self.graph.tensor(id).element;
        let applies = element(x) == Some(ElementType::Float)
            && element(y) == Some(ElementType::Float)
            && ![x, mask, y].iter().any(|id| updated[id.index()])
            && (0.0..1.0).contains(&(ratio as f32));
        let known = Some(self.value(mask)).filter(|_| applies)?;
        let kept = self.cast(known, ElementType::Float, mask);
        let inputs = vec![Some(self.float(1f32 - ratio as f32)), Some(kept)];
        let like = NewValue::typed(mask, ElementType::Float);
        let divisor = self.define("Div", vec![], inputs, like);
        let x = Some(self.value(x));
        self.equate("", "Div", vec![], vec![x, Some(divisor)], y)
    }
}
