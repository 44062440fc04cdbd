//! Numbers and texts of traces.

pub(super) fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// The difference of two numbers, whatever they are.
pub(super) fn put_delta(out: &mut Vec<u8>, from: u64, to: u64) {
    let d = to.wrapping_sub(from).cast_signed();
    put(out, ((d << 1) ^ (d >> 63)).cast_unsigned());
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put(out, text.len() as u64);
    out.extend_from_slice(text);
}

/// What is left of a block.
#[derive(Debug)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn take(&mut self) -> Option<u64> {
        let mut n = 0;
        for at in 0..10 {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            n |= u64::from(byte & 0x7f).checked_shl(7 * at)?;
            if byte & 0x80 == 0 {
                return (at < 9 || *byte < 2).then_some(n);
            }
        }
        None
    }

    pub(super) fn take_delta(&mut self, from: u64) -> Option<u64> {
        let d = self.take()?;
        Some(from.wrapping_add((d >> 1) ^ 0u64.wrapping_sub(d & 1)))
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
