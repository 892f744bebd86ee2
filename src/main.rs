//! The command `ckpt-opt`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ckpt_opt::cli::main()
}
