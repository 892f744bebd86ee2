//! Operators of which the runtime itself makes several nodes.

use super::{AttributeValue, NewValue, Rules, ValueNumber, computation};
use crate::graph::ElementType;

impl Rules<'_> {
    /// DivGrad(dY, A, B) -> (dA, dB) has no kernel on the CPU: sessions run `dY / B`, summed along the axes along which
    /// A was broadcast, and `dY * (-A / (B * B))` for B in the same way (read from graphs that sessions saved). So a graph that has
    /// these nodes computes the same bits.
    pub(super) fn division_gradient(&mut self) -> Option<()> {
        let [dy, a, b] = [0, 1, 2].map(|position| self.node.input(position));
        let (dy, a, b) = (dy?, a?, b?);
        let [of_dy, of_a, of_b] = [dy, a, b].map(|tensor| self.value(tensor));
        let [shape_a, shape_b] = [(a, of_a), (b, of_b)].map(|(tensor, value)| {
            let rank = self.graph.tensor(tensor).shape.as_ref().map(Vec::len);
            let sizes = rank.map(|rank| vec![rank as u64]);
            let shape = computation("", "Shape", vec![], vec![Some(value)]);
            self.define_value(shape, Some(ElementType::Int64), sizes)
        });
        let axes = computation(
            "com.microsoft",
            "BroadcastGradientArgs",
            vec![],
            vec![Some(shape_a), Some(shape_b)],
        );
        let known = self.values.repeatable.get(&axes);
        let axes = match known.map(|known| known.outputs.clone()) {
            Some(outputs) => outputs,
            None => {
                let new = || Some(self.values.fresh(Some(ElementType::Int64), None));
                let outputs: Vec<Option<ValueNumber>> =
                    std::iter::repeat_with(new).take(2).collect();
                self.insert_all(axes, outputs.clone());
                outputs
            }
        };
        if let Some(da) = self.node.output(0) {
            let inputs = vec![Some(of_dy), Some(of_b)];
            let whole = self.define("Div", vec![], inputs, NewValue::of(dy));
            self.summed_up(whole, *axes.first()?, shape_a, da);
        }
        if let Some(db) = self.node.output(1) {
            let negative = self.define("Neg", vec![], vec![Some(of_a)], NewValue::of(a));
            let inputs = vec![Some(of_b), Some(of_b)];
            let squared = self.define("Mul", vec![], inputs, NewValue::of(b));
            let inputs = vec![Some(negative), Some(squared)];
            let quotient = self.define("Div", vec![], inputs, NewValue::of(dy));
            let inputs = vec![Some(of_dy), Some(quotient)];
            let whole = self.define("Mul", vec![], inputs, NewValue::of(dy));
            self.summed_up(whole, *axes.get(1)?, shape_b, db);
        }
        Some(())
    }

    fn summed_up(
        &mut self,
        whole: ValueNumber,
        axes: Option<ValueNumber>,
        shape: ValueNumber,
        output: crate::graph::TensorId,
    ) {
        let one = |name| (name, AttributeValue::Int(1));
        let reduced = computation(
            "com.microsoft",
            "ReduceSumTraining",
            vec![one("keepdims"), one("noop_with_empty_axes")],
            vec![Some(whole), axes],
        );
        let element = self.graph.tensor(output).element;
        let reduced = self.define_value(reduced, element, None);
        let inputs = vec![Some(reduced), Some(shape)];
        self.equate("", "Reshape", vec![], inputs, output);
    }
}
