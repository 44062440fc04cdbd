//! Comments and Markdown prose are wrapped at 100 columns.

use std::path::{Path, PathBuf};

/// Columns of a line of prose.
const MAX_COLUMNS: usize = 100;

/// The files of the repository with this ending, below `dir`.
pub(super) fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        // Build output, and the inputs of fuzzing.
        let left_out = ["target", "corpus", "artifacts", "venv", "node_modules"].iter().any(|n| name == *n);
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            if !left_out && !name.to_string_lossy().starts_with(".git") {
                found.extend(files(&path, ending));
            }
        } else if path.extension().is_some_and(|e| e == ending) {
            found.push(path);
        }
    }
    found
}

/// Whether a line cannot be wrapped: rows of tables, byte maps, code, and single words.
fn is_exempt(text: &str) -> bool {
    let one_word = !text.trim().trim_start_matches(['-', '*', '>', '!']).trim().contains(' ');
    text.trim_start().starts_with('|') || text.starts_with("    ") || text.contains("  ") || one_word
}

/// Numbers of the lines that are too wide: `prose` gives the text of a line, where it is prose, and
/// whether it begins or ends a block of code.
fn too_wide<'t>(text: &'t str, prose: impl Fn(&'t str) -> Option<&'t str>) -> Vec<usize> {
    let (mut fenced, mut wide) = (false, Vec::new());
    for (at, line) in text.lines().enumerate() {
        let Some(prose) = prose(line) else {
            fenced = false;
            continue;
        };
        if prose.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced && line.chars().count() > MAX_COLUMNS && !is_exempt(prose) {
            wide.push(at + 1);
        }
    }
    wide
}

fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    let text = text.strip_prefix(['/', '!']).unwrap_or(text);
    Some(text.strip_prefix(' ').unwrap_or(text))
}

#[test]
fn comments_and_markdown_are_wrapped_at_100_columns() {
    let house = super::house();
    let mut wrong = Vec::new();
    for name in files(house, "rs") {
        let Ok(text) = std::fs::read_to_string(&name) else { continue };
        wrong.extend(too_wide(&text, comment).into_iter().map(|line| format!("{}:{line}", name.display())));
    }
    for name in files(house, "md") {
        let Ok(text) = std::fs::read_to_string(&name) else { continue };
        let markdown = |line| Some(line).filter(|l: &&str| !l.starts_with(['#', '<'])).or(Some(""));
        wrong.extend(too_wide(&text, markdown).into_iter().map(|line| format!("{}:{line}", name.display())));
    }
    assert!(wrong.is_empty(), "wider than {MAX_COLUMNS} columns:\n{}", wrong.join("\n"));
}

#[test]
fn the_gate_knows_prose_from_what_cannot_be_wrapped() {
    let long = "word ".repeat(25);
    assert_eq!(
        too_wide(
            &format!("let a = 1;\n    /// {long}\n// | {long}\n//! ```\n//! {long}\n//! ```\n//! {long}"),
            comment
        ),
        [2, 7]
    );
    assert_eq!(too_wide(&format!("//     {long}\n// {}", "x".repeat(120)), comment), [] as [usize; 0]);
    assert_eq!(too_wide(&format!("{long}\n```\n{long}\n```\n    {long}"), Some), [1]);
}
