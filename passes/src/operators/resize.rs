//! Resize, Upsample and their gradient.

use super::view::{Fault, Input, Outputs, View, dimension, resolve_axis, unknown};
use super::{Family, Operator, Provider, microsoft, onnx, per_output_element};
use crate::bytes::Bytes;

pub(super) const OPERATORS: &[Operator] = &[
    onnx("Resize", Family::Other, resize)
        .operations(|view| per_output_element(view, 8.0))
        .workspace(workspace),
    onnx("Upsample", Family::Other, upsample).operations(|view| per_output_element(view, 8.0)),
    onnx("GridSample", Family::Other, sample).operations(|view| per_output_element(view, 8.0)),
    // ResizeGrad(dY, X, roi, scales, sizes) -> dX
    microsoft("ResizeGrad", Family::Other, |view| {
        Ok(vec![view.input(1)?.same()])
    }),
];

/// Where the CPU kernel interpolates, it has tables: of 28 bytes for each position along an axis; for cubic
/// interpolation of 18 for each position of a channel; with antialiasing it keeps an image that
/// is resized along one axis (measured).
fn workspace(view: &View, provider: Provider) -> Option<Bytes> {
    let (x, y) = (view.input(0).ok()?, view.output(0)?);
    let spatial = y.shape.get(2..)?;
    if provider == Provider::Cuda || matches!(view.node.string("mode"), None | Some("nearest")) {
        return None;
    }
    if view.node.int("antialias").unwrap_or(0) != 0 {
        let (&channels, &[height, _], &[_, width]) = (x.shape.get(1)?, x.shape.get(2..)?, spatial)
        else {
            return None;
        };
        let count = channels.checked_mul(height)?.checked_mul(width)?;
        return Some(x.element.bytes(count));
    }
    let all = |n: u64, &d: &u64| n.saturating_mul(d);
    Some(Bytes(match view.node.string("mode") {
        Some("cubic") => spatial.iter().fold(18, all),
        _ => spatial
            .iter()
            .fold(0u64, |n, &d| n.saturating_add(d.saturating_mul(28))),
    }))
}

fn resize(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    // Resize-10(X, scales), from 11 on Resize(X, roi, scales, sizes)
    if view.opset() <= 10 {
        return by_scales(view, x, 1);
    }
    match view.optional(3)? {
        Some(sizes) => match sizes.ints() {
            Some(sizes) => by_sizes(view, x, sizes),
            None => unknown(),
        },
        None => by_scales(view, x, 2),
    }
}

fn upsample(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    match view.node.attribute("scales") {
        Some(crate::graph::AttributeValue::Floats(scales)) => {
            let scales: Vec<f64> = scales.iter().map(|&s| f64::from(s)).collect();
            scaled(view, x, &scales, 1)
        }
        _ => by_scales(view, x, 1),
    }
}

fn by_scales(view: &View, x: Input, position: usize) -> Result<Outputs, Fault> {
    match view.input(position)?.floats() {
        Some(scales) => scaled(view, x, scales, position),
        None => unknown(),
    }
}

/// Each axis becomes `floor(size * scale)` long, computed in single precision.
fn scaled(view: &View, x: Input, scales: &[f64], position: usize) -> Result<Outputs, Fault> {
    let axes = resized_axes(view, x.rank())?;
    if scales.len() != axes.len() {
        return Err(view.bad_value(position, scales, "one factor per resized axis"));
    }
    let mut shape = x.shape.to_vec();
    for (&axis, &scale) in axes.iter().zip(scales) {
        let size = (shape[axis] as f32 * scale as f32).floor();
        // The comparison is false for what is not a number.
        if !(size >= 0.0 && size < i64::MAX as f32) {
            return Err(view.bad_value(position, scale, "a factor above 0"));
        }
        shape[axis] = size as u64;
    }
    Ok(vec![x.with_shape(shape)])
}

fn by_sizes(view: &View, x: Input, sizes: &[i64]) -> Result<Outputs, Fault> {
    let axes = resized_axes(view, x.rank())?;
    if sizes.len() != axes.len() {
        return Err(view.bad_value(3, sizes, "one size per resized axis"));
    }
    let mut wanted = sizes
        .iter()
        .map(|&s| dimension(s))
        .collect::<Result<Vec<u64>, _>>()?;
    let ratios = axes
        .iter()
        .zip(&wanted)
        .map(|(&axis, &w)| w as f64 / x.shape[axis] as f64);
    let ratio = match view.node.string("keep_aspect_ratio_policy") {
        Some("not_larger") => ratios.reduce(f64::min),
        Some("not_smaller") => ratios.reduce(f64::max),
        _ => None,
    };
    if let Some(ratio) = ratio {
        for (&axis, size) in axes.iter().zip(&mut wanted) {
            let kept = (x.shape[axis] as f64 * ratio).round();
            if !(kept >= 0.0 && kept < i64::MAX as f64) {
                return Err(Fault::TooLarge);
            }
            *size = kept as u64;
        }
    }
    let mut shape = x.shape.to_vec();
    for (&axis, &size) in axes.iter().zip(&wanted) {
        shape[axis] = size;
    }
    Ok(vec![x.with_shape(shape)])
}

/// GridSample(X `[N, C, ...]`, grid `[N, size ..., axes]`) -> `[N, C, size ...]`
fn sample(view: &View) -> Result<Outputs, Fault> {
    let (x, grid) = (view.input(0)?, view.input(1)?);
    if x.rank() < 3 || grid.rank() != x.rank() {
        return Err(grid.wrong(1, "as many axes as the data, three or more"));
    }
    let mut shape = x.shape[..2].to_vec();
    shape.extend(&grid.shape[1..grid.rank() - 1]);
    Ok(vec![x.with_shape(shape)])
}

pub(super) fn resized_axes(view: &View, rank: usize) -> Result<Vec<usize>, Fault> {
    match view.node.ints("axes") {
        None => Ok((0..rank).collect()),
        Some(axes) => {
            let resolved = axes.iter().map(|&a| resolve_axis(a, rank));
            let resolved: Option<Vec<usize>> = resolved.collect();
            resolved.ok_or_else(|| view.bad("axes", axes, "axes of input 0"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;

    #[test]
    fn scales_round_down() {
        // floor(7 * 1.5) = 10
        let case = Case::onnx("Resize")
            .float(&[1, 2, 7, 7])
            .none()
            .floats(&[4], &[1.0, 1.0, 1.5, 2.0]);
        assert_eq!(case.shapes(), ["float[1, 2, 10, 14]"]);
        let case = Case::onnx("Resize")
            .opset(10)
            .float(&[1, 7])
            .floats(&[2], &[1.0, f64::INFINITY]);
        insta::assert_snapshot!(case.fault(), @"input 1 says inf; expected a factor above 0");
    }

    #[test]
    fn sizes_are_taken_as_they_are() {
        let case = Case::onnx("Resize")
            .float(&[2, 512, 1, 1])
            .none()
            .none()
            .ints(&[4], &[2, 512, 90, 90]);
        assert_eq!(case.shapes(), ["float[2, 512, 90, 90]"]);
        // min(8 / 4, 20 / 8) = 2
        let case = Case::onnx("Resize")
            .float(&[1, 4, 8])
            .none()
            .none()
            .ints(&[2], &[8, 20])
            .list("axes", &[1, 2])
            .text("keep_aspect_ratio_policy", "not_larger");
        assert_eq!(case.shapes(), ["float[1, 8, 16]"]);
    }

    #[test]
    fn grids_give_the_size() {
        let case = Case::onnx("GridSample")
            .float(&[2, 3, 8, 8])
            .float(&[2, 5, 6, 2]);
        assert_eq!(case.shapes(), ["float[2, 3, 5, 6]"]);
    }

    #[test]
    fn the_gradient_is_shaped_like_the_input() {
        let case = Case::microsoft("ResizeGrad")
            .float(&[2, 512, 90, 90])
            .float(&[2, 512, 1, 1]);
        assert_eq!(case.shapes(), ["float[2, 512, 1, 1]"]);
    }
}
