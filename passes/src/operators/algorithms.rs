//! cuDNN's algorithms for convolutions, with what each computes, moves and allocates.
//!
//! What the algorithms are and where they apply is from NVIDIA's
//! documentation of `cudnnConvolutionFwdAlgo_t`, `cudnnConvolutionBwdDataAlgo_t` and
//! `cudnnConvolutionBwdFilterAlgo_t` (the direct algorithm has a name there and no implementation). Work and
//! workspace follow from the algorithms themselves: lowering to matrices (Chetlur et al., 2014), transforms
//! by FFT (Mathieu, Henaff and LeCun, 2014), Winograd's minimal filtering (Lavin and Gray, 2016). A model: on an H100, cuDNN 9 took
//! more workspace for its matrix products than the indices that are counted here, namely copies ([`channels_last`]).
//!
//! N images, C channels, K filters, G groups; h x w elements of an image, p x q windows, r x s elements
//! of a window; e bytes of an element.

use super::conv::{Operands, operands};
use super::entry::MICROSOFT;
use super::view::View;
use super::window::Padding;
use crate::bytes::Bytes;
use crate::graph::{ElementType, Graph, Node};

/// Which of the three products of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Y from X and W.
    Forward,
    /// dX from dY and W.
    BackwardData,
    /// dW from dY and X.
    BackwardFilter,
}

impl Direction {
    /// All of them.
    pub const ALL: [Direction; 3] = [
        Direction::Forward,
        Direction::BackwardData,
        Direction::BackwardFilter,
    ];

    /// As the table names it.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::BackwardData => "backward-data",
            Direction::BackwardFilter => "backward-filter",
        }
    }

    /// The algorithm that cuDNN numbers first after the plain one, which the provider takes without a search.
    pub fn fixed(self) -> &'static str {
        match self {
            Direction::Forward => "precomputed-gemm",
            Direction::BackwardData | Direction::BackwardFilter => "deterministic-gemm",
        }
    }
}

/// The names of all algorithms.
pub const NAMES: [&str; 10] = [
    "implicit-gemm",
    "precomputed-gemm",
    "deterministic-gemm",
    "gemm",
    "split-gemm",
    "fft",
    "tiled-fft",
    "winograd",
    "winograd-non-fused",
    CHANNELS_LAST,
];

/// A matrix product of copies with channels last.
const CHANNELS_LAST: &str = "channels-last";

/// One algorithm for one of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Algorithm {
    /// As the table names it.
    pub name: &'static str,
    /// Floating point operations.
    pub operations: f64,
    /// Bytes read and written: operands, results and, twice, the workspace.
    pub bytes: f64,
    /// What it allocates besides its results.
    pub workspace: Bytes,
}

/// What `node` may use for each product that it computes; empty for other nodes. Needs concrete shapes.
pub fn algorithms(graph: &Graph, node: &Node) -> Vec<(Direction, Vec<Algorithm>)> {
    let view = View::alone(graph, node);
    let Some((products, operands, windows)) = convolution(&view) else {
        return Vec::new();
    };
    let Some(sizes) = ProductSizes::of(&operands, windows) else {
        return Vec::new();
    };
    let wanted = products
        .iter()
        .filter(|&&(output, _)| view.has_output(output));
    wanted
        .map(|&(_, direction)| (direction, sizes.algorithms(direction)))
        .collect()
}

/// The same for the provider of builds without training, which leaves the choice to cuDNN (its graph interface): a matrix product
/// on tensor cores, which want channels last, so that what is read and written is copied.
///
/// Runtime fact, measured with 1.31.1 and cuDNN 9.19 on an H100 (tools/gpu_convolutions.py: 84 products of four networks, float32): the
/// workspace is never more than such copies of X, W and Y and some hundred bytes, but for tiny ones (at most 0.1 MB more), and nothing
/// where each channel has weights of its own or windows of one element lie densely.
pub fn channels_last(graph: &Graph, node: &Node) -> Vec<(Direction, Vec<Algorithm>)> {
    let view = View::alone(graph, node);
    let direction = match (node.domain.as_str(), node.op_type.as_str()) {
        ("", "Conv") | (MICROSOFT, "FusedConv") => Direction::Forward,
        ("", "ConvTranspose") => Direction::BackwardData,
        _ => return Vec::new(),
    };
    let (Ok(operands), Some(result)) = (operands(&view, 0, 1), view.output(0)) else {
        return Vec::new();
    };
    let (x, w, window) = (
        operands.data.shape,
        operands.weights.shape,
        &operands.window,
    );
    let count = |shape: &[u64]| shape.iter().map(|&n| n as f64).product::<f64>();
    let narrow = match direction {
        Direction::Forward => result.shape,
        _ => x,
    };
    let copies =
        (count(x) + count(w) + count(result.shape)) * operands.data.element.bytes(1).0 as f64;
    let has_own_weights = operands.group > 1 && w[1] == 1;
    let is_dense_product = window.kernel.iter().all(|&n| n == 1)
        && window.strides.iter().all(|&n| n == 1)
        && x[2..].iter().any(|&n| n > 1);
    let copied = match has_own_weights || is_dense_product {
        true => 0.0,
        false => copies,
    };
    let algorithm = Algorithm {
        name: CHANNELS_LAST,
        operations: 2.0 * count(narrow) * count(&w[1..]),
        bytes: copies + 2.0 * copied,
        // Saturates.
        workspace: Bytes(copied as u64 + 512),
    };
    vec![(direction, vec![algorithm])]
}

/// A convolution as cuDNN is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// N, C, and the sizes of an image.
    pub data: Vec<u64>,
    /// K, C / G, and the sizes of a window.
    pub weights: Vec<u64>,
    /// N, K, and the numbers of windows.
    pub windows: Vec<u64>,
    /// By axis, at either end.
    pub pads: Vec<u64>,
    /// By axis.
    pub strides: Vec<u64>,
    /// By axis.
    pub dilations: Vec<u64>,
    /// G.
    pub groups: u64,
    /// Of all operands.
    pub element: ElementType,
}

/// What `node` convolves; `None` for other nodes, and where there is more padding at one end than at the other, for which
/// cuDNN has no word. Needs concrete shapes.
pub fn geometry(graph: &Graph, node: &Node) -> Option<Geometry> {
    let view = View::alone(graph, node);
    let (_, operands, windows) = convolution(&view)?;
    let (data, window) = (operands.data.shape, &operands.window);
    let pads = (0..window.kernel.len()).map(|axis| {
        let (begin, end) = match window.padding {
            Padding::Same => {
                let reach = windows.get(axis + 2)?.checked_sub(1)?;
                let reach = reach.checked_mul(window.strides[axis])?;
                let most = reach.checked_add(window.extent(axis).ok()?)?;
                let total = most.saturating_sub(data[axis + 2]);
                (total / 2, total - total / 2)
            }
            _ => window.pads(axis),
        };
        (begin == end).then_some(begin)
    });
    Some(Geometry {
        pads: pads.collect::<Option<_>>()?,
        data: data.to_vec(),
        weights: operands.weights.shape.to_vec(),
        windows: windows.to_vec(),
        strides: window.strides.clone(),
        dilations: window.dilations.clone(),
        groups: operands.group,
        element: operands.data.element,
    })
}

/// By output, the products of a convolution; its operands; the shape of its result, one element for each window and
/// filter.
type Convolution<'a> = (&'static [(usize, Direction)], Operands<'a>, &'a [u64]);

fn convolution<'a>(view: &View<'a>) -> Option<Convolution<'a>> {
    use Direction::{BackwardData, BackwardFilter, Forward};
    // A transposed convolution's gradient by its data is a convolution of dY.
    let (products, data, weights, windows): (&[_], _, _, _) =
        match (view.node.domain.as_str(), view.node.op_type.as_str()) {
            ("", "Conv") | (MICROSOFT, "FusedConv") => (&[(0, Forward)], 0, 1, view.output(0)),
            (MICROSOFT, "ConvGrad") => {
                let products = &[(0, BackwardData), (1, BackwardFilter)];
                (products, 1, 2, view.input(0).ok())
            }
            (MICROSOFT, "ConvTransposeGrad") => {
                let products = &[(0, Forward), (1, BackwardFilter)];
                (products, 0, 2, view.input(1).ok())
            }
            _ => return None,
        };
    Some((
        products,
        operands(view, data, weights).ok()?,
        windows?.shape,
    ))
}

struct ProductSizes {
    images: f64,
    channels: f64,
    filters: f64,
    groups: f64,
    element: f64,
    image: Vec<f64>,
    windows: Vec<f64>,
    kernel: Vec<f64>,
    /// Strides and dilations are 1.
    is_dense: bool,
}

impl ProductSizes {
    fn of(operands: &Operands<'_>, windows: &[u64]) -> Option<ProductSizes> {
        let numbers = |list: &[u64]| list.iter().map(|&n| n as f64).collect::<Vec<f64>>();
        let (x, w) = (operands.data.shape, operands.weights.shape);
        let window = &operands.window;
        let ones = |list: &[u64]| list.iter().all(|&n| n == 1);
        Some(ProductSizes {
            images: *x.first()? as f64,
            channels: *x.get(1)? as f64,
            filters: *w.first()? as f64,
            groups: operands.group as f64,
            element: operands.data.element.bytes(1).0 as f64,
            image: numbers(x.get(2..)?),
            windows: numbers(windows.get(2..)?),
            kernel: numbers(&window.kernel),
            is_dense: ones(&window.strides) && ones(&window.dilations),
        })
    }

    fn algorithms(&self, direction: Direction) -> Vec<Algorithm> {
        let forward = direction == Direction::Forward;
        let mut all = Vec::new();
        let windows = product(&self.windows);
        let elements = product(&self.kernel);
        // The direct product, in each direction.
        let direct =
            2.0 * self.images * self.filters * windows * elements * self.channels / self.groups;
        let implicit = |name, operations, workspace| self.algorithm(name, operations, workspace);
        // Indices are worked out again for each tile, at about half the rate of the next.
        all.push(implicit("implicit-gemm", 2.0 * direct, 0.0));
        // An index of 4 bytes for each window and element of it.
        let indices = 4.0 * windows * elements;
        all.push(implicit(direction.fixed(), direct, indices));
        if forward {
            // All windows of a batch as columns.
            let columns = self.images * windows * elements * self.channels / self.groups;
            all.push(implicit("gemm", direct, columns * self.element));
        }
        if direction == Direction::BackwardFilter {
            // Partial sums of a few blocks of images, added up at the end.
            let weights = self.filters * self.channels / self.groups * elements;
            let blocks = self.images.min(8.0);
            all.push(implicit("split-gemm", direct, blocks * weights * 4.0));
        }
        let plane = self.is_dense && self.groups == 1.0 && self.image.len() == 2;
        if plane {
            all.extend(self.by_fft("fft", &self.whole_image(), 1.0));
            let side = |axis: usize| (32.0 - self.kernel[axis] + 1.0).max(1.0);
            let tiles = (0..2).map(|axis| (self.windows[axis] / side(axis)).ceil());
            if self.kernel.iter().all(|&k| k <= 32.0) {
                all.extend(self.by_fft("tiled-fft", &[32.0, 32.0], tiles.product()));
            }
        }
        if plane && self.kernel == [3.0, 3.0] {
            if direction != Direction::BackwardFilter {
                // F(2 x 2, 3 x 3): tiles of 4 x 4, the transformed weights alone are kept.
                let weights = 16.0 * self.channels * self.filters * self.element;
                all.push(self.algorithm("winograd", direct * 16.0 / 36.0, weights));
            }
            all.push(self.non_fused_winograd(4.0, 6.0));
        }
        all
    }

    /// F(m x m, 3 x 3) in tiles of t x t, t = m + 2: a product of matrices for each element of a tile.
    fn non_fused_winograd(&self, m: f64, t: f64) -> Algorithm {
        let tiles: f64 = self.windows.iter().map(|&n| (n / m).ceil()).product();
        let tiles = tiles * self.images;
        let (channels, filters) = (self.channels, self.filters);
        let kept = t * t * (tiles * (channels + filters) + channels * filters);
        let operations = 2.0 * t * t * tiles * channels * filters;
        self.algorithm("winograd-non-fused", operations, kept * self.element)
    }

    /// The image with a margin, in powers of two; cuDNN takes up to 256.
    fn whole_image(&self) -> Vec<f64> {
        let axes = self.image.iter().zip(&self.kernel);
        axes.map(|(&n, &k)| (n + k - 1.0).log2().ceil().exp2())
            .collect()
    }

    /// Spectra of all images, filters and results, of `tiles` tiles each; half of a real spectrum is
    /// redundant. `None` where a tile is too large.
    fn by_fft(&self, name: &'static str, tile: &[f64], tiles: f64) -> Option<Algorithm> {
        if tile.iter().any(|&n| n > 256.0) {
            return None;
        }
        let (points, spectrum) = (product(tile), tile[0] * (tile[1] / 2.0 + 1.0));
        let (images, channels, filters) = (self.images * tiles, self.channels, self.filters);
        let planes = images * (channels + filters) + channels * filters;
        // A complex multiply-add is 8 operations, a real transform of n points 2.5 n log2 n.
        let operations =
            8.0 * spectrum * images * channels * filters + 2.5 * points * points.log2() * planes;
        Some(self.algorithm(name, operations, planes * spectrum * 8.0))
    }

    fn algorithm(&self, name: &'static str, operations: f64, workspace: f64) -> Algorithm {
        let data = self.images * self.channels * product(&self.image);
        let result = self.images * self.filters * product(&self.windows);
        let weights = self.filters * self.channels / self.groups * product(&self.kernel);
        Algorithm {
            name,
            operations,
            bytes: (data + result + weights) * self.element + 2.0 * workspace,
            // Saturates.
            workspace: Bytes(workspace as u64),
        }
    }
}

fn product(sizes: &[f64]) -> f64 {
    sizes.iter().product()
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::*;

    fn shown(case: Case) -> Vec<String> {
        let (graph, node) = case.inferred();
        let each = |(direction, all): (Direction, Vec<Algorithm>)| {
            all.into_iter().map(move |one| {
                let (name, operations) = (one.name, one.operations / 1e6);
                format!(
                    "{direction:?} {name}: {operations:.2} M, {}",
                    one.workspace.0
                )
            })
        };
        algorithms(&graph, &node)
            .into_iter()
            .flat_map(each)
            .collect()
    }

    #[test]
    fn with_channels_last_all_operands_are_copied() {
        let workspace = |case: Case| {
            let (graph, node) = case.inferred();
            let all = channels_last(&graph, &node);
            assert_eq!(all.len(), 1);
            all[0].1[0].workspace.0
        };
        let case = |op, x: &[u64], w: &[u64]| Case::onnx(op).float(x).float(w);
        // Measured: 102,908,051 of 51,380,224 + 147,456 + 51,380,224; 77,365,395 of 25,690,112 + 294,912 + 51,380,224; nothing.
        let dense = case("Conv", &[64, 64, 56, 56], &[64, 64, 3, 3]);
        assert_eq!(
            workspace(dense.list("pads", &[1, 1, 1, 1])),
            102_907_904 + 512
        );
        let transposed = case("ConvTranspose", &[64, 128, 28, 28], &[128, 64, 3, 3])
            .list("pads", &[1, 1, 1, 1])
            .list("strides", &[2, 2])
            .list("output_padding", &[1, 1]);
        assert_eq!(workspace(transposed), 77_365_248 + 512);
        let own = case("Conv", &[32, 72, 56, 56], &[72, 1, 3, 3]).int("group", 72);
        assert_eq!(workspace(own), 512);
        let product = case("Conv", &[2, 128, 280, 280], &[64, 128, 1, 1]);
        assert_eq!(workspace(product), 512);
    }

    #[test]
    fn a_dense_3_x_3_convolution_has_all() {
        // Direct: 2 * (2 * 16 * 8 * 8 outputs) * 9 * 4 = 147,456. Indices: 8 * 8 * 9 * 4 = 2,304. Columns:
        // 2 * 64 * 9 * 4 * 4 = 18,432. FFT: 10 -> 16, 16 * 9 = 144 complex numbers for 2 * (4 + 16) + 64
        // = 104 planes, 144 * 104 * 8 = 119,808. Tiled: 32 * 17 * 104 * 8 = 452,608. Winograd: 16 * 64 * 4
        // = 4,096; non-fused: 2 * 2 tiles of 2 images, 36 * (8 * 20 + 64) * 4 = 32,256.
        let case = Case::onnx("Conv")
            .float(&[2, 4, 8, 8])
            .float(&[16, 4, 3, 3]);
        insta::assert_snapshot!(shown(case.list("pads", &[1, 1, 1, 1])).join("\n"), @r"
        Forward implicit-gemm: 0.29 M, 0
        Forward precomputed-gemm: 0.15 M, 2304
        Forward gemm: 0.15 M, 18432
        Forward fft: 0.68 M, 119808
        Forward tiled-fft: 3.22 M, 452608
        Forward winograd: 0.07 M, 4096
        Forward winograd-non-fused: 0.04 M, 32256
        ");
    }

    #[test]
    fn strides_groups_and_axes_leave_the_products_of_matrices() {
        let names = |case: Case| {
            let (graph, node) = case.inferred();
            let all = algorithms(&graph, &node);
            all[0].1.iter().map(|one| one.name).collect::<Vec<_>>()
        };
        let gemms = ["implicit-gemm", "precomputed-gemm", "gemm"];
        let conv = |x: &[u64], w: &[u64]| Case::onnx("Conv").float(x).float(w);
        assert_eq!(
            names(conv(&[1, 4, 8, 8], &[4, 4, 3, 3]).list("strides", &[2, 2])),
            gemms
        );
        assert_eq!(
            names(conv(&[1, 4, 8, 8], &[4, 2, 3, 3]).int("group", 2)),
            gemms
        );
        assert_eq!(names(conv(&[1, 4, 8], &[4, 4, 3])), gemms);
    }

    #[test]
    fn a_gradient_has_algorithms_for_each_of_its_products() {
        let case = Case::microsoft("ConvGrad")
            .float(&[2, 16, 8, 8])
            .float(&[2, 4, 8, 8])
            .float(&[16, 4, 1, 1])
            .outputs(2);
        insta::assert_snapshot!(shown(case).join("\n"), @r"
        BackwardData implicit-gemm: 0.03 M, 0
        BackwardData deterministic-gemm: 0.02 M, 256
        BackwardData fft: 0.14 M, 33280
        BackwardData tiled-fft: 3.22 M, 452608
        BackwardFilter implicit-gemm: 0.03 M, 0
        BackwardFilter deterministic-gemm: 0.02 M, 256
        BackwardFilter split-gemm: 0.02 M, 512
        BackwardFilter fft: 0.14 M, 33280
        BackwardFilter tiled-fft: 3.22 M, 452608
        ");
    }
}
