//! Gradients of what is large, slice by slice: dY is split, X read while each slice of dY becomes one of dX, and
//! these are put together. So there are two large tensors at a time, where in one piece there are three.
//! X is not needed at both ends. Of an activation it is computed again slice by slice, and never there as a whole.

use super::activation::{gradient, read_value, relu_that_writes};
use super::normalization::Normalized;
use super::{Group, Like, Part, Read, Site, Variant, Write, part, tensor};
use crate::graph::{AttributeValue, ElementType, TensorId, all_numbers, checked_count};

/// The gradient of a Relu of a batch normalization, by channels: what this has left of each tells its product and its sum.
pub(super) const RELU_OF_NORM: Variant = Variant {
    name: "relu-gradient-by-channels",
    group: Group::Slices,
    replace: relu_of_norm,
};

/// The gradient of a Relu of a convolution, by images, which the convolution computes one after another.
pub(super) const RELU_OF_CONVOLUTION: Variant = Variant {
    name: "relu-gradient-by-images",
    group: Group::Slices,
    replace: relu_of_convolution,
};

/// The gradient of a batch normalization, by channels.
///
/// Runtime fact (measured over random shapes, 1 to 4 threads): the kernel adds up each channel of each image with vectors that begin
/// where memory is aligned, so that the bits are the same only where slices are aligned like the whole.
pub(super) const NORM: Variant = Variant {
    name: "batch-norm-gradient-by-channels",
    group: Group::Slices,
    replace: norm,
};

/// Slices are at most so many: each is a few nodes, and the rest of a node's need is two slices of this many.
const MOST: u64 = 32;

/// A channel of an image has a multiple of so many elements: 64 bytes, which the widest vectors are aligned to.
const ALIGNED: u64 = 16;

/// The parts so far.
struct SliceParts(Vec<Part>);

impl SliceParts {
    fn add(&mut self, part: Part) -> usize {
        self.0.push(part);
        self.0.len() - 1
    }

    /// What the part writes, which is one tensor.
    fn add_one(&mut self, part: Part) -> Read {
        Read::Output(self.add(part), 0)
    }

    /// Equal parts along an axis.
    fn split(&mut self, name: &str, of: Read, axis: i64, each: &[Write]) -> usize {
        let written = each
            .iter()
            .enumerate()
            .map(|(i, write)| numbered(write, name, i));
        let split = part("", "Split", [Some(of)], written);
        self.add(split.with("axis", AttributeValue::Int(axis)))
    }

    /// How much of the first axis of the tensor each slice takes, whatever the size of that axis is in the end.
    fn sizes(&mut self, slices: &Slices, of: TensorId, rank: usize) -> Option<Read> {
        let (count, step) = (slices.count() as u64, slices.step);
        let begins = (0..count).map(|number| i64::try_from(number * step).ok());
        let begins = self.ints("begins", begins.collect::<Option<Vec<i64>>>()?);
        let mut most = vec![i64::try_from(step).ok()?; slices.count()];
        *most.last_mut()? = i64::MAX;
        let most = self.ints("most", most);
        let (zero, one) = (self.ints("zero", vec![0]), self.ints("one", vec![1]));
        let rank = vec![rank as u64];
        let shape = self.computed("shape", "Shape", &[Read::Tensor(of)], rank);
        let size = self.computed("size", "Slice", &[shape, zero, one, zero], vec![1]);
        let left = self.computed("left", "Sub", &[size, begins], vec![count]);
        let left = self.computed("left_at_least", "Max", &[left, zero], vec![count]);
        Some(self.computed("sizes", "Min", &[left, most], vec![count]))
    }

    fn computed(
        &mut self,
        name: &str,
        op_type: &'static str,
        of: &[Read],
        shape: Vec<u64>,
    ) -> Read {
        let written = Write::new(name, Like::Static(shape), ElementType::Int64);
        let inputs = of.iter().map(|&read| Some(read));
        self.add_one(part("", op_type, inputs, [Some(written)]))
    }

    fn ints(&mut self, name: &str, values: Vec<i64>) -> Read {
        let shape = Like::Static(vec![values.len() as u64]);
        let written = Write::new(name, shape, ElementType::Int64);
        let constant = part("", "Constant", [], [Some(written)]);
        self.add_one(constant.with("value_ints", AttributeValue::Ints(values)))
    }

    fn concat(&mut self, axis: usize, of: Vec<Read>, to: TensorId) {
        let inputs = of.into_iter().map(Some);
        let concat = part("", "Concat", inputs, [Some(Write::Tensor(to))]);
        self.add(concat.with("axis", AttributeValue::Int(axis as i64)));
    }
}

/// A tensor that is to be [numbered].
fn float(shape: Like) -> Write {
    Write::new("", shape, ElementType::Float)
}

/// The same with a name of its own.
fn numbered(write: &Write, name: &str, number: usize) -> Option<Write> {
    let Write::New { shape, element, .. } = write else {
        return None;
    };
    Some(Write::new(
        format!("{name}_{number}"),
        shape.clone(),
        *element,
    ))
}

/// Slices of a tensor along one of its first two axes.
///
/// Runtime fact (measured at all levels, with and without training): Slices of a tensor along one axis that take all of it become one
/// Split once optimized, so that it would be there twice. Slices of two axes do not.
struct Slices {
    /// Where each begins and ends, on both axes.
    bounds: Vec<[Read; 2]>,
    axes: Read,
    axis: usize,
    /// How much each takes of the axis.
    sizes: Vec<u64>,
    step: u64,
}

impl Slices {
    /// Slices of `step` each; the last one reaches to the end, wherever that is.
    fn of(parts: &mut SliceParts, axis: usize, size: u64, step: u64) -> Option<Slices> {
        let count = size.div_ceil(step);
        let mut bounds = Vec::new();
        for number in 0..count {
            let (mut from, mut to) = (vec![0, 0], vec![i64::MAX, i64::MAX]);
            from[axis] = i64::try_from(number * step).ok()?;
            if number + 1 < count {
                to[axis] = i64::try_from((number + 1) * step).ok()?;
            }
            let from = parts.ints(&format!("from_{number}"), from);
            bounds.push([from, parts.ints(&format!("to_{number}"), to)]);
        }
        let sizes = (0..count).map(|number| step.min(size - number * step));
        Some(Slices {
            bounds,
            axes: parts.ints("axes", vec![0, 1]),
            axis,
            sizes: sizes.collect(),
            step,
        })
    }

    fn count(&self) -> usize {
        self.sizes.len()
    }

    fn like(&self, of: TensorId, number: usize) -> Write {
        float(Like::Cut(of, self.axis, self.sizes[number]))
    }

    fn take(&self, parts: &mut SliceParts, name: &str, of: TensorId, number: usize) -> Read {
        let [from, to] = self.bounds[number].map(Some);
        let inputs = [tensor(of), from, to, Some(self.axes)];
        let written = numbered(&self.like(of, number), name, number);
        parts.add_one(part("", "Slice", inputs, [written]))
    }
}

/// A tensor of `[N, C, ...]` in slices of channels.
struct Channels {
    /// How many slices.
    count: u64,
    /// Channels of each.
    each: u64,
}

impl Channels {
    /// Where all axes but the first are numbers in the file.
    fn of(site: &Site, image: TensorId) -> Option<Channels> {
        let shape = site.shape(image)?;
        let channels = *shape.get(1)?;
        let area = checked_count(shape.get(2..)?)?;
        let count = (2..=MOST).rev().find(|&count| channels % count == 0)?;
        let applies = channels > 0
            && area > 0
            && area % ALIGNED == 0
            && is_static(site, image)
            && site.element(image) == Some(ElementType::Float)
            // Split got its sizes as an input before, and says how many parts there are after.
            && (13..18).contains(&site.opset());
        applies.then_some(Channels {
            count,
            each: channels / count,
        })
    }

    fn vectors(&self) -> Vec<Write> {
        vec![float(Like::Static(vec![self.each])); self.count as usize]
    }

    /// The shape of one number for each channel of so many slices, which a tensor of that rank is multiplied by or added to.
    fn each_of(&self, slices: u64, rank: usize) -> Like {
        let mut shape = vec![1; rank - 1];
        shape[0] = self.each * slices;
        Like::Static(shape)
    }

    fn images(&self, like: TensorId) -> Vec<Write> {
        vec![float(Like::Cut(like, 1, self.each)); self.count as usize]
    }
}

/// Are all axes but the first numbers in the file?
fn is_static(site: &Site, image: TensorId) -> bool {
    let declared = site.graph.tensor(image).declared.as_deref();
    declared.is_none_or(|dims| dims.get(1..).is_none_or(all_numbers))
}

/// What the activation reads of which the node is the gradient.
fn activated(site: &Site) -> Option<TensorId> {
    let value = read_value(site)?;
    match relu_that_writes(site, value) {
        Some(relu) => site.graph.node(relu).input(0),
        None => Some(value),
    }
}

fn relu_of_norm(site: &Site) -> Option<Vec<Part>> {
    let (dy, dx, y) = (site.node.input(0)?, site.node.output(0)?, activated(site)?);
    let normalization = site.graph.node(site.uses.producer(y)?);
    let all = Normalized::of(site.graph, normalization).filter(|all| all.y == y)?;
    if !site.alike(dy, all.x) || !site.alike(dx, all.x) || !is_static(site, dy) {
        return None;
    }
    let channels = Channels::of(site, all.x)?;
    let mut parts = SliceParts(Vec::new());
    let slices = Slices::of(&mut parts, 1, channels.count * channels.each, channels.each)?;
    let factor = parts.add_one(all.factor());
    let [move_by, subtract] = all.shift(factor, Read::Output(parts.0.len(), 0));
    parts.add(move_by);
    let shift = parts.add_one(subtract);
    let rank = site.shape(all.x)?.len();
    let mut to = vec![1; rank - 1];
    to[0] = i64::try_from(channels.count * channels.each).ok()?;
    let to = parts.ints("shape", to);
    let mut of_channels = |name: &str, of: Read| {
        let shape = channels.each_of(channels.count, rank);
        let all = Write::new(name, shape, ElementType::Float);
        let reshaped = parts.add_one(part("", "Reshape", [of, to].map(Some), [Some(all)]));
        let each = vec![float(channels.each_of(1, rank)); channels.count as usize];
        parts.split(name, reshaped, 0, &each)
    };
    let factors = of_channels("factors", factor);
    let shifts = of_channels("shifts", shift);
    let dys = parts.split("dy", Read::Tensor(dy), 1, &channels.images(dy));
    let mut dxs = Vec::new();
    for number in 0..slices.count() {
        let x = slices.take(&mut parts, "x", all.x, number);
        let of = |split: usize| Some(Read::Output(split, number));
        let like = slices.like(all.x, number);
        let scaled = numbered(&like, "scaled", number);
        let scaled = parts.add_one(part("", "Mul", [Some(x), of(factors)], [scaled]));
        let inputs = [Some(scaled), of(shifts)];
        let y = parts.add_one(part("", "Add", inputs, [numbered(&like, "y", number)]));
        let mut part = gradient(site, [of(dys), Some(y)], dx);
        part.outputs = vec![numbered(&slices.like(dx, number), "dx", number)];
        dxs.push(parts.add_one(part));
    }
    parts.concat(1, dxs, dx);
    Some(parts.0)
}

fn norm(site: &Site) -> Option<Vec<Part>> {
    let node = site.node;
    let [dy, x, scale, mean, inverse] = node.first_inputs()?;
    let [dx, dscale, dbias] = node.first_outputs()?;
    let vectors = [scale, mean, inverse, dscale, dbias];
    let channels = Channels::of(site, x)?;
    let size = channels.count * channels.each;
    let is_vector = |&vector: &TensorId| {
        site.element(vector) == Some(ElementType::Float) && site.shape(vector) == Some(&[size])
    };
    let applies = node.is("com.microsoft", "BatchNormalizationGrad")
        && site.alike(dy, x)
        && site.alike(dx, x)
        && is_static(site, dy)
        && vectors.iter().all(is_vector);
    if !applies {
        return None;
    }
    let mut parts = SliceParts(Vec::new());
    let slices = Slices::of(&mut parts, 1, size, channels.each)?;
    let named = [("scale", scale), ("mean", mean), ("inverse", inverse)];
    let of_vectors =
        named.map(|(name, of)| parts.split(name, Read::Tensor(of), 0, &channels.vectors()));
    let dys = parts.split("dy", Read::Tensor(dy), 1, &channels.images(dy));
    let mut gradients = [Vec::new(), Vec::new(), Vec::new()];
    for number in 0..slices.count() {
        let x = slices.take(&mut parts, "x", x, number);
        let of = |split: usize| Some(Read::Output(split, number));
        let [scale, mean, inverse] = of_vectors.map(of);
        let inputs = [of(dys), Some(x), scale, mean, inverse];
        let vector = &channels.vectors()[number];
        let written = [
            numbered(&slices.like(dx, number), "dx", number),
            numbered(vector, "dscale", number),
            numbered(vector, "dbias", number),
        ];
        let gradient = part("com.microsoft", "BatchNormalizationGrad", inputs, written);
        let gradient = parts.add(gradient.like(node));
        for (output, all) in gradients.iter_mut().enumerate() {
            all.push(Read::Output(gradient, output));
        }
    }
    let [dxs, dscales, dbiases] = gradients;
    parts.concat(0, dscales, dscale);
    parts.concat(0, dbiases, dbias);
    parts.concat(1, dxs, dx);
    Some(parts.0)
}

fn relu_of_convolution(site: &Site) -> Option<Vec<Part>> {
    let (dy, dx, y) = (site.node.input(0)?, site.node.output(0)?, activated(site)?);
    let convolution = site.graph.node(site.uses.producer(y)?);
    let x = convolution.input(0)?;
    let batch = *site.shape(x)?.first()?;
    let images = [dy, dx, x, y];
    let float = |&tensor: &TensorId| site.element(tensor) == Some(ElementType::Float);
    let applies = convolution.is("", "Conv")
        && convolution.captures.is_empty()
        && site.alike(dy, y)
        && site.alike(dx, y)
        && images.iter().all(float)
        && images.iter().all(|&image| is_static(site, image) && site.shape(image).is_some())
        && batch > 1
        // Slice had its bounds as attributes before.
        && site.opset() >= 11;
    if !applies {
        return None;
    }
    let mut parts = SliceParts(Vec::new());
    let slices = Slices::of(&mut parts, 0, batch, batch.div_ceil(MOST))?;
    let sizes = parts.sizes(&slices, dy, site.shape(dy)?.len())?;
    let each = (0..slices.count()).map(|number| numbered(&slices.like(dy, number), "dy", number));
    let split = part("", "Split", [tensor(dy), Some(sizes)], each);
    let dys = parts.add(split.with("axis", AttributeValue::Int(0)));
    let mut dxs = Vec::new();
    for number in 0..slices.count() {
        let dy = Read::Output(dys, number);
        let x = slices.take(&mut parts, "x", x, number);
        let mut inputs = vec![Some(x)];
        let others = convolution.inputs.iter().skip(1);
        inputs.extend(others.map(|input| input.map(Read::Tensor)));
        let y = numbered(&slices.like(y, number), "y", number);
        let y = parts.add_one(part("", "Conv", inputs, [y]).like(convolution));
        let mut part = gradient(site, [dy, y].map(Some), dx);
        part.outputs = vec![numbered(&slices.like(dx, number), "dx", number)];
        dxs.push(parts.add_one(part));
    }
    parts.concat(0, dxs, dx);
    Some(parts.0)
}
