//! The window: a little room through which large files pass that no tier has room for.
//!
//! Who reads such a file in order gets its chunks, fetched once in large requests, instead of asking the PFS for every few
//! hundred KB. Each file being streamed has a share of the window; its oldest chunks make way for the next ones.

use super::fill::{Fill, Slot};
use crate::tier::{Reservation, TierDir};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

/// Chunks of the window and the most of a tier that they take, one part in so many: of a small tier, and of a large one. The larger
/// window of both is made.
const SIZES: [(u64, u64); 2] = [(16, 16), (256, 64)];
/// A streamed file that nobody asked about for so long makes way for others.
const IDLE: Duration = Duration::from_secs(10);

/// Chunks of `chunk` bytes in the window of a tier.
fn slots(capacity: u64, chunk: u64) -> Option<u64> {
    SIZES.iter().filter_map(|(most, part)| Some((capacity / part).checked_div(chunk)?.min(*most))).max()
}

/// How many of the files being streamed are still being read.
pub(super) fn being_read(streamed: &[Arc<Fill>]) -> usize {
    streamed.iter().filter(|f| !f.is_read()).count()
}

/// The file that makes way when another one is to be streamed: one that was read to its end, or that nobody asked about for long.
pub(super) fn makes_way(streamed: &[Arc<Fill>]) -> Option<&Arc<Fill>> {
    let oldest = streamed.iter().max_by_key(|f| (f.is_read(), f.idle()))?;
    (oldest.is_read() || oldest.idle() > IDLE).then_some(oldest)
}

/// See the module.
#[derive(Debug)]
pub(super) struct Window {
    /// Tier that it lies in.
    pub(super) tier: usize,
    used: Arc<AtomicUsize>,
    slots: usize,
    /// How many files were being read at a time, lately. Were the shares those of the files of this moment, then each that comes would
    /// take chunks from others that have not been read yet, and would have to be fetched once more.
    most_lately: usize,
    _room: Reservation,
}

impl Window {
    /// A window for chunks of `chunk` bytes in the first tier that is large enough. `make_room` frees so many bytes of a tier that has
    /// been filled by an earlier job.
    pub(super) fn make(tiers: &[TierDir], chunk: u64, make_room: impl Fn(usize, u64)) -> Option<Self> {
        tiers.iter().enumerate().find_map(|(tier, dir)| {
            let slots = slots(dir.ledger.usage().capacity, chunk)?;
            if slots < 2 || dir.resting() {
                return None;
            }
            let room = dir.ledger.reserve_bytes(slots * chunk).or_else(|| {
                make_room(tier, slots * chunk);
                dir.ledger.reserve_bytes(slots * chunk)
            })?;
            Some(Self { tier, used: Arc::default(), slots: slots as usize, most_lately: 1, _room: room })
        })
    }

    /// How many files may be streamed at a time.
    pub(super) fn most(&self) -> usize {
        (self.slots / 2).max(1)
    }

    /// How many chunks a file may have in it.
    fn share(&self) -> usize {
        self.slots / self.most_lately
    }

    /// How many chunks a reader may have fetched ahead: what it reads, and what others still read of the chunk before, stays.
    pub(super) fn ahead(&self) -> u32 {
        self.share().saturating_sub(2).min(4) as u32
    }

    /// So many files are being read.
    pub(super) fn note(&mut self, reading: usize) {
        self.most_lately = self.most_lately.max(reading);
    }

    /// Now and then: what was is forgotten little by little.
    pub(super) fn forget(&mut self, reading: usize) {
        self.most_lately = (self.most_lately - 1).max(reading).max(1);
    }

    /// A slot for a chunk of `of`: a free one, or that of the oldest chunk of a file that was read or has more than its share.
    pub(super) fn slot(&self, of: &Fill, streamed: &[Arc<Fill>], tiers: &[TierDir]) -> Option<Slot> {
        let share = self.share();
        if of.passing() < share
            && let Some(slot) = Slot::take(&self.used, self.slots)
        {
            return Some(slot);
        }
        let victim = if let Some(read) = streamed.iter().find(|f| f.is_read() && f.passing() > 0) {
            read
        } else if of.passing() >= share.max(1) {
            of
        } else {
            streamed.iter().max_by_key(|f| f.passing()).filter(|f| f.passing() > share)?
        };
        let (chunk, slot) = victim.pass_on()?;
        let range = victim.range(chunk);
        let dir = tiers.get(victim.tier)?;
        match dir.punch(&victim.part, range.start, range.end - range.start) {
            Ok(()) => Some(slot),
            Err(e) => {
                // Its blocks stay: so does the slot, with the file.
                tracing::debug!(tier = dir.name, error = %e, "a chunk that was passed on keeps its blocks");
                victim.keep_slot(slot);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::slots;

    #[test]
    fn a_window_grows_with_its_tier() {
        let of = |capacity: u64| slots(capacity << 20, 4 << 20);
        assert_eq!([64, 512, 1024, 8192, 65_536, 1 << 20].map(of), [1, 8, 16, 32, 256, 256].map(Some));
        assert_eq!(slots(1 << 30, 0), None);
    }
}
