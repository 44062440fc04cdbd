//! Bytes as lower-case hex digits, as they stand in headers.

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};

/// `bytes` as hex digits.
pub(crate) fn encode(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

/// The bytes that exactly `2 * N` hex digits of either case stand for.
pub(crate) fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut out = [0; N];
    // (A buffer of another length than the text decodes to is a panic.)
    let fits = HEXLOWER_PERMISSIVE.decode_len(text.len()).is_ok_and(|len| len == N);
    (fits && HEXLOWER_PERMISSIVE.decode_mut(text.as_bytes(), &mut out).is_ok()).then_some(out)
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
