//! Path patterns of fault rules: `?` and `*` stay within a path component, `**` crosses components.

/// Whether `path` matches `pattern`; a pattern without wildcards matches itself only.
pub(crate) fn matches(pattern: &str, path: &str) -> bool {
    matches_bytes(pattern.as_bytes(), path.as_bytes())
}

fn matches_bytes(pattern: &[u8], path: &[u8]) -> bool {
    match pattern {
        [] => path.is_empty(),
        [b'*', b'*', rest @ ..] => {
            let rest = rest.strip_prefix(b"/").unwrap_or(rest);
            (0..=path.len()).any(|n| matches_bytes(rest, &path[n..]))
        }
        [b'*', rest @ ..] => {
            let end = path.iter().position(|&b| b == b'/').unwrap_or(path.len());
            (0..=end).any(|n| matches_bytes(rest, &path[n..]))
        }
        [b'?', rest @ ..] => path.split_first().is_some_and(|(&b, tail)| b != b'/' && matches_bytes(rest, tail)),
        [first, rest @ ..] => path.split_first().is_some_and(|(b, tail)| b == first && matches_bytes(rest, tail)),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn wildcards() {
        for (pattern, path, expected) in [
            ("a/b", "a/b", true),
            ("a/b", "a/bc", false),
            ("a/*", "a/b.jpg", true),
            ("a/*", "a/b/c", false),
            ("**", "a/b/c", true),
            ("**/c", "a/b/c", true),
            ("**/c", "c", true),
            ("a/?.bin", "a/1.bin", true),
            ("a/?.bin", "a/11.bin", false),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }
}
