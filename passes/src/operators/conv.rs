//! Convolution, transposed convolution and their gradients.

use super::view::{Fault, Input, Outputs, Shape, View, known, product};
use super::window::{Padding, Window, numbers};
use super::workspace::MlasConvolution;
use super::{Family, Operator, Provider, Recompute, microsoft, onnx};
use crate::bytes::Bytes;
use crate::graph::{Graph, Node};

pub(super) const OPERATORS: &[Operator] = &[
    convolution(onnx("Conv", Family::Convolution, forward)),
    convolution(microsoft("FusedConv", Family::Convolution, forward)),
    onnx("ConvTranspose", Family::Convolution, transposed)
        .operations(|view| products(view, 0))
        .workspace(transposed_workspace),
    microsoft("ConvGrad", Family::Convolution, gradient)
        .recompute(only_padded)
        .operations(|view| gradient_products(view, 0))
        .workspace(gradient_workspace),
    microsoft(
        "ConvTransposeGrad",
        Family::Convolution,
        transposed_gradient,
    )
    .operations(|view| gradient_products(view, 1))
    .workspace(gradient_workspace),
];

const fn convolution(operator: Operator) -> Operator {
    operator
        .operations(|view| {
            let weights = view.input(1).ok()?.shape;
            // one multiply-add per output element and weight of its channel
            Some(2.0 * view.output(0)?.count() as f64 * of_one_channel(weights))
        })
        .workspace(forward_workspace)
}

/// Depthwise and gradient kernels run at rates of their own.
pub(super) fn family(view: &View) -> Family {
    // The CPU kernel multiplies and adds up as the gradient by the data does (measured).
    let transposed = view.node.op_type == "ConvTranspose";
    let gradient = view.node.op_type.ends_with("Grad");
    let weights = view.input(if gradient { 2 } else { 1 });
    let depthwise = view.node.int("group").unwrap_or(1) > 1
        && weights.is_ok_and(|w| w.shape.get(1) == Some(&1));
    let scales = |w: &super::view::Input| w.shape.iter().skip(1).all(|&d| d == 1);
    if depthwise && !gradient && !transposed && view.input(1).is_ok_and(|w| scales(&w)) {
        return Family::ChannelScale;
    }
    match (depthwise, gradient || transposed) {
        (true, _) => Family::DepthwiseConvolution,
        (false, true) => Family::ConvolutionGradient,
        (false, false) => Family::Convolution,
    }
}

fn of_one_channel(weights: &[u64]) -> f64 {
    weights.iter().skip(1).map(|&d| d as f64).product()
}

/// Operations where every element of input `position` meets the weights (input `position + 1`)
/// of its channel: transposed convolution.
fn products(view: &View, position: usize) -> Option<f64> {
    let [x, weights] = [position, position + 1].map(|at| view.input(at).ok());
    Some(2.0 * x?.count() as f64 * of_one_channel(weights?.shape))
}

/// As much again as the forward pass for each of dX and dW. `narrow` is the input with one
/// element per window: dY (0) of a convolution, X (1) of a transposed one.
fn gradient_products(view: &View, narrow: usize) -> Option<f64> {
    let wanted = [0, 1].into_iter().filter(|&i| view.has_output(i)).count();
    let (x, weights) = (view.input(narrow).ok()?, view.input(2).ok()?.shape);
    Some(wanted as f64 * 2.0 * x.count() as f64 * of_one_channel(weights))
}

/// Data `[N, C, spatial ...]`, weights `[., ., kernel ...]` and the window they describe.
pub(super) struct Operands<'a> {
    pub(super) data: Input<'a>,
    pub(super) weights: Input<'a>,
    pub(super) group: u64,
    pub(super) window: Window,
}

impl Operands<'_> {
    /// How many channels there are on the side of which the weights have those of one group.
    fn channels(&self) -> Result<u64, Fault> {
        let channels = self.weights.shape[1].checked_mul(self.group);
        channels.ok_or(Fault::TooLarge)
    }

    /// How many weights of one group a window meets.
    fn taps(&self) -> Option<u64> {
        let window = product(&self.window.kernel).ok()?;
        window.checked_mul(self.weights.shape[1])
    }
}

pub(super) fn operands<'a>(
    view: &View<'a>,
    data: usize,
    weights: usize,
) -> Result<Operands<'a>, Fault> {
    let (x, w) = (view.input(data)?, view.input(weights)?);
    if x.rank() < 3 {
        return Err(x.wrong(data, "batch, channels and at least one spatial axis"));
    }
    if w.rank() != x.rank() || w.shape.contains(&0) {
        return Err(w.wrong(weights, "as many axes as the data, none empty"));
    }
    let window = Window::of(view, x.rank() - 2, Some(&w.shape[2..]))?;
    Ok(Operands {
        data: x,
        weights: w,
        group: view.positive("group", 1)?,
        window,
    })
}

fn check_channels(data: &Input, wanted: u64, weights: &Input) -> Result<(), Fault> {
    if data.shape[1] == wanted {
        return Ok(());
    }
    Err(Fault::Mismatch {
        left: Shape(data.shape.to_vec()),
        right: Shape(weights.shape.to_vec()),
        why: "the weights are for another number of channels",
    })
}

/// X `[N, C, ...]`, W `[M, C / group, kernel ...]` -> Y `[N, M, ...]`
fn forward(view: &View) -> Result<Outputs, Fault> {
    let of = operands(view, 0, 1)?;
    let Operands { data, weights, .. } = &of;
    check_channels(data, of.channels()?, weights)?;
    let mut shape = vec![data.shape[0], weights.shape[0]];
    shape.extend(of.window.slide(&data.shape[2..], false)?);
    Ok(vec![data.with_shape(shape)])
}

/// X `[N, C, ...]`, W `[C, M / group, kernel ...]` -> Y `[N, M, ...]`
fn transposed(view: &View) -> Result<Outputs, Fault> {
    let of = operands(view, 0, 1)?;
    let Operands { data, window, .. } = &of;
    check_channels(data, of.weights.shape[0], &of.weights)?;
    let channels = of.channels()?;
    let axes = window.kernel.len();
    let extra = numbers(view, "output_padding", axes, 0)?.unwrap_or_else(|| vec![0; axes]);
    let wanted = numbers(view, "output_shape", axes, 1)?;
    let mut shape = vec![data.shape[0], channels];
    for (axis, &more) in extra.iter().enumerate() {
        let size = match &wanted {
            Some(wanted) => wanted[axis],
            None => spread(window, axis, data.shape[2 + axis], more)?,
        };
        shape.push(size);
    }
    Ok(vec![data.with_shape(shape)])
}

/// The length of `axis` after a transposed convolution.
fn spread(window: &Window, axis: usize, size: u64, extra: u64) -> Result<u64, Fault> {
    let stride = window.strides[axis];
    let (begin, end) = window.pads(axis);
    let span = match window.padding {
        Padding::Same => size.checked_mul(stride),
        _ => size
            .saturating_sub(1)
            .checked_mul(stride)
            .and_then(|s| s.checked_add(window.extent(axis).ok()?)),
    };
    let span = span
        .and_then(|s| s.checked_add(extra))
        .ok_or(Fault::TooLarge)?;
    span.checked_sub(begin)
        .and_then(|s| s.checked_sub(end))
        .ok_or_else(|| Fault::Mismatch {
            left: Shape(vec![span]),
            right: Shape(vec![begin, end]),
            why: "more padding than the output has room for",
        })
}

/// Its CPU kernel does not pad by "auto_pad", and reads memory that nobody wrote where it should.
fn only_padded(node: &Node) -> Recompute {
    match node.string("auto_pad") {
        Some("SAME_UPPER" | "SAME_LOWER") => {
            Recompute::Never("its kernel does not pad, so its results vary")
        }
        _ => Recompute::Clone,
    }
}

/// ConvGrad(dY, X, W) -> (dX, dW, dB)
fn gradient(view: &View) -> Result<Outputs, Fault> {
    let Operands { data, weights, .. } = operands(view, 1, 2)?;
    let db = known(weights.element, vec![weights.shape[0]]);
    Ok(vec![data.same(), weights.same(), db])
}

/// ConvTransposeGrad(dY, X, W) -> (dX, dW, dB)
fn transposed_gradient(view: &View) -> Result<Outputs, Fault> {
    let of = operands(view, 1, 2)?;
    let db = known(of.weights.element, vec![of.channels()?]);
    Ok(vec![of.data.same(), of.weights.same(), db])
}

fn forward_workspace(view: &View, provider: Provider) -> Option<Bytes> {
    let of = operands(view, 0, 1).ok()?;
    if provider == Provider::Cuda {
        // By the algorithm: `algorithms`.
        return None;
    }
    let output = view.output(0)?;
    let convolution = MlasConvolution {
        products: of.data.shape[0].saturating_mul(of.group),
        windows: product(output.shape.get(2..)?).ok()?,
        filters: of.weights.shape[0] / of.group,
        kernel: of.taps()?,
    };
    if of.window.is_plain() && convolution.kernel == of.weights.shape[1] {
        return None;
    }
    Some(convolution.workspace(view.kernels, of.data.element))
}

/// The column buffer of the CPU kernel: one row per window of one group, for one image.
fn transposed_workspace(view: &View, provider: Provider) -> Option<Bytes> {
    let of = operands(view, 0, 1).ok()?;
    if provider == Provider::Cuda {
        // Always searched under this limit.
        return Some(Bytes(32 << 20));
    }
    let windows = product(of.data.shape.get(2..)?).ok()?;
    Some(of.data.element.bytes(of.taps()?.checked_mul(windows)?))
}

/// Does the kernel of this gradient of a convolution clear memory behind dX on the CPU, so that whatever lies there is wrong: dW, for one?
///
/// Runtime fact (`tools/test_variants.py`, and valgrind): with groups and one or three axes it does, for dX of each group is cleared as if it were
/// as large as all of it. Where dX is left out it does not, nor does ConvTranspose, which computes the same bits.
pub fn clears_behind_its_result(graph: &Graph, node: &Node) -> bool {
    let axes = || {
        let weights = graph.tensor(node.input(2)?);
        let known = weights.shape.as_ref().map(Vec::len);
        known.or(weights.declared.as_ref().map(Vec::len))
    };
    node.is("com.microsoft", "ConvGrad")
        && node.output(0).is_some()
        && node.int("group").unwrap_or(1) > 1
        && axes().is_some_and(|rank| rank != 4)
}

fn gradient_workspace(view: &View, provider: Provider) -> Option<Bytes> {
    let of = operands(view, 1, 2).ok()?;
    let dy = view.input(0).ok()?;
    if provider == Provider::Cuda {
        return None;
    }
    // im2col of one image and group, and a row of ones for dB that is there even without dB
    let windows = product(dy.shape.get(2..)?).ok()?;
    let rows = of.taps()?.checked_add(1)?;
    Some(of.data.element.bytes(rows.checked_mul(windows)?))
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::super::{recompute, work};
    use super::*;

    fn conv(x: &[u64], w: &[u64]) -> Case {
        Case::onnx("Conv").float(x).float(w)
    }

    #[test]
    fn windows_slide_by_stride_over_the_padded_input() {
        // (224 + 3 + 3 - 7) / 2 + 1 = 112
        let case = conv(&[2, 3, 224, 224], &[64, 3, 7, 7])
            .list("pads", &[3, 3, 3, 3])
            .list("strides", &[2, 2]);
        assert_eq!(case.shapes(), ["float[2, 64, 112, 112]"]);
        // (10 - (2 * 2 + 1)) + 1 = 6
        let case = conv(&[1, 1, 10], &[1, 1, 3]).list("dilations", &[2]);
        assert_eq!(case.shapes(), ["float[1, 1, 6]"]);
        // ceil(7 / 2) = 4
        let case = conv(&[1, 1, 7], &[1, 1, 3])
            .text("auto_pad", "SAME_UPPER")
            .list("strides", &[2]);
        assert_eq!(case.shapes(), ["float[1, 1, 4]"]);
        let case = conv(&[1, 1, 7], &[1, 1, 3]).text("auto_pad", "VALID");
        assert_eq!(case.shapes(), ["float[1, 1, 5]"]);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        insta::assert_snapshot!(conv(&[1, 4, 8, 8], &[8, 3, 3, 3]).fault(),
            @"shapes [1, 4, 8, 8] and [8, 3, 3, 3] do not fit: the weights are for another number of channels");
        insta::assert_snapshot!(conv(&[1, 3, 2, 2], &[8, 3, 3, 3]).fault(),
            @"shapes [2, 2] and [3, 3] do not fit: the window is larger than the padded input");
        insta::assert_snapshot!(
            conv(&[1, 3, 4, 4], &[8, 3, 3, 3]).list("strides", &[0, 1]).fault(),
            @r#"attribute "strides" is [0, 1]; expected sizes from 1 up, one per spatial axis"#);
    }

    #[test]
    fn transposed_convolution_undoes_the_shape() {
        // 2 * (280 - 1) + 2 = 560
        let case = Case::onnx("ConvTranspose")
            .float(&[1, 128, 280, 280])
            .float(&[128, 64, 2, 2])
            .list("strides", &[2, 2]);
        assert_eq!(case.shapes(), ["float[1, 64, 560, 560]"]);
        // 2 * (4 - 1) + 3 + 1 - 1 - 1 = 8
        let case = Case::onnx("ConvTranspose")
            .float(&[1, 1, 4])
            .float(&[1, 5, 3])
            .list("strides", &[2])
            .list("pads", &[1, 1])
            .list("output_padding", &[1]);
        assert_eq!(case.shapes(), ["float[1, 5, 8]"]);
    }

    #[test]
    fn gradients_are_shaped_like_data_and_weights() {
        let case = Case::microsoft("ConvGrad")
            .float(&[2, 64, 8, 8])
            .float(&[2, 3, 8, 8])
            .float(&[64, 3, 1, 1])
            .outputs(3);
        assert_eq!(
            case.shapes(),
            ["float[2, 3, 8, 8]", "float[64, 3, 1, 1]", "float[64]"]
        );
    }

    #[test]
    fn gradients_that_pad_by_themselves_are_not_computed_again() {
        let rule = |pads: &str| {
            let case = Case::microsoft("ConvGrad").text("auto_pad", pads);
            recompute(&case.node())
        };
        for same in ["SAME_UPPER", "SAME_LOWER"] {
            assert!(matches!(rule(same), Recompute::Never(_)), "{same}");
        }
        assert_eq!(rule("NOTSET"), Recompute::Clone);
        assert_eq!(rule("VALID"), Recompute::Clone);
    }

    #[test]
    fn gradient_takes_columns_of_one_image() {
        // measured 81,548,072 for 64 channels, kernel 1x1, 560 x 560: (64 + 1) * 560 * 560 * 4
        let case = Case::microsoft("ConvGrad")
            .float(&[2, 2, 560, 560])
            .float(&[2, 64, 560, 560])
            .float(&[2, 64, 1, 1])
            .outputs(2);
        assert_eq!(case.workspace(Provider::Cpu), Bytes(81_536_000));
    }

    #[test]
    fn forward_takes_columns_only_where_filters_outnumber_windows() {
        let padded = |x: &[u64], w: &[u64]| conv(x, w).list("pads", &[1, 1, 1, 1]);
        // 256 filters, 14 * 14 = 196 windows: 256 * 9 * 196 * 4, measured 1,809,272
        let case = padded(&[2, 256, 14, 14], &[256, 256, 3, 3]);
        assert_eq!(case.workspace(Provider::Cpu), Bytes(1_806_336));
        // 64 filters, 3136 windows: one segment of 128 * 128 floats for each of two threads
        let case = padded(&[2, 64, 56, 56], &[64, 64, 3, 3]);
        assert_eq!(case.workspace(Provider::Cpu), Bytes(131_072));
        // pointwise: the input is the matrix
        let case = conv(&[2, 64, 56, 56], &[256, 64, 1, 1]);
        assert_eq!(case.workspace(Provider::Cpu), Bytes(0));
    }

    #[test]
    fn a_multiply_add_is_two_operations() {
        // 2 * (2 * 4 * 6 * 6 outputs) * (3 * 3 * 3 weights) = 15,552
        let (graph, node) = conv(&[2, 3, 8, 8], &[4, 3, 3, 3]).inferred();
        assert_eq!(work(&graph, &node, Provider::Cpu).operations, 15_552.0);
    }

    #[test]
    fn depthwise_and_gradient_kernels_are_families() {
        let (graph, node) = conv(&[1, 8, 8, 8], &[8, 1, 3, 3])
            .int("group", 8)
            .inferred();
        assert_eq!(
            super::super::family(&graph, &node),
            Family::DepthwiseConvolution
        );
        let (graph, node) = Case::microsoft("ConvGrad")
            .float(&[2, 4, 8, 8])
            .float(&[2, 3, 8, 8])
            .float(&[4, 3, 1, 1])
            .outputs(2)
            .inferred();
        assert_eq!(
            super::super::family(&graph, &node),
            Family::ConvolutionGradient
        );
    }
}
