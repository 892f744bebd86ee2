//! Gather, Scatter and their gradients.

use super::evaluate::{select, with_contents};
use super::places;
use super::slice::shape_from;
use super::view::{Fault, Input, LARGEST_CONSTANT, Outputs, Shape, View, known, unknown};
use super::{Family, Operator, Provider, Recompute, microsoft, onnx, output_twice};
use crate::bytes::Bytes;
use crate::graph::ElementType;

pub(super) const OPERATORS: &[Operator] = &[
    reads_a_part("Gather", gather),
    reads_a_part("GatherElements", gather_elements),
    reads_a_part("GatherND", gather_nd).workspace(slices),
    onnx("ScatterElements", Family::Scatter, scatter_elements)
        .in_place_on_cpu()
        .workspace(|view, provider| checked_indices(view, provider, 1)),
    onnx("Scatter", Family::Scatter, scatter_elements)
        .in_place_on_cpu()
        .workspace(|view, provider| checked_indices(view, provider, 1)),
    onnx("ScatterND", Family::Scatter, scatter_nd)
        .in_place_on_cuda()
        .workspace(slices),
    reads_a_part("OneHot", one_hot).workspace(|view, provider| checked_indices(view, provider, 0)),
    reads_a_part("Compress", |_| unknown()),
    // It lists the places before it knows how many there are (measured).
    onnx("NonZero", Family::Gather, non_zero).workspace(|view, provider| {
        let places = view.output(0)?.bytes();
        (provider == Provider::Cpu).then_some(places)
    }),
    onnx("Unique", Family::Gather, |_| unknown()),
    sums_up("GatherGrad", |view| shape_from(view, 0, 2)),
    sums_up("GatherElementsGrad", |view| shape_from(view, 1, 0))
        .workspace(|view, provider| checked_indices(view, provider, 2)),
    sums_up("GatherNDGrad", |view| shape_from(view, 0, 2)).workspace(slices),
    microsoft("ShrunkenGather", Family::Gather, gather).traffic(output_twice),
    microsoft("PadAndUnflatten", Family::Gather, pad_and_unflatten),
    microsoft("FlattenAndUnpad", Family::Gather, flatten_and_unpad),
];

/// Where each slice begins (measured).
fn slices(view: &View, provider: Provider) -> Option<Bytes> {
    let indices = view.input(1).ok()?;
    let slices = indices.count() / indices.shape.last()?.max(&1);
    (provider == Provider::Cpu).then(|| Bytes(slices.saturating_mul(8)))
}

const fn reads_a_part(name: &'static str, rule: super::ShapeRule) -> Operator {
    onnx(name, Family::Gather, rule)
        .operations(|_| None)
        .traffic(output_twice)
}

/// Gradients that several threads add up in an order that varies.
const fn sums_up(name: &'static str, rule: super::ShapeRule) -> Operator {
    microsoft(name, Family::Scatter, rule)
        .recompute(|_| Recompute::Never("adds up in an order that varies from run to run"))
}

/// The CPU kernel copies the indices as 64-bit numbers, negative ones resolved (measured).
fn checked_indices(view: &View, provider: Provider, position: usize) -> Option<Bytes> {
    let indices = view.input(position).ok()?;
    (provider == Provider::Cpu).then(|| Bytes(indices.count().saturating_mul(8)))
}

fn gather(view: &View) -> Result<Outputs, Fault> {
    let (x, indices) = (view.input(0)?, view.input(1)?);
    let axis = view.axis("axis", 0, x.rank())?;
    let mut shape = x.shape[..axis].to_vec();
    shape.extend(indices.shape);
    shape.extend(&x.shape[axis + 1..]);
    let contents = x
        .constant
        .zip(indices.ints())
        .and_then(|(c, at)| select(c, &places::gathered(x.shape, axis, at)?));
    Ok(vec![with_contents(x.with_shape(shape), contents)])
}

fn gather_elements(view: &View) -> Result<Outputs, Fault> {
    let (x, indices) = (view.input(0)?, view.input(1)?);
    if x.rank() != indices.rank() {
        return Err(indices.wrong(1, "as many axes as the data"));
    }
    let axis = view.axis("axis", 0, x.rank())?;
    let contents = x
        .constant
        .zip(indices.ints())
        .and_then(|(c, at)| select(c, &places::by_element(x.shape, axis, at, indices.shape)?));
    let shape = indices.shape.to_vec();
    Ok(vec![with_contents(x.with_shape(shape), contents)])
}

/// ScatterElements(data, indices, updates), and Scatter, its older name.
fn scatter_elements(view: &View) -> Result<Outputs, Fault> {
    let (x, indices, updates) = (view.input(0)?, view.input(1)?, view.input(2)?);
    let fits = |&axis: &usize| axis < x.rank() && indices.rank() == x.rank();
    let axis = view.axis("axis", 0, x.rank()).ok().filter(fits);
    let contents = || {
        let (c, at) = x.constant.zip(indices.ints())?;
        let places = places::by_element(x.shape, axis?, at, indices.shape)?;
        places::scattered(c, updates.constant?, &places, reduction(view))
    };
    Ok(vec![with_contents(x.same(), contents())])
}

/// ScatterND(data, indices, updates).
fn scatter_nd(view: &View) -> Result<Outputs, Fault> {
    let (x, indices, updates) = (view.input(0)?, view.input(1)?, view.input(2)?);
    let contents = || {
        let (c, at) = x.constant.zip(indices.ints())?;
        let places = blocks(x.shape, 0, at, indices.shape)?;
        places::scattered(c, updates.constant?, &places, reduction(view))
    };
    Ok(vec![with_contents(x.same(), contents())])
}

fn reduction<'a>(view: &'a View) -> &'a str {
    view.node.string("reduction").unwrap_or("none")
}

/// The places of all elements of the blocks that the indices point to.
fn blocks(
    shape: &[u64],
    batch: usize,
    indices: &[i64],
    indices_shape: &[u64],
) -> Option<Vec<usize>> {
    let (begins, block) = places::by_tuple(shape, batch, indices, indices_shape)?;
    if begins.len().checked_mul(block)? as u64 > LARGEST_CONSTANT {
        return None;
    }
    let all = begins.into_iter().flat_map(|begin| begin..begin + block);
    Some(all.collect())
}

fn gather_nd(view: &View) -> Result<Outputs, Fault> {
    let (x, indices) = (view.input(0)?, view.input(1)?);
    let batch = view.natural("batch_dims", 0)?;
    let Some((&last, outer)) = indices.shape.split_last() else {
        return Err(indices.wrong(1, "at least one axis"));
    };
    let indexed = batch
        .checked_add(last)
        .and_then(|n| usize::try_from(n).ok());
    let Some(rest) = indexed.and_then(|n| x.shape.get(n..)) else {
        return Err(Fault::Mismatch {
            left: Shape(x.shape.to_vec()),
            right: Shape(indices.shape.to_vec()),
            why: "the indices address more axes than there are",
        });
    };
    let mut shape = outer.to_vec();
    shape.extend(rest);
    let contents = x.constant.zip(indices.ints()).and_then(|(c, at)| {
        select(
            c,
            &blocks(x.shape, usize::try_from(batch).ok()?, at, indices.shape)?,
        )
    });
    Ok(vec![with_contents(x.with_shape(shape), contents)])
}

/// OneHot(indices, depth, values): a new axis of `depth`.
fn one_hot(view: &View) -> Result<Outputs, Fault> {
    let (indices, depth, values) = (view.input(0)?, view.input(1)?, view.input(2)?);
    let Some(depth) = depth.number() else {
        return unknown();
    };
    if !(depth >= 0.0 && depth < i64::MAX as f64) {
        return Err(view.bad_value(1, depth, "a number from 0 up"));
    }
    let axis = view.axis("axis", -1, indices.rank() + 1)?;
    let mut shape = indices.shape.to_vec();
    shape.insert(axis, depth as u64);
    Ok(vec![values.with_shape(shape)])
}

/// Known only for known contents.
fn non_zero(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let Some(values) = x.ints() else {
        return unknown();
    };
    let strides = super::evaluate::strides(x.shape).ok_or(Fault::TooLarge)?;
    let found: Vec<u64> = (0u64..)
        .zip(values)
        .filter(|(_, v)| **v != 0)
        .map(|(i, _)| i)
        .collect();
    let along = |stride: u64, size: u64| {
        let coordinate = move |&i: &u64| (i / stride.max(1) % size.max(1)) as i64;
        found.iter().map(coordinate)
    };
    let axes = strides.iter().zip(x.shape);
    let coordinates = axes
        .flat_map(|(&stride, &size)| along(stride, size))
        .collect();
    let output = known(
        ElementType::Int64,
        vec![x.rank() as u64, found.len() as u64],
    );
    Ok(vec![with_contents(
        output,
        Some(crate::graph::Constant::Ints(coordinates)),
    )])
}

/// PadAndUnflatten(values, indices, dims): the first two axes as `dims` says, the others of the
/// values.
fn pad_and_unflatten(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let Some(dims) = view.input(2)?.ints() else {
        return unknown();
    };
    let sizes: Option<Vec<u64>> = dims.iter().map(|&d| u64::try_from(d).ok()).collect();
    let mut shape = sizes.ok_or_else(|| view.bad_value(2, dims, "sizes from 0 up"))?;
    shape.extend(x.shape.get(1..).unwrap_or(&[]));
    Ok(vec![x.with_shape(shape)])
}

/// FlattenAndUnpad(data, indices): the rows that the indices name, and the first two sizes.
fn flatten_and_unpad(view: &View) -> Result<Outputs, Fault> {
    let (x, indices) = (view.input(0)?, view.input(1)?);
    let rows = |x: Input| x.shape.first().copied();
    let (Some(count), Some(rest)) = (rows(indices), x.shape.get(2..)) else {
        return Err(x.wrong(0, "at least two axes"));
    };
    let mut shape = vec![count];
    shape.extend(rest);
    Ok(vec![
        x.with_shape(shape),
        known(ElementType::Int64, vec![2]),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::recompute;
    use super::super::testing::Case;
    use crate::operators::Recompute;

    #[test]
    fn gather_replaces_an_axis() {
        let case = Case::onnx("Gather").float(&[50257, 768]).int64(&[2, 512]);
        assert_eq!(case.shapes(), ["float[2, 512, 768]"]);
        let case = Case::onnx("Gather")
            .float(&[2, 3, 4])
            .int64(&[])
            .int("axis", -1);
        assert_eq!(case.shapes(), ["float[2, 3]"]);
        let case = Case::onnx("Gather").ints(&[3], &[5, 6, 7]).ints(&[], &[-1]);
        assert_eq!(case.shapes(), ["int64[] = [7]"]);
        // an index out of range leaves the contents unknown
        let case = Case::onnx("Gather").ints(&[3], &[5, 6, 7]).ints(&[1], &[3]);
        assert_eq!(case.shapes(), ["int64[1]"]);
    }

    #[test]
    fn gather_nd_addresses_leading_axes() {
        let case = Case::onnx("GatherND").float(&[2, 3, 4]).int64(&[5, 2]);
        assert_eq!(case.shapes(), ["float[5, 4]"]);
        let case = Case::onnx("GatherND")
            .float(&[2, 3, 4])
            .int64(&[2, 1])
            .int("batch_dims", 1);
        assert_eq!(case.shapes(), ["float[2, 4]"]);
        insta::assert_snapshot!(Case::onnx("GatherND").float(&[2]).int64(&[5, 2]).fault(),
            @"shapes [2] and [5, 2] do not fit: the indices address more axes than there are");
    }

    #[test]
    fn gradients_have_the_shape_they_are_told_and_are_not_repeatable() {
        let case = Case::microsoft("GatherGrad")
            .ints(&[2], &[50257, 768])
            .int64(&[2, 512])
            .float(&[2, 512, 768]);
        assert_eq!(case.shapes(), ["float[50257, 768]"]);
        assert!(matches!(recompute(&case.node()), Recompute::Never(_)));
    }

    #[test]
    fn found_positions_are_known_for_known_contents() {
        let case = Case::onnx("NonZero").ints(&[2, 2], &[0, 3, 1, 0]);
        assert_eq!(case.shapes(), ["int64[2, 2] = [0, 1, 1, 0]"]);
        assert_eq!(Case::onnx("NonZero").float(&[2, 2]).shapes(), ["?"]);
        let case = Case::onnx("OneHot")
            .int64(&[2, 3])
            .ints(&[], &[10])
            .float(&[2]);
        assert_eq!(case.shapes(), ["float[2, 3, 10]"]);
    }
}
