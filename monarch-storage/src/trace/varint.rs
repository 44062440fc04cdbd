//! Encodes numbers and texts of traces.

use integer_encoding::VarInt;

/// Appends a number.
pub(super) fn put(out: &mut Vec<u8>, n: u64) {
    put_any(out, n);
}

/// Appends the difference of two numbers, whatever they are.
pub(super) fn put_delta(out: &mut Vec<u8>, from: u64, to: u64) {
    put_any(out, to.wrapping_sub(from).cast_signed());
}

fn put_any(out: &mut Vec<u8>, n: impl VarInt) {
    let mut bytes = [0; MAX_NUMBER_BYTES];
    let len = n.encode_var(&mut bytes);
    out.extend_from_slice(&bytes[..len]);
}

/// Bytes of the longest number.
const MAX_NUMBER_BYTES: usize = 10;

/// Appends a text with its length in front.
pub(super) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put(out, text.len() as u64);
    out.extend_from_slice(text);
}

/// The rest of a block.
#[derive(Debug)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn take(&mut self) -> Option<u64> {
        self.take_any()
    }

    pub(super) fn take_delta(&mut self, from: u64) -> Option<u64> {
        let difference: i64 = self.take_any()?;
        Some(from.wrapping_add(difference.cast_unsigned()))
    }

    fn take_any<N: VarInt>(&mut self) -> Option<N> {
        let (n, len) = N::decode_var(self.0)?;
        self.0 = self.0.get(len..)?;
        Some(n)
    }

    pub(super) fn take_text(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.take()?).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_written_as_traces_on_disk_have_them() {
        let mut out = Vec::new();
        [0, 127, 128, 300, u64::MAX].into_iter().for_each(|n| put(&mut out, n));
        let mut expected = vec![0, 127, 0x80, 1, 0xac, 2];
        expected.extend([0xff; 9]);
        expected.push(1);
        assert_eq!(out, expected);
        out.clear();
        [(0, 0), (1, 0), (0, 1), (0, 150), (0, 1 << 63)]
            .into_iter()
            .for_each(|(from, to)| put_delta(&mut out, from, to));
        let mut expected = vec![0, 1, 2, 0xac, 2];
        expected.extend([0xff; 9]);
        expected.push(1);
        assert_eq!(out, expected);
        for beyond in [&[0xff; 9][..], &[0xff; 10], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]] {
            assert_eq!(Bytes(beyond).take(), None, "{beyond:?}");
        }
    }

    proptest! {
        #[test]
        fn numbers_come_back(a in any::<u64>(), b in any::<u64>(), shift in 0u32..64, text in any::<Vec<u8>>()) {
            let (a, mut out) = (a >> shift, Vec::new());
            put(&mut out, a);
            put_delta(&mut out, b, a);
            put_text(&mut out, &text);
            let mut bytes = Bytes(&out);
            prop_assert_eq!(bytes.take(), Some(a));
            prop_assert_eq!(bytes.take_delta(b), Some(a));
            prop_assert_eq!(bytes.take_text(), Some(&text[..]));
            prop_assert_eq!((bytes.take(), bytes.take_text()), (None, None));
        }
    }
}
