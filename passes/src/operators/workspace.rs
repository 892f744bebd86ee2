//! What convolution kernels allocate.

use crate::bytes::Bytes;
use crate::graph::ElementType;

/// What the CPU's kernels allocate by, where sessions and releases differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuKernels {
    /// The session's worker threads (`intra_op_num_threads`).
    pub threads: u32,
    /// Does a convolution take the columns of a whole image for each image that it works on at the same time?
    pub whole_columns: bool,
}

impl CpuKernels {
    /// Two threads, and segments of columns.
    pub const DEFAULT: CpuKernels = CpuKernels {
        threads: 2,
        whole_columns: false,
    };
}

impl Default for CpuKernels {
    fn default() -> CpuKernels {
        CpuKernels::DEFAULT
    }
}

/// One product of a convolution on the CPU: the filters of a group by the windows of an image.
pub(super) struct MlasConvolution {
    /// How many products there are: an image and a group for each.
    pub(super) products: u64,
    /// Elements of a window.
    pub(super) kernel: u64,
    /// Windows of an image.
    pub(super) windows: u64,
    /// Filters of a group.
    pub(super) filters: u64,
}

impl MlasConvolution {
    /// MLAS, `MlasConvPrepare`: with more filters than windows, the columns of one image (`kernel` rows, `windows` columns).
    /// Otherwise a segment of 128 * 128 elements for each thread, and one thread per 65,536 multiply-adds: measured on 229
    /// convolutions, exact up to 9 KB of bookkeeping. One product is shared by 16 threads at most; of several, newer releases give
    /// each thread its own, and older ones share each as well. Or, where columns are whole and there are several products, for each
    /// thread that has one the columns of an image, its results, or a segment, whichever is largest (`tools/measure_columns.py`).
    pub(super) fn workspace(&self, kernels: CpuKernels, element: ElementType) -> Bytes {
        const SEGMENT: u64 = 128 * 128;
        const SHARED_BY: u64 = 16;
        let columns = self.kernel.saturating_mul(self.windows);
        if self.filters > self.windows {
            return element.bytes(columns);
        }
        let threads = u64::from(kernels.threads);
        let results = self.filters.saturating_mul(self.windows);
        if kernels.whole_columns && self.products > 1 {
            let most = columns.max(results).max(SEGMENT);
            return element.bytes(threads.min(self.products).saturating_mul(most));
        }
        let multiplications = results.saturating_mul(self.kernel);
        let threads = threads.min(self.products.max(SHARED_BY));
        element.bytes((multiplications / 65_536 + 1).min(threads) * SEGMENT)
    }
}
