//! [`Workers`]: the copier and ring threads, from start to stop.

use crate::engine::{CopyEngine, Task, Work};
use crate::tiering::compression::Compression;
use crate::tiering::compression::compressor::Compressor;
use crate::tiering::copy::file_copies::FileCopies;
use crate::tiering::copy::page_follower::PageFollower;
use crate::tiering::core::context::Context;
use crate::tiering::core::lane::Lane;
use crate::tiering::core::shared::Shared;
use crate::tiering::queue::Queue;
use crate::tiering::queue::engine_lane::EngineLanes;
use crate::tiering::queue::waker::Waker;
use crate::tiering::schedule::dispatcher::{Dispatcher, Next};
use crate::tiering::schedule::peer_batches::PeerBatches;
use crate::tiering::schedule::worker_pool::{Woken, WorkerPool};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time without work after which a ring frees its buffers.
const RING_REST_AFTER: Duration = Duration::from_secs(5);

/// The work of one lane, as the copy engines take it.
struct InLane<'a>(&'a Arc<Workers>, Lane);

impl Work for InLane<'_> {
    fn next(&self) -> Option<Box<dyn Task + '_>> {
        while !self.0.cx.stop.load(Ordering::Relaxed) {
            let next = self.0.dispatcher.next_job(self.1).or_else(|| self.0.dispatcher.next_ahead(self.1))?;
            if self.1 == Lane::Threads && self.0.worker_pool.took_work() {
                self.0.start_copier();
            }
            match next {
                Next::Pack(waiting) => self.0.compressor.compress_next(waiting),
                Next::Batch(batch) => self.0.batches.fetch(batch, |task| self.0.lanes.engines.threads.take(task)),
                Next::File(job) => {
                    if let Some(mut task) = self.0.copies.begin(job) {
                        task.assigned(self.1);
                        return Some(Box::new(task));
                    }
                }
                Next::Chunk(chunk) => {
                    if let Some(mut chunk) = chunk.ready() {
                        chunk.assigned(self.1);
                        return Some(Box::new(chunk));
                    }
                }
            }
        }
        None
    }
}

/// The copier and ring threads.
pub(crate) struct Workers {
    cx: Arc<Context>,
    waker: Arc<Waker>,
    lanes: Arc<EngineLanes>,
    compressor: Arc<Compressor>,
    copies: Arc<FileCopies>,
    batches: PeerBatches,
    dispatcher: Arc<Dispatcher>,
    page_follower: PageFollower,
    worker_pool: WorkerPool,
    /// Copiers that were started so far, for their names.
    started: AtomicUsize,
    /// Whether the log has that the system starts no more threads.
    said: AtomicBool,
}

impl Workers {
    pub(crate) fn new(
        shared: &Shared,
        (queue, compression, copies, batches): (&Queue, &Compression, &Arc<FileCopies>, PeerBatches),
        dispatcher: &Arc<Dispatcher>,
        page_follower: PageFollower,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            waker: queue.waker.clone(),
            lanes: queue.lanes.clone(),
            compressor: compression.compressor.clone(),
            copies: copies.clone(),
            batches,
            dispatcher: dispatcher.clone(),
            page_follower,
            worker_pool: WorkerPool::new(shared.cx.options.max_demands + shared.cx.options.remote),
            started: AtomicUsize::new(0),
            said: AtomicBool::new(false),
        }
    }

    /// Starts the threads: rings, and the first copiers.
    pub(crate) fn run(self: &Arc<Self>) {
        if let Err(e) = self.spawn("pages".to_owned(), |me| me.page_follower.run()) {
            tracing::warn!(error = %e, "files that are mapped are not fetched ahead: the system allows no more threads");
        }
        for i in 0..self.lanes.engines.rings {
            if let Err(e) = self.spawn(format!("ring-{i}"), Self::ring) {
                tracing::warn!(rings = i, error = %e, "fewer rings than there should be: the system allows no more threads");
                break;
            }
        }
        self.start_first();
    }

    fn spawn(self: &Arc<Self>, name: String, work: fn(&Arc<Self>)) -> std::io::Result<()> {
        let me = self.clone();
        std::thread::Builder::new().name(name).stack_size(256 * 1024).spawn(move || work(&me)).map(drop)
    }

    /// Starts the copiers that there always are.
    fn start_first(self: &Arc<Self>) {
        while !self.cx.stop.load(Ordering::Relaxed) && self.worker_pool.needs_one() {
            if !self.start_copier() {
                return;
            }
        }
    }

    /// Starts, where the system did not allow it before, the copiers that there always are, and one
    /// that hears demands.
    pub(crate) fn maintain(self: &Arc<Self>) {
        self.start_first();
        if !self.cx.stop.load(Ordering::Relaxed) && self.worker_pool.lacks_listener() {
            self.start_copier();
        }
    }

    /// Starts a copier that the pool counts as started.
    fn start_copier(self: &Arc<Self>) -> bool {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        match self.spawn(format!("copier-{number}"), Self::copier) {
            Ok(()) => true,
            Err(e) => {
                self.worker_pool.was_not_started();
                if !self.said.swap(true, Ordering::Relaxed) {
                    tracing::warn!(error = %e, "fewer copiers than configured: the system allows no more threads");
                }
                false
            }
        }
    }

    /// Ends the copiers after their current copy.
    pub(crate) fn stop(&self) {
        self.cx.stop.store(true, Ordering::Relaxed);
        self.waker.wake_all();
        self.page_follower.stop();
        self.worker_pool.call_all();
    }

    /// A copier: works while there is work, then sleeps; ends when there was none for a while.
    fn copier(self: &Arc<Self>) {
        let ctl = self.cx.ctl.ctl;
        loop {
            // Read before looking for work: a request after that ends the sleep at once.
            let (seen, since) = (ctl.demand.load(Ordering::SeqCst), Instant::now());
            self.lanes.engines.threads.run(&InLane(self, Lane::Threads));
            if self.cx.stop.load(Ordering::Relaxed) {
                return;
            }
            let sleep = |patience| self.worker_pool.sleep(&ctl.demand, seen, &ctl.sleepers, patience);
            if self.dispatcher.patiently(since, sleep) == Woken::ToEnd {
                return;
            }
        }
    }

    /// A ring: works while there is work, then sleeps until it is woken. What it keeps for the next
    /// burst it frees after a while.
    fn ring(self: &Arc<Self>) {
        let Some(uring) = &self.lanes.engines.uring else { return };
        loop {
            let (heard, since) = (self.waker.ring_waker.heard(), Instant::now());
            uring.run(&InLane(self, Lane::Rings));
            if self.cx.stop.load(Ordering::Relaxed) {
                return;
            }
            let idle_since = Instant::now();
            let has_patience = self.dispatcher.patiently(since, |patience| {
                let time = patience.unwrap_or(RING_REST_AFTER).min(RING_REST_AFTER);
                self.waker.ring_waker.sleep(heard, Some(time));
                patience.is_some()
            });
            // (One that waits for the reserve of readers has to look for work after that.)
            let is_idle = !has_patience && idle_since.elapsed() >= RING_REST_AFTER;
            if is_idle && self.waker.ring_waker.heard() == heard {
                uring.rest();
                self.waker.ring_waker.sleep(heard, None);
            }
        }
    }
}
