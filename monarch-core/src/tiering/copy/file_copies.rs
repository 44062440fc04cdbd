//! [`FileCopies`]: claims files, and starts their copies.
//!
//! Invariant: the copier that turns the state word to Fetching copies the file; all other copiers
//! leave it alone.

use crate::sync::lock;
use crate::tiering::copy::adoption::Adoption;
use crate::tiering::copy::chunked_fetches::ChunkedFetches;
use crate::tiering::copy::fetch_starter::FetchStarter;
use crate::tiering::copy::fetching::Fetching;
use crate::tiering::copy::file_copy_context::FileCopyContext;
use crate::tiering::copy::file_copy_task::FileCopyTask;
use crate::tiering::copy::publisher::Publisher;
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::context::Context;
use crate::tiering::core::inflight_progress::InflightProgress;
use crate::tiering::core::lane::Lane;
use crate::tiering::core::outcome::CopyOutcome;
use crate::tiering::core::peer_link::PeerLink;
use crate::tiering::core::segments::{Segments, parts};
use crate::tiering::core::shared::Shared;
use crate::tiering::queue::Queue;
use crate::tiering::queue::inflight_slots::Job;
use crate::tiering::queue::waker::Waker;
use crate::tiering::queue::work_queue::WorkQueue;
use crate::tiering::residency::Residency;
use crate::tiering::residency::decode_rounds::DecodeRounds;
use crate::tiering::residency::eviction::Eviction;
use crate::tiering::residency::orphans::Orphans;
use crate::tiering::residency::scrubber::Scrubber;
use crate::tiering::residency::transient_copies::TransientCopies;
use monarch_abi::hash::Identity;
use monarch_abi::segment::{Entry, Segment};
use monarch_abi::word::{Refusal, State, Word};
use monarch_policies::RequestSource;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Claims files, and starts their copies.
///
/// Fields: 15, one per component that a claim or one of its ways to a copy uses.
pub(crate) struct FileCopies {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    orphans: Arc<Mutex<Orphans>>,
    waker: Arc<Waker>,
    peers: Arc<PeerLink>,
    queue: Arc<WorkQueue>,
    rounds: Arc<DecodeRounds>,
    transient: Arc<TransientCopies>,
    eviction: Arc<Eviction>,
    scrubber: Arc<Scrubber>,
    publisher: Arc<Publisher>,
    fetches: Arc<ChunkedFetches>,
    starter: Arc<FetchStarter>,
    adoption: Arc<Adoption>,
    tasks: Arc<FileCopyContext>,
}

impl FileCopies {
    pub(crate) fn new(
        shared: &Shared,
        queue: &Queue,
        residency: &Residency,
        fetching: &Fetching,
        starter: &Arc<FetchStarter>,
        adoption: &Arc<Adoption>,
        tasks: &Arc<FileCopyContext>,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            orphans: residency.orphans.clone(),
            waker: queue.waker.clone(),
            peers: shared.peers.clone(),
            queue: queue.work.clone(),
            rounds: residency.rounds.clone(),
            transient: residency.transient.clone(),
            eviction: residency.eviction.clone(),
            scrubber: residency.scrubber.clone(),
            publisher: fetching.publisher.clone(),
            fetches: fetching.fetches.clone(),
            starter: starter.clone(),
            adoption: adoption.clone(),
            tasks: tasks.clone(),
        }
    }

    /// Looks at one file: claims it and finds space for a copy. `None` when there is nothing to
    /// copy.
    pub(crate) fn begin<'a>(&'a self, job: Job<'a>) -> Option<FileCopyTask<'a>> {
        self.begin_with(job, None)
    }

    /// The same of a file whose bytes have come from a peer, if they have `arrived`.
    pub(crate) fn begin_with<'a>(&'a self, job: Job<'a>, arrived: Option<&Arc<[u8]>>) -> Option<FileCopyTask<'a>> {
        let (number, id) = parts(job.key)?;
        let live = self.segments.segment(number)?;
        let mut path = [0u8; monarch_abi::PATH_MAX];
        let len = live.segment.index.path(id, &mut path)?;
        let rel = path.get(..len).unwrap_or(&[]).to_vec();
        let entry = live.segment.lookup(&rel)?;
        if !core::ptr::eq(entry.slot, entry.master) {
            // A further name of an inode whose word is elsewhere: that one is (or was) looked at.
            return None;
        }
        let Some((claim, source)) = self.claim(&live.segment, &entry, &job) else {
            match entry.word().refusal() {
                Some(Refusal::Damaged) => self.scrubber.drop_damaged(job.key, &live, &entry),
                None if entry.word().state() == State::Partial => self.asked_while_partial(&job),
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
            arrived,
        )
    }

    /// Gets a copy of a claimed file: adopts that of an earlier agent, or starts a new one.
    fn claimed<'a>(
        &'a self,
        mut f: ClaimedFile,
        mut job: Job<'a>,
        arrived: Option<&Arc<[u8]>>,
    ) -> Option<FileCopyTask<'a>> {
        if let Some(pause) = self.unsettled(&f.want) {
            self.cx.stats.unsettled.fetch_add(1, Ordering::Relaxed);
            self.publisher.publish_outcome(&f, CopyOutcome::Refused(Refusal::RecentlyModified, Some(pause)));
            return None;
        }
        let mark = InflightProgress::claim(&self.cx.ctl, f.key, f.source);
        let left = lock(&self.orphans).claim_any(&f.live.segment, &f.entry, &self.cx.tiers);
        if let Some(claim) = left
            && let Some(end) = self.adoption.adopt(&f, claim, &mark, job.decodes)
        {
            self.publisher.publish_outcome(&f, end);
            return None;
        }
        if !self.transient.is_empty() {
            f.packed = self.cx.packed_of(&f);
            if f.source == RequestSource::Demand {
                self.rounds.was_asked(f.key);
            }
        }
        if f.packed.is_some() {
            job.slot.is_decoding();
        } else {
            f.peer = self.peers.peer_file(&f, arrived);
        }
        if f.peer.is_some() && job.in_ring {
            // The peer has it since just now: a copier takes it.
            self.publisher.publish_outcome(&f, CopyOutcome::Stopped);
            self.queue.lines().retry([job.key]);
            self.waker.wake(Lane::Threads);
            return None;
        }
        if let Some(large) = f.live.segment.state.large(f.entry.id) {
            self.starter.begin_fetch(f, large);
            return None;
        }
        if let Some(peer) = &f.peer {
            // The peer looks for the file while this node finds space for it.
            peer.will_be_read();
        }
        FileCopyTask::new(&self.tasks, f, mark, job)
    }

    /// Turns a requested file (or, for a prefetch, an absent one) to Fetching. Returns the claim,
    /// and why it is fetched.
    fn claim(&self, segment: &Segment<'static>, e: &Entry<'static>, job: &Job<'_>) -> Option<(Word, RequestSource)> {
        loop {
            let before = e.word();
            let why = match (before.state(), job.source) {
                (State::Requested, _) => RequestSource::Demand,
                // A file with a compressed copy is not fetched again: it is decompressed for
                // readers, or ahead of them by the job that decompresses.
                (State::Absent, RequestSource::Prefetch) if before.packed_in().is_some() != job.decodes => return None,
                (State::Absent, RequestSource::Prefetch) => RequestSource::Prefetch,
                (State::Bypass, _) => {
                    self.eviction.drop_copies(segment, e, job.key);
                    if before.is_changed()
                        && let Some(live) = parts(job.key).and_then(|(number, _)| self.segments.segment(number))
                    {
                        self.peers.notify_changed(&live, e);
                    }
                    return None;
                }
                _ => return None,
            };
            let claim = before.with(State::Fetching);
            // Lost against a demand for the same file, another copier, or a bypass: looks again.
            if e.master.word.compare_exchange(before.0, claim.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Some((claim, why));
            }
        }
    }

    /// Handles a request for a file whose chunks are being fetched.
    fn asked_while_partial(&self, job: &Job<'_>) {
        match job.source {
            RequestSource::Demand => drop(self.fetches.drain_chunk_requests(job.key)),
            RequestSource::Prefetch => self.fetches.fetch_rest(job.key),
        }
    }

    /// Time until a file that was changed recently may be copied.
    fn unsettled(&self, id: &Identity) -> Option<Duration> {
        let settle = i64::try_from(self.cx.options.min_file_age.as_nanos()).unwrap_or(i64::MAX);
        let now = crate::index::now_ns();
        // Each time by itself: a modification time may be set to anything, and the change time may
        // come from a clock that is wrong. Times far in the future are ignored.
        let rest = [id.mtime_ns, id.ctime_ns].into_iter().filter_map(|t| {
            let age = now.saturating_sub(t);
            (age < settle && age > -60_000_000_000).then(|| settle.saturating_sub(age))
        });
        let ns = u64::try_from(rest.max()?).unwrap_or(0);
        Some(Duration::from_nanos(ns) + Duration::from_millis(1))
    }
}
