//! Questions and answers as bytes: a version, which is another for each kind, then numbers, least
//! significant byte first.

use super::{Answer, Ask, Find, Found};
use monarch_abi::outputs::question::Subject;

/// First byte of questions about the order, and of their answers.
const VERSION: u8 = 1;
/// First byte of questions about names, and of their answers.
const NAMES_VERSION: u8 = 2;

fn encode(version: u8, numbers: &[u64]) -> Vec<u8> {
    [version].into_iter().chain(numbers.iter().flat_map(|number| number.to_le_bytes())).collect()
}

fn decode<const N: usize>(version: u8, bytes: &[u8]) -> Option<[u64; N]> {
    let numbers = bytes.strip_prefix(&[version])?;
    if numbers.len() != N * 8 {
        return None;
    }
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(numbers.chunks_exact(8)) {
        *to = u64::from_le_bytes(from.try_into().ok()?);
    }
    Some(out)
}

impl Ask {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(VERSION, &[self.clock, self.floor, self.wants])
    }

    /// From bytes; `None` if they are none of this version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        decode(VERSION, bytes).map(|[clock, floor, wants]| Self { clock, floor, wants })
    }
}

impl Answer {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(VERSION, &[self.acknowledged, u64::from(self.is_settled), self.owed, self.floor])
    }

    /// From bytes; `None` if they are none of this version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let [acknowledged, is_settled, owed, floor] = decode(VERSION, bytes)?;
        Some(Self { acknowledged, is_settled: is_settled != 0, owed, floor })
    }
}

impl Find {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [&[NAMES_VERSION, self.subject.to_byte()], self.path.as_slice()].concat()
    }

    /// From bytes; `None` if they are none of this version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let [subject, path @ ..] = bytes.strip_prefix(&[NAMES_VERSION])? else { return None };
        Some(Self { subject: Subject::of(*subject)?, path: path.to_vec() })
    }
}

impl Found {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(NAMES_VERSION, &[self.key, self.floor])
    }

    /// From bytes; `None` if they are none of this version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        decode(NAMES_VERSION, bytes).map(|[key, floor]| Self { key, floor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let answer = Answer { acknowledged: u64::MAX, is_settled: true, owed: 7, floor: 1 << 40 };
        assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        let ask = Ask { clock: 9, floor: 8, wants: u64::MAX };
        assert_eq!(Ask::decode(&ask.encode()), Some(ask));
        for bad in [&b""[..], b"\x01", b"\x02\0\0\0\0\0\0\0\0", &answer.encode()] {
            assert_eq!(Ask::decode(bad), None);
        }
        for (subject, path) in [(Subject::Name, &b"a/b"[..]), (Subject::Names, b"")] {
            let find = Find { subject, path: path.to_vec() };
            assert_eq!(Find::decode(&find.encode()), Some(find.clone()));
            assert_eq!(Ask::decode(&find.encode()), None);
        }
        let found = Found { key: 5, floor: u64::MAX };
        assert_eq!(Found::decode(&found.encode()), Some(found));
        for bad in [&b""[..], b"\x02", b"\x02xa", &ask.encode()] {
            assert_eq!(Find::decode(bad), None);
        }
    }
}
