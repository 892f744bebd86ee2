//! What clap makes of the declaration of the arguments: completions for shells, and the manual page.

use clap::CommandFactory;
use clap_complete::Shell;

use super::arguments::Arguments;
use super::failure::Failure;

/// A script that lets the shell complete options and their values.
pub(super) fn completions(shell: Shell) -> Result<String, Failure> {
    let mut command = Arguments::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// The manual page, in roff.
pub(super) fn manual() -> Result<String, Failure> {
    let mut page = Vec::new();
    let written = clap_mangen::Man::new(Arguments::command()).render(&mut page);
    written.map_err(Failure::Print)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}
