//! [`WorkerPool`]: copiers without work: a few wait for demands, all others rest until one of those
//! is busy.
//!
//! The kernel wakes the sleepers on a futex in the order in which they came. If all copiers slept
//! on the demand word, each demand would go to the copier that has slept longest, whose stack and
//! buffer are in no cache. So only [`MAX_ON_CALL`] sleep there. The last one that leaves calls
//! another; of those at rest the one that came last is called first.

use crate::sync::lock;
use crate::sys::timespec;
use monarch_abi::sys::futex_wait;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Copiers that sleep on the demand word.
const MAX_ON_CALL: usize = 4;

/// The copiers that sleep.
#[derive(Debug, Default)]
pub(crate) struct WorkerPool(Mutex<Asleep>);

#[derive(Debug, Default)]
struct Asleep {
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
    /// Sleeps until there may be work, for `patience` at most. `seen` is the demand word as it was
    /// before the caller looked for work; `sleepers` counts the copiers on call.
    pub(crate) fn sleep(&self, demand: &AtomicU32, seen: u32, sleepers: &AtomicU32, patience: Option<Duration>) {
        let mut asleep = lock(&self.0);
        if asleep.on_call < MAX_ON_CALL {
            asleep.on_call += 1;
            drop(asleep);
            sleepers.fetch_add(1, Ordering::SeqCst);
            futex_wait(demand, seen, patience.map(timespec));
            sleepers.fetch_sub(1, Ordering::SeqCst);
            asleep = lock(&self.0);
            asleep.on_call -= 1;
        } else if demand.load(Ordering::SeqCst) == seen {
            let me = Arc::new(AtRest { thread: std::thread::current(), is_called: AtomicBool::new(false) });
            asleep.at_rest.push(me.clone());
            drop(asleep);
            let since = Instant::now();
            let left = || patience.map(|patience| patience.saturating_sub(since.elapsed()));
            while !me.is_called.load(Ordering::Acquire) {
                match left() {
                    None => std::thread::park(),
                    Some(left) if left.is_zero() => break,
                    Some(left) => std::thread::park_timeout(left),
                }
            }
            asleep = lock(&self.0);
            asleep.at_rest.retain(|one| !Arc::ptr_eq(one, &me));
        }
        // One copier has to hear the next demand, whatever happens to the caller. A copier that
        // finds no work stays on call.
        let next = if asleep.on_call == 0 { asleep.at_rest.pop() } else { None };
        drop(asleep);
        if let Some(next) = next {
            next.call();
        }
    }

    /// Wakes all copiers at rest.
    pub(crate) fn call_all(&self) {
        let all = std::mem::take(&mut lock(&self.0).at_rest);
        all.iter().for_each(|one| one.call());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monarch_abi::sys::futex_wake;
    use std::sync::atomic::AtomicUsize;

    const COPIERS: usize = 16;

    /// What copiers share with readers.
    #[derive(Default)]
    struct Office {
        on_call: WorkerPool,
        demand: AtomicU32,
        sleepers: AtomicU32,
        /// Requests that no copier has taken.
        wanted: AtomicUsize,
        done: AtomicUsize,
        over: AtomicBool,
        /// Whether copiers wait at each request.
        held: AtomicBool,
        busy: AtomicUsize,
    }

    impl Office {
        fn copier(&self) {
            loop {
                let seen = self.demand.load(Ordering::SeqCst);
                while self.wanted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
                    self.busy.fetch_add(1, Ordering::SeqCst);
                    while self.held.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    self.busy.fetch_sub(1, Ordering::SeqCst);
                    self.done.fetch_add(1, Ordering::SeqCst);
                }
                if self.over.load(Ordering::SeqCst) {
                    return;
                }
                self.on_call.sleep(&self.demand, seen, &self.sleepers, None);
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
            self.over.store(true, Ordering::SeqCst);
            self.demand.fetch_add(1, Ordering::SeqCst);
            futex_wake(&self.demand, u32::MAX >> 1);
            self.on_call.call_all();
        }

        fn until(&self, what: &str, done: impl Fn() -> bool) {
            let start = Instant::now();
            while !done() {
                assert!(start.elapsed() < Duration::from_secs(30), "{what}: {:?}", lock(&self.on_call.0));
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn at_work(work: impl FnOnce(&Office)) {
        let office = Office::default();
        std::thread::scope(|s| {
            (0..COPIERS).for_each(|_| drop(s.spawn(|| office.copier())));
            let all = || {
                let asleep = lock(&office.on_call.0);
                (asleep.on_call, asleep.at_rest.len()) == (MAX_ON_CALL, COPIERS - MAX_ON_CALL)
            };
            office.until("all asleep", all);
            work(&office);
            office.held.store(false, Ordering::SeqCst);
            office.end();
        });
    }

    #[test]
    fn all_are_sent_for_while_those_on_call_are_busy() {
        at_work(|office| {
            office.held.store(true, Ordering::SeqCst);
            for n in 1..=COPIERS {
                office.want();
                office.until("a free copier", || office.busy.load(Ordering::SeqCst) == n);
            }
        });
    }

    #[test]
    fn all_are_sent_for_at_once() {
        at_work(|office| {
            office.held.store(true, Ordering::SeqCst);
            (0..COPIERS).for_each(|_| office.want());
            office.until("all copiers", || office.busy.load(Ordering::SeqCst) == COPIERS);
        });
    }

    #[test]
    fn nothing_is_left_lying() {
        at_work(|office| {
            std::thread::scope(|s| {
                for _ in 0..4 {
                    s.spawn(|| (0..5000).for_each(|_| office.want()));
                }
            });
            office.until("all of it", || office.done.load(Ordering::SeqCst) == 20_000);
        });
    }

    /// Found by a review: a copier that came when enough were on call slept until it was called.
    #[test]
    fn nobody_sleeps_longer_than_its_patience() {
        let office = Office::default();
        let patience = Some(Duration::from_millis(20));
        std::thread::scope(|scope| {
            for _ in 0..2 * MAX_ON_CALL {
                scope.spawn(|| office.on_call.sleep(&office.demand, 0, &office.sleepers, patience));
            }
        });
        let left = lock(&office.on_call.0);
        assert_eq!((left.on_call, left.at_rest.len()), (0, 0));
    }
}
