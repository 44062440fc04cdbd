//! Questions and answers as bytes: a version, then numbers, least significant byte first.

use super::{Answer, Ask};

/// First byte of questions and answers.
const VERSION: u8 = 1;

fn encode(numbers: &[u64]) -> Vec<u8> {
    [VERSION].into_iter().chain(numbers.iter().flat_map(|number| number.to_le_bytes())).collect()
}

fn decode<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let numbers = bytes.strip_prefix(&[VERSION])?;
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
        encode(&[self.clock, self.floor, self.wants])
    }

    /// From bytes; `None` if they are none of this version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        decode(bytes).map(|[clock, floor, wants]| Self { clock, floor, wants })
    }
}

impl Answer {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(&[self.acknowledged, u64::from(self.is_settled), self.owed, self.floor])
    }

    /// From bytes; `None` if they are none of this version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let [acknowledged, is_settled, owed, floor] = decode(bytes)?;
        Some(Self { acknowledged, is_settled: is_settled != 0, owed, floor })
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
    }
}
