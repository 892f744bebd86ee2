//! Other computations that give the same bits.
//!
//! A second opinion like [`super::trust`], kept apart from `operators/variants`: every rule here is
//! stated in terms of values, and says why it holds. A rule gives computations of which the last
//! has a value of the original; those on the way get values that the original does not have.

use std::collections::BTreeSet;

use activation::Relus;

use super::trust;
use super::values::{
    Computation, Drawn, Repeatable, ValueNumber, Values, fixed_tensors, updated_tensors,
};
use crate::graph::{AttributeValue, ElementType, Graph, Node, NodeId, TensorId};

mod activation;
mod approximate;
mod convolution;
mod dropout;
mod function;
mod normalization;
pub(super) mod slices;

type Attributes = Vec<(&'static str, AttributeValue)>;

impl Values {
    /// Adds every computation by which a variant may replace a node of `graph`, whose nodes are
    /// given in a topological `order`; those that are not bitwise as far as they are `allowed`, and those that work slice by slice
    /// with so many `slices`.
    pub(super) fn add_variants(
        &mut self,
        graph: &Graph,
        order: &[NodeId],
        allowed: &BTreeSet<String>,
        slices: &BTreeSet<u64>,
    ) {
        let updated = updated_tensors(graph, order);
        let fixed = fixed_tensors(graph);
        let relus = activation::relus(self, graph, order, "Relu");
        let leaky = activation::relus(self, graph, order, "LeakyRelu");
        let normalizations = normalization::normalizations(self, graph, order);
        let convolutions = slices::convolutions(self, graph, order, &updated);
        for &id in order {
            let node = graph.node(id);
            let is_updated = |tensor: TensorId| updated[tensor.index()];
            let writes_steady = !node.writes().any(is_updated);
            let steady = writes_steady && !node.reads().any(is_updated);
            let mut rules = Rules {
                values: self,
                graph,
                id,
                node,
                fixed: &fixed,
            };
            // When its pieces read what is updated, `updates` checks.
            if writes_steady {
                rules.function();
            }
            if steady && trust::repeatable(node, false).is_ok() {
                rules.apply(&relus, &leaky);
                for &count in slices {
                    let relus = match node.op_type.as_str() {
                        "ReluGrad" => &relus,
                        "LeakyReluGrad" => &leaky,
                        "BatchNormalizationGrad" => {
                            rules.normalization_gradient_by_channels(count);
                            continue;
                        }
                        _ => continue,
                    };
                    rules.relu_gradient_by_channels(relus, &normalizations, &updated, count);
                    rules.relu_gradient_by_images(relus, &convolutions, count);
                }
                rules.activated_again(&normalizations, &updated);
                rules.approximate(allowed);
            } else if node.is("", "Dropout") {
                rules.dropped_again(&updated);
            }
        }
    }
}

struct Rules<'a> {
    values: &'a mut Values,
    graph: &'a Graph,
    id: NodeId,
    node: &'a Node,
    /// Which tensors are the same in every step.
    fixed: &'a [bool],
}

impl Rules<'_> {
    fn apply(&mut self, relus: &Relus, leaky: &Relus) -> Option<()> {
        match (self.node.domain.as_str(), self.node.op_type.as_str()) {
            ("", "Sum") => self.sum(),
            ("", "MaxPool") => self.pooling_mask(),
            ("com.microsoft", "ReluGrad") => self.relu_gradient("ReluGrad", relus),
            ("com.microsoft", "LeakyReluGrad") => self.relu_gradient("LeakyReluGrad", leaky),
            ("com.microsoft", "ConvGrad") => {
                self.transposed_convolution();
                self.pointwise_product()
            }
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
        let applies = inputs.len() >= 2 && floats.contains(&element) && self.opset() >= 7;
        let (last, first) = inputs.split_last().filter(|_| applies)?;
        self.running_sum(first, *last, output)
    }

    /// One is added after another.
    fn running_sum(&mut self, first: &[TensorId], last: TensorId, output: TensorId) -> Option<()> {
        let mut so_far = self.value(*first.first()?);
        for &next in &first[1..] {
            let pair = vec![Some(so_far), Some(self.value(next))];
            so_far = self.define("Add", vec![], pair, NewValue::of(output));
        }
        let pair = vec![Some(so_far), Some(self.value(last))];
        self.equate("", "Add", vec![], pair, output)
    }

    /// The mask holds positions in the input: int32 can hold all of them.
    fn pooling_mask(&mut self) -> Option<()> {
        let (x, mask) = (self.node.input(0)?, self.node.output(1)?);
        let positions = self.graph.tensor(x).element_count();
        positions.filter(|&positions| positions <= i32::MAX as u64)?;
        let wide = self.value(mask);
        let narrow = self.cast(wide, ElementType::Int32, mask);
        self.equate("", "Cast", to(ElementType::Int64), vec![Some(narrow)], mask)
    }

    /// The value as another type, in the shape of `like`.
    fn cast(&mut self, value: ValueNumber, element: ElementType, like: TensorId) -> ValueNumber {
        let new = NewValue::typed(like, element);
        self.define("Cast", to(element), vec![Some(value)], new)
    }

    fn value(&self, tensor: TensorId) -> ValueNumber {
        self.values.of[tensor.index()]
    }

    fn opset(&self) -> i64 {
        self.graph.opset().unwrap_or(0)
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
        inputs: Vec<Option<ValueNumber>>,
        like: NewValue,
    ) -> ValueNumber {
        let of = self.graph.tensor(like.tensor);
        let (element, shape) = (like.element.or(of.element), of.shape.clone());
        let computation = computation("", op_type, attributes, inputs);
        self.define_value(computation, element, shape)
    }

    /// A list of integers.
    fn ints(&mut self, values: Vec<i64>) -> ValueNumber {
        let shape = vec![values.len() as u64];
        let values = vec![("value_ints", AttributeValue::Ints(values))];
        self.define_of(("", "Constant"), values, vec![], ElementType::Int64, shape)
    }

    /// One number of single precision.
    fn float(&mut self, value: f32) -> ValueNumber {
        let value = vec![("value_float", AttributeValue::Float(value))];
        self.define_of(("", "Constant"), value, vec![], ElementType::Float, vec![])
    }

    /// The value of a computation with one output, whose type and shape are given.
    fn define_of(
        &mut self,
        (domain, op_type): (&str, &str),
        attributes: Attributes,
        inputs: Vec<Option<ValueNumber>>,
        element: ElementType,
        shape: Vec<u64>,
    ) -> ValueNumber {
        let computation = computation(domain, op_type, attributes, inputs);
        self.define_value(computation, Some(element), Some(shape))
    }

    fn define_value(
        &mut self,
        computation: Computation,
        element: Option<ElementType>,
        shape: Option<Vec<u64>>,
    ) -> ValueNumber {
        let is_constant = computation.op_type == "Constant";
        if let Some(known) = self.values.repeatable.get_mut(&computation)
            && let Some(Some(value)) = known.outputs.first().copied()
        {
            // A constant is the same whoever holds it.
            known.forbidden = known.forbidden.filter(|_| !is_constant);
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
        attributes: Vec<(&str, AttributeValue)>,
        inputs: Vec<Option<ValueNumber>>,
        output: TensorId,
    ) -> Option<()> {
        let value = self.value(output);
        self.insert(computation(domain, op_type, attributes, inputs), value);
        Some(())
    }

    fn insert(&mut self, computation: Computation, value: ValueNumber) {
        self.insert_all(computation, vec![Some(value)]);
    }

    fn insert_all(&mut self, computation: Computation, outputs: Vec<Option<ValueNumber>>) {
        let variant = Repeatable {
            original: self.id,
            written: outputs.iter().map(Option::is_some).collect(),
            outputs,
            forbidden: None,
            variant: true,
        };
        self.values.repeatable.entry(computation).or_insert(variant);
    }
}

/// The type and shape of a value that the original does not have.
#[derive(Clone, Copy)]
struct NewValue {
    /// Whose shape it has, and whose type unless said otherwise.
    tensor: TensorId,
    element: Option<ElementType>,
}

impl NewValue {
    fn of(tensor: TensorId) -> NewValue {
        NewValue {
            tensor,
            element: None,
        }
    }

    /// Of a type of its own.
    fn typed(tensor: TensorId, element: ElementType) -> NewValue {
        NewValue {
            tensor,
            element: Some(element),
        }
    }
}

/// The attributes of a Cast.
fn to(element: ElementType) -> Attributes {
    vec![("to", AttributeValue::Int(element as i64))]
}

fn computation(
    domain: &str,
    op_type: &str,
    attributes: Vec<(&str, AttributeValue)>,
    inputs: Vec<Option<ValueNumber>>,
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
