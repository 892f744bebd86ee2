//! What results call the end of a search, and where a budget holds.

use ckpt_passes::optimize::StopReason;
use ckpt_passes::runtime::level::Level;
use ckpt_passes::runtime::order::ExecutionOrder;
use ckpt_passes::runtime::promise::Promise;

/// Why a search ended, as scripts read it.
pub(super) fn stop_reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::NothingToAdd => "nothing_to_add",
        StopReason::Evaluations => "evaluations",
        StopReason::TimeLimit => "time_limit",
    }
}

/// In which sessions a budget holds.
pub(super) fn sessions(promise: Promise) -> String {
    if promise == Promise::ANY {
        return "every session".to_owned();
    }
    let order = promise.order.map_or("every order", ExecutionOrder::name);
    let level = promise.level.map_or("every level", Level::name);
    format!("{order}, {level}")
}
