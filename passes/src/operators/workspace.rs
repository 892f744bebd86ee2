//! What convolution kernels allocate.

use super::view::Input;
use super::window::Window;
use crate::bytes::Bytes;
use crate::graph::ElementType;

/// Worker threads that ONNX Runtime's CPU kernels are assumed to have. Only buffers of 64 KiB
/// per thread depend on it.
const THREADS: u64 = 2;

/// MLAS, `MlasConvPrepare`: with more filters than windows, the columns of one image
/// (`kernel` rows, `windows` columns); otherwise a segment of 128 * 128 elements for each
/// thread, and one thread per 65,536 multiply-adds. Measured on 229 convolutions, exact up to
/// 9 KB of bookkeeping.
pub(super) fn mlas_convolution(
    kernel: u64,
    windows: u64,
    filters: u64,
    element: ElementType,
) -> Bytes {
    if filters > windows {
        return element.bytes(kernel.saturating_mul(windows));
    }
    let products = filters.saturating_mul(windows).saturating_mul(kernel);
    let threads = (products / 65_536 + 1).min(THREADS);
    element.bytes(threads * 128 * 128)
}

/// What cuDNN takes for a convolution, forward or backward, when the algorithm is searched
/// exhaustively with as much workspace as it likes, as ONNX Runtime does by default.
///
/// An estimate, not measured. For 3 * 3 kernels with stride 1, the winner is usually the
/// non-fused Winograd algorithm F(4 * 4, 3 * 3) (Lavin and Gray, 2016): tiles of 6 * 6 for every
/// 4 * 4, so 36 / 16 of input and output and 36 / 9 of the weights are kept. Otherwise implicit
/// GEMM with precomputed indices: one 32-bit index per window and kernel element.
pub(super) fn cudnn(
    window: &Window,
    group: u64,
    data: Input,
    weights: Input,
    output: Input,
) -> Bytes {
    let ones = |list: &[u64]| list.iter().all(|&v| v == 1);
    let winograd =
        window.kernel == [3, 3] && ones(&window.strides) && ones(&window.dilations) && group == 1;
    if winograd {
        let tiles = data.bytes() + output.bytes();
        let part =
            |bytes: Bytes, times: u64, over: u64| Bytes(bytes.0.saturating_mul(times) / over);
        return part(tiles, 36, 16) + part(weights.bytes(), 36, 9);
    }
    let windows = output
        .shape
        .iter()
        .skip(2)
        .fold(1u64, |n, &d| n.saturating_mul(d));
    let kernel = window.kernel.iter().fold(1u64, |n, &d| n.saturating_mul(d));
    Bytes(windows.saturating_mul(kernel).saturating_mul(4))
}
