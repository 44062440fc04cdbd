//! [`Adoption`]: takes over copies that an earlier agent left.
//!
//! Invariant: a copy is adopted only if the file on the PFS is still the one that it was made of.

use crate::engine::{CopyError, Marks};
use crate::sync::lock;
use crate::tiering::copy::fetching::Fetching;
use crate::tiering::copy::publisher::Publisher;
use crate::tiering::core::claim::Claim;
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::context::Context;
use crate::tiering::core::inflight_progress::InflightProgress;
use crate::tiering::core::outcome::CopyOutcome;
use crate::tiering::core::read_permission;
use crate::tiering::core::shared::Shared;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::residency::Residency;
use crate::tiering::residency::catalog::Catalog;
use crate::tiering::residency::orphans::Orphans;
use crate::tiering::throttle::PrefetchThrottle;
use monarch_policies::RequestSource;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Adopts copies of an earlier agent.
pub(crate) struct Adoption {
    cx: Arc<Context>,
    orphans: Arc<Mutex<Orphans>>,
    catalog: Arc<Mutex<Catalog>>,
    throttle: Arc<PrefetchThrottle>,
    policy: Arc<PolicyHandle>,
    publisher: Arc<Publisher>,
}

impl Adoption {
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        queue: &Queue,
        residency: &Residency,
        fetching: &Fetching,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            orphans: residency.orphans.clone(),
            catalog: residency.catalog.clone(),
            throttle: queue.throttle.clone(),
            policy: policy.clone(),
            publisher: fetching.publisher.clone(),
        }
    }

    /// Adopts the copies in `claim`, if the file on the PFS is still the one they were made of.
    /// `None`: the file has to be copied or decompressed.
    pub(crate) fn adopt(
        &self,
        f: &ClaimedFile,
        claim: Claim,
        mark: &InflightProgress,
        decodes: bool,
    ) -> Option<CopyOutcome> {
        if let Err(end) = self.check_identity(f, &claim, mark) {
            return Some(end);
        }
        let Some(tier) = claim.plain else {
            // It is decompressed at once if a reader waits for it.
            if let Some(at) = claim.packed {
                self.policy.report_packed(f.key, f.want.size, (at, f.name));
            }
            let now = f.source == RequestSource::Demand || decodes;
            self.cx.stats.adopted.fetch_add(1, Ordering::Relaxed);
            lock(&self.catalog).add(f.key);
            return if now { None } else { claim.packed.map(CopyOutcome::Packed) };
        };
        let dir = self.cx.tiers.get(tier)?;
        if let Some(sum) = claim.check {
            f.note_sum(sum);
            if !dir.copies.verify(f.name, f.want.size, sum) {
                dir.trash.evict_resident(f.name, f.want.size);
                self.cx.stats.damaged.fetch_add(1, Ordering::Relaxed);
                if let Some(more) = self.cx.log_limits.hurt.now() {
                    let file = crate::shown::bytes(&f.rel);
                    tracing::warn!(%file, more, "a copy of before the machine was started is damaged; it is made again");
                }
                return None;
            }
            dir.log.verified(f.name, sum, f.want.size);
            self.cx.stats.verified.fetch_add(1, Ordering::Relaxed);
        }
        let guard = &f.live.segment.state.guard;
        if guard.which().sums && guard.sum(f.entry.id).is_none() {
            // Its readers could not verify it.
            dir.trash.evict_resident(f.name, f.want.size);
            return None;
        }
        self.cx.stats.adopted.fetch_add(1, Ordering::Relaxed);
        if let Some(at) = claim.packed {
            self.policy.report_packed(f.key, f.want.size, (at, f.name));
            return Some(CopyOutcome::Decoded(tier));
        }
        Some(CopyOutcome::Resident(tier))
    }

    /// Checks that the file on the PFS is still the one that the copies in `claim` were made of, if
    /// that is not known.
    ///
    /// # Errors
    /// The outcome if it is not, or cannot be asked.
    fn check_identity(&self, f: &ClaimedFile, claim: &Claim, mark: &InflightProgress) -> Result<(), CopyOutcome> {
        let readable = read_permission::by_mode(&f.live.segment.index, f.entry.record);
        if f.live.fresh && readable {
            return Ok(());
        }
        // An earlier job of this user could read it; whether this one can, only an open tells.
        let ask = || match readable {
            true => f.live.source.identity(&f.rel),
            false => f.live.source.open(&f.rel)?.identity_now(),
        };
        match self.ask_pfs(mark, ask) {
            Ok(id) if f.live.is_same(&id, &f.want) => self.throttle.worked(),
            Ok(_) => return Err(self.publisher.failed(&CopyError::Changed, f)),
            Err(e) => {
                lock(&self.orphans).put_back(*claim, f.name, f.want.size, &self.cx.tiers);
                return Err(self.publisher.failed(&e, f));
            }
        }
        Ok(())
    }

    /// Asks the PFS for metadata, within the rate limits. Readers see the call as one to the PFS.
    fn ask_pfs<T>(&self, mark: &InflightProgress, ask: impl FnOnce() -> io::Result<T>) -> Result<T, CopyError> {
        let limited = || {
            self.cx.limits.before_call(0, mark.waited_for());
            ask()
        };
        mark.ask_pfs(limited).map_err(CopyError::Source)
    }
}
