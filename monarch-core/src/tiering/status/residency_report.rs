//! [`ResidencyReport`]: counts how far the copies of some files are, for commands that wait for
//! them.

use crate::snapshot::{Ahead, Census, Range, Tally, Trouble};
use crate::sync::lock;
use crate::tier::TierDir;
use crate::tiering::compression::Compression;
use crate::tiering::compression::compressor::Compressor;
use crate::tiering::core::context::Context;
use crate::tiering::core::copy_errors::CopyErrors;
use crate::tiering::core::peer_link::PeerLink;
use crate::tiering::core::segments::{LiveSegment, Segments};
use crate::tiering::core::shared::Shared;
use crate::tiering::core::source_facts::{SourceFacts, is_asked_for, trimmed};
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::residency::Residency;
use crate::tiering::residency::orphans::Orphans;
use crate::tiering::residency::transient_copies::TransientCopies;
use crate::tiering::status::prefetch_status::PrefetchStatus;
use monarch_abi::demand::file_key;
use monarch_abi::segment::Entry;
use monarch_abi::word::{Refusal, State};
use monarch_policies::{Candidate, Decision, FileKey, RequestSource, TierRoom};
use std::sync::{Arc, Mutex};

/// Ranges of fewer entries than one part in this many of all are looked up one by one: a walk over
/// all is cheaper per entry by this factor.
const FEW_DIVISOR: u32 = 16;

/// What the group of a file depends on besides its word.
#[derive(Clone, Copy)]
struct Rules {
    /// Whether the request prefetches the file.
    is_asked: bool,
    /// How many files that failed are named at most.
    list: usize,
    /// Whether files that found no space are Absent, and prefetch is idle.
    at_rest: bool,
}

/// Counts files by the state of their copies.
pub(crate) struct ResidencyReport {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    orphans: Arc<Mutex<Orphans>>,
    copy_errors: Arc<CopyErrors>,
    policy: Arc<PolicyHandle>,
    source_facts: Arc<SourceFacts>,
    peers: Arc<PeerLink>,
    transient: Arc<TransientCopies>,
    compressor: Arc<Compressor>,
    prefetch_status: Arc<PrefetchStatus>,
}

impl ResidencyReport {
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        residency: &Residency,
        compression: &Compression,
        prefetch_status: &Arc<PrefetchStatus>,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            orphans: residency.orphans.clone(),
            copy_errors: shared.copy_errors.clone(),
            policy: policy.clone(),
            source_facts: shared.source_facts.clone(),
            peers: shared.peers.clone(),
            transient: residency.transient.clone(),
            compressor: compression.compressor.clone(),
            prefetch_status: prefetch_status.clone(),
        }
    }

    /// Counts the files in these ranges by the state of their copies. At most `list` files that
    /// failed are named. `plan`: also counts how many of the missing files will fit.
    pub(crate) fn census(&self, ranges: &[Range], plan: bool, list: usize) -> Census {
        let mut census = Census::default();
        let mut missing = Vec::new();
        // Under some policies a file that found no space is Absent again: it is tried at its next
        // open.
        let at_rest = self.policy.asks_again() && self.prefetch_status.ahead() == Ahead::Idle;
        for range in ranges {
            let Some(live) = self.segments.segment(range.segment).filter(|_| self.cx.is_live(range.segment)) else {
                census.retired = true;
                continue;
            };
            let released = self.source_facts.released(range.segment);
            let asked = trimmed(*range, &live.segment, &released);
            let mut count = |entry: &Entry<'static>, id: u32| {
                let is_asked = id < asked.end && is_asked_for(&asked, id, entry.record, &released);
                let key = file_key(range.segment, entry.master.id);
                self.count(&mut census, &live, key, entry, Rules { is_asked, list, at_rest });
                let word = entry.word();
                let here = matches!(word.state(), State::Resident | State::Bypass) || word.packed_in().is_some();
                if plan && !here && is_asked && self.peers.is_for_us(&live, entry.id) {
                    missing.push((entry.id, key, entry.record.size));
                }
            };
            if range.end.saturating_sub(range.from) <= live.segment.index.len() as u32 / FEW_DIVISOR + 1 {
                // Further names of an inode count here: they were named by themselves.
                let entries = (range.from..range.end).filter_map(|id| live.segment.by_id(id));
                entries.filter(|e| e.record.is_file()).for_each(|e| count(&e, e.id));
            } else {
                let inside = |e: &Entry<'_>| (range.from..range.end).contains(&e.id);
                live.segment.files().filter(inside).for_each(|e| count(&e, e.id));
            }
        }
        if plan {
            // In the order in which they are fetched.
            missing.sort_unstable();
            census.fits = self.fits(&missing);
        }
        census
    }

    fn count(
        &self,
        census: &mut Census,
        live: &LiveSegment,
        key: u64,
        entry: &Entry<'static>,
        Rules { is_asked, list, at_rest }: Rules,
    ) {
        let (word, size) = (entry.word(), entry.record.size);
        census.all.add(size);
        let group = match (word.state(), word.refusal()) {
            // Whether there is space for it in the slower tier shows when it is compressed.
            (State::Resident, _) if word.is_marked() && self.compressor.is_queued(key) => &mut census.under_way,
            (State::Resident, _) => &mut census.resident,
            (State::Absent, _) if word.packed_in().is_some() => &mut census.resident,
            (State::Bypass, _) => &mut census.bypassed,
            _ if !self.peers.is_for_us(live, entry.id) => &mut census.owned_by_peers,
            (_, Some(Refusal::NoRoom | Refusal::Streamable | Refusal::Replaced)) => &mut census.no_room,
            // Decided again at each open, but no reader opens it now.
            (State::Absent, _) if at_rest && !self.cx.has_room(size) => &mut census.no_room,
            (_, Some(Refusal::Dropped | Refusal::Damaged)) => &mut census.dropped,
            (_, Some(Refusal::RecentlyModified)) => &mut census.unsettled,
            (_, Some(Refusal::PfsFailed | Refusal::TierFailed)) => &mut census.failing,
            (State::Absent, _) if !is_asked => &mut census.on_tape,
            _ => &mut census.under_way,
        };
        group.add(size);
        if word.state() == State::Partial
            && let Some(large) = live.segment.state.large(entry.id)
        {
            let large = large.streamed_through(&self.cx.ctl.ctl.stream);
            let chunks = u64::from(large.count()).saturating_mul(large.chunk).min(size);
            census.chunks = census.chunks.saturating_add(chunks);
        }
        let wrong = matches!(word.state(), State::Bypass)
            || matches!(word.refusal(), Some(Refusal::PfsFailed | Refusal::TierFailed));
        if wrong && census.trouble.len() < list {
            let why = match (word.state(), word.refusal()) {
                (State::Bypass, _) => "changed by a job, or since it was indexed",
                (_, Some(Refusal::TierFailed)) => "the tier takes no copies at present",
                _ => "the PFS failed",
            };
            let why = self.copy_errors.of(key).unwrap_or_else(|| why.to_owned());
            census.trouble.push(Trouble { path: self.cx.path_of(live, entry.id), why });
        }
    }

    /// How many of these files (id, key, size) there is space for, by the policy's decisions.
    fn fits(&self, files: &[(u32, u64, u64)]) -> Tally {
        let mut fits = Tally::default();
        let Some(mut policy) = monarch_policies::by_name(self.policy.lock_policy().name(), 0) else { return fits };
        let hints = self.policy.lock_hints().clone();
        let unclaimed = lock(&self.orphans);
        let room = |(at, tier): (usize, &TierDir)| {
            let u = tier.space.ledger.usage();
            let taken = (u.used + u.reserved).saturating_sub(unclaimed.bytes(at));
            let taken = taken + self.transient.reserved_bytes(at);
            TierRoom { cost: 0, free: u.capacity.saturating_sub(taken), usable: !tier.space.suspended() }
        };
        let mut rooms: Vec<TierRoom> = self.cx.tiers.iter().enumerate().map(room).collect();
        drop(unclaimed);
        for &(_, key, size) in files {
            for (at, (room, tier)) in rooms.iter_mut().zip(&self.cx.tiers).enumerate() {
                // The ratio of the copies that are compressed there already.
                let packed = tier.packed.usage();
                let scaled = u128::from(size) * u128::from(packed.stored) / u128::from(packed.bytes.max(1));
                let packs = self.cx.packs(at) && packed.files > 0 && self.cx.could_be_decoded(at, size);
                let bytes = if packs { u64::try_from(scaled).unwrap_or(size).min(size) } else { size };
                room.cost = tier.space.ledger.cost(bytes);
            }
            let candidate = Candidate { file: FileKey(key), size, source: RequestSource::Prefetch };
            if let Decision::Admit(at) = policy.place(&candidate, &rooms, &hints)
                && let Some(room) = rooms.get_mut(at)
            {
                room.free = room.free.saturating_sub(room.cost);
                fits.add(size);
            }
        }
        fits
    }
}
