//! A change, as `run` hands it to the helper: with `run`'s own copies of the paths, so that it does
//! not matter what the caller does to its memory meanwhile.

use crate::calls::Kind;
use std::ffi::CString;

/// A path with whether it is relative to a directory that comes along as a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) text: CString,
    pub(crate) is_relative: bool,
}

/// A change to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The notification that it answers.
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    /// As [`crate::calls::Call::numbers`].
    pub(crate) numbers: [i64; 3],
    pub(crate) times: Option<[(i64, i64); 2]>,
    /// The caller's.
    pub(crate) umask: u32,
    /// Whether a helper that has died may have made it already.
    pub(crate) is_retry: bool,
    pub(crate) first: Path,
    pub(crate) second: Path,
}

const KINDS: [Kind; 11] = [
    Kind::Rename,
    Kind::Link,
    Kind::Unlink,
    Kind::Symlink,
    Kind::Truncate,
    Kind::Mode,
    Kind::Owner,
    Kind::Times,
    Kind::MakeDir,
    Kind::MakeNode,
    Kind::Probe,
];
/// Words before the texts.
const WORDS: usize = 14;

impl Request {
    /// As bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let kind = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or(KINDS.len());
        let flags = [self.is_retry, self.first.is_relative, self.second.is_relative, self.times.is_some()];
        let flags = (0..).zip(flags).fold(0, |all, (bit, is)| all | i64::from(is) << bit);
        let [(a, b), (c, d)] = self.times.unwrap_or_default();
        let [x, y, z] = self.numbers;
        let len = |path: &Path| path.text.as_bytes().len() as i64;
        let words: [i64; WORDS] = [
            self.id.cast_signed(),
            kind as i64,
            flags,
            x,
            y,
            z,
            a,
            b,
            c,
            d,
            self.umask.into(),
            len(&self.first),
            len(&self.second),
            0,
        ];
        let mut all: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        all.extend_from_slice(self.first.text.as_bytes());
        all.extend_from_slice(self.second.text.as_bytes());
        all
    }

    /// From [`Request::to_bytes`].
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, texts) = bytes.split_at_checked(8 * WORDS)?;
        let mut words = [0i64; WORDS];
        for (word, bytes) in words.iter_mut().zip(head.chunks_exact(8)) {
            *word = i64::from_ne_bytes(*bytes.first_chunk()?);
        }
        let [id, kind, flags, x, y, z, a, b, c, d, umask, first, second, _] = words;
        let (one, rest) = texts.split_at_checked(usize::try_from(first).ok()?)?;
        let two = (rest.len() == usize::try_from(second).ok()?).then_some(rest)?;
        let has = |bit: u32| flags >> bit & 1 != 0;
        let path = |text: &[u8], is_relative| Some(Path { text: CString::new(text).ok()?, is_relative });
        Some(Self {
            id: id.cast_unsigned(),
            kind: *KINDS.get(usize::try_from(kind).ok()?)?,
            numbers: [x, y, z],
            times: has(3).then_some([(a, b), (c, d)]),
            umask: u32::try_from(umask).ok()?,
            is_retry: has(0),
            first: path(one, has(1))?,
            second: path(two, has(2))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_its_bytes() {
        for kind in KINDS {
            let request = Request {
                id: u64::MAX - 5,
                kind,
                numbers: [-1, 0o755, i64::MIN],
                times: (kind == Kind::Times).then_some([(-1, 5), (7, 1_073_741_823)]),
                umask: 0o22,
                is_retry: kind == Kind::Link,
                first: Path { text: c"a/b".into(), is_relative: true },
                second: Path { text: c"/c".into(), is_relative: false },
            };
            let bytes = request.to_bytes();
            assert_eq!(Request::from_bytes(&bytes), Some(request));
            for len in 0..bytes.len() {
                assert_eq!(Request::from_bytes(&bytes[..len]), None);
            }
        }
    }
}
