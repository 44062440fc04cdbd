//! [`Progress`]: which chunks of a large file are requested, in flight and present.

use crate::engine::SourceFile;
use crate::tiering::copy::window_slots::Slot;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The file that chunks are read from.
pub(super) enum Original {
    /// The file on the PFS, which the next chunk opens.
    Closed,
    Opening,
    Open(Arc<dyn SourceFile>),
    /// A compressed copy or a peer's file: it was open before the first chunk.
    Supplied(Arc<dyn SourceFile>),
}

/// The state of a fetch that its lock protects.
///
/// Fields: 19, all of which change under one lock; the fetch and the methods below keep their
/// invariants.
pub(super) struct Progress {
    pub(super) original: Original,
    /// Chunks that readers requested, in order.
    pub(super) wanted: VecDeque<u32>,
    /// Whether the rest is fetched, and from which chunk on.
    pub(super) rest: bool,
    pub(super) cursor: u32,
    /// Whether a process reads the file of the PFS through the page cache: then chunks are read
    /// through it, too, and the rest follows that process.
    pub(super) paged: bool,
    /// Whether a process has asked for the rest.
    pub(super) rest_asked: bool,
    /// Chunks in flight that no reader requested, and the limit on them.
    pub(super) unasked: u32,
    pub(super) width: u32,
    /// One bit for each chunk that is in flight or present.
    pub(super) taken: Vec<u64>,
    /// One bit for each chunk that is present. (The bits in the entry can be damaged.)
    pub(super) present: Vec<u64>,
    /// Checksums, by chunk. A streamed file is never whole, so it has none.
    pub(super) sums: Vec<u64>,
    pub(super) summed: u32,
    /// Number of chunks whose bytes are all written.
    pub(super) written: u32,
    /// Chunks that are present in the window, in the order in which they came.
    pub(super) passing: VecDeque<(u32, Slot)>,
    /// Whether some chunks of a streamed file have space of their own, and stay.
    pub(super) keeps_some: bool,
    /// When a reader last asked.
    pub(super) asked: Instant,
    pub(super) checked: Option<Instant>,
    /// When a chunk was last in flight.
    pub(super) busy: Instant,
    pub(super) ended: bool,
}

impl Progress {
    pub(super) fn is_taken(&self, chunk: u32) -> bool {
        self.taken.get(chunk as usize / 64).is_none_or(|w| w & 1 << (chunk % 64) != 0)
    }

    pub(super) fn take(&mut self, chunk: u32) {
        if let Some(w) = self.taken.get_mut(chunk as usize / 64) {
            *w |= 1 << (chunk % 64);
        }
    }

    /// Notes that a chunk is in flight. It opens the file if no chunk has.
    pub(super) fn begin(&mut self, chunk: u32) {
        self.take(chunk);
        self.busy = Instant::now();
        if let Original::Closed = self.original {
            self.original = Original::Opening;
        }
    }

    /// Closes the file on the PFS if no chunk was in flight for `idle`.
    pub(super) fn close(&mut self, idle: Duration) {
        if self.busy.elapsed() >= idle && matches!(self.original, Original::Open(_)) {
            self.original = Original::Closed;
        }
    }

    pub(super) fn give_back(&mut self, chunk: u32) {
        for bits in [&mut self.taken, &mut self.present] {
            if let Some(w) = bits.get_mut(chunk as usize / 64) {
                *w &= !(1 << (chunk % 64));
            }
        }
    }

    /// Notes that a chunk is present.
    pub(super) fn mark_present(&mut self, chunk: u32) {
        if let Some(w) = self.present.get_mut(chunk as usize / 64) {
            *w |= 1 << (chunk % 64);
        }
    }

    pub(super) fn is_present(&self, chunk: u32) -> bool {
        self.present.get(chunk as usize / 64).is_some_and(|w| w & 1 << (chunk % 64) != 0)
    }

    /// Number of chunks that are in flight.
    pub(super) fn in_flight(&self) -> usize {
        let bits = |words: &[u64]| words.iter().map(|w| w.count_ones() as usize).sum::<usize>();
        bits(&self.taken).saturating_sub(bits(&self.present))
    }

    /// The requested chunks of a streamed file that can be fetched now. The next one of a reader
    /// at chunk `at` comes first, and those behind that reader come last.
    pub(super) fn wanted_from(&mut self, at: u32) -> Option<Vec<u32>> {
        if self.ended || matches!(self.original, Original::Opening) {
            return None;
        }
        let taken = &self.taken;
        self.wanted.retain(|&chunk| taken.get(chunk as usize / 64).is_some_and(|w| w & 1 << (chunk % 64) == 0));
        let mut wanted: Vec<u32> = self.wanted.iter().copied().collect();
        wanted.sort_unstable_by_key(|chunk| chunk.wrapping_sub(at));
        Some(wanted)
    }

    /// Which of the chunks in the window a reader at chunk `at` needs least, as an index of
    /// `passing`: of those behind it the one that came first; otherwise the one farthest ahead, if
    /// that is behind `next`, a chunk of the same file that takes its slot; otherwise the one that
    /// came first. `None` if there is only the one being read.
    pub(super) fn least_needed(&self, at: u32, next: Option<u32>) -> Option<usize> {
        let mut passing = self.passing.iter().map(|(chunk, _)| *chunk).enumerate();
        if let Some((was_read, _)) = passing.clone().find(|(_, chunk)| *chunk < at) {
            return Some(was_read);
        }
        let farthest = passing.clone().filter(|(_, chunk)| *chunk != at).max_by_key(|(_, chunk)| *chunk);
        match (farthest, next) {
            (Some((index, chunk)), Some(next)) if chunk > next => Some(index),
            (Some((index, _)), None) => Some(index),
            _ => passing.find(|(_, chunk)| *chunk != at).map(|(index, _)| index),
        }
    }

    /// The next chunk to fetch.
    pub(super) fn next(&mut self, demanded: bool, chunks: u32) -> Option<u32> {
        if self.ended || matches!(self.original, Original::Opening) {
            return None;
        }
        if demanded {
            while let Some(&chunk) = self.wanted.front() {
                if !self.is_taken(chunk) {
                    return Some(chunk);
                }
                self.wanted.pop_front();
            }
            return None;
        }
        if self.rest && self.unasked < self.width {
            let found = (self.cursor..chunks).chain(0..self.cursor.min(chunks)).find(|&c| !self.is_taken(c));
            self.rest = found.is_some();
            self.cursor = found.unwrap_or(0);
            return found;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monarch_abi::chunks::READ_TO_END;

    fn progress(chunks: u32, rest: bool) -> Progress {
        Progress {
            original: Original::Closed,
            wanted: VecDeque::new(),
            rest,
            cursor: 0,
            paged: false,
            rest_asked: false,
            unasked: 0,
            width: 8,
            taken: vec![0; monarch_abi::chunks::words_of(chunks)],
            present: vec![0; monarch_abi::chunks::words_of(chunks)],
            sums: Vec::new(),
            summed: 0,
            written: 0,
            passing: VecDeque::new(),
            keeps_some: false,
            asked: Instant::now(),
            checked: None,
            busy: Instant::now(),
            ended: false,
        }
    }

    #[test]
    fn what_is_wanted_goes_first_and_the_rest_goes_round_from_the_reader() {
        let mut p = progress(5, true);
        p.wanted.extend([3, 1]);
        p.cursor = 4;
        let mut order = Vec::new();
        while let Some(c) = p.next(true, 5).or_else(|| p.next(false, 5)) {
            p.take(c);
            order.push(c);
        }
        assert_eq!(order, [3, 1, 4, 0, 2]);
        p.give_back(2);
        assert_eq!(p.next(false, 5), None, "the rest was fetched; who wants it asks");
    }

    #[test]
    fn a_streamed_file_is_fetched_from_its_reader_on() {
        let mut p = progress(100, false);
        p.wanted.extend([7, 70, 3, 5, 6]);
        p.take(6);
        assert_eq!(p.wanted_from(5), Some(vec![5, 7, 70, 3]));
        assert_eq!(p.wanted, [7, 70, 3, 5], "what is in flight is not requested any more");
        assert_eq!(p.wanted_from(READ_TO_END), Some(vec![3, 5, 7, 70]));
        p.original = Original::Opening;
        assert_eq!(p.wanted_from(5), None);
    }

    #[test]
    fn nothing_is_given_out_while_the_file_is_being_opened() {
        let mut p = progress(3, true);
        p.wanted.push_back(0);
        p.original = Original::Opening;
        assert_eq!((p.next(true, 3), p.next(false, 3)), (None, None));
        p.original = Original::Closed;
        p.ended = true;
        assert_eq!(p.next(true, 3), None);
    }

    /// Chunks of another node's file were waited for in vain after a minute without any: the file
    /// was taken for closed, and to be opened by the next chunk, which never opens one that was
    /// supplied.
    #[test]
    fn a_file_that_is_given_is_neither_closed_nor_opened() {
        use crate::engine::{MemSource, Source};
        let source = MemSource::default();
        source.put(b"f", b"some");
        for (supplied, is_open) in [(true, true), (false, false)] {
            let mut p = progress(3, true);
            let file: Arc<dyn SourceFile> = source.open(b"f").unwrap().into();
            p.original = if supplied { Original::Supplied(file) } else { Original::Open(file) };
            p.close(Duration::ZERO);
            p.wanted.push_back(2);
            p.begin(2);
            assert_eq!(p.next(false, 3).is_some(), is_open);
        }
    }
}
