//! The threads that copy: started when there is work, ended when there is none for a while.

use crate::copy::{CopyContext, CopyOutcome, CopyProgress, copy};
use crate::plan::CopyRequest;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Copies that run at once, at most.
pub const MAX_COPIES: usize = 16;
/// Copies of large files among them, at most.
pub const MAX_LARGE_COPIES: usize = 4;
/// A file of this size is large, in bytes.
pub const LARGE_BYTES: u64 = 8 << 20;
/// How long a thread without work waits.
const IDLE_TIME: Duration = Duration::from_secs(5);

/// A copy that has ended.
#[derive(Debug)]
pub struct Finished {
    /// What was asked.
    pub request: CopyRequest,
    /// How it ended.
    pub outcome: CopyOutcome,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(CopyRequest, bool)>,
    running: HashMap<u64, Arc<CopyProgress>>,
    large: usize,
    idle: usize,
    /// Threads that take copies. (Of `threads` some may have ended.)
    working: usize,
    threads: Vec<JoinHandle<()>>,
    finished: Vec<Finished>,
    is_stopping: bool,
}

/// The pool of one output root.
#[derive(Debug)]
pub struct Copier {
    context: Arc<CopyContext>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Copier {
    /// A pool without threads.
    #[must_use]
    pub fn new(context: Arc<CopyContext>) -> Self {
        Self { context, shared: Arc::default() }
    }

    /// Whether a file waits for its copy or is being copied.
    #[must_use]
    pub fn is_busy_with(&self, id: u64) -> bool {
        let queue = self.shared.lock();
        queue.running.contains_key(&id) || queue.waiting.iter().any(|(request, _)| request.staged.id == id)
    }

    /// How many more copies may be handed over.
    #[must_use]
    pub fn capacity(&self) -> usize {
        let queue = self.shared.lock();
        (2 * MAX_COPIES).saturating_sub(queue.waiting.len() + queue.running.len())
    }

    /// Files that wait or are being copied.
    #[must_use]
    pub fn busy(&self) -> Vec<u64> {
        let queue = self.shared.lock();
        queue.running.keys().copied().chain(queue.waiting.iter().map(|(request, _)| request.staged.id)).collect()
    }

    /// Bytes copied so far of the files that are being copied.
    #[must_use]
    pub fn progress(&self) -> HashMap<u64, u64> {
        let queue = self.shared.lock();
        queue.running.iter().map(|(id, copy)| (*id, copy.bytes.load(Ordering::Relaxed))).collect()
    }

    /// Hands over a copy.
    pub fn submit(&self, request: CopyRequest) {
        let size = self.context.staging.stat_data(&request.staged).map_or(0, |st| st.st_size as u64);
        let mut queue = self.shared.lock();
        queue.waiting.push_back((request, size >= LARGE_BYTES));
        if queue.idle < queue.waiting.len() && queue.working < MAX_COPIES {
            let (context, shared) = (self.context.clone(), self.shared.clone());
            let thread = std::thread::Builder::new().name("outputs-copy".into());
            queue.threads.retain(|thread| !thread.is_finished());
            match thread.spawn(move || run(&context, &shared)) {
                Ok(thread) => {
                    queue.threads.push(thread);
                    queue.working += 1;
                }
                // A thread that runs takes it.
                Err(e) => tracing::warn!("no thread to copy outputs: {e}"),
            }
        }
        drop(queue);
        self.shared.changed.notify_one();
    }

    /// Gives up the copy of a file. One that runs ends with its next write.
    pub fn cancel(&self, id: u64) {
        let mut queue = self.shared.lock();
        queue.waiting.retain(|(request, _)| request.staged.id != id);
        if let Some(copy) = queue.running.get(&id) {
            copy.is_cancelled.store(true, Ordering::Release);
        }
    }

    /// Takes the copies that have ended.
    #[must_use]
    pub fn take_finished(&self) -> Vec<Finished> {
        std::mem::take(&mut self.shared.lock().finished)
    }

    /// Ends all threads. Copies that run give up.
    pub fn stop(&self) {
        self.context.is_stopping.store(true, Ordering::Release);
        let threads = {
            let mut queue = self.shared.lock();
            queue.is_stopping = true;
            queue.waiting.clear();
            std::mem::take(&mut queue.threads)
        };
        self.shared.changed.notify_all();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

/// Takes the next copy that may run now.
fn take(context: &CopyContext, queue: &mut Queue) -> Option<(CopyRequest, bool)> {
    if queue.running.len() >= context.latency.limit(MAX_COPIES) {
        return None;
    }
    let may_be_large = queue.large < context.latency.limit(MAX_LARGE_COPIES);
    let at = queue.waiting.iter().position(|(_, is_large)| !is_large || may_be_large)?;
    queue.waiting.remove(at)
}

fn run(context: &CopyContext, shared: &Shared) {
    let mut queue = shared.lock();
    while !queue.is_stopping {
        let Some((request, is_large)) = take(context, &mut queue) else {
            queue.idle += 1;
            let (back, waited) = shared.changed.wait_timeout(queue, IDLE_TIME).unwrap_or_else(PoisonError::into_inner);
            queue = back;
            queue.idle -= 1;
            if waited.timed_out() && queue.waiting.is_empty() {
                queue.working -= 1;
                return;
            }
            continue;
        };
        let progress = Arc::new(CopyProgress::default());
        queue.running.insert(request.staged.id, progress.clone());
        queue.large += usize::from(is_large);
        drop(queue);
        let outcome = copy(context, &request, &progress);
        queue = shared.lock();
        queue.running.remove(&request.staged.id);
        queue.large -= usize::from(is_large);
        queue.finished.push(Finished { request, outcome });
        // The drain sleeps on the counter of records.
        context.staging.map().notify_agent();
        shared.changed.notify_one();
    }
}
