//! The window: a little room through which large files pass that no tier has room for.
//!
//! Who reads such a file in order gets its chunks, fetched once in large requests, instead of asking the PFS for every few
//! hundred KB. Each file being streamed has a share of the window; its oldest chunks make way for the next ones.

use super::fill::{Fill, Slot};
use crate::tier::{Reservation, TierDir};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

/// Chunks of the window.
const SLOTS: u64 = 16;
/// Most of a tier that the window takes: one part in so many.
const SHARE: u64 = 16;
/// A streamed file that nobody asked about for so long makes way for others.
pub(super) const IDLE: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(super) struct Window {
    /// Tier that it lies in.
    pub(super) tier: usize,
    used: Arc<AtomicUsize>,
    slots: usize,
    _room: Reservation,
}

impl Window {
    /// A window for chunks of `chunk` bytes in the first tier that is large enough. `make_room` frees so many bytes of a tier that has
    /// been filled by an earlier job.
    pub(super) fn make(tiers: &[TierDir], chunk: u64, make_room: impl Fn(usize, u64)) -> Option<Self> {
        tiers.iter().enumerate().find_map(|(tier, dir)| {
            let slots = SLOTS.min((dir.ledger.usage().capacity / SHARE).checked_div(chunk)?);
            if slots < 2 || dir.resting() {
                return None;
            }
            let room = dir.ledger.reserve_bytes(slots * chunk).or_else(|| {
                make_room(tier, slots * chunk);
                dir.ledger.reserve_bytes(slots * chunk)
            })?;
            Some(Self { tier, used: Arc::default(), slots: slots as usize, _room: room })
        })
    }

    /// How many files may be streamed at a time.
    pub(super) fn most(&self) -> usize {
        (self.slots / 2).max(1)
    }

    /// How many chunks a reader may have fetched ahead while `files` are being streamed: what it reads, and what others still read
    /// of the chunk before, stays.
    pub(super) fn ahead(&self, files: usize) -> u32 {
        (self.slots / files.max(1)).saturating_sub(2).min(4) as u32
    }

    /// A slot for a chunk of `of`: a free one, or that of the oldest chunk of a file that has more than its share.
    pub(super) fn slot(&self, of: &Fill, streamed: &[Arc<Fill>], tiers: &[TierDir]) -> Option<Slot> {
        let share = self.slots / streamed.len().max(1);
        if of.passing() < share
            && let Some(slot) = Slot::take(&self.used, self.slots)
        {
            return Some(slot);
        }
        let victim = if of.passing() >= share.max(1) {
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
