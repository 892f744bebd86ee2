//! Gradients of 1 x 1 convolutions as matrix products.
//!
//! The forward convolution stays as it is: on the CPU its kernel is a matrix product without
//! workspace already, and its bits are those of MatMul only while both cut the product into the same
//! pieces (measured: 1 of 150 random shapes differs with four threads).

use super::super::view::View;
use super::super::window::{Padding, Window};
use super::convolution::{is_gradient, weights};
use super::{Group, Like, Part, Read, Site, Variant, Write, part, scalar_zero};
use crate::graph::{AttributeValue, ElementType, TensorId, all_numbers, checked_count};

/// For a single image `[C, P]` and weights `[M, C]`: `dX = W^T dY + 0` and `dW = dY X^T + 0`. dX reads no
/// X, and the kernel has no workspace.
///
/// Runtime fact (measured over random shapes, 1 to 8 threads): on the CPU the bits are the same. The
/// kernel of ConvGrad multiplies copies of the same matrices, and adds to zero: without the zero, a sum
/// that underflows from below would be -0 in place of 0.
pub(super) const PRODUCT: Variant = Variant {
    name: "pointwise-product",
    group: Group::Convolution,
    replace: product,
};

fn product(site: &Site) -> Option<Vec<Part>> {
    let node = site.node;
    let ([dy, x, w], dx) = (node.first_inputs()?, node.output(0)?);
    let (image, kernel) = (site.shape(x)?, site.shape(w)?);
    let axes = image.len().checked_sub(2).filter(|&axes| axes > 0)?;
    let window = Window::of(&View::alone(site.graph, node), axes, Some(kernel.get(2..)?)).ok()?;
    let applies = is_gradient(site)
        && matches!(window.padding, Padding::Explicit(_))
        && window.is_plain()
        && window.kernel.iter().all(|&k| k == 1)
        && node.int("group").unwrap_or(1) == 1
        && image[0] == 1
        && [dx, x].iter().all(|&image| has_fixed_points(site, image))
        && site.element(dx) == Some(ElementType::Float)
        // Constants of this kind came with opset 12.
        && site.opset() >= 12;
    if !applies {
        return None;
    }
    let (filters, channels) = (*kernel.first()?, *kernel.get(1)?);
    let points = checked_count(&image[2..])?;
    let mut parts = Parts(vec![scalar_zero()]);
    // With numbers for all axes, more than one image is an error, not a wrong gradient.
    let dy = parts.matrix("dy", dy, [filters, points])?;
    let w = parts.matrix("w", w, [filters, channels])?;
    let columns = parts.product("transA", w, dy, "dx", [channels, points]);
    let mut dims = vec![-1];
    for &size in &image[1..] {
        dims.push(i64::try_from(size).ok()?);
    }
    parts.reshape("dx", columns, dims, Write::Tensor(dx));
    match (node.output(1), node.output(2)) {
        (None, None) => {}
        (Some(dw), None) => {
            let x = parts.matrix("x", x, [channels, points])?;
            let product = parts.product("transB", dy, x, "dw", [filters, channels]);
            let dims: Option<Vec<i64>> = kernel.iter().map(|&d| i64::try_from(d).ok()).collect();
            parts.reshape("dw", product, dims?, Write::Tensor(dw));
        }
        _ => parts.0.push(weights(site)),
    }
    Some(parts.0)
}

/// Are the sizes of the image's spatial axes numbers in the file?
fn has_fixed_points(site: &Site, image: TensorId) -> bool {
    let declared = site.graph.tensor(image).declared.as_deref();
    declared.is_none_or(|dims| dims.get(2..).is_none_or(all_numbers))
}

/// The first is a zero.
struct Parts(Vec<Part>);

impl Parts {
    fn matrix(&mut self, name: &str, of: TensorId, sizes: [u64; 2]) -> Option<Read> {
        let dims: Option<Vec<i64>> = sizes.iter().map(|&d| i64::try_from(d).ok()).collect();
        let written = new(format!("{name}_matrix"), sizes);
        Some(self.reshape(name, Read::Tensor(of), dims?, written))
    }

    fn reshape(&mut self, name: &str, from: Read, dims: Vec<i64>, to: Write) -> Read {
        let rank = Like::Static(vec![dims.len() as u64]);
        let shape = Write::new(format!("{name}_shape"), rank, ElementType::Int64);
        let constant = part("", "Constant", [], [Some(shape)]);
        let dims = self.add(constant.with("value_ints", AttributeValue::Ints(dims)));
        self.add(part("", "Reshape", [from, dims].map(Some), [Some(to)]))
    }

    fn product(&mut self, transposed: &str, a: Read, b: Read, name: &str, sizes: [u64; 2]) -> Read {
        let inputs = [a, b, Read::Output(0, 0)].map(Some);
        let written = new(format!("{name}_product"), sizes);
        let product = part("", "Gemm", inputs, [Some(written)]);
        self.add(product.with(transposed, AttributeValue::Int(1)))
    }

    fn add(&mut self, part: Part) -> Read {
        self.0.push(part);
        Read::Output(self.0.len() - 1, 0)
    }
}

/// A matrix.
fn new(suffix: String, sizes: [u64; 2]) -> Write {
    Write::new(suffix, Like::Static(sizes.to_vec()), ElementType::Float)
}
