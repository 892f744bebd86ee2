//! PyTorch's own operators, as ORTModule calls them (`org.pytorch.aten::ATen`).

use super::view::{Fault, Input, Outputs, View, known, unknown};
use super::window::{Padding, Window};
use super::{ATEN, Family, Operator, Recompute, onnx};
use crate::graph::{ElementType, Node};

pub(super) const OPERATORS: &[Operator] = &[Operator {
    domain: ATEN,
    ..onnx("ATen", Family::Other, call).recompute(recompute)
}];

fn name(node: &Node) -> &str {
    let name = node.string("operator").unwrap_or("");
    name.strip_prefix("aten::").unwrap_or(name)
}

/// Only what is known to give the same bits every time.
fn recompute(node: &Node) -> Recompute {
    match name(node) {
        "_adaptive_avg_pool2d"
        | "_adaptive_avg_pool2d_backward"
        | "avg_pool2d"
        | "embedding"
        | "max_pool2d_with_indices"
        | "upsample_bilinear2d"
        | "upsample_nearest2d" => Recompute::Clone,
        _ => Recompute::Never("a PyTorch operator that is not known to repeat itself"),
    }
}

fn call(view: &View) -> Result<Outputs, Fault> {
    match name(view.node) {
        "embedding" => embedding(view),
        "max_pool2d_with_indices" => max_pool(view),
        "avg_pool2d" => Ok(max_pool(view)?.into_iter().take(1).collect()),
        "_adaptive_avg_pool2d" | "upsample_nearest2d" | "upsample_bilinear2d" => to_size(view),
        // (dY, X, ...) -> dX
        "_adaptive_avg_pool2d_backward"
        | "avg_pool2d_backward"
        | "max_pool2d_with_indices_backward" => Ok(vec![view.input(1)?.same()]),
        // (dY, indices, rows, ...) -> dX; the width is that of dY
        "embedding_backward" => {
            let dy = view.input(0)?;
            let rows = view.input(2)?.ints().and_then(|v| v.first().copied());
            let (Some(rows), Some(&width)) = (rows, dy.shape.last()) else {
                return unknown();
            };
            Ok(vec![
                dy.with_shape(vec![super::view::dimension(rows)?, width]),
            ])
        }
        _ => unknown(),
    }
}

/// (weights `[rows, width]`, indices) -> `[indices ..., width]`
fn embedding(view: &View) -> Result<Outputs, Fault> {
    let (weights, indices) = (view.input(0)?, view.input(1)?);
    let &[_, width] = weights.shape else {
        return Err(weights.wrong(0, "rows and width"));
    };
    let mut shape = indices.shape.to_vec();
    shape.push(width);
    Ok(vec![weights.with_shape(shape)])
}

fn image<'a>(view: &View<'a>) -> Result<Input<'a>, Fault> {
    let x = view.input(0)?;
    match x.rank() {
        3 | 4 => Ok(x),
        _ => Err(x.wrong(0, "channels, height and width, perhaps of a batch")),
    }
}

/// (X, kernel, stride, padding, dilation, ceil mode) -> (Y, indices)
fn max_pool(view: &View) -> Result<Outputs, Fault> {
    let x = image(view)?;
    let average = name(view.node) == "avg_pool2d";
    let pair = |position: usize, default: Option<[u64; 2]>| -> Result<Option<[u64; 2]>, Fault> {
        let Some(input) = view.optional(position)? else {
            return Ok(default);
        };
        let Some(values) = input.ints() else {
            return Ok(None);
        };
        let size = |v: i64| u64::try_from(v).map_err(|_| view.bad_value(position, values, PAIR));
        match *values {
            [] => Ok(default),
            [one] => Ok(Some([size(one)?; 2])),
            [height, width] => Ok(Some([size(height)?, size(width)?])),
            _ => Err(view.bad_value(position, values, PAIR)),
        }
    };
    let Some(kernel) = pair(1, None)? else {
        return unknown();
    };
    let Some(strides) = pair(2, Some(kernel))? else {
        return unknown();
    };
    let Some(padding) = pair(3, Some([0, 0]))? else {
        return unknown();
    };
    let dilations = if average {
        Some([1, 1])
    } else {
        pair(4, Some([1, 1]))?
    };
    let Some(dilations) = dilations else {
        return unknown();
    };
    let ceiling = match view.optional(if average { 4 } else { 5 })? {
        None => false,
        Some(flag) => match flag.number() {
            None => return unknown(),
            Some(flag) => flag != 0.0,
        },
    };
    if [kernel, strides, dilations]
        .iter()
        .flatten()
        .any(|&v| v == 0)
    {
        return Err(view.bad_value(1, kernel, PAIR));
    }
    let window = Window {
        kernel: kernel.to_vec(),
        strides: strides.to_vec(),
        dilations: dilations.to_vec(),
        padding: Padding::Explicit([padding, padding].concat()),
    };
    let (outer, spatial) = x.shape.split_at(x.rank() - 2);
    let mut shape = outer.to_vec();
    shape.extend(window.slide(spatial, ceiling)?);
    Ok(vec![
        x.with_shape(shape.clone()),
        known(ElementType::Int64, shape),
    ])
}

const PAIR: &str = "one positive number, or two";

/// (X, `[height, width]`, ...) -> Y of that size
fn to_size(view: &View) -> Result<Outputs, Fault> {
    let x = image(view)?;
    let Some(size) = view.input(1)?.ints() else {
        return unknown();
    };
    let &[height, width] = size else {
        return Err(view.bad_value(1, size, PAIR));
    };
    let mut shape = x.shape[..x.rank() - 2].to_vec();
    shape.extend([
        super::view::dimension(height)?,
        super::view::dimension(width)?,
    ]);
    Ok(vec![x.with_shape(shape)])
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::super::{ATEN, recompute};
    use crate::operators::Recompute;

    fn aten(operator: &str) -> Case {
        Case::of(ATEN, "ATen").text("operator", operator)
    }

    #[test]
    fn pools_read_their_window_from_inputs() {
        // (112 + 1 + 1 - 3) / 2 + 1 = 56
        let case = aten("max_pool2d_with_indices")
            .float(&[2, 64, 112, 112])
            .ints(&[2], &[3, 3])
            .ints(&[2], &[2, 2])
            .ints(&[2], &[1, 1])
            .ints(&[2], &[1, 1])
            .bools(&[], &[0])
            .outputs(2);
        assert_eq!(
            case.shapes(),
            ["float[2, 64, 56, 56]", "int64[2, 64, 56, 56]"]
        );
        let case = aten("_adaptive_avg_pool2d")
            .float(&[2, 512, 7, 7])
            .ints(&[2], &[1, 1]);
        assert_eq!(case.shapes(), ["float[2, 512, 1, 1]"]);
    }

    #[test]
    fn embeddings_take_rows() {
        let case = aten("embedding").float(&[1000, 256]).int64(&[4, 128]);
        assert_eq!(case.shapes(), ["float[4, 128, 256]"]);
        let case = aten("embedding_backward")
            .float(&[4, 128, 256])
            .int64(&[4, 128])
            .ints(&[], &[1000]);
        assert_eq!(case.shapes(), ["float[1000, 256]"]);
        assert!(matches!(recompute(&case.node()), Recompute::Never(_)));
    }

    #[test]
    fn others_are_left_to_the_file() {
        assert_eq!(aten("aten::frobnicate").float(&[2]).shapes(), ["?"]);
    }
}
