//! A plan that was given up: what somebody needs to see that again.

use std::env;
use std::ffi::OsStr;
use std::fmt::Display;

/// A warning that a plan was given up.
pub(crate) fn given_up(fault: impl Display) -> String {
    let command: Vec<String> = env::args_os().map(|argument| quoted(&argument)).collect();
    format!(
        "a plan could not be proved to be right, and was given up for another: {fault}; what is written is proved. Please \
         report this with the file and the command: {}",
        command.join(" ")
    )
}

/// The argument as a shell takes it.
fn quoted(argument: &OsStr) -> String {
    let text = argument.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:%+,@".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    #[test]
    fn the_command_is_told_as_a_shell_takes_it() {
        let quoted = |text: &str| quoted(OsStr::new(text));
        assert_snapshot!(quoted("fixed+60%"), @"fixed+60%");
        assert_snapshot!(quoted("it's here.onnx"), @r"'it'\''s here.onnx'");
        assert_snapshot!(quoted(""), @"''");
        let warning = given_up("an example");
        assert!(warning.contains("for another: an example;"), "{warning}");
        let program = env::args().next().expect("a program");
        assert!(warning.contains(&program), "{warning}");
    }
}
