//! What no user's setting exceeds, as the administrator of the node has set it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The caps of a site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Caps {
    pub(super) max_inflight: Option<Cap<usize>>,
    pub(super) bandwidth_limit: Option<Cap<u64>>,
    pub(super) iops_limit: Option<Cap<usize>>,
    pub(super) tier_capacity: Option<Cap<u64>>,
    pub(super) total_capacity: Option<Cap<u64>>,
    pub(super) index_memory: Option<Cap<u64>>,
    pub(super) forbidden_roots: Vec<Cap<String>>,
    pub(super) drain_bandwidth: Option<Cap<u64>>,
    pub(super) max_pending: Option<Cap<u64>>,
    pub(super) forbidden_outputs: Vec<Cap<String>>,
}

/// A cap, and its line in the file of the site, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cap<T> {
    pub(super) value: T,
    pub(super) line: usize,
}

impl Caps {
    /// The pattern that forbids a root, if one does.
    pub(super) fn forbids(&self, spellings: &[&Path]) -> Option<&Cap<String>> {
        first_that_meets(&self.forbidden_roots, spellings)
    }

    /// The pattern that forbids an output root, if one does.
    pub(super) fn forbids_output(&self, spellings: &[&Path]) -> Option<&Cap<String>> {
        first_that_meets(&self.forbidden_outputs, spellings)
    }
}

fn first_that_meets<'a>(patterns: &'a [Cap<String>], spellings: &[&Path]) -> Option<&'a Cap<String>> {
    patterns.iter().find(|cap| spellings.iter().any(|path| meets(&cap.value, path)))
}

/// Whether a path is a directory that the pattern names, lies below one, or may hold one.
fn meets(pattern: &str, path: &Path) -> bool {
    let pattern = pattern.as_bytes().split(|&c| c == b'/').filter(|name| !name.is_empty());
    let path = path.as_os_str().as_bytes().split(|&c| c == b'/').filter(|name| !name.is_empty());
    pattern.zip(path).all(|(pattern, name)| fits(pattern, name))
}

/// Whether a name fits a pattern with `*` and `?`.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where to continue when a character does not fit: behind the last star, one character further.
    let mut star = None::<(usize, usize)>;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((at, from)) = star else { return false };
                star = Some((at, from + 1));
                p = at + 1;
                n = from + 1;
            }
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_forbids_directories_below_and_above_what_it_names() {
        for (pattern, path, meets_it) in [
            ("/home", "/home", true),
            ("/home", "/home/me/set", true),
            ("/home", "/homes", false),
            ("/scratch/*/private", "/scratch/ann/private/set", true),
            ("/scratch/*/private", "/scratch/ann", true),
            ("/scratch/*/private", "/scratch/ann/public", false),
            ("/data/set?", "/data/set1", true),
            ("/data/set?", "/data/set", false),
            ("/data/*-raw*", "/data/a-b-raw2", true),
            ("/data/*-raw", "/data/a-raw-", false),
        ] {
            assert_eq!(meets(pattern, Path::new(path)), meets_it, "{pattern} {path}");
        }
    }

    #[test]
    fn a_star_takes_any_number_of_characters() {
        assert!(fits(b"*", b"") && fits(b"a*b*c", b"axxbxbyc") && fits(b"**", b"x"));
        assert!(!fits(b"a*b", b"acx") && !fits(b"?", b"") && !fits(b"", b"x"));
    }
}
