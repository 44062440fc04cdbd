//! One file before and after its copy: claimed in its state word, given room, and in the end
//! resident or not, and why.

use crate::engine::CopyError;
use crate::sharing::FailureAction;
use crate::sync::lock;
use crate::tiering::copy::fetch_lines::FetchLines;
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::context::Context;
use crate::tiering::core::copy_errors::CopyErrors;
use crate::tiering::core::outcome::{CopyOutcome, ELSEWHERE};
use crate::tiering::core::peer_link::PeerLink;
use crate::tiering::core::segments::{LiveSegment, Segments, parts};
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::retry_backoff::RetryBackoff;
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

/// Pause when all room for copies of others' files is in use.
const RETRY: Duration = Duration::from_secs(1);

/// Writes the outcome of a copy.
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

/// What becomes of a claimed file for which there is no room among transient copies.
pub(crate) const fn no_passing_room(f: &ClaimedFile) -> CopyOutcome {
    match f.source {
        RequestSource::Prefetch => CopyOutcome::Stopped,
        RequestSource::Demand => CopyOutcome::Refused(Refusal::TierFailed, Some(RETRY)),
    }
}

impl Publisher {
    #[expect(clippy::too_many_arguments, reason = "it is handed each component that it uses")]
    pub(crate) fn new(
        cx: &Arc<Context>,
        segments: &Arc<Segments>,
        fetch_lines: &Arc<Mutex<FetchLines>>,
        retry_backoff: &Arc<Mutex<RetryBackoff>>,
        catalog: &Arc<Mutex<Catalog>>,
        throttle: &Arc<PrefetchThrottle>,
        copy_errors: &Arc<CopyErrors>,
        policy: &Arc<PolicyHandle>,
        peers: &Arc<PeerLink>,
        transient: &Arc<TransientCopies>,
        eviction: &Arc<Eviction>,
    ) -> Self {
        Self {
            cx: cx.clone(),
            segments: segments.clone(),
            fetch_lines: fetch_lines.clone(),
            retry_backoff: retry_backoff.clone(),
            catalog: catalog.clone(),
            throttle: throttle.clone(),
            copy_errors: copy_errors.clone(),
            policy: policy.clone(),
            peers: peers.clone(),
            transient: transient.clone(),
            eviction: eviction.clone(),
        }
    }

    /// Writes the outcome into the state word and wakes everybody who waits.
    pub(crate) fn publish_outcome(&self, f: &ClaimedFile, end: CopyOutcome) {
        let (word, claim) = (&f.entry.master.word, f.claim);
        let end = match (end, &f.packed) {
            (CopyOutcome::Refused(..) | CopyOutcome::Failed(_) | CopyOutcome::Stopped, Some((_, tier)))
                if self.cx.tiers.get(*tier).is_some_and(|t| t.has_packed(f.name)) =>
            {
                CopyOutcome::Packed(*tier)
            }
            (end, _) => end,
        };
        let to = match end {
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
        };
        self.peers.tell_over(f);
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
            _ if !published => self.eviction.drop_copies(&f.live.segment, &f.entry, f.key),
            CopyOutcome::Resident(_) | CopyOutcome::Decoded(_) | CopyOutcome::Packed(_)
                if !self.serves(&f.live, f.key) =>
            {
                self.came_late(f, to);
            }
            CopyOutcome::Resident(tier) => {
                let demand = f.source == RequestSource::Demand;
                count(if demand { &self.cx.stats.demanded } else { &self.cx.stats.prefetched });
                lock(&self.catalog).add(f.key);
                lock(&self.retry_backoff).worked(f.key);
                self.copy_errors.over(f.key);
                self.policy.tell_placed(f.key, f.want.size, tier);
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

    /// Whether a key is one of this very index still.
    fn serves(&self, live: &LiveSegment, key: u64) -> bool {
        let now = parts(key).and_then(|(number, _)| self.segments.segment(number));
        now.is_some_and(|now| core::ptr::eq(now.segment.state.header, live.segment.state.header))
    }

    /// A copy has come of a file whose index was retired, and not waited for any longer: it is left
    /// to the next one.
    fn came_late(&self, f: &ClaimedFile, is: Word) {
        let word = &f.entry.master.word;
        let refused = is.refused(Refusal::Dropped);
        if word.compare_exchange(is.0, refused.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            f.share.iter().for_each(|share| share.hand_over());
            self.eviction.leave_to_next(is, f.name, f.want.size);
        }
    }

    /// A copy is there that was decoded: it may go when its room is needed. Or one that is to be
    /// packed first.
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
            self.transient.add_decoded(tier, f.key, f.want.size, f.share.as_deref());
            return;
        }
        if f.below.is_none() {
            // One that was left decoded, or that another node owns.
            self.transient.add_decoded(tier, f.key, f.want.size, f.share.as_deref());
        }
        if f.peer.is_some() && demand {
            self.transient.make_way_ahead(tier, f.want.size);
        }
        count(if demand { &self.cx.stats.demanded } else { &self.cx.stats.prefetched });
        lock(&self.catalog).add(f.key);
        lock(&self.retry_backoff).worked(f.key);
        self.copy_errors.over(f.key);
    }

    /// What a failure on the PFS side means for the file.
    pub(crate) fn failed(&self, e: &CopyError, f: &ClaimedFile) -> CopyOutcome {
        let file = crate::shown::bytes(&f.rel);
        if !matches!(e, CopyError::Stopped) {
            self.copy_errors.note(f.key, e);
        }
        match e {
            CopyError::Stopped => CopyOutcome::Stopped,
            CopyError::Changed => {
                if let Some(more) = self.cx.log_limits.changed.now() {
                    tracing::info!(%file, more, "changed since it was indexed; left to the PFS");
                }
                CopyOutcome::Bypass
            }
            CopyError::Source(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
                if let Some(more) = self.cx.log_limits.unreadable.now() {
                    tracing::info!(%file, error = %e, more, "it may not be read, or has gone; left to the PFS");
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

    /// What a failure means for a file; `None`: it is to be tried once more.
    pub(crate) fn after_failure(&self, e: &CopyError, f: &ClaimedFile) -> Option<CopyOutcome> {
        let after = f.peer.as_ref().filter(|_| matches!(e, CopyError::Source(_))).map(|peer| peer.after_failure());
        match after {
            None | Some(FailureAction::Failed) => Some(self.failed(e, f)),
            Some(FailureAction::Again) => None,
            Some(FailureAction::Refused) => Some(CopyOutcome::Refused(Refusal::NoRoom, Some(ELSEWHERE))),
            Some(FailureAction::Changed) => Some(self.failed(&CopyError::Changed, f)),
        }
    }
}
