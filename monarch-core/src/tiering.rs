//! The tiering engine: serves demands first, then prefetches in the order of the index, asks the
//! policy for a tier, has a copy engine copy, verifies and publishes.
//!
//! Copiers are plain threads. A few of them sleep on the demand word of the control block, so that
//! a reader's futex wake reaches the thread that copies without a hop in between. A demand and a
//! prefetch of the same file meet in its state word: the copier that turns the word to Fetching
//! copies, and every reader waits (single-flight over threads, processes and jobs).
//!
//! Each room uses only those below it:
//!
//! | room | what it holds |
//! |---|---|
//! | [`schedule`] | the threads, and what each of them does next |
//! | [`status`] | the state of prefetch, how far copies are, gauges |
//! | [`copy`] | a file or a chunk from its claim to its outcome |
//! | [`placement`] | the tier of a copy, and which copies are dropped for it |
//! | [`compression`] | compressing resident copies |
//! | [`access`] | what readers opened and jobs announced |
//! | [`residency`] | the copies that exist; evicting, moving, checking them |
//! | [`queue`] | what waits to be copied, retries, choice of the engine |
//! | [`throttle`] | how many copies may run, and how many of them for prefetch |
//! | [`policy`] | the placement policy and the hints that it decides by |
//! | [`core`] | what all rooms share: context, segments, domain types |

mod access;
mod compression;
mod copy;
mod core;
mod placement;
mod policy;
mod queue;
mod residency;
mod schedule;
mod status;
mod throttle;

pub use self::core::claim::Claim;
pub use self::core::identity_scope::IdentityScope;
pub use self::core::options::TieringOptions;
pub(crate) use self::core::read_permission;
pub use self::core::segments::LiveSegment;
pub use self::core::stats::Stats;
pub use crate::snapshot::Load;
pub use residency::orphans::Orphans;
use status::gauges;

use self::core::context::Context;
use self::core::log_limit::LogLimits;
use self::core::segments::parts;
use self::core::shared::Shared;
use crate::config::Extent;
use crate::engine::{Engines, Limits};
use crate::held_dir::HeldDir;
use crate::metrics::Latencies;
use crate::sync::lock;
use crate::tier::TierDir;
use access::Access;
use access::read_pattern::Prior;
use compression::Compression;
use copy::Copying;
use copy::fetching::Fetching;
use monarch_abi::control::ControlMap;
use monarch_abi::word::{Refusal, State, Word};
use monarch_policies::Policy;
use placement::Placement;
use policy::policy_handle::PolicyHandle;
use queue::Queue;
use residency::Residency;
use rustix::fd::AsFd;
use schedule::Schedule;
use schedule::lower_rooms::LowerRooms;
use status::Reports;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use throttle::{Bounds, PrefetchThrottle};

/// What a tiering engine is made from.
pub struct TieringParts {
    /// Shared memory.
    pub ctl: ControlMap<'static>,
    /// The tiers, fastest first.
    pub tiers: Vec<TierDir>,
    /// The copy engines.
    pub engines: Engines,
    /// Rate limits of all calls to the PFS.
    pub limits: Arc<Limits>,
    /// Decides which files are kept, and in which tier.
    pub policy: Box<dyn Policy>,
    /// Durations, for metrics.
    pub latencies: Latencies,
    /// The directory in which jobs leave hints.
    pub hint_dir: Option<HeldDir>,
    /// Age at which the site removes files.
    pub purge_age: Option<Duration>,
    /// Settings of the configuration.
    pub options: TieringOptions,
    /// Set when the agent ends.
    pub stop: Arc<AtomicBool>,
}

/// The rooms of the tiering engine, wired. It has no state of its own.
///
/// It has a field for each room, lowest first: a caller uses the component that owns what it needs.
pub struct TieringEngine {
    pub(crate) shared: Shared,
    pub(crate) policy: Arc<PolicyHandle>,
    pub(crate) queue: Queue,
    pub(crate) residency: Residency,
    pub(crate) access: Access,
    pub(crate) compression: Compression,
    pub(crate) fetching: Fetching,
    pub(crate) placement: Placement,
    copying: Copying,
    pub(crate) reports: Reports,
    pub(crate) schedule: Schedule,
}

impl std::fmt::Debug for TieringEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TieringEngine").field("stats", &self.shared.cx.stats).finish_non_exhaustive()
    }
}

impl TieringEngine {
    /// Makes a tiering engine without segments; [`TieringEngine::run`] starts its threads.
    #[must_use]
    pub fn new(of: TieringParts) -> Self {
        let TieringParts { ctl, tiers, engines, limits, policy, latencies, hint_dir, purge_age, options, stop } = of;
        let throttle = PrefetchThrottle::new(Bounds {
            pfs: options.max_inflight,
            demands: options.max_demands,
            remote: options.remote,
            has_rings: engines.uring.is_some(),
            backs_off: options.backoff,
            memory_pressure: options.max_memory_pressure,
        });
        let compresses = tiers.iter().any(|t| t.options.packing.is_some());
        let (stats, log_limits) = (Stats::default(), LogLimits::default());
        let cx = Context { ctl, tiers, options, stats, latencies, limits, compresses, log_limits, stop };
        // From the lowest room to the highest: each is handed the rooms below it.
        let shared = Shared::new(cx, purge_age);
        let policy = Arc::new(PolicyHandle::new(&shared, policy));
        let queue = Queue::new(&shared, throttle, engines);
        let residency = Residency::new(&shared, &policy, &queue);
        let access = Access::new(&shared, &policy, &queue, &residency, hint_dir);
        let compression = Compression::new(&shared, &policy, &queue, &residency);
        let fetching = Fetching::new(&shared, &policy, &queue, &residency, &compression);
        let fetches = fetching.fetches.clone();
        let placement = Placement::new(&shared, &policy, &queue, &residency, &access, &compression, fetches);
        let copying = Copying::new(&shared, &policy, &queue, &residency, &compression, &placement, &fetching);
        let reports = Reports::new(&shared, &policy, &queue, &residency, &access, &compression, &fetching);
        let schedule = Schedule::new(&LowerRooms {
            shared: &shared,
            policy: &policy,
            queue: &queue,
            residency: &residency,
            access: &access,
            compression: &compression,
            fetching: &fetching,
            copying: &copying,
            reports: &reports,
        });
        Self { shared, policy, queue, residency, access, compression, fetching, placement, copying, reports, schedule }
    }

    /// Locks the copies of an earlier agent that no entry has claimed yet.
    pub fn orphans(&self) -> MutexGuard<'_, Orphans> {
        lock(&self.residency.orphans)
    }

    /// Starts the copiers and rings.
    pub fn run(&self) {
        self.schedule.workers.run();
    }

    /// Ends the copiers and rings after their current copies, and keeps the working sets of the
    /// jobs.
    pub fn stop(&self) {
        self.schedule.workers.stop();
        self.access.tracker.drain_accesses();
        self.access.working_sets.save_all();
    }

    /// The gauges of the engine, for metrics and status.
    #[must_use]
    pub fn load(&self) -> Load {
        // One lock at a time: copiers publish under the other.
        let paused = lock(&self.queue.retry_backoff).paused();
        gauges::read(&self.shared.cx.limits, &self.queue.work, &self.queue.throttle, paused)
    }

    /// Returns how long the PFS took to answer opens lately, in microseconds; 0 when that is not
    /// known.
    #[must_use]
    pub fn open_us(&self) -> u64 {
        self.queue.throttle.open_us().0
    }

    /// Notes the share of the time in which a task of the job waits for memory, `None` where that
    /// is not measured. While it is high, prefetch takes less memory, and readers get their copies
    /// as ever.
    pub fn note_memory_pressure(&self, share: Option<f64>) {
        let throttle = &self.queue.throttle;
        let change = throttle.note_memory_pressure(share);
        if let Some(is_high) = change {
            self.shared.cx.spare_memory(is_high);
        }
        if throttle.is_under_memory_pressure() {
            self.schedule.decompress_ahead.drop_read();
            return;
        }
        // (A copier may leave a file at the moment when pressure ends.)
        let left_out = throttle.take_left_out();
        if change.is_some() || !left_out.is_empty() {
            self.queue.work.lines().retry(left_out);
            self.queue.waker.wake_all();
        }
    }

    /// Adds the time for which prefetch has had work, but was narrowed or held back by memory
    /// pressure.
    pub fn count_memory_pressure(&self, time: Duration) {
        if self.queue.throttle.is_under_memory_pressure() && self.reports.prefetch.some_ahead() {
            let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            self.shared.cx.stats.memory_pressure_ms.fetch_add(ms, Ordering::Relaxed);
        }
    }

    /// Adds or replaces the segment with this number, and prefetches it if the configuration says
    /// so.
    pub fn add_segment(&self, number: usize, live: &LiveSegment) {
        self.shared.source_facts.begin(number, live);
        self.shared.segments.set(number, live.clone());
        self.copying.streaming.make_window(live);
        self.note_page_cache(live);
        self.access.tracker.renumber(live.root);
        self.policy.report_extent();
        self.policy.report_residents(number);
        let options = &self.shared.cx.options;
        let prefetched = options.prefetch && live.prefetched;
        let set = self.access.working_sets.kept(live.segment.index.header.root_id);
        let by_evidence = options.ahead == Extent::Auto && !set.whole;
        self.access.evidence.begin(
            number,
            live,
            match prefetched && by_evidence {
                true if set.is_partial() => Prior::Partial,
                true => Prior::Unknown,
                false => Prior::CountOnly,
            },
        );
        self.queue.work.lines().begin(number, prefetched && !by_evidence);
        self.queue.waker.wake_all();
    }

    /// Notes what the jobs of a new segment open first, and fetches what those before opened first.
    pub fn begin_working_set(&self, number: usize, live: &LiveSegment, index_time: Duration) {
        let set = self.access.working_sets.kept(live.segment.index.header.root_id);
        self.access.working_sets.begin(number, live, set, index_time);
    }

    /// Tells readers of a root whether mappings can be followed there: not where the kernel hides
    /// from this user what the page cache holds, nor where files come from peers.
    fn note_page_cache(&self, live: &LiveSegment) {
        let root = live.source.root();
        let seen = root.is_some_and(|dir| crate::sys::cached_pages(dir.as_fd(), 0, 1).is_ok());
        let bit = u32::try_from(live.root).ok().and_then(|root| 1u32.checked_shl(root)).unwrap_or(0);
        let unpaged = &self.shared.cx.ctl.ctl.unpaged_roots;
        if seen && self.shared.peers.get().is_none() {
            unpaged.fetch_and(!bit, Ordering::Relaxed);
        } else {
            unpaged.fetch_or(bit, Ordering::Relaxed);
        }
        if self.shared.peers.get().is_some() {
            self.shared.cx.ctl.ctl.shared_roots.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Stops serving a segment.
    pub fn remove_segment(&self, number: usize) {
        self.access.tracker.drain_accesses();
        self.access.working_sets.end(number);
        self.shared.segments.clear(number);
        self.access.evidence.forget(number);
        if !self.shared.segments.any_large() {
            lock(&self.fetching.fetch_lines).drop_window();
        }
        lock(&self.queue.retry_backoff).forget(|key| parts(key).is_some_and(|(of, _)| of == number));
        self.policy.report_index_gone(number);
        self.policy.report_extent();
        self.residency.rounds.forget_round(number);
    }

    /// Notes that files have other owners than before: prefetches what this node owns now, and lets
    /// files that found no space be requested again.
    pub fn owners_changed(&self) {
        self.placement.guests.reset();
        for (_, live) in self.shared.segments.served() {
            let for_room = |word: Word| word.refusal() == Some(Refusal::NoRoom);
            for e in live.segment.files_that(for_room) {
                let word = e.word();
                if for_room(word) {
                    let to = word.next(State::Absent);
                    let _ = e.slot.word.compare_exchange(word.0, to.0, Ordering::AcqRel, Ordering::Relaxed);
                }
            }
        }
        if self.shared.cx.options.prefetch {
            self.queue.work.lines().begin_all();
            self.queue.waker.wake_all();
        }
    }
}
