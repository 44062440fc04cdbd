//! The placement driver: takes demands before anything else, prefetches in the order of the index, asks the policy, has
//! the engine copy, verifies and publishes.
//!
//! Copiers are plain threads, some of which sleep on the demand word of the control block, so that a reader's futex wake reaches the
//! thread that will do the copy without a hop in between. A demand and a prefetch of the same file meet in its state word:
//! whoever turns it to Fetching copies, everybody else waits (single-flight over threads, processes and jobs).
//!
//! | module | what it does |
//! |---|---|
//! | [`queue`] | which file is looked at next |
//! | [`fetch`] | one file before and after its copy: claim, room, outcome |
//! | [`copying`] | one file while the engine copies it |
//! | [`fills`] | large files: their chunks, given out one by one |
//! | [`fill`] | one large file: which chunks are wanted, on their way, there |
//! | [`piece`] | one chunk while the engine copies it |
//! | [`streams`] | large files that no tier has room for |
//! | [`window`] | room through which files pass that no tier has room for |
//! | [`moves`] | copies on their way between tiers |
//! | [`packs`] | copies that are to be packed |
//! | [`ratios`] | how much smaller files get |
//! | [`decoded`] | decoded copies, and which of them go |
//! | [`decode`] | which are decoded before somebody asks |
//! | [`fair`] | roots that share a quota |
//! | [`reading`] | what readers open, told to the policy |
//! | [`epochs`] | passes over the files of a root, and what they came to |
//! | [`hinting`] | what jobs tell of their future |
//! | [`replace`] | copies that make way because the policy says so |
//! | [`peers`] | files that other nodes own |
//! | [`on_call`] | copiers that have nothing to do |
//! | [`tell`] | what the policy hears of copies and of the data set |
//! | [`traces`] | opens written to a file |
//! | [`evict`] | second tries, copies that have to go, copies that somebody damaged |
//! | [`unclaimed`] | copies of an earlier agent that no entry has claimed yet |
//! | [`load`] | what it is about at a moment |
//! | [`lanes`] | which engine copies it |
//! | [`trial`] | which engine is the better one for a mount |
//! | [`census`] | how far the copies of some files are |
//! | [`trouble`] | what went wrong with which file |
//! | [`later`] | files whose pause ends at some time, and how often they failed |
//! | [`gate`] | whether anything is fetched ahead while the PFS fails |
//! | [`mark`] | what waiting readers see of a copy under way |
//! | [`pace`] | how many prefetches the PFS bears |
//! | [`width`] | how many it needs to give what it has |
//! | [`press`] | whether demands leave prefetches anything of it |
//! | [`manners`] | files on tape, files that the site will remove |
//! | [`ahead`] | how fetching ahead goes, in words |
//! | [`seldom`] | messages that could come once per file |

mod ahead;
mod census;
mod copying;
mod decode;
mod decoded;
mod directories;
mod epochs;
mod evict;
mod fair;
mod fetch;
mod fill;
mod fills;
mod gate;
mod hinting;
mod lanes;
mod later;
mod load;
mod manners;
mod mark;
mod moves;
mod on_call;
mod ordering;
mod pace;
mod packs;
mod peers;
mod piece;
mod press;
mod queue;
mod ratios;
mod reading;
mod replace;
mod seldom;
mod streams;
mod tell;
mod traces;
mod trial;
mod trouble;
mod unclaimed;
mod width;
mod window;

pub use load::Load;
pub use peers::{After, Asked, FileRef, Peers, Portable, RemoteFile};
pub use unclaimed::{Claim, Unclaimed};

use crate::config::Direct;
use crate::engine::{CopyEngine, Engines, Limits, Source, Task, Work, slots_ahead};
use crate::held_dir::HeldDir;
use crate::metrics::Latencies;
use crate::tier::TierDir;
use ahead::Told;
use decode::Rounds;
use decoded::Decoded;
use evict::Placed;
use fair::Fair;
use fills::Fills;
use gate::Gate;
use lanes::{Bell, Lane};
use later::Later;
use manners::Manners;
use monarch_abi::control::ControlMap;
use monarch_abi::segment::Segment;
use monarch_abi::sys::futex_wake;
use monarch_policies::{Hints, Policy, RequestSource};
use moves::Hot;
use on_call::OnCall;
use pace::Pace;
use packs::Packs;
use press::Press;
use queue::{Next, Queue};
use ratios::Ratios;
use reading::Reading;
use seldom::Seldom;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};
use trial::{Mount, Mounts};
use trouble::Trouble;
use width::Width;

/// A segment that the driver serves.
#[derive(Clone)]
pub struct Live {
    /// Index and state.
    pub segment: Segment<'static>,
    /// Where its files come from.
    pub source: Arc<dyn Source>,
    /// Whether the index was scanned for its jobs; of one that was loaded from a file each entry is
    /// compared before its first use.
    pub fresh: bool,
    /// What of an identity is the same on all nodes.
    pub portable: Portable,
    root: usize,
    mount: Arc<Mount>,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").field("fresh", &self.fresh).finish_non_exhaustive()
    }
}

/// What the driver needs to know from the configuration.
#[derive(Clone, Copy, Debug)]
pub struct DriverOptions {
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
    /// Copies that make way first take whatever room others leave, and at least this part of each tier. `None`: what is kept for them.
    pub elastic: Option<f64>,
    /// Most files at a time that come from other nodes, beside the copies from the PFS: those must never wait for these.
    pub remote: usize,
}

/// Figures of the driver.
#[derive(Debug, Default)]
pub struct Figures {
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
pub struct Driver {
    /// Shared memory.
    pub ctl: ControlMap<'static>,
    /// Fastest first.
    pub tiers: Vec<TierDir>,
    /// Figures for status and report.
    pub figures: Figures,
    /// Durations, for metrics.
    pub latencies: Latencies,
    options: DriverOptions,
    engines: Engines,
    bell: Bell,
    limits: Arc<Limits>,
    policy: Mutex<Box<dyn Policy>>,
    /// Locked after the policy.
    hints: Mutex<Hints>,
    reading: Mutex<Reading>,
    /// Of all indexed files, bytes.
    mean_size: AtomicU64,
    /// Where jobs leave hints.
    hint_dir: Option<HeldDir>,
    segments: RwLock<Vec<Option<Live>>>,
    queue: Mutex<Queue>,
    later: Mutex<Later>,
    /// Segment and id at which a walk over all words goes on.
    walk: Mutex<Option<(usize, u32)>>,
    unclaimed: Mutex<Unclaimed>,
    placed: Mutex<Placed>,
    fair: Mutex<Fair>,
    hot: Mutex<Hot>,
    fills: Mutex<Fills>,
    /// By tier.
    decoded: Vec<Decoded>,
    packs: Mutex<Packs>,
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
    ratios: Mutex<Ratios>,
    rounds: Mutex<Rounds>,
    /// Whether a copy is being decoded that nobody waits for.
    decoding: AtomicBool,
    /// Chunks on their way that nobody waits for.
    pieces_ahead: AtomicUsize,
    /// Files and chunks on their way from the PFS.
    running: AtomicUsize,
    /// Those of them that somebody waits for.
    demanded: AtomicUsize,
    /// Files and chunks on their way from other nodes.
    remote: AtomicUsize,
    /// Files and chunks on their way from anywhere that nobody asked for.
    prefetching: AtomicUsize,
    /// Whether a ring was told that everything is in use.
    rings_wait: AtomicBool,
    /// Whether prefetching waits for a tier or for the PFS.
    held_back: AtomicBool,
    /// Whether something is left to be fetched ahead, as upkeep saw it.
    some_ahead: AtomicBool,
    /// Whether a copier or a ring sleeps until readers are not reckoned with any more.
    one_waits: AtomicBool,
    pace: Pace,
    press: Press,
    width: Width,
    gate: Gate,
    manners: Manners,
    mounts: Mounts,
    told: Mutex<Told>,
    trouble: Trouble,
    seldom: Seldom,
    stop: Arc<AtomicBool>,
    on_call: OnCall,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("figures", &self.figures).finish_non_exhaustive()
    }
}

fn lock<T: ?Sized>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver {
    /// A driver without segments; [`Driver::run`] starts its copiers.
    #[must_use]
    pub fn new(
        ctl: ControlMap<'static>,
        tiers: Vec<TierDir>,
        engines: Engines,
        limits: Arc<Limits>,
        policy: Box<dyn Policy>,
        options: DriverOptions,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let passing = tiers.iter().any(|t| t.for_decoded > 0);
        Self {
            ctl,
            figures: Figures::default(),
            latencies: Latencies::off(),
            options,
            engines,
            bell: Bell::default(),
            limits,
            policy: Mutex::new(policy),
            hints: Mutex::default(),
            reading: Mutex::default(),
            mean_size: AtomicU64::new(0),
            hint_dir: None,
            segments: RwLock::default(),
            queue: Mutex::default(),
            later: Mutex::default(),
            walk: Mutex::default(),
            unclaimed: Mutex::new(Unclaimed::new(tiers.iter().map(|t| t.stays))),
            placed: Mutex::default(),
            fair: Mutex::default(),
            hot: Mutex::default(),
            fills: Mutex::default(),
            decoded: if passing {
                tiers.iter().map(|t| Decoded::new(t.for_decoded, options.elastic)).collect()
            } else {
                Vec::new()
            },
            packs: Mutex::default(),
            compresses: tiers.iter().any(|t| t.min_ratio.is_some()),
            no_guests: Mutex::default(),
            peers: OnceLock::new(),
            // Training needs the others.
            packers: (std::thread::available_parallelism().map_or(1, NonZero::get) / 2).max(1),
            packs_wait: AtomicBool::new(false),
            packs_end: OnceLock::new(),
            ratios: Mutex::default(),
            rounds: Mutex::default(),
            decoding: AtomicBool::new(false),
            pieces_ahead: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            remote: AtomicUsize::new(0),
            demanded: AtomicUsize::new(0),
            prefetching: AtomicUsize::new(0),
            rings_wait: AtomicBool::new(false),
            held_back: AtomicBool::new(false),
            some_ahead: AtomicBool::new(true),
            one_waits: AtomicBool::new(false),
            pace: Pace::default(),
            press: Press::default(),
            width: Width::new(slots_ahead(options.max_inflight), options.remote > 0),
            gate: Gate::default(),
            manners: Manners::default(),
            mounts: Mounts::default(),
            told: Mutex::default(),
            trouble: Trouble::default(),
            seldom: Seldom::default(),
            stop,
            on_call: OnCall::default(),
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
    pub fn unclaimed(&self) -> MutexGuard<'_, Unclaimed> {
        lock(&self.unclaimed)
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
        self.on_call.call_all();
    }

    /// A segment of a root that can be served with [`Driver::add_segment`].
    #[must_use]
    pub fn live(&self, root: usize, segment: Segment<'static>, source: Arc<dyn Source>, fresh: bool) -> Live {
        let device = self.ctl.roots().get(root).map_or(0, |r| r.dev.load(Ordering::Relaxed));
        let mount = self.mounts.of(device, &*source, self.options.direct == Direct::Yes);
        Live { segment, source, fresh, portable: Portable::default(), root, mount }
    }

    /// Adds or replaces the segment with this number, and prefetches it if asked to.
    pub fn add_segment(&self, number: usize, live: &Live) {
        self.manners.begin(number, live);
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
        lock(&self.queue).begin(number, self.options.prefetch);
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
            lock(&self.fills).drop_window();
        }
        lock(&self.later).forget(|key| parts(key).is_some_and(|(of, _)| of == number));
        self.tell_index_gone(number);
        self.tell_extent();
        self.forget_round(number);
    }

    /// The segment with this number.
    #[must_use]
    pub fn segment(&self, number: usize) -> Option<Live> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).get(number)?.clone()
    }

    fn wake_all(&self) {
        self.ctl.ctl.demand.fetch_add(1, Ordering::SeqCst);
        futex_wake(&self.ctl.ctl.demand, u32::MAX >> 1);
        self.bell.ring();
    }

    /// One copier: works while there is work, then sleeps.
    fn copier(&self) {
        let ctl = self.ctl.ctl;
        loop {
            // Read before looking for work: whatever is asked for after that ends the sleep at once.
            let (seen, since) = (ctl.demand.load(Ordering::SeqCst), Instant::now());
            self.engines.threads.run(&InLane(self, Lane::Threads));
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.patiently(since, |patience| self.on_call.sleep(&ctl.demand, seen, &ctl.sleepers, patience));
        }
    }

    /// One ring: works while there is work, then sleeps until somebody rings.
    fn ring(&self) {
        let Some(uring) = &self.engines.uring else { return };
        loop {
            let (heard, since) = (self.bell.heard(), Instant::now());
            uring.run(&InLane(self, Lane::Rings));
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.patiently(since, |patience| self.bell.sleep(heard, patience));
        }
    }
}

/// The driver's files for one lane.
struct InLane<'a>(&'a Driver, Lane);

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
    driver: &'a Driver,
    key: u64,
    source: RequestSource,
    begun: Instant,
    /// Where it is counted beside those under way.
    counted: Option<&'a AtomicUsize>,
    /// Whether it takes something of what the PFS gives that nobody waits for.
    fetches_ahead: bool,
    /// Whether a packed copy is to be decoded that nobody waits for.
    decodes: bool,
    /// Whether it comes from another node.
    remote: bool,
    /// Whether a ring is to copy it.
    in_ring: bool,
}

impl<'a> Job<'a> {
    fn new(driver: &'a Driver, key: u64, source: RequestSource, remote: bool) -> Self {
        driver.under_way(remote).fetch_add(1, Ordering::AcqRel);
        let counted = driver.counted(source, remote);
        if let Some(count) = counted {
            count.fetch_add(1, Ordering::AcqRel);
        }
        let begun = Instant::now();
        Self { driver, key, source, begun, counted, fetches_ahead: false, decodes: false, remote, in_ring: false }
    }

    /// What a reader waits for is decoded: it is no demand on the PFS.
    fn is_decoding(&mut self) {
        if self.source == RequestSource::Demand
            && let Some(count) = self.counted.take()
        {
            count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if self.fetches_ahead {
            // Before the next one may begin.
            self.driver.press.had_its_turn();
        }
        if let Some(count) = self.counted {
            let before = count.fetch_sub(1, Ordering::AcqRel);
            if self.source == RequestSource::Demand {
                let now = Instant::now();
                self.driver.press.ended(before, now - self.begun, now);
            }
        }
        if self.decodes {
            self.driver.decoding.store(false, Ordering::Release);
        }
        let before = self.driver.under_way(self.remote).fetch_sub(1, Ordering::AcqRel);
        // A demand may have been left in line because everything was in use, or a prefetch because of a demand.
        let (more, most) = self.driver.most(self.remote);
        if more && before >= most {
            self.driver.wake(Lane::Threads);
        }
        if self.driver.rings_wait.swap(false, Ordering::SeqCst) {
            self.driver.wake(Lane::Rings);
        }
    }
}

/// Segment number and id of a file's key, if it can be one.
fn parts(key: u64) -> Option<(usize, u32)> {
    let number = usize::try_from(key >> 32).ok()?.checked_sub(1)?;
    Some((number, key as u32))
}
