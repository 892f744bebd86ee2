//! Matrix products.

use super::view::{Fault, Input, Outputs, Shape, View, broadcast, known, one};
use super::{Family, Operator, Provider, microsoft, onnx};
use crate::bytes::Bytes;
use crate::graph::{ElementType, count};

pub(super) const OPERATORS: &[Operator] = &[
    onnx("MatMul", Family::MatrixProduct, product)
        .operations(product_operations)
        .workspace(products_workspace),
    microsoft("FusedMatMul", Family::MatrixProduct, product)
        .operations(product_operations)
        .workspace(products_workspace),
    microsoft("TransposeMatMul", Family::MatrixProduct, product)
        .operations(product_operations)
        .workspace(products_workspace),
    onnx("MatMulInteger", Family::MatrixProduct, integers).operations(product_operations),
    onnx("Gemm", Family::MatrixProduct, gemm).operations(gemm_operations),
    microsoft("FusedGemm", Family::MatrixProduct, gemm).operations(gemm_operations),
    // A copy of the matrices, which it solves in place (measured).
    onnx("Det", Family::Other, determinant).workspace(|view, provider| copies(view, provider, 1)),
    // One and a half for each of two threads (measured).
    microsoft("Inverse", Family::Other, super::like_first)
        .workspace(|view, provider| copies(view, provider, 2)),
];

/// A matrix operand: the axes before the last two, then rows and columns.
struct Matrix {
    batch: Vec<u64>,
    rows: u64,
    columns: u64,
}

/// An operand of FusedMatMul after its transpositions. With `trans_batch`, axis 0 stands
/// before the last axis instead; `trans` swaps the last two axes. A vector is a row on the left
/// and a column on the right.
fn matrix(shape: &[u64], trans: bool, trans_batch: bool, left: bool) -> Option<Matrix> {
    let mut dims = shape.to_vec();
    match dims.len() {
        0 => return None,
        // transposition of a vector is ignored
        1 if left => {
            return Some(Matrix {
                batch: vec![],
                rows: 1,
                columns: dims[0],
            });
        }
        1 => {
            return Some(Matrix {
                batch: vec![],
                rows: dims[0],
                columns: 1,
            });
        }
        _ => {}
    }
    if trans_batch {
        let last = dims.len() - 1;
        dims[..last].rotate_left(1);
    }
    let columns = dims.pop()?;
    let rows = dims.pop()?;
    let (rows, columns) = if trans {
        (columns, rows)
    } else {
        (rows, columns)
    };
    Some(Matrix {
        batch: dims,
        rows,
        columns,
    })
}

fn operands<'a>(view: &View<'a>) -> Result<(Input<'a>, Matrix, Matrix), Fault> {
    let (a, b) = (view.input(0)?, view.input(1)?);
    let flag = |name: &str| view.node.int(name).unwrap_or(0) != 0;
    let expected = "at least one axis";
    let left = matrix(a.shape, flag("transA"), flag("transBatchA"), true)
        .ok_or_else(|| a.wrong(0, expected))?;
    let right = matrix(b.shape, flag("transB"), flag("transBatchB"), false)
        .ok_or_else(|| b.wrong(1, expected))?;
    if left.columns != right.rows {
        return Err(inner(a, b));
    }
    Ok((a, left, right))
}

fn inner(a: Input, b: Input) -> Fault {
    Fault::Mismatch {
        left: Shape(a.shape.to_vec()),
        right: Shape(b.shape.to_vec()),
        why: "the inner dimensions differ",
    }
}

fn product_shape(view: &View) -> Result<Vec<u64>, Fault> {
    let (_, left, right) = operands(view)?;
    let mut shape = broadcast(&left.batch, &right.batch)?;
    if view.input(0)?.rank() > 1 {
        shape.push(left.rows);
    }
    if view.input(1)?.rank() > 1 {
        shape.push(right.columns);
    }
    Ok(shape)
}

fn product(view: &View) -> Result<Outputs, Fault> {
    one(view.input(0)?.element, product_shape(view)?)
}

fn integers(view: &View) -> Result<Outputs, Fault> {
    one(ElementType::Int32, product_shape(view)?)
}

fn product_operations(view: &View) -> Option<f64> {
    let (_, left, _) = operands(view).ok()?;
    Some(2.0 * view.output(0)?.count() as f64 * left.columns as f64)
}

/// So many copies of the first input.
fn copies(view: &View, provider: Provider, count: u64) -> Option<Bytes> {
    let bytes = view.input(0).ok()?.bytes();
    (provider == Provider::Cpu).then(|| Bytes(bytes.0.saturating_mul(count)))
}

/// The CPU kernel describes each of several products in 88 bytes; times a vector, every row is one (measured: 1,441,792 bytes
/// for `[64, 256, 512]` times `[512]`).
fn products_workspace(view: &View, provider: Provider) -> Option<Bytes> {
    let (a, b) = (view.input(0).ok()?, view.input(1).ok()?);
    let is_plain = view.node.int("transA").unwrap_or(0) == 0 && b.rank() == 2;
    let products = match (b.rank(), a.rank()) {
        (1, _) => a.count() / b.shape.first()?.max(&1),
        // The rows of all matrices are those of one.
        (2, _) if is_plain => 1,
        (_, 1) => view.output(0)?.count() / b.shape.last()?.max(&1),
        _ => {
            let sizes = &view.output(0)?.shape;
            let (before, _) = sizes.split_at_checked(sizes.len().checked_sub(2)?)?;
            count(before)
        }
    };
    (products > 1 && provider == Provider::Cpu).then(|| Bytes(products.saturating_mul(88)))
}

/// Gemm(A, B, C): A' `[M, K]`, B' `[K, N]` -> `[M, N]`
fn gemm(view: &View) -> Result<Outputs, Fault> {
    let (a, b) = (view.input(0)?, view.input(1)?);
    for (position, x) in [(0, &a), (1, &b)] {
        if x.rank() != 2 {
            return Err(x.wrong(position, "two axes"));
        }
    }
    let (_, left, right) = operands(view)?;
    Ok(vec![known(a.element, vec![left.rows, right.columns])])
}

fn gemm_operations(view: &View) -> Option<f64> {
    let bias = if view.node.input(2).is_some() {
        view.output(0)?.count() as f64
    } else {
        0.0
    };
    Some(product_operations(view)? + bias)
}

fn determinant(view: &View) -> Result<Outputs, Fault> {
    let x = view.input(0)?;
    match x.rank() {
        0 | 1 => Err(x.wrong(0, "at least two axes")),
        rank => Ok(vec![x.with_shape(x.shape[..rank - 2].to_vec())]),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;

    #[test]
    fn batches_broadcast() {
        let case = Case::onnx("MatMul")
            .float(&[2, 12, 512, 64])
            .float(&[12, 64, 512]);
        assert_eq!(case.shapes(), ["float[2, 12, 512, 512]"]);
        let case = Case::onnx("MatMul").float(&[3]).float(&[2, 3, 4]);
        assert_eq!(case.shapes(), ["float[2, 4]"]);
        let case = Case::onnx("MatMul").float(&[3]).float(&[3]);
        assert_eq!(case.shapes(), ["float[]"]);
        insta::assert_snapshot!(Case::onnx("MatMul").float(&[2, 3]).float(&[2, 3]).fault(),
            @"shapes [2, 3] and [2, 3] do not fit: the inner dimensions differ");
    }

    #[test]
    fn fused_transpositions_are_applied() {
        let case = Case::microsoft("FusedMatMul")
            .float(&[2, 3, 5])
            .float(&[2, 4, 3])
            .int("transA", 1)
            .int("transB", 1);
        assert_eq!(case.shapes(), ["float[2, 5, 4]"]);
        // [7, 2, 5] with its first axis moved back is [2, 7, 5]
        let case = Case::microsoft("FusedMatMul")
            .float(&[7, 2, 5])
            .float(&[2, 5, 4])
            .int("transBatchA", 1);
        assert_eq!(case.shapes(), ["float[2, 7, 4]"]);
    }

    #[test]
    fn gemm_counts_the_bias() {
        let case = Case::onnx("Gemm")
            .float(&[8, 16])
            .float(&[4, 16])
            .float(&[4])
            .int("transB", 1);
        assert_eq!(case.shapes(), ["float[8, 4]"]);
        // 2 * 8 * 4 * 16 + 8 * 4
        assert_eq!(case.work().operations, 1056.0);
        insta::assert_snapshot!(Case::onnx("Gemm").float(&[8]).float(&[8, 2]).fault(),
            @"input 0 has shape [8]; expected two axes");
    }
}
