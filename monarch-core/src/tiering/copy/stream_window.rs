//! [`Window`]: a small part of a tier through which large files are streamed that no tier has space
//! for.
//!
//! A sequential reader of such a file gets chunks that were fetched once in large requests, instead
//! of reading a few hundred KB at a time from the PFS. Each streamed file has a share of the
//! window; its oldest chunks are dropped for the next ones.

use crate::tier::TierDir;
use crate::tiering::copy::chunked_fetch::ChunkedFetch;
use crate::tiering::copy::window_slots::{Slot, Slots};
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

    /// Number of chunks that a reader may request ahead: the chunk being read, and the one before,
    /// which others may still read, stay.
    fn ahead(&self) -> u32 {
        self.of_each(0).saturating_sub(2).min(4) as u32
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
    slots: Arc<Slots>,
    shares: Shares,
}

impl Window {
    /// Makes a window for chunks of `chunk` bytes in the first tier that is large enough; a small
    /// one if the data may fit. `make_room` frees bytes of a tier that an earlier job has filled.
    pub(crate) fn make(tiers: &[TierDir], chunk: u64, small: bool, make_room: impl Fn(usize, u64)) -> Option<Self> {
        tiers.iter().enumerate().find_map(|(tier, dir)| {
            let slots = slots(dir.space.ledger.usage().capacity, chunk, small)?;
            if slots < 2 || dir.space.suspended() {
                return None;
            }
            let room = dir.space.ledger.reserve_bytes(slots * chunk).or_else(|| {
                make_room(tier, slots * chunk);
                dir.space.ledger.reserve_bytes(slots * chunk)
            })?;
            let shares = Shares { slots: slots as usize, readers: 0 };
            Some(Self { tier, chunk, slots: Slots::new(slots as usize, room), shares })
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

    /// Takes a slot for a chunk of `of`: a free one, if the disk has space for it, or that of the
    /// oldest chunk of a file that was read or has more than its share.
    pub(crate) fn slot(&self, of: &ChunkedFetch, streamed: &[Arc<ChunkedFetch>], tiers: &[TierDir]) -> Option<Slot> {
        let share = self.shares.of_each(being_read(streamed));
        let may_grow = of.passing() < share && tiers.get(self.tier)?.space.has_room_on_disk(self.chunk);
        if may_grow && let Some(slot) = self.slots.take() {
            return Some(slot);
        }
        // A file that may have no more has at least the chunk being read and the next one.
        let its_share = if may_grow { share.max(1) } else { share.clamp(1, 2) };
        let victim = if let Some(read) = streamed.iter().find(|f| f.is_read() && f.passing() > 0) {
            read
        } else if of.passing() >= its_share {
            of
        } else {
            streamed.iter().max_by_key(|f| f.passing()).filter(|f| f.passing() > share)?
        };
        let (chunk, slot) = victim.pass_on()?;
        let range = victim.range(chunk);
        let dir = tiers.get(victim.tier)?;
        match dir.parts.punch(&victim.part, range.start, range.end - range.start) {
            Ok(()) => Some(slot),
            Err(e) => {
                // Its blocks stay in use, and so does the slot, with the file.
                tracing::debug!(tier = dir.name, error = %e, "a chunk that was passed on keeps its blocks");
                victim.keep_slot(slot);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Shares, Slots, slots};
    use crate::tier::Ledger;

    #[test]
    fn a_window_grows_with_its_tier() {
        let of = |capacity: u64| slots(capacity << 20, 4 << 20, false);
        assert_eq!([64, 512, 1024, 8192, 65_536, 1 << 20].map(of), [1, 8, 16, 32, 256, 256].map(Some));
        assert_eq!(slots(1 << 40, 4 << 20, true), Some(16), "beside data that may fit");
        assert_eq!(slots(1 << 30, 0, false), None);
    }

    /// A window could be dropped, and its room given to others, while a chunk was still on its way
    /// into it.
    #[test]
    fn the_room_of_a_window_is_kept_for_its_last_slot() {
        let ledger = Ledger::new(1 << 20, 4096);
        let window = Slots::new(2, ledger.reserve_bytes(8192).unwrap());
        let slots = [window.take(), window.take()].map(Option::unwrap);
        assert!(window.take().is_none());
        drop(window);
        assert_eq!(ledger.usage().reserved, 8192);
        drop(slots);
        assert_eq!(ledger.usage().reserved, 0);
    }

    #[test]
    fn a_reader_who_comes_back_finds_its_share() {
        let mut shares = Shares { slots: 16, readers: 0 };
        assert_eq!((shares.of_each(0), shares.ahead()), (16, 4));
        shares.note(4);
        assert_eq!((shares.of_each(1), shares.ahead()), (4, 2));
        // Three of them are between two files.
        shares.note(1);
        shares.forget();
        assert_eq!((shares.of_each(1), shares.ahead()), (5, 3));
        // More than were noted yet.
        assert_eq!(shares.of_each(8), 2);
        (0..9).for_each(|_| shares.forget());
        assert_eq!((shares.of_each(0), shares.ahead()), (16, 4));
        shares.note(40);
        assert_eq!((shares.of_each(0), shares.ahead()), (0, 0));
    }
}
