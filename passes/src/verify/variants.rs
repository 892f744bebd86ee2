//! Other computations that give the same bits.
//!
//! A second opinion like [`super::trust`], kept apart from `operators/variants`: every rule here is
//! stated in terms of values, and says why it holds. A rule gives computations of which the last
//! has a value of the original; those on the way get values that the original does not have.

use std::collections::BTreeMap;

use super::trust;
use super::values::{Computation, Repeatable, Value, Values, updated_tensors};
use crate::graph::{AttributeValue, ElementType, Graph, Node, NodeId, TensorId};

type Attributes = Vec<(&'static str, AttributeValue)>;

impl Values {
    /// Adds every computation by which a variant may replace a node of `graph`, whose nodes are
    /// given in a topological `order`.
    pub(super) fn add_variants(&mut self, graph: &Graph, order: &[NodeId]) {
        let updated = updated_tensors(graph, order);
        let mut relus: BTreeMap<Value, Value> = BTreeMap::new();
        for &id in order {
            let node = graph.node(id);
            if let (true, Some(x), Some(y)) = (node.is("", "Relu"), node.input(0), node.output(0)) {
                relus.insert(self.of[y.index()], self.of[x.index()]);
            }
        }
        for &id in order {
            let node = graph.node(id);
            let steady = !node
                .reads()
                .chain(node.writes())
                .any(|t| updated[t.index()]);
            let mut rules = Rules {
                values: self,
                graph,
                id,
                node,
            };
            if steady && trust::repeatable(node, false).is_ok() {
                rules.apply(&relus);
            } else if node.is("com.microsoft", "BatchNormInternal") {
                rules.scaled_channels(&updated);
            }
        }
    }
}

struct Rules<'a> {
    values: &'a mut Values,
    graph: &'a Graph,
    id: NodeId,
    node: &'a Node,
}

impl Rules<'_> {
    fn apply(&mut self, relus: &BTreeMap<Value, Value>) -> Option<()> {
        match (self.node.domain.as_str(), self.node.op_type.as_str()) {
            ("", "Sum") => self.sum(),
            ("", "MaxPool") => self.pooling_mask(),
            ("com.microsoft", "ReluGrad") => self.relu_gradient(relus),
            ("com.microsoft", "ConvGrad") => self.transposed_convolution(),
            _ => None,
        }
    }

    /// The kernel of Sum adds its inputs in their order, and without broadcasting the sum of
    /// two is what Add computes.
    fn sum(&mut self) -> Option<()> {
        let output = self.node.output(0)?;
        let floats = [ElementType::Float, ElementType::Double];
        let element = self.graph.tensor(output).element?;
        let inputs: Option<Vec<TensorId>> = self.node.inputs.iter().copied().collect();
        let inputs = inputs.filter(|all| all.iter().all(|&input| self.alike(input, output)))?;
        // Before version 7, Add did not broadcast, and had attributes for it.
        let applies = inputs.len() >= 3 && floats.contains(&element) && self.opset() >= 7;
        let (last, first) = inputs.split_last().filter(|_| applies)?;
        let mut so_far = self.value(first[0]);
        for &next in &first[1..] {
            let next = self.value(next);
            so_far = self.define(
                "Add",
                vec![],
                vec![Some(so_far), Some(next)],
                Like::of(output),
            );
        }
        let last = self.value(*last);
        self.equate("", "Add", vec![], vec![Some(so_far), Some(last)], output)
    }

    /// The mask holds positions in the input: int32 can hold all of them.
    fn pooling_mask(&mut self) -> Option<()> {
        let (x, mask) = (self.node.input(0)?, self.node.output(1)?);
        self.graph
            .tensor(x)
            .element_count()
            .filter(|&positions| positions <= i32::MAX as u64)?;
        let to = |element: ElementType| vec![("to", AttributeValue::Int(element as i64))];
        let wide = self.value(mask);
        let like = Like {
            element: Some(ElementType::Int32),
            ..Like::of(mask)
        };
        let narrow = self.define("Cast", to(ElementType::Int32), vec![Some(wide)], like);
        self.equate("", "Cast", to(ElementType::Int64), vec![Some(narrow)], mask)
    }

    /// The gradient is dY where the value is above zero and zero elsewhere, and Relu(x) is above
    /// zero exactly where x is; for NaN, neither is.
    fn relu_gradient(&mut self, relus: &BTreeMap<Value, Value>) -> Option<()> {
        let [dy, read] = [0, 1].map(|i| self.node.input(i));
        let (dy, read, dx) = (dy?, read?, self.node.output(0)?);
        let gradient = self.value(dy);
        let value = self.value(read);
        let mut values = vec![value];
        values.extend(relus.get(&value));
        let outputs = relus.iter().filter(|&(_, &input)| input == value);
        values.extend(outputs.map(|(&output, _)| output));
        let masks = self.graph.tensor(read).element == Some(ElementType::Float)
            && self.opset() >= 12
            && self.alike(read, dx);
        for value in values {
            let inputs = vec![Some(gradient), Some(value)];
            self.equate("com.microsoft", "ReluGrad", vec![], inputs, dx);
            if masks {
                let ones = self.above_zero(value, read);
                let inputs = vec![Some(gradient), Some(ones)];
                self.equate("com.microsoft", "ReluGrad", vec![], inputs, dx);
            }
        }
        Some(())
    }

    /// 1 where `value`, which has the shape of `like`, is above zero, and 0 elsewhere: above zero
    /// where `value` is.
    fn above_zero(&mut self, value: Value, like: TensorId) -> Value {
        let zero = vec![("value_float", AttributeValue::Float(0.0))];
        let scalar = Like {
            tensor: None,
            element: Some(ElementType::Float),
        };
        let zero = self.define("Constant", zero, vec![], scalar);
        let of = |element| Like {
            element: Some(element),
            ..Like::of(like)
        };
        let inputs = vec![Some(value), Some(zero)];
        let above = self.define("Greater", vec![], inputs, of(ElementType::Bool));
        let to = vec![("to", AttributeValue::Int(ElementType::Float as i64))];
        self.define("Cast", to, vec![Some(above)], of(ElementType::Float))
    }

    /// The gradient by the data is the transposed convolution of dY with the same weights, padded at
    /// the ends by what the windows did not reach. The CPU kernels multiply the same matrices
    /// and add up in the same order.
    fn transposed_convolution(&mut self) -> Option<()> {
        let [dy, x, w] = [0, 1, 2].map(|i| self.node.input(i));
        let (dy, x, w, dx) = (dy?, x?, w?, self.node.output(0)?);
        let shape = |id: TensorId| self.graph.tensor(id).shape.clone();
        let (from, to, kernel) = (shape(dy)?, shape(x)?, shape(w)?);
        let axes = to.len().checked_sub(2)?;
        let signed = |list: &[u64]| -> Option<Vec<i64>> {
            list.iter().map(|&d| i64::try_from(d).ok()).collect()
        };
        let (from, to, kernel) = (signed(&from)?, signed(&to)?, signed(kernel.get(2..)?)?);
        let derived = self.node.string("auto_pad").unwrap_or("NOTSET") != "NOTSET";
        let element = self.graph.tensor(dx).element;
        if derived || axes == 0 || element != Some(ElementType::Float) || self.opset() < 11 {
            return None;
        }
        let list = |name: &str, missing: i64, length: usize| match self.node.ints(name) {
            Some(list) => (list.len() == length).then(|| list.to_vec()),
            None => Some(vec![missing; length]),
        };
        let strides = list("strides", 1, axes)?;
        let dilations = list("dilations", 1, axes)?;
        let pads = list("pads", 0, 2 * axes)?;
        let mut rest = Vec::new();
        for axis in 0..axes {
            let extent = (kernel.get(axis)? - 1)
                .checked_mul(dilations[axis])?
                .checked_add(1)?;
            let reach = from
                .get(2 + axis)?
                .checked_sub(1)?
                .checked_mul(strides[axis])?
                .checked_add(extent)?;
            let padded = to[2 + axis].checked_add(pads[axis])?;
            let padded = padded.checked_add(pads[axes + axis])?;
            let rested = padded.checked_sub(reach);
            rest.push(rested.filter(|&rest| (0..strides[axis]).contains(&rest))?);
        }
        let group = self.node.int("group").unwrap_or(1);
        let attributes = vec![
            ("dilations", AttributeValue::Ints(dilations)),
            ("group", AttributeValue::Int(group)),
            ("kernel_shape", AttributeValue::Ints(kernel)),
            ("output_padding", AttributeValue::Ints(rest)),
            ("pads", AttributeValue::Ints(pads)),
            ("strides", AttributeValue::Ints(strides)),
        ];
        let inputs = vec![Some(self.value(dy)), Some(self.value(w))];
        self.equate("", "ConvTranspose", attributes, inputs, dx)
    }

    /// What is normalized with the mean and the inverse deviation that the node has left:
    /// `X * (inverse * scale) + (B - mean * (inverse * scale))`, which is how the CPU kernel computes it.
    /// A convolution of each channel with one weight rounds the product and the sum in the same way.
    /// The running statistics, which are `updated`, do not enter it.
    fn scaled_channels(&mut self, updated: &[bool]) -> Option<()> {
        let [x, scale, bias] = [0, 1, 2].map(|i| self.node.input(i));
        let (x, scale, bias) = (x?, scale?, bias?);
        let (y, mean, inverse) = (
            self.node.output(0)?,
            self.node.output(3)?,
            self.node.output(4)?,
        );
        let shape = self.graph.tensor(x).shape.clone()?;
        let element = |id: TensorId| self.graph.tensor(id).element;
        let floats = [x, scale, bias, mean, inverse];
        let used = floats.iter().chain([&y]);
        let steady = !used.into_iter().any(|t| updated[t.index()]);
        let applies = steady
            && (3..=5).contains(&shape.len())
            && floats
                .iter()
                .all(|&t| element(t) == Some(ElementType::Float))
            && self.node.int("training_mode") == Some(1)
            && self.opset() >= 13;
        let channels = i64::try_from(*shape.get(1)?).ok().filter(|_| applies)?;
        let vector = Like::of(mean);
        let (scale, bias) = (self.value(scale), self.value(bias));
        let (mean, inverse) = (self.value(mean), self.value(inverse));
        let factor = self.define("Mul", vec![], vec![Some(inverse), Some(scale)], vector);
        let moved = self.define("Mul", vec![], vec![Some(mean), Some(factor)], vector);
        let shift = self.define("Sub", vec![], vec![Some(bias), Some(moved)], vector);
        let mut dims = vec![channels];
        dims.resize(shape.len(), 1);
        let ints = vec![("value_ints", AttributeValue::Ints(dims.clone()))];
        let rank = vec![shape.len() as u64];
        let to = self.define_of("Constant", ints, vec![], ElementType::Int64, rank);
        let dims = dims.iter().map(|&d| d as u64).collect();
        let inputs = vec![Some(factor), Some(to)];
        let weights = self.define_of("Reshape", vec![], inputs, ElementType::Float, dims);
        let inputs = vec![Some(self.value(x)), Some(weights), Some(shift)];
        let group = vec![("group", AttributeValue::Int(channels))];
        self.equate("com.microsoft", "FusedConv", group, inputs, y)
    }

    fn value(&self, tensor: TensorId) -> Value {
        self.values.of[tensor.index()]
    }

    fn opset(&self) -> i64 {
        self.graph.opsets.get("").copied().unwrap_or(0)
    }

    fn alike(&self, a: TensorId, b: TensorId) -> bool {
        let shape = |id: TensorId| self.graph.tensor(id).shape.as_ref();
        shape(a).is_some() && shape(a) == shape(b)
    }

    /// The value of a computation of ai.onnx with one output.
    fn define(
        &mut self,
        op_type: &str,
        attributes: Attributes,
        inputs: Vec<Option<Value>>,
        like: Like,
    ) -> Value {
        let shape = match like.tensor {
            Some(tensor) => self.graph.tensor(tensor).shape.clone(),
            None => Some(Vec::new()),
        };
        let of = like.tensor.map(|tensor| self.graph.tensor(tensor));
        let element = like.element.or(of.and_then(|tensor| tensor.element));
        self.define_value(op_type, attributes, inputs, element, shape)
    }

    fn define_of(
        &mut self,
        op_type: &str,
        attributes: Attributes,
        inputs: Vec<Option<Value>>,
        element: ElementType,
        shape: Vec<u64>,
    ) -> Value {
        self.define_value(op_type, attributes, inputs, Some(element), Some(shape))
    }

    fn define_value(
        &mut self,
        op_type: &str,
        attributes: Attributes,
        inputs: Vec<Option<Value>>,
        element: Option<ElementType>,
        shape: Option<Vec<u64>>,
    ) -> Value {
        let computation = computation("", op_type, attributes, inputs);
        if let Some(known) = self.values.repeatable.get_mut(&computation)
            && let Some(Some(value)) = known.outputs.first().copied()
        {
            // A constant is the same whoever holds it.
            known.forbidden = known.forbidden.filter(|_| op_type != "Constant");
            return value;
        }
        let value = self.values.fresh(element, shape);
        self.insert(computation, value);
        value
    }

    /// The computation gives the value of `output`.
    fn equate(
        &mut self,
        domain: &str,
        op_type: &str,
        attributes: Attributes,
        inputs: Vec<Option<Value>>,
        output: TensorId,
    ) -> Option<()> {
        let value = self.value(output);
        self.insert(computation(domain, op_type, attributes, inputs), value);
        Some(())
    }

    fn insert(&mut self, computation: Computation, value: Value) {
        let variant = Repeatable {
            original: self.id,
            outputs: vec![Some(value)],
            written: vec![true],
            forbidden: None,
            variant: true,
        };
        self.values.repeatable.entry(computation).or_insert(variant);
    }
}

/// The type and shape of a value that the original does not have.
#[derive(Clone, Copy)]
struct Like {
    /// Whose shape it has, and whose type unless said otherwise; `None` for a scalar.
    tensor: Option<TensorId>,
    element: Option<ElementType>,
}

impl Like {
    fn of(tensor: TensorId) -> Like {
        Like {
            tensor: Some(tensor),
            element: None,
        }
    }
}

fn computation(
    domain: &str,
    op_type: &str,
    attributes: Attributes,
    inputs: Vec<Option<Value>>,
) -> Computation {
    let text = |(name, value): (&str, AttributeValue)| (name.to_owned(), format!("{value:?}"));
    let mut attributes: Vec<_> = attributes.into_iter().map(text).collect();
    attributes.sort();
    Computation {
        domain: domain.to_owned(),
        op_type: op_type.to_owned(),
        attributes,
        inputs,
    }
}
