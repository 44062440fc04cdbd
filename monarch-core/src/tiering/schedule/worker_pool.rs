//! [`WorkerPool`]: how many copiers there are, and which of them are without work.
//!
//! Copiers are started as they are needed, and end when they had nothing to do for a while. While
//! there are less than the limit, one of them always has nothing to do: it waits for demands. The
//! copier that takes work and leaves none waiting calls another one, or has one started.
//!
//! The kernel wakes the sleepers on a futex in the order in which they came. If all copiers slept
//! on the demand word, each demand would go to the copier that has slept longest, whose stack and
//! buffer are in no cache. So only [`MAX_ON_CALL`] sleep there. Of those at rest the one that came
//! last is called first.

use crate::sync::lock;
use crate::sys::timespec;
use monarch_abi::sys::futex_wait;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Copiers that sleep on the demand word.
const MAX_ON_CALL: usize = 4;
/// Copiers that are never ended: one for a demand, and one that waits for the next.
const MIN_COPIERS: usize = 2;
/// Time without work after which a copier ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a copier does after a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// It looks for work.
    ToWork,
    /// It ends: there was none for a while, and others are left.
    ToEnd,
}

/// The copiers.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    /// Copiers at most.
    limit: usize,
    idle_timeout: Duration,
    copiers: Mutex<Copiers>,
    /// [`Copiers::on_call`], to be read without the lock.
    on_call: AtomicUsize,
    /// Copiers that can be called or started, to be read without the lock.
    spare: AtomicUsize,
}

#[derive(Debug, Default)]
struct Copiers {
    /// All that were started and have not ended.
    running: usize,
    /// Those that sleep on the demand word.
    on_call: usize,
    at_rest: Vec<Arc<AtRest>>,
}

/// A copier that does not wait for demands.
#[derive(Debug)]
struct AtRest {
    thread: Thread,
    is_called: AtomicBool,
}

impl AtRest {
    fn call(&self) {
        self.is_called.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl WorkerPool {
    /// A pool of `limit` copiers at most, at least one.
    pub(crate) fn new(limit: usize) -> Self {
        Self::with_timeout(limit, IDLE_TIMEOUT)
    }

    fn with_timeout(limit: usize, idle_timeout: Duration) -> Self {
        let limit = limit.max(1);
        let (on_call, spare) = (AtomicUsize::new(0), AtomicUsize::new(limit));
        Self { limit, idle_timeout, copiers: Mutex::default(), on_call, spare }
    }

    /// After each change of the copiers, with the lock held.
    fn note(&self, copiers: &Copiers) {
        self.on_call.store(copiers.on_call, Ordering::SeqCst);
        self.spare.store(copiers.at_rest.len() + self.limit.saturating_sub(copiers.running), Ordering::SeqCst);
    }

    /// Whether another copier is to be started because there are too few for any work. It counts as
    /// started from now on.
    pub(crate) fn needs_one(&self) -> bool {
        let mut copiers = lock(&self.copiers);
        let needed = copiers.running < MIN_COPIERS.min(self.limit);
        copiers.running += usize::from(needed);
        self.note(&copiers);
        needed
    }

    /// Whether another copier is to be started because none hears the next demand though there may
    /// be more: one could not be started when it was needed. It counts as started from now on.
    pub(crate) fn lacks_listener(&self) -> bool {
        let mut copiers = lock(&self.copiers);
        let lacks = copiers.on_call == 0 && copiers.at_rest.is_empty() && copiers.running < self.limit;
        copiers.running += usize::from(lacks);
        self.note(&copiers);
        lacks
    }

    /// A copier has taken work. Where none waits for the next demand, one is called. Whether one is
    /// to be started instead, which counts as started from now on.
    pub(crate) fn took_work(&self) -> bool {
        if self.on_call.load(Ordering::SeqCst) > 0 || self.spare.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut copiers = lock(&self.copiers);
        if copiers.on_call > 0 {
            return false;
        }
        let next = copiers.at_rest.pop();
        let starts = next.is_none() && copiers.running < self.limit;
        copiers.running += usize::from(starts);
        self.note(&copiers);
        drop(copiers);
        if let Some(next) = next {
            next.call();
        }
        starts
    }

    /// A copier that counts as started could not be.
    pub(crate) fn was_not_started(&self) {
        let mut copiers = lock(&self.copiers);
        copiers.running = copiers.running.saturating_sub(1);
        self.note(&copiers);
    }

    /// Sleeps until there may be work, for `patience` at most. `seen` is the demand word as it was
    /// before the caller looked for work; `sleepers` counts the copiers on call.
    pub(crate) fn sleep(
        &self,
        demand: &AtomicU32,
        seen: u32,
        sleepers: &AtomicU32,
        patience: Option<Duration>,
    ) -> Woken {
        let mut copiers = lock(&self.copiers);
        // The last ones sleep without a time.
        let longest = (copiers.running > MIN_COPIERS).then_some(self.idle_timeout);
        let time = patience.into_iter().chain(longest).min();
        let since = Instant::now();
        let mut had_nothing = false;
        if copiers.on_call < MAX_ON_CALL {
            copiers.on_call += 1;
            self.note(&copiers);
            drop(copiers);
            sleepers.fetch_add(1, Ordering::SeqCst);
            futex_wait(demand, seen, time.map(timespec));
            sleepers.fetch_sub(1, Ordering::SeqCst);
            copiers = lock(&self.copiers);
            copiers.on_call -= 1;
            had_nothing = demand.load(Ordering::SeqCst) == seen;
        } else if demand.load(Ordering::SeqCst) == seen {
            let me = Arc::new(AtRest { thread: std::thread::current(), is_called: AtomicBool::new(false) });
            copiers.at_rest.push(me.clone());
            self.note(&copiers);
            drop(copiers);
            rest(&me, time);
            copiers = lock(&self.copiers);
            copiers.at_rest.retain(|one| !Arc::ptr_eq(one, &me));
            // (Demands are heard by those on call.)
            had_nothing = !me.is_called.load(Ordering::Acquire);
        }
        let was_idle = had_nothing && since.elapsed() >= self.idle_timeout;
        // One copier has to hear the next demand.
        if longest.is_some() && was_idle && copiers.on_call > 0 && copiers.running > MIN_COPIERS {
            copiers.running -= 1;
            self.note(&copiers);
            return Woken::ToEnd;
        }
        // Whatever happens to the caller. A copier that finds no work stays on call.
        let next = if copiers.on_call == 0 { copiers.at_rest.pop() } else { None };
        self.note(&copiers);
        drop(copiers);
        if let Some(next) = next {
            next.call();
        }
        Woken::ToWork
    }

    /// Wakes all copiers at rest.
    pub(crate) fn call_all(&self) {
        let mut copiers = lock(&self.copiers);
        let all = std::mem::take(&mut copiers.at_rest);
        self.note(&copiers);
        drop(copiers);
        all.iter().for_each(|one| one.call());
    }
}

/// Sleeps until it is called, for `time` at most.
fn rest(me: &AtRest, time: Option<Duration>) {
    let since = Instant::now();
    while !me.is_called.load(Ordering::Acquire) {
        match time.map(|time| time.saturating_sub(since.elapsed())) {
            None => std::thread::park(),
            Some(left) if left.is_zero() => break,
            Some(left) => std::thread::park_timeout(left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monarch_abi::sys::futex_wake;

    const COPIERS: usize = 16;
    /// Longer than any test.
    const NEVER: Duration = Duration::from_secs(600);

    /// What copiers share with readers.
    struct Office {
        pool: WorkerPool,
        demand: AtomicU32,
        sleepers: AtomicU32,
        /// Requests that no copier has taken.
        wanted: AtomicUsize,
        done: AtomicUsize,
        over: AtomicBool,
        /// Whether copiers wait at each request.
        held: AtomicBool,
        busy: AtomicUsize,
        /// Copiers that were started, and that have ended.
        started: AtomicUsize,
        ended: AtomicUsize,
        /// Whether the system starts no threads.
        is_short: AtomicBool,
    }

    impl Office {
        fn new(idle_timeout: Duration) -> Self {
            let pool = WorkerPool::with_timeout(COPIERS, idle_timeout);
            let count = || AtomicUsize::new(0);
            let word = || AtomicU32::new(0);
            let flag = || AtomicBool::new(false);
            Self {
                pool,
                demand: word(),
                sleepers: word(),
                wanted: count(),
                done: count(),
                over: flag(),
                held: flag(),
                busy: count(),
                started: count(),
                ended: count(),
                is_short: flag(),
            }
        }

        fn start<'s>(&'s self, scope: &'s std::thread::Scope<'s, '_>) {
            if self.is_short.load(Ordering::SeqCst) {
                return self.pool.was_not_started();
            }
            self.started.fetch_add(1, Ordering::SeqCst);
            scope.spawn(|| {
                self.copier(scope);
                self.ended.fetch_add(1, Ordering::SeqCst);
            });
        }

        fn copier<'s>(&'s self, scope: &'s std::thread::Scope<'s, '_>) {
            loop {
                let seen = self.demand.load(Ordering::SeqCst);
                while self.wanted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
                    if self.pool.took_work() {
                        self.start(scope);
                    }
                    self.busy.fetch_add(1, Ordering::SeqCst);
                    while self.held.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    self.busy.fetch_sub(1, Ordering::SeqCst);
                    self.done.fetch_add(1, Ordering::SeqCst);
                }
                if self.over.load(Ordering::SeqCst)
                    || self.pool.sleep(&self.demand, seen, &self.sleepers, None) == Woken::ToEnd
                {
                    return;
                }
            }
        }

        /// Makes a request as readers do.
        fn want(&self) {
            self.wanted.fetch_add(1, Ordering::SeqCst);
            self.demand.fetch_add(1, Ordering::SeqCst);
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                futex_wake(&self.demand, 1);
            }
        }

        fn end(&self) {
            self.held.store(false, Ordering::SeqCst);
            self.over.store(true, Ordering::SeqCst);
            self.demand.fetch_add(1, Ordering::SeqCst);
            futex_wake(&self.demand, u32::MAX >> 1);
            self.pool.call_all();
        }

        fn running(&self) -> usize {
            self.started.load(Ordering::SeqCst) - self.ended.load(Ordering::SeqCst)
        }

        fn until(&self, what: &str, done: impl Fn() -> bool) {
            let start = Instant::now();
            while !done() {
                assert!(start.elapsed() < Duration::from_secs(30), "{what}: {:?}", self.pool);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Ends the copiers when a test fails, too: its threads are waited for.
    struct End<'o>(&'o Office);

    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.end();
        }
    }

    /// `work` gets what starts another copier.
    fn at_work(idle_timeout: Duration, work: impl FnOnce(&Office, &dyn Fn())) {
        let office = Office::new(idle_timeout);
        std::thread::scope(|scope| {
            while office.pool.needs_one() {
                office.start(scope);
            }
            let _end = End(&office);
            office.until("all asleep", || lock(&office.pool.copiers).on_call == MIN_COPIERS);
            work(&office, &|| office.start(scope));
        });
    }

    #[test]
    fn as_many_are_started_as_are_busy_and_one_that_waits() {
        at_work(NEVER, |office, _| {
            office.held.store(true, Ordering::SeqCst);
            for n in 1..=COPIERS {
                office.want();
                office.until("a free copier", || office.busy.load(Ordering::SeqCst) == n);
                office.until("one that waits", || office.running() == (n + 1).min(COPIERS));
            }
        });
    }

    #[test]
    fn one_demand_after_the_other_starts_none() {
        at_work(NEVER, |office, _| {
            for n in 1..=500 {
                office.want();
                office.until("done", || office.done.load(Ordering::SeqCst) == n);
                office.until("asleep", || lock(&office.pool.copiers).on_call == office.running());
            }
            assert!(office.running() <= MIN_COPIERS + 1, "{:?}", office.pool);
        });
    }

    #[test]
    fn all_are_sent_for_at_once() {
        at_work(NEVER, |office, _| {
            office.held.store(true, Ordering::SeqCst);
            (0..COPIERS).for_each(|_| office.want());
            office.until("all copiers", || office.busy.load(Ordering::SeqCst) == COPIERS);
        });
    }

    #[test]
    fn nothing_is_left_lying() {
        // Short enough that copiers end all the time.
        for idle_timeout in [NEVER, Duration::from_micros(50)] {
            at_work(idle_timeout, |office, _| {
                std::thread::scope(|s| {
                    for _ in 0..4 {
                        s.spawn(|| {
                            for n in 0..5000 {
                                office.want();
                                if n % 50 == 0 {
                                    std::thread::sleep(Duration::from_micros(300));
                                }
                            }
                        });
                    }
                });
                office.until("all of it", || office.done.load(Ordering::SeqCst) == 20_000);
            });
        }
    }

    #[test]
    fn those_without_work_end_and_the_last_ones_hear_the_next_demand() {
        at_work(Duration::from_millis(30), |office, _| {
            for round in 1..=3 {
                office.held.store(true, Ordering::SeqCst);
                (0..COPIERS).for_each(|_| office.want());
                office.until("all copiers", || office.busy.load(Ordering::SeqCst) == COPIERS);
                office.held.store(false, Ordering::SeqCst);
                office.until("few", || office.running() == MIN_COPIERS);
                std::thread::sleep(Duration::from_millis(100));
                assert_eq!((office.running(), lock(&office.pool.copiers).on_call), (MIN_COPIERS, MIN_COPIERS));
                assert_eq!(office.done.load(Ordering::SeqCst), round * COPIERS);
            }
        });
    }

    #[test]
    fn where_no_thread_can_be_started_the_others_do_the_work_and_one_is_tried_again() {
        at_work(NEVER, |office, start| {
            office.is_short.store(true, Ordering::SeqCst);
            (0..100).for_each(|_| office.want());
            office.until("all of it", || office.done.load(Ordering::SeqCst) == 100);
            // Both are busy, and none hears the next demand.
            office.held.store(true, Ordering::SeqCst);
            (0..COPIERS).for_each(|_| office.want());
            office.until("both busy", || office.busy.load(Ordering::SeqCst) == MIN_COPIERS);
            assert!(office.pool.lacks_listener());
            office.pool.was_not_started();
            office.is_short.store(false, Ordering::SeqCst);
            assert!(office.pool.lacks_listener());
            start();
            office.until("all copiers", || office.busy.load(Ordering::SeqCst) == COPIERS);
            assert!(!office.pool.lacks_listener(), "no more than the limit");
        });
    }

    #[test]
    fn those_at_rest_end_while_others_hear_demands() {
        at_work(Duration::from_millis(60), |office, _| {
            office.held.store(true, Ordering::SeqCst);
            (0..COPIERS).for_each(|_| office.want());
            office.until("all copiers", || office.busy.load(Ordering::SeqCst) == COPIERS);
            office.held.store(false, Ordering::SeqCst);
            office.until("done", || office.done.load(Ordering::SeqCst) == COPIERS);
            let start = Instant::now();
            while office.running() > MAX_ON_CALL {
                assert!(start.elapsed() < Duration::from_secs(20), "{:?}", office.pool);
                office.want();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
    }

    /// Found by a review: a copier that came when enough were on call slept until it was called.
    #[test]
    fn no_copier_sleeps_longer_than_its_patience() {
        let office = Office::new(NEVER);
        let patience = Some(Duration::from_millis(20));
        std::thread::scope(|scope| {
            for _ in 0..2 * MAX_ON_CALL {
                scope.spawn(|| office.pool.sleep(&office.demand, 0, &office.sleepers, patience));
            }
        });
        let left = lock(&office.pool.copiers);
        assert_eq!((left.on_call, left.at_rest.len()), (0, 0));
    }
}
