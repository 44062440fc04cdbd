//! Changes that a job makes while its root has no index yet.
//!
//! A job starts at once and the scan runs beside it, so that the scan may see a name before the job
//! changes it. A process that changes something below a root without a segment first leaves the
//! path here, then looks again whether a segment has appeared. The agent publishes a segment in the
//! state [`OPENING`](crate::state::OPENING), in which readers do not use it but changes are
//! entered, then bypasses all that was left here, then opens it. So a change is either left here
//! before the agent looks, or finds the segment.
//!
//! A record is a header word (complete, names change, root, length in bytes) and the path. A client
//! killed in the middle leaves an incomplete record: its change was not made. When the log runs
//! over, roots without an index are not served at all.

use crate::mem::PathBuffer;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use zerocopy::{FromBytes, IntoBytes};

/// Words of the log: room for about a thousand long names. A root with code has as many that are
/// made when it is first used (`__pycache__`).
pub const WORDS: usize = 64 * 1024;
const COMPLETE: u32 = 1 << 31;
const NAMES: u32 = 1 << 30;
const LEN_BITS: u32 = 16;
const CLAIMED: u32 = 1 << 29;
const ROOT_MASK: u32 = 0xff << LEN_BITS;

/// The log in the control block.
#[derive(Debug, IntoBytes, FromBytes)]
#[repr(C, align(128))]
pub struct Early {
    /// Words claimed; more than [`WORDS`] when it ran over.
    used: AtomicU32,
    /// Zero.
    reserved: [AtomicU32; 31],
    words: [AtomicU32; WORDS],
}

impl Early {
    /// Leaves a path relative to a root; `names` when not only its content or attributes change.
    /// `false` when there is no room, which the agent learns from [`Early::each`].
    pub fn leave(&self, root: usize, rel: &[u8], names: bool) -> bool {
        let need = 1 + rel.len().div_ceil(4);
        if rel.len() >= crate::PATH_MAX || self.used.load(Ordering::Relaxed) as usize > WORDS {
            self.used.store(WORDS as u32 + 1, Ordering::SeqCst);
            return false;
        }
        let at = self.used.fetch_add(need as u32, Ordering::SeqCst) as usize;
        let Some([header, text @ ..]) = self.words.get(at..at + need) else {
            self.used.store(WORDS as u32 + 1, Ordering::SeqCst);
            return false;
        };
        let h = CLAIMED | (root as u32) << LEN_BITS & ROOT_MASK | rel.len() as u32 | if names { NAMES } else { 0 };
        header.store(h, Ordering::SeqCst);
        for (word, part) in text.iter().zip(rel.chunks(4)) {
            word.store(part.iter().rev().fold(0, |v, &b| v << 8 | u32::from(b)), Ordering::Relaxed);
        }
        header.store(h | COMPLETE, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        true
    }

    /// Shows every path left for a root, and whether names change. `false` when some may be lost.
    #[must_use]
    pub fn each(&self, root: usize, mut show: impl FnMut(&[u8], bool)) -> bool {
        fence(Ordering::SeqCst);
        let used = self.used.load(Ordering::SeqCst) as usize;
        let mut at = 0;
        while at < used {
            let h = self.words.get(at).map_or(0, |w| w.load(Ordering::SeqCst));
            if h & CLAIMED == 0 {
                // Not even its length is there yet: what follows cannot be read.
                return false;
            }
            let len = (h & ((1 << LEN_BITS) - 1)) as usize;
            let words = self.words.get(at + 1..at + 1 + len.div_ceil(4)).unwrap_or(&[]);
            if h & COMPLETE != 0 && h & ROOT_MASK == (root as u32) << LEN_BITS {
                let mut path = PathBuffer::front();
                for w in words {
                    let _ = path.append(&w.load(Ordering::Relaxed).to_le_bytes());
                }
                path.truncate(len);
                show(path.get(), h & NAMES != 0);
            }
            at += 1 + words.len();
        }
        used <= WORDS
    }
}
