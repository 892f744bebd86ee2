//! Plans without what decides what is tried, to see what it is worth.

use crate::optimize::tuning::StageTuning;
use crate::search::tuning::Tuning;
use crate::tuning::set_off;

/// What can be switched off.
pub fn names() -> impl Iterator<Item = &'static str> {
    Tuning::NAMES.iter().chain(StageTuning::NAMES).copied()
}

/// Plans without what has these names, with commas between them, from now on, if it is called before anything is
/// planned and there is such a thing for each.
pub fn switch_off(list: &str) -> bool {
    let known = |name: &str| names().find(|known| *known == name);
    let names: Option<Vec<&'static str>> = list.split(',').map(known).collect();
    names.is_some_and(set_off)
}
