//! The `Range` of a request, after RFC 9110 section 14: one range of bytes.
//!
//! Several ranges in one request are refused with 416: nothing that talks to an agent asks for
//! them, and an answer in parts would be as large as the file many times over. A unit other than
//! `bytes` is ignored, as the RFC demands. (The crate `http-range-header` refuses such units, units
//! in capitals and numbers above 64 bits; the RFC allows all of them.)

use std::ops::Range;

/// The bytes asked for, before the length of the file is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// `bytes=first-last`: both included.
    Between(u64, u64),
    /// `bytes=first-`: from there to the end.
    From(u64),
    /// `bytes=-len`: this number at the end.
    Last(u64),
}

/// The header says `bytes` and then nothing that is one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRange;

impl ByteRange {
    /// Reads a value of `Range`; `None` for a unit that is not bytes.
    ///
    /// # Errors
    /// [`BadRange`] for several ranges, and for one that is malformed or ends before it begins.
    pub fn parse(value: &str) -> Result<Option<Self>, BadRange> {
        let (unit, set) = value.split_once('=').ok_or(BadRange)?;
        if !unit.trim().eq_ignore_ascii_case("bytes") {
            return Ok(None);
        }
        let (first, last) = set.trim_matches([' ', '\t']).split_once('-').ok_or(BadRange)?;
        let range = match (number(first)?, number(last)?) {
            (Some(first), Some(last)) if first <= last => Self::Between(first, last),
            (Some(first), None) => Self::From(first),
            (None, Some(len)) => Self::Last(len),
            _ => return Err(BadRange),
        };
        Ok(Some(range))
    }

    /// The bytes of a file of `len` bytes that this means, never none; `None` where there are none:
    /// 416.
    #[must_use]
    pub fn resolve(self, len: u64) -> Option<Range<u64>> {
        let range = match self {
            Self::Between(first, last) => first..last.saturating_add(1).min(len),
            Self::From(first) => first..len,
            Self::Last(count) => len.saturating_sub(count)..len,
        };
        (range.start < range.end).then_some(range)
    }
}

/// A number of any length, `None` if there are no digits. What is too large for 64 bits is past the
/// end of every file anyway.
fn number(digits: &str) -> Result<Option<u64>, BadRange> {
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(BadRange);
    }
    Ok((!digits.is_empty()).then(|| digits.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_three_forms() {
        assert_eq!(ByteRange::parse("bytes=0-499"), Ok(Some(ByteRange::Between(0, 499))));
        assert_eq!(ByteRange::parse("Bytes= 9500- "), Ok(Some(ByteRange::From(9500))));
        assert_eq!(ByteRange::parse("bytes=-500"), Ok(Some(ByteRange::Last(500))));
        assert_eq!(ByteRange::parse("lines=1-2"), Ok(None));
    }

    #[test]
    fn what_is_not_one_range_is_refused() {
        for bad in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=5-4",
            "bytes=0-1,3-4",
            "bytes=a-b",
            "bytes=+1-2",
            "bytes=1 -2",
            "bytes=--1",
        ] {
            assert_eq!(ByteRange::parse(bad), Err(BadRange), "{bad}");
        }
    }

    #[test]
    fn the_ends_of_numbers() {
        let huge = "9".repeat(40);
        assert_eq!(ByteRange::parse(&format!("bytes={huge}-")), Ok(Some(ByteRange::From(u64::MAX))));
        assert_eq!(ByteRange::Between(0, u64::MAX).resolve(u64::MAX), Some(0..u64::MAX));
        assert_eq!(ByteRange::From(u64::MAX).resolve(u64::MAX), None);
        assert_eq!(ByteRange::Last(0).resolve(9), None);
        assert_eq!(ByteRange::Last(3).resolve(0), None);
    }

    proptest! {
        /// The model: the bytes of a file are numbered; those that the words of the RFC name are
        /// kept.
        #[test]
        fn a_range_means_what_the_words_say(len in 0u64..20, first in 0u64..24, last in 0u64..24) {
            let kept = |keep: &dyn Fn(u64) -> bool| (0..len).filter(|at| keep(*at)).collect::<Vec<_>>();
            let cases = [
                (format!("bytes={first}-{last}"), kept(&|at| first <= at && at <= last)),
                (format!("bytes={first}-"), kept(&|at| first <= at)),
                (format!("bytes=-{last}"), kept(&|at| at + last >= len)),
            ];
            for (text, expected) in cases {
                let got = match ByteRange::parse(&text) {
                    Ok(Some(range)) => range.resolve(len).map_or(Vec::new(), Iterator::collect),
                    other => {
                        prop_assert!(first > last && other == Err(BadRange));
                        continue;
                    }
                };
                prop_assert_eq!(got, expected, "{} of {}", text, len);
            }
        }

        #[test]
        fn nothing_panics(value in "(bytes)?[= ]?\\PC{0,20}", len: u64) {
            if let Ok(Some(range)) = ByteRange::parse(&value)
                && let Some(part) = range.resolve(len)
            {
                prop_assert!(part.start < part.end && part.end <= len);
            }
        }
    }
}
