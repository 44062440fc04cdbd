//! Turns what serde says about the shape of a configuration into what a user can act on.
//!
//! serde's derive knows the path, the place and the accepted keys, but speaks of sequences and
//! structs. Its wording has been the same for a decade; should it change, the tests of this
//! module's messages fail and users see serde's own.

use super::error::{ErrorKind, Wrong, wrong};
use super::renamed::Renamed;
use super::suggest::nearest;

/// Sections and keys of the design that this version does not have.
const LATER: &[&str] = &["complete_wait"];

/// A complaint about the shape, and the field that it is about (perhaps empty).
pub(super) struct Misshape {
    pub(super) kind: ErrorKind,
    pub(super) field: String,
    pub(super) wrong: Wrong,
    /// The setting, if it is there under its old and its new name.
    pub(super) twice: Option<&'static Renamed>,
}

/// Reads serde's message, such as ``tiers[0]: unknown field `capcity`, expected one of ...``.
pub(super) fn explain(error: &serde_yaml::Error) -> Misshape {
    let text = error.to_string();
    let text = error.location().map_or(text.as_str(), |_| strip_position(&text));
    let (field, message) = split_field(text);
    let field = field.to_owned();
    let duplicate = message.strip_prefix("duplicate field ");
    if let Some(twice) = duplicate.and_then(|name| Renamed::by_new_name(name.trim_matches('`'))) {
        return Misshape { kind: ErrorKind::OutOfBounds, field, wrong: twice.both_given(), twice: Some(twice) };
    }
    let (kind, wrong) = reword(message);
    Misshape { kind, field, wrong, twice: None }
}

/// The message without ` at line 3 column 5`, which the place says already.
pub(super) fn strip_position(text: &str) -> &str {
    text.split(" at line ").next().unwrap_or(text)
}

fn split_field(text: &str) -> (&str, &str) {
    match text.split_once(": ") {
        Some((field, message)) if !field.contains(' ') => (field, message),
        _ => ("", text),
    }
}

fn reword(message: &str) -> (ErrorKind, Wrong) {
    if message.starts_with("unknown field") {
        return (ErrorKind::UnknownKey, unknown(message));
    }
    if let Some(key) = message.strip_prefix("missing field ") {
        return (ErrorKind::Missing, wrong(format!("{key} is missing"), format!("add {key}")));
    }
    if let Some(key) = message.strip_prefix("duplicate field ") {
        return (ErrorKind::Syntax, wrong(format!("{key} is there twice"), "keep one of the two"));
    }
    match message.strip_prefix("invalid type: ").and_then(|rest| rest.split_once(", expected ")) {
        Some((found, expected)) => (ErrorKind::WrongType, mistyped(found, expected)),
        None => (ErrorKind::WrongType, wrong(message, "`monarch config show` prints every key with its value")),
    }
}

fn unknown(message: &str) -> Wrong {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let key = quoted.next().unwrap_or_default();
    let known: Vec<&str> = quoted.filter(|name| !Renamed::is_old(name)).collect();
    let list = format!("known here: {}", known.join(", "));
    if LATER.contains(&key) {
        return wrong(format!("`{key}` is not available yet"), format!("leave it out; {list}"));
    }
    let remedy = nearest(key, &known).map_or(list.clone(), |near| format!("did you mean `{near}`? {list}"));
    wrong(format!("unknown key `{key}`"), remedy)
}

fn mistyped(found: &str, expected: &str) -> Wrong {
    let found = match found {
        "sequence" => "a list",
        "map" => "a section with keys of its own",
        "unit value" | "null" => "nothing",
        other => other.split_once(' ').map_or(other, |(_, value)| value),
    };
    let (expected, remedy) = match expected {
        "a sequence" => ("a list", "write a list: `[a, b]`, or one `- a` per line; with --set, `KEY=[a, b]`"),
        "a single value" => (expected, "write one value after the colon"),
        "nodes" => ("a list of nodes", "write a list: `[node1, node2]`, or a text: \"node[01-08]\""),
        "a path, or a path with aliases" => (expected, "write `- /path`, or `- { path: /path, aliases: [/other] }`"),
        "a path, or a path with settings" => (expected, "write `- /path`, or `- { path: /path, fsync: publish }`"),
        _ => (
            "a section",
            "write the keys of the section below it, indented, as `key: value`; with --set, write `SECTION.KEY=VALUE`",
        ),
    };
    wrong(format!("{expected} belongs here, and this is {found}"), remedy)
}
