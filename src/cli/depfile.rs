//! The line of `--depfile`, for make and those who read what it reads: OUT, and the files that it was made of.

use std::path::Path;

/// `out: in data`, with what make takes for something else escaped.
pub(super) fn line<'a>(output: &Path, sources: impl Iterator<Item = &'a Path>) -> String {
    let sources: Vec<String> = sources.map(escaped).collect();
    format!("{}: {}\n", escaped(output), sources.join(" "))
}

fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for letter in path.to_string_lossy().chars() {
        match letter {
            '$' => text.push('$'),
            ' ' | '#' | '\\' => text.push('\\'),
            _ => {}
        }
        text.push(letter);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn make_reads_names_with_blanks_as_one() {
        let sources = ["my in.onnx", "a#b", "c$d"].map(Path::new);
        let line = line(Path::new("out.onnx"), sources.into_iter());
        assert_eq!(line, "out.onnx: my\\ in.onnx a\\#b c$$d\n");
    }
}
