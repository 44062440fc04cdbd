//! Links between the Markdown files of the repository resolve: the file is there, and the heading
//! that `#anchor` names. Documents that sources name exist.

use super::prose::files;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Endings of the sources that name documents to people.
const SOURCES: [&str; 8] = ["rs", "py", "sh", "yaml", "json", "toml", "sbatch", "h"];

/// Lines outside of fenced and indented blocks of code, without code spans.
fn prose(text: &str) -> Vec<(usize, String)> {
    let (mut fenced, mut found) = (false, Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced && !line.starts_with("    ") {
            found.push((number, line.split('`').step_by(2).collect::<Vec<_>>().join("x")));
        }
    }
    found
}

/// Targets of links: `[text](target)`, `[name]: target`, `src="target"` and `href="target"`.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        for (opening, closing) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
            for rest in line.split(opening).skip(1) {
                let target = rest.split(closing).next().unwrap_or_default();
                found.push((number, target.split(' ').next().unwrap_or_default().to_owned()));
            }
        }
        if let Some((_, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            found.push((number, target.trim().to_owned()));
        }
    }
    found
}

/// The anchors that a page of GitHub gives to the headings of a text.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut fenced, mut found, mut seen) = (false, BTreeSet::new(), BTreeMap::<String, usize>::new());
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().to_lowercase();
        let kept: String = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c)).collect();
        let anchor = kept.replace(' ', "-");
        let times = seen.entry(anchor.clone()).or_default();
        found.insert(if *times == 0 { anchor } else { format!("{anchor}-{times}") });
        *times += 1;
    }
    found
}

/// Why a link of `page` leads nowhere.
fn broken(page: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let leads = if path.is_empty() { page.to_owned() } else { page.parent().unwrap().join(path) };
    if !leads.exists() {
        return Some("no such file".to_owned());
    }
    let anchor = anchor.filter(|_| leads.extension().is_some_and(|e| e == "md"))?;
    let there = anchors(&std::fs::read_to_string(leads).unwrap());
    (!there.contains(anchor)).then(|| format!("no such heading; there are {there:?}"))
}

#[test]
fn links_between_markdown_files_lead_to_files_and_headings() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in files(super::house(), "md") {
        let text = std::fs::read_to_string(&page).unwrap();
        for (line, target) in links(&text) {
            count += 1;
            wrong.extend(broken(&page, &target).map(|why| format!("{}:{line}: {target}: {why}", page.display())));
        }
    }
    assert!(count > 50, "only {count} links are found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Documents below `docs/` that a text names, with or without a link.
fn named(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for rest in line.split("docs/").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
            if name.len() > 1 && rest[name.len()..].starts_with(".md") {
                found.push((number, format!("{name}.md")));
            }
        }
    }
    found
}

#[test]
fn documents_that_are_named_exist() {
    let house = super::house();
    let is_told = |path: &PathBuf| path.ends_with("CHANGELOG.md") || path.ends_with("tests/layering/links.rs");
    let mut wrong = Vec::new();
    for ending in SOURCES.iter().copied().chain(["md"]) {
        for path in files(house, ending).into_iter().filter(|path| !is_told(path)) {
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            for (line, name) in named(&text) {
                if !house.join("docs").join(&name).exists() {
                    wrong.push(format!("{}:{line}: docs/{name} does not exist", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn links_anchors_and_names_are_found_in_a_text() {
    let text = "# A page: of `code`, and more\n\n[one](a.md#x) and `[not](b.md)` ![two](c.svg \"title\")\n\
                ```\n# no heading\n[not](d.md)\n```\n    [not](e.md)\n[three]: f.md\n## Twice\n## Twice\nsee docs/NOWHERE.md\n";
    let targets: Vec<(usize, String)> = links(text);
    assert_eq!(targets, [(3, "a.md#x".to_owned()), (3, "c.svg".to_owned()), (9, "f.md".to_owned())]);
    let expected = ["a-page-of-code-and-more", "twice", "twice-1"].map(str::to_owned);
    assert_eq!(anchors(text), BTreeSet::from(expected));
    assert_eq!(named(text), [(12, "NOWHERE.md".to_owned())]);
    let page = super::house().join("README.md");
    assert!(broken(&page, "docs/NOWHERE.md").is_some() && broken(&page, "#nowhere").is_some());
    assert_eq!(broken(&page, "https://example.org/none.md"), None);
}
