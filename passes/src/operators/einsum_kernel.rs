//! What the CPU kernel of Einsum takes besides its result.
//!
//! Source: `EinsumTypedComputeProcessor`; compared with measured workspaces (`testdata/workspaces.json`, `tools/measure_workspaces.py`).
//! Every operand gets the same sequence of axes, that in which the equation names them, if need be in a copy that stays to the end.
//! Then the operands are multiplied one after the other, as batches of matrices: axes of both go first, and those that are summed up in the
//! middle, each time in a copy of either factor unless they stand so already. The product is copied in the sequence of the result's axes, and
//! into the result.

use crate::graph::count;

/// An operand.
pub(super) struct Factor {
    /// By axis of the equation: its size, 1 where it lacks the axis.
    pub(super) sizes: Vec<u64>,
    /// And has it that?
    pub(super) has: Vec<bool>,
    /// Are its axes in the sequence of the equation's?
    pub(super) in_sequence: bool,
}

impl Factor {
    fn elements(&self) -> u64 {
        count(&self.sizes)
    }
}

/// How many elements the kernel has beside the result, at most. `output` has the result's axes, each as its place in the equation.
pub(super) fn elements_beside(operands: &[Factor], output: &[usize]) -> u64 {
    let Some((first, others)) = operands.split_first() else {
        return 0;
    };
    let axes = first.sizes.len();
    let is_summed = |axis: usize| !output.contains(&axis);
    // Where each axis is met last.
    let last = |axis: usize| operands.iter().rposition(|operand| operand.has[axis]);
    let last: Vec<usize> = (0..axes).map(|axis| last(axis).unwrap_or(0)).collect();
    let summed_at = |place: usize| -> Vec<usize> {
        let here = |&axis: &usize| last[axis] == place && is_summed(axis);
        (0..axes).filter(here).collect()
    };
    let copies = operands.iter().filter(|operand| !operand.in_sequence);
    let held: u64 = copies.map(Factor::elements).fold(0, u64::saturating_add);
    let mut left = first.sizes.clone();
    let mut result = 0;
    let summed = summed_at(0);
    if !summed.is_empty() {
        for &axis in &summed {
            left[axis] = 1;
        }
        result = count(&left);
    }
    if others.is_empty() {
        let kept = (0..axes).filter(|&axis| !is_summed(axis));
        let moved = moved_to(kept, output, &left);
        return held.saturating_add(result).saturating_add(moved);
    }
    let mut most = 0;
    for (place, right) in (1..).zip(others) {
        let factors = Factors::of(left, right.sizes.clone(), &summed_at(place));
        let product = factors.product();
        let kept = factors.sequence().filter(|&axis| !is_summed(axis));
        let moved = match place == others.len() {
            true => moved_to(kept, output, &product),
            // The next factor has the equation's sequence.
            false => moved_to(factors.sequence(), &(0..axes).collect::<Vec<_>>(), &product),
        };
        let now = [held, result, factors.copied, count(&product), moved];
        most = most.max(now.into_iter().fold(0, u64::saturating_add));
        result = count(&product);
        left = product;
    }
    most
}

/// Two operands as batches of matrices.
struct Factors {
    left: Vec<u64>,
    right: Vec<u64>,
    /// Factor of both, of the left one alone, those that are summed up, and the rest.
    both: Vec<usize>,
    only_left: Vec<usize>,
    summed: Vec<usize>,
    rest: Vec<usize>,
    /// The elements of copies.
    copied: u64,
}

impl Factors {
    fn of(mut left: Vec<u64>, mut right: Vec<u64>, summed: &[usize]) -> Factors {
        let (mut both, mut only_left, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        let (mut of_left, mut of_right) = (0, 0);
        for axis in 0..left.len() {
            match (summed.contains(&axis), left[axis] > 1, right[axis] > 1) {
                (true, true, false) => {
                    left[axis] = 1;
                    of_left = count(&left);
                }
                (true, false, true) => {
                    right[axis] = 1;
                    of_right = count(&right);
                }
                (true, ..) => {}
                (false, true, true) => both.push(axis),
                (false, true, false) => only_left.push(axis),
                (false, false, _) => rest.push(axis),
            }
        }
        let copied = |sizes: &[u64], sequence: [&[usize]; 4], before: u64| {
            let sequence = sequence.concat();
            let is_there = |axis: &&usize| sizes[**axis] > 1;
            let stays = match before {
                0 => sequence.is_sorted(),
                // What is a copy already is only read in another shape where the sequence of larger axes stays.
                _ => sequence.iter().filter(is_there).is_sorted(),
            };
            if stays { before } else { count(sizes) }
        };
        let of_left = copied(&left, [&both, &only_left, summed, &rest], of_left);
        let of_right = copied(&right, [&both, summed, &rest, &only_left], of_right);
        Factors {
            left,
            right,
            both,
            only_left,
            summed: summed.to_vec(),
            rest,
            copied: of_left.saturating_add(of_right),
        }
    }

    /// The sizes of the product.
    fn product(&self) -> Vec<u64> {
        let mut sizes = vec![1; self.left.len()];
        for &axis in self.both.iter().chain(&self.only_left) {
            sizes[axis] = self.left[axis];
        }
        for &axis in &self.rest {
            sizes[axis] = self.right[axis];
        }
        sizes
    }

    /// The sequence of the product's axes.
    fn sequence(&self) -> impl Iterator<Item = usize> {
        let all = [&self.both, &self.only_left, &self.summed, &self.rest];
        all.into_iter().flatten().copied()
    }
}

/// The elements of a copy with its axes in another sequence, if it is one.
fn moved_to(from: impl Iterator<Item = usize>, to: &[usize], sizes: &[u64]) -> u64 {
    match from.eq(to.iter().copied()) {
        true => 0,
        false => count(sizes),
    }
}
