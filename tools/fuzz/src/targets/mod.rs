//! What is tried, one kind of input a file.

mod bytes;
mod dags;
mod graphs;
mod mutants;
mod plan;
mod protobuf;
mod tables;
mod training;

use crate::source::Source;

/// A kind of input.
#[derive(Debug)]
pub struct Target {
    /// As the command names it.
    pub name: &'static str,
    /// Makes an input, and says what is wrong.
    pub run: fn(&mut Source) -> Result<(), String>,
    /// Makes what all inputs use, where that takes longer than an input may.
    pub prepare: fn(),
    /// Its share of the time.
    pub share: u32,
}

/// All of them.
pub const TARGETS: [Target; 9] = [
    target("bytes", bytes::run, 3),
    target("graphs", graphs::run, 3),
    target("dags", dags::run, 12),
    target("training", training::run, 6),
    Target {
        prepare: mutants::prepare,
        ..target("mutants", mutants::run, 3)
    },
    target("costs", tables::costs, 1),
    target("profile", tables::profile, 1),
    target("device", tables::device, 1),
    target("conv-table", tables::conv_table, 1),
];

const fn target(
    name: &'static str,
    run: fn(&mut Source) -> Result<(), String>,
    share: u32,
) -> Target {
    Target {
        name,
        run,
        prepare: || (),
        share,
    }
}
