//! [`Window`]: a small part of a tier through which large files are streamed that no tier has space
//! for.
//!
//! A sequential reader of such a file gets chunks that were fetched once in large requests, instead
//! of reading a few hundred KB at a time from the PFS. Each streamed file has a share of the
//! window's slots. Its next chunks are written over those that its reader has left behind.

use crate::tier::{TierDir, WindowFile};
use crate::tiering::copy::chunked_fetch::ChunkedFetch;
use crate::tiering::copy::window_slots::{Slot, Slots};
use monarch_abi::control::Stream;
use std::sync::Arc;
use std::time::Duration;

/// Sizes of the window: maximum number of chunks, and the part of a tier (one in this many) that
/// they may take; for a small tier, and for a large one. The larger of both is made, unless the
/// data might fit without it.
const WINDOW_SIZES: [(u64, u64); 2] = [(16, 16), (256, 64)];
/// One in this many of the files that may be streamed keeps some of its chunks.
const KEEPERS_DIVISOR: usize = 4;
/// Time without requests after which a streamed file is ended for another one.
const MAX_IDLE: Duration = Duration::from_secs(10);

/// Maximum number of chunks that a reader of a streamed file requests ahead.
const MAX_CHUNKS_AHEAD: usize = 4;

/// Number of chunks of `chunk` bytes in the window of a tier.
fn slots(capacity: u64, chunk: u64, small: bool) -> Option<u64> {
    let sizes = WINDOW_SIZES.iter().take(if small { 1 } else { WINDOW_SIZES.len() });
    sizes.filter_map(|(most, part)| Some((capacity / part).checked_div(chunk)?.min(*most))).max()
}

/// The slots, and how files share them.
#[derive(Debug)]
struct Shares {
    slots: usize,
    /// Recent maximum of files that were read at a time. If the shares were those of the files read
    /// at this moment, each new file would take chunks from others that have not been read yet, and
    /// would have to be fetched again.
    readers: usize,
}

impl Shares {
    /// Number of chunks that a file may have in the window while `reading` files are read.
    fn of_each(&self, reading: usize) -> usize {
        self.slots / self.readers.max(reading).max(1)
    }

    /// Number of chunks that a reader may request ahead, beside the chunk being read.
    fn ahead(&self) -> u32 {
        self.of_each(0).saturating_sub(1).min(MAX_CHUNKS_AHEAD) as u32
    }

    fn note(&mut self, reading: usize) {
        self.readers = self.readers.max(reading);
    }

    /// Lowers the recent maximum by one; called from maintenance.
    fn forget(&mut self) {
        self.readers = self.readers.saturating_sub(1);
    }
}

/// Number of streamed files that are still being read.
fn being_read(streamed: &[Arc<ChunkedFetch>]) -> usize {
    streamed.iter().filter(|f| !f.is_read()).count()
}

/// The file that is ended when another one is to be streamed: one that was read to its end (those
/// with chunks that stay come last), or one without requests for long.
pub(crate) fn next_to_end(streamed: &[Arc<ChunkedFetch>]) -> Option<&Arc<ChunkedFetch>> {
    let oldest = streamed.iter().max_by_key(|f| (f.is_read(), !f.keeps_some(), f.idle()))?;
    (oldest.is_read() || oldest.idle() > MAX_IDLE).then_some(oldest)
}

/// The window of streamed files, in one tier.
#[derive(Debug)]
pub(crate) struct Window {
    /// The tier that it is in.
    pub(crate) tier: usize,
    /// Bytes of a slot.
    chunk: u64,
    pub(crate) slots: Arc<Slots>,
    shares: Shares,
}

impl Window {
    /// Makes a window for chunks of `chunk` bytes in the first tier that is large enough; a small
    /// one if the data may fit. `make_room` frees bytes of a tier that an earlier job has filled.
    /// Readers see what is in the window by `stream`.
    pub(crate) fn make(
        tiers: &[TierDir],
        stream: &'static Stream,
        chunk: u64,
        small: bool,
        make_room: impl Fn(usize, u64),
    ) -> Option<Self> {
        tiers.iter().enumerate().find_map(|(tier, dir)| {
            let slots = slots(dir.space.ledger.usage().capacity, chunk, small)?;
            if slots < 2 || dir.space.suspended() {
                return None;
            }
            let begin = || {
                let file = WindowFile::begin(&dir.parts, slots, chunk);
                file.inspect_err(|e| tracing::warn!(tier = dir.name, error = %e, "large files are not streamed"))
                    .ok()?
            };
            let file = begin().or_else(|| {
                make_room(tier, slots * chunk);
                begin()
            })?;
            let shares = Shares { slots: slots as usize, readers: 0 };
            Some(Self { tier, chunk, slots: Slots::new(slots as u32, stream, file), shares })
        })
    }

    /// Whether chunks of `chunk` bytes fit in its slots: another job's may be larger.
    pub(crate) const fn takes(&self, chunk: u64) -> bool {
        chunk <= self.chunk
    }

    /// Bytes of a slot.
    pub(crate) const fn chunk(&self) -> u64 {
        self.chunk
    }

    /// Maximum number of files that may be streamed at a time.
    pub(crate) fn most(&self) -> usize {
        (self.shares.slots / 2).max(1)
    }

    /// Divides the window among the files that are being read. Returns how many chunks a reader may
    /// request ahead.
    pub(crate) fn divide(&mut self, streamed: &[Arc<ChunkedFetch>]) -> u32 {
        self.shares.note(being_read(streamed));
        self.shares.ahead()
    }

    /// Maintenance: there may be fewer readers than before.
    pub(crate) fn tend(&mut self) {
        self.shares.forget();
    }

    /// Whether chunks of a file may stay in space of their own. Few files at a time may: each keeps
    /// its place afterwards, and the chunks of many would be dropped when the next files need
    /// theirs.
    pub(crate) fn may_keep(&self, fetch: &ChunkedFetch, streamed: &[Arc<ChunkedFetch>]) -> bool {
        fetch.keeps_some()
            || streamed.iter().filter(|f| f.keeps_some()).count() < (self.most() / KEEPERS_DIVISOR).max(1)
    }

    /// Takes a slot for a chunk of `of`: a free one, if the disk has space for it, or that of a
    /// chunk of a file that was read or has more than its share.
    pub(crate) fn slot(
        &self,
        of: &ChunkedFetch,
        chunk: u32,
        streamed: &[Arc<ChunkedFetch>],
        tiers: &[TierDir],
    ) -> Option<Slot> {
        let share = self.shares.of_each(being_read(streamed));
        let dir = tiers.get(self.tier)?;
        let (held, mut is_short) = (of.held(), false);
        let may_allocate = || {
            is_short = !dir.space.has_room_on_disk(self.chunk);
            !is_short
        };
        if held < share
            && let Some(slot) = self.slots.take(may_allocate)
        {
            return Some(slot);
        }
        if let Some(read) = streamed.iter().find(|f| f.is_read() && f.passing() > 0) {
            return read.pass_on(None);
        }
        // A file that may have no more has at least the chunk being read and the next one.
        let its_share = if is_short { share.clamp(1, 2) } else { share.max(1) };
        if held >= its_share {
            return of.pass_on(Some(chunk));
        }
        streamed.iter().max_by_key(|f| f.passing()).filter(|f| f.passing() > share)?.pass_on(None)
    }
}

#[cfg(test)]
mod tests {
    use super::{Shares, Slot, Slots, slots};
    use crate::tier::{TierDir, WindowFile};
    use monarch_abi::control::Stream;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use zerocopy::FromZeros;

    #[test]
    fn a_window_grows_with_its_tier() {
        let of = |capacity: u64| slots(capacity << 20, 4 << 20, false);
        assert_eq!([64, 512, 1024, 8192, 65_536, 1 << 20].map(of), [1, 8, 16, 32, 256, 256].map(Some));
        assert_eq!(slots(1 << 40, 4 << 20, true), Some(16), "beside data that may fit");
        assert_eq!(slots(1 << 30, 0, false), None);
    }

    /// A window in a directory, with `slots` slots of 4 KiB.
    fn window(dir: &Path, slots: u32) -> (TierDir, Arc<Slots>, &'static Stream) {
        let tier = TierDir::open("t", dir, 64 << 20, 0).unwrap();
        tier.recover(|_| {}).unwrap();
        let file = WindowFile::begin(&tier.parts, slots.into(), 4096).unwrap().unwrap();
        let stream: &'static Stream = Box::leak(Box::new(Stream::new_zeroed()));
        (tier, Slots::new(slots, stream, file), stream)
    }

    /// A window could be dropped, and its room given to others, while a chunk was still on its way
    /// into it.
    #[test]
    fn the_room_of_a_window_is_kept_for_its_last_slot() {
        let dir = tempfile::tempdir().unwrap();
        let (tier, window, stream) = window(dir.path(), 2);
        let slots = [window.take(|| true), window.take(|| true)].map(Option::unwrap);
        assert!(window.take(|| true).is_none());
        drop(window);
        assert!(tier.space.ledger.usage().reserved >= 8192 && stream.number.load(Ordering::Relaxed) != 0);
        drop(slots);
        assert!(tier.space.ledger.usage().reserved < 8192 && stream.number.load(Ordering::Relaxed) == 0);
    }

    #[test]
    fn slots_that_were_written_are_taken_first_until_their_blocks_are_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let (_tier, window, _) = window(dir.path(), 3);
        assert!(window.take(|| false).is_none(), "the disk has no room");
        let number = |slot: &Slot| (slot.place().1, slot.place().2);
        let first = window.take(|| true).unwrap();
        assert_eq!(number(&first), (0, true));
        drop(first);
        let again = window.take(|| false).unwrap();
        assert_eq!((number(&again), window.release(u64::MAX)), ((0, false), 0), "it is in use");
        drop(again);
        assert_eq!((window.release(1), window.release(1)), (4096, 0));
        assert!(window.take(|| false).is_none());
    }

    #[test]
    fn a_chunk_is_found_in_its_slot_only_and_by_its_window_only() {
        let dir = tempfile::tempdir().unwrap();
        let (_tier, window, stream) = window(dir.path(), 3);
        let mut slots = [window.take(|| true), window.take(|| true)].map(Option::unwrap);
        let number = slots[0].place().0.number();
        slots[1].show(77, 5);
        assert_eq!(stream.find(77, 5), Some((number, 4096)));
        assert_eq!([stream.find(77, 4), stream.find(76, 5), stream.find(0, 0)], [None; 3]);
        // Copied into another slot, or damaged.
        let tag = stream.tags[1].load(Ordering::Relaxed);
        stream.tags[0].store(tag, Ordering::Relaxed);
        assert_eq!(stream.find(77, 5), Some((number, 4096)));
        for bit in 0..64 {
            stream.tags[1].store(tag ^ 1 << bit, Ordering::Relaxed);
            assert_eq!(stream.find(77, 5), None);
        }
        slots[1].show(77, 5);
        slots[1].hide();
        assert_eq!(stream.find(77, 5), None);
        // The next chunk of a slot is not hidden with the one before.
        slots[1].show(77, 6);
        stream.removed(1, tag);
        assert_eq!(stream.find(77, 6), Some((number, 4096)));
        // (As if the window were another one by now.)
        stream.begin(number ^ 1, 4096, 3);
        slots[1].show(77, 6);
        assert_eq!(stream.find(77, 6), None);
    }

    #[test]
    fn a_reader_who_comes_back_finds_its_share() {
        let mut shares = Shares { slots: 16, readers: 0 };
        assert_eq!((shares.of_each(0), shares.ahead()), (16, 4));
        shares.note(4);
        assert_eq!((shares.of_each(1), shares.ahead()), (4, 3));
        // Three of them are between two files.
        shares.note(1);
        shares.forget();
        assert_eq!((shares.of_each(1), shares.ahead()), (5, 4));
        // More than were noted yet.
        assert_eq!(shares.of_each(8), 2);
        (0..9).for_each(|_| shares.forget());
        assert_eq!((shares.of_each(0), shares.ahead()), (16, 4));
        shares.note(40);
        assert_eq!((shares.of_each(0), shares.ahead()), (0, 0));
    }
}
