//! Operators of which the runtime itself makes several nodes.

use std::collections::HashMap;

use super::{AttributeValue, Attributes, NewValue, Rules, ValueNumber, computation};
use crate::graph::ElementType;

/// A result, by name, and what computes it: operator, attributes and operands, which are results or the node's inputs, named by
/// their positions.
type Line = (&'static str, &'static str, Attributes, Vec<&'static str>);

impl Rules<'_> {
    /// Operators that have no kernel on the CPU: sessions run these in their place (read from graphs that sessions saved), so
    /// a graph that has them computes the same bits.
    pub(super) fn function(&mut self) -> Option<()> {
        let (domain, op_type) = (self.node.domain.as_str(), self.node.op_type.as_str());
        let int = |name, value| (name, AttributeValue::Int(value));
        let float = |name, value| (name, AttributeValue::Float(value));
        let lines = match (domain, op_type) {
            ("com.microsoft", "DivGrad") => return self.division_gradient(),
            ("", "HardSwish") => {
                let sigmoid = vec![float("alpha", 1.0 / 6.0), float("beta", 0.5)];
                vec![
                    ("part", "HardSigmoid", sigmoid, vec!["in0"]),
                    ("", "Mul", vec![], vec!["in0", "part"]),
                ]
            }
            ("", "Mish") => vec![
                ("softplus", "Softplus", vec![], vec!["in0"]),
                ("part", "Tanh", vec![], vec!["softplus"]),
                ("", "Mul", vec![], vec!["in0", "part"]),
            ],
            ("", "CastLike") => {
                let to = self.graph.tensor(self.node.input(1)?).element?;
                vec![("", "Cast", vec![int("to", to as i64)], vec!["in0"])]
            }
            // The next version scales each channel by itself.
            ("", "GroupNormalization") if self.opset() < 21 => self.group_normalization()?,
            _ => return None,
        };
        self.computed_by(lines)
    }

    /// The node's result is what the last line computes.
    fn computed_by(&mut self, lines: Vec<Line>) -> Option<()> {
        let output = self.node.output(0)?;
        let inputs = ["in0", "in1", "in2"].into_iter().zip(&self.node.inputs);
        let mut known: HashMap<&str, ValueNumber> = inputs
            .filter_map(|(name, tensor)| Some((name, self.value((*tensor)?))))
            .collect();
        for (name, op_type, attributes, operands) in lines {
            let operands: Option<Vec<ValueNumber>> = operands
                .iter()
                .map(|operand| known.get(operand).copied())
                .collect();
            let operands = operands?.into_iter().map(Some).collect();
            if name.is_empty() {
                return self.equate("", op_type, attributes, operands, output);
            }
            let computed = computation("", op_type, attributes, operands);
            known.insert(name, self.define_value(computed, None, None));
        }
        None
    }

    /// Mean and variance are those of rows `[batch, groups, all the rest]`, by which scale and bias go, too.
    fn group_normalization(&self) -> Option<Vec<Line>> {
        let int = |name, value| vec![(name, AttributeValue::Int(value))];
        let ints = |values| vec![("value_ints", AttributeValue::Ints(values))];
        let element = self.graph.tensor(self.node.input(0)?).element? as i64;
        let epsilon = AttributeValue::Floats(vec![self.node.float("epsilon").unwrap_or(1e-5)]);
        let groups = vec![self.node.int("num_groups")?];
        let between = |start| [int("start", start), int("end", start + 1)].concat();
        let to = |element| int("to", element);
        Some(vec![
            ("e", "Constant", vec![("value_floats", epsilon)], vec![]),
            ("e'", "Cast", to(ElementType::Float as i64), vec!["e"]),
            ("shape", "Shape", vec![], vec!["in0"]),
            ("c", "Shape", between(1), vec!["in0"]),
            ("g", "Constant", ints(groups), vec![]),
            ("c/g", "Div", vec![], vec!["c", "g"]),
            ("n", "Shape", between(0), vec!["in0"]),
            ("hw", "Shape", int("start", 2), vec!["in0"]),
            (
                "ngchw",
                "Concat",
                int("axis", 0),
                vec!["n", "g", "c/g", "hw"],
            ),
            ("split", "Reshape", vec![], vec!["in0", "ngchw"]),
            ("00-1", "Constant", ints(vec![0, 0, -1]), vec![]),
            ("x", "Reshape", vec![], vec!["split", "00-1"]),
            ("2", "Constant", ints(vec![2]), vec![]),
            ("mean", "ReduceMean", vec![], vec!["x", "2"]),
            ("xx", "Mul", vec![], vec!["x", "x"]),
            ("mean xx", "ReduceMean", vec![], vec!["xx", "2"]),
            ("mean mean", "Mul", vec![], vec!["mean", "mean"]),
            ("v", "Sub", vec![], vec!["mean xx", "mean mean"]),
            ("v+e", "Add", vec![], vec!["v", "e'"]),
            ("d", "Sqrt", vec![], vec!["v+e"]),
            ("x-mean", "Sub", vec![], vec!["x", "mean"]),
            ("y", "Div", vec![], vec!["x-mean", "d"]),
            ("1-11", "Constant", ints(vec![1, -1, 1]), vec![]),
            ("s", "Cast", to(element), vec!["in1"]),
            ("b", "Cast", to(element), vec!["in2"]),
            ("s'", "Reshape", vec![], vec!["s", "1-11"]),
            ("b'", "Reshape", vec![], vec!["b", "1-11"]),
            ("sy", "Mul", vec![], vec!["s'", "y"]),
            ("sy+b", "Add", vec![], vec!["sy", "b'"]),
            ("", "Reshape", vec![], vec!["sy+b", "shape"]),
        ])
    }

    /// DivGrad(dY, A, B) -> (dA, dB) has no kernel on the CPU: sessions run `dY / B`, summed along the axes along which
    /// A was broadcast, and `dY * (-A / (B * B))` for B in the same way (read from graphs that sessions saved). So a graph that has
    /// these nodes computes the same bits.
    fn division_gradient(&mut self) -> Option<()> {
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
