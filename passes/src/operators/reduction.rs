//! Reductions along axes, running sums, sorting.

use super::evaluate::with_contents;
use super::places;
use super::view::{Axes, Fault, Outputs, View, known, one, resolve_axis, unknown};
use super::{Family, Operator, Provider, microsoft, onnx, per_input_element};
use crate::bytes::Bytes;
use crate::graph::{Constant, ElementType};

pub(super) const OPERATORS: &[Operator] = &[
    over_axes("ReduceSum"),
    over_axes("ReduceMean"),
    over_axes("ReduceMax"),
    over_axes("ReduceMin"),
    over_axes("ReduceProd"),
    over_axes("ReduceL1"),
    over_axes("ReduceL2"),
    over_axes("ReduceSumSquare"),
    over_axes("ReduceLogSum").operations(|view| per_input_element(view, 2.0)),
    over_axes("ReduceLogSumExp").operations(|view| per_input_element(view, 10.0)),
    Operator {
        domain: super::MICROSOFT,
        ..over_axes("ReduceSumTraining")
    },
    onnx("ArgMax", Family::Reduction, position).operations(|view| per_input_element(view, 1.0)),
    onnx("ArgMin", Family::Reduction, position).operations(|view| per_input_element(view, 1.0)),
    onnx("CumSum", Family::Reduction, running_sum),
    onnx("TopK", Family::Reduction, top)
        .operations(|view| per_input_element(view, 10.0))
        .workspace(chosen),
    microsoft("ReduceAllL2", Family::Reduction, norm_of_all).operations(|view| {
        Some(
            view.inputs()
                .ok()?
                .iter()
                .map(|x| 2.0 * x.count() as f64)
                .sum(),
        )
    }),
    microsoft("IsAllFinite", Family::Reduction, |_| {
        one(ElementType::Bool, vec![])
    })
    .operations(|view| Some(view.inputs().ok()?.iter().map(|x| x.count() as f64).sum())),
];

const fn over_axes(name: &'static str) -> Operator {
    onnx(name, Family::Reduction, reduce)
        .operations(|view| per_input_element(view, 1.0))
        .workspace(|view, provider| match provider {
            Provider::Cpu => listed(view),
            Provider::Cuda => rearranged(view),
        })
}

/// The places of one row's largest (measured).
fn chosen(view: &View, provider: Provider) -> Option<Bytes> {
    let values = view.output(0)?;
    let axis = resolve_axis(view.node.int("axis").unwrap_or(-1), values.shape.len())?;
    let places = values.shape.get(axis)?.saturating_mul(8);
    (provider == Provider::Cpu).then_some(Bytes(places))
}

/// The axes of what is reduced: their sizes, and do they stay? Those of one element count for none.
fn axes_that_stay(view: &View) -> Option<Vec<(u64, bool)>> {
    let x = view.input(0).ok()?;
    let axes = match view.axes("axes", 1, x.rank()).ok()? {
        Axes::These(axes) if !axes.is_empty() => axes,
        _ => return None,
    };
    let sizes = x.shape.iter().enumerate().filter(|(_, size)| **size != 1);
    let kept = sizes.map(|(axis, &size)| (size, !axes.contains(&axis)));
    Some(kept.collect())
}

/// How often axes that stay and axes that go take turns.
fn turns(axes: &[(u64, bool)]) -> usize {
    axes.windows(2).filter(|two| two[0].1 != two[1].1).count()
}

/// The CUDA kernel sums up rows or columns of a matrix itself, with a few partial sums for each row; where axes that stay and axes that
/// go take turns more than once, it leaves that to cuDNN, which takes as much again as is reduced.
///
/// Runtime fact, measured in 1.31.1 on an H100: ReduceSum and ReduceMean of a `[64, 64, 112, 112]` along axes of each kind.
fn rearranged(view: &View) -> Option<Bytes> {
    let kept = axes_that_stay(view)?;
    let x = view.input(0).ok()?;
    if turns(&kept) > 1 {
        return Some(x.bytes());
    }
    let product = |stays: bool| {
        let those = kept.iter().filter(|axis| axis.1 == stays);
        those.fold(1, |all: u64, axis| all.saturating_mul(axis.0))
    };
    let (rows, columns) = (product(true), product(false));
    let are_rows = kept.first().is_some_and(|axis| axis.1) && turns(&kept) == 1;
    let blocks = columns.div_ceil(1024).min(256);
    (are_rows && blocks > 1)
        .then(|| Bytes(rows.saturating_mul(4 * (blocks + 1)).saturating_add(16)))
}

/// Where axes that stay and axes that go take turns more than twice, the CPU kernel lists the places of what stays, all but the
/// last axis that does (source, measured).
fn listed(view: &View) -> Option<Bytes> {
    let kept = axes_that_stay(view)?;
    if turns(&kept) < 3 {
        return None;
    }
    let mut stay = kept.iter().filter(|(_, stays)| *stays);
    stay.next_back()?;
    let places = stay.fold(8, |all: u64, (size, _)| all.saturating_mul(*size));
    Some(Bytes(places))
}

fn keeps_dims(view: &View) -> bool {
    view.node.int("keepdims").unwrap_or(1) != 0
}

/// `shape` reduced along `axes`.
pub(super) fn reduced(shape: &[u64], axes: &[usize], keep: bool) -> Vec<u64> {
    let sizes = shape
        .iter()
        .enumerate()
        .map(|(axis, &size)| match axes.contains(&axis) {
            true if keep => Some(1),
            true => None,
            false => Some(size),
        });
    sizes.flatten().collect()
}

fn reduce(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let everything = || (0..x.rank()).collect::<Vec<usize>>();
    let nothing_named = || {
        let nothing = view.node.int("noop_with_empty_axes").unwrap_or(0) != 0;
        if nothing { Vec::new() } else { everything() }
    };
    let axes = match view.axes("axes", 1, x.rank())? {
        Axes::Unknown => return unknown(),
        Axes::Absent => nothing_named(),
        Axes::These(axes) if axes.is_empty() => nothing_named(),
        Axes::These(axes) => axes,
    };
    let output = x.with_shape(reduced(x.shape, &axes, keeps_dims(view)));
    let op = view.node.op_type.as_str();
    let contents = x
        .ints()
        .and_then(|values| places::reduced(op, values, x.shape, &axes));
    Ok(vec![with_contents(output, contents.map(Constant::Ints))])
}

fn position(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let axis = view.axis("axis", 0, x.rank())?;
    let output = known(
        ElementType::Int64,
        reduced(x.shape, &[axis], keeps_dims(view)),
    );
    let last = view.node.int("select_last_index").unwrap_or(0) != 0;
    let largest = view.node.op_type == "ArgMax";
    let contents = x
        .ints()
        .and_then(|values| places::extreme_places(values, x.shape, axis, largest, last));
    Ok(vec![with_contents(output, contents.map(Constant::Ints))])
}

/// CumSum(X, axis)
fn running_sum(view: &View) -> Result<Outputs, Fault> {
    let (x, axis) = (view.input(0)?, view.input(1)?);
    let flag = |name| view.node.int(name).unwrap_or(0) != 0;
    let axis = axis.ints().and_then(|axis| axis.first().copied());
    let contents = axis
        .and_then(|axis| resolve_axis(axis, x.rank()))
        .zip(x.ints())
        .and_then(|(axis, values)| {
            places::running_sums(values, x.shape, axis, flag("exclusive"), flag("reverse"))
        });
    Ok(vec![with_contents(x.same(), contents.map(Constant::Ints))])
}

/// TopK(X, K) -> (values, indices)
fn top(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    let axis = view.axis("axis", -1, x.rank())?;
    let count = match (view.node.int("k"), view.optional(1)?) {
        (Some(k), _) => k,
        (None, Some(k)) => match k.ints() {
            Some(&[k]) => k,
            _ => return unknown(),
        },
        (None, None) => return Err(Fault::MissingInput(1)),
    };
    let mut shape = x.shape.to_vec();
    match u64::try_from(count) {
        Ok(count) if count <= shape[axis] => shape[axis] = count,
        _ => return Err(view.bad_value(1, count, "at most the size of the axis")),
    }
    let largest = view.node.int("largest").unwrap_or(1) != 0;
    let found = x
        .ints()
        .and_then(|values| places::top(values, x.shape, axis, count as usize, largest))
        .map(|(values, places)| (Constant::Ints(values), Constant::Ints(places)));
    let (values, places) = found.unzip();
    Ok(vec![
        with_contents(x.with_shape(shape.clone()), values),
        with_contents(known(ElementType::Int64, shape), places),
    ])
}

fn norm_of_all(view: &View) -> Result<Outputs, Fault> {
    one(view.input(0)?.element, Vec::new())
}

#[cfg(test)]
mod tests {
    use super::super::Provider;
    use super::super::testing::Case;

    #[test]
    fn axes_come_as_attribute_or_input() {
        let old = Case::onnx("ReduceMean")
            .float(&[2, 3, 4])
            .list("axes", &[-1]);
        assert_eq!(old.clone().shapes(), ["float[2, 3, 1]"]);
        assert_eq!(old.int("keepdims", 0).shapes(), ["float[2, 3]"]);
        let new = Case::onnx("ReduceSum")
            .float(&[2, 3, 4])
            .ints(&[2], &[0, 2]);
        assert_eq!(new.shapes(), ["float[1, 3, 1]"]);
        let computed = Case::onnx("ReduceSum").float(&[2, 3, 4]).int64(&[2]);
        assert_eq!(computed.shapes(), ["?"]);
        insta::assert_snapshot!(
            Case::onnx("ReduceSum").float(&[2, 3]).ints(&[2], &[1, -1]).fault(),
            @"input 1 says -1; expected a new axis of the data");
    }

    #[test]
    fn no_axes_are_all_or_none() {
        let all = Case::onnx("ReduceSum").float(&[2, 3]).ints(&[0], &[]);
        assert_eq!(all.clone().shapes(), ["float[1, 1]"]);
        assert_eq!(all.int("noop_with_empty_axes", 1).shapes(), ["float[2, 3]"]);
        let all = Case::onnx("ReduceMax").float(&[2, 3]).int("keepdims", 0);
        assert_eq!(all.shapes(), ["float[]"]);
    }

    #[test]
    fn cudnn_takes_as_much_again_for_axes_between_others() {
        let workspace = |axes: &[i64]| {
            let case = Case::onnx("ReduceMean").float(&[64, 64, 112, 112]);
            case.list("axes", axes).workspace(Provider::Cuda).0
        };
        // As measured: 205,520,896, 213,007, 65,807 and twice nothing.
        assert_eq!(workspace(&[0, 2, 3]), 205_520_896);
        assert_eq!(workspace(&[1]), 205_520_896);
        assert_eq!(workspace(&[2, 3]), 64 * 64 * 4 * (13 + 1) + 16);
        assert_eq!(workspace(&[1, 2, 3]), 64 * 4 * (256 + 1) + 16);
        assert_eq!(workspace(&[0, 1]), 0);
        assert_eq!(workspace(&[0, 1, 2, 3]), 0);
        // Axes of one element count for none.
        let small = Case::onnx("ReduceMean").float(&[64, 64, 1, 1]);
        assert_eq!(
            small.list("axes", &[0, 2, 3]).workspace(Provider::Cuda).0,
            0
        );
    }

    #[test]
    fn products_of_sizes_are_computed() {
        let case = Case::onnx("ReduceProd")
            .ints(&[3], &[2, 3, 4])
            .int("keepdims", 0);
        assert_eq!(case.shapes(), ["int64[] = [24]"]);
    }

    #[test]
    fn positions_are_integers() {
        let case = Case::onnx("ArgMax")
            .float(&[2, 3])
            .int("axis", 1)
            .int("keepdims", 0);
        assert_eq!(case.shapes(), ["int64[2]"]);
        let case = Case::onnx("TopK")
            .float(&[2, 10])
            .ints(&[1], &[3])
            .outputs(2);
        assert_eq!(case.shapes(), ["float[2, 3]", "int64[2, 3]"]);
        insta::assert_snapshot!(Case::onnx("TopK").float(&[2, 2]).ints(&[1], &[3]).fault(),
            @"input 1 says 3; expected at most the size of the axis");
        let case = Case::microsoft("ReduceAllL2").float(&[2]).float(&[9, 9]);
        assert_eq!(case.shapes(), ["float[]"]);
    }
}
