//! [`Refetch`]: has files that were refused, or whose copies were dropped, looked at again.
//!
//! Invariant: each round is bounded, both in retries and in words that the walk looks at.

use crate::sync::lock;
use crate::tiering::core::context::Context;
use crate::tiering::core::segments::Segments;
use crate::tiering::core::shared::Shared;
use crate::tiering::core::source_facts::SourceFacts;
use crate::tiering::core::state_transition::swap;
use crate::tiering::queue::retry_backoff::RetryBackoff;
use crate::tiering::queue::waker::Waker;
use crate::tiering::queue::work_queue::WorkQueue;
use monarch_abi::demand::file_key;
use monarch_abi::word::State;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Retries in one round.
const MAX_RETRIES_PER_ROUND: usize = 4096;
/// Retries in one round after a tier has failed, until a copy succeeds.
const MAX_PROBES_PER_ROUND: usize = 8;
/// Words that one round of the walk looks at.
const WALK_WORDS_PER_ROUND: u32 = 50_000;

/// Has files looked at again, some in each round.
pub(crate) struct Refetch {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    retry_backoff: Arc<Mutex<RetryBackoff>>,
    waker: Arc<Waker>,
    source_facts: Arc<SourceFacts>,
    queue: Arc<WorkQueue>,
    walk: Mutex<Option<(usize, u32)>>,
}

impl Refetch {
    pub(crate) fn new(
        shared: &Shared,
        retry_backoff: &Arc<Mutex<RetryBackoff>>,
        waker: &Arc<Waker>,
        queue: &Arc<WorkQueue>,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            retry_backoff: retry_backoff.clone(),
            waker: waker.clone(),
            source_facts: shared.source_facts.clone(),
            queue: queue.clone(),
            walk: Mutex::default(),
        }
    }

    /// Starts a walk that turns every Refused word to Absent, some in each round.
    pub(crate) fn start_walk(&self) {
        *lock(&self.walk) = Some((0, 0));
    }

    /// Queues files for prefetch again, but for those on tape: a reader or a job has to ask for
    /// these.
    pub(crate) fn fetch_again(&self, mut keys: Vec<u64>) {
        keys.retain(|&key| !self.source_facts.is_released(key));
        if self.cx.options.prefetch && !keys.is_empty() {
            self.queue.lines().retry(keys);
            self.waker.wake_all();
        }
    }

    /// Turns files whose pause is over back to Absent, so that demand and prefetch see them again;
    /// some in each round. While no tier takes copies they stay Refused, so that their readers go
    /// to the PFS without asking. After that a few show whether a tier takes copies again.
    pub(crate) fn second_tries(&self) {
        if self.queue.all_suspended() {
            return;
        }
        let now = Instant::now();
        let mut again = Vec::new();
        let tries =
            if self.cx.tiers.iter().any(|t| t.space.doubtful()) { MAX_PROBES_PER_ROUND } else { MAX_RETRIES_PER_ROUND };
        for _ in 0..tries {
            let due = lock(&self.retry_backoff).due(now);
            let Some((key, word)) = due else { break };
            let Some((_, entry)) = self.segments.entry(key) else { continue };
            if swap(&entry, word, word.next(State::Absent)) {
                again.push(key);
            }
        }
        self.fetch_again(again);
        if lock(&self.retry_backoff).walk_due(now) {
            *lock(&self.walk) = Some((0, 0));
        }
        self.walk_on();
    }

    /// Continues the walk that turns every Refused word to Absent, if there is one.
    fn walk_on(&self) {
        let mut walk = lock(&self.walk);
        let Some((number, from)) = *walk else { return };
        if number >= self.segments.read().len() {
            *walk = None;
            if self.cx.options.prefetch {
                self.queue.lines().begin_all();
                self.waker.wake_all();
            }
            return;
        }
        let len = self.segments.segment(number).map_or(0, |live| live.segment.index.len() as u32);
        let to = len.min(from.saturating_add(WALK_WORDS_PER_ROUND));
        for id in from..to {
            if let Some((_, entry)) = self.segments.entry(file_key(number, id)) {
                let w = entry.word();
                if w.state() == State::Refused {
                    swap(&entry, w, w.next(State::Absent));
                }
            }
        }
        *walk = Some(if to == len { (number + 1, 0) } else { (number, to) });
    }

    /// Fetches a file again whose copy was dropped.
    pub(crate) fn refetch(&self, key: u64) {
        self.fetch_again(vec![key]);
    }
}
