//! Chen, Xu, Zhang and Guestrin: Training Deep Nets with Sublinear Memory Cost, 2016.

use super::{ForwardPart, Segments, Task};
use crate::plan::Plan;

/// √n segments of about equal length, split at articulation points (section 4.3 with k = √n).
/// n is the number of points at which the chain can be split.
pub(super) fn sqrt(task: &Task<'_>) -> Vec<Plan> {
    let forward = ForwardPart::of(task);
    let cuts = forward.cuts();
    let count = (cuts.len() + 1).isqrt();
    let points: Vec<u32> = (1..count).map(|i| cuts[i * cuts.len() / count]).collect();
    Segments::behind(&forward, &points).plans(task, &forward)
}
