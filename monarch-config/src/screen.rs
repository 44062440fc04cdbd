//! Draws an error for a terminal or a batch log: message, the lines around the value, remedy.
//!
//! In the manner of rustc, which most people have seen. Plain ASCII, no colour, wrapped at spaces
//! only (a path must stay in one piece, to be copied). miette's own drawing breaks paths at slashes
//! and brings twenty crates along.

use super::error::{ConfigError, Place};

/// Columns of a line, unless a single word or the file itself is longer.
const WIDTH: usize = 100;

/// Lines of the file shown before and after the one that matters.
const CONTEXT: usize = 2;

/// The whole error on one screen: message, the lines of the file around it, remedy. Plain ASCII but
/// for what the file itself holds, at most 100 columns where words allow, ends with a newline.
#[must_use]
pub fn screen(error: &ConfigError) -> String {
    let mut out = wrapped("error: ", &error.bare());
    match error.place() {
        Place::File { path, text, line, start, len } => {
            let column = column(text, *start);
            out.push_str(&format!("  --> {}:{line}:{}\n", path.display(), column + 1));
            out.push_str(&excerpt(text, *line, column, text[*start..*start + *len].chars().count()));
        }
        Place::Env(name) => out.push_str(&format!("  --> environment variable {name}\n")),
        Place::Flag(name) => out.push_str(&format!("  --> flag {name}\n")),
        Place::Nowhere => {}
    }
    out + &wrapped(" help: ", error.remedy())
}

/// Characters between the beginning of the line and a byte.
fn column(text: &str, start: usize) -> usize {
    text[..start].chars().rev().take_while(|c| *c != '\n').count()
}

fn excerpt(text: &str, line: usize, column: usize, len: usize) -> String {
    let first = line.saturating_sub(CONTEXT).max(1);
    let margin = (line + CONTEXT).to_string().len();
    let empty = format!("{:margin$} |", "");
    let mut out = format!("{empty}\n");
    for (number, shown) in (1..).zip(text.lines()).skip(first - 1).take(line - first + 1 + CONTEXT) {
        let shown = format!("{number:margin$} | {}", shown.replace('\t', " "));
        out.push_str(&format!("{}\n", shown.trim_end()));
        if number == line {
            out.push_str(&format!("{empty} {:column$}{}\n", "", "^".repeat(len.max(1))));
        }
    }
    out + &empty + "\n"
}

/// The text behind a title, further lines indented as far; a line's own indentation is kept when it
/// wraps.
fn wrapped(title: &str, text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let lead = &line[..line.len() - line.trim_start().len()];
        let mut row = lead.to_owned();
        for word in line.split_whitespace() {
            if row.len() > lead.len() && title.len() + row.len() + 1 + word.len() > WIDTH {
                push(&mut out, title, &row);
                row.truncate(lead.len());
            }
            if row.len() > lead.len() {
                row.push(' ');
            }
            row.push_str(word);
        }
        push(&mut out, title, &row);
    }
    out
}

fn push(out: &mut String, title: &str, row: &str) {
    let title = if out.is_empty() { title } else { &" ".repeat(title.len()) };
    out.push_str(&format!("{title}{row}\n"));
}
