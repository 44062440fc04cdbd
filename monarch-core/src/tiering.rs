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
pub use residency::orphans::Orphans;
pub use status::gauges::Load;

use self::core::context::Context;
use self::core::copy_errors::CopyErrors;
use self::core::log_limit::LogLimits;
use self::core::peer_link::PeerLink;
use self::core::segments::Segments;
use self::core::segments::parts;
use self::core::source_facts::SourceFacts;
use crate::engine::{Engines, Limits};
use crate::held_dir::HeldDir;
use crate::metrics::Latencies;
use crate::sync::lock;
use crate::tier::TierDir;
use access::access_tracker::AccessTracker;
use access::hint_inbox::HintInbox;
use access::prefetch_order::PrefetchOrder;
use compression::compressor::Compressor;
use compression::packer::Packer;
use copy::accounting::CopyAccounting;
use copy::adoption::Adoption;
use copy::chunked_fetches::ChunkedFetches;
use copy::fetch_lines::FetchLines;
use copy::fetch_starter::FetchStarter;
use copy::file_copies::FileCopies;
use copy::file_copy_context::FileCopyContext;
use copy::publisher::Publisher;
use copy::streaming::Streaming;
use monarch_abi::control::ControlMap;
use monarch_abi::word::{Refusal, State, Word};
use monarch_policies::Policy;
use placement::demotion::Demotion;
use placement::fair_share::FairShare;
use placement::guest_copies::GuestCopies;
use placement::placer::Placer;
use placement::reclaim::Reclaim;
use policy::policy_handle::PolicyHandle;
use queue::engine_lane::EngineLanes;
use queue::inflight_slots::InflightSlots;
use queue::refetch::Refetch;
use queue::retry_backoff::RetryBackoff;
use queue::waker::Waker;
use queue::work_queue::WorkQueue;
use residency::catalog::Catalog;
use residency::decode_rounds::DecodeRounds;
use residency::eviction::Eviction;
use residency::mover::Mover;
use residency::promotions::Promotions;

use residency::scrubber::Scrubber;
use residency::transient_cache::TransientCache;
use residency::transient_copies::TransientCopies;
use schedule::decompress_ahead::DecompressAhead;
use schedule::dispatcher::Dispatcher;
use schedule::promoter::Promoter;
use schedule::workers::Workers;
use status::prefetch_status::PrefetchStatus;
use status::residency_report::ResidencyReport;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
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

/// The components of the tiering engine, wired. It has no state of its own.
///
/// It has a field for each component that the agent calls: a caller uses the component that owns
/// what it needs.
pub struct TieringEngine {
    pub(crate) cx: Arc<Context>,
    pub(crate) segments: Arc<Segments>,
    waker: Arc<Waker>,
    pub(crate) policy: Arc<PolicyHandle>,
    pub(crate) source_facts: Arc<SourceFacts>,
    pub(crate) peers: Arc<PeerLink>,
    pub(crate) lanes: Arc<EngineLanes>,
    pub(crate) queue: Arc<WorkQueue>,
    throttle: Arc<PrefetchThrottle>,
    rounds: Arc<DecodeRounds>,
    orphans: Arc<Mutex<Orphans>>,
    retry_backoff: Arc<Mutex<RetryBackoff>>,
    fetch_lines: Arc<Mutex<FetchLines>>,
    pub(crate) transient: Arc<TransientCopies>,
    pub(crate) eviction: Arc<Eviction>,
    pub(crate) refetch: Arc<Refetch>,
    pub(crate) scrubber: Arc<Scrubber>,
    pub(crate) access: Arc<AccessTracker>,
    pub(crate) compressor: Arc<Compressor>,
    guests: Arc<GuestCopies>,
    pub(crate) fair_share: Arc<FairShare>,
    pub(crate) reclaim: Arc<Reclaim>,
    pub(crate) fetches: Arc<ChunkedFetches>,
    streaming: Arc<Streaming>,
    pub(crate) prefetch_status: Arc<PrefetchStatus>,
    pub(crate) promoter: Arc<Promoter>,
    pub(crate) decompress_ahead: Arc<DecompressAhead>,
    pub(crate) report: Arc<ResidencyReport>,
    workers: Arc<Workers>,
}

impl std::fmt::Debug for TieringEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TieringEngine").field("stats", &self.cx.stats).finish_non_exhaustive()
    }
}

impl TieringEngine {
    /// Makes a tiering engine without segments; [`TieringEngine::run`] starts its threads.
    #[must_use]
    pub fn new(of: TieringParts) -> Self {
        let TieringParts { ctl, tiers, engines, limits, policy, latencies, hint_dir, purge_age, options, stop } = of;
        let throttle = Arc::new(PrefetchThrottle::new(Bounds {
            pfs: options.max_inflight,
            remote: options.remote,
            has_rings: engines.uring.is_some(),
            backs_off: options.backoff,
        }));
        let orphans = Arc::new(Mutex::new(Orphans::new(tiers.iter().map(|t| t.options.stays))));
        let caches = if tiers.iter().any(|t| t.options.for_decoded > 0) {
            tiers.iter().map(|t| TransientCache::new(t.options.for_decoded, options.elastic)).collect()
        } else {
            Vec::new()
        };
        let compresses = tiers.iter().any(|t| t.options.min_ratio.is_some());
        let (stats, log_limits) = (Stats::default(), LogLimits::default());
        let cx = Arc::new(Context { ctl, tiers, options, stats, latencies, limits, compresses, log_limits, stop });
        let catalog = Arc::new(Mutex::new(Catalog::default()));
        let retry_backoff = Arc::new(Mutex::new(RetryBackoff::default()));
        let fetch_lines = Arc::new(Mutex::new(FetchLines::default()));
        let copy_errors = Arc::new(CopyErrors::default());
        let segments = Arc::new(Segments::new());
        let waker = Arc::new(Waker::new(&cx));
        let policy = Arc::new(PolicyHandle::new(&cx, &segments, policy));
        let source_facts = Arc::new(SourceFacts::new(&segments, purge_age));
        let peers = Arc::new(PeerLink::new(&segments));
        let lanes = Arc::new(EngineLanes::new(&cx, &waker, engines));
        let queue = Arc::new(WorkQueue::new(&cx, &segments, &throttle, &waker, &source_facts));
        let rounds = Arc::new(DecodeRounds::new(&cx));
        let promotions = Arc::new(Promotions::default());
        let transient = Arc::new(TransientCopies::new(&cx, &segments, &rounds, &promotions, caches));
        let eviction = Arc::new(Eviction::new(&cx, &segments, &orphans, &retry_backoff, &catalog, &policy));
        let refetch = Arc::new(Refetch::new(&cx, &segments, &retry_backoff, &waker, &source_facts, &queue));
        let scrubber = Arc::new(Scrubber::new(&cx, &segments, &orphans, &catalog, &policy, &eviction, &refetch));
        let mover = Arc::new(Mover::new(&cx, &orphans, &policy, &eviction));
        let order = Arc::new(PrefetchOrder::new(&cx, &segments, &policy, &source_facts));
        let hint_inbox = Arc::new(HintInbox::new(&segments, &policy, &source_facts, &queue, &order, hint_dir));
        let access = Arc::new(AccessTracker::new(&cx, &segments, &waker, &policy, &queue, &eviction, &hint_inbox));
        let packer = Arc::new(Packer::new(&cx, &orphans));
        let compressor = Arc::new(Compressor::new(
            &cx, &segments, &orphans, &waker, &policy, &queue, &transient, &eviction, &mover, &packer,
        ));
        let demotion =
            Arc::new(Demotion::new(&cx, &segments, &orphans, &catalog, &policy, &transient, &mover, &packer));
        let guests = Arc::new(GuestCopies::new(&cx, &segments, &catalog, &policy, &peers, &transient));
        let fair_share = Arc::new(FairShare::new(&cx, &segments, &catalog, &eviction, &refetch, &guests));
        let placer = Arc::new(Placer::new(
            &cx,
            &segments,
            &orphans,
            &catalog,
            &policy,
            &transient,
            &eviction,
            &order,
            &packer,
            &fair_share,
        ));
        let publisher = Arc::new(Publisher::new(
            &cx,
            &segments,
            &fetch_lines,
            &retry_backoff,
            &catalog,
            &throttle,
            &copy_errors,
            &policy,
            &peers,
            &transient,
            &eviction,
        ));
        let accounting = Arc::new(CopyAccounting::new(&cx, &throttle, &waker, &source_facts));
        let slots = Arc::new(InflightSlots::new(&waker, &throttle));
        let fetches = Arc::new(ChunkedFetches::new(
            &cx,
            &fetch_lines,
            &throttle,
            &waker,
            &source_facts,
            &peers,
            &lanes,
            &transient,
            &compressor,
            &publisher,
            &accounting,
            &slots,
        ));
        let reclaim = Arc::new(Reclaim::new(
            &cx,
            &segments,
            &orphans,
            &policy,
            &transient,
            &eviction,
            &mover,
            &demotion,
            fetches.clone(),
        ));
        let streaming = Arc::new(Streaming::new(&cx, &segments, &fetch_lines, &peers, &reclaim, &fetches));
        let starter = Arc::new(FetchStarter::new(
            &cx,
            &fetch_lines,
            &rounds,
            &transient,
            &packer,
            &compressor,
            &fair_share,
            &placer,
            &reclaim,
            &publisher,
            &fetches,
            &streaming,
        ));
        let adoption = Arc::new(Adoption::new(&cx, &orphans, &catalog, &throttle, &policy, &publisher));
        let tasks = Arc::new(FileCopyContext::new(
            &cx,
            &throttle,
            &policy,
            &source_facts,
            &peers,
            &lanes,
            &rounds,
            &transient,
            &packer,
            &compressor,
            &fair_share,
            &placer,
            &reclaim,
            &publisher,
            &accounting,
        ));
        let copies = Arc::new(FileCopies::new(
            &cx, &segments, &orphans, &waker, &peers, &queue, &rounds, &transient, &eviction, &scrubber, &publisher,
            &fetches, &starter, &adoption, &tasks,
        ));
        let prefetch_status =
            Arc::new(PrefetchStatus::new(&cx, &segments, &throttle, &fetch_lines, &retry_backoff, &queue));
        let promoter = Arc::new(Promoter::new(&cx, &segments, &promotions, &transient, &mover, &prefetch_status));
        let decompress_ahead =
            Arc::new(DecompressAhead::new(&cx, &segments, &waker, &policy, &rounds, &transient, &slots));
        let dispatcher = Arc::new(Dispatcher::new(
            &cx,
            &segments,
            &orphans,
            &throttle,
            &waker,
            &source_facts,
            &peers,
            &lanes,
            &queue,
            &order,
            &compressor,
            &slots,
            &fetches,
            &prefetch_status,
            &decompress_ahead,
        ));
        let report = Arc::new(ResidencyReport::new(
            &cx,
            &segments,
            &orphans,
            &copy_errors,
            &policy,
            &source_facts,
            &peers,
            &transient,
            &compressor,
            &prefetch_status,
        ));
        let workers = Arc::new(Workers::new(&cx, &waker, &lanes, &compressor, &copies, &dispatcher));
        Self {
            cx,
            segments,
            waker,
            policy,
            source_facts,
            peers,
            lanes,
            queue,
            throttle,
            rounds,
            orphans,
            retry_backoff,
            fetch_lines,
            transient,
            eviction,
            refetch,
            scrubber,
            access,
            compressor,
            guests,
            fair_share,
            reclaim,
            fetches,
            streaming,
            prefetch_status,
            promoter,
            decompress_ahead,
            report,
            workers,
        }
    }

    /// Locks the copies of an earlier agent that no entry has claimed yet.
    pub fn orphans(&self) -> MutexGuard<'_, Orphans> {
        lock(&self.orphans)
    }

    /// Starts the copiers and rings.
    pub fn run(&self) {
        self.workers.run();
    }

    /// Ends the copiers and rings after their current copies.
    pub fn stop(&self) {
        self.workers.stop();
    }

    /// The gauges of the engine, for metrics.
    #[must_use]
    pub fn load(&self) -> Load {
        // One lock at a time: copiers publish under the other.
        let paused = lock(&self.retry_backoff).paused();
        Load::of(&self.cx.limits, &self.queue, &self.throttle, paused)
    }

    /// Adds or replaces the segment with this number, and prefetches it if the configuration says
    /// so.
    pub fn add_segment(&self, number: usize, live: &LiveSegment) {
        self.source_facts.begin(number, live);
        self.segments.set(number, live.clone());
        self.streaming.make_window(live);
        self.access.renumber(live.root);
        self.policy.report_extent();
        self.policy.report_residents(number);
        self.queue.lines().begin(number, self.cx.options.prefetch);
        self.waker.wake_all();
    }

    /// Stops serving a segment.
    pub fn remove_segment(&self, number: usize) {
        self.segments.clear(number);
        if !self.segments.any_large() {
            lock(&self.fetch_lines).drop_window();
        }
        lock(&self.retry_backoff).forget(|key| parts(key).is_some_and(|(of, _)| of == number));
        self.policy.report_index_gone(number);
        self.policy.report_extent();
        self.rounds.forget_round(number);
    }

    /// Notes that files have other owners than before: prefetches what this node owns now, and lets
    /// files that found no space be requested again.
    pub fn owners_changed(&self) {
        self.guests.reset();
        for (_, live) in self.segments.served() {
            let for_room = |word: Word| word.refusal() == Some(Refusal::NoRoom);
            for e in live.segment.files_that(for_room) {
                let word = e.word();
                if for_room(word) {
                    let to = word.next(State::Absent);
                    let _ = e.slot.word.compare_exchange(word.0, to.0, Ordering::AcqRel, Ordering::Relaxed);
                }
            }
        }
        if self.cx.options.prefetch {
            self.queue.lines().begin_all();
            self.waker.wake_all();
        }
    }
}
