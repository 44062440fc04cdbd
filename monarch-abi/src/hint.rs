//! Hints of a job: small files in the runtime directory that a process writes and the agent takes.
//!
//! A process writes `hints/<process>-<number>.tmp`, gives it its name `.hint`, leaves a word among
//! its opens (see [`crate::accesses`]: what it opened before comes before the hint), counts up
//! [`Control::hinted`](crate::control::Control::hinted) and wakes the agent. `<process>` is a
//! number that it draws, because processes of containers may share those that the system gives
//! them; both are eight hexadecimal digits, so that the names of a process sort as they were made.
//! A process that dies on the way leaves a `.tmp`, which the agent removes. No process waits for an
//! answer.
//!
//! ```text
//! 0 magic  8 kind  12 process  16 value  24 time, ms of the coarse monotonic clock
//! 32 number of the hint  40 files (8 bytes each: segment + 1, id)
//! ```

/// First bytes of such a file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MONHINT2");
/// Length of its header.
pub const HEADER: usize = 40;
/// Directory of these files in the runtime directory.
pub const DIR: &str = "hints";
/// Suffix of one that is complete.
pub const SUFFIX: &str = ".hint";
/// Suffix of one that is being written.
pub const PARTIAL: &str = ".tmp";

/// What it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// The process (and those that it starts to read for it) will open these files in this order.
    Order = 1,
    /// These files, or all below these directories, are wanted soon.
    Prefetch = 2,
    /// How much these files, or all below these directories, matter: `value` below zero: not at
    /// all, above: more than others.
    Priority = 3,
    /// An epoch begins: number `value`, or the next one if that is below zero.
    EpochBegin = 4,
    /// The epoch has ended.
    EpochEnd = 5,
}

/// The header of a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it says.
    pub kind: Kind,
    /// The process that gives it: a number that it has drawn.
    pub process: u32,
    /// See [`Kind`].
    pub value: i64,
    /// When.
    pub ms: u64,
    /// Which of the hints of this process.
    pub number: u32,
}

impl Header {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; HEADER] {
        let who = u64::from(self.process) << 32 | self.kind as u64;
        let words = [MAGIC, who, self.value.cast_unsigned(), self.ms, u64::from(self.number)];
        let mut out = [0; HEADER];
        for (to, word) in out.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// The header that a file begins with.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let word = |n: usize| Some(u64::from_le_bytes(bytes.get(n * 8..n * 8 + 8)?.try_into().ok()?));
        let kind = match word(1)? as u32 {
            1 => Kind::Order,
            2 => Kind::Prefetch,
            3 => Kind::Priority,
            4 => Kind::EpochBegin,
            5 => Kind::EpochEnd,
            _ => return None,
        };
        let process = (word(1)? >> 32) as u32;
        let (value, ms, number) = (word(2)?.cast_signed(), word(3)?, word(4)? as u32);
        (word(0)? == MAGIC).then_some(Self { kind, process, value, ms, number })
    }

    /// The number by which the word among the opens names this hint. (Two processes with a tag in
    /// common cannot be distinguished; they draw 32 bits.)
    #[must_use]
    pub const fn tag(&self) -> u32 {
        self.process.wrapping_add(self.number)
    }
}

/// The files that a hint names, behind its header; a number that was cut short is left out.
pub fn files(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let words = bytes.get(HEADER..).unwrap_or(&[]).chunks_exact(8);
    words.filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let h = Header { kind: Kind::Priority, process: u32::MAX, value: -1, ms: 7, number: 3 };
        assert_eq!(Header::of(&h.bytes()), Some(h));
        assert_eq!(Header::of(&h.bytes()[..39]), None);
        assert_eq!(h.tag(), 2);
        let mut other = h.bytes();
        other[8] = 9;
        assert_eq!(Header::of(&other), None);
    }
}
