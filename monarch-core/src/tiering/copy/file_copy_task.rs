//! [`FileCopyTask`]: a claimed file while the engine copies it: the choice of its tier, and its
//! outcome.

use crate::engine::{Copied, CopyError, Marks, Sink, Source, SourceFile, Task};
use crate::metrics::{CopyOf, Origin};
use crate::tier::{CopyFile, Sum};
use crate::tiering::copy::file_copy_context::FileCopyContext;
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::engine_trial::Kind;
use crate::tiering::core::inflight_progress::InflightProgress;
use crate::tiering::core::lane::Lane;
use crate::tiering::core::outcome::{CopyOutcome, NO_ROOM_ANYWHERE_PAUSE};
use crate::tiering::core::reservations::CompressedReservation;
use crate::tiering::placement::placer::MAX_CHOICES;
use crate::tiering::queue::inflight_slots::Job;
use monarch_abi::word::Refusal;
use monarch_policies::{Event, FileKey, RequestSource, Why};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Pause after a lack of space that may pass.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// How often the fair share frees space for one copy: a reader that has a dropped copy open keeps
/// its blocks for a while.
const MAX_FAIR_SHARE_TRIES: u32 = 3;

/// Whether there is space for a copy that is to be compressed.
enum ToPack {
    Catalog,
    /// It is kept as it is.
    AsItIs,
    /// Other copies take the space in front.
    Crowded,
}

/// A claimed file that is being copied. Dropped, it frees the slot of its job.
pub(crate) struct FileCopyTask<'a> {
    parts: &'a FileCopyContext,
    file: ClaimedFile,
    mark: InflightProgress,
    /// Tiers that were tried, and the one that is being written.
    tried: Vec<bool>,
    at: usize,
    copy: Option<CopyFile<'a>>,
    /// How often the fair share freed space.
    shares: u32,
    /// How often a tier was chosen.
    turns: u32,
    /// Whether a tier had no space, or failed, though it should have had some.
    in_doubt: bool,
    /// Checksum of what was copied.
    sum: Sum,
    /// Whether a copy took more blocks than its reservation.
    too_large: bool,
    job: Job<'a>,
}

impl<'a> FileCopyTask<'a> {
    /// Starts a copy in the first tier that takes it. `None` when no tier does: then the outcome is
    /// published.
    pub(crate) fn new(
        parts: &'a FileCopyContext,
        file: ClaimedFile,
        mark: InflightProgress,
        job: Job<'a>,
    ) -> Option<Self> {
        let tried = vec![false; parts.cx.tiers.len()];
        let mut new = Self {
            parts,
            file,
            mark,
            tried,
            at: 0,
            copy: None,
            in_doubt: false,
            shares: 0,
            turns: 0,
            sum: Sum::whole(0),
            too_large: false,
            job,
        };
        match new.place() {
            Some(end) => {
                new.publish_outcome(end);
                None
            }
            None => {
                new.free_ahead();
                Some(new)
            }
        }
    }

    /// Drops a copy for the next one while the peer looks for this file: once it has come, the
    /// copier is free for the next demand.
    fn free_ahead(&self) {
        if self.file.passes() && self.file.source == RequestSource::Demand {
            self.parts.transient.free_ahead(self.at, self.file.want.size);
        }
    }

    /// Notes that a lane has taken it. Only prefetch has a choice of lane: demands always go to
    /// copiers.
    pub(crate) fn assigned(&mut self, lane: Lane) {
        if self.file.origin() == Origin::Pfs && self.file.source == RequestSource::Prefetch {
            self.job.slot.uses_reserve(true);
            self.parts.lanes.note_assigned(&self.file.live, Kind::Files, lane, self.file.want.size);
        }
    }

    /// Finds space in a tier that was not tried yet. Returns the outcome when there is none.
    fn place(&mut self) -> Option<CopyOutcome> {
        let parts = self.parts;
        if let Some((_, below)) = &self.file.packed {
            return if self.too_large { Some(CopyOutcome::Packed(*below)) } else { self.place_above(*below) };
        }
        if self.file.passes() {
            return if self.too_large {
                Some(CopyOutcome::Failed(self.file.start.elapsed()))
            } else {
                self.place_from_peer()
            };
        }
        loop {
            let at = match parts.placer.place(&self.file, &self.tried) {
                Ok(at) => at,
                Err(Why::Unwanted) if !self.too_large => return Some(CopyOutcome::Refused(Refusal::NoRoom, None)),
                Err(_) => match self.no_tier() {
                    Some(end) => return Some(end),
                    None => continue,
                },
            };
            let Some(tier) = parts.cx.tiers.get(at) else { return Some(CopyOutcome::Refused(Refusal::NoRoom, None)) };
            self.turns += 1;
            self.tried[at] = true;
            if parts.cx.packs(at) {
                match self.place_to_pack(at) {
                    ToPack::Catalog => return None,
                    ToPack::Crowded if self.file.source == RequestSource::Prefetch => {
                        parts.compressor.defer(self.file.key);
                        return Some(CopyOutcome::Stopped);
                    }
                    ToPack::Crowded | ToPack::AsItIs => {}
                }
            }
            match parts.reclaim.room(at, tier, self.file.want.size) {
                Ok(Some(copy)) => {
                    (self.at, self.copy) = (at, Some(copy));
                    return None;
                }
                // (Before it is compressed, the size of a copy is only an estimate.)
                Ok(None) => {
                    self.in_doubt |= !parts.cx.packs(at);
                    // Another copier took the space, or a reader has a dropped copy open: other
                    // copies may be dropped.
                    self.tried[at] = self.turns > MAX_CHOICES;
                }
                Err(e) => {
                    self.in_doubt = true;
                    parts.cx.tier_failed(tier, &e);
                }
            }
        }
    }

    /// The outcome when no tier takes the file; `None` if copies of another data set were dropped
    /// for it, so that all tiers are tried again.
    fn no_tier(&mut self) -> Option<CopyOutcome> {
        let parts = self.parts;
        if self.too_large {
            return Some(CopyOutcome::Failed(self.file.start.elapsed()));
        }
        if self.file.source == RequestSource::Prefetch && parts.cx.spares_memory() {
            parts.throttle.leave_out(self.file.key);
            return Some(CopyOutcome::Stopped);
        }
        if self.shares < MAX_FAIR_SHARE_TRIES && parts.fair_share.free_fair_share(&self.file) {
            self.shares += 1;
            self.tried.fill(false);
            return None;
        }
        // Space is reserved for copies that will need less of it.
        let passes = parts.transient.has_uncompressed();
        if passes && self.file.source == RequestSource::Prefetch {
            parts.compressor.defer(self.file.key);
            return Some(CopyOutcome::Stopped);
        }
        if let Some(more) = parts.cx.log_limits.full.now() {
            let file = crate::shown::bytes(&self.file.rel);
            tracing::info!(%file, size = self.file.want.size, more, "no tier has room for it");
        }
        let transient =
            passes || self.in_doubt || self.shares > 0 || parts.cx.tiers.iter().any(|t| t.space.suspended());
        let why = if transient { Refusal::TierFailed } else { Refusal::NoRoom };
        // Its owner may be back by then.
        let elsewhere = self.file.peer.is_some().then_some(NO_ROOM_ANYWHERE_PAUSE);
        Some(CopyOutcome::Refused(why, transient.then_some(RETRY_PAUSE).or(elsewhere)))
    }

    /// Finds space for the copy of a file that a peer owns.
    fn place_from_peer(&mut self) -> Option<CopyOutcome> {
        match self.parts.transient_file(&self.file) {
            Ok((at, copy, share)) => {
                (self.at, self.copy, self.file.share) = (at, Some(copy), Some(Arc::new(share)));
                None
            }
            Err(end) => Some(end),
        }
    }

    /// Finds space for the copy of a file that is compressed in the tier `below`.
    fn place_above(&mut self, below: usize) -> Option<CopyOutcome> {
        let (parts, size) = (self.parts, self.file.want.size);
        let asked = self.file.source == RequestSource::Demand;
        if let Some((at, copy, share)) =
            parts.compressor.retry_until_room(asked, || parts.reclaim.file_above(below, size, asked))
        {
            (self.at, self.copy, self.file.share) = (at, Some(copy), Some(Arc::new(share)));
            return None;
        }
        if !asked {
            parts.rounds.suspend_decoding(self.file.key);
        } else if let Some(more) = parts.cx.log_limits.crowded.now() {
            let file = crate::shown::bytes(&self.file.rel);
            tracing::info!(%file, size, more, "no room to decode it: all of it is in use");
        }
        Some(CopyOutcome::Packed(below))
    }

    /// Finds space for a copy that is to be compressed in this tier: in it, and in front of it.
    fn place_to_pack(&mut self, below: usize) -> ToPack {
        let (parts, size) = (self.parts, self.file.want.size);
        let Some(room) = parts.packer.reserve_estimate(below, &self.file.rel, size) else { return ToPack::AsItIs };
        let asked = self.file.source == RequestSource::Demand;
        let above = parts.compressor.retry_until_room(asked, || parts.reclaim.file_above(below, size, true));
        let Some((at, copy, share)) = above else { return ToPack::Crowded };
        (self.at, self.copy, self.file.share) = (at, Some(copy), Some(Arc::new(share)));
        self.file.below = Some(Arc::new(CompressedReservation { tier: below, room: Mutex::new(Some(room)) }));
        ToPack::Catalog
    }

    /// Publishes the copy. Returns `false` when it took more blocks than were reserved.
    fn publish(&mut self, copied: Copied) -> Result<bool, CopyError> {
        let f = &self.file;
        if copied.identity.is_none_or(|id| !f.live.is_same(&id, &f.want)) {
            return Err(CopyError::Changed);
        }
        let Some(copy) = self.copy.take() else { return Ok(false) };
        // (Whole files are always summed.)
        let unsummed = || CopyError::Sink(std::io::ErrorKind::InvalidData.into());
        self.sum = Sum::whole(copied.checksum.ok_or_else(unsummed)?);
        f.note_sum(self.sum);
        self.parts.peers.notify_copied(f, self.sum);
        let passing = f.packed.is_some() || f.below.is_some() || f.passes();
        let done = match passing {
            true => copy.publish_passing(f.name, f.stamp()),
            false => copy.publish(f.name, f.stamp(), self.sum),
        };
        let done = done.map_err(CopyError::Sink)?;
        if done.is_some() {
            self.parts.cx.latencies.copied(f.origin(), CopyOf::File, f.start.elapsed());
        }
        if done.is_some() && f.packed.is_none() {
            self.parts.throttle.worked();
            self.parts.cx.stats.bytes.fetch_add(copied.bytes, Ordering::Relaxed);
            let took = f.start.elapsed();
            if f.peer.is_none() {
                self.parts.accounting.note_file(copied.bytes, took);
                self.parts.policy.notify(&Event::Fetched { file: FileKey(f.key), size: copied.bytes, took });
                self.parts.source_facts.was_read(f.key, f.entry.record);
            }
        }
        Ok(done.is_some())
    }

    /// Handles the end of a copy. `None` when it has to be copied into another tier.
    fn settle(&mut self, end: Result<Copied, CopyError>) -> Option<CopyOutcome> {
        // (What fails is given back to the ledger at once.)
        self.file.share.iter().for_each(|share| share.hand_over());
        if let Ok(copied) = &end
            && self.file.packed.is_none()
            && self.file.peer.is_none()
        {
            self.parts.cx.stats.source_bytes.fetch_add(copied.bytes, Ordering::Relaxed);
        }
        let end = end.and_then(|copied| self.publish(copied));
        if let Ok(true) = end {
            self.file.share.iter().for_each(|share| share.charge());
        }
        self.copy = None;
        match end {
            Ok(true) if self.file.packed.is_some() || self.file.below.is_some() || self.file.passes() => {
                return Some(CopyOutcome::Decoded(self.at));
            }
            Ok(true) => return Some(CopyOutcome::Resident(self.at)),
            Ok(false) => self.too_large = true,
            Err(CopyError::Sink(e)) => {
                self.in_doubt = true;
                if let Some(tier) = self.parts.cx.tiers.get(self.at) {
                    self.parts.cx.tier_failed(tier, &e);
                }
            }
            Err(CopyError::Source(e)) if self.file.packed.is_some() => {
                // Copied from the PFS then.
                if let Some((_, below)) = self.file.packed.take() {
                    self.parts.cx.drop_damaged_packed(&self.file, below, &e);
                }
            }
            Err(e) => match self.parts.publisher.after_failure(&e, &self.file) {
                Some(end) => return Some(end),
                None => self.tried.fill(false),
            },
        }
        (self.file.below, self.file.share) = (None, None);
        self.place()
    }

    fn publish_outcome(&mut self, end: CopyOutcome) {
        self.parts.publisher.publish_outcome(&self.file, end);
        if matches!(end, CopyOutcome::Decoded(_)) && self.file.below.is_some() {
            self.parts.compressor.enqueue(&self.file, self.sum);
        }
    }
}

impl Task for FileCopyTask<'_> {
    fn source(&self) -> &dyn Source {
        &*self.file.live.source
    }
    fn rel(&self) -> &[u8] {
        &self.file.rel
    }
    fn file(&self) -> Option<Arc<dyn SourceFile>> {
        let packed = self.file.packed.as_ref().map(|(file, _)| file.clone() as Arc<dyn SourceFile>);
        packed.or_else(|| self.file.peer.clone().map(|peer| peer as Arc<dyn SourceFile>))
    }
    fn range(&self) -> Range<u64> {
        0..self.file.want.size
    }
    fn sink(&self) -> &dyn Sink {
        &self.copy
    }
    fn marks(&self) -> &dyn Marks {
        &self.mark
    }
    fn opened(&self, _file: &Arc<dyn SourceFile>, took: Duration) {
        self.parts.accounting.note_open(&self.file, took);
    }
    fn done(&mut self, end: Result<Copied, CopyError>) -> bool {
        let end = self.settle(end);
        if let Some(end) = end {
            self.publish_outcome(end);
        }
        end.is_none()
    }
}
