//! [`Context`]: what every component reads: shared memory, tiers, configuration, counters.

use crate::engine::Limits;
use crate::metrics::Latencies;
use crate::tier::TierDir;
use crate::tiering::core::claim::Claim;
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::log_limit::LogLimits;
use crate::tiering::core::options::TieringOptions;
use crate::tiering::core::segments::LiveSegment;
use crate::tiering::core::stats::Stats;
use monarch_abi::control::ControlMap;
use monarch_abi::control::{SEGMENT_LIVE, SegmentRef};
use monarch_abi::hash::CopyName;
use monarch_abi::segment::Entry;
use monarch_abi::word::{State, Word};
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

/// Shared memory, tiers, configuration and counters. All components read them; none of them owns
/// them.
pub(crate) struct Context {
    /// Shared memory.
    pub(crate) ctl: ControlMap<'static>,
    /// The tiers, fastest first.
    pub(crate) tiers: Vec<TierDir>,
    pub(crate) options: TieringOptions,
    /// Counters for status and report.
    pub(crate) stats: Stats,
    /// Durations, for metrics.
    pub(crate) latencies: Latencies,
    /// Rate limits of all calls to the PFS.
    pub(crate) limits: Arc<Limits>,
    /// Whether any tier keeps its copies compressed.
    pub(crate) compresses: bool,
    pub(crate) log_limits: LogLimits,
    /// Set when the agent ends.
    pub(crate) stop: Arc<AtomicBool>,
}

/// Bytes that are free below the quota of a tier.
pub(crate) fn free(tier: &TierDir) -> u64 {
    let u = tier.space.ledger.usage();
    u.capacity.saturating_sub(u.used + u.reserved)
}

impl Context {
    /// Whether the tier `at` compresses its copies.
    pub(crate) fn packs(&self, at: usize) -> bool {
        self.tiers.get(at).is_some_and(|t| t.options.packing.is_some())
    }

    /// Whether a tier above `below` has enough space for transient copies to decompress a file of
    /// `size` bytes.
    pub(crate) fn could_be_decoded(&self, below: usize, size: u64) -> bool {
        self.tiers.iter().take(below).any(|t| t.space.ledger.cost(size) <= t.options.for_decoded)
    }

    /// The first tier below `at` that has a compressed copy of this name.
    pub(crate) fn packed_below(&self, at: usize, name: CopyName) -> Option<usize> {
        self.packed_from(at + 1, name)
    }

    /// The first tier from `from` on that has a compressed copy of this name.
    fn packed_from(&self, from: usize, name: CopyName) -> Option<usize> {
        let has = |t: &TierDir| t.packed.usage().files > 0 && t.packed.has(name);
        self.tiers.iter().enumerate().skip(from).find_map(|(at, t)| has(t).then_some(at))
    }

    /// Number of compressed copies in all tiers.
    pub(crate) fn packed_files(&self) -> u64 {
        self.tiers.iter().map(|t| t.packed.usage().files).sum()
    }

    /// Removes the compressed copies of a name. Returns whether there were any.
    pub(crate) fn evict_packed(&self, name: CopyName, size: u64) -> bool {
        let packing = self.tiers.iter().filter(|t| t.packed.usage().files > 0);
        packing.filter_map(|t| t.packed.evict(name, size)).count() > 0
    }

    /// Whether a copy agrees with the checksum in the log of its tier; `None` if the log has no
    /// record of it. Reads both in full.
    pub(crate) fn is_as_logged(&self, live: &LiveSegment, entry: &Entry<'static>) -> Option<bool> {
        let tier = self.tiers.get(entry.word().tier())?;
        let name = live.segment.copy_name(entry);
        let logged = tier.log.sums(&HashSet::from([name])).ok()?;
        let sum = logged.get(name).filter(|l| !l.packed)?.sum;
        Some(tier.copies.verify(name, entry.record.size, sum))
    }

    /// Whether any tier that takes copies now has space for a file of `size` bytes.
    pub(crate) fn has_room(&self, size: u64) -> bool {
        self.tiers.iter().any(|t| !t.space.suspended() && free(t) >= t.space.ledger.cost(size))
    }

    /// Whether any tier takes only copies that readers wait for.
    pub(crate) fn spares_memory(&self) -> bool {
        self.tiers.iter().any(|t| t.space.closed_to_prefetch() && !t.space.suspended())
    }

    /// Has the tiers in memory take only copies that readers wait for, or all again; and tiers that
    /// compress, if copies in memory come before theirs.
    pub(crate) fn spare_memory(&self, spare: bool) {
        let on_disk = |tier: &TierDir| !tier.space.is_in_memory();
        for (at, tier) in self.tiers.iter().enumerate() {
            let takes_memory = match tier.options.packing {
                Some(_) => !self.tiers.iter().take(at).any(on_disk),
                None => !on_disk(tier),
            };
            tier.space.take_demands_only(spare && takes_memory);
        }
    }

    /// Counts an error of a tier, suspends the tier for a while, and logs it.
    pub(crate) fn tier_failed(&self, tier: &TierDir, e: &io::Error) {
        self.stats.tier_errors.fetch_add(1, Ordering::Relaxed);
        tier.space.rest();
        if let Some(more) = self.log_limits.tier.now() {
            tracing::warn!(tier = tier.name, error = %e, more, "a copy could not be written; the tier rests for 5 s");
        }
    }

    /// Counts damaged copies, and logs them.
    pub(crate) fn count_damaged(&self, copies: usize) {
        self.stats.damaged.fetch_add(copies as u64, Ordering::Relaxed);
        if let Some(more) = self.log_limits.damaged.now() {
            tracing::warn!(copies, more, "copies were removed or damaged by another program; they are fetched again");
        }
    }

    /// Counts one damaged copy, and logs it.
    pub(crate) fn found_damaged(&self) {
        self.count_damaged(1);
    }

    /// Removes a compressed copy of the tier `at` that cannot be decompressed. The caller fetches
    /// its file again.
    pub(crate) fn drop_damaged_packed(&self, f: &ClaimedFile, at: usize, e: &io::Error) {
        self.stats.damaged.fetch_add(1, Ordering::Relaxed);
        if let Some(tier) = self.tiers.get(at) {
            let _ = tier.packed.evict(f.name, f.want.size);
            if let Some(more) = self.log_limits.hurt.now() {
                let file = crate::shown::bytes(&f.rel);
                tracing::warn!(%file, tier = tier.name, error = %e, more, "a packed copy is damaged; the file is fetched again");
            }
        }
    }

    /// The tiers that hold the copies of a file, by its state word and its name.
    #[must_use]
    pub(crate) fn copies_of(&self, word: Word, name: CopyName) -> Claim {
        match (word.state(), word.packed_in()) {
            (State::Resident, _) => {
                let packed = if word.is_marked() { self.packed_below(word.tier(), name) } else { None };
                Claim { plain: Some(word.tier()), packed, check: None }
            }
            // A file that is being decompressed has no bit for its compressed copy.
            (State::Requested | State::Fetching | State::Partial, _) => {
                Claim { packed: self.packed_from(0, name), ..Claim::default() }
            }
            (_, packed) => Claim { packed, ..Claim::default() },
        }
    }

    /// Whether transient copies take all the space that other copies leave.
    pub(crate) fn is_elastic(&self) -> bool {
        self.options.elastic.is_some()
    }

    /// Whether the segment with this number is in use in shared memory.
    pub(crate) fn is_live(&self, number: usize) -> bool {
        let live = |s: &SegmentRef| s.status.load(Ordering::Acquire) == SEGMENT_LIVE;
        self.ctl.segments().get(number).is_some_and(live)
    }

    /// The full path of an entry.
    pub(crate) fn path_of(&self, live: &LiveSegment, id: u32) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        let mut buf = [0u8; monarch_abi::PATH_MAX];
        let len = live.segment.index.path(id, &mut buf).unwrap_or(0);
        let root = self.ctl.roots().get(live.root).map_or(&b"/"[..], |r| self.ctl.str(&r.path));
        let rel = std::ffi::OsStr::from_bytes(buf.get(..len).unwrap_or_default());
        PathBuf::from(std::ffi::OsStr::from_bytes(root)).join(rel)
    }

    /// Opens the compressed copy of a claimed file; with its tier. A copy that cannot be opened
    /// counts as an error of its tier.
    pub(crate) fn packed_of(&self, f: &ClaimedFile) -> Option<(std::sync::Arc<crate::tier::PackedFile>, usize)> {
        for (at, tier) in self.tiers.iter().enumerate().filter(|(at, _)| self.could_be_decoded(*at, f.want.size)) {
            match tier.packed.open(f.name, f.want) {
                Ok(Some(file)) => return Some((std::sync::Arc::new(file), at)),
                Ok(None) => {}
                Err(e) => self.tier_failed(tier, &e),
            }
        }
        None
    }
}
