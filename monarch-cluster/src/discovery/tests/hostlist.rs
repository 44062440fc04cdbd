//! Names in brackets, beside a plain expansion.

use std::collections::HashSet;

use proptest::prelude::*;

use super::super::*;

#[test]
fn every_form_that_launchers_write() {
    for (text, names) in [
        ("", ""),
        (" , ,\n", ""),
        ("node1", "node1"),
        ("a,b c\td\n", "a b c d"),
        ("a[1-3,7]b[01-02]", "a1b01 a1b02 a2b01 a2b02 a3b01 a3b02 a7b01 a7b02"),
        ("[8-12]", "8 9 10 11 12"),
        ("[08-12]", "08 09 10 11 12"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("n[9-0011]", "n9 n10 n11"),
        ("n[0-10/5]-ib0.x.org", "n0-ib0.x.org n5-ib0.x.org n10-ib0.x.org"),
        ("n[ 1 , 3 ],m", "n1 n3 m"),
        ("n[1-2],n[2-3],n1", "n1 n2 n3"),
        ("fd00::1,10.0.0.1", "fd00::1 10.0.0.1"),
        ("n[18446744073709551615]", "n18446744073709551615"),
    ] {
        let found = parse_hostlist(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(found.join(" "), names, "{text}");
    }
    assert_eq!(parse_nodes("[::1]").unwrap(), ["[::1]"]);
    assert_eq!(parse_nodes(" [fd00::1]:7000 ").unwrap(), ["[fd00::1]:7000"]);
    assert_eq!(parse_nodes("a[1-2]").unwrap(), ["a1", "a2"]);
}

#[test]
fn mistakes_say_what_to_write() {
    for (text, fragment) in [
        ("n[1-3", "bracket too many or too few"),
        ("n1-3]", "bracket too many or too few"),
        ("n[1[2]]", "bracket too many or too few"),
        ("n[]", "is not a range"),
        ("n[1,]", "is not a range"),
        ("n[3-1]", "the smaller number first"),
        ("n[1-]", "is not a range"),
        ("n[a-c]", "is not a range"),
        ("n[1-2-3]", "is not a range"),
        ("n[1-4/0]", "is not a range"),
        ("n[1/]", "is not a range"),
        ("n[99999999999999999999]", "is not a range"),
        ("n$", "cannot be the name of a node"),
        ("n\u{e9}", "cannot be the name of a node"),
        ("n\u{1b}[2J", "range"),
    ] {
        let error = parse_hostlist(text).unwrap_err().to_string();
        assert!(error.contains(fragment), "{text}: {error}");
        assert!(!error.contains('\u{1b}'));
    }
}

#[test]
fn what_a_list_may_ask_for_is_bounded() {
    use HostlistError::{Long, LongName, Many};
    assert_eq!(parse_hostlist("n[0-65535]").unwrap().len(), MAX_NAMES);
    let (long, wide) = ("x".repeat(MAX_NAME + 1), "0".repeat(100_000));
    let brackets = "[1]".repeat(100_000);
    for (text, error) in [
        ("n[0-65536]", Many),
        ("n[0-18446744073709551615]", Many),
        ("n[0-65535],m", Many),
        ("n[0-256]m[0-256]", Many),
        ("n[0-40000,0-40000]", Many),
        ("n[0-65535/1][0-65535][0-65535][0-65535][0-65535]", Many),
        (long.as_str(), LongName),
        (&format!("n[{wide}]"), LongName),
        (&brackets, LongName),
    ] {
        assert_eq!(parse_hostlist(text), Err(error), "{}", &text[..text.len().min(60)]);
    }
    assert_eq!(parse_hostlist(&",".repeat(MAX_LENGTH + 1)), Err(Long(MAX_LENGTH + 1)));
}

/// A part of a name: a text, or ranges of first, how many more, step, width.
#[derive(Clone, Debug)]
enum Piece {
    Text(String),
    Ranges(Vec<(u64, u64, u64, usize)>),
}

fn piece() -> impl Strategy<Value = Piece> {
    let range = (0_u64..1200, 0_u64..4, 1_u64..4, 1_usize..6);
    prop_oneof!["[a-z.-]{1,4}".prop_map(Piece::Text), prop::collection::vec(range, 1..4).prop_map(Piece::Ranges)]
}

fn write(item: &[Piece]) -> String {
    let range = |(first, more, step, width): &(u64, u64, u64, usize)| match (more, step) {
        (0, _) => format!("{first:0width$}"),
        (_, 1) => format!("{first:0width$}-{}", first + more),
        _ => format!("{first:0width$}-{}/{step}", first + more * step),
    };
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => text.clone(),
        Piece::Ranges(ranges) => format!("[{}]", ranges.iter().map(range).collect::<Vec<_>>().join(",")),
    };
    item.iter().map(piece).collect()
}

/// All names of an item, each piece put behind all names so far.
fn plainly(item: &[Piece]) -> Vec<String> {
    let mut names = vec![String::new()];
    for piece in item {
        let tails: Vec<String> = match piece {
            Piece::Text(text) => vec![text.clone()],
            Piece::Ranges(ranges) => ranges
                .iter()
                .flat_map(|(first, more, step, width)| {
                    (0..=*more).map(move |n| format!("{:0w$}", first + n * step, w = *width))
                })
                .collect(),
        };
        names = names.iter().flat_map(|name| tails.iter().map(move |tail| format!("{name}{tail}"))).collect();
    }
    names
}

proptest! {
    #[test]
    fn as_the_plain_expansion(items in prop::collection::vec(prop::collection::vec(piece(), 1..4), 0..4), gap in "[, \t]{1,2}") {
        let text = items.iter().map(|item| write(item)).collect::<Vec<_>>().join(&gap);
        let mut seen = HashSet::new();
        let names: Vec<String> = items.iter().flat_map(|item| plainly(item)).filter(|name| seen.insert(name.clone())).collect();
        prop_assert_eq!(parse_hostlist(&text), Ok(names), "{}", text);
    }

    #[test]
    fn any_text_is_read_or_refused(text in r"[\[\]0-9a-c,/ -]{0,40}|\PC{0,20}") {
        if let Ok(names) = parse_hostlist(&text) {
            let different: HashSet<&String> = names.iter().collect();
            prop_assert!(different.len() == names.len() && names.len() <= MAX_NAMES);
            prop_assert!(names.iter().all(|name| !name.is_empty() && name.len() <= MAX_NAME));
        }
    }
}
