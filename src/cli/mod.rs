//! The command line: from arguments to calls of the library, and from what they give to text and an exit status.

mod arguments;
mod commands;
mod depfile;
mod failure;
mod fault;
mod generated;
mod messages;
mod passes;
mod report_file;
mod values;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use arguments::{Arguments, Command};
use commands::{Printed, STANDARD};
use failure::Failure;
use messages::Messages;

use crate::signals;
use crate::text::printable;

/// Does what the command line says; the exit status says how it went.
pub fn main() -> ExitCode {
    ExitCode::from(main_with(env::args_os()))
}

/// The same with these arguments, the first of which is the program's name; gives the exit status.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let started = Instant::now();
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let stray = arguments.get(1).and_then(|first| no_command(first));
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(refused) => {
            let refused = too_many(refused);
            // Whoever closed the stream does not want to read it.
            let _ = refused.print();
            if let Some(stray) = stray.filter(|_| refused.use_stderr()) {
                let _ = writeln!(io::stderr(), "\n{stray}");
            }
            return u8::try_from(refused.exit_code()).unwrap_or(2);
        }
    };
    let quiet = match (&arguments.command, &arguments.rewrite) {
        (Some(Command::Sweep(sweep)), _) => sweep.row.search.quiet,
        (Some(Command::Compare(compare)), _) => compare.row.search.quiet,
        (Some(Command::Largest(largest)), _) => largest.search.quiet,
        (Some(Command::Lower(lower)), _) => lower.quiet,
        (_, Some(rewrite)) => rewrite.search.quiet,
        (_, None) => true,
    };
    let as_json = match (&arguments.command, &arguments.rewrite) {
        (Some(Command::Sweep(sweep)), _) => sweep.row.search.json,
        (Some(Command::Compare(compare)), _) => compare.row.search.json,
        (Some(Command::Largest(largest)), _) => largest.search.json,
        (Some(Command::Inspect(inspect)), _) => inspect.json,
        (Some(Command::Lower(lower)), _) => lower.json && lower.out() != Path::new(STANDARD),
        // Standard output is for the model alone then.
        (None, Some(rewrite)) => {
            rewrite.search.json && rewrite.out().is_none_or(|out| out != Path::new(STANDARD))
        }
        _ => false,
    };
    let messages = Messages::new(quiet);
    signals::handle();
    let result = match (arguments.command, arguments.rewrite) {
        (Some(command), _) => run(&command, &messages),
        (None, Some(rewrite)) => commands::rewrite(&rewrite, started, &messages),
        (None, None) => Err(Failure::Usage("expected IN and OUT; see --help".to_owned())),
    };
    match result.and_then(|printed| show(printed, &messages)) {
        Ok(()) => 0,
        Err(failure) => {
            messages.error(&failure);
            if as_json {
                // The exit status tells the same to whoever does not read it.
                let _ = print(&failure.json());
            }
            failure.code().exit_status
        }
    }
}

/// What clap takes for a command behind IN and OUT, it calls one that cannot be used with them.
fn too_many(refused: clap::Error) -> clap::Error {
    let word = match refused.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) if refused.kind() == ErrorKind::ArgumentConflict => word,
        _ => return refused,
    };
    let mut all = Arguments::command();
    let text = match all.find_subcommand(word) {
        Some(_) => {
            format!("'{word}' is a command, which comes first: ckpt-opt {word} --help shows how")
        }
        None => format!(
            "unexpected argument '{word}' found: beside the options there are IN and OUT alone, and values have no blanks, as in \
             --dim batch=8 --budget 60MB"
        ),
    };
    all.error(ErrorKind::UnknownArgument, text)
}

/// What to say of a first argument that looks like a command and is none, nor a file.
fn no_command(first: &OsStr) -> Option<String> {
    let word = first.to_str()?;
    let all = Arguments::command();
    let names: Vec<&str> = all.get_subcommands().map(clap::Command::get_name).collect();
    let is_word = word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let is_nothing = is_word && !names.contains(&word) && !Path::new(word).exists();
    is_nothing.then(|| {
        format!(
            "{word:?} is no command and no file; ckpt-opt IN OUT --budget SIZE rewrites a graph, and the commands are {}",
            names.join(", ")
        )
    })
}

/// Does what a subcommand is for, and gives the text of the result.
fn run(command: &Command, messages: &Messages) -> Result<Printed, Failure> {
    let text = match command {
        Command::Lower(lower) => return commands::lower(lower, messages),
        Command::Inspect(inspect) => commands::inspect(inspect, messages),
        Command::Verify(verify) => commands::verify(verify, messages),
        Command::Sweep(sweep) => commands::sweep(sweep, messages),
        Command::Largest(largest) => commands::largest(largest, messages),
        Command::Compare(compare) => commands::compare(compare, messages),
        Command::ConvTable(table) => commands::conv_table(table, messages),
        Command::ProfileConv(profile) => commands::profile_conv(profile, messages),
        Command::Completions { shell } => generated::completions(*shell),
        Command::Man => generated::manual(),
    }?;
    Ok(Printed::Result(text))
}

/// Prints the result. Where a file is in its place already, that nobody could be told is no failure: an exit status
/// that says so would tell a script that there is no file.
fn show(printed: Printed, messages: &Messages) -> Result<(), Failure> {
    match printed {
        Printed::Result(text) => print(&text),
        Printed::After(text, file) => {
            if let Err(error) = print(&text) {
                let file = file.display();
                messages.warning(format_args!(
                    "{file} was written and is complete, but: {error}"
                ));
            }
            Ok(())
        }
        // Nobody has to read the messages.
        Printed::Aside(text) => {
            let _ = messages.result(&printable(&text));
            Ok(())
        }
    }
}

fn print(text: &str) -> Result<(), Failure> {
    let text = printable(text);
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        // Whoever closed the pipe has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(Failure::Print),
    }
}
