//! One file before and after its copy: claimed in its state word, given room, and in the end
//! resident or not, and why.

use super::compressor::CompressedReservation;
use super::engine_lane::Lane;
use super::file_copy_task::FileCopyTask;
use super::inflight_progress::InflightProgress;
use super::orphans::Claim;
use super::peers::RemoteFile;
use super::transient_cache::TransientReservation;
use super::{Job, LiveSegment, TieringEngine, parts};
use crate::agent::access;
use crate::engine::{CopyError, Marks, SourceFile};
use crate::metrics::Origin;
use crate::sync::lock;
use crate::tier::{CopyFile, PackedFile, Sum, TierDir};
use monarch_abi::hash::{CopyName, Identity, PathHash, Stamp};
use monarch_abi::segment::{Entry, Segment};
use monarch_abi::sys::futex_wake;
use monarch_abi::word::{Refusal, State, Word};
use monarch_policies::{Candidate, Decision, FileKey, RequestSource, TierRoom};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How a fetch ended.
#[derive(Clone, Copy)]
pub(super) enum CopyOutcome {
    Resident(usize),
    /// A copy is there that was decoded, or is to be packed.
    Decoded(usize),
    /// There is a packed copy only.
    Packed(usize),
    /// Not now; try again after the pause, if any.
    Refused(Refusal, Option<Duration>),
    /// Something went wrong after so much time; try again after a pause that grows.
    Failed(Duration),
    /// It passed through, and that is over.
    Streamed,
    Bypass,
    Stopped,
}

/// A claimed file.
#[derive(Clone)]
pub(super) struct ClaimedFile {
    pub(super) live: LiveSegment,
    pub(super) entry: Entry<'static>,
    /// Path below the root.
    pub(super) rel: Vec<u8>,
    pub(super) key: u64,
    pub(super) source: RequestSource,
    /// Its word while it is being copied.
    pub(super) claim: Word,
    /// What it is to be.
    pub(super) want: Identity,
    pub(super) name: CopyName,
    /// When it was claimed.
    pub(super) start: Instant,
    /// The packed copy that it is decoded from, and its tier; otherwise it comes from the PFS.
    pub(super) packed: Option<(Arc<PackedFile>, usize)>,
    /// The node that it comes from, where that is not the PFS.
    pub(super) peer: Option<Arc<dyn RemoteFile>>,
    /// Where it is to be packed.
    pub(super) below: Option<Arc<CompressedReservation>>,
    /// The room for decoded copies that it takes.
    pub(super) share: Option<Arc<TransientReservation>>,
}

impl ClaimedFile {
    /// Where its bytes come from.
    pub(super) const fn origin(&self) -> Origin {
        match (&self.packed, &self.peer) {
            (Some(_), _) => Origin::Packed,
            (None, Some(_)) => Origin::Node,
            (None, None) => Origin::Pfs,
        }
    }

    /// What its bytes are read from, where that is not a file on the PFS.
    pub(super) fn given(&self) -> Option<Arc<dyn SourceFile>> {
        match (&self.packed, &self.peer) {
            (Some((packed, _)), _) => Some(packed.clone()),
            (None, Some(peer)) => Some(peer.clone()),
            (None, None) => None,
        }
    }

    /// Takes note of what its copy comes to, for the nodes that get it from here, too.
    pub(super) fn note_sum_with(&self, tiering: &TieringEngine, sum: Sum) {
        self.note_sum(sum);
        tiering.tell_sum(self, sum);
    }

    /// What marks its copy.
    pub(super) fn stamp(&self) -> Stamp {
        self.name.stamp(PathHash { fp: self.entry.master.fp, check: self.entry.record.check })
    }

    /// Takes note of what its copy comes to, for readers who verify it; before it gets its name.
    pub(super) fn note_sum(&self, sum: Sum) {
        self.live.segment.state.guard.note_sum(self.entry.id, sum);
    }
}

impl TieringEngine {
    /// Looks at one file: claims it and finds room for a copy. `None` when there is nothing to
    /// copy.
    pub(super) fn begin<'a>(&'a self, job: Job<'a>) -> Option<FileCopyTask<'a>> {
        let (number, id) = parts(job.key)?;
        let live = self.segment(number)?;
        let mut path = [0u8; monarch_abi::PATH_MAX];
        let len = live.segment.index.path(id, &mut path)?;
        let rel = path.get(..len).unwrap_or(&[]).to_vec();
        let entry = live.segment.lookup(&rel)?;
        if !core::ptr::eq(entry.slot, entry.master) {
            // A further name of an inode whose word lies elsewhere: that one is (or was) looked at.
            return None;
        }
        let Some((claim, source)) = self.claim(&live.segment, &entry, &job) else {
            match entry.word().refusal() {
                Some(Refusal::Damaged) => self.drop_damaged(job.key, &live, &entry),
                None if entry.word().state() == State::Partial => self.asked_while_filling(&job),
                _ => {}
            }
            return None;
        };
        let (want, name) = (entry.record.identity(), live.segment.copy_name(&entry));
        let (key, start) = (job.key, Instant::now());
        let (packed, below, share) = (None, None, None);
        let peer = None;
        self.claimed(
            ClaimedFile { live, entry, rel, key, source, claim, want, name, start, packed, peer, below, share },
            job,
        )
    }

    /// Gets a copy of a claimed file: that of an earlier agent, or a new one, which is yet to be
    /// filled.
    fn claimed<'a>(&'a self, mut f: ClaimedFile, mut job: Job<'a>) -> Option<FileCopyTask<'a>> {
        if let Some(pause) = self.unsettled(&f.want) {
            self.stats.unsettled.fetch_add(1, Ordering::Relaxed);
            self.publish_outcome(&f, CopyOutcome::Refused(Refusal::RecentlyModified, Some(pause)));
            return None;
        }
        let mark = InflightProgress::claim(&self.ctl, f.key, f.source);
        let left = self.orphans().claim_any(&f.live.segment, &f.entry, &self.tiers);
        if let Some(claim) = left
            && let Some(end) = self.adopt(&f, claim, &mark, job.decodes)
        {
            self.publish_outcome(&f, end);
            return None;
        }
        if !self.transient.is_empty() {
            f.packed = self.packed_of(&f);
            if f.source == RequestSource::Demand {
                self.was_asked(f.key);
            }
        }
        if f.packed.is_some() {
            job.slot.is_decoding();
        } else {
            f.peer = self.peer_file(&f);
        }
        if f.peer.is_some() && job.in_ring {
            // It came to be there just now: a copier takes it.
            self.publish_outcome(&f, CopyOutcome::Stopped);
            lock(&self.work_queue).retry([job.key]);
            self.wake(Lane::Threads);
            return None;
        }
        if let Some(large) = f.live.segment.state.large(f.entry.id) {
            self.begin_fill(f, large);
            return None;
        }
        if let Some(peer) = &f.peer {
            // It looks for the file while room is made for it here.
            peer.will_be_read();
        }
        FileCopyTask::new(self, f, mark, job)
    }

    /// Somebody asked for a file whose chunks are being fetched.
    fn asked_while_filling(&self, job: &Job<'_>) {
        match job.source {
            RequestSource::Demand => drop(self.drain_chunk_requests(job.key)),
            RequestSource::Prefetch => self.fetch_rest(job.key),
        }
    }

    /// Turns a file that is asked for (or, for a prefetch, absent) to Fetching: the claim, and why
    /// it is fetched.
    fn claim(&self, segment: &Segment<'static>, e: &Entry<'static>, job: &Job<'_>) -> Option<(Word, RequestSource)> {
        loop {
            let before = e.word();
            let why = match (before.state(), job.source) {
                (State::Requested, _) => RequestSource::Demand,
                // What lies packed is not fetched again; it is decoded for those who ask, and by
                // those who are to do so ahead.
                (State::Absent, RequestSource::Prefetch) if before.packed_in().is_some() != job.decodes => return None,
                (State::Absent, RequestSource::Prefetch) => RequestSource::Prefetch,
                (State::Bypass, _) => {
                    self.drop_copies(segment, e, job.key);
                    if before.is_changed()
                        && let Some(live) = parts(job.key).and_then(|(number, _)| self.segment(number))
                    {
                        self.tell_changed(&live, e);
                    }
                    return None;
                }
                _ => return None,
            };
            let claim = before.with(State::Fetching);
            // Lost against the demand for a file that was to be prefetched, against another copier,
            // or against a bypass.
            if e.master.word.compare_exchange(before.0, claim.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Some((claim, why));
            }
        }
    }

    /// Writes the outcome into the state word and wakes everybody who waits.
    pub(super) fn publish_outcome(&self, f: &ClaimedFile, end: CopyOutcome) {
        let (word, claim) = (&f.entry.master.word, f.claim);
        let end = match (end, &f.packed) {
            (CopyOutcome::Refused(..) | CopyOutcome::Failed(_) | CopyOutcome::Stopped, Some((_, tier)))
                if self.tiers.get(*tier).is_some_and(|t| t.has_packed(f.name)) =>
            {
                CopyOutcome::Packed(*tier)
            }
            (end, _) => end,
        };
        let to = match end {
            CopyOutcome::Resident(tier) => claim.resident(tier),
            CopyOutcome::Decoded(tier) => claim.resident(tier).marked(),
            CopyOutcome::Packed(tier) => claim.packed(tier),
            CopyOutcome::Refused(_, None) | CopyOutcome::Streamed if self.can_stream(f) => {
                claim.refused(Refusal::Streamable)
            }
            CopyOutcome::Refused(Refusal::NoRoom, None)
                if f.live.segment.state.large(f.entry.id).is_none() && self.asks_again() =>
            {
                claim.next(State::Absent)
            }
            CopyOutcome::Refused(why, _) => claim.refused(why),
            CopyOutcome::Streamed => claim.refused(Refusal::NoRoom),
            CopyOutcome::Failed(_) => claim.refused(Refusal::PfsFailed),
            CopyOutcome::Bypass => claim.left(),
            CopyOutcome::Stopped => claim.next(State::Absent),
        };
        self.tell_over(f);
        if !f.live.fresh && matches!(end, CopyOutcome::Resident(_) | CopyOutcome::Decoded(_) | CopyOutcome::Packed(_)) {
            // A copy was made, or taken over, of what lies at this path: that was compared.
            f.live.segment.state.guard.was_compared(f.entry.id);
        }
        let published = word.compare_exchange(claim.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok();
        futex_wake(word, u32::MAX >> 1);
        let count = |figure: &AtomicU64| {
            figure.fetch_add(1, Ordering::Relaxed);
        };
        match end {
            // Bypassed while it was being copied: nobody will ever open the copy.
            _ if !published => self.drop_copies(&f.live.segment, &f.entry, f.key),
            CopyOutcome::Resident(_) | CopyOutcome::Decoded(_) | CopyOutcome::Packed(_)
                if !self.serves(&f.live, f.key) =>
            {
                self.came_late(f, to);
            }
            CopyOutcome::Resident(tier) => {
                let demand = f.source == RequestSource::Demand;
                count(if demand { &self.stats.demanded } else { &self.stats.prefetched });
                lock(&self.catalog).add(f.key);
                lock(&self.retry_backoff).worked(f.key);
                self.copy_errors.over(f.key);
                self.tell_placed(f.key, f.want.size, tier);
            }
            CopyOutcome::Decoded(tier) => self.is_decoded(f, tier),
            CopyOutcome::Packed(_) | CopyOutcome::Streamed => {}
            CopyOutcome::Refused(_, pause) => {
                count(&self.stats.refused);
                if let Some(pause) = pause {
                    lock(&self.retry_backoff).add(pause, (f.key, to));
                }
            }
            CopyOutcome::Failed(took) => {
                count(&self.stats.refused);
                let mut later = lock(&self.retry_backoff);
                let pause = later.failed(f.key, took);
                later.add(pause, (f.key, to));
            }
            CopyOutcome::Bypass => {
                count(&self.stats.changed);
                lock(&self.retry_backoff).worked(f.key);
                self.drop_copies(&f.live.segment, &f.entry, f.key);
            }
            CopyOutcome::Stopped => {}
        }
    }

    /// Whether a key is one of this very index still.
    fn serves(&self, live: &LiveSegment, key: u64) -> bool {
        let now = parts(key).and_then(|(number, _)| self.segment(number));
        now.is_some_and(|now| core::ptr::eq(now.segment.state.header, live.segment.state.header))
    }

    /// A copy has come of a file whose index was retired, and not waited for any longer: it is left
    /// to the next one.
    fn came_late(&self, f: &ClaimedFile, is: Word) {
        let word = &f.entry.master.word;
        let refused = is.refused(Refusal::Dropped);
        if word.compare_exchange(is.0, refused.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            f.share.iter().for_each(|share| share.hand_over());
            self.leave_to_next(is, f.name, f.want.size);
        }
    }

    /// Copies lose their owner: those that their word spoke of are the next one's who has such a
    /// file.
    pub fn leave_to_next(&self, was: Word, name: CopyName, size: u64) {
        let copies = self.copies_of(was, name);
        if copies.is_not_packed_yet(was) {
            // It is in nobody's books, and would keep the room of decoded copies.
            if let Some(tier) = self.tiers.get(was.tier()) {
                tier.evict_resident(name, size);
            }
        } else if !copies.is_empty() {
            self.orphans().put_back(copies, name, size, &self.tiers);
        }
    }

    /// Removes the copies of a file that must not be used any more.
    pub(super) fn drop_copies(&self, segment: &Segment<'static>, entry: &Entry<'static>, key: u64) {
        self.tell_dropped(key);
        let name = segment.copy_name(entry);
        self.orphans().forget(name);
        for tier in &self.tiers {
            tier.evict(name, entry.record.size);
        }
        let _ = self.evict_packed(name, entry.record.size);
    }

    /// A copy is there that was decoded: it may go when its room is needed. Or one that is to be
    /// packed first.
    fn is_decoded(&self, f: &ClaimedFile, tier: usize) {
        let demand = f.source == RequestSource::Demand;
        let count = |figure: &AtomicU64| {
            figure.fetch_add(1, Ordering::Relaxed);
        };
        if f.packed.is_some() {
            count(&self.stats.decoded);
            if !demand {
                count(&self.stats.decoded_ahead);
            }
            self.add_decoded(tier, f.key, f.want.size, f.share.as_deref());
            return;
        }
        if f.below.is_none() {
            // One that was left decoded, or that another node owns.
            self.add_decoded(tier, f.key, f.want.size, f.share.as_deref());
        }
        if f.peer.is_some() && demand {
            self.make_way_ahead(tier, f.want.size);
        }
        count(if demand { &self.stats.demanded } else { &self.stats.prefetched });
        lock(&self.catalog).add(f.key);
        lock(&self.retry_backoff).worked(f.key);
        self.copy_errors.over(f.key);
    }

    pub(super) fn tier_failed(&self, tier: &TierDir, e: &io::Error) {
        self.stats.tier_errors.fetch_add(1, Ordering::Relaxed);
        tier.rest();
        if let Some(more) = self.log_limits.tier.now() {
            tracing::warn!(tier = tier.name, error = %e, more, "a copy could not be written; the tier rests for 5 s");
        }
    }

    /// What a failure on the PFS side means for the file.
    pub(super) fn failed(&self, e: &CopyError, f: &ClaimedFile) -> CopyOutcome {
        let file = crate::shown::bytes(&f.rel);
        if !matches!(e, CopyError::Stopped) {
            self.copy_errors.note(f.key, e);
        }
        match e {
            CopyError::Stopped => CopyOutcome::Stopped,
            CopyError::Changed => {
                if let Some(more) = self.log_limits.changed.now() {
                    tracing::info!(%file, more, "changed since it was indexed; left to the PFS");
                }
                CopyOutcome::Bypass
            }
            CopyError::Source(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
                if let Some(more) = self.log_limits.unreadable.now() {
                    tracing::info!(%file, error = %e, more, "it may not be read, or has gone; left to the PFS");
                }
                CopyOutcome::Bypass
            }
            CopyError::Source(e) | CopyError::Sink(e) => {
                self.stats.source_errors.fetch_add(1, Ordering::Relaxed);
                if let Some(more) = self.log_limits.pfs.now() {
                    tracing::warn!(%file, error = %e, more, "the PFS failed; tried again later");
                }
                let known = lock(&self.retry_backoff).has_failed(f.key);
                self.throttle.failed(known);
                CopyOutcome::Failed(f.start.elapsed())
            }
        }
    }

    /// How long until a file that was changed a moment ago may be copied.
    fn unsettled(&self, id: &Identity) -> Option<Duration> {
        let settle = i64::try_from(self.options.settle.as_nanos()).unwrap_or(i64::MAX);
        let now = crate::index::now_ns();
        // Each time for itself: a modification time may be set to anything, the change time may
        // come from a clock that is wrong. Times far in the future say nothing.
        let rest = [id.mtime_ns, id.ctime_ns].into_iter().filter_map(|t| {
            let age = now.saturating_sub(t);
            (age < settle && age > -60_000_000_000).then(|| settle.saturating_sub(age))
        });
        let ns = u64::try_from(rest.max()?).unwrap_or(0);
        Some(Duration::from_nanos(ns) + Duration::from_millis(1))
    }

    /// Where the policy wants a copy, tiers in `skip` aside.
    pub(super) fn decide(&self, f: &ClaimedFile, skip: &[bool]) -> Decision {
        let packed =
            if self.transient.is_empty() { f.want.size } else { lock(&self.ratios).guess(&f.rel, f.want.size) };
        let unclaimed = self.orphans();
        let room = |(at, tier): (usize, &TierDir)| {
            let (u, kept) = self.usage_and_kept(at, tier);
            // What nobody has claimed makes way.
            let makes_way = unclaimed.bytes(at) + self.passing_bytes(at);
            let taken = (u.used + u.reserved).saturating_sub(makes_way) + kept;
            let usable = !skip.get(at).copied().unwrap_or(true) && !tier.suspended();
            let size = if self.packs(at) { packed } else { f.want.size };
            TierRoom { cost: tier.ledger.cost(size) + tier.log_wants(), free: u.capacity.saturating_sub(taken), usable }
        };
        let rooms: Vec<TierRoom> = self.tiers.iter().enumerate().map(room).collect();
        drop(unclaimed);
        let candidate = Candidate { file: FileKey(f.key), size: f.want.size, source: f.source };
        let mut policy = lock(&self.policy);
        policy.place(&candidate, &rooms, &lock(&self.hints))
    }

    /// Asks the PFS for metadata, within the limits. Readers see the wait for them as one for the
    /// PFS.
    fn ask_pfs<T>(&self, mark: &InflightProgress, ask: impl FnOnce() -> io::Result<T>) -> Result<T, CopyError> {
        let limited = || {
            self.limits.before_call(0, mark.waited_for());
            ask()
        };
        mark.ask_pfs(limited).map_err(CopyError::Source)
    }

    /// Room for a copy; copies of an earlier run that nobody claims make way.
    pub(super) fn room<'a>(&self, at: usize, tier: &'a TierDir, size: u64) -> io::Result<Option<CopyFile<'a>>> {
        tier.keep_log_room();
        loop {
            if let Some(file) = tier.create(size)? {
                return Ok(Some(file));
            }
            let cost = tier.ledger.cost(size);
            let passed = || self.passing_bytes(at) > 0 && self.drop_some_decoded(at, cost, true) > 0;
            if !self.orphans().make_way(at, &self.tiers) && !passed() {
                return Ok(None);
            }
        }
    }

    /// Takes over a copy that an earlier run left, if the file on the PFS is still the one it was
    /// made of; `None` if its bytes are not what they must be, and it is to be copied anew.
    fn adopt(&self, f: &ClaimedFile, claim: Claim, mark: &InflightProgress, decodes: bool) -> Option<CopyOutcome> {
        let readable = access::by_mode(&f.live.segment.index, f.entry.record);
        if !f.live.fresh || !readable {
            // An earlier job of this user could read it; whether this one can, an open says.
            let ask = || match readable {
                true => f.live.source.identity(&f.rel),
                false => f.live.source.open(&f.rel)?.identity_now(),
            };
            match self.ask_pfs(mark, ask) {
                Ok(id) if f.live.is_same(&id, &f.want) => self.throttle.worked(),
                Ok(_) => return Some(self.failed(&CopyError::Changed, f)),
                Err(e) => {
                    self.orphans().put_back(claim, f.name, f.want.size, &self.tiers);
                    return Some(self.failed(&e, f));
                }
            }
        }
        let Some(tier) = claim.plain else {
            // It is decoded right away if somebody waits for it.
            if let Some(at) = claim.packed {
                self.tell_packed(f.key, f.want.size, (at, f.name));
            }
            let now = f.source == RequestSource::Demand || decodes;
            self.stats.adopted.fetch_add(1, Ordering::Relaxed);
            lock(&self.catalog).add(f.key);
            return if now { None } else { claim.packed.map(CopyOutcome::Packed) };
        };
        let dir = self.tiers.get(tier)?;
        if let Some(sum) = claim.check {
            f.note_sum(sum);
            if !dir.verify(f.name, f.want.size, sum) {
                dir.evict_resident(f.name, f.want.size);
                self.stats.damaged.fetch_add(1, Ordering::Relaxed);
                if let Some(more) = self.log_limits.hurt.now() {
                    let file = crate::shown::bytes(&f.rel);
                    tracing::warn!(%file, more, "a copy of before the machine was started is damaged; it is made again");
                }
                return None;
            }
            dir.verified(f.name, sum, f.want.size);
            self.stats.verified.fetch_add(1, Ordering::Relaxed);
        }
        let guard = &f.live.segment.state.guard;
        if guard.which().sums && guard.sum(f.entry.id).is_none() {
            // Its readers could not tell whether it is sound.
            dir.evict_resident(f.name, f.want.size);
            return None;
        }
        self.stats.adopted.fetch_add(1, Ordering::Relaxed);
        if let Some(at) = claim.packed {
            self.tell_packed(f.key, f.want.size, (at, f.name));
            return Some(CopyOutcome::Decoded(tier));
        }
        Some(CopyOutcome::Resident(tier))
    }
}
