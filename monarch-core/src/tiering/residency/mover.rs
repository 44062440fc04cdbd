//! [`Mover`]: moves resident copies between tiers, and verifies them on the way.
//!
//! Invariant: the copy in the new tier is complete and published before the state word names that
//! tier.

use crate::sync::lock;
use crate::tier::{ByName, CopyName, Logged, READ_BYTES, Sum, Summing, TierDir, write_all_at};
use crate::tiering::core::context::Context;
use crate::tiering::core::segments::EvictionCandidate;
use crate::tiering::core::shared::Shared;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::residency::eviction::Eviction;
use crate::tiering::residency::orphans::Orphans;
use monarch_abi::hash::PathHash;
use std::collections::HashSet;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// How copying a copy to another tier ended.
enum Moved {
    /// It is published there, as the file with this inode number.
    Published { ino: u64 },
    /// The copy that was read is damaged.
    Damaged,
    /// There was no space, `may` forbade it, or a copier has made a copy there meanwhile.
    Stopped,
}

/// Moves resident copies between tiers.
pub(crate) struct Mover {
    cx: Arc<Context>,
    orphans: Arc<Mutex<Orphans>>,
    policy: Arc<PolicyHandle>,
    eviction: Arc<Eviction>,
}

impl Mover {
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        orphans: &Arc<Mutex<Orphans>>,
        eviction: &Arc<Eviction>,
    ) -> Self {
        Self { cx: shared.cx.clone(), orphans: orphans.clone(), policy: policy.clone(), eviction: eviction.clone() }
    }

    /// Moves a copy to the tier `to` for as long as `may` returns `true`. Returns `false` if it
    /// stays where it was, or was found damaged and dropped.
    pub(crate) fn move_copy(&self, candidate: &EvictionCandidate, sum: Sum, to: usize, may: impl Fn() -> bool) -> bool {
        let EvictionCandidate { key, live, entry, word } = candidate;
        let (Some(from), Some(tier)) = (self.cx.tiers.get(word.tier()), self.cx.tiers.get(to)) else { return false };
        let (name, size) = (candidate.name(), entry.record.size);
        let copied = || -> io::Result<Moved> {
            let Some(copy) = tier.copies.create(size)? else { return Ok(Moved::Stopped) };
            let ino = rustix::fs::fstat(copy.fd())?.st_ino;
            let file = from.copies.open(name)?;
            let mut buf = vec![0; READ_BYTES.min(usize::try_from(size).unwrap_or(READ_BYTES).max(1))];
            let mut summing = Summing::new(sum.piece);
            while summing.bytes < size {
                if !may() {
                    return Ok(Moved::Stopped);
                }
                let got = rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut *buf, summing.bytes))?;
                if got == 0 {
                    break;
                }
                write_all_at(copy.fd(), &buf[..got], summing.bytes)?;
                summing.update(&buf[..got]);
            }
            if summing.bytes != size || summing.end() != sum {
                return Ok(Moved::Damaged);
            }
            let stamp = name.stamp(PathHash { fp: entry.master.fp, check: entry.record.check });
            // If a copier has made a copy there meanwhile, a reader asked for it: that one stays.
            Ok(copy.publish_new(name, stamp, sum)?.map_or(Moved::Stopped, |_| Moved::Published { ino }))
        };
        let ino = match copied() {
            Ok(Moved::Published { ino }) => ino,
            Ok(Moved::Damaged) => {
                self.cx.found_damaged();
                self.eviction.drop_copy(candidate.key, live, entry, *word);
                return false;
            }
            Ok(Moved::Stopped) => return false,
            Err(e) => {
                // Which of the two tiers failed shows with the next call to either.
                tracing::debug!(from = from.name, to = tier.name, error = %e, "a copy could not be moved");
                return false;
            }
        };
        if entry.master.word.compare_exchange(word.0, word.resident(to).0, Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            tier.trash.evict_own(name, size, ino);
            return false;
        }
        if from.options.stays && !tier.options.stays {
            // The copy in the faster tier goes with the job. The one below is left for the next
            // job, and is evicted when its space is needed.
            lock(&self.orphans).put_back_plain(word.tier(), name, &self.cx.tiers);
        } else {
            from.trash.evict_resident(name, size);
        }
        self.policy.report_placed(*key, entry.record.size, to);
        true
    }

    /// The checksums of these copies in a tier, by its log. A copy without a record is not moved.
    pub(crate) fn sums_of(&self, tier: &TierDir, candidates: &[EvictionCandidate]) -> ByName<Logged> {
        let names: HashSet<CopyName> = candidates.iter().map(EvictionCandidate::name).collect();
        tier.log.sums(&names).unwrap_or_default()
    }
}
