//! Reads the decisions of the fuzzer from its bytes, front to back; after their end it reads zeros.

/// The rest of an input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let n = N.min(self.0.len());
        let (now, rest) = self.0.split_at(n);
        out[..n].copy_from_slice(now);
        self.0 = rest;
        out
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    /// A part of the input, after its length in 16 bits.
    pub(crate) fn part(&mut self) -> &'a [u8] {
        let len = usize::from(self.u16()).min(self.0.len());
        let (now, rest) = self.0.split_at(len);
        self.0 = rest;
        now
    }
}

/// Changes 1 to 8 bytes of `bytes` as the input says, mostly at a multiple of four, to a value that
/// is likely to break a parser.
pub(crate) fn patch(input: &mut Input<'_>, bytes: &mut [u8]) {
    let (how, what) = (input.u8(), input.u8());
    let at = match how & 3 {
        0 => usize::from(input.u8()) * 4,
        1 | 2 => usize::from(input.u16()) * 4,
        _ => input.u32() as usize,
    };
    let width = [1, 2, 4, 8][usize::from(how >> 2 & 3)].min(bytes.len());
    let at = at % (bytes.len() - width + 1);
    let read = |at: usize| {
        let mut word = [0; 8];
        word[..width].copy_from_slice(&bytes[at..at + width]);
        u64::from_le_bytes(word)
    };
    let len = bytes.len() as u64;
    let value = match what & 7 {
        0 => input.u64(),
        1 => u64::from(input.u8()),
        2 => u64::MAX,
        3 => read(at).wrapping_add_signed(i64::from(input.u8().cast_signed())),
        4 => len.wrapping_add_signed(i64::from(input.u8().cast_signed())),
        5 => 1 << (input.u8() % 64),
        6 => read(usize::from(input.u16()) * 4 % (bytes.len() - width + 1)),
        _ => read(at) ^ 1 << (input.u8() % 64),
    };
    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}
