//! Files whose pause ends at some time.

use monarch_abi::word::Word;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// A file that is Refused for the time being: its key and the word that says so.
pub(super) type Paused = (u64, Word);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Later(BinaryHeap<Reverse<(Instant, u64, u32)>>);

impl Later {
    /// Adds a file.
    pub(super) fn add(&mut self, pause: Duration, (key, word): Paused) {
        self.0.push(Reverse((Instant::now() + pause, key, word.0)));
    }

    /// Takes a file whose pause is over.
    pub(super) fn due(&mut self, now: Instant) -> Option<Paused> {
        let Reverse((at, key, word)) = *self.0.peek()?;
        if at > now {
            return None;
        }
        self.0.pop();
        Some((key, Word(word)))
    }
}
