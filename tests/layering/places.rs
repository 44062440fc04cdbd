//! Files, directories, functions and types that documents name in code spans exist.
//!
//! A name is `file.rs`, `directory/`, `file.rs::function` or `file.rs::Type::function`. It may be
//! shortened to an ending of the path, as long as no other file has that ending.

use super::prose::files;
use std::collections::BTreeSet;
use std::path::Path;

/// The documents.
const PAGES: [&str; 16] = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/CLUSTER.md",
    "docs/CONTAINERS.md",
    "docs/DIFFERENTIAL.md",
    "docs/FORMATS.md",
    "docs/FRAMEWORKS.md",
    "docs/FUZZING.md",
    "docs/INTERNALS.md",
    "docs/METRICS.md",
    "docs/PERFORMANCE.md",
    "docs/POLICIES.md",
    "docs/PROTOCOL.md",
    "docs/SANITIZERS.md",
    "docs/SLURM.md",
    "docs/TROUBLESHOOTING.md",
];

/// Endings of the files that are looked for.
const ENDINGS: [&str; 4] = ["rs", "py", "sh", "h"];

/// Paths of all sources, and of all directories that hold some, relative to the repository.
fn sources() -> (BTreeSet<String>, BTreeSet<String>) {
    let house = super::house();
    let (mut sources, mut dirs) = (BTreeSet::new(), BTreeSet::new());
    for path in ENDINGS.iter().flat_map(|ending| files(house, ending)) {
        let path = path.strip_prefix(house).unwrap();
        dirs.extend(path.ancestors().skip(1).map(|dir| format!("{}/", dir.display())));
        sources.insert(path.display().to_string());
    }
    (sources, dirs)
}

/// Code spans of a text with the numbers of their lines, without fenced and indented blocks of
/// code.
fn spans(text: &str) -> Vec<(usize, &str)> {
    let (mut fenced, mut found) = (false, Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if !fenced && !line.starts_with("    ") {
            found.extend(line.split('`').skip(1).step_by(2).map(|span| (number, span)));
        }
    }
    found
}

/// A path, and what it defines, if a code span names a source or a directory of sources.
fn place(span: &str) -> Option<(&str, Vec<&str>)> {
    let mut parts = span.split("::");
    let path = parts.next()?;
    let plain =
        path.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-./".contains(&b)) && !path.starts_with(['/', '.']);
    let (is_source, is_dir) = (Path::new(path).extension().is_some(), path.ends_with('/'));
    let ending = Path::new(path).extension().and_then(|e| e.to_str()).unwrap_or_default();
    (plain && (is_source && ENDINGS.contains(&ending) || is_dir)).then(|| (path, parts.collect()))
}

/// Those of `all` that end like `path`, as far as whole names go.
fn matching<'a>(all: &'a BTreeSet<String>, path: &str) -> Vec<&'a String> {
    if let Some(exact) = all.get(path) {
        return vec![exact];
    }
    let ending = format!("/{path}");
    all.iter().filter(|name| name.ends_with(&ending)).collect()
}

/// Whether a source defines an item of this name.
fn defines(text: &str, item: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "macro_rules!"].iter().any(|keyword| {
        text.match_indices(&format!("{keyword} {item}"))
            .any(|(at, found)| !text[at + found.len()..].starts_with(is_name) && !text[..at].ends_with(is_name))
    })
}

/// Why a place is not there.
fn missing(path: &str, items: &[&str], sources: &BTreeSet<String>, dirs: &BTreeSet<String>) -> Option<String> {
    let found = matching(if path.ends_with('/') { dirs } else { sources }, path);
    let [one] = found.as_slice() else { return Some(format!("found {found:?}, and it has to be one")) };
    if items.is_empty() {
        return None;
    }
    let text = std::fs::read_to_string(super::house().join(one)).unwrap();
    let absent: Vec<_> = items.iter().filter(|item| !defines(&text, item)).collect();
    (!absent.is_empty()).then(|| format!("{one} does not define {absent:?}"))
}

#[test]
fn files_and_functions_that_documents_name_exist() {
    let (sources, dirs) = sources();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in PAGES {
        let text = std::fs::read_to_string(super::house().join(page)).unwrap();
        for (line, span) in spans(&text) {
            let Some((path, items)) = place(span) else { continue };
            count += 1;
            wrong.extend(missing(path, &items, &sources, &dirs).map(|why| format!("{page}:{line}: `{span}`: {why}")));
        }
    }
    assert!(count > 20, "only {count} places are found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Names of tests in a text: code spans such as `module::a_test`, `module::tests` or `module::*`.
fn tests_named(text: &str) -> Vec<(usize, &str)> {
    let is_name = |part: &str| part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    let is_test = |span: &str| span.contains("::") && span.trim_end_matches("::*").split("::").all(is_name);
    spans(text).into_iter().filter(|(_, span)| is_test(span)).collect()
}

#[test]
fn tests_that_the_threat_model_names_exist() {
    let house = super::house();
    let text = std::fs::read_to_string(house.join("SECURITY.md")).unwrap();
    let sources: Vec<(String, String)> = files(house, "rs")
        .into_iter()
        .map(|path| (path.display().to_string(), std::fs::read_to_string(path).unwrap()))
        .collect();
    let named = tests_named(&text);
    assert!(named.len() > 10, "only {} tests are found", named.len());
    let mut wrong = Vec::new();
    for (line, test) in named {
        let last = test.trim_end_matches("::*").rsplit("::").next().unwrap();
        let file = format!("/{last}.rs");
        if !sources.iter().any(|(path, text)| path.ends_with(&file) || defines(text, last)) {
            wrong.push(format!("SECURITY.md:{line}: no test or module is called `{test}`"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn places_that_are_not_there_are_found() {
    assert_eq!(spans("a `b.rs` c `d`\n    `e.rs`\n```\n`f.rs`\n```\n`g/`"), [(1, "b.rs"), (1, "d"), (6, "g/")]);
    assert_eq!(place("tier/log.rs::Log::append"), Some(("tier/log.rs", vec!["Log", "append"])));
    assert_eq!(place("tests/"), Some(("tests/", vec![])));
    for no in ["io.engine", "/dev/shm/", "cargo build", "part/<16 hex>", "a.yaml", "Session::open"] {
        assert_eq!(place(no), None, "{no}");
    }
    assert_eq!(
        tests_named("`a::b_c` `a::*` `A::new` `a.rs::b` `b` `x::tests`"),
        [(1, "a::b_c"), (1, "a::*"), (1, "x::tests")]
    );
    let (sources, dirs) = sources();
    let here = |path, items: &[&str]| missing(path, items, &sources, &dirs);
    assert_eq!(here("layering/places.rs", &["missing"]), None);
    assert_eq!(here("tests/layering/", &[]), None);
    assert!(here("layering/places.rs", &["missin"]).is_some() && here("layering/place.rs", &[]).is_some());
    assert!(here("main.rs", &[]).is_some(), "there are several");
    assert!(here("layerin/", &[]).is_some());
}
