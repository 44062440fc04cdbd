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
use crate::tiering::schedule::worker_pool::WorkerPool;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The work of one lane, as the copy engines take it.
struct InLane<'a>(&'a Workers, Lane);

impl Work for InLane<'_> {
    fn next(&self) -> Option<Box<dyn Task + '_>> {
        while !self.0.cx.stop.load(Ordering::Relaxed) {
            match self.0.dispatcher.next_job(self.1).or_else(|| self.0.dispatcher.next_ahead(self.1))? {
                Next::Pack(waiting) => self.0.compressor.compress_next(waiting),
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
    dispatcher: Arc<Dispatcher>,
    page_follower: PageFollower,
    worker_pool: WorkerPool,
}

impl Workers {
    pub(crate) fn new(
        shared: &Shared,
        queue: &Queue,
        compression: &Compression,
        copies: &Arc<FileCopies>,
        dispatcher: &Arc<Dispatcher>,
        page_follower: PageFollower,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            waker: queue.waker.clone(),
            lanes: queue.lanes.clone(),
            compressor: compression.compressor.clone(),
            copies: copies.clone(),
            dispatcher: dispatcher.clone(),
            page_follower,
            worker_pool: WorkerPool::default(),
        }
    }

    /// Starts the threads: rings and copiers.
    pub(crate) fn run(self: &Arc<Self>) {
        let spawn = |name: String, work: fn(&Self)| {
            let me = self.clone();
            std::thread::Builder::new().name(name).stack_size(256 * 1024).spawn(move || work(&me))
        };
        if let Err(e) = spawn("pages".to_owned(), |me| me.page_follower.run()) {
            tracing::warn!(error = %e, "files that are mapped are not fetched ahead: the system allows no more threads");
        }
        for i in 0..self.lanes.engines.rings {
            if let Err(e) = spawn(format!("ring-{i}"), Self::ring) {
                tracing::warn!(rings = i, error = %e, "fewer rings than there should be: the system allows no more threads");
                break;
            }
        }
        for i in 0..self.cx.options.max_inflight + self.cx.options.remote {
            if let Err(e) = spawn(format!("copier-{i}"), Self::copier) {
                tracing::warn!(copiers = i, error = %e, "fewer copiers than configured: the system allows no more threads");
                return;
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

    /// A copier: works while there is work, then sleeps.
    fn copier(&self) {
        let ctl = self.cx.ctl.ctl;
        loop {
            // Read before looking for work: a request after that ends the sleep at once.
            let (seen, since) = (ctl.demand.load(Ordering::SeqCst), Instant::now());
            self.lanes.engines.threads.run(&InLane(self, Lane::Threads));
            if self.cx.stop.load(Ordering::Relaxed) {
                return;
            }
            self.dispatcher
                .patiently(since, |patience| self.worker_pool.sleep(&ctl.demand, seen, &ctl.sleepers, patience));
        }
    }

    /// A ring: works while there is work, then sleeps until it is woken.
    fn ring(&self) {
        let Some(uring) = &self.lanes.engines.uring else { return };
        loop {
            let (heard, since) = (self.waker.ring_waker.heard(), Instant::now());
            uring.run(&InLane(self, Lane::Rings));
            if self.cx.stop.load(Ordering::Relaxed) {
                return;
            }
            self.dispatcher.patiently(since, |patience| self.waker.ring_waker.sleep(heard, patience));
        }
    }
}
