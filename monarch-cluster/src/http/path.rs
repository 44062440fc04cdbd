//! What may be asked for: a path, and perhaps a query.
//!
//! The alphabet is small and there is no escaping in it: a path is what it looks like. Names with
//! other bytes in them have to be sent in hex or in a body.

/// Longest path and query.
pub const TARGET_MAX: usize = 10 * 1024;

/// The path and the query of a request's target; `None` if it has a byte that is not allowed
/// (letters, digits and `. _ ~ - / @ : + , =`, in the query `&` too), does not begin with one
/// slash, has an empty segment or one that is `.` or `..`, or is longer than [`TARGET_MAX`]. The
/// path `/` is allowed.
#[must_use]
pub fn split(target: &str) -> Option<(&str, Option<&str>)> {
    if target.len() > TARGET_MAX {
        return None;
    }
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let query_fits = query.is_none_or(|query| query.bytes().all(|byte| byte == b'&' || allowed(byte)));
    (query_fits && is_path(path)).then_some((path, query))
}

fn is_path(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    rest.is_empty() || (rest.bytes().all(allowed) && rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
}

fn allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._~-/@:+,=".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_targets_are_split() {
        assert_eq!(split("/"), Some(("/", None)));
        assert_eq!(split("/v1/file/7?size=3&x=a/b"), Some(("/v1/file/7", Some("size=3&x=a/b"))));
        assert_eq!(split("/a..b/...?"), Some(("/a..b/...", Some(""))));
    }

    #[test]
    fn escapes_are_refused() {
        let bad = [
            "",
            "a",
            "*",
            "http://x/",
            "//",
            "/a//b",
            "/a/",
            "/.",
            "/..",
            "/a/../b",
            "/a/..",
            "/%2e%2e/a",
            "/a%00",
            "/a\0",
            "/a b",
            "/a\\b",
            "/a;b",
            "/a#b",
            "/a?b?c",
            "/a?%2e",
            "/é",
            "/a\n",
            "/../etc/passwd",
        ];
        for target in bad {
            assert_eq!(split(target), None, "{target:?}");
        }
        assert!(split(&format!("/{}", "a".repeat(TARGET_MAX - 1))).is_some());
        assert!(split(&format!("/{}", "a".repeat(TARGET_MAX))).is_none());
    }

    proptest! {
        #[test]
        fn no_path_that_is_taken_leaves_its_root(target in "[/.a%?\\\\]{0,12}") {
            if let Some((path, _)) = split(&target) {
                let plain = std::path::Path::new(path).components().all(|part| {
                    matches!(part, std::path::Component::RootDir | std::path::Component::Normal(_))
                });
                prop_assert!(plain && !path.contains("//") && !path.contains("/./"));
            }
        }
    }
}
