//! Gradients of convolutions, and of transposed ones.

use super::facts::Facts;
use super::operation::{fused_matmul, op, op_of};
use super::site::{LoweringSite, Obstacle, case};
use crate::graph::{ElementType, Graph, TensorId};

/// Up to so many numbers of a kernel, the weights' gradient is a product of matrices for each of them; above, its
/// inputs would be cut too often.
const MOST_TAPS: i64 = 25;
/// From so many channels on, such products are worth it. What fewer channels have at several places goes into one product.
const FEWEST_CHANNELS: u64 = 8;
/// The same as MOST_TAPS for few channels. Runtime fact: the other form, a convolution with dY as its kernel, takes 0.7 of the time on the CPU with 49
/// numbers, more than all of it with 9, and ten times as long on a GPU (half a step of ResNet-18; measured in 1.32.0 and 1.31.1).
const MOST_TAPS_OF_FEW: i64 = 121;
/// So many columns a product has at least, if there are so many.
const FEWEST_COLUMNS: u64 = 16;
/// From so many windows for each channel of dY on, dX is a convolution with turned weights. Runtime fact: the transposed one keeps a column for each window
/// of an image. With 224 x 224 windows of 64 channels (kernel 3 x 3) it takes 134.8 MiB and twice the time of the other one, which takes 24.7, what is turned
/// included; with 28 x 28 of 128 both take as long, and with 7 x 7 of 512 turning takes longer than columns (1.32.0, on the CPU).
const FEWEST_WINDOWS_OF_A_CHANNEL: u64 = 4;

/// Up to so many windows, depthwise weights' gradients are products over all images. Runtime fact: with a product for each channel of each image
/// they take 2.6 times as long as with one for each channel at 7 x 7 windows, 1.3 times at 28 x 28, and as long at 56 x 56, where putting
/// channels first only takes memory (8 images, 1.32.0 on the CPU).
const MOST_WINDOWS_OF_DEPTHWISE: u64 = 1024;

/// What the products of weights' gradients are made of.
#[derive(Clone, Copy)]
struct Products {
    /// Of which channels?
    channels: ChannelsAtOnce,
    /// Of all images, which then stand behind their channels? Otherwise there is one for each image, and their sum.
    all_images: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChannelsAtOnce {
    /// Each by itself, for each number of the kernel.
    Each,
    /// All of them, for so many numbers of the kernel at once.
    All(u64),
}

impl Products {
    /// The shape of one factor.
    fn rows(self) -> &'static [i64] {
        match (self.channels, self.all_images) {
            (ChannelsAtOnce::Each, false) => &[0, 0, 1, -1],
            (ChannelsAtOnce::Each, true) => &[0, 1, -1],
            (ChannelsAtOnce::All(_), false) => &[0, 0, -1],
            (ChannelsAtOnce::All(_), true) => &[0, -1],
        }
    }
}

/// Numbers of windows are at most this large, so that two of them can be multiplied.
pub(super) const FARTHEST: i64 = 1 << 30;

/// The windows of a convolution.
struct Windows {
    kernel: Vec<i64>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    begins: Vec<i64>,
    ends: Vec<i64>,
    group: i64,
}

impl Windows {
    /// Of a convolution of `image`; `None` for a transposed one.
    fn of(
        site: &LoweringSite,
        image: Option<TensorId>,
        weights: TensorId,
    ) -> Result<Windows, Obstacle> {
        let rank = site.rank(weights)?;
        let Some(axes) = rank.checked_sub(2).filter(|&axes| axes > 0) else {
            return case("where W has fewer than three dimensions");
        };
        let node = &site.node;
        let list = |name: &'static str, default: i64| -> Result<Vec<i64>, Obstacle> {
            match node.ints(name) {
                None => Ok(vec![default; axes]),
                Some(values)
                    if values.len() == axes
                        && values.iter().all(|v| (1..=FARTHEST).contains(v)) =>
                {
                    Ok(values.to_vec())
                }
                Some(_) => Err(Obstacle::Attribute {
                    name,
                    expected: format!("{axes} numbers from 1 to {FARTHEST}"),
                }),
            }
        };
        let mut kernel = Vec::with_capacity(axes);
        for axis in 0..axes {
            let given = node.ints("kernel_shape").and_then(|k| k.get(axis).copied());
            kernel.push(match given {
                Some(given) => given,
                None => site.known_size(weights, 2 + axis)?,
            });
        }
        if !kernel.iter().all(|size| (1..=FARTHEST).contains(size)) {
            return Err(Obstacle::Attribute {
                name: "kernel_shape",
                expected: format!("sizes from 1 to {FARTHEST}"),
            });
        }
        let (strides, dilations) = (list("strides", 1)?, list("dilations", 1)?);
        let given = node.ints("pads");
        let pads = match (node.string("auto_pad"), image) {
            (None | Some("NOTSET" | ""), _) => given.map_or(vec![0; 2 * axes], <[i64]>::to_vec),
            (Some("VALID"), _) if given.is_none() => vec![0; 2 * axes],
            (Some(name @ ("SAME_UPPER" | "SAME_LOWER")), Some(image))
                if given.is_none_or(|pads| pads.iter().all(|&pad| pad == 0)) =>
            {
                if dilations.iter().any(|&dilation| dilation != 1) {
                    return Err(Obstacle::Attribute {
                        name: "dilations",
                        expected: format!("1 on each axis with auto_pad {name}"),
                    });
                }
                pads_of_same(site, image, (&kernel, &strides), name == "SAME_UPPER")?
            }
            _ => {
                return Err(Obstacle::Attribute {
                    name: "auto_pad",
                    expected: "NOTSET and pads".to_owned(),
                });
            }
        };
        if pads.len() != 2 * axes || !pads.iter().all(|pad| (0..=FARTHEST).contains(pad)) {
            return Err(Obstacle::Attribute {
                name: "pads",
                expected: format!("{} numbers from 0 to {FARTHEST}", 2 * axes),
            });
        }
        Ok(Windows {
            kernel,
            strides,
            dilations,
            begins: pads[..axes].to_vec(),
            ends: pads[axes..].to_vec(),
            group: node.int("group").unwrap_or(1),
        })
    }

    fn axes(&self) -> usize {
        self.kernel.len()
    }

    /// How far a window reaches beyond its first number.
    fn reach(&self, axis: usize) -> i64 {
        self.dilations[axis] * (self.kernel[axis] - 1)
    }

    /// The numbers of windows on each axis, and what they leave over at its end, where the size is known.
    fn count_and_rest(&self, site: &LoweringSite, x: TensorId, axis: usize) -> Option<(i64, i64)> {
        let size = site
            .int_size(x, 2 + axis)
            .filter(|size| *size <= i64::MAX / 2)?;
        let free = size + self.begins[axis] + self.ends[axis] - self.reach(axis) - 1;
        (free >= 0).then(|| (free / self.strides[axis] + 1, free % self.strides[axis]))
    }

    fn counts_and_rests(&self, site: &LoweringSite, x: TensorId) -> Option<Vec<(i64, i64)>> {
        let axes = 0..self.axes();
        axes.map(|axis| self.count_and_rest(site, x, axis))
            .collect()
    }

    fn pads(&self) -> Vec<i64> {
        [self.begins.clone(), self.ends.clone()].concat()
    }

    fn taps(&self) -> i64 {
        let taps = self.kernel.iter();
        taps.fold(1i64, |taps, size| taps.saturating_mul(*size))
    }
}

/// The zeros around an image of which there are as many windows as it has numbers, over the stride and rounded up: half before and half
/// behind, and what is left over at the `upper` end. With a stride of 1 they are the same for every size.
fn pads_of_same(
    site: &LoweringSite,
    image: TensorId,
    (kernel, strides): (&[i64], &[i64]),
    upper: bool,
) -> Result<Vec<i64>, Obstacle> {
    let (mut begins, mut ends) = (Vec::new(), Vec::new());
    for (axis, (&kernel, &stride)) in kernel.iter().zip(strides).enumerate() {
        let all = if stride == 1 {
            kernel - 1
        } else {
            let size = site.known_size(image, 2 + axis)?;
            // (⌈size / stride⌉ − 1) · stride + kernel − size
            let last = (size - 1).div_euclid(stride) * stride;
            (last + kernel - size).max(0)
        };
        let less = all / 2;
        let (begin, end) = if upper {
            (less, all - less)
        } else {
            (all - less, less)
        };
        begins.push(begin);
        ends.push(end);
    }
    begins.extend(ends);
    Ok(begins)
}

/// Is there a gradient of a convolution whose windows nobody counts? Which form takes less depends on how many there are.
pub(super) fn want_sizes(graph: &Graph, facts: &Facts) -> bool {
    let nodes = graph.order().iter().map(|&id| graph.node(id));
    let mut gradients =
        nodes.filter(|node| matches!(node.op_type.as_str(), "ConvGrad" | "ConvTransposeGrad"));
    gradients.any(|node| {
        let sizes = node.input(0).and_then(|dy| facts.sizes(dy));
        sizes.is_none_or(|sizes| sizes.iter().skip(2).any(Option::is_none))
    })
}

/// ConvGrad(dY, X, W) -> (dX, dW, dB).
pub(super) fn conv_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, x, w] = site.inputs()?;
    let windows = Windows::of(site, Some(x), w)?;
    // The parameters' gradients first: what they read is in use already.
    if let Some(db) = site.output(2) {
        let sum = site.reduced_to_channels("ReduceSum", dy, 2 + windows.axes());
        site.put(sum, db);
    }
    if let Some(dw) = site.output(1) {
        weights(site, &windows, x, dy, w, dw)?;
    }
    if let Some(dx) = site.output(0) {
        input(site, &windows, dy, x, w, dx);
    }
    Ok(())
}

/// ConvTransposeGrad(dY, X, W) -> (dX, dW, dB): dX is a convolution of dY, and dW the gradient of that convolution's
/// weights where its input is dY and its output's gradient X.
pub(super) fn conv_transpose_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, x, w] = site.inputs()?;
    let windows = Windows::of(site, None, w)?;
    if let Some(db) = site.output(2) {
        let sum = site.reduced_to_channels("ReduceSum", dy, 2 + windows.axes());
        site.put(sum, db);
    }
    if let Some(dw) = site.output(1) {
        weights(site, &windows, dy, x, w, dw)?;
    }
    if let Some(dx) = site.output(0) {
        let convolution = op("Conv", [dy, w])
            .ints("dilations", &windows.dilations)
            .int("group", windows.group)
            .ints("kernel_shape", &windows.kernel)
            .ints("pads", &windows.pads())
            .ints("strides", &windows.strides);
        site.put(convolution, dx);
    }
    Ok(())
}

/// dX by a transposed convolution of dY, or by a convolution with turned weights. Where the size of X is not known, up to one stride too much is made of
/// it, and cut off.
fn input(
    site: &mut LoweringSite,
    windows: &Windows,
    dy: TensorId,
    x: TensorId,
    w: TensorId,
    dx: TensorId,
) {
    if is_turned_for_less(site, windows, dy) {
        let turned = turned(site, windows, w);
        let pads = windows.pads();
        let all = windows.axes();
        let pads = (0..2 * all).map(|at| windows.reach(at % all) - pads[at]);
        let pads: Vec<i64> = pads.collect();
        let convolution = op("Conv", [dy, turned])
            .ints("dilations", &windows.dilations)
            .int("group", windows.group)
            .ints("kernel_shape", &windows.kernel)
            .ints("pads", &pads)
            .ints("strides", &windows.strides);
        site.put(convolution, dx);
        return;
    }
    let known = windows.counts_and_rests(site, x);
    let rest: Vec<i64> = match &known {
        Some(known) => known.iter().map(|(_, rest)| *rest).collect(),
        None => windows.strides.iter().map(|stride| stride - 1).collect(),
    };
    let transposed = op("ConvTranspose", [dy, w])
        .ints("dilations", &windows.dilations)
        .int("group", windows.group)
        .ints("kernel_shape", &windows.kernel)
        .ints("output_padding", &rest)
        .ints("pads", &windows.pads())
        .ints("strides", &windows.strides);
    if known.is_some() || rest.iter().all(|&rest| rest == 0) {
        site.put(transposed, dx);
        return;
    }
    let all = site.add(transposed);
    let starts = site.ints(&vec![0; 2 + windows.axes()]);
    let ends = site.add(op("Shape", [x]));
    site.put(op("Slice", [all, starts, ends]), dx);
}

/// Does it take less to convolve dY with turned weights than to compute the transposed convolution? With a stride, zeros would lie between the numbers of dY.
fn is_turned_for_less(site: &LoweringSite, windows: &Windows, dy: TensorId) -> bool {
    let all = windows.axes();
    let pads = windows.pads();
    let fits = windows.group == 1
        && windows.strides.iter().all(|&stride| stride == 1)
        && (0..2 * all).all(|at| pads[at] <= windows.reach(at % all));
    let enough = site
        .size(dy, 1)
        .zip(site.positions(dy))
        .is_some_and(|(of, count)| count >= of.saturating_mul(FEWEST_WINDOWS_OF_A_CHANNEL));
    fits && enough
}

/// The weights with each kernel read backwards, and what it reads exchanged with what it writes.
fn turned(site: &mut LoweringSite, windows: &Windows, w: TensorId) -> TensorId {
    let mut turned = w;
    if windows.taps() > 1 {
        let axes: Vec<i64> = (2..2 + windows.axes() as i64).collect();
        let ones = vec![-1; axes.len()];
        let [from, until, axes, steps] =
            [&ones, &vec![i64::MIN; axes.len()], &axes, &ones].map(|list| site.ints(list));
        turned = site.add(op("Slice", [w, from, until, axes, steps]));
    }
    site.add(op("Transpose", [turned]).ints("perm", &exchange(windows)))
}

/// The first two dimensions the other way round.
fn exchange(windows: &Windows) -> Vec<i64> {
    let behind = 2..2 + windows.axes() as i64;
    [1, 0].into_iter().chain(behind).collect()
}

/// dW[o, i, k] = Σ X[n, i, p · stride + k · dilation − pad] · dY[n, o, p] over images n and windows p.
fn weights(
    site: &mut LoweringSite,
    windows: &Windows,
    x: TensorId,
    dy: TensorId,
    w: TensorId,
    dw: TensorId,
) -> Result<(), Obstacle> {
    let is_pointwise = windows.taps() == 1
        && windows.pads().iter().all(|&pad| pad == 0)
        && windows.strides.iter().all(|&stride| stride == 1);
    let channels = site.size(w, 1);
    let is_depthwise =
        windows.group > 1 && channels == Some(1) && site.int_size(w, 0) == Some(windows.group);
    let of = match channels {
        _ if is_depthwise => Some(ChannelsAtOnce::Each),
        _ if windows.group != 1 => None,
        _ if is_pointwise => Some(ChannelsAtOnce::All(1)),
        // Half as many columns as dY has rows: what they are cut from and put together to takes no more than dY.
        Some(few) if (1..FEWEST_CHANNELS).contains(&few) => {
            let columns = site.size(w, 0).map_or(0, |rows| rows / 2);
            Some(ChannelsAtOnce::All(
                (columns.max(FEWEST_COLUMNS) / few).max(1),
            ))
        }
        _ => Some(ChannelsAtOnce::All(1)),
    };
    let all_images = match of {
        Some(ChannelsAtOnce::Each) => site
            .positions(dy)
            .is_some_and(|count| count <= MOST_WINDOWS_OF_DEPTHWISE),
        Some(ChannelsAtOnce::All(1)) => is_larger_than_images(site, windows, dy, w),
        _ => false,
    };
    let most = match of {
        Some(ChannelsAtOnce::All(2..)) => MOST_TAPS_OF_FEW,
        _ => MOST_TAPS,
    };
    match of {
        Some(channels) if windows.taps() <= most => {
            let products = Products {
                channels,
                all_images,
            };
            weights_by_taps(site, windows, x, dy, w, dw, products)
        }
        _ => weights_by_convolution(site, windows, x, dy, w, dw),
    }
}

/// Is dW larger than what one image has of X and dY in all windows? A product for each image, of which there is a sum then, takes longer
/// than to put channels first, so that one product sums over all images (measured in 1.32.0 on the CPU with 8 and 32 images: 0.2 to 0.7 of the
/// time where dW is eight times as large and more, 0.9 where it is about as large).
fn is_larger_than_images(
    site: &LoweringSite,
    windows: &Windows,
    dy: TensorId,
    w: TensorId,
) -> bool {
    let size = || {
        let (rows, columns) = (site.size(w, 0)?, site.size(w, 1)?);
        let count = site.positions(dy)?;
        let products = rows.saturating_mul(columns);
        let weights = products.saturating_mul(windows.taps().unsigned_abs());
        Some(weights >= count.saturating_mul(rows.saturating_add(columns)))
    };
    size().unwrap_or(false)
}

/// For one or several numbers of the kernel a product of matrices: dY of all windows times what these have of X at those places.
fn weights_by_taps(
    site: &mut LoweringSite,
    windows: &Windows,
    x: TensorId,
    dy: TensorId,
    w: TensorId,
    dw: TensorId,
    products: Products,
) -> Result<(), Obstacle> {
    let axes = windows.axes();
    let rows = products.rows();
    let at_once = match products.channels {
        ChannelsAtOnce::All(count) => count as usize,
        ChannelsAtOnce::Each => 1,
    };
    let channels_first = products.all_images;
    let put_first = |site: &mut LoweringSite, tensor: TensorId| match channels_first {
        true => site.add(op("Transpose", [tensor]).ints("perm", &exchange(windows))),
        false => tensor,
    };
    let mut phases = phases(site, windows, x, w);
    let mut padded = match phases {
        Some(phases) => phases.apart,
        None => padded(site, windows, x),
    };
    // What no window meets is not moved.
    let all_are_met = phases.is_some() || windows.strides.iter().all(|&stride| stride == 1);
    if all_are_met {
        padded = put_first(site, padded);
        phases = phases.map(|phases| Phases {
            apart: padded,
            axis: if channels_first { 0 } else { 1 },
            ..phases
        });
    }
    let dy_first = put_first(site, dy);
    let gradient = site.reshaped(dy_first, rows);
    let mut parts = Vec::new();
    let mut met = Vec::new();
    let mut place = vec![0i64; axes];
    loop {
        let window = if windows.taps() == 1 && windows.strides.iter().all(|&s| s == 1) {
            padded
        } else if let Some(phases) = phases {
            phases.window(site, windows, x, &place)
        } else {
            let starts: Vec<i64> = (0..axes).map(|a| place[a] * windows.dilations[a]).collect();
            let ends = ends(site, windows, x, dy, &starts);
            let all: Vec<i64> = (2..2 + axes as i64).collect();
            let [starts, all, steps] =
                [&starts, &all, &windows.strides].map(|list| site.ints(list));
            let inputs = [padded, starts, ends, all, steps].map(Some).to_vec();
            let window = site.add(op_of("Slice", inputs));
            match all_are_met {
                true => window,
                false => put_first(site, window),
            }
        };
        met.push(window);
        let is_last = !next(&mut place, &windows.kernel);
        if is_last || met.len() == at_once {
            let met = site.joined(std::mem::take(&mut met), 1);
            let columns = site.reshaped(met, rows);
            parts.push(site.add(fused_matmul(gradient, columns).int("transB", 1)));
        }
        if is_last {
            break;
        }
    }
    let shape = shape_of_weights(site, w);
    if products.channels == ChannelsAtOnce::Each && channels_first {
        // [c, 1, 1] for each place.
        let all = site.joined(parts, 2);
        site.put(op("Reshape", [all, shape]), dw);
        return Ok(());
    }
    if products.channels == ChannelsAtOnce::Each {
        // [n, c, 1, 1] for each place.
        let all = site.joined(parts, 3);
        let sum = site.reduced("ReduceSum", all, &[0], false);
        let sum = site.add(sum);
        site.put(op("Reshape", [sum, shape]), dw);
        return Ok(());
    }
    // [n, o, i] for each place, or for several one behind the other, summed over the images one by one: nothing larger than dW is kept.
    let mut sums = Vec::with_capacity(parts.len());
    for part in parts {
        sums.push(match channels_first {
            true => part,
            false => {
                let sum = site.reduced("ReduceSum", part, &[0], true);
                site.add(sum)
            }
        });
    }
    if windows.taps() == 1 {
        let sum = site.joined(sums, 0);
        site.put(op("Reshape", [sum, shape]), dw);
        return Ok(());
    }
    let turned = if at_once == 1 && !channels_first {
        let all = site.joined(sums, 0);
        op("Transpose", [all]).ints("perm", &[1, 2, 0])
    } else {
        // [1, o, k · i], or without the first dimension.
        let all = site.joined(sums, if channels_first { 1 } else { 2 });
        let split = [-1, windows.taps(), site.int_size(w, 1).unwrap_or(-1)];
        let by_place = site.reshaped(all, &split);
        op("Transpose", [by_place]).ints("perm", &[0, 2, 1])
    };
    let turned = site.add(turned);
    site.put(op("Reshape", [turned, shape]), dw);
    Ok(())
}

/// X with its zeros around it, and with what lies a stride apart side by side: the kernel that cuts with steps takes ten
/// times as long as one that copies rows.
#[derive(Clone, Copy)]
struct Phases {
    apart: TensorId,
    stride: i64,
    channels: i64,
    /// Where the channels are.
    axis: i64,
}

/// `None` where no numbers lie apart, or not so many that it pays, or sizes are not known.
fn phases(site: &mut LoweringSite, windows: &Windows, x: TensorId, w: TensorId) -> Option<Phases> {
    let &[stride, other] = &windows.strides[..] else {
        return None;
    };
    if stride != other || stride < 2 || windows.taps() <= stride * stride {
        return None;
    }
    let channels = site.int_size(w, 1)?.checked_mul(windows.group)?;
    let element = site.element(x).ok()?;
    if !matches!(element, ElementType::Float | ElementType::Double) {
        return None;
    }
    let mut ends = windows.ends.clone();
    for (axis, end) in ends.iter_mut().enumerate() {
        let whole = site.int_size(x, 2 + axis)? + windows.begins[axis] + *end;
        *end += (stride - whole % stride) % stride;
    }
    let padded = with_zeros(site, &windows.begins, &ends, x);
    let apart = site.add(op("SpaceToDepth", [padded]).int("blocksize", stride));
    Some(Phases {
        apart,
        stride,
        channels,
        axis: 1,
    })
}

impl Phases {
    /// What the number of the kernel at `place` meets.
    fn window(
        self,
        site: &mut LoweringSite,
        windows: &Windows,
        x: TensorId,
        place: &[i64],
    ) -> TensorId {
        let (mut phase, mut starts) = (0, vec![0]);
        for (at, dilation) in place.iter().zip(&windows.dilations) {
            phase = phase * self.stride + at * dilation % self.stride;
            starts.push(at * dilation / self.stride);
        }
        starts[0] = phase * self.channels;
        let counts = windows.counts_and_rests(site, x).unwrap_or_default();
        let counts = counts.iter().map(|(count, _)| *count);
        let counts = [self.channels].into_iter().chain(counts);
        let ends = starts
            .iter()
            .zip(counts)
            .map(|(start, count)| start + count);
        let ends = ends.collect();
        let [starts, ends, axes] =
            [starts, ends, vec![self.axis, 2, 3]].map(|list| site.ints(&list));
        site.add(op("Slice", [self.apart, starts, ends, axes]))
    }
}

/// Where the last window ends on each axis, for windows that begin at `starts`.
fn ends(
    site: &mut LoweringSite,
    windows: &Windows,
    x: TensorId,
    dy: TensorId,
    starts: &[i64],
) -> TensorId {
    let axes = windows.axes();
    if let Some(known) = windows.counts_and_rests(site, x) {
        let ends: Vec<i64> = (0..axes)
            .map(|axis| starts[axis] + (known[axis].0 - 1) * windows.strides[axis] + 1)
            .collect();
        return site.ints(&ends);
    }
    // (count − 1) · stride + 1 + start
    let shape = site.add(op("Shape", [dy]));
    let (two, end) = (site.ints(&[2]), site.ints(&[i64::MAX]));
    let counts = site.add(op("Slice", [shape, two, end]));
    let strides = site.ints(&windows.strides);
    let last = site.add(op("Mul", [counts, strides]));
    let behind: Vec<i64> = (0..axes)
        .map(|axis| starts[axis] + 1 - windows.strides[axis])
        .collect();
    let behind = site.ints(&behind);
    site.add(op("Add", [last, behind]))
}

/// The next place in a box, the last dimension first. `false` after the last one.
fn next(place: &mut [i64], sizes: &[i64]) -> bool {
    for (at, size) in place.iter_mut().zip(sizes).rev() {
        *at += 1;
        if *at < *size {
            return true;
        }
        *at = 0;
    }
    false
}

/// X with its zeros around it.
fn padded(site: &mut LoweringSite, windows: &Windows, x: TensorId) -> TensorId {
    with_zeros(site, &windows.begins, &windows.ends, x)
}

fn with_zeros(site: &mut LoweringSite, begins: &[i64], ends: &[i64], x: TensorId) -> TensorId {
    if begins.iter().chain(ends).all(|&pad| pad == 0) {
        return x;
    }
    let pads = [&[0, 0], begins, &[0, 0], ends].concat();
    let pads = site.ints(&pads);
    site.add(op("Pad", [x, pads]))
}

fn shape_of_weights(site: &mut LoweringSite, w: TensorId) -> TensorId {
    match site.numbers(w) {
        Some(shape) => site.ints(&shape),
        None => site.add(op("Shape", [w])),
    }
}

/// A convolution whose images are the channels of X, whose channels are the images, and whose kernel is dY: its result is dW
/// with the first two dimensions exchanged.
fn weights_by_convolution(
    site: &mut LoweringSite,
    windows: &Windows,
    x: TensorId,
    dy: TensorId,
    w: TensorId,
    dw: TensorId,
) -> Result<(), Obstacle> {
    let axes = windows.axes();
    let exchange = exchange(windows);
    let known = windows.counts_and_rests(site, x);
    // The last numbers of X that no window reads would make the result longer.
    let mut ends = windows.ends.clone();
    let (mut data, mut cut) = (x, Vec::new());
    if let Some(known) = &known {
        for (axis, (_, rest)) in known.iter().enumerate() {
            ends[axis] -= rest;
            if ends[axis] < 0 {
                cut.push((axis, ends[axis]));
                ends[axis] = 0;
            }
        }
    }
    if !cut.is_empty() {
        let places: Vec<i64> = cut.iter().map(|(axis, _)| 2 + *axis as i64).collect();
        let until: Vec<i64> = cut.iter().map(|(_, end)| *end).collect();
        let zeros = site.ints(&vec![0; cut.len()]);
        let (until, places) = (site.ints(&until), site.ints(&places));
        data = site.add(op("Slice", [data, zeros, until, places]));
    }
    let images = if windows.group == 1 {
        site.add(op("Transpose", [data]).ints("perm", &exchange))
    } else {
        grouped(site, windows, data, w)?
    };
    let kernel = site.add(op("Transpose", [dy]).ints("perm", &exchange));
    let mut convolution = op("Conv", [images, kernel])
        .ints("dilations", &windows.strides)
        .int("group", windows.group)
        .ints("pads", &[windows.begins.clone(), ends].concat())
        .ints("strides", &windows.dilations);
    if let Some(known) = &known {
        let counts: Vec<i64> = known.iter().map(|(count, _)| *count).collect();
        convolution = convolution.ints("kernel_shape", &counts);
    }
    let mut all = site.add(convolution);
    if known.is_none() && windows.strides.iter().any(|&stride| stride > 1) {
        let zeros = site.ints(&vec![0; axes]);
        let ends = site.ints(&windows.kernel);
        let places: Vec<i64> = (2..2 + axes as i64).collect();
        let places = site.ints(&places);
        all = site.add(op("Slice", [all, zeros, ends, places]));
    }
    site.put(op("Transpose", [all]).ints("perm", &exchange), dw);
    Ok(())
}

/// X[n, g · c, …] as [c, g · n, …].
fn grouped(
    site: &mut LoweringSite,
    windows: &Windows,
    x: TensorId,
    w: TensorId,
) -> Result<TensorId, Obstacle> {
    let axes = windows.axes();
    let channels = site.known_size(w, 1)?;
    // The sizes behind are those of X, whatever they are.
    let shape = site.add(op("Shape", [x]));
    let (two, end) = (site.ints(&[2]), site.ints(&[i64::MAX]));
    let tail = site.add(op("Slice", [shape, two, end]));
    let apart = site.ints(&[0, windows.group, channels]);
    let apart = site.add(op("Concat", [apart, tail]).int("axis", 0));
    let apart = site.add(op("Reshape", [x, apart]));
    let turn: Vec<i64> = [2, 1, 0].into_iter().chain(3..3 + axes as i64).collect();
    let turned = site.add(op("Transpose", [apart]).ints("perm", &turn));
    let together = site.ints(&[channels, -1]);
    let together = site.add(op("Concat", [together, tail]).int("axis", 0));
    Ok(site.add(op("Reshape", [turned, together])))
}
