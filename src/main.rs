//! The command `ckpt-opt`.

fn main() {}
