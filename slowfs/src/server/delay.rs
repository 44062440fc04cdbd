//! Answers that wait for their deadline.
//!
//! A latency must not occupy a server thread: the answer goes into a heap ordered by deadline, and
//! a timer thread sends it. A timed wait of the kernel ends some tens of microseconds late. So the
//! wait ends early and the rest is spun, but only while few answers wait: with many in flight the
//! processor belongs to the clients. Two timer threads share the copying of large answers into the
//! kernel.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::lock::lock;
use crate::sys;

/// How long before a deadline the thread stops sleeping.
const SPIN_TIME: Duration = Duration::from_micros(80);
/// Waiting answers up to which spinning is worth its processor time.
const MAX_SPINNING_ANSWERS: usize = 4;
const TIMER_THREADS: usize = 2;

struct Waiting {
    due: Instant,
    send: Box<dyn FnOnce() + Send>,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    /// The earliest deadline is the greatest: `BinaryHeap` yields the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.due.cmp(&self.due)
    }
}

#[derive(Default)]
struct Lane {
    heap: Mutex<BinaryHeap<Waiting>>,
    earlier: Condvar,
}

/// The queue of answers that are not due yet.
pub(super) struct DelayQueue {
    lanes: [Arc<Lane>; TIMER_THREADS],
    next: AtomicUsize,
}

impl DelayQueue {
    /// Starts the threads; they end with the process.
    pub(super) fn start() -> io::Result<Self> {
        let lanes: [Arc<Lane>; TIMER_THREADS] = std::array::from_fn(|_| Arc::default());
        for lane in &lanes {
            let lane = Arc::clone(lane);
            thread::Builder::new().name("slowfs-delay".into()).spawn(move || lane.run())?;
        }
        Ok(Self { lanes, next: AtomicUsize::new(0) })
    }

    /// Calls `send` at `due`: in this thread when that has passed already.
    pub(super) fn send_at(&self, due: Instant, send: impl FnOnce() + Send + 'static) {
        if due <= Instant::now() {
            return send();
        }
        let lane = &self.lanes[self.next.fetch_add(1, Relaxed) % TIMER_THREADS];
        let mut heap = lock(&lane.heap);
        let first = heap.peek().is_none_or(|head| due < head.due);
        heap.push(Waiting { due, send: Box::new(send) });
        drop(heap);
        if first {
            lane.earlier.notify_one();
        }
    }
}

impl Lane {
    fn run(&self) {
        sys::precise_timers();
        let mut due = Vec::new();
        loop {
            self.collect(&mut due);
            for waiting in due.drain(..) {
                (waiting.send)();
            }
        }
    }

    /// Waits for the next deadline and takes out all answers that are due.
    fn collect(&self, due: &mut Vec<Waiting>) {
        let mut heap = lock(&self.heap);
        loop {
            let now = Instant::now();
            while heap.peek().is_some_and(|head| head.due <= now) {
                due.extend(heap.pop());
            }
            if !due.is_empty() {
                return;
            }
            let Some(head) = heap.peek() else {
                heap = self.earlier.wait(heap).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = head.due - now;
            let spin = if heap.len() <= MAX_SPINNING_ANSWERS { SPIN_TIME } else { Duration::ZERO };
            if left > spin {
                let waited = self.earlier.wait_timeout(heap, left - spin);
                heap = waited.unwrap_or_else(PoisonError::into_inner).0;
            } else {
                drop(heap);
                std::hint::spin_loop();
                heap = lock(&self.heap);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn answers_leave_in_order_and_not_early() -> io::Result<()> {
        let queue = DelayQueue::start()?;
        let (tx, rx) = mpsc::channel();
        let start = Instant::now();
        for ms in [30, 10, 20, 0] {
            let (tx, due) = (tx.clone(), start + Duration::from_millis(ms));
            queue.send_at(due, move || {
                let _ = tx.send((ms, Instant::now() >= due));
            });
        }
        let order: Vec<_> = rx.iter().take(4).collect();
        assert_eq!(order, [(0, true), (10, true), (20, true), (30, true)]);
        Ok(())
    }
}
