//! [`RatioEstimator`]: estimates the compressed size of files: learned by suffix.
//!
//! A suffix whose files do not shrink is no longer tried, but for one file now and then.

use std::collections::HashMap;

/// Files of a suffix after which its ratio counts as known.
const FILES_UNTIL_KNOWN: u64 = 8;
/// One file in this many of a suffix that does not shrink is tried again.
const RETRY_DIVISOR: u64 = 64;
/// Suffixes that are learned.
const MAX_SUFFIXES: usize = 1024;
/// Slack of an estimate: one part in this many, and the bytes of a header.
const SLACK_DIVISOR: u64 = 32;
const HEADER_BYTES: u64 = 512;

/// Totals over the files with one suffix.
#[derive(Clone, Copy, Debug, Default)]
struct Learned {
    tried: u64,
    worth: u64,
    bytes: u64,
    stored: u64,
    passed_over: u64,
}

impl Learned {
    /// Estimated compressed size of a file of `size` bytes, with some slack.
    fn scaled(&self, size: u64) -> u64 {
        let scaled = u128::from(size) * u128::from(self.stored) / u128::from(self.bytes.max(1));
        let scaled = u64::try_from(scaled).unwrap_or(size);
        (scaled + scaled / SLACK_DIVISOR + HEADER_BYTES).min(size + HEADER_BYTES)
    }
}

/// Totals by suffix (its first eight bytes).
#[derive(Debug, Default)]
pub(crate) struct RatioEstimator(HashMap<[u8; 8], Learned>);

/// The first eight bytes of the suffix of the file name, in lower case.
pub(crate) fn suffix(rel: &[u8]) -> [u8; 8] {
    let file = rel.rsplit(|b| *b == b'/').next().unwrap_or_default();
    let mut out = [0; 8];
    if let Some(dot) = file.iter().rposition(|b| *b == b'.') {
        out.iter_mut().zip(&file[dot + 1..]).for_each(|(to, b)| *to = b.to_ascii_lowercase());
    }
    out
}

impl RatioEstimator {
    /// Estimated bytes of the compressed copy of a file: its size while nothing is known. `None` if
    /// it is not worth trying.
    pub(crate) fn estimate(&mut self, rel: &[u8], size: u64) -> Option<u64> {
        let Some(of) = self.0.get_mut(&suffix(rel)) else { return Some(size) };
        if of.tried >= FILES_UNTIL_KNOWN && of.worth == 0 {
            of.passed_over += 1;
            return of.passed_over.is_multiple_of(RETRY_DIVISOR).then_some(size);
        }
        if of.tried < FILES_UNTIL_KNOWN {
            return Some(size);
        }
        Some(of.scaled(size))
    }

    /// As [`RatioEstimator::estimate`], without counting, for plans: the file's size unless it is
    /// known to shrink.
    pub(crate) fn guess(&self, rel: &[u8], size: u64) -> u64 {
        self.0
            .get(&suffix(rel))
            .filter(|of| of.tried >= FILES_UNTIL_KNOWN && of.worth > 0)
            .map_or(size, |of| of.scaled(size))
    }

    /// Whether files with this suffix are known to shrink enough.
    pub(crate) fn is_worth(&self, rel: &[u8]) -> bool {
        self.0.get(&suffix(rel)).is_some_and(|of| of.tried >= FILES_UNTIL_KNOWN && of.worth * 8 >= of.tried * 7)
    }

    /// Notes that a file of `bytes` bytes was compressed to `stored`; `None` if it did not shrink
    /// enough.
    pub(crate) fn learn(&mut self, rel: &[u8], bytes: u64, stored: Option<u64>) {
        let key = suffix(rel);
        if self.0.len() >= MAX_SUFFIXES && !self.0.contains_key(&key) {
            return;
        }
        let of = self.0.entry(key).or_default();
        of.tried += 1;
        of.worth += u64::from(stored.is_some());
        of.bytes += bytes;
        of.stored += stored.unwrap_or(bytes);
        if of.tried >= 4 * RETRY_DIVISOR {
            // Recent files count more.
            *of =
                Learned { tried: of.tried / 2, worth: of.worth / 2, bytes: of.bytes / 2, stored: of.stored / 2, ..*of };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_learned_and_forgotten() {
        let mut r = RatioEstimator::default();
        assert_eq!((r.estimate(b"a/b.TXT", 1000), r.is_worth(b"b.txt")), (Some(1000), false));
        (0..FILES_UNTIL_KNOWN).for_each(|_| r.learn(b"x.txt", 1 << 20, Some(1 << 19)));
        assert!(r.is_worth(b"a/B.Txt"));
        let guess = r.estimate(b"b.txt", 2 << 20).unwrap();
        assert!((1 << 20..(1 << 20) + (1 << 16)).contains(&guess), "{guess}");
        // Nothing of it shrinks: not tried, but now and then.
        (0..FILES_UNTIL_KNOWN).for_each(|_| r.learn(b"a.jpg", 1000, None));
        let tried = (0..RETRY_DIVISOR * 2).filter(|_| r.estimate(b"c.JPG", 5).is_some()).count();
        assert_eq!(tried, 2);
        (0..4 * RETRY_DIVISOR).for_each(|_| r.learn(b"a.jpg", 1000, Some(100)));
        assert!(r.is_worth(b"a.jpg") && r.estimate(b"a.jpg", 1 << 20).unwrap() < 1 << 18);
        assert_eq!(suffix(b"dir.d/file"), [0; 8]);
    }
}
