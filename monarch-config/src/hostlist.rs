//! Names in brackets: `node[01-08,12]-ib`, `a[1-3]b[01-02]`, as Slurm, pdsh and ClusterShell write
//! and read them.
//!
//! A range keeps the width of its first number (`[08-12]` gives 08, `[8-12]` gives 8) and may have
//! a step (`[0-10/2]`). Several brackets in a name give all combinations, the last one varying
//! fastest. Names are separated by commas or white space.
//!
//! The list comes from outside, so what it may ask for is bounded before anything is made:
//! [`MAX_LENGTH`], [`MAX_NAMES`], [`MAX_NAME`].

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

/// Bytes that a list may have.
pub const MAX_LENGTH: usize = 1 << 20;
/// Names that a list may stand for; the most that Slurm itself makes of a range.
pub const MAX_NAMES: usize = 65_536;
/// Bytes that a name may have: what DNS allows, and a port.
pub const MAX_NAME: usize = 259;

/// A list of nodes that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostlistError {
    /// More text than [`MAX_LENGTH`].
    #[error("the list of nodes has {0} bytes, more than {MAX_LENGTH}: write ranges, such as node[01-64]")]
    Long(usize),
    /// More names than [`MAX_NAMES`].
    #[error("the list of nodes stands for more than {MAX_NAMES} names: check the ranges")]
    Many,
    /// A name longer than [`MAX_NAME`].
    #[error("a name in the list of nodes is longer than {MAX_NAME} bytes: no node can be called that")]
    LongName,
    /// A bracket without its other half, or inside another one.
    #[error("`{0}` has a bracket too many or too few: write node[01-08], one pair for each range")]
    Bracket(String),
    /// What is between brackets is no range.
    #[error("`{0}` is not a range of numbers: write such as 8, 01-08 or 0-10/2, the smaller number first")]
    Range(String),
    /// A character that no name of a node has.
    #[error("`{0}` cannot be the name of a node: write letters, digits, `-`, `_` and `.`, separated by commas")]
    Character(String),
}

/// The names that a list stands for, in order, each once. An empty list has none.
///
/// # Errors
/// What is wrong with the list, or that it asks for too much.
pub fn parse_hostlist(text: &str) -> Result<Vec<String>, HostlistError> {
    if text.len() > MAX_LENGTH {
        return Err(HostlistError::Long(text.len()));
    }
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    let mut left = MAX_NAMES;
    for item in items(text)? {
        for name in expand(item, &mut left)? {
            if seen.insert(name.clone()) {
                names.push(name);
            }
        }
    }
    Ok(names)
}

/// As [`parse_hostlist`], but an IPv6 address in brackets, with or without a port, is one name and
/// no range.
///
/// # Errors
/// As [`parse_hostlist`].
pub fn parse_nodes(text: &str) -> Result<Vec<String>, HostlistError> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok() {
        return Ok(vec![text.to_owned()]);
    }
    parse_hostlist(text)
}

/// What stands between separators that are not in brackets.
fn items(text: &str) -> Result<Vec<&str>, HostlistError> {
    let (mut found, mut start, mut open) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '[' | ']' if open == (c == '[') => return Err(HostlistError::Bracket(shown(&text[start..]))),
            '[' | ']' => open = !open,
            ',' | ' ' | '\t' | '\r' | '\n' if !open => {
                found.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if open {
        return Err(HostlistError::Bracket(shown(&text[start..])));
    }
    found.push(&text[start..]);
    found.retain(|item| !item.is_empty());
    Ok(found)
}

/// The names of one item, whose brackets are known to match; `left` is how many more there may be.
fn expand(item: &str, left: &mut usize) -> Result<Vec<String>, HostlistError> {
    // Each part is what a name may have at that place: a text alone, or the numbers of a pair of
    // brackets.
    let mut parts: Vec<Vec<String>> = Vec::new();
    let mut total = 1_usize;
    for piece in item.split_inclusive(']') {
        let (text, ranges) =
            piece.strip_suffix(']').and_then(|p| p.split_once('[')).map_or((piece, None), |(t, r)| (t, Some(r)));
        if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:%".contains(&b)) {
            return Err(HostlistError::Character(shown(item)));
        }
        if !text.is_empty() {
            parts.push(vec![text.to_owned()]);
        }
        if let Some(ranges) = ranges {
            let numbers = numbers(ranges, *left / total)?;
            total *= numbers.len();
            parts.push(numbers);
        }
        if parts.len() > MAX_NAME {
            return Err(HostlistError::LongName);
        }
    }
    *left = left.checked_sub(total).ok_or(HostlistError::Many)?;
    (0..total).map(|at| name(&parts, at, total)).collect()
}

/// The `at`th of all combinations.
fn name(parts: &[Vec<String>], mut at: usize, mut total: usize) -> Result<String, HostlistError> {
    let mut name = String::new();
    for part in parts {
        total /= part.len();
        name.push_str(&part[at / total]);
        at %= total;
    }
    if name.len() > MAX_NAME { Err(HostlistError::LongName) } else { Ok(name) }
}

/// The numbers of `1-3,7`; never none, and at most `most`.
fn numbers(ranges: &str, most: usize) -> Result<Vec<String>, HostlistError> {
    let mut found = Vec::new();
    for text in ranges.split(',') {
        let range = Range::read(text.trim()).ok_or_else(|| HostlistError::Range(shown(text)))?;
        if range.width > MAX_NAME {
            return Err(HostlistError::LongName);
        }
        if range.count() > (most - found.len()) as u64 {
            return Err(HostlistError::Many);
        }
        let width = range.width;
        found.extend((0..range.count()).map(|n| format!("{:0width$}", range.first + n * range.step)));
    }
    Ok(found)
}

/// `first-last/step`, its numbers written with at least `width` digits.
struct Range {
    first: u64,
    last: u64,
    step: u64,
    width: usize,
}

impl Range {
    fn read(text: &str) -> Option<Self> {
        let (ends, step) = text.split_once('/').map_or((text, "1"), |(ends, step)| (ends, step));
        let (first, last) = ends.split_once('-').unwrap_or((ends, ends));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| text.parse().ok()).flatten()
        };
        let range = Self { first: number(first)?, last: number(last)?, step: number(step)?, width: first.len() };
        (range.first <= range.last && range.step > 0).then_some(range)
    }

    /// How many numbers; saturating, which is too many anyway.
    fn count(&self) -> u64 {
        ((self.last - self.first) / self.step).saturating_add(1)
    }
}

/// A text from outside for a message: short, on one line.
fn shown(text: &str) -> String {
    let cut: String = text.chars().take(40).collect();
    let dots = if cut.len() < text.len() { "..." } else { "" };
    format!("{}{dots}", cut.escape_debug())
}
