//! Windows that slide over the spatial axes: shared by convolution and pooling.

use super::view::{Fault, Shape, View};
use crate::graph::AttributeValue;

/// Kernel, strides, dilations and padding of each spatial axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Window {
    pub(crate) kernel: Vec<u64>,
    pub(crate) strides: Vec<u64>,
    pub(crate) dilations: Vec<u64>,
    pub(crate) padding: Padding,
}

/// Padding as the node gives it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Padding {
    /// At the begin of every axis, then at the end of every axis.
    Explicit(Vec<u64>),
    /// As much as makes the output `ceil(input / stride)` long.
    Same,
    /// None.
    Valid,
}

impl Window {
    /// Reads the attributes of `view` for `axes` spatial axes. `kernel` is what the weights say,
    /// for nodes without a `kernel_shape`.
    pub(crate) fn of(view: &View, axes: usize, kernel: Option<&[u64]>) -> Result<Window, Fault> {
        let kernel = match (numbers(view, "kernel_shape", axes, 1)?, kernel) {
            (Some(kernel), _) => kernel,
            (None, Some(kernel)) => kernel.to_vec(),
            (None, None) => {
                return Err(view.bad("kernel_shape", None::<()>, "one size per spatial axis"));
            }
        };
        let ones = || vec![1; axes];
        let padding = match view.node.attribute("auto_pad") {
            None => None,
            Some(AttributeValue::String(name)) => match name.as_slice() {
                b"NOTSET" | b"" => None,
                b"SAME_UPPER" | b"SAME_LOWER" => Some(Padding::Same),
                b"VALID" => Some(Padding::Valid),
                _ => return Err(view.bad("auto_pad", String::from_utf8_lossy(name), PADDINGS)),
            },
            Some(other) => return Err(view.bad("auto_pad", other, PADDINGS)),
        };
        let padding = match padding {
            Some(padding) => padding,
            None => Padding::Explicit(
                numbers(view, "pads", 2 * axes, 0)?.unwrap_or_else(|| vec![0; 2 * axes]),
            ),
        };
        Ok(Window {
            kernel,
            strides: numbers(view, "strides", axes, 1)?.unwrap_or_else(ones),
            dilations: numbers(view, "dilations", axes, 1)?.unwrap_or_else(ones),
            padding,
        })
    }

    /// The extent of the dilated kernel along `axis`.
    pub(crate) fn extent(&self, axis: usize) -> Result<u64, Fault> {
        let reach = (self.kernel[axis] - 1).checked_mul(self.dilations[axis]);
        reach.and_then(|r| r.checked_add(1)).ok_or(Fault::TooLarge)
    }

    /// Padding at the begin and at the end of `axis`; none where it is derived.
    pub(crate) fn pads(&self, axis: usize) -> (u64, u64) {
        match &self.padding {
            Padding::Explicit(pads) => (pads[axis], pads[axis + self.kernel.len()]),
            Padding::Same | Padding::Valid => (0, 0),
        }
    }

    /// Does the window move by one, without padding?
    pub(crate) fn is_plain(&self) -> bool {
        let unpadded = match &self.padding {
            Padding::Explicit(pads) => pads.iter().all(|&p| p == 0),
            // ONNX Runtime asks for explicit padding here.
            Padding::Same => false,
            Padding::Valid => true,
        };
        unpadded && self.strides.iter().all(|&s| s == 1)
    }

    /// Where the windows that start inside `input` (or its front padding) end up.
    pub(crate) fn slide(&self, input: &[u64], ceiling: bool) -> Result<Vec<u64>, Fault> {
        (0..self.kernel.len())
            .map(|axis| self.slide_along(axis, input, ceiling))
            .collect()
    }

    fn slide_along(&self, axis: usize, input: &[u64], ceiling: bool) -> Result<u64, Fault> {
        let (size, stride) = (input[axis], self.strides[axis]);
        if self.padding == Padding::Same {
            return Ok(size.div_ceil(stride));
        }
        let (begin, end) = self.pads(axis);
        let padded = size.checked_add(begin).and_then(|s| s.checked_add(end));
        let room = padded
            .ok_or(Fault::TooLarge)?
            .checked_sub(self.extent(axis)?);
        let Some(room) = room else {
            return Err(Fault::Mismatch {
                left: Shape(input.to_vec()),
                right: Shape(self.kernel.clone()),
                why: "the window is larger than the padded input",
            });
        };
        // ONNX since operator set 22 drops a last window that starts in the back padding;
        // ONNX Runtime keeps it (measured).
        let steps = if ceiling {
            room.div_ceil(stride)
        } else {
            room / stride
        };
        Ok(steps + 1)
    }
}

const PADDINGS: &str = "NOTSET, SAME_UPPER, SAME_LOWER or VALID";

/// A list attribute of `count` numbers from `least` up.
pub(crate) fn numbers(
    view: &View,
    name: &'static str,
    count: usize,
    least: u64,
) -> Result<Option<Vec<u64>>, Fault> {
    let Some(values) = view.node.ints(name) else {
        return Ok(None);
    };
    if values.is_empty() {
        return Ok(None);
    }
    let expected = if least == 0 {
        "sizes from 0 up, as many as axes need"
    } else {
        SIZES
    };
    let wrong = || view.bad(name, values, expected);
    if values.len() != count {
        return Err(wrong());
    }
    let checked = values
        .iter()
        .map(|&v| u64::try_from(v).ok().filter(|&v| v >= least));
    checked
        .collect::<Option<Vec<u64>>>()
        .map(Some)
        .ok_or_else(wrong)
}

const SIZES: &str = "sizes from 1 up, one per spatial axis";
