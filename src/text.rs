//! Text for people that holds names from files: nobody knows what is in them.

use std::borrow::Cow;

/// Characters of one line of a message that are shown.
const LONGEST_LINE: usize = 900;

/// Lines of a message that are shown.
const MOST_LINES: usize = 60;

/// Characters of a name that are shown; tools make names of a hundred or two.
pub(crate) const LONGEST_NAME: usize = 300;

/// The text with everything escaped that a terminal would obey instead of showing it: control characters but line
/// feeds, and marks that change the direction of writing.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        turns || c.is_control() && c != '\n'
    };
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match is_obeyed(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// The same on one line: a line feed comes from a name, and what follows it is no line of this program's.
pub(crate) fn on_one_line(text: &str) -> String {
    printable(text).replace('\n', "\\n")
}

/// At most about `longest` characters of the text: the middle says least.
pub(crate) fn shortened(text: &str, longest: usize) -> Cow<'_, str> {
    // No character is less than a byte.
    if text.len() <= longest {
        return Cow::Borrowed(text);
    }
    let count = text.chars().count();
    if count <= longest {
        return Cow::Borrowed(text);
    }
    let (first, last) = (longest.div_ceil(2), longest / 2);
    let place = |index| {
        text.char_indices()
            .nth(index)
            .map_or(text.len(), |(at, _)| at)
    };
    let (start, end) = (&text[..place(first)], &text[place(count - last)..]);
    Cow::Owned(format!(
        "{start}[... {} characters ...]{end}",
        count - longest
    ))
}

/// The text with long lines shortened, and without lines that nobody would read.
pub(crate) fn bounded(text: &str) -> String {
    let lines = text.split('\n');
    let shown: Vec<Cow<'_, str>> = lines
        .clone()
        .take(MOST_LINES)
        .map(|line| shortened(line, LONGEST_LINE))
        .collect();
    let mut all = shown.join("\n");
    match lines.skip(MOST_LINES).count() {
        0 => {}
        more => all += &format!("\n[... {more} lines ...]"),
    }
    all
}

/// The first few of `names`, and how many more there are.
pub(crate) fn some_of<S: AsRef<str>>(names: &[S]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = names
        .iter()
        .take(SHOWN)
        .map(|name| format!("{:?}", shortened(name.as_ref(), LONGEST_NAME)))
        .collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        assert_eq!(
            printable("a\u{1b}[31m\r\tb\u{9b}\u{202e}c\nd"),
            "a\\u{1b}[31m\\r\\tb\\u{9b}\\u{202e}c\nd"
        );
        assert_eq!(printable("größer"), "größer");
        assert_eq!(on_one_line("a\nerror: b\r\n"), "a\\nerror: b\\r\\n");
    }

    #[test]
    fn long_texts_lose_their_middle() {
        assert_eq!(shortened("abcdefgh", 4), "ab[... 4 characters ...]gh");
        assert_eq!(shortened("äöüä", 4), "äöüä");
        assert_eq!(shortened("äöüäö", 3), "äö[... 2 characters ...]ö");
    }

    #[test]
    fn messages_are_bounded_in_both_directions() {
        let long = format!("{}\n", "x".repeat(100_000)).repeat(1_000);
        let shown = bounded(&long);
        assert!(shown.len() < 150_000, "{}", shown.len());
        assert!(shown.ends_with("[... 941 lines ...]"));
    }
}
