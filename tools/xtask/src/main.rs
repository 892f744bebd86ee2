//! `cargo xtask NAME`: what CI runs, and the benchmarks.

fn main() {}
