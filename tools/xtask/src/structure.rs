//! How the house is built, counted: circles of imports, rooms that use what they must not, names that are used twice,
//! and what is known of ONNX Runtime outside the room for it. Each count has a limit, and a limit may only go down.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use source::{Source, Token};

/// Both crates, by the folder of their sources.
const CRATES: [&str; 2] = ["passes/src", "src"];

/// Where what is counted may be. Verification trusts nobody's word for what an operator does.
const KNOWS_RUNTIME: [&str; 2] = ["runtime", "verify"];
const KNOWS_OPERATORS: [&str; 4] = ["lower", "operators", "runtime", "verify"];

/// The rooms of the core, and which others each may use; `optimize/` uses all. Files beside them are for everybody.
const ROOMS: [(&str, &[&str]); 11] = [
    ("graph", &[]),
    ("verify", &["graph"]),
    ("operators", &["graph"]),
    ("runtime", &["graph", "operators"]),
    // Verification says what it trusts to be repeatable.
    ("analysis", &["graph", "operators", "runtime", "verify"]),
    ("plan", &["analysis", "graph", "operators"]),
    (
        "search",
        &["analysis", "graph", "operators", "plan", "runtime"],
    ),
    (
        "strategy",
        &[
            "analysis",
            "graph",
            "operators",
            "plan",
            "runtime",
            "search",
        ],
    ),
    (
        "rewrite",
        &["analysis", "graph", "operators", "plan", "runtime"],
    ),
    ("lower", &["analysis", "graph", "rewrite", "runtime"]),
    (
        "enforce",
        &[
            "analysis",
            "graph",
            "operators",
            "plan",
            "rewrite",
            "runtime",
        ],
    ),
];

/// One thing that is counted.
pub(crate) struct Count {
    what: &'static str,
    limit: usize,
    found: Vec<String>,
}

impl Count {
    /// What is beyond the limit, in words.
    pub(crate) fn problem(&self) -> Option<String> {
        let (found, limit) = (self.found.len(), self.limit);
        let beyond = || format!("{found} {}, expected at most {limit}", self.what);
        (found > limit).then(beyond)
    }
}

/// Counts, and prints what was found.
pub(crate) fn counted(root: &Path) -> Result<Vec<Count>, String> {
    let crates = CRATES.map(|folder| source::read(&root.join(folder)));
    let [core, shell] = crates;
    let (core, shell) = (core?, shell?);
    let both = || core.iter().chain(&shell);
    let mut circles = circles(&core);
    circles.extend(self::circles(&shell));
    let counts = vec![
        Count {
            what: "circles of files that import each other",
            limit: 0,
            found: circles,
        },
        Count {
            what: "uses of rooms that are not allowed",
            limit: 0,
            found: forbidden(&core),
        },
        Count {
            what: "names of types that are used twice in the core",
            limit: 0,
            found: twice(&core),
        },
        Count {
            what: "files outside runtime/ that name a release or a barrier",
            limit: 0,
            found: naming(both()),
        },
        Count {
            what: "files outside lower/, operators/, runtime/ and verify/ that list operators",
            // The functions of symbolic expressions have such names too.
            limit: 1,
            found: listing(&core, both()),
        },
    ];
    for count in &counts {
        println!(
            "{} {} (at most {})",
            count.found.len(),
            count.what,
            count.limit
        );
        for one in &count.found {
            println!("    {one}");
        }
    }
    Ok(counts)
}

/// Groups of files of which each reaches each other by imports. That a file knows what is in the folder of its name does
/// not count: it is the door of that room.
fn circles(sources: &[Source]) -> Vec<String> {
    let modules = sources
        .iter()
        .map(|one| (one.module.clone(), one.path.as_str()))
        .collect();
    let imports: BTreeMap<&[String], BTreeSet<source::Module>> = sources
        .iter()
        .map(|one| {
            let mut imports = source::imports(one, &modules);
            imports.retain(|module| !module.starts_with(&one.module));
            (&one.module[..], imports)
        })
        .collect();
    let reached = |from: &[String]| {
        let mut reached = BTreeSet::new();
        let mut open = vec![from.to_vec()];
        while let Some(module) = open.pop() {
            for next in imports.get(&module[..]).into_iter().flatten() {
                if reached.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&[String], _> =
        imports.keys().map(|&from| (from, reached(from))).collect();
    let circle_of = |from: &&[String]| -> BTreeSet<String> {
        let back = reached[*from]
            .iter()
            .filter(|to| reached[&to[..]].contains(*from));
        back.map(|to| modules[&to[..]].to_owned()).collect()
    };
    let circles: BTreeSet<_> = imports
        .keys()
        .map(circle_of)
        .filter(|circle| !circle.is_empty())
        .collect();
    circles.iter().map(joined).collect()
}

fn joined(names: &BTreeSet<String>) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.join(", ")
}

fn forbidden(sources: &[Source]) -> Vec<String> {
    let modules = sources
        .iter()
        .map(|one| (one.module.clone(), one.path.as_str()))
        .collect();
    let mut found = Vec::new();
    let is_room = |name: &str| name == "optimize" || ROOMS.iter().any(|(room, _)| *room == name);
    for (room, others) in ROOMS {
        let allowed = |name: &str| name == room || others.contains(&name) || !is_room(name);
        for source in within(sources.iter(), &[room]) {
            let imports = source::imports(source, &modules);
            let bad = imports
                .iter()
                .filter(|one| one.first().is_some_and(|name| !allowed(name)));
            found.extend(bad.map(|one| format!("{} uses {}", source.path, one.join("::"))));
        }
    }
    found
}

fn within<'a>(
    sources: impl Iterator<Item = &'a Source>,
    rooms: &[&str],
) -> impl Iterator<Item = &'a Source> {
    sources.filter(move |one| {
        one.module
            .first()
            .is_some_and(|room| rooms.contains(&room.as_str()))
    })
}

fn outside<'a>(
    sources: impl Iterator<Item = &'a Source>,
    rooms: &'static [&str],
) -> impl Iterator<Item = &'a Source> {
    sources.filter(move |one| {
        !one.module
            .first()
            .is_some_and(|room| rooms.contains(&room.as_str()))
    })
}

/// Names of types that more than one file defines.
fn twice(sources: &[Source]) -> Vec<String> {
    let mut files: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for source in sources {
        let mut depth = 0_usize;
        for pair in source.tokens.windows(2) {
            match pair {
                [Token::Sign('{'), _] => depth += 1,
                [Token::Sign('}'), _] => depth = depth.saturating_sub(1),
                // What is deeper is an associated type.
                [Token::Word(kind), Token::Word(name)]
                    if depth == 0
                        && ["struct", "enum", "trait", "type", "union"]
                            .contains(&kind.as_str()) =>
                {
                    files.entry(name).or_default().insert(source.path.clone());
                }
                _ => {}
            }
        }
    }
    let twice = files.iter().filter(|(_, files)| files.len() > 1);
    twice
        .map(|(name, files)| format!("{name}: {}", joined(files)))
        .collect()
}

/// Files that say which release of the runtime they know (the one that trains in comments, too; of the others these may say where something
/// was measured), or which operator holds nodes back. The tables of operators have that one as well.
fn naming<'a>(sources: impl Iterator<Item = &'a Source>) -> Vec<String> {
    let naming = outside(sources, &KNOWS_RUNTIME).filter(|one| {
        let in_tables = one.module.first().is_some_and(|room| room == "operators");
        let barrier = Token::Text("PassThrough".to_owned());
        let releases = ["1.20", "1.26", "1.32"];
        let is_release = |token: &Token| match token {
            Token::Text(text) => releases.iter().any(|release| text.contains(release)),
            _ => false,
        };
        one.text.contains("1.19")
            || one.tokens.iter().any(is_release)
            || !in_tables && one.tokens.contains(&barrier)
    });
    naming.map(|one| one.path.clone()).collect()
}

/// Files with two names of operators beside each other, in a list or a pattern. Which names these are the tables know.
fn listing<'a>(core: &'a [Source], sources: impl Iterator<Item = &'a Source>) -> Vec<String> {
    let known: BTreeSet<&Token> = within(core.iter(), &["operators"])
        .flat_map(|one| &one.tokens)
        .filter(|token| is_name(token))
        .collect();
    let lists = |one: &&Source| {
        one.tokens.windows(3).any(|three| {
            let [one, sign, other] = three else {
                return false;
            };
            known.contains(one) && known.contains(other) && matches!(sign, Token::Sign(',' | '|'))
        })
    };
    let listing = outside(sources, &KNOWS_OPERATORS).filter(lists);
    listing.map(|one| one.path.clone()).collect()
}

fn is_name(token: &Token) -> bool {
    let Token::Text(text) = token else {
        return false;
    };
    text.starts_with(|first: char| first.is_ascii_uppercase())
        && text.chars().all(char::is_alphanumeric)
        && text.chars().any(|one| one.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Vec<Source> {
        let read = |&(path, text): &(&str, &str)| Source::of(path.as_ref(), text.to_owned());
        files.iter().map(read).collect()
    }

    #[test]
    fn files_that_import_each_other_are_a_circle_and_a_room_that_uses_its_own_is_none() {
        let found = circles(&sources(&[
            ("a/mod.rs", "use self::b::X; pub struct Y;"),
            ("a/b.rs", "use super::Y; use crate::c::Z;"),
            ("c.rs", "use crate::d::W;"),
            ("d.rs", "fn f() { crate::c::g(); }"),
        ]));
        assert_eq!(found, ["c.rs, d.rs"]);
    }

    #[test]
    fn a_name_of_two_types_is_told_with_both_files() {
        let found = twice(&sources(&[
            ("a.rs", "pub struct X; impl Z for X { type Item = u8; }"),
            ("b.rs", "enum X { Y } impl Z for X { type Item = u8; }"),
        ]));
        assert_eq!(found, ["X: a.rs, b.rs"]);
    }

    #[test]
    fn a_room_may_use_itself_the_rooms_listed_for_it_and_what_is_beside_them() {
        let files = [
            ("search/a.rs", "use crate::rewrite::X; use crate::plan::Y;"),
            ("search/b.rs", "use super::a::Z; use crate::bytes::W;"),
            ("rewrite/mod.rs", ""),
            ("plan.rs", ""),
            ("bytes.rs", ""),
        ];
        assert_eq!(forbidden(&sources(&files)), ["search/a.rs uses rewrite"]);
    }

    #[test]
    fn releases_barriers_and_lists_of_operators_are_told_outside_their_rooms() {
        let core = sources(&[
            ("operators/a.rs", r#"const X: [&str; 2] = ["Add", "Mul"];"#),
            (
                "runtime/a.rs",
                r#"// 1.19.2
                const X: &str = "PassThrough";"#,
            ),
            ("search/a.rs", "// 1.19.2"),
            (
                "search/b.rs",
                r#"fn f(x: &str) -> bool { x == "PassThrough" }"#,
            ),
            (
                "search/c.rs",
                r#"fn f(x: &str) -> bool { matches!(x, "Add" | "Mul") }"#,
            ),
            (
                "search/d.rs",
                r#"const UNITS: [&str; 2] = ["Mega", "Giga"];"#,
            ),
        ]);
        assert_eq!(naming(core.iter()), ["search/a.rs", "search/b.rs"]);
        assert_eq!(listing(&core, core.iter()), ["search/c.rs"]);
    }
}
