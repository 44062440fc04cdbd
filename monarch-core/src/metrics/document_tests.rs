//! Generates the tables of `docs/METRICS.md`; the text around them is written by hand.

use super::declare::Declared;
use super::defs::ALL;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::{env, fs};

/// Where the part of the document that is generated from the declarations begins.
const BEGIN: &str = "<!-- metrics: begin -->";
/// Where the generated part ends.
const END: &str = "<!-- metrics: end -->";

/// The tables: metrics, then labels.
fn tables() -> String {
    let mut out = String::from("| metric | kind | unit | labels | what it says |\n|---|---|---|---|---|\n");
    // Writing to a string does not fail.
    for m in ALL {
        let labels: Vec<String> = m.labels.iter().map(|label| format!("`{}`", label.name)).collect();
        let (kind, unit) = (m.kind.name(), m.unit.name());
        let _ = writeln!(out, "| `{}` | {kind} | {unit} | {} | {} |", m.name, labels.join(", "), m.meaning);
    }
    out.push_str("\n| label | its values | of |\n|---|---|---|\n");
    let mut labels: BTreeMap<(&str, &str), Vec<&Declared>> = BTreeMap::new();
    for m in ALL {
        m.labels.iter().for_each(|label| labels.entry((label.name, label.meaning)).or_default().push(m));
    }
    for ((name, meaning), of) in labels {
        let of = match of.as_slice() {
            [one] => format!("`{}`", one.name),
            [first, ..] => format!("`{}` and {} more", first.name, of.len() - 1),
            [] => String::new(),
        };
        let _ = writeln!(out, "| `{name}` | {meaning} | {of} |");
    }
    out
}

/// Returns a document with new tables; `None` where the lines around them are missing.
fn renewed(document: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{}\n{END}{after}", tables()))
}

/// `UPDATE_METRICS=1 cargo test -p monarch-core metrics` writes new tables.
#[test]
fn the_committed_document_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/METRICS.md");
    let committed = fs::read_to_string(path).unwrap();
    let fresh = renewed(&committed).expect("the lines around the tables");
    if env::var_os("UPDATE_METRICS").is_some() {
        fs::write(path, &fresh).unwrap();
        return;
    }
    assert!(committed == fresh, "docs/METRICS.md is stale: run UPDATE_METRICS=1 cargo test -p monarch-core metrics");
}

#[test]
fn what_is_written_by_hand_stays() {
    let document = format!("before\n{}\nthe table before\n{}\nafter\n", BEGIN, END);
    let fresh = renewed(&document).unwrap();
    assert!(fresh.starts_with("before\n") && fresh.ends_with("\nafter\n") && !fresh.contains("the table before"));
    assert_eq!(renewed(&fresh).as_deref(), Some(fresh.as_str()));
    assert_eq!(renewed("no lines"), None);
}
