//! Pruning: do without every copy that is not needed, the most expensive first.

use super::moves::{may_merge, merge, undo_all};
use super::state::{Copy, State};

/// Removes copies by decreasing time while everything still fits. Needs a schedule that fits.
pub(crate) fn prune(state: &mut State<'_>) {
    let time = |state: &State<'_>, copy: Copy| state.problem.steps[copy.node as usize].copy_time;
    let mut copies = state.all_copies();
    copies.sort_by_key(|&copy| (std::cmp::Reverse(time(state, copy)), copy));
    for copy in copies {
        if !state.has(copy) {
            continue;
        }
        if !may_merge(state, copy) {
            continue;
        }
        let undone = merge(state, copy);
        if !state.fits() {
            undo_all(state, undone);
        }
    }
}
