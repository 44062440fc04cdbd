//! The tiering engine: takes demands before anything else, prefetches in the order of the index,
//! asks the policy, has the engine copy, verifies and publishes.
//!
//! Copiers are plain threads, some of which sleep on the demand word of the control block, so that
//! a reader's futex wake reaches the thread that will do the copy without a hop in between. A
//! demand and a prefetch of the same file meet in its state word: whoever turns it to Fetching
//! copies, everybody else waits (single-flight over threads, processes and jobs).
//!
//! | module | what it does |
//! |---|---|
//! | [`work_queue`] | which file is looked at next |
//! | [`outcome`] | one file before and after its copy: claim, room, outcome |
//! | [`file_copy_task`] | one file while the engine copies it |
//! | [`chunked_fetches`] | large files: their chunks, given out one by one |
//! | [`chunked_fetch`] | one large file: which chunks are wanted, on their way, there |
//! | [`chunk_copy_task`] | one chunk while the engine copies it |
//! | [`streaming`] | large files that no tier has room for |
//! | [`stream_window`] | room through which files pass that no tier has room for |
//! | [`migration`] | copies on their way between tiers |
//! | [`compressor`] | copies that are to be packed |
//! | [`ratio_estimator`] | how much smaller files get |
//! | [`transient_cache`] | decoded copies, and which of them go |
//! | [`decompress_ahead`] | which are decoded before somebody asks |
//! | [`fair_share`] | roots that share a quota |
//! | [`access_tracker`] | what readers open, told to the policy |
//! | [`epoch_stats`] | passes over the files of a root, and what they came to |
//! | [`hint_inbox`] | what jobs tell of their future |
//! | [`placer`] | copies that make way because the policy says so |
//! | [`peers`] | files that other nodes own |
//! | [`worker_pool`] | copiers that have nothing to do |
//! | [`policy_handle`] | what the policy hears of copies and of the data set |
//! | [`trace_files`] | opens written to a file |
//! | [`eviction`] | second tries, copies that have to go, copies that somebody damaged |
//! | [`orphans`] | copies of an earlier agent that no entry has claimed yet |
//! | [`gauges`] | what it is about at a moment |
//! | [`engine_lane`] | which engine copies it |
//! | [`engine_trial`] | which engine is the better one for a mount |
//! | [`residency_report`] | how far the copies of some files are |
//! | [`copy_errors`] | what went wrong with which file |
//! | [`retry_backoff`] | files whose pause ends at some time, and how often they failed |
//! | [`inflight_progress`] | what waiting readers see of a copy under way |
//! | [`throttle`] | how many copies may run, and how many of them for prefetch |
//! | [`source_facts`] | files on tape, files that the site will remove |
//! | [`prefetch_status`] | how fetching ahead goes, in words |
//! | [`log_limit`] | messages that could come once per file |

mod access_tracker;
mod chunk_copy_task;
mod chunked_fetch;
mod chunked_fetches;
mod compressor;
mod copy_errors;
mod decompress_ahead;
mod directory_costs;
mod engine_lane;
mod engine_trial;
mod epoch_stats;
mod event_merge;
mod eviction;
mod fair_share;
mod file_copy_task;
mod gauges;
mod hint_inbox;
mod inflight_progress;
mod log_limit;
mod migration;
mod orphans;
mod outcome;
mod peers;
mod placer;
mod policy_handle;
mod prefetch_status;
mod ratio_estimator;
mod residency_report;
mod retry_backoff;
mod source_facts;
mod stream_window;
mod streaming;
mod throttle;
mod trace_files;
mod transient_cache;
mod work_queue;
mod worker_pool;

pub use gauges::Load;
pub use orphans::{Claim, Orphans};
pub use peers::{Asked, FailureAction, FileRef, IdentityScope, Peers, RemoteFile};

use crate::config::Direct;
use crate::engine::{CopyEngine, Engines, Limits, Source, Task, Work};
use crate::held_dir::HeldDir;
use crate::metrics::Latencies;
use crate::sync::lock;
use crate::tier::TierDir;
use access_tracker::AccessTracker;
use chunked_fetches::ChunkedFetches;
use compressor::Compressor;
use copy_errors::CopyErrors;
use decompress_ahead::DecompressAhead;
use engine_lane::{Lane, RingWaker};
use engine_trial::{EngineTrials, Mount};
use eviction::Catalog;
use fair_share::FairShare;
use log_limit::LogLimits;
use migration::Promotions;
use monarch_abi::control::ControlMap;
use monarch_abi::segment::Segment;
use monarch_abi::sys::futex_wake;
use monarch_policies::{Hints, Policy, RequestSource};
use prefetch_status::Told;
use ratio_estimator::RatioEstimator;
use retry_backoff::RetryBackoff;
use source_facts::SourceFacts;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};
use throttle::{Bounds, PrefetchThrottle, Slot};
use transient_cache::TransientCache;
use work_queue::{Next, WorkQueue};
use worker_pool::WorkerPool;

/// A segment that the tiering engine serves.
#[derive(Clone)]
pub struct LiveSegment {
    /// Index and state.
    pub segment: Segment<'static>,
    /// Where its files come from.
    pub source: Arc<dyn Source>,
    /// Whether the index was scanned for its jobs; of one that was loaded from a file each entry is
    /// compared before its first use.
    pub fresh: bool,
    /// What of an identity is the same on all nodes.
    pub portable: IdentityScope,
    root: usize,
    mount: Arc<Mount>,
}

impl std::fmt::Debug for LiveSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveSegment").field("fresh", &self.fresh).finish_non_exhaustive()
    }
}

/// What the tiering engine needs to know from the configuration.
#[derive(Clone, Copy, Debug)]
pub struct TieringOptions {
    /// Most copies at a time.
    pub max_inflight: usize,
    /// Files changed less than this ago are not copied.
    pub settle: Duration,
    /// Whether files are fetched before anybody asks.
    pub prefetch: bool,
    /// Whether prefetching slows down when the PFS does.
    pub backoff: bool,
    /// What of the PFS is read past the page cache.
    pub direct: Direct,
    /// Copies that make way first take whatever room others leave, and at least this part of each
    /// tier. `None`: what is kept for them.
    pub elastic: Option<f64>,
    /// Most files at a time that come from other nodes, beside the copies from the PFS: those must
    /// never wait for these.
    pub remote: usize,
}

/// Counters for status and report.
#[derive(Debug, Default)]
pub struct Stats {
    /// Copies completed on demand.
    pub demanded: AtomicU64,
    /// Copies completed ahead.
    pub prefetched: AtomicU64,
    /// Bytes copied.
    pub bytes: AtomicU64,
    /// Chunks of large files copied.
    pub chunks: AtomicU64,
    /// Copies adopted from an earlier run.
    pub adopted: AtomicU64,
    /// Those of them whose bytes were read and found right first.
    pub verified: AtomicU64,
    /// Files refused by policy or quota, or for now.
    pub refused: AtomicU64,
    /// Those of them that had just been changed.
    pub unsettled: AtomicU64,
    /// Files found changed.
    pub changed: AtomicU64,
    /// Copies that failed on the PFS side.
    pub source_errors: AtomicU64,
    /// Copies that failed on the tier side.
    pub tier_errors: AtomicU64,
    /// Copies dropped for lack of space.
    pub evicted: AtomicU64,
    /// Copies that made way for others because the policy said so.
    pub replaced: AtomicU64,
    /// Hints of jobs.
    pub hints: AtomicU64,
    /// Copies moved to a slower tier instead of being dropped.
    pub demoted: AtomicU64,
    /// Copies moved to a faster tier because somebody opened them.
    pub promoted: AtomicU64,
    /// Copies that were packed.
    pub packed: AtomicU64,
    /// Copies that were decoded, for a reader or ahead of one.
    pub decoded: AtomicU64,
    /// Those of them that nobody waited for.
    pub decoded_ahead: AtomicU64,
    /// Copies that somebody else removed or damaged.
    pub damaged: AtomicU64,
}

/// See the module.
pub struct TieringEngine {
    /// Shared memory.
    pub ctl: ControlMap<'static>,
    /// Fastest first.
    pub tiers: Vec<TierDir>,
    /// Counters for status and report.
    pub stats: Stats,
    /// Durations, for metrics.
    pub latencies: Latencies,
    options: TieringOptions,
    engines: Engines,
    ring_waker: RingWaker,
    limits: Arc<Limits>,
    policy: Mutex<Box<dyn Policy>>,
    /// Locked after the policy.
    hints: Mutex<Hints>,
    access_tracker: Mutex<AccessTracker>,
    /// Of all indexed files, bytes.
    mean_size: AtomicU64,
    /// Where jobs leave hints.
    hint_dir: Option<HeldDir>,
    segments: RwLock<Vec<Option<LiveSegment>>>,
    work_queue: Mutex<WorkQueue>,
    retry_backoff: Mutex<RetryBackoff>,
    /// Segment and id at which a walk over all words goes on.
    walk: Mutex<Option<(usize, u32)>>,
    orphans: Mutex<Orphans>,
    catalog: Mutex<Catalog>,
    fair_share: Mutex<FairShare>,
    promotions: Mutex<Promotions>,
    chunked_fetches: Mutex<ChunkedFetches>,
    /// By tier.
    transient: Vec<TransientCache>,
    compressor: Mutex<Compressor>,
    /// Whether a tier packs its copies.
    compresses: bool,
    /// When no copies of files were found that others own.
    no_guests: Mutex<Option<Instant>>,
    /// The other nodes of the job.
    peers: OnceLock<Arc<dyn Peers>>,
    /// Copies that are packed at a time.
    packers: usize,
    /// Whether fetching ahead waits for copies to be packed.
    packs_wait: AtomicBool,
    /// When packing ends, once the agent does.
    packs_end: OnceLock<Instant>,
    ratios: Mutex<RatioEstimator>,
    decompress_ahead: Mutex<DecompressAhead>,
    /// Whether a copy is being decoded that nobody waits for.
    decoding: AtomicBool,
    /// Chunks on their way that nobody waits for.
    pieces_ahead: AtomicUsize,
    throttle: PrefetchThrottle,
    /// Whether a ring was told that everything is in use.
    rings_wait: AtomicBool,
    /// Whether prefetching waits for a tier or for the PFS.
    held_back: AtomicBool,
    /// Whether something is left to be fetched ahead, as upkeep saw it.
    some_ahead: AtomicBool,
    /// Whether a copier or a ring sleeps until readers are not reckoned with any more.
    one_waits: AtomicBool,
    source_facts: SourceFacts,
    engine_trials: EngineTrials,
    told: Mutex<Told>,
    copy_errors: CopyErrors,
    log_limits: LogLimits,
    stop: Arc<AtomicBool>,
    worker_pool: WorkerPool,
}

impl std::fmt::Debug for TieringEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TieringEngine").field("figures", &self.stats).finish_non_exhaustive()
    }
}

impl TieringEngine {
    /// A tiering engine without segments; [`TieringEngine::run`] starts its copiers.
    #[must_use]
    pub fn new(
        ctl: ControlMap<'static>,
        tiers: Vec<TierDir>,
        engines: Engines,
        limits: Arc<Limits>,
        policy: Box<dyn Policy>,
        options: TieringOptions,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let passing = tiers.iter().any(|t| t.for_decoded > 0);
        Self {
            ctl,
            stats: Stats::default(),
            latencies: Latencies::off(),
            options,
            ring_waker: RingWaker::default(),
            limits,
            policy: Mutex::new(policy),
            hints: Mutex::default(),
            access_tracker: Mutex::default(),
            mean_size: AtomicU64::new(0),
            hint_dir: None,
            segments: RwLock::default(),
            work_queue: Mutex::default(),
            retry_backoff: Mutex::default(),
            walk: Mutex::default(),
            orphans: Mutex::new(Orphans::new(tiers.iter().map(|t| t.stays))),
            catalog: Mutex::default(),
            fair_share: Mutex::default(),
            promotions: Mutex::default(),
            chunked_fetches: Mutex::default(),
            transient: if passing {
                tiers.iter().map(|t| TransientCache::new(t.for_decoded, options.elastic)).collect()
            } else {
                Vec::new()
            },
            compressor: Mutex::default(),
            compresses: tiers.iter().any(|t| t.min_ratio.is_some()),
            no_guests: Mutex::default(),
            peers: OnceLock::new(),
            // Training needs the others.
            packers: (std::thread::available_parallelism().map_or(1, NonZero::get) / 2).max(1),
            packs_wait: AtomicBool::new(false),
            packs_end: OnceLock::new(),
            ratios: Mutex::default(),
            decompress_ahead: Mutex::default(),
            decoding: AtomicBool::new(false),
            pieces_ahead: AtomicUsize::new(0),
            rings_wait: AtomicBool::new(false),
            held_back: AtomicBool::new(false),
            some_ahead: AtomicBool::new(true),
            one_waits: AtomicBool::new(false),
            throttle: PrefetchThrottle::new(Bounds {
                pfs: options.max_inflight,
                remote: options.remote,
                has_rings: engines.uring.is_some(),
                backs_off: options.backoff,
            }),
            engines,
            source_facts: SourceFacts::default(),
            engine_trials: EngineTrials::default(),
            told: Mutex::default(),
            copy_errors: CopyErrors::default(),
            log_limits: LogLimits::default(),
            stop,
            worker_pool: WorkerPool::default(),
            tiers,
        }
    }

    /// With a directory where jobs leave hints.
    #[must_use]
    pub fn with_hints(mut self, dir: Option<HeldDir>) -> Self {
        self.hint_dir = dir;
        self
    }

    /// With durations that are kept.
    #[must_use]
    pub fn with_latencies(mut self, latencies: Latencies) -> Self {
        self.latencies = latencies;
        self
    }

    /// Name of the engine for what nobody waits for, and why it is that one.
    #[must_use]
    pub fn engine(&self) -> (&'static str, &str) {
        let name = match &self.engines.uring {
            Some(_) if self.engines.auto => "auto",
            Some(uring) => uring.name(),
            None => self.engines.threads.name(),
        };
        (name, &self.engines.why)
    }

    /// Name of the policy.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        lock(&self.policy).name()
    }

    /// Copies of an earlier agent that no entry has claimed yet.
    pub fn orphans(&self) -> MutexGuard<'_, Orphans> {
        lock(&self.orphans)
    }

    /// Starts the copiers.
    pub fn run(self: &Arc<Self>) {
        let spawn = |name: String, work: fn(&Self)| {
            let me = self.clone();
            std::thread::Builder::new().name(name).stack_size(256 * 1024).spawn(move || work(&me))
        };
        for i in 0..self.engines.rings {
            if let Err(e) = spawn(format!("ring-{i}"), Self::ring) {
                tracing::warn!(rings = i, error = %e, "fewer rings than there should be: the system allows no more threads");
                break;
            }
        }
        for i in 0..self.options.max_inflight + self.options.remote {
            if let Err(e) = spawn(format!("copier-{i}"), Self::copier) {
                tracing::warn!(copiers = i, error = %e, "fewer copiers than configured: the system allows no more threads");
                return;
            }
        }
    }

    /// Ends the copiers after their current copy.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake_all();
        self.worker_pool.call_all();
    }

    /// A segment of a root that can be served with [`TieringEngine::add_segment`].
    #[must_use]
    pub fn live(&self, root: usize, segment: Segment<'static>, source: Arc<dyn Source>, fresh: bool) -> LiveSegment {
        let device = self.ctl.roots().get(root).map_or(0, |r| r.dev.load(Ordering::Relaxed));
        let mount = self.engine_trials.of(device, &*source, self.options.direct == Direct::Yes);
        LiveSegment { segment, source, fresh, portable: IdentityScope::default(), root, mount }
    }

    /// Adds or replaces the segment with this number, and prefetches it if asked to.
    pub fn add_segment(&self, number: usize, live: &LiveSegment) {
        self.source_facts.begin(number, live);
        let mut segs = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        if segs.len() <= number {
            segs.resize(number + 1, None);
        }
        segs[number] = Some(live.clone());
        drop(segs);
        self.make_window(live);
        self.renumber(live.root);
        self.tell_extent();
        self.tell_residents(number);
        lock(&self.work_queue).begin(number, self.options.prefetch);
        self.wake_all();
    }

    /// Nothing more is to be done for a segment.
    pub fn remove_segment(&self, number: usize) {
        let mut segs = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = segs.get_mut(number) {
            *live = None;
        }
        let any_large = segs.iter().flatten().any(|live| live.segment.state.header.large > 0);
        drop(segs);
        if !any_large {
            lock(&self.chunked_fetches).drop_window();
        }
        lock(&self.retry_backoff).forget(|key| parts(key).is_some_and(|(of, _)| of == number));
        self.tell_index_gone(number);
        self.tell_extent();
        self.forget_round(number);
    }

    /// The segment with this number.
    #[must_use]
    pub fn segment(&self, number: usize) -> Option<LiveSegment> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).get(number)?.clone()
    }

    fn wake_all(&self) {
        self.ctl.ctl.demand.fetch_add(1, Ordering::SeqCst);
        futex_wake(&self.ctl.ctl.demand, u32::MAX >> 1);
        self.ring_waker.ring();
    }

    /// One copier: works while there is work, then sleeps.
    fn copier(&self) {
        let ctl = self.ctl.ctl;
        loop {
            // Read before looking for work: whatever is asked for after that ends the sleep at
            // once.
            let (seen, since) = (ctl.demand.load(Ordering::SeqCst), Instant::now());
            self.engines.threads.run(&InLane(self, Lane::Threads));
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.patiently(since, |patience| self.worker_pool.sleep(&ctl.demand, seen, &ctl.sleepers, patience));
        }
    }

    /// One ring: works while there is work, then sleeps until somebody rings.
    fn ring(&self) {
        let Some(uring) = &self.engines.uring else { return };
        loop {
            let (heard, since) = (self.ring_waker.heard(), Instant::now());
            uring.run(&InLane(self, Lane::Rings));
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.patiently(since, |patience| self.ring_waker.sleep(heard, patience));
        }
    }
}

/// The tiering engine's files for one lane.
struct InLane<'a>(&'a TieringEngine, Lane);

impl Work for InLane<'_> {
    fn next(&self) -> Option<Box<dyn Task + '_>> {
        while !self.0.stop.load(Ordering::Relaxed) {
            match self.0.next_job(self.1).or_else(|| self.0.next_ahead(self.1))? {
                Next::Pack(waiting) => self.0.pack_next(waiting),
                Next::File(job) => {
                    if let Some(mut copying) = self.0.begin(job) {
                        copying.given(self.1);
                        return Some(Box::new(copying));
                    }
                }
                Next::Chunk(piece) => {
                    if let Some(mut piece) = piece.ready() {
                        piece.given(self.1);
                        return Some(Box::new(piece));
                    }
                }
            }
        }
        None
    }
}

/// A file that is looked at, counted for as long as it lives.
struct Job<'a> {
    tiering: &'a TieringEngine,
    key: u64,
    source: RequestSource,
    slot: Slot<'a>,
    /// Whether a packed copy is to be decoded that nobody waits for.
    decodes: bool,
    /// Whether a ring is to copy it.
    in_ring: bool,
}

impl<'a> Job<'a> {
    fn new(tiering: &'a TieringEngine, key: u64, source: RequestSource, remote: bool) -> Self {
        let slot = tiering.throttle.take(source, remote);
        Self { tiering, key, source, slot, decodes: false, in_ring: false }
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if self.decodes {
            self.tiering.decoding.store(false, Ordering::Release);
        }
        // A demand may have been left in line because everything was in use, or a prefetch because
        // of a demand.
        if self.slot.give_back() {
            self.tiering.wake(Lane::Threads);
        }
        if self.tiering.rings_wait.swap(false, Ordering::SeqCst) {
            self.tiering.wake(Lane::Rings);
        }
    }
}

/// Segment number and id of a file's key, if it can be one.
fn parts(key: u64) -> Option<(usize, u32)> {
    let number = usize::try_from(key >> 32).ok()?.checked_sub(1)?;
    Some((number, key as u32))
}
