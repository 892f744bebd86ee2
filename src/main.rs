//! The command `ckpt-opt`.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(feature = "ablation")]
    if let Some(done) = ablation() {
        return done;
    }
    ckpt_opt::cli::main()
}

/// Plans without what the environment names; `list` lists what there is.
#[cfg(feature = "ablation")]
#[allow(clippy::print_stdout, clippy::print_stderr)]
fn ablation() -> Option<ExitCode> {
    let name = std::env::var("CKPT_OPT_WITHOUT").ok()?;
    if name == "list" {
        ckpt_passes::ablation::names().for_each(|name| println!("{name}"));
        return Some(ExitCode::SUCCESS);
    }
    if !ckpt_passes::ablation::switch_off(&name) {
        eprintln!("nothing that can be switched off is called {name:?}");
        return Some(ExitCode::FAILURE);
    }
    None
}
