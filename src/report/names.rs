//! What results call the end of a search, and where a budget holds.

use ckpt_passes::optimize::StopReason;

/// Why a search ended, as scripts read it.
pub(super) fn stop_reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::NothingToAdd => "nothing_to_add",
        StopReason::Evaluations => "evaluations",
        StopReason::TimeLimit => "time_limit",
    }
}
