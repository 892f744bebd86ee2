//! What the program is built from, checked without a network: licences, sources, and a reason for each direct dependency. `cargo deny`
//! says more, and needs one. Both read deny.toml.

use std::collections::BTreeSet;

use serde_json::Value;

/// Everything that is wrong, one line each. `metadata` is what `cargo metadata` prints, `rules` is deny.toml.
pub(crate) fn problems(metadata: &Value, rules: &str) -> Vec<String> {
    let rules = Rules::read(rules);
    let mut problems = Vec::new();
    let packages = list(&metadata["packages"]);
    let members: BTreeSet<&str> = list(&metadata["workspace_members"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    if rules.licenses.is_empty() || packages.is_empty() {
        problems.push("no licences are allowed, or no packages are known".to_owned());
    }
    let mut direct = BTreeSet::new();
    for package in packages {
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        if members.contains(text(&package["id"])) {
            let registered = list(&package["dependencies"])
                .iter()
                .filter(|dependency| dependency["path"].is_null());
            for dependency in registered {
                let name = text(&dependency["name"]);
                if text(&dependency["req"]) == "*" {
                    problems.push(format!("{name}: expected a version, found \"*\""));
                }
                direct.insert(name);
            }
        }
        let license = text(&package["license"]);
        let excepted = rules
            .exceptions
            .iter()
            .any(|(crate_name, allowed)| crate_name == name && allowed == license);
        if !excepted && !allowed(license, &rules.licenses) {
            problems.push(format!(
                "{name} {version}: its licence {license:?} is not among those that deny.toml allows"
            ));
        }
        match package["source"].as_str() {
            None if members.contains(text(&package["id"])) => {}
            Some(CRATES_IO) => {}
            source => problems.push(format!(
                "{name} {version}: expected it from crates.io, found {}",
                source.unwrap_or("a path outside of the workspace")
            )),
        }
    }
    for name in &direct {
        if !rules.reasons.contains(*name) {
            problems.push(format!(
                "{name}: deny.toml has no reason for it (a comment \"# {name}: ...\")"
            ));
        }
    }
    for name in &rules.reasons {
        if !direct.contains(name.as_str()) {
            problems.push(format!(
                "{name}: deny.toml has a reason for it, and nothing depends on it"
            ));
        }
    }
    problems
}

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The heading of the comment in deny.toml that gives the reasons.
const REASONS: &str = "# Why each crate is there";

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// What this check needs of deny.toml.
#[derive(Default)]
struct Rules {
    licenses: BTreeSet<String>,
    /// Crates, and the licence that each of them alone may have.
    exceptions: Vec<(String, String)>,
    reasons: BTreeSet<String>,
}

impl Rules {
    /// One entry per line, as deny.toml says at its head.
    fn read(file: &str) -> Rules {
        let mut rules = Rules::default();
        let (mut in_allow, mut in_reasons) = (false, false);
        for line in file.lines().map(str::trim) {
            in_reasons = (in_reasons || line.starts_with(REASONS)) && line.starts_with('#');
            let quoted: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
            if in_reasons {
                if let Some((name, _)) = line.trim_start_matches(['#', ' ']).split_once(": ") {
                    rules.reasons.insert(name.to_owned());
                }
            } else if line == "allow = [" {
                in_allow = true;
            } else if line.starts_with(']') {
                in_allow = false;
            } else if let (true, [license]) = (in_allow, &quoted[..]) {
                rules.licenses.insert((*license).to_owned());
            } else if let (true, [name, license]) = (line.starts_with("{ crate ="), &quoted[..]) {
                rules
                    .exceptions
                    .push(((*name).to_owned(), (*license).to_owned()));
            }
        }
        rules
    }
}

/// May it be used under the licences that are allowed? SPDX: `OR` binds less than `AND`, parentheses most. A licence `WITH` an exception
/// is not the licence alone.
fn allowed(license: &str, licenses: &BTreeSet<String>) -> bool {
    let spaced = license
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    either(&mut rest, licenses) == Some(true) && rest.is_empty()
}

/// `None`: no such expression.
fn either(words: &mut &[&str], licenses: &BTreeSet<String>) -> Option<bool> {
    let mut found = both(words, licenses)?;
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        found |= both(words, licenses)?;
    }
    Some(found)
}

fn both(words: &mut &[&str], licenses: &BTreeSet<String>) -> Option<bool> {
    let mut found = one(words, licenses)?;
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        found &= one(words, licenses)?;
    }
    Some(found)
}

fn one(words: &mut &[&str], licenses: &BTreeSet<String>) -> Option<bool> {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let found = either(words, licenses)?;
            let [")", rest @ ..] = *words else {
                return None;
            };
            *words = rest;
            Some(found)
        }
        [name, "WITH", exception, rest @ ..] => {
            *words = rest;
            Some(licenses.contains(&format!("{name} WITH {exception}")))
        }
        [name, rest @ ..] if !["OR", "AND", "WITH", ")"].contains(name) => {
            *words = rest;
            Some(licenses.contains(*name))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RULES: &str = r#"
# Why each crate is there
# used: for the work.
# more: words
[licenses]
allow = [
    "MIT",
    "Unicode-3.0",
]
exceptions = [
    { crate = "strange", allow = ["MPL-2.0"] },
]
"#;

    fn found(name: &str, license: &str, source: Option<&str>) -> Vec<String> {
        let metadata = json!({
            "workspace_members": ["ours"],
            "packages": [
                {"id": "ours", "name": "ours", "version": "1", "license": "MIT", "source": null, "dependencies": [
                    {"name": "used"}, {"name": "more"}, {"name": "inner", "path": "/inner"},
                ]},
                {"id": "x", "name": name, "version": "2", "license": license, "source": source, "dependencies": [{"name": "any"}]},
            ],
        });
        problems(&metadata, RULES)
    }

    #[test]
    fn packages_with_allowed_licences_from_crates_io_pass() {
        for license in [
            "MIT",
            "GPL-3.0 OR MIT",
            "Apache-2.0/MIT",
            "(GPL-3.0 OR MIT) AND Unicode-3.0",
        ] {
            assert_eq!(
                found("used", license, Some(CRATES_IO)),
                [""; 0],
                "{license}"
            );
        }
        assert_eq!(found("strange", "MPL-2.0", Some(CRATES_IO)), [""; 0]);
    }

    #[test]
    fn other_licences_are_refused() {
        for license in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "GPL-3.0 AND (MIT OR GPL-3.0)",
            "MIT WITH X",
            "MIT OR",
            "MIT)",
            "(MIT",
            "MPL-2.0",
        ] {
            let found = found("used", license, Some(CRATES_IO));
            assert_eq!(found.len(), 1, "{license}: {found:?}");
            assert!(found[0].starts_with("used 2: its licence"), "{found:?}");
        }
    }

    #[test]
    fn other_sources_are_refused() {
        for source in [None, Some("git+https://example.com/used")] {
            let found = found("used", "MIT", source);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains("expected it from crates.io"), "{found:?}");
        }
    }

    #[test]
    fn each_direct_dependency_has_a_version_and_a_reason_and_each_reason_a_dependency() {
        let metadata = json!({
            "workspace_members": ["ours"],
            "packages": [
                {"id": "ours", "name": "ours", "version": "1", "license": "MIT", "source": null, "dependencies": [
                    {"name": "used", "req": "*"}, {"name": "unexplained", "req": "^1"},
                ]},
            ],
        });
        let found = problems(&metadata, RULES);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(
            found[0].starts_with("used: expected a version"),
            "{found:?}"
        );
        assert!(
            found[1].starts_with("unexplained: deny.toml has no reason"),
            "{found:?}"
        );
        assert!(
            found[2].starts_with("more: deny.toml has a reason for it, and nothing"),
            "{found:?}"
        );
    }
}
