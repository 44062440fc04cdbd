//! How an agent ends, and the jobs that it depends on.

use super::counter_groups::CounterGroups;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::signal::unix::Signal;
use tokio::sync::Notify;

/// How an agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// For good: on request, or because no job is left. Nothing stays in memory.
    Quit,
    /// For another agent that starts from scratch, with the copies.
    Renew,
    /// For another agent that takes over everything.
    Yield,
}

/// Jobs of an agent.
#[derive(Debug)]
pub(super) struct Jobs {
    /// Jobs that are attached now.
    pub(super) attached: Arc<AtomicUsize>,
    /// Whether there was one.
    pub(super) had_any: AtomicBool,
    /// Whether the job that left last said that no other follows.
    pub(super) hurry: AtomicBool,
    /// Where they count.
    pub(super) counter_groups: CounterGroups,
}

impl Jobs {
    /// None yet; `attached` is their number from now on.
    pub(super) fn new(attached: Arc<AtomicUsize>) -> Self {
        let (had_any, hurry) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { attached, had_any, hurry, counter_groups: CounterGroups::default() }
    }

    pub(super) fn attached(&self) -> usize {
        self.attached.load(Ordering::Acquire)
    }
}

/// How an agent is to end, once that is known.
#[derive(Debug, Default)]
pub(super) struct Ending {
    end: Mutex<Option<End>>,
    /// Jobs have come or gone, or the end is known.
    pub(super) changed: Notify,
    /// The agent ends for good.
    pub(super) quitting: Notify,
}

impl Ending {
    pub(super) fn end(&self) -> Option<End> {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the agent soon; the first call decides how.
    pub(super) fn end_as(&self, end: End) {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(end);
        self.changed.notify_one();
    }
}

/// Waits for a signal; for ever when none is listened for.
pub(super) async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}
