//! The gradient of Resize, which is linear: a product with its matrix on each axis.

use super::operation::{fused_matmul, op, op_of};
use super::pooling::zeros;
use super::site::{LoweringSite, Obstacle, case};
use crate::graph::TensorId;

/// ResizeGrad(dY, X, roi, scales): the matrix of an axis is what Resize itself makes of the identity, so that it has the
/// same coefficients in every mode.
pub(super) fn resize_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, x] = site.inputs()?;
    let dx = site.result()?;
    let rank = site.rank(x)?;
    if rank != 4 {
        return case("where X does not have four dimensions");
    }
    // Of no other mode the region means anything.
    if site.node.string("coordinate_transformation_mode") == Some("tf_crop_and_resize") {
        return case("of a region (tf_crop_and_resize)");
    }
    let last = matrix(site, dy, x, 3)?;
    let part = site.add(fused_matmul(dy, last).int("transB", 1));
    let first = matrix(site, dy, x, 2)?;
    site.put(op("MatMul", [first, part]), dx);
    Ok(())
}

/// What Resize makes of each number on an axis of X: a row for each of them.
fn matrix(
    site: &mut LoweringSite,
    dy: TensorId,
    x: TensorId,
    axis: usize,
) -> Result<TensorId, Obstacle> {
    let element = site.element(x)?;
    let size = site.size_of(x, axis);
    let square = site.add(op("Concat", [size, size]).int("axis", 0));
    let square = site.add(zeros(square, element));
    let identity = site.add(op("EyeLike", [square]));
    let inputs = match site.node.input(3) {
        Some(scales) => {
            let one = site.numbers_of(vec![1], &[1.0], crate::graph::ElementType::Float);
            let place = site.ints(&[axis as i64]);
            let scale = site.add(op("Gather", [scales, place]).int("axis", 0));
            let scales = site.add(op("Concat", [one, scale]).int("axis", 0));
            vec![Some(identity), None, Some(scales)]
        }
        None => {
            let to = site.size_of(dy, axis);
            let sizes = site.add(op("Concat", [size, to]).int("axis", 0));
            vec![Some(identity), None, None, Some(sizes)]
        }
    };
    let mut resize = op_of("Resize", inputs);
    resize.attributes = site.node.attributes.clone();
    Ok(site.add(resize))
}
