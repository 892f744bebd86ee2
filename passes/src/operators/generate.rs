//! Tensors made from attributes or shapes: Constant, ConstantOfShape, Range, EyeLike, windows.

use super::activation::element_attribute;
use super::evaluate::with_contents;
use super::view::{Fault, LARGEST_CONSTANT, Outputs, View, dimension, known, one, unknown};
use super::{Family, Operator, onnx};
use crate::graph::{AttributeValue, Constant, ElementType};

pub(super) const OPERATORS: &[Operator] = &[
    onnx("Constant", Family::View, constant),
    onnx("ConstantOfShape", Family::Movement, constant_of_shape),
    onnx("Range", Family::Movement, range),
    onnx("EyeLike", Family::Movement, eye_like),
    onnx("HannWindow", Family::Transcendental, window),
    onnx("HammingWindow", Family::Transcendental, window),
    onnx("BlackmanWindow", Family::Transcendental, window),
];

fn constant(view: &View) -> Result<Outputs, Fault> {
    let attribute = |name| view.node.attribute(name);
    if let Some(AttributeValue::Tensor {
        element,
        shape,
        constant,
    }) = attribute("value")
    {
        return Ok(vec![with_contents(
            known(*element, shape.clone()),
            constant.clone(),
        )]);
    }
    let (element, shape, contents) = if let Some(value) = view.node.int("value_int") {
        (ElementType::Int64, vec![], Constant::Ints(vec![value]))
    } else if let Some(values) = view.node.ints("value_ints") {
        (
            ElementType::Int64,
            vec![values.len() as u64],
            Constant::Ints(values.to_vec()),
        )
    } else if let Some(value) = view.node.float("value_float") {
        (
            ElementType::Float,
            vec![],
            Constant::Floats(vec![value.into()]),
        )
    } else if let Some(AttributeValue::Floats(values)) = attribute("value_floats") {
        let floats = values.iter().map(|&v| v.into()).collect();
        (
            ElementType::Float,
            vec![values.len() as u64],
            Constant::Floats(floats),
        )
    } else if view.node.string("value_string").is_some() {
        return one(ElementType::String, vec![]);
    } else if let Some(AttributeValue::Strings(values)) = attribute("value_strings") {
        return one(ElementType::String, vec![values.len() as u64]);
    } else {
        return unknown();
    };
    Ok(vec![with_contents(known(element, shape), Some(contents))])
}

fn constant_of_shape(view: &View) -> Result<Outputs, Fault> {
    let Some(dims) = view.input(0)?.ints() else {
        return unknown();
    };
    let sizes: Option<Vec<u64>> = dims.iter().map(|&d| u64::try_from(d).ok()).collect();
    let shape = sizes.ok_or_else(|| view.bad_value(0, dims, "sizes from 0 up"))?;
    let (element, value) = match view.node.attribute("value") {
        Some(AttributeValue::Tensor {
            element, constant, ..
        }) => (*element, constant.clone()),
        None => (ElementType::Float, Some(Constant::Floats(vec![0.0]))),
        Some(other) => return Err(view.bad("value", other, "a tensor with one element")),
    };
    let count = super::view::product(&shape)?;
    let contents = value
        .filter(|_| count <= LARGEST_CONSTANT)
        .and_then(|value| match value {
            Constant::Ints(v) => Some(Constant::Ints(vec![*v.first()?; count as usize])),
            Constant::Floats(v) => Some(Constant::Floats(vec![*v.first()?; count as usize])),
        });
    Ok(vec![with_contents(known(element, shape), contents)])
}

/// Range(start, limit, delta): `ceil((limit - start) / delta)` numbers.
fn range(view: &View) -> Result<Outputs, Fault> {
    let (start, limit, delta) = (view.input(0)?, view.input(1)?, view.input(2)?);
    let (Some(from), Some(to), Some(by)) = (start.number(), limit.number(), delta.number()) else {
        return unknown();
    };
    let count = ((to - from) / by).ceil().max(0.0);
    if !count.is_finite() || count >= i64::MAX as f64 {
        return Err(view.bad_value(2, by, "a step that reaches the limit"));
    }
    let count = count as u64;
    let integers = [start, limit, delta].map(|x| x.ints().and_then(|v| v.first().copied()));
    let contents = match integers {
        [Some(from), Some(_), Some(by)] if count <= LARGEST_CONSTANT => (0..count as i64)
            .map(|i| from.checked_add(i.checked_mul(by)?))
            .collect::<Option<_>>()
            .map(Constant::Ints),
        _ => None,
    };
    Ok(vec![with_contents(start.with_shape(vec![count]), contents)])
}

fn eye_like(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let element = match view.node.int("dtype") {
        Some(_) => element_attribute(view, "dtype")?,
        None => x.element,
    };
    one(element, x.shape.to_vec())
}

fn window(view: &View) -> Result<Outputs, Fault> {
    let element = match view.node.int("output_datatype") {
        Some(_) => element_attribute(view, "output_datatype")?,
        None => ElementType::Float,
    };
    match view.input(0)?.ints() {
        Some(&[size]) => one(element, vec![dimension(size)?]),
        _ => unknown(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::*;

    #[test]
    fn constants_come_in_several_attributes() {
        let tensor = AttributeValue::Tensor {
            element: ElementType::Int64,
            shape: vec![2],
            constant: Some(Constant::Ints(vec![3, 4])),
        };
        let case = Case::onnx("Constant").attribute("value", tensor);
        assert_eq!(case.shapes(), ["int64[2] = [3, 4]"]);
        let case = Case::onnx("Constant").list("value_ints", &[1, 2, 3]);
        assert_eq!(case.shapes(), ["int64[3] = [1, 2, 3]"]);
        let case = Case::onnx("Constant").attribute("value_float", AttributeValue::Float(0.5));
        assert_eq!(case.shapes(), ["float[] = [0.5]"]);
    }

    #[test]
    fn filled_tensors_keep_small_contents() {
        let ones = AttributeValue::Tensor {
            element: ElementType::Int64,
            shape: vec![1],
            constant: Some(Constant::Ints(vec![1])),
        };
        let case = Case::onnx("ConstantOfShape")
            .ints(&[1], &[3])
            .attribute("value", ones.clone());
        assert_eq!(case.shapes(), ["int64[3] = [1, 1, 1]"]);
        let case = Case::onnx("ConstantOfShape").ints(&[2], &[99999, 99999]);
        assert_eq!(case.shapes(), ["float[99999, 99999]"]);
        let case = Case::onnx("ConstantOfShape").ints(&[2], &[i64::MAX, i64::MAX]);
        insta::assert_snapshot!(case.fault(),
            @"a tensor of this size does not fit into any memory");
        assert_eq!(Case::onnx("ConstantOfShape").int64(&[2]).shapes(), ["?"]);
    }

    #[test]
    fn range_counts_its_steps() {
        let range = |from: i64, to, by| {
            Case::onnx("Range")
                .ints(&[], &[from])
                .ints(&[], &[to])
                .ints(&[], &[by])
        };
        assert_eq!(range(0, 5, 2).shapes(), ["int64[3] = [0, 2, 4]"]);
        assert_eq!(range(5, 0, -2).shapes(), ["int64[3] = [5, 3, 1]"]);
        assert_eq!(range(5, 0, 1).shapes(), ["int64[0] = []"]);
        insta::assert_snapshot!(range(0, 5, 0).fault(),
            @"input 2 says 0.0; expected a step that reaches the limit");
    }
}
