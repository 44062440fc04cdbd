//! Bytes as lower-case hex digits, as they stand in headers.

use std::fmt::Write as _;

/// `bytes` as hex digits.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing into a String cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// The bytes that exactly `2 * N` hex digits stand for.
pub(super) fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.as_bytes();
    if text.len() != N * 2 {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        assert_eq!(encode(&[0, 0x9f, 0xff]), "009fff");
        assert_eq!(decode::<3>("009fFF"), Some([0, 0x9f, 0xff]));
        for bad in ["", "00", "009ff", "009ffg", "+09fff", "0é9ff"] {
            assert_eq!(decode::<3>(bad), None, "{bad}");
        }
    }
}
