//! [`Publisher`]: writes the outcome of a copy into the state word, wakes its readers, and updates
//! the lists, the policy and the counters.
//!
//! Invariant: a word that is not the claim any more stays as it is, and the copy is dropped.

use crate::engine::CopyError;
use crate::sharing::FailureAction;
use crate::sync::lock;
use crate::tiering::copy::fetch_lines::FetchLines;
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::context::Context;
use crate::tiering::core::copy_errors::CopyErrors;
use crate::tiering::core::outcome::{CopyOutcome, NO_ROOM_ANYWHERE_PAUSE};
use crate::tiering::core::peer_link::PeerLink;
use crate::tiering::core::segments::{LiveSegment, Segments, parts};
use crate::tiering::core::shared::Shared;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::queue::retry_backoff::RetryBackoff;
use crate::tiering::residency::Residency;
use crate::tiering::residency::catalog::Catalog;
use crate::tiering::residency::eviction::Eviction;
use crate::tiering::residency::transient_copies::TransientCopies;
use crate::tiering::throttle::PrefetchThrottle;
use monarch_abi::sys::futex_wake;
use monarch_abi::word::{Refusal, State, Word};
use monarch_policies::RequestSource;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Pause when all space for transient copies is in use.
const NO_TRANSIENT_SPACE_PAUSE: Duration = Duration::from_secs(1);

/// Publishes the outcomes of copies.
pub(crate) struct Publisher {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    fetch_lines: Arc<Mutex<FetchLines>>,
    retry_backoff: Arc<Mutex<RetryBackoff>>,
    catalog: Arc<Mutex<Catalog>>,
    throttle: Arc<PrefetchThrottle>,
    copy_errors: Arc<CopyErrors>,
    policy: Arc<PolicyHandle>,
    peers: Arc<PeerLink>,
    transient: Arc<TransientCopies>,
    eviction: Arc<Eviction>,
}

/// The outcome of a claimed file for which there is no space among transient copies.
pub(crate) const fn no_transient_space(f: &ClaimedFile) -> CopyOutcome {
    match f.source {
        RequestSource::Prefetch => CopyOutcome::Stopped,
        RequestSource::Demand => CopyOutcome::Refused(Refusal::TierFailed, Some(NO_TRANSIENT_SPACE_PAUSE)),
    }
}

impl Publisher {
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        queue: &Queue,
        residency: &Residency,
        fetch_lines: &Arc<Mutex<FetchLines>>,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            fetch_lines: fetch_lines.clone(),
            retry_backoff: queue.retry_backoff.clone(),
            catalog: residency.catalog.clone(),
            throttle: queue.throttle.clone(),
            copy_errors: shared.copy_errors.clone(),
            policy: policy.clone(),
            peers: shared.peers.clone(),
            transient: residency.transient.clone(),
            eviction: residency.eviction.clone(),
        }
    }

    /// Writes the outcome into the state word and wakes all waiting readers.
    pub(crate) fn publish_outcome(&self, f: &ClaimedFile, end: CopyOutcome) {
        let (word, claim) = (&f.entry.master.word, f.claim);
        let end = match (end, &f.packed) {
            (CopyOutcome::Refused(..) | CopyOutcome::Failed(_) | CopyOutcome::Stopped, Some((_, tier)))
                if self.cx.tiers.get(*tier).is_some_and(|t| t.packed.has(f.name)) =>
            {
                CopyOutcome::Packed(*tier)
            }
            (end, _) => end,
        };
        let to = self.word_after(f, end);
        self.peers.notify_ended(f);
        if !f.live.fresh && matches!(end, CopyOutcome::Resident(_) | CopyOutcome::Decoded(_) | CopyOutcome::Packed(_)) {
            // A copy was made, or adopted, of the file at this path: that was compared.
            f.live.segment.state.guard.was_compared(f.entry.id);
        }
        let published = word.compare_exchange(claim.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok();
        futex_wake(word, u32::MAX >> 1);
        let count = |figure: &AtomicU64| {
            figure.fetch_add(1, Ordering::Relaxed);
        };
        match end {
            // Bypassed while it was being copied: no reader will open the copy.
            _ if !published => self.eviction.drop_copies(&f.live.segment, &f.entry, f.key),
            CopyOutcome::Resident(_) | CopyOutcome::Decoded(_) | CopyOutcome::Packed(_)
                if !self.serves(&f.live, f.key) =>
            {
                self.leave_late_copy(f, to);
            }
            CopyOutcome::Resident(tier) => {
                let demand = f.source == RequestSource::Demand;
                count(if demand { &self.cx.stats.demanded } else { &self.cx.stats.prefetched });
                lock(&self.catalog).add(f.key);
                lock(&self.retry_backoff).worked(f.key);
                self.copy_errors.forget(f.key);
                self.policy.report_placed(f.key, f.want.size, tier);
            }
            CopyOutcome::Decoded(tier) => self.is_decoded(f, tier),
            CopyOutcome::Packed(_) | CopyOutcome::Streamed => {}
            CopyOutcome::Refused(_, pause) => {
                count(&self.cx.stats.refused);
                if let Some(pause) = pause {
                    lock(&self.retry_backoff).add(pause, (f.key, to));
                }
            }
            CopyOutcome::Failed(took) => {
                count(&self.cx.stats.refused);
                let mut later = lock(&self.retry_backoff);
                let pause = later.failed(f.key, took);
                later.add(pause, (f.key, to));
            }
            CopyOutcome::Bypass => {
                count(&self.cx.stats.changed);
                lock(&self.retry_backoff).worked(f.key);
                self.eviction.drop_copies(&f.live.segment, &f.entry, f.key);
            }
            CopyOutcome::Stopped => {}
        }
    }

    /// The state word of a file after this outcome.
    fn word_after(&self, f: &ClaimedFile, end: CopyOutcome) -> Word {
        let claim = f.claim;
        match end {
            CopyOutcome::Resident(tier) => claim.resident(tier),
            CopyOutcome::Decoded(tier) => claim.resident(tier).marked(),
            CopyOutcome::Packed(tier) => claim.packed(tier),
            CopyOutcome::Refused(_, None) | CopyOutcome::Streamed if lock(&self.fetch_lines).can_stream(f) => {
                claim.refused(Refusal::Streamable)
            }
            CopyOutcome::Refused(Refusal::NoRoom, None)
                if f.live.segment.state.large(f.entry.id).is_none() && self.policy.asks_again() =>
            {
                claim.next(State::Absent)
            }
            CopyOutcome::Refused(why, _) => claim.refused(why),
            CopyOutcome::Streamed => claim.refused(Refusal::NoRoom),
            CopyOutcome::Failed(_) => claim.refused(Refusal::PfsFailed),
            CopyOutcome::Bypass => claim.left(),
            CopyOutcome::Stopped => claim.next(State::Absent),
        }
    }

    /// Whether a key is still one of this very index.
    fn serves(&self, live: &LiveSegment, key: u64) -> bool {
        let now = parts(key).and_then(|(number, _)| self.segments.segment(number));
        now.is_some_and(|now| core::ptr::eq(now.segment.state.header, live.segment.state.header))
    }

    /// Leaves a copy of a file whose index was retired meanwhile to the next index.
    fn leave_late_copy(&self, f: &ClaimedFile, is: Word) {
        let word = &f.entry.master.word;
        let refused = is.refused(Refusal::Dropped);
        if word.compare_exchange(is.0, refused.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            f.share.iter().for_each(|share| share.hand_over());
            self.eviction.leave_orphaned(is, f.name, f.want.size);
        }
    }

    /// Lists a transient copy, which may be dropped when its space is needed, unless it is to be
    /// compressed first.
    fn is_decoded(&self, f: &ClaimedFile, tier: usize) {
        let demand = f.source == RequestSource::Demand;
        let count = |figure: &AtomicU64| {
            figure.fetch_add(1, Ordering::Relaxed);
        };
        if f.packed.is_some() {
            count(&self.cx.stats.decoded);
            if !demand {
                count(&self.cx.stats.decoded_ahead);
            }
            self.transient.add(tier, f.key, f.want.size, f.share.as_deref());
            return;
        }
        if f.below.is_none() {
            // A copy that stays decompressed, or whose file a peer owns.
            self.transient.add(tier, f.key, f.want.size, f.share.as_deref());
        }
        count(if demand { &self.cx.stats.demanded } else { &self.cx.stats.prefetched });
        lock(&self.catalog).add(f.key);
        lock(&self.retry_backoff).worked(f.key);
        self.copy_errors.forget(f.key);
    }

    /// The outcome of a file after a failure on the PFS side.
    pub(crate) fn failed(&self, e: &CopyError, f: &ClaimedFile) -> CopyOutcome {
        let file = crate::shown::bytes(&f.rel);
        if !matches!(e, CopyError::Stopped) {
            self.copy_errors.note(f.key, e);
        }
        match e {
            CopyError::Stopped => CopyOutcome::Stopped,
            CopyError::Changed => {
                if let Some(more) = self.cx.log_limits.changed.now() {
                    tracing::info!(%file, more, "changed since it was indexed; jobs read it from the PFS");
                }
                CopyOutcome::Bypass
            }
            CopyError::Source(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
                if let Some(more) = self.cx.log_limits.unreadable.now() {
                    tracing::info!(%file, error = %e, more, "it may not be read, or has gone; jobs read it from the PFS");
                }
                CopyOutcome::Bypass
            }
            CopyError::Source(e) | CopyError::Sink(e) => {
                self.cx.stats.source_errors.fetch_add(1, Ordering::Relaxed);
                if let Some(more) = self.cx.log_limits.pfs.now() {
                    tracing::warn!(%file, error = %e, more, "the PFS failed; tried again later");
                }
                let known = lock(&self.retry_backoff).has_failed(f.key);
                self.throttle.failed(known);
                CopyOutcome::Failed(f.start.elapsed())
            }
        }
    }

    /// The outcome of a file after a failure; `None` if it has to be tried again.
    pub(crate) fn after_failure(&self, e: &CopyError, f: &ClaimedFile) -> Option<CopyOutcome> {
        let after = f.peer.as_ref().filter(|_| matches!(e, CopyError::Source(_))).map(|peer| peer.after_failure());
        match after {
            None | Some(FailureAction::Failed) => Some(self.failed(e, f)),
            Some(FailureAction::Again) => None,
            Some(FailureAction::Refused) => Some(CopyOutcome::Refused(Refusal::NoRoom, Some(NO_ROOM_ANYWHERE_PAUSE))),
            Some(FailureAction::Changed) => Some(self.failed(&CopyError::Changed, f)),
        }
    }
}
