//! Gradients of pooling.

use super::convolution::FARTHEST;
use super::operation::{NewNode, op};
use super::site::{LoweringSite, Obstacle, attribute, case};
use crate::graph::{Constant, ElementType, TensorId};

/// MaxPoolGrad(dY, indices): each number of dY is added where the largest number of its window was.
pub(super) fn max_pool_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dy, indices] = site.inputs()?;
    let dx = site.result()?;
    let element = site.element(dy)?;
    let shape = match site.numbers(dx) {
        Some(shape) => site.ints(&shape),
        None => {
            let pooled = site.producer(indices).filter(|node| node.is("", "MaxPool"));
            match pooled.and_then(|node| node.input(0)) {
                Some(x) => site.add(op("Shape", [x])),
                None => return case("where its indices do not come from a MaxPool"),
            }
        }
    };
    site.needs_opset(16)?;
    let count = site.reduced("ReduceProd", shape, &[0], true);
    let count = site.add(count);
    let (places, updates) = (site.reshaped(indices, &[-1]), site.reshaped(dy, &[-1]));
    let zeros = zeros_for(site, dy, count, element);
    let sum = site.new_tensor("ScatterElements");
    site.declare_alike(zeros, sum, 1, element);
    site.put(added(zeros, places, updates, 0), sum);
    site.put(op("Reshape", [sum, shape]), dx);
    Ok(())
}

/// Zeros of a shape, to which numbers are added. They wait for these, and are made in each step: of a known shape, constant folding would
/// make them before the first, and the session would hold them all the time. No size is as large as what the shape is compared with.
pub(super) fn zeros_for(
    site: &mut LoweringSite,
    numbers: TensorId,
    shape: TensorId,
    element: ElementType,
) -> TensorId {
    const HUGE: i64 = 1 << 62;
    let count = site.add_kept(op("Size", [numbers]));
    let huge = site.int(HUGE);
    let above = site.add_kept(op("Add", [count, huge]));
    let shape = site.add_kept(op("Min", [shape, above]));
    site.add(zeros(shape, element))
}

/// Zeros of a shape.
pub(super) fn zeros(shape: TensorId, element: ElementType) -> NewNode {
    op("ConstantOfShape", [shape]).holding(element, vec![1], Constant::Floats(vec![0.0]))
}

/// `updates` added to `data` at the places that `indices` says, one after another: the kernel for whole slices
/// (ScatterND) loses some where several threads add at the same place.
pub(super) fn added(data: TensorId, indices: TensorId, updates: TensorId, axis: i64) -> NewNode {
    op("ScatterElements", [data, indices, updates])
        .int("axis", axis)
        .string("reduction", "add")
}

/// So many windows of an image are looked at one by one.
const MOST_WINDOWS: i64 = 1 << 26;

/// AveragePoolGrad(dY): a transposed convolution of each channel with a kernel of equal numbers. Where zeros around X do
/// not count, dY is divided by how many numbers of a window do.
pub(super) fn average_pool_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let dy = site.input(0)?;
    let dx = site.result()?;
    let (rank, element) = (site.rank(dx)?, site.element(dy)?);
    let axes = rank.saturating_sub(2);
    let node = &site.node;
    let Some(kernel) = node.ints("kernel_shape").map(<[i64]>::to_vec) else {
        return attribute("kernel_shape", "the sizes of the window");
    };
    let or = |name: &str, default: i64, count: usize| {
        node.ints(name)
            .map_or(vec![default; count], <[i64]>::to_vec)
    };
    let (strides, dilations) = (or("strides", 1, axes), or("dilations", 1, axes));
    let pads = or("pads", 0, 2 * axes);
    let auto_pad = node.string("auto_pad").unwrap_or("NOTSET");
    if !["NOTSET", "", "VALID"].contains(&auto_pad) {
        return attribute("auto_pad", "NOTSET and pads");
    }
    let counts_zeros = node.int("count_include_pad").unwrap_or(0) != 0;
    let is_ceiling = node.int("ceil_mode").unwrap_or(0) != 0;
    let lengths = [&kernel, &strides, &dilations].map(Vec::len);
    if lengths != [axes; 3] || pads.len() != 2 * axes {
        return case("where the window has another number of dimensions than X");
    }
    let numbers = [&kernel, &strides, &dilations, &pads];
    let is_far = |number: &&i64| !(0..=FARTHEST).contains(*number);
    if let Some(far) = numbers.into_iter().flatten().find(is_far) {
        return case(format!(
            "with {far} in its windows; expected numbers from 0 to {FARTHEST}"
        ));
    }
    let sizes = (0..axes).map(|axis| site.int_size(dx, 2 + axis).filter(|size| *size <= FARTHEST));
    let sizes: Option<Vec<i64>> = sizes.collect();
    let sizes = sizes.ok_or_else(|| site.unknown_size(dx, 2))?;
    let mut rest = Vec::with_capacity(axes);
    let mut weights = Vec::with_capacity(axes);
    let mut all = 1i64;
    for axis in 0..axes {
        let reach = dilations[axis] * (kernel[axis] - 1);
        let free = sizes[axis] + pads[axis] + pads[axes + axis] - reach - 1;
        if free < 0 || strides[axis] < 1 {
            return case("where a window is larger than X");
        }
        if is_ceiling && free % strides[axis] != 0 {
            return case("where the last window reaches beyond X (ceil_mode)");
        }
        rest.push(free % strides[axis]);
        let count = free / strides[axis] + 1;
        // All windows are looked at, and where zeros do not count, each has a number of its own.
        all = all.saturating_mul(count);
        if all.max(count.saturating_mul(kernel[axis])) > MOST_WINDOWS {
            return case(format!(
                "with more than {MOST_WINDOWS} windows for an image"
            ));
        }
        // How many numbers of each window lie within X.
        let within = |window: i64| {
            let place = |k| window * strides[axis] + k * dilations[axis] - pads[axis];
            let counts = |&k: &i64| counts_zeros || (0..sizes[axis]).contains(&place(k));
            (0..kernel[axis]).filter(counts).count() as f64
        };
        weights.push((0..count).map(within).collect::<Vec<f64>>());
    }
    let is_even = weights.iter().all(|w| w.iter().all(|n| *n == w[0]));
    let mut data = dy;
    let area: f64 = match is_even {
        true => weights.iter().map(|w| w[0]).product(),
        false => 1.0,
    };
    if !is_even {
        let shape: Vec<u64> = weights.iter().map(|w| w.len() as u64).collect();
        let mut counts = vec![1.0];
        for axis in &weights {
            let with = |count: f64| axis.iter().map(move |n| count * n);
            counts = counts.into_iter().flat_map(with).collect();
        }
        let counts = site.numbers_of(shape, &counts, element);
        data = site.add(op("Div", [data, counts]));
    }
    // One image for each channel: all have the same kernel.
    let mut alone = vec![-1, 1];
    alone.extend(weights.iter().map(|w| w.len() as i64));
    let images = site.reshaped(data, &alone);
    let mut shape: Vec<u64> = vec![1, 1];
    shape.extend(kernel.iter().map(|&k| k as u64));
    let taps = kernel.iter();
    let taps = taps.fold(1usize, |taps, &size| taps.saturating_mul(size as usize));
    let equal = match taps <= 64 {
        true => site.numbers_of(shape, &vec![1.0 / area; taps], element),
        false => {
            let shape: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
            let (number, shape) = (site.number(1.0 / area, element), site.ints(&shape));
            site.add(op("Expand", [number, shape]))
        }
    };
    let spread = op("ConvTranspose", [images, equal])
        .ints("dilations", &dilations)
        .ints("kernel_shape", &kernel)
        .ints("output_padding", &rest)
        .ints("pads", &pads)
        .ints("strides", &strides);
    let spread = site.add(spread);
    let images = [-1, site.known_size(dx, 1)?];
    let shape = site.ints(&[&images[..], &sizes].concat());
    site.put(op("Reshape", [spread, shape]), dx);
    Ok(())
}
