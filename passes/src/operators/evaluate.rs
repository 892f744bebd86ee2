//! Arithmetic on small known tensors, for shapes that are computed in the graph.
//!
//! Floating point contents are kept as `f64`; results of `float` tensors are rounded to `f32`
//! after each operation, as the runtime would.

use super::view::{Known, LARGEST_CONSTANT, broadcast};
use crate::graph::{Constant, ElementType, checked_count};

/// `op` applied to each number; `None` where the operator is not one shapes are computed with.
pub(crate) fn unary(op: &str, element: ElementType, x: &Constant) -> Option<Constant> {
    match x {
        Constant::Ints(values) => {
            let f: fn(i64) -> Option<i64> = match op {
                "Neg" => i64::checked_neg,
                "Abs" => i64::checked_abs,
                "Not" => |v| Some(i64::from(v == 0)),
                "Sign" => |v| Some(v.signum()),
                _ => return None,
            };
            let values = values.iter().map(|&v| f(v));
            values.collect::<Option<_>>().map(Constant::Ints)
        }
        Constant::Floats(values) => {
            let f: fn(f64) -> f64 = match op {
                "Neg" => |v| -v,
                "Abs" => f64::abs,
                "Floor" => f64::floor,
                "Ceil" => f64::ceil,
                "Round" => f64::round_ties_even,
                "Sqrt" => f64::sqrt,
                "Reciprocal" => f64::recip,
                "Exp" => f64::exp,
                "Log" => f64::ln,
                "Sign" => |v| if v == 0.0 { 0.0 } else { v.signum() },
                _ => return None,
            };
            let values = values.iter().map(|&v| rounded(element, f(v)));
            Some(Constant::Floats(values.collect()))
        }
    }
}

/// A binary operator on two broadcast operands, with the shape of the result.
pub(crate) fn binary(
    op: &str,
    element: ElementType,
    (left, left_shape): (&Constant, &[u64]),
    (right, right_shape): (&Constant, &[u64]),
) -> Option<Constant> {
    let shape = broadcast(left_shape, right_shape).ok()?;
    let left_at = broadcast_positions(left_shape, &shape)?;
    let right_at = broadcast_positions(right_shape, &shape)?;
    let pairs = left_at.into_iter().zip(right_at);
    match (left, right) {
        (Constant::Ints(a), Constant::Ints(b)) => {
            let f: fn(i64, i64) -> Option<i64> = match op {
                "Add" | "Sum" => i64::checked_add,
                "Sub" => i64::checked_sub,
                "Mul" => i64::checked_mul,
                // C++ division: towards zero.
                "Div" => i64::checked_div,
                // The remainder has the divisor's sign (fmod = 0).
                "Mod" => |a, b| {
                    a.checked_rem(b).map(|r| {
                        if r != 0 && (r < 0) != (b < 0) {
                            r + b
                        } else {
                            r
                        }
                    })
                },
                "Max" => |a, b| Some(a.max(b)),
                "Min" => |a, b| Some(a.min(b)),
                "Pow" => |a, b| a.checked_pow(u32::try_from(b).ok()?),
                "And" => |a, b| Some(i64::from(a != 0 && b != 0)),
                "Or" => |a, b| Some(i64::from(a != 0 || b != 0)),
                "Xor" => |a, b| Some(i64::from((a != 0) != (b != 0))),
                "Equal" => |a, b| Some(i64::from(a == b)),
                "Greater" => |a, b| Some(i64::from(a > b)),
                "GreaterOrEqual" => |a, b| Some(i64::from(a >= b)),
                "Less" => |a, b| Some(i64::from(a < b)),
                "LessOrEqual" => |a, b| Some(i64::from(a <= b)),
                _ => return None,
            };
            // What does not fit the type wraps around in some kernels: such contents are unknown.
            let (low, high) = range(element).unwrap_or((i64::MIN, i64::MAX));
            let fits = |value: &i64| (low..=high).contains(value);
            let values = pairs.map(|(i, j)| f(*a.get(i)?, *b.get(j)?).filter(fits));
            values.collect::<Option<_>>().map(Constant::Ints)
        }
        (Constant::Floats(a), Constant::Floats(b)) => {
            let holds: Option<fn(f64, f64) -> bool> = match op {
                "Equal" => Some(|a, b| a == b),
                "Greater" => Some(|a, b| a > b),
                "GreaterOrEqual" => Some(|a, b| a >= b),
                "Less" => Some(|a, b| a < b),
                "LessOrEqual" => Some(|a, b| a <= b),
                _ => None,
            };
            if let Some(holds) = holds {
                let values = pairs.map(|(i, j)| Some(i64::from(holds(*a.get(i)?, *b.get(j)?))));
                return values.collect::<Option<_>>().map(Constant::Ints);
            }
            let f: fn(f64, f64) -> f64 = match op {
                "Add" | "Sum" => |a, b| a + b,
                "Sub" => |a, b| a - b,
                "Mul" => |a, b| a * b,
                "Div" => |a, b| a / b,
                "Max" => f64::max,
                "Min" => f64::min,
                "Pow" => f64::powf,
                _ => return None,
            };
            let values = pairs.map(|(i, j)| Some(rounded(element, f(*a.get(i)?, *b.get(j)?))));
            values.collect::<Option<_>>().map(Constant::Floats)
        }
        _ => None,
    }
}

/// Contents converted to `to`.
pub(crate) fn cast(x: &Constant, to: ElementType) -> Option<Constant> {
    if to == ElementType::Bool {
        let truth = |nonzero: bool| i64::from(nonzero);
        return Some(Constant::Ints(match x {
            Constant::Ints(v) => v.iter().map(|&v| truth(v != 0)).collect(),
            Constant::Floats(v) => v.iter().map(|&v| truth(v != 0.0)).collect(),
        }));
    }
    match (x, to.is_float()) {
        (Constant::Ints(v), true) => {
            let values = v.iter().map(|&v| rounded(to, v as f64));
            Some(Constant::Floats(values.collect()))
        }
        (Constant::Floats(v), true) => {
            let values = v.iter().map(|&v| rounded(to, v));
            Some(Constant::Floats(values.collect()))
        }
        (Constant::Ints(v), false) => {
            let (low, high) = range(to)?;
            v.iter()
                .all(|v| (low..=high).contains(v))
                .then(|| Constant::Ints(v.clone()))
        }
        (Constant::Floats(v), false) => {
            let (low, high) = range(to)?;
            let fits = |v: f64| v.is_finite() && v >= low as f64 && v < high as f64 + 1.0;
            let values = v
                .iter()
                .map(|&v| fits(v.trunc()).then_some(v.trunc() as i64));
            values.collect::<Option<_>>().map(Constant::Ints)
        }
    }
}

/// The integers of a type that shapes are computed in.
fn range(element: ElementType) -> Option<(i64, i64)> {
    match element {
        ElementType::Int64 => Some((i64::MIN, i64::MAX)),
        ElementType::Int32 => Some((i32::MIN.into(), i32::MAX.into())),
        ElementType::Int16 => Some((i16::MIN.into(), i16::MAX.into())),
        ElementType::Int8 => Some((i8::MIN.into(), i8::MAX.into())),
        ElementType::Uint8 => Some((0, u8::MAX.into())),
        ElementType::Uint16 => Some((0, u16::MAX.into())),
        ElementType::Uint32 => Some((0, u32::MAX.into())),
        ElementType::Uint64 => Some((0, i64::MAX)),
        _ => None,
    }
}

fn rounded(element: ElementType, value: f64) -> f64 {
    match element {
        ElementType::Double => value,
        _ => f64::from(value as f32),
    }
}

/// The numbers of `x` at `positions`.
pub(crate) fn select(x: &Constant, positions: &[usize]) -> Option<Constant> {
    fn pick<T: Copy>(values: &[T], positions: &[usize]) -> Option<Vec<T>> {
        positions.iter().map(|&i| values.get(i).copied()).collect()
    }
    match x {
        Constant::Ints(values) => pick(values, positions).map(Constant::Ints),
        Constant::Floats(values) => pick(values, positions).map(Constant::Floats),
    }
}

/// The contents one after the other.
pub(crate) fn concatenate(parts: &[&Constant]) -> Option<Constant> {
    let parts = || parts.iter().copied();
    match parts().next()? {
        Constant::Ints(_) => {
            let all: Option<Vec<&[i64]>> = parts().map(Constant::ints).collect();
            Some(Constant::Ints(all?.concat()))
        }
        Constant::Floats(_) => {
            let all: Option<Vec<&[f64]>> = parts().map(Constant::floats).collect();
            Some(Constant::Floats(all?.concat()))
        }
    }
}

/// Where each element of a tensor of shape `to` lies in one of shape `from` that is broadcast
/// to it. `None` where that is more than [`LARGEST_CONSTANT`] elements.
pub(crate) fn broadcast_positions(from: &[u64], to: &[u64]) -> Option<Vec<usize>> {
    let missing = to.len().checked_sub(from.len())?;
    let strides = strides(from)?;
    positions(to, |axis, at| match axis.checked_sub(missing) {
        Some(axis) if from[axis] != 1 => at * strides[axis],
        _ => 0,
    })
}

/// The distance in elements between neighbours along each axis, row-major.
pub(crate) fn strides(shape: &[u64]) -> Option<Vec<u64>> {
    let mut strides = vec![1u64; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].checked_mul(shape[i])?;
    }
    Some(strides)
}

/// For each element of a tensor of shape `shape`, row-major, the sum over its coordinates of
/// `offset(axis, coordinate)`. `None` where that is more than [`LARGEST_CONSTANT`] elements.
pub(crate) fn positions(shape: &[u64], offset: impl Fn(usize, u64) -> u64) -> Option<Vec<usize>> {
    let count = checked_count(shape)?;
    if count > LARGEST_CONSTANT {
        return None;
    }
    let mut at = vec![0u64; shape.len()];
    let mut result = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let position = at
            .iter()
            .enumerate()
            .try_fold(0u64, |sum, (axis, &coordinate)| {
                sum.checked_add(offset(axis, coordinate))
            })?;
        result.push(usize::try_from(position).ok()?);
        for axis in (0..shape.len()).rev() {
            at[axis] += 1;
            if at[axis] < shape[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
    Some(result)
}

/// `known` with these contents, if they are as many as its shape says.
pub(crate) fn with_contents(known: Option<Known>, contents: Option<Constant>) -> Option<Known> {
    let mut known = known?;
    let count = checked_count(&known.shape);
    known.constant = contents.filter(|c| {
        let length = match c {
            Constant::Ints(v) => v.len(),
            Constant::Floats(v) => v.len(),
        } as u64;
        Some(length) == count && length <= LARGEST_CONSTANT
    });
    Some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcast_operands_are_paired_row_major() {
        let column = Constant::Ints(vec![10, 20]);
        let row = Constant::Ints(vec![1, 2, 3]);
        let sum = binary("Add", ElementType::Int64, (&column, &[2, 1]), (&row, &[3]));
        assert_eq!(sum, Some(Constant::Ints(vec![11, 12, 13, 21, 22, 23])));
    }

    #[test]
    fn integer_division_rounds_towards_zero_and_refuses_zero() {
        let a = Constant::Ints(vec![-7]);
        let by = |b: i64| {
            let b = Constant::Ints(vec![b]);
            binary("Div", ElementType::Int64, (&a, &[1]), (&b, &[1]))
        };
        assert_eq!(by(2), Some(Constant::Ints(vec![-3])));
        assert_eq!(by(0), None);
    }

    #[test]
    fn float_results_are_rounded_to_single_precision() {
        let third = binary(
            "Div",
            ElementType::Float,
            (&Constant::Floats(vec![1.0]), &[]),
            (&Constant::Floats(vec![3.0]), &[]),
        );
        assert_eq!(third, Some(Constant::Floats(vec![f64::from(1.0f32 / 3.0)])));
    }

    #[test]
    fn nonsense_is_not_cast_to_integers() {
        let nan = Constant::Floats(vec![f64::NAN]);
        assert_eq!(cast(&nan, ElementType::Int64), None);
        let huge = Constant::Floats(vec![1e30]);
        assert_eq!(cast(&huge, ElementType::Int64), None);
        let half = Constant::Floats(vec![-1.5]);
        assert_eq!(
            cast(&half, ElementType::Int32),
            Some(Constant::Ints(vec![-1]))
        );
    }

    #[test]
    fn contents_beyond_the_limit_are_dropped() {
        assert_eq!(broadcast_positions(&[1], &[4097]), None);
        assert_eq!(
            broadcast_positions(&[1], &[4096]).map(|p| p.len()),
            Some(4096)
        );
    }
}
