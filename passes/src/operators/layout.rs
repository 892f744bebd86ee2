//! Operators that move elements without computing: Transpose, Concat, Split, Expand, Tile, Pad
//! and their like.

use super::evaluate::{
    broadcast_positions, concatenate, positions, select, strides, with_contents,
};
use super::places::Along;
use super::view::{
    Fault, HIGHEST_RANK, Input, LARGEST_CONSTANT, Outputs, Shape, View, broadcast, dimension,
    known, product, resolve_axis, unknown,
};
use super::{Family, Operator, Provider, microsoft, onnx, output_twice};
use crate::bytes::Bytes;
use crate::graph::{Constant, ElementType};

pub(super) const OPERATORS: &[Operator] = &[
    moves(onnx("Transpose", Family::Transposition, transpose)),
    moves(onnx("Concat", Family::Movement, concat)),
    moves(microsoft(
        "ConcatTraining",
        Family::Movement,
        concat_training,
    )),
    moves(onnx("Split", Family::Movement, split)),
    moves(microsoft("SplitTraining", Family::Movement, split)),
    moves(onnx("Expand", Family::Movement, expand))
        .operations(pieces)
        .workspace(expand_workspace),
    moves(onnx("Tile", Family::Movement, tile)),
    moves(onnx("Pad", Family::Movement, pad)),
    moves(onnx("DepthToSpace", Family::Movement, depth_to_space)),
    moves(onnx("SpaceToDepth", Family::Movement, space_to_depth)),
    moves(onnx("ReverseSequence", Family::Movement, super::like_first)),
    moves(onnx("Trilu", Family::Movement, super::like_first)).in_place(),
    moves(microsoft("Trilu", Family::Movement, super::like_first)).in_place(),
    moves(onnx("CenterCropPad", Family::Movement, |_| unknown())),
];

const fn moves(operator: Operator) -> Operator {
    operator.operations(|_| None).traffic(output_twice)
}

fn transpose(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let perm: Vec<usize> = match view.node.ints("perm") {
        None => (0..x.rank()).rev().collect(),
        Some(perm) => {
            let resolved: Option<Vec<usize>> =
                perm.iter().map(|&p| resolve_axis(p, x.rank())).collect();
            let mut seen = vec![false; x.rank()];
            resolved
                .filter(|p| p.len() == x.rank())
                .filter(|p| {
                    p.iter()
                        .all(|&axis| !std::mem::replace(&mut seen[axis], true))
                })
                .ok_or_else(|| view.bad("perm", perm, "every axis of input 0 once"))?
        }
    };
    let shape: Vec<u64> = perm.iter().map(|&axis| x.shape[axis]).collect();
    let contents = x.constant.and_then(|c| {
        let strides = strides(x.shape)?;
        select(c, &positions(&shape, |axis, at| at * strides[perm[axis]])?)
    });
    Ok(vec![with_contents(x.with_shape(shape), contents)])
}

fn concat(view: &View) -> Result<Outputs, Fault> {
    concatenated(view, &view.inputs()?)
}

fn concatenated(view: &View, parts: &[Input<'_>]) -> Result<Outputs, Fault> {
    let Some(first) = parts.first() else {
        return Err(Fault::MissingInput(0));
    };
    let axis = view.axis("axis", 1, first.rank())?;
    let mut shape = first.shape.to_vec();
    for part in &parts[1..] {
        let fits = part.rank() == first.rank()
            && (0..part.rank()).all(|i| i == axis || part.shape[i] == first.shape[i]);
        if !fits {
            return Err(Fault::Mismatch {
                left: Shape(first.shape.to_vec()),
                right: Shape(part.shape.to_vec()),
                why: "they differ beside the concatenated axis",
            });
        }
        shape[axis] = shape[axis]
            .checked_add(part.shape[axis])
            .ok_or(Fault::TooLarge)?;
    }
    let contents = joined(parts, axis);
    Ok(vec![with_contents(first.with_shape(shape), contents)])
}

/// The contents of the parts, side by side along `axis`.
fn joined(parts: &[Input<'_>], axis: usize) -> Option<Constant> {
    let constants: Option<Vec<&Constant>> = parts.iter().map(|part| part.constant).collect();
    let constants = constants?;
    let along: Option<Vec<Along>> = parts
        .iter()
        .map(|part| Along::of(part.shape, axis))
        .collect();
    let one_after_the_other = concatenate(&constants)?;
    // Where each part begins in that.
    let rows = parts[0].shape[..axis].iter().product::<u64>() as usize;
    let mut begin = 0;
    let mut places: Vec<(usize, Vec<usize>)> = Vec::new();
    for (part, along) in parts.iter().zip(along?) {
        let all = along.part(0, usize::try_from(part.shape[axis]).ok()?);
        let row = all.len() / rows.max(1);
        places.push((row, all.into_iter().map(|at| begin + at).collect()));
        begin += usize::try_from(part.count()).ok()?;
    }
    let order: Vec<usize> = (0..rows)
        .flat_map(|row| {
            let of = |(length, places): &(usize, Vec<usize>)| {
                places[row * length..(row + 1) * length].to_vec()
            };
            places.iter().flat_map(of).collect::<Vec<usize>>()
        })
        .collect();
    (order.len() as u64 <= LARGEST_CONSTANT)
        .then(|| select(&one_after_the_other, &order))
        .flatten()
}

/// ConcatTraining: as Concat, and the sizes of the parts.
fn concat_training(view: &View) -> Result<Outputs, Fault> {
    let parts = view.inputs()?;
    let mut outputs = concatenated(view, &parts)?;
    let axis = view.axis("axis", 1, parts[0].rank())?;
    let sizes: Option<Vec<i64>> = parts
        .iter()
        .map(|p| i64::try_from(p.shape[axis]).ok())
        .collect();
    let lengths = known(ElementType::Int64, vec![parts.len() as u64]);
    outputs.push(with_contents(lengths, sizes.map(Constant::Ints)));
    Ok(outputs)
}

fn split(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let axis = view.axis("axis", 0, x.rank())?;
    let total = x.shape[axis];
    let count = view.node.outputs.len() as u64;
    let sizes: Vec<u64> = match (view.node.ints("split"), view.optional(1)?) {
        (Some(sizes), _) => naturals(sizes)?,
        (None, Some(sizes)) => match sizes.ints() {
            Some(sizes) => naturals(sizes)?,
            // ConcatTraining hands the sizes over; without them, the file has to say.
            None => return unknown(),
        },
        (None, None) => {
            let count = view.positive("num_outputs", count.max(1))?;
            if count > view.node.outputs.len() as u64 {
                return Err(view.bad("num_outputs", count, "at most the number of outputs"));
            }
            // all alike; only the last may be smaller
            let part = total.div_ceil(count);
            (0..count)
                .map(|i| total.saturating_sub(i.saturating_mul(part)).min(part))
                .collect()
        }
    };
    let sum = sizes.iter().try_fold(0u64, |sum, &s| sum.checked_add(s));
    if sum != Some(total) || sizes.len() < view.node.outputs.len() {
        return Err(Fault::Mismatch {
            left: Shape(x.shape.to_vec()),
            right: Shape(sizes),
            why: "the parts do not add up to the split axis",
        });
    }
    let mut start = 0;
    let mut outputs = Vec::new();
    for &size in sizes.iter().take(view.node.outputs.len()) {
        let mut shape = x.shape.to_vec();
        shape[axis] = size;
        let contents = x
            .constant
            .zip(Along::of(x.shape, axis))
            .and_then(|(c, along)| {
                let [from, to] = [start, start + size].map(|at| usize::try_from(at).ok());
                select(c, &along.part(from?, to?))
            });
        start += size;
        outputs.push(with_contents(x.with_shape(shape), contents));
    }
    Ok(outputs)
}

fn naturals(values: &[i64]) -> Result<Vec<u64>, Fault> {
    values.iter().map(|&v| dimension(v)).collect()
}

fn expand(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let Some(wanted) = view.input(1)?.ints() else {
        return unknown();
    };
    if wanted.len() > HIGHEST_RANK {
        return Err(view.bad_value(1, wanted.len(), "a reasonable number of axes"));
    }
    let shape = broadcast(x.shape, &naturals(wanted)?)?;
    let contents = x
        .constant
        .and_then(|c| select(c, &broadcast_positions(x.shape, &shape)?));
    Ok(vec![with_contents(x.with_shape(shape), contents)])
}

/// The CPU kernel keeps a 64-bit offset for every run of elements that it copies: all of the
/// input but the axes at the back that are not expanded (measured: 10,035,200 bytes for
/// `[2, 512, 35, 1, 35, 1]` to `[2, 512, 35, 2, 35, 2]`, 1,254,400 runs).
fn expand_workspace(view: &View, provider: Provider) -> Option<Bytes> {
    if provider == Provider::Cuda {
        return None;
    }
    let (x, y) = (view.input(0).ok()?, view.output(0)?);
    let pairs = x.shape.iter().rev().zip(y.shape.iter().rev());
    let whole = pairs.take_while(|(a, b)| a == b).count();
    let runs = product(&x.shape[..x.rank() - whole]).ok()?;
    if x.rank() == whole && y.rank() == whole {
        return None;
    }
    Some(Bytes(runs.saturating_mul(8)))
}

/// The pieces that are copied one by one: runs of elements that lie side by side in both.
fn pieces(view: &View) -> Option<f64> {
    let (x, y) = (view.input(0).ok()?, view.output(0)?);
    let pairs = x.shape.iter().rev().zip(y.shape.iter().rev());
    let run: f64 = pairs
        .take_while(|(a, b)| a == b)
        .map(|(&a, _)| a.max(1) as f64)
        .product();
    Some(y.count() as f64 / run)
}

fn tile(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let Some(repeats) = view.input(1)?.ints() else {
        return unknown();
    };
    if repeats.len() != x.rank() {
        return Err(view.bad_value(1, repeats, "one repetition count per axis"));
    }
    let sizes = x.shape.iter().zip(repeats);
    let shape: Result<Vec<u64>, Fault> = sizes
        .map(|(&size, &times)| size.checked_mul(dimension(times)?).ok_or(Fault::TooLarge))
        .collect();
    let shape = shape?;
    let contents = x.constant.and_then(|c| {
        let strides = strides(x.shape)?;
        select(
            c,
            &positions(&shape, |axis, at| at % x.shape[axis].max(1) * strides[axis])?,
        )
    });
    Ok(vec![with_contents(x.with_shape(shape), contents)])
}

fn pad(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    // Pad-1 and Pad-2 have attributes instead; Pad-18 can name axes.
    let (pads, position) = match (view.node.ints("pads"), view.node.ints("paddings")) {
        (Some(pads), _) | (None, Some(pads)) => (pads, 0),
        (None, None) => match view.input(1)?.ints() {
            Some(pads) => (pads, 1),
            None => return unknown(),
        },
    };
    let axes: Vec<usize> = match view.optional(3)? {
        None => (0..x.rank()).collect(),
        Some(axes) => match axes.ints() {
            None => return unknown(),
            Some(axes) => {
                let resolved = axes.iter().map(|&a| resolve_axis(a, x.rank()));
                resolved
                    .collect::<Option<_>>()
                    .ok_or_else(|| view.bad_value(3, axes, "axes of input 0"))?
            }
        },
    };
    if pads.len() != 2 * axes.len() {
        return Err(view.bad_value(position, pads, "two sizes per padded axis"));
    }
    let mut shape = x.shape.to_vec();
    for (i, &axis) in axes.iter().enumerate() {
        // Negative padding cuts.
        let size = shape[axis]
            .checked_add_signed(pads[i])
            .and_then(|s| s.checked_add_signed(pads[i + axes.len()]));
        shape[axis] =
            size.ok_or_else(|| view.bad_value(position, pads, "no more cut off than is there"))?;
    }
    Ok(vec![x.with_shape(shape)])
}

fn image<'a>(view: &View<'a>) -> Result<(Input<'a>, u64), Fault> {
    let x = view.input(0)?;
    if x.rank() != 4 {
        return Err(x.wrong(0, "batch, channels, height and width"));
    }
    Ok((x, view.positive("blocksize", 0)?))
}

fn depth_to_space(view: &View) -> Result<Outputs, Fault> {
    let (x, block) = image(view)?;
    let area = block.checked_mul(block).ok_or(Fault::TooLarge)?;
    if x.shape[1] % area != 0 {
        return Err(x.wrong(0, "channels divisible by the block's area"));
    }
    let grown = |size: u64| size.checked_mul(block).ok_or(Fault::TooLarge);
    let shape = vec![
        x.shape[0],
        x.shape[1] / area,
        grown(x.shape[2])?,
        grown(x.shape[3])?,
    ];
    Ok(vec![x.with_shape(shape)])
}

fn space_to_depth(view: &View) -> Result<Outputs, Fault> {
    let (x, block) = image(view)?;
    if x.shape[2] % block != 0 || x.shape[3] % block != 0 {
        return Err(x.wrong(0, "height and width divisible by the block size"));
    }
    let area = block.checked_mul(block).ok_or(Fault::TooLarge)?;
    let channels = x.shape[1].checked_mul(area).ok_or(Fault::TooLarge)?;
    Ok(vec![x.with_shape(vec![
        x.shape[0],
        channels,
        x.shape[2] / block,
        x.shape[3] / block,
    ])])
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use super::*;

    #[test]
    fn transpose_reverses_by_default() {
        assert_eq!(
            Case::onnx("Transpose").float(&[2, 3, 4]).shapes(),
            ["float[4, 3, 2]"]
        );
        let case = Case::onnx("Transpose")
            .ints(&[2, 3], &[1, 2, 3, 4, 5, 6])
            .list("perm", &[1, 0]);
        assert_eq!(case.shapes(), ["int64[3, 2] = [1, 4, 2, 5, 3, 6]"]);
        insta::assert_snapshot!(
            Case::onnx("Transpose").float(&[2, 3]).list("perm", &[0, 0]).fault(),
            @r#"attribute "perm" is [0, 0]; expected every axis of input 0 once"#);
    }

    #[test]
    fn parts_add_up() {
        let case = Case::onnx("Concat")
            .float(&[2, 3])
            .float(&[2, 5])
            .int("axis", -1);
        assert_eq!(case.shapes(), ["float[2, 8]"]);
        let case = Case::onnx("Concat")
            .ints(&[1], &[7])
            .ints(&[2], &[8, 9])
            .int("axis", 0);
        assert_eq!(case.shapes(), ["int64[3] = [7, 8, 9]"]);
        let case = Case::microsoft("ConcatTraining")
            .float(&[2, 3])
            .float(&[2, 5])
            .int("axis", 1)
            .outputs(2);
        assert_eq!(case.shapes(), ["float[2, 8]", "int64[2] = [3, 5]"]);
        insta::assert_snapshot!(
            Case::onnx("Concat").float(&[2, 3]).float(&[4, 3]).int("axis", 1).fault(),
            @"shapes [2, 3] and [4, 3] do not fit: they differ beside the concatenated axis");
    }

    #[test]
    fn split_takes_sizes_or_divides_evenly() {
        let case = Case::onnx("Split").float(&[2, 9]).int("axis", 1).outputs(3);
        assert_eq!(case.shapes(), ["float[2, 3]", "float[2, 3]", "float[2, 3]"]);
        // ceil(7 / 3) = 3, 3, 1
        let case = Case::onnx("Split")
            .float(&[7])
            .int("num_outputs", 3)
            .outputs(3);
        assert_eq!(case.shapes(), ["float[3]", "float[3]", "float[1]"]);
        let case = Case::microsoft("SplitTraining")
            .float(&[4, 8])
            .ints(&[2], &[3, 5])
            .int("axis", 1)
            .outputs(2);
        assert_eq!(case.shapes(), ["float[4, 3]", "float[4, 5]"]);
        insta::assert_snapshot!(Case::onnx("Split").float(&[7]).ints(&[1], &[6]).fault(),
            @"shapes [7] and [6] do not fit: the parts do not add up to the split axis");
    }

    #[test]
    fn expand_broadcasts_both_ways() {
        let case = Case::onnx("Expand").float(&[3, 1]).ints(&[3], &[2, 1, 6]);
        assert_eq!(case.shapes(), ["float[2, 3, 6]"]);
    }

    #[test]
    fn expand_keeps_an_offset_per_run() {
        let case = Case::onnx("Expand")
            .float(&[2, 512, 35, 1, 35, 1])
            .ints(&[6], &[2, 512, 35, 2, 35, 2]);
        assert_eq!(case.workspace(Provider::Cpu), Bytes(10_035_200));
        let bias = Case::onnx("Expand").float(&[64]).ints(&[2], &[128, 64]);
        assert_eq!(bias.workspace(Provider::Cpu), Bytes(8));
    }

    #[test]
    fn pads_grow_and_negative_pads_cut() {
        let case = Case::onnx("Pad")
            .float(&[1, 3, 8])
            .ints(&[6], &[0, 0, 2, 0, 0, -1]);
        assert_eq!(case.shapes(), ["float[1, 3, 9]"]);
        insta::assert_snapshot!(Case::onnx("Pad").float(&[2]).ints(&[2], &[-2, -1]).fault(),
            @"input 1 says [-2, -1]; expected no more cut off than is there");
    }

    #[test]
    fn blocks_move_between_channels_and_space() {
        let case = Case::onnx("DepthToSpace")
            .float(&[1, 12, 2, 3])
            .int("blocksize", 2);
        assert_eq!(case.shapes(), ["float[1, 3, 4, 6]"]);
        let case = Case::onnx("SpaceToDepth")
            .float(&[1, 3, 4, 6])
            .int("blocksize", 2);
        assert_eq!(case.shapes(), ["float[1, 12, 2, 3]"]);
        let case = Case::onnx("Tile").float(&[2, 3]).ints(&[2], &[1, 4]);
        assert_eq!(case.shapes(), ["float[2, 12]"]);
    }
}
