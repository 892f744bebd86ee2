//! Rust files, as much of them as has to be known to count imports and names: tokens without comments and tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module's names from the crate's root down.
pub(super) type Module = Vec<String>;

/// A file of a crate.
pub(super) struct Source {
    /// As it is shown: from the folder of the sources.
    pub(super) path: String,
    pub(super) module: Module,
    /// As it is.
    pub(super) text: String,
    /// Without tests.
    pub(super) tokens: Vec<Token>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Token {
    /// A name, a keyword or a number.
    Word(String),
    /// What a string literal holds, escapes as they are.
    Text(String),
    /// Any other character.
    Sign(char),
}

impl Token {
    pub(super) fn is(&self, word: &str) -> bool {
        matches!(self, Token::Word(one) if one == word)
    }

    pub(super) fn word(&self) -> Option<&str> {
        match self {
            Token::Word(word) => Some(word),
            _ => None,
        }
    }
}

impl Source {
    /// `path` from the folder of the sources.
    #[cfg(test)]
    pub(super) fn of(path: &Path, text: String) -> Source {
        Source::read(path, text, &mut BTreeSet::new())
    }

    /// The modules that are tests go to `tests`.
    fn read(path: &Path, text: String, tests: &mut BTreeSet<Module>) -> Source {
        let module = module(path);
        let tokens = without_tests(&tokens(&text), &module, tests);
        let path = path.display().to_string();
        Source {
            path,
            module,
            text,
            tokens,
        }
    }
}

/// The files below `folder` that are no tests, in the order of their names.
pub(super) fn read(folder: &Path) -> Result<Vec<Source>, String> {
    let mut found = Vec::new();
    let mut tests = BTreeSet::new();
    let mut open = vec![folder.to_owned()];
    while let Some(below) = open.pop() {
        let failed = |error| format!("{}: {error}", below.display());
        for entry in fs::read_dir(&below).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).map_err(failed)?;
                let path = path.strip_prefix(folder).unwrap_or(&path);
                found.push(Source::read(path, text, &mut tests));
            }
        }
    }
    found.retain(|source| !tests.iter().any(|test| source.module.starts_with(test)));
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

fn module(path: &Path) -> Module {
    let names = path.with_extension("");
    let mut names: Module = names
        .iter()
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    if names
        .last()
        .is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str()))
    {
        names.pop();
    }
    names
}

/// `text` in tokens. Lifetimes become words; what is in characters' quotes is left out.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("r#\"") {
            let end = rest.find("\"#").map_or(rest.len(), |end| end + 2);
            tokens.push(Token::Text(rest[3..end.max(5) - 2].to_owned()));
            end
        } else if first == '"' {
            let end = end_of_text(rest);
            tokens.push(Token::Text(rest[1..end - 1].to_owned()));
            end
        } else if first == '\'' {
            character(rest)
        } else if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|one: char| !one.is_alphanumeric() && one != '_');
            let end = end.unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..end].to_owned()));
            end
        } else {
            if !first.is_whitespace() {
                tokens.push(Token::Sign(first));
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

fn end_of_text(text: &str) -> usize {
    let mut escaped = false;
    for (at, one) in text.char_indices().skip(1) {
        match one {
            '"' if !escaped => return at + 1,
            _ => escaped = one == '\\' && !escaped,
        }
    }
    text.len()
}

/// The length of a character's literal; of a lifetime, that of its quote.
fn character(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    match (characters.next(), characters.next()) {
        (Some((_, '\\')), Some((escape, _))) => {
            let end = text[escape + 1..].find('\'');
            end.map_or(text.len(), |end| escape + 2 + end)
        }
        (Some(_), Some((end, '\''))) => end + 1,
        _ => 1,
    }
}

/// Takes out each item behind an attribute `cfg` that has the word `test`; modules of their own files go to `tests`.
fn without_tests(tokens: &[Token], module: &Module, tests: &mut BTreeSet<Module>) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let attribute = tokens[at..].starts_with(&[
            Token::Sign('#'),
            Token::Sign('['),
            Token::Word("cfg".to_owned()),
        ]);
        let end = at + end_of_attribute(&tokens[at..]);
        if !attribute || !tokens[at..end].iter().any(|token| token.is("test")) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let item = &tokens[end..];
        let length = end_of_item(item);
        if let Some(declared) = item[..length].iter().position(|token| token.is("mod")) {
            let name = item.get(declared + 1).and_then(Token::word);
            tests.extend(name.map(|name| [&module[..], &[name.to_owned()]].concat()));
        }
        at = end + length;
    }
    kept
}

fn end_of_attribute(tokens: &[Token]) -> usize {
    let end = tokens.iter().position(|token| *token == Token::Sign(']'));
    end.map_or(tokens.len(), |end| end + 1)
}

/// An item ends with a semicolon or with a closing brace, whichever closes it first.
fn end_of_item(tokens: &[Token]) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Sign('{' | '(' | '[') => depth += 1,
            Token::Sign('}') if depth <= 1 => return at + 1,
            Token::Sign('}' | ')' | ']') => depth = depth.saturating_sub(1),
            Token::Sign(';' | ',') if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// The files' modules that `source` names by a path, and the rest of each path: `crate::`, `self::` and `super::`
/// anywhere, and names of its own submodules behind `use`.
pub(super) fn imports(source: &Source, modules: &BTreeMap<Module, &str>) -> BTreeSet<Module> {
    let tokens = &source.tokens;
    let mut paths = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let start = ["crate", "self", "super"]
            .iter()
            .any(|word| tokens[at].is(word));
        let within = at >= 2 && tokens[at - 1] == Token::Sign(':');
        if start && !within && separated(tokens, at + 1) {
            at = tree(tokens, at, &source.module, &mut paths);
        } else if tokens[at].is("use")
            && !["crate", "self", "super"]
                .iter()
                .any(|word| tokens.get(at + 1).is_some_and(|token| token.is(word)))
        {
            let mut own = vec!["self".to_owned()];
            own.extend(tokens.get(at + 1).and_then(Token::word).map(str::to_owned));
            let target = resolved(&own, &source.module);
            if modules.contains_key(&target) {
                paths.push(target);
            }
            at += 1;
        } else {
            at += 1;
        }
    }
    let found = paths.iter().map(|path| {
        let longest = (0..=path.len())
            .rev()
            .find(|&end| modules.contains_key(&path[..end]));
        path[..longest.unwrap_or(0)].to_vec()
    });
    found.filter(|module| *module != source.module).collect()
}

fn separated(tokens: &[Token], at: usize) -> bool {
    tokens.get(at) == Some(&Token::Sign(':')) && tokens.get(at + 1) == Some(&Token::Sign(':'))
}

/// The paths of the tree that begins at `at`, from the crate's root down; where it ends.
fn tree(tokens: &[Token], at: usize, module: &Module, paths: &mut Vec<Module>) -> usize {
    let mut open: Vec<Vec<String>> = Vec::new();
    let mut path: Vec<String> = Vec::new();
    let mut at = at;
    loop {
        match tokens.get(at) {
            Some(Token::Word(word)) if word == "as" => at += 1,
            Some(Token::Word(word)) => path.push(word.clone()),
            Some(Token::Sign('*')) => {}
            Some(Token::Sign('{')) => open.push(path.clone()),
            _ => return at + 1,
        }
        at += 1;
        if separated(tokens, at) {
            at += 2;
            // A turbofish, or the end of what is no tree.
            if !matches!(
                tokens.get(at),
                Some(Token::Word(_) | Token::Sign('{' | '*'))
            ) {
                paths.push(resolved(&path, module));
                return at;
            }
            continue;
        }
        if matches!(tokens.get(at - 1), Some(Token::Sign('{'))) {
            continue;
        }
        // Behind one path: the next of the same braces, or their end.
        paths.push(resolved(&path, module));
        loop {
            match (tokens.get(at), open.last()) {
                (Some(Token::Word(word)), Some(_)) if word == "as" => at += 2,
                (Some(Token::Sign(',')), Some(outer)) => {
                    path.clone_from(outer);
                    at += 1;
                    if tokens.get(at) != Some(&Token::Sign('}')) {
                        break;
                    }
                }
                (Some(Token::Sign('}')), Some(_)) => {
                    open.pop();
                    at += 1;
                }
                _ => return at,
            }
        }
    }
}

/// A path that begins with `crate`, `self` or `super`, from the crate's root down.
fn resolved(path: &[String], module: &Module) -> Module {
    let mut target = module.clone();
    for (place, name) in path.iter().enumerate() {
        match name.as_str() {
            "crate" if place == 0 => target.clear(),
            "self" => {}
            "super" => {
                target.pop();
            }
            name => target.push(name.to_owned()),
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imported(module: &str, text: &str) -> Vec<String> {
        let modules = ["a", "a::b", "a::b::c", "d", "d::e"];
        let modules = modules.map(|name| (name.split("::").map(str::to_owned).collect(), ""));
        let file = Source::of(module.replace("::", "/").as_ref(), text.to_owned());
        let found = imports(&file, &BTreeMap::from(modules));
        found.iter().map(|module| module.join("::")).collect()
    }

    #[test]
    fn paths_lead_to_the_files_that_hold_what_they_name() {
        assert_eq!(imported("a::b", "use crate::d::{e::X, Y};"), ["d", "d::e"]);
        assert_eq!(
            imported(
                "a::b",
                "use crate::{a::{self, Z as W}, d::{e::{X, T,}}}; f()"
            ),
            ["a", "d::e"]
        );
        assert_eq!(
            imported("a::b", "use super::X; use self::c::Y;"),
            ["a", "a::b::c"]
        );
        assert_eq!(
            imported(
                "a::b",
                "use c::Y; use std::d::e; fn f() { crate::d::e::g::<u8>() }"
            ),
            ["a::b::c", "d::e"]
        );
        assert_eq!(imported("d", "use super::a::b::*;"), ["a::b"]);
    }

    #[test]
    fn comments_texts_and_tests_import_nothing() {
        let text = r#"
            // crate::a::X
            const T: &str = "crate::a::X \" crate::a::X";
            const Q: char = '"';
            fn f<'a>() -> &'a u8 { 'x' }
            #[cfg(test)]
            use crate::a::X;
            #[cfg(any(test, feature = "testing"))]
            mod tests { use crate::a::X; fn f() {} }
            use crate::d::X;
        "#;
        assert_eq!(imported("a::b", text), ["d"]);
    }
}
