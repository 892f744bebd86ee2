//! Gradients of convolutions.

use super::super::values::ValueNumber;
use super::Rules;
use crate::graph::{AttributeValue, ElementType, TensorId};

impl Rules<'_> {
    /// The gradient by the data is the transposed convolution of dY with the same weights, padded at
    /// the ends by what the windows did not reach. The CPU kernels multiply the same matrices
    /// and add up in the same order.
    pub(super) fn transposed_convolution(&mut self) -> Option<()> {
        let ([dy, x, w], dx) = (self.node.first_inputs()?, self.node.output(0)?);
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

    /// A convolution with a window of one element is `Y = W X` for a single image, X being `[C, P]`: the
    /// gradients are `dX = W^T dY` and `dW = dY X^T`. The CPU kernel of the gradient adds these products
    /// to zeros, as Gemm adds them to its third input.
    pub(super) fn pointwise_product(&mut self) -> Option<()> {
        let [dy, x, w] = self.node.first_inputs()?;
        let shape = |id: TensorId| -> Option<Vec<i64>> {
            let shape = self.graph.tensor(id).shape.as_deref()?;
            shape.iter().map(|&d| i64::try_from(d).ok()).collect()
        };
        let (image, kernel) = (shape(x)?, shape(w)?);
        let all = |name: &str, value: i64| {
            let list = self.node.ints(name).unwrap_or_default();
            list.iter().all(|&number| number == value)
        };
        let elements = [dy, x, w].map(|id| self.graph.tensor(id).element);
        let applies = image.len() >= 3
            && image[0] == 1
            && kernel.len() == image.len()
            && kernel[2..].iter().all(|&size| size == 1)
            && all("strides", 1)
            && all("pads", 0)
            && self.node.string("auto_pad").unwrap_or("NOTSET") == "NOTSET"
            && self.node.int("group").unwrap_or(1) == 1
            && elements == [Some(ElementType::Float); 3]
            && shape(dy)? == [&[1, kernel[0]], &image[2..]].concat()
            && kernel[1] == image[1]
            && self.opset() >= 12;
        if !applies {
            return None;
        }
        let points = image[2..]
            .iter()
            .try_fold(1i64, |n, &size| n.checked_mul(size))?;
        let (filters, channels) = (kernel[0], kernel[1]);
        let dy = self.matrix(dy, [filters, points]);
        if let Some(dx) = self.node.output(0) {
            let w = self.matrix(w, [filters, channels]);
            let columns = self.sum_of_products("transA", w, dy, [channels, points]);
            let dims = [&[-1], &image[1..]].concat();
            self.reshapes_to(columns, dims, dx);
        }
        if let Some(dw) = self.node.output(1) {
            let x = self.matrix(x, [channels, points]);
            let product = self.sum_of_products("transB", dy, x, [filters, channels]);
            self.reshapes_to(product, kernel, dw);
        }
        Some(())
    }

    /// A product of matrices, one of them transposed, and zero.
    fn sum_of_products(
        &mut self,
        transposed: &'static str,
        a: ValueNumber,
        b: ValueNumber,
        shape: [i64; 2],
    ) -> ValueNumber {
        let attributes = vec![(transposed, AttributeValue::Int(1))];
        let inputs = vec![Some(a), Some(b), Some(self.float(0.0))];
        let shape = shape.map(|size| size as u64).to_vec();
        self.define_of(("", "Gemm"), attributes, inputs, ElementType::Float, shape)
    }

    /// The tensor as a matrix of this size.
    fn matrix(&mut self, of: TensorId, sizes: [i64; 2]) -> ValueNumber {
        let dims = self.ints(sizes.to_vec());
        let inputs = vec![Some(self.value(of)), Some(dims)];
        let shape = sizes.map(|size| size as u64).to_vec();
        self.define_of(("", "Reshape"), vec![], inputs, ElementType::Float, shape)
    }

    fn reshapes_to(&mut self, from: ValueNumber, dims: Vec<i64>, output: TensorId) {
        let inputs = vec![Some(from), Some(self.ints(dims))];
        self.equate("", "Reshape", vec![], inputs, output);
    }
}
