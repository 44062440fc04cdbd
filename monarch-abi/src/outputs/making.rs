//! Part files that are being made, which a process that is killed meanwhile leaves on the PFS.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// Files of which that is known at the same time.
pub const MAKING_SLOTS: usize = 16;
/// Most bytes of the directory in which one is made, below the output root.
pub const MAKING_DIR_BYTES: usize = 168;
const WORD: usize = size_of::<u64>();

/// A part file that a process makes and has not entered in the journal.
#[derive(Debug, IntoBytes, FromBytes)]
#[repr(C)]
pub struct Making {
    /// The process; 0: the slot is free.
    pid: AtomicU32,
    dir_len: AtomicU32,
    /// The number of the staged file; 0: there is no part file yet.
    id: AtomicU64,
    /// When it began, in ticks since the node was started; 0: not known.
    began_ticks: AtomicU64,
    dir: [AtomicU64; MAKING_DIR_BYTES / WORD],
}
crate::mem::pod!(Making);

/// What a process has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The process.
    pub pid: u32,
    /// When it began, in ticks since the node was started; 0: not known.
    pub began_ticks: u64,
    /// The number of the staged file; 0: there is no part file.
    pub id: u64,
    dir: [u8; MAKING_DIR_BYTES],
    dir_len: usize,
}

impl Left {
    /// Whether there may be a part file.
    #[must_use]
    pub const fn may_be_part(&self) -> bool {
        self.id != 0
    }

    /// The directory of the part file, below the output root.
    #[must_use]
    pub fn dir(&self) -> &[u8] {
        self.dir.get(..self.dir_len).unwrap_or_default()
    }
}

impl Making {
    /// Takes the slot for a part file that is to be made in a directory; whether it was free.
    #[must_use]
    pub fn claim(&self, pid: u32, began_ticks: u64, dir: &[u8]) -> bool {
        let is_free = dir.len() <= MAKING_DIR_BYTES
            && self.pid.load(Ordering::Relaxed) == 0
            && self.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_free {
            self.began_ticks.store(began_ticks, Ordering::Release);
            self.dir_len.store(dir.len() as u32, Ordering::Release);
            for (word, bytes) in self.dir.iter().zip(dir.chunks(WORD)) {
                let mut whole = [0; WORD];
                whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                word.store(u64::from_le_bytes(whole), Ordering::Release);
            }
        }
        is_free
    }

    /// The part file of this staged file is made next.
    pub fn begin(&self, id: u64) {
        self.id.store(id, Ordering::Release);
    }

    /// Gives the slot back.
    pub fn free(&self) {
        self.id.store(0, Ordering::Release);
        self.pid.store(0, Ordering::Release);
    }

    /// Whether a process has it.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.pid.load(Ordering::Acquire) != 0
    }

    /// What the process that has it would leave now.
    #[must_use]
    pub fn left(&self) -> Option<Left> {
        let pid = self.pid.load(Ordering::Acquire);
        if pid == 0 {
            return None;
        }
        let mut dir = [0; MAKING_DIR_BYTES];
        for (bytes, word) in dir.chunks_mut(WORD).zip(&self.dir) {
            bytes.copy_from_slice(&word.load(Ordering::Acquire).to_le_bytes());
        }
        Some(Left {
            pid,
            began_ticks: self.began_ticks.load(Ordering::Acquire),
            id: self.id.load(Ordering::Acquire),
            dir,
            dir_len: self.dir_len.load(Ordering::Acquire) as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_tells_what_its_process_would_leave() {
        let slot = <Making as zerocopy::FromZeros>::new_zeroed();
        assert_eq!(slot.left(), None);
        assert!(slot.claim(7, 99, b"run/step 10"));
        assert!(!slot.claim(8, 99, b"other"), "it is taken");
        assert_eq!(slot.left().map(|left| left.id), Some(0));
        slot.begin(5);
        let left = slot.left().unwrap();
        assert_eq!((left.pid, left.began_ticks, left.id, left.dir()), (7, 99, 5, b"run/step 10".as_slice()));
        slot.free();
        assert!(!slot.is_taken());
        assert!(slot.claim(8, 1, b""));
        let left = slot.left().unwrap();
        assert_eq!((left.id, left.dir()), (0, b"".as_slice()));
        assert!(!left.may_be_part());
    }

    #[test]
    fn a_directory_that_is_too_long_takes_no_slot() {
        let slot = <Making as zerocopy::FromZeros>::new_zeroed();
        assert!(!slot.claim(1, 1, &[b'x'; MAKING_DIR_BYTES + 1]));
        assert!(slot.claim(1, 1, &[b'x'; MAKING_DIR_BYTES]));
        assert_eq!(slot.left().unwrap().dir().len(), MAKING_DIR_BYTES);
    }
}
