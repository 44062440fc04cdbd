//! The placement driver: takes demands before anything else, prefetches in the order of the index, asks the policy, has
//! the engine copy, verifies and publishes.
//!
//! Copiers are plain threads that sleep on the demand word of the control block, so that a reader's futex wake reaches the
//! thread that will do the copy without a hop in between. A demand and a prefetch of the same file meet in its state word:
//! whoever turns it to Fetching copies, everybody else waits (single-flight over threads, processes and jobs).

use crate::engine::{CopyEngine, CopyError, Limits, Marks, Source};
use crate::tier::TierDir;
use monarch_abi::control::{ControlMap, Inflight, RING};
use monarch_abi::demand::file_key;
use monarch_abi::hash::{CopyName, Identity, PathHash};
use monarch_abi::segment::{Entry, Segment};
use monarch_abi::sys::{futex_wait, futex_wake};
use monarch_abi::word::{State, Word};
use monarch_policies::{Candidate, Decision, Event, FileKey, Policy, RequestSource, TierRoom};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// A segment that the driver serves.
#[derive(Clone)]
pub struct Live {
    /// Index and state.
    pub segment: Segment<'static>,
    /// Where its files come from.
    pub source: Arc<dyn Source>,
    /// Whether the index was scanned by this agent; a loaded one is checked per file before a warm hit.
    pub fresh: bool,
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
    /// Copies adopted from an earlier run.
    pub adopted: AtomicU64,
    /// Files refused by policy or quota.
    pub refused: AtomicU64,
    /// Files found changed.
    pub changed: AtomicU64,
    /// Copies that failed on the PFS side.
    pub source_errors: AtomicU64,
    /// Copies that failed on the tier side.
    pub tier_errors: AtomicU64,
    /// Copies dropped for lack of space.
    pub evicted: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    demands: VecDeque<u64>,
    drained_at: u32,
    ring_tail: u64,
    retries: Vec<u64>,
    cursors: Vec<u32>,
    /// Segment in which the cursor moves.
    prefetching: usize,
}

/// A second try at a later time.
#[derive(Clone, Copy, Debug)]
struct Later {
    at: Instant,
    key: u64,
    word: Word,
}

/// See the module.
pub struct Driver {
    /// Shared memory.
    pub ctl: ControlMap<'static>,
    /// Fastest first.
    pub tiers: Vec<TierDir>,
    /// Figures for status and report.
    pub figures: Figures,
    options: DriverOptions,
    engine: Box<dyn CopyEngine>,
    limits: Arc<Limits>,
    policy: Mutex<Box<dyn Policy>>,
    segments: RwLock<Vec<Option<Live>>>,
    queue: Mutex<Queue>,
    later: Mutex<Vec<Later>>,
    /// Copies on disk that no entry has claimed yet.
    pub(crate) unclaimed: Mutex<HashMap<CopyName, usize>>,
    /// Resident copies in the order they were placed, for eviction under pressure.
    placed: Mutex<VecDeque<u64>>,
    prefetching: AtomicUsize,
    pace: Pace,
    stop: Arc<AtomicBool>,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("figures", &self.figures).finish_non_exhaustive()
    }
}

fn lock<T: ?Sized>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many prefetches may run at a time: all, halved while the PFS answers slowly.
#[derive(Debug)]
struct Pace {
    best_us: AtomicU64,
    recent_us: AtomicU64,
}

impl Pace {
    fn new() -> Self {
        Self { best_us: AtomicU64::new(u64::MAX), recent_us: AtomicU64::new(0) }
    }
    /// Takes note of how long the PFS took for the first byte of a file.
    fn note(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        self.best_us.fetch_min(us, Ordering::Relaxed);
        let old = self.recent_us.load(Ordering::Relaxed);
        self.recent_us.store((old * 15 + us) / 16, Ordering::Relaxed);
    }
    /// Divisor of the number of prefetches: 1, 2, 4 or 8 as latency exceeds its best by factors, and 50 ms in any case.
    fn divisor(&self) -> usize {
        let recent = self.recent_us.load(Ordering::Relaxed);
        let best = self.best_us.load(Ordering::Relaxed).max(1);
        match recent {
            0..50_000 => 1,
            r if r / best < 8 => 1,
            r if r / best < 16 => 2,
            r if r / best < 32 => 4,
            _ => 8,
        }
    }
}

/// A claimed place in the table of copies under way.
struct Mark<'a> {
    entry: Option<&'a Inflight>,
}

impl Marks for Mark<'_> {
    fn in_pfs(&self, inside: bool) {
        if let Some(e) = self.entry {
            e.in_pfs.store(u32::from(inside), Ordering::Relaxed);
        }
    }
    fn progress(&self) {
        if let Some(e) = self.entry {
            e.progress.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        if let Some(e) = self.entry {
            e.in_pfs.store(0, Ordering::Relaxed);
            e.file.store(0, Ordering::Release);
        }
    }
}

/// How a fetch ended.
enum Fetched {
    Resident(usize),
    /// Not now; try again after the pause, if any.
    Refused(Option<Duration>),
    Bypass,
    Stopped,
}

impl Driver {
    /// A driver without segments; [`Driver::run`] starts its copiers.
    #[must_use]
    pub fn new(
        ctl: ControlMap<'static>,
        tiers: Vec<TierDir>,
        engine: Box<dyn CopyEngine>,
        limits: Arc<Limits>,
        policy: Box<dyn Policy>,
        options: DriverOptions,
        stop: Arc<AtomicBool>,
    ) -> Self {
        Self {
            ctl,
            tiers,
            figures: Figures::default(),
            options,
            engine,
            limits,
            policy: Mutex::new(policy),
            segments: RwLock::default(),
            queue: Mutex::default(),
            later: Mutex::default(),
            unclaimed: Mutex::default(),
            placed: Mutex::default(),
            prefetching: AtomicUsize::new(0),
            pace: Pace::new(),
            stop,
        }
    }

    /// Name of the engine.
    #[must_use]
    pub fn engine(&self) -> &'static str {
        self.engine.name()
    }

    /// Name of the policy.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        lock(&self.policy).name()
    }

    /// Starts the copiers.
    pub fn run(self: &Arc<Self>) {
        for i in 0..self.options.max_inflight {
            let me = self.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("copier-{i}"))
                .stack_size(256 * 1024)
                .spawn(move || me.copier());
            if let Err(e) = spawned {
                tracing::warn!(copiers = i, error = %e, "fewer copiers than configured: the system allows no more threads");
                return;
            }
        }
    }

    /// Ends the copiers after their current copy.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.ctl.ctl.demand.fetch_add(1, Ordering::SeqCst);
        futex_wake(&self.ctl.ctl.demand, u32::MAX >> 1);
    }

    /// Adds or replaces the segment with this number, and prefetches it if asked to.
    pub fn add_segment(&self, number: usize, live: Live) {
        let mut segs = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        if segs.len() <= number {
            segs.resize(number + 1, None);
        }
        segs[number] = Some(live);
        drop(segs);
        let mut q = lock(&self.queue);
        if q.cursors.len() <= number {
            q.cursors.resize(number + 1, u32::MAX);
        }
        q.cursors[number] = if self.options.prefetch { 0 } else { u32::MAX };
        drop(q);
        self.wake(u32::MAX >> 1);
    }

    /// The segment with this number.
    #[must_use]
    pub fn segment(&self, number: usize) -> Option<Live> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).get(number)?.clone()
    }

    /// Numbers and segments in use.
    #[must_use]
    pub fn live_segments(&self) -> Vec<(usize, Live)> {
        let segs = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        segs.iter().enumerate().filter_map(|(i, s)| Some((i, s.clone()?))).collect()
    }

    fn wake(&self, n: u32) {
        self.ctl.ctl.demand.fetch_add(1, Ordering::SeqCst);
        futex_wake(&self.ctl.ctl.demand, n);
    }

    /// One copier: works while there is work, then sleeps on the demand word.
    fn copier(&self) {
        let ctl = self.ctl.ctl;
        loop {
            let seen = ctl.demand.load(Ordering::SeqCst);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            match self.next_job() {
                Some((key, RequestSource::Demand)) => self.fetch(key, RequestSource::Demand),
                Some((key, RequestSource::Prefetch)) => {
                    self.fetch(key, RequestSource::Prefetch);
                    self.prefetching.fetch_sub(1, Ordering::AcqRel);
                }
                None => {
                    ctl.sleepers.fetch_add(1, Ordering::SeqCst);
                    futex_wait(&ctl.demand, seen, None);
                    ctl.sleepers.fetch_sub(1, Ordering::SeqCst);
                }
            }
        }
    }

    /// Copiers that prefetching may use: some are kept free for demands.
    fn prefetch_slots(&self) -> usize {
        let all = self.options.max_inflight;
        let kept = (all / 8).clamp(1, 4).min(all.saturating_sub(1));
        let slots = all - kept;
        if self.options.backoff { (slots / self.pace.divisor()).max(1) } else { slots }
    }

    /// The next file to look at.
    fn next_job(&self) -> Option<(u64, RequestSource)> {
        let mut q = lock(&self.queue);
        let now = self.ctl.ctl.demand.load(Ordering::SeqCst);
        if q.drained_at != now {
            q.drained_at = now;
            self.drain(&mut q);
        }
        if let Some(key) = q.demands.pop_front() {
            if !q.demands.is_empty() {
                futex_wake(&self.ctl.ctl.demand, 1);
            }
            return Some((key, RequestSource::Demand));
        }
        if self.prefetching.load(Ordering::Acquire) >= self.prefetch_slots() {
            return None;
        }
        let key = self.next_prefetch(&mut q)?;
        self.prefetching.fetch_add(1, Ordering::AcqRel);
        Some((key, RequestSource::Prefetch))
    }

    /// Takes over all demands: in the order of the ring as far as it reaches, then whatever bits are left.
    fn drain(&self, q: &mut Queue) {
        let head = self.ctl.ctl.ring_head.load(Ordering::Acquire);
        let tail = q.ring_tail.max(head.saturating_sub(RING as u64));
        for at in tail..head {
            let key = self.ctl.ctl.ring.get(at as usize % RING).map_or(0, |r| r.swap(0, Ordering::AcqRel));
            if key != 0 {
                q.demands.push_back(key);
            }
        }
        q.ring_tail = head;
        // Bits of demands that the ring had, too, lead to a second look at a word that is no longer Wanted: harmless.
        let segs = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        for (number, live) in segs.iter().enumerate() {
            if let Some(live) = live {
                live.segment.state.drain(|id| q.demands.push_back(file_key(number, id)));
            }
        }
    }

    /// The next file in the order of the index that nobody has looked at.
    fn next_prefetch(&self, q: &mut Queue) -> Option<u64> {
        if let Some(key) = q.retries.pop() {
            return Some(key);
        }
        let segs = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        while q.prefetching < q.cursors.len() {
            let number = q.prefetching;
            if let Some(live) = segs.get(number).and_then(Option::as_ref) {
                let n = live.segment.index.len() as u32;
                while q.cursors[number] < n {
                    let id = q.cursors[number];
                    q.cursors[number] += 1;
                    if live.segment.index.record(id).is_some_and(monarch_abi::index::Record::is_file) {
                        return Some(file_key(number, id));
                    }
                }
            }
            q.prefetching += 1;
        }
        // A segment that came later, or starts again, has its cursor behind us.
        if let Some(number) = q.cursors.iter().enumerate().position(|(i, &c)| {
            segs.get(i).and_then(Option::as_ref).is_some_and(|l| (c as usize) < l.segment.index.len())
        }) {
            q.prefetching = number;
            drop(segs);
            return self.next_prefetch(q);
        }
        None
    }

    /// Looks at one file: claims it, copies it, says how it ended.
    fn fetch(&self, key: u64, source: RequestSource) {
        let (number, id) = ((key >> 32) as usize - 1, key as u32);
        let Some(live) = self.segment(number) else { return };
        let mut path = [0u8; monarch_abi::PATH_MAX];
        let Some(len) = live.segment.index.path(id, &mut path) else { return };
        let Some(entry) = path.get(..len).and_then(|p| live.segment.lookup(p)) else { return };
        let rel = path.get(..len).unwrap_or(&[]);
        if !core::ptr::eq(entry.slot, entry.master) {
            // A further name of an inode whose word lies elsewhere: that one is (or was) looked at.
            return;
        }
        let before = entry.word();
        let claim = match (before.state(), source) {
            (State::Wanted, _) | (State::Absent, RequestSource::Prefetch) => before.with(State::Fetching),
            (State::Bypass, _) => return self.drop_copies(&live.segment, &entry),
            _ => return,
        };
        let word = &entry.master.word;
        if word.compare_exchange(before.0, claim.0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            if source == RequestSource::Demand || Word(word.load(Ordering::Acquire)).state() == State::Wanted {
                // A prefetch lost against the demand for the same file: serve the demand.
                self.fetch(key, RequestSource::Demand);
            }
            return;
        }
        let end = self.claimed(&live, &entry, rel, key, source);
        self.conclude(&entry, claim, key, end, source);
    }

    /// Writes the outcome into the state word and wakes everybody who waits.
    fn conclude(&self, entry: &Entry<'static>, claim: Word, key: u64, end: Fetched, source: RequestSource) {
        let word = &entry.master.word;
        let (to, retry) = match end {
            Fetched::Resident(tier) => (claim.resident(tier), None),
            Fetched::Refused(retry) => (claim.next(State::Refused), retry),
            Fetched::Bypass => (claim.next(State::Bypass), None),
            Fetched::Stopped => (claim.next(State::Absent), None),
        };
        let published = word.compare_exchange(claim.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok();
        futex_wake(word, u32::MAX >> 1);
        match end {
            Fetched::Resident(tier) if published => {
                let done =
                    if source == RequestSource::Demand { &self.figures.demanded } else { &self.figures.prefetched };
                done.fetch_add(1, Ordering::Relaxed);
                lock(&self.placed).push_back(key);
                lock(&self.policy).event(&Event::Placed { file: FileKey(key), tier });
            }
            // Bypassed while it was being copied: nobody will ever open the copy.
            Fetched::Resident(_) => {
                if let Some(live) = self.segment((key >> 32) as usize - 1) {
                    self.drop_copies(&live.segment, entry);
                }
            }
            Fetched::Refused(_) => {
                self.figures.refused.fetch_add(1, Ordering::Relaxed);
            }
            Fetched::Bypass => {
                self.figures.changed.fetch_add(1, Ordering::Relaxed);
            }
            Fetched::Stopped => {}
        }
        if let Some(pause) = retry {
            lock(&self.later).push(Later { at: Instant::now() + pause, key, word: to });
        }
    }

    /// Removes the copies of a file that must not be used any more.
    fn drop_copies(&self, segment: &Segment<'static>, entry: &Entry<'static>) {
        let name = segment.copy_name(entry);
        for tier in &self.tiers {
            tier.evict(name);
        }
    }

    /// Copies a claimed file.
    fn claimed(&self, live: &Live, e: &Entry<'static>, rel: &[u8], key: u64, source: RequestSource) -> Fetched {
        let want = e.record.identity();
        if let Some(pause) = self.unsettled(&want) {
            return Fetched::Refused(Some(pause));
        }
        let mark = self.mark(key);
        let name = live.segment.copy_name(e);
        if let Some(tier) = lock(&self.unclaimed).remove(&name) {
            match self.adopt(live, rel, &want, name, tier, &mark) {
                Some(end) => return end,
                None => self.tiers.iter().for_each(|t| t.evict(name)),
            }
        }
        let hash = PathHash { fp: e.master.fp, check: e.record.check };
        let mut skip = vec![false; self.tiers.len()];
        loop {
            let Decision::Admit(at) = self.decide(key, &want, source, &skip) else {
                let transient = skip.iter().any(|&s| s) || self.tiers.iter().any(TierDir::resting);
                return Fetched::Refused(transient.then_some(Duration::from_secs(5)));
            };
            let Some(tier) = self.tiers.get(at) else { return Fetched::Refused(None) };
            skip[at] = true;
            match self.copy_into(tier, live, rel, &want, name, hash, &mark) {
                Ok(Some(bytes)) => {
                    self.figures.bytes.fetch_add(bytes, Ordering::Relaxed);
                    return Fetched::Resident(at);
                }
                Ok(None) => {}
                Err(CopyError::Sink(e)) => {
                    self.figures.tier_errors.fetch_add(1, Ordering::Relaxed);
                    tier.note_failure();
                    tracing::warn!(tier = tier.name, error = %e, "a copy could not be written; the tier rests for 5 s");
                }
                Err(e) => return self.failed(&e, rel),
            }
        }
    }

    /// What a failure on the PFS side means for the file.
    fn failed(&self, e: &CopyError, rel: &[u8]) -> Fetched {
        let name = String::from_utf8_lossy(rel);
        match e {
            CopyError::Stopped => Fetched::Stopped,
            CopyError::Changed => {
                tracing::info!(file = %name, "changed since it was indexed; left to the PFS");
                Fetched::Bypass
            }
            CopyError::Source(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
                tracing::info!(file = %name, error = %e, "left to the PFS");
                Fetched::Bypass
            }
            CopyError::Source(e) | CopyError::Sink(e) => {
                self.figures.source_errors.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(file = %name, error = %e, "the PFS failed; next try in 5 s");
                Fetched::Refused(Some(Duration::from_secs(5)))
            }
        }
    }

    /// How long until a file that was changed a moment ago may be copied.
    fn unsettled(&self, id: &Identity) -> Option<Duration> {
        let age = crate::index::now_ns().saturating_sub(id.mtime_ns.max(id.ctime_ns));
        let settle = i64::try_from(self.options.settle.as_nanos()).unwrap_or(i64::MAX);
        // Times far in the future are clocks that disagree, not fresh changes.
        let recent = age < settle && age > -60_000_000_000;
        recent.then(|| Duration::from_nanos(u64::try_from(settle - age).unwrap_or(0)) + Duration::from_millis(1))
    }

    fn decide(&self, key: u64, id: &Identity, source: RequestSource, skip: &[bool]) -> Decision {
        let rooms: Vec<TierRoom> = self
            .tiers
            .iter()
            .zip(skip)
            .map(|(t, &skip)| {
                let u = t.ledger.usage();
                let free = u.capacity.saturating_sub(u.used + u.reserved);
                TierRoom { cost: t.ledger.cost(id.size), free, usable: !skip && !t.resting() }
            })
            .collect();
        lock(&self.policy).place(&Candidate { file: FileKey(key), size: id.size, source }, &rooms)
    }

    /// Copies into one tier: reserve, read, compare identities, publish. `Ok(None)` when it does not fit after all.
    #[expect(clippy::too_many_arguments, reason = "the parts of one copy")]
    fn copy_into(
        &self,
        tier: &TierDir,
        live: &Live,
        rel: &[u8],
        want: &Identity,
        name: CopyName,
        hash: PathHash,
        mark: &Mark<'_>,
    ) -> Result<Option<u64>, CopyError> {
        let Some(file) = self.room(tier, want.size).map_err(CopyError::Sink)? else { return Ok(None) };
        self.limits.before_call(0);
        let start = Instant::now();
        mark.in_pfs(true);
        let from = live.source.open(rel);
        mark.in_pfs(false);
        let from = from.map_err(CopyError::Source)?;
        mark.progress();
        let copied = self.engine.copy(from.as_ref(), &file, want.size, mark)?;
        self.pace.note(start.elapsed());
        mark.in_pfs(true);
        let after = from.identity_now();
        mark.in_pfs(false);
        mark.progress();
        if after.map_err(CopyError::Source)? != *want {
            return Err(CopyError::Changed);
        }
        match file.publish(name, name.stamp(hash)) {
            Ok(Some(_)) => Ok(Some(copied.bytes)),
            Ok(None) => Ok(None),
            Err(e) => Err(CopyError::Sink(e)),
        }
    }

    /// Room for a copy; copies of an earlier run that nobody claims make way.
    fn room<'a>(&self, tier: &'a TierDir, size: u64) -> io::Result<Option<crate::tier::CopyFile<'a>>> {
        loop {
            if let Some(file) = tier.create(size)? {
                return Ok(Some(file));
            }
            let at = self.tiers.iter().position(|t| std::ptr::eq(t, tier));
            let mut unclaimed = lock(&self.unclaimed);
            let Some(name) = unclaimed.iter().find(|(_, t)| Some(**t) == at).map(|(n, _)| *n) else { return Ok(None) };
            unclaimed.remove(&name);
            tier.evict(name);
        }
    }

    /// Takes over a copy that an earlier run left, if the file on the PFS is still the one it was made of.
    fn adopt(
        &self,
        live: &Live,
        rel: &[u8],
        want: &Identity,
        name: CopyName,
        tier: usize,
        mark: &Mark<'_>,
    ) -> Option<Fetched> {
        let copy = self.tiers.get(tier)?.stat(name)?;
        if copy.size != want.size {
            return None;
        }
        if !live.fresh {
            mark.in_pfs(true);
            let now = live.source.identity(rel);
            mark.in_pfs(false);
            match now {
                Ok(id) if id == *want => {}
                Ok(_) => return Some(Fetched::Bypass),
                Err(e) => return Some(self.failed(&CopyError::Source(e), rel)),
            }
        }
        self.figures.adopted.fetch_add(1, Ordering::Relaxed);
        Some(Fetched::Resident(tier))
    }

    /// Claims a place in the table of copies under way; without one readers just see no progress marks.
    fn mark(&self, key: u64) -> Mark<'static> {
        let entry = self.ctl.ctl.inflight.iter().find(|i| {
            i.file.load(Ordering::Relaxed) == 0
                && i.file.compare_exchange(0, key, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        Mark { entry }
    }

    /// Puts files whose pause is over back to Absent, so that demand and prefetch see them again.
    pub fn second_tries(&self) {
        let now = Instant::now();
        let mut later = lock(&self.later);
        let due: Vec<Later> = later.iter().filter(|l| l.at <= now).copied().collect();
        if due.is_empty() {
            return;
        }
        later.retain(|l| l.at > now);
        drop(later);
        let mut again = Vec::new();
        for l in due {
            let Some(live) = self.segment((l.key >> 32) as usize - 1) else { continue };
            let Some(entry) = live.segment.by_id(l.key as u32) else { continue };
            let to = l.word.next(State::Absent);
            if entry.master.word.compare_exchange(l.word.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                again.push(l.key);
            }
        }
        if self.options.prefetch && !again.is_empty() {
            lock(&self.queue).retries.extend(again);
            self.wake(u32::MAX >> 1);
        }
    }

    /// Drops the copies placed last from a tier until about `bytes` are free again; how many were dropped.
    pub fn shrink(&self, tier: usize, mut bytes: u64) -> usize {
        let Some(dir) = self.tiers.get(tier) else { return 0 };
        let mut dropped = 0;
        let mut kept = Vec::new();
        while bytes > 0 {
            let Some(key) = lock(&self.placed).pop_back() else { break };
            let Some(live) = self.segment((key >> 32) as usize - 1) else { continue };
            let Some(entry) = live.segment.by_id(key as u32) else { continue };
            let w = entry.word();
            if w.state() != State::Resident {
                continue;
            }
            if w.tier() != tier {
                kept.push(key);
                continue;
            }
            let to = w.next(State::Refused);
            if entry.master.word.compare_exchange(w.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                dir.evict(live.segment.copy_name(&entry));
                bytes = bytes.saturating_sub(dir.ledger.cost(entry.record.size));
                dropped += 1;
                self.figures.evicted.fetch_add(1, Ordering::Relaxed);
                lock(&self.policy).event(&Event::Dropped { file: FileKey(key) });
                lock(&self.later).push(Later { at: Instant::now() + Duration::from_secs(30), key, word: to });
            }
        }
        lock(&self.placed).extend(kept.into_iter().rev());
        dropped
    }

    /// Takes note of copies that were resident before this agent started.
    pub fn note_placed(&self, keys: impl Iterator<Item = u64>) {
        lock(&self.placed).extend(keys);
    }
}
